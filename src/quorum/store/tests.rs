//! Tests of the whole store: openraft's own suite, crashes at every operation of seeded histories, damaged files, the thread.

#![allow(clippy::unwrap_used)]

mod crashes;
mod damage;
mod forgotten;
mod history;
mod lineage;
mod snapshots;
mod suite;
mod threads;

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::FutureExt;
use openraft::EntryPayload;
use openraft::impls::leader_id_adv::LeaderId;
use openraft::storage::IOFlushed;
use openraft::type_config::TypeConfigExt;

use crate::persist::disk::Disk;
use crate::quorum::store::segments::Planted;
use crate::quorum::store::{LogStore, Options, Owner, Worker};
use crate::quorum::types::{Batch, ClusterTime, Entry, LogId, Types, Vote};

const OWNER: Owner = Owner { node: 1, cluster: 0xc1 };

/// Small segments, so that histories have several.
fn options(planted: Planted) -> Options {
    Options { segment_bytes: 2500, step_bytes: 4096, cache_bytes: 700, planted, ..Options::new(OWNER, None) }
}

fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(LeaderId { term, node_id: 1 }, index)
}

fn entry(log_id: LogId, number: u64, len: usize) -> Entry {
    let time = ClusterTime { us: number, wall_offset_ms: 0 };
    let bytes = Bytes::from(vec![1 + (number % 255) as u8; len]);
    Entry { log_id, payload: EntryPayload::Normal(Batch { origin: 9, number, time, bytes }) }
}

/// What tells entries apart: their id and the number of their batch; a number that no batch has, if its bytes are not its own.
fn numbers(entries: &[Entry]) -> Vec<(LogId, u64)> {
    let number = |entry: &Entry| match &entry.payload {
        EntryPayload::Normal(batch) if batch.bytes.iter().all(|byte| *byte == 1 + (batch.number % 255) as u8) => batch.number,
        _ => u64::MAX,
    };
    entries.iter().map(|entry| (entry.log_id, number(entry))).collect()
}

/// Reads entries while no thread runs.
fn read<D: Disk>(
    store: &LogStore,
    worker: &mut Worker<D>,
    from: u64,
    to: u64,
    limit: Option<usize>,
) -> std::io::Result<Vec<Entry>> {
    let (receiver, here) = store.order_read(from, to, limit)?;
    let Some(receiver) = receiver else { return Ok(here) };
    worker.turn();
    let mut entries = receiver.now_or_never().unwrap().unwrap()?;
    entries.extend(here);
    Ok(entries)
}

/// Appends entries while no thread runs. Returns whether they are durable.
fn append<D: Disk>(store: &LogStore, worker: &mut Worker<D>, entries: Vec<Entry>) -> bool {
    let (sender, receiver) = Types::oneshot();
    store.order_append(entries, IOFlushed::signal(sender)).unwrap();
    worker.turn();
    matches!(receiver.now_or_never(), Some(Ok(Ok(()))))
}

fn vote<D: Disk>(store: &LogStore, worker: &mut Worker<D>, vote: Vote) -> bool {
    let receiver = store.order_vote(vote).unwrap();
    worker.turn();
    matches!(receiver.now_or_never(), Some(Ok(Ok(()))))
}

/// Factor for the number of histories: `PORTCULLIS_QUORUM_SEEDS` in percent.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let percent = std::env::var("PORTCULLIS_QUORUM_SEEDS").ok().and_then(|percent| percent.parse().ok()).unwrap_or(100);
    0..(usual * percent).div_ceil(100)
}

/// A folder as a model: what the log must say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    vote: Option<Vote>,
    purged: Option<LogId>,
    last: Option<LogId>,
    entries: BTreeMap<u64, (LogId, u64)>,
}
