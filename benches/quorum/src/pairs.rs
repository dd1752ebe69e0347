//! Clients that acquire and release locks of their own.

use std::io::{Error, Result};
use std::time::{Duration, Instant};

use portcullis::bench::disk::Disk;
use portcullis::bench::report::comparison::{Bar, Unit};
use portcullis::bench::report::statistics::quantile;
use portcullis::bench::servers::process_stats::whole_cpu_ns;
use tokio::task::JoinSet;

use crate::Section;
use crate::cluster::Cluster;
use crate::plan::Plan;
use crate::slices::{Entrant, Figure, Slice, again, rows};
use crate::systems::{Client, System};

const NAME: &str = "pairs";
const CLIENTS: [usize; 3] = [1, 64, 256];

/// Longest time that a request may take.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

const RATE: Bar<System> = Bar::EachAtLeast(&[(System::Etcd, 10.0), (System::ZooKeeper, 5.0), (System::Redis, 1.0)]);
/// At most 0.3 of etcd's.
const P99: Bar<System> = Bar::EachAtLeast(&[(System::Etcd, 3.33)]);
/// At most 0.08 of etcd's.
const CPU: Bar<System> = Bar::EachAtLeast(&[(System::Etcd, 12.5)]);
/// What a client may wait beside the disk, in microseconds.
const BESIDE_DISK_US: i64 = 300;

pub async fn measure(plan: &Plan, entrants: &mut [Entrant], disk: &mut Disk) -> Section {
    let mut section = Section::new(NAME, "locks without contention", "clients");
    for count in CLIENTS {
        if !figures(count, disk).iter().any(|figure| plan.wants(NAME, &figure.what)) {
            continue;
        }
        let mut clients = Vec::new();
        for entrant in entrants.iter() {
            plan.say(&format!("{NAME}: connect {count} to {}", entrant.system.title()));
            clients.push(entrant.clients(count).await);
        }
        let mut done: Vec<(System, Result<Vec<Slice>>)> =
            entrants.iter().map(|entrant| (entrant.system, Ok(Vec::new()))).collect();
        // The first round warms up.
        for round in 0..=plan.rounds {
            plan.say(&format!("{NAME}: {count} clients, round {round}"));
            for ((entrant, clients), (_, done)) in entrants.iter().zip(&mut clients).zip(&mut done) {
                let measured = match (&entrant.cluster, clients.as_mut()) {
                    (Ok(cluster), Ok(clients)) => slice(plan, cluster, clients, disk).await,
                    (Err(error), _) => Err(again(error)),
                    (_, Err(error)) => Err(again(error)),
                };
                match (measured, &mut *done) {
                    (Ok(slice), Ok(slices)) if round > 0 => slices.push(slice),
                    (Err(error), Ok(_)) => *done = Err(error),
                    _ => (),
                }
            }
        }
        section.rows.extend(rows(figures(count, disk), &done).into_iter().filter(|row| plan.wants(NAME, &row.what)));
    }
    section
}

/// The figures of a slice, in the order of [`slice`].
fn figures(count: usize, disk: &Disk) -> Vec<Figure> {
    let figure =
        |what: &str, unit: Unit, bar: Option<Bar<System>>| Figure { what: what.to_owned(), at: count.to_string(), unit, bar };
    let (alone, many) = (count == 1, |bar| (count > 1).then_some(bar));
    let beside_disk = disk.quantile(0.5).filter(|_| alone).map(|us| Bar::AtMost((us + BESIDE_DISK_US) as f64));
    vec![
        figure("pairs of acquire and release", Unit::PerSecond, many(RATE)),
        figure("acquire, p50", Unit::Microseconds, beside_disk),
        figure("acquire, p99", Unit::Microseconds, many(P99)),
        figure("pair, p50", Unit::Microseconds, None),
        figure("pair, p99", Unit::Microseconds, many(P99)),
        figure("CPU of all nodes for a pair", Unit::Nanoseconds, many(CPU)),
        figure("CPU of the bench's clients for a pair", Unit::Nanoseconds, None),
    ]
}

/// What the clients of a slice measured, in microseconds.
#[derive(Default)]
struct Taken {
    acquire: Vec<i64>,
    pair: Vec<i64>,
}

async fn slice(plan: &Plan, cluster: &Cluster, clients: &mut Vec<Client>, disk: &mut Disk) -> Result<Slice> {
    disk.measure()?;
    let count = clients.len();
    let harness = || whole_cpu_ns(std::process::id()).ok_or_else(|| Error::other("/proc cannot be read"));
    let (cpu_before, harness_before, began) = (cluster.cpu_ns()?, harness()?, Instant::now());
    let end = began + plan.slice();
    let mut running = JoinSet::new();
    for (number, client) in clients.drain(..).enumerate() {
        running.spawn_local(drive(client, format!("pairs-{count}-{number}"), end));
    }
    let (mut all, mut failure) = (Taken::default(), None);
    while let Some(joined) = running.join_next().await {
        match joined.map_err(Error::other)? {
            (client, Ok(taken)) => {
                clients.push(client);
                all.acquire.extend(taken.acquire);
                all.pair.extend(taken.pair);
            }
            (_, Err(error)) => failure = Some(error),
        }
    }
    if let Some(error) = failure {
        return Err(error);
    }
    let seconds = began.elapsed().as_secs_f64();
    let (cpu, harness) = (cluster.cpu_ns()? - cpu_before, harness()? - harness_before);
    all.acquire.sort_unstable();
    all.pair.sort_unstable();
    let pairs = all.pair.len() as f64;
    let us = |sorted: &[i64], part| quantile(sorted, part).map(|us| us as f64);
    Ok(vec![
        Some(pairs / seconds),
        us(&all.acquire, 0.5),
        us(&all.acquire, 0.99),
        us(&all.pair, 0.5),
        us(&all.pair, 0.99),
        Some(cpu as f64 / pairs),
        Some(harness as f64 / pairs),
    ])
}

/// Acquires and releases a lock until `end`.
async fn drive(mut client: Client, lock: String, end: Instant) -> (Client, Result<Taken>) {
    let mut taken = Taken::default();
    while Instant::now() < end || taken.pair.is_empty() {
        let began = Instant::now();
        let pair = async {
            let held = client.acquire(&lock).await?;
            let us = began.elapsed().as_micros() as i64;
            client.release(&held).await.map(|()| us)
        };
        match tokio::time::timeout(REQUEST_TIMEOUT, pair).await.unwrap_or_else(|late| Err(late.into())) {
            Ok(us) => {
                taken.acquire.push(us);
                taken.pair.push(began.elapsed().as_micros() as i64);
            }
            Err(error) => return (client, Err(error)),
        }
    }
    (client, Ok(taken))
}
