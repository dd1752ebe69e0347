//! 13: the semaphore with leased permits.

use std::sync::LazyLock;

use crate::client::{Result, Script};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, ReleaseOutcome, Request, lease_ms};
use crate::recipes::call::{derived_key, idempotent_script, run_script, script};
use crate::recipes::facts::{Facts, PAUSED_HOLDER, WAKES_ALL};
use crate::recipes::waiting::messages::{Attempted, WokenByMessages, wait_for_messages};
use crate::recipes::world::World;

/// Facts about [`Permits`].
pub static FACTS: Facts = Facts {
    number: 13,
    name: "permits",
    summary: "a sorted set of permits by expiry time, and a counter of free ones; expired permits are returned first",
    guarantees: &[
        "no more holders at a time than permits, as long as the clients' clocks agree and the server keeps its data",
        "only a client that knows a permit's id can release or renew the permit",
        "a permit ends with its lease, whatever happens to the holder",
    ],
    failures: &["a client whose clock is fast returns permits that are still held", PAUSED_HOLDER, WAKES_ALL],
    source: "Redisson's RPermitExpirableSemaphore; the scripts are ours",
    holders: None,
    renews: true,
    ..Facts::MUTEX
};

/// Returns nil if a permit was acquired, else the time after which to check again. KEYS: counter, permits, channel. ARGV: now,
/// permit's id, expiry time, number of permits.
static ACQUIRE: LazyLock<Script> = script!(
    "redis.call('SETNX', KEYS[1], ARGV[4])
        local ended = redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', ARGV[1])
        local free = redis.call('INCRBY', KEYS[1], ended)
        if free > 0 then
            redis.call('DECRBY', KEYS[1], 1)
            redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
            if ended > 1 then redis.call('PUBLISH', KEYS[3], 'released') end
            return nil
        end
        local next = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
        return next and math.max(tonumber(next) - tonumber(ARGV[1]), 0) or -1"
);
/// Returns whether the permit existed and had not expired. ARGV: now, permit's id.
static RELEASE: LazyLock<Script> = script!(
    "local ends = redis.call('ZSCORE', KEYS[2], ARGV[2])
        if not ends then return 0 end
        redis.call('ZREM', KEYS[2], ARGV[2])
        redis.call('INCRBY', KEYS[1], 1)
        redis.call('PUBLISH', KEYS[3], 'released')
        return tonumber(ends) > tonumber(ARGV[1]) and 1 or 0"
);
/// Returns whether the permit existed and had not expired. ARGV: now, permit's id, new expiry time.
static RENEW: LazyLock<Script> = idempotent_script!(
    "local ends = redis.call('ZSCORE', KEYS[2], ARGV[2])
        if not ends or tonumber(ends) <= tonumber(ARGV[1]) then return 0 end
        redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
        return 1"
);

/// 13: the key counts the free permits, and `{name}:permits` holds the acquired ones. The permit's id is the grant's
/// [`memo`](Grant::memo). See [`FACTS`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use portcullis::recipes::{Lock, Permits};
///
/// let printers = Lock::new(&world, Permits::new(2), "printers");
/// let (_first, _second) = (printers.acquire().await?, printers.acquire().await?);
/// assert!(printers.try_acquire().await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Permits {
    permits: u32,
}

impl Default for Permits {
    fn default() -> Self {
        Permits { permits: 3 }
    }
}

impl Permits {
    /// A semaphore with this many permits. The first client to use the key decides.
    pub fn new(permits: u32) -> Permits {
        Permits { permits }
    }
}

/// The end of a lease that begins within the current millisecond, rounded up so that it is not too early.
fn expiry_ms(now: i64, lease_ms: u64) -> i64 {
    now.saturating_add_unsigned(lease_ms).saturating_add(1)
}

/// The counter, the acquired permits, and the channel.
fn keys(name: &[u8]) -> [Vec<u8>; 3] {
    [name.to_vec(), derived_key(name, "permits"), derived_key(name, "released")]
}

impl<W: World> WokenByMessages<W> for Permits {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Attempted> {
        let (asked, now) = (world.elapsed(), world.unix_ms());
        let expiry = expiry_ms(now, request.lease_ms());
        let permit = format!("{:016x}{:016x}", world.random(), world.random()).into_bytes();
        let [counter, permits, channel] = keys(&request.name);
        let reply = run_script(world, 0, &ACQUIRE, &[&counter, &permits, &channel], |call| {
            call.arg(now).arg(&permit).arg(expiry).arg(self.permits)
        })
        .await?;
        Ok(Attempted::of(Grant { memo: permit, ..Grant::new(request, asked) }, reply))
    }

    fn channel(&self, request: &Request) -> Vec<u8> {
        derived_key(&request.name, "released")
    }
}

impl<W: World> Algorithm<W> for Permits {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn holders(&self) -> u32 {
        self.permits
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        wait_for_messages(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        Box::pin(async move {
            let [counter, permits, channel] = keys(&grant.name);
            let now = world.unix_ms();
            let keys: [&[u8]; 3] = [&counter, &permits, &channel];
            let released = run_script(world, 0, &RELEASE, &keys, |call| call.arg(now).arg(&grant.memo)).await?;
            Ok(ReleaseOutcome::checked(released))
        })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let (asked, now) = (world.elapsed(), world.unix_ms());
            let expiry = expiry_ms(now, lease_ms(grant.lease));
            let [counter, permits, channel] = keys(&grant.name);
            let renewed: bool =
                run_script(world, 0, &RENEW, &[&counter, &permits, &channel], |call| call.arg(now).arg(&grant.memo).arg(expiry))
                    .await?;
            Ok(grant.renewed(asked, renewed))
        })
    }
}
