//! Snapshots: a crash in every operation leaves one of them, whole.

use std::path::Path;

use super::*;
use crate::persist::disk::simulated::SimulatedDisk;
use crate::persist::disk::{DiskError, read_whole};
use crate::quorum::store::Snapshots;
use crate::quorum::store::open::OpenError;
use crate::quorum::types::{SnapshotFile, SnapshotMeta};

fn meta(index: u64) -> SnapshotMeta {
    SnapshotMeta { last_log_id: Some(log_id(1, index)), ..SnapshotMeta::default() }
}

fn content(index: u64) -> Vec<u8> {
    vec![index as u8; 700 + index as usize]
}

fn open(disk: &mut SimulatedDisk) -> Result<Snapshots<&mut SimulatedDisk>, OpenError> {
    Snapshots::open(disk, Path::new("/d"), OWNER)
}

fn make(snapshots: &mut Snapshots<&mut SimulatedDisk>, index: u64) -> Result<SnapshotFile, DiskError> {
    let mut temporary = snapshots.begin()?;
    snapshots.append(&mut temporary, &content(index))?;
    snapshots.finish(temporary, &meta(index))
}

/// Makes snapshots of 1 to 4 entries. Returns the last one that was finished.
fn history(disk: &mut SimulatedDisk) -> u64 {
    let mut finished = 0;
    let Ok(mut snapshots) = open(disk) else { return 0 };
    for index in [1, 2, 2, 4] {
        match make(&mut snapshots, index) {
            Ok(_) => finished = index,
            Err(_) => break,
        }
    }
    finished
}

#[test]
fn a_crash_at_any_operation_leaves_a_whole_snapshot() {
    for seed in seeds(6) {
        let mut whole = SimulatedDisk::new(seed);
        assert_eq!(history(&mut whole), 4);
        for at in 0..whole.operations() {
            let mut disk = SimulatedDisk::new(seed);
            disk.crash_at(at);
            let finished = history(&mut disk);
            disk.restart();
            let found = open(&mut disk).unwrap_or_else(|error| panic!("seed {seed}, crash at {at}: {error}")).current().cloned();
            let index = found.as_ref().map_or(0, |(meta, _)| meta.last_log_id.unwrap().index);
            assert!(index >= finished, "seed {seed}, crash at {at}: {index} is there, and {finished} was finished");
            let files = disk.names().unwrap();
            assert_eq!(files.len(), if found.is_some() { 2 } else { 0 }, "seed {seed}, crash at {at}: {files:?}");
            if let Some((found_meta, file)) = found {
                let name = file.path.file_name().unwrap().as_encoded_bytes();
                let bytes = read_whole(&mut disk, name, 1 << 20).unwrap().unwrap();
                assert_eq!((found_meta, file.len, bytes), (meta(index), content(index).len() as u64, content(index)));
            }
        }
    }
}

#[test]
fn an_older_snapshot_does_not_replace_a_newer_one() {
    let mut disk = SimulatedDisk::new(1);
    let mut snapshots = open(&mut disk).unwrap();
    let newer = make(&mut snapshots, 9).unwrap();
    assert_eq!(make(&mut snapshots, 5).unwrap(), newer);
    let temporary = snapshots.begin().unwrap();
    assert!(temporary.path().starts_with("/d"));
    snapshots.abandon(temporary).unwrap();
    assert_eq!(snapshots.current().map(|(meta, file)| (meta.clone(), file.clone())), Some((meta(9), newer)));
    drop(snapshots);
    assert_eq!(disk.names().unwrap().len(), 2);
}

#[test]
fn a_damaged_snapshot_is_refused() {
    let mut disk = SimulatedDisk::new(1);
    make(&mut open(&mut disk).unwrap(), 9).unwrap();
    let names = disk.names().unwrap();
    let record = names.iter().find(|name| name.ends_with(b".meta")).unwrap().clone();
    let file = names.iter().find(|name| name.ends_with(b".rdb")).unwrap().clone();
    let len = disk.open(&record).unwrap().unwrap().1;
    for offset in 0..len {
        let mut flipped = disk.clone();
        flipped.flip(&record, offset);
        assert!(open(&mut flipped).is_err(), "byte {offset}");
    }
    let refused = |disk: &mut SimulatedDisk, owner| Snapshots::open(disk, Path::new("/d"), owner).unwrap_err().to_string();
    assert!(refused(&mut disk.clone(), Owner { node: 3, ..OWNER }).ends_with("it belongs to node 1, and this is node 3"));
    assert!(refused(&mut disk.clone(), Owner { cluster: 3, ..OWNER }).contains("it belongs to another cluster"));
    let mut short = disk.clone();
    let mut opened = short.open(&file).unwrap().unwrap().0;
    short.truncate(&mut opened, 10).unwrap();
    assert!(refused(&mut short, OWNER).ends_with("the current snapshot has 10 bytes, and was written with 709"));
    disk.remove(&file).unwrap();
    assert!(refused(&mut disk, OWNER).ends_with("the file of the current snapshot is missing"));
}
