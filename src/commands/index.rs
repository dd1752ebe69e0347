//! Finds a command by its name in a few nanoseconds: names of up to 16 bytes are compared as two words, whatever their case.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::engine::command::{Command, Keys};
use crate::engine::command_keys::{Begin, Find};

/// The longest name of a command, in bytes.
const NAME_MAX: usize = 32;
/// Slots of the index; a power of two, several times the number of commands.
const SLOTS: usize = 2048;

/// A name of up to 16 bytes in lower case. With its length, the two overlapping halves tell it from every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Packed {
    low: u64,
    high: u64,
    len: usize,
}

impl Packed {
    #[inline]
    fn new(name: &[u8]) -> Option<Packed> {
        let word = |at: usize| name[at..].first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let half = |at: usize| name[at..].first_chunk::<4>().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)));
        let (low, high) = match name.len() {
            0 | 17.. => return None,
            len @ 8.. => (word(0), word(len - 8)),
            len @ 4.. => (half(0), half(len - 4)),
            len => (u64::from(name[0]) | u64::from(name[len / 2]) << 8 | u64::from(name[len - 1]) << 16, 0),
        };
        Some(Packed { low: lower(low), high: lower(high), len: name.len() })
    }

    #[inline]
    fn slot(self) -> usize {
        let mixed = (self.low ^ self.high.rotate_left(29) ^ self.len as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize % SLOTS
    }
}

/// Eight bytes, those from `A` to `Z` put in lower case, all at once.
#[inline]
fn lower(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let low_bits = word & (0x7f * ONES);
    // The top bit of each byte says whether its other seven are at least `A`, or more than `Z`.
    let from_a = low_bits + (0x80 - b'A' as u64) * ONES;
    let past_z = low_bits + (0x7f - b'Z' as u64) * ONES;
    let upper = (from_a ^ past_z) & !word & (0x80 * ONES);
    word | (upper >> 2)
}

struct Index {
    short: Box<[Option<Row>; SLOTS]>,
    long: HashMap<&'static [u8], &'static Command>,
}

/// A command that is found by its name.
#[derive(Clone, Copy)]
struct Row {
    name: Packed,
    /// See [`first_key`].
    first_key: usize,
    command: &'static Command,
}

/// Where a command has its first key, as far as that can be said without a look at its arguments; 0 where it cannot, or has none.
fn first_key(command: &Command) -> usize {
    match command.keys {
        Keys::None => 0,
        Keys::Range { first, .. } => first.max(1) as usize,
        Keys::Counted { numkeys, .. } => numkeys + 1,
        Keys::Specified(specs) => match specs.first().map(|spec| (spec.begin, spec.find)) {
            Some((Begin::Index(index), Find::Range { .. })) => index,
            Some((Begin::Index(index), Find::Counted { .. })) => index + 1,
            _ => 0,
        },
    }
}

static INDEX: LazyLock<Index> = LazyLock::new(|| {
    // By way of a vector it is made where it stays; an array would be made on the stack first.
    let short = vec![None; SLOTS].into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!("there are as many"));
    let mut index = Index { short, long: HashMap::new() };
    for command in super::all() {
        match Packed::new(command.name.as_bytes()) {
            None => drop(index.long.insert(command.name.as_bytes(), command)),
            Some(packed) => {
                let mut at = packed.slot();
                while index.short[at].is_some() {
                    at = (at + 1) % SLOTS;
                }
                index.short[at] = Some(Row { name: packed, first_key: first_key(command), command });
            }
        }
    }
    index
});

/// The command of this name, in any case.
#[inline]
pub fn lookup(name: &[u8]) -> Option<&'static Command> {
    let index = &*INDEX;
    match Packed::new(name) {
        Some(packed) => find(index, packed).map(|row| row.command),
        None => lookup_long(&index.long, name),
    }
}

/// As [`lookup`], and where its first key is among the arguments; 0 where that cannot be said, or there is none.
#[inline]
pub fn lookup_with_key(name: &[u8]) -> Option<(&'static Command, usize)> {
    let index = &*INDEX;
    match Packed::new(name) {
        Some(packed) => find(index, packed).map(|row| (row.command, row.first_key)),
        None => lookup_long(&index.long, name).map(|command| (command, first_key(command))),
    }
}

#[inline(always)]
fn find(index: &Index, packed: Packed) -> Option<&Row> {
    let mut at = packed.slot();
    loop {
        let row = index.short[at].as_ref()?;
        if row.name == packed {
            return Some(row);
        }
        at = (at + 1) % SLOTS;
    }
}

#[cold]
fn lookup_long(long: &HashMap<&'static [u8], &'static Command>, name: &[u8]) -> Option<&'static Command> {
    if name.len() > NAME_MAX { None } else { long.get(name.to_ascii_lowercase().as_slice()).copied() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_in_any_case_and_nothing_else_is() {
        for command in crate::commands::all() {
            let upper = command.name.to_ascii_uppercase();
            for name in [command.name, &upper] {
                assert!(std::ptr::eq(lookup(name.as_bytes()).expect(name), command), "{name}");
            }
            let mut other = command.name.as_bytes().to_vec();
            for i in 0..other.len() {
                for flip in [0x80, 0x40, 0x20, 0x01] {
                    other[i] ^= flip;
                    let is_command = crate::commands::all().any(|c| c.name.as_bytes().eq_ignore_ascii_case(&other));
                    assert_eq!(lookup(&other).is_some(), is_command, "{other:?}");
                    other[i] ^= flip;
                }
            }
        }
        assert!(lookup(b"").is_none());
        assert!(lookup(&[b'g'; 40]).is_none());
    }

    #[test]
    fn only_capital_letters_change() {
        for byte in 0..=255u8 {
            let word = u64::from_le_bytes([byte, b'@', b'[', b'Z', byte, b'A', 0xc1, byte]);
            let wanted = word.to_le_bytes().map(|b| b.to_ascii_lowercase());
            assert_eq!(lower(word).to_le_bytes(), wanted, "{byte:#x}");
        }
    }
}
