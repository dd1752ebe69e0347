//! Reads an append-only file: bytes in, whole units of requests out.
//!
//! ```text
//!   feed ─▶ plain: requests of a redis-server ── unit ─────────────────────────────▶ Step::Unit
//!             ▲ │ #PC                                                                    ▲
//!             │ ▼                                                                        │
//!           batch: ours ── units, held back ── #PC:<bytes>:<crc64> fits ─────────────────┘
//!             └── does not fit ─▶ suspect: looks for a later batch that fits ── found ─▶ Damage: in the middle
//!                                                                            └── end ──▶ Ending::Torn
//! ```
//!
//! A unit is a request, or all between `MULTI` and `EXEC`. Nothing of a batch comes out before its last line was seen to fit, and
//! nothing of a unit before it is whole. In what a redis-server wrote, only requests without an end are a torn tail; anything else
//! is damage, as for Redis.
//!
//! Memory: what is not read yet, which is at most a batch or a unit and a fed piece. A length that exceeds the rest of the file is
//! not waited for. After damage to a batch, at most one later batch is kept.

use std::fmt;
use std::ops::Range;

use memchr::memmem;
use smallvec::SmallVec;

use crate::persist::append::batch::{END, START, Seal};
use crate::persist::append::clock::Moment;
use crate::persist::append::native::{self, Native, Refusal};
use crate::persist::append::scan::{Item, Scanner};

/// The first bytes of a file that begins with an RDB.
const RDB_MAGIC: &[u8] = b"REDIS";

/// What is wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The file ends within a unit or a batch, or a length exceeds what is left of the file.
    Short,
    /// There is a NUL: space that was laid out and never written.
    Unwritten,
    /// There is neither a request nor an annotation.
    NoRequest,
    /// The number of arguments of a request is malformed.
    BadCount,
    /// The length of an argument is malformed.
    BadLength,
    /// An argument is longer or shorter than its length says.
    BadEnd,
    /// An annotation is malformed.
    BadLine,
    /// `MULTI` within `MULTI`.
    NestedMulti,
    /// `EXEC` without `MULTI`.
    ExecWithoutMulti,
    /// A batch begins between `MULTI` and `EXEC`.
    MultiWithoutExec,
    /// The last line of a batch is malformed.
    BadSeal,
    /// The length of a batch is not what its last line says.
    WrongBytes,
    /// The checksum of a batch is not what its last line says.
    WrongChecksum,
    /// A batch begins before the end of the previous one.
    UnsealedBatch,
    /// A batch ends that has not begun.
    UnstartedBatch,
    /// A native record is not read.
    Refused(Refusal),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Short => "the file ends too early",
            Reason::Unwritten => "space that was never written",
            Reason::NoRequest => "neither a request nor an annotation",
            Reason::BadCount => "a malformed number of arguments",
            Reason::BadLength => "a malformed length of an argument",
            Reason::BadEnd => "an argument of another length than is written before it",
            Reason::BadLine => "a malformed annotation",
            Reason::NestedMulti => "MULTI within MULTI",
            Reason::ExecWithoutMulti => "EXEC without MULTI",
            Reason::MultiWithoutExec => "MULTI without EXEC",
            Reason::BadSeal => "a malformed last line of a batch",
            Reason::WrongBytes => "a batch of another length than its last line says",
            Reason::WrongChecksum => "a batch with another checksum than its last line says",
            Reason::UnsealedBatch => "a batch without its last line",
            Reason::UnstartedBatch => "a batch without its first line",
            Reason::Refused(refusal) => return refusal.fmt(f),
        })
    }
}

/// Damage that is not at the end of the file, or a record that this version does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where in the file it was found.
    pub offset: u64,
    /// Where the unit or batch with the damage begins: all before is whole.
    pub whole: u64,
    /// What is wrong.
    pub reason: Reason,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at offset {}; the file is whole up to offset {}", self.reason, self.offset, self.whole)
    }
}

impl std::error::Error for Damage {}

/// How a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With a whole unit or batch.
    Whole,
    /// With a part of one: [`Damage::whole`] is where to cut it off.
    Torn(Damage),
}

/// What a reader has to say.
#[derive(Debug)]
pub enum Step<'a> {
    /// It needs more bytes, or the end of the file.
    More,
    /// The file begins with an RDB, whose length the reader does not know: read that, and the rest with
    /// [`Reader::behind_preamble`].
    Preamble,
    /// A unit.
    Unit(Unit<'a>),
}

/// The arguments of a request.
pub type Args<'a> = SmallVec<[&'a [u8]; 8]>;

/// One request of a unit.
#[derive(Debug)]
pub enum Request<'a> {
    /// A request of Redis: its arguments, the name included.
    Redis(Args<'a>),
    /// A native record.
    Native(Native<'a>),
}

/// Requests that belong together, without `MULTI` and `EXEC`.
#[derive(Clone, Copy, Debug)]
pub struct Unit<'a> {
    bytes: &'a [u8],
    /// The arguments of all requests.
    args: &'a [Range<usize>],
    requests: &'a [Found],
    /// Offset of the bytes in the file.
    base: u64,
}

impl<'a> Unit<'a> {
    /// Number of its requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Where it begins in the file, `MULTI` not included.
    pub fn offset(&self) -> u64 {
        self.requests.first().map_or(self.base, |found| self.base + found.start as u64)
    }

    /// The arguments of each request, native records included, with its offset in the file.
    pub fn raw(self) -> impl Iterator<Item = (u64, Args<'a>)> {
        self.requests.iter().map(move |found| {
            let args = self.args[found.args.clone()].iter().map(|range| &self.bytes[range.clone()]).collect();
            (self.base + found.start as u64, args)
        })
    }

    /// Its requests. Times in native records become those of the reader, to whom it is `moment`.
    pub fn requests(self, moment: &Moment) -> impl Iterator<Item = Result<Request<'a>, Damage>> {
        let whole = self.offset();
        self.raw().map(move |(offset, args)| {
            if !native::is_native(args[0]) {
                return Ok(Request::Redis(args));
            }
            let native = native::read(&args, moment);
            native.map(Request::Native).map_err(|refusal| Damage { offset, whole, reason: Reason::Refused(refusal) })
        })
    }
}

/// A request that was found. Positions are relative to the origin.
#[derive(Clone, Debug)]
struct Found {
    start: usize,
    /// Its arguments among those of the scanner.
    args: Range<usize>,
}

/// What the reader expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The first bytes.
    Beginning,
    /// An RDB, which others read.
    Preamble,
    /// A batch, or requests that a redis-server appended.
    Between,
    /// Requests that a redis-server wrote.
    Plain,
    /// The rest of a batch.
    Batch,
    /// Anything: the beginning of a batch is looked for.
    Suspect,
    /// Nothing: the rest of a request is missing.
    Torn,
}

/// Reads one file.
#[derive(Debug)]
pub struct Reader {
    state: State,
    /// What was fed and is not dropped yet.
    buffer: Vec<u8>,
    /// Where the current unit or batch begins in the buffer. Positions of the scanner and of requests are relative to this.
    origin: usize,
    /// Offset of the buffer in the file.
    base: u64,
    /// Number of bytes of the file that were not fed yet.
    left: u64,
    /// Whether the first bytes may be those of an RDB.
    may_be_rdb: bool,
    scanner: Scanner,
    /// The requests of the current unit or batch.
    found: Vec<Found>,
    /// The ends of its units among the requests.
    units: Vec<usize>,
    /// The number of units that have come out.
    emitted: usize,
    /// Whether a `MULTI` is open.
    multi: bool,
    /// The first damage, while it is not known whether it is at the end of the file.
    damage: Option<Damage>,
}

impl Reader {
    /// A reader of a file of this length.
    pub fn new(len: u64) -> Self {
        Reader {
            state: State::Beginning,
            buffer: Vec::new(),
            origin: 0,
            base: 0,
            left: len,
            may_be_rdb: true,
            scanner: Scanner::default(),
            found: Vec::new(),
            units: Vec::new(),
            emitted: 0,
            multi: false,
            damage: None,
        }
    }

    /// A reader of the rest of a file of this length, which begins with an RDB of `preamble` bytes.
    pub fn behind_preamble(preamble: u64, len: u64) -> Self {
        Reader { base: preamble, may_be_rdb: false, ..Reader::new(len.saturating_sub(preamble)) }
    }

    /// Takes the next bytes of the file. Must be called only when [`Reader::step`] asks for more.
    pub fn feed(&mut self, bytes: &[u8]) {
        debug_assert!(self.emitted == self.units.len(), "no unit waits");
        self.left = self.left.saturating_sub(bytes.len() as u64);
        if self.state == State::Preamble || self.state == State::Torn {
            return;
        }
        self.buffer.drain(..self.origin);
        self.base += self.origin as u64;
        self.origin = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Offset of the current unit or batch in the file: everything before has come out.
    pub fn offset(&self) -> u64 {
        self.base + self.origin as u64
    }

    /// The next unit.
    pub fn step(&mut self) -> Result<Step<'_>, Damage> {
        while self.emitted == self.units.len() {
            // In a batch, units wait for its last line.
            if !self.units.is_empty() && self.state != State::Batch {
                self.restart(self.scanner.at);
            }
            if !self.advance()? {
                return Ok(if self.state == State::Preamble { Step::Preamble } else { Step::More });
            }
        }
        let first = self.emitted.checked_sub(1).map_or(0, |before| self.units[before]);
        let requests = &self.found[first..self.units[self.emitted]];
        self.emitted += 1;
        let bytes = &self.buffer[self.origin..];
        Ok(Step::Unit(Unit { bytes, args: &self.scanner.args, requests, base: self.base + self.origin as u64 }))
    }

    /// How the file ends. Must be called when [`Reader::step`] asks for more and there is no more.
    pub fn finish(self) -> Ending {
        if let Some(damage) = self.damage {
            return Ending::Torn(damage);
        }
        let ends_well = match self.state {
            State::Beginning | State::Between | State::Plain => self.origin == self.buffer.len(),
            State::Preamble => true,
            State::Batch | State::Suspect | State::Torn => false,
        };
        if ends_well { Ending::Whole } else { Ending::Torn(self.damage_here(Reason::Short)) }
    }

    /// Begins anew behind `len` bytes of the current unit or batch.
    fn restart(&mut self, len: usize) {
        self.origin += len;
        (self.scanner.at, self.scanner.start) = (0, 0);
        self.scanner.args.clear();
        self.found.clear();
        self.units.clear();
        (self.emitted, self.multi) = (0, false);
    }

    /// Goes on by one item. Returns false if that takes more bytes.
    fn advance(&mut self) -> Result<bool, Damage> {
        match self.state {
            State::Preamble | State::Torn => Ok(false),
            State::Beginning | State::Between => self.begin(),
            State::Suspect => Ok(self.find_batch()),
            State::Plain | State::Batch => {
                let item = match self.scanner.next(&self.buffer[self.origin..], self.left) {
                    Ok(item) => item,
                    Err(reason) => return self.fail(reason),
                };
                match item {
                    // A damaged length may have swallowed later batches.
                    Item::More if self.left == 0 && self.state == State::Batch => self.fail(Reason::Short),
                    Item::More => Ok(false),
                    Item::Annotation(line) => self.annotation(line),
                    Item::Request { args } => self.request(args),
                }
            }
        }
    }

    /// Finds out what begins here.
    fn begin(&mut self) -> Result<bool, Damage> {
        const TIMESTAMP: &[u8] = b"#TS:";
        let bytes = &self.buffer[self.origin..];
        if bytes.is_empty() {
            return Ok(false);
        }
        if self.state == State::Beginning && self.may_be_rdb {
            if bytes.starts_with(RDB_MAGIC) {
                self.state = State::Preamble;
                return Ok(false);
            }
            if RDB_MAGIC.starts_with(bytes) && self.left > 0 {
                return Ok(false);
            }
        }
        if bytes.starts_with(START) {
            self.state = State::Batch;
            self.scanner.at = START.len();
        } else if bytes[0] == b'*' || bytes.starts_with(TIMESTAMP) {
            self.state = State::Plain;
        } else if START.starts_with(bytes) || TIMESTAMP.starts_with(bytes) {
            return if self.left > 0 { Ok(false) } else { self.fail(Reason::Short) };
        } else if bytes[0] == 0 {
            return self.fail(Reason::Unwritten);
        } else {
            return self.fail(Reason::NoRequest);
        }
        Ok(true)
    }

    fn request(&mut self, args: usize) -> Result<bool, Damage> {
        let all = self.scanner.args.len();
        let name = &self.buffer[self.origin..][self.scanner.args[all - args].clone()];
        let (multi, exec) = (name.eq_ignore_ascii_case(b"MULTI"), name.eq_ignore_ascii_case(b"EXEC"));
        if args == 1 && (multi || exec) {
            if multi == self.multi {
                return self.fail_at_start(if multi { Reason::NestedMulti } else { Reason::ExecWithoutMulti });
            }
            self.scanner.args.pop();
            self.multi = multi;
        } else {
            self.found.push(Found { start: self.scanner.start, args: all - args..all });
        }
        if !self.multi && self.found.len() > self.units.last().copied().unwrap_or(0) {
            self.units.push(self.found.len());
        }
        match self.state {
            // The units of a batch do not come out yet.
            State::Batch => self.emitted = self.units.len(),
            _ if !self.multi && self.units.is_empty() => self.restart(self.scanner.at),
            _ => {}
        }
        Ok(true)
    }

    fn annotation(&mut self, line: Range<usize>) -> Result<bool, Damage> {
        let bytes = &self.buffer[self.origin..];
        let (begins, ends) = (bytes[line.clone()] == START[..START.len() - 2], bytes[line.clone()].starts_with(END));
        match self.state {
            State::Batch if ends => {
                let Some(seal) = Seal::parse(&bytes[line.clone()]) else { return self.fail_at_start(Reason::BadSeal) };
                if seal.bytes != line.start as u64 || self.multi {
                    return self.fail_at_start(Reason::WrongBytes);
                }
                if seal != Seal::of(&bytes[..line.start]) {
                    return self.fail_at_start(Reason::WrongChecksum);
                }
                if let Some(damage) = self.damage {
                    return Err(damage);
                }
                self.state = State::Between;
                self.emitted = 0;
                if self.units.is_empty() {
                    self.restart(self.scanner.at);
                }
            }
            State::Batch if begins => return self.fail_at_start(Reason::UnsealedBatch),
            State::Batch => {}
            _ if ends => return self.fail_at_start(Reason::UnstartedBatch),
            _ if begins && self.multi => return self.fail_at_start(Reason::MultiWithoutExec),
            _ if begins => {
                self.restart(self.scanner.start);
                self.state = State::Between;
            }
            _ if self.multi => {}
            _ => self.restart(self.scanner.at),
        }
        Ok(true)
    }

    /// Looks for the beginning of a batch. Returns false if there is none in the buffer.
    fn find_batch(&mut self) -> bool {
        let bytes = &self.buffer[self.origin..];
        match memmem::find(bytes, START) {
            Some(at) => {
                self.restart(at);
                self.scanner.at = START.len();
                self.state = State::Batch;
                true
            }
            None => {
                // The last bytes may be a part of the line.
                self.origin += bytes.len().saturating_sub(START.len() - 1);
                false
            }
        }
    }

    fn damage_here(&self, reason: Reason) -> Damage {
        Damage { offset: self.offset() + self.scanner.at as u64, whole: self.offset(), reason }
    }

    /// As [`Reader::fail`] for the item that was found last.
    fn fail_at_start(&mut self, reason: Reason) -> Result<bool, Damage> {
        self.scanner.at = self.scanner.start;
        self.fail(reason)
    }

    /// Ends the reading, or begins to look for a later batch.
    fn fail(&mut self, reason: Reason) -> Result<bool, Damage> {
        let damage = *self.damage.get_or_insert(self.damage_here(reason));
        match self.state {
            State::Plain if reason == Reason::Short => {
                self.state = State::Torn;
                self.buffer = Vec::new();
                self.origin = 0;
                self.scanner = Scanner::default();
                self.restart(0);
                Ok(false)
            }
            State::Plain => Err(damage),
            // A file that begins with nothing known is no torn one.
            State::Beginning if reason == Reason::NoRequest => Err(damage),
            _ => {
                self.restart(1);
                self.scanner = Scanner::default();
                self.state = State::Suspect;
                Ok(true)
            }
        }
    }
}
