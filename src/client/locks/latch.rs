//! Latches, which open when they are counted down to zero.

use std::time::Duration;

use crate::client::client::Client;
use crate::client::command::{Argument, Command, argument_bytes};
use crate::client::error::Result;
use crate::client::locks::request::ms;

impl Client {
    /// A latch with this name.
    pub fn latch(&self, name: impl Argument) -> Latch {
        Latch { client: self.clone(), name: argument_bytes(name) }
    }
}

/// A count-down latch: one client sets it to a number, some count it down, others wait until it opens.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let client = portcullis::client::Client::connect(&server.url()).await?;
/// let latch = client.latch("parts:7");
/// assert!(latch.set(2).await?);
/// let opens = tokio::spawn({
///     let latch = latch.clone();
///     async move { latch.wait(None).await }
/// });
/// assert_eq!(latch.down().await?, Some(1));
/// assert_eq!(latch.down().await?, Some(0));
/// assert!(opens.await.expect("a task")?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Latch {
    client: Client,
    name: Vec<u8>,
}

impl Latch {
    /// Sets the number to count down from. Returns false if the latch is already counting.
    ///
    /// # Errors
    /// As [`Client::run`].
    pub async fn set(&self, count: u64) -> Result<bool> {
        self.client.query(Command::new("LATCH.SET").arg(&self.name).arg(count)).await
    }

    /// As [`Latch::set`]. The server deletes the latch after this time.
    ///
    /// # Errors
    /// As [`Client::run`].
    pub async fn set_for(&self, count: u64, time: Duration) -> Result<bool> {
        self.client.query(Command::new("LATCH.SET").arg(&self.name).arg(count).arg("PX").arg(ms(time))).await
    }

    /// Counts down by one. Returns the remaining count, or `None` if the latch does not exist.
    ///
    /// # Errors
    /// As [`Client::run`].
    pub async fn down(&self) -> Result<Option<u64>> {
        self.down_by(1).await
    }

    /// Counts down by this number. Returns the same as [`Latch::down`].
    ///
    /// # Errors
    /// As [`Client::run`].
    pub async fn down_by(&self, by: u64) -> Result<Option<u64>> {
        self.client.query(Command::new("LATCH.DOWN").arg(&self.name).arg(by)).await
    }

    /// Waits until the latch opens, at most this long. Returns false if the latch did not open in time. Also waits for a latch
    /// that is not set yet. If the connection breaks, the wait begins again on another one.
    ///
    /// # Errors
    /// As [`Client::run`].
    pub async fn wait(&self, at_most: Option<Duration>) -> Result<bool> {
        let wait_ms = at_most.map_or(0, ms);
        self.client.query(Command::new("LATCH.AWAIT").arg(&self.name).arg("WAIT").arg(wait_ms).idempotent()).await
    }
}
