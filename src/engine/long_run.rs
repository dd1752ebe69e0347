//! A script that runs long: the driver is asked whether it may go on, and may have other sessions' requests executed meanwhile.

use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;

/// What is decided about a script that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Continue,
    /// It ends with an error, whatever it has done already, as the server ends: what it has written does not reach the change log,
    /// nor does anything after it.
    Kill,
}

/// Asked again and again while a script runs, by whoever drives the engine: it is given the engine in the middle of a command of that
/// session, the instant of that command, and whether it is the first time of this run. It may have other sessions' requests executed.
pub type Supervisor = Box<dyn FnMut(&mut Engine, Now, SessionId, bool) -> Verdict>;

/// A script or a function that runs, while the supervisor is asked about it.
#[derive(Debug)]
pub struct Run {
    /// Whether it is a function, and not a script.
    pub function: bool,
    /// Whether it has written something.
    pub wrote: bool,
    /// Whether it is to end.
    pub killed: bool,
    /// For how long it has run, in milliseconds, as far as the supervisor has said so.
    pub ms: u64,
    /// The arguments of the command that runs it; they live for as long as it runs, and so longer than this.
    pub(crate) command: &'static [&'static [u8]],
}

impl Run {
    /// The arguments of the command that runs it.
    pub fn command(&self) -> &[&[u8]] {
        self.command
    }

    /// What others are told meanwhile.
    pub fn busy(&self) -> Error {
        if self.function { Error::BUSY_FUNCTION } else { Error::BUSY }
    }
}
