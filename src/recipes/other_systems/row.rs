//! 18: a unique row in a database, and a cleaner.

use std::sync::LazyLock;

use crate::client::{Result, Script};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, ReleaseOutcome, Request, lease_ms};
use crate::recipes::call::{idempotent_script, run_script, script};
use crate::recipes::facts::{Facts, OWNER_CHECKED, POLLING, REENTRANT};
use crate::recipes::waiting::poll::{Attempt, poll};
use crate::recipes::world::World;

/// Facts about [`UniqueRow`].
pub static FACTS: Facts = Facts {
    number: 18,
    name: "unique-row",
    summary: "a row with a unique key: its insert fails if the row exists; a cleaner deletes expired rows",
    guarantees: &[
        "the database grants the lock to at most one holder at a time, as long as it keeps its data",
        REENTRANT,
        OWNER_CHECKED,
    ],
    failures: &[
        "the cleaner takes the lock from a holder that exceeds its lease, which continues beside the next holder",
        "an expired lock is not free before a cleaner runs",
        POLLING,
    ],
    source: "lock tables in databases: Spring's JdbcLockRegistry, ShedLock; here a row is a hash, and a statement a script",
    reentrant: true,
    renews: true,
    ..Facts::MUTEX
};

/// Sets `now` to the time by the database's clock, in milliseconds. Its three decimals keep a lease from ending early.
const NOW: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
";

/// `INSERT`, or `UPDATE … SET count = count + 1` if this holder has the row. Returns whether the lock was acquired. KEYS: row,
/// index. ARGV: holder, lease, name.
static INSERT: LazyLock<Script> = script!(format!(
    "{NOW}
        local holder = redis.call('HGET', KEYS[1], 'holder')
        if holder and holder ~= ARGV[1] then return 0 end
        redis.call('HSET', KEYS[1], 'holder', ARGV[1])
        redis.call('HINCRBY', KEYS[1], 'count', 1)
        redis.call('ZADD', KEYS[2], string.format('%.3f', now + ARGV[2]), ARGV[3])
        return 1"
));
/// `UPDATE … SET count = count - 1 WHERE holder = …`, and `DELETE` at 0. Returns whether the holder had the row. ARGV: holder,
/// name.
static DELETE: LazyLock<Script> = script!(
    "if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return 0 end
        if redis.call('HINCRBY', KEYS[1], 'count', -1) == 0 then
            redis.call('DEL', KEYS[1])
            redis.call('ZREM', KEYS[2], ARGV[2])
        end
        return 1"
);
/// `UPDATE … SET until = now + lease WHERE holder = …`. Returns whether the holder has the row. ARGV: holder, lease, name.
static UPDATE: LazyLock<Script> = idempotent_script!(format!(
    "{NOW}
        if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return 0 end
        redis.call('ZADD', KEYS[2], string.format('%.3f', now + ARGV[2]), ARGV[3])
        return 1"
));
/// `DELETE … WHERE until <= now LIMIT …`. Returns the number of deleted rows. KEYS: index. ARGV: prefix of the rows, limit.
static CLEAN: LazyLock<Script> = idempotent_script!(format!(
    "{NOW}
        local names = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.3f', now), 'LIMIT', 0, ARGV[2])
        for _, name in ipairs(names) do
            redis.call('DEL', ARGV[1] .. name)
            redis.call('ZREM', KEYS[1], name)
        end
        return #names"
));

/// Maximum number of rows that a cleaner deletes in one step.
const CLEANED_MAX: u32 = 100;

/// 18: the table consists of the hashes `{table}:row:<name>`, with holder and count, and of `{table}:until`, an index of expiry
/// times. A client that is refused runs the [cleaner](UniqueRow::clean), so that no separate process is needed. See [`FACTS`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use std::time::Duration;
/// use portcullis::recipes::{Lock, UniqueRow};
///
/// let door = Lock::new(&world, UniqueRow::of("jobs"), "door").lease(Duration::from_secs(10));
/// let guard = door.acquire().await?;
/// assert!(door.try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct UniqueRow {
    rows: Vec<u8>,
    until: Vec<u8>,
}

impl Default for UniqueRow {
    fn default() -> Self {
        UniqueRow::of("locks")
    }
}

impl UniqueRow {
    /// A lock table with this name.
    pub fn of(table: &str) -> UniqueRow {
        UniqueRow { rows: format!("{{{table}}}:row:").into_bytes(), until: format!("{{{table}}}:until").into_bytes() }
    }

    fn row(&self, name: &[u8]) -> Vec<u8> {
        [&self.rows, name].concat()
    }

    /// Deletes expired rows, at most a hundred. Returns their number.
    ///
    /// # Errors
    /// If the server fails the command.
    pub async fn clean<W: World>(&self, world: &W) -> Result<usize> {
        run_script(world, 0, &CLEAN, &[&self.until], |call| call.arg(&self.rows).arg(CLEANED_MAX)).await
    }
}

impl<W: World> Attempt<W> for UniqueRow {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Option<Grant>> {
        let row = self.row(&request.name);
        let mut cleaned = false;
        loop {
            let asked = world.elapsed();
            let inserted: bool = run_script(world, 0, &INSERT, &[&row, &self.until], |call| {
                call.arg(&request.owner).arg(request.lease_ms()).arg(&request.name)
            })
            .await?;
            if inserted {
                return Ok(Some(Grant::new(request, asked)));
            }
            if cleaned || self.clean(world).await? == 0 {
                return Ok(None);
            }
            cleaned = true;
        }
    }
}

impl<W: World> Algorithm<W> for UniqueRow {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        poll(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        Box::pin(async move {
            let keys: [&[u8]; 2] = [&self.row(&grant.name), &self.until];
            let released = run_script(world, 0, &DELETE, &keys, |call| call.arg(&grant.owner).arg(&grant.name)).await?;
            Ok(ReleaseOutcome::checked(released))
        })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let asked = world.elapsed();
            let keys: [&[u8]; 2] = [&self.row(&grant.name), &self.until];
            let renewed: bool =
                run_script(world, 0, &UPDATE, &keys, |call| call.arg(&grant.owner).arg(lease_ms(grant.lease)).arg(&grant.name))
                    .await?;
            Ok(grant.renewed(asked, renewed))
        })
    }
}
