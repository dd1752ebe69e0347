//! Guarded resources, which refuse holders whose lock has passed on to another owner.

use crate::client::client::Client;
use crate::client::command::{Argument, Command, argument_bytes};
use crate::client::error::{Error, Result};
use crate::client::locks::guard::LockGuard;

impl Client {
    /// A guarded resource with this name.
    pub fn resource(&self, name: impl Argument) -> Resource {
        Resource { client: self.clone(), name: argument_bytes(name) }
    }
}

/// Remembers the largest fencing token shown for a resource. A holder with a smaller token has lost its lock to a later holder.
///
/// It is better if the store itself checks the token of each write. Use this for a store that cannot do that.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let client = portcullis::client::Client::connect(&server.url()).await?;
/// use portcullis::client::Error;
///
/// let (lock, ledger) = (client.lock("ledger"), client.resource("ledger:guard"));
/// let paused = lock.acquire().await?;
/// client.command(&["DEL", "ledger"]).await?; // or its lease ended
/// let next = lock.acquire().await?;
/// ledger.admit(&next).await?;
/// assert!(matches!(ledger.admit(&paused).await, Err(Error::Stale { .. })));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Resource {
    client: Client,
    name: Vec<u8>,
}

impl Resource {
    /// Shows a guard's token. Call this before each change of the resource.
    ///
    /// # Errors
    /// [`Error::Stale`] if a larger token was shown before: the resource must not be changed. [`Error::NotHeld`] if the guard
    /// knows that its lock is lost.
    pub async fn admit(&self, guard: &LockGuard) -> Result {
        match self.admit_token(guard.token()).await {
            Ok(()) if guard.is_lost() => Err(Error::NotHeld("the lock was lost before the resource answered".to_owned())),
            outcome => outcome,
        }
    }

    /// Shows a token.
    ///
    /// # Errors
    /// [`Error::Stale`] if a larger token was shown before.
    pub async fn admit_token(&self, token: u64) -> Result {
        self.client.query(Command::new("LOCK.GUARD").arg(&self.name).arg(token).idempotent()).await
    }
}
