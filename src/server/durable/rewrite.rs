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
        // `Files::set_base` makes the name durable before the manifest has it.
        let name = String::from_utf8_lossy(&base.name).into_owned();
        std::fs::rename(&temporary, self.path.join(&name)).map_err(|error| words(&error))?;
        Ok((base, len))
    }
}

fn write(engine: &Engine, moment: Moment, path: &Path) -> Result<u64, String> {
    let describe = |error: std::io::Error| format!("Can't write {}: {}", path.display(), words(&error));
    let mut file = std::fs::File::create(path).map_err(describe)?;
    let len = write_base(engine, moment, |chunk| file.write_all(chunk).map_err(describe))?;
    file.sync_data().map_err(describe)?;
    Ok(len)
}

/// Hands what an engine has to `put`, in chunks, as a base. Returns its length in bytes.
///
/// # Errors
/// Those of `put`.
pub fn write_base(engine: &Engine, moment: Moment, mut put: impl FnMut(&[u8]) -> Result<(), String>) -> Result<u64, String> {
    let libraries = engine.scripts.libraries();
    let options = Options { checksum: true, is_base: true, used_memory: 0, boot: moment.boot, libraries };
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
