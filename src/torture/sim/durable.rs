//! What a durable server of the simulation has beside its engine: its machine, its log, and the times of its disk.

use crate::base::time::Now;
use crate::driver::Driver;
use crate::engine::config::Config;
use crate::persist::append::clock::Moment;
use crate::persist::append::log_writer::{Order, Report};
use crate::persist::append::manifest::{File, Manifest};
use crate::persist::disk::simulated::SimulatedDisk;
use crate::persist::natives::clock::BootClock;
use crate::torture::plan::streams;
use crate::torture::random::Random;
use crate::torture::sim::disk::{Planted, SharedDisk};
use crate::torture::sim::machine::{Machine, ProcessClock, Writer, make_base};

/// Number of increments from which on a start makes a new base.
const INCREMENTS_MAX: usize = 4;

/// The configuration of a durable server.
pub fn config() -> Config {
    // Files are small here, and new bases are to be made all the same.
    Config { appendonly: true, appendfsync: "always", auto_aof_rewrite_min_size: 16 << 10, ..Config::default() }
}

/// The machine of a server, and who writes its log.
pub struct Durable {
    machine: Machine,
    /// Writes the log of the process, if one runs.
    writer: Option<Writer>,
    /// Number of the process.
    pub process: u64,
    /// Whether a sync is on its way.
    syncs: bool,
    /// When the writer goes on by itself, if no sync is on its way.
    resumes_us: Option<u64>,
    /// The times of the disk.
    random: Random,
}

impl Durable {
    /// A machine without files, whose server does not run yet.
    pub fn new(disk: SharedDisk, seed: u64) -> Durable {
        let random = Random::new(seed, streams::DISK, 0);
        Durable { machine: Machine::new(disk, 0), writer: None, process: 0, syncs: false, resumes_us: None, random }
    }

    /// Starts a process from the files. Returns its driver and its clocks, and whether the files were loaded. If they are refused, all
    /// of them are deleted, as an operator does who wants the server back at any price.
    pub fn start(&mut self, at_us: u64, seed: u64) -> (Driver, ProcessClock, bool) {
        self.process += 1;
        for kept in [true, false] {
            if let Ok((mut driver, clock, writer)) = self.machine.start(at_us, config(), seed) {
                let joins = writer.files().manifest().increments.len() > INCREMENTS_MAX;
                self.writer = Some(writer);
                if joins {
                    driver.begin_rewriting(clock.now(at_us));
                }
                return (driver, clock, kept);
            }
            self.machine.disk.act(|disk| *disk = SimulatedDisk::new(seed));
        }
        unreachable!("an empty disk without errors is a beginning")
    }

    /// The boot clock of its machine.
    pub fn boot_clock(&self, at_us: u64) -> BootClock {
        self.machine.boot_clock(at_us)
    }

    /// The process ends.
    pub fn end_process(&mut self) {
        (self.writer, self.syncs, self.resumes_us) = (None, false, None);
        self.machine.disk.act(SimulatedDisk::restart_process);
    }

    /// The machine loses its power. See [`Machine::lose_power`].
    pub fn lose_power(&mut self, at_us: u64, wall_step_ms: i64) {
        self.machine.lose_power(at_us, wall_step_ms);
    }

    /// Orders something of the writer. [`Durable::work`] carries it out.
    pub fn order(&mut self, order: Order) {
        if let Some(writer) = &mut self.writer {
            writer.order(order);
        }
    }

    /// Lets the writer work, unless a sync is on its way. Returns the time after which [`Durable::go_on`] must be called, if it is waited for
    /// that anew.
    pub fn work(&mut self, at_us: u64) -> Option<u64> {
        let writer = self.writer.as_mut().filter(|_| !self.syncs)?;
        writer.around().set_time(at_us);
        // The disk has no errors here. Otherwise all output would stay held back.
        if writer.write().unwrap_or(false) && writer.begin_sync() {
            self.syncs = true;
            // A disk mostly takes a moment, and sometimes much longer.
            let longest_us = match self.machine.disk.planted {
                // A slow disk shows it sooner.
                Planted::AcknowledgeBeforeFlush => 2_000_000,
                _ if self.random.percent(5) => 50_000,
                _ => 2_000,
            };
            return Some(self.random.between(200, longest_us));
        }
        let wait_us = writer.wait()?.as_micros() as u64 + 1;
        if self.resumes_us.is_some_and(|resumes_us| resumes_us <= at_us + wait_us) {
            return None;
        }
        self.resumes_us = Some(at_us + wait_us);
        Some(wait_us)
    }

    /// A time is over that [`Durable::work`] has returned.
    pub fn go_on(&mut self, at_us: u64) {
        let Some(writer) = &mut self.writer else { return };
        writer.around().set_time(at_us);
        self.resumes_us.take_if(|resumes_us| *resumes_us <= at_us);
        if std::mem::take(&mut self.syncs) {
            // As above.
            let _ = writer.end_sync();
        }
    }

    /// Takes what the writer has reported.
    pub fn take_reports(&self) -> Vec<Report> {
        self.writer.as_ref().map(|writer| writer.around().take_reports()).unwrap_or_default()
    }

    /// Makes a new base of these files.
    ///
    /// # Errors
    /// In words.
    pub fn make_base(&self, now: Now, at_us: u64, files: Manifest) -> Result<(File, u64), String> {
        let moment = Moment { now, boot: self.machine.boot_clock(at_us) };
        make_base(&self.machine.disk, files, moment, Config::default())
    }
}
