//! The marks that a node has no vote yet survive crashes, and so does their removal.

use std::path::Path;

use super::*;
use crate::persist::disk::simulated::SimulatedDisk;
use crate::persist::disk::write_all_at;
use crate::quorum::store::{LogLoss, Snapshots, header};

/// Opens the store after a loss of power. Returns what the node has forgotten, before `change`.
fn restarted(disk: &mut SimulatedDisk, change: impl FnOnce(&mut Snapshots<&mut SimulatedDisk>)) -> LogLoss {
    disk.restart();
    let (log, worker) = LogStore::open(&mut *disk, options(Planted::Nothing)).unwrap();
    drop(worker);
    let mut snapshots = Snapshots::open(disk, Path::new("/d"), OWNER).unwrap();
    let forgotten = snapshots.forgotten(&log).unwrap();
    change(&mut snapshots);
    forgotten
}

#[test]
fn a_node_joins_until_it_is_said_that_it_votes() {
    for seed in 0..50 {
        let mut disk = SimulatedDisk::new(seed);
        assert_eq!(restarted(&mut disk, |_| {}), LogLoss::All, "the folder is empty");
        {
            let (log, mut worker) = LogStore::open(&mut disk, options(Planted::Nothing)).unwrap();
            assert!(log.is_young());
            assert!(append(&log, &mut worker, vec![entry(log_id(1, 0), 1, 10)]));
            assert!(log.is_young() && !log.is_blank());
            assert!(append(&log, &mut worker, vec![entry(log_id(1, 1), 2, 10)]));
            assert!(!log.is_young());
        }
        assert_eq!(restarted(&mut disk, |_| {}), LogLoss::All, "it has entries, and has not caught up");
        assert_eq!(restarted(&mut disk, |snapshots| snapshots.joined().unwrap()), LogLoss::All);
        assert_eq!(restarted(&mut disk, |snapshots| snapshots.joined().unwrap()), LogLoss::Nothing, "it votes");
        assert_eq!(restarted(&mut disk, |_| {}), LogLoss::Nothing);
    }
}

#[test]
fn a_mark_that_was_made_survives_a_crash_at_any_step() {
    for at in 1.. {
        let mut disk = SimulatedDisk::new(at);
        let (log, _worker) = LogStore::open(disk.clone(), options(Planted::Nothing)).unwrap();
        disk.crash_at(at);
        let marked =
            Snapshots::open(&mut disk, Path::new("/d"), OWNER).is_ok_and(|mut snapshots| snapshots.forgotten(&log).is_ok());
        // The log grows only behind a mark.
        let crashed = disk.has_crashed();
        assert!(marked != crashed, "step {at}");
        disk.restart();
        let mut snapshots = Snapshots::open(&mut disk, Path::new("/d"), OWNER).unwrap();
        // Not from the log, which is blank: the mark itself must be there.
        assert!(!marked || snapshots.disk().open(b"joining").unwrap().is_some(), "step {at}");
        assert_eq!(snapshots.forgotten(&log).unwrap(), LogLoss::All);
        if !crashed {
            assert!(at > 2, "{at} steps");
            break;
        }
    }
}

/// A node that votes, and whose last write was torn.
fn torn(seed: u64) -> SimulatedDisk {
    let mut disk = SimulatedDisk::new(seed);
    restarted(&mut disk, |snapshots| snapshots.joined().unwrap());
    let (log, mut worker) = LogStore::open(&mut disk, options(Planted::Nothing)).unwrap();
    assert!((0..3).all(|index| append(&log, &mut worker, vec![entry(log_id(1, index), index, 10)])));
    drop((log, worker));
    let name = disk.names().unwrap().into_iter().find(|name| header::parse_name(name).is_some()).unwrap();
    let used = disk.content(&name).unwrap().iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let mut file = disk.open(&name).unwrap().unwrap().0;
    write_all_at(&mut disk, &mut file, used.next_multiple_of(8) as u64, &[1; 10]).unwrap();
    disk.sync(&mut file).unwrap();
    disk
}

#[test]
fn a_log_that_was_cut_is_known_as_such_until_the_node_votes() {
    let mut disk = torn(1);
    for _ in 0..3 {
        assert_eq!(restarted(&mut disk, |_| {}), LogLoss::End);
    }
    assert_eq!(restarted(&mut disk, |snapshots| snapshots.joined().unwrap()), LogLoss::End);
    assert_eq!(restarted(&mut disk, |_| {}), LogLoss::Nothing);
}

#[test]
fn a_crash_at_any_step_of_a_cut_does_not_hide_it() {
    for at in 1.. {
        let mut disk = torn(at);
        disk.crash_at(at);
        let opened = LogStore::open(&mut disk, options(Planted::Nothing)).is_ok();
        let crashed = disk.has_crashed();
        assert!(opened != crashed, "step {at}");
        assert_eq!(restarted(&mut disk, |_| {}), LogLoss::End, "step {at}");
        if !crashed {
            assert!(at > 4, "{at} steps");
            break;
        }
    }
}
