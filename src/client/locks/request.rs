//! What to acquire, for whom and for how long; and the commands that acquire, renew and release it.

use std::time::Duration;

use crate::client::command::{Blocking, Command};
use crate::client::error::{Error, Result};
use crate::client::value::Value;

/// The kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `LOCK.ACQUIRE`.
    Lock { shared: bool, delay_ms: u64, max_hold_ms: u64 },
    /// `LOCK.ACQUIREALL`.
    All,
    /// `SEM.ACQUIRE`.
    Semaphore { limit: u32, permits: u32 },
}

/// What to acquire, and how.
#[derive(Clone, Debug)]
pub(crate) struct LockRequest {
    pub kind: Kind,
    pub names: Vec<Vec<u8>>,
    /// The owner that the caller has named. Without one, each acquisition gets a unique owner.
    pub owner: Option<Vec<u8>>,
    pub lease_ms: u64,
    /// How long to wait in the queue.
    pub wait: Blocking,
    /// Whether the grant is bound to its connection.
    pub session: bool,
    /// How long a grant that is bound to a connection outlives the connection. With a grace, the session has a name.
    pub grace: Option<Duration>,
    /// Whether the guard renews the lease.
    pub renew: bool,
}

/// The default lease.
const LEASE_MS: u64 = 30_000;

/// Converts to whole milliseconds, at least one.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

impl LockRequest {
    pub fn new(kind: Kind, names: Vec<Vec<u8>>) -> LockRequest {
        LockRequest {
            kind,
            names,
            owner: None,
            lease_ms: LEASE_MS,
            wait: Blocking::Forever,
            session: false,
            grace: None,
            renew: true,
        }
    }

    pub fn is_semaphore(&self) -> bool {
        matches!(self.kind, Kind::Semaphore { .. })
    }

    /// The names, as error messages show them between quotes.
    pub fn title(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|name| String::from_utf8_lossy(name)).collect();
        names.join("', '")
    }

    /// The command that acquires it for an owner. The server carries out only one of several copies with the same request id.
    pub fn acquire(&self, owner: &[u8], lease_ms: u64, wait: Blocking, request_id: &str) -> Command {
        let mut command = match self.kind {
            Kind::Lock { shared, delay_ms, max_hold_ms } => {
                let mut command = Command::new("LOCK.ACQUIRE").args(&self.names).arg(owner).arg(lease_ms);
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
            Kind::All => Command::new("LOCK.ACQUIREALL").arg(self.names.len()).args(&self.names).arg(owner).arg(lease_ms),
            Kind::Semaphore { limit, permits } => {
                let command = Command::new("SEM.ACQUIRE").args(&self.names).arg(owner).arg(lease_ms);
                command.arg("LIMIT").arg(limit).arg("PERMITS").arg(permits)
            }
        };
        match wait {
            Blocking::No => {}
            // Rounded up, so that the wait is not shorter than requested.
            Blocking::For(wait) => command = command.arg("WAIT").arg(ms(wait.saturating_add(Duration::from_nanos(999_999)))),
            Blocking::Forever => command = command.arg("WAIT").arg(0),
        }
        let command = command.arg("REQUEST").arg(request_id);
        if self.session { command.arg("SESSION") } else { command }
    }

    /// The command that releases one hold of one name, or `all` holds. With a token, it releases that grant and no later one.
    pub fn release(&self, name: &[u8], owner: &[u8], all: bool, token: Option<u64>, request_id: &str) -> Command {
        let command = if self.is_semaphore() { "SEM.RELEASE" } else { "LOCK.RELEASE" };
        let mut command = Command::new(command).arg(name).arg(owner);
        if all {
            command = command.arg("ALL");
        }
        if let Some(token) = token {
            command = command.arg("TOKEN").arg(token);
        }
        command.arg("REQUEST").arg(request_id)
    }

    /// The command that restarts the lease of one name. With a token, it renews that grant and no later one.
    pub fn renewal(&self, name: &[u8], owner: &[u8], lease_ms: u64, token: Option<u64>) -> Command {
        let command = if self.is_semaphore() { "SEM.RENEW" } else { "LOCK.RENEW" };
        let command = Command::new(command).arg(name).arg(owner).arg(lease_ms);
        if let Some(token) = token { command.arg("TOKEN").arg(token) } else { command }
    }

    /// The command that binds the grant of one name to the connection that sends it, and leaves its lease as it is.
    pub fn keeping(&self, name: &[u8], owner: &[u8], token: Option<u64>) -> Command {
        let command = if self.is_semaphore() { "SEM.RENEW" } else { "LOCK.RENEW" };
        let command = Command::new(command).arg(name).arg(owner).arg("KEEP");
        if let Some(token) = token { command.arg("TOKEN").arg(token) } else { command }
    }

    /// Whether the server may replace the token of the grant while it is held: a named owner of a shared lock may upgrade it to
    /// an exclusive lock, which has a token of its own.
    pub fn may_be_upgraded(&self) -> bool {
        self.owner.is_some() && matches!(self.kind, Kind::Lock { shared: true, .. })
    }

    /// The command that starts or resumes a session with this name on a connection.
    pub fn start_session(&self, name: &str) -> Command {
        let grace_ms = self.grace.map_or(0, ms);
        Command::new("LOCK.SESSION").arg(name).arg("GRACE").arg(grace_ms)
    }

    /// The tokens in a reply; `None` if the request was not granted.
    pub fn parse_tokens(&self, reply: Value) -> Result<Option<Vec<u64>>> {
        let tokens = match reply {
            Value::Null => return Ok(None),
            Value::Array(_) => reply.into::<Vec<u64>>()?,
            token => vec![token.into::<u64>()?],
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
