//! What a node has while it leads.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::Present;
use crate::driver::gate::{BatchNumber, Executed};
use crate::driver::log::Log;
use crate::driver::replicated::clock::cluster_clock;
use crate::driver::replicated::leadership::{Leadership, Wait};
use crate::engine::persistence::{Figures, Position};
use crate::quorum::node::Node;
use crate::quorum::store::Progress;

/// How far the batches of a leader are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settled {
    /// The last batch that is committed.
    pub batch: u64,
    /// The position in the leader's log behind it.
    pub position: u64,
}

/// The log of a leader, and its leadership.
pub struct Leading {
    /// What records changes, and what waits for them.
    pub log: Log,
    /// Which batches are on their way, and how long it certainly leads.
    pub leadership: Leadership,
    /// Whether a batch is to be proposed even if it is empty: replies wait until it is committed.
    pub confirms: bool,
    /// Bytes that were proposed and are not committed.
    pub(super) queued: Rc<Cell<u64>>,
    pub(super) settled: Rc<Cell<Settled>>,
    /// Bytes that the quorum may have, and the disk of this node has not written.
    unwritten: Arc<AtomicU64>,
}

impl Leading {
    /// The beginning of a leadership. `progress` is that of the node's own log.
    pub fn new(log: Log, leadership: Leadership, progress: &Progress) -> Leading {
        let unwritten = Arc::clone(&progress.unwritten_bytes);
        Leading { log, leadership, confirms: false, queued: Rc::default(), settled: Rc::default(), unwritten }
    }

    /// The batch that the reply to a request waits for. See [`Leadership::wait_of`].
    pub(super) fn batch_of_reply(&mut self, node: &Node, request: Executed<'_>, ns: u64, trusts_itself: bool) -> BatchNumber {
        let batch = self.log.batch_of_reply(request);
        if trusts_itself {
            return batch;
        }
        match self.leadership.wait_of(batch, &self.log.gate, &request, ns, || node.lease()) {
            Wait::For(batch) => batch,
            Wait::ForMajority => {
                self.confirms = true;
                self.log.gate.pending()
            }
        }
    }

    /// Proposes the pending changes, or an empty batch if there are none. Returns its number.
    pub(in crate::driver) fn propose(&mut self, node: &Node, at: Present) -> BatchNumber {
        let Leading { log, leadership, confirms, queued, .. } = self;
        *confirms = false;
        log.gate.note_changes(&log.records);
        log.records.set_boot_clock(at.now, cluster_clock(at.now));
        let batch = log.records.take_batch(0).map(|batch| batch.bytes).unwrap_or_default();
        let number = log.gate.note_taken();
        queued.set(queued.get() + batch.len() as u64);
        // A snapshot may end before any batch.
        log.records.begin_alone();
        node.propose(leadership.next_proposal(number, batch, at.now, at.ns), leadership.id);
        number
    }

    /// Number of bytes that wait to be stored. What was proposed is in the node's own log as well.
    pub fn waiting(&self) -> u64 {
        self.queued.get().max(self.unwritten.load(Ordering::Relaxed)) + self.log.records.pending_bytes() as u64
    }

    /// Reads the figures of INFO. The syncs are those of the node's own log.
    pub fn figures(&self, progress: &Arc<Progress>) -> Box<dyn Fn() -> Figures> {
        let (queued, settled, progress) = (Rc::clone(&self.queued), Rc::clone(&self.settled), Arc::clone(progress));
        let (held, records) = (self.log.gate.held(), self.log.records.clone());
        Box::new(move || {
            let Settled { batch, position } = settled.get();
            let handed_on = queued.get().max(progress.unwritten_bytes.load(Ordering::Relaxed));
            Figures {
                // The state at the beginning counts as one byte.
                position: Position { recorded: records.position() + 1, durable: position + 1 },
                queued: handed_on + records.pending_bytes() as u64,
                batches: [batch, batch],
                syncs: progress.syncs.read(),
                held: held.get(),
                ..Figures::default()
            }
        })
    }
}
