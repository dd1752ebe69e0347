//! A new base, made beside the server: a second engine on a thread of its own loads the old base and the closed increments, and
//! writes what it then has. The executor does nothing for it, and there is no fork.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::engine::Engine;
use crate::engine::config::Config;
use crate::persist::append::clock::Moment;
use crate::persist::append::manifest::{File, Manifest};
use crate::persist::rdb_file::write::{Options, Writer};
use crate::server::durable::folder::words;
use crate::server::durable::load::{Purpose, load_files};

/// Bytes that are written at once.
const CHUNK: usize = 1 << 20;

/// Number of failures in a row from which on the server waits before it tries again by itself, and the longest wait. As in Redis.
const FAILURES_MAX: u32 = 3;
const PAUSE_MAX: u64 = 60;

/// Minutes that the server waits, after so many failures in a row to make a new base, before it makes one by itself.
pub fn pause_minutes(failures: u32) -> u64 {
    let more = failures.checked_sub(FAILURES_MAX);
    more.map_or(0, |more| 1u64.checked_shl(more).map_or(PAUSE_MAX, |minutes| minutes.min(PAUSE_MAX)))
}

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
}

impl Rewrite {
    /// Makes the base, and makes it durable. Returns the file and its length in bytes. The manifest does not name it yet.
    ///
    /// # Errors
    /// In words. The folder is then as it was.
    pub fn run(mut self) -> Result<(File, u64), String> {
        self.manifest.increments.pop();
        self.config.maxmemory = 0;
        let mut engine = Engine::new(self.config, 0, self.moment.now, crate::commands::table());
        let base = self.manifest.next_base(self.name.as_bytes(), true);
        load_files(&mut engine, self.moment, &self.path, self.manifest, Purpose::Base)?;
        let temporary = self.path.join("temp-rewriteaof.rdb");
        let len = write(&engine, self.moment, &temporary).inspect_err(|_| _ = std::fs::remove_file(&temporary))?;
        // The exchange of the manifest syncs the folder.
        let name = String::from_utf8_lossy(&base.name).into_owned();
        std::fs::rename(&temporary, self.path.join(&name)).map_err(|error| words(&error))?;
        Ok((base, len))
    }
}

fn write(engine: &Engine, moment: Moment, path: &Path) -> Result<u64, String> {
    let describe = |error: std::io::Error| format!("Can't write {}: {}", path.display(), words(&error));
    let mut file = std::fs::File::create(path).map_err(describe)?;
    let libraries = engine.scripts.libraries();
    let options = Options { checksum: true, is_base: true, used_memory: 0, boot: moment.boot, libraries };
    let mut writer = Writer::new(&engine.keyspace, moment.now, options);
    let (mut out, mut len) = (Vec::new(), 0);
    loop {
        let more = writer.next_chunk(&engine.keyspace, &mut out, CHUNK).map_err(|_| "the keys changed meanwhile".to_owned())?;
        file.write_all(&out).map_err(describe)?;
        len += out.len() as u64;
        out.clear();
        if !more {
            file.sync_data().map_err(describe)?;
            return Ok(len);
        }
    }
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
