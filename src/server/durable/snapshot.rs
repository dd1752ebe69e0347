//! RDB snapshots: `SAVE`, `BGSAVE`, the save points of `save`, and the one before the server ends.
//!
//! ```text
//!   SAVE, BGSAVE, save points ─▶ a live copy (copy/) ─▶ temp-PID-N.rdb, synced ─▶ renamed to dbfilename, folder synced
//!   SHUTDOWN SAVE             ─▶ the same file from the keyspace itself, as nobody else is served any more
//! ```
//!
//! No command waits for a snapshot but `SAVE`. A snapshot has the keys of the moment at which the copy was whole, not of that at
//! which it began.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::engine::Engine;
use crate::files::{Temporary, remove_remnants, sync_folder_of};
use crate::persist::natives::clock::Moment;
use crate::persist::rdb_file::write::{Options, Writer};
use crate::server::durable::boot;
use crate::server::durable::copy::{Purpose, Shared};
use crate::server::durable::folder::words;
use crate::server::durable::load::snapshot_of;
use crate::server::shell::Shell;

/// Why a file was not finished that was given up.
const UNWANTED: &str = "it is not wanted any more";
/// Bytes that are written at once.
const CHUNK: usize = 1 << 20;
/// Bytes after which a file is synced while it is written, as Redis has it (`rdb-save-incremental-fsync`): a sync of the log does not
/// wait for all of it.
const SYNC_EVERY: usize = 4 << 20;
/// Milliseconds between two looks at the save points.
const LOOK_EVERY_MS: u64 = 1000;
/// Milliseconds after a failed snapshot before save points begin another one: Redis's `CONFIG_BGSAVE_RETRY_DELAY`.
const AGAIN_MS: u64 = 5000;

impl Shell {
    /// Begins a snapshot; `SAVE` waits for it. One that is in progress goes on instead, unless `anew`.
    pub(in crate::server) fn save(&mut self, session: Option<SessionId>, anew: bool) {
        if let Some(id) = session {
            self.snapshots.waiting.push((id, self.driver.engine.sessions[id.0 as usize].id));
        }
        if anew {
            self.abandon_snapshot();
        }
        if self.snapshots.running.is_some() {
            return;
        }
        let now = self.clock.now();
        self.driver.engine.persistence.snapshot.scheduled = false;
        if self.copying.is_some() {
            // The append-only file is being switched on.
            self.driver.engine.persistence.snapshot.scheduled = true;
            return;
        }
        self.snapshots.tried_ms = now.mono_ms();
        let temporary = self.temporary();
        let number = self.snapshots.files;
        let path = match self.snapshot_path() {
            Ok(path) => path,
            Err(reason) => return self.saved(number, Err(reason)),
        };
        let Some(control) = self.control.clone() else { return };
        let checksum = self.driver.engine.config.rdbchecksum;
        let then = Box::new(move |copied: Result<(Engine, Moment), String>, shared: &Shared| {
            let made = copied.and_then(|(engine, moment)| {
                let goes_on = || !shared.abandoned.load(Ordering::Relaxed);
                write(&engine, moment, (&temporary, &path), Kind { checksum, is_base: false }, goes_on)
            });
            control.send(Box::new(move |shell: &mut Shell| shell.saved(number, made)));
        });
        match self.begin_copy(Purpose::Snapshot, then) {
            Ok(shared) => {
                tracing::info!("Background saving started");
                self.snapshots.running = Some(shared);
                self.driver.engine.persistence.snapshot.since_ms = Some(now.mono_ms());
                let keyspace = &self.driver.engine.keyspace;
                let keys: usize = (0..keyspace.databases() as u32).map(|db| keyspace.db_len(db)).sum();
                self.driver.engine.persistence.snapshot.keys = [0, keys as u64];
            }
            Err(reason) => self.saved(number, Err(reason)),
        }
    }

    fn snapshot_path(&self) -> Result<PathBuf, String> {
        #[cfg(feature = "quorum")]
        if self.driver.member().is_some_and(|member| !member.leads()) {
            return Err("this node does not lead, and has no keys of its own".to_owned());
        }
        snapshot_of(&self.driver.engine.config).ok_or_else(|| "dbfilename is empty".to_owned())
    }

    fn temporary(&mut self) -> PathBuf {
        self.snapshots.files += 1;
        let name = format!("temp-{}-{}.rdb", std::process::id(), self.snapshots.files);
        Path::new(&self.driver.engine.config.dir).join(name)
    }

    /// Takes the failure of the snapshot in progress.
    pub(super) fn snapshot_failed(&mut self, reason: &str) {
        self.saved(self.snapshots.files, Err(reason.to_owned()));
    }

    /// Takes the end of a snapshot.
    fn saved(&mut self, number: u64, made: Result<u64, String>) {
        if number != self.snapshots.files {
            // It was abandoned for another one.
            return;
        }
        let now = self.clock.now();
        self.snapshots.running = None;
        let changes = self.driver.engine.persistence.snapshot.copied_changes;
        self.driver.engine.persistence.snapshot.end(now, made.is_ok().then_some(changes));
        match &made {
            Ok(_) => tracing::info!("Background saving terminated with success"),
            Err(reason) => tracing::warn!(reason, "Background saving error"),
        }
        if made.is_err() && self.copying.as_ref().is_some_and(|copying| copying.is_for_snapshot()) {
            // The thread has ended before the copy was whole.
            self.abandon_copy();
        }
        self.tell_saved(made.is_ok());
        self.after_order();
    }

    /// Tells those who wait for a snapshot how it ended.
    fn tell_saved(&mut self, saved: bool) {
        let now = self.clock.now();
        self.driver.refuse_writes();
        for (id, client) in std::mem::take(&mut self.snapshots.waiting) {
            if self.driver.engine.sessions.get(id.0 as usize).is_some_and(|session| session.id == client) {
                self.driver.engine.end_wait_for_driver(now, id, (!saved).then_some(&Error::SAVE_FAILED));
            }
        }
        self.go_on_saving();
    }

    /// Looks whether a save point is reached.
    #[cold]
    pub(in crate::server) fn look_at_save_points(&mut self) {
        let now = self.clock.now();
        let config = &self.driver.engine.config;
        if config.save.is_empty() {
            self.snapshots.look_ms = None;
            return;
        }
        self.snapshots.look_ms = Some(now.deadline_in(LOOK_EVERY_MS));
        let snapshot = &self.driver.engine.persistence.snapshot;
        let changes = snapshot.changes_since(self.driver.engine.keyspace.changes.count);
        let since_s = now.unix_ms() / 1000 - snapshot.last_unix_s.unwrap_or(self.driver.engine.started.unix_ms() / 1000);
        let reached = config.save_points().find(|&(seconds, least)| changes >= least.max(1) && since_s > seconds as i64);
        let waits = snapshot.failed && now.mono_ms() < self.snapshots.tried_ms + AGAIN_MS;
        if let Some((seconds, _)) = reached
            && !waits
            && self.snapshots.running.is_none()
            && self.copying.is_none()
            && self.loading.is_none()
            && !self.driver.engine.persistence.rewriting()
        {
            tracing::info!("{changes} changes in {seconds} seconds. Saving...");
            self.save(None, false);
        }
    }

    /// Applies a new value of `save`, or of another directive about snapshots.
    pub(in crate::server) fn save_as_configured(&mut self) {
        self.snapshots.look_ms =
            Some(self.clock.now().deadline_in(LOOK_EVERY_MS)).filter(|_| !self.driver.engine.config.save.is_empty());
        self.driver.refuse_writes();
        self.update_files();
    }

    /// Writes a snapshot before this returns. Returns false if it failed.
    pub(in crate::server) fn save_now(&mut self) -> bool {
        self.abandon_snapshot();
        let temporary = self.temporary();
        let moment = Moment { boot: boot::clock(), now: self.clock.now() };
        let kind = Kind { checksum: self.driver.engine.config.rdbchecksum, is_base: false };
        let made = self.snapshot_path().and_then(|path| write(&self.driver.engine, moment, (&temporary, &path), kind, || true));
        let changes = self.driver.engine.keyspace.changes.count;
        self.driver.engine.persistence.snapshot.end(moment.now, made.is_ok().then_some(changes));
        match made {
            Ok(_) => tracing::info!("DB saved on disk"),
            Err(ref reason) => tracing::error!(reason, "Error trying to save the DB"),
        }
        self.tell_saved(made.is_ok());
        made.is_ok()
    }

    /// Gives up the snapshot in progress. What its thread still says of it is not listened to.
    pub(super) fn abandon_snapshot(&mut self) {
        let Some(running) = self.snapshots.running.take() else { return };
        running.abandoned.store(true, Ordering::Relaxed);
        self.snapshots.files += 1;
        self.driver.engine.persistence.snapshot.since_ms = None;
        self.driver.engine.persistence.snapshot.keys = [0; 2];
        if self.copying.as_ref().is_some_and(|copying| copying.is_for_snapshot()) {
            self.abandon_copy();
        }
    }
}

/// Removes the temporary files of snapshots that a crash has left in a folder. Those of servers that run are locked.
pub fn remove_temporary(folder: &Path) {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_ours = |name: &str| {
        let numbers = name.strip_prefix("temp-").and_then(|rest| rest.strip_suffix(".rdb")?.split_once('-'));
        numbers.is_some_and(|(process, number)| is_number(process) && is_number(number))
    };
    remove_remnants(folder, is_ours, |path| tracing::info!("removed {}, which was not finished", path.display()));
}

/// What kind of an RDB file is written.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Whether it has a checksum.
    pub checksum: bool,
    /// Whether it is the base of an append-only file.
    pub is_base: bool,
}

/// Writes an engine's keys into a temporary file, makes it durable, and renames it. Returns its length in bytes. The folder is synced.
///
/// # Errors
/// In words. The temporary file is removed, and the other one is what it was.
pub fn write(
    engine: &Engine,
    moment: Moment,
    (temporary, path): (&Path, &Path),
    kind: Kind,
    goes_on: impl Fn() -> bool,
) -> Result<u64, String> {
    let describe = |error: std::io::Error| format!("Can't write {}: {}", temporary.display(), words(&error));
    let mut into = Temporary::create(temporary, path).map_err(describe)?;
    let mut unsynced = 0;
    let len = write_to(engine, moment, kind, |chunk| {
        if !goes_on() {
            return Err(UNWANTED.to_owned());
        }
        into.file().write_all(chunk).map_err(describe)?;
        unsynced += chunk.len();
        if unsynced >= SYNC_EVERY {
            into.file().sync_data().map_err(describe)?;
            unsynced = 0;
        }
        Ok(())
    })?;
    into.file().sync_data().map_err(describe)?;
    if !goes_on() {
        return Err(UNWANTED.to_owned());
    }
    let failed = |error: std::io::Error| format!("Can't rename {} to {}: {}", temporary.display(), path.display(), words(&error));
    into.rename(path).and_then(|()| sync_folder_of(path)).map_err(failed)?;
    Ok(len)
}

/// Hands what an engine has to `put`, in chunks. Returns its length in bytes.
///
/// # Errors
/// Those of `put`.
pub fn write_to(
    engine: &Engine,
    moment: Moment,
    Kind { checksum, is_base }: Kind,
    mut put: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<u64, String> {
    let options = Options { checksum, is_base, used_memory: 0, boot: moment.boot, libraries: engine.library_sources() };
    let mut writer = Writer::new(&engine.keyspace, moment.now, options);
    let (mut out, mut len) = (Vec::new(), 0);
    loop {
        let more = writer.next_chunk(&engine.keyspace, &mut out, CHUNK).map_err(|_| "the keys changed meanwhile".to_owned())?;
        put(&out)?;
        len += out.len() as u64;
        out.clear();
        if !more {
            return Ok(len);
        }
    }
}
