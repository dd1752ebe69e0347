//! Memories of diagnosis: lists of what has happened, which count their bytes and can give up their oldest entries.
//!
//! All memories of diagnosis share one budget, whoever fills them: `engine/observe/diagnosis.rs` has the list of them.

use std::collections::VecDeque;

/// A memory of diagnosis.
pub trait Memory {
    /// Bytes in use.
    fn bytes(&self) -> usize;
    /// The time of the oldest entry, in monotonic milliseconds; `None` if there is none.
    fn oldest_ms(&self) -> Option<u64>;
    /// Forgets the oldest entry.
    fn forget_oldest(&mut self);
}

/// An entry of a [`Kept`] list.
pub trait Dated {
    /// Its time, in monotonic milliseconds.
    fn at_ms(&self) -> u64;
    /// Bytes that it has on the heap.
    fn heap_bytes(&self) -> usize;
}

/// Bytes that the allocator takes for a block of this many bytes, approximately: sizes of blocks are multiples of 16.
pub fn block(bytes: usize) -> usize {
    bytes.next_multiple_of(16)
}

/// A list whose memory is kept while it has at most this many places.
const PLACES_MIN: usize = 16;

/// The last entries of a list that grows at its end.
#[derive(Clone, Debug)]
pub struct Kept<T> {
    entries: VecDeque<T>,
    heap_bytes: usize,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Kept { entries: VecDeque::new(), heap_bytes: 0 }
    }
}

impl<T: Dated> Kept<T> {
    /// Adds an entry, and forgets the oldest ones beyond `max`.
    pub fn push(&mut self, entry: T, max: usize) {
        self.heap_bytes += entry.heap_bytes();
        self.entries.push_back(entry);
        self.bound(max);
    }

    /// Forgets the oldest entries beyond `max`.
    pub fn bound(&mut self, max: usize) {
        while self.entries.len() > max {
            self.forget_oldest();
        }
    }

    /// Takes the oldest entry out.
    pub fn pop_oldest(&mut self) -> Option<T> {
        let oldest = self.entries.pop_front();
        self.heap_bytes -= oldest.as_ref().map_or(0, T::heap_bytes);
        oldest
    }

    /// Takes the entry out that has this many later ones.
    pub fn take(&mut self, later: usize) -> Option<T> {
        let at = self.entries.len().checked_sub(later + 1)?;
        let entry = self.entries.remove(at);
        self.heap_bytes -= entry.as_ref().map_or(0, T::heap_bytes);
        entry
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entries, the newest first.
    pub fn latest(&self) -> impl ExactSizeIterator<Item = &T> {
        self.entries.iter().rev()
    }

    /// Forgets the entries for which `keeps` is false.
    pub fn retain(&mut self, keeps: impl FnMut(&T) -> bool) {
        self.entries.retain(keeps);
        self.heap_bytes = self.entries.iter().map(T::heap_bytes).sum();
        self.shrink();
    }

    /// Forgets all entries.
    pub fn clear(&mut self) {
        *self = Kept::default();
    }
}

impl<T> Kept<T> {
    fn shrink(&mut self) {
        let (len, places) = (self.entries.len(), self.entries.capacity());
        if len == 0 || (places > PLACES_MIN && len < places / 4) {
            self.entries.shrink_to(2 * len);
        }
    }
}

impl<T: Dated> Memory for Kept<T> {
    fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<T>() + self.heap_bytes
    }

    fn oldest_ms(&self) -> Option<u64> {
        self.entries.front().map(T::at_ms)
    }

    fn forget_oldest(&mut self) {
        self.pop_oldest();
        self.shrink();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Dated for (u64, Vec<u8>) {
        fn at_ms(&self) -> u64 {
            self.0
        }

        fn heap_bytes(&self) -> usize {
            block(self.1.capacity())
        }
    }

    #[test]
    fn bytes_follow_the_entries() {
        let mut kept = Kept::default();
        assert_eq!((kept.bytes(), kept.oldest_ms()), (0, None));
        for at_ms in 0..100 {
            kept.push((at_ms, vec![b'x'; 1000]), 50);
        }
        assert_eq!((kept.len(), kept.oldest_ms()), (50, Some(50)));
        assert_eq!(kept.latest().next().map(|entry| entry.0), Some(99));
        let places = |kept: &Kept<(u64, Vec<u8>)>| kept.entries.capacity() * size_of::<(u64, Vec<u8>)>();
        assert_eq!(kept.bytes(), 50 * block(1000) + places(&kept));
        assert_eq!(kept.take(1).map(|entry| entry.0), Some(98));
        assert_eq!(kept.take(49), None);
        for _ in 0..48 {
            kept.forget_oldest();
        }
        assert_eq!(kept.latest().map(|entry| entry.0).collect::<Vec<_>>(), [99]);
        assert!(kept.bytes() < 2 * block(1000), "the places of the forgotten are free, too");
        kept.forget_oldest();
        kept.forget_oldest();
        assert_eq!(kept.bytes(), 0);
    }
}
