//! What is in a file from some offset on, read without the order that damage has destroyed: what would be lost if it were cut there.
//!
//! Requests are looked for at the beginnings of lines. An argument may look like one, behind damage, so this is a list for a person
//! and no more.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use crate::commands;
use crate::keyspace::rdb::parts::crc64_of_more;
use crate::persist::append::batch::{BATCH_TAG, CLOSE_TAG, HEADER, Header, LAST_LINE, TAG, last_line};
use crate::persist::append::read::{ARGUMENT_BYTES_MAX, ARGUMENTS_MAX, LINE_MAX};
use crate::persist::natives::clock::Moment;
use crate::persist::natives::{self, Native};

/// Maximum number of requests that are listed.
pub const LISTED_MAX: usize = 20;
/// Maximum number of bytes of an argument that are kept: a record of a lock is longer than a key.
const KEPT_MAX: u64 = 4096;
/// Arguments of a request that are kept.
const ARGS_KEPT: u64 = 3;
/// Maximum number of bytes of a name or key that is shown.
const SHOWN_MAX: usize = 64;
/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// A request that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Where it begins.
    pub offset: u64,
    /// The number of its unit behind the offset at which the search began, from 1 on.
    pub unit: u64,
    /// Its command, and its key where it has one.
    pub what: String,
}

/// What is in a file from an offset on.
#[derive(Clone, Debug, Default)]
pub struct Rest {
    /// Bytes.
    pub bytes: u64,
    /// Batches whose headers and checksums are right, without the first if that is where it begins.
    pub whole_batches: u64,
    /// Units: requests, and transactions.
    pub units: u64,
    /// Units that were durable, by what headers behind them say.
    pub durable_units: u64,
    /// Up to where the file was durable, by what these headers say; 0 if they say nothing of these bytes.
    pub durable: u64,
    /// Requests.
    pub requests: u64,
    /// The first [`LISTED_MAX`] requests.
    pub listed: Vec<Found>,
    /// The last request that begins at the offset of the damage or before it.
    pub damaged: Option<Found>,
}

/// Looks at the bytes from `from` on. `salt` is that of the file if it is ours, and `damage` is the offset of the damage.
///
/// # Errors
/// The system's.
pub fn rest_of(file: &File, from: u64, salt: Option<u64>, damage: u64, moment: &Moment) -> io::Result<Rest> {
    // What was durable is only known at the end.
    let durable = Search::new(file, from, salt, damage, moment)?.run(0)?.durable;
    Search::new(file, from, salt, damage, moment)?.run(durable)
}

struct Search<'a> {
    input: BufReader<File>,
    at: u64,
    /// The length of the file.
    len: u64,
    salt: Option<u64>,
    damage: u64,
    moment: &'a Moment,
    /// Where the last whole batch ends.
    batch_end: u64,
    in_multi: bool,
    rest: Rest,
}

/// A part of a line that was read.
enum Line {
    /// The end of the file.
    End,
    /// A line with its end.
    Whole(Vec<u8>),
    /// The beginning of a longer line, or the last bytes.
    Part,
}

impl<'a> Search<'a> {
    fn new(file: &File, from: u64, salt: Option<u64>, damage: u64, moment: &'a Moment) -> io::Result<Search<'a>> {
        let mut file = file.try_clone()?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(from))?;
        let input = BufReader::with_capacity(PIECE, file);
        let rest = Rest { bytes: len.saturating_sub(from), ..Rest::default() };
        Ok(Search { input, at: from, len, salt, damage, moment, batch_end: 0, in_multi: false, rest })
    }

    fn run(mut self, durable: u64) -> io::Result<Rest> {
        let from = self.at;
        loop {
            let start = self.at;
            match self.line()? {
                Line::End => return Ok(self.rest),
                Line::Whole(line) if line.starts_with(TAG) => self.line_of_ours(start, from, &line)?,
                Line::Whole(line) if line[0] == b'*' => {
                    if let Some(count) = number(&line).filter(|count| (1..=ARGUMENTS_MAX).contains(count)) {
                        self.request(start, count, durable)?;
                    }
                }
                Line::Whole(_) | Line::Part => {}
            }
        }
    }

    /// Reads up to the end of a line, or as much as a line may have.
    fn line(&mut self) -> io::Result<Line> {
        let mut line = Vec::new();
        let count = (&mut self.input).take(LINE_MAX as u64).read_until(b'\n', &mut line)?;
        self.at += count as u64;
        Ok(match line.last() {
            None => Line::End,
            Some(b'\n') => Line::Whole(line),
            Some(_) => Line::Part,
        })
    }

    /// Goes on behind this many bytes. Returns false if there are fewer.
    fn skip(&mut self, count: u64) -> io::Result<bool> {
        let there = self.left();
        let count_there = count.min(there);
        self.input.seek_relative(i64::try_from(count_there).unwrap_or(i64::MAX))?;
        self.at += count_there;
        Ok(count <= there)
    }

    fn left(&self) -> u64 {
        self.len.saturating_sub(self.at)
    }

    /// A header or a last line.
    fn line_of_ours(&mut self, start: u64, from: u64, line: &[u8]) -> io::Result<()> {
        let Some(salt) = self.salt else { return Ok(()) };
        if line.starts_with(CLOSE_TAG) && line.len() == LAST_LINE && line == last_line(salt, start) {
            self.rest.durable = if start > from { start } else { 0 };
        }
        let header = line.starts_with(BATCH_TAG).then(|| Header::parse(salt, line)).flatten();
        let Some(header) = header.filter(|_| line.len() == HEADER) else { return Ok(()) };
        self.in_multi = false;
        self.rest.durable = self.rest.durable.max(Some(header.synced.min(start)).filter(|synced| *synced > from).unwrap_or(0));
        if start > from && start >= self.batch_end && header.bytes <= self.left() && self.sum(header.bytes)? == header.crc {
            self.rest.whole_batches += 1;
            self.batch_end = self.at + header.bytes;
        }
        Ok(())
    }

    /// The checksum of the next bytes. The position stays.
    fn sum(&mut self, count: u64) -> io::Result<u64> {
        let (mut sum, mut left) = (0, count);
        while left > 0 {
            let bytes = self.input.fill_buf()?;
            let taken = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            if taken == 0 {
                break;
            }
            sum = crc64_of_more(sum, &bytes[..taken]);
            self.input.consume(taken);
            left -= taken as u64;
        }
        self.input.seek(SeekFrom::Start(self.at))?;
        Ok(sum)
    }

    /// Reads the arguments of a request. Where one is malformed, the search goes on behind the line with its length.
    fn request(&mut self, start: u64, count: u64, durable: u64) -> io::Result<()> {
        let mut kept = Vec::new();
        for arg in 0..count {
            let Line::Whole(line) = self.line()? else { break };
            let len = number(&line).filter(|len| line[0] == b'$' && *len <= ARGUMENT_BYTES_MAX);
            let Some(len) = len else {
                // It may be the first line of the next request.
                self.input.seek_relative(-(line.len() as i64))?;
                self.at -= line.len() as u64;
                break;
            };
            let begin = self.at;
            let mut bytes = Vec::new();
            if arg < ARGS_KEPT {
                self.at += (&mut self.input).take(len.min(KEPT_MAX)).read_to_end(&mut bytes)? as u64;
            }
            let mut end = Vec::new();
            if self.skip(len - bytes.len() as u64)? {
                self.at += (&mut self.input).take(2).read_to_end(&mut end)? as u64;
            }
            // The name of a command is only one when it is whole.
            if arg < ARGS_KEPT && (arg > 0 || end == b"\r\n") {
                kept.push(bytes);
            }
            if end != b"\r\n" && !end.is_empty() && self.left() > 0 {
                self.input.seek(SeekFrom::Start(begin))?;
                self.at = begin;
                break;
            }
        }
        self.found(start, &kept, durable);
        Ok(())
    }

    fn found(&mut self, start: u64, args: &[Vec<u8>], durable: u64) {
        let name = args.first().map(Vec::as_slice).unwrap_or_default();
        if name.eq_ignore_ascii_case(b"EXEC") && self.in_multi {
            self.in_multi = false;
            return;
        }
        if !self.in_multi {
            self.rest.units += 1;
            self.rest.durable_units += u64::from(start < durable);
        }
        if name.eq_ignore_ascii_case(b"MULTI") {
            self.in_multi = true;
            return;
        }
        self.rest.requests += 1;
        let found = Found { offset: start, unit: self.rest.units, what: self.describe(args) };
        if start <= self.damage || self.rest.damaged.is_none() {
            self.rest.damaged = Some(found.clone());
        }
        if self.rest.listed.len() < LISTED_MAX {
            self.rest.listed.push(found);
        }
    }

    /// The command, and the key that it is about.
    fn describe(&self, args: &[Vec<u8>]) -> String {
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        let Some(name) = args.first().map(|name| shown(name)) else {
            return "a request whose name is damaged or cut off".to_owned();
        };
        let key = if natives::is_native(args[0]) {
            match natives::read(&args, self.moment) {
                Ok(
                    Native::Lock { name, .. }
                    | Native::Latch { name, .. }
                    | Native::Guard { name, .. }
                    | Native::Requests { name, .. }
                    | Native::Forget { name, .. },
                ) => Some(name.to_vec()),
                Ok(Native::Session { session, .. }) => Some(session.id.to_vec()),
                Ok(Native::EndSession { id, .. }) => Some(id.to_vec()),
                Ok(Native::Token(_)) | Err(_) => None,
            }
        } else {
            let first = match commands::table().lookup_with_first_key(args[0]) {
                (_, 0) if args[0].eq_ignore_ascii_case(b"XGROUP") => 2,
                (Some(_), first) => first,
                (None, _) => 1,
            };
            args.get(first).filter(|_| first > 0).map(|key| key.to_vec())
        };
        key.map_or(name.clone(), |key| format!("{name} {}", shown(&key)))
    }
}

/// A name or key as a person reads it.
pub fn shown(bytes: &[u8]) -> String {
    match bytes.get(..SHOWN_MAX) {
        Some(start) if bytes.len() > SHOWN_MAX => format!("{}…", start.escape_ascii()),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// The number in a line, behind its first byte.
fn number(line: &[u8]) -> Option<u64> {
    let digits = line.get(1..)?.strip_suffix(b"\n")?;
    let digits = digits.strip_suffix(b"\r").unwrap_or(digits);
    let plain = (1..=18).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    plain.then(|| digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}
