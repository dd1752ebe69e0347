//! 6: the reentrant lock, a hash with the holder and its number of holds.

use std::sync::LazyLock;

use crate::client::{Result, Script};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, ReleaseOutcome, Request, lease_ms};
use crate::recipes::call::{derived_key, idempotent_script, release_by_script, run_script, script};
use crate::recipes::facts::{
    ENDS_WITH_LEASE, FAILOVER, Facts, ONE_HOLDER, OWNER_CHECKED, PAUSED_HOLDER, REENTRANT, SHORTER_LEASE, WAKES_ALL,
};
use crate::recipes::waiting::messages::{Attempted, WokenByMessages, wait_for_messages};
use crate::recipes::world::World;

/// Facts about [`Reentrant`].
pub static FACTS: Facts = Facts {
    number: 6,
    name: "reentrant",
    summary: "a hash with the holder and its number of holds, changed by scripts; a message wakes the waiters",
    guarantees: &[ONE_HOLDER, REENTRANT, OWNER_CHECKED, ENDS_WITH_LEASE],
    failures: &[
        PAUSED_HOLDER,
        FAILOVER,
        WAKES_ALL,
        "a lease that ends publishes no message: waiters check again when it should have ended",
        "after a lost reply the server may count one hold too many",
        SHORTER_LEASE,
    ],
    source: "Redisson's RLock; the scripts are ours",
    reentrant: true,
    renews: true,
    ..Facts::MUTEX
};

/// Facts about [`Reentrant`] with a watchdog.
pub static WATCHDOG: Facts = Facts {
    number: 7,
    name: "watchdog",
    summary: "the reentrant lock, renewed every third of its lease while its holder lives",
    guarantees: &[
        ONE_HOLDER,
        "the lock does not end while its holder lives and reaches the server",
        "the lock ends with its lease after the holder's process has died",
    ],
    failures: &[
        "the lock of a holder that hangs in a living process is renewed forever",
        "a process that stops as a whole (a pause, a blocked event loop) loses the lock, and continues beside the next holder",
        FAILOVER,
    ],
    source: "Redisson's lockWatchdogTimeout (30 s)",
    ..FACTS
};

/// Returns nil if the lock was acquired, or acquired again, else the remaining time of the holder's lease. ARGV: owner, lease.
static ACQUIRE: LazyLock<Script> = script!(
    "if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
            redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
            redis.call('PEXPIRE', KEYS[1], ARGV[2])
            return nil
        end
        return redis.call('PTTL', KEYS[1])"
);
/// Returns nil if this owner did not hold the lock, 0 if it still holds it, 1 if this was the last hold. KEYS: lock, channel.
/// ARGV: owner, lease.
static RELEASE: LazyLock<Script> = script!(
    "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end
        if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) > 0 then
            redis.call('PEXPIRE', KEYS[1], ARGV[2])
            return 0
        end
        redis.call('DEL', KEYS[1])
        redis.call('PUBLISH', KEYS[2], 'unlocked')
        return 1"
);
/// Returns whether the lease was restarted. ARGV: owner, lease.
static RENEW: LazyLock<Script> = idempotent_script!(
    "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
        return redis.call('PEXPIRE', KEYS[1], ARGV[2])"
);

/// 6: the hash has one field, the owner, whose value is the number of holds. Waiters with
/// [`Retry::Blocking`](crate::recipes::Retry) listen to the channel `{name}:unlocked`. See [`FACTS`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use std::time::Duration;
/// use portcullis::recipes::{Algorithm, Reentrant, Request};
///
/// let (alice, bob) = (Request::new("door", "alice", Duration::from_secs(30)), Request::new("door", "bob", Duration::from_secs(30)));
/// let outer = Reentrant.acquire(&world, &alice).await?.expect("the lock is free");
/// let inner = Reentrant.acquire(&world, &alice).await?.expect("the lock is hers");
/// Reentrant.release(&world, &inner).await?;
/// assert!(Reentrant.acquire(&world, &bob).await?.is_none());
/// Reentrant.release(&world, &outer).await?;
/// assert!(Reentrant.acquire(&world, &bob).await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Reentrant;

impl<W: World> WokenByMessages<W> for Reentrant {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Attempted> {
        let asked = world.elapsed();
        let reply =
            run_script(world, 0, &ACQUIRE, &[&request.name], |call| call.arg(&request.owner).arg(request.lease_ms())).await?;
        Ok(Attempted::of(Grant::new(request, asked), reply))
    }

    fn channel(&self, request: &Request) -> Vec<u8> {
        derived_key(&request.name, "unlocked")
    }
}

impl<W: World> Algorithm<W> for Reentrant {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        wait_for_messages(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        Box::pin(async move {
            let keys: [&[u8]; 2] = [&grant.name, &derived_key(&grant.name, "unlocked")];
            release_by_script(world, &RELEASE, &keys, |call| call.arg(&grant.owner).arg(lease_ms(grant.lease))).await
        })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(renew(world, grant))
    }
}

/// Restarts the lease if the owner is a field of the hash. The fair lock shares this.
pub(crate) async fn renew<W: World>(world: &W, grant: &mut Grant) -> Result<bool> {
    let asked = world.elapsed();
    let renewed: bool =
        run_script(world, 0, &RENEW, &[&grant.name], |call| call.arg(&grant.owner).arg(lease_ms(grant.lease))).await?;
    Ok(grant.renewed(asked, renewed))
}
