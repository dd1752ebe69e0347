//! Semaphores, whose permits several holders share.

use std::time::Duration;

use crate::client::client::Client;
use crate::client::command::{Argument, Blocking, argument_bytes};
use crate::client::error::{Error, Result};
use crate::client::locks::guard::LockGuard;
use crate::client::locks::lock::lock_options;
use crate::client::locks::request::{Kind, LockRequest, ms};

impl Client {
    /// A semaphore with this many permits. All its users must give the same number.
    pub fn semaphore(&self, name: impl Argument, limit: u32) -> Semaphore {
        let kind = Kind::Semaphore { limit, permits: 1 };
        Semaphore { client: self.clone(), request: LockRequest::new(kind, vec![argument_bytes(name)]) }
    }
}

/// A semaphore and its acquisition options.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let client = portcullis::client::Client::connect(&server.url()).await?;
/// let printers = client.semaphore("printers", 3);
/// let (one, two) = (printers.acquire().await?, printers.clone().permits(2).acquire().await?);
/// assert!(printers.try_acquire().await?.is_none());
/// drop(one);
/// printers.acquire().await?.release().await?;
/// # drop(two);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    client: Client,
    request: LockRequest,
}

impl Semaphore {
    lock_options!();

    /// Number of permits to acquire at once. One unless given.
    pub fn permits(mut self, count: u32) -> Self {
        if let Kind::Semaphore { permits, .. } = &mut self.request.kind {
            *permits = count;
        }
        self
    }
}
