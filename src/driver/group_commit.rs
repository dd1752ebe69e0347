//! Which writes share a batch where replies wait for it: a sync under `appendfsync always`, a proposal on a leader.
//!
//! When a batch is settled, its clients are answered, and most of them write again soon. A batch that were handed over at once
//! would not have those writes. They would wait for the sync after it, and the clients would be split in two groups that take
//! turns: twice as many syncs for the same writes. So the next batch waits until as many replies are held back as before, for a
//! part of the last sync at most.
//!
//! ```text
//!   settled ─▶ replies ─▶ requests of the same clients ─┬─ as many as before ─▶ the next batch
//!                                                       └─ it is late ────────▶ the next batch
//! ```
//!
//! Where fewer come than before, the next batch waits in vain once: from then on so many are expected. A client that is alone
//! never waits.

use std::cell::Cell;
use std::time::Duration;

/// The part of the last sync that a batch waits while nothing else is to be done: 1 / this.
const SHARE: u64 = 2;
/// Longest such wait in nanoseconds. A client on the same network needs less.
const IDLE_MAX_NS: u64 = 1_000_000;
/// Longest time in nanoseconds for which replies are written and requests are read before the next batch, besides that of a sync.
const BUSY_MAX_NS: u64 = 1_000_000;

/// What the next batch waits for.
#[derive(Clone, Debug, Default)]
pub struct GroupCommit {
    /// Number of replies that are held back when all clients of before have written again.
    expected: usize,
    /// When it waits no longer, in nanoseconds of the monotonic clock.
    until_ns: Cell<u64>,
    /// How long it waits from when nothing else is to be done, in nanoseconds; 0 from then on.
    idle_ns: Cell<u64>,
}

impl GroupCommit {
    /// After a sync of this length, before which so many replies were held back.
    pub fn after(held: usize, sync_us: u64, now_ns: u64) -> GroupCommit {
        let sync_ns = sync_us * 1000;
        let until_ns = now_ns + sync_ns + BUSY_MAX_NS;
        GroupCommit { expected: held, until_ns: until_ns.into(), idle_ns: (sync_ns / SHARE).min(IDLE_MAX_NS).into() }
    }

    /// Whether the next batch waits, with so many replies held back now.
    pub fn waits(&self, held: usize, now_ns: u64) -> bool {
        held < self.expected && now_ns < self.until_ns.get()
    }

    /// How long a batch that [`waits`](Self::waits) still does so while nothing else is to be done. It is asked after that, so
    /// the wait may be over: then this is zero, and the batch is to be handed over.
    pub fn rest(&self, now_ns: u64) -> Duration {
        let idle_ns = self.idle_ns.replace(0);
        if idle_ns > 0 {
            self.until_ns.set(self.until_ns.get().min(now_ns + idle_ns));
        }
        Duration::from_nanos(self.until_ns.get().saturating_sub(now_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_waits_for_those_who_were_answered_but_not_for_long() {
        let none = GroupCommit::default();
        assert!(!none.waits(0, 0) && none.rest(0).is_zero());
        let group_commit = GroupCommit::after(50, 400, 1_000);
        assert!(
            group_commit.waits(49, 1_400_999) && !group_commit.waits(50, 1_000) && !group_commit.waits(0, 1_401_000),
            "while it is busy"
        );
        let rest = |now_ns| group_commit.rest(now_ns).as_nanos();
        assert_eq!((rest(5_000), rest(204_999)), (200_000, 1), "from when it is idle");
        assert!(group_commit.waits(10, 204_999) && !group_commit.waits(10, 205_000));
        assert_eq!((rest(205_000), rest(u64::MAX)), (0, 0), "it may end between the two questions");
        assert_eq!(GroupCommit::after(2, 5_000_000, 0).rest(0), Duration::from_millis(1), "however slow the disk is");
        // A client that is alone.
        assert!(!GroupCommit::after(1, 400, 0).waits(1, 0));
    }
}
