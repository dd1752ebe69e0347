//! A new base, made beside the server: a second engine on a thread of its own loads the old base and the closed increments, and
//! writes what it then has. The executor does nothing for it, and there is no fork.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::driver::replay::Purpose;
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::persist::append::clock::Moment;
use crate::persist::append::manifest::{File, Manifest};
use crate::server::durable::load::load_files;
use crate::server::durable::snapshot::{Kind, write, write_to};

/// The new base until it is whole.
pub const TEMPORARY: &str = "temp-rewriteaof.rdb";
/// The making of a new base: what it reads, and where.
pub struct Rewrite {
    /// The configuration of the server.
    pub config: Config,
    /// The folder.
    pub path: PathBuf,
    /// `appendfilename`.
    pub name: String,
    /// The files. The last one is the current increment, which is not read.
    pub manifest: Manifest,
    /// The time at the start, at which the files are read and the base is written: leases are as long in it as in the files.
    pub moment: Moment,
    /// Set when the base is given up: the log was switched off, or the server ends.
    pub abandoned: Arc<AtomicBool>,
}

impl Rewrite {
    /// Makes the base, and makes it durable. Returns the file and its length in bytes. The manifest does not name it yet.
    ///
    /// # Errors
    /// In words. The folder is then as it was.
    pub fn run(mut self) -> Result<(File, u64), String> {
        self.manifest.increments.pop();
        self.config.maxmemory = 0;
        let checksum = self.config.rdbchecksum;
        let mut engine = Engine::new(self.config, 0, self.moment.now, crate::commands::table());
        let base = self.manifest.next_base(self.name.as_bytes(), true);
        load_files(&mut engine, self.moment, &self.path, self.manifest, Purpose::Base)?;
        let temporary = self.path.join(TEMPORARY);
        let path = self.path.join(String::from_utf8_lossy(&base.name).as_ref());
        let kind = Kind { checksum, is_base: true };
        let goes_on = || !self.abandoned.load(Ordering::Relaxed);
        let len = write(&engine, self.moment, (&temporary, &path), kind, goes_on)?;
        Ok((base, len))
    }
}

/// Hands what an engine has to `put`, in chunks, as a base. Returns its length in bytes.
///
/// # Errors
/// Those of `put`.
pub fn write_base(engine: &Engine, moment: Moment, put: impl FnMut(&[u8]) -> Result<(), String>) -> Result<u64, String> {
    write_to(engine, moment, Kind { checksum: true, is_base: true }, put)
}
