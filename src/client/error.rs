//! Errors, and whether a failed command may have been carried out anyway.

use std::fmt;
use std::time::Duration;

/// A result of the client.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// Why an operation failed. [`Error::maybe_applied`] says whether the server may have carried the operation out anyway.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The URL or the options are wrong, or the command cannot be sent this way. Nothing was sent.
    Invalid(String),
    /// No connection could be made. Nothing was sent.
    Connect(String),
    /// The connection broke.
    Disconnected {
        /// Whether the command was sent, so that the server may have carried it out.
        maybe_applied: bool,
        /// How the connection broke.
        reason: String,
    },
    /// No reply, or no connection, within the time-out.
    Timeout {
        /// Whether the command may have been sent, so that the server may have carried it out.
        maybe_applied: bool,
        /// The time-out.
        after: Duration,
    },
    /// The number of connections in use has reached the limit of the options. Nothing was sent.
    TooManyConnections,
    /// The server violates the protocol, or its reply exceeds the maximum size in the options.
    Protocol(String),
    /// The server refused the command. Nothing was changed, unless a script failed part of the way through.
    Reply(ReplyError),
    /// The reply does not convert to the requested type.
    Type {
        /// The requested type.
        wanted: &'static str,
        /// The reply.
        got: String,
    },
    /// The lock was not granted within the wait.
    NotGranted {
        /// The lock's name.
        name: String,
        /// How long the acquisition waited.
        waited: Duration,
    },
    /// The owner that tried to release, renew or use the lock does not hold it, or no longer holds it.
    NotHeld(String),
    /// Waiting for the lock would have closed a cycle of owners that wait for each other.
    Deadlock(Deadlock),
    /// A guarded resource has seen a larger fencing token: another owner has held the lock since.
    Stale {
        /// The token that was refused.
        token: u64,
        /// The largest token seen.
        seen: u64,
    },
    /// The semaphore exists with another limit than the given one.
    Limit(String),
}

impl Error {
    /// Whether the server may have carried out the command although it failed: the connection broke, the reply was late, or the
    /// client could not understand the reply.
    pub fn maybe_applied(&self) -> bool {
        match self {
            Error::Disconnected { maybe_applied, .. } | Error::Timeout { maybe_applied, .. } => *maybe_applied,
            Error::Protocol(_) | Error::Type { .. } => true,
            _ => false,
        }
    }

    /// Whether the connection failed, rather than the command, so that the same command may succeed on another connection.
    pub fn is_of_connection(&self) -> bool {
        matches!(self, Error::Connect(_) | Error::Disconnected { .. } | Error::Timeout { .. } | Error::Protocol(_))
    }

    /// The code of an error reply, which is its first word.
    pub fn code(&self) -> Option<&str> {
        match self {
            Error::Reply(reply) => Some(reply.code()),
            Error::NotHeld(_) => Some("NOTHELD"),
            Error::Deadlock(_) => Some("DEADLOCK"),
            Error::Stale { .. } => Some("STALE"),
            Error::Limit(_) => Some("LIMIT"),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let applied = |maybe_applied| {
            if maybe_applied { "; the command may have been carried out" } else { "; the command was not carried out" }
        };
        match self {
            Error::Invalid(reason) | Error::NotHeld(reason) | Error::Limit(reason) => f.write_str(reason),
            Error::Connect(reason) => write!(f, "no connection: {reason}"),
            Error::Disconnected { maybe_applied, reason } => {
                write!(f, "the connection broke: {reason}{}", applied(*maybe_applied))
            }
            Error::Timeout { maybe_applied, after } => write!(f, "no reply within {after:?}{}", applied(*maybe_applied)),
            Error::TooManyConnections => f.write_str("the maximum number of connections is in use"),
            Error::Protocol(reason) => write!(f, "protocol error: {reason}"),
            Error::Reply(reply) => reply.fmt(f),
            Error::Type { wanted, got } => write!(f, "expected {wanted} as the reply, got {got}"),
            Error::NotGranted { name, waited } => write!(f, "lock '{name}' was not granted within {waited:?}"),
            Error::Deadlock(deadlock) => deadlock.fmt(f),
            Error::Stale { token, seen } => write!(f, "fencing token {token} is stale: the resource has seen {seen}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<ReplyError> for Error {
    fn from(reply: ReplyError) -> Self {
        let message = || reply.message().to_owned();
        match reply.code() {
            "NOTHELD" => Error::NotHeld(message()),
            "DEADLOCK" => Error::Deadlock(Deadlock::parse(reply.message())),
            "LIMIT" => Error::Limit(message()),
            "STALE" => match parse_stale(reply.message()) {
                Some((token, seen)) => Error::Stale { token, seen },
                None => Error::Reply(reply),
            },
            _ => Error::Reply(reply),
        }
    }
}

/// The tokens in the message of a `STALE` reply: `token 33 is behind 34 for 'r'`.
fn parse_stale(text: &str) -> Option<(u64, u64)> {
    let (token, rest) = text.strip_prefix("token ")?.split_once(" is behind ")?;
    Some((token.parse().ok()?, rest.split(' ').next()?.parse().ok()?))
}

/// An error reply as the server sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyError {
    text: Box<str>,
}

impl ReplyError {
    pub(crate) fn new(text: &[u8]) -> ReplyError {
        ReplyError { text: String::from_utf8_lossy(text).into() }
    }

    /// The first word, such as `ERR`, `WRONGTYPE` or `NOSCRIPT`.
    pub fn code(&self) -> &str {
        self.text.split(' ').next().unwrap_or_default()
    }

    /// The text after the first word.
    pub fn message(&self) -> &str {
        self.text.split_once(' ').map_or("", |(_, message)| message)
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ReplyError {}

/// A wait that the server refused because it would have closed a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// The cycle, beginning with the refused owner. The last owner waits for the first. Empty if the server's text is ambiguous
    /// because of quotes in the names of owners or locks.
    pub cycle: Vec<Wait>,
    text: Box<str>,
}

/// One owner in a [`Deadlock`], and the lock that it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The owner.
    pub owner: String,
    /// The lock that the owner waits for; empty for one that the user may not see, or several that the server left out.
    pub lock: String,
    /// The owner that it waits for.
    pub behind: String,
    /// Whether the blocking owner is known to hold the lock; otherwise it may be ahead in the queue.
    pub held: bool,
}

impl Deadlock {
    /// The server's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Parses `'x' waits for 'a' held by 'y', who waits for 'b' asked for before by 'x'`.
    fn parse(text: &str) -> Deadlock {
        let cycle = Self::steps(text).unwrap_or_default();
        Deadlock { cycle, text: text.into() }
    }

    fn steps(text: &str) -> Option<Vec<Wait>> {
        let unnamed = [" waits for a lock that you may not see behind '", " waits for locks that are not shown here behind '"];
        let text = unnamed.iter().fold(text.to_owned(), |text, part| text.replace(part, " waits for '' asked for before by '"));
        let (first, rest) = text.strip_prefix('\'')?.split_once("' waits for '")?;
        let mut owner = first.to_owned();
        let mut cycle = Vec::new();
        for step in rest.strip_suffix('\'')?.split("', who waits for '") {
            let held = step.split_once("' held by '");
            let (lock, behind) = held.or_else(|| step.split_once("' asked for before by '"))?;
            cycle.push(Wait { owner, lock: lock.to_owned(), behind: behind.to_owned(), held: held.is_some() });
            owner = behind.to_owned();
        }
        (owner == first).then_some(cycle)
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "deadlock: {}", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_replies_of_locks_become_their_own_types() {
        let error = |text: &str| Error::from(ReplyError::new(text.as_bytes()));
        assert_eq!(error("STALE token 33 is behind 34 for 'r'"), Error::Stale { token: 33, seen: 34 });
        assert_eq!(error("NOTHELD lock 'a' is not held by 'x': never held").code(), Some("NOTHELD"));
        assert!(matches!(error("LIMIT semaphore 's' has limit 3, not 5"), Error::Limit(_)));
        assert_eq!(error("WRONGTYPE Operation").code(), Some("WRONGTYPE"));
        assert_eq!(error("ERR").code(), Some("ERR"));
        assert_eq!(error("").code(), Some(""));
        assert_eq!(error("STALE as bread"), Error::Reply(ReplyError::new(b"STALE as bread")));
    }

    #[test]
    fn a_deadlock_names_its_cycle() {
        let text = "DEADLOCK 'x' waits for 'b' held by 'y', who waits for 'a' asked for before by 'x'";
        let Error::Deadlock(deadlock) = Error::from(ReplyError::new(text.as_bytes())) else { panic!("no deadlock") };
        let wait = |owner: &str, lock: &str, behind: &str, held| Wait {
            owner: owner.to_owned(),
            lock: lock.to_owned(),
            behind: behind.to_owned(),
            held,
        };
        assert_eq!(deadlock.cycle, [wait("x", "b", "y", true), wait("y", "a", "x", false)]);
        let text = "DEADLOCK 'x' waits for 'b' held by 'y', who waits for a lock that you may not see behind 'x'";
        let Error::Deadlock(deadlock) = Error::from(ReplyError::new(text.as_bytes())) else { panic!("no deadlock") };
        assert_eq!(deadlock.cycle, [wait("x", "b", "y", true), wait("y", "", "x", false)]);
        let text = "DEADLOCK 'x' waits for 'b' held by 'y', who waits for locks that are not shown here behind 'x'";
        let Error::Deadlock(deadlock) = Error::from(ReplyError::new(text.as_bytes())) else { panic!("no deadlock") };
        assert_eq!(deadlock.cycle, [wait("x", "b", "y", true), wait("y", "", "x", false)]);
        let odd = "DEADLOCK 'it' waits for 'x' waits for 'y'";
        let Error::Deadlock(deadlock) = Error::from(ReplyError::new(odd.as_bytes())) else { panic!("no deadlock") };
        assert!(deadlock.cycle.is_empty() && deadlock.text() == "'it' waits for 'x' waits for 'y'");
    }
}
