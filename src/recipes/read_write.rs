//! 9: the read/write lock in a hash with a mode.

use std::sync::LazyLock;

use crate::client::{Result, Script};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, Request, lease_ms};
use crate::recipes::call::{beside, run};
use crate::recipes::reentrant;
use crate::recipes::wake::{Attempted, Woken, woken};
use crate::recipes::world::World;

/// Facts about [`ReadWrite`].
pub static FACTS: Facts = Facts {
    number: 9,
    name: "read-write",
    summary: "a hash with a mode and a count for each holder; readers share it, each with a lease of its own",
    guarantees: &[
        "one writer, or any number of readers, by the server's order, as long as the server keeps its data",
        "holders may take it again; a writer may read, too, and goes on reading when it has written",
        "nobody releases or renews what is not his",
    ],
    failures: &[
        "readers that keep coming starve writers: there is no queue",
        "a reader that wants to write as well waits for itself",
        "a reader that died is only swept out when its lease and those of the others are over, or the last other one leaves",
        "a holder that pauses for longer than its lease goes on beside the next one; there is no fencing token",
        "a fail-over to a replica, or a restart that loses the last writes, loses the lock",
    ],
    source: "Redisson's RReadWriteLock; the scripts are ours",
    shared: true,
    ..reentrant::FACTS
};

/// Returns nil if the lock was taken, else the remaining time of the current lease. KEYS: lock, prefix of the readers' lease
/// keys. ARGV: owner, lease.
static READ: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local mode = redis.call('HGET', KEYS[1], 'mode')
        if not mode then
            redis.call('HSET', KEYS[1], 'mode', 'read')
        elseif mode == 'write' and redis.call('HEXISTS', KEYS[1], 'w:' .. ARGV[1]) == 0 then
            return redis.call('PTTL', KEYS[1])
        end
        local holds = redis.call('HINCRBY', KEYS[1], 'r:' .. ARGV[1], 1)
        redis.call('SET', KEYS[2] .. ARGV[1] .. ':' .. holds, 1, 'PX', ARGV[2])
        if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
        return nil",
    )
});
static WRITE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local mode = redis.call('HGET', KEYS[1], 'mode')
        if mode and redis.call('HEXISTS', KEYS[1], 'w:' .. ARGV[1]) == 0 then return redis.call('PTTL', KEYS[1]) end
        redis.call('HSET', KEYS[1], 'mode', 'write')
        redis.call('HINCRBY', KEYS[1], 'w:' .. ARGV[1], 1)
        if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
        return nil",
    )
});

/// Sets the lock's time-out to the longest remaining lease of a reader, or deletes the lock if there is none. KEYS: lock, leases,
/// channel.
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

/// Returns nil if the lock was not held, else the remaining holds. KEYS: lock, leases, channel. ARGV: owner.
static LEAVE_READ: LazyLock<Script> = LazyLock::new(|| {
    Script::new(format!(
        "local holds = tonumber(redis.call('HGET', KEYS[1], 'r:' .. ARGV[1]) or 0)
        if holds == 0 then return nil end
        local in_time = redis.call('DEL', KEYS[2] .. ARGV[1] .. ':' .. holds) == 1
        holds = redis.call('HINCRBY', KEYS[1], 'r:' .. ARGV[1], -1)
        if holds == 0 then redis.call('HDEL', KEYS[1], 'r:' .. ARGV[1]) end
        if redis.call('HGET', KEYS[1], 'mode') == 'read' then
            {SETTLE}
        end
        return in_time and holds or nil"
    ))
});
static LEAVE_WRITE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(format!(
        "if redis.call('HEXISTS', KEYS[1], 'w:' .. ARGV[1]) == 0 then return nil end
        local holds = redis.call('HINCRBY', KEYS[1], 'w:' .. ARGV[1], -1)
        if holds > 0 then
            redis.call('PEXPIRE', KEYS[1], ARGV[2])
            return holds
        end
        redis.call('HDEL', KEYS[1], 'w:' .. ARGV[1])
        {SETTLE}
        return 0"
    ))
});
/// Returns whether the lease was restarted. KEYS: lock, leases. ARGV: owner, lease.
static RENEW_READ: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local holds = tonumber(redis.call('HGET', KEYS[1], 'r:' .. ARGV[1]) or 0)
        local renewed = 0
        for hold = holds, 1, -1 do
            renewed = math.max(renewed, redis.call('PEXPIRE', KEYS[2] .. ARGV[1] .. ':' .. hold, ARGV[2]))
        end
        if renewed == 1 and redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
        return renewed",
    )
    .idempotent()
});
static RENEW_WRITE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('HEXISTS', KEYS[1], 'w:' .. ARGV[1]) == 0 then return 0 end
        if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
        return 1",
    )
    .idempotent()
});

/// 9: exclusive, or, with [`Request::shared`](Request), shared with other holders that ask for it shared; see [`FACTS`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use std::time::Duration;
/// use portcullis::recipes::{Algorithm, ReadWrite, Request};
///
/// let ask = |owner: &str| Request::new("page", owner, Duration::from_secs(30));
/// let first = ReadWrite.acquire(&world, &ask("alice").shared()).await?.expect("nobody writes");
/// let second = ReadWrite.acquire(&world, &ask("bob").shared()).await?.expect("nobody writes");
/// assert!(ReadWrite.acquire(&world, &ask("carol")).await?.is_none());
/// ReadWrite.release(&world, &first).await?;
/// ReadWrite.release(&world, &second).await?;
/// assert!(ReadWrite.acquire(&world, &ask("carol")).await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadWrite;

fn keys(name: &[u8]) -> [Vec<u8>; 3] {
    [name.to_vec(), beside(name, "lease:"), beside(name, "unlocked")]
}

impl<W: World> Woken<W> for ReadWrite {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Attempted> {
        let asked = world.elapsed();
        let [lock, leases, _] = keys(&request.name);
        let script = if request.shared { &READ } else { &WRITE };
        let enter = run(world, 0, script, &[&lock, &leases], |call| call.arg(&request.owner).arg(request.lease_ms())).await?;
        Ok(Attempted::of(Grant { shared: request.shared, ..Grant::new(request, asked) }, enter))
    }

    fn channel(&self, request: &Request) -> Vec<u8> {
        beside(&request.name, "unlocked")
    }
}

impl<W: World> Algorithm<W> for ReadWrite {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        woken(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>> {
        Box::pin(async move {
            let [lock, leases, channel] = keys(&grant.name);
            let script = if grant.shared { &LEAVE_READ } else { &LEAVE_WRITE };
            let leave: Option<i64> =
                run(world, 0, script, &[&lock, &leases, &channel], |call| call.arg(&grant.owner).arg(lease_ms(grant.lease)))
                    .await?;
            Ok(Given::checked(leave.is_some()))
        })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let asked = world.elapsed();
            let [lock, leases, _] = keys(&grant.name);
            let script = if grant.shared { &RENEW_READ } else { &RENEW_WRITE };
            let renewed: bool =
                run(world, 0, script, &[&lock, &leases], |call| call.arg(&grant.owner).arg(lease_ms(grant.lease))).await?;
            Ok(grant.renewed(asked, renewed))
        })
    }
}
