//! 17: memcached's `add`.

use crate::client::{Command, Result};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, Request};
use crate::recipes::call::{Attempt, ask, polled};
use crate::recipes::setnx::{SETNX_EXPIRE, delete};
use crate::recipes::world::World;

/// Facts about [`MemcachedAdd`].
pub static FACTS: Facts = Facts {
    number: 17,
    name: "memcached-add",
    summary: "add fails where the key is there, and gives it a time-out in whole seconds; delete to give back",
    guarantees: &["one holder at a time, as long as nobody holds it for longer than its lease"],
    failures: &[
        "no owner: a holder that was slower than its lease deletes somebody else's lock",
        "memcached may evict it while it is held",
        "who waits polls, in no order",
    ],
    source: "memcached's documentation (\"Ghetto central locking\"); here as SET key 1 NX EX",
    ..SETNX_EXPIRE
};

/// 17: `SET key 1 NX EX seconds` takes it, `DEL key` releases it. Leases are whole seconds, rounded up. Flawed: see [`FACTS`].
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
        Ok(ask::<bool>(world, 0, add).await?.then(|| Grant::new(request, asked)))
    }
}

impl<W: World> Algorithm<W> for MemcachedAdd {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        polled(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>> {
        Box::pin(delete(world, grant))
    }
}
