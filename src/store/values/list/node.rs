//! A run of list elements in one buffer, or a single long element.
//!
//! ```text
//!   │ start u32 │ end u32 │ count u32 │ room │ entry │ entry │ … │ room │      count = PLAIN: │ 12 bytes │ element │
//!   entry: encoding and length, bytes, length of both, which is read from the right
//! ```
//! Entries are encoded as in Redis's listpack, integers as such: `OBJECT ENCODING` and the boundaries of nodes depend on their
//! sizes, and `DUMP` writes them as they are. Room on both sides makes pushes and pops at both ends cheap.

use std::ops::Range;

use crate::base::integer::parse_i64;

const HEAD: usize = 12;
const PLAIN: u32 = u32::MAX;
/// Bytes of a listpack besides its entries.
const FRAME: usize = 7;
/// Buffers with less than this many bytes have no spare room.
const EXACT_BELOW: usize = 128;

const INT_13: u8 = 0xc0;
const STRING_6: u8 = 0x80;
const STRING_12: u8 = 0xe0;
const STRING_32: u8 = 0xf0;
const INT_16: u8 = 0xf1;
const INT_24: u8 = 0xf2;
const INT_32: u8 = 0xf3;
const INT_64: u8 = 0xf4;

/// An element of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element<'a> {
    /// A string that is not the canonical text of an integer.
    Bytes(&'a [u8]),
    /// An integer, stored as such.
    Integer(i64),
}

/// A buffer for the text of an integer.
pub type Digits = itoa::Buffer;

impl<'a> Element<'a> {
    /// Its bytes.
    pub fn text(self, digits: &'a mut Digits) -> &'a [u8] {
        match self {
            Element::Bytes(bytes) => bytes,
            Element::Integer(n) => digits.format(n).as_bytes(),
        }
    }

    /// A copy of its bytes.
    pub fn to_vec(self) -> Vec<u8> {
        self.text(&mut Digits::new()).to_vec()
    }
}

/// An element to search for.
#[derive(Clone, Copy, Debug)]
pub struct Needle<'a> {
    bytes: &'a [u8],
    integer: Option<i64>,
}

impl<'a> Needle<'a> {
    /// Searches for these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Needle { bytes, integer: parse_i64(bytes) }
    }

    /// Whether an element equals it.
    pub fn is(&self, element: Element<'_>) -> bool {
        match element {
            // The text of an integer is never stored as bytes, except in a plain node, whose elements are too long for integers.
            Element::Bytes(bytes) => bytes == self.bytes,
            Element::Integer(n) => self.integer == Some(n),
        }
    }
}

/// An element encoded for a buffer.
struct Encoded<'a> {
    head: [u8; 9],
    head_len: usize,
    bytes: &'a [u8],
}

impl<'a> Encoded<'a> {
    fn new(element: &'a [u8]) -> Self {
        let mut head = [0; 9];
        if let Some(n) = parse_i64(element) {
            let little = n.to_le_bytes();
            let head_len = match n {
                0..=127 => {
                    head[0] = n as u8;
                    1
                }
                -4096..=4095 => {
                    let bits = n as u16 & 0x1fff;
                    (head[0], head[1]) = (INT_13 | (bits >> 8) as u8, bits as u8);
                    2
                }
                _ => {
                    let (kind, width) = match n {
                        -0x8000..=0x7fff => (INT_16, 2),
                        -0x80_0000..=0x7f_ffff => (INT_24, 3),
                        -0x8000_0000..=0x7fff_ffff => (INT_32, 4),
                        _ => (INT_64, 8),
                    };
                    head[0] = kind;
                    head[1..=width].copy_from_slice(&little[..width]);
                    width + 1
                }
            };
            return Encoded { head, head_len, bytes: &[] };
        }
        let len = element.len();
        let head_len = match len {
            0..64 => {
                head[0] = STRING_6 | len as u8;
                1
            }
            64..4096 => {
                (head[0], head[1]) = (STRING_12 | (len >> 8) as u8, len as u8);
                2
            }
            _ => {
                head[0] = STRING_32;
                head[1..5].copy_from_slice(&(len as u32).to_le_bytes());
                5
            }
        };
        Encoded { head, head_len, bytes: element }
    }

    /// Number of bytes without the length at the end.
    fn body(&self) -> usize {
        self.head_len + self.bytes.len()
    }

    fn len(&self) -> usize {
        self.body() + back_bytes(self.body())
    }

    /// Writes it. `into` must have its length.
    fn write(&self, into: &mut [u8]) {
        let (head, rest) = into.split_at_mut(self.head_len);
        head.copy_from_slice(&self.head[..self.head_len]);
        let (bytes, back) = rest.split_at_mut(self.bytes.len());
        bytes.copy_from_slice(self.bytes);
        // Seven bits per byte, the highest first. All bytes but the first have their top bit set, for reading from the right.
        let (mut left, last) = (self.body(), back.len() - 1);
        for (i, byte) in back.iter_mut().enumerate().rev() {
            *byte = (left & 0x7f) as u8 | if i > 0 { 0x80 } else { 0 };
            left >>= 7;
        }
        debug_assert!(left == 0 && last < 5);
    }
}

/// Number of bytes of the length at the end of an entry. As in Redis, the bounds leave one value of each width unused.
fn back_bytes(body: usize) -> usize {
    match body {
        0..=127 => 1,
        128..=16_382 => 2,
        16_383..=2_097_150 => 3,
        2_097_151..=268_435_454 => 4,
        _ => 5,
    }
}

/// Number of bytes of an element in a node.
pub fn encoded_len(element: &[u8]) -> usize {
    Encoded::new(element).len()
}

fn little(bytes: &[u8]) -> i64 {
    let mut word = [if bytes.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 }; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    i64::from_le_bytes(word)
}

/// Decodes the element at `at`. Returns it and the start of the next one.
#[inline]
fn decode(buffer: &[u8], at: usize) -> (Element<'_>, usize) {
    let first = buffer[at];
    let string = |from: usize, len: usize| (Element::Bytes(&buffer[from..from + len]), from + len);
    let (element, end) = match first {
        0..STRING_6 => (Element::Integer(i64::from(first)), at + 1),
        STRING_6..INT_13 => string(at + 1, usize::from(first & 0x3f)),
        INT_13..STRING_12 => {
            let bits = (u16::from(first & 0x1f) << 8) | u16::from(buffer[at + 1]);
            // The sign is the highest of 13 bits.
            (Element::Integer(i64::from((bits << 3) as i16 >> 3)), at + 2)
        }
        STRING_12..STRING_32 => string(at + 2, (usize::from(first & 0xf) << 8) | usize::from(buffer[at + 1])),
        STRING_32 => string(at + 5, little(&buffer[at + 1..at + 5]) as u32 as usize),
        _ => {
            let width = match first {
                INT_16 => 2,
                INT_24 => 3,
                INT_32 => 4,
                _ => 8,
            };
            (Element::Integer(little(&buffer[at + 1..at + 1 + width])), at + 1 + width)
        }
    };
    (element, end + back_bytes(end - at))
}

/// The start of the entry that ends there.
#[inline]
fn before(buffer: &[u8], end: usize) -> usize {
    let (mut at, mut body, mut shift) = (end - 1, usize::from(buffer[end - 1] & 0x7f), 7);
    while buffer[at] & 0x80 != 0 {
        at -= 1;
        body |= usize::from(buffer[at] & 0x7f) << shift;
        shift += 7;
    }
    at - body
}

/// A sequence of elements.
#[derive(Clone, Default)]
pub struct Node(Box<[u8]>);

/// The header of the buffer.
#[derive(Clone, Copy)]
struct Head {
    start: usize,
    end: usize,
    count: u32,
}

impl Node {
    /// A node for a single long element.
    pub fn plain(element: &[u8]) -> Node {
        let mut buffer = Vec::with_capacity(HEAD + element.len());
        buffer.extend_from_slice(&[0xff; HEAD]);
        buffer.extend_from_slice(element);
        Node(buffer.into_boxed_slice())
    }

    #[inline]
    fn head(&self) -> Head {
        match self.0.first_chunk::<HEAD>() {
            Some(&[a, b, c, d, e, f, g, h, i, j, k, l]) => Head {
                start: u32::from_le_bytes([a, b, c, d]) as usize,
                end: u32::from_le_bytes([e, f, g, h]) as usize,
                count: u32::from_le_bytes([i, j, k, l]),
            },
            None => Head { start: HEAD, end: HEAD, count: 0 },
        }
    }

    #[inline]
    fn set_head(&mut self, head: Head) {
        let Some(words) = self.0.first_chunk_mut::<HEAD>() else { return };
        words[..4].copy_from_slice(&(head.start as u32).to_le_bytes());
        words[4..8].copy_from_slice(&(head.end as u32).to_le_bytes());
        words[8..].copy_from_slice(&head.count.to_le_bytes());
    }

    /// Whether it is a single long element.
    pub fn is_plain(&self) -> bool {
        self.head().count == PLAIN
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        match self.head().count {
            PLAIN => 1,
            count => count as usize,
        }
    }

    /// Bytes that Redis would count: those of the listpack, or of the long element.
    pub fn size(&self) -> usize {
        let head = self.head();
        if head.count == PLAIN { self.0.len() - HEAD } else { head.end - head.start + FRAME }
    }

    /// Bytes of the allocation.
    pub fn allocated(&self) -> usize {
        self.0.len()
    }

    /// The encoded entries, without the header and end of a listpack; or the bytes of the long element.
    pub fn entries(&self) -> &[u8] {
        let head = self.head();
        if head.count == PLAIN { &self.0[HEAD..] } else { self.0.get(head.start..head.end).unwrap_or_default() }
    }

    /// The start of the first element and the end of the last one, for [`Node::next`] and [`Node::previous`].
    pub fn bounds(&self) -> Range<usize> {
        let head = self.head();
        if head.count == PLAIN { HEAD..self.0.len() } else { head.start..head.end }
    }

    /// The element that starts there, and the start of the next one.
    #[inline]
    pub fn next(&self, at: usize) -> (Element<'_>, usize) {
        if self.is_plain() { (Element::Bytes(&self.0[HEAD..]), self.0.len()) } else { decode(&self.0, at) }
    }

    /// The element that ends there, and its start.
    #[inline]
    pub fn previous(&self, end: usize) -> (Element<'_>, usize) {
        if self.is_plain() {
            return (Element::Bytes(&self.0[HEAD..]), HEAD);
        }
        let at = before(&self.0, end);
        (decode(&self.0, at).0, at)
    }

    /// The start of the element of this index; for the number of elements, the end of the last one.
    pub fn place(&self, index: usize) -> usize {
        let Range { start, end } = self.bounds();
        let count = self.count();
        if index <= count / 2 {
            (0..index).fold(start, |at, _| self.next(at).1)
        } else {
            (index..count).fold(end, |at, _| self.previous(at).1)
        }
    }

    /// Replaces the `old` bytes at the offset `at` from the first entry by `new` bytes of undefined content. Returns their
    /// position in the buffer.
    fn splice(&mut self, at: usize, old: usize, new: usize) -> usize {
        let Head { start, end, count } = self.head();
        // The shorter side moves; nothing moves at an end.
        let front_moves = at < end - start - at - old;
        if new <= old {
            let less = old - new;
            if front_moves {
                self.0.copy_within(start..start + at, start + less);
                self.set_head(Head { start: start + less, end, count });
            } else {
                self.0.copy_within(start + at + old..end, start + at + new);
                self.set_head(Head { start, end: end - less, count });
            }
            self.trim_sparse();
            return self.head().start + at;
        }
        let more = new - old;
        if self.room(front_moves) < more {
            // An eighth of the used bytes stays free, so that the buffer is not enlarged again soon.
            let used = end - start + more;
            self.make_room(more, if used < EXACT_BELOW { 0 } else { used / 8 }, front_moves);
        }
        let Head { start, end, count } = self.head();
        if front_moves {
            self.0.copy_within(start..start + at, start - more);
            self.set_head(Head { start: start - more, end, count });
        } else {
            self.0.copy_within(start + at + old..end, start + at + new);
            self.set_head(Head { start, end: end + more, count });
        }
        self.head().start + at
    }

    /// Number of free bytes at the front or at the back.
    fn room(&self, in_front: bool) -> usize {
        let Head { start, end, .. } = self.head();
        if in_front { start - HEAD } else { self.0.len().max(HEAD) - end }
    }

    /// Makes room for new elements at the front or at the back.
    pub fn reserve(&mut self, bytes: usize, in_front: bool) {
        // Elements are added to an empty node from the back.
        let in_front = in_front && self.count() > 0;
        if self.room(in_front) < bytes {
            self.make_room(bytes, 0, in_front);
        }
    }

    /// Moves the entries to the other end of the buffer, or to a larger buffer, so that there are `more` free bytes at the front
    /// or at the back, and `spare` bytes in addition.
    fn make_room(&mut self, more: usize, spare: usize, in_front: bool) {
        let Head { start, end, count } = self.head();
        let used = end - start;
        let mut buffer = std::mem::take(&mut self.0).into_vec();
        let len = buffer.len().max(HEAD + used + more + spare);
        let moved = if in_front { len - used } else { HEAD };
        if len > buffer.len() && in_front {
            let mut larger = vec![0; len];
            larger[moved..].copy_from_slice(&buffer[start.min(buffer.len())..end.min(buffer.len())]);
            buffer = larger;
        } else {
            if start < buffer.len() {
                buffer.copy_within(start..end, moved);
            }
            buffer.resize(len, 0);
        }
        self.0 = buffer.into_boxed_slice();
        self.set_head(Head { start: moved, end: moved + used, count });
    }

    fn set_count(&mut self, count: usize) {
        let head = self.head();
        self.set_head(Head { count: count as u32, ..head });
    }

    /// Frees the room on both sides.
    pub fn trim(&mut self) {
        let Head { start, end, count } = self.head();
        if count == PLAIN || self.0.len() <= HEAD + end - start {
            return;
        }
        let mut buffer = std::mem::take(&mut self.0).into_vec();
        buffer.copy_within(start..end, HEAD);
        buffer.truncate(HEAD + end - start);
        self.0 = buffer.into_boxed_slice();
        self.set_head(Head { start: HEAD, end: HEAD + end - start, count });
    }

    /// Frees the room if it is most of the buffer.
    fn trim_sparse(&mut self) {
        if self.0.len() > EXACT_BELOW && self.bounds().len() < self.0.len() / 4 {
            self.trim();
        }
    }

    /// Inserts an element before the one at `at`. The node must not be plain.
    pub fn insert(&mut self, at: usize, element: &[u8]) {
        debug_assert!(!self.is_plain());
        let encoded = Encoded::new(element);
        let at = self.splice(at - self.bounds().start, 0, encoded.len());
        encoded.write(&mut self.0[at..at + encoded.len()]);
        self.set_count(self.count() + 1);
    }

    /// Replaces the element at `at`.
    pub fn replace(&mut self, at: usize, element: &[u8]) {
        debug_assert!(!self.is_plain());
        let encoded = Encoded::new(element);
        let at = self.splice(at - self.bounds().start, decode(&self.0, at).1 - at, encoded.len());
        encoded.write(&mut self.0[at..at + encoded.len()]);
    }

    /// Removes `count` elements from an index on.
    pub fn remove(&mut self, index: usize, count: usize) {
        debug_assert!(!self.is_plain());
        let (from, to) = (self.place(index), self.place(index + count));
        self.splice(from - self.bounds().start, to - from, 0);
        self.set_count(self.count() - count);
    }

    /// Number of elements that equal `needle`.
    pub fn count_of(&self, needle: &Needle<'_>) -> usize {
        let Range { start: mut at, end } = self.bounds();
        let mut found = 0;
        while at < end {
            let (element, next) = self.next(at);
            found += usize::from(needle.is(element));
            at = next;
        }
        found
    }

    /// Removes elements that equal `needle`: skips the first `skip` of them and removes up to `take`. Returns their number.
    pub fn remove_equal(&mut self, needle: &Needle<'_>, mut skip: usize, take: usize) -> usize {
        let Range { start, end } = self.bounds();
        let (mut at, mut kept, mut taken) = (start, start, 0);
        while at < end {
            let (element, next) = self.next(at);
            let wanted = taken < take && needle.is(element);
            if wanted && skip == 0 {
                taken += 1;
            } else {
                skip -= usize::from(wanted);
                if kept < at {
                    self.0.copy_within(at..next, kept);
                }
                kept += next - at;
            }
            at = next;
        }
        let count = self.count() - taken;
        self.set_head(Head { start, end: kept, count: count as u32 });
        self.trim_sparse();
        taken
    }

    /// Splits off the elements from an index on.
    pub fn split(&mut self, index: usize) -> Node {
        let (at, Range { start, end }) = (self.place(index), self.bounds());
        let mut rest = Node::default();
        rest.make_room(end - at, 0, false);
        rest.0[HEAD..HEAD + end - at].copy_from_slice(&self.0[at..end]);
        rest.set_head(Head { start: HEAD, end: HEAD + end - at, count: (self.count() - index) as u32 });
        self.set_head(Head { start, end: at, count: index as u32 });
        self.trim();
        rest
    }

    /// Appends the elements of another node.
    pub fn append(&mut self, other: &Node) {
        let used = self.bounds().len();
        let at = self.splice(used, 0, other.entries().len());
        self.0[at..at + other.entries().len()].copy_from_slice(other.entries());
        self.set_count(self.count() + other.count());
    }

    /// Panics if an invariant is broken.
    pub fn check_invariants(&self) {
        if self.is_plain() {
            return;
        }
        let Range { start, end } = self.bounds();
        assert!(HEAD <= start && start <= end && end <= self.0.len().max(HEAD), "entries beyond the buffer");
        let (mut at, mut count) = (start, 0);
        while at < end {
            let (element, next) = self.next(at);
            assert_eq!(before(&self.0, next), at, "an entry read from the right begins elsewhere");
            let text = element.to_vec();
            assert_eq!(matches!(element, Element::Integer(_)), parse_i64(&text).is_some(), "kept otherwise than it should be");
            assert_eq!(next - at, encoded_len(&text), "bytes of an entry");
            (at, count) = (next, count + 1);
        }
        assert_eq!((at, count), (end, self.count()), "the end and the number of entries");
        assert!(self.0.len() <= EXACT_BELOW.max((HEAD + end - start) * 5), "{} bytes for {}", self.0.len(), end - start);
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Range { start: mut at, end } = self.bounds();
        let elements = std::iter::from_fn(|| {
            (at < end).then(|| {
                let (element, next) = self.next(at);
                at = next;
                String::from_utf8_lossy(&element.to_vec()).into_owned()
            })
        });
        f.debug_list().entries(elements).finish()
    }
}
