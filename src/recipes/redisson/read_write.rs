//! 9: the read/write lock, a hash with a mode.

use std::sync::LazyLock;

use crate::client::{Result, Script};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, ReleaseOutcome, Request, lease_ms};
use crate::recipes::call::{derived_key, idempotent_script, release_by_script, run_script, script};
use crate::recipes::facts::{FAILOVER, Facts, OWNER_CHECKED, PAUSED_HOLDER};
use crate::recipes::redisson::reentrant;
use crate::recipes::waiting::messages::{Attempted, WokenByMessages, wait_for_messages};
use crate::recipes::world::World;

/// Facts about [`ReadWrite`].
pub static FACTS: Facts = Facts {
    number: 9,
    name: "read-write",
    summary: "a hash with a mode and a number of holds for each holder; readers share the lock, each with its own lease",
    guarantees: &[
        "the server grants the lock to one writer or to any number of readers at a time, as long as it keeps its data",
        "holders can acquire the lock again; a writer can also read, and still reads after it has released the write lock",
        OWNER_CHECKED,
    ],
    failures: &[
        "a steady stream of readers starves writers: there is no queue",
        "a reader that also wants to write waits for itself",
        "a dead reader is removed only when all readers' leases are over, or when the last other reader leaves",
        PAUSED_HOLDER,
        FAILOVER,
    ],
    source: "Redisson's RReadWriteLock; the scripts are ours",
    shared: true,
    ..reentrant::FACTS
};

/// Acquires the lock for a reader. Returns nil if it was acquired, else the remaining time of the current lease. KEYS: lock,
/// prefix of the readers' lease keys. ARGV: owner, lease.
static ACQUIRE_READ: LazyLock<Script> = script!(
    "local mode = redis.call('HGET', KEYS[1], 'mode')
        if not mode then
            redis.call('HSET', KEYS[1], 'mode', 'read')
        elseif mode == 'write' and redis.call('HEXISTS', KEYS[1], 'w:' .. ARGV[1]) == 0 then
            return redis.call('PTTL', KEYS[1])
        end
        local holds = redis.call('HINCRBY', KEYS[1], 'r:' .. ARGV[1], 1)
        redis.call('SET', KEYS[2] .. ARGV[1] .. ':' .. holds, 1, 'PX', ARGV[2])
        if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
        return nil"
);
/// As [`ACQUIRE_READ`], for a writer.
static ACQUIRE_WRITE: LazyLock<Script> = script!(
    "local mode = redis.call('HGET', KEYS[1], 'mode')
        if mode and redis.call('HEXISTS', KEYS[1], 'w:' .. ARGV[1]) == 0 then return redis.call('PTTL', KEYS[1]) end
        redis.call('HSET', KEYS[1], 'mode', 'write')
        redis.call('HINCRBY', KEYS[1], 'w:' .. ARGV[1], 1)
        if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
        return nil"
);

/// Sets the lock's time-out to the longest remaining lease of a reader, or deletes the lock if no reader has a lease. KEYS: lock,
/// prefix of the readers' lease keys, channel.
const SETTLE: &str = "
local longest = 0
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    local owner = string.match(field, '^r:(.*)$')
    for hold = owner and tonumber(redis.call('HGET', KEYS[1], field)) or 0, 1, -1 do
        longest = math.max(longest, redis.call('PTTL', KEYS[2] .. owner .. ':' .. hold))
    end
end
if longest > 0 then
    redis.call('HSET', KEYS[1], 'mode', 'read')
    redis.call('PEXPIRE', KEYS[1], longest)
else
    redis.call('DEL', KEYS[1])
end
redis.call('PUBLISH', KEYS[3], 'unlocked')
";

/// Returns nil if the reader did not hold the lock, else its remaining holds. KEYS: lock, prefix of the readers' lease keys,
/// channel. ARGV: owner.
static RELEASE_READ: LazyLock<Script> = script!(format!(
    "local holds = tonumber(redis.call('HGET', KEYS[1], 'r:' .. ARGV[1]) or 0)
        if holds == 0 then return nil end
        local in_time = redis.call('DEL', KEYS[2] .. ARGV[1] .. ':' .. holds) == 1
        holds = redis.call('HINCRBY', KEYS[1], 'r:' .. ARGV[1], -1)
        if holds == 0 then redis.call('HDEL', KEYS[1], 'r:' .. ARGV[1]) end
        if redis.call('HGET', KEYS[1], 'mode') == 'read' then
            {SETTLE}
        end
        return in_time and holds or nil"
));
/// As [`RELEASE_READ`], for a writer. ARGV: owner, lease.
static RELEASE_WRITE: LazyLock<Script> = script!(format!(
    "if redis.call('HEXISTS', KEYS[1], 'w:' .. ARGV[1]) == 0 then return nil end
        local holds = redis.call('HINCRBY', KEYS[1], 'w:' .. ARGV[1], -1)
        if holds > 0 then
            redis.call('PEXPIRE', KEYS[1], ARGV[2])
            return holds
        end
        redis.call('HDEL', KEYS[1], 'w:' .. ARGV[1])
        {SETTLE}
        return 0"
));
/// Restarts a reader's lease. Returns whether the reader holds the lock. KEYS: lock, prefix of the readers' lease keys. ARGV:
/// owner, lease.
static RENEW_READ: LazyLock<Script> = idempotent_script!(
    "local holds = tonumber(redis.call('HGET', KEYS[1], 'r:' .. ARGV[1]) or 0)
        local renewed = 0
        for hold = holds, 1, -1 do
            renewed = math.max(renewed, redis.call('PEXPIRE', KEYS[2] .. ARGV[1] .. ':' .. hold, ARGV[2]))
        end
        if renewed == 1 and redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
        return renewed"
);
/// As [`RENEW_READ`], for a writer.
static RENEW_WRITE: LazyLock<Script> = idempotent_script!(
    "if redis.call('HEXISTS', KEYS[1], 'w:' .. ARGV[1]) == 0 then return 0 end
        if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
        return 1"
);

/// 9: a writer holds the lock alone. Readers, who ask for it with [`Request::shared`](Request::shared()), share it. See
/// [`FACTS`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use std::time::Duration;
/// use portcullis::recipes::{Algorithm, ReadWrite, Request};
///
/// let ask = |owner: &str| Request::new("page", owner, Duration::from_secs(30));
/// let first = ReadWrite.acquire(&world, &ask("alice").shared()).await?.expect("no client writes");
/// let second = ReadWrite.acquire(&world, &ask("bob").shared()).await?.expect("no client writes");
/// assert!(ReadWrite.acquire(&world, &ask("carol")).await?.is_none());
/// ReadWrite.release(&world, &first).await?;
/// ReadWrite.release(&world, &second).await?;
/// assert!(ReadWrite.acquire(&world, &ask("carol")).await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadWrite;

/// The lock, the prefix of the readers' lease keys, and the channel.
fn keys(name: &[u8]) -> [Vec<u8>; 3] {
    [name.to_vec(), derived_key(name, "lease:"), derived_key(name, "unlocked")]
}

impl<W: World> WokenByMessages<W> for ReadWrite {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Attempted> {
        let asked = world.elapsed();
        let [lock, leases, _] = keys(&request.name);
        let script = if request.shared { &ACQUIRE_READ } else { &ACQUIRE_WRITE };
        let reply =
            run_script(world, 0, script, &[&lock, &leases], |call| call.arg(&request.owner).arg(request.lease_ms())).await?;
        Ok(Attempted::of(Grant { shared: request.shared, ..Grant::new(request, asked) }, reply))
    }

    fn channel(&self, request: &Request) -> Vec<u8> {
        derived_key(&request.name, "unlocked")
    }
}

impl<W: World> Algorithm<W> for ReadWrite {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        wait_for_messages(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        Box::pin(async move {
            let [lock, leases, channel] = keys(&grant.name);
            let script = if grant.shared { &RELEASE_READ } else { &RELEASE_WRITE };
            release_by_script(world, script, &[&lock, &leases, &channel], |call| {
                call.arg(&grant.owner).arg(lease_ms(grant.lease))
            })
            .await
        })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let asked = world.elapsed();
            let [lock, leases, _] = keys(&grant.name);
            let script = if grant.shared { &RENEW_READ } else { &RENEW_WRITE };
            let renewed: bool =
                run_script(world, 0, script, &[&lock, &leases], |call| call.arg(&grant.owner).arg(lease_ms(grant.lease))).await?;
            Ok(grant.renewed(asked, renewed))
        })
    }
}
