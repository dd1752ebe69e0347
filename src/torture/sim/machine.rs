//! The machine of a durable server: its disk, its clocks, and the process that starts from its files.
//!
//! ```text
//!   Machine ─ start: manifest, Files, Replay ─▶ Driver ─ submit: a batch ─▶ LogWriter ─▶ Files ─▶ SharedDisk
//!                                                     ▲                            │
//!                                                     └───────── settled ◀─ sync ──┘
//! ```
//!
//! Everything but the disk and the clocks is the real server's: loading, resuming, the driver, new bases. Instead of the log's
//! thread, the caller says when a batch is synced.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use crate::base::time::Now;
use crate::driver::Driver;
#[cfg(any(test, feature = "internals"))]
use crate::driver::Present;
use crate::driver::file::{BaseOrder, Beginning};
#[cfg(any(test, feature = "internals"))]
use crate::driver::pace::Pace;
use crate::driver::replay::Purpose;
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::persist::append::clock::{BootClock, Moment};
use crate::persist::append::files::Files as LogFiles;
use crate::persist::append::log_writer::{LogWriter, Progress, Report, Surroundings, Syncs};
use crate::persist::append::manifest::{File, Manifest};
use crate::persist::disk::{DiskError, read_whole};
use crate::persist::resume::manifest_name;
use crate::server::durable::folder::LogFolder;
use crate::server::durable::load::Files;
use crate::server::durable::load::slices::Load;
use crate::server::durable::rewrite::{self, begin_files};
#[cfg(any(test, feature = "internals"))]
use crate::server::durable::start::begin_increment;
use crate::torture::sim::clock::{BEGIN_UNIX_MS, Clock};
use crate::torture::sim::disk::{Planted, SharedDisk};

/// `appendfilename`.
pub const NAME: &[u8] = b"appendonly.aof";
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

    /// Loads the files into an engine, as a start does, and writes nothing.
    ///
    /// # Errors
    /// The files are refused, in words.
    #[cfg(any(test, feature = "internals"))]
    pub fn load(&mut self, at_us: u64, config: Config, seed: u64) -> Result<(Engine, ProcessClock), String> {
        let (mut driver, clock, mut loading) = self.begin_loading(at_us, config, seed)?;
        while !loading.load_some(&mut driver, &mut Pace::unlimited())? {}
        loading.end(&mut driver, clock.now(at_us))?;
        Ok((driver.engine, clock))
    }

    /// Starts the server, which loads its files ([`Load::load_some`]) and then goes on behind them.
    ///
    /// # Errors
    /// The files are refused, in words.
    pub fn begin_loading(&mut self, at_us: u64, config: Config, seed: u64) -> Result<(Driver, ProcessClock, Loading), String> {
        self.processes += 1;
        // Not a whole number of milliseconds, and another one for each process.
        let clock = ProcessClock::new(at_us, BEGIN_US + self.processes * 77_700_123 % 1_000_000_007, self.wall_ms);
        let moment = Moment { boot: self.boot_clock(at_us), now: clock.now(at_us) };
        // Some servers leave out of their logs what clients have sent.
        let config = Config { hide_user_data_from_log: seed.is_multiple_of(3), ..config };
        let mut driver = Driver::new(Engine::new(config, seed, moment.now, crate::commands::table()));
        if let Planted::OfDriver(flaw) = self.disk.planted {
            driver.plant(flaw);
        }
        let manifest = read_manifest(&mut self.disk.clone())?;
        let truncates = driver.engine.config().aof_load_truncated;
        let files = open_files(&self.disk, manifest, Purpose::Start { truncates })?;
        let loading = Load::begin(&mut driver, moment, files);
        Ok((driver, clock, loading))
    }

    /// The writer of these files.
    pub fn writer(&self, files: LogFiles<SharedDisk>, syncs: Syncs, progress: Arc<Progress>, at_us: u64) -> Writer {
        let around = Around { disk: self.disk.clone(), now_ns: Cell::new(at_us * 1_000), reports: RefCell::default() };
        LogWriter::new(files, syncs, progress, around)
    }

    /// Begins the file of a log that is switched on, with this copy as its base, in place of all files that there are.
    ///
    /// # Errors
    /// In words.
    pub fn begin_file(&self, at_us: u64, copied: (Box<Engine>, Moment), beginning: Beginning) -> Result<Writer, String> {
        let Beginning { head, progress, syncs } = beginning;
        let mut manifest = read_manifest(&mut self.disk.clone())?;
        manifest.begin_anew(NAME);
        let files = begin_files(self.disk.clone(), NAME, manifest, copied, true, &head)?;
        Ok(self.writer(files, syncs, progress, at_us))
    }

    /// Starts a server from its files, at once.
    ///
    /// # Errors
    /// The files are refused, in words, or the disk's errors.
    #[cfg(any(test, feature = "internals"))]
    pub fn start(&mut self, at_us: u64, config: Config, seed: u64) -> Result<(Driver, ProcessClock, Writer), String> {
        let (mut driver, clock, mut loading) = self.begin_loading(at_us, config, seed)?;
        while !loading.load_some(&mut driver, &mut Pace::unlimited())? {}
        let at = Present { now: clock.now(at_us), ns: at_us * 1_000, frozen: false };
        let moment = Moment { boot: self.boot_clock(at_us), now: at.now };
        let (loaded, _) = loading.end(&mut driver, at.now)?;
        let (log, files, syncs, progress) =
            begin_increment(&mut driver, moment, self.disk.clone(), NAME, loaded).map_err(words)?;
        driver.resume_file(at, log, files.manifest().increments.len());
        driver.log_as_configured(at);
        Ok((driver, clock, self.writer(files, syncs, progress, at_us)))
    }
}

fn words(error: DiskError) -> String {
    error.to_string()
}

/// The manifest of a disk; the default if there is none.
///
/// # Errors
/// The disk's, and those of the manifest, in words.
fn read_manifest(disk: &mut SharedDisk) -> Result<Manifest, String> {
    match read_whole(disk, &manifest_name(NAME), FILE_MAX).map_err(words)? {
        None => Ok(Manifest::default()),
        Some(text) => Manifest::parse(&text).map_err(|error| error.to_string()),
    }
}

/// Files that are loaded.
pub type Loading = Load<Cursor<Vec<u8>>>;

/// Opens the files of a manifest on a disk.
fn open_files(disk: &SharedDisk, manifest: Manifest, purpose: Purpose) -> Result<Files<Cursor<Vec<u8>>>, String> {
    let mut disk = disk.clone();
    Files::from(Path::new(""), |name| disk.source(name), manifest, purpose)
}

/// What the writer of a log uses of its machine.
pub struct Around {
    disk: SharedDisk,
    now_ns: Cell<u64>,
    reports: RefCell<VecDeque<Report>>,
}

impl Around {
    /// Lets it be this true time.
    pub fn set_time(&self, at_us: u64) {
        self.now_ns.set(at_us * 1_000);
    }

    /// The time that it is.
    pub fn time_us(&self) -> u64 {
        self.now_ns.get() / 1_000
    }

    /// Whether something was reported.
    pub fn has_reports(&self) -> bool {
        !self.reports.borrow().is_empty()
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

/// Makes a new base of all files but the last increment. Returns the file and its length. The manifest does not name it yet.
///
/// # Errors
/// In words.
pub fn make_base(disk: &SharedDisk, order: BaseOrder, moment: Moment, goes_on: impl Fn() -> bool) -> Result<(File, u64), String> {
    rewrite::make_base(&mut disk.clone(), NAME, order, moment, goes_on)
}
