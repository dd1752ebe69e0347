//! Reads an append-only file: bytes in, whole units of requests out.
//!
//! ```text
//!   feed ─▶ Beginning ─┬─ no first line of ours ─▶ Plain: requests of a redis-server ────────────▶ Step::Unit
//!                      │                             ▲ │                                              ▲
//!                      │                             │ ▼                                              │
//!                      └─ #PCF ────────────────▶ Between ── header, body and checksum right ─▶ Batch ─┘
//!                                                    └── bad batch ─▶ Tail ─▶ Damage, or Ending::Torn
//! ```
//!
//! A unit is a request, or all between `MULTI` and `EXEC`. Nothing of a batch comes out before its checksum was seen to be right, and
//! nothing of a unit before it is whole. What follows a bad batch decides whether it is damage or a torn tail (`tail.rs`). A file
//! without our first line is read as Redis reads it; so are requests behind our last batch, where a redis-server went on writing. In
//! these, only a last request without its end is a torn tail, and anything else is damage, as for Redis.
//!
//! The limits on requests ([`ARGUMENT_BYTES_MAX`], [`ARGUMENTS_MAX`]) are for what a redis-server wrote. A batch of ours may have a
//! longer argument: the payload of a large value.
//!
//! Memory: the largest batch and two fed pieces; for requests of a redis-server, up to three times the largest unit and a piece, as
//! the buffer grows by doubling. Beside it an index of one unit, with 16 bytes an argument and 24 bytes a request, which grows alike.
//! A length that exceeds the rest of the file is not waited for. Behind a bad batch nothing is kept.

use std::ops::Range;

use smallvec::SmallVec;

use crate::keyspace::rdb::parts::{crc64, crc64_of_more};
use crate::persist::append::batch::{
    BATCH_TAG, CLOSE_TAG, FILE_TAG, FIRST_LINE, FirstLineError, HEADER, Header, LAST_LINE, TAG, last_line, salt_of,
};
use crate::persist::append::clock::Moment;
use crate::persist::append::native::{self, Native};
use crate::persist::append::scan::{Item, Scanner, plain_number};
use crate::persist::append::tail::{TIMESTAMP, Tail};

pub use crate::persist::append::damage::{Damage, Reason};
pub use crate::persist::append::scan::{ARGUMENT_BYTES_MAX, ARGUMENTS_MAX, LINE_MAX};

/// The first bytes of a file that begins with an RDB.
const RDB_MAGIC: &[u8] = b"REDIS";

/// How a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With a whole unit or batch. It is unknown what of it is durable.
    Whole,
    /// With the last line after a clean stop: all of it is durable.
    Closed,
    /// With a part of a unit or batch: [`Damage::whole`] is where to cut it off.
    Torn(Damage),
}

/// The beginning of a file that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of its bytes.
    pub bytes: u64,
    /// Their CRC-64.
    pub sum: u64,
}

/// What a file has besides its units, for its operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The salt in our first line; `None` for a file of a redis-server.
    pub salt: Option<u64>,
    /// Number of batches whose checksums were right.
    pub batches: u64,
    /// Bytes at the beginning of the file that were durable, by what the headers of these batches say.
    pub synced: u64,
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
#[derive(Debug)]
enum State {
    /// The first bytes.
    Beginning,
    /// An RDB, which others read.
    Preamble,
    /// In a file of ours: a batch, the last line, or requests that a redis-server appended.
    Between,
    /// Requests that a redis-server wrote.
    Plain,
    /// Units of a batch whose checksum is right. It ends at this offset of the file.
    Batch(u64),
    /// Anything, behind a bad batch.
    Tail(Box<Tail>),
    /// Nothing: the rest of a request is missing.
    Torn(Damage),
    /// Nothing: there is damage.
    Failed(Damage),
}

/// What a step forward led to.
enum Advance {
    /// More bytes are needed.
    More,
    /// Something that is not a unit.
    On,
    /// A whole unit.
    Unit,
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
    /// CRC-64 of all before the current unit or batch.
    sum: u64,
    /// Number of bytes of the file that were not fed yet.
    left: u64,
    /// Length of the longest piece that was fed.
    piece: usize,
    /// Whether the first bytes may be those of an RDB, or our first line.
    at_beginning: bool,
    facts: Facts,
    /// Whether the last line of a clean stop was read.
    closed: bool,
    scanner: Scanner,
    /// The requests of the current unit.
    found: Vec<Found>,
    /// Whether the current unit has come out.
    emitted: bool,
    /// Whether a `MULTI` is open.
    multi: bool,
    /// The database that is selected; `None` at the beginning.
    selected: Option<u32>,
    /// The last time of a redis-server's.
    timestamp: Option<u64>,
}

impl Reader {
    /// A reader of a file of this length.
    pub fn new(len: u64) -> Self {
        Reader {
            state: State::Beginning,
            buffer: Vec::new(),
            origin: 0,
            base: 0,
            sum: 0,
            left: len,
            piece: 0,
            at_beginning: true,
            facts: Facts::default(),
            closed: false,
            scanner: Scanner::default(),
            found: Vec::new(),
            emitted: false,
            multi: false,
            selected: None,
            timestamp: None,
        }
    }

    /// A reader of a batch of this length, which stands alone.
    pub fn of_batch(len: u64) -> Self {
        Reader::behind_preamble(0, len)
    }

    /// A reader of the rest of a file of this length, which begins with an RDB of `preamble` bytes.
    pub fn behind_preamble(preamble: u64, len: u64) -> Self {
        Reader { base: preamble, at_beginning: false, ..Reader::new(len.saturating_sub(preamble)) }
    }

    /// Takes the next bytes of the file. Must be called only when [`Reader::step`] asks for more.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.left = self.left.saturating_sub(bytes.len() as u64);
        self.piece = self.piece.max(bytes.len());
        match &mut self.state {
            State::Preamble | State::Torn(_) | State::Failed(_) => {}
            State::Tail(tail) => {
                if let Err(damage) = tail.feed(bytes) {
                    self.state = State::Failed(damage);
                }
            }
            _ => {
                self.drop_read();
                self.buffer.extend_from_slice(bytes);
            }
        }
    }

    /// Offset of the current unit or batch in the file: everything before has come out. Where there is damage or a torn tail, it is
    /// [`Damage::whole`].
    pub fn offset(&self) -> u64 {
        self.base + self.origin as u64
    }

    /// All before [`Reader::offset`], which is what is to be kept of a torn file. Not with [`Reader::behind_preamble`], whose sum is
    /// that of the rest alone.
    pub fn extent(&self) -> Extent {
        Extent { bytes: self.offset(), sum: self.sum }
    }

    /// The last time of the file, in Unix seconds, if a redis-server wrote one (`aof-timestamp-enabled`).
    pub fn timestamp(&self) -> Option<u64> {
        self.timestamp
    }

    /// What was found so far.
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// The next unit.
    ///
    /// # Errors
    /// There is damage that is not at the end of the file.
    pub fn step(&mut self) -> Result<Step<'_>, Damage> {
        if self.emitted {
            self.restart(self.scanner.at);
        }
        loop {
            match self.advance()? {
                Advance::On => {}
                Advance::More if matches!(self.state, State::Preamble) => return Ok(Step::Preamble),
                Advance::More => return Ok(Step::More),
                Advance::Unit => break,
            }
        }
        self.emitted = true;
        let bytes = &self.buffer[self.origin..];
        Ok(Step::Unit(Unit { bytes, args: &self.scanner.args, requests: &self.found, base: self.base + self.origin as u64 }))
    }

    /// How the file ends. Must be called when [`Reader::step`] asks for more and there is no more.
    ///
    /// # Errors
    /// There is damage that is not at the end of the file.
    pub fn finish(self) -> Result<Ending, Damage> {
        let rest = self.buffer.len() > self.origin;
        match self.state {
            State::Failed(damage) => Err(damage),
            State::Tail(tail) => tail.finish(),
            State::Torn(damage) => Ok(Ending::Torn(damage)),
            State::Preamble => Ok(Ending::Whole),
            _ if rest => {
                let whole = self.base + self.origin as u64;
                Ok(Ending::Torn(Damage { offset: whole + self.scanner.at as u64, whole, reason: Reason::Short }))
            }
            State::Between if self.closed => Ok(Ending::Closed),
            _ => Ok(Ending::Whole),
        }
    }

    /// Begins anew behind `len` bytes of the current unit or batch.
    fn restart(&mut self, len: usize) {
        self.sum = crc64_of_more(self.sum, &self.buffer[self.origin..][..len]);
        self.origin += len;
        (self.scanner.at, self.scanner.start) = (0, 0);
        self.scanner.args.clear();
        self.found.clear();
        (self.emitted, self.multi) = (false, false);
    }

    /// Goes on by one item.
    fn advance(&mut self) -> Result<Advance, Damage> {
        match self.state {
            State::Beginning => self.begin(),
            State::Between => self.between(),
            State::Plain => {
                let next = self.scanner.next(&self.buffer[self.origin..], self.left, true);
                match next {
                    Err(Reason::Short) => {
                        self.state = State::Torn(self.damage_at(self.scanner.at, Reason::Short));
                        self.drop_buffer();
                        Ok(Advance::More)
                    }
                    Err(reason) => self.fail(self.scanner.at, reason),
                    Ok(Item::More) => Ok(Advance::More),
                    Ok(Item::Annotation(line)) => self.annotation(line),
                    Ok(Item::Request { args }) => self.request(args),
                }
            }
            State::Batch(end) => self.batch_item(end),
            State::Failed(damage) => Err(damage),
            State::Preamble | State::Torn(_) | State::Tail(_) => Ok(Advance::More),
        }
    }

    /// Finds out what file it is.
    fn begin(&mut self) -> Result<Advance, Damage> {
        let bytes = &self.buffer[self.origin..];
        let is_or_may_be = |magic: &[u8]| bytes.starts_with(magic) || (magic.starts_with(bytes) && self.left > 0);
        if bytes.is_empty() {
            return Ok(Advance::More);
        }
        if self.at_beginning && bytes.starts_with(RDB_MAGIC) {
            self.state = State::Preamble;
            return Ok(Advance::More);
        }
        if self.at_beginning && is_or_may_be(RDB_MAGIC) {
            return Ok(Advance::More);
        }
        if !self.at_beginning || !is_or_may_be(FILE_TAG) {
            self.state = State::Plain;
            return Ok(Advance::On);
        }
        let Some(line) = bytes.get(..FIRST_LINE) else { return Ok(Advance::More) };
        match salt_of(line) {
            Ok(salt) => {
                self.facts.salt = Some(salt);
                self.restart(FIRST_LINE);
                self.state = State::Between;
                Ok(Advance::On)
            }
            Err(FirstLineError::Newer) => self.fail(0, Reason::NewerFormat),
            Err(FirstLineError::Damaged) => self.fail(0, Reason::BadFirstLine),
        }
    }

    /// Finds out what begins here in a file of ours.
    fn between(&mut self) -> Result<Advance, Damage> {
        let salt = self.facts.salt.unwrap_or_default();
        let bytes = &self.buffer[self.origin..];
        // Whether more bytes may come, without which these do not tell what they are.
        let wait = |len: usize| bytes.len() < len && self.left > 0;
        if bytes.is_empty() || (bytes[0] == b'#' && wait(TIMESTAMP.len().max(CLOSE_TAG.len()))) {
            return Ok(Advance::More);
        }
        let torn_time = self.left == 0 && bytes.len() < TIMESTAMP.len() && TIMESTAMP.starts_with(bytes);
        if bytes[0] == b'*' || torn_time {
            self.state = State::Plain;
            return Ok(Advance::On);
        }
        if bytes.starts_with(TIMESTAMP) {
            // A batch of ours may follow, or requests of a redis-server.
            let Some(end) = memchr::memchr(b'\n', &bytes[..bytes.len().min(LINE_MAX)]) else {
                return if wait(LINE_MAX) { Ok(Advance::More) } else { self.begin_tail(0, Reason::Short) };
            };
            let Some(seconds) = bytes[TIMESTAMP.len()..end].strip_suffix(b"\r").and_then(plain_number) else {
                // A redis-server does not cut the beginning of a line, and appends right behind it.
                self.state = State::Plain;
                return Ok(Advance::On);
            };
            self.timestamp = Some(seconds);
            self.restart(end + 1);
            return Ok(Advance::On);
        }
        if self.closed {
            return self.fail(0, if bytes.starts_with(TAG) { Reason::BehindLastLine } else { Reason::NoRequest });
        }
        if bytes.starts_with(CLOSE_TAG) {
            let Some(line) = bytes.get(..LAST_LINE) else {
                if wait(LAST_LINE) {
                    return Ok(Advance::More);
                }
                if !last_line(salt, self.offset()).starts_with(bytes) {
                    return self.begin_tail(0, Reason::Short);
                }
                // All before it was durable when it was written. It says no more than that, so nothing is lost with it.
                self.drop_buffer();
                return Ok(Advance::More);
            };
            if line != last_line(salt, self.offset()) {
                return self.begin_tail(0, Reason::BadHeader);
            }
            self.closed = true;
            self.facts.synced = self.offset();
            self.restart(LAST_LINE);
            return Ok(Advance::On);
        }
        if !bytes.starts_with(BATCH_TAG) && !BATCH_TAG.starts_with(bytes) {
            return self.begin_tail(0, if bytes[0] == 0 { Reason::Unwritten } else { Reason::NoRequest });
        }
        if bytes.len() < HEADER {
            return if wait(HEADER) { Ok(Advance::More) } else { self.begin_tail(0, Reason::Short) };
        }
        let Some(header) = Header::parse(salt, bytes) else { return self.begin_tail(0, Reason::BadHeader) };
        let have = (bytes.len() - HEADER) as u64;
        if header.bytes > have.saturating_add(self.left) {
            return self.begin_tail(HEADER, Reason::Short);
        }
        if header.bytes > have {
            self.lay_out(header.bytes);
            return Ok(Advance::More);
        }
        if crc64(&bytes[HEADER..][..header.bytes as usize]) != header.crc {
            return self.begin_tail(HEADER, Reason::WrongChecksum);
        }
        self.facts.batches += 1;
        self.facts.synced = self.facts.synced.max(header.synced.min(self.offset()));
        self.restart(HEADER);
        self.state = State::Batch(self.offset() + header.bytes);
        Ok(Advance::On)
    }

    /// The next item of a batch that ends at this offset.
    fn batch_item(&mut self, end: u64) -> Result<Advance, Damage> {
        let bytes = &self.buffer[self.origin..][..(end - self.offset()) as usize];
        if self.scanner.at == bytes.len() && self.scanner.is_between() && !self.multi {
            self.restart(self.scanner.at);
            self.state = State::Between;
            return Ok(Advance::On);
        }
        match self.scanner.next(bytes, 0, false) {
            Ok(Item::Request { args }) => self.request(args),
            Ok(Item::Annotation(line)) => {
                self.time(line);
                Ok(Advance::On)
            }
            Ok(Item::More) | Err(Reason::Short) => self.fail(self.scanner.at, Reason::SplitUnit),
            Err(reason) => self.fail(self.scanner.at, reason),
        }
    }

    fn request(&mut self, args: usize) -> Result<Advance, Damage> {
        let all = self.scanner.args.len();
        let arg = |at: usize| &self.buffer[self.origin..][self.scanner.args[all - args + at].clone()];
        let name = arg(0);
        let (multi, exec) = (name.eq_ignore_ascii_case(b"MULTI"), name.eq_ignore_ascii_case(b"EXEC"));
        if args == 1 && (multi || exec) {
            if multi == self.multi {
                let reason = if multi { Reason::NestedMulti } else { Reason::ExecWithoutMulti };
                return self.fail(self.scanner.start, reason);
            }
            self.scanner.args.pop();
            self.multi = multi;
        } else {
            if args == 2 && name.eq_ignore_ascii_case(b"SELECT") {
                self.selected = plain_number(arg(1)).and_then(|db| u32::try_from(db).ok());
            }
            self.found.push(Found { start: self.scanner.start, args: all - args..all });
        }
        if self.multi {
            return Ok(Advance::On);
        }
        if self.found.is_empty() {
            self.restart(self.scanner.at);
            return Ok(Advance::On);
        }
        Ok(Advance::Unit)
    }

    /// An annotation in what a redis-server wrote.
    fn annotation(&mut self, line: Range<usize>) -> Result<Advance, Damage> {
        let bytes = &self.buffer[self.origin..][line.clone()];
        if [FILE_TAG, BATCH_TAG, CLOSE_TAG].iter().any(|tag| bytes.starts_with(tag)) {
            if self.facts.salt.is_none() {
                return self.fail(self.scanner.start, Reason::NoFirstLine);
            }
            if self.multi {
                return self.fail(self.scanner.start, Reason::MultiWithoutExec);
            }
            self.restart(self.scanner.start);
            self.state = State::Between;
            return Ok(Advance::On);
        }
        self.time(line);
        if !self.multi {
            self.restart(self.scanner.at);
        }
        Ok(Advance::On)
    }

    /// Reads an annotation that may have a time.
    fn time(&mut self, line: Range<usize>) {
        let line = &self.buffer[self.origin..][line];
        if let Some(seconds) = line.strip_prefix(TIMESTAMP).and_then(plain_number) {
            self.timestamp = Some(seconds);
        }
    }

    fn damage_at(&self, at: usize, reason: Reason) -> Damage {
        Damage { offset: self.offset() + at as u64, whole: self.offset(), reason }
    }

    /// Drops what is before the current unit or batch.
    fn drop_read(&mut self) {
        self.buffer.drain(..self.origin);
        self.base += self.origin as u64;
        self.origin = 0;
    }

    /// Makes room for a batch with a body of this length, and for what the last piece has behind it.
    fn lay_out(&mut self, body: u64) {
        self.drop_read();
        let room = HEADER + body as usize + self.piece;
        if self.buffer.capacity() < room {
            // The old room and the new one are not there at once.
            self.buffer.shrink_to_fit();
            self.buffer.reserve_exact(room - self.buffer.len());
        }
    }

    /// Drops what was fed. The offset stays where it is.
    fn drop_buffer(&mut self) {
        (self.base, self.origin, self.buffer) = (self.offset(), 0, Vec::new());
        (self.scanner, self.found) = (Scanner::default(), Vec::new());
    }

    /// Ends the reading.
    fn fail(&mut self, at: usize, reason: Reason) -> Result<Advance, Damage> {
        let damage = self.damage_at(at, reason);
        self.state = State::Failed(damage);
        self.drop_buffer();
        Err(damage)
    }

    /// Begins to look for what decides whether a bad batch is damage.
    fn begin_tail(&mut self, at: usize, reason: Reason) -> Result<Advance, Damage> {
        let bytes = &self.buffer[self.origin..];
        let mut tail = Tail::new(self.damage_at(at, reason), self.facts.salt.unwrap_or_default(), bytes, self.selected);
        let fed = tail.feed(bytes);
        self.state = match fed {
            Ok(()) => State::Tail(Box::new(tail)),
            Err(damage) => State::Failed(damage),
        };
        self.drop_buffer();
        Ok(Advance::On)
    }
}
