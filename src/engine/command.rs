//! The command table's row: what a command is, as data.
//!
//! A family file in `commands/` declares its rows as constants beside their handlers. Arity errors, `COMMAND` and its
//! subcommands, ACL categories, key positions and the guide's table all derive from the row.

use smallvec::SmallVec;

use crate::base::error::Result;
use crate::engine::command_keys::{KeySpec, KeyUse};
use crate::engine::context::Context;

bitflags::bitflags! {
    /// Flags of a command, with the names of `COMMAND INFO`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u32 {
        /// May change the keyspace.
        const WRITE = 1 << 0;
        /// Reads the keyspace.
        const READONLY = 1 << 1;
        /// Refused when memory is over `maxmemory`.
        const DENYOOM = 1 << 2;
        /// For administrators.
        const ADMIN = 1 << 3;
        /// Publish and subscribe.
        const PUBSUB = 1 << 4;
        /// Not allowed from a script.
        const NOSCRIPT = 1 << 5;
        /// May block.
        const BLOCKING = 1 << 6;
        /// Allowed while loading.
        const LOADING = 1 << 7;
        /// Allowed on a stale replica.
        const STALE = 1 << 8;
        /// Not shown to MONITOR.
        const SKIP_MONITOR = 1 << 9;
        /// Not in the slow log.
        const SKIP_SLOWLOG = 1 << 10;
        /// Constant or logarithmic time.
        const FAST = 1 << 11;
        /// Allowed before authentication.
        const NO_AUTH = 1 << 12;
        /// Its key positions depend on its arguments.
        const MOVABLEKEYS = 1 << 13;
        /// Not allowed inside MULTI.
        const NO_MULTI = 1 << 14;
        /// Allowed while a long script runs.
        const ALLOW_BUSY = 1 << 15;
        /// Not propagated itself; its effects are.
        const MAY_REPLICATE = 1 << 16;
        /// Not allowed while a data set is loaded asynchronously.
        const NO_ASYNC_LOADING = 1 << 17;
        /// Is a command with keys even if a request has none.
        const NO_MANDATORY_KEYS = 1 << 18;
        /// For tests only; `CLIENT PAUSE` does not hold it back.
        const TEST_MODE = 1 << 19;
    }
}

bitflags::bitflags! {
    /// ACL categories that do not follow from the group and the flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Categories: u32 {
        /// `@keyspace`
        const KEYSPACE = 1 << 0;
        /// `@read`
        const READ = 1 << 1;
        /// `@write`
        const WRITE = 1 << 2;
        /// `@set`
        const SET = 1 << 3;
        /// `@sortedset`
        const SORTEDSET = 1 << 4;
        /// `@list`
        const LIST = 1 << 5;
        /// `@hash`
        const HASH = 1 << 6;
        /// `@string`
        const STRING = 1 << 7;
        /// `@bitmap`
        const BITMAP = 1 << 8;
        /// `@hyperloglog`
        const HYPERLOGLOG = 1 << 9;
        /// `@geo`
        const GEO = 1 << 10;
        /// `@stream`
        const STREAM = 1 << 11;
        /// `@pubsub`
        const PUBSUB = 1 << 12;
        /// `@admin`
        const ADMIN = 1 << 13;
        /// `@fast`
        const FAST = 1 << 14;
        /// `@slow`
        const SLOW = 1 << 15;
        /// `@blocking`
        const BLOCKING = 1 << 16;
        /// `@dangerous`
        const DANGEROUS = 1 << 17;
        /// `@connection`
        const CONNECTION = 1 << 18;
        /// `@transaction`
        const TRANSACTION = 1 << 19;
        /// `@scripting`
        const SCRIPTING = 1 << 20;
        /// `@lock`, of Portcullis.
        const LOCK = 1 << 21;
    }
}

bitflags::bitflags! {
    /// Facts that the engine needs about a command, besides those that `COMMAND INFO` shows.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Traits: u8 {
        /// Its cost is bounded by its arguments and its reply, although it is not [`Flags::FAST`]: it defers freeing memory.
        /// Scripts count their own work.
        const BOUNDED = 1 << 0;
        /// Runs immediately, even between `MULTI` and `EXEC`.
        const AT_ONCE = 1 << 1;
        /// Allowed for a RESP2 client with subscriptions.
        const WHILE_SUBSCRIBED = 1 << 2;
        /// Runs the queue of a transaction (`EXEC`).
        const EXEC = 1 << 3;
        /// Scripts may call it after `DEBUG SET-DISABLE-DENY-SCRIPTS`.
        const DEBUG = 1 << 4;
        /// `CLIENT CACHING` stays in effect for the next request.
        const KEEPS_CACHING = 1 << 5;
    }
}

/// The type of a command's reply, for commands in a script's plan: see `script::plan`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replies {
    /// An aggregate, or any type.
    #[default]
    Any,
    /// An integer, unless it fails.
    Integer,
    /// An integer, a string, a status or null.
    Scalar,
    /// As [`Replies::Scalar`], unless the second argument is a count.
    ScalarWithoutCount,
}

/// The script or function whose flags apply to the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Runs {
    /// Nothing.
    #[default]
    Nothing,
    /// The script in its first argument.
    Source,
    /// The script whose digest is its first argument.
    Digest,
    /// The function whose name is its first argument.
    Function,
}

/// Positions of arguments; 0 is the command's name.
pub type Positions = SmallVec<[usize; 4]>;

/// Finds certain arguments of a request.
pub type Finds = fn(&[&[u8]]) -> Positions;

/// The command's group in `COMMAND DOCS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Group {
    Generic,
    String,
    Hash,
    List,
    Set,
    SortedSet,
    Stream,
    Bitmap,
    Hyperloglog,
    Geo,
    PubSub,
    Transactions,
    Connection,
    Server,
    Scripting,
    Cluster,
    Lock,
}

/// Positions of a command's keys; position 0 is the command's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// What a write command may do to a held lock, a queue, a semaphore, a latch or a guard. Only their own commands change them, and
/// only an explicit deletion ends them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Natives {
    /// Nothing. The engine refuses a request with WRONGTYPE before it runs, if it would change, replace, move or remove such a
    /// key; its key specifications say which keys those are. For commands of one value type, only the keys that they overwrite
    /// are checked, because they check the type of all others themselves.
    #[default]
    Refused,
    /// Nothing. The handler checks the type of each key before it changes anything.
    Checked,
    /// Deletes them: the administrator's way to end a hold.
    Deleted,
    /// A native command, which changes them.
    Own,
}

/// The function that executes a command.
pub type Handler = fn(&mut Context<'_>, &[&[u8]]) -> Result;

/// One row of the table.
#[derive(Debug)]
pub struct Command {
    /// In lower case; for a subcommand, only its own word.
    pub name: &'static str,
    /// Number of arguments, including the name (and, for a subcommand, its container); if negative, the minimum.
    pub arity: i32,
    /// Its flags.
    pub flags: Flags,
    /// Positions of its keys.
    pub keys: Keys,
    /// What it does to its keys.
    pub access: Access,
    /// More exact uses of its keys, where they do not follow from `access` (which they replace): one entry for all keys, or one
    /// for each key of a range, the last one for all remaining keys. See [`crate::engine::command_keys`].
    pub key_uses: &'static [(Access, KeyUse)],
    /// For a key specification with [`KeyUse::VARIABLE`]: what a request does, given its arguments.
    pub use_in: fn(&[&[u8]]) -> (Access, KeyUse),
    /// Our notes on each of its key specifications; empty for none.
    pub key_notes: &'static [&'static str],
    /// What it may do to locks, semaphores, latches and guards.
    pub natives: Natives,
    /// Whether a request, given its arguments, writes only keys that do not exist, for example with NX.
    pub only_creates: fn(&[&[u8]]) -> bool,
    /// Which arguments are channels.
    pub channels: Channels,
    /// The arguments that determine the cluster slot, if those are not the keys.
    pub slot_args: Option<Finds>,
    /// The arguments that are secrets. `MONITOR` and the slow log do not show them.
    pub secrets: Finds,
    /// Further facts for the engine.
    pub traits: Traits,
    /// The type of its reply.
    pub replies: Replies,
    /// The script or function that it runs.
    pub runs: Runs,
    /// Why it refuses every request; empty if it does not.
    #[cfg_attr(
        not(any(test, feature = "internals")),
        expect(dead_code, reason = "the page of all commands shows it, which a test makes")
    )]
    pub refused: &'static str,
    /// Its group.
    pub group: Group,
    /// ACL categories, besides those that follow from group and flags.
    pub categories: Categories,
    /// The Redis (or Valkey) version that introduced it; for our own commands, our version.
    pub since: &'static str,
    /// One line on what it does, in our words.
    pub summary: &'static str,
    /// Its cost in big-O terms.
    pub complexity: &'static str,
    /// Its arguments in the documentation's notation, from which `COMMAND DOCS` derives the argument tree:
    /// `key value [NX | XX] [EX seconds | PX milliseconds]`. See `commands::reference::syntax`.
    pub syntax: &'static str,
    /// Command tips for proxies and clients (`nondeterministic_output`, `request_policy:all_shards`, …).
    pub tips: &'static [&'static str],
    /// Executes it. A container's own handler runs when no subcommand was given.
    pub handler: Handler,
    /// Subcommands of a container.
    pub subcommands: &'static [Command],
}

impl Command {
    /// The default row: `Command { name: …, ..Command::DEFAULT }`.
    pub const DEFAULT: Command = Command {
        name: "",
        arity: 1,
        flags: Flags::empty(),
        keys: Keys::None,
        access: Access::Read,
        key_uses: &[],
        use_in: |_| (Access::ReadWrite, KeyUse::UNKNOWN),
        key_notes: &[],
        natives: Natives::Refused,
        only_creates: |_| false,
        channels: Channels::None,
        slot_args: None,
        secrets: |_| Positions::new(),
        traits: Traits::empty(),
        replies: Replies::Any,
        runs: Runs::Nothing,
        refused: "",
        group: Group::Generic,
        categories: Categories::empty(),
        since: "1.0.0",
        summary: "",
        complexity: "O(1)",
        syntax: "",
        tips: &[],
        handler: no_handler,
        subcommands: &[],
    };

    /// Whether its cost is bounded by its arguments and its reply.
    pub fn is_bounded(&self) -> bool {
        self.flags.contains(Flags::FAST) || self.traits.contains(Traits::BOUNDED)
    }

    /// Whether it is `EXEC`.
    pub fn is_exec(&self) -> bool {
        self.traits.contains(Traits::EXEC)
    }

    /// Whether `argc` arguments, including the name, match the arity.
    pub fn takes(&self, argc: usize) -> bool {
        let least = self.arity.unsigned_abs() as usize;
        argc == least || (self.arity < 0 && argc > least)
    }
}

/// The handler of a row that is never called: a container without its subcommand fails on arity first.
fn no_handler(_: &mut Context<'_>, _: &[&[u8]]) -> Result {
    Err(crate::base::error::Error::SYNTAX)
}
