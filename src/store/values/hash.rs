//! The hash value: fields, their values and, if they have any, their deadlines.
//!
//! A small hash is one buffer of fields and values in the order in which they came. It becomes a table of entries when it grows,
//! when a field or value is long, or when a field gets a deadline, and stays one.
//!
//! A table's deadlines are kept in order beside it, as the deadline and the beginning of the field's hash in one word: that is enough
//! to find the field again, and costs 8 bytes. Ended fields stay until they are taken out by [`Hash::take_ended`]: whoever looks at a field
//! compares its deadline.

use std::collections::BTreeSet;

use crate::store::dict::{KeyHash, KeyHasher};
use crate::store::entry::{COUNT_FIELD_MAX, COUNT_MAX, Entry, EntryRef, NewValue};
use crate::store::table::{HASH_BITS, HASH_LIMIT};
use crate::store::trie::{Spot, TRIE_BITS, TRIE_LIMIT, Trie, below};
use crate::store::values::packed::Packed;

/// How far a hash may grow as one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `hash-max-listpack-entries`: number of fields.
    pub entries: usize,
    /// `hash-max-listpack-value`: bytes of a field or a value.
    pub value: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { entries: 512, value: 64 }
    }
}

/// What becomes of a field's deadline when its value is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldTtl {
    /// It has none any more.
    Clear,
    /// It stays.
    Keep,
    /// It is this, in monotonic milliseconds.
    At(u64),
}

/// One field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Its deadline, in monotonic milliseconds.
    pub deadline: Option<u64>,
}

impl Field<'_> {
    /// Whether its deadline is reached.
    pub fn ended(&self, now_ms: u64) -> bool {
        self.deadline.is_some_and(|d| d <= now_ms)
    }
}

/// Fields and their values.
#[derive(Debug, Clone)]
pub struct Hash(Form);

#[derive(Debug, Clone)]
enum Form {
    Packed(Packed),
    Fields(Box<Fields>),
}

/// A hash as a table.
#[derive(Debug, Default)]
struct Fields {
    table: Trie,
    /// One word for each field with a deadline; fields that share both the deadline and the beginning of the hash share the word.
    deadlines: BTreeSet<u64>,
    /// Number of fields with a deadline.
    timed: u32,
    /// The wheel's timer.
    timer: u32,
    /// Whether it outgrew the limits of a buffer, or only has deadlines.
    large: bool,
}

impl Default for Hash {
    fn default() -> Self {
        Hash(Form::Packed(Packed::default()))
    }
}

/// The digits of a small number, at most [`COUNT_MAX`].
pub fn digits(count: u8) -> &'static [u8] {
    const DIGITS: [&[u8]; COUNT_MAX as usize + 1] =
        [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9", b"10", b"11", b"12", b"13", b"14", b"15"];
    DIGITS[usize::from(count.min(COUNT_MAX))]
}

/// The number that is written so, where it is at most [`COUNT_MAX`].
pub fn small_number(text: &[u8]) -> Option<u8> {
    let number = match *text {
        [one @ b'0'..=b'9'] => one - b'0',
        [b'1', one @ b'0'..=b'9'] => 10 + one - b'0',
        _ => return None,
    };
    (number <= COUNT_MAX).then_some(number)
}

/// The word of a deadline in the ordered set. Deadlines beyond 44 bits (557 years) are all one.
fn word(deadline: u64, hash: KeyHash) -> u64 {
    (deadline.min(DEADLINE_MAX) << HASH_BITS) | u64::from(hash.bits() >> (TRIE_BITS - HASH_BITS))
}

const DEADLINE_MAX: u64 = (1 << (64 - HASH_BITS)) - 1;

fn field_of(entry: EntryRef<'_>) -> Field<'_> {
    // A field's value is always a string.
    Field { name: entry.key(), value: entry.bytes().unwrap_or_default(), deadline: entry.deadline() }
}

impl Hash {
    /// A hash of one field, whose value is a small number.
    pub fn of_count(field: &[u8], count: u8) -> Hash {
        let mut packed = Packed::default();
        packed.set(field, digits(count));
        Hash(Form::Packed(packed))
    }

    /// Its field and number, where it is one that may be kept as [`NewValue::Count`].
    pub fn as_count(&self) -> Option<(&[u8], u8)> {
        let Form::Packed(packed) = &self.0 else { return None };
        let mut fields = packed.iter();
        let (field, value) = fields.next()?;
        let count = small_number(value).filter(|_| field.len() <= COUNT_FIELD_MAX)?;
        fields.next().is_none().then_some((field, count))
    }

    /// Number of fields, those included that have ended and were not yet taken out.
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Packed(packed) => packed.len(),
            Form::Fields(fields) => fields.table.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        match &self.0 {
            Form::Packed(packed) => packed.is_empty(),
            Form::Fields(fields) => fields.table.is_empty(),
        }
    }

    /// What `OBJECT ENCODING` answers.
    pub fn encoding(&self) -> &'static str {
        match &self.0 {
            Form::Packed(_) => "listpack",
            Form::Fields(fields) if !fields.large => "listpackex",
            Form::Fields(_) => "hashtable",
        }
    }

    /// Whether it is small enough to be given out in one step of a scan.
    pub fn is_small(&self) -> bool {
        !matches!(&self.0, Form::Fields(fields) if fields.large)
    }

    /// Bytes of the value on the heap, the allocator's overhead not counted. Walks the fields of a table.
    pub fn allocated(&self) -> usize {
        match &self.0 {
            Form::Packed(packed) => packed.allocated(),
            Form::Fields(fields) => {
                let entries: usize = fields.table.iter().map(|e| e.allocated() + e.bytes().map_or(0, long_bytes)).sum();
                size_of::<Fields>() + fields.table.allocated() + entries + fields.deadlines.len() * 12
            }
        }
    }

    /// The field of this name, ended or not.
    pub fn get(&self, hasher: &KeyHasher, name: &[u8]) -> Option<Field<'_>> {
        match &self.0 {
            Form::Packed(packed) => packed.get(name).map(|(name, value)| Field { name, value, deadline: None }),
            Form::Fields(fields) => {
                let spot = fields.table.find(hasher.hash(name), name)?;
                Some(field_of(fields.table.get(spot)))
            }
        }
    }

    /// All fields, ended or not: those of a buffer in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = Field<'_>> {
        let (packed, fields) = match &self.0 {
            Form::Packed(packed) => (Some(packed), None),
            Form::Fields(fields) => (None, Some(fields)),
        };
        let packed = packed.into_iter().flat_map(Packed::iter).map(|(name, value)| Field { name, value, deadline: None });
        packed.chain(fields.into_iter().flat_map(|fields| fields.table.iter()).map(field_of))
    }

    /// Sets a field; true when it is new. A field that has ended counts as one that is there.
    pub fn set(&mut self, hasher: &KeyHasher, limits: Limits, name: &[u8], value: &[u8], ttl: FieldTtl) -> bool {
        let long = name.len() > limits.value || value.len() > limits.value;
        if let Form::Packed(packed) = &mut self.0 {
            if !long && !matches!(ttl, FieldTtl::At(_)) {
                let new = packed.set(name, value);
                if new && packed.len() > limits.entries {
                    self.spread(hasher);
                }
                return new;
            }
            self.into_fields(hasher);
        }
        let Form::Fields(fields) = &mut self.0 else { return false };
        let new = fields.set(hasher, name, value, ttl);
        fields.large |= long || fields.table.len() > limits.entries;
        new
    }

    /// Sets or clears the deadline of a field; false where there is no such field.
    pub fn set_deadline(&mut self, hasher: &KeyHasher, name: &[u8], deadline: Option<u64>) -> bool {
        if let Form::Packed(packed) = &self.0 {
            if packed.get(name).is_none() {
                return false;
            }
            if deadline.is_none() {
                return true;
            }
        }
        let fields = self.into_fields(hasher);
        let hash = hasher.hash(name);
        let Some(spot) = fields.table.find(hash, name) else { return false };
        fields.set_deadline(hash, spot, deadline);
        true
    }

    /// Takes a field out, ended or not; false where there is no such field.
    pub fn remove(&mut self, hasher: &KeyHasher, name: &[u8]) -> bool {
        match &mut self.0 {
            Form::Packed(packed) => packed.remove(name),
            Form::Fields(fields) => {
                let Some(spot) = fields.table.find(hasher.hash(name), name) else { return false };
                drop(fields.take(hasher, spot));
                true
            }
        }
    }

    /// Makes it a table for good, as if it had outgrown a buffer's limits.
    pub fn spread(&mut self, hasher: &KeyHasher) {
        self.into_fields(hasher).large = true;
    }

    /// Makes it a table, as the first deadline does.
    pub fn make_timed(&mut self, hasher: &KeyHasher) {
        self.into_fields(hasher);
    }

    #[allow(clippy::wrong_self_convention)]
    fn into_fields(&mut self, hasher: &KeyHasher) -> &mut Fields {
        if let Form::Packed(packed) = &self.0 {
            let mut fields = Box::<Fields>::default();
            for (name, value) in packed.iter() {
                fields.table.insert(hasher, hasher.hash(name), Entry::new(name, NewValue::Bytes(value), None));
            }
            self.0 = Form::Fields(fields);
        }
        match &mut self.0 {
            Form::Fields(fields) => fields,
            Form::Packed(_) => unreachable!("was made a table just above"),
        }
    }

    /// The earliest deadline of a field, in monotonic milliseconds.
    pub fn next_field_deadline(&self) -> Option<u64> {
        match &self.0 {
            Form::Packed(_) => None,
            Form::Fields(fields) => fields.deadlines.first().map(|word| word >> HASH_BITS),
        }
    }

    /// Number of fields with a deadline.
    #[cfg(any(test, feature = "internals"))]
    pub fn timed(&self) -> usize {
        match &self.0 {
            Form::Packed(_) => 0,
            Form::Fields(fields) => fields.timed as usize,
        }
    }

    /// Whether some field has ended and was not yet taken out.
    pub fn has_ended_fields(&self, now_ms: u64) -> bool {
        self.next_field_deadline().is_some_and(|d| d <= now_ms)
    }

    /// Whether every field has ended: the hash itself has.
    pub fn ended(&self, now_ms: u64) -> bool {
        self.end().is_some_and(|end| end <= now_ms)
    }

    /// When the last field ends, and the hash with it, in monotonic milliseconds; `None` where a field has no deadline.
    pub fn end(&self) -> Option<u64> {
        match &self.0 {
            Form::Fields(fields) if fields.timed > 0 && fields.timed as usize == fields.table.len() => {
                fields.deadlines.last().map(|word| word >> HASH_BITS)
            }
            _ => None,
        }
    }

    /// Number of fields that have ended and were not yet taken out. Looks at each of them, unless all that can end have.
    pub fn ended_fields(&self, now_ms: u64) -> usize {
        let Form::Fields(fields) = &self.0 else { return 0 };
        if fields.deadlines.last().is_some_and(|word| word >> HASH_BITS <= now_ms) {
            return fields.timed as usize;
        }
        let mut count = 0;
        for word in fields.deadlines.range(..(now_ms.min(DEADLINE_MAX - 1) + 1) << HASH_BITS) {
            let deadline = word >> HASH_BITS;
            fields.table.find_prefixed(prefix_of(*word), |entry| {
                count += usize::from(entry.deadline() == Some(deadline));
                false
            });
        }
        count
    }

    /// Takes out one field that has ended.
    pub fn take_ended(&mut self, hasher: &KeyHasher, now_ms: u64) -> Option<Entry> {
        let Form::Fields(fields) = &mut self.0 else { return None };
        loop {
            let first = *fields.deadlines.first()?;
            if first >> HASH_BITS > now_ms {
                return None;
            }
            match fields.table.find_prefixed(prefix_of(first), |entry| entry.deadline().is_some_and(|d| d <= now_ms)) {
                Some(spot) => return Some(fields.take(hasher, spot)),
                None => drop(fields.deadlines.pop_first()),
            }
        }
    }

    /// The wheel's timer for the earliest field deadline; 0 where there is none.
    pub fn field_timer(&self) -> u32 {
        match &self.0 {
            Form::Packed(_) => 0,
            Form::Fields(fields) => fields.timer,
        }
    }

    /// Notes the wheel's timer. A hash without deadlines has none.
    pub fn set_field_timer(&mut self, timer: u32) {
        if let Form::Fields(fields) = &mut self.0 {
            fields.timer = timer;
        }
    }

    /// Frees up to `budget` fields; true when none is left.
    pub fn free_some(&mut self, budget: &mut u32) -> bool {
        let Form::Fields(fields) = &mut self.0 else { return true };
        while *budget > 0 {
            if fields.table.pop().is_none() {
                fields.deadlines.clear();
                fields.timed = 0;
                return true;
            }
            fields.deadlines.pop_last();
            *budget -= 1;
        }
        false
    }

    /// Visits the fields of a table from a cursor on until `count` were seen; gives the cursor to go on from, 0 at the end. A field
    /// that is there during the whole of a scan is visited exactly once. A small hash is visited whole.
    pub fn scan<'a>(&'a self, hasher: &KeyHasher, cursor: u64, count: usize, mut visit: impl FnMut(Field<'a>)) -> u64 {
        match &self.0 {
            Form::Fields(fields) if fields.large => {
                let Ok(from) = u32::try_from(cursor) else { return 0 };
                let next = fields.table.scan(hasher, from, count, |entry| visit(field_of(entry)));
                if next >= TRIE_LIMIT { 0 } else { u64::from(next) }
            }
            _ => {
                self.iter().for_each(visit);
                0
            }
        }
    }

    /// A random field, ended or not, each with the same chance; `None` of an empty hash.
    pub fn random(&self, random: &mut impl FnMut() -> u64) -> Option<Field<'_>> {
        match &self.0 {
            Form::Packed(packed) => self.iter().nth(below(random(), packed.len())),
            Form::Fields(fields) => fields.table.random(random).map(field_of),
        }
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self, hasher: &KeyHasher) {
        match &self.0 {
            Form::Packed(packed) => packed.check_invariants(),
            Form::Fields(fields) => {
                fields.table.check_invariants(hasher);
                let words = fields.table.iter().filter_map(|e| e.deadline().map(|d| word(d, hasher.hash(e.key()))));
                let words: Vec<u64> = words.collect();
                assert_eq!(words.len(), fields.timed as usize, "fields with a deadline");
                assert_eq!(BTreeSet::from_iter(words), fields.deadlines, "the deadlines in order");
            }
        }
    }
}

/// The beginning of the hash in a word.
fn prefix_of(word: u64) -> u32 {
    word as u32 & (HASH_LIMIT - 1)
}

/// Bytes of a value that does not fit into its entry.
fn long_bytes(value: &[u8]) -> usize {
    if value.len() > crate::store::entry::INLINE_MAX { value.len() + 24 } else { 0 }
}

impl Fields {
    fn set(&mut self, hasher: &KeyHasher, name: &[u8], value: &[u8], ttl: FieldTtl) -> bool {
        let hash = hasher.hash(name);
        let Some(spot) = self.table.find(hash, name) else {
            let deadline = match ttl {
                FieldTtl::At(deadline) => Some(deadline.max(1)),
                _ => None,
            };
            self.table.insert(hasher, hash, Entry::new(name, NewValue::Bytes(value), deadline));
            self.note(hash, deadline);
            return true;
        };
        let old = self.table.get(spot).deadline();
        let deadline = match ttl {
            FieldTtl::Clear => None,
            FieldTtl::Keep => old,
            FieldTtl::At(deadline) => Some(deadline),
        };
        if !self.table.get_mut(spot).overwrite(value) {
            drop(self.table.replace(spot, Entry::new(name, NewValue::Bytes(value), old)));
        }
        self.set_deadline(hash, spot, deadline);
        false
    }

    fn set_deadline(&mut self, hash: KeyHash, spot: Spot, deadline: Option<u64>) {
        let deadline = deadline.map(|d| d.max(1));
        let old = self.table.get(spot).deadline();
        if old == deadline {
            return;
        }
        if !self.table.get_mut(spot).set_deadline(deadline) {
            // Too far away for a short head.
            let field = field_of(self.table.get(spot));
            let entry = Entry::new(field.name, NewValue::Bytes(field.value), deadline);
            drop(self.table.replace(spot, entry));
        }
        self.forget(hash, old);
        self.note(hash, deadline);
    }

    fn take(&mut self, hasher: &KeyHasher, spot: Spot) -> Entry {
        let entry = self.table.remove(hasher, spot);
        if let Some(deadline) = entry.read().deadline() {
            self.forget(hasher.hash(entry.read().key()), Some(deadline));
        }
        entry
    }

    /// Notes that a field of this hash has got the deadline.
    fn note(&mut self, hash: KeyHash, deadline: Option<u64>) {
        if let Some(deadline) = deadline {
            self.deadlines.insert(word(deadline, hash));
            self.timed += 1;
        }
    }

    /// Notes that a field of this hash has lost the deadline.
    fn forget(&mut self, hash: KeyHash, deadline: Option<u64>) {
        if let Some(deadline) = deadline {
            let gone = word(deadline, hash);
            let shared = |entry: EntryRef<'_>| entry.deadline().is_some_and(|d| word(d, hash) == gone);
            if self.table.find_prefixed(prefix_of(gone), shared).is_none() {
                self.deadlines.remove(&gone);
            }
            self.timed -= 1;
        }
    }
}

/// A copy has no timer: it is armed anew where it is put.
impl Clone for Fields {
    fn clone(&self) -> Self {
        let table = self.table.duplicate(|entry| {
            let field = field_of(entry);
            Entry::new(field.name, NewValue::Bytes(field.value), field.deadline)
        });
        Fields { table, deadlines: self.deadlines.clone(), timed: self.timed, timer: 0, large: self.large }
    }
}

#[cfg(test)]
#[path = "hash_tests.rs"]
mod tests;
