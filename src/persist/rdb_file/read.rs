//! The reader: takes a file in pieces of any size, and returns what it has, item by item.
//!
//! The memory is bounded by what was fed: a length is believed only when the bytes are there. A value is kept until it is whole,
//! and is not taken apart here.

use std::borrow::Cow;

use crate::keyspace::rdb::parts::{VERSION_MAX, chunk, crc64_of_more, plain_length, string};
use crate::persist::rdb_file::fault::{Counts, Doing, Fault, Reason};
use crate::persist::rdb_file::shape::{Part, Walk, Walked, of_opcode, of_value};
use crate::persist::rdb_file::{SIGNATURE, opcode};

/// Bytes of signature and version.
const HEAD: usize = 9;
/// Capacity that the buffer keeps after a large value.
const KEPT: usize = 1 << 20;
/// The types of values that only modules can read.
const MODULE_PRE_GA: u8 = 6;
const MODULE: u8 = 7;

/// What is in a file.
#[allow(missing_docs, reason = "the documentation of the enum and of its variants has them")]
#[derive(Debug)]
pub enum Event<'a> {
    /// The version of its format.
    Version(u16),
    /// A named field. `offset`: where it begins. `counts`: what was read before.
    Aux { name: Cow<'a, [u8]>, value: Cow<'a, [u8]>, offset: u64, counts: Counts },
    /// The source of a library of functions.
    Library(Cow<'a, [u8]>),
    /// The next keys belong to this database. `offset`: where it begins. `counts`: what was read before.
    Database { db: u32, offset: u64, counts: Counts },
    /// How many keys the database has, and how many of them with deadlines: a hint.
    #[allow(dead_code, reason = "tests use it")]
    Sizes { keys: u64, expires: u64 },
    /// How many keys a slot of a cluster has, and how many of them with deadlines: a hint.
    #[allow(dead_code, reason = "tests use it")]
    Slot { slot: u64, keys: u64, expires: u64 },
    /// A key.
    Key(KeyRecord<'a>),
    /// The end. What follows in the input is no part of the file: [`Reader::rest`].
    End(Checksum),
}

/// A key of a file.
#[derive(Debug)]
pub struct KeyRecord<'a> {
    /// The index of its database.
    pub db: u32,
    /// Its name.
    pub name: Cow<'a, [u8]>,
    /// The type of the value: [`kind`].
    pub kind: u8,
    /// The value, which is as long as its type requires, but may be malformed otherwise.
    pub value: &'a [u8],
    /// Its deadline, as a Unix time in milliseconds.
    pub deadline: Option<i64>,
    /// Seconds since its last use.
    pub idle_seconds: Option<u64>,
    /// The counter of its uses.
    pub frequency: Option<u8>,
    /// Where its type stands.
    pub offset: u64,
    /// What was read before, and the name of this one.
    pub counts: Counts,
}

impl KeyRecord<'_> {
    /// A fault in this key.
    pub fn fault(&self, reason: Reason) -> Fault {
        Fault {
            reason,
            offset: self.offset,
            doing: Doing::Value,
            key: Some(self.name.as_ref().into()),
            kind: Some(self.kind),
            counts: self.counts,
        }
    }
}

/// The result of the check of the whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// It is right.
    Right,
    /// The file was written without one.
    None,
    /// It was not looked at: the caller did not want it, or the version had none.
    Unchecked,
}

/// An item whose end is not known yet. Places are relative to its first byte.
#[derive(Debug)]
struct Item {
    tag: u8,
    walk: Walk,
    /// Where the name of the key ends.
    name_end: Option<usize>,
    is_key: bool,
}

/// An item that was taken from the buffer.
struct Taken {
    tag: u8,
    /// Its first byte in the buffer, and the end of its last.
    start: usize,
    end: usize,
    /// Where the name of a key ends.
    name_end: Option<usize>,
    /// Its offset in the file.
    offset: u64,
}

/// Reads a file.
pub struct Reader {
    /// Input that is not read yet, from `start` on.
    buffer: Vec<u8>,
    start: usize,
    /// The offset in the file of the byte at `start`.
    offset: u64,
    /// The length of the file, if it is known.
    len: Option<u64>,
    checks: bool,
    /// The time of reading, as a Unix time in milliseconds.
    unix_ms: i64,
    crc: u64,
    /// 0 before the head is read.
    version: u16,
    item: Option<Item>,
    ended: bool,
    db: u32,
    /// Attributes of the next key.
    deadline: Option<i64>,
    idle_seconds: Option<u64>,
    frequency: Option<u8>,
    counts: Counts,
}

impl Reader {
    /// Begins a file, whose checksum is compared if `checks`. With the length of the file, one that is cut off is found as soon as
    /// a length reaches beyond its end. `unix_ms` is the present time, by which expired keys are counted.
    pub fn new(len: Option<u64>, checks: bool, unix_ms: i64) -> Reader {
        Reader {
            buffer: Vec::new(),
            start: 0,
            offset: 0,
            len,
            checks,
            unix_ms,
            crc: 0,
            version: 0,
            item: None,
            ended: false,
            db: 0,
            deadline: None,
            idle_seconds: None,
            frequency: None,
            counts: Counts::default(),
        }
    }

    /// Adds input.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        if self.buffer.capacity() > KEPT && self.buffer.len() + bytes.len() < KEPT {
            self.buffer.shrink_to(KEPT);
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The offset in the file of the first byte that was not read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What was read so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Input that was not read: after the end, what follows the file.
    pub fn rest(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Whether the end of the file was read.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The fault of a file that ends here, unless it is whole. Call it when there is no more input and [`Reader::next`] has returned
    /// `None`.
    pub fn check_end(&self) -> Result<(), Fault> {
        if self.ended { Ok(()) } else { Err(self.fault_here(Reason::End, self.offset + self.rest().len() as u64)) }
    }

    /// The next item; `None` if it needs more input, or if the file has ended.
    #[allow(clippy::should_implement_trait, reason = "an iterator could not lend its buffer")]
    pub fn next(&mut self) -> Result<Option<Event<'_>>, Fault> {
        if self.ended {
            return Ok(None);
        }
        if self.version == 0 {
            return self.head().map(|version| version.map(Event::Version));
        }
        loop {
            let Some(taken) = self.take_item()? else { return Ok(None) };
            let item = &self.buffer[taken.start..taken.end];
            match taken.tag {
                opcode::EXPIRETIME => self.deadline = Some(i64::from(i32::from_le_bytes(fixed(&item[1..]))) * 1000),
                // Negative times have passed, but -1 stands for none.
                opcode::EXPIRETIME_MS => self.deadline = Some(i64::from_le_bytes(fixed(&item[1..]))).filter(|&ms| ms != -1),
                opcode::FREQ => self.frequency = Some(item[1]),
                opcode::IDLE => self.idle_seconds = numbers::<1>(item).map(|[seconds]| seconds),
                _ => return self.event(taken).map(Some),
            }
        }
    }

    /// Reads signature and version.
    fn head(&mut self) -> Result<Option<u16>, Fault> {
        let head = &self.buffer[..self.buffer.len().min(HEAD)];
        let fault = |reason, offset| Err(self.fault_here(reason, offset));
        if head.len() < HEAD {
            return match self.len {
                Some(len) if len < HEAD as u64 => fault(Reason::End, len),
                _ => Ok(None),
            };
        }
        if !head.starts_with(SIGNATURE) {
            return fault(Reason::Signature, HEAD as u64);
        }
        // As `atoi` reads it: up to the first other character.
        let digits = head[SIGNATURE.len()..].iter().take_while(|byte| byte.is_ascii_digit());
        let version = digits.fold(0, |version, digit| version * 10 + u16::from(digit - b'0'));
        if version == 0 || version > VERSION_MAX {
            return fault(Reason::Version(version.into()), HEAD as u64);
        }
        self.version = version;
        self.pass(HEAD);
        Ok(Some(version))
    }

    /// Goes on behind bytes that were read.
    fn pass(&mut self, len: usize) {
        if self.checks {
            self.crc = crc64_of_more(self.crc, &self.buffer[self.start..][..len]);
        }
        self.start += len;
        self.offset += len as u64;
    }

    /// Takes the next item; `None` if it is not whole.
    fn take_item(&mut self) -> Result<Option<Taken>, Fault> {
        loop {
            let rest = &self.buffer[self.start..];
            let Some(item) = &mut self.item else {
                let Some(&tag) = rest.first() else {
                    return if self.len.is_some_and(|len| self.offset >= len) {
                        Err(self.fault_here(Reason::End, self.offset))
                    } else {
                        Ok(None)
                    };
                };
                self.item = Some(self.begin(tag)?);
                continue;
            };
            match item.walk.go_on(rest) {
                Walked::Needs(len) => {
                    let needed = self.offset.saturating_add(len as u64);
                    return match self.len {
                        Some(len) if needed > len => Err(self.fault_here(Reason::End, len)),
                        _ => Ok(None),
                    };
                }
                Walked::NoLength(byte) => {
                    let offset = self.offset + item.walk.at() as u64;
                    return Err(self.fault_here(Reason::Length(byte), offset));
                }
                Walked::NoString(byte) => {
                    let offset = self.offset + item.walk.at() as u64;
                    return Err(self.fault_here(Reason::Encoding(byte), offset));
                }
                Walked::Whole(end) if item.is_key && item.name_end.is_none() => {
                    item.name_end = Some(end);
                    match item.tag {
                        MODULE_PRE_GA => return Err(self.fault_here(Reason::ModulePreGa, self.offset)),
                        MODULE => item.walk = Walk::new(&[Part::Number], end),
                        kind => item.walk = Walk::new(of_value(kind).unwrap_or_default(), end),
                    }
                }
                Walked::Whole(end) => {
                    let (tag, name_end) = (item.tag, item.name_end);
                    if name_end.is_some() && tag == MODULE || name_end.is_none() && tag == opcode::MODULE_AUX {
                        let mut id = &rest[name_end.unwrap_or(1)..];
                        let name = module_name(plain_length(&mut id).unwrap_or_default() as u64);
                        let reason = if name_end.is_some() { Reason::ModuleValue(name) } else { Reason::ModuleAux(name) };
                        return Err(self.fault_here(reason, self.offset));
                    }
                    let (start, offset) = (self.start, self.offset);
                    // The checksum covers all bytes but its own.
                    let covered = if tag == opcode::EOF { 1 } else { end };
                    self.pass(covered);
                    self.start += end - covered;
                    self.offset += (end - covered) as u64;
                    self.item = None;
                    return Ok(Some(Taken { tag, start, end: start + end, name_end, offset }));
                }
            }
        }
    }

    /// Begins an item.
    fn begin(&self, tag: u8) -> Result<Item, Fault> {
        fail_if!(tag == opcode::FUNCTION_PRE_GA, self.fault_of(Reason::FunctionsPreGa, self.offset, Doing::Functions));
        if let Some(parts) = of_opcode(tag, self.version) {
            return Ok(Item { tag, walk: Walk::new(parts, 1), name_end: None, is_key: false });
        }
        if of_value(tag).is_none() && !matches!(tag, MODULE_PRE_GA | MODULE) {
            return Err(self.fault_of(Reason::Type(tag), self.offset, Doing::Type));
        }
        Ok(Item { tag, walk: Walk::new(&[Part::Text], 1), name_end: None, is_key: true })
    }

    /// What an item says.
    fn event(&mut self, taken: Taken) -> Result<Event<'_>, Fault> {
        let Taken { tag, start, end, name_end, offset } = taken;
        if let Some(name_end) = name_end {
            let (deadline, idle_seconds, frequency) = (self.deadline.take(), self.idle_seconds.take(), self.frequency.take());
            self.counts.keys += 1;
            let counts = self.counts;
            self.counts.expires += u64::from(deadline.is_some());
            self.counts.already_expired += u64::from(deadline.is_some_and(|deadline| deadline < self.unix_ms));
            let item = &self.buffer[start..end];
            let Some(name) = string(&mut &item[1..name_end]) else {
                return Err(self.fault_of(Reason::Malformed, offset, Doing::Key));
            };
            let (db, value) = (self.db, &item[name_end..]);
            return Ok(Event::Key(KeyRecord { db, name, kind: tag, value, deadline, idle_seconds, frequency, offset, counts }));
        }
        let malformed = |doing| self.fault_of(Reason::Malformed, offset, doing);
        let item = &self.buffer[start..end];
        match tag {
            opcode::AUX => {
                let mut rest = &item[1..];
                let read = (|| Some((string(&mut rest)?, string(&mut rest)?)))();
                let (name, value) = read.ok_or_else(|| malformed(Doing::Aux))?;
                Ok(Event::Aux { name, value, offset, counts: self.counts })
            }
            opcode::FUNCTION2 => string(&mut &item[1..]).map(Event::Library).ok_or_else(|| malformed(Doing::Functions)),
            opcode::SELECTDB => {
                let db = numbers::<1>(item).and_then(|[db]| u32::try_from(db).ok());
                self.db = db.ok_or_else(|| self.fault_of(Reason::Databases(u32::MAX as usize), offset, Doing::Length))?;
                Ok(Event::Database { db: self.db, offset, counts: self.counts })
            }
            opcode::RESIZEDB => {
                let [keys, expires] = numbers(item).ok_or_else(|| malformed(Doing::Length))?;
                Ok(Event::Sizes { keys, expires })
            }
            opcode::SLOT_INFO => {
                let [slot, keys, expires] = numbers(item).ok_or_else(|| malformed(Doing::Length))?;
                Ok(Event::Slot { slot, keys, expires })
            }
            _ => {
                let checksum = if item.len() == 1 || !self.checks {
                    Checksum::Unchecked
                } else {
                    match u64::from_le_bytes(fixed(&item[1..])) {
                        0 => Checksum::None,
                        got if got == self.crc => Checksum::Right,
                        got => {
                            let reason = Reason::Checksum { expected: self.crc, got };
                            return Err(self.fault_of(reason, self.offset, Doing::Checksum));
                        }
                    }
                };
                self.ended = true;
                Ok(Event::End(checksum))
            }
        }
    }

    /// A fault in the item that is being read.
    fn fault_here(&self, reason: Reason, offset: u64) -> Fault {
        let doing = match &self.item {
            None if self.version == 0 => Doing::Start,
            None => Doing::Type,
            Some(Item { is_key: true, name_end: None, .. }) => Doing::Key,
            Some(Item { is_key: true, .. }) => Doing::Value,
            Some(item) => match item.tag {
                opcode::EXPIRETIME | opcode::EXPIRETIME_MS => Doing::Expire,
                opcode::AUX => Doing::Aux,
                opcode::MODULE_AUX => Doing::ModuleAux,
                opcode::FUNCTION2 => Doing::Functions,
                opcode::EOF => Doing::Checksum,
                _ => Doing::Length,
            },
        };
        self.fault_of(reason, offset, doing)
    }

    fn fault_of(&self, reason: Reason, offset: u64, doing: Doing) -> Fault {
        let item = self.item.as_ref().filter(|item| item.is_key);
        let key = item.and_then(|item| {
            let mut name = self.rest().get(1..item.name_end?)?;
            string(&mut name).map(|name| name.as_ref().into())
        });
        let mut counts = self.counts;
        counts.keys += u64::from(item.is_some_and(|item| item.name_end.is_some()));
        Fault { reason, offset, doing, key, kind: item.map(|item| item.tag), counts }
    }
}

/// The first N bytes. The walk over the item has seen that they are there.
fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    chunk(&mut &bytes[..]).unwrap_or([0; N])
}

/// The numbers behind the opcode of an item.
fn numbers<const N: usize>(item: &[u8]) -> Option<[u64; N]> {
    let mut rest = &item[1..];
    let mut numbers = [0; N];
    for number in &mut numbers {
        *number = plain_length(&mut rest)? as u64;
    }
    Some(numbers)
}

/// The name of a module's type, nine characters of six bits each, above ten bits of a version.
fn module_name(id: u64) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    (0..9).rev().map(|at| char::from(LETTERS[(id >> (10 + 6 * at)) as usize & 63])).collect()
}
