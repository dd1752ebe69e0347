//! What is to be acquired, and the commands for it.

use std::time::Duration;

use crate::client::command::Command;
use crate::client::error::{Error, Result};
use crate::client::value::Value;

/// What kind of grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `LOCK.ACQUIRE`.
    Lock { shared: bool, delay_ms: u64, max_hold_ms: u64 },
    /// `LOCK.ACQUIREALL`.
    All,
    /// `SEM.ACQUIRE`.
    Semaphore { limit: u32, permits: u32 },
}

/// How long to wait in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    For(Duration),
    Forever,
}

/// What is to be acquired.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub kind: Kind,
    pub names: Vec<Vec<u8>>,
    /// Given by the caller; each acquisition has one of its own otherwise.
    pub owner: Option<Vec<u8>>,
    pub lease_ms: u64,
    pub wait: Wait,
    pub session: bool,
    /// How long a session's grant outlives its connection, where it does.
    pub grace: Option<Duration>,
    pub renew: bool,
}

/// The lease unless another is given.
const LEASE_MS: u64 = 30_000;

/// Whole milliseconds, at least one.
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

    /// What messages call it.
    pub fn title(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|name| String::from_utf8_lossy(name)).collect();
        names.join("', '")
    }

    /// The command that asks for it, on behalf of an owner. Sent again with the same id, it is not carried out twice.
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
            // Rounded up: who is to wait for so long does not wait for less.
            Wait::For(wait) => command = command.arg("WAIT").arg(ms(wait.saturating_add(Duration::from_nanos(999_999)))),
            Wait::Forever => command = command.arg("WAIT").arg(0),
        }
        let command = command.arg("REQUEST").arg(id);
        if self.session { command.arg("SESSION") } else { command }
    }

    /// The command that releases one name, once or altogether: the grant with a token and no later one, where that is known.
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

    /// The command that restarts the lease of one name, held by the grant with a token.
    pub fn renewal(&self, name: &[u8], owner: &[u8], lease_ms: u64, token: Option<u64>) -> Command {
        let command = if self.is_semaphore() { "SEM.RENEW" } else { "LOCK.RENEW" };
        let command = Command::new(command).arg(name).arg(owner).arg(lease_ms);
        match token {
            Some(token) => command.arg("TOKEN").arg(token),
            None => command,
        }
    }

    /// Whether the server may give a grant another token while it is held: that of a named owner who shares a lock, and may come to have it
    /// alone.
    pub fn may_be_upgraded(&self) -> bool {
        self.owner.is_some() && matches!(self.kind, Kind::Lock { shared: true, .. })
    }

    /// The command that names the session of a connection.
    pub fn naming(&self, id: &str) -> Command {
        let grace_ms = self.grace.map_or(0, ms);
        Command::new("LOCK.SESSION").arg(id).arg("GRACE").arg(grace_ms)
    }

    /// The tokens of a reply; `None` where it was not granted.
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

    /// How long a grant lasts by itself, at most.
    pub fn lease(&self) -> Duration {
        match self.kind {
            Kind::Lock { max_hold_ms, .. } if max_hold_ms > 0 => Duration::from_millis(self.lease_ms.min(max_hold_ms)),
            _ => Duration::from_millis(self.lease_ms),
        }
    }
}
