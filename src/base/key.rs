//! The name of a key, with its database.

use std::fmt;

/// A key or a lock: its name in a database.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key<'a> {
    /// The number of the database, as the engine that runs has it.
    pub db: u32,
    /// The name.
    pub name: &'a [u8],
}

impl Key<'_> {
    /// A copy that owns its name.
    pub fn to_buf(self) -> KeyBuf {
        KeyBuf { db: self.db, name: self.name.into() }
    }
}

/// A [`Key`] that owns its name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyBuf {
    /// The number of the database.
    pub db: u32,
    /// The name.
    pub name: Box<[u8]>,
}

impl KeyBuf {
    /// The key, borrowed.
    #[inline]
    pub fn as_key(&self) -> Key<'_> {
        Key { db: self.db, name: &self.name }
    }
}

impl fmt::Debug for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.db, self.name.escape_ascii())
    }
}

impl fmt::Debug for KeyBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_key().fmt(f)
    }
}
