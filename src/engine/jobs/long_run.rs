//! Long scripts: a supervisor in the driver decides whether a script may continue, and may execute other sessions' requests
//! meanwhile.

use crate::base::error::Error;

/// The supervisor's decision about a running script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The script continues.
    Continue,
    /// The script ends with an error, even after writes, because the server ends: neither its writes nor anything after them
    /// reaches the change log.
    Kill,
}

/// A running script or function, while the supervisor decides about it.
#[derive(Debug)]
pub struct Run {
    /// Whether it is a function rather than a script.
    pub function: bool,
    /// Whether it has written anything.
    pub wrote: bool,
    /// Whether it is to be killed.
    pub killed: bool,
    /// Its duration so far in milliseconds, as reported by the supervisor.
    pub ms: u64,
    /// The arguments of the command that runs it. They live as long as it runs, and so longer than this value.
    pub(crate) command: &'static [&'static [u8]],
}

impl Run {
    /// The arguments of the command that runs it.
    pub fn command(&self) -> &[&[u8]] {
        self.command
    }

    /// The error reply for other sessions meanwhile.
    pub fn busy(&self) -> Error {
        if self.function { Error::BUSY_FUNCTION } else { Error::BUSY }
    }
}
