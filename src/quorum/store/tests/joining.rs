//! The mark that a node has no vote yet survives crashes, and so does its removal.

use std::path::Path;

use super::*;
use crate::persist::disk::simulated::SimulatedDisk;
use crate::quorum::store::Snapshots;

/// Opens the store after a loss of power. Returns whether the node joins, after `change`.
fn restarted(disk: &mut SimulatedDisk, change: impl FnOnce(&mut Snapshots<&mut SimulatedDisk>)) -> bool {
    disk.restart();
    let (log, worker) = LogStore::open(&mut *disk, options(Planted::Nothing)).unwrap();
    drop(worker);
    let mut snapshots = Snapshots::open(disk, Path::new("/d"), OWNER).unwrap();
    let joins = snapshots.joins(&log).unwrap();
    change(&mut snapshots);
    joins
}

#[test]
fn a_node_joins_until_it_is_said_that_it_votes() {
    for seed in 0..50 {
        let mut disk = SimulatedDisk::new(seed);
        assert!(restarted(&mut disk, |_| {}), "the folder is empty");
        {
            let (log, mut worker) = LogStore::open(&mut disk, options(Planted::Nothing)).unwrap();
            assert!(log.is_young());
            assert!(append(&log, &mut worker, vec![entry(log_id(1, 0), 1, 10)]));
            assert!(log.is_young() && !log.is_blank());
            assert!(append(&log, &mut worker, vec![entry(log_id(1, 1), 2, 10)]));
            assert!(!log.is_young());
        }
        assert!(restarted(&mut disk, |_| {}), "it has entries, and has not caught up");
        assert!(restarted(&mut disk, |snapshots| snapshots.joined().unwrap()));
        assert!(!restarted(&mut disk, |snapshots| snapshots.joined().unwrap()), "it votes");
        assert!(!restarted(&mut disk, |_| {}));
    }
}

#[test]
fn a_mark_that_was_made_survives_a_crash_at_any_step() {
    for at in 1.. {
        let mut disk = SimulatedDisk::new(at);
        let (log, _worker) = LogStore::open(disk.clone(), options(Planted::Nothing)).unwrap();
        disk.crash_at(at);
        let marked = Snapshots::open(&mut disk, Path::new("/d"), OWNER).is_ok_and(|mut snapshots| snapshots.joins(&log).is_ok());
        // The log grows only behind a mark.
        let crashed = disk.has_crashed();
        assert!(marked != crashed, "step {at}");
        disk.restart();
        let mut snapshots = Snapshots::open(&mut disk, Path::new("/d"), OWNER).unwrap();
        // Not from the log, which is blank: the mark itself must be there.
        assert!(!marked || snapshots.disk().open(b"joining").unwrap().is_some(), "step {at}");
        assert!(snapshots.joins(&log).unwrap());
        if !crashed {
            assert!(at > 2, "{at} steps");
            break;
        }
    }
}
