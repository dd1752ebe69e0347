//! 8: the fair lock: a list is the queue, and each waiter has a channel.

use std::sync::LazyLock;
use std::time::Duration;

use crate::client::{Result, Script};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, ReleaseOutcome, Request, lease_ms};
use crate::recipes::call::{derived_key, idempotent_script, release_by_script, run_script, script};
use crate::recipes::facts::{Facts, ONE_HOLDER, OWNER_CHECKED, PAUSED_HOLDER, REENTRANT};
use crate::recipes::redisson::reentrant;
use crate::recipes::waiting::messages::{Attempted, WokenByMessages, wait_for_messages};
use crate::recipes::world::World;

/// Facts about [`Fair`].
pub static FACTS: Facts = Facts {
    number: 8,
    name: "fair",
    summary: "the reentrant lock with a queue: a list of waiters, a sorted set of their time-outs, and a channel for each waiter",
    guarantees: &[
        "first come, first served among waiters that check again in time",
        ONE_HOLDER,
        REENTRANT,
        OWNER_CHECKED,
        "a release wakes one waiter",
    ],
    failures: &[
        "waiters time out by the clients' clocks: a client whose clock is fast removes others from the queue",
        "a waiter that dies at the head of the queue blocks the others until it times out",
        PAUSED_HOLDER,
        "a failover to a replica, or a restart that loses the last writes, loses the lock and the queue",
    ],
    source: "Redisson's RFairLock; the scripts are ours",
    ..reentrant::FACTS
};

/// Removes timed-out waiters at the head of the queue. KEYS: lock, queue, time-outs. ARGV[1]: now.
const SWEEP: &str = "
local head = redis.call('LINDEX', KEYS[2], 0)
while head and tonumber(redis.call('ZSCORE', KEYS[3], head) or 0) <= tonumber(ARGV[1]) do
    redis.call('LPOP', KEYS[2])
    redis.call('ZREM', KEYS[3], head)
    head = redis.call('LINDEX', KEYS[2], 0)
end
";

/// Returns nil if the lock was acquired, else the time after which to check again at the latest. ARGV: now, owner, lease, and the
/// time at which this waiter times out (0: it does not wait).
static ACQUIRE: LazyLock<Script> = script!(format!(
    "{SWEEP}
        if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
            redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
            redis.call('PEXPIRE', KEYS[1], ARGV[3])
            return nil
        end
        local free = redis.call('EXISTS', KEYS[1]) == 0
        if free and (not head or head == ARGV[2]) then
            if head then
                redis.call('LPOP', KEYS[2])
                redis.call('ZREM', KEYS[3], head)
            end
            redis.call('HSET', KEYS[1], ARGV[2], 1)
            redis.call('PEXPIRE', KEYS[1], ARGV[3])
            return nil
        end
        if ARGV[4] ~= '0' then
            if not redis.call('ZSCORE', KEYS[3], ARGV[2]) then redis.call('RPUSH', KEYS[2], ARGV[2]) end
            redis.call('ZADD', KEYS[3], ARGV[4], ARGV[2])
        end
        if free then return math.max(tonumber(redis.call('ZSCORE', KEYS[3], head)) - tonumber(ARGV[1]), 0) end
        return redis.call('PTTL', KEYS[1])"
));
/// Like the reentrant lock's release, and wakes the head of the queue. ARGV: now, owner, lease, prefix of the channels.
static RELEASE: LazyLock<Script> = script!(format!(
    "{SWEEP}
        if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return nil end
        if redis.call('HINCRBY', KEYS[1], ARGV[2], -1) > 0 then
            redis.call('PEXPIRE', KEYS[1], ARGV[3])
            return 0
        end
        redis.call('DEL', KEYS[1])
        if head then redis.call('PUBLISH', ARGV[4] .. head, 'unlocked') end
        return 1"
));
/// Removes a waiter from the queue. Wakes the new head if the lock is free. ARGV: now, owner, prefix of the channels.
static GIVE_UP: LazyLock<Script> = idempotent_script!(format!(
    "redis.call('LREM', KEYS[2], 0, ARGV[2])
        redis.call('ZREM', KEYS[3], ARGV[2])
        {SWEEP}
        if head and redis.call('EXISTS', KEYS[1]) == 0 then redis.call('PUBLISH', ARGV[3] .. head, 'unlocked') end
        return 1"
));

/// 8: see [`FACTS`]. A waiter checks again at least twice within its time-out, which restarts the time-out.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use std::time::Duration;
/// use portcullis::recipes::{Lock, Fair};
///
/// let door = Lock::new(&world, Fair::default(), "door").lease(Duration::from_secs(10));
/// let guard = door.acquire().await?;
/// assert!(door.try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Fair {
    waiter_timeout: Duration,
}

impl Default for Fair {
    fn default() -> Self {
        Fair { waiter_timeout: Duration::from_secs(5) }
    }
}

impl Fair {
    /// How long a waiter stays in the queue without checking again. At least 2 ms; 5 s unless given.
    pub fn waiter_timeout(mut self, timeout: Duration) -> Fair {
        self.waiter_timeout = timeout.max(Duration::from_millis(2));
        self
    }
}

/// The lock, the queue, and the time-outs of the waiters.
fn keys(name: &[u8]) -> [Vec<u8>; 3] {
    [name.to_vec(), derived_key(name, "queue"), derived_key(name, "times")]
}

/// Prefix of the waiters' channels.
fn channels(name: &[u8]) -> Vec<u8> {
    derived_key(name, "unlocked:")
}

impl<W: World> WokenByMessages<W> for Fair {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Attempted> {
        let (asked, now) = (world.elapsed(), world.unix_ms());
        let until = if request.wait.is_zero() { 0 } else { now.saturating_add_unsigned(lease_ms(self.waiter_timeout)) };
        let [lock, queue, timeouts] = keys(&request.name);
        let reply = run_script(world, 0, &ACQUIRE, &[&lock, &queue, &timeouts], |call| {
            call.arg(now).arg(&request.owner).arg(request.lease_ms()).arg(until)
        })
        .await?;
        Ok(Attempted::of(Grant::new(request, asked), reply))
    }

    fn channel(&self, request: &Request) -> Vec<u8> {
        [channels(&request.name), request.owner.clone()].concat()
    }

    fn recheck_every(&self) -> Duration {
        self.waiter_timeout / 2
    }

    async fn give_up(&self, world: &W, request: &Request) -> Result<()> {
        if request.wait.is_zero() {
            return Ok(());
        }
        let [lock, queue, timeouts] = keys(&request.name);
        let channels = channels(&request.name);
        run_script(world, 0, &GIVE_UP, &[&lock, &queue, &timeouts], |call| {
            call.arg(world.unix_ms()).arg(&request.owner).arg(&channels)
        })
        .await
    }
}

impl<W: World> Algorithm<W> for Fair {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        wait_for_messages(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        Box::pin(async move {
            let [lock, queue, timeouts] = keys(&grant.name);
            let (now, channels) = (world.unix_ms(), channels(&grant.name));
            release_by_script(world, &RELEASE, &[&lock, &queue, &timeouts], |call| {
                call.arg(now).arg(&grant.owner).arg(lease_ms(grant.lease)).arg(&channels)
            })
            .await
        })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(reentrant::renew(world, grant))
    }
}
