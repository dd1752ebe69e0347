//! The current key of a request or a script: its hash is computed once, and for a script its place is remembered.

use super::{EntryMut, EntryRef, KeyHash, Place, Space};

/// A key, by its address in memory, and its hash.
#[derive(Clone, Copy)]
pub(super) struct Hashed {
    start: *const u8,
    len: usize,
    hash: KeyHash,
}

impl Hashed {
    /// No key.
    pub(super) const NONE: Hashed = Hashed { start: std::ptr::null(), len: 0, hash: KeyHash::ZERO };
}

/// Where the known key was found: its place, and the address of the entry there.
#[derive(Clone, Copy)]
pub(super) struct Found {
    place: Place,
    address: u64,
}

/// The number of no dictionary.
pub(super) const NOT_YET: usize = usize::MAX;

impl Space {
    /// The hash of a key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        if self.is_current_key(key) { self.hashed.hash } else { self.hasher.hash(key) }
    }

    /// Whether this is the key whose hash is known.
    #[inline]
    fn is_current_key(&self, key: &[u8]) -> bool {
        std::ptr::eq(key.as_ptr(), self.hashed.start) && key.len() == self.hashed.len
    }

    /// Records that the key has this hash, until [`Space::clear_current_key`]. The key is identified by its address, so its bytes must
    /// not move or change until then.
    #[inline]
    pub fn set_current_key(&mut self, key: &[u8], hash: KeyHash) {
        debug_assert_eq!(self.hasher.hash(key), hash);
        self.hashed = Hashed { start: key.as_ptr(), len: key.len(), hash };
        self.sought_in.set(NOT_YET);
    }

    /// Remembers the place of the known key, for a script, which accesses the same key again and again. If no key is known, `key`
    /// becomes it. Returns whether that was so, for [`Space::forget_places`], which ends this.
    #[inline]
    pub fn remember_places(&mut self, key: &[u8]) -> bool {
        let none = self.hashed.start.is_null();
        if none {
            self.set_current_key(key, self.hasher.hash(key));
        }
        self.remembers = true;
        none
    }

    /// As [`Space::remember_places`] for a script that uses a copy of this key. The copy, too, must stay where it is until
    /// `forget_places(true)` ends this.
    #[inline]
    pub fn remember_places_of_copy(&mut self, key: &[u8], copy: &[u8]) {
        self.set_current_key(copy, self.hash(key));
        self.remembers = true;
    }

    /// Ends [`Space::remember_places`], which returned this value.
    #[inline]
    pub fn forget_places(&mut self, none_was_known: bool) {
        self.remembers = false;
        if none_was_known {
            self.clear_current_key();
        }
    }

    /// Sets whether the place of the known key is remembered. Returns whether it was.
    #[inline]
    pub fn set_remembering(&mut self, remembers: bool) -> bool {
        if !self.remembers {
            self.sought_in.set(NOT_YET);
        }
        std::mem::replace(&mut self.remembers, remembers)
    }

    /// Ends [`Space::set_current_key`]. Must be called before the key's memory is reused.
    #[inline]
    pub fn clear_current_key(&mut self) {
        self.hashed = Hashed::NONE;
    }

    /// The hash of a key, and its place, expired or not, with its entry.
    #[inline(always)]
    pub fn locate(&self, dict: usize, key: &[u8]) -> (KeyHash, Option<(Place, EntryRef<'_>)>) {
        let known = self.is_current_key(key);
        if known && self.sought_in.get() == dict {
            return (self.hashed.hash, self.recall(dict, key));
        }
        let hash = if known { self.hashed.hash } else { self.hasher.hash(key) };
        let found = self.find_entry(dict, hash, key);
        if known & self.remembers {
            self.found.set(found.map(|(place, entry)| Found { place, address: entry.address() }));
            self.sought_in.set(dict);
        }
        (hash, found)
    }

    /// As [`Space::locate`], with the entry mutable as by [`Space::get_mut`].
    #[inline(always)]
    pub fn locate_mut(&mut self, dict: usize, key: &[u8]) -> (KeyHash, Option<(Place, EntryMut<'_>)>) {
        let (hash, found) = self.locate(dict, key);
        let found = found.map(|(place, entry)| (place, entry.address()));
        // SAFETY: one of our dictionaries has the entry, and nothing else can read or drop it as long as this borrow of it lasts.
        (hash, found.map(|(place, address)| (place, unsafe { EntryMut::at(address) })))
    }

    /// The remembered place of the known key, in the dictionary that was searched last. No entry was added, removed or replaced
    /// since then: such changes reset `sought_in`.
    #[inline(always)]
    fn recall(&self, dict: usize, key: &[u8]) -> Option<(Place, EntryRef<'_>)> {
        let found = self.found.get();
        debug_assert_eq!(
            found.map(|found| (found.place, found.address)),
            self.find_entry(dict, self.hashed.hash, key).map(|(place, entry)| (place, entry.address())),
            "what moves keys has them looked for again"
        );
        // SAFETY: the dictionary still has the entry, and `&self` keeps it unchanged.
        found.map(|found| (found.place, unsafe { EntryRef::at(found.address) }))
    }
}
