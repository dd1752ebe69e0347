//! 15: rate limits: the token bucket and the sliding window.
//!
//! A limit's name says what is limited: `rate:api:/orders`, `rate:group:payments`, `rate:app:shop` or `rate:ip:192.0.2.7`.

use std::sync::LazyLock;
use std::time::Duration;

use crate::client::{Result, Script};
use crate::recipes::algorithm::{LONGEST, lease_ms};
use crate::recipes::call::{run_script, script};
use crate::recipes::facts::Facts;
use crate::recipes::world::World;

/// Facts about [`TokenBucket`].
pub static BUCKET: Facts = Facts {
    number: 15,
    name: "token-bucket",
    summary: "one script fills the bucket for the time that has passed, and takes tokens or refuses",
    guarantees: &["at most the capacity at once, and the rate in the long run, as long as the clocks in use agree"],
    failures: &[
        "with callers' clocks, a fast clock fills the bucket for all callers",
        "a server that loses its data has a full bucket again",
        "each request runs a script, which is most of the server's work under load",
    ],
    source: "Stripe's and Spring Cloud Gateway's rate limiters; the script is ours",
    holders: None,
    shared: true,
    ..Facts::MUTEX
};

/// Facts about [`SlidingWindow`].
pub static WINDOW: Facts = Facts {
    name: "sliding-window",
    summary: "a sorted set of the times of requests; those before the window are removed, and the rest are counted",
    guarantees: &["at most the limit within any window, as long as the clocks in use agree"],
    failures: &[
        "with callers' clocks, a fast clock removes requests that still count",
        "a server that loses its data forgets all requests",
        "it stores every request of the window",
    ],
    source: "rate limiters of many tutorials and of redis-py's examples; the script is ours",
    ..BUCKET
};

/// The clock of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The server's clock (`TIME`), which all callers share.
    #[default]
    Server,
    /// The caller's clock. The script does not call `TIME`, but the callers' clocks must agree.
    Caller,
}

/// Sets `now` to the current time in microseconds. ARGV[1] is the time by the caller's clock, or empty for the server's clock.
const NOW: &str = "
local now = tonumber(ARGV[1])
if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000000 + time[2]
end
";

/// The decision of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is admitted.
    pub allowed: bool,
    /// Number of further requests that would be admitted now.
    pub remaining: u64,
    /// Time after which to try again, if the request is refused; [`Duration::MAX`] if it exceeds the whole limit.
    pub retry_after: Duration,
}

impl Decision {
    fn of((allowed, remaining, retry_us): (i64, i64, i64)) -> Decision {
        let retry_after = u64::try_from(retry_us).map_or(Duration::MAX, Duration::from_micros);
        Decision { allowed: allowed == 1, remaining: u64::try_from(remaining).unwrap_or(0), retry_after }
    }
}

/// Returns whether the tokens were taken, the remaining tokens, and the microseconds after which to try again (−1: never). ARGV:
/// time or empty, capacity, microseconds per token, number of tokens.
static TAKE: LazyLock<Script> = script!(format!(
    "{NOW}
        local capacity, per_token, wanted = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
        local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
        local tokens, at = tonumber(bucket[1] or capacity), tonumber(bucket[2] or now)
        if now > at then
            tokens = math.min(capacity, tokens + (now - at) / per_token)
            at = now
        end
        local allowed = tokens >= wanted
        if allowed then tokens = tokens - wanted end
        redis.call('HSET', KEYS[1], 'tokens', string.format('%.9f', tokens), 'at', string.format('%.0f', at))
        redis.call('PEXPIRE', KEYS[1], math.ceil((capacity - tokens) * per_token / 1000) + 1000)
        local retry = 0
        if wanted > capacity then retry = -1 elseif not allowed then retry = math.ceil((wanted - tokens) * per_token) end
        return {{allowed and 1 or 0, math.floor(tokens), retry}}"
));

/// 15: a bucket that tokens fill at a constant rate. See [`BUCKET`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use std::time::Duration;
/// use portcullis::recipes::TokenBucket;
///
/// let orders = TokenBucket::new(2, Duration::from_secs(60));
/// assert!(orders.take(&world, b"rate:api:/orders", 1).await?.allowed);
/// assert!(orders.take(&world, b"rate:api:/orders", 1).await?.allowed);
/// let refused = orders.take(&world, b"rate:api:/orders", 1).await?;
/// assert!(!refused.allowed && refused.retry_after <= Duration::from_secs(30));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    capacity: u32,
    fills_in: Duration,
    clock: Clock,
}

impl TokenBucket {
    /// A bucket with this capacity, at least 1. An empty bucket is full after `fills_in`, at least a millisecond and at most a
    /// hundred years.
    pub fn new(capacity: u32, fills_in: Duration) -> TokenBucket {
        TokenBucket {
            capacity: capacity.max(1),
            fills_in: fills_in.clamp(Duration::from_millis(1), LONGEST),
            clock: Clock::Server,
        }
    }

    /// The clock of the limit. The server's clock unless given.
    pub fn clock(mut self, clock: Clock) -> TokenBucket {
        self.clock = clock;
        self
    }

    /// Takes this many tokens, if they are available.
    ///
    /// # Errors
    /// If the server fails the command.
    pub async fn take<W: World>(&self, world: &W, name: &[u8], tokens: u32) -> Result<Decision> {
        let per_token = self.fills_in.as_secs_f64() * 1e6 / f64::from(self.capacity);
        let now = now_us(world, self.clock);
        let taken =
            run_script(world, 0, &TAKE, &[name], |call| call.arg(&now).arg(self.capacity).arg(per_token).arg(tokens)).await?;
        Ok(Decision::of(taken))
    }
}

/// Returns the same as [`TAKE`]. ARGV: time or empty, limit, window in microseconds, number of requests, unique id of the
/// requests, window in milliseconds.
static ENTER: LazyLock<Script> = script!(format!(
    "{NOW}
        local limit, window, wanted = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
        redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - window))
        local count = redis.call('ZCARD', KEYS[1])
        if count + wanted <= limit then
            for i = 1, wanted do redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[5] .. ':' .. i) end
            redis.call('PEXPIRE', KEYS[1], tonumber(ARGV[6]) + 1000)
            return {{1, limit - count - wanted, 0}}
        end
        if wanted > limit then return {{0, limit - count, -1}} end
        local frees = redis.call('ZRANGE', KEYS[1], count + wanted - limit - 1, count + wanted - limit - 1, 'WITHSCORES')[2]
        return {{0, limit - count, math.max(tonumber(frees) + window - now, 1)}}"
));

/// 15: a maximum number of requests within any window of time. See [`WINDOW`].
#[derive(Clone, Copy, Debug)]
pub struct SlidingWindow {
    limit: u32,
    window: Duration,
    clock: Clock,
}

impl SlidingWindow {
    /// At most `limit` requests within any window of this length, at least a millisecond and at most a hundred years.
    pub fn new(limit: u32, window: Duration) -> SlidingWindow {
        SlidingWindow { limit, window: window.clamp(Duration::from_millis(1), LONGEST), clock: Clock::Server }
    }

    /// The clock of the limit. The server's clock unless given.
    pub fn clock(mut self, clock: Clock) -> SlidingWindow {
        self.clock = clock;
        self
    }

    /// Admits this many requests, if they fit.
    ///
    /// # Errors
    /// If the server fails the command.
    pub async fn enter<W: World>(&self, world: &W, name: &[u8], requests: u32) -> Result<Decision> {
        let (now, unique_id) = (now_us(world, self.clock), format!("{:016x}", world.random()));
        let window_us = u64::try_from(self.window.as_micros()).unwrap_or(u64::MAX);
        let entered = run_script(world, 0, &ENTER, &[name], |call| {
            call.arg(&now).arg(self.limit).arg(window_us).arg(requests).arg(&unique_id).arg(lease_ms(self.window))
        })
        .await?;
        Ok(Decision::of(entered))
    }
}

/// The first argument of the scripts: the time in microseconds, or empty.
fn now_us(world: &impl World, clock: Clock) -> String {
    match clock {
        Clock::Server => String::new(),
        Clock::Caller => format!("{}000", world.unix_ms()),
    }
}
