//! What a durable server of the simulation has beside its engine: its machine, its log, and the times of its disk.

use std::time::Duration;

use crate::driver::gate::BatchNumber;
use crate::driver::{Driver, Present};
use crate::engine::config::Config;
use crate::persist::append::clock::Moment;
use crate::persist::disk::simulated::SimulatedDisk;
use crate::persist::natives::clock::BootClock;
use crate::torture::plan::streams;
use crate::torture::random::Random;
use crate::torture::sim::disk::{Planted, SharedDisk};
use crate::torture::sim::machine::{LogWriter, Machine, ProcessClock, make_base};

/// Number of increments from which on a start makes a new base.
const INCREMENTS_MAX: usize = 4;

/// The configuration of a durable server.
pub fn config() -> Config {
    Config { appendonly: true, appendfsync: "always", ..Config::default() }
}

/// The machine of a server, and who writes its log.
pub struct Durable {
    machine: Machine,
    /// Writes the log of the process, if one runs.
    writer: Option<LogWriter>,
    /// Number of the process.
    pub process: u64,
    /// How long the sync takes that is on its way, in microseconds.
    syncing_us: Option<u64>,
    /// The times of the disk.
    random: Random,
}

impl Durable {
    /// A machine without files, whose server does not run yet.
    pub fn new(disk: SharedDisk, seed: u64) -> Durable {
        let random = Random::new(seed, streams::DISK, 0);
        Durable { machine: Machine::new(disk, 0), writer: None, process: 0, syncing_us: None, random }
    }

    /// Starts a process from the files. Returns its driver and its clocks, and whether the files were loaded. If they are refused, all
    /// of them are deleted, as an operator does who wants the server back at any price.
    pub fn start(&mut self, at_us: u64, seed: u64) -> (Driver, ProcessClock, bool) {
        self.process += 1;
        for kept in [true, false] {
            if let Ok((driver, clock, writer)) = self.start_once(at_us, seed) {
                self.writer = Some(writer);
                return (driver, clock, kept);
            }
            self.machine.disk.act(|disk| *disk = SimulatedDisk::new(seed));
        }
        unreachable!("an empty disk without errors is a beginning")
    }

    fn start_once(&mut self, at_us: u64, seed: u64) -> Result<(Driver, ProcessClock, LogWriter), String> {
        let (mut driver, clock, mut writer) = self.machine.start(at_us, config(), seed)?;
        if writer.increments() > INCREMENTS_MAX {
            let disk = &self.machine.disk;
            let files = writer.next_increment(&mut driver, disk).map_err(|error| error.to_string())?;
            let moment = Moment { now: clock.now(at_us), boot: self.machine.boot_clock(at_us) };
            let (base, len) = make_base(disk, files, moment, Config::default())?;
            writer.set_base(base, len).map_err(|error| error.to_string())?;
        }
        Ok((driver, clock, writer))
    }

    /// The boot clock of its machine.
    pub fn boot_clock(&self, at_us: u64) -> BootClock {
        self.machine.boot_clock(at_us)
    }

    /// The process ends.
    pub fn end_process(&mut self) {
        (self.writer, self.syncing_us) = (None, None);
        self.machine.disk.act(SimulatedDisk::restart_process);
    }

    /// The machine loses its power. See [`Machine::lose_power`].
    pub fn lose_power(&mut self, at_us: u64, wall_step_ms: i64) {
        self.machine.lose_power(at_us, wall_step_ms);
    }

    /// Appends a batch. Returns the time that the sync takes which has begun, if one has.
    pub fn append(&mut self, batch: (BatchNumber, Vec<u8>)) -> Option<u64> {
        self.writer.as_mut()?.push(batch);
        if self.syncing_us.is_none() { self.begin_sync() } else { None }
    }

    /// Writes what there is, and begins to sync it. Returns the time that the sync takes.
    fn begin_sync(&mut self) -> Option<u64> {
        // The disk has no errors here. Otherwise all output would stay held back.
        if !self.writer.as_mut()?.write().unwrap_or(false) {
            return None;
        }
        // A disk mostly takes a moment, and sometimes much longer.
        let longest_us = match self.machine.disk.planted {
            // A slow disk shows it sooner.
            Planted::AcknowledgeBeforeFlush => 2_000_000,
            _ if self.random.percent(5) => 50_000,
            _ => 2_000,
        };
        self.syncing_us = Some(self.random.between(200, longest_us));
        self.syncing_us
    }

    /// The sync has ended. Tells the driver. Returns the time that the next one takes, if there is more to sync.
    pub fn synced(&mut self, at: Present, driver: &mut Driver) -> Option<u64> {
        let took = Duration::from_micros(self.syncing_us.take()?);
        let settled = self.writer.as_mut()?.sync(took).ok()?;
        driver.settled(at, settled);
        self.begin_sync()
    }
}
