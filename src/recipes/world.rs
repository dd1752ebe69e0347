//! The environment of an algorithm: servers, the clocks of its own machine, sleep and randomness.

use std::future::Future;
use std::time::Duration;

use crate::client::{Command, Message, Result, Value};

/// The environment of one client. A clone is the same client: it shares connections and clocks.
///
/// Every future may be dropped before it ends: that is how a simulated client crashes. A command that was sent before may have
/// been carried out.
pub trait World: Clone + Send + Sync + 'static {
    /// A subscription to channels.
    type Messages: Messages;

    /// Number of independent servers, at least 1. Only algorithms for several servers use more than the first.
    fn servers(&self) -> usize;

    /// Sends a command to a server, and waits for its reply. A blocking command does not delay others.
    ///
    /// # Errors
    /// As [`crate::client::Client::run`]. An error reply is [`crate::client::Error::Reply`]. If the reply is lost,
    /// [`crate::client::Error::maybe_applied`] says whether the command may have been carried out.
    fn call(&self, server: usize, command: Command) -> impl Future<Output = Result<Value>> + Send;

    /// Sends two commands to a server on one connection, which no other command uses until the second one has its reply. Returns the
    /// reply to `then`. A world whose commands share one connection need not implement this.
    ///
    /// # Errors
    /// As [`World::call`], for either command.
    fn call_together(&self, server: usize, first: Command, then: Command) -> impl Future<Output = Result<Value>> + Send {
        async move {
            self.call(server, first).await?;
            self.call(server, then).await
        }
    }

    /// Subscribes to a channel of a server. When this returns, every later message arrives.
    ///
    /// # Errors
    /// As [`World::call`].
    fn subscribe(&self, server: usize, channel: &[u8]) -> impl Future<Output = Result<Self::Messages>> + Send;

    /// Sleeps.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send;

    /// Time since a fixed moment, by a monotonic clock. It measures durations.
    fn elapsed(&self) -> Duration;

    /// Unix time in milliseconds, by the wall clock of this client's machine, which may be wrong and may be set.
    fn unix_ms(&self) -> i64;

    /// A random number.
    fn random(&self) -> u64;

    /// Runs a task in the background, until it ends or the client crashes.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);
}

/// A subscription. It ends when it is dropped.
pub trait Messages: Send + 'static {
    /// The next message. The future may be dropped without losing a message.
    ///
    /// # Errors
    /// If the connection broke, so that messages may be missing. The next call subscribes again.
    fn next(&mut self) -> impl Future<Output = Result<Message>> + Send;
}
