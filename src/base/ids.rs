//! Identifiers of engine objects that every layer uses.

use std::fmt;

/// Identifies a session by its number and its generation. The number is used again when the session has ended, and has another
/// generation then. So an id that was kept too long finds no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId {
    number: u32,
    generation: u32,
}

impl SessionId {
    /// The id of the session with this number and generation.
    #[inline]
    pub const fn new(number: u32, generation: u32) -> SessionId {
        SessionId { number, generation }
    }

    /// A small number that no other session has as long as this one lasts: an index into tables of sessions.
    #[inline]
    pub const fn number(self) -> u32 {
        self.number
    }

    /// The number, as an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.number as usize
    }

    /// Tells this session from those that had its number before.
    #[inline]
    pub const fn generation(self) -> u32 {
        self.generation
    }

    /// The id in one word: the number in the lower half, the generation in the upper one.
    #[inline]
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.number as u64
    }

    /// The id that [`SessionId::to_bits`] made this of.
    #[inline]
    pub const fn from_bits(bits: u64) -> SessionId {
        SessionId { number: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// Identifies a user as long as it exists; may be reused for another one later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserId(pub u32);

impl UserId {
    /// The user of every new connection. It always exists.
    pub const DEFAULT: UserId = UserId(0);
    /// No user: a caller inside the process, who may do everything.
    pub const INSIDE: UserId = UserId(u32::MAX);
}

/// A key or a lock: its name in a database.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key<'a> {
    /// The index of the database. Where a key must survive SWAPDB, it is a stable id of the database, as is said there.
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
    /// As [`Key::db`].
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
