//! What the log's thread has done, readable from other threads at any time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::base::durations::Histogram;
use crate::quorum::runtime::monotonic;
use crate::quorum::store::memory::Memory;

/// Time after a refusal for which the disk is taken to refuse what is tried: several attempts.
const REFUSED_LATELY: Duration = Duration::from_secs(1);

/// Figures of the log.
#[derive(Debug, Default)]
pub struct Progress {
    /// Syncs that made entries or votes durable.
    pub syncs: Histogram,
    /// Number of entries that were made durable.
    pub entries: AtomicU64,
    /// Bytes of records that were made durable.
    pub bytes: AtomicU64,
    /// Number of segments.
    pub segments: AtomicU64,
    /// Of each segment, oldest first: the index of its first entry, and its bytes.
    spans: Mutex<Vec<(u64, u64)>>,
    /// Bytes of all segments, without space that is laid out.
    pub segment_bytes: AtomicU64,
    /// Bytes of entries that are held in memory.
    pub cached_bytes: AtomicU64,
    /// Bytes of those entries that are not written yet.
    pub unwritten_bytes: Arc<AtomicU64>,
    /// When the operation of the disk that is not done began, in microseconds of [`monotonic`] and one more; 0 if there is none.
    busy_since_us: AtomicU64,
    /// When the disk refused something last, in microseconds of [`monotonic`].
    refused_us: AtomicU64,
    /// Number of reads that needed the disk.
    pub disk_reads: AtomicU64,
    /// Whether writes fail and are tried again, because the disk is full or for another reason.
    pub stuck: AtomicBool,
    /// Whether the log is not ready yet: the disk was full when it was opened, and what was found must be copied first. Until then the
    /// node must take part in nothing.
    pub unready: AtomicBool,
    /// Whether the log has failed: it is unknown what is durable, and the process must end.
    pub failed: AtomicBool,
}

/// What a node's disk does at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskNow {
    /// For how long the oldest operation of the log has not been done; zero if there is none.
    pub busy: Duration,
    /// Whether the disk answers, but with errors: it is full, for instance, and the operation is tried again.
    pub refuses: bool,
}

impl Progress {
    /// Notes that an operation of the disk begins. Returns false if another one is not done: then that one goes on.
    pub(super) fn begin_operation(&self) -> bool {
        let since_us = monotonic().as_micros() as u64 + 1;
        self.busy_since_us.compare_exchange(0, since_us, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Notes that the operation of the disk is done.
    pub(super) fn end_operation(&self) {
        self.busy_since_us.store(0, Ordering::Relaxed);
    }

    /// What the disk does now.
    pub fn disk(&self) -> DiskNow {
        let busy = match self.busy_since_us.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since_us => monotonic().saturating_sub(Duration::from_micros(since_us - 1)),
        };
        // A disk that refused something before it hung does not answer any more.
        let refused = Duration::from_micros(self.refused_us.load(Ordering::Relaxed));
        let refuses = self.stuck.load(Ordering::Relaxed) && monotonic().saturating_sub(refused) < REFUSED_LATELY;
        DiskNow { busy, refuses }
    }

    /// Notes that the disk has refused something, which is tried again.
    pub(super) fn note_refusal(&self) {
        self.refused_us.store(monotonic().as_micros() as u64, Ordering::Relaxed);
        self.stuck.store(true, Ordering::Relaxed);
    }

    /// Of each segment, oldest first: the index of its first entry, and its bytes without space that is laid out.
    pub fn segments(&self) -> Vec<(u64, u64)> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// About how many bytes the records from an entry on have.
    pub fn bytes_from(&self, index: u64, last: u64) -> u64 {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = spans.iter().skip(1).map(|(first, _)| *first).chain([last + 1]);
        let left = spans.iter().zip(ends).map(|((first, bytes), end)| {
            let (entries, left) = (end.saturating_sub(*first), end.saturating_sub(index.max(*first)));
            (u128::from(*bytes) * u128::from(left) / u128::from(entries.max(1))) as u64
        });
        left.sum()
    }

    pub(super) fn note_memory(&self, memory: &Memory) {
        self.cached_bytes.store(memory.bytes() as u64, Ordering::Relaxed);
        self.unwritten_bytes.store(memory.unwritten_bytes() as u64, Ordering::Relaxed);
    }

    pub(super) fn note_segments(&self, spans: impl Iterator<Item = (u64, u64)>) {
        let mut known = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        known.clear();
        known.extend(spans);
        self.segments.store(known.len() as u64, Ordering::Relaxed);
        self.segment_bytes.store(known.iter().map(|(_, bytes)| bytes).sum(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_operation_counts_until_it_is_done() {
        let progress = Progress::default();
        assert_eq!(progress.disk(), DiskNow::default());
        let began = monotonic();
        assert!(progress.begin_operation());
        std::thread::sleep(Duration::from_millis(2));
        assert!(!progress.begin_operation(), "it is tried again, and is as old as before");
        progress.note_refusal();
        let DiskNow { busy, refuses } = progress.disk();
        assert!(busy >= Duration::from_millis(2) && busy <= monotonic() - began && refuses, "{busy:?}");
        progress.end_operation();
        assert_eq!(progress.disk().busy, Duration::ZERO);
    }

    #[test]
    fn bytes_from_an_entry_on_are_a_share_of_its_segment_and_all_of_the_later_ones() {
        let progress = Progress::default();
        assert_eq!(progress.bytes_from(0, 0), 0);
        progress.note_segments([(0, 1000), (100, 1000), (200, 500)].into_iter());
        assert_eq!(progress.bytes_from(0, 249), 2500);
        assert_eq!(progress.bytes_from(150, 249), 1000);
        assert_eq!(progress.bytes_from(225, 249), 250);
        assert_eq!(progress.bytes_from(250, 249), 0);
        assert_eq!(progress.bytes_from(300, 249), 0);
    }
}
