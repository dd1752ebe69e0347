//! 12: the counting semaphore.

use std::sync::LazyLock;

use crate::client::{Result, Script};
use crate::recipes::algorithm::{Algorithm, BoxFuture, Grant, ReleaseOutcome, Request};
use crate::recipes::call::{derived_key, run_script, script};
use crate::recipes::facts::{Facts, WAKES_ALL};
use crate::recipes::waiting::messages::{Attempted, WokenByMessages, wait_for_messages};
use crate::recipes::world::World;

/// Facts about [`Semaphore`].
pub static FACTS: Facts = Facts {
    number: 12,
    name: "semaphore",
    summary: "a counter of free permits: DECRBY if one is free; INCRBY and a message to release",
    guarantees: &["no more holders at a time than permits, as long as only holders release and the server keeps its data"],
    failures: &[
        "the permit of a holder that crashes is lost forever",
        "no owner check: releasing twice creates a permit",
        WAKES_ALL,
    ],
    flawed: true,
    source: "Redisson's RSemaphore; the scripts are ours",
    holders: None,
    expires: false,
    ..Facts::MUTEX
};

/// Returns nil if a permit was acquired, else −1. The first client creates the counter. ARGV: number of permits.
static ACQUIRE: LazyLock<Script> = script!(
    "redis.call('SETNX', KEYS[1], ARGV[1])
        if tonumber(redis.call('GET', KEYS[1])) > 0 then
            redis.call('DECRBY', KEYS[1], 1)
            return nil
        end
        return -1"
);
/// KEYS: counter, channel.
static RELEASE: LazyLock<Script> = script!(
    "redis.call('INCRBY', KEYS[1], 1)
        return redis.call('PUBLISH', KEYS[2], 'released')"
);

/// 12: the key counts the free permits. Flawed: see [`FACTS`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// # let world = portcullis::recipes::Live::new([portcullis::client::Client::connect(&server.url()).await?]);
/// use portcullis::recipes::{Lock, Semaphore};
///
/// let printers = Lock::new(&world, Semaphore::new(2), "printers");
/// let (_first, _second) = (printers.acquire().await?, printers.acquire().await?);
/// assert!(printers.try_acquire().await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Semaphore {
    permits: u32,
}

impl Default for Semaphore {
    fn default() -> Self {
        Semaphore { permits: 3 }
    }
}

impl Semaphore {
    /// A semaphore with this many permits. The first client to use the key decides.
    pub fn new(permits: u32) -> Semaphore {
        Semaphore { permits }
    }
}

impl<W: World> WokenByMessages<W> for Semaphore {
    async fn attempt(&self, world: &W, request: &Request) -> Result<Attempted> {
        let grant = Grant { valid_until: None, ..Grant::new(request, world.elapsed()) };
        Ok(Attempted::of(grant, run_script(world, 0, &ACQUIRE, &[&request.name], |call| call.arg(self.permits)).await?))
    }

    fn channel(&self, request: &Request) -> Vec<u8> {
        derived_key(&request.name, "released")
    }
}

impl<W: World> Algorithm<W> for Semaphore {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn holders(&self) -> u32 {
        self.permits
    }

    fn acquire<'a>(&'a self, world: &'a W, request: &'a Request) -> BoxFuture<'a, Result<Option<Grant>>> {
        wait_for_messages(self, world, request)
    }

    fn release<'a>(&'a self, world: &'a W, grant: &'a Grant) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        Box::pin(async move {
            let keys: [&[u8]; 2] = [&grant.name, &derived_key(&grant.name, "released")];
            let () = run_script(world, 0, &RELEASE, &keys, |call| call).await?;
            Ok(ReleaseOutcome::Unchecked)
        })
    }
}
