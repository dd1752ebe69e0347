//! What a durable server of the simulation has beside its engine: its machine, its log, and the times of its disk.

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::persist::append::clock::Moment;
use crate::persist::disk::simulated::SimulatedDisk;
use crate::torture::plan::streams;
use crate::torture::random::Random;
use crate::torture::sim::disk::{Planted, SharedDisk};
use crate::torture::sim::machine::{Log, Machine, ProcessClock, make_base};

/// Number of increments from which on a start makes a new base.
const INCREMENTS_MAX: usize = 4;

/// The machine and the log of a server.
pub struct Durable {
    machine: Machine,
    /// The log of the process, if one runs.
    pub log: Option<Log>,
    /// Number of the process.
    pub process: u64,
    /// Sessions with more output to send.
    opened: Vec<SessionId>,
    /// The times of the disk.
    random: Random,
}

impl Durable {
    /// A machine without files, whose server does not run yet.
    pub fn new(disk: SharedDisk, seed: u64) -> Durable {
        let random = Random::new(seed, streams::DISK, 0);
        Durable { machine: Machine::new(disk, 0), log: None, process: 0, opened: Vec::new(), random }
    }

    /// Starts a process from the files. Returns its engine and its clocks, and whether the files were loaded. If they are refused, all
    /// of them are deleted, as an operator does who wants the server back at any price.
    pub fn start(&mut self, at_us: u64, seed: u64) -> (Engine, ProcessClock, bool) {
        self.process += 1;
        for kept in [true, false] {
            if let Ok((engine, clock, log)) = self.start_once(at_us, seed) {
                self.log = Some(log);
                return (engine, clock, kept);
            }
            self.machine.disk.act(|disk| *disk = SimulatedDisk::new(seed));
        }
        unreachable!("an empty disk without errors is a beginning")
    }

    fn start_once(&mut self, at_us: u64, seed: u64) -> Result<(Engine, ProcessClock, Log), String> {
        let (mut engine, clock, mut log) = self.machine.start(at_us, Config::default(), seed)?;
        if log.increments() > INCREMENTS_MAX {
            let disk = &self.machine.disk;
            let files = log.next_increment(&mut engine, disk).map_err(|error| error.to_string())?;
            let moment = Moment { now: clock.now(at_us), boot: self.machine.boot_clock(at_us) };
            let (base, len) = make_base(disk, files, moment, Config::default())?;
            log.set_base(base, len).map_err(|error| error.to_string())?;
        }
        Ok((engine, clock, log))
    }

    /// The process ends.
    pub fn end_process(&mut self) {
        self.log = None;
        self.opened.clear();
        self.machine.disk.act(SimulatedDisk::restart_process);
    }

    /// The machine loses its power. See [`Machine::lose_power`].
    pub fn lose_power(&mut self, at_us: u64, wall_step_ms: i64) {
        self.machine.lose_power(at_us, wall_step_ms);
    }

    /// Hands the changes of a turn to the disk. Returns the time that the sync takes which has begun, if one has.
    pub fn submit(&mut self, now: Now, at_us: u64) -> Option<u64> {
        let log = self.log.as_mut()?;
        let boot = self.machine.boot_clock(at_us);
        // The disk has no errors here. Otherwise all output would stay held back.
        let begun = log.submit(Moment { now, boot }).unwrap_or(false);
        self.opened.extend(log.settle_unsynced());
        // A disk mostly takes a moment, and sometimes much longer.
        let longest_us = match self.machine.disk.planted {
            // A slow disk shows it sooner.
            Planted::AcknowledgeBeforeFlush => 2_000_000,
            _ if self.random.percent(5) => 50_000,
            _ => 2_000,
        };
        begun.then(|| self.random.between(200, longest_us))
    }

    /// The sync has ended.
    pub fn sync(&mut self) {
        if let Some(Ok(opened)) = self.log.as_mut().map(Log::sync) {
            self.opened.extend(opened.into_iter().map(|(id, _)| id));
        }
    }

    /// Takes the sessions with more output to send.
    pub fn take_opened(&mut self) -> Vec<SessionId> {
        std::mem::take(&mut self.opened)
    }
}
