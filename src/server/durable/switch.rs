//! Switches the append-only file on and off while the server runs: `CONFIG SET appendonly`.
//!
//! ```text
//!   yes ─▶ a live copy ─ whole: changes are recorded from here on ─▶ base written ─▶ first increment ─▶ log thread
//!   no  ─▶ what was recorded is written, synced and closed; nothing is recorded any more
//! ```
//!
//! Until the base is on the disk nothing waits for it, whatever `appendfsync` says: a crash loses what it would have lost before.
//! The log says when the file is on. Files of an earlier time are replaced, as in Redis.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;

use crate::driver::file::{FileLog, Phase};
use crate::driver::log::Log;
use crate::engine::Engine;
use crate::engine::persistence::{Figures, Position};
use crate::files::remove_remnants;
use crate::persist::append::files::{Files, Head};
use crate::persist::append::log::AppendLog;
use crate::persist::append::log_writer::{Progress, Syncs};
use crate::persist::append::manifest::Manifest;
use crate::persist::natives::clock::Moment;
use crate::persist::resume::{Last, manifest_name};
use crate::server::durable::copy::{Purpose, Shared};
use crate::server::durable::folder::{Folder, words};
use crate::server::durable::load::folder_of;
use crate::server::durable::lock::{FolderLock, lock};
use crate::server::durable::log::reporter;
use crate::server::durable::snapshot::{Kind, write};
use crate::server::durable::{Begun, LogFile, boot, rewrite};
use crate::server::net::control::Control;
use crate::server::shell::Shell;

/// Milliseconds after which it is tried again to switch the file on.
const AGAIN_MS: u64 = 5000;
/// The first base until it is whole.
const TEMPORARY: &str = "temp-appendonly.rdb";
/// The position of a log that has not begun: nothing is durable, and something is to be.
const NOWHERE: Position = Position { recorded: 1, durable: 0 };

/// Checks that there can be a folder for the append-only file, before `CONFIG SET appendonly yes` succeeds.
///
/// # Errors
/// Redis's text; the log has the reason.
pub fn check(path: &Path) -> Result<(), String> {
    Folder::open(path).map(drop).map_err(|error| {
        tracing::warn!(%error, path = %path.display(), "cannot open or create the folder of the append-only file");
        "Unable to turn on AOF. Check server logs.".to_owned()
    })
}

impl Shell {
    /// Applies a new value of `appendonly`.
    pub(in crate::server) fn log_as_configured(&mut self) {
        if self.loading.is_some() {
            // The end of the load comes back here.
            return;
        }
        if self.driver.file().is_none() && !self.driver.keeps_nothing() {
            // The nodes have a log of their own.
            return;
        }
        self.log_again_ms = None;
        self.awaits_folder = false;
        match (self.driver.file().map(|log| log.phase), self.driver.engine.config.appendonly) {
            // A thread of the last log may still need its folder. Its end comes back here.
            (None, true) if self.folder_held.strong_count() > 0 && !self.begins_log => {
                self.awaits_folder = true;
                self.log_is_coming();
            }
            (None, true) if !self.begins_log => {
                if let Err(reason) = self.begin_log() {
                    self.log_not_begun(&reason);
                }
            }
            (None, false) => {
                if std::mem::take(&mut self.begins_log) {
                    self.abandon_copy();
                }
                self.driver.engine.persistence.figures = None;
                self.update_files();
                self.go_on_saving();
            }
            (Some(Phase::Closing), false) => self.driver.engine.persistence.figures = None,
            // It is switched on again when it is closed.
            (Some(Phase::Closing), true) => self.log_is_coming(),
            (Some(_), false) => self.end_log(),
            _ => {}
        }
    }

    /// Shows that a log is going to be switched on.
    fn log_is_coming(&mut self) {
        let since_ms = Some(self.clock.now().mono_ms());
        self.driver.engine.persistence.figures =
            Some(Box::new(move || Figures { rewriting_since_ms: since_ms, position: NOWHERE, ..Figures::default() }));
        self.update_files();
    }

    /// Locks the folder of the append-only file. When the last thread that needs it has ended, the log is switched on if it is to be.
    ///
    /// # Errors
    /// In words: another process has locked it.
    pub(super) fn lock_folder(&mut self, path: &Path, control: &Control<Shell>) -> Result<FolderLock, String> {
        let control = control.clone();
        let freed = move || {
            control.send(Box::new(|shell: &mut Shell| {
                if shell.awaits_folder {
                    shell.log_as_configured();
                    shell.after_order();
                }
            }));
        };
        let lock = FolderLock::new(lock(path)?, freed);
        self.folder_held = lock.held();
        remove_temporary(path, self.driver.engine.config.appendfilename.as_bytes());
        Ok(lock)
    }

    /// Whether a log is being switched on.
    pub(in crate::server) fn switches_log_on(&self) -> bool {
        let of_log = |phase| match phase {
            Phase::Starting => true,
            Phase::Running => false,
            Phase::Closing => self.driver.engine.config.appendonly,
        };
        self.begins_log || self.awaits_folder || self.driver.file().is_some_and(|log| of_log(log.phase))
    }

    fn begin_log(&mut self) -> Result<(), String> {
        if self.copying.is_some() {
            // A snapshot. It is made afterwards.
            self.abandon_snapshot();
            self.driver.engine.persistence.snapshot.scheduled = true;
        }
        let config = &self.driver.engine.config;
        let (path, name) = (folder_of(config), config.appendfilename.clone().into_bytes());
        let syncs = Syncs::of(config.appendfsync);
        let checksum = config.rdbchecksum;
        let Some(control) = self.control.clone() else { return Err("the server has no event loop".to_owned()) };
        let folder = Folder::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let lock = self.lock_folder(&path, &control)?;
        let manifest = outdated(&path, &name)?;
        let now = self.clock.now();
        let seed = self.driver.engine.random();
        let records = AppendLog::new(now, boot::clock(), seed);
        let salt = self.driver.engine.random_salt();
        let head = Head { salt, line: records.begin_file(salt) };
        let (orders, received) = channel();
        let progress = Arc::new(Progress::default());
        let log = FileLog::new(Log::new(records, seed), Arc::clone(&progress), syncs, Some(now.mono_ms()), 0);
        let file = LogFile::new(orders, path.clone());
        self.driver.engine.persistence.figures = Some(log.figures());
        let then = Box::new(move |copied: Result<(Engine, Moment), String>, _: &Shared| {
            let begun = copied.and_then(|copied| begin_files(copied, folder, &path, &name, manifest, checksum, &head));
            if let Ok(files) = &begun {
                progress.note(&files);
            }
            let begun = begun.map(|files| Begun { files, orders: received, lock });
            control.send(Box::new(move |shell: &mut Shell| shell.log_begun(begun)));
        });
        self.begin_copy(Purpose::Log(Box::new(log), Box::new(file)), then)?;
        self.begins_log = true;
        tracing::info!("AOF was enabled: a new append-only file is being made");
        Ok(())
    }

    /// Takes the files of a log whose base is on the disk.
    fn log_begun(&mut self, begun: Result<Begun, String>) {
        let begun = begun.and_then(|begun| {
            let (Some(log), Some(file)) = (self.driver.file(), &mut self.log_file) else {
                return Err("it was switched off".to_owned());
            };
            let Some(control) = self.control.clone() else { return Err("the server has no event loop".to_owned()) };
            file.spawn(begun, log, reporter(control))
        });
        match begun {
            Ok(()) => {
                if let Some(log) = self.driver.file_mut().filter(|log| log.phase == Phase::Starting) {
                    log.begin();
                }
                self.log_details_as_configured();
                // What was changed before the copy is in the base.
                let now = self.clock.now();
                self.driver.engine.end_log_waits(now);
                tracing::info!("the append-only file is on");
                self.drive(|driver, at| driver.end_rewriting(at.now, true));
                self.go_on_saving();
            }
            Err(reason) => {
                let now = self.clock.now();
                self.drop_log();
                self.begins_log = false;
                if self.copying.as_ref().is_some_and(|copying| !copying.is_for_snapshot()) {
                    // The thread has ended before the copy was whole.
                    self.abandon_copy();
                }
                self.driver.engine.persistence.figures = None;
                self.driver.engine.end_log_waits(now);
                if self.driver.engine.config.appendonly {
                    self.log_not_begun(&reason);
                } else {
                    self.log_as_configured();
                }
            }
        }
        self.after_order();
    }

    pub(super) fn log_not_begun(&mut self, reason: &str) {
        self.begins_log = false;
        tracing::error!(reason, "the append-only file cannot be switched on; it is tried again");
        self.driver.engine.persistence.figures =
            Some(Box::new(|| Figures { rewrite_failures: 1, position: NOWHERE, ..Figures::default() }));
        self.log_again_ms = Some(self.clock.now().deadline_in(AGAIN_MS));
        self.update_files();
        self.go_on_saving();
    }

    fn end_log(&mut self) {
        self.hand_on(true);
        let Some(file) = &self.log_file else { return };
        file.abandon_rewrite();
        self.drive(|driver, _| driver.close_file());
        self.driver.engine.persistence.figures = None;
        self.driver.engine.persistence.rewrite_scheduled = false;
        let now = self.clock.now();
        self.driver.engine.end_log_waits(now);
        self.update_files();
        tracing::info!("AOF was disabled");
    }

    /// Takes the end of a log that was switched off.
    pub(super) fn log_closed(&mut self) {
        if self.driver.file().is_none_or(|log| log.phase != Phase::Closing) {
            return;
        }
        // It has reported its end, and lets go of the folder. The folder is free again only without it.
        self.log_file.iter_mut().for_each(|file| file.join());
        self.drop_log();
        self.log_as_configured();
    }

    /// Lets changes go nowhere. Nothing waits for a file that is not written any more.
    fn drop_log(&mut self) {
        self.log_file = None;
        self.drive(|driver, _| driver.end_file());
    }

    /// Begins what was scheduled for the time when nothing else is being made.
    pub(super) fn go_on_saving(&mut self) {
        let persistence = &mut self.driver.engine.persistence;
        if self.copying.is_some() || persistence.rewriting() || persistence.snapshot.since_ms.is_some() {
            return;
        }
        if persistence.snapshot.scheduled {
            self.save(None, false);
        } else if std::mem::take(&mut persistence.rewrite_scheduled) {
            self.rewrite_log();
        }
    }
}

/// Removes the temporary files that a crash has left in a locked folder. Nothing reads them.
fn remove_temporary(path: &Path, name: &[u8]) {
    let manifest = [b"temp-", &*manifest_name(name)].concat();
    let is_ours = |name: &str| [TEMPORARY.as_bytes(), rewrite::TEMPORARY.as_bytes(), &manifest].contains(&name.as_bytes());
    remove_remnants(path, is_ours, |path| tracing::info!("removed {}, which was not finished", path.display()));
}

/// The manifest of a folder, with all of its files in history: what the server has now replaces them.
fn outdated(path: &Path, name: &[u8]) -> Result<Manifest, String> {
    let path = path.join(String::from_utf8_lossy(&manifest_name(name)).as_ref());
    let mut manifest = match std::fs::read(&path) {
        Ok(text) => Manifest::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Manifest::default(),
        Err(error) => return Err(format!("Can't open the AOF manifest {}: {}", path.display(), words(&error))),
    };
    let next = manifest.next_base(name, true);
    manifest.history.extend(manifest.base.replace(next));
    // Their numbers are not given again while the manifest names them.
    manifest.history.append(&mut manifest.increments);
    Ok(manifest)
}

/// Writes the base, and begins the first increment.
fn begin_files(
    (engine, moment): (Engine, Moment),
    folder: Folder,
    path: &Path,
    name: &[u8],
    manifest: Manifest,
    checksum: bool,
    head: &Head,
) -> Result<Files<Folder>, String> {
    let Some(base) = &manifest.base else { return Err("the manifest names no base".to_owned()) };
    let base: PathBuf = path.join(String::from_utf8_lossy(&base.name).as_ref());
    let temporary = path.join(TEMPORARY);
    let len = write(&engine, moment, (&temporary, &base), Kind { checksum, is_base: true }, || true)?;
    drop(engine);
    Files::begin(folder, name, manifest, Last::Missing, len, head).map_err(|error| error.to_string())
}
