//! The set value: distinct members.
//!
//! A small set of integers is stored in ascending order, any other small set as one buffer in the order of insertion. A set
//! becomes a table of entries when it grows or a member is long, and stays one. The form of a set follows Redis's rules exactly,
//! because the order of replies depends on it.

use crate::base::integer::parse_i64;
use crate::store::dict::KeyHasher;
use crate::store::entry::{Entry, EntryRef, NewValue};
use crate::store::trie::{TRIE_LIMIT, Trie, below};
use crate::store::values::ints;
use crate::store::values::ints::Ints;
use crate::store::values::members;
use crate::store::values::members::Members;

/// Up to which size a set stays in its compact forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `set-max-intset-entries`: maximum members of a set of integers.
    pub ints: usize,
    /// `set-max-listpack-entries`: maximum members of another small set.
    pub entries: usize,
    /// `set-max-listpack-value`: maximum bytes of a member.
    pub value: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { ints: 512, entries: 128, value: 64 }
    }
}

impl Limits {
    /// Maximum members of a set of integers, whatever the directive says.
    fn ints_max(&self) -> usize {
        self.ints.min(1 << 30)
    }
}

/// A member in its stored form. A canonical integer may have either form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Member<'a> {
    /// An integer; its decimal digits are the member.
    Int(i64),
    /// A string.
    Bytes(&'a [u8]),
}

impl Member<'_> {
    /// Its bytes.
    pub fn text<'b>(&'b self, digits: &'b mut itoa::Buffer) -> &'b [u8] {
        match self {
            Member::Int(n) => digits.format(*n).as_bytes(),
            Member::Bytes(bytes) => bytes,
        }
    }

    /// Its bytes, copied.
    pub fn to_vec(self) -> Vec<u8> {
        self.text(&mut itoa::Buffer::new()).to_vec()
    }

    /// The integer that it is, in either form.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Member::Int(n) => Some(*n),
            Member::Bytes(bytes) => parse_i64(bytes),
        }
    }

    /// The same member, as an integer if it is one: in this form, equal members compare equal.
    pub fn normal(self) -> Self {
        self.integer().map_or(self, Member::Int)
    }
}

/// Distinct members.
#[derive(Debug, Clone)]
pub struct Set(Form);

#[derive(Debug)]
enum Form {
    /// Integers or strings: see [`Small`].
    Small(Box<[u8]>),
    Table(Box<Trie>),
}

/// The content of the buffer of a small set.
enum Small<'b> {
    Ints(Ints<'b>),
    Strings(Members<'b>),
}

fn small(buffer: &[u8]) -> Small<'_> {
    if let Some(members) = Members::of(buffer) { Small::Strings(members) } else { Small::Ints(Ints::of(buffer)) }
}

impl Clone for Form {
    fn clone(&self) -> Self {
        match self {
            Form::Small(buffer) => Form::Small(buffer.clone()),
            Form::Table(table) => Form::Table(Box::new(table.duplicate(|entry| new_entry(entry.key())))),
        }
    }
}

impl Default for Set {
    /// An empty set that becomes one of integers if its first member is one.
    fn default() -> Self {
        Set(Form::Small(Box::default()))
    }
}

fn new_entry(member: &[u8]) -> Entry {
    Entry::new(member, NewValue::Bytes(b""), None)
}

fn member_of(entry: EntryRef<'_>) -> Member<'_> {
    Member::Bytes(entry.key())
}

impl Set {
    /// An empty set in the form for `count` members, beginning with `first`.
    pub fn for_members(first: &[u8], count: usize, limits: Limits) -> Set {
        if count <= limits.ints && parse_i64(first).is_some() {
            Set::default()
        } else if count <= limits.entries {
            Set::packed()
        } else {
            Set(Form::Table(Box::default()))
        }
    }

    /// An empty set as one buffer.
    pub fn packed() -> Set {
        Set(Form::Small(members::buffer([])))
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Small(buffer) => match small(buffer) {
                Small::Ints(ints) => ints.len(),
                Small::Strings(members) => members.len(),
            },
            Form::Table(table) => table.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        match &self.0 {
            Form::Small(buffer) => buffer.len() <= 1,
            Form::Table(table) => table.is_empty(),
        }
    }

    /// The reply of `OBJECT ENCODING`.
    pub fn encoding(&self) -> &'static str {
        match &self.0 {
            Form::Small(buffer) => match small(buffer) {
                Small::Ints(_) => "intset",
                Small::Strings(_) => "listpack",
            },
            Form::Table(_) => "hashtable",
        }
    }

    /// Whether it is a set of integers in ascending order.
    pub fn is_ints(&self) -> bool {
        matches!(&self.0, Form::Small(buffer) if matches!(small(buffer), Small::Ints(_)))
    }

    /// Whether it is one buffer in the order of insertion.
    pub fn is_packed(&self) -> bool {
        matches!(&self.0, Form::Small(buffer) if matches!(small(buffer), Small::Strings(_)))
    }

    /// Number of pieces of memory to free.
    pub fn weight(&self) -> usize {
        match &self.0 {
            Form::Small(_) => 1,
            Form::Table(table) => table.len(),
        }
    }

    /// Bytes of the value on the heap, without the allocator's overhead. Walks the members of a table.
    pub fn allocated(&self) -> usize {
        match &self.0 {
            Form::Small(buffer) => buffer.len(),
            Form::Table(table) => size_of::<Trie>() + table.allocated() + table.iter().map(EntryRef::allocated).sum::<usize>(),
        }
    }

    /// Whether this is a member.
    pub fn contains(&self, hasher: &KeyHasher, member: Member<'_>) -> bool {
        let mut digits = itoa::Buffer::new();
        match &self.0 {
            Form::Small(buffer) => match small(buffer) {
                Small::Ints(ints) => member.integer().is_some_and(|n| ints.contains(n)),
                Small::Strings(members) => members.contains(member.text(&mut digits)),
            },
            Form::Table(table) => {
                let member = member.text(&mut digits);
                table.find(hasher.hash(member), member).is_some()
            }
        }
    }

    /// All members: integers in ascending order, those of a buffer in the order of insertion.
    pub fn iter(&self) -> impl Iterator<Item = Member<'_>> {
        let (ints, members, table) = match &self.0 {
            Form::Small(buffer) => match small(buffer) {
                Small::Ints(ints) => (Some(ints), None, None),
                Small::Strings(members) => (None, Some(members), None),
            },
            Form::Table(table) => (None, None, Some(table)),
        };
        let ints = ints.into_iter().flat_map(Ints::iter).map(Member::Int);
        let members = members.into_iter().flat_map(Members::iter).map(Member::Bytes);
        ints.chain(members).chain(table.into_iter().flat_map(|table| table.iter()).map(member_of))
    }

    /// Converts it to the form for this many more members, as Redis predicts it.
    pub fn make_room(&mut self, hasher: &KeyHasher, limits: Limits, more: usize) {
        let outgrown = match &self.0 {
            Form::Small(buffer) => match small(buffer) {
                Small::Ints(_) => more > limits.ints,
                Small::Strings(_) => more > limits.entries,
            },
            Form::Table(_) => false,
        };
        if outgrown {
            self.make_table(hasher);
        }
    }

    /// Adds a member. Returns true if it is new.
    pub fn add(&mut self, hasher: &KeyHasher, limits: Limits, member: Member<'_>) -> bool {
        let mut digits = itoa::Buffer::new();
        if let Form::Small(buffer) = &mut self.0 {
            match small(buffer) {
                Small::Ints(ints) => {
                    if let Some(n) = member.integer() {
                        return self.add_integer(hasher, limits, n);
                    }
                    let member = member.text(&mut digits);
                    if ints.len() < limits.entries && member.len().max(longest(ints)) <= limits.value {
                        *buffer = pack(ints);
                    } else {
                        self.make_table(hasher);
                    }
                }
                Small::Strings(members) => {
                    let member = member.text(&mut digits);
                    if members.contains(member) {
                        return false;
                    }
                    if member.len() > limits.value || members.len() >= limits.entries {
                        self.make_table(hasher);
                    }
                }
            }
        }
        let member = member.text(&mut digits);
        match &mut self.0 {
            Form::Small(buffer) => members::push(buffer, member),
            Form::Table(table) => {
                let hash = hasher.hash(member);
                if table.find(hash, member).is_some() {
                    return false;
                }
                table.insert(hasher, hash, new_entry(member));
            }
        }
        true
    }

    /// As [`Set::add`] for an integer and a set of integers.
    #[inline]
    fn add_integer(&mut self, hasher: &KeyHasher, limits: Limits, n: i64) -> bool {
        let Form::Small(buffer) = &mut self.0 else { return false };
        let new = ints::add(buffer, n);
        if new && Ints::of(buffer).len() > limits.ints_max() {
            self.make_table(hasher);
        }
        new
    }

    /// Removes a member. Returns false if it does not exist.
    pub fn remove(&mut self, hasher: &KeyHasher, member: Member<'_>) -> bool {
        let mut digits = itoa::Buffer::new();
        match &mut self.0 {
            Form::Small(buffer) => match small(buffer) {
                Small::Ints(_) => member.integer().is_some_and(|n| ints::remove(buffer, n)),
                Small::Strings(_) => members::remove(buffer, member.text(&mut digits)),
            },
            Form::Table(table) => {
                let member = member.text(&mut digits);
                let Some(spot) = table.find(hasher.hash(member), member) else { return false };
                drop(table.remove(hasher, spot));
                true
            }
        }
    }

    /// Converts it to a table for good, as if it had exceeded the limits of the other forms.
    pub fn make_table(&mut self, hasher: &KeyHasher) {
        if matches!(self.0, Form::Table(_)) {
            return;
        }
        let mut table = Box::<Trie>::default();
        let mut digits = itoa::Buffer::new();
        for member in self.iter() {
            let member = member.text(&mut digits);
            table.insert(hasher, hasher.hash(member), new_entry(member));
        }
        self.0 = Form::Table(table);
    }

    /// Converts it to a set of integers, unless there are too many members. All members must be integers.
    pub fn make_ints(&mut self, limits: Limits) {
        if self.is_ints() || self.len() > limits.ints_max() {
            return;
        }
        let mut buffer = Box::default();
        for member in self.iter() {
            if let Some(n) = member.integer() {
                ints::add(&mut buffer, n)
            } else {
                return;
            };
        }
        self.0 = Form::Small(buffer);
    }

    /// A uniformly random member; `None` for an empty set.
    pub fn random(&self, random: &mut impl FnMut() -> u64) -> Option<Member<'_>> {
        match &self.0 {
            Form::Small(buffer) => match small(buffer) {
                Small::Ints(ints) => ints.nth(below(random(), ints.len())).map(Member::Int),
                Small::Strings(members) => members.iter().nth(below(random(), members.len())).map(Member::Bytes),
            },
            Form::Table(table) => table.random(random).map(member_of),
        }
    }

    /// Visits the members of a table from a cursor on until `count` were seen. Returns the cursor to continue from, 0 at the end.
    /// A member that exists during the whole scan is visited, and twice only if the set became a table meanwhile. A small set is
    /// visited as a whole.
    pub fn scan<'a>(&'a self, hasher: &KeyHasher, cursor: u64, count: usize, mut visit: impl FnMut(Member<'a>)) -> u64 {
        match &self.0 {
            Form::Table(table) => {
                let Ok(from) = u32::try_from(cursor) else { return 0 };
                let next = table.scan(hasher, from, count, |entry| visit(member_of(entry)));
                if next >= TRIE_LIMIT { 0 } else { u64::from(next) }
            }
            _ => {
                self.iter().for_each(visit);
                0
            }
        }
    }

    /// Frees up to `budget` members. Returns true when none is left.
    pub fn free_some(&mut self, budget: &mut u32) -> bool {
        let Form::Table(table) = &mut self.0 else { return true };
        while *budget > 0 {
            if table.pop().is_none() {
                return true;
            }
            *budget -= 1;
        }
        false
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self, hasher: &KeyHasher) {
        match &self.0 {
            Form::Small(buffer) => match small(buffer) {
                Small::Ints(ints) => ints.check_invariants(),
                Small::Strings(members) => members.check_invariants(),
            },
            Form::Table(table) => table.check_invariants(hasher),
        }
    }
}

/// Bytes of the longest integer as text.
fn longest(ints: Ints<'_>) -> usize {
    let ends = [ints.nth(0), ints.nth(ints.len().saturating_sub(1))];
    ends.into_iter().flatten().map(|n| itoa::Buffer::new().format(n).len()).max().unwrap_or(0)
}

/// Integers as a buffer of strings, in their order.
fn pack(ints: Ints<'_>) -> Box<[u8]> {
    let texts: Vec<String> = ints.iter().map(|n| n.to_string()).collect();
    members::buffer(texts.iter().map(String::as_bytes))
}

#[cfg(test)]
#[path = "set_tests.rs"]
mod tests;
