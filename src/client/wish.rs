//! A request for a grant, and its commands.

use std::time::Duration;

use crate::client::command::Command;
use crate::client::error::{Error, Result};
use crate::client::value::Value;

/// The kind of grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `LOCK.ACQUIRE`.
    Lock { shared: bool, delay_ms: u64, max_hold_ms: u64 },
    /// `LOCK.ACQUIREALL`.
    All,
    /// `SEM.ACQUIRE`.
    Semaphore { limit: u32, permits: u32 },
}

/// How long to wait in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    For(Duration),
    Forever,
}

/// A request for a grant.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub kind: Kind,
    pub names: Vec<Vec<u8>>,
    /// Named by the caller; otherwise each acquisition gets a unique one.
    pub owner: Option<Vec<u8>>,
    pub lease_ms: u64,
    pub wait: Wait,
    pub session: bool,
    /// How long a session's grant outlives its connection, if it does.
    pub grace: Option<Duration>,
    pub renew: bool,
}

/// The default lease.
const LEASE_MS: u64 = 30_000;

/// Converts to whole milliseconds, at least one.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

impl Wish {
    pub fn new(kind: Kind, names: Vec<Vec<u8>>) -> Wish {
        Wish { kind, names, owner: None, lease_ms: LEASE_MS, wait: Wait::Forever, session: false, grace: None, renew: true }
    }

    pub fn is_semaphore(&self) -> bool {
        matches!(self.kind, Kind::Semaphore { .. })
    }

    /// Its name in messages.
    pub fn title(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|name| String::from_utf8_lossy(name)).collect();
        names.join("', '")
    }

    /// The command that acquires it for an owner. Sent again with the same id, it does not run twice.
    pub fn acquire(&self, owner: &[u8], wait: Wait, id: &str) -> Command {
        let mut command = match self.kind {
            Kind::Lock { shared, delay_ms, max_hold_ms } => {
                let mut command = Command::new("LOCK.ACQUIRE").args(&self.names).arg(owner).arg(self.lease_ms);
                if shared {
                    command = command.arg("SHARED");
                }
                if delay_ms > 0 {
                    command = command.arg("DELAY").arg(delay_ms);
                }
                if max_hold_ms > 0 {
                    command = command.arg("MAXHOLD").arg(max_hold_ms);
                }
                command
            }
            Kind::All => Command::new("LOCK.ACQUIREALL").arg(self.names.len()).args(&self.names).arg(owner).arg(self.lease_ms),
            Kind::Semaphore { limit, permits } => {
                let command = Command::new("SEM.ACQUIRE").args(&self.names).arg(owner).arg(self.lease_ms);
                command.arg("LIMIT").arg(limit).arg("PERMITS").arg(permits)
            }
        };
        match wait {
            Wait::No => {}
            // Rounded up, so that the wait is never shorter than requested.
            Wait::For(wait) => command = command.arg("WAIT").arg(ms(wait.saturating_add(Duration::from_nanos(999_999)))),
            Wait::Forever => command = command.arg("WAIT").arg(0),
        }
        let command = command.arg("REQUEST").arg(id);
        if self.session { command.arg("SESSION") } else { command }
    }

    /// The command that releases one name, once or entirely. With a token, it releases that grant and no later one.
    pub fn release(&self, name: &[u8], owner: &[u8], all: bool, token: Option<u64>, id: &str) -> Command {
        let command = if self.is_semaphore() { "SEM.RELEASE" } else { "LOCK.RELEASE" };
        let mut command = Command::new(command).arg(name).arg(owner);
        if all {
            command = command.arg("ALL");
        }
        if let Some(token) = token {
            command = command.arg("TOKEN").arg(token);
        }
        command.arg("REQUEST").arg(id)
    }

    /// The command that restarts the lease of one name, for the grant with this token.
    pub fn renewal(&self, name: &[u8], owner: &[u8], lease_ms: u64, token: Option<u64>) -> Command {
        let command = if self.is_semaphore() { "SEM.RENEW" } else { "LOCK.RENEW" };
        let command = Command::new(command).arg(name).arg(owner).arg(lease_ms);
        match token {
            Some(token) => command.arg("TOKEN").arg(token),
            None => command,
        }
    }

    /// Whether the server may replace the token of a grant while it is held: a named owner of a shared lock may upgrade it to an
    /// exclusive one.
    pub fn may_be_upgraded(&self) -> bool {
        self.owner.is_some() && matches!(self.kind, Kind::Lock { shared: true, .. })
    }

    /// The command that names a connection's session.
    pub fn naming(&self, id: &str) -> Command {
        let grace_ms = self.grace.map_or(0, ms);
        Command::new("LOCK.SESSION").arg(id).arg("GRACE").arg(grace_ms)
    }

    /// The tokens in a reply; `None` if the request was not granted.
    pub fn tokens(&self, reply: Value) -> Result<Option<Vec<u64>>> {
        let tokens = match reply {
            Value::Null => return Ok(None),
            Value::Array(_) => reply.into::<Vec<u64>>()?,
            one => vec![one.into::<u64>()?],
        };
        if tokens.len() != self.names.len() {
            return Err(Error::Type { wanted: "a token for each name", got: format!("{} tokens", tokens.len()) });
        }
        Ok(Some(tokens))
    }

    /// The longest time that a grant lasts without renewal.
    pub fn lease(&self) -> Duration {
        match self.kind {
            Kind::Lock { max_hold_ms, .. } if max_hold_ms > 0 => Duration::from_millis(self.lease_ms.min(max_hold_ms)),
            _ => Duration::from_millis(self.lease_ms),
        }
    }
}
