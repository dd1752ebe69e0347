//! A seeded history of a log: orders, restarts, errors and a crash, with a model of what must be there afterwards.

#![allow(clippy::result_large_err, reason = "a violation ends the test")]

use std::sync::PoisonError;

use super::*;
use crate::persist::disk::simulated::{Injected, SimulatedDisk};
use crate::quorum::store::contents::next_index;
use crate::quorum::store::open::OpenError;

/// What happens in a history.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// The operation of the disk in which the machine crashes.
    pub(super) crash_at: Option<u64>,
    pub(super) fails: [Option<(u64, Injected)>; 2],
    pub(super) planted: Planted,
}

/// What must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// A start was refused.
    Refused(OpenError),
    /// After a start the log says what it said at no moment since the last acknowledgement.
    Lost { acknowledged: usize, orders: usize, found: Model },
    /// What is known to be committed was never said, or is not in the log.
    Committed(Option<LogId>),
    /// A read gave something else than the log has.
    Read(Vec<(LogId, u64)>),
}

type Outcome<T = ()> = std::result::Result<T, Violation>;

/// Why a generation ended.
enum Ended {
    /// The process was killed, or closed the log.
    Stopped,
    /// The machine crashed.
    Crashed,
}

pub(super) struct History {
    planted: Planted,
    random: u64,
    /// The model after each order; the first one is the empty log.
    states: Vec<Model>,
    /// Number of orders that were acknowledged, with all before them.
    acknowledged: usize,
    /// All that was said to be committed.
    committed: Vec<Option<LogId>>,
    term: u64,
    number: u64,
}

/// Plays a history. Returns how many operations of the disk it had.
pub(super) fn play(plan: Plan) -> Outcome<u64> {
    let mut disk = SimulatedDisk::new(plan.seed);
    if let Some(at) = plan.crash_at {
        disk.crash_at(at);
    }
    for (at, how) in plan.fails.into_iter().flatten() {
        disk.fail_at(at, how);
    }
    let mut history = History {
        planted: plan.planted,
        random: plan.seed ^ 0x5eed,
        states: vec![Model::default()],
        acknowledged: 0,
        committed: vec![None],
        term: 1,
        number: 0,
    };
    let mut crashed = false;
    for generation in 0..3 {
        if let Ended::Crashed = history.generation(&mut disk)? {
            disk.restart();
            crashed = true;
            break;
        }
        // At last the machine loses its power while nothing happens.
        if generation == 2 { disk.restart() } else { disk.restart_process() }
    }
    let operations = disk.operations();
    // What was found goes on, and is found again.
    for _ in 0..1 + usize::from(crashed) {
        history.generation(&mut disk)?;
        disk.restart();
    }
    let mut found = LogStore::open(&mut disk, options(plan.planted));
    if let Ok((store, worker)) = &mut found {
        assert!(history.check(store, worker)?, "no error is injected any more");
    }
    found.map(drop).map_err(Violation::Refused)?;
    Ok(operations)
}

impl History {
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    fn model(&self) -> &Model {
        self.states.last().unwrap()
    }

    /// The log says what the model says, at some moment since the last acknowledgement. The history goes on from there. Returns false
    /// if the log could not be read.
    fn check<D: Disk>(&mut self, store: &LogStore, worker: &mut Worker<D>) -> Outcome<bool> {
        let state = store.memory.lock().unwrap_or_else(PoisonError::into_inner).state;
        // A read that fails fails by an injected error.
        let Ok(entries) = read(store, worker, 0, u64::MAX, None) else { return Ok(false) };
        let entries = numbers(&entries).into_iter().map(|(id, number)| (id.index, (id, number))).collect();
        let found = Model { vote: state.vote, purged: state.purged, last: state.last, entries };
        let at = (self.acknowledged..self.states.len()).rev().find(|at| self.states[*at] == found);
        let Some(at) = at else {
            return Err(Violation::Lost { acknowledged: self.acknowledged, orders: self.states.len() - 1, found });
        };
        if !self.committed.contains(&state.committed) || state.committed > found.last {
            return Err(Violation::Committed(state.committed));
        }
        // What was lost is lost for ever; what was found may not be lost any more, because it was made durable.
        self.states.truncate(at + 1);
        self.acknowledged = at;
        Ok(true)
    }

    /// Opens the log, checks it, and uses it until the process stops or the machine crashes.
    fn generation(&mut self, disk: &mut SimulatedDisk) -> Outcome<Ended> {
        match LogStore::open(&mut *disk, options(self.planted)) {
            Ok((store, mut worker)) => {
                if self.check(&store, &mut worker)? {
                    self.use_log(&store, &mut worker)?;
                }
            }
            // An injected error.
            Err(OpenError::Disk(_)) => {}
            Err(refused) => return Err(Violation::Refused(refused)),
        }
        Ok(if disk.has_crashed() { Ended::Crashed } else { Ended::Stopped })
    }

    fn use_log<D: Disk>(&mut self, store: &LogStore, worker: &mut Worker<D>) -> Outcome {
        let mut waiting = Vec::new();
        for _ in 0..12 + self.below(20) {
            if let Some(receiver) = self.order(store, worker)? {
                waiting.push((self.states.len() - 1, receiver));
            }
            match self.below(8) {
                0..4 => drop(worker.turn()),
                4 => {
                    worker.turn();
                    worker.tidy();
                }
                _ => continue,
            }
            self.collect(&mut waiting);
            if store.memory.lock().unwrap().failed.is_some() {
                return Ok(());
            }
        }
        if self.below(2) == 0 {
            store.orders.send(crate::quorum::store::worker::Order::Close).unwrap();
            worker.turn();
            self.collect(&mut waiting);
        }
        Ok(())
    }

    fn collect(&mut self, waiting: &mut Vec<(usize, Receiver)>) {
        waiting.retain_mut(|(order, receiver)| match receiver.now() {
            None => true,
            Some(durable) => {
                if durable {
                    self.acknowledged = self.acknowledged.max(*order);
                }
                false
            }
        });
    }

    /// Orders something. Returns who is told when it is durable.
    fn order<D: Disk>(&mut self, store: &LogStore, worker: &mut Worker<D>) -> Outcome<Option<Receiver>> {
        let mut model = self.model().clone();
        let (first, next) = (next_index(model.purged), next_index(model.last));
        let ordered = match self.below(20) {
            0..9 => {
                let count = 1 + self.below(3);
                let entries: Vec<Entry> = (next..next + count)
                    .map(|index| {
                        self.number += 1;
                        let len = if self.below(8) == 0 { self.below(1500) } else { self.below(200) };
                        entry(log_id(self.term, index), self.number, len as usize)
                    })
                    .collect();
                let all = numbers(&entries);
                let (sender, receiver) = Types::oneshot();
                let ordered = store.order_append(entries, IOFlushed::signal(sender));
                if ordered.is_err() {
                    return Ok(None);
                }
                // A crash may keep the first ones of them.
                for (id, number) in all {
                    model.last = Some(id);
                    model.entries.insert(id.index, (id, number));
                    self.states.push(model.clone());
                }
                return Ok(Some(Receiver::Append(receiver)));
            }
            9..12 => {
                self.term += 1;
                let vote = if self.below(2) == 0 { Vote::new(self.term, 1) } else { Vote::new_committed(self.term, 1) };
                model.vote = Some(vote);
                store.order_vote(vote).map(|receiver| Some(Receiver::Vote(receiver)))
            }
            // What is committed is never truncated.
            12..14 if first.max(next_index(self.committed.iter().max().copied().flatten())) < next => {
                let first = first.max(next_index(self.committed.iter().max().copied().flatten()));
                let keep = first + self.below(next - first);
                let after = keep.checked_sub(1).and_then(|last| model.entries.get(&last).map(|(id, _)| *id)).or(model.purged);
                model.entries.retain(|index, _| *index < next_index(after));
                model.last = after;
                self.term += 1;
                store.order_truncate(after).map(|()| None)
            }
            14..16 => {
                let upto = match self.below(5) {
                    0 => log_id(self.term, next + self.below(5)),
                    _ if first < next => model.entries[&(first + self.below(next - first))].0,
                    _ => return Ok(None),
                };
                model.entries.retain(|index, _| *index > upto.index);
                model.purged = Some(upto);
                model.last = model.last.max(Some(upto));
                store.order_purge(upto).map(|()| None)
            }
            16..18 if first < next => {
                let committed = Some(model.entries[&(first + self.below(next - first))].0);
                // It is not lost with what was not acknowledged, but neither is it a promise.
                self.committed.push(committed);
                return Ok(store.note_committed(committed).map(|()| None).unwrap_or_default());
            }
            _ => {
                let from = self.below(next + 2);
                let to = from + self.below(6);
                let limit = (self.below(2) == 0).then(|| self.below(900) as usize);
                if let Ok(entries) = read(store, worker, from, to, limit) {
                    let all: Vec<_> = model.entries.range(from..to).map(|(_, entry)| *entry).collect();
                    let found = numbers(&entries);
                    let whole = limit.is_none() || found.is_empty();
                    fail_if!((whole && found != all) || !all.starts_with(&found), Violation::Read(found));
                }
                return Ok(None);
            }
        };
        // The log refuses orders after it has failed.
        let Ok(receiver) = ordered else { return Ok(None) };
        self.states.push(model);
        Ok(receiver)
    }
}

/// Who is told that something is durable.
enum Receiver {
    Append(openraft::alias::OneshotReceiverOf<Types, std::io::Result<()>>),
    Vote(tokio::sync::oneshot::Receiver<std::io::Result<()>>),
}

impl Receiver {
    /// Whether it is durable; `None` if nobody knows yet.
    fn now(&mut self) -> Option<bool> {
        match self {
            Receiver::Append(receiver) => receiver.now_or_never().map(|told| matches!(told, Ok(Ok(())))),
            Receiver::Vote(receiver) => receiver.now_or_never().map(|told| matches!(told, Ok(Ok(())))),
        }
    }
}
