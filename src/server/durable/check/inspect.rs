//! Reads one file as a start does, and keeps what an operator wants to know of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::driver::replay::{Refusals, Replay};
use crate::engine::Engine;
use crate::persist::append::damage::{Damage, Reason};
use crate::persist::append::read::{Ending, Facts, Reader, Request, Step, Unit};
use crate::persist::natives::{self, Native, Refusal};
use crate::persist::rdb_file;
use crate::persist::rdb_file::consumers;
use crate::persist::rdb_file::fault::{Fault, Reason as RdbReason};
use crate::persist::rdb_file::load::Tally;
use crate::persist::rdb_file::read::{Checksum, Event};
use crate::server::durable::folder::words;

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// Maximum number of bytes that are kept of a version's name.
const VERSION_MAX: usize = 64;

/// What a file is worth.
#[derive(Debug)]
pub enum Verdict {
    /// All of it is read.
    Whole,
    /// All of it is read, and its last line is that of a clean stop.
    Closed,
    /// Its end is a part of a unit or batch.
    Torn(Damage),
    /// There is damage in the append-only file, or a record of a later version.
    Damaged(Damage),
    /// There is damage in the RDB, or a value that is not read.
    Rdb(Fault),
    /// The unit at this offset cannot be applied.
    Refused(u64, String),
    /// The file is not there.
    Missing,
    /// The system does not give it.
    Unreadable(String),
}

impl Verdict {
    /// Whether a start with `aof-load-truncated no` accepts the file.
    pub fn is_whole(&self) -> bool {
        matches!(self, Verdict::Whole | Verdict::Closed)
    }

    /// Whether the file is sound, and only this program or this engine does not read it: a later version's format or record, a
    /// command or value of a module.
    pub fn is_foreign(&self) -> bool {
        match self {
            Verdict::Refused(..) => true,
            Verdict::Damaged(damage) => {
                matches!(damage.reason, Reason::NewerFormat | Reason::Refused(Refusal::Newer(_) | Refusal::Unknown))
            }
            Verdict::Rdb(fault) => matches!(
                fault.reason,
                RdbReason::Version(_)
                    | RdbReason::ModuleValue(_)
                    | RdbReason::ModulePreGa
                    | RdbReason::ModuleAux(_)
                    | RdbReason::FunctionsPreGa
                    | RdbReason::Databases(_)
                    | RdbReason::Native(_, Refusal::Newer(_) | Refusal::Unknown)
            ),
            _ => false,
        }
    }
}

/// What an RDB has.
#[derive(Debug)]
pub struct Rdb {
    /// The version of its format.
    pub version: u16,
    /// `redis-ver`.
    pub server: Option<String>,
    /// The result of the check of the whole; `None` before its end.
    pub checksum: Option<Checksum>,
    /// Number of keys with deadlines.
    pub expires: u64,
    /// What the loader counted.
    pub tally: Tally,
    /// Number of libraries of functions.
    pub libraries: u64,
    /// Bytes, without what follows.
    pub bytes: u64,
}

/// What an append-only file has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Requests {
    /// What the reader found.
    pub facts: Facts,
    /// Number of whole units.
    pub units: u64,
    /// Number of their requests.
    pub requests: u64,
    /// The last time of a redis-server's, in Unix seconds.
    pub timestamp: Option<u64>,
}

/// What a check found in a file.
#[derive(Debug)]
pub struct Checked {
    /// Where it is.
    pub path: PathBuf,
    /// Its length when it was opened.
    pub bytes: u64,
    /// The RDB in it, if there is one.
    pub rdb: Option<Rdb>,
    /// The requests in it, if there may be any.
    pub requests: Option<Requests>,
    /// Numbers of native records, by name.
    pub natives: BTreeMap<&'static str, u64>,
    /// What the engine refused.
    pub refusals: Refusals,
    /// What the file is worth.
    pub verdict: Verdict,
}

impl Checked {
    fn count(&mut self, native: &Native<'_>) {
        let name = match native {
            Native::Lock { .. } => "LOCK",
            Native::Latch { .. } => "LATCH",
            Native::Guard { .. } => "GUARD",
            Native::Requests { .. } => "REQUESTS",
            Native::Forget { .. } => "FORGET",
            Native::Session { .. } => "SESSION",
            Native::EndSession { .. } => "ENDSESSION",
            Native::Token(_) => "TOKEN",
        };
        *self.natives.entry(name).or_default() += 1;
    }
}

/// A file that is read.
struct Source {
    file: File,
    piece: Vec<u8>,
    done: u64,
}

impl Source {
    fn read(&mut self) -> Result<&[u8], Verdict> {
        loop {
            match self.file.read(&mut self.piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Verdict::Unreadable(words(&error))),
                Ok(count) => {
                    self.done += count as u64;
                    return Ok(&self.piece[..count]);
                }
            }
        }
    }
}

/// Reads a file and applies it. After another verdict than a whole file's, the engine has a part of it.
pub fn inspect(path: &Path, replay: &mut Replay<&mut Engine>) -> Checked {
    let mut checked = Checked {
        path: path.to_owned(),
        bytes: 0,
        rdb: None,
        requests: None,
        natives: BTreeMap::new(),
        refusals: Refusals::default(),
        verdict: Verdict::Missing,
    };
    checked.verdict = match File::open(path).and_then(|file| Ok((file.metadata()?, file))) {
        Ok((data, _)) if !data.is_file() => Verdict::Unreadable("Not a file".to_owned()),
        Ok((data, file)) => {
            checked.bytes = data.len();
            let source = Source { file, piece: vec![0; PIECE], done: 0 };
            read(source, replay, &mut checked).unwrap_or_else(|verdict| verdict)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Verdict::Missing,
        Err(error) => Verdict::Unreadable(words(&error)),
    };
    checked.refusals = replay.take_refusals();
    checked
}

/// Reads the whole file. Returns how it ends; an error is a verdict, too.
fn read(mut source: Source, replay: &mut Replay<&mut Engine>, checked: &mut Checked) -> Result<Verdict, Verdict> {
    let mut reader = Reader::new(checked.bytes);
    if read_units(&mut source, replay, &mut reader, checked)? {
        let rest = read_rdb(&mut source, replay, checked)?;
        let preamble = source.done - rest.len() as u64;
        reader = Reader::behind_preamble(preamble, checked.bytes);
        checked.requests = None;
        if !rest.is_empty() {
            // It asks for bytes first.
            let _ = reader.step();
            reader.feed(&rest);
        }
        if preamble < checked.bytes {
            read_units(&mut source, replay, &mut reader, checked)?;
        }
    }
    match reader.finish().map_err(Verdict::Damaged)? {
        Ending::Whole => Ok(Verdict::Whole),
        Ending::Closed => Ok(Verdict::Closed),
        Ending::Torn(damage) => Ok(Verdict::Torn(damage)),
    }
}

/// Reads units up to the end of the file. Returns true if it begins with an RDB instead, which was not read.
fn read_units(
    source: &mut Source,
    replay: &mut Replay<&mut Engine>,
    reader: &mut Reader,
    checked: &mut Checked,
) -> Result<bool, Verdict> {
    let mut counts = Requests::default();
    let result = loop {
        match reader.step() {
            Err(damage) => break Err(Verdict::Damaged(damage)),
            Ok(Step::Preamble) => break Ok(true),
            Ok(Step::Unit(unit)) => {
                if let Err(verdict) = apply(unit, replay, checked) {
                    break Err(verdict);
                }
                counts.units += 1;
                counts.requests += unit.len() as u64;
            }
            Ok(Step::More) => match source.read() {
                Ok([]) => break Ok(false),
                Ok(bytes) => reader.feed(bytes),
                Err(verdict) => break Err(verdict),
            },
        }
    };
    checked.requests = Some(Requests { facts: reader.facts(), timestamp: reader.timestamp(), ..counts });
    result
}

fn apply(unit: Unit<'_>, replay: &mut Replay<&mut Engine>, checked: &mut Checked) -> Result<(), Verdict> {
    let moment = replay.moment();
    for request in unit.requests(&moment) {
        if let Request::Native(native) = request.map_err(Verdict::Damaged)? {
            checked.count(&native);
        }
    }
    replay.unit(unit).map_err(|error| Verdict::Refused(unit.offset(), error))
}

/// Reads the RDB at the beginning of the file. Returns the bytes behind it that were read with it.
fn read_rdb(source: &mut Source, replay: &mut Replay<&mut Engine>, checked: &mut Checked) -> Result<Vec<u8>, Verdict> {
    source.file.seek(SeekFrom::Start(0)).map_err(|error| Verdict::Unreadable(words(&error)))?;
    source.done = 0;
    let mut reader = rdb_file::read::Reader::new(Some(checked.bytes), true, replay.unix_ms());
    let mut loader = replay.begin_rdb(true, false);
    let (tally, counts) = (Tally::default(), reader.counts());
    let mut rdb =
        Rdb { version: 0, server: None, checksum: None, expires: counts.expires, tally, libraries: 0, bytes: checked.bytes };
    let mut read = || {
        while !reader.has_ended() {
            match reader.next().map_err(Verdict::Rdb)? {
                Some(event) => {
                    note(&event, &mut rdb, checked, replay);
                    replay.rdb_event(&mut loader, event).map_err(Verdict::Rdb)?;
                }
                None => match source.read()? {
                    [] => {
                        reader.check_end().map_err(Verdict::Rdb)?;
                        break;
                    }
                    bytes => reader.feed(bytes),
                },
            }
        }
        Ok(reader.rest().to_vec())
    };
    let result = read();
    rdb.expires = reader.counts().expires;
    rdb.bytes = reader.offset();
    rdb.tally = loader.tally();
    checked.requests = None;
    checked.rdb = Some(rdb);
    result
}

fn note(event: &Event<'_>, rdb: &mut Rdb, checked: &mut Checked, replay: &Replay<&mut Engine>) {
    match event {
        Event::Version(version) => rdb.version = *version,
        Event::Library(_) => rdb.libraries += 1,
        Event::End(checksum) => rdb.checksum = Some(*checksum),
        Event::Aux { name, value, .. } if **name == *b"redis-ver" => {
            rdb.server = Some(value[..value.len().min(VERSION_MAX)].escape_ascii().to_string());
        }
        Event::Aux { name, value, .. } if natives::is_native(name) && **name != *consumers::NAME => {
            if let Ok(native) = natives::read(&[name, value], &replay.moment()) {
                checked.count(&native);
            }
        }
        _ => {}
    }
}
