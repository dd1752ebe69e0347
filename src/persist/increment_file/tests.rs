//! Crashes at every operation of many seeded histories, with the real encoder and reader: nothing settled is missing afterwards, and
//! no start is refused.
//!
//! ```text
//!   generation: start (manifest, Reader, resume) ─▶ units ─▶ AppendLog ─▶ IncrementFile ─▶ SimulatedDisk
//!                 ▲                                                                    │ crash, kill, failed sync, clean stop
//!                 └────────────────────────────────────────────────────────────────────┘
//! ```

#![allow(clippy::unwrap_used)]

mod history;

use super::*;
use crate::keyspace::change::{Change, ChangeLog, Effect, Event};
use crate::persist::append::batch::{FIRST_LINE, HEADER, batch, first_line, last_line};
use crate::persist::append::manifest::Manifest;
use crate::persist::disk::read_whole;
use crate::persist::disk::simulated::{Injected, SimulatedDisk};
use crate::persist::resume::{Last, manifest_name, resume};
use history::{History, NAME, NOW, Plan, Planted, Started, Unit, Violation, history, read};

/// Number of histories, and the violations that they found.
#[derive(Debug, Default)]
struct Tally {
    histories: u64,
    violations: Vec<(Plan, Violation)>,
}

impl Tally {
    fn run(&mut self, plan: Plan, planted: Planted) -> u64 {
        // One violation shows that a planted fault is found.
        if planted != Planted::Nothing && !self.violations.is_empty() {
            return 0;
        }
        self.histories += 1;
        match history(plan, planted) {
            Ok(operations) => operations,
            Err(violation) => {
                self.violations.push((plan, violation));
                0
            }
        }
    }

    fn crash_everywhere(seeds: std::ops::Range<u64>, planted: Planted) -> Tally {
        let mut tally = Tally::default();
        for seed in seeds {
            let plan = Plan { seed, ..Plan::default() };
            for at in 0..tally.run(plan, planted) {
                tally.run(Plan { crash_at: Some(at), ..plan }, planted);
            }
        }
        tally
    }

    /// Two errors, of any kind, and then a crash.
    fn fail_anywhere(seeds: std::ops::Range<u64>, planted: Planted) -> Tally {
        let mut tally = Tally::default();
        for seed in seeds {
            let plan = Plan { seed, ..Plan::default() };
            let operations = tally.run(plan, planted);
            for at in 0..operations {
                for (how, distance) in [(Injected::Full, 1), (Injected::Failed, 1), (Injected::Failed, 2 + (seed + at) % 30)] {
                    let second = if at % 2 == 0 { Injected::Full } else { Injected::Failed };
                    let fails = [Some((at, how)), Some((at + distance, second))];
                    let crash_at = Some(at + distance + 1 + (seed * 7 + at * 3) % 40);
                    tally.run(Plan { fails, crash_at, ..plan }, planted);
                    tally.run(Plan { fails, ..plan }, planted);
                }
            }
        }
        tally
    }

    fn assert_none(&self) {
        let first = self.violations.first();
        assert!(first.is_none(), "{} of {} histories; the first one: {first:?}", self.violations.len(), self.histories);
    }
}

/// Number of seeds; `PORTCULLIS_CRASH_SEEDS` has a factor in percent.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let percent = std::env::var("PORTCULLIS_CRASH_SEEDS").ok().and_then(|percent| percent.parse().ok()).unwrap_or(100);
    0..usual * percent / 100
}

#[test]
fn a_crash_at_any_operation_loses_nothing_that_was_settled() {
    let tally = Tally::crash_everywhere(seeds(24), Planted::Nothing);
    println!("{} histories", tally.histories);
    tally.assert_none();
}

#[test]
fn errors_at_any_operation_and_a_later_crash_lose_nothing_that_was_settled() {
    let tally = Tally::fail_anywhere(seeds(5), Planted::Nothing);
    println!("{} histories", tally.histories);
    tally.assert_none();
}

/// Writes three batches, all durable, flips a byte in the first one, and starts.
fn start_on_rotten_disk(planted: Planted) -> std::result::Result<(), Violation> {
    let mut disk = SimulatedDisk::new(1);
    let mut history = History { planted, random: 1, units: Vec::new(), settled: 0, generation: 0 };
    let Started::Done((log, mut writer)) = history.start(&mut disk)? else { panic!("no operation fails") };
    let mut recorder = log.clone();
    for number in 0..3 {
        let unit = Unit { keys: vec![number.to_string()], value: b"v".to_vec() };
        let effect = Effect::SetString { value: &unit.value, deadline: None };
        recorder.record(&Change { now: NOW, db: 0, key: unit.keys[0].as_bytes(), event: Event::SILENT, effect });
        recorder.end_unit();
        let synced = if planted == Planted::NothingSynced { 0 } else { writer.durable_bytes() };
        writer.append(&log.take_batch(synced).unwrap().bytes).unwrap();
        writer.sync().unwrap();
        history.units.push(unit);
    }
    history.settled = 3;
    disk.flip(b"a.aof.1.incr.aof", (FIRST_LINE + HEADER + 10) as u64);
    history.start(&mut disk).map(drop)
}

#[test]
fn damage_to_what_was_durable_is_told() {
    assert!(matches!(start_on_rotten_disk(Planted::Nothing), Err(Violation::Refused(_))));
    assert_eq!(start_on_rotten_disk(Planted::NothingSynced), Err(Violation::Lost { settled: 3, found: 0 }));
}

#[test]
fn a_batch_that_does_not_fit_leaves_the_log_as_it_was() {
    let mut disk = SimulatedDisk::new(1);
    let mut writer = IncrementFile::create(&mut disk, b"log", &first_line(7)).unwrap();
    let durable = writer.bytes();
    assert_eq!(writer.durable_bytes(), durable);
    let unit = b"*1\r\n$4\r\nPING\r\n";
    writer.append(&batch(7, durable, unit)).unwrap();
    assert_eq!(writer.durable_bytes(), durable);
    writer.sync().unwrap();
    let before = writer.bytes();
    assert_eq!(writer.durable_bytes(), before);
    let next = writer.disk.operations();
    writer.disk.fail_at(next, Injected::Full);
    assert_eq!(writer.append(&batch(7, before, unit)), Err(DiskError::Full));
    assert_eq!((writer.bytes(), writer.settled(Policy::Written)), (before, 1));
    writer.append(&batch(7, before, unit)).unwrap();
    let line = last_line(7, writer.bytes());
    assert_eq!((writer.settled(Policy::Always), writer.settled(Policy::Written)), (1, 2));
    writer.close(&line).unwrap();
    assert!(matches!(read(&mut disk, b"log", &mut Vec::new()), Ok(Started::Done(Last::Closed))));
}

/// The disk is full when the last line is to be written, and takes back what it has of it only later.
#[test]
fn a_last_line_that_does_not_fit_is_written_later() {
    let mut torn = 0;
    for seed in 0..20 {
        let mut disk = SimulatedDisk::new(seed);
        let mut writer = IncrementFile::create(&mut disk, b"log", &first_line(7)).unwrap();
        writer.append(&batch(7, writer.durable_bytes(), b"*1\r\n$4\r\nPING\r\n")).unwrap();
        writer.sync().unwrap();
        let line = last_line(7, writer.bytes());
        let next = writer.disk.operations();
        writer.disk.fail_at(next, Injected::Full);
        // It may take a part of the line before it says so.
        (1..=2).for_each(|more| writer.disk.fail_at(next + more, Injected::Failed));
        assert!(writer.close(&line).is_err());
        torn += u32::from(writer.torn);
        while writer.failed.is_none() && writer.close(&line).is_err() {}
        // One of the errors may have come to a sync.
        assert!(writer.failed.is_some() || matches!(read(&mut disk, b"log", &mut Vec::new()), Ok(Started::Done(Last::Closed))));
    }
    assert!(torn > 0, "the second error keeps what there is of the line");
}

#[test]
fn after_a_failed_sync_nothing_succeeds() {
    let mut writer = IncrementFile::create(SimulatedDisk::new(2), b"log", &first_line(7)).unwrap();
    writer.append(b"#\r\n").unwrap();
    let next = writer.disk.operations();
    writer.disk.fail_at(next, Injected::Failed);
    let error = writer.sync().unwrap_err();
    assert_eq!(writer.sync(), Err(error.clone()));
    assert_eq!(writer.append(b"#\r\n"), Err(error.clone()));
    assert_eq!((writer.settled(Policy::Always), writer.durable_bytes()), (0, FIRST_LINE as u64));
    assert_eq!(writer.close(b"#\r\n"), Err(error));
}

/// Bytes that the cache shows and the disk does not have are not built upon.
#[test]
fn an_increment_that_changes_while_it_is_copied_is_not_used() {
    let mut disk = SimulatedDisk::new(3);
    let mut history = History { planted: Planted::Nothing, random: 3, units: Vec::new(), settled: 0, generation: 0 };
    assert!(matches!(history.start(&mut disk), Ok(Started::Done(_))));
    let manifest = Manifest::parse(&read_whole(&mut disk, &manifest_name(NAME), 1 << 16).unwrap().unwrap()).unwrap();
    let Ok(Started::Done(last)) = read(&mut disk, b"a.aof.1.incr.aof", &mut Vec::new()) else { panic!("it is read") };
    disk.flip(b"a.aof.1.incr.aof", 20);
    let error = resume(&mut disk, NAME, manifest.clone(), last, &first_line(7)).unwrap_err();
    assert_eq!(error.to_string(), "a.aof.1.incr.aof has changed since it was read");
    let now = Manifest::parse(&read_whole(&mut disk, &manifest_name(NAME), 1 << 16).unwrap().unwrap()).unwrap();
    assert_eq!(now, manifest);
}

#[test]
fn planted_faults_are_found() {
    for planted in [
        Planted::AcknowledgeBeforeSync,
        Planted::ManifestInPlace,
        Planted::NoSyncOfFolder,
        Planted::AllSynced,
        Planted::NoSalt,
        Planted::CloseBeforeSync,
    ] {
        let tally = Tally::crash_everywhere(0..15, planted);
        println!("{planted:?}: {} of {} histories, {:?}", tally.violations.len(), tally.histories, tally.violations.first());
        assert!(!tally.violations.is_empty(), "{planted:?} was not found in {} histories", tally.histories);
    }
    let tally = Tally::fail_anywhere(0..6, Planted::AppendToOldFile);
    println!("{} of {} histories, {:?}", tally.violations.len(), tally.histories, tally.violations.first());
    assert!(!tally.violations.is_empty(), "appending to the old file was not found in {} histories", tally.histories);
}
