//! What the log's thread has done, readable from other threads at any time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Figures of the log.
#[derive(Debug, Default)]
pub struct Progress {
    /// Number of syncs that made entries or votes durable.
    pub syncs: AtomicU64,
    /// Time of all these syncs in microseconds.
    pub syncs_us: AtomicU64,
    /// The longest sync in microseconds.
    pub sync_max_us: AtomicU64,
    /// The last sync in microseconds.
    pub last_sync_us: AtomicU64,
    /// Number of syncs by the bit length of their microseconds.
    sync_times: [AtomicU64; 32],
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

    pub(super) fn note_sync(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.syncs_us.fetch_add(us, Ordering::Relaxed);
        self.last_sync_us.store(us, Ordering::Relaxed);
        self.sync_max_us.fetch_max(us, Ordering::Relaxed);
        let bits = (u64::BITS - us.leading_zeros()) as usize;
        self.sync_times[bits.min(31)].fetch_add(1, Ordering::Relaxed);
    }

    /// The time that this share of the syncs did not exceed, in microseconds, rounded up to a power of two; 0 without any. A share of
    /// 0.99 is the 99th percentile.
    pub fn sync_percentile_us(&self, share: f64) -> u64 {
        let counts = self.sync_times.each_ref().map(|count| count.load(Ordering::Relaxed));
        let wanted = (counts.iter().sum::<u64>() as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bits, count) in counts.iter().enumerate() {
            seen += count;
            if wanted > 0 && seen >= wanted {
                return (1 << bits).min(self.sync_max_us.load(Ordering::Relaxed));
            }
        }
        0
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

    #[test]
    fn percentiles_are_rounded_up_to_powers_of_two() {
        let progress = Progress::default();
        assert_eq!(progress.sync_percentile_us(0.5), 0);
        for us in [100, 100, 100, 3000] {
            progress.note_sync(Duration::from_micros(us));
        }
        assert_eq!((progress.sync_percentile_us(0.5), progress.sync_percentile_us(0.99)), (128, 3000));
    }
}
