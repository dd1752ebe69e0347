//! What a durable server of the simulation has beside its engine and its threads: its machine and its operator.

use std::sync::atomic::Ordering;

use crate::client::Command;
use crate::driver::Driver;
use crate::driver::file::Phase;
use crate::engine::config::Config;
use crate::persist::append::log_writer::{BatchNumber, Syncs};
use crate::persist::disk::simulated::{Injected, SimulatedDisk};
use crate::torture::random::Random;
use crate::torture::sim::disk::SharedDisk;
use crate::torture::sim::machine::Machine;

/// The configuration of a durable server.
pub fn config() -> Config {
    // Files are small here, and new bases are to be made all the same.
    Config { appendonly: true, appendfsync: "always", auto_aof_rewrite_min_size: 16 << 10, ..Config::default() }
}

/// The machine of a server, and how its operator has it store.
pub struct Durable {
    pub(in crate::torture::sim) machine: Machine,
    care: Care,
    /// Whether the operator changes it often, and new bases and copies take long or fail.
    hurries: bool,
    /// Whether the disk is full.
    full: bool,
}

impl Durable {
    /// A machine without files, whose server does not run yet.
    pub fn new(disk: SharedDisk) -> Durable {
        Durable { machine: Machine::new(disk, 0), care: Care::Exact, hurries: false, full: false }
    }

    /// The configuration that the operator starts the next process with.
    pub fn config_to_start(&self, random: &mut Random) -> Config {
        let delay = if self.hurries { [0, 0, 50, -1][random.below(4) as usize] } else { 0 };
        Config { key_load_delay: delay, hide_user_data_from_log: random.percent(30), ..config() }
    }

    /// Deletes all files, as an operator does who wants the server back at any price.
    pub fn delete_files(&mut self, seed: u64) {
        self.machine.disk.act(|disk| *disk = SimulatedDisk::new(seed));
    }

    /// From now on the operator changes how it stores often, and new bases and copies take long or fail, so that these meet.
    pub fn hurry(&mut self) {
        self.hurries = true;
    }

    /// The process ends.
    pub fn end_process(&mut self) {
        self.care = Care::Exact;
        // There is room again for the next one.
        self.fill(false);
        self.machine.disk.act(SimulatedDisk::restart_process);
    }

    /// Fills the disk, or makes room on it.
    fn fill(&mut self, full: bool) {
        self.full = full;
        self.machine.disk.act(|disk| disk.set_failing(full.then_some(Injected::Full)));
    }

    /// Whether there is room on the disk. Without it, an end loses what was acknowledged before it was written.
    pub fn has_room(&self) -> bool {
        !self.full
    }

    /// What the operator of the server does next.
    pub fn operate(&mut self, driver: &Driver, random: &mut Random) -> (Vec<Command>, u64) {
        if self.hurries {
            let fills = !self.full && random.percent(15);
            self.fill(fills);
        }
        let word = |text: &str| {
            text.split(' ').fold(None, |command: Option<Command>, word| {
                Some(command.map_or_else(|| Command::new(word), |command| command.arg(word)))
            })
        };
        let done = if self.loses_nothing(driver) {
            let change = [
                "CONFIG SET appendfsync everysec",
                "CONFIG SET appendfsync no",
                "CONFIG SET appendonly no",
                "BGREWRITEAOF",
                "BGSAVE",
            ];
            let which = random.below(change.len() as u64) as usize;
            if which < 3 {
                self.care = Care::None;
            }
            vec![change[which]]
        } else if self.hurries && random.percent(30) {
            // In the middle of a change.
            self.care = Care::None;
            let change = [
                "CONFIG SET appendonly no",
                "CONFIG SET appendfsync no",
                "CONFIG SET auto-aof-rewrite-percentage 0",
                "CONFIG SET auto-aof-rewrite-percentage 100",
                "BGREWRITEAOF",
                "BGSAVE",
                "SAVE",
            ];
            vec![change[random.below(change.len() as u64) as usize]]
        } else {
            self.care = Care::Returns;
            vec!["CONFIG SET appendonly yes", "CONFIG SET appendfsync always"]
        };
        let pause_us = if self.hurries { (1_000, 1_000_000) } else { (500_000, 15_000_000) };
        (done.into_iter().filter_map(word).collect(), random.between(pause_us.0, pause_us.1))
    }

    /// Whether nothing that was acknowledged is lost if the process ends now: the file is on, and all that was acknowledged
    /// before it was, or under another `appendfsync`, is durable.
    pub fn loses_nothing(&mut self, driver: &Driver) -> bool {
        if driver.engine.is_loading() && self.care == Care::Exact {
            return true;
        }
        let Some(file) = driver.file().filter(|file| file.phase == Phase::Running && file.syncs == Syncs::Always) else {
            return false;
        };
        match self.care {
            Care::Exact => {}
            Care::None => return false,
            Care::Returns => self.care = Care::From(file.log.gate.pending() - 1),
            Care::From(_) => {}
        }
        let durable = file.progress.durable.load(Ordering::Relaxed);
        if matches!(self.care, Care::From(batch) if durable >= batch) {
            self.care = Care::Exact;
        }
        self.care == Care::Exact
    }
}

/// Whether all that is acknowledged is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Care {
    /// It is.
    Exact,
    /// It is not: the file is off, or is not synced with each batch.
    None,
    /// It is to be again.
    Returns,
    /// It is, once this batch is durable.
    From(BatchNumber),
}
