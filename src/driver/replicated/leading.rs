//! What a node has while it leads.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::log::Log;
use crate::driver::replicated::leadership::Leadership;
use crate::engine::persistence::{Figures, Position};
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
