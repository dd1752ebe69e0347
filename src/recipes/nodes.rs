//! 16: ephemeral sequential nodes, as in ZooKeeper; Curator builds its lock on them.

use std::sync::LazyLock;
use std::time::Duration;

use crate::client::{Result, Script};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, Request, lease_ms};
use crate::recipes::call::{USUAL_PAUSE, beside, run};
use crate::recipes::race::race;
use crate::recipes::retry::{Pace, Retry};
use crate::recipes::world::{Messages, World};

/// Facts about [`Nodes`].
pub static FACTS: Facts = Facts {
    number: 16,
    name: "nodes",
    summary: "a queue of numbered nodes, each tied to a session that its owner keeps alive; the lowest holds, and each watches the one before",
    guarantees: &[
        "one holder at a time by the server's order, as long as the server keeps its data",
        "first come, first served among those whose sessions live; a node that goes wakes one",
        "the node's number is a fencing token: larger than those of all earlier holders",
        "nobody releases or renews what is not his",
    ],
    failures: &[
        "a holder that pauses for longer than its session lives goes on beside the next one, and does harm where tokens are not checked",
        "a session that ends publishes nothing: who watches it looks again by the time it was told",
        "a fail-over to a replica, or a restart that loses the last writes, loses nodes and may give a number twice",
    ],
    flawed: false,
    source: "ZooKeeper's recipes and Curator's InterProcessMutex; the scripts are ours",
    holders: Some(1),
    reentrant: false,
    expires: true,
    renews: true,
    shared: false,
    fenced: true,
    native: false,
};

/// Creates the node if it does not exist, keeps its session alive, and removes the nodes right before it whose sessions have
/// ended. Returns the node's number, and, if there is one, the live node before it with the remaining time of its session.
///
/// KEYS: nodes, number, prefix of the session keys. ARGV: node, session in ms.
static LOOK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
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
        return {tonumber(number)}",
    )
});
/// Removes the node and notifies its watchers. Returns whether its session was still alive. ARGV: node, prefix of the channels.
static LEAVE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local lived = redis.call('DEL', KEYS[2] .. ARGV[1])
        local there = redis.call('ZREM', KEYS[1], ARGV[1])
        if there == 1 then redis.call('PUBLISH', ARGV[2] .. ARGV[1], 'gone') end
        return lived * there",
    )
});
/// Returns whether the session was kept alive. ARGV: node, session in ms.
static KEEP: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
        return redis.call('PEXPIRE', KEYS[2] .. ARGV[1], ARGV[2])",
    )
    .idempotent()
});

/// 16: `{name}:nodes` is the queue, `{name}:session:<node>` the session, whose time-out is the lease; see [`FACTS`].
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
    number: Vec<u8>,
    sessions: Vec<u8>,
    gone: Vec<u8>,
}

impl Keys {
    fn of(name: &[u8]) -> Keys {
        Keys {
            nodes: beside(name, "nodes"),
            number: beside(name, "number"),
            sessions: beside(name, "session:"),
            gone: beside(name, "gone:"),
        }
    }
}

/// A node's position in the queue.
enum Place {
    First,
    Behind(Vec<u8>, Duration),
}

async fn look<W: World>(world: &W, keys: &Keys, node: &[u8], session_ms: u64) -> Result<(u64, Place)> {
    use crate::client::{Error, FromValue, Value};
    let found: Vec<Value> =
        run(world, 0, &LOOK, &[&keys.nodes, &keys.number, &keys.sessions], |call| call.arg(node).arg(session_ms)).await?;
    let mut found = found.into_iter();
    let Some(number) = found.next() else { return Err(Error::Protocol("a node has no number".to_owned())) };
    let number = u64::from_value(number)?;
    Ok(match (found.next(), found.next()) {
        (Some(before), Some(left)) => {
            let left = u64::try_from(i64::from_value(left)?).unwrap_or(0);
            (number, Place::Behind(before.into()?, Duration::from_millis(left)))
        }
        _ => (number, Place::First),
    })
}

async fn leave<W: World>(world: &W, keys: &Keys, node: &[u8]) -> Result<bool> {
    run(world, 0, &LEAVE, &[&keys.nodes, &keys.sessions], |call| call.arg(node).arg(&keys.gone)).await
}

impl<W: World> Algorithm<W> for Nodes {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(async move {
            let keys = Keys::of(&request.name);
            // Each attempt has a node of its own: another attempt by the same owner queues behind it.
            let node = [&request.owner[..], format!(":{:016x}", world.random()).as_bytes()].concat();
            let mut pace = Pace::new(world, request);
            let mut watched: Option<(Vec<u8>, W::Messages)> = None;
            loop {
                let asked = world.elapsed();
                let (before, session_left) = match look(world, &keys, &node, request.lease_ms()).await? {
                    (number, Place::First) => {
                        let token = Some(number);
                        return Ok(Some(Grant { token, memo: node, ..Grant::new(request, asked) }));
                    }
                    (_, Place::Behind(before, left)) => (before, left),
                };
                // Often enough to keep its own session alive.
                let keep = request.lease / 3;
                let pause = match request.retry {
                    Retry::Blocking => Some(pace.left(world).min(session_left)).filter(|_| !pace.left(world).is_zero()),
                    _ => pace.next(world, USUAL_PAUSE),
                };
                let Some(pause) = pause else {
                    leave(world, &keys, &node).await?;
                    return Ok(None);
                };
                let pause = pause.min(keep).max(Duration::from_millis(1));
                if request.retry != Retry::Blocking {
                    world.sleep(pause).await;
                    continue;
                }
                match &mut watched {
                    Some((node, messages)) if *node == before => drop(race(messages.next(), world.sleep(pause)).await),
                    // The previous node may go before the subscription begins, so the queue is checked again.
                    _ => {
                        let channel = [&keys.gone[..], &before].concat();
                        watched = Some((before, world.subscribe(0, &channel).await?));
                    }
                }
            }
        })
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>> {
        Box::pin(async move {
            let lived = leave(world, &Keys::of(&grant.name), &grant.memo).await?;
            Ok(if lived { Given::Back } else { Given::NotHeld })
        })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let (asked, keys) = (world.elapsed(), Keys::of(&grant.name));
            let renewed: bool =
                run(world, 0, &KEEP, &[&keys.nodes, &keys.sessions], |call| call.arg(&grant.memo).arg(lease_ms(grant.lease)))
                    .await?;
            Ok(grant.renewed(asked, renewed))
        })
    }
}
