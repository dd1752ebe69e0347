//! Switches the append-only file on and off while the server runs: `CONFIG SET appendonly`.
//!
//! ```text
//!   yes ─▶ the folder is opened ─▶ a copy ─ whole: changes are recorded from here on ─▶ base written ─▶ first increment ─▶ the writer
//!   no  ─▶ what was recorded is written, synced and closed; nothing is recorded any more
//! ```
//!
//! Until the base is on the disk nothing waits for it, whatever `appendfsync` says: a crash loses what it would have lost before.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::driver::copy::{Copying, Purpose};
use crate::driver::file::{Beginning, FileLog, Phase};
use crate::driver::flaw::Flaw;
use crate::driver::{Driver, Present};
use crate::engine::persistence::{Figures, Position};
use crate::persist::append::log_writer::Order;
use crate::persist::natives::clock::BootClock;

/// Milliseconds after which it is tried again to switch the file on.
const AGAIN_MS: u64 = 5000;
/// The position of a log that has not begun: nothing is durable, and something is to be.
const NOWHERE: Position = Position { recorded: 1, durable: 0 };

impl Driver {
    /// Applies the value of `appendonly`.
    pub fn log_as_configured(&mut self, at: Present) {
        // While files are loaded, nothing is switched; the end of the load comes here. The nodes have a log of their own.
        if self.engine.is_loading() || (self.file().is_none() && !self.is_memory_only()) {
            return;
        }
        self.log_again_ms = None;
        match (self.file().map(|file| file.phase), self.engine.config().appendonly) {
            (None, true) if !self.begins_log => {
                self.begins_log = true;
                self.log_is_coming(at);
                self.demands.opens_file = true;
            }
            (None, false) => {
                self.begins_log = false;
                self.take_copy(Copying::is_for_file);
                self.engine.persistence_mut().figures = None;
                self.engine.end_log_waits(at.now);
                self.go_on_saving(at);
            }
            (Some(Phase::Closing), false) => self.engine.persistence_mut().figures = None,
            // It is switched on again when it is closed.
            (Some(Phase::Closing), true) => self.log_is_coming(at),
            // What is pending is handed on first.
            (Some(_), on) => self.switch_off_asked = !on,
            _ => {}
        }
    }

    /// Shows that a log is going to be switched on.
    fn log_is_coming(&mut self, at: Present) {
        let since_ms = Some(at.now.mono_ms());
        self.engine.persistence_mut().figures =
            Some(Box::new(move || Figures { rewriting_since_ms: since_ms, position: NOWHERE, ..Figures::default() }));
    }

    /// Whether a log is being switched on.
    pub fn switches_log_on(&self) -> bool {
        let of_file = |file: &FileLog| match file.phase {
            Phase::Starting => true,
            Phase::Running => false,
            Phase::Closing => self.engine.config().appendonly,
        };
        self.file().map_or(self.begins_log, of_file)
    }

    /// The folder of the file was opened, as ordered. Returns what the file begins with, once there is a copy for its base;
    /// `None` if no file is wanted any more.
    pub fn file_opened(&mut self, at: Present, boot: BootClock) -> Option<Beginning> {
        if !self.begins_log {
            return None;
        }
        if self.copies() {
            // A snapshot. It is made afterwards.
            self.abandon_snapshot();
            self.engine.persistence_mut().snapshot.scheduled = true;
        }
        let (mut file, beginning) = self.new_file(at.now, boot);
        file.begin_rewriting(at.now);
        self.engine.persistence_mut().figures = Some(file.figures());
        self.copying = Some(Copying::new(Purpose::File(file), self.limits));
        tracing::info!("AOF was enabled: a new append-only file is being made");
        Some(beginning)
    }

    /// The base of a file that is switched on is on the disk, and its writer works.
    pub fn file_begun(&mut self, at: Present) {
        self.begins_log = false;
        // It may have been switched off meanwhile.
        self.file_mut().into_iter().filter(|file| file.phase == Phase::Starting).for_each(FileLog::begin);
        if self.has_flaw(Flaw::SwitchLosesChanges) {
            self.record_changes();
        }
        // They may have been set meanwhile.
        self.sync_as_configured();
        self.log_details_as_configured();
        // What was changed before the copy is in the base.
        self.engine.end_log_waits(at.now);
        tracing::info!("the append-only file is on");
        self.end_rewriting(at, true);
    }

    /// A file that is being switched on cannot be begun, for this reason.
    pub fn file_not_begun(&mut self, at: Present, reason: &str) {
        self.end_file();
        self.begins_log = false;
        // The receiver may have ended before the copy was whole.
        self.take_copy(Copying::is_for_file);
        self.engine.persistence_mut().figures = None;
        self.engine.end_log_waits(at.now);
        if !self.engine.config().appendonly {
            return self.log_as_configured(at);
        }
        tracing::error!(reason, "the append-only file cannot be switched on; it is tried again");
        self.engine.persistence_mut().figures =
            Some(Box::new(|| Figures { rewrite_failures: 1, position: NOWHERE, ..Figures::default() }));
        self.log_again_ms = Some(at.now.deadline_in(AGAIN_MS));
        self.go_on_saving(at);
    }

    /// Records no more changes for the file, and closes it. All changes must have been handed on.
    pub(super) fn switch_off(&mut self, at: Present) {
        self.file_mut().into_iter().for_each(|file| file.phase = Phase::Closing);
        self.demands.file.push(Order::Close);
        self.record_changes();
        self.engine.persistence_mut().figures = None;
        self.engine.persistence_mut().rewrite_scheduled = false;
        self.engine.end_log_waits(at.now);
        tracing::info!("AOF was disabled");
    }

    /// The file that was switched off is closed.
    pub fn file_closed(&mut self, at: Present) {
        if self.file().is_some_and(|file| file.phase == Phase::Closing) {
            // Nothing waits for a file that is not written any more.
            self.end_file();
            self.log_as_configured(at);
        }
    }

    /// Gives up what is being made, because the server ends.
    pub fn abandon_files(&mut self) {
        self.abandon_snapshot();
        self.take_copy(|_| true);
    }
}

/// Who has a file written.
pub trait Writer {
    /// Keeps the folder of the file locked.
    type Lock;

    /// Keeps the folder locked, too, for who else works in it; `None` before the writer has begun.
    fn lock(&self) -> Option<Self::Lock>;

    /// Takes an order for the writer of the file, which it has now or gets later.
    fn order(&mut self, order: Order);

    /// Waits until the writer has ended. It has been told to, or has failed.
    fn join(&mut self);
}

/// A locked folder: locked until this is dropped. The fields are dropped in this order. `G` keeps the lock.
pub struct FolderLock<G, F: Fn()> {
    _guard: G,
    /// Exists for as long as the folder is locked.
    _held: Arc<()>,
    _freed: Freed<F>,
}

/// Calls the function when it is dropped.
struct Freed<F: Fn()>(F);

impl<F: Fn()> Drop for Freed<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// What a copy is made into.
pub enum Target<F> {
    /// The snapshot of this number.
    Snapshot(u64),
    /// The first base of a file in this folder, which begins with this.
    File(F, Beginning),
}

/// Who has files written: the one that changes go to, and the one that is being switched on, until its copy is whole. `F` is a folder
/// that was opened.
pub struct Writers<W, F> {
    current: Option<W>,
    next: Option<W>,
    /// The file that is being switched on, until its copy begins.
    pub(super) coming: Option<(F, Beginning)>,
    /// Exists for as long as a thread of this server keeps the folder of a file locked.
    held: Weak<()>,
    /// Whether a file is switched on when that thread has ended.
    awaits_folder: bool,
    /// Set when the base in progress is given up: its thread leaves the folder as it is.
    base_abandoned: Arc<AtomicBool>,
}

impl<W, F> Default for Writers<W, F> {
    fn default() -> Writers<W, F> {
        Writers {
            current: None,
            next: None,
            coming: None,
            held: Weak::new(),
            awaits_folder: false,
            base_abandoned: Arc::default(),
        }
    }
}

impl<W: Writer, F> Writers<W, F> {
    /// The one of the file that changes go to.
    pub fn current(&self) -> Option<&W> {
        self.current.as_ref()
    }

    /// As [`Writers::current`].
    pub fn current_mut(&mut self) -> Option<&mut W> {
        self.current.as_mut()
    }

    /// Takes it, when its file is closed.
    pub fn take(&mut self) -> Option<W> {
        self.current.take()
    }

    /// It goes on.
    pub(super) fn put_back(&mut self, current: W) {
        self.current = Some(current);
    }

    /// Orders something of it, if there is one.
    pub fn order(&mut self, order: Order) {
        if matches!(order, Order::Close) {
            self.base_abandoned.store(true, Ordering::Relaxed);
        }
        if let Some(current) = &mut self.current {
            current.order(order);
        }
    }

    /// A file is being switched on, whose copy begins.
    pub fn begin(&mut self, next: W) {
        self.next = Some(next);
    }

    /// The copy is whole: changes go to that file from now on.
    pub fn install(&mut self) {
        if let Some(next) = self.next.take() {
            self.current = Some(next);
            self.base_abandoned = Arc::default();
        }
    }

    /// The copy was given up, or is not begun.
    pub fn forget_next(&mut self) {
        (self.next, self.coming) = (None, None);
    }

    /// Whether the base that is begun now was given up.
    pub fn base_abandoned(&self) -> impl Fn() -> bool + Send + 'static {
        let abandoned = Arc::clone(&self.base_abandoned);
        move || abandoned.load(Ordering::Relaxed)
    }

    /// The folder of a file is locked. `freed` is called when it is not any more, on the thread that was the last to need it:
    /// [`folder_freed`](crate::driver::round::storing::Storing::folder_freed) belongs behind that.
    pub fn folder_locked<G, C: Fn()>(&mut self, guard: G, freed: C) -> FolderLock<G, C> {
        let held = Arc::default();
        self.held = Arc::downgrade(&held);
        FolderLock { _guard: guard, _held: held, _freed: Freed(freed) }
    }

    /// Whether a file is switched on when a thread of the last one has ended, which still needs the folder.
    pub fn await_folder(&mut self) -> bool {
        self.awaits_folder = self.held.strong_count() > 0;
        self.awaits_folder
    }

    /// What the last call of [`Writers::await_folder`] returned.
    pub fn awaits_folder(&self) -> bool {
        self.awaits_folder
    }

    /// Takes what a copy for the file that was opened is made into.
    ///
    /// # Errors
    /// In words: there is none.
    pub fn take_coming(&mut self) -> Result<Target<F>, String> {
        let (folder, beginning) = self.coming.take().ok_or("it was switched off")?;
        Ok(Target::File(folder, beginning))
    }
}
