//! The shapes of items: of which parts they consist. A walk over the parts finds the end of an item whose bytes arrive in pieces,
//! without reading any byte twice and without allocating what a length claims.

use smallvec::{SmallVec, smallvec};

use crate::keyspace::rdb::kind;
use crate::persist::rdb_file::opcode;

/// A part of an item.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// A string in any encoding.
    Text,
    /// A length.
    Number,
    /// This many bytes.
    Fixed(usize),
    /// A score as text, in the type of Redis before 4.0.
    Score,
    /// A length, and as many groups of these parts.
    Each(&'static [Part]),
}

use Part::{Each, Fixed, Number, Score, Text};

const ENTRY_ID: Part = Fixed(16);
const TIME: Part = Fixed(8);
/// Parts of a pending entry: its id, the time of its delivery, the number of deliveries.
const PENDING: Part = Each(&[ENTRY_ID, TIME, Number]);
/// Listpacks with the id of their first entry.
const RUNS: Part = Each(&[Text, Text]);

/// The parts of a value; `None` for a type that does not exist or that only modules can read.
pub fn of_value(kind: u8) -> Option<&'static [Part]> {
    Some(match kind {
        kind::STRING => &[Text],
        kind::LIST | kind::SET | kind::LIST_QUICKLIST => &[Each(&[Text])],
        kind::HASH => &[Each(&[Text, Text])],
        kind::ZSET => &[Each(&[Text, Score])],
        kind::ZSET_2 => &[Each(&[Text, Fixed(8)])],
        kind::LIST_QUICKLIST_2 => &[Each(&[Number, Text])],
        kind::HASH_ZIPMAP
        | kind::LIST_ZIPLIST
        | kind::SET_INTSET
        | kind::ZSET_ZIPLIST
        | kind::HASH_ZIPLIST
        | kind::HASH_LISTPACK
        | kind::ZSET_LISTPACK
        | kind::SET_LISTPACK
        | kind::HASH_LISTPACK_EX_PRE_GA => &[Text],
        kind::HASH_METADATA_PRE_GA => &[Each(&[Number, Text, Text])],
        kind::HASH_METADATA => &[TIME, Each(&[Number, Text, Text])],
        kind::HASH_LISTPACK_EX => &[TIME, Text],
        // The length and the last id; a group: its name, its last id, its pending entries, and its consumers.
        kind::STREAM_LISTPACKS => {
            &[RUNS, Number, Number, Number, Each(&[Text, Number, Number, PENDING, Each(&[Text, TIME, Each(&[ENTRY_ID])])])]
        }
        // As above with the first id, the last deleted id, and the number of entries added; a group with the entries read.
        kind::STREAM_LISTPACKS_2 => &[
            RUNS,
            Number,
            Number,
            Number,
            Number,
            Number,
            Number,
            Number,
            Number,
            Each(&[Text, Number, Number, Number, PENDING, Each(&[Text, TIME, Each(&[ENTRY_ID])])]),
        ],
        // As above; a consumer with the time of its last delivery.
        kind::STREAM_LISTPACKS_3 => &[
            RUNS,
            Number,
            Number,
            Number,
            Number,
            Number,
            Number,
            Number,
            Number,
            Each(&[Text, Number, Number, Number, PENDING, Each(&[Text, TIME, TIME, Each(&[ENTRY_ID])])]),
        ],
        _ => return None,
    })
}

/// The parts of an item that is not a key; `None` if the byte is the type of a value.
pub fn of_opcode(opcode: u8, version: u16) -> Option<&'static [Part]> {
    Some(match opcode {
        opcode::SLOT_INFO => &[Number, Number, Number],
        opcode::FUNCTION2 => &[Text],
        opcode::MODULE_AUX => &[Number],
        opcode::IDLE | opcode::SELECTDB => &[Number],
        opcode::FREQ => &[Fixed(1)],
        opcode::AUX => &[Text, Text],
        opcode::RESIZEDB => &[Number, Number],
        opcode::EXPIRETIME_MS => &[TIME],
        opcode::EXPIRETIME => &[Fixed(4)],
        // The checksum came with version 5.
        opcode::EOF if version < 5 => &[],
        opcode::EOF => &[Fixed(8)],
        opcode::FUNCTION_PRE_GA => &[],
        _ => return None,
    })
}

/// How far a walk has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walked {
    /// The item ends before this byte.
    Whole(usize),
    /// There must be this many bytes before the walk can go on.
    Needs(usize),
    /// This byte begins no length.
    NoLength(u8),
    /// This byte begins no string.
    NoString(u8),
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    parts: &'static [Part],
    /// The next part.
    next: usize,
    /// How often the parts still come, this time included.
    left: u64,
}

/// A walk over the parts of an item.
#[derive(Debug)]
pub struct Walk {
    /// The first byte that was not walked over.
    at: usize,
    frames: SmallVec<[Frame; 4]>,
}

impl Walk {
    /// A walk over these parts, which begin at a byte.
    pub fn new(parts: &'static [Part], at: usize) -> Walk {
        Walk { at, frames: smallvec![Frame { parts, next: 0, left: 1 }] }
    }

    /// The first byte that was not walked over.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Goes on as far as the bytes suffice. Between two calls, bytes are only added.
    pub fn go_on(&mut self, bytes: &[u8]) -> Walked {
        while let Some(frame) = self.frames.last_mut() {
            let Some(&part) = frame.parts.get(frame.next) else {
                frame.left -= 1;
                frame.next = 0;
                if frame.left == 0 {
                    self.frames.pop();
                }
                continue;
            };
            let rest = bytes.get(self.at..).unwrap_or_default();
            let (len, groups) = match part {
                Fixed(len) => (Ok(len), None),
                Score => (score_len(rest), None),
                Text => (text_len(rest), None),
                Number | Each(_) => match number(rest) {
                    Ok((len, number)) => (Ok(len), Some(number)),
                    Err(error) => (Err(error), None),
                },
            };
            let len = match len {
                Ok(len) => len,
                Err(Walked::Needs(len)) => return Walked::Needs(self.at.saturating_add(len)),
                Err(other) => return other,
            };
            let end = self.at.saturating_add(len);
            if end > bytes.len() {
                return Walked::Needs(end);
            }
            self.at = end;
            frame.next += 1;
            if let (Each(parts), Some(left @ 1..)) = (part, groups) {
                self.frames.push(Frame { parts, next: 0, left });
            }
        }
        Walked::Whole(self.at)
    }
}

/// Bytes of a length and the length. `Needs` is relative to the first byte.
fn number(rest: &[u8]) -> Result<(usize, u64), Walked> {
    let &first = rest.first().ok_or(Walked::Needs(1))?;
    let needs = |len: usize| rest.get(1..len).ok_or(Walked::Needs(len));
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
    Ok(match (first >> 6, first) {
        (0, _) => (1, u64::from(first)),
        (1, _) => (2, u64::from(first & 0x3f) << 8 | number(needs(2)?)),
        (2, 0x80) => (5, number(needs(5)?)),
        (2, 0x81) => (9, number(needs(9)?)),
        _ => return Err(Walked::NoLength(first)),
    })
}

/// Bytes of a string with its length, as far as the first bytes tell.
fn text_len(rest: &[u8]) -> Result<usize, Walked> {
    let &first = rest.first().ok_or(Walked::Needs(1))?;
    Ok(match first {
        0xc0 => 2,
        0xc1 => 3,
        0xc2 => 5,
        // Compressed: two lengths, and as many bytes as the first says.
        0xc3 => {
            let (compressed, len) = beyond(rest, 1)?;
            let (full, _) = beyond(rest, 1 + compressed)?;
            (1 + compressed + full).saturating_add(usize::try_from(len).unwrap_or(usize::MAX))
        }
        0xc4..=0xff => return Err(Walked::NoString(first)),
        _ => {
            let (head, len) = number(rest)?;
            head.saturating_add(usize::try_from(len).unwrap_or(usize::MAX))
        }
    })
}

/// As [`number`], from a byte on.
fn beyond(rest: &[u8], at: usize) -> Result<(usize, u64), Walked> {
    number(rest.get(at..).unwrap_or_default()).map_err(|walked| match walked {
        Walked::Needs(len) => Walked::Needs(at + len),
        other => other,
    })
}

fn score_len(rest: &[u8]) -> Result<usize, Walked> {
    let &len = rest.first().ok_or(Walked::Needs(1))?;
    // The three largest lengths stand for values that are not finite.
    Ok(if len >= 253 { 1 } else { 1 + usize::from(len) })
}
