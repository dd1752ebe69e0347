//! The memory of all nodes while many locks are held.

use std::io::{Error, Result};
use std::time::Duration;

use portcullis::bench::report::comparison::Unit;
use tokio::task::JoinSet;

use crate::Section;
use crate::pairs::REQUEST_TIMEOUT;
use crate::plan::Plan;
use crate::slices::{Entrant, Figure, Slice, again, rows};
use crate::systems::{Client, System};

const NAME: &str = "memory";
const CLIENTS: usize = 64;

pub async fn measure(plan: &Plan) -> Section {
    let mut section = Section::new(NAME, "memory of all nodes", "held locks");
    if !plan.wants(NAME, "locks") {
        return section;
    }
    let locks = if plan.quick { 10_000 } else { 100_000 };
    let mut done: Vec<(System, Result<Vec<Slice>>)> = Vec::new();
    for system in plan.systems.iter().copied() {
        plan.say(&format!("{NAME}: {locks} locks of {}", system.title()));
        let entrant = Entrant::start(plan, system).await;
        done.push((system, held(&entrant, locks).await.map(|slice| vec![slice])));
    }
    let figure = |what: &str| Figure { what: what.to_owned(), at: locks.to_string(), unit: Unit::Bytes, bar: None };
    section.rows.extend(rows(vec![figure("resident memory"), figure("… beyond that without locks, for each lock")], &done));
    section.notes.push(format!("the locks are held by {CLIENTS} clients; measured once, on new processes"));
    section
}

async fn held(entrant: &Entrant, locks: usize) -> Result<Slice> {
    let cluster = entrant.cluster.as_ref().map_err(again)?;
    let clients = entrant.clients(CLIENTS).await?;
    let before = cluster.resident_bytes()?;
    let mut running = JoinSet::new();
    for (number, client) in clients.into_iter().enumerate() {
        running.spawn_local(fill(client, (number..locks).step_by(CLIENTS)));
    }
    // The clients live until the memory is read.
    let (mut holders, mut acquired) = (Vec::new(), 0);
    while let Some(joined) = running.join_next().await {
        let (client, count) = joined.map_err(Error::other)??;
        holders.push(client);
        acquired += count;
    }
    if acquired != locks {
        return Err(Error::other(format!("{acquired} locks are held")));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = cluster.resident_bytes()?;
    Ok(vec![Some(after as f64), Some(after.saturating_sub(before) as f64 / locks as f64)])
}

/// Acquires locks. Returns the client that holds them, and their number.
async fn fill(mut client: Client, locks: impl Iterator<Item = usize>) -> Result<(Client, usize)> {
    let mut acquired = 0;
    for lock in locks {
        let name = format!("held-{lock:06}");
        tokio::time::timeout(REQUEST_TIMEOUT, client.acquire(&name)).await.unwrap_or_else(|late| Err(late.into()))?;
        acquired += 1;
    }
    Ok((client, acquired))
}
