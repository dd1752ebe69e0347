//! Which arguments of a request are keys or channels, and how a command uses its keys: the vocabulary of the rows.
//!
//! `Command::key_positions` in `command/positions.rs` applies it to a request.

use smallvec::SmallVec;

use crate::base::number::parse_i64;

/// Positions of arguments; 0 is the command's name.
pub type Positions = SmallVec<[usize; 4]>;

/// Finds certain arguments of a request.
pub type Finds = fn(&[&[u8]]) -> Positions;

/// Positions of a command's keys; position 0 is the command's name.
#[derive(Clone, Copy, Debug)]
pub enum Keys {
    /// No keys.
    None,
    /// From `first` to `last` (negative: counted from the end), every `step`-th.
    Range {
        /// Position of the first key.
        first: i32,
        /// Position of the last key; −1 is the last argument.
        last: i32,
        /// Distance between two keys.
        step: i32,
    },
    /// The argument at `numkeys` is the number of keys that follow it, every `step`-th argument.
    Counted {
        /// Position of the number.
        numkeys: usize,
        /// Distance between two keys.
        step: i32,
    },
    /// Explicit key specifications, with access and use, for keys whose positions do not follow one rule.
    Specified(&'static [KeySpec]),
    /// The options decide: the parser of the command finds the keys.
    Parsed {
        /// What `COMMAND INFO` shows. Clients cannot find all keys of every request with it, and the engine does not use it for that.
        shown: &'static [KeySpec],
        /// The keys of a request; `None` if they cannot be determined. Must go through the request as the handler does.
        find: fn(&[&[u8]]) -> Option<KeyPositions>,
    },
}

impl Keys {
    /// One key at position 1.
    pub const ONE: Keys = Keys::Range { first: 1, last: 1, step: 1 };
    /// Keys at positions 1 and 2.
    pub const TWO: Keys = Keys::Range { first: 1, last: 2, step: 1 };
    /// Every argument is a key.
    pub const ALL: Keys = Keys::Range { first: 1, last: -1, step: 1 };
    /// Keys and values alternate.
    pub const PAIRS: Keys = Keys::Range { first: 1, last: -1, step: 2 };
}

/// How a command uses its keys, with the names of the key specifications in `COMMAND INFO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `RO`: reads the value.
    Read,
    /// `RW`: reads and changes it.
    ReadWrite,
    /// `OW`: overwrites it.
    Overwrite,
    /// `RM`: removes it.
    Remove,
}

/// Which arguments of a command are channels, for permission checks. Unsubscribing needs no permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// None.
    None,
    /// The first: `PUBLISH`.
    First,
    /// All: `SUBSCRIBE`.
    All,
    /// All, and they are patterns: `PSUBSCRIBE`.
    Patterns,
}

impl Channels {
    /// The channels of a request and their positions.
    pub fn of<'a>(self, args: &'a [&'a [u8]]) -> impl Iterator<Item = (usize, &'a [u8])> {
        let count = match self {
            Channels::None => 0,
            Channels::First => 1,
            Channels::All | Channels::Patterns => usize::MAX,
        };
        args.iter().copied().enumerate().skip(1).take(count)
    }
}

bitflags::bitflags! {
    /// What a command does with a key's value, besides its [`Access`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct KeyUse: u8 {
        /// Returns it, or stores it elsewhere.
        const ACCESS = 1 << 0;
        /// Changes it.
        const UPDATE = 1 << 1;
        /// Adds to it, without changing or removing anything.
        const INSERT = 1 << 2;
        /// Removes some or all of it.
        const DELETE = 1 << 3;
        /// The argument is not a key, only hashed like one.
        const NOT_KEY = 1 << 4;
        /// Depends on the other arguments: access and use are the maximum.
        const VARIABLE = 1 << 5;
        /// Unknown: the number of keys is malformed, and the command will refuse the request.
        const UNKNOWN = 1 << 6;
    }
}

/// Uses for the `key_uses` of rows that do not follow from the access.
pub mod uses {
    use crate::engine::command::keys::{Access, KeyUse};

    /// One entry for all keys, or one for each key.
    pub type Uses = &'static [(Access, KeyUse)];

    const READ_AND_DELETED: (Access, KeyUse) = (Access::ReadWrite, KeyUse::ACCESS.union(KeyUse::DELETE));

    /// Metadata is read, not the content: `EXISTS`, `STRLEN`.
    pub const EXAMINED: Uses = &[(Access::Read, KeyUse::empty())];
    /// Changed without reading the content: `EXPIRE`, `HSET`.
    pub const CHANGED: Uses = &[(Access::ReadWrite, KeyUse::UPDATE)];
    /// Extended: `APPEND`.
    pub const EXTENDED: Uses = &[(Access::ReadWrite, KeyUse::INSERT)];
    /// Created if it does not exist: `SETNX`.
    pub const CREATED: Uses = &[(Access::Overwrite, KeyUse::INSERT)];
    /// Overwritten with data from the other keys: `ZRANGESTORE`, `SINTERSTORE`, `BITOP`.
    pub const STORED: Uses = &[(Access::Overwrite, KeyUse::UPDATE), (Access::Read, KeyUse::ACCESS)];
    /// Read and removed: `GETDEL`.
    pub const TAKEN: Uses = &[READ_AND_DELETED];
    /// Partly removed: `HDEL`.
    pub const REMOVED_FROM: Uses = &[(Access::ReadWrite, KeyUse::DELETE)];
    /// `RENAME`.
    pub const RENAMED: Uses = &[READ_AND_DELETED, (Access::Overwrite, KeyUse::UPDATE)];
    /// `RENAMENX`.
    pub const RENAMED_NEW: Uses = &[READ_AND_DELETED, (Access::Overwrite, KeyUse::INSERT)];
    /// Partly moved elsewhere: `LMOVE`, `SMOVE`.
    pub const MOVED: Uses = &[READ_AND_DELETED, (Access::ReadWrite, KeyUse::INSERT)];
    /// `COPY`.
    pub const COPIED: Uses = &[(Access::Read, KeyUse::ACCESS), (Access::Overwrite, KeyUse::UPDATE)];
    /// `SET`, which reads only with its option `GET`.
    pub const SET_OR_READ: Uses = &[(Access::ReadWrite, KeyUse::ACCESS.union(KeyUse::UPDATE).union(KeyUse::VARIABLE))];
}

/// How to find keys from the beginning of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Find {
    /// Up to this many arguments further (negative: counted from the end), every `step`-th.
    Range {
        /// Distance of the last key; −1 is the last argument.
        last: i32,
        /// Distance between two keys.
        step: i32,
        /// 2 if only the first half of the arguments up to the end are keys; 0 otherwise.
        limit: i32,
    },
    /// The argument there is the number of keys that follow, every `step`-th.
    Counted {
        /// Distance between two keys.
        step: i32,
    },
}

/// Where the search for keys begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// At this position; 0 is the command's name.
    Index(usize),
    /// After the first occurrence of this word, searched from a position on. For [`Keys::Parsed`]: the word may be an argument of
    /// an option, and an option may come twice.
    Keyword {
        /// The word, in upper case.
        word: &'static str,
        /// Position at which the search begins.
        from: usize,
    },
    /// After an option that no rule finds: `STORE` of `SORT`. For [`Keys::Parsed`]. Shown to clients as unknown.
    Option,
    /// Not among the arguments: the keys depend on the content of other keys. Shown as unknown.
    Nowhere,
}

/// One key specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpec {
    /// How the command accesses the value.
    pub access: Access,
    /// What it does with the value.
    pub uses: KeyUse,
    /// Where the search begins.
    pub begin: Begin,
    /// How the search continues.
    pub find: Find,
}

/// A key among the arguments of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyAt {
    /// Its position; 0 is the command's name.
    pub position: usize,
    /// How the command accesses the value.
    pub access: Access,
    /// What it does with the value.
    pub uses: KeyUse,
}

impl KeyAt {
    /// A key whose value is read.
    pub const fn read(position: usize) -> KeyAt {
        KeyAt { position, access: Access::Read, uses: KeyUse::ACCESS }
    }
}

/// Positions of the keys of one request; usually few enough to avoid the heap.
pub type KeyPositions = SmallVec<[KeyAt; 4]>;

/// Why a number of keys is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountFault {
    /// It is no integer.
    NoInteger,
    /// It is less than 1.
    NotPositive,
    /// Fewer arguments follow.
    TooMany(usize),
}

/// The keys that a number counts, and what follows them.
pub type Counted<'r, 'a> = (&'r [&'a [u8]], &'r [&'a [u8]]);

/// Splits `numkeys key [key ...] …` into the keys, or into keys and values if there are `step` arguments for each key, and what
/// follows them. `numkeys` is its position in the request.
pub fn counted<'r, 'a>(args: &'r [&'a [u8]], numkeys: usize, step: usize) -> Result<Counted<'r, 'a>, CountFault> {
    let [count, rest @ ..] = args.get(numkeys..).unwrap_or_default() else { return Err(CountFault::NoInteger) };
    let count = parse_i64(count).ok_or(CountFault::NoInteger)?;
    let count = usize::try_from(count).ok().filter(|&count| count > 0).ok_or(CountFault::NotPositive)?;
    rest.split_at_checked(count.saturating_mul(step)).ok_or(CountFault::TooMany(count))
}

/// A destination that is overwritten, followed by a counted list of keys to read: `ZUNIONSTORE`.
pub const STORE_OF_COUNTED: &[KeySpec] = &[
    KeySpec {
        access: Access::Overwrite,
        uses: KeyUse::UPDATE,
        begin: Begin::Index(1),
        find: Find::Range { last: 0, step: 1, limit: 0 },
    },
    KeySpec { access: Access::Read, uses: KeyUse::ACCESS, begin: Begin::Index(2), find: Find::Counted { step: 1 } },
];
