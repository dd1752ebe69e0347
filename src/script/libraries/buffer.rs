//! The buffer in which a library function writes its result, and the levels of nested tables.
//!
//! Both belong to the interpreter rather than to the function: Lua's errors jump over Rust frames, so the function could not free
//! them. The next function that uses them discards what an error has left behind.

use crate::script::lua::memory::Memory;

/// Maximum capacity in bytes that is kept from one use to the next.
const CAPACITY_KEPT: usize = 64 << 10;

/// Capacity in bytes after the first growth.
const CAPACITY_FIRST: usize = 1 << 10;

/// Bytes written between two checks of the fuel.
pub(super) const CHECK_EVERY: usize = 16 << 10;

/// The bytes of a result. They count as the interpreter's memory.
#[derive(Default)]
pub(crate) struct Buffer {
    pub(super) bytes: Vec<u8>,
    /// Up to this length, bytes can be appended without a check. Never more than the capacity.
    pub(super) unchecked_to: usize,
    /// Number of bytes for which fuel was consumed.
    pub(super) counted: usize,
}

impl Buffer {
    /// Makes room for `more` bytes. Returns false if there is no memory, or the interpreter's limit would be exceeded.
    #[cold]
    pub(super) fn grow(&mut self, memory: &mut Memory, more: usize) -> bool {
        let capacity = self.bytes.capacity();
        let room = memory.limit.saturating_sub(memory.used).saturating_add(capacity);
        let Some(least) = self.bytes.len().checked_add(more).filter(|least| *least <= room) else { return false };
        let wanted = least.max(capacity * 2).max(CAPACITY_FIRST).min(room.max(least));
        if self.bytes.try_reserve_exact(wanted - self.bytes.len()).is_err() {
            return false;
        }
        memory.used += self.bytes.capacity() - capacity;
        true
    }

    /// Number of bytes written since the last call.
    #[inline]
    pub(super) fn take_uncounted(&mut self) -> u64 {
        let len = self.bytes.len();
        (len - std::mem::replace(&mut self.counted, len)) as u64
    }

    /// Discards the bytes, and frees a large capacity.
    #[inline]
    pub(crate) fn clear(&mut self, memory: &mut Memory) {
        self.bytes.clear();
        let capacity = self.bytes.capacity();
        if capacity > CAPACITY_KEPT {
            self.bytes = Vec::new();
            memory.used -= capacity;
        }
        (self.unchecked_to, self.counted) = (self.bytes.capacity().min(CHECK_EVERY), 0);
    }
}

/// An array or a map that is being read or written. The interpreter has a list of them, so nested tables use none of the Rust
/// stack. There are never more of them than the Lua stack has room for.
#[derive(Clone, Copy)]
pub(crate) struct Level {
    pub kind: Kind,
    /// Number of values so far, including keys.
    pub done: u64,
    /// Number of all values, if it is known.
    pub len: u64,
}

/// The kind of a level.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Values with consecutive indices.
    Array,
    /// Keys and values in turn.
    Map,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_counted_and_limited() {
        let mut memory = Memory::new(100_000);
        let mut buffer = Buffer::default();
        assert!(buffer.grow(&mut memory, 10));
        assert_eq!(memory.used, CAPACITY_FIRST);
        buffer.bytes.extend_from_slice(&[1; 1000]);
        assert!(buffer.grow(&mut memory, 90_000));
        assert_eq!(memory.used, 91_000);
        assert!(!buffer.grow(&mut memory, 99_001));
        assert!(!buffer.grow(&mut memory, usize::MAX));
        assert_eq!(buffer.bytes, [1; 1000]);
        buffer.clear(&mut memory);
        assert_eq!((buffer.bytes.len(), memory.used), (0, 0));
        assert!(buffer.grow(&mut memory, 10));
        buffer.clear(&mut memory);
        assert_eq!(memory.used, CAPACITY_FIRST);
    }
}
