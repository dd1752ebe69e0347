//! What an algorithm stands on: servers, the clocks of its own machine, sleep, chance.

use std::future::Future;
use std::time::Duration;

use crate::client::{Command, Message, Result, Value};

/// The surroundings of one client. A clone is the same client: it shares connections and clocks.
///
/// Every future may be dropped before it ends: whoever crashes does that. A command that was sent by then may have been carried out.
pub trait World: Clone + Send + Sync + 'static {
    /// A subscription to channels.
    type Messages: Messages;

    /// Number of independent servers, at least 1. All but the algorithms of several servers use the first.
    fn servers(&self) -> usize;

    /// Sends a command to a server, and waits for its reply. One that waits on the server disturbs no other.
    ///
    /// # Errors
    /// As [`crate::client::Client::run`]: an error reply is [`crate::client::Error::Reply`], and where the reply is lost
    /// [`crate::client::Error::maybe_applied`] tells whether the command may have been carried out.
    fn call(&self, server: usize, command: Command) -> impl Future<Output = Result<Value>> + Send;

    /// Listens to a channel of a server. When it returns, what is published from then on comes.
    ///
    /// # Errors
    /// As [`World::call`].
    fn subscribe(&self, server: usize, channel: &[u8]) -> impl Future<Output = Result<Self::Messages>> + Send;

    /// Waits.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send;

    /// Time since some fixed moment, by a clock that is never set back: the one for measuring how long something took.
    fn elapsed(&self) -> Duration;

    /// Unix time in milliseconds by the wall clock of this client's machine, which may be wrong, and may be set.
    fn unix_ms(&self) -> i64;

    /// A random number.
    fn random(&self) -> u64;

    /// Runs something beside, until it ends or the client crashes.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);
}

/// A subscription, which ends when it is dropped.
pub trait Messages: Send + 'static {
    /// The next message. The future may be dropped, and nothing is lost.
    ///
    /// # Errors
    /// Where the connection broke: messages may be missing. The next call listens again.
    fn next(&mut self) -> impl Future<Output = Result<Message>> + Send;
}
