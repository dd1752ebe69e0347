//! Finds a command by its name in a few nanoseconds: names of up to 16 bytes are compared case-insensitively as two words.
//!
//! Knows no rows, so that it can be read without the engine: [`super::CommandTable`] passes in what it needs.

/// The longest name that is compared as two words, in bytes.
const PACKED_MAX: usize = 16;
/// Number of slots; a power of two, several times the number of commands.
const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 11;

/// The bit of each byte that distinguishes upper and lower case letters.
const CASE: u64 = 0x2020_2020_2020_2020;

/// A name of up to 16 bytes: its first and its last bytes, which may overlap. With the length, they are unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed {
    low: u64,
    high: u64,
    /// In bytes; 0 for an empty slot.
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
            9..=PACKED_MAX => (word(name, 0), word(name, len - 8)),
            _ => return None,
        };
        Some(Packed { low, high, len: len as u32 })
    }

    /// The first slot to search, the same for upper and lower case.
    #[inline(always)]
    fn slot(self) -> usize {
        let folded = (self.low ^ self.high.rotate_left(24)) | CASE;
        ((folded ^ u64::from(self.len)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOT_BITS)) as usize
    }

    /// Whether it equals another name in the given bits.
    #[inline(always)]
    fn is(self, other: Packed, bits: Packed) -> bool {
        (self.low ^ other.low) & bits.low == 0 && (self.high ^ other.high) & bits.high == 0 && self.len == other.len
    }
}

/// Eight bytes of a name, from `at` on.
#[inline(always)]
fn word(name: &[u8], at: usize) -> u64 {
    name[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Four bytes of a name, from `at` on.
#[inline(always)]
fn half(name: &[u8], at: usize) -> u64 {
    name[at..].first_chunk().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)))
}

/// What is found by a name.
#[derive(Clone, Copy)]
struct Entry<T> {
    name: Packed,
    /// The bits of the name to compare: all except the case bits of letters.
    bits: Packed,
    /// Position of the first key among the arguments; 0 if unknown.
    first_key: u32,
    value: Option<T>,
}

/// What is found by each name, and the position of its first key.
pub struct Index<T> {
    /// Short names, each at its own slot, or in the next free one behind it.
    short: Box<[Entry<T>; SLOTS]>,
    /// The few long names.
    long: Vec<(&'static str, usize, T)>,
}

impl<T: Copy> Index<T> {
    /// An index of names, each with the position of its first key (0 if unknown) and what it stands for.
    pub(super) fn new(entries: impl Iterator<Item = (&'static str, usize, T)>) -> Index<T> {
        // A vector allocates in place; an array would be made on the stack first.
        let none = Entry { name: Packed::NONE, bits: Packed::NONE, first_key: 0, value: None };
        let short = vec![none; SLOTS].into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!("there are as many"));
        let mut index = Index { short, long: Vec::new() };
        for (text, first_key, value) in entries {
            let bits = text.bytes().map(|byte| if byte.is_ascii_alphabetic() { !0x20 } else { !0 }).collect::<Vec<u8>>();
            match Packed::new(text.as_bytes()).zip(Packed::new(&bits)) {
                None => index.long.push((text, first_key, value)),
                Some((name, bits)) => {
                    let mut at = name.slot();
                    while index.short[at].value.is_some() {
                        at = (at + 1) % SLOTS;
                    }
                    index.short[at] = Entry { name, bits, first_key: first_key as u32, value: Some(value) };
                }
            }
        }
        index
    }

    /// What a name in any case stands for, and the position of its first key; 0 if unknown.
    #[inline]
    pub fn find(&self, name: &[u8]) -> (Option<T>, usize) {
        let Some(packed) = Packed::new(name) else { return self.find_long(name) };
        let mut at = packed.slot();
        loop {
            let row = &self.short[at];
            if packed.is(row.name, row.bits) || row.value.is_none() {
                return (row.value, row.first_key as usize);
            }
            at = (at + 1) % SLOTS;
        }
    }

    #[cold]
    fn find_long(&self, name: &[u8]) -> (Option<T>, usize) {
        let found = self.long.iter().find(|(known, ..)| known.as_bytes().eq_ignore_ascii_case(name));
        found.map_or((None, 0), |&(_, first_key, command)| (Some(command), first_key))
    }
}

#[cfg(test)]
mod tests {
    use crate::commands::lookup;

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
    fn only_letters_have_a_case() {
        assert_eq!(lookup(b"GeoRadius_RO").map(|command| command.name), Some("georadius_ro"));
        for name in
            ["georadius\x7fro", "GEORADIUS\x7fRO", "ge\0", "get\0", "\x07et", "get ", "georadiusbymember\x7fro", "\0\0\0", "\0"]
        {
            assert!(lookup(name.as_bytes()).is_none(), "{name:?}");
        }
    }
}
