//! One lock and many clients that want it.

use std::cell::Cell;
use std::io::{Error, Result};
use std::rc::Rc;
use std::time::Instant;

use portcullis::bench::report::comparison::{Bar, Unit};
use tokio::task::JoinSet;

use crate::Section;
use crate::cluster::Cluster;
use crate::pairs::REQUEST_TIMEOUT;
use crate::plan::Plan;
use crate::slices::{Entrant, Figure, Slice, again, rows};
use crate::systems::{Client, System};

const NAME: &str = "contended";
const WAITERS: usize = 64;

const RATE: Bar<System> = Bar::EachAtLeast(&[(System::Etcd, 8.0), (System::ZooKeeper, 4.0)]);

pub async fn measure(plan: &Plan, entrants: &mut [Entrant]) -> Section {
    let mut section = Section::new(NAME, "one contended lock", "waiters");
    if !plan.wants(NAME, "acquisitions") {
        return section;
    }
    let mut clients = Vec::new();
    for entrant in entrants.iter() {
        plan.say(&format!("{NAME}: connect {WAITERS} to {}", entrant.system.title()));
        clients.push(entrant.clients(WAITERS).await);
    }
    let mut done: Vec<(System, Result<Vec<Slice>>)> = entrants.iter().map(|entrant| (entrant.system, Ok(Vec::new()))).collect();
    for round in 0..plan.rounds {
        plan.say(&format!("{NAME}: round {}", round + 1));
        for ((entrant, clients), (_, done)) in entrants.iter().zip(&mut clients).zip(&mut done) {
            let measured = match (&entrant.cluster, clients.as_mut()) {
                (Ok(cluster), Ok(clients)) => slice(plan, cluster, clients).await,
                (Err(error), _) => Err(again(error)),
                (_, Err(error)) => Err(again(error)),
            };
            match (measured, &mut *done) {
                (Ok(slice), Ok(slices)) => slices.push(slice),
                (Err(error), Ok(_)) => *done = Err(error),
                _ => (),
            }
        }
    }
    let figure = |what: &str, unit, bar| Figure { what: what.to_owned(), at: WAITERS.to_string(), unit, bar };
    let figures = vec![
        figure("acquisitions", Unit::PerSecond, Some(RATE)),
        figure("CPU of all nodes for an acquisition", Unit::Nanoseconds, None),
    ];
    section.rows.extend(rows(figures, &done));
    section.notes.push("redis-server has no queue: a client that is refused sleeps 100 ms, as redis-py's does".to_owned());
    section
}

/// The state that the clients of a slice share.
#[derive(Default)]
struct Shared {
    is_held: Cell<bool>,
    acquisitions: Cell<u64>,
}

async fn slice(plan: &Plan, cluster: &Cluster, clients: &mut Vec<Client>) -> Result<Slice> {
    let shared = Rc::new(Shared::default());
    let (cpu_before, began) = (cluster.cpu_ns()?, Instant::now());
    let end = began + plan.slice();
    let mut running = JoinSet::new();
    for client in clients.drain(..) {
        running.spawn_local(drive(client, Rc::clone(&shared), end));
    }
    // The last ones acquire the lock once more each, one after the other.
    let mut failure = None;
    while let Some(joined) = running.join_next().await {
        match joined.map_err(Error::other)? {
            (client, Ok(())) => clients.push(client),
            (_, Err(error)) => failure = Some(error),
        }
    }
    if let Some(error) = failure {
        return Err(error);
    }
    let (seconds, acquisitions) = (began.elapsed().as_secs_f64(), shared.acquisitions.get() as f64);
    let cpu = (cluster.cpu_ns()? - cpu_before) as f64;
    Ok(vec![Some(acquisitions / seconds), Some(cpu / acquisitions)])
}

/// Acquires and releases the lock until `end`.
async fn drive(mut client: Client, shared: Rc<Shared>, end: Instant) -> (Client, Result<()>) {
    while Instant::now() < end {
        let turn = async {
            let held = client.acquire("contended").await?;
            if shared.is_held.replace(true) {
                return Err(Error::other("two clients hold the lock"));
            }
            shared.acquisitions.set(shared.acquisitions.get() + 1);
            shared.is_held.set(false);
            client.release(&held).await
        };
        if let Err(error) = tokio::time::timeout(REQUEST_TIMEOUT, turn).await.unwrap_or_else(|late| Err(late.into())) {
            return (client, Err(error));
        }
    }
    (client, Ok(()))
}
