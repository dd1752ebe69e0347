//! A small hash as one buffer: field, value, field, value, each behind its length, in the order of insertion.
//!
//! It is searched from front to back, so its users keep it small. Lengths are written seven bits per byte, lowest first.

/// Fields and values in one allocation without spare capacity.
#[derive(Clone, Default)]
pub struct Packed(Box<[u8]>);

/// The offsets of a field's parts.
struct Span {
    /// The start of the length of the field's name.
    start: usize,
    /// The start of its name.
    name: usize,
    /// The start of the length of the value.
    length: usize,
    /// The start of the value.
    value: usize,
    /// The start of the next field.
    end: usize,
}

/// The start and the end of the bytes of the part whose length begins at `at`.
#[inline]
pub(crate) fn part(bytes: &[u8], at: usize) -> (usize, usize) {
    let first = bytes[at];
    if first < 0x80 {
        return (at + 1, at + 1 + usize::from(first));
    }
    let (mut len, mut shift, mut at) = (0usize, 0, at);
    loop {
        let byte = bytes[at];
        at += 1;
        len |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return (at, at + len);
        }
        shift += 7;
    }
}

/// Number of bytes of an encoded length.
pub(crate) fn length_bytes(len: usize) -> usize {
    (usize::BITS - (len | 1).leading_zeros()).div_ceil(7) as usize
}

/// Appends a part with its length.
pub(crate) fn push_part(into: &mut Vec<u8>, bytes: &[u8]) {
    let mut len = bytes.len();
    while len >= 0x80 {
        into.push(len as u8 | 0x80);
        len >>= 7;
    }
    into.push(len as u8);
    into.extend_from_slice(bytes);
}

impl Packed {
    /// Number of fields. Walks them.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of the allocation.
    pub fn allocated(&self) -> usize {
        self.0.len()
    }

    /// Fields and values, in the order of insertion.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let bytes = &self.0[..];
        let mut at = 0;
        std::iter::from_fn(move || {
            if at == bytes.len() {
                return None;
            }
            let name = part(bytes, at);
            let value = part(bytes, name.1);
            at = value.1;
            Some((&bytes[name.0..name.1], &bytes[value.0..value.1]))
        })
    }

    fn find(&self, name: &[u8]) -> Option<Span> {
        let bytes = &self.0[..];
        let mut start = 0;
        while start < bytes.len() {
            let (from, length) = part(bytes, start);
            let (value, end) = part(bytes, length);
            if &bytes[from..length] == name {
                return Some(Span { start, name: from, length, value, end });
            }
            start = end;
        }
        None
    }

    /// A field and its value.
    pub fn get(&self, name: &[u8]) -> Option<(&[u8], &[u8])> {
        let span = self.find(name)?;
        Some((&self.0[span.name..span.length], &self.0[span.value..span.end]))
    }

    /// Sets a field: a new one is appended, an existing one keeps its place. Returns true if it is new.
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> bool {
        let Some(span) = self.find(name) else {
            let more = length_bytes(name.len()) + name.len() + length_bytes(value.len()) + value.len();
            let mut bytes = std::mem::take(&mut self.0).into_vec();
            bytes.reserve_exact(more);
            push_part(&mut bytes, name);
            push_part(&mut bytes, value);
            self.0 = bytes.into_boxed_slice();
            return true;
        };
        if span.end - span.value == value.len() {
            self.0[span.value..span.end].copy_from_slice(value);
            return false;
        }
        let mut bytes = Vec::with_capacity(self.0.len() - (span.end - span.length) + length_bytes(value.len()) + value.len());
        bytes.extend_from_slice(&self.0[..span.length]);
        push_part(&mut bytes, value);
        bytes.extend_from_slice(&self.0[span.end..]);
        self.0 = bytes.into_boxed_slice();
        false
    }

    /// Removes a field. Returns false if it does not exist.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let Some(span) = self.find(name) else { return false };
        let mut bytes = std::mem::take(&mut self.0).into_vec();
        bytes.drain(span.start..span.end);
        self.0 = bytes.into_boxed_slice();
        true
    }

    /// Panics if an invariant is broken.
    pub fn check_invariants(&self) {
        let mut names = std::collections::HashSet::new();
        let mut bytes = 0;
        for (name, value) in self.iter() {
            assert!(names.insert(name), "the field {name:?} twice");
            bytes += length_bytes(name.len()) + name.len() + length_bytes(value.len()) + value.len();
        }
        assert_eq!(bytes, self.0.len(), "bytes of the buffer");
    }
}

impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        f.debug_map().entries(self.iter().map(|(name, value)| (text(name), text(value)))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::scaled;

    #[test]
    fn parts_of_every_length_come_back() {
        let mut packed = Packed::default();
        let most = scaled(300_000, 20_000);
        for len in [0, 1, 127, 128, 129, 16_383, 16_384, most] {
            let name = vec![b'n'; len];
            assert!(packed.set(&name, &vec![b'v'; len]));
            packed.check_invariants();
            assert!(!packed.set(&name, b"short"));
            packed.check_invariants();
            assert_eq!(packed.get(&name), Some((&name[..], &b"short"[..])));
            assert!(!packed.set(&name, &vec![b'w'; len]));
            packed.check_invariants();
            assert_eq!(packed.get(&name), Some((&name[..], &vec![b'w'; len][..])));
        }
        assert_eq!(packed.len(), 8);
        assert!(packed.remove(&[b'n'; 128]) && !packed.remove(&[b'n'; 128]));
        packed.check_invariants();
        assert_eq!(packed.iter().map(|(name, _)| name.len()).collect::<Vec<_>>(), [0, 1, 127, 129, 16_383, 16_384, most]);
    }
}
