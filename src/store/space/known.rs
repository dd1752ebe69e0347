//! The key that a request or a script is about: its hash is worked out once, and for a script it is remembered where the key is.

use super::{EntryRef, KeyHash, Place, Space};

/// A key, by where it lies, and its hash.
#[derive(Clone, Copy)]
pub(super) struct Hashed {
    start: *const u8,
    len: usize,
    hash: KeyHash,
}

impl Hashed {
    /// No key lies there.
    pub(super) const NONE: Hashed = Hashed { start: std::ptr::null(), len: 0, hash: KeyHash::ZERO };
}

/// The number of no dictionary.
pub(super) const NOT_YET: usize = usize::MAX;

// SAFETY: the address is compared and never followed.
unsafe impl Send for Hashed {}

impl Space {
    /// The hash of a key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        if self.is_known(key) { self.hashed.hash } else { self.hasher.hash(key) }
    }

    /// Whether this is the key whose hash is known.
    #[inline]
    fn is_known(&self, key: &[u8]) -> bool {
        std::ptr::eq(key.as_ptr(), self.hashed.start) && key.len() == self.hashed.len
    }

    /// Takes it that the key has this hash, until [`Space::forget_known`]: as long as its bytes stay where they are, whoever hashes what
    /// lies there hashes this key.
    #[inline]
    pub fn know(&mut self, key: &[u8], hash: KeyHash) {
        debug_assert_eq!(self.hasher.hash(key), hash);
        self.hashed = Hashed { start: key.as_ptr(), len: key.len(), hash };
        self.sought_in.set(NOT_YET);
    }

    /// Has it remembered where the key is that is known, for a script, which asks for the same key again and again; this one becomes it
    /// where none is. Gives whether that was so; to be ended by [`Space::forget_places`].
    #[inline]
    pub fn remember_places(&mut self, key: &[u8]) -> bool {
        let none = self.hashed.start.is_null();
        if none {
            self.know(key, self.hasher.hash(key));
        }
        self.remembers = true;
        none
    }

    /// Ends what [`Space::remember_places`] began, which has given this.
    #[inline]
    pub fn forget_places(&mut self, none_was_known: bool) {
        self.remembers = false;
        if none_was_known {
            self.forget_known();
        }
    }

    /// Has it remembered where the key is that is known, or no more; gives whether it was.
    #[inline]
    pub fn set_remembering(&mut self, remembers: bool) -> bool {
        if !self.remembers {
            self.sought_in.set(NOT_YET);
        }
        std::mem::replace(&mut self.remembers, remembers)
    }

    /// Ends what [`Space::know`] began, before anything else may lie where the key lay.
    #[inline]
    pub fn forget_known(&mut self) {
        self.hashed = Hashed::NONE;
    }

    /// The hash of a key, and where it is, ended or not, with its entry.
    #[inline(always)]
    pub fn locate(&self, dict: usize, key: &[u8]) -> (KeyHash, Option<(Place, EntryRef<'_>)>) {
        let hash = self.hash(key);
        (hash, if self.remembers { self.recall(dict, hash, key) } else { self.find_entry(dict, hash, key) })
    }

    /// As [`Space::find_entry`], while it is remembered where the key is that is known: until a key comes or goes.
    #[inline(never)]
    fn recall(&self, dict: usize, hash: KeyHash, key: &[u8]) -> Option<(Place, EntryRef<'_>)> {
        let known = self.is_known(key);
        if known && self.sought_in.get() == dict {
            let place = self.found.get();
            debug_assert_eq!(place, self.find(dict, hash, key), "what moves keys has them looked for again");
            return place.map(|place| (place, self.get(dict, place)));
        }
        let found = self.find_entry(dict, hash, key);
        if known {
            self.found.set(found.map(|(place, _)| place));
            self.sought_in.set(dict);
        }
        found
    }
}
