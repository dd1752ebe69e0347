//! Loads files into an engine: those of a folder or a snapshot for a start, in slices; those of a folder for a new base, at once.

pub mod slices;
pub mod upgrade;

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::DerefMut;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::driver::pace::Pace;
use crate::driver::replay::{Purpose, Replay};
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::files::open_to_change;
use crate::keyspace::rdb::parts::crc64_of_more;
use crate::persist::append::clock::Moment;
use crate::persist::append::manifest::Manifest;
use crate::persist::append::read::{Ending, Extent, Reader, Step};
use crate::persist::rdb_file;
use crate::persist::rdb_file::fault::Fault;
use crate::persist::rdb_file::load::{Loader, Tally};
use crate::persist::rdb_file::read::Event;
use crate::persist::resume::{Last, manifest_name};
use crate::server::durable::folder::{LogFolder, words};

/// Bytes that are read at once: a slice of a load must not take long.
const PIECE: usize = 256 << 10;
/// Interval of messages while a file is loaded.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// The folder of a configuration.
pub fn folder_of(config: &Config) -> PathBuf {
    Path::new(&config.dir).join(&config.appenddirname)
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

/// Reads the manifest of a folder; `None` without one.
///
/// # Errors
/// In words, with the path.
pub fn read_manifest<F: LogFolder>(folder: &mut F, name: &[u8]) -> Result<Option<Manifest>, String> {
    let name = manifest_name(name);
    let opened = folder.source(&name);
    let path = folder.path().join(OsStr::from_bytes(&name));
    let mut text = Vec::new();
    match opened.and_then(|(_, mut source)| source.read_to_end(&mut text)) {
        Ok(_) => Manifest::parse(&text).map(Some).map_err(|error| format!("{}: {error}", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("Can't open the AOF manifest {}: {}", path.display(), words(&error))),
    }
}

/// Loads the files of a manifest. Returns the number of keys, too.
///
/// # Errors
/// In words, with the file and the offset; or that more than so many requests are refused.
pub fn load_from<F: LogFolder>(
    engine: &mut Engine,
    moment: Moment,
    folder: &mut F,
    manifest: Manifest,
    (purpose, refused_max): (Purpose, u64),
) -> Result<(usize, LoadedFiles), String> {
    let mut replay = Replay::new(engine, moment);
    let mut files = Files::of_manifest(folder, manifest, purpose)?;
    while !files.load_some(&mut replay, &mut Pace::unlimited())? {}
    let refused = replay.refused();
    fail_if!(
        refused > refused_max,
        format!("{refused} requests of the files are refused, and {refused_max} were when the server loaded them")
    );
    let (_, keys) = replay.finish(moment.now, purpose)?;
    Ok((keys, files.finish()))
}

/// Files that are loaded one after the other. `R` is an open one.
pub struct Files<R = File> {
    purpose: Purpose,
    manifest: Manifest,
    coming: VecDeque<Source<R>>,
    /// How the last file that was loaded ended.
    last: Last,
    /// Bytes of all files, and of those that are loaded.
    total: u64,
    done: u64,
    /// Keys of the RDBs among them.
    tally: Tally,
    /// What the RDB says of its writer's memory.
    used_memory: u64,
}

impl<R: Read + Seek> Files<R> {
    /// The files of a manifest. Opens all of them.
    ///
    /// # Errors
    /// In words, with the file.
    pub fn of_manifest<F: LogFolder<Source = R>>(
        folder: &mut F,
        manifest: Manifest,
        purpose: Purpose,
    ) -> Result<Files<R>, String> {
        let path = folder.path().to_owned();
        Files::from(&path, |name| folder.source(name), manifest, purpose)
    }

    /// A snapshot; `None` if there is no such file.
    ///
    /// # Errors
    /// In words, with the file.
    pub fn of_snapshot<F: LogFolder<Source = R>>(folder: &mut F, name: &[u8]) -> Result<Option<Files<R>>, String> {
        let opened = folder.source(name);
        if opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        let source = Source::new(folder.path().join(OsStr::from_bytes(name)), opened, Format::Snapshot)?;
        Ok(Some(Files::of(VecDeque::from([source]), Manifest::default(), Purpose::Start { truncates: false })))
    }

    /// The files of a manifest, which `open` opens by their names and tells the lengths of.
    pub fn from(
        path: &Path,
        mut open: impl FnMut(&[u8]) -> io::Result<(u64, R)>,
        manifest: Manifest,
        purpose: Purpose,
    ) -> Result<Files<R>, String> {
        let named = manifest.base.iter().chain(&manifest.increments);
        let sources = named.map(|file| {
            let path = path.join(String::from_utf8_lossy(&file.name).as_ref());
            Source::new(path, open(&file.name), Format::Log)
        });
        let sources = sources.collect::<Result<_, _>>()?;
        Ok(Files::of(sources, manifest, purpose))
    }

    fn of(coming: VecDeque<Source<R>>, manifest: Manifest, purpose: Purpose) -> Files<R> {
        let total = coming.iter().map(|source| source.input.len).sum();
        Files { purpose, manifest, coming, last: Last::Missing, total, done: 0, tally: Tally::default(), used_memory: 0 }
    }

    /// Bytes that were read, and bytes of all files.
    pub fn progress(&self) -> (u64, u64) {
        (self.done + self.coming.front().map_or(0, |source| source.input.done), self.total)
    }

    /// Why they are loaded.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Bytes of memory that the writer of the RDB used; 0 if that is not known.
    pub fn used_memory(&self) -> u64 {
        self.used_memory
    }

    /// The keys of the RDBs that were loaded.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Loads for as long as `pace` allows. Returns whether all is loaded.
    ///
    /// # Errors
    /// In words, with the file and the offset.
    pub fn load_some<E: DerefMut<Target = Engine>>(&mut self, replay: &mut Replay<E>, pace: &mut Pace) -> Result<bool, String> {
        while let Some(source) = self.coming.front_mut() {
            let read = source.load_some(replay, pace)?;
            self.used_memory = source.used_memory.unwrap_or(self.used_memory);
            if !read {
                return Ok(false);
            }
            let Some(source) = self.coming.pop_front() else { return Ok(true) };
            let is_last = self.coming.is_empty();
            self.done += source.input.len;
            let truncates = is_last && matches!(self.purpose, Purpose::Start { truncates: true });
            let is_base = self.manifest.increments.is_empty();
            self.tally = source.tally.unwrap_or(self.tally);
            if let Some(last) = source.finish(truncates, is_base)?
                && is_last
                && !is_base
            {
                self.last = last;
            }
        }
        Ok(true)
    }

    /// What was loaded.
    pub fn finish(self) -> LoadedFiles {
        LoadedFiles { manifest: self.manifest, last: self.last, bytes: self.total }
    }
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// A base or an increment.
    Log,
    /// A snapshot.
    Snapshot,
}

impl Format {
    /// Its name in errors.
    fn name(self) -> &'static str {
        match self {
            Format::Log => "append only file",
            Format::Snapshot => "RDB file",
        }
    }
}

/// A file that is loaded.
struct Source<R> {
    input: Input<R>,
    format: Format,
    reading: Reading,
    /// The keys of its RDB.
    tally: Option<Tally>,
    /// What the RDB says of its writer's memory.
    used_memory: Option<u64>,
}

/// How a file is read, and how far it is.
enum Reading {
    /// As an RDB, which has not begun.
    Rdb,
    /// An RDB.
    RdbFrom(Box<(rdb_file::read::Reader, Loader)>),
    /// Units of requests.
    Units(Box<Reader>),
    /// A snapshot that was read.
    Done,
}

/// The bytes of a file.
struct Input<R> {
    path: PathBuf,
    file: R,
    len: u64,
    done: u64,
    piece: Vec<u8>,
    told: Instant,
}

impl<R: Read + Seek> Input<R> {
    fn failed(&self, error: &std::io::Error) -> String {
        format!("Can't read {}: {}", self.path.display(), words(error))
    }

    /// Reads the next bytes; none at the end of the file.
    fn read(&mut self) -> Result<&[u8], String> {
        self.tell();
        self.piece.resize(PIECE, 0);
        let read = self.file.read(&mut self.piece);
        let count = read.map_err(|error| self.failed(&error))?;
        self.done += count as u64;
        Ok(&self.piece[..count])
    }

    /// The CRC-64 of the first `bytes` bytes, which are read once more.
    fn sum_of_beginning(&mut self, bytes: u64) -> Result<u64, String> {
        let begun = self.file.seek(SeekFrom::Start(0));
        begun.map_err(|error| self.failed(&error))?;
        let (mut left, mut sum) = (bytes, 0);
        while left > 0 {
            let piece = self.read()?;
            let piece = &piece[..piece.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            fail_if!(piece.is_empty(), format!("{} has become shorter since it was read", self.path.display()));
            sum = crc64_of_more(sum, piece);
            left -= piece.len() as u64;
        }
        Ok(sum)
    }

    /// Logs the progress, if it is time to.
    fn tell(&mut self) {
        if self.told.elapsed() >= PROGRESS_EVERY {
            self.told = Instant::now();
            tracing::info!("loading {}: {} of {} bytes", self.path.display(), self.done, self.len);
        }
    }
}

impl<R: Read + Seek> Source<R> {
    fn new(path: PathBuf, opened: io::Result<(u64, R)>, format: Format) -> Result<Source<R>, String> {
        let (len, file) = opened.map_err(|error| format!("Can't read {}: {}", path.display(), words(&error)))?;
        let reading = match format {
            Format::Log => Reading::Units(Box::new(Reader::new(len))),
            Format::Snapshot => Reading::Rdb,
        };
        let input = Input { path, file, len, done: 0, piece: Vec::new(), told: Instant::now() };
        Ok(Source { input, format, reading, tally: None, used_memory: None })
    }

    fn bad_rdb(&self, mut fault: Fault, hides_user_data: bool) -> String {
        if hides_user_data {
            fault.hide_user_data();
        }
        self.bad(&fault)
    }

    fn bad(&self, what: &dyn std::fmt::Display) -> String {
        format!("Bad file format reading the {} {}: {what}", self.format.name(), self.input.path.display())
    }

    /// Loads for as long as `pace` allows. Returns whether the file was read to its end.
    fn load_some<E: DerefMut<Target = Engine>>(&mut self, replay: &mut Replay<E>, pace: &mut Pace) -> Result<bool, String> {
        self.input.tell();
        loop {
            let reading = std::mem::replace(&mut self.reading, Reading::Done);
            let (next, goes_on) = match reading {
                Reading::Done => return Ok(true),
                Reading::Rdb => (self.begin_rdb(replay)?, true),
                Reading::RdbFrom(mut rdb) => match self.load_rdb(&mut rdb, replay, pace)? {
                    false => (Reading::RdbFrom(rdb), false),
                    true => (self.end_rdb(&rdb), self.format == Format::Log),
                },
                Reading::Units(mut reader) => match self.load_units(&mut reader, replay, pace)? {
                    Looked::Over => (Reading::Units(reader), false),
                    Looked::Preamble => (Reading::Rdb, true),
                    Looked::End => {
                        self.reading = Reading::Units(reader);
                        return Ok(true);
                    }
                },
            };
            self.reading = next;
            if matches!(self.reading, Reading::Done) {
                return Ok(true);
            }
            if !goes_on {
                return Ok(false);
            }
        }
    }

    /// Loads units.
    fn load_units<E: DerefMut<Target = Engine>>(
        &mut self,
        reader: &mut Reader,
        replay: &mut Replay<E>,
        pace: &mut Pace,
    ) -> Result<Looked, String> {
        while !pace.is_over() {
            match reader.step().map_err(|damage| self.bad(&damage))? {
                Step::Unit(unit) => {
                    replay.unit(unit).map_err(|error| self.bad(&error))?;
                    pace.loaded(replay.key_load_delay());
                }
                Step::Preamble => return Ok(Looked::Preamble),
                Step::More => {
                    let bytes = self.input.read()?;
                    if bytes.is_empty() {
                        return Ok(Looked::End);
                    }
                    reader.feed(bytes);
                }
            }
        }
        Ok(Looked::Over)
    }

    /// Begins to load the RDB at the beginning of the file.
    fn begin_rdb<E: DerefMut<Target = Engine>>(&mut self, replay: &mut Replay<E>) -> Result<Reading, String> {
        let begun = self.input.file.seek(SeekFrom::Start(0));
        begun.map_err(|error| self.input.failed(&error))?;
        self.input.done = 0;
        let reader = rdb_file::read::Reader::new(Some(self.input.len), replay.checks_rdb(), replay.unix_ms());
        // Requests that follow a base meet its keys as they were.
        Ok(Reading::RdbFrom(Box::new((reader, replay.begin_rdb(self.format == Format::Log, false)))))
    }

    /// Loads the RDB. Returns whether it has ended.
    fn load_rdb<E: DerefMut<Target = Engine>>(
        &mut self,
        (reader, loader): &mut (rdb_file::read::Reader, Loader),
        replay: &mut Replay<E>,
        pace: &mut Pace,
    ) -> Result<bool, String> {
        let hides = replay.hides_user_data();
        while !reader.has_ended() {
            if pace.is_over() {
                return Ok(false);
            }
            match reader.next().map_err(|fault| self.bad_rdb(fault, hides))? {
                Some(event) => {
                    let is_key = matches!(event, Event::Key(_));
                    if let Event::Aux { name, value, .. } = &event
                        && **name == *b"used-mem"
                    {
                        self.used_memory = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    }
                    replay.rdb_event(loader, event).map_err(|fault| self.bad_rdb(fault, hides))?;
                    if is_key {
                        pace.loaded(replay.key_load_delay());
                    }
                }
                None => {
                    let bytes = self.input.read()?;
                    if bytes.is_empty() {
                        reader.check_end().map_err(|fault| self.bad_rdb(fault, hides))?;
                        return Ok(true);
                    }
                    reader.feed(bytes);
                }
            }
        }
        Ok(true)
    }

    /// Goes on behind the RDB. As in Redis, what follows a snapshot is not looked at.
    fn end_rdb(&mut self, (reader, loader): &(rdb_file::read::Reader, Loader)) -> Reading {
        self.tally = Some(loader.tally());
        if self.format == Format::Snapshot {
            return Reading::Done;
        }
        let rest = reader.rest();
        let preamble = self.input.done - rest.len() as u64;
        let mut units = Reader::behind_preamble(preamble, self.input.len);
        if !rest.is_empty() {
            // It asks for bytes first.
            let _ = units.step();
            units.feed(rest);
        }
        Reading::Units(Box::new(units))
    }

    /// Looks at how the file ended. A torn end is left out if `truncates`; that of a base is cut off, because other files follow
    /// it from now on. Returns how an increment ended.
    fn finish(mut self, truncates: bool, is_base: bool) -> Result<Option<Last>, String> {
        let Reading::Units(reader) = std::mem::replace(&mut self.reading, Reading::Done) else { return Ok(None) };
        let mut extent: Extent = reader.extent();
        let ending = reader.finish().map_err(|damage| self.bad(&damage))?;
        if self.tally.is_some() && !is_base && !matches!(ending, Ending::Closed) {
            // The reader has not seen the RDB. Only other programs write increments that begin with one.
            extent.sum = self.input.sum_of_beginning(extent.bytes)?;
        }
        let (path, len) = (self.input.path.display(), self.input.len);
        match ending {
            Ending::Closed => Ok(Some(Last::Closed)),
            Ending::Whole => Ok(Some(Last::Unclean(extent))),
            Ending::Torn(damage) if truncates => {
                tracing::warn!("{path} is cut off at offset {} of {len}: {damage}", damage.whole);
                if is_base {
                    let cut = open_to_change(&self.input.path);
                    let cut = cut.and_then(|file| file.set_len(damage.whole).and_then(|()| file.sync_all()));
                    cut.map_err(|error| format!("Can't cut off {path}: {}", words(&error)))?;
                }
                Ok(Some(Last::Unclean(extent)))
            }
            Ending::Torn(damage) => Err(format!(
                "Unexpected end of file reading the append only file {path}: {damage}. You can set the 'aof-load-truncated' \
                 configuration option to yes and start again: what is behind that offset is lost then."
            )),
        }
    }
}

/// Why [`Source::load_units`] returns.
enum Looked {
    /// The slice is over.
    Over,
    /// The file begins with an RDB.
    Preamble,
    /// The file has ended.
    End,
}
