//! A small set of strings in one buffer: first a mark, [`MARK`], then each member behind its length, in the order of insertion.
//!
//! It is searched from front to back, so its users keep it small.

use crate::store::values::packed::{length_bytes, part, push_part};

/// The first byte. It differs from every width of integers, so that a set recognizes its contents.
pub const MARK: u8 = 1;

/// The content of a buffer, without the mark.
#[derive(Clone, Copy)]
pub struct Members<'b>(&'b [u8]);

impl<'b> Members<'b> {
    /// Reads a buffer; `None` if it does not begin with the mark.
    pub fn of(buffer: &'b [u8]) -> Option<Self> {
        buffer.strip_prefix(&[MARK]).map(Members)
    }

    /// Number of members. Walks them.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// All members, in the order of insertion.
    pub fn iter(self) -> impl Iterator<Item = &'b [u8]> {
        let bytes = self.0;
        let mut at = 0;
        std::iter::from_fn(move || {
            if at == bytes.len() {
                return None;
            }
            let (from, to) = part(bytes, at);
            at = to;
            Some(&bytes[from..to])
        })
    }

    /// The start of a member, including its length, and its end.
    fn find(&self, member: &[u8]) -> Option<(usize, usize)> {
        let bytes = self.0;
        let mut start = 0;
        while start < bytes.len() {
            let (from, to) = part(bytes, start);
            if &bytes[from..to] == member {
                return Some((start, to));
            }
            start = to;
        }
        None
    }

    /// Whether this is a member.
    pub fn contains(&self, member: &[u8]) -> bool {
        self.find(member).is_some()
    }

    /// Panics if an invariant is broken.
    pub fn check_invariants(&self) {
        let mut members = std::collections::HashSet::new();
        let mut bytes = 0;
        for member in self.iter() {
            assert!(members.insert(member), "the member {member:?} twice");
            bytes += length_bytes(member.len()) + member.len();
        }
        assert_eq!(bytes, self.0.len(), "bytes of the buffer");
    }
}

/// A buffer of these members, which must be distinct.
pub fn buffer<'m>(members: impl IntoIterator<Item = &'m [u8]>) -> Box<[u8]> {
    let mut bytes = vec![MARK];
    members.into_iter().for_each(|member| push_part(&mut bytes, member));
    bytes.into_boxed_slice()
}

/// Appends a member that is not in the buffer.
pub fn push(buffer: &mut Box<[u8]>, member: &[u8]) {
    let mut bytes = std::mem::take(buffer).into_vec();
    bytes.reserve_exact(length_bytes(member.len()) + member.len());
    push_part(&mut bytes, member);
    *buffer = bytes.into_boxed_slice();
}

/// Takes a member out; false where there is no such member.
pub fn remove(buffer: &mut Box<[u8]>, member: &[u8]) -> bool {
    let Some((start, end)) = Members::of(buffer).and_then(|members| members.find(member)) else { return false };
    let mut bytes = std::mem::take(buffer).into_vec();
    bytes.drain(1 + start..1 + end);
    *buffer = bytes.into_boxed_slice();
    true
}

impl std::fmt::Debug for Members<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter().map(String::from_utf8_lossy)).finish()
    }
}
