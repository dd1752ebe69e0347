//! Switches the append-only file on and off while the server runs: `CONFIG SET appendonly`.
//!
//! ```text
//!   yes ─▶ the folder is opened ─▶ a copy ─ whole: changes are recorded from here on ─▶ base written ─▶ first increment ─▶ the writer
//!   no  ─▶ what was recorded is written, synced and closed; nothing is recorded any more
//! ```
//!
//! Until the base is on the disk nothing waits for it, whatever `appendfsync` says: a crash loses what it would have lost before.

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
