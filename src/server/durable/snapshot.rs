//! RDB snapshots: `SAVE`, `BGSAVE`, the save points of `save`, and the one before the server ends.
//!
//! ```text
//!   SAVE, BGSAVE, save points (driver) ─▶ a copy ─▶ temp-PID-N.rdb, synced ─▶ renamed to dbfilename, folder synced
//!   SHUTDOWN SAVE             ─▶ the same file from the keyspace itself, as nobody else is served any more
//! ```
//!
//! No command waits for a snapshot but `SAVE`. A snapshot has the keys of the moment at which the copy was whole, not of that at
//! which it began.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::engine::Engine;
use crate::engine::config::Config;
use crate::persist::disk::{DiskError, append_all};
use crate::persist::natives::clock::Moment;
use crate::persist::rdb_file::write::{Options, Writer};
use crate::server::durable::folder::LogFolder;

/// Why a file was not finished that was given up.
const UNWANTED: &str = "it is not wanted any more";
/// Bytes that are written at once.
const CHUNK: usize = 1 << 20;
/// Bytes after which a file is synced while it is written, as Redis has it (`rdb-save-incremental-fsync`): a sync of the log does
/// not wait for all of it.
const SYNC_EVERY: usize = 4 << 20;

/// A snapshot that is to be written.
pub struct NewSnapshot<F> {
    folder: F,
    temporary: Vec<u8>,
    name: Vec<u8>,
    checksum: bool,
}

impl<F: LogFolder> NewSnapshot<F> {
    /// The snapshot of a configuration, in its folder. No other one has this number, of this process.
    ///
    /// # Errors
    /// In words: there is no name for it.
    pub fn new(folder: F, config: &Config, (process, number): (u32, u64)) -> Result<NewSnapshot<F>, String> {
        fail_if!(config.dbfilename.is_empty(), "dbfilename is empty".to_owned());
        let temporary = format!("temp-{process}-{number}.rdb").into_bytes();
        Ok(NewSnapshot { folder, temporary, name: config.dbfilename.clone().into_bytes(), checksum: config.rdbchecksum })
    }

    /// Writes it. Returns its length in bytes.
    ///
    /// # Errors
    /// Those of [`put`].
    pub fn write(mut self, engine: &Engine, moment: Moment, goes_on: impl Fn() -> bool) -> Result<u64, String> {
        let created = self.folder.create_temporary(&self.temporary, &self.name);
        let describe =
            |error| format!("Can't write {}: {error}", self.folder.path().join(OsStr::from_bytes(&self.temporary)).display());
        let (temporary, file) = created.map_err(describe)?;
        let kind = Kind { checksum: self.checksum, is_base: false };
        put(&mut self.folder, (&temporary, file), &self.name, (engine, moment), kind, goes_on)
    }
}

/// Removes the temporary files of snapshots that a crash has left in a folder. Those of servers that run are locked.
pub fn remove_temporary<F: LogFolder>(folder: &mut F) {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    folder.remove_remnants(|name| {
        let numbers = name.strip_prefix("temp-").and_then(|rest| rest.strip_suffix(".rdb")?.split_once('-'));
        numbers.is_some_and(|(process, number)| is_number(process) && is_number(number))
    });
}

/// What kind of an RDB file is written.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Whether it has a checksum.
    pub checksum: bool,
    /// Whether it is the base of an append-only file.
    pub is_base: bool,
}

/// Writes an engine's keys into a temporary file, makes it durable, and gives it its name. Returns its length in bytes.
///
/// # Errors
/// In words. The temporary file is removed, and the other one is what it was.
pub fn put<F: LogFolder>(
    folder: &mut F,
    (temporary, mut file): (&[u8], F::File),
    name: &[u8],
    (engine, moment): (&Engine, Moment),
    kind: Kind,
    goes_on: impl Fn() -> bool,
) -> Result<u64, String> {
    let path = |name: &[u8], folder: &F| folder.path().join(OsStr::from_bytes(name)).display().to_string();
    let (from, to) = (path(temporary, folder), path(name, folder));
    let describe = |error: DiskError| format!("Can't write {from}: {error}");
    let mut put = || {
        let mut unsynced = 0;
        let len = write_to(engine, moment, kind, |chunk| {
            fail_if!(!goes_on(), UNWANTED.to_owned());
            append_all(folder, &mut file, chunk).map_err(describe)?;
            unsynced += chunk.len();
            if unsynced >= SYNC_EVERY {
                folder.sync(&mut file).map_err(describe)?;
                unsynced = 0;
            }
            Ok(())
        })?;
        folder.sync(&mut file).map_err(describe)?;
        fail_if!(!goes_on(), UNWANTED.to_owned());
        let renamed = folder.rename(temporary, name).and_then(|()| folder.sync_folder());
        renamed.map_err(|error| format!("Can't rename {from} to {to}: {error}"))?;
        Ok(len)
    };
    let put = put();
    if put.is_err() {
        // Nothing reads it.
        let _ = folder.remove(temporary);
    }
    put
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
