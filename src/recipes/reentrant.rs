//! 6: the reentrant lock in a hash, with Redisson's protocol.

use std::sync::LazyLock;

use crate::client::{Result, Script};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, Request, lease_ms};
use crate::recipes::call::{beside, run};
use crate::recipes::wake::{Attempted, Woken, woken};
use crate::recipes::world::World;

/// Facts about [`Reentrant`].
pub static FACTS: Facts = Facts {
    number: 6,
    name: "reentrant",
    summary: "a hash of its holder and how often it holds, by scripts; waiters are woken by a message",
    guarantees: &[
        "one holder at a time by the server's order, as long as the server keeps its data",
        "its holder may take it again, and has to give it back as often",
        "nobody releases or renews what is not his",
        "ends with its lease whatever becomes of the holder",
    ],
    failures: &[
        "a holder that pauses for longer than its lease goes on beside the next one; there is no fencing token",
        "a fail-over to a replica, or a restart that loses the last writes, loses the lock",
        "each release wakes all who wait, and one of them has it, in no order",
        "a lease that ends publishes nothing: waiters look again by the time they were told",
        "a reply that is lost may have counted one hold more",
        "taken again for a shorter lease, it ends with that, whatever the first was told",
    ],
    flawed: false,
    source: "Redisson's RLock; the scripts are ours",
    holders: Some(1),
    reentrant: true,
    expires: true,
    renews: true,
    shared: false,
    fenced: false,
    native: false,
};

/// Facts about [`Reentrant`] with a watchdog.
pub static WATCHDOG: Facts = Facts {
    number: 7,
    name: "watchdog",
    summary: "the reentrant lock, renewed every third of its lease for as long as its holder lives",
    guarantees: &[
        "one holder at a time by the server's order, as long as the server keeps its data",
        "does not end while its holder lives and reaches the server",
        "ends with its lease when the holder's process has died",
    ],
    failures: &[
        "what hangs in a process that lives is renewed for ever",
        "a process that stops as a whole (a pause, a blocked event loop) lets it lapse, and goes on beside the next holder",
        "a fail-over to a replica, or a restart that loses the last writes, loses the lock",
    ],
    source: "Redisson's lockWatchdogTimeout (30 s)",
    ..FACTS
};

/// Returns nil if the lock was taken (again), else the remaining time of the holder's lease.
static ENTER: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
            redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
            redis.call('PEXPIRE', KEYS[1], ARGV[2])
            return nil
        end
        return redis.call('PTTL', KEYS[1])",
    )
});
/// Returns nil if this owner did not hold the lock, 0 if it still holds it, 1 if this was the last hold.
static LEAVE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end
        if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then
            redis.call('PEXPIRE', KEYS[1], ARGV[2])
            return 0
        end
        redis.call('DEL', KEYS[1])
        redis.call('PUBLISH', KEYS[2], 'unlocked')
        return 1",
    )
});
/// Returns whether the lease was restarted.
pub(crate) static RENEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
        return redis.call('PEXPIRE', KEYS[1], ARGV[2])",
    )
    .idempotent()
});

/// 6: the hash has one field, the owner, with the number of holds; see [`FACTS`]. Waiters of [`Retry::Blocking`](crate::recipes::Retry)
/// listen to `{name}:unlocked`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use std::time::Duration;
/// use portcullis::recipes::{Algorithm, Reentrant, Request};
///
/// let (alice, bob) = (Request::new("door", "alice", Duration::from_secs(30)), Request::new("door", "bob", Duration::from_secs(30)));
/// let outer = Reentrant.acquire(&world, &alice).await?.expect("free");
/// let inner = Reentrant.acquire(&world, &alice).await?.expect("it is hers");
/// Reentrant.release(&world, &inner).await?;
/// assert!(Reentrant.acquire(&world, &bob).await?.is_none());
/// Reentrant.release(&world, &outer).await?;
/// assert!(Reentrant.acquire(&world, &bob).await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Reentrant;

impl<W: World> Woken<W> for Reentrant {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Attempted> {
        let asked = world.elapsed();
        let enter = run(world, 0, &ENTER, &[&request.name], |call| call.arg(&request.owner).arg(request.lease_ms())).await?;
        Ok(Attempted::of(Grant::new(request, asked), enter))
    }

    fn channel(&self, request: &Request) -> Vec<u8> {
        beside(&request.name, "unlocked")
    }
}

impl<W: World> Algorithm<W> for Reentrant {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        woken(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>> {
        Box::pin(async move {
            let keys: [&[u8]; 2] = [&grant.name, &beside(&grant.name, "unlocked")];
            let leave: Option<i64> =
                run(world, 0, &LEAVE, &keys, |call| call.arg(&grant.owner).arg(lease_ms(grant.lease))).await?;
            Ok(Given::checked(leave.is_some()))
        })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(renew(world, grant))
    }
}

/// Renews a lock that is a field of a hash.
pub(crate) async fn renew<W: World>(world: &W, grant: &mut Grant) -> Result<bool> {
    let asked = world.elapsed();
    let renewed: bool = run(world, 0, &RENEW, &[&grant.name], |call| call.arg(&grant.owner).arg(lease_ms(grant.lease))).await?;
    Ok(grant.renewed(asked, renewed))
}
