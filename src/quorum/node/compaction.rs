//! Bounds the log: when a snapshot is made, and which entries are removed after it.
//!
//! openraft counts entries. Here, an entry is a batch of a turn and has any length up to that of a large script's effects, so bytes are
//! counted as well.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::AsyncRuntime;
use openraft::async_runtime::WatchReceiver;

use crate::persist::disk::SendDisk;
use crate::quorum::node::Raft;
use crate::quorum::node::application::Application;
use crate::quorum::node::state_machine::{SharedSnapshots, lock};
use crate::quorum::runtime::Runtime;
use crate::quorum::store::Progress;

/// Interval between looks.
const EVERY: Duration = Duration::from_secs(1);
/// Bytes of the log behind the last snapshot, at least, after which the next one is made. If the snapshot is larger, so much.
const BYTES_MIN: u64 = 128 << 20;
/// Bytes of the log that are kept for nodes that are a little behind, besides the segment with the first of them.
const KEPT_BYTES: u64 = 64 << 20;
/// Number of looks after which a snapshot is asked for again that was not made.
const PATIENCE: u32 = 300;

/// What is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Work {
    /// A snapshot is to be made.
    snapshot: bool,
    /// Entries up to this index are to be removed.
    purge: Option<u64>,
}

/// Decides. `segments`: the first index and the bytes of each segment, oldest first. `snapshot`: the last index in the snapshot, and
/// its bytes.
fn work(segments: &[(u64, u64)], snapshot: Option<(u64, u64)>, applied: Option<u64>) -> Work {
    let (last, len) = snapshot.map_or((None, 0), |(last, len)| (Some(last), len));
    let next = last.map_or(0, |last| last + 1);
    // A segment is behind the snapshot if the next one begins behind it.
    let end = |i: usize| segments.get(i + 1).map_or(u64::MAX, |(first, _)| *first);
    let behind: u64 = segments.iter().enumerate().filter(|(i, _)| end(*i) > next).map(|(_, (_, bytes))| bytes).sum();
    let mut kept = 0;
    let first_kept = segments.iter().rev().find(|(_, bytes)| {
        kept += bytes;
        kept > KEPT_BYTES
    });
    let purge = first_kept.and_then(|(first, _)| first.checked_sub(1)).min(last).filter(|upto| *upto >= segments[0].0);
    Work { snapshot: applied > last && behind > BYTES_MIN.max(len), purge }
}

/// Keeps the log bounded until openraft ends.
pub async fn compact<D: SendDisk, M: Application>(raft: Raft<D, M>, snapshots: SharedSnapshots<D>, progress: Arc<Progress>) {
    let (mut asked, mut looks) = (None, 0);
    loop {
        Runtime::sleep(EVERY).await;
        let snapshot = lock(&snapshots).current().map(|(meta, file)| (meta.last_log_id.map_or(0, |last| last.index), file.len));
        let applied = raft.data_metrics().borrow_watched().last_applied.map(|last| last.index);
        let work = work(&progress.segments(), snapshot, applied);
        looks += 1;
        if asked != Some(snapshot) || looks > PATIENCE {
            asked = None;
        }
        if work.snapshot && asked.is_none() {
            (asked, looks) = (Some(snapshot), 0);
            tracing::info!(bytes = progress.segment_bytes.load(Ordering::Relaxed), "makes a snapshot: the log has grown");
            if raft.trigger().snapshot().await.is_err() {
                return;
            }
        }
        if let Some(upto) = work.purge
            && raft.trigger().purge_log(upto).await.is_err()
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    #[test]
    fn a_snapshot_is_made_when_there_is_much_behind_the_last_one() {
        let few = [(0, 64 * MB), (100, 64 * MB)];
        assert_eq!(work(&few, None, Some(150)), Work::default());
        let many = [(0, 64 * MB), (100, 64 * MB), (200, MB)];
        assert_eq!(work(&many, None, Some(250)), Work { snapshot: true, purge: None });
        assert_eq!(work(&many, None, None), Work::default(), "nothing is applied");
        assert!(!work(&many, Some((99, MB)), Some(250)).snapshot, "the first segment is in the snapshot");
        assert!(work(&many, Some((98, MB)), Some(250)).snapshot);
        assert!(!work(&many, Some((98, 200 * MB)), Some(250)).snapshot, "the snapshot itself is larger");
    }

    #[test]
    fn entries_are_removed_that_are_in_the_snapshot_and_not_among_the_last_ones() {
        let segments = [(0, 64 * MB), (100, 64 * MB), (200, 64 * MB), (300, MB)];
        let purge = |snapshot| work(&segments, snapshot, Some(350)).purge;
        assert_eq!(purge(None), None);
        assert_eq!(purge(Some((340, MB))), Some(199));
        assert_eq!(purge(Some((150, MB))), Some(150));
        // What is removed already is not removed again.
        assert_eq!(work(&segments[2..], Some((340, MB)), Some(350)).purge, None);
        assert_eq!(work(&segments[3..], Some((340, MB)), Some(350)).purge, None);
    }
}
