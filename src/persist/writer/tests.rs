//! Crashes at every operation of many seeded histories: nothing acknowledged is missing afterwards.

use super::*;
use crate::persist::disk::simulated::{Injected, SimulatedDisk};

/// The log's file.
const NAME: &str = "log";

/// A fault that is planted in the code around the writer, so that the test shows that it finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// Batches are acknowledged before they are durable.
    AcknowledgeBeforeSync,
    /// The file is created without a sync of its folder.
    NoSyncOfFolder,
    /// Batches are read without a check.
    NoChecksum,
}

/// A batch: its length, its number, bytes that follow from the number, and a checksum.
fn batch(number: u64) -> Vec<u8> {
    let len = (number as usize * 379) % 1500;
    let mut bytes = (len as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend((0..len).map(|at| (number as usize * 31 + at * 7) as u8));
    let sum = checksum(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The numbers of the whole batches at the beginning of a log, and their bytes.
fn whole(log: &[u8], planted: Planted) -> (Vec<u64>, usize) {
    let (mut numbers, mut at) = (Vec::new(), 0);
    while let Some(head) = log.get(at..at + 12) {
        let len = u32::from_le_bytes(head[..4].try_into().unwrap()) as usize;
        let Some(sum) = log.get(at + 12 + len..at + 20 + len) else { break };
        let right = checksum(&log[at..at + 12 + len]) == u64::from_le_bytes(sum.try_into().unwrap());
        if !right && planted != Planted::NoChecksum {
            break;
        }
        numbers.push(u64::from_le_bytes(head[4..].try_into().unwrap()));
        at += 20 + len;
    }
    (numbers, at)
}

/// A writer and the numbers of the batches in its log, or the disk of a machine that has crashed.
type Started = std::result::Result<(Writer<SimulatedDisk>, Vec<u64>), Box<SimulatedDisk>>;

/// Opens the log as a starting server does.
fn start(mut disk: SimulatedDisk, planted: Planted) -> Started {
    let kept = disk.clone();
    let Ok(log) = disk.read(NAME) else { return Err(Box::new(disk)) };
    let (numbers, valid) = whole(&log.unwrap_or_default(), planted);
    if planted == Planted::NoSyncOfFolder {
        return match disk.open(NAME) {
            Ok((file, len)) if len == valid as u64 => {
                Ok((Writer { disk, file, len, torn: false, written: 0, durable: 0, failed: None }, numbers))
            }
            _ => Err(Box::new(kept)),
        };
    }
    // A writer that cannot open the log does not give the disk back. The crash is one of its operations.
    let mut again = disk.clone();
    match Writer::open(disk, NAME, valid as u64) {
        Ok(writer) => Ok((writer, numbers)),
        Err(_) => {
            // The clone does what the original did, up to the same crash.
            let opened = again.open(NAME).and_then(|(mut file, len)| {
                if len > valid as u64 {
                    again.truncate(&mut file, valid as u64)?;
                }
                again.sync(&mut file)?;
                again.sync_folder()
            });
            assert!(opened.is_err(), "the same operations on the same disk end alike");
            Err(Box::new(again))
        }
    }
}

/// What a history found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// An acknowledged batch is missing, or there is one that was never given.
    Violation,
}

/// Writes batches in groups, each with a sync, until the machine crashes at an operation. Starts again and looks at the log.
/// Returns what it found, and the number of operations without a crash.
fn history(seed: u64, crash_at: Option<u64>, fail: Option<(u64, Injected)>, planted: Planted) -> (Found, u64) {
    let mut disk = SimulatedDisk::new(seed);
    if let Some(at) = crash_at {
        disk.crash_at(at);
    }
    if let Some((at, how)) = fail {
        disk.fail_at(at, how);
    }
    let mut acknowledged = 0;
    let mut disk = match start(disk, planted) {
        Err(disk) => *disk,
        Ok((mut writer, _)) => {
            let mut next = 0;
            'writes: for group in 0..6 {
                for _ in 0..1 + (seed + group) % 3 {
                    // A full disk has room again at the next attempt.
                    let mut attempts = 0;
                    while writer.append(&batch(next)).is_err() {
                        attempts += 1;
                        if attempts > 3 {
                            break 'writes;
                        }
                    }
                    next += 1;
                    if planted == Planted::AcknowledgeBeforeSync {
                        acknowledged = writer.settled(Policy::Written);
                    }
                }
                if writer.sync().is_err() {
                    break;
                }
                acknowledged = writer.settled(Policy::Always);
            }
            writer.into_disk()
        }
    };
    let operations = disk.operations();
    disk.restart();
    let reading = if planted == Planted::NoChecksum { planted } else { Planted::Nothing };
    let Ok((writer, numbers)) = start(disk, reading) else { return (Found::Violation, operations) };
    drop(writer);
    let right = numbers.len() as u64 >= acknowledged && numbers.iter().enumerate().all(|(at, &number)| number == at as u64);
    (if right { Found::Nothing } else { Found::Violation }, operations)
}

/// Number of crash points, and how many of them found a violation.
fn crash_everywhere(seeds: u64, planted: Planted) -> (u64, u64) {
    let (mut points, mut violations) = (0, 0);
    for seed in 0..seeds {
        let (found, operations) = history(seed, None, None, planted);
        violations += u64::from(found != Found::Nothing);
        for at in 0..operations {
            points += 1;
            violations += u64::from(history(seed, Some(at), None, planted).0 != Found::Nothing);
        }
    }
    (points, violations)
}

#[test]
fn a_crash_at_any_operation_loses_nothing_that_was_acknowledged() {
    let (points, violations) = crash_everywhere(300, Planted::Nothing);
    assert!(points > 5_000, "{points} crash points");
    assert_eq!(violations, 0, "of {points}");
}

#[test]
fn planted_faults_are_found() {
    for planted in [Planted::AcknowledgeBeforeSync, Planted::NoSyncOfFolder, Planted::NoChecksum] {
        let (points, violations) = crash_everywhere(60, planted);
        assert!(violations > 0, "{planted:?} was not found at {points} crash points");
    }
}

#[test]
fn an_error_at_any_operation_and_a_later_crash_lose_nothing_that_was_acknowledged() {
    for seed in 0..60 {
        let operations = history(seed, None, None, Planted::Nothing).1;
        for at in 0..operations {
            for how in [Injected::Full, Injected::Failed] {
                assert_eq!(history(seed, None, Some((at, how)), Planted::Nothing).0, Found::Nothing, "{how:?} at {at}");
                for crash_at in (at + 1..operations).step_by(5) {
                    let found = history(seed, Some(crash_at), Some((at, how)), Planted::Nothing).0;
                    assert_eq!(found, Found::Nothing, "{how:?} at {at}, crash at {crash_at}");
                }
            }
        }
    }
}

#[test]
fn a_batch_that_does_not_fit_leaves_the_log_as_it_was() {
    let mut writer = Writer::open(SimulatedDisk::new(1), NAME, 0).unwrap();
    writer.append(&batch(1)).unwrap();
    writer.sync().unwrap();
    let before = writer.bytes();
    let next = writer.disk.operations();
    writer.disk.fail_at(next, Injected::Full);
    assert_eq!(writer.append(&batch(3)), Err(DiskError::Full));
    assert_eq!((writer.bytes(), writer.settled(Policy::Written)), (before, 1));
    writer.append(&batch(3)).unwrap();
    writer.sync().unwrap();
    assert_eq!(writer.settled(Policy::Always), 2);
    let log = writer.into_disk().read(NAME).unwrap().unwrap();
    assert_eq!(whole(&log, Planted::Nothing), (vec![1, 3], log.len()));
}

#[test]
fn after_a_failed_sync_nothing_succeeds() {
    let mut writer = Writer::open(SimulatedDisk::new(2), NAME, 0).unwrap();
    writer.append(&batch(1)).unwrap();
    let next = writer.disk.operations();
    writer.disk.fail_at(next, Injected::Failed);
    let error = writer.sync().unwrap_err();
    assert_eq!(writer.sync(), Err(error.clone()));
    assert_eq!(writer.append(&batch(2)), Err(error));
    assert_eq!(writer.settled(Policy::Always), 0);
}
