//! The hash value: fields, their values and, if they have any, their deadlines.
//!
//! A small hash is one buffer of fields and values in the order of insertion. It becomes a table of entries when it grows, when a
//! field or value is long, or when a field gets a deadline, and stays one.
//!
//! A table's deadlines are kept in order beside it, each as one word of the deadline and the beginning of the field's hash: that
//! is enough to find the field again, and costs 8 bytes. Expired fields stay until [`Hash::pop_expired`] removes them: readers of
//! a field compare its deadline.

use std::collections::BTreeSet;

use crate::store::dict::{KeyHash, KeyHasher};
use crate::store::entry::{COUNT_FIELD_MAX, COUNT_MAX, Entry, EntryRef, NewValue};
use crate::store::table::{HASH_BITS, HASH_LIMIT};
use crate::store::trie::{Spot, TRIE_BITS, TRIE_LIMIT, Trie, below};
use crate::store::values::packed::Packed;

/// Up to which size a hash is one buffer.
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

/// What happens to a field's deadline when its value is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldTtl {
    /// It is cleared.
    Clear,
    /// It stays.
    Keep,
    /// It becomes this, in monotonic milliseconds.
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
    pub fn is_expired(&self, now_ms: u64) -> bool {
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

/// A hash stored as a table.
#[derive(Debug, Default)]
struct Fields {
    table: Trie,
    /// One word for each field with a deadline; fields with the same deadline and the same beginning of the hash share a word.
    deadlines: BTreeSet<u64>,
    /// Number of fields with a deadline.
    timed: u32,
    /// The number of its timer on the wheel.
    timer: u32,
    /// Whether it exceeded the limits of a buffer; otherwise it is a table only because of deadlines.
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

/// The number that a text is, if it is at most [`COUNT_MAX`].
pub fn small_number(text: &[u8]) -> Option<u8> {
    let number = match *text {
        [one @ b'0'..=b'9'] => one - b'0',
        [b'1', one @ b'0'..=b'9'] => 10 + one - b'0',
        _ => return None,
    };
    (number <= COUNT_MAX).then_some(number)
}

/// The word of a deadline in the ordered set. Deadlines beyond 44 bits (557 years) are treated as equal.
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

    /// Its field and number, if it can be stored as [`NewValue::Count`].
    pub fn as_count(&self) -> Option<(&[u8], u8)> {
        let Form::Packed(packed) = &self.0 else { return None };
        let mut fields = packed.iter();
        let (field, value) = fields.next()?;
        let count = small_number(value).filter(|_| field.len() <= COUNT_FIELD_MAX)?;
        fields.next().is_none().then_some((field, count))
    }

    /// Number of fields, including expired ones that are not removed yet.
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

    /// The reply of `OBJECT ENCODING`.
    pub fn encoding(&self) -> &'static str {
        match &self.0 {
            Form::Packed(_) => "listpack",
            Form::Fields(fields) if !fields.large => "listpackex",
            Form::Fields(_) => "hashtable",
        }
    }

    /// Whether it is small enough to be returned in one step of a scan.
    pub fn is_small(&self) -> bool {
        !matches!(&self.0, Form::Fields(fields) if fields.large)
    }

    /// Bytes of the value on the heap, without the allocator's overhead. Walks the fields of a table.
    pub fn allocated(&self) -> usize {
        match &self.0 {
            Form::Packed(packed) => packed.allocated(),
            Form::Fields(fields) => {
                let entries: usize = fields.table.iter().map(|e| e.allocated() + e.bytes().map_or(0, long_bytes)).sum();
                size_of::<Fields>() + fields.table.allocated() + entries + fields.deadlines.len() * 12
            }
        }
    }

    /// The field of this name, expired or not.
    pub fn get(&self, hasher: &KeyHasher, name: &[u8]) -> Option<Field<'_>> {
        match &self.0 {
            Form::Packed(packed) => packed.get(name).map(|(name, value)| Field { name, value, deadline: None }),
            Form::Fields(fields) => {
                let spot = fields.table.find(hasher.hash(name), name)?;
                Some(field_of(fields.table.get(spot)))
            }
        }
    }

    /// All fields, expired or not; those of a buffer in the order of insertion.
    pub fn iter(&self) -> impl Iterator<Item = Field<'_>> {
        let (packed, fields) = match &self.0 {
            Form::Packed(packed) => (Some(packed), None),
            Form::Fields(fields) => (None, Some(fields)),
        };
        let packed = packed.into_iter().flat_map(Packed::iter).map(|(name, value)| Field { name, value, deadline: None });
        packed.chain(fields.into_iter().flat_map(|fields| fields.table.iter()).map(field_of))
    }

    /// Sets a field. Returns true if it is new; an expired field counts as existing.
    pub fn set(&mut self, hasher: &KeyHasher, limits: Limits, name: &[u8], value: &[u8], ttl: FieldTtl) -> bool {
        let long = name.len() > limits.value || value.len() > limits.value;
        if let Form::Packed(packed) = &mut self.0 {
            if !long && !matches!(ttl, FieldTtl::At(_)) {
                let new = packed.set(name, value);
                if new && packed.len() > limits.entries {
                    self.make_table(hasher);
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

    /// Sets or clears the deadline of a field. Returns false if the field does not exist.
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

    /// Removes a field, expired or not. Returns false if it does not exist.
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

    /// Converts it to a table for good, as if it had exceeded a buffer's limits.
    pub fn make_table(&mut self, hasher: &KeyHasher) {
        self.into_fields(hasher).large = true;
    }

    /// Converts it to a table, as the first deadline does.
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

    /// Whether it has expired fields that are not removed yet.
    pub fn has_expired_fields(&self, now_ms: u64) -> bool {
        self.next_field_deadline().is_some_and(|d| d <= now_ms)
    }

    /// Whether every field has expired, and so the hash itself.
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.end().is_some_and(|end| end <= now_ms)
    }

    /// When the last field expires, and the hash with it, in monotonic milliseconds; `None` if a field has no deadline.
    pub fn end(&self) -> Option<u64> {
        match &self.0 {
            Form::Fields(fields) if fields.timed > 0 && fields.timed as usize == fields.table.len() => {
                fields.deadlines.last().map(|word| word >> HASH_BITS)
            }
            _ => None,
        }
    }

    /// Number of expired fields that are not removed yet. Walks them, unless all fields with deadlines have expired.
    pub fn expired_fields(&self, now_ms: u64) -> usize {
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

    /// Removes one expired field.
    pub fn pop_expired(&mut self, hasher: &KeyHasher, now_ms: u64) -> Option<Entry> {
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

    /// The wheel's timer for the earliest field deadline; 0 if there is none.
    pub fn field_timer(&self) -> u32 {
        match &self.0 {
            Form::Packed(_) => 0,
            Form::Fields(fields) => fields.timer,
        }
    }

    /// Stores the wheel's timer. A hash without deadlines has none.
    pub fn set_field_timer(&mut self, timer: u32) {
        if let Form::Fields(fields) = &mut self.0 {
            fields.timer = timer;
        }
    }

    /// Frees up to `budget` fields. Returns true when none is left.
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

    /// Visits the fields of a table from a cursor on until `count` were seen. Returns the cursor to continue from, 0 at the end.
    /// A field that exists during the whole scan is visited exactly once. A small hash is visited as a whole.
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

    /// A uniformly random field, expired or not; `None` for an empty hash.
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

/// The beginning of the hash, from a word.
fn prefix_of(word: u64) -> u32 {
    word as u32 & (HASH_LIMIT - 1)
}

/// Bytes of a value that is too long for its entry.
fn long_bytes(value: &[u8]) -> usize {
    if value.len() > crate::store::entry::INLINE_MAX { value.len() + 24 } else { 0 }
}

impl Fields {
    fn set(&mut self, hasher: &KeyHasher, name: &[u8], value: &[u8], ttl: FieldTtl) -> bool {
        let hash = hasher.hash(name);
        let Some(spot) = self.table.find(hash, name) else {
            let deadline = if let FieldTtl::At(deadline) = ttl { Some(deadline.max(1)) } else { None };
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
            // The deadline is too far away for a short head.
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

    /// Records that a field with this hash got the deadline.
    fn note(&mut self, hash: KeyHash, deadline: Option<u64>) {
        if let Some(deadline) = deadline {
            self.deadlines.insert(word(deadline, hash));
            self.timed += 1;
        }
    }

    /// Records that a field with this hash lost the deadline.
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

/// A copy has no timer: its new owner sets one.
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
