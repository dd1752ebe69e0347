//! What clients notice when the leader is killed: the longest time in which no request of any client succeeds.

use std::cell::{Cell, RefCell};
use std::io::{Error, Result};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use portcullis::bench::report::comparison::{Bar, Cell as Figure, Row, Unit};
use portcullis::bench::report::statistics::quantile;
use serde_json::json;
use tokio::task::JoinSet;

use crate::Section;
use crate::cluster::Cluster;
use crate::plan::Plan;
use crate::slices::{Entrant, again};
use crate::systems::{Client, System};

const NAME: &str = "failover";
const CLIENTS: usize = 16;

/// How long a client waits for a reply before it turns to the next node.
const CLIENT_TIMEOUT: Duration = Duration::from_millis(300);
/// The pause of a client after a failure.
const PAUSE: Duration = Duration::from_millis(10);
/// How long clients run before the kill, and how long requests succeed again until a measurement ends.
const SETTLED: Duration = Duration::from_millis(1_500);
/// Longest measurement.
const LONGEST: Duration = Duration::from_secs(30);

const MEDIAN: Bar<System> = Bar::AtMost(600_000.0);
const MAXIMUM: Bar<System> = Bar::AtMost(1_000_000.0);

pub async fn measure(plan: &Plan, entrants: &mut [Entrant]) -> Section {
    let mut section = Section::new(NAME, "SIGKILL of the leader", "clients");
    if !plan.wants(NAME, "without a success") {
        return section;
    }
    let kills = if plan.quick { 3 } else { 15 };
    let mut done: Vec<(System, Result<Vec<i64>>)> = entrants.iter().map(|entrant| (entrant.system, Ok(Vec::new()))).collect();
    for round in 0..kills {
        for (entrant, (_, done)) in entrants.iter_mut().zip(&mut done) {
            let Ok(us) = done else { continue };
            if !entrant.system.fails_over() {
                continue;
            }
            plan.say(&format!("{NAME}: {}, kill {}", entrant.system.title(), round + 1));
            let measured = match &mut entrant.cluster {
                Ok(cluster) => kill(entrant.system, cluster, round).await,
                Err(error) => Err(again(error)),
            };
            match measured {
                Ok(gap) => us.push(gap.as_micros() as i64),
                Err(error) => *done = Err(error),
            }
        }
    }
    let mut row = |what: &str, part: f64, bar| {
        let mut row = Row::new(what, CLIENTS.to_string(), Unit::Microseconds).bar(Some(bar));
        let mut all = serde_json::Map::new();
        for (system, us) in &mut done {
            let cell = match us {
                Ok(us) => {
                    all.insert(system.title().to_owned(), json!(us));
                    let mut sorted = us.clone();
                    sorted.sort_unstable();
                    quantile(&sorted, part).map_or(Figure::Unsupported, |us| Figure::Value(us as f64))
                }
                Err(error) => Figure::Failed(error.to_string()),
            };
            row.cells.push((*system, cell));
        }
        row.more = json!({ "us": all });
        row
    };
    section.rows.push(row("time without a success, median", 0.5, MEDIAN));
    section.rows.push(row("time without a success, maximum", 1.0, MAXIMUM));
    section.notes.push(format!(
        "{kills} kills; clients are spread over the nodes and turn to the next one after an error or {} ms; ZooKeeper's library does so by \
         itself; redis-server has no failover without Sentinel",
        CLIENT_TIMEOUT.as_millis()
    ));
    section
}

/// What the clients of a kill share.
#[derive(Default)]
struct Shared {
    successes: RefCell<Vec<Instant>>,
    ends: Cell<bool>,
    last_failure: RefCell<Option<Error>>,
}

/// Kills the leader under load and starts it again. Returns the longest time without a success.
async fn kill(system: System, cluster: &mut Cluster, round: usize) -> Result<Duration> {
    let leader = cluster.ready().await?;
    let shared = Rc::new(Shared::default());
    let mut running = JoinSet::new();
    for number in 0..CLIENTS {
        let mut nodes = cluster.addrs();
        let first = number % nodes.len();
        nodes.rotate_left(first);
        running.spawn_local(drive(system, nodes, format!("failover-{round}-{number}"), Rc::clone(&shared)));
    }
    tokio::time::sleep(SETTLED).await;
    let killed = Instant::now();
    cluster.kill(leader)?;
    let gap = settled(&shared, killed).await;
    shared.ends.set(true);
    while running.join_next().await.is_some() {}
    // The node is back before the next kill, whatever was measured.
    cluster.restart(leader).await?;
    gap
}

/// Waits until requests succeed again for some time. Returns the longest time without a success since the kill.
async fn settled(shared: &Shared, killed: Instant) -> Result<Duration> {
    if shared.successes.borrow().last().is_none_or(|last| last.elapsed() > SETTLED) {
        let error = shared.last_failure.borrow_mut().take();
        return Err(error.unwrap_or_else(|| Error::other("no request succeeded before the kill")));
    }
    while killed.elapsed() < LONGEST {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let successes = shared.successes.borrow();
        // What was on its way at the kill may still arrive: the gap begins with the last success before a longer one.
        let since: Vec<Instant> = std::iter::once(killed).chain(successes.iter().copied().filter(|at| *at > killed)).collect();
        let longest = since.windows(2).max_by_key(|pair| pair[1] - pair[0]);
        if let Some([from, to]) = longest
            && to.elapsed() > SETTLED
            && since.last().is_some_and(|last| last.elapsed() < *to - *from)
        {
            return Ok(*to - *from);
        }
    }
    Err(Error::other(format!("no request succeeds within {} s", LONGEST.as_secs())))
}

/// Acquires and releases a lock, and connects to the next node after each failure.
async fn drive(system: System, mut nodes: Vec<SocketAddr>, name: String, shared: Rc<Shared>) {
    let mut client = None;
    // An acquire that failed may have been carried out: the next one takes another lock.
    let mut failures = 0;
    while !shared.ends.get() {
        let lock = format!("{name}-{failures}");
        let Err(error) = pair(system, &nodes, &name, &lock, &mut client, &shared).await else { continue };
        *shared.last_failure.borrow_mut() = Some(error);
        failures += 1;
        if !client.as_ref().is_some_and(Client::goes_on) {
            client = None;
            nodes.rotate_left(1);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn pair(
    system: System,
    nodes: &[SocketAddr],
    name: &str,
    lock: &str,
    client: &mut Option<Client>,
    shared: &Shared,
) -> Result<()> {
    let client = match client {
        Some(client) => client,
        None => client.insert(in_time(Client::connect(system, nodes, name.to_owned())).await?),
    };
    let held = in_time(client.acquire(lock)).await?;
    shared.successes.borrow_mut().push(Instant::now());
    in_time(client.release(&held)).await?;
    shared.successes.borrow_mut().push(Instant::now());
    Ok(())
}

async fn in_time<T>(request: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(CLIENT_TIMEOUT, request).await.unwrap_or_else(|late| Err(late.into()))
}
