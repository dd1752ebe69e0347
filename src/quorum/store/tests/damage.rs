//! Files that are damaged, missing, torn, or somebody else's.

use super::*;
use crate::persist::disk::simulated::SimulatedDisk;
use crate::persist::disk::write_all_at;
use crate::quorum::store::header;
use crate::quorum::store::segments::Planted;

/// A log of several segments, all of it durable, and what it says.
fn log() -> (SimulatedDisk, Vec<(LogId, u64)>, Vec<Vec<u8>>) {
    let mut disk = SimulatedDisk::new(1);
    let (store, mut worker) = LogStore::open(&mut disk, options(Planted::Nothing)).unwrap();
    assert!(store.is_blank());
    assert!(vote(&store, &mut worker, Vote::new_committed(1, 1)));
    for index in 0..60 {
        assert!(append(&store, &mut worker, vec![entry(log_id(1, index), index + 1, 20 + index as usize)]));
    }
    let all = numbers(&read(&store, &mut worker, 0, 99, None).unwrap());
    drop((store, worker));
    let mut names: Vec<_> = disk.names().unwrap().into_iter().filter(|name| header::parse_name(name).is_some()).collect();
    names.sort();
    assert!(names.len() > 2, "{} segments", names.len());
    (disk, all, names)
}

/// What a start finds, or why it is refused.
fn start(disk: &mut SimulatedDisk) -> Result<Vec<(LogId, u64)>, String> {
    let (store, mut worker) = LogStore::open(disk, options(Planted::Nothing)).map_err(|error| error.to_string())?;
    assert!(!store.is_blank());
    Ok(numbers(&read(&store, &mut worker, 0, 99, None).unwrap()))
}

#[test]
fn a_flipped_bit_is_refused_by_file_and_offset() {
    let (disk, all, names) = log();
    let mut refused = 0;
    for name in &names {
        let len = disk.clone().open(name).unwrap().unwrap().1;
        for offset in (0..len).step_by(7) {
            let mut flipped = disk.clone();
            flipped.flip(name, offset);
            match start(&mut flipped) {
                // Space behind the records, or padding behind the end of a closed segment.
                Ok(found) => assert_eq!(found, all, "byte {offset} of {}", name.escape_ascii()),
                Err(reason) => {
                    refused += 1;
                    assert!(reason.starts_with(&format!("{} at offset ", name.escape_ascii())), "{reason}");
                    assert!(!reason.contains("segment after"), "{reason}");
                }
            }
        }
    }
    assert!(refused > 500, "{refused} flipped bits were found");
}

#[test]
fn a_missing_segment_is_refused() {
    let (disk, _, names) = log();
    for (at, name) in names.iter().enumerate() {
        let mut disk = disk.clone();
        disk.remove(name).unwrap();
        let reason = start(&mut disk).unwrap_err();
        let expected =
            if at + 1 == names.len() { "the segment after this one is missing" } else { "the segment before it is missing" };
        assert!(reason.contains(expected), "{reason}");
    }
}

#[test]
fn a_missing_record_in_the_last_segment_is_refused() {
    let (mut disk, _, names) = log();
    let mut file = disk.open(names.last().unwrap()).unwrap().unwrap().0;
    write_all_at(&mut disk, &mut file, header::LEN as u64, &[0; 96]).unwrap();
    let reason = start(&mut disk).unwrap_err();
    assert!(reason.contains("at offset 512: a record is damaged that was durable when the one at offset "), "{reason}");
}

#[test]
fn a_torn_tail_is_cut_and_does_not_come_back() {
    let (disk, all, names) = log();
    let name = names.last().unwrap();
    let mut end = Vec::new();
    {
        let mut disk = disk.clone();
        let (mut file, len) = disk.open(name).unwrap().unwrap();
        end.resize(len as usize, 0);
        disk.read_at(&mut file, 0, &mut end).unwrap();
    }
    let end = end.iter().rposition(|byte| *byte != 0).unwrap() as u64;
    for cut in 1..100 {
        let mut disk = disk.clone();
        let mut file = disk.open(name).unwrap().unwrap().0;
        disk.truncate(&mut file, end + 1 - cut).unwrap();
        assert_eq!(start(&mut disk).unwrap(), all[..59]);
        // Another entry takes its place.
        let (store, mut worker) = LogStore::open(&mut disk, options(Planted::Nothing)).unwrap();
        assert!(append(&store, &mut worker, vec![entry(log_id(2, 59), 100, 5)]));
        drop((store, worker));
        disk.restart();
        let found = start(&mut disk).unwrap();
        assert_eq!((found.len(), found[59]), (60, (log_id(2, 59), 100)));
    }
}

#[test]
fn the_files_of_others_are_refused() {
    let (mut disk, _, names) = log();
    let refused = |disk: &mut SimulatedDisk, owner| {
        let options = Options { owner, ..options(Planted::Nothing) };
        LogStore::open(disk, options).err().unwrap().to_string()
    };
    let reason = refused(&mut disk, Owner { node: 2, ..OWNER });
    assert!(reason.ends_with("it belongs to node 1, and this is node 2"), "{reason}");
    assert!(refused(&mut disk, Owner { cluster: 7, ..OWNER }).contains("it belongs to another cluster"));
    let mut file = disk.open(&names[0]).unwrap().unwrap().0;
    write_all_at(&mut disk, &mut file, 8, &[2]).unwrap();
    assert!(refused(&mut disk, OWNER).contains("it has format 2, written by a newer version"));
}

#[test]
fn a_snapshot_without_a_log_is_refused() {
    let mut disk = SimulatedDisk::new(1);
    disk.create(b"snapshot-00000000000000000001-0000000001.meta").unwrap();
    let reason = LogStore::open(&mut disk, options(Planted::Nothing)).err().unwrap().to_string();
    assert!(reason.ends_with("there is a snapshot, but the log is missing"), "{reason}");
}
