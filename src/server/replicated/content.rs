//! The content of a snapshot: the time of the state, and an RDB with native records.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::base::time::Now;
use crate::driver::pace::Pace;
use crate::driver::replay::Purpose;
use crate::driver::replicated::clock::moment;
use crate::driver::replicated::follower::Follower;
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::files::open_to_change;
use crate::persist::append::manifest::{File as Named, Manifest};
use crate::quorum::types::{Batch, ClusterTime, SnapshotFile};
use crate::server::durable::load::Files;
use crate::server::durable::snapshot::{Kind, write_to};

/// What the file begins with; the last byte is the version of the form. The time follows, and then the RDB.
const MAGIC: [u8; 8] = *b"PCSTATE\x01";
/// Length of what is before the RDB.
const HEAD: u64 = 24;

/// A file from behind its head on.
struct Behind<F>(F);

impl<F: Read> Read for Behind<F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl<F: Seek> Seek for Behind<F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(at) => SeekFrom::Start(at + HEAD),
            other => other,
        };
        Ok(self.0.seek(to)?.saturating_sub(HEAD))
    }
}

/// Loads a snapshot.
///
/// # Errors
/// In words.
pub fn load(follower: Follower, snapshot: &SnapshotFile) -> Result<Follower, String> {
    let file = File::open(&snapshot.path).map_err(|error| format!("{}: {error}", snapshot.path.display()))?;
    load_from(follower, file, snapshot)
}

/// Loads a snapshot from a file that is open.
///
/// # Errors
/// In words.
pub fn load_from<F: Read + Seek>(mut follower: Follower, mut file: F, snapshot: &SnapshotFile) -> Result<Follower, String> {
    let path = &snapshot.path;
    let describe = |error: io::Error| format!("{}: {error}", path.display());
    let mut head = [0; HEAD as usize];
    file.read_exact(&mut head).map_err(describe)?;
    let [magic, us, wall] = [0, 8, 16].map(|at| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte])));
    if magic != u64::from_le_bytes(MAGIC) {
        return Err(format!("{}: this is not the state of a node, or of a newer version", path.display()));
    }
    follower.set_time(ClusterTime { us, wall_offset_ms: wall as i64 });
    let mut file = Some(file);
    let open = |_: &[u8]| Ok((snapshot.len.saturating_sub(HEAD), Behind(file.take().ok_or(io::ErrorKind::NotFound)?)));
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned().into_bytes()).unwrap_or_default();
    let manifest = Manifest { base: Some(Named { name, seq: 1 }), ..Manifest::default() };
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut files = Files::from(folder, open, manifest, Purpose::Base)?;
    while !files.load_some(follower.replay(), &mut Pace::unlimited())? {}
    Ok(follower)
}

/// Makes a snapshot of another one and the batches behind it.
///
/// # Errors
/// In words.
pub fn compact(
    config: &Config,
    previous: Option<&SnapshotFile>,
    batches: &mut dyn Iterator<Item = io::Result<Batch>>,
    into: &Path,
) -> Result<(), String> {
    let describe = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    let previous = match previous {
        Some(snapshot) => Some((File::open(&snapshot.path).map_err(|error| describe(&snapshot.path, error))?, snapshot)),
        None => None,
    };
    let file = open_to_change(into).and_then(|file| file.set_len(0).map(|()| file)).map_err(|error| describe(into, error))?;
    compact_into(config, previous, batches, file)
}

/// As [`compact`], with files that are open.
///
/// # Errors
/// In words.
pub fn compact_into<F: Read + Seek>(
    config: &Config,
    previous: Option<(F, &SnapshotFile)>,
    batches: &mut dyn Iterator<Item = io::Result<Batch>>,
    into: impl Write,
) -> Result<(), String> {
    let config = Config { maxmemory: 0, ..config.clone() };
    let engine = Box::new(Engine::new(config, 0, Now::new(0, 0), crate::commands::table()));
    let mut follower = Follower::new(engine);
    if let Some((file, previous)) = previous {
        follower = load_from(follower, file, previous)?;
    }
    for batch in batches {
        follower.apply(&batch.map_err(|error| error.to_string())?)?;
    }
    let time = follower.time();
    let engine = follower.finish(moment(time), Purpose::Base)?;
    let describe = |error: io::Error| format!("cannot write a snapshot: {error}");
    let mut file = BufWriter::new(into);
    let head = [MAGIC, time.us.to_le_bytes(), time.wall_offset_ms.to_le_bytes()].concat();
    file.write_all(&head).map_err(describe)?;
    let kind = Kind { checksum: true, is_base: true };
    write_to(&engine, moment(time), kind, |chunk| file.write_all(chunk).map_err(describe))?;
    file.flush().map_err(describe)
}
