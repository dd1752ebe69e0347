//! 5: like 4, with the server's own compare-and-delete and compare-and-set commands instead of scripts.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::client::{Command, Result};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, ReleaseOutcome, Request, lease_ms};
use crate::recipes::call::{call, is_unknown};
use crate::recipes::facts::Facts;
use crate::recipes::plain::token;
use crate::recipes::waiting::poll::{Attempt, poll};
use crate::recipes::world::World;

/// Facts about [`CompareAndDelete`].
pub static FACTS: Facts = Facts {
    number: 5,
    name: "delex",
    summary: "SET NX PX; DELEX IFEQ or DELIFEQ to release and SET IFEQ to renew, if the server supports them",
    source: "Redis 8.4 (DELEX, SET IFEQ) and Valkey 9 (DELIFEQ, SET IFEQ); Spring, StackExchange.Redis and others detect them likewise",
    ..token::COMPARED
};

/// 5: releases by `DELEX key IFEQ owner` if the server has it, else by `DELIFEQ key owner`, else by the script of 4. Renews by
/// `SET key owner IFEQ owner PX lease`, or by the script of 4. The server's errors show what it supports, and the lock remembers
/// it. See [`FACTS`].
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
    /// The first command to try for a release: 0 `DELEX`, 1 `DELIFEQ`, 2 the script. All servers of a world are assumed to
    /// support the same.
    release: AtomicU8,
    /// The first command to try for a renewal: 0 `SET IFEQ`, 1 the script.
    renew: AtomicU8,
}

impl<W: World> Attempt<W> for CompareAndDelete {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Option<Grant>> {
        token::attempt(world, request).await
    }
}

impl CompareAndDelete {
    async fn delete<W: World>(&self, world: &W, grant: &Grant) -> Result<bool> {
        loop {
            let first = self.release.load(Ordering::Relaxed);
            let command = match first {
                0 => Command::new("DELEX").arg(&grant.name).arg("IFEQ").arg(&grant.owner),
                1 => Command::new("DELIFEQ").arg(&grant.name).arg(&grant.owner),
                _ => return token::delete_on(world, 0, grant).await,
            };
            match call(world, 0, command.idempotent()).await {
                Err(error) if is_unknown(&error) => self.release.store(first + 1, Ordering::Relaxed),
                outcome => return outcome,
            }
        }
    }

    async fn renew_lease<W: World>(&self, world: &W, grant: &Grant) -> Result<bool> {
        if self.renew.load(Ordering::Relaxed) == 0 {
            let set = Command::new("SET").arg(&grant.name).arg(&grant.owner).arg("IFEQ").arg(&grant.owner);
            match call(world, 0, set.arg("PX").arg(lease_ms(grant.lease)).idempotent()).await {
                Err(error) if is_unknown(&error) => self.renew.store(1, Ordering::Relaxed),
                outcome => return outcome,
            }
        }
        token::renew_on(world, 0, grant).await
    }
}

impl<W: World> Algorithm<W> for CompareAndDelete {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        poll(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        Box::pin(async move { Ok(ReleaseOutcome::checked(self.delete(world, grant).await?)) })
    }

    fn renew<'a>(&'a self, world: &'a W, grant: &'a mut Grant) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let asked = world.elapsed();
            let renewed = self.renew_lease(world, grant).await?;
            Ok(grant.renewed(asked, renewed))
        })
    }
}
