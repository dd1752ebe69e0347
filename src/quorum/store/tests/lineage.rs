//! Which cluster a folder belongs to.

use std::path::Path;

use super::*;
use crate::persist::disk::simulated::SimulatedDisk;
use crate::quorum::store::{Lineage, Snapshots};
use crate::quorum::types::SnapshotMeta;

const A: Lineage = Lineage { id: 0xa, parent: 0, successor: 0, open: false };
const B: Lineage = Lineage { id: 0xb, parent: 0xa, successor: 0xc, open: true };

/// Sets the cluster while no thread runs. Returns whether that is durable.
fn belong<D: Disk>(store: &LogStore, worker: &mut Worker<D>, lineage: Lineage) -> bool {
    let mut setting = Box::pin(store.belong(lineage));
    let first = setting.as_mut().now_or_never();
    worker.turn();
    first.or_else(|| setting.now_or_never()).is_some_and(|set| set.is_ok())
}

/// A log with an entry of each cluster: before it had an id, of A, of B.
fn history(disk: &mut SimulatedDisk) {
    let (store, mut worker) = LogStore::open(disk, options(Planted::Nothing)).unwrap();
    assert_eq!(store.lineage(), Lineage::default());
    assert!(append(&store, &mut worker, vec![entry(log_id(1, 0), 0, 10)]));
    for (lineage, index) in [(A, 1), (B, 2)] {
        assert!(belong(&store, &mut worker, lineage));
        assert_eq!(store.lineage(), lineage);
        assert!(append(&store, &mut worker, vec![entry(log_id(1, index), index, 10)]));
    }
}

#[test]
fn a_log_belongs_to_the_last_cluster_and_goes_on_with_its_entries() {
    let mut disk = SimulatedDisk::new(1);
    history(&mut disk);
    let (store, mut worker) = LogStore::open(&mut disk, options(Planted::Nothing)).unwrap();
    assert_eq!(store.lineage(), B);
    assert_eq!(numbers(&read(&store, &mut worker, 0, 3, None).unwrap()).len(), 3);
}

#[test]
fn a_log_belongs_to_one_of_both_clusters_after_a_crash_at_any_operation() {
    let mut before = SimulatedDisk::new(1);
    {
        let (store, mut worker) = LogStore::open(&mut before, options(Planted::Nothing)).unwrap();
        assert!(append(&store, &mut worker, vec![entry(log_id(1, 0), 0, 10)]) && belong(&store, &mut worker, A));
    }
    let (mut crashes, mut kept) = (0, [false; 2]);
    loop {
        let mut disk = before.clone();
        disk.crash_at(disk.operations() + crashes);
        let told =
            LogStore::open(&mut disk, options(Planted::Nothing)).is_ok_and(|(store, mut worker)| belong(&store, &mut worker, B));
        disk.restart();
        let (store, mut worker) = LogStore::open(&mut disk, options(Planted::Nothing)).unwrap();
        let found = store.lineage();
        assert!(found == B || (found == A && !told), "{found:?} after operation {crashes}");
        assert_eq!(numbers(&read(&store, &mut worker, 0, 1, None).unwrap()), [(log_id(1, 0), 0)]);
        kept[usize::from(found == B)] = true;
        crashes += 1;
        if told {
            break;
        }
    }
    assert!(kept == [true; 2] && crashes > 5, "{crashes} crashes");
}

#[test]
fn a_log_in_which_nothing_is_belongs_to_no_cluster() {
    let mut disk = SimulatedDisk::new(1);
    let (store, mut worker) = LogStore::open(&mut disk, options(Planted::Nothing)).unwrap();
    assert!(belong(&store, &mut worker, A));
    drop((store, worker));
    let (store, mut worker) = LogStore::open(&mut disk, options(Planted::Nothing)).unwrap();
    assert_eq!(store.lineage(), Lineage::default());
    // It may find another one.
    assert!(belong(&store, &mut worker, B) && vote(&store, &mut worker, Vote::new(1, 1)));
    drop((store, worker));
    assert_eq!(LogStore::open(&mut disk, options(Planted::Nothing)).unwrap().0.lineage(), B);
}

#[test]
fn a_segment_of_another_cluster_is_refused() {
    let (mut disk, mut other) = (SimulatedDisk::new(1), SimulatedDisk::new(1));
    history(&mut disk);
    {
        // The same history, but for the ids.
        let (store, mut worker) = LogStore::open(&mut other, options(Planted::Nothing)).unwrap();
        assert!(append(&store, &mut worker, vec![entry(log_id(1, 0), 0, 10)]));
        for (id, index) in [(0xd, 1), (0xe, 2)] {
            assert!(belong(&store, &mut worker, Lineage::of(id)));
            assert!(append(&store, &mut worker, vec![entry(log_id(1, index), index, 10)]));
        }
    }
    let names: Vec<Vec<u8>> = disk.names().unwrap().into_iter().filter(|name| name.ends_with(b".segment")).collect();
    assert_eq!(names.len(), 3);
    let last = names.iter().max().unwrap();
    let foreign = other.content(last).unwrap().to_vec();
    disk.overwrite(last, 0, &foreign);
    let refused = LogStore::open(&mut disk, options(Planted::Nothing)).err().unwrap().to_string();
    assert!(
        refused.contains(
            "it continues a log of cluster 000000000000000d, and the segment before it belongs to cluster 000000000000000a"
        ),
        "{refused}"
    );
}

#[test]
fn a_snapshot_of_another_cluster_is_refused_unless_it_is_older_than_the_id() {
    let mut disk = SimulatedDisk::new(1);
    let open = |disk: &mut SimulatedDisk, id| {
        let mut snapshots = Snapshots::open(disk, Path::new("/d"), OWNER).unwrap();
        snapshots.belong(id).map_err(|error| error.to_string()).map(|()| snapshots.current().is_some())
    };
    let meta = |index| SnapshotMeta { last_log_id: Some(log_id(1, index)), ..SnapshotMeta::default() };
    let mut snapshots = Snapshots::open(&mut disk, Path::new("/d"), OWNER).unwrap();
    let temporary = snapshots.begin().unwrap();
    snapshots.finish(temporary, &meta(5)).unwrap();
    drop(snapshots);
    assert_eq!((open(&mut disk, 0), open(&mut disk, 0xa)), (Ok(true), Ok(true)));
    let mut snapshots = Snapshots::open(&mut disk, Path::new("/d"), OWNER).unwrap();
    snapshots.belong(0xa).unwrap();
    let temporary = snapshots.begin().unwrap();
    snapshots.finish(temporary, &meta(6)).unwrap();
    drop(snapshots);
    assert_eq!(open(&mut disk, 0xa), Ok(true));
    let refused = open(&mut disk, 0xb).unwrap_err();
    assert!(
        refused.ends_with("it belongs to another cluster, 000000000000000a, and the log to cluster 000000000000000b"),
        "{refused}"
    );
    // A recovered cluster takes it over.
    let mut snapshots = Snapshots::open(&mut disk, Path::new("/d"), OWNER).unwrap();
    snapshots.belong(0xa).unwrap();
    snapshots.relabel(0xb).unwrap();
    drop(snapshots);
    assert_eq!(open(&mut disk, 0xb), Ok(true));
    assert!(open(&mut disk, 0xa).is_err());
}
