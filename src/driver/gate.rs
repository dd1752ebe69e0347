//! The commit gate: which bytes of which outbox wait until a batch of the log is settled.
//!
//! ```text
//!   request ─▶ changed keys ─▶ unsettled: key ─▶ batch ──┐ what a request wrote or read
//!                                                        ▼
//!   outbox  ── may go ──┃ a gate: position, batch ┃── waits ──▶
//!                                                        ▲ settle(batch) opens it
//! ```
//!
//! A batch gets its number before it is taken from the log: changes since the last one belong to the *pending* batch. A reply
//! waits for the last batch that it shows: the pending one if its request changed anything, and those of the unsettled keys that
//! the request named. What names no keys, such as a script or `SCAN`, may have seen everything: it waits for the last batch.
//!
//! Keys are known by a hash alone. Two keys with one hash cost a reply a wait that it did not need.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use crate::base::ids::SessionId;
use crate::commands::server::info;
use crate::engine::command::{Command, Flags, Group, Traits};
use crate::engine::table::CommandTable;
use crate::persist::append::log::{AppendLog, key_hash};
pub use crate::persist::append::log_writer::BatchNumber;

/// A position of a session's whole output that is not passed before a batch is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gate {
    /// The position, in bytes of the session's whole output.
    at: u64,
    /// The batch.
    batch: BatchNumber,
}

/// A request that was executed, and its reply.
#[derive(Clone, Copy)]
pub struct Executed<'a> {
    /// The table of commands.
    pub commands: &'static CommandTable,
    /// Its row, if it was looked up.
    pub row: Option<&'static Command>,
    /// Its arguments, the command's name first.
    pub args: &'a [&'a [u8]],
    /// The session's database before the request.
    pub db: u32,
    /// Whether the reply only says that the request is queued for EXEC, or why it is not.
    pub queued: bool,
    /// The reply.
    pub reply: &'a [u8],
}

impl Executed<'_> {
    /// Whether the reply may show keys, or how many there are. A container's row does not say that of its subcommands.
    pub fn may_show_keys(&self) -> bool {
        let row = self.row.filter(|row| row.subcommands.is_empty()).or_else(|| self.commands.named(self.args));
        !self.queued && row.is_none_or(|row| !shows_no_key(row) || self.counts_keys(row))
    }

    /// Whether the reply counts keys or locks.
    fn counts_keys(&self, row: &Command) -> bool {
        row.traits.contains(Traits::COUNTS_KEYS)
            || (row.traits.contains(Traits::COUNTS_KEYS_IN_SECTIONS) && info::counts_keys(self.args.get(1..).unwrap_or_default()))
    }
}

/// Whether a command looks at no key, and runs none that does.
fn shows_no_key(row: &Command) -> bool {
    if row.traits.contains(Traits::SHOWS_NO_KEY) {
        return true;
    }
    if row.flags.intersects(Flags::READONLY | Flags::WRITE) {
        return false;
    }
    // A script or a transaction may run commands that look at keys.
    let runs_others = row.traits.contains(Traits::DEBUG) || row.is_exec();
    matches!(row.group, Group::Connection | Group::PubSub | Group::Server | Group::Transactions) && !runs_others
}

/// The gates of all sessions, and the batches that unsettled changes are in.
#[derive(Debug, Default)]
pub struct CommitGate {
    /// All batches up to this one are settled.
    settled: BatchNumber,
    /// The last batch that was taken from the log.
    taken: BatchNumber,
    /// Whether the pending batch has changes.
    pending: bool,
    /// For each hash of a changed key: the last batch with a change that is not settled.
    keys: HashMap<u64, BatchNumber, FixedState>,
    /// The hashes that each unsettled batch changed, in the order of batches. The last one is the pending batch's.
    changed: VecDeque<(BatchNumber, Vec<u64>)>,
    /// The last batch that changed a whole database or more.
    everything: BatchNumber,
    /// Gates in the order of positions and batches.
    gates: HashMap<SessionId, SmallVec<[Gate; 2]>, FixedState>,
    /// Number of gates, which INFO reads.
    held: Rc<Cell<usize>>,
}

impl CommitGate {
    /// The number of the batch that changes go into now.
    pub fn pending(&self) -> BatchNumber {
        self.taken + 1
    }

    /// All batches up to this one are settled.
    pub fn settled(&self) -> BatchNumber {
        self.settled
    }

    /// The last batch with changes, settled or not.
    pub fn last(&self) -> BatchNumber {
        if self.pending { self.taken + 1 } else { self.taken }
    }

    /// Whether a batch was taken that is not settled.
    pub fn is_on_its_way(&self) -> bool {
        self.settled < self.taken
    }

    /// Whether any change is not settled.
    #[inline]
    pub fn in_flight(&self) -> bool {
        self.pending || self.settled < self.taken
    }

    /// Number of replies and messages that are held back, for INFO.
    pub fn held(&self) -> Rc<Cell<usize>> {
        Rc::clone(&self.held)
    }

    /// Records changes of keys with these hashes, or of `everything`, in the pending batch.
    pub fn changed(&mut self, hashes: &[u64], everything: bool) {
        let batch = self.pending();
        self.pending = true;
        if everything {
            self.everything = batch;
        }
        let added = hashes.iter().copied().filter(|hash| self.keys.insert(*hash, batch) != Some(batch));
        match self.changed.back_mut() {
            Some((last, list)) if *last == batch => list.extend(added),
            _ => self.changed.push_back((batch, added.collect())),
        }
    }

    /// Records what the log has gathered since the last call. Returns false if that is nothing.
    pub fn note_changes(&mut self, log: &AppendLog) -> bool {
        log.take_changed(|hashes, everything| self.changed(hashes, everything)).is_some()
    }

    /// The last batch that the reply to a request shows; 0 if all of it is settled. `row` is the request's row where it is known,
    /// and
    /// `seed` that of the log's hashes.
    pub fn batch_of_reply(&mut self, log: &AppendLog, seed: u64, request: Executed<'_>) -> BatchNumber {
        let Executed { commands, row, args, db, queued, reply } = request;
        // It names the locks and owners of the whole cycle.
        let shows_other_locks = reply.starts_with(b"-DEADLOCK");
        let mut batch = 0;
        if self.in_flight() && !queued {
            // A request that came alone was not looked up ahead, and a container was not resolved.
            let row = row.filter(|row| row.subcommands.is_empty());
            let row = row.or_else(|| commands.named(args));
            batch = if shows_other_locks { self.last() } else { self.seen_by(seed, row, args, db) };
        }
        if self.note_changes(log) {
            batch = self.pending();
        }
        batch
    }

    /// The last batch that a request may have seen, changes of its own not included.
    fn seen_by(&self, seed: u64, row: Option<&Command>, args: &[&[u8]], db: u32) -> BatchNumber {
        let everything = self.last();
        let Some(row) = row else { return everything };
        if shows_no_key(row) {
            return 0;
        }
        if !row.flags.intersects(Flags::READONLY | Flags::WRITE) {
            return everything;
        }
        match row.key_positions(args).filter(|_| row.names_all_keys()) {
            Some(keys) if !keys.is_empty() => {
                keys.iter().map(|key| self.batch_of(key_hash(seed, db, args[key.position]))).max().unwrap_or(0)
            }
            _ => everything,
        }
    }

    /// The last batch that the output to other sessions shows. `seen` is the last batch that the requests of the turn showed;
    /// `None` if there was none: time has passed or an order was carried out, and what it shows is not known.
    pub fn batch_of_others(&mut self, log: &AppendLog, seen: Option<BatchNumber>) -> BatchNumber {
        if self.note_changes(log) { self.pending() } else { seen.unwrap_or(self.last()) }
    }

    /// Records that the pending batch was taken from the log. Returns its number.
    pub fn note_taken(&mut self) -> BatchNumber {
        self.taken += 1;
        self.pending = false;
        self.taken
    }

    /// The last unsettled batch that changed a key with this hash; 0 if its changes are settled.
    #[inline]
    pub fn batch_of(&self, hash: u64) -> BatchNumber {
        let everything = if self.everything > self.settled { self.everything } else { 0 };
        self.keys.get(&hash).copied().unwrap_or(0).max(everything)
    }

    /// Holds back a session's output from a position on, until a batch is settled. Returns whether there is a gate.
    pub fn hold(&mut self, id: SessionId, at: u64, batch: BatchNumber) -> bool {
        if batch <= self.settled {
            return self.gates.contains_key(&id);
        }
        let gates = self.gates.entry(id).or_default();
        // What comes behind a gate waits for it anyway.
        if gates.last().is_none_or(|last| last.batch < batch) {
            gates.push(Gate { at, batch });
            self.held.set(self.held.get() + 1);
        }
        true
    }

    /// The position up to which a session's output may be written, in bytes of its whole output.
    #[inline]
    pub fn end(&self, id: SessionId) -> u64 {
        self.gates.get(&id).and_then(|gates| gates.first()).map_or(u64::MAX, |gate| gate.at)
    }

    /// The last batch that output of a session waits for; 0 for none.
    #[cfg(any(test, feature = "internals"))]
    pub fn last_of(&self, id: SessionId) -> BatchNumber {
        self.gates.get(&id).and_then(|gates| gates.last()).map_or(0, |gate| gate.batch)
    }

    /// Settles all batches up to this one. Returns the sessions with more output to write, each with whether it has no gate left.
    pub fn settle(&mut self, batch: BatchNumber) -> Vec<(SessionId, bool)> {
        self.settled = self.settled.max(batch);
        while self.changed.front().is_some_and(|(of, _)| *of <= batch) {
            for hash in self.changed.pop_front().map(|(_, hashes)| hashes).unwrap_or_default() {
                if self.keys.get(&hash).is_some_and(|last| *last <= batch) {
                    self.keys.remove(&hash);
                }
            }
        }
        let (mut opened, held) = (Vec::new(), &self.held);
        self.gates.retain(|&id, gates| {
            let open = gates.iter().take_while(|gate| gate.batch <= batch).count();
            if open > 0 {
                gates.drain(..open);
                held.set(held.get() - open);
                opened.push((id, gates.is_empty()));
            }
            !gates.is_empty()
        });
        // The order of a table is no order to serve clients in.
        opened.sort_unstable();
        opened
    }

    /// Forgets a session.
    pub fn forget(&mut self, id: SessionId) {
        if let Some(gates) = self.gates.remove(&id) {
            self.held.set(self.held.get() - gates.len());
        }
    }

    /// Panics if an invariant is broken.
    #[cfg(test)]
    fn check_invariants(&self) {
        assert!(self.settled <= self.taken, "only taken batches are settled");
        assert_eq!(self.held.get(), self.gates.values().map(SmallVec::len).sum::<usize>(), "all gates are counted");
        for gates in self.gates.values() {
            assert!(!gates.is_empty(), "a session without gates is forgotten");
            assert!(gates.iter().all(|gate| gate.batch > self.settled), "a gate waits for something");
            assert!(gates.iter().is_sorted_by_key(|gate| (gate.batch, gate.at)), "gates are in order");
        }
        let listed: Vec<(BatchNumber, &u64)> =
            self.changed.iter().flat_map(|(batch, hashes)| hashes.iter().map(|hash| (*batch, hash))).collect();
        for (hash, batch) in &self.keys {
            assert!(*batch > self.settled && listed.contains(&(*batch, hash)), "an unsettled key is in the list of its batch");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SessionId = SessionId::new(3, 1);

    #[test]
    fn a_reply_waits_for_the_batch_that_it_shows() {
        let mut gate = CommitGate::default();
        assert!(!gate.in_flight());
        gate.changed(&[7], false);
        assert_eq!((gate.batch_of(7), gate.batch_of(8), gate.last()), (1, 0, 1));
        assert!(gate.hold(ID, 100, gate.batch_of(7)));
        assert_eq!(gate.note_taken(), 1);
        gate.changed(&[8], false);
        assert_eq!((gate.batch_of(7), gate.batch_of(8), gate.pending()), (1, 2, 2));
        gate.hold(ID, 110, 2);
        gate.hold(ID, 120, 1);
        gate.check_invariants();
        assert_eq!((gate.end(ID), gate.held().get()), (100, 2), "the third stands behind the second");
        assert_eq!(gate.settle(1), [(ID, false)]);
        assert_eq!((gate.end(ID), gate.batch_of(7)), (110, 0));
        gate.check_invariants();
        gate.note_taken();
        assert_eq!(gate.settle(2), [(ID, true)]);
        assert_eq!((gate.end(ID), gate.batch_of(8), gate.in_flight()), (u64::MAX, 0, false));
        gate.check_invariants();
    }

    #[test]
    fn a_key_that_changes_again_waits_for_the_later_batch() {
        let mut gate = CommitGate::default();
        gate.changed(&[7, 7], false);
        gate.note_taken();
        gate.changed(&[7], false);
        gate.note_taken();
        gate.check_invariants();
        assert_eq!(gate.batch_of(7), 2);
        gate.settle(1);
        gate.check_invariants();
        assert_eq!(gate.batch_of(7), 2);
        gate.settle(2);
        assert_eq!(gate.batch_of(7), 0);
        gate.check_invariants();
    }

    #[test]
    fn after_a_change_of_everything_each_key_waits() {
        let mut gate = CommitGate::default();
        gate.changed(&[], true);
        gate.note_taken();
        assert_eq!(gate.batch_of(1), 1);
        gate.settle(1);
        assert_eq!(gate.batch_of(1), 0);
        gate.check_invariants();
    }

    #[test]
    fn a_closed_session_has_no_gate() {
        let mut gate = CommitGate::default();
        gate.changed(&[7], false);
        gate.hold(ID, 0, 1);
        gate.forget(ID);
        gate.check_invariants();
        assert_eq!((gate.end(ID), gate.held().get()), (u64::MAX, 0));
        assert!(!gate.hold(ID, 0, 0), "what is settled needs no gate");
    }
}
