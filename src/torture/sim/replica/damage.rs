//! Damage of a node's files while it is down, as a disk causes it that is old or whose firmware is wrong.
//!
//! It strikes anywhere in what was written, and often in what was written last: there it may look like a write that a crash has torn.

use crate::persist::disk::Disk;
use crate::persist::disk::simulated::SimulatedDisk;
use crate::torture::random::Random;

/// Bytes that a disk writes as a unit.
const SECTOR: usize = 512;
/// Probability in percent that the end of the last file is damaged, and the number of bytes that count as its end.
const END: (u64, usize) = (40, 2 * SECTOR);

named! {
    /// What the damage is, in words.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Rot in ALL {
        /// A bit of the log has changed.
        Bit = "a bit of its log changes",
        /// A sector of the log has what was meant for another place, or zeros.
        Sector = "a sector of its log is overwritten",
        /// A segment of the log is missing.
        Segment = "a segment of its log is lost",
        /// A bit of the snapshot or of its description has changed.
        Snapshot = "a bit of its snapshot changes",
    }
}

/// Damages the files of a node that does not run. `place` decides on where. Nothing happens if there is no such file.
pub fn damage(disk: &mut SimulatedDisk, rot: Rot, place: u64) {
    let random = &mut Random::new(place, 0, 0);
    let of_log = |name: &Vec<u8>| name.ends_with(b".segment");
    let of_snapshot = |name: &Vec<u8>| name.ends_with(b".rdb") || name.ends_with(b".meta");
    let names: Vec<Vec<u8>> = disk.names().unwrap_or_default();
    let names: Vec<Vec<u8>> = match rot {
        Rot::Snapshot => names.into_iter().filter(of_snapshot).collect(),
        _ => names.into_iter().filter(of_log).collect(),
    };
    if rot == Rot::Segment {
        if let Some(name) = names.get(random.below(names.len().max(1) as u64) as usize) {
            disk.lose(name);
        }
        return;
    }
    // What is behind the last byte that is not zero was never used.
    let used = |disk: &SimulatedDisk, name: &[u8]| {
        disk.content(name).and_then(|bytes| bytes.iter().rposition(|byte| *byte != 0)).map_or(0, |last| last + 1)
    };
    let lens: Vec<usize> = names.iter().map(|name| used(disk, name)).collect();
    let total: usize = lens.iter().sum();
    let Some(last) = lens.last().filter(|_| total > 0) else { return };
    let mut offset = match random.percent(END.0) {
        true => total - 1 - random.below((*last).clamp(1, END.1) as u64) as usize,
        false => random.below(total as u64) as usize,
    };
    let mut file = 0;
    while offset >= lens[file] {
        offset -= lens[file];
        file += 1;
    }
    let name = &names[file];
    let Some(bytes) = disk.content(name) else { return };
    let damaged = match rot {
        Rot::Sector => {
            offset -= offset % SECTOR;
            let other = random.below((bytes.len() / SECTOR).max(1) as u64) as usize * SECTOR;
            match random.percent(50) {
                true => vec![0; SECTOR],
                false => bytes[other.min(bytes.len())..].iter().copied().take(SECTOR).collect(),
            }
        }
        _ => vec![bytes[offset] ^ 1 << random.below(8)],
    };
    disk.overwrite(name, offset, &damaged);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::persist::disk::append_all;

    #[test]
    fn damage_strikes_where_something_was_written() {
        let mut disk = SimulatedDisk::new(1);
        let names: [&[u8]; 4] = [b"joining", b"log-1.segment", b"log-2.segment", b"snapshot-1.rdb"];
        for name in names {
            let mut file = disk.create(name).unwrap();
            append_all(&mut disk, &mut file, &[vec![b'x'; 3_000], vec![0; 2_000]].concat()).unwrap();
            disk.sync(&mut file).unwrap();
        }
        disk.sync_folder().unwrap();
        // Of each file, how many bytes are other ones; all of them if it is gone.
        let changed = |after: &SimulatedDisk| {
            names.map(|name| {
                let (before, after) = (disk.content(name).unwrap(), after.content(name));
                after.map_or(before.len(), |after| after.iter().zip(before).filter(|(a, b)| a != b).count())
            })
        };
        for place in 0..200 {
            for rot in Rot::ALL {
                let mut after = disk.clone();
                damage(&mut after, rot, place);
                // It is not only the cache that has it.
                after.restart();
                let [of_mark, first, second, of_snapshot] = changed(&after);
                assert_eq!(of_mark, 0);
                match rot {
                    Rot::Bit => assert_eq!((first + second, of_snapshot), (1, 0)),
                    Rot::Sector => assert!(first.min(second) == 0 && first.max(second) <= SECTOR && of_snapshot == 0),
                    Rot::Segment => assert_eq!((first.min(second), first.max(second), of_snapshot), (0, 5_000, 0)),
                    Rot::Snapshot => assert_eq!((first + second, of_snapshot), (0, 1)),
                }
            }
        }
        let mut empty = SimulatedDisk::new(1);
        Rot::ALL.into_iter().for_each(|rot| damage(&mut empty, rot, 1));
    }
}
