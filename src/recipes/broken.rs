//! A deliberately broken lock, to prove that tests find violations.

use crate::client::{Command, Result};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Facts, Given, Grant, Request};
use crate::recipes::call::{Attempt, ask, polled};
use crate::recipes::setnx::delete;
use crate::recipes::world::World;

/// Facts about [`Broken`].
pub static FACTS: Facts = Facts {
    number: 0,
    name: "broken",
    summary: "GET, and SET where there was nothing: no lock, but a test of whoever tests locks",
    guarantees: &[],
    failures: &["two that look at the same time both take it"],
    flawed: true,
    source: "made on purpose",
    holders: Some(1),
    reentrant: false,
    expires: true,
    renews: false,
    shared: false,
    fenced: false,
    native: false,
};

/// Checks whether the lock is free, and takes it in a second step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Broken;

impl<W: World> Attempt<W> for Broken {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Option<Grant>> {
        let asked = world.elapsed();
        let found: Option<Vec<u8>> = ask(world, 0, Command::new("GET").arg(&request.name)).await?;
        if found.is_some() {
            return Ok(None);
        }
        let set = Command::new("SET").arg(&request.name).arg(&request.owner).arg("PX").arg(request.lease_ms());
        let () = ask(world, 0, set).await?;
        Ok(Some(Grant::new(request, asked)))
    }
}

impl<W: World> Algorithm<W> for Broken {
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
