//! RDB snapshots: `SAVE`, `BGSAVE`, the save points of `save`, and the one before the server ends.
//!
//! ```text
//!   SAVE, BGSAVE, save points (driver) ─▶ a copy ─▶ temp-PID-N.rdb, synced ─▶ renamed to dbfilename, folder synced
//!   SHUTDOWN SAVE             ─▶ the same file from the keyspace itself, as nobody else is served any more
//! ```
//!
//! No command waits for a snapshot but `SAVE`. A snapshot has the keys of the moment at which the copy was whole, not of that at
//! which it began.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::driver::copy::CopyProgress;
use crate::driver::copy::received::Copied;
use crate::driver::round::adapter::Adapter;
use crate::driver::round::storing::Storing;
use crate::engine::Engine;
use crate::files::{Temporary, remove_remnants, sync_folder_of};
use crate::persist::natives::clock::Moment;
use crate::persist::rdb_file::write::{Options, Writer};
use crate::server::durable::copy::{Then, caught};
use crate::server::durable::folder::words;
use crate::server::durable::load::snapshot_of;
use crate::server::shell::Shell;

/// Why a file was not finished that was given up.
pub const UNWANTED: &str = "it is not wanted any more";
/// Bytes that are written at once.
const CHUNK: usize = 1 << 20;
/// Bytes after which a file is synced while it is written, as Redis has it (`rdb-save-incremental-fsync`): a sync of the log does
/// not wait for all of it.
pub const SYNC_EVERY: usize = 4 << 20;
impl Shell {
    /// What is made of a copy for the snapshot of this number.
    ///
    /// # Errors
    /// In words: there is no file for it.
    pub(super) fn snapshot_of_copy(&mut self, number: u64) -> Result<Then, String> {
        let (temporary, path) = (self.temporary(number), self.snapshot_path()?);
        let Some(control) = self.control.clone() else { return Err("the server has no event loop".to_owned()) };
        let checksum = self.driver.engine.config().rdbchecksum;
        Ok(Box::new(move |copied: Copied, progress: &CopyProgress| {
            let made = caught(|| {
                let (engine, moment) = copied?;
                let goes_on = || !progress.is_abandoned();
                write(&engine, moment, (&temporary, &path), Kind { checksum, is_base: false }, goes_on)
            });
            control.send(Box::new(move |shell: &mut Shell| shell.snapshot_made(number, made)));
        }))
    }

    fn snapshot_path(&self) -> Result<PathBuf, String> {
        snapshot_of(self.driver.engine.config()).ok_or_else(|| "dbfilename is empty".to_owned())
    }

    fn temporary(&self, number: u64) -> PathBuf {
        let name = format!("temp-{}-{number}.rdb", std::process::id());
        Path::new(&self.driver.engine.config().dir).join(name)
    }

    /// Writes a snapshot before this returns.
    ///
    /// # Errors
    /// In words.
    pub(in crate::server) fn write_snapshot_file(&mut self) -> Result<(), String> {
        // No other snapshot has this number.
        let temporary = self.temporary(0);
        let moment = self.moment();
        let kind = Kind { checksum: self.driver.engine.config().rdbchecksum, is_base: false };
        write(&self.driver.engine, moment, (&temporary, &self.snapshot_path()?), kind, || true).map(drop)
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

/// Writes an engine's keys into a temporary file, makes it durable, and renames it. Returns its length in bytes. The folder is
/// synced.
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
        fail_if!(!goes_on(), UNWANTED.to_owned());
        into.file().write_all(chunk).map_err(describe)?;
        unsynced += chunk.len();
        if unsynced >= SYNC_EVERY {
            into.file().sync_data().map_err(describe)?;
            unsynced = 0;
        }
        Ok(())
    })?;
    into.file().sync_data().map_err(describe)?;
    fail_if!(!goes_on(), UNWANTED.to_owned());
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
    let mut writer = Writer::new(engine.keyspace(), moment.now, options);
    let (mut out, mut len) = (Vec::new(), 0);
    loop {
        let more = writer.next_chunk(engine.keyspace(), &mut out, CHUNK).map_err(|_| "the keys changed meanwhile".to_owned())?;
        put(&out)?;
        len += out.len() as u64;
        out.clear();
        if !more {
            return Ok(len);
        }
    }
}
