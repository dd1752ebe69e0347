//! Rate limits (`CL.THROTTLE`).

use std::time::Duration;

use crate::client::client::Client;
use crate::client::command::{Argument, Command, argument_bytes};
use crate::client::error::{Error, Result};

impl Client {
    /// A rate limit with this name (`CL.THROTTLE`).
    pub fn throttle(&self, name: impl Argument, rate: Rate) -> Throttle {
        Throttle { client: self.clone(), name: argument_bytes(name), rate }
    }
}

/// A number of requests in each period, and a burst after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Number of requests that are admitted in one period.
    pub count: u32,
    /// The period: whole seconds, at least one.
    pub period: Duration,
    /// Number of requests that are admitted at once, besides the first one, after a pause that is long enough.
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
    /// Whether the request exceeds the limit. Such a request is not counted.
    pub limited: bool,
    /// Maximum number of requests that can be admitted at once.
    pub limit: u64,
    /// Number of requests that would be admitted now.
    pub remaining: u64,
    /// Time after which to try again, in whole seconds; `None` if the request was admitted, or exceeds the whole limit.
    pub retry_after: Option<Duration>,
    /// Time after which the whole limit is available again, in whole seconds.
    pub reset_after: Duration,
}

impl Throttle {
    /// Counts this many requests. With 0, it only queries the state.
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
