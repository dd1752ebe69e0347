//! Guarded resources, which refuse stale holders, and rate limits.

use std::time::Duration;

use crate::client::client::Client;
use crate::client::command::{Argument, Command};
use crate::client::error::{Error, Result};
use crate::client::guard::LockGuard;
use crate::client::lock::bytes;

impl Client {
    /// A guarded resource with this name.
    pub fn resource(&self, name: impl Argument) -> Resource {
        Resource { client: self.clone(), name: bytes(name) }
    }

    /// A rate limit with this name (`CL.THROTTLE`).
    pub fn throttle(&self, name: impl Argument, rate: Rate) -> Throttle {
        Throttle { client: self.clone(), name: bytes(name), rate }
    }
}

/// Remembers the largest fencing token shown for a resource. A holder with a smaller one has lost its lock to a later holder.
///
/// A store that checks tokens itself, with each write, is better. Use this for a store that cannot.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let client = portcullis::client::Client::connect(&server.url()).await?;
/// use portcullis::client::Error;
///
/// let (lock, ledger) = (client.lock("ledger"), client.resource("ledger:guard"));
/// let paused = lock.acquire().await?;
/// client.command(&["DEL", "ledger"]).await?; // or its lease was over
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
    /// Shows a guard's token. Call it before each change of the resource.
    ///
    /// # Errors
    /// [`Error::Stale`] if a larger token was seen: the resource must not be changed. [`Error::NotHeld`] if the guard already
    /// knows that it is lost.
    pub async fn admit(&self, guard: &LockGuard) -> Result {
        match self.admit_token(guard.token()).await {
            Ok(()) if guard.is_lost() => Err(Error::NotHeld("its lease was over before the resource had answered".to_owned())),
            outcome => outcome,
        }
    }

    /// Shows a token.
    ///
    /// # Errors
    /// [`Error::Stale`] if a larger token was seen.
    pub async fn admit_token(&self, token: u64) -> Result {
        self.client.query(Command::new("LOCK.GUARD").arg(&self.name).arg(token).idempotent()).await
    }
}

/// A rate limit: a number of requests in each period, and a burst after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests admitted in one period.
    pub count: u32,
    /// The period: whole seconds, at least one.
    pub period: Duration,
    /// Requests admitted at once, besides the first, after a pause that is long enough.
    pub burst: u32,
}

/// A rate limit by name; see [`Client::throttle`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let client = portcullis::client::Client::connect(&server.url()).await?;
/// use std::time::Duration;
/// use portcullis::client::Rate;
///
/// let rate = Rate { count: 30, period: Duration::from_secs(60), burst: 1 };
/// let mail = client.throttle("mail:ann", rate);
/// assert!(mail.take(1).await?.retry_after.is_none());
/// assert!(mail.take(1).await?.retry_after.is_none());
/// assert_eq!(mail.take(1).await?.retry_after, Some(Duration::from_secs(2)));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Throttle {
    client: Client,
    name: Vec<u8>,
    rate: Rate,
}

/// The reply of a [`Throttle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttled {
    /// Whether the request exceeds the limit. It was not counted then.
    pub limited: bool,
    /// Requests that can be admitted at once.
    pub limit: u64,
    /// Requests that would be admitted now.
    pub remaining: u64,
    /// When to try again, in whole seconds; `None` if the request was admitted, or never can be.
    pub retry_after: Option<Duration>,
    /// When the whole limit is available again, in whole seconds.
    pub reset_after: Duration,
}

impl Throttle {
    /// Counts this many requests; 0 only queries the state.
    ///
    /// # Errors
    /// As [`Client::run`].
    pub async fn take(&self, quantity: u32) -> Result<Throttled> {
        let Rate { count, period, burst } = self.rate;
        let command = Command::new("CL.THROTTLE").arg(&self.name).arg(burst).arg(count);
        let reply: Vec<i64> = self.client.query(command.arg(period.as_secs().max(1)).arg(quantity)).await?;
        let [limited, limit, remaining, retry, reset] = reply[..] else {
            return Err(Error::Type { wanted: "five numbers", got: format!("{reply:?}") });
        };
        let seconds = |number: i64| u64::try_from(number).ok().map(Duration::from_secs);
        Ok(Throttled {
            limited: limited != 0,
            limit: u64::try_from(limit).unwrap_or(0),
            remaining: u64::try_from(remaining).unwrap_or(0),
            retry_after: seconds(retry),
            reset_after: seconds(reset).unwrap_or_default(),
        })
    }
}
