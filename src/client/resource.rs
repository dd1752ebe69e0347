//! What refuses those who come too late, and those who come too often.

use std::time::Duration;

use crate::client::client::Client;
use crate::client::command::{Argument, Command};
use crate::client::error::{Error, Result};
use crate::client::guard::LockGuard;
use crate::client::lock::bytes;

impl Client {
    /// A guarded resource by its name.
    pub fn resource(&self, name: impl Argument) -> Resource {
        Resource { client: self.clone(), name: bytes(name) }
    }

    /// Counts requests against a rate limit (`CL.THROTTLE`).
    pub fn throttle(&self, name: impl Argument, rate: Rate) -> Throttle {
        Throttle { client: self.clone(), name: bytes(name), rate }
    }
}

/// The largest fencing token that was shown for a resource: whoever has a smaller one has lost its lock to somebody who was here since.
///
/// A store that checks tokens itself, with each write, is better; this is for those that do not.
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
    /// Shows the token of a guard, before something is done to the resource.
    ///
    /// # Errors
    /// [`Error::Stale`] where a larger one was seen: nothing may be done. [`Error::NotHeld`] where the guard knows by itself that it is
    /// lost.
    pub async fn admit(&self, guard: &LockGuard) -> Result {
        match self.admit_token(guard.token()).await {
            Ok(()) if guard.is_lost() => Err(Error::NotHeld("its lease was over before the resource had answered".to_owned())),
            outcome => outcome,
        }
    }

    /// Shows a token.
    ///
    /// # Errors
    /// [`Error::Stale`] where a larger one was seen.
    pub async fn admit_token(&self, token: u64) -> Result {
        self.client.query(Command::new("LOCK.GUARD").arg(&self.name).arg(token).idempotent()).await
    }
}

/// A rate limit: so many in a period, and some more at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests let through in a period.
    pub count: u32,
    /// Whole seconds, at least one.
    pub period: Duration,
    /// Requests let through at once, beyond the first, when there were none for long enough.
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

/// What a [`Throttle`] said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttled {
    /// Whether the request is over the limit, and was not counted.
    pub limited: bool,
    /// Requests that could be let through at once.
    pub limit: u64,
    /// Requests that would be let through now.
    pub remaining: u64,
    /// When to come again, in whole seconds; `None` where it was let through, or never will be.
    pub retry_after: Option<Duration>,
    /// When all of the limit will be there again, in whole seconds.
    pub reset_after: Duration,
}

impl Throttle {
    /// Counts so many requests; 0 only asks.
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
