//! 8: the fair lock: a list as the queue, and a channel for each waiter.

use std::sync::LazyLock;
use std::time::Duration;

use crate::client::{Result, Script};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, Request, lease_ms};
use crate::recipes::call::{beside, run};
use crate::recipes::reentrant;
use crate::recipes::wake::{Attempted, Woken, woken};
use crate::recipes::world::World;

/// Facts about [`Fair`].
pub static FACTS: Facts = Facts {
    number: 8,
    name: "fair",
    summary: "the reentrant lock with a queue: a list in order, a sorted set of when each waiter is given up, a channel each",
    guarantees: &[
        "first come, first served among those who wait and look again in time",
        "one holder at a time by the server's order, as long as the server keeps its data",
        "its holder may take it again, and has to give it back as often",
        "nobody releases or renews what is not his; a release wakes one",
    ],
    failures: &[
        "when a waiter is given up goes by clients' clocks: one that is fast sweeps others out of the queue",
        "each waiter that dies at the head holds the others up until it is given up",
        "a holder that pauses for longer than its lease goes on beside the next one; there is no fencing token",
        "a fail-over to a replica, or a restart that loses the last writes, loses the lock and the queue",
    ],
    source: "Redisson's RFairLock; the scripts are ours",
    ..reentrant::FACTS
};

/// Removes waiters at the head whose time is over. KEYS: lock, queue, times. ARGV[1]: now.
const SWEEP: &str = "
local head = redis.call('LINDEX', KEYS[2], 0)
while head and tonumber(redis.call('ZSCORE', KEYS[3], head) or 0) <= tonumber(ARGV[1]) do
    redis.call('LPOP', KEYS[2])
    redis.call('ZREM', KEYS[3], head)
    head = redis.call('LINDEX', KEYS[2], 0)
end
";

/// Returns nil if the lock was taken, else the time after which to check again at the latest. ARGV: now, owner, lease, end of the
/// wait (0: none).
static ENTER: LazyLock<Script> = LazyLock::new(|| {
    Script::new(format!(
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
    ))
});
/// Like the reentrant lock's release, and notifies the head of the queue. ARGV: now, owner, lease, prefix of the channels.
static LEAVE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(format!(
        "{SWEEP}
        if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return nil end
        if redis.call('HINCRBY', KEYS[1], ARGV[2], -1) > 0 then
            redis.call('PEXPIRE', KEYS[1], ARGV[3])
            return 0
        end
        redis.call('DEL', KEYS[1])
        if head then redis.call('PUBLISH', ARGV[4] .. head, 'unlocked') end
        return 1"
    ))
});
/// Leaves the queue. Notifies the new head if the lock is free. ARGV: now, owner, prefix of the channels.
static GIVE_UP: LazyLock<Script> = LazyLock::new(|| {
    Script::new(format!(
        "redis.call('LREM', KEYS[2], 0, ARGV[2])
        redis.call('ZREM', KEYS[3], ARGV[2])
        {SWEEP}
        if head and redis.call('EXISTS', KEYS[1]) == 0 then redis.call('PUBLISH', ARGV[3] .. head, 'unlocked') end
        return 1"
    ))
    .idempotent()
});

/// 8: see [`FACTS`]. A waiter confirms at least every half of its patience that it is still there.
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
    patience: Duration,
}

impl Default for Fair {
    fn default() -> Self {
        Fair { patience: Duration::from_secs(5) }
    }
}

impl Fair {
    /// How long a waiter stays in the queue without confirming that it is still there. 5 s unless given.
    pub fn patience(mut self, patience: Duration) -> Fair {
        self.patience = patience.max(Duration::from_millis(2));
        self
    }
}

fn keys(name: &[u8]) -> [Vec<u8>; 3] {
    [name.to_vec(), beside(name, "queue"), beside(name, "times")]
}

fn channels(name: &[u8]) -> Vec<u8> {
    beside(name, "unlocked:")
}

impl<W: World> Woken<W> for Fair {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Attempted> {
        let (asked, now) = (world.elapsed(), world.unix_ms());
        let until = if request.wait.is_zero() { 0 } else { now.saturating_add_unsigned(lease_ms(self.patience)) };
        let [lock, queue, times] = keys(&request.name);
        let enter = run(world, 0, &ENTER, &[&lock, &queue, &times], |call| {
            call.arg(now).arg(&request.owner).arg(request.lease_ms()).arg(until)
        })
        .await?;
        Ok(Attempted::of(Grant::new(request, asked), enter))
    }

    fn channel(&self, request: &Request) -> Vec<u8> {
        [channels(&request.name), request.owner.clone()].concat()
    }

    fn look_every(&self, _: &Request) -> Duration {
        self.patience / 2
    }

    async fn give_up(&self, world: &W, request: &Request) -> Result<()> {
        if request.wait.is_zero() {
            return Ok(());
        }
        let [lock, queue, times] = keys(&request.name);
        let channels = channels(&request.name);
        run(world, 0, &GIVE_UP, &[&lock, &queue, &times], |call| call.arg(world.unix_ms()).arg(&request.owner).arg(&channels))
            .await
    }
}

impl<W: World> Algorithm<W> for Fair {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        woken(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>> {
        Box::pin(async move {
            let [lock, queue, times] = keys(&grant.name);
            let (now, channels) = (world.unix_ms(), channels(&grant.name));
            let leave: Option<i64> = run(world, 0, &LEAVE, &[&lock, &queue, &times], |call| {
                call.arg(now).arg(&grant.owner).arg(lease_ms(grant.lease)).arg(&channels)
            })
            .await?;
            Ok(Given::checked(leave.is_some()))
        })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(reentrant::renew(world, grant))
    }
}
