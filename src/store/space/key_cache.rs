//! The cache of the current key of a request or a script: its hash, which is computed once, and for a script its place.

use super::{EntryMut, EntryRef, KeyHash, Place, Space};

/// A key, by its address in memory, and its hash.
#[derive(Clone, Copy)]
pub(super) struct CachedHash {
    start: *const u8,
    len: usize,
    hash: KeyHash,
}

impl CachedHash {
    /// No key.
    pub(super) const NONE: CachedHash = CachedHash { start: std::ptr::null(), len: 0, hash: KeyHash::ZERO };
}

/// The place of the cached key, and the address of its entry.
#[derive(Clone, Copy)]
pub(super) struct CachedPlace {
    place: Place,
    address: u64,
}

/// No dictionary: the place must be searched for.
pub(super) const NO_DICT: usize = usize::MAX;

impl Space {
    /// The hash of a key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        if self.has_cached_hash(key) { self.hashed.hash } else { self.hasher.hash(key) }
    }

    /// Whether this is the key whose hash is cached.
    #[inline]
    fn has_cached_hash(&self, key: &[u8]) -> bool {
        std::ptr::eq(key.as_ptr(), self.hashed.start) && key.len() == self.hashed.len
    }

    /// Records that the key has this hash, until [`Space::uncache_hash`]. The key is identified by its address, so its bytes must
    /// not move or change until then.
    #[inline]
    pub fn cache_hash(&mut self, key: &[u8], hash: KeyHash) {
        debug_assert_eq!(self.hasher.hash(key), hash);
        self.hashed = CachedHash { start: key.as_ptr(), len: key.len(), hash };
        self.searched_dict.set(NO_DICT);
    }

    /// Caches the place of the cached key, too, for a script, which accesses the same key again and again. If no key is cached,
    /// caches the hash of `key` first. Returns whether it did, for [`Space::uncache_place`], which ends this.
    #[inline]
    pub fn cache_place(&mut self, key: &[u8]) -> bool {
        let none_was_cached = self.hashed.start.is_null();
        if none_was_cached {
            self.cache_hash(key, self.hasher.hash(key));
        }
        self.caches_place = true;
        none_was_cached
    }

    /// As [`Space::cache_place`] for a script that uses a copy of this key. The copy, too, must stay where it is until
    /// `uncache_place(true)` ends this.
    #[inline]
    pub fn cache_place_of_copy(&mut self, key: &[u8], copy: &[u8]) {
        self.cache_hash(copy, self.hash(key));
        self.caches_place = true;
    }

    /// Ends [`Space::cache_place`], which returned this value.
    #[inline]
    pub fn uncache_place(&mut self, none_was_cached: bool) {
        self.caches_place = false;
        if none_was_cached {
            self.uncache_hash();
        }
    }

    /// Sets whether the place of the cached key is cached, too. Returns whether it was.
    #[inline]
    pub fn set_place_caching(&mut self, caches_place: bool) -> bool {
        if !self.caches_place {
            self.searched_dict.set(NO_DICT);
        }
        std::mem::replace(&mut self.caches_place, caches_place)
    }

    /// Ends [`Space::cache_hash`]. Must be called before the key's memory is reused.
    #[inline]
    pub fn uncache_hash(&mut self) {
        // No key lies there.
        self.hashed.start = std::ptr::null();
    }

    /// The hash of a key, and its place, expired or not, with its entry.
    #[inline(always)]
    pub fn locate(&self, dict: usize, key: &[u8]) -> (KeyHash, Option<(Place, EntryRef<'_>)>) {
        self.names.note(key);
        let cached = self.has_cached_hash(key);
        if cached && self.searched_dict.get() == dict {
            return (self.hashed.hash, self.cached_place(dict, key));
        }
        let hash = if cached { self.hashed.hash } else { self.hasher.hash(key) };
        let found = self.find_entry(dict, hash, key);
        if cached & self.caches_place {
            self.found.set(found.map(|(place, entry)| CachedPlace { place, address: entry.address() }));
            self.searched_dict.set(dict);
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

    /// The cached place of the key, in the dictionary that was searched last. No entry was added, removed or replaced
    /// since then: such changes reset `searched_dict`.
    #[inline(always)]
    fn cached_place(&self, dict: usize, key: &[u8]) -> Option<(Place, EntryRef<'_>)> {
        let found = self.found.get();
        debug_assert_eq!(
            found.map(|found| (found.place, found.address)),
            self.find_entry(dict, self.hashed.hash, key).map(|(place, entry)| (place, entry.address())),
            "the cached place is outdated"
        );
        // SAFETY: the dictionary still has the entry, and `&self` keeps it unchanged.
        found.map(|found| (found.place, unsafe { EntryRef::at(found.address) }))
    }
}
