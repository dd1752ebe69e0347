//! A deliberately broken lock. Tests use it to show that they find violations.

use crate::client::{Command, Result};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, ReleaseOutcome, Request};
use crate::recipes::call::{call, delete_unchecked};
use crate::recipes::facts::Facts;
use crate::recipes::waiting::poll::{Attempt, poll};
use crate::recipes::world::World;

/// Facts about [`Broken`].
pub static FACTS: Facts = Facts {
    number: 0,
    name: "broken",
    summary: "GET, and SET if the key is absent: deliberately broken, so that tests can show that they find violations",
    failures: &["two clients that read the key at the same time both acquire the lock"],
    flawed: true,
    source: "made on purpose",
    ..Facts::MUTEX
};

/// Checks whether the lock is free, and acquires it in a second step. Flawed: see [`FACTS`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Broken;

impl<W: World> Attempt<W> for Broken {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Option<Grant>> {
        let asked = world.elapsed();
        let found: Option<Vec<u8>> = call(world, 0, Command::new("GET").arg(&request.name)).await?;
        if found.is_some() {
            return Ok(None);
        }
        let set = Command::new("SET").arg(&request.name).arg(&request.owner).arg("PX").arg(request.lease_ms());
        let () = call(world, 0, set).await?;
        Ok(Some(Grant::new(request, asked)))
    }
}

impl<W: World> Algorithm<W> for Broken {
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
