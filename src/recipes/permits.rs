//! 13: the semaphore with leased permits.

use std::sync::LazyLock;

use crate::client::{Result, Script};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, Request, lease_ms};
use crate::recipes::call::{beside, run};
use crate::recipes::wake::{Attempted, Woken, woken};
use crate::recipes::world::World;

/// Facts about [`Permits`].
pub static FACTS: Facts = Facts {
    number: 13,
    name: "permits",
    summary: "a sorted set of permits by when they end, and a counter of free ones; those that have ended are returned first",
    guarantees: &[
        "no more holders at a time than permits, as long as the clients' clocks agree and the server keeps its data",
        "only who knows a permit's number gives it back or renews it",
        "a permit ends with its lease whatever becomes of the holder",
    ],
    failures: &[
        "a client whose clock is fast returns permits that are still held",
        "a holder that pauses for longer than its lease goes on beside the next one; there is no fencing token",
        "each release wakes all who wait, in no order",
    ],
    flawed: false,
    source: "Redisson's RPermitExpirableSemaphore; the scripts are ours",
    holders: None,
    reentrant: false,
    expires: true,
    renews: true,
    shared: false,
    fenced: false,
    native: false,
};

/// Returns nil if a permit was taken, else the time after which to check again. KEYS: counter, permits, channel. ARGV: now,
/// permit, until, initial number of permits.
static TAKE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
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
        return next and math.max(tonumber(next) - tonumber(ARGV[1]), 0) or -1",
    )
});
/// Returns whether the permit existed and had not expired. ARGV: now, permit.
static GIVE_BACK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local ends = redis.call('ZSCORE', KEYS[2], ARGV[2])
        if not ends then return 0 end
        redis.call('ZREM', KEYS[2], ARGV[2])
        redis.call('INCRBY', KEYS[1], 1)
        redis.call('PUBLISH', KEYS[3], 'released')
        return tonumber(ends) > tonumber(ARGV[1]) and 1 or 0",
    )
});
/// Returns whether the permit existed and had not expired. ARGV: now, permit, until.
static RENEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local ends = redis.call('ZSCORE', KEYS[2], ARGV[2])
        if not ends or tonumber(ends) <= tonumber(ARGV[1]) then return 0 end
        redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
        return 1",
    )
    .idempotent()
});

/// 13: the key counts the free permits, `{name}:permits` holds the taken ones; see [`FACTS`]. The permit's id is the grant's
/// [`memo`](Grant::memo).
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
    /// Maximum number of concurrent holders. The first client's number decides.
    pub fn new(permits: u32) -> Permits {
        Permits { permits }
    }
}

/// The end of a lease that begins within the current millisecond, rounded up so that it is never too early.
fn ends(now: i64, lease_ms: u64) -> i64 {
    now.saturating_add_unsigned(lease_ms).saturating_add(1)
}

fn keys(name: &[u8]) -> [Vec<u8>; 3] {
    [name.to_vec(), beside(name, "permits"), beside(name, "released")]
}

impl<W: World> Woken<W> for Permits {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Attempted> {
        let (asked, now) = (world.elapsed(), world.unix_ms());
        let until = ends(now, request.lease_ms());
        let permit = format!("{:016x}{:016x}", world.random(), world.random()).into_bytes();
        let [counter, permits, channel] = keys(&request.name);
        let taken =
            run(world, 0, &TAKE, &[&counter, &permits, &channel], |call| call.arg(now).arg(&permit).arg(until).arg(self.permits))
                .await?;
        Ok(Attempted::of(Grant { memo: permit, ..Grant::new(request, asked) }, taken))
    }

    fn channel(&self, request: &Request) -> Vec<u8> {
        beside(&request.name, "released")
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
        woken(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>> {
        Box::pin(async move {
            let [counter, permits, channel] = keys(&grant.name);
            let now = world.unix_ms();
            let back: bool =
                run(world, 0, &GIVE_BACK, &[&counter, &permits, &channel], |call| call.arg(now).arg(&grant.memo)).await?;
            Ok(Given::checked(back))
        })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let (asked, now) = (world.elapsed(), world.unix_ms());
            let until = ends(now, lease_ms(grant.lease));
            let [counter, permits, channel] = keys(&grant.name);
            let renewed: bool =
                run(world, 0, &RENEW, &[&counter, &permits, &channel], |call| call.arg(now).arg(&grant.memo).arg(until)).await?;
            Ok(grant.renewed(asked, renewed))
        })
    }
}
