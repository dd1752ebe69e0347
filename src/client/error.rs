//! What can go wrong, and whether the command may have been carried out all the same.

use std::fmt;
use std::time::Duration;

/// A result of the client.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// Why something did not work. [`Error::maybe_applied`] tells whether the server may have carried it out all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The URL or the options are wrong, or the command is one that cannot be sent this way. Nothing was sent.
    Invalid(String),
    /// No connection could be made. Nothing was sent.
    Connect(String),
    /// The connection broke.
    Disconnected {
        /// Whether the command had been sent, so that the server may have carried it out.
        maybe_applied: bool,
        /// How it broke.
        reason: String,
    },
    /// No reply, or no connection, within this time.
    Timeout {
        /// Whether the command may have been sent, so that the server may have carried it out.
        maybe_applied: bool,
        /// How long was waited.
        after: Duration,
    },
    /// As many connections are in use as the options allow. Nothing was sent.
    TooManyConnections,
    /// The server does not keep to the protocol, or sends more than the options allow.
    Protocol(String),
    /// The server refused the command: nothing was changed, unless it was a script that failed on its way.
    Reply(ReplyError),
    /// The reply is not of the type that was asked for.
    Type {
        /// The type that was asked for.
        wanted: &'static str,
        /// What came.
        got: String,
    },
    /// The lock was not granted within the time that was to be waited for it.
    NotGranted {
        /// Its name.
        name: String,
        /// How long was waited.
        waited: Duration,
    },
    /// The lock is not held (any more) by whoever wanted to release, renew or use it.
    NotHeld(String),
    /// To wait for the lock would have closed a cycle of owners waiting for each other.
    Deadlock(Deadlock),
    /// A guarded resource has seen a larger fencing token than this one: somebody else has had the lock since.
    Stale {
        /// The token that was refused.
        token: u64,
        /// The largest that was seen.
        seen: u64,
    },
    /// The semaphore has another limit than the one that was given.
    Limit(String),
}

impl Error {
    /// Whether the server may have carried out the command although it failed: the connection broke, or the reply did not come in time.
    pub fn maybe_applied(&self) -> bool {
        match self {
            Error::Disconnected { maybe_applied, .. } | Error::Timeout { maybe_applied, .. } => *maybe_applied,
            Error::Protocol(_) | Error::Type { .. } => true,
            _ => false,
        }
    }

    /// Whether it was the connection, and not the command, so that the same may work on another connection.
    pub fn is_of_connection(&self) -> bool {
        matches!(self, Error::Connect(_) | Error::Disconnected { .. } | Error::Timeout { .. } | Error::Protocol(_))
    }

    /// The code of an error reply: its first word.
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
        let applied = |maybe| if maybe { "; the command may have been carried out" } else { "; the command was not carried out" };
        match self {
            Error::Invalid(reason) | Error::NotHeld(reason) | Error::Limit(reason) => f.write_str(reason),
            Error::Connect(reason) => write!(f, "no connection: {reason}"),
            Error::Disconnected { maybe_applied, reason } => {
                write!(f, "the connection broke: {reason}{}", applied(*maybe_applied))
            }
            Error::Timeout { maybe_applied, after } => write!(f, "no reply within {after:?}{}", applied(*maybe_applied)),
            Error::TooManyConnections => f.write_str("as many connections are in use as the options allow"),
            Error::Protocol(reason) => write!(f, "the server does not keep to the protocol: {reason}"),
            Error::Reply(reply) => reply.fmt(f),
            Error::Type { wanted, got } => write!(f, "the reply is not {wanted} but {got}"),
            Error::NotGranted { name, waited } => write!(f, "lock '{name}' was not granted within {waited:?}"),
            Error::Deadlock(deadlock) => deadlock.fmt(f),
            Error::Stale { token, seen } => write!(f, "token {token} is behind {seen}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<ReplyError> for Error {
    fn from(reply: ReplyError) -> Self {
        let said = || reply.message().to_owned();
        match reply.code() {
            "NOTHELD" => Error::NotHeld(said()),
            "DEADLOCK" => Error::Deadlock(Deadlock::parse(reply.message())),
            "LIMIT" => Error::Limit(said()),
            "STALE" => match stale(reply.message()) {
                Some((token, seen)) => Error::Stale { token, seen },
                None => Error::Reply(reply),
            },
            _ => Error::Reply(reply),
        }
    }
}

/// `token 33 is behind 34 for 'r'`
fn stale(text: &str) -> Option<(u64, u64)> {
    let (token, rest) = text.strip_prefix("token ")?.split_once(" is behind ")?;
    Some((token.parse().ok()?, rest.split(' ').next()?.parse().ok()?))
}

/// An error as the server sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyError {
    text: Box<str>,
}

impl ReplyError {
    pub(crate) fn new(text: &[u8]) -> ReplyError {
        ReplyError { text: String::from_utf8_lossy(text).into() }
    }

    /// Its first word, such as `ERR`, `WRONGTYPE` or `NOSCRIPT`.
    pub fn code(&self) -> &str {
        self.text.split(' ').next().unwrap_or_default()
    }

    /// What comes after the first word.
    pub fn message(&self) -> &str {
        self.text.split_once(' ').map_or("", |(_, message)| message)
    }

    /// All of it.
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

/// A wait that was refused, as it would have closed a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// The cycle, beginning with the owner that was refused; the last one waits for the first. Empty where the names of owners or locks
    /// are such that the text cannot be taken apart.
    pub cycle: Vec<Wait>,
    text: Box<str>,
}

/// One owner in a [`Deadlock`], and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The owner.
    pub owner: String,
    /// The lock that it waits for.
    pub lock: String,
    /// Who is in its way.
    pub behind: String,
    /// Whether that one holds the lock; otherwise it asked for it before.
    pub held: bool,
}

impl Deadlock {
    /// The words of the server.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Takes apart `'x' waits for 'a' held by 'y', who waits for 'b' asked for before by 'x'`.
    fn parse(text: &str) -> Deadlock {
        let cycle = Self::steps(text).unwrap_or_default();
        Deadlock { cycle, text: text.into() }
    }

    fn steps(text: &str) -> Option<Vec<Wait>> {
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
    fn errors_of_locks_have_their_own_types() {
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
        let odd = "DEADLOCK 'it' waits for 'x' waits for 'y'";
        let Error::Deadlock(deadlock) = Error::from(ReplyError::new(odd.as_bytes())) else { panic!("no deadlock") };
        assert!(deadlock.cycle.is_empty() && deadlock.text() == "'it' waits for 'x' waits for 'y'");
    }
}
