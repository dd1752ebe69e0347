//! The recipes, each on this server and on a real redis-server; those for several servers on three.
//!
//! - `exclusion`: contention for one lock, and the detection of the broken one;
//! - `guards`: locks that are held by guards;
//! - `owners`: release by another owner, expiry, renewal, waiting;
//! - `shapes`: reentrancy, sharing, order, permits, latches, rates.
//!
//! Without a redis-server in `PATH` that half is skipped, and the output says so. With `PORTCULLIS_REQUIRE_REDIS=1` that is a
//! failure.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod exclusion;
mod guards;
mod owners;
mod shapes;

use std::time::Duration;

use common::clients::{client, ms, run, until_blocked};
use common::servers::{Server, on_path};
use portcullis::TestServer;
use portcullis::client::Client;
use portcullis::recipes::{Algorithm, Facts, Grant, Live, Multi, Recipe, RedLock, Reentrant, Request, Retry, all};

/// Three servers of one kind.
enum Servers {
    Ours(Vec<TestServer>),
    Redis(Vec<Server>),
}

impl Servers {
    fn ours(frozen: bool) -> Servers {
        Servers::Ours((0..3).map(|_| TestServer::builder().frozen(frozen).start()).collect())
    }

    /// `None` if redis-server is not installed.
    fn redis() -> Option<Servers> {
        let Some(program) = on_path("redis-server") else {
            assert!(std::env::var_os("PORTCULLIS_REQUIRE_REDIS").is_none(), "no redis-server on the PATH, and it is required");
            println!("SKIPPED: no redis-server on the PATH");
            return None;
        };
        Some(Servers::Redis((0..3).map(|_| Server::redis(&program).unwrap()).collect()))
    }

    /// Connects a client to all three. Recipes for one server use the first.
    async fn world(&self) -> Live {
        let mut clients = Vec::new();
        match self {
            Servers::Ours(servers) => {
                for server in servers {
                    clients.push(client(server).await);
                }
            }
            Servers::Redis(servers) => {
                for server in servers {
                    clients.push(Client::connect(&format!("redis://{}", server.addr)).await.unwrap());
                }
            }
        }
        Live::new(clients)
    }

    fn can(&self, facts: &Facts) -> bool {
        matches!(self, Servers::Ours(_)) || !facts.native
    }

    /// Advances the clocks of servers whose clocks can be moved.
    fn advance(&self, time: Duration) {
        let Servers::Ours(servers) = self else { panic!("redis-server's clock cannot be moved") };
        servers.iter().for_each(|server| server.clock().advance(time));
    }

    fn check(&self) {
        if let Servers::Ours(servers) = self {
            servers.iter().for_each(TestServer::check_invariants);
        }
    }
}

/// Runs a test on servers of this crate, and on redis-server if it is installed.
fn on_both(test: impl AsyncFn(&Servers)) {
    for servers in [Some(Servers::ours(false)), Servers::redis()].into_iter().flatten() {
        run(test(&servers));
        servers.check();
    }
}

/// Runs a test on servers with frozen clocks.
fn on_frozen(test: impl AsyncFn(&Servers)) {
    let servers = Servers::ours(true);
    run(test(&servers));
    servers.check();
}

/// The locks among the recipes, without the deliberately broken one.
fn locks() -> Vec<(&'static Facts, Box<dyn Algorithm<Live>>)> {
    let lock = |recipe: Recipe<Live>| {
        // With the default `part_wait` of half a second, clients that acquire several locks in any order block each other for
        // minutes.
        let any_order = || Box::new(Multi::new(Reentrant).unordered().part_wait(ms(5))) as Box<dyn Algorithm<Live>>;
        let algorithm = match recipe.facts.name {
            "multi-unordered" => any_order(),
            "redlock" => redlock(ms(20_000)),
            _ => recipe.make?(),
        };
        Some((recipe.facts, algorithm))
    };
    all::<Live>().into_iter().filter(|recipe| recipe.facts.number != 0).filter_map(lock).collect()
}

/// RedLock with this time-out of a server. On a busy machine, a server often needs more than the default of at most 50 ms.
fn redlock(server_timeout: Duration) -> Box<dyn Algorithm<Live>> {
    Box::new(RedLock::default().server_timeout(server_timeout))
}

/// The lock of a name, for one holder.
fn lock(name: &str) -> Box<dyn Algorithm<Live>> {
    if name == "redlock" {
        return redlock(ms(20_000));
    }
    portcullis::recipes::by_name(name).unwrap_or_else(|| panic!("no {name}"))
}

/// A request for the lock of a recipe.
fn request(facts: &Facts, owner: &str, lease: Duration) -> Request {
    Request::new(format!("door:{}", facts.name), owner, lease).retry(Retry::Fixed { pause: ms(2) })
}

/// Acquires with the request's wait. `None` if it was not granted.
async fn try_for(algorithm: &dyn Algorithm<Live>, world: &Live, request: &Request) -> Option<Grant> {
    algorithm.acquire(world, request).await.unwrap_or_else(|error| panic!("{}: {error}", algorithm.facts().name))
}

/// How often a lease is doubled before the machine is not to blame.
const DOUBLED: u32 = 6;

/// Calls `trial` with a lease; then, while it says that the machine was too slow for that lease, with one that is twice as long. What
/// depends on how quickly a lease is used is thus asserted of a lease that was long enough, however busy the machine is. `trial` also
/// gets its number.
async fn with_leases_from(first: Duration, mut trial: impl AsyncFnMut(u32, Duration) -> Result<(), String>) {
    let mut too_short = Vec::new();
    for number in 0..=DOUBLED {
        match trial(number, first * 2u32.pow(number)).await {
            Ok(()) => return,
            Err(why) => too_short.push(why),
        }
    }
    panic!("none of the leases was long enough: {too_short:?}");
}

/// `Ok` if it holds, for [`with_leases_from`].
fn holds(is: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if is { Ok(()) } else { Err(what()) }
}

/// Runs futures together until all have ended.
async fn all_at_once(futures: impl IntoIterator<Item = impl Future<Output = ()>>) {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        futures.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if futures.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// With UPDATE_README=1, writes it.
#[test]
fn the_page_shows_every_algorithm() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/recipes/ALGORITHMS.md");
    let expected = portcullis::recipes::markdown_page();
    if std::env::var_os("UPDATE_README").is_some_and(|set| set == "1") {
        std::fs::write(&path, expected).unwrap();
    } else {
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == expected,
            "{} shows other algorithms than there are: run this test with UPDATE_README=1",
            path.display()
        );
    }
}

/// All twenty algorithms exist, with unique names and their failure modes.
#[test]
fn every_algorithm_is_there() {
    let recipes = all::<Live>();
    let numbers: std::collections::BTreeSet<u8> = recipes.iter().map(|recipe| recipe.facts.number).collect();
    assert!(numbers.iter().copied().eq(0..=20), "{numbers:?}");
    for recipe in &recipes {
        let facts = recipe.facts;
        assert_eq!(recipes.iter().filter(|other| other.facts.name == facts.name).count(), 1, "{}", facts.name);
        assert!(!facts.failures.is_empty() && !facts.source.is_empty(), "{}", facts.name);
        assert!(facts.flawed || !facts.guarantees.is_empty(), "{}", facts.name);
        assert_eq!(recipe.make.map(|make| make().facts().name), recipe.make.map(|_| facts.name));
        assert_eq!(portcullis::recipes::facts(facts.name).map(|found| found.name), Some(facts.name));
    }
}
