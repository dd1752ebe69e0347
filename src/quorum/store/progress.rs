//! What the log's thread has done, readable from other threads at any time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::base::durations::Histogram;

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
    /// Number of reads that needed the disk.
    pub disk_reads: AtomicU64,
    /// Whether writes fail and are tried again, because the disk is full or for another reason.
    pub stuck: AtomicBool,
    /// Whether the log has failed: it is unknown what is durable, and the process must end.
    pub failed: AtomicBool,
}

impl Progress {
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
