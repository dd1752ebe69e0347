//! Readers of the buffers in which Redis stores small aggregates, with every bound checked: listpacks, and the ziplists, zipmaps
//! and intsets of older versions. Each returns its elements in order, or nothing if the buffer is malformed.

use std::borrow::Cow;

use crate::keyspace::rdb::parts::{chunk, take};

/// Elements of a buffer, with integers as text.
pub type Elements<'a> = Vec<Cow<'a, [u8]>>;

fn number<'a>(n: i64) -> Cow<'a, [u8]> {
    Cow::Owned(itoa::Buffer::new().format(n).as_bytes().to_vec())
}

/// A little-endian integer of three bytes.
fn i24(bytes: [u8; 3]) -> i64 {
    i64::from(i32::from_le_bytes([0, bytes[0], bytes[1], bytes[2]]) >> 8)
}

/// Number of bytes behind an element of a listpack, which tell its length to those who read backwards.
pub fn backwards(len: usize) -> usize {
    match len {
        0..0x80 => 1,
        0x80..0x3fff => 2,
        0x3fff..0x1f_ffff => 3,
        0x1f_ffff..0xfff_ffff => 4,
        _ => 5,
    }
}

/// `total bytes, 4 · count, 2 · { encoding and content · length of both, backwards } · 255`
pub fn listpack(buffer: &[u8]) -> Option<Elements<'_>> {
    let mut rest = buffer;
    let total = u32::from_le_bytes(chunk(&mut rest)?);
    let count = u16::from_le_bytes(chunk(&mut rest)?);
    if total as usize != buffer.len() {
        return None;
    }
    let mut elements = Elements::new();
    loop {
        let before = rest.len();
        let [first] = chunk(&mut rest)?;
        let element = match first {
            0xff => break,
            0..0x80 => number(i64::from(first)),
            0x80..0xc0 => Cow::Borrowed(take(&mut rest, usize::from(first & 0x3f))?),
            0xc0..0xe0 => {
                let [low] = chunk(&mut rest)?;
                let bits = u16::from(first & 0x1f) << 8 | u16::from(low);
                // A signed integer of thirteen bits.
                number(i64::from((bits << 3) as i16 >> 3))
            }
            0xe0..0xf0 => {
                let [low] = chunk(&mut rest)?;
                Cow::Borrowed(take(&mut rest, usize::from(first & 0x0f) << 8 | usize::from(low))?)
            }
            0xf0 => {
                let len = u32::from_le_bytes(chunk(&mut rest)?);
                Cow::Borrowed(take(&mut rest, len as usize)?)
            }
            0xf1 => number(i16::from_le_bytes(chunk(&mut rest)?).into()),
            0xf2 => number(i24(chunk(&mut rest)?)),
            0xf3 => number(i32::from_le_bytes(chunk(&mut rest)?).into()),
            0xf4 => number(i64::from_le_bytes(chunk(&mut rest)?)),
            _ => return None,
        };
        elements.push(element);
        let len = before - rest.len();
        // Seven bits per byte, the lowest last, with a mark on all but the first.
        let told = take(&mut rest, backwards(len))?.iter().fold(0, |told, byte| told << 7 | usize::from(byte & 0x7f));
        if told != len {
            return None;
        }
    }
    // A count of 65,535 means "unknown".
    (rest.is_empty() && (count == u16::MAX || usize::from(count) == elements.len())).then_some(elements)
}

/// `total bytes, 4 · offset of the last element, 4 · count, 2 · { length of the one before · encoding · content } · 255`
pub fn ziplist(buffer: &[u8]) -> Option<Elements<'_>> {
    let mut rest = buffer;
    let total = u32::from_le_bytes(chunk(&mut rest)?);
    let _last = u32::from_le_bytes(chunk(&mut rest)?);
    let count = u16::from_le_bytes(chunk(&mut rest)?);
    if total as usize != buffer.len() {
        return None;
    }
    let mut elements = Elements::new();
    let mut previous = 0;
    loop {
        let before = rest.len();
        let [first] = chunk(&mut rest)?;
        let told = match first {
            0xff => break,
            0xfe => u32::from_le_bytes(chunk(&mut rest)?) as usize,
            len => usize::from(len),
        };
        if told != previous {
            return None;
        }
        let [encoding] = chunk(&mut rest)?;
        elements.push(match encoding {
            0..0x40 => Cow::Borrowed(take(&mut rest, usize::from(encoding))?),
            0x40..0x80 => {
                let [low] = chunk(&mut rest)?;
                Cow::Borrowed(take(&mut rest, usize::from(encoding & 0x3f) << 8 | usize::from(low))?)
            }
            0x80 => {
                let len = u32::from_be_bytes(chunk(&mut rest)?);
                Cow::Borrowed(take(&mut rest, len as usize)?)
            }
            0xc0 => number(i16::from_le_bytes(chunk(&mut rest)?).into()),
            0xd0 => number(i32::from_le_bytes(chunk(&mut rest)?).into()),
            0xe0 => number(i64::from_le_bytes(chunk(&mut rest)?)),
            0xf0 => number(i24(chunk(&mut rest)?)),
            0xf1..=0xfd => number(i64::from(encoding & 0x0f) - 1),
            0xfe => number(i8::from_le_bytes(chunk(&mut rest)?).into()),
            _ => return None,
        });
        previous = before - rest.len();
    }
    (rest.is_empty() && (count == u16::MAX || usize::from(count) == elements.len())).then_some(elements)
}

/// `count, 1 · { length · name · length · unused bytes, 1 · value · the unused bytes } · 255`
pub fn zipmap(buffer: &[u8]) -> Option<Elements<'_>> {
    fn length(first: u8, rest: &mut &[u8]) -> Option<usize> {
        match first {
            0xff => None,
            0xfe => Some(u32::from_le_bytes(chunk(rest)?) as usize),
            len => Some(usize::from(len)),
        }
    }
    let mut rest = buffer;
    let [_count] = chunk(&mut rest)?;
    let mut elements = Elements::new();
    loop {
        let [first] = chunk(&mut rest)?;
        if first == 0xff {
            break;
        }
        let len = length(first, &mut rest)?;
        elements.push(Cow::Borrowed(take(&mut rest, len)?));
        let [first] = chunk(&mut rest)?;
        let len = length(first, &mut rest)?;
        let [unused] = chunk(&mut rest)?;
        elements.push(Cow::Borrowed(take(&mut rest, len)?));
        take(&mut rest, usize::from(unused))?;
    }
    rest.is_empty().then_some(elements)
}

/// `bytes of an integer, 4 · count, 4 · the integers, in order`
pub fn intset(buffer: &[u8]) -> Option<Vec<i64>> {
    let mut rest = buffer;
    let width = u32::from_le_bytes(chunk(&mut rest)?) as usize;
    let count = u32::from_le_bytes(chunk(&mut rest)?) as usize;
    if !matches!(width, 2 | 4 | 8) || rest.len() != width.checked_mul(count)? {
        return None;
    }
    let integers: Vec<i64> = rest
        .chunks_exact(width)
        .map(|bytes| match *bytes {
            [a, b] => i64::from(i16::from_le_bytes([a, b])),
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
            _ => i64::from_le_bytes(bytes.try_into().unwrap_or_default()),
        })
        .collect();
    integers.is_sorted_by(|a, b| a < b).then_some(integers)
}
