//! The machine of a durable server: its disk, its clocks, and what its processes have the disk write.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use crate::base::time::Now;
use crate::persist::append::clock::BootClock;
use crate::persist::append::files::Files as LogFiles;
use crate::persist::append::log_writer::{LogWriter, Progress, Report, Surroundings, Syncs};
use crate::persist::disk::DiskError;
use crate::torture::sim::clock::{BEGIN_UNIX_MS, Clock};
use crate::torture::sim::disk::SharedDisk;

/// Maximum length of a file.
pub const FILE_MAX: usize = 1 << 30;
/// Monotonic time at the start of a process, in microseconds.
const BEGIN_US: u64 = 1_000_000_000;

/// The clocks of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessClock {
    /// The true time at which the process began.
    began_us: u64,
    /// Its monotonic clock then.
    origin_us: u64,
    /// Unix time minus monotonic time.
    wall_offset_ms: i64,
    /// By how many millionths they run fast.
    ppm: i64,
}

impl ProcessClock {
    /// The clocks of a process whose monotonic clock began `mono_us` before it, on a machine whose wall clock is wrong by
    /// `wall_ms`.
    pub fn new(began_us: u64, origin_us: u64, wall_ms: i64) -> ProcessClock {
        let wall_offset_ms = BEGIN_UNIX_MS + wall_ms + (began_us / 1000) as i64 - (origin_us / 1000) as i64;
        ProcessClock { began_us, origin_us, wall_offset_ms, ppm: 0 }
    }

    /// The same clocks, fast by so many millionths from their beginning on.
    pub fn with_ppm(self, ppm: i64) -> ProcessClock {
        ProcessClock { ppm, ..self }
    }

    /// Sets the monotonic clock at a true time. What the wall clock shows stays.
    pub fn set_us(&mut self, true_us: u64, mono_us: u64) {
        let wall_ms = self.now(true_us).unix_ms();
        (self.began_us, self.origin_us) = (true_us, mono_us);
        self.wall_offset_ms = wall_ms - (mono_us / 1_000) as i64;
    }

    /// Sets the wall clock by so many milliseconds.
    pub fn step_wall(&mut self, by_ms: i64) {
        self.wall_offset_ms += by_ms;
    }

    /// The engine's time at a true time.
    pub fn now(&self, true_us: u64) -> Now {
        let clock = Clock { ppm: self.ppm, set_by_ms: 0 };
        Now::new(self.origin_us + clock.elapsed_us(true_us.saturating_sub(self.began_us)), self.wall_offset_ms)
    }

    /// The true time of a monotonic one.
    pub fn true_us(&self, mono_ms: u64) -> u64 {
        let clock = Clock { ppm: self.ppm, set_by_ms: 0 };
        let elapsed_us = mono_ms.saturating_mul(1000).saturating_sub(self.origin_us);
        let mut true_us = clock.true_us(elapsed_us);
        // Not before the clock shows it.
        while clock.elapsed_us(true_us) < elapsed_us {
            true_us += 1;
        }
        self.began_us + true_us
    }
}

/// A machine.
#[derive(Clone)]
pub struct Machine {
    /// Its disk.
    pub disk: SharedDisk,
    /// Number of its boots.
    boots: u64,
    /// The true time of the last one.
    booted_us: u64,
    /// How wrong its wall clock is, in milliseconds.
    wall_ms: i64,
    /// Number of its processes, which tells their monotonic clocks apart.
    processes: u64,
}

impl Machine {
    /// A machine with this disk, booted at this time.
    pub fn new(disk: SharedDisk, at_us: u64) -> Machine {
        Machine { disk, boots: 1, booted_us: at_us, wall_ms: 0, processes: 0 }
    }

    /// The machine loses its power, and boots again when a process starts next. Its wall clock is then set by `wall_step_ms`.
    pub fn lose_power(&mut self, at_us: u64, wall_step_ms: i64) {
        self.disk.act(|disk| disk.restart());
        self.boots += 1;
        self.booted_us = at_us;
        self.wall_ms += wall_step_ms;
    }

    /// The boot clock.
    pub fn boot_clock(&self, at_us: u64) -> BootClock {
        BootClock { id: u128::from(self.boots).to_be_bytes(), now_ms: (at_us - self.booted_us) / 1000 }
    }

    /// The same machine with another disk.
    #[cfg(any(test, feature = "internals"))]
    pub fn with_disk(&self, disk: SharedDisk) -> Machine {
        Machine { disk, ..self.clone() }
    }

    /// A process begins. Returns its clocks.
    pub fn begin_process(&mut self, at_us: u64) -> ProcessClock {
        self.processes += 1;
        // Not a whole number of milliseconds, and another one for each process.
        ProcessClock::new(at_us, BEGIN_US + self.processes * 77_700_123 % 1_000_000_007, self.wall_ms)
    }
}

/// The writer of these files.
pub fn writer(disk: &SharedDisk, files: LogFiles<SharedDisk>, syncs: Syncs, progress: Arc<Progress>, at_us: u64) -> Writer {
    let around = Around { disk: disk.clone(), now_ns: Cell::new(at_us * 1_000), reports: RefCell::default() };
    LogWriter::new(files, syncs, progress, around)
}

/// What the writer of a log uses of its machine.
pub struct Around {
    disk: SharedDisk,
    now_ns: Cell<u64>,
    reports: RefCell<VecDeque<Report>>,
}

impl Around {
    /// Lets it be this true time, or a later one.
    pub fn set_time(&self, at_us: u64) {
        self.now_ns.set(self.now_ns.get().max(at_us * 1_000));
    }

    /// Takes what was reported first.
    pub fn take_report(&self) -> Option<Report> {
        self.reports.borrow_mut().pop_front()
    }
}

impl Surroundings<SharedDisk> for Around {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    fn open(&self) -> Result<SharedDisk, DiskError> {
        Ok(self.disk.clone())
    }

    fn report(&self, report: Report) {
        self.reports.borrow_mut().push_back(report);
    }
}

/// The writer of a log, which the caller runs.
pub type Writer = LogWriter<SharedDisk, Around>;
