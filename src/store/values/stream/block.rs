//! A run of stream entries in one buffer.
//!
//! ```text
//!   entry = ms, seq, 2·fields + same, [name] value, [name] value, …
//! ```
//!
//! Numbers are written seven bits per byte, lowest first; names and values follow their lengths. Ids are relative to the first id
//! of the block. Entries with the same fields as the first entry of the block, as most have, omit the names.

use crate::store::values::list::encoded_len;
use crate::store::values::packed::push_part;
use crate::store::values::stream::id::StreamId;

/// Maximum size of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLimits {
    /// `stream-node-max-bytes`, counted as in Redis; 0 for no limit.
    pub bytes: usize,
    /// `stream-node-max-entries`; 0 for no limit.
    pub entries: usize,
}

impl Default for BlockLimits {
    fn default() -> Self {
        BlockLimits { bytes: 4096, entries: 100 }
    }
}

/// Maximum bytes of a block, whatever the limits.
const BLOCK_BYTES_MAX: usize = 1 << 30;

/// An entry.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    /// Its id.
    pub id: StreamId,
    fields: usize,
    /// The names, if they are not stored with the values.
    names: Option<&'a [u8]>,
    values: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Number of fields.
    pub fn len(&self) -> usize {
        self.fields
    }

    /// Names and values, in the order of insertion.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let (mut names, mut values) = (self.names, self.values);
        (0..self.fields).map(move |_| {
            let name = if let Some(names) = &mut names { take_part(names) } else { take_part(&mut values) };
            (name, take_part(&mut values))
        })
    }
}

impl std::fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        write!(f, "{} ", self.id)?;
        f.debug_list().entries(self.iter().map(|(name, value)| (text(name), text(value)))).finish()
    }
}

/// Consecutive entries.
#[derive(Clone)]
pub struct Block {
    /// The names of the first entry that was added.
    names: Box<[u8]>,
    name_count: usize,
    bytes: Vec<u8>,
    live: usize,
    /// Number of deleted entries.
    dead: usize,
    /// The id of the last entry that was added, even if it was deleted.
    last: StreamId,
    /// Size in bytes of this block in Redis, including deleted entries.
    counted: usize,
}

fn take_number(bytes: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0u64, 0);
    while let Some((byte, rest)) = bytes.split_first() {
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            break;
        }
        shift += 7;
    }
    number
}

fn take_part<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let len = take_number(bytes) as usize;
    let (part, rest) = bytes.split_at(len);
    *bytes = rest;
    part
}

fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Bytes of an integer in one of Redis's listpacks, including the length after it.
fn counted_integer(n: i64) -> usize {
    match n {
        0..=127 => 2,
        -4096..=4095 => 3,
        -32_768..=32_767 => 4,
        -8_388_608..=8_388_607 => 5,
        -2_147_483_648..=2_147_483_647 => 6,
        _ => 10,
    }
}

impl Block {
    /// A block for a first entry with these names and values.
    pub fn new(pairs: &[&[u8]]) -> Self {
        let mut names = Vec::new();
        pairs.iter().step_by(2).for_each(|name| push_part(&mut names, name));
        // The header and the end of the listpack, two counts, the number of names, the names and a zero.
        let head = 7 + 2 + 2 + counted_integer(pairs.len() as i64 / 2) + 2;
        let counted = head + pairs.iter().step_by(2).map(|name| encoded_len(name)).sum::<usize>();
        Block {
            names: names.into(),
            name_count: pairs.len() / 2,
            bytes: Vec::new(),
            live: 0,
            dead: 0,
            last: StreamId::MIN,
            counted,
        }
    }

    /// Whether an entry must go to another block.
    pub fn is_full(&self, limits: BlockLimits, pairs: &[&[u8]]) -> bool {
        let max = if limits.bytes == 0 { BLOCK_BYTES_MAX } else { limits.bytes.min(BLOCK_BYTES_MAX) };
        self.counted + pairs.iter().map(|part| part.len()).sum::<usize>() >= max
            || (limits.entries > 0 && self.live + self.dead >= limits.entries)
    }

    /// Number of entries that are not deleted.
    pub fn len(&self) -> usize {
        self.live
    }

    /// The id of the last entry that was added, even if it was deleted.
    pub fn last(&self) -> StreamId {
        self.last
    }

    /// Bytes of its allocations.
    pub fn allocated(&self) -> usize {
        self.names.len() + self.bytes.capacity()
    }

    /// Appends an entry. `base` is the first id of the block.
    pub fn push(&mut self, base: StreamId, id: StreamId, pairs: &[&[u8]]) {
        put_number(&mut self.bytes, id.ms - base.ms);
        put_number(&mut self.bytes, if id.ms == base.ms { id.seq - base.seq } else { id.seq });
        let mut names = &self.names[..];
        let same = self.name_count == pairs.len() / 2 && pairs.iter().step_by(2).all(|name| take_part(&mut names) == *name);
        put_number(&mut self.bytes, pairs.len() as u64 | u64::from(same));
        // Flags, id, number of fields unless it is the same, and the number of these elements.
        let mut parts = 0;
        self.counted +=
            2 + counted_integer(id.ms.wrapping_sub(base.ms) as i64) + counted_integer(id.seq.wrapping_sub(base.seq) as i64);
        for (at, part) in pairs.iter().enumerate() {
            if at % 2 == 1 || !same {
                push_part(&mut self.bytes, part);
                self.counted += encoded_len(part);
                parts += 1;
            }
        }
        if !same {
            self.counted += counted_integer(pairs.len() as i64 / 2);
            parts += 1;
        }
        self.counted += counted_integer(parts + 3);
        self.live += 1;
        self.last = id;
    }

    /// The entries in order, each with its end in the buffer.
    fn iter_placed(&self, base: StreamId) -> impl Iterator<Item = (Entry<'_>, usize)> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (ms, seq, head) = (take_number(&mut rest), take_number(&mut rest), take_number(&mut rest));
            let id = if ms == 0 { StreamId::new(base.ms, base.seq + seq) } else { StreamId::new(base.ms + ms, seq) };
            let (fields, same) = ((head / 2) as usize, head % 2 == 1);
            let values = rest;
            for _ in 0..if same { fields } else { fields * 2 } {
                take_part(&mut rest);
            }
            let entry = Entry { id, fields, names: same.then_some(&self.names), values };
            Some((entry, self.bytes.len() - rest.len()))
        })
    }

    /// The entries in order. `base` is the first id of the block.
    pub fn iter(&self, base: StreamId) -> impl Iterator<Item = Entry<'_>> {
        self.iter_placed(base).map(|(entry, _)| entry)
    }

    /// Removes an entry. Returns false if it does not exist.
    pub fn remove(&mut self, base: StreamId, id: StreamId) -> bool {
        let mut start = 0;
        let mut found = None;
        for (entry, end) in self.iter_placed(base) {
            if entry.id >= id {
                found = (entry.id == id).then_some(end);
                break;
            }
            start = end;
        }
        let Some(end) = found else { return false };
        self.bytes.drain(start..end);
        self.live -= 1;
        self.dead += 1;
        true
    }

    /// Removes entries from the front while `wanted` returns true. Returns their number and the id of the last one.
    pub fn remove_front(&mut self, base: StreamId, mut wanted: impl FnMut(usize, StreamId) -> bool) -> (usize, Option<StreamId>) {
        let (mut removed, mut last, mut end) = (0, None, 0);
        for (entry, at) in self.iter_placed(base) {
            if !wanted(removed, entry.id) {
                break;
            }
            (removed, last, end) = (removed + 1, Some(entry.id), at);
        }
        self.bytes.drain(..end);
        self.live -= removed;
        self.dead += removed;
        (removed, last)
    }
}
