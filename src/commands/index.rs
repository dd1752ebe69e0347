//! Finds a command by its name in a few nanoseconds: names of up to 16 bytes are compared as two words, whatever their case.

use std::sync::LazyLock;

use crate::engine::command::{Command, Keys};
use crate::engine::command_keys::{Begin, Find};

/// The longest name that is compared as two words, in bytes.
const PACKED_MAX: usize = 16;
/// Slots of the index; a power of two, several times the number of commands.
const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 11;

/// A name of up to 16 bytes in lower case. With its length, the overlapping parts tell it from every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed {
    low: u64,
    high: u64,
    /// In bytes; 0 for no name.
    len: u32,
}

impl Packed {
    const NONE: Packed = Packed { low: 0, high: 0, len: 0 };

    #[inline(always)]
    fn new(name: &[u8]) -> Option<Packed> {
        let len = name.len();
        let (low, high) = match len {
            1..=3 => (u64::from(name[0]) | u64::from(name[len / 2]) << 8 | u64::from(name[len - 1]) << 16, 0),
            4..=8 => (half(name, 0) | half(name, len - 4) << 32, 0),
            9..=PACKED_MAX => (word(name, 0), lower(word(name, len - 8))),
            _ => return None,
        };
        Some(Packed { low: lower(low), high, len: len as u32 })
    }

    #[inline(always)]
    fn slot(self) -> usize {
        let mixed = (self.low ^ self.high.rotate_left(29) ^ self.len as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (u64::BITS - SLOT_BITS)) as usize
    }
}

/// The eight bytes of a name from there on.
#[inline(always)]
fn word(name: &[u8], at: usize) -> u64 {
    name[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The four bytes of a name from there on.
#[inline(always)]
fn half(name: &[u8], at: usize) -> u64 {
    name[at..].first_chunk().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)))
}

/// Eight bytes, those from `A` to `Z` put in lower case, all at once.
#[inline(always)]
fn lower(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let low_bits = word & (0x7f * ONES);
    // The top bit of each byte says whether its other seven are at least `A`, or more than `Z`.
    let from_a = low_bits + (0x80 - b'A' as u64) * ONES;
    let past_z = low_bits + (0x7f - b'Z' as u64) * ONES;
    let upper = (from_a ^ past_z) & !word & (0x80 * ONES);
    word | (upper >> 2)
}

/// A command that is found by its name.
#[derive(Clone, Copy)]
struct Row {
    name: Packed,
    /// See [`first_key`].
    first_key: u32,
    command: Option<&'static Command>,
}

/// All commands by their names.
pub struct Index {
    /// Those with short names, each at its name's slot, or behind it as far as others were there before.
    short: Box<[Row; SLOTS]>,
    /// The few others.
    long: Vec<&'static Command>,
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
    let none = Row { name: Packed::NONE, first_key: 0, command: None };
    let short = vec![none; SLOTS].into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!("there are as many"));
    let mut index = Index { short, long: Vec::new() };
    for command in super::all() {
        match Packed::new(command.name.as_bytes()) {
            None => index.long.push(command),
            Some(name) => {
                let mut at = name.slot();
                while index.short[at].command.is_some() {
                    at = (at + 1) % SLOTS;
                }
                index.short[at] = Row { name, first_key: first_key(command) as u32, command: Some(command) };
            }
        }
    }
    index
});

impl Index {
    /// The index.
    #[inline]
    pub fn get() -> &'static Index {
        &INDEX
    }

    /// The command of this name, in any case, and where its first key is among the arguments; 0 where that cannot be said, or there is
    /// none.
    #[inline]
    pub fn find(&self, name: &[u8]) -> (Option<&'static Command>, usize) {
        let Some(packed) = Packed::new(name) else { return self.find_long(name) };
        let mut at = packed.slot();
        loop {
            let row = &self.short[at];
            if row.name == packed || row.command.is_none() {
                return (row.command, row.first_key as usize);
            }
            at = (at + 1) % SLOTS;
        }
    }

    #[cold]
    fn find_long(&self, name: &[u8]) -> (Option<&'static Command>, usize) {
        let found = self.long.iter().copied().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name));
        (found, found.map_or(0, first_key))
    }
}

/// The command of this name, in any case.
#[inline]
pub fn lookup(name: &[u8]) -> Option<&'static Command> {
    Index::get().find(name).0
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
