//! Histories of several generations on a simulated disk.

use crate::base::time::Now;
use crate::keyspace::change::{Change, ChangeLog, Effect, Event};
use crate::persist::append::batch::{batch, salt_of};
use crate::persist::append::clock::BootClock;
use crate::persist::append::log::{AppendLog, Batch};
use crate::persist::append::manifest::Manifest;
use crate::persist::append::read::{Ending, Reader, Step};
use crate::persist::append::request::put_request;
use crate::persist::disk::read_whole;
use crate::persist::disk::simulated::{Injected, SimulatedDisk};
use crate::persist::disk::{Disk, DiskError, Result, append_all};
use crate::persist::increment_file::{IncrementFile, Policy};
use crate::persist::resume::{Last, manifest_name, remove_history, resume};

/// `appendfilename`.
pub(super) const NAME: &[u8] = b"a.aof";

/// A salt that clients know, as if there were none.
pub(super) const KNOWN_SALT: u64 = 0;

/// Attempts to start, where an operation fails without a crash.
const STARTS_MAX: usize = 40;

/// A fault that is planted in the code around the writer, so that the test shows that it finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    Nothing,
    /// Batches are acknowledged before they are durable.
    AcknowledgeBeforeSync,
    /// The manifest is written in place.
    ManifestInPlace,
    /// The manifest is exchanged, and the folder not synced.
    NoSyncOfFolder,
    /// The last increment is appended to, as it was found.
    AppendToOldFile,
    /// What was durable is not told.
    NothingSynced,
    /// What is only written is told as durable.
    AllSynced,
    /// Clients know the salt.
    NoSalt,
    /// The last line is written before the batches are durable.
    CloseBeforeSync,
}

/// A unit: the keys of its requests, and their value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) keys: Vec<String>,
    pub(super) value: Vec<u8>,
}

/// What can go wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// This many units were settled, and this many were there.
    Lost { settled: usize, found: usize },
    /// A unit is not what was written.
    Other(usize),
    /// The files were refused.
    Refused(String),
}

/// How a start ended.
pub(super) enum Started<T> {
    Done(T),
    /// An operation of the disk failed.
    Stopped,
}

pub(super) struct History {
    pub(super) planted: Planted,
    /// State of the random sequence.
    pub(super) random: u64,
    /// All units that were given, without those that were lost.
    pub(super) units: Vec<Unit>,
    /// Number of units that were settled.
    pub(super) settled: usize,
    pub(super) generation: u64,
}

impl History {
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % bound
    }

    /// The next unit. Its value tells it from all others, and may look like a batch that proves everything durable.
    fn unit(&mut self) -> Unit {
        let number = self.units.len();
        let mut value = format!("{number} of {}: ", self.generation).into_bytes();
        match self.below(8) {
            0 => value.resize(value.len() + self.below(1300) as usize, b'x'),
            1 => value.extend(batch(KNOWN_SALT, 1 << 40, b"*1\r\n$4\r\nPING\r\n")),
            2 => put_request(&mut value, &[b"SELECT", b"0"]),
            _ => {}
        }
        let keys = (0..=self.below(3)).map(|key| format!("{number}.{key}")).collect();
        Unit { keys, value }
    }

    fn salt(&mut self) -> u64 {
        if self.planted == Planted::NoSalt { KNOWN_SALT } else { self.below(1 << 31) << 32 | self.below(1 << 31) | 1 }
    }

    /// Starts: reads all increments, and begins the next one.
    pub(super) fn start<'a>(
        &mut self,
        disk: &'a mut SimulatedDisk,
    ) -> std::result::Result<Started<(AppendLog, IncrementFile<&'a mut SimulatedDisk>)>, Violation> {
        let log = AppendLog::new(NOW, BootClock { id: [0; 16], now_ms: 0 }, 1);
        let Ok(text) = read_whole(disk, &manifest_name(NAME), 1 << 16) else { return Ok(Started::Stopped) };
        let manifest = match text {
            None => Manifest::default(),
            Some(text) => Manifest::parse(&text).map_err(|error| Violation::Refused(error.to_string()))?,
        };
        let (mut found, mut last) = (Vec::new(), Last::Missing);
        for file in &manifest.increments {
            let ending = match read(disk, &file.name, &mut found) {
                Ok(Started::Done(ending)) => ending,
                Ok(Started::Stopped) => return Ok(Started::Stopped),
                Err(text) => return Err(Violation::Refused(text)),
            };
            last = ending;
        }
        self.check(&found)?;
        let salt = self.salt();
        let first_line = log.begin_file(salt);
        let begun = match self.planted {
            Planted::AppendToOldFile if last != Last::Missing && last != Last::Closed => {
                return self.append_to_old_file(disk, &manifest, last, log);
            }
            Planted::ManifestInPlace => {
                let file = manifest.next_increment(NAME);
                let next = Manifest { increments: [manifest.increments.clone(), vec![file.clone()]].concat(), ..manifest };
                let written = match disk.create(&manifest_name(NAME)) {
                    Ok(mut target) => append_all(disk, &mut target, &next.write()).and_then(|()| disk.sync(&mut target)),
                    Err(error) => Err(error),
                };
                written.and_then(|()| IncrementFile::create(disk, &file.name, &first_line).map(|writer| (next, writer)))
            }
            Planted::NoSyncOfFolder => resume(NoFolder(disk), NAME, manifest, last, &first_line).map(|(manifest, writer)| {
                let IncrementFile { disk: NoFolder(disk), file, len, durable_len, torn, written, durable, failed } = writer;
                (manifest, IncrementFile { disk, file, len, durable_len, torn, written, durable, failed })
            }),
            _ => resume(disk, NAME, manifest, last, &first_line),
        };
        let Ok((mut manifest, mut writer)) = begun else { return Ok(Started::Stopped) };
        // All that was found is shown now.
        self.units.truncate(found.len());
        self.settled = found.len();
        if self.planted != Planted::NoSyncOfFolder
            && self.below(2) == 0
            && remove_history(writer.disk(), NAME, &mut manifest).is_err()
        {
            return Ok(Started::Stopped);
        }
        Ok(Started::Done((log, writer)))
    }

    /// Goes on in the last increment, with its salt.
    fn append_to_old_file<'a>(
        &mut self,
        disk: &'a mut SimulatedDisk,
        manifest: &Manifest,
        last: Last,
        log: AppendLog,
    ) -> std::result::Result<Started<(AppendLog, IncrementFile<&'a mut SimulatedDisk>)>, Violation> {
        let (Some(old), Last::Unclean(extent)) = (manifest.increments.last(), last) else { unreachable!("it was read") };
        let mut opened = || {
            let (mut file, len) = disk.open(&old.name)?.unwrap();
            let mut line = vec![0; 42];
            disk.read_at(&mut file, 0, &mut line)?;
            if len > extent.bytes {
                disk.truncate(&mut file, extent.bytes)?;
            }
            disk.sync(&mut file)?;
            Ok::<_, DiskError>((file, line))
        };
        let Ok((file, line)) = opened() else { return Ok(Started::Stopped) };
        let Ok(salt) = salt_of(&line) else { return Ok(Started::Stopped) };
        log.begin_file(salt);
        let len = extent.bytes;
        let found = self.units.len();
        self.settled = self.settled.max(found);
        Ok(Started::Done((
            log,
            IncrementFile { disk, file, len, durable_len: len, torn: false, written: 0, durable: 0, failed: None },
        )))
    }

    /// Compares what was found with what was given.
    fn check(&mut self, found: &[Unit]) -> std::result::Result<(), Violation> {
        let different = self.units.iter().zip(found).position(|(given, found)| given != found);
        if let Some(at) = different {
            return Err(Violation::Other(at));
        }
        fail_if!(found.len() > self.units.len(), Violation::Other(self.units.len()));
        fail_if!(found.len() < self.settled, Violation::Lost { settled: self.settled, found: found.len() });
        // What was lost is not asked for any more, unless the start fails and the next one finds it.
        if self.planted == Planted::AppendToOldFile {
            self.units.truncate(found.len());
        }
        Ok(())
    }

    /// Writes batches in groups, until it stops.
    fn run(&mut self, log: &AppendLog, mut writer: IncrementFile<&mut SimulatedDisk>) {
        let mut recorder = log.clone();
        let mut held: Option<(Batch, usize)> = None;
        // Numbers of units up to each batch.
        let mut ends = vec![self.units.len()];
        let groups = 1 + self.below(5);
        for group in 0..groups {
            for _ in 0..1 + self.below(3) {
                for _ in 0..=self.below(2) {
                    let unit = self.unit();
                    for key in &unit.keys {
                        let effect = Effect::SetString { value: &unit.value, deadline: None };
                        recorder.record(&Change { now: NOW, db: 0, key: key.as_bytes(), event: Event::SILENT, effect });
                    }
                    recorder.end_unit();
                    self.units.push(unit);
                }
                let synced = match self.planted {
                    Planted::NothingSynced => 0,
                    Planted::AllSynced => writer.bytes(),
                    _ => writer.durable_bytes(),
                };
                let (batch, end) = held.take().unwrap_or_else(|| (log.take_batch(synced).unwrap(), self.units.len()));
                // A full disk has room again at the next attempt, or the batch is held.
                if (0..3).all(|_| writer.append(&batch.bytes).is_err()) {
                    held = Some((batch, end));
                    continue;
                }
                ends.push(end);
                if self.planted == Planted::AcknowledgeBeforeSync {
                    self.settled = ends[writer.settled(Policy::Written) as usize];
                }
            }
            // The last group may be left to the clean stop.
            if group + 1 == groups && self.below(2) == 0 {
                break;
            }
            if writer.sync().is_err() {
                return;
            }
            self.settled = ends[writer.settled(Policy::Always) as usize];
        }
        if self.below(2) == 0 {
            return;
        }
        let rest = held.map(|(batch, _)| batch).into_iter().chain(std::iter::from_fn(|| log.take_batch(writer.durable_bytes())));
        for batch in rest.collect::<Vec<_>>() {
            if writer.append(&batch.bytes).is_err() {
                return;
            }
        }
        let line = log.end_file(writer.bytes());
        if self.planted == Planted::CloseBeforeSync {
            let _ = writer.append(&line).and_then(|()| writer.sync());
        } else {
            let _ = writer.close(&line);
        }
    }
}

pub(super) const NOW: Now = Now::new(1_000_000, 0);

/// A disk whose folder is never synced.
struct NoFolder<'a>(&'a mut SimulatedDisk);

impl Disk for NoFolder<'_> {
    type File = usize;

    fn open(&mut self, name: &[u8]) -> Result<Option<(usize, u64)>> {
        self.0.open(name)
    }

    fn create(&mut self, name: &[u8]) -> Result<usize> {
        self.0.create(name)
    }

    fn read_at(&mut self, file: &mut usize, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.0.read_at(file, offset, into)
    }

    fn append(&mut self, file: &mut usize, bytes: &[u8]) -> Result<usize> {
        self.0.append(file, bytes)
    }

    fn truncate(&mut self, file: &mut usize, len: u64) -> Result {
        self.0.truncate(file, len)
    }

    fn sync(&mut self, file: &mut usize) -> Result {
        self.0.sync(file)
    }

    fn sync_folder(&mut self) -> Result {
        Ok(())
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result {
        self.0.rename(from, to)
    }

    fn remove(&mut self, name: &[u8]) -> Result {
        self.0.remove(name)
    }
}

/// Reads an increment.
pub(super) fn read(disk: &mut SimulatedDisk, name: &[u8], found: &mut Vec<Unit>) -> std::result::Result<Started<Last>, String> {
    let (mut file, len) = match disk.open(name) {
        Ok(Some(opened)) => opened,
        Ok(None) => return Err(format!("{} does not exist", name.escape_ascii())),
        Err(_) => return Ok(Started::Stopped),
    };
    let mut reader = Reader::new(len);
    let (mut at, mut piece) = (0, vec![0; 4096]);
    loop {
        match reader.step().map_err(|damage| format!("{}: {damage}", name.escape_ascii()))? {
            Step::Unit(unit) => {
                let mut keys = Vec::new();
                let mut value = Vec::new();
                for (_, args) in unit.raw().filter(|(_, args)| args[0] == b"SET") {
                    keys.push(String::from_utf8_lossy(args[1]).into_owned());
                    value = args[2].to_vec();
                }
                if !keys.is_empty() {
                    found.push(Unit { keys, value });
                }
            }
            Step::Preamble => return Err("an RDB".to_owned()),
            Step::More => match disk.read_at(&mut file, at, &mut piece) {
                Err(_) => return Ok(Started::Stopped),
                Ok(0) => break,
                Ok(count) => {
                    reader.feed(&piece[..count]);
                    at += count as u64;
                }
            },
        }
    }
    let extent = reader.extent();
    match reader.finish() {
        Ok(Ending::Closed) => Ok(Started::Done(Last::Closed)),
        Ok(Ending::Whole | Ending::Torn(_)) => Ok(Started::Done(Last::Unclean(extent))),
        Err(damage) => Err(format!("{}: {damage}", name.escape_ascii())),
    }
}

/// What is to happen in a history.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// The operation at which the machine crashes for the first time.
    pub(super) crash_at: Option<u64>,
    /// Errors at these operations.
    pub(super) fails: [Option<(u64, Injected)>; 2],
}

/// Generations of one history.
const GENERATIONS: u64 = 4;

/// Runs a history of several generations. Returns the number of operations up to the first crash, or all.
pub(super) fn history(plan: Plan, planted: Planted) -> std::result::Result<u64, Violation> {
    let mut disk = SimulatedDisk::new(plan.seed);
    plan.crash_at.iter().for_each(|at| disk.crash_at(*at));
    plan.fails.iter().flatten().for_each(|(at, how)| disk.fail_at(*at, *how));
    let mut history = History { planted, random: plan.seed ^ 0x9e37_79b9, units: Vec::new(), settled: 0, generation: 0 };
    let mut operations = None;
    for generation in 0..GENERATIONS {
        history.generation = generation;
        let mut starts = 0;
        loop {
            let started = history.start(&mut disk)?;
            let stopped = matches!(started, Started::Stopped);
            if let Started::Done((log, writer)) = started {
                history.run(&log, writer);
            }
            if disk.has_crashed() {
                operations.get_or_insert(disk.operations());
                disk.restart();
                // The machine crashes again soon, perhaps while it starts.
                let next = disk.operations() + history.below(60);
                if plan.crash_at.is_some() && history.below(2) == 0 {
                    disk.crash_at(next);
                }
            } else {
                disk.restart_process();
            }
            starts += 1;
            if !stopped {
                break;
            }
            assert!(starts < STARTS_MAX, "the start does not succeed: {plan:?}");
        }
    }
    let operations = operations.unwrap_or(disk.operations());
    // Whatever is left is read on a machine that has lost what was not durable.
    disk.restart();
    for _ in 0..2 {
        history.start(&mut disk)?;
        disk.restart();
    }
    Ok(operations)
}
