//! 5: like 4, with the servers' own compare-and-delete and compare-and-set instead of scripts.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::client::{Command, Result};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, Request, lease_ms};
use crate::recipes::call::{Attempt, ask, is_unknown, polled};
use crate::recipes::token::{give_back, renew, take};
use crate::recipes::world::World;

/// Facts about [`CompareAndDelete`].
pub static FACTS: Facts = Facts {
    number: 5,
    name: "delex",
    summary: "SET NX PX; DELEX IFEQ or DELIFEQ to give back, SET IFEQ to renew, where the server has them",
    source: "Redis 8.4 (DELEX, SET IFEQ) and Valkey 9 (DELIFEQ, SET IFEQ); Spring, StackExchange.Redis and others find out in this way",
    ..crate::recipes::token::COMPARED
};

/// 5: `DELEX key IFEQ owner` if the server has it, else `DELIFEQ key owner`, else the script of 4. To renew: `SET key owner IFEQ
/// owner PX lease`, or the script of 4. The server's errors show what it supports, and the result is remembered.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use std::time::Duration;
/// use portcullis::recipes::{Lock, CompareAndDelete};
///
/// let door = Lock::new(&world, CompareAndDelete::default(), "door").lease(Duration::from_secs(10));
/// let guard = door.acquire().await?;
/// assert!(door.try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Default)]
pub struct CompareAndDelete {
    /// First command to try for a release: 0 `DELEX`, 1 `DELIFEQ`, 2 the script. Assumes that all servers of a world are alike.
    release: AtomicU8,
    /// First command to try for a renewal: 0 `SET IFEQ`, 1 the script.
    renew: AtomicU8,
}

impl<W: World> Attempt<W> for CompareAndDelete {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Option<Grant>> {
        let asked = world.elapsed();
        Ok(take(world, 0, request).await?.then(|| Grant::new(request, asked)))
    }
}

impl CompareAndDelete {
    async fn give_back<W: World>(&self, world: &W, grant: &Grant) -> Result<bool> {
        loop {
            let way = self.release.load(Ordering::Relaxed);
            let command = match way {
                0 => Command::new("DELEX").arg(&grant.name).arg("IFEQ").arg(&grant.owner),
                1 => Command::new("DELIFEQ").arg(&grant.name).arg(&grant.owner),
                _ => return give_back(world, 0, &grant.name, &grant.owner).await,
            };
            match ask(world, 0, command.idempotent()).await {
                Err(error) if is_unknown(&error) => self.release.store(way + 1, Ordering::Relaxed),
                outcome => return outcome,
            }
        }
    }

    async fn renew_lease<W: World>(&self, world: &W, grant: &Grant) -> Result<bool> {
        if self.renew.load(Ordering::Relaxed) == 0 {
            let set = Command::new("SET").arg(&grant.name).arg(&grant.owner).arg("IFEQ").arg(&grant.owner);
            match ask(world, 0, set.arg("PX").arg(lease_ms(grant.lease)).idempotent()).await {
                Err(error) if is_unknown(&error) => self.renew.store(1, Ordering::Relaxed),
                outcome => return outcome,
            }
        }
        renew(world, 0, grant).await
    }
}

impl<W: World> Algorithm<W> for CompareAndDelete {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        polled(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<Given>> {
        Box::pin(async move { Ok(if self.give_back(world, grant).await? { Given::Back } else { Given::NotHeld }) })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let asked = world.elapsed();
            let renewed = self.renew_lease(world, grant).await?;
            Ok(grant.renewed(asked, renewed))
        })
    }
}
