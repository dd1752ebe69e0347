//! What follows a bad batch: a torn tail, or damage in the middle.
//!
//! ```text
//!   bytes from the bad batch on ─┬▶ Search: a header or last line of ours, with a right check ── made something durable behind ─▶ Damage
//!                                └▶ Continuation: requests that a redis-server appended ──────── at the end of the file ──────▶ Damage
//! ```
//!
//! A power loss may lose batches that were not synced, and keep later ones: such a tail is torn, and nothing that was acknowledged
//! under `appendfsync always` is in it. But a later header that says that the bad batch was durable is proof of damage. The body of
//! that later batch proves nothing more, so it is not needed.
//!
//! A redis-server cuts our torn batch after its last whole request and appends its own requests, which must not be cut off as a torn
//! tail. Two things are not in a batch of ours: requests behind its length, and a `SELECT` of the database that is already selected.
//!
//! Memory: [`PIECE`], and less than a line.

use memchr::memmem;

use crate::persist::append::batch::{BATCH_TAG, CLOSE_TAG, HEADER, Header, LAST_LINE, TAG, last_line, len_of_cut};
use crate::persist::append::read::{Damage, Ending, Reason};
use crate::persist::append::scan::{ARGUMENT_BYTES_MAX, ARGUMENTS_MAX, plain_number};

/// The beginning of a time of a redis-server's.
pub(super) const TIMESTAMP: &[u8] = b"#TS:";

/// Bytes that are looked at at once.
const PIECE: usize = 16 << 10;

/// Maximum number of bytes of a number's or a time's line.
const LINE_MAX: usize = 64;

/// Arguments up to this length are kept while a request is read: longer than any name of a command and any database's number.
const KEPT_MAX: usize = 64;

/// The bytes from a bad batch on.
#[derive(Debug)]
pub(super) struct Tail {
    /// What is wrong with the bad batch.
    damage: Damage,
    salt: u64,
    /// The last bytes that were fed, which may be the beginning of a line.
    window: Vec<u8>,
    /// Offset of the window in the file.
    offset: u64,
    continuation: Option<Continuation>,
}

impl Tail {
    /// The tail that begins with a bad batch, `first` being its first bytes: the whole header if the file has it. `selected` is the
    /// database that was selected before.
    pub fn new(damage: Damage, salt: u64, first: &[u8], selected: Option<u32>) -> Tail {
        let at = damage.whole;
        let continuation = match Header::parse(salt, first) {
            Some(header) => {
                let at = at + HEADER as u64;
                Some(Continuation::new(at, Some(at.saturating_add(header.bytes)), selected, None))
            }
            // A redis-server does not cut the beginning of a line, and appends right behind it.
            None => match len_of_cut(first) {
                len if len > 0 && matches!(first.get(len), Some(b'*' | b'#')) => {
                    let at = at + len as u64;
                    Some(Continuation::new(at, None, selected, Some(at)))
                }
                _ => None,
            },
        };
        Tail { damage, salt, window: Vec::new(), offset: at, continuation }
    }

    /// Takes the next bytes of the file, from the bad batch on.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Damage> {
        bytes.chunks(PIECE).try_for_each(|piece| self.feed_piece(piece))
    }

    fn feed_piece(&mut self, bytes: &[u8]) -> Result<(), Damage> {
        if let Some(continuation) = &mut self.continuation
            && !continuation.feed(self.offset + self.window.len() as u64, bytes)
        {
            self.continuation = None;
        }
        self.window.extend_from_slice(bytes);
        for at in memmem::find_iter(&self.window, TAG) {
            fail_if!(self.proves_damage(at), self.damage);
        }
        let done = self.window.len().saturating_sub(HEADER - 1);
        self.window.drain(..done);
        self.offset += done as u64;
        Ok(())
    }

    /// Whether the window has, at this position, a line of ours that says that the bad batch was durable.
    fn proves_damage(&self, at: usize) -> bool {
        let (line, offset) = (&self.window[at..], self.offset + at as u64);
        if line.starts_with(BATCH_TAG) {
            Header::parse(self.salt, line).is_some_and(|header| header.synced > self.damage.whole)
        } else {
            line.starts_with(CLOSE_TAG) && line.get(..LAST_LINE).is_some_and(|line| line == last_line(self.salt, offset))
        }
    }

    /// What the tail is, at the end of the file.
    pub fn finish(self) -> Result<Ending, Damage> {
        match self.continuation.and_then(Continuation::finish) {
            Some(offset) => Err(Damage { offset, reason: Reason::Continued, ..self.damage }),
            None => Ok(Ending::Torn(self.damage)),
        }
    }
}

/// What a continuation consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// A line: of a time, of a number of arguments, or of an argument's length.
    Line,
    /// The bytes of an argument, of which so many are to come.
    Argument(u64),
    /// The line end of an argument, of which so many bytes were there.
    End(usize),
}

/// Requests and times, from a bad batch's header to the end of the file, read without keeping them.
#[derive(Debug)]
struct Continuation {
    part: Part,
    line: Vec<u8>,
    /// Arguments of the current request that are to come.
    left: u64,
    /// The first two arguments of the current request; longer ones are cut.
    kept: [Vec<u8>; 2],
    /// Number of its arguments so far.
    args: u64,
    /// Where it begins, or the line of a time.
    start: u64,
    /// Where the times begin behind which there is no request yet.
    times: Option<u64>,
    /// The next byte's offset in the file.
    at: u64,
    /// Where the bad batch ends, by its header.
    end: Option<u64>,
    selected: Option<u32>,
    /// Where a line of ours is cut: the first whole request behind it is not ours.
    cut: Option<u64>,
    /// Where there is something that is not ours.
    foreign: Option<u64>,
}

impl Continuation {
    fn new(at: u64, end: Option<u64>, selected: Option<u32>, cut: Option<u64>) -> Continuation {
        let (line, kept) = (Vec::new(), [Vec::new(), Vec::new()]);
        Continuation {
            part: Part::Line,
            line,
            left: 0,
            kept,
            args: 0,
            start: at,
            times: None,
            at,
            end,
            selected,
            cut,
            foreign: None,
        }
    }

    /// Takes the bytes at this offset. Returns false where there is neither a request nor a time of a redis-server's.
    fn feed(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let skip = self.at.saturating_sub(offset).min(bytes.len() as u64) as usize;
        let mut rest = &bytes[skip..];
        while !rest.is_empty() {
            let (taken, fits) = match self.part {
                Part::Line => self.feed_line(rest),
                Part::Argument(left) => (self.feed_argument(rest, left), true),
                Part::End(at) => (1, self.feed_end(rest[0], at)),
            };
            if !fits {
                return false;
            }
            self.at += taken as u64;
            rest = &rest[taken..];
        }
        true
    }

    fn feed_line(&mut self, bytes: &[u8]) -> (usize, bool) {
        if self.line.is_empty() && self.left == 0 {
            self.start = self.at;
        }
        let (taken, whole) = memchr::memchr(b'\n', bytes).map_or((bytes.len(), false), |end| (end + 1, true));
        if self.line.len() + taken > LINE_MAX {
            return (taken, false);
        }
        self.line.extend_from_slice(&bytes[..taken]);
        if !whole {
            return (taken, true);
        }
        let line = std::mem::take(&mut self.line);
        let Some(line) = line.strip_suffix(b"\r\n") else { return (taken, false) };
        if self.left == 0 {
            if let Some(digits) = line.strip_prefix(TIMESTAMP) {
                self.times.get_or_insert(self.start);
                return (taken, plain_number(digits).is_some());
            }
            self.times = None;
            let count = line.strip_prefix(b"*").and_then(plain_number).filter(|count| (1..=ARGUMENTS_MAX).contains(count));
            (self.left, self.args) = (count.unwrap_or(0), 0);
            self.kept.iter_mut().for_each(Vec::clear);
            return (taken, count.is_some());
        }
        let len = line.strip_prefix(b"$").and_then(plain_number).filter(|len| *len <= ARGUMENT_BYTES_MAX);
        self.part = match len {
            Some(0) | None => Part::End(0),
            Some(len) => Part::Argument(len),
        };
        (taken, len.is_some())
    }

    fn feed_argument(&mut self, bytes: &[u8], left: u64) -> usize {
        let taken = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if let Some(kept) = self.kept.get_mut(self.args as usize) {
            let room = (KEPT_MAX - kept.len()).min(taken);
            kept.extend_from_slice(&bytes[..room]);
        }
        self.part = match left - taken as u64 {
            0 => Part::End(0),
            left => Part::Argument(left),
        };
        taken
    }

    fn feed_end(&mut self, byte: u8, at: usize) -> bool {
        if byte != b"\r\n"[at] {
            return false;
        }
        self.part = if at == 0 { Part::End(1) } else { Part::Line };
        if at == 1 {
            self.left -= 1;
            self.args += 1;
            return self.left > 0 || self.end_request();
        }
        true
    }

    /// Returns false where no server has written the request.
    fn end_request(&mut self) -> bool {
        let [name, db] = &self.kept;
        if !name.iter().all(u8::is_ascii_graphic) {
            return false;
        }
        self.foreign = self.foreign.or(self.cut);
        if self.args == 2 && name.eq_ignore_ascii_case(b"SELECT") {
            // A number that is not read may be one that was lost: nothing is known then.
            let db = plain_number(db).and_then(|db| u32::try_from(db).ok());
            if db.is_some() && db == self.selected {
                self.foreign.get_or_insert(self.start);
            }
            self.selected = db;
        }
        true
    }

    /// Where there is something that is not ours. The last request may be torn.
    fn finish(self) -> Option<u64> {
        let tags: &[&[u8]] = if self.left > 0 { &[b"$"] } else { &[b"*", TIMESTAMP] };
        let of_numbers = |tag: &&[u8]| {
            let digits = self.line.strip_prefix(*tag).map(|rest| rest.strip_suffix(b"\r").unwrap_or(rest));
            digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_digit))
        };
        if self.part == Part::Line && !self.line.is_empty() && !tags.iter().any(of_numbers) {
            return None;
        }
        // A batch of ours may begin with a time, and be lost behind it.
        let in_time = self.part == Part::Line && self.left == 0 && self.line.starts_with(b"#");
        let requests_end = self.times.unwrap_or(if in_time { self.start } else { self.at });
        self.foreign.or(self.end.filter(|end| *end < requests_end))
    }
}
