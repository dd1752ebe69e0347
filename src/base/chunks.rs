//! A slab that never moves its values, and frees memory as it empties.
//!
//! Values are stored in chunks of `CHUNK` places. A chunk is allocated whole when it is needed and freed when it is empty, so
//! that neither growing to a million values nor removing them is more than a little work in any one step.
//!
//! ```text
//!   number ─▶ chunk, place       open ─▶ chunk ⇄ chunk ⇄ …     some places vacant
//!                                unused: chunks without memory
//! ```

use std::ops::{Index, IndexMut};

use crate::base::prefetch::prefetch;

/// Places per chunk.
const CHUNK: u32 = 1024;
/// An empty chunk with at most this capacity keeps it: values that come and go one by one cause no allocation each time.
const KEPT: usize = 64;
/// The number of no place and of no chunk.
const NIL: u32 = u32::MAX;

#[derive(Debug)]
enum Place<T> {
    /// Free; the number of the next free place of the chunk.
    Vacant(u32),
    Taken(T),
}

#[derive(Debug)]
struct Chunk<T> {
    places: Vec<Place<T>>,
    /// The first vacant place among those that were ever used.
    vacant: u32,
    len: u32,
    /// Neighbours in the list of open chunks.
    prev: u32,
    next: u32,
}

/// Values by numbers, which are reused once they are free.
#[derive(Debug)]
pub struct Chunks<T> {
    chunks: Vec<Chunk<T>>,
    /// The first chunk that has both values and vacant places.
    open: u32,
    /// Chunks without values.
    unused: Vec<u32>,
    len: usize,
}

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Chunks { chunks: Vec::new(), open: NIL, unused: Vec::new(), len: 0 }
    }
}

impl<T> Chunks<T> {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// An upper bound: all numbers in use are below this.
    pub fn places(&self) -> usize {
        self.chunks.len() * CHUNK as usize
    }

    /// Bytes of all places, including vacant ones.
    #[cfg(any(test, feature = "internals"))]
    pub fn allocated(&self) -> usize {
        let places: usize = self.chunks.iter().map(|chunk| chunk.places.capacity() * size_of::<Place<T>>()).sum();
        places + self.chunks.capacity() * size_of::<Chunk<T>>() + self.unused.capacity() * size_of::<u32>()
    }

    /// Adds a value. Returns its number.
    #[inline]
    pub fn insert(&mut self, value: T) -> u32 {
        let number = match self.open {
            NIL => self.unused.pop().unwrap_or_else(|| self.add_chunk()),
            open => open,
        };
        let chunk = &mut self.chunks[number as usize];
        let was_empty = chunk.len == 0;
        let place = match chunk.vacant {
            NIL => {
                if chunk.places.capacity() == 0 && number > 0 {
                    chunk.places.reserve_exact(CHUNK as usize);
                }
                chunk.places.push(Place::Taken(value));
                chunk.places.len() as u32 - 1
            }
            vacant => {
                let place = &mut chunk.places[vacant as usize];
                if let Place::Vacant(next) = *place {
                    chunk.vacant = next;
                }
                *place = Place::Taken(value);
                vacant
            }
        };
        chunk.len += 1;
        let is_full = chunk.len == CHUNK;
        self.len += 1;
        match (was_empty, is_full) {
            (true, false) => self.open(number),
            (false, true) => self.close(number),
            _ => {}
        }
        number * CHUNK + place
    }

    #[cold]
    fn add_chunk(&mut self) -> u32 {
        self.chunks.push(Chunk { places: Vec::new(), vacant: NIL, len: 0, prev: NIL, next: NIL });
        self.chunks.len() as u32 - 1
    }

    /// Puts a chunk at the front of the list of open chunks.
    fn open(&mut self, number: u32) {
        let next = std::mem::replace(&mut self.open, number);
        (self.chunks[number as usize].prev, self.chunks[number as usize].next) = (NIL, next);
        if let Some(next) = self.chunks.get_mut(next as usize) {
            next.prev = number;
        }
    }

    fn close(&mut self, number: u32) {
        let Chunk { prev, next, .. } = self.chunks[number as usize];
        match self.chunks.get_mut(prev as usize) {
            Some(before) => before.next = next,
            None => self.open = next,
        }
        if let Some(after) = self.chunks.get_mut(next as usize) {
            after.prev = prev;
        }
    }

    /// Removes a value; `None` if the number is not in use.
    #[inline]
    pub fn try_remove(&mut self, number: u32) -> Option<T> {
        let (number, place) = (number / CHUNK, number % CHUNK);
        let chunk = self.chunks.get_mut(number as usize)?;
        let at = chunk.places.get_mut(place as usize).filter(|at| matches!(at, Place::Taken(_)))?;
        let gone = std::mem::replace(at, Place::Vacant(chunk.vacant));
        chunk.vacant = place;
        let was_full = chunk.len == CHUNK;
        chunk.len -= 1;
        let is_empty = chunk.len == 0;
        if is_empty && chunk.places.capacity() > KEPT {
            (chunk.places, chunk.vacant) = (Vec::new(), NIL);
        }
        self.len -= 1;
        match (was_full, is_empty) {
            (true, false) => self.open(number),
            (false, true) => {
                self.close(number);
                self.unused.push(number);
            }
            _ => {}
        }
        if self.len == 0 && self.chunks.len() > 1 {
            *self = Chunks::default();
        }
        match gone {
            Place::Taken(value) => Some(value),
            Place::Vacant(_) => None,
        }
    }

    /// Removes a value. Panics if the number is not in use.
    pub fn remove(&mut self, number: u32) -> T {
        if let Some(value) = self.try_remove(number) { value } else { panic!("nothing has the number {number}") }
    }

    /// The value with a number.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        match self.chunks.get((number / CHUNK) as usize)?.places.get((number % CHUNK) as usize)? {
            Place::Taken(value) => Some(value),
            Place::Vacant(_) => None,
        }
    }

    /// Prefetches the value with a number.
    #[inline]
    pub fn prefetch(&self, number: u32) {
        let chunk = self.chunks.get((number / CHUNK) as usize);
        if let Some(place) = chunk.and_then(|chunk| chunk.places.get((number % CHUNK) as usize)) {
            let address = std::ptr::from_ref(place).cast::<u8>();
            (0..size_of_val(place)).step_by(64).for_each(|at| prefetch(address.wrapping_add(at)));
        }
    }

    /// The value with a number, mutable.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        match self.chunks.get_mut((number / CHUNK) as usize)?.places.get_mut((number % CHUNK) as usize)? {
            Place::Taken(value) => Some(value),
            Place::Vacant(_) => None,
        }
    }

    /// All values with their numbers, in the order of the numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.chunks).flat_map(|(number, chunk)| {
            (number * CHUNK..).zip(&chunk.places).filter_map(|(number, place)| match place {
                Place::Taken(value) => Some((number, value)),
                Place::Vacant(_) => None,
            })
        })
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self) {
        let mut open = Vec::new();
        let (mut at, mut before) = (self.open, NIL);
        while let Some(chunk) = self.chunks.get(at as usize) {
            assert_eq!(chunk.prev, before, "an open chunk knows the one before it");
            open.push(at);
            (before, at) = (at, chunk.next);
        }
        let mut len = 0;
        for (number, chunk) in (0..).zip(&self.chunks) {
            let taken = chunk.places.iter().filter(|place| matches!(place, Place::Taken(_))).count();
            assert_eq!(chunk.len as usize, taken, "a chunk counts its values");
            let mut vacant = 0;
            let mut at = chunk.vacant;
            while let Some(Place::Vacant(next)) = chunk.places.get(at as usize) {
                (at, vacant) = (*next, vacant + 1);
            }
            assert_eq!((at, taken + vacant), (NIL, chunk.places.len()), "each place is taken or vacant");
            assert_eq!(open.contains(&number), taken > 0 && taken < CHUNK as usize, "a chunk with room is open");
            assert_eq!(self.unused.contains(&number), taken == 0, "a chunk without values is unused");
            assert!(taken > 0 || chunk.places.capacity() <= KEPT, "an unused chunk keeps little");
            len += taken;
        }
        assert_eq!(len, self.len, "values are counted");
    }
}

impl<T> Index<u32> for Chunks<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: u32) -> &T {
        if let Some(value) = self.get(number) { value } else { panic!("nothing has the number {number}") }
    }
}

impl<T> IndexMut<u32> for Chunks<T> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        if let Some(value) = self.get_mut(number) { value } else { panic!("nothing has the number {number}") }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::base::scaled;

    proptest! {
        #![proptest_config(ProptestConfig { cases: scaled(10, 1), ..ProptestConfig::default() })]
        #[test]
        fn it_is_a_map_of_numbers(steps in prop::collection::vec((any::<bool>(), any::<usize>(), 1..scaled(1500usize, 200)), 1..scaled(30, 8))) {
            let mut chunks = Chunks::default();
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            let mut serial = 0;
            for (insert, from, count) in steps {
                for i in 0..count {
                    if insert {
                        serial += 1;
                        prop_assert_eq!(model.insert(chunks.insert(serial), serial), None);
                    } else if let Some((&number, _)) = model.range((from.wrapping_add(i) % 4000) as u32..).next() {
                        prop_assert_eq!(Some(chunks.remove(number)), model.remove(&number));
                        prop_assert_eq!(chunks.get(number), None);
                        prop_assert_eq!(chunks.try_remove(number), None);
                    }
                }
                chunks.check_invariants();
                prop_assert_eq!((chunks.len(), chunks.is_empty()), (model.len(), model.is_empty()));
                prop_assert!(chunks.iter().map(|(number, &value)| (number, value)).eq(model.clone()));
                for (&number, value) in &mut model {
                    *value += 1;
                    chunks[number] += 1;
                    prop_assert_eq!(chunks[number], *value);
                }
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn what_stays_does_not_keep_the_memory_of_what_went() {
        let mut chunks = Chunks::default();
        let numbers: Vec<u32> = (0..100_000u64).map(|n| chunks.insert(n)).collect();
        let full = chunks.allocated();
        for &number in &numbers[1..] {
            chunks.remove(number);
        }
        chunks.check_invariants();
        assert!(chunks.allocated() < full / 20, "{} of {full} bytes", chunks.allocated());
        assert_eq!((chunks[0], chunks.get(NIL)), (0, None));
        chunks.remove(0);
        assert!(chunks.allocated() < KEPT * 16);
    }
}
