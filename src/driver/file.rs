//! The log of a server that writes an append-only file: how far the file is, and when a new base is due. Before it begins, the driver
//! takes over what the adapter has loaded.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::time::Now;
use crate::driver::delay::Delay;
use crate::driver::flaw::Flaw;
use crate::driver::log::Log;
use crate::driver::replay::{Purpose, Replay};
use crate::driver::{Driver, Present};
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::engine::persistence::{Figures, Position};
use crate::persist::append::files::Head;
use crate::persist::append::log::AppendLog;
use crate::persist::append::log_writer::{Order, Progress, Report, Syncs};
use crate::persist::append::manifest::{File, Manifest};
use crate::persist::disk::DiskError;
use crate::persist::natives::clock::{BootClock, Moment};
use crate::persist::rdb_file::load::Tally;

/// Number of failures in a row from which on the server waits before it tries again by itself to make a new base, and the longest
/// wait in minutes. As in Redis.
const FAILURES_MAX: u32 = 3;
const PAUSE_MAX: u64 = 60;

/// Number of increments after a start beyond which a new base joins them: each start adds one or two.
const INCREMENTS_MAX: usize = 8;

/// How far a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its base is not on the disk yet: changes are recorded, and nothing waits for them.
    Starting,
    /// It is what a start would load.
    Running,
    /// It was switched off, and what is left is written.
    Closing,
}

/// State of rewriting: of the new base in progress, and of the last one.
#[derive(Clone, Copy, Debug, Default)]
struct Rewriting {
    /// When the one in progress began, in monotonic milliseconds.
    began_ms: Option<u64>,
    /// How many failed since one succeeded.
    failures: u32,
    /// When the server may begin one by itself, in monotonic milliseconds.
    not_before_ms: u64,
    /// Seconds that the last one took.
    took_s: Option<u64>,
    /// Number of new bases.
    made: u64,
}

/// What `INFO` shares with the log.
#[derive(Default)]
struct Shown {
    rewriting: Cell<Rewriting>,
    /// Bytes of all files after the last new base, or at the start.
    base_size: Cell<u64>,
    /// How often a sync took too long.
    delayed_syncs: Cell<u64>,
}

/// The log of a server that writes an append-only file.
pub struct FileLog {
    /// What records changes, and what waits for them.
    pub log: Log,
    /// How far it is.
    pub phase: Phase,
    /// When it is synced.
    pub syncs: Syncs,
    /// How much is written and synced.
    pub progress: Arc<Progress>,
    /// Why the last batch could not be written.
    pub stuck: Option<DiskError>,
    /// Whether the next increment was ordered and has not begun.
    turns_over: bool,
    shown: Rc<Shown>,
    /// Notices syncs that hold up changes.
    delay: Delay,
}

impl FileLog {
    fn new(log: Log, progress: Arc<Progress>, syncs: Syncs) -> FileLog {
        let (shown, delay) = (Rc::default(), Delay::default());
        FileLog { log, phase: Phase::Starting, syncs, progress, stuck: None, turns_over: false, shown, delay }
    }

    /// Takes note that its files are what a start would load.
    pub(super) fn begin(&mut self) {
        self.phase = Phase::Running;
        self.progress.begun.store(true, Ordering::Relaxed);
        self.shown.base_size.set(self.progress.total_bytes.load(Ordering::Relaxed));
    }

    /// Whether changes are recorded.
    pub fn records(&self) -> bool {
        self.phase != Phase::Closing
    }

    /// Whether output waits for batches.
    #[inline]
    pub fn holds_output(&self) -> bool {
        self.syncs == Syncs::Always && self.phase == Phase::Running
    }

    /// Number of bytes that wait to be stored.
    #[inline]
    pub fn waiting(&self) -> u64 {
        self.progress.queued_bytes.load(Ordering::Relaxed) + self.log.records.pending_bytes() as u64
    }

    /// Bytes of the current file that are durable. Until the next one has begun, its figures are those of the last one.
    pub(super) fn synced_bytes(&self) -> u64 {
        if self.turns_over { 0 } else { self.progress.durable_bytes.load(Ordering::Relaxed) }
    }

    /// Takes note of a batch of so many bytes, which is handed on. Tells the operator if a sync has long held up such batches.
    pub(super) fn note_queued(&mut self, bytes: u64, now: Now) {
        self.progress.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let runs = self.syncs == Syncs::EverySecond && self.progress.syncing.load(Ordering::Relaxed);
        let sync = runs.then(|| self.progress.syncs.read().count);
        if self.delay.note(sync, now.mono_ms()) {
            tracing::warn!("Asynchronous AOF fsync is taking too long (disk is busy?). Changes wait until it ends.");
            self.shown.delayed_syncs.set(self.shown.delayed_syncs.get() + 1);
        }
    }

    /// A base is being made.
    pub(super) fn begin_rewriting(&mut self, now: Now) {
        self.shown.rewriting.set(Rewriting { began_ms: Some(now.mono_ms()), ..self.shown.rewriting.get() });
        self.progress.rewriting.store(true, Ordering::Relaxed);
    }

    /// A base is being made of the files before the next increment, which begins with this salt. Returns the head of it.
    fn begin_turning_over(&mut self, now: Now, salt: u64) -> Head {
        self.begin_rewriting(now);
        self.turns_over = true;
        Head { salt, line: self.log.records.begin_file(salt) }
    }

    fn end_rewriting(&mut self, now: Now, made: bool) {
        let Rewriting { began_ms, failures, made: before, .. } = self.shown.rewriting.get();
        let took_s = began_ms.map(|began_ms| now.mono_ms().saturating_sub(began_ms) / 1000);
        let failures = if made { 0 } else { failures.saturating_add(1) };
        let minutes = pause_minutes(failures);
        if minutes > 0 {
            tracing::warn!(
                "Background AOF rewrite has repeatedly failed and triggered the limit, will retry in {minutes} minutes"
            );
        }
        let not_before_ms = now.mono_ms() + minutes * 60_000;
        let made_now = u64::from(made);
        self.shown.rewriting.set(Rewriting { began_ms: None, failures, not_before_ms, took_s, made: before + made_now });
        self.progress.rewriting.store(false, Ordering::Relaxed);
        if made {
            self.shown.base_size.set(self.progress.total_bytes.load(Ordering::Relaxed));
            tracing::info!("Background AOF rewrite finished successfully");
        }
    }

    /// Reads the figures of INFO.
    pub fn figures(&self) -> Box<dyn Fn() -> Figures> {
        let (progress, shown) = (Arc::clone(&self.progress), Rc::clone(&self.shown));
        let (held, recorded) = (self.log.gate.held(), self.log.records.clone());
        Box::new(move || {
            let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
            // The base counts as one byte: until it is on the disk, nothing is.
            let durable = if progress.begun.load(Ordering::Relaxed) { get(&progress.durable_position) + 1 } else { 0 };
            let rewriting = shown.rewriting.get();
            Figures {
                size: get(&progress.total_bytes),
                base_size: shown.base_size.get(),
                position: Position { recorded: recorded.position() + 1, durable },
                queued: get(&progress.queued_bytes) + recorded.pending_bytes() as u64,
                delayed_syncs: shown.delayed_syncs.get(),
                syncing: progress.syncing.load(Ordering::Relaxed),
                batches: [get(&progress.written), get(&progress.durable)],
                syncs: progress.syncs.read(),
                held: held.get(),
                rewriting_since_ms: rewriting.began_ms,
                rewrite_failures: rewriting.failures,
                rewrite_s: rewriting.took_s,
                rewrites: rewriting.made,
            }
        })
    }
}

/// What the writer of a file begins with.
pub struct Beginning {
    /// The head of the next increment.
    pub head: Head,
    /// Where the writer tells what it has done.
    pub progress: Arc<Progress>,
    /// When it syncs.
    pub syncs: Syncs,
}

/// A new base that is to be made.
#[derive(Debug)]
pub struct BaseOrder {
    /// The number of the file that it is for.
    pub number: u64,
    /// The files. It is made of all of them but the last increment.
    pub files: Manifest,
    /// The configuration of the server.
    pub config: Config,
    /// Maximum number of requests in the files that are refused: as many were when the server loaded them. If there are more, the base
    /// would lack what the server has.
    pub refused_max: u64,
}

/// What the adapter is to do about a report of the writer.
#[derive(Debug)]
pub enum Reported {
    /// Make this base, and say what became of it ([`Driver::base_made`]).
    MakeBase(Box<BaseOrder>),
    /// Let go of the file, which is closed, and say so ([`Driver::file_closed`]).
    Closed,
}

impl Driver {
    /// The log of a file that begins now, by the boot clock too, and what its writer begins with.
    pub fn new_file(&mut self, now: Now, boot: BootClock) -> (Box<FileLog>, Beginning) {
        let seed = self.engine.random();
        let records = AppendLog::new(now, boot, seed);
        let salt = self.engine.random_salt();
        let head = Head { salt, line: records.begin_file(salt) };
        let (progress, syncs) = (Arc::<Progress>::default(), Syncs::of(self.engine.config().appendfsync));
        let file = FileLog::new(Log::new(records, seed), Arc::clone(&progress), syncs);
        (Box::new(file), Beginning { head, progress, syncs })
    }

    /// Lets changes go to a file whose writer works behind the files that were loaded. `increments` is their number, the new one
    /// included.
    pub fn resume_file(&mut self, at: Present, mut file: Box<FileLog>, increments: usize) {
        file.begin();
        self.engine.persistence_mut().figures = Some(file.figures());
        self.set_file(file);
        self.log_details_as_configured();
        if increments > INCREMENTS_MAX {
            self.rewrite(at);
        }
    }

    /// By how many percent the files have grown, if that is so much that a new base is to be made now.
    #[cold]
    pub(super) fn rewrite_due(&self, now: Now) -> Option<u64> {
        let file = self.file()?;
        let (config, rewriting) = (self.engine.config(), file.shown.rewriting.get());
        let size = file.progress.total_bytes.load(Ordering::Relaxed);
        let base_size = file.shown.base_size.get();
        let grown = size.saturating_sub(base_size).saturating_mul(100) / base_size.max(1);
        let due = config.auto_aof_rewrite_percentage > 0
            && size >= config.auto_aof_rewrite_min_size
            && grown >= u64::from(config.auto_aof_rewrite_percentage)
            && rewriting.began_ms.is_none()
            && now.reached(rewriting.not_before_ms)
            && self.engine.persistence().snapshot.since_ms.is_none();
        due.then_some(grown)
    }

    /// Begins a new base, if none is being made, with the next changes that are handed on ([`Driver::submit`]).
    pub fn rewrite(&mut self, at: Present) {
        if self.log_again_ms.is_some() {
            // It could not be switched on. What was asked for is to try that again now.
            self.log_as_configured(at);
        } else {
            self.rewrite_asked = self.file_runs();
        }
    }

    fn file_runs(&self) -> bool {
        self.file().is_some_and(|file| file.phase == Phase::Running)
    }

    /// Begins a new base. Its first step is the next increment: when that has begun, a base is made of the files before it. All
    /// changes must have been handed on.
    pub(super) fn begin_rewriting(&mut self, now: Now) {
        let salt = self.engine.random_salt();
        let head = self.file_mut().map(|file| file.begin_turning_over(now, salt));
        self.demands.file.extend(head.map(Order::NextIncrement));
        tracing::info!("Background append only file rewriting started");
    }

    /// The next increment has begun. Returns the number of the file, if a new base is to be made of the files before it.
    fn increment_begun(&mut self) -> Option<u64> {
        let number = self.files_begun;
        let file = self.file_mut()?;
        file.turns_over = false;
        (file.phase == Phase::Running).then_some(number)
    }

    /// A base was made for the file of this number: it and its length in bytes, or why it could not be made. It is forgotten if
    /// the file was switched off meanwhile.
    pub fn base_made(&mut self, at: Present, number: u64, made: Result<(File, u64), String>) {
        if self.file().map(|file| (self.files_begun, file.phase)) != Some((number, Phase::Running)) {
            return;
        }
        match made {
            Ok((base, len)) => self.demands.file.push(Order::Base(base, len)),
            Err(reason) => {
                tracing::warn!(reason, "cannot make a new base of the append-only file");
                self.end_rewriting(at, false);
            }
        }
    }

    /// A new base is in force, or could not be made.
    pub(super) fn end_rewriting(&mut self, at: Present, made: bool) {
        self.file_mut().into_iter().for_each(|file| file.end_rewriting(at.now, made));
        if made {
            // The base has none of them.
            self.refused_at_load = 0;
        }
        self.go_on_saving(at);
    }

    /// Applies new values of `aof-timestamp-enabled` and `latency-monitor-threshold`.
    pub fn log_details_as_configured(&mut self) {
        let config = self.engine.config();
        let (timestamps, latency_ms) = (config.aof_timestamp_enabled, config.latency_monitor_threshold);
        let Some(file) = self.file() else { return };
        file.log.records.set_timestamps(timestamps);
        file.progress.latency_ms.store(latency_ms, Ordering::Relaxed);
    }

    /// Applies a new value of `appendfsync`.
    pub fn sync_as_configured(&mut self) {
        let syncs = Syncs::of(self.engine.config().appendfsync);
        let Some(file) = self.file_mut() else { return };
        // What waits goes on waiting: batches are reported as settled under each value.
        file.syncs = syncs;
        self.demands.file.push(Order::Sync(syncs));
    }

    /// Takes a report of the writer. [`Driver::submit`] belongs behind it. Returns what only the adapter can do about it.
    pub fn take_report(&mut self, at: Present, report: Report) -> Option<Reported> {
        match report {
            Report::Settled(number) => {
                let took_us = self.file().map_or(0, |file| file.progress.syncs.last_us());
                self.settle(at, number, took_us);
            }
            Report::Stuck(error) => self.set_stuck(Some(error)),
            Report::Unstuck => self.set_stuck(None),
            Report::Slow(event, took) => {
                self.engine.note_pause(event, at.now, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            }
            Report::Increment(mut files) => {
                if self.has_flaw(Flaw::BaseLacksIncrement) {
                    files.increments.pop();
                }
                let (config, refused_max) = (self.engine.config().clone(), self.refused_at_load);
                let order = |number| Box::new(BaseOrder { number, files, config, refused_max });
                return self.increment_begun().map(order).map(Reported::MakeBase);
            }
            Report::Based => self.end_rewriting(at, true),
            Report::Closed => return Some(Reported::Closed),
            Report::Failed(error) => {
                let text =
                    format!("cannot write the append-only file: {error}. What is on the disk is unknown, so the server ends");
                tracing::error!("{text}");
                self.demands.failed = Some(text);
                self.demands.ends = true;
            }
        }
        None
    }

    /// The file cannot be written, for this reason, or can be written again.
    fn set_stuck(&mut self, error: Option<DiskError>) {
        match &error {
            Some(error) => {
                tracing::warn!(%error, "cannot write to the append-only file; writes are refused until it works again")
            }
            None => tracing::info!("the append-only file can be written to again"),
        }
        self.file_mut().into_iter().for_each(|file| file.stuck.clone_from(&error));
        self.refuse_writes();
    }
}

/// A load at a start, in slices: clients are served meanwhile, and get `LOADING` errors. The adapter reads the files.
impl Driver {
    /// Begins to load files of so many bytes, at this moment. Returns what the adapter applies them to, until it calls
    /// [`Driver::end_loading`].
    pub fn begin_loading(&mut self, moment: Moment, bytes: u64) -> Replay<Box<Engine>> {
        Replay::new(self.engine.begin_loading(moment.now, bytes), moment)
    }

    /// Takes note of how many bytes of the files are loaded, and of how much memory their writer used.
    pub fn note_loaded(&mut self, bytes: u64, used_memory: u64) {
        let figures = self.engine.persistence_mut().loading_mut();
        figures.into_iter().for_each(|figures| (figures.loaded_bytes, figures.used_memory) = (bytes, used_memory));
    }

    /// Takes over what was loaded; `tally` says how many keys of RDBs. Returns the number of keys. [`Driver::log_as_configured`]
    /// belongs behind it, when changes go where they are to go: it may have been set meanwhile.
    ///
    /// # Errors
    /// In words: the files contradict themselves.
    pub fn end_loading(
        &mut self,
        now: Now,
        replay: Replay<Box<Engine>>,
        purpose: Purpose,
        tally: Tally,
    ) -> Result<usize, String> {
        self.refused_at_load = replay.refused();
        let (engine, keys) = replay.finish(now, purpose)?;
        self.engine.end_loading(*engine);
        self.engine.persistence_mut().last_load = [tally.expired, tally.loaded];
        // What was loaded is no change since the last snapshot.
        let changes = self.engine.keyspace().changes.count;
        self.engine.persistence_mut().snapshot.saved_changes = changes;
        Ok(keys)
    }
}

/// Minutes that the server waits, after so many failures in a row to make a new base, before it makes one by itself.
fn pause_minutes(failures: u32) -> u64 {
    let more = failures.checked_sub(FAILURES_MAX);
    more.map_or(0, |more| 1u64.checked_shl(more).map_or(PAUSE_MAX, |minutes| minutes.min(PAUSE_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_an_hour() {
        let pauses = [0, 1, 2, 3, 4, 5, 8, 9, 63, 66, 67, u32::MAX].map(pause_minutes);
        assert_eq!(pauses, [0, 0, 0, 1, 2, 4, 32, 60, 60, 60, 60, 60]);
    }
}
