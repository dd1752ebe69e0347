//! 16: ephemeral sequential nodes, as in ZooKeeper. Curator builds its lock on them.

use std::sync::LazyLock;
use std::time::Duration;

use crate::client::{Error, FromValue, Result, Script, Value};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, ReleaseOutcome, Request, lease_ms};
use crate::recipes::call::{derived_key, idempotent_script, run_script, script};
use crate::recipes::facts::{Facts, ONE_HOLDER, OWNER_CHECKED};
use crate::recipes::waiting::poll::DEFAULT_PAUSE;
use crate::recipes::waiting::race::race;
use crate::recipes::waiting::retry::{Retries, Retry};
use crate::recipes::world::{Messages, World};

/// Facts about [`Nodes`].
pub static FACTS: Facts = Facts {
    number: 16,
    name: "nodes",
    summary: "a queue of numbered nodes with sessions, which their owners keep alive; the lowest node holds, and each watches the one before",
    guarantees: &[
        ONE_HOLDER,
        "first come, first served among nodes whose sessions live; a node that leaves wakes one waiter",
        "the node's number is a fencing token: larger than those of all earlier holders",
        OWNER_CHECKED,
    ],
    failures: &[
        "a holder that pauses beyond its session continues beside the next holder, and does harm where the store checks no tokens",
        "a session that ends publishes no message: the client behind it checks again when the session should have ended",
        "a failover to a replica, or a restart that loses the last writes, loses nodes and may assign a number twice",
    ],
    source: "ZooKeeper's recipes and Curator's InterProcessMutex; the scripts are ours",
    renews: true,
    fenced: true,
    ..Facts::MUTEX
};

/// Creates the node if it does not exist, keeps its session alive, and removes the nodes right before it whose sessions have
/// ended. Returns the node's number. If a live node is before it, also returns that node and the remaining time of its session.
///
/// KEYS: nodes, last number, prefix of the session keys. ARGV: node, session in ms.
static QUEUE: LazyLock<Script> = script!(
    "local number = redis.call('ZSCORE', KEYS[1], ARGV[1])
        if not number then
            number = redis.call('INCR', KEYS[2])
            redis.call('ZADD', KEYS[1], number, ARGV[1])
        end
        redis.call('SET', KEYS[3] .. ARGV[1], 1, 'PX', ARGV[2])
        for place = redis.call('ZRANK', KEYS[1], ARGV[1]) - 1, 0, -1 do
            local before = redis.call('ZRANGE', KEYS[1], place, place)[1]
            local left = redis.call('PTTL', KEYS[3] .. before)
            if left > 0 then return {tonumber(number), before, left} end
            redis.call('ZREM', KEYS[1], before)
        end
        return {tonumber(number)}"
);
/// Removes the node, and wakes the client that watches it. Returns whether its session was still alive. ARGV: node, prefix of the
/// channels.
static REMOVE: LazyLock<Script> = script!(
    "local lived = redis.call('DEL', KEYS[2] .. ARGV[1])
        local there = redis.call('ZREM', KEYS[1], ARGV[1])
        if there == 1 then redis.call('PUBLISH', ARGV[2] .. ARGV[1], 'gone') end
        return lived * there"
);
/// Keeps the session alive. Returns whether it was alive. ARGV: node, session in ms.
static KEEP_ALIVE: LazyLock<Script> = idempotent_script!(
    "if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
        return redis.call('PEXPIRE', KEYS[2] .. ARGV[1], ARGV[2])"
);

/// 16: `{name}:nodes` is the queue, and `{name}:session:<node>` is a node's session, whose time-out is the lease. See [`FACTS`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use std::time::Duration;
/// use portcullis::recipes::{Lock, Nodes};
///
/// let door = Lock::new(&world, Nodes, "door").lease(Duration::from_secs(10));
/// let guard = door.acquire().await?;
/// assert!(door.try_acquire().await?.is_none());
/// assert!(guard.token().is_some());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Nodes;

struct Keys {
    nodes: Vec<u8>,
    /// The last number that was assigned.
    number: Vec<u8>,
    /// Prefix of the sessions.
    sessions: Vec<u8>,
    /// Prefix of the channels that report removed nodes.
    gone: Vec<u8>,
}

impl Keys {
    fn of(name: &[u8]) -> Keys {
        Keys {
            nodes: derived_key(name, "nodes"),
            number: derived_key(name, "number"),
            sessions: derived_key(name, "session:"),
            gone: derived_key(name, "gone:"),
        }
    }
}

/// A node's position in the queue.
enum Position {
    First,
    /// Behind this node, whose session ends after this time unless its owner keeps it alive.
    Behind(Vec<u8>, Duration),
}

/// Creates a node or keeps it alive. Returns its number and its position.
async fn queue<W: World>(world: &W, keys: &Keys, node: &[u8], session_ms: u64) -> Result<(u64, Position)> {
    let found: Vec<Value> =
        run_script(world, 0, &QUEUE, &[&keys.nodes, &keys.number, &keys.sessions], |call| call.arg(node).arg(session_ms)).await?;
    let mut found = found.into_iter();
    let Some(number) = found.next() else { return Err(Error::Protocol("a node without a number".to_owned())) };
    let number = u64::from_value(number)?;
    Ok(match (found.next(), found.next()) {
        (Some(before), Some(left)) => {
            let left = u64::try_from(i64::from_value(left)?).unwrap_or(0);
            (number, Position::Behind(before.into()?, Duration::from_millis(left)))
        }
        _ => (number, Position::First),
    })
}

/// Removes a node. Returns whether its session was still alive.
async fn remove<W: World>(world: &W, keys: &Keys, node: &[u8]) -> Result<bool> {
    run_script(world, 0, &REMOVE, &[&keys.nodes, &keys.sessions], |call| call.arg(node).arg(&keys.gone)).await
}

impl<W: World> Algorithm<W> for Nodes {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(async move {
            let keys = Keys::of(&request.name);
            // Each acquisition has a node of its own: another acquisition by the same owner queues behind it.
            let node = [&request.owner[..], format!(":{:016x}", world.random()).as_bytes()].concat();
            let mut retries = Retries::new(world, request);
            let mut watched: Option<(Vec<u8>, W::Messages)> = None;
            loop {
                let asked = world.elapsed();
                let (before, session_left) = match queue(world, &keys, &node, request.lease_ms()).await? {
                    (number, Position::First) => {
                        let token = Some(number);
                        return Ok(Some(Grant { token, memo: node, ..Grant::new(request, asked) }));
                    }
                    (_, Position::Behind(before, left)) => (before, left),
                };
                let pause = match request.retry {
                    Retry::Blocking => Some(retries.left(world).min(session_left)).filter(|_| !retries.left(world).is_zero()),
                    _ => retries.next_pause(world, DEFAULT_PAUSE),
                };
                let Some(pause) = pause else {
                    remove(world, &keys, &node).await?;
                    return Ok(None);
                };
                // At least every third of the lease, to keep the own session alive.
                let pause = pause.min(request.lease / 3).max(Duration::from_millis(1));
                if request.retry != Retry::Blocking {
                    world.sleep(pause).await;
                    continue;
                }
                match &mut watched {
                    Some((node, messages)) if *node == before => drop(race(messages.next(), world.sleep(pause)).await),
                    // The node before may go before the subscription begins, so the position is checked again at once.
                    _ => {
                        let channel = [&keys.gone[..], &before].concat();
                        watched = Some((before, world.subscribe(0, &channel).await?));
                    }
                }
            }
        })
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        Box::pin(async move { Ok(ReleaseOutcome::checked(remove(world, &Keys::of(&grant.name), &grant.memo).await?)) })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let (asked, keys) = (world.elapsed(), Keys::of(&grant.name));
            let renewed: bool = run_script(world, 0, &KEEP_ALIVE, &[&keys.nodes, &keys.sessions], |call| {
                call.arg(&grant.memo).arg(lease_ms(grant.lease))
            })
            .await?;
            Ok(grant.renewed(asked, renewed))
        })
    }
}
