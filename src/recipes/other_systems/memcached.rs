//! 17: memcached's `add`.

use crate::client::{Command, Result};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, ReleaseOutcome, Request};
use crate::recipes::call::{call, delete_unchecked};
use crate::recipes::facts::{Facts, ONE_HOLDER_WITHIN_LEASE, POLLING};
use crate::recipes::waiting::poll::{Attempt, poll};
use crate::recipes::world::World;

/// Facts about [`MemcachedAdd`].
pub static FACTS: Facts = Facts {
    number: 17,
    name: "memcached-add",
    summary: "add fails if the key exists, and sets a time-out in whole seconds; delete to release",
    guarantees: &[ONE_HOLDER_WITHIN_LEASE],
    failures: &[
        "no owner check: a holder that exceeds its lease deletes the lock of the next holder",
        "memcached may evict the key while the lock is held",
        POLLING,
    ],
    flawed: true,
    source: "memcached's documentation (\"Ghetto central locking\"); here as SET key 1 NX EX",
    ..Facts::MUTEX
};

/// 17: `SET key 1 NX EX seconds` acquires the lock, `DEL key` releases it. The lease is rounded up to whole seconds. Flawed: see
/// [`FACTS`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use std::time::Duration;
/// use portcullis::recipes::{Lock, MemcachedAdd};
///
/// let door = Lock::new(&world, MemcachedAdd, "door").lease(Duration::from_secs(10));
/// let guard = door.acquire().await?;
/// assert!(door.try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct MemcachedAdd;

impl<W: World> Attempt<W> for MemcachedAdd {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Option<Grant>> {
        let asked = world.elapsed();
        let seconds = request.lease_ms().div_ceil(1000);
        let add = Command::new("SET").arg(&request.name).arg("1").arg("NX").arg("EX").arg(seconds);
        Ok(call::<bool>(world, 0, add).await?.then(|| Grant::new(request, asked)))
    }
}

impl<W: World> Algorithm<W> for MemcachedAdd {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        poll(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        Box::pin(delete_unchecked(world, &grant.name))
    }
}
