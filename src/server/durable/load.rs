//! Loads the files of a folder into an engine: for a start, and for a new base.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::engine::config::Config;
use crate::persist::append::clock::Moment;
use crate::persist::append::manifest::Manifest;
use crate::persist::append::read::{Ending, Reader, Step};
use crate::persist::rdb_file;
use crate::persist::resume::{Last, manifest_name};
use crate::server::durable::folder::words;
use crate::server::durable::replay::Replay;

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// Interval of messages while a file is loaded.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// The folder of a configuration.
pub fn folder_of(config: &Config) -> PathBuf {
    Path::new(&config.dir).join(&config.appenddirname)
}

/// Why files are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A server starts. The connections of the last one are gone.
    Start {
        /// `aof-load-truncated`: the end of the last file may be torn.
        truncates: bool,
    },
    /// A new base is made, while the server that wrote the files runs.
    Base,
}

/// What a folder had.
pub struct LoadedFiles {
    /// Its manifest.
    pub manifest: Manifest,
    /// How its last increment ended.
    pub last: Last,
    /// Bytes of the files.
    pub bytes: u64,
}

/// Loads the files of a folder.
pub fn load(engine: &mut Engine, moment: Moment, path: &Path, name: &[u8]) -> Result<LoadedFiles, String> {
    let manifest_path = path.join(String::from_utf8_lossy(&manifest_name(name)).as_ref());
    let text = match std::fs::read(&manifest_path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(LoadedFiles { manifest: Manifest::default(), last: Last::Missing, bytes: 0 });
        }
        Err(error) => return Err(format!("Can't open the AOF manifest {}: {}", manifest_path.display(), words(&error))),
    };
    let manifest = Manifest::parse(&text).map_err(|error| format!("{}: {error}", manifest_path.display()))?;
    let began = Instant::now();
    let truncates = engine.config.aof_load_truncated;
    let (keys, loaded) = load_files(engine, moment, path, manifest, Purpose::Start { truncates })?;
    tracing::info!("DB loaded from append only file: {keys} keys, {:.3} seconds", began.elapsed().as_secs_f64());
    Ok(loaded)
}

/// Loads the files of a manifest. Returns the number of keys, too.
///
/// # Errors
/// In words, with the file and the offset.
pub fn load_files(
    engine: &mut Engine,
    moment: Moment,
    path: &Path,
    manifest: Manifest,
    purpose: Purpose,
) -> Result<(usize, LoadedFiles), String> {
    let open = |name: &[u8]| {
        let file = File::open(path.join(String::from_utf8_lossy(name).as_ref()))?;
        Ok((file.metadata()?.len(), file))
    };
    load_from(engine, moment, path, open, manifest, purpose)
}

/// As [`load_files`], of files that `open` opens by their names and tells the lengths of.
pub fn load_from<R: Read + Seek>(
    engine: &mut Engine,
    moment: Moment,
    path: &Path,
    mut open: impl FnMut(&[u8]) -> io::Result<(u64, R)>,
    manifest: Manifest,
    purpose: Purpose,
) -> Result<(usize, LoadedFiles), String> {
    let mut replay = Replay::new(engine, moment);
    let mut loaded = LoadedFiles { manifest: Manifest::default(), last: Last::Missing, bytes: 0 };
    let count = usize::from(manifest.base.is_some()) + manifest.increments.len();
    for (number, file) in manifest.base.iter().chain(&manifest.increments).enumerate() {
        let is_last = number + 1 == count;
        let mut source = Source::new(path.join(String::from_utf8_lossy(&file.name).as_ref()), open(&file.name))?;
        let last = source.load(&mut replay, is_last && matches!(purpose, Purpose::Start { truncates: true }))?;
        loaded.bytes += source.len;
        if is_last && !manifest.increments.is_empty() {
            loaded.last = last;
        }
    }
    loaded.manifest = manifest;
    Ok((replay.finish(purpose), loaded))
}

/// A file that is loaded.
struct Source<R> {
    path: PathBuf,
    file: R,
    len: u64,
    done: u64,
    piece: Vec<u8>,
    told: Instant,
}

impl<R: Read + Seek> Source<R> {
    fn new(path: PathBuf, opened: io::Result<(u64, R)>) -> Result<Source<R>, String> {
        let (len, file) = opened.map_err(|error| format!("Can't read {}: {}", path.display(), words(&error)))?;
        let piece = vec![0; usize::try_from(len).unwrap_or(PIECE).clamp(1, PIECE)];
        Ok(Source { path, file, len, done: 0, piece, told: Instant::now() })
    }

    /// Reads the next bytes; none at the end of the file.
    fn read(&mut self) -> Result<&[u8], String> {
        let read = self.file.read(&mut self.piece);
        let count = read.map_err(|error| format!("Can't read {}: {}", self.path.display(), words(&error)))?;
        self.done += count as u64;
        if self.told.elapsed() >= PROGRESS_EVERY {
            self.told = Instant::now();
            tracing::info!("loading {}: {} of {} bytes", self.path.display(), self.done, self.len);
        }
        Ok(&self.piece[..count])
    }

    fn bad(&self, what: &dyn std::fmt::Display) -> String {
        format!("Bad file format reading the append only file {}: {what}", self.path.display())
    }

    /// Loads the file. Its end may be torn if `truncates`. Returns how it ended.
    fn load(&mut self, replay: &mut Replay<'_>, truncates: bool) -> Result<Last, String> {
        let mut reader = Reader::new(self.len);
        if self.load_units(replay, &mut reader)? {
            let rest = self.load_rdb(replay)?;
            let preamble = self.done - rest.len() as u64;
            reader = Reader::behind_preamble(preamble, self.len);
            if !rest.is_empty() {
                // It asks for bytes first.
                let _ = reader.step();
                reader.feed(&rest);
            }
            self.load_units(replay, &mut reader)?;
        }
        let extent = reader.extent();
        match reader.finish().map_err(|damage| self.bad(&damage))? {
            Ending::Closed => Ok(Last::Closed),
            Ending::Whole => Ok(Last::Unclean(extent)),
            Ending::Torn(damage) if truncates => {
                tracing::warn!("{} is cut off at offset {} of {}: {damage}", self.path.display(), damage.whole, self.len);
                Ok(Last::Unclean(extent))
            }
            Ending::Torn(damage) => Err(format!(
                "Unexpected end of file reading the append only file {}: {damage}. You can set the 'aof-load-truncated' \
                 configuration option to yes and start again: what is behind that offset is lost then.",
                self.path.display()
            )),
        }
    }

    /// Loads units up to the end of the file. Returns true if it begins with an RDB instead, which was not read.
    fn load_units(&mut self, replay: &mut Replay<'_>, reader: &mut Reader) -> Result<bool, String> {
        loop {
            match reader.step().map_err(|damage| self.bad(&damage))? {
                Step::Unit(unit) => replay.unit(unit).map_err(|error| self.bad(&error))?,
                Step::Preamble => return Ok(true),
                Step::More => {
                    let bytes = self.read()?;
                    if bytes.is_empty() {
                        return Ok(false);
                    }
                    reader.feed(bytes);
                }
            }
        }
    }

    /// Loads the RDB at the beginning of the file. Returns the bytes behind it that were read with it.
    fn load_rdb(&mut self, replay: &mut Replay<'_>) -> Result<Vec<u8>, String> {
        let begun = self.file.seek(SeekFrom::Start(0));
        begun.map_err(|error| format!("Can't read {}: {}", self.path.display(), words(&error)))?;
        self.done = 0;
        let mut reader = rdb_file::read::Reader::new(Some(self.len), true, replay.unix_ms());
        let mut loading = replay.begin_rdb();
        while !reader.has_ended() {
            match reader.next().map_err(|fault| self.bad(&fault))? {
                Some(event) => replay.rdb_event(&mut loading, event).map_err(|fault| self.bad(&fault))?,
                None => {
                    let bytes = self.read()?;
                    if bytes.is_empty() {
                        reader.check_end().map_err(|fault| self.bad(&fault))?;
                        break;
                    }
                    reader.feed(bytes);
                }
            }
        }
        Ok(reader.rest().to_vec())
    }
}
