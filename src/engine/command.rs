//! The command table's row: what a command is, as data.
//!
//! A family file in `commands/` declares its rows as constants beside their handlers. Arity errors, `COMMAND` and its subcommands,
//! ACL categories, key positions and the guide's table are all derived from the row.

use smallvec::SmallVec;

use crate::base::error::Result;
use crate::engine::command_keys::{KeySpec, KeyUse};
use crate::engine::context::Context;

bitflags::bitflags! {
    /// What kind of command it is; names as `COMMAND INFO` gives them.
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
        /// May wait.
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
        /// May be called while a script runs long.
        const ALLOW_BUSY = 1 << 15;
        /// Never propagated on its own: what it does is.
        const MAY_REPLICATE = 1 << 16;
        /// Not run from the queue of asynchronously loaded data.
        const NO_ASYNC_LOADING = 1 << 17;
        /// Touches keys all the same even when it only counts them.
        const NO_MANDATORY_KEYS = 1 << 18;
        /// Only tests call it, and no pause is in their way.
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
    /// What the engine knows of a command beyond what `COMMAND INFO` shows.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Traits: u8 {
        /// Its cost is bounded by its arguments and its reply, though it is not [`Flags::FAST`]: what it frees is freed later. Scripts
        /// count their own work.
        const BOUNDED = 1 << 0;
        /// Runs at once, even between `MULTI` and `EXEC`.
        const AT_ONCE = 1 << 1;
        /// A client on RESP2 may call it while it has subscriptions.
        const WHILE_SUBSCRIBED = 1 << 2;
        /// Runs the queue of a transaction.
        const EXEC = 1 << 3;
        /// Scripts may call it after `DEBUG SET-DISABLE-DENY-SCRIPTS`.
        const DEBUG = 1 << 4;
        /// `CLIENT CACHING` still holds for the request after it.
        const KEEPS_CACHING = 1 << 5;
    }
}

/// What a command replies with, where a script's plan may call it: see `script::plan`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replies {
    /// An aggregate, or whatever it is.
    #[default]
    Any,
    /// A number, unless it fails.
    Integer,
    /// A number, a string, a status or nothing.
    Scalar,
    /// The same, unless its second argument is a count.
    ScalarWithoutCount,
}

/// What a command runs that has flags of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Runs {
    /// Nothing.
    #[default]
    Nothing,
    /// The script that is its first argument.
    Source,
    /// The script whose digest is its first argument.
    Digest,
    /// The function whose name is its first argument.
    Function,
}

/// Positions of arguments; 0 is the command's name.
pub type Positions = SmallVec<[usize; 4]>;

/// Finds arguments of a request.
pub type Finds = fn(&[&[u8]]) -> Positions;

/// The group a command is listed under in `COMMAND DOCS`.
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

/// Where a command's keys stand among its arguments; position 0 is the command's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// It takes none.
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
    /// The argument at `numkeys` says how many keys (every `step`-th argument) follow it.
    Counted {
        /// Position of the number.
        numkeys: usize,
        /// Distance between two keys.
        step: i32,
    },
    /// As these say, access and use included, where the places of all keys do not follow one rule.
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

/// How a command uses its keys, as the key specifications of `COMMAND INFO` name it.
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

/// Which arguments of a command are channels, so that a user may be kept from them. Ending a subscription takes no permission.
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

/// What a command that writes may do to a held lock, a queue, a semaphore, a latch or a guard. Only their own commands change them, and
/// only a deletion that says so ends them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Natives {
    /// Nothing. The engine refuses a request with WRONGTYPE before it runs, if it changes, replaces, moves or removes such a key: its key
    /// specifications say which keys those are. Commands for one type of value are asked only about keys that they overwrite, as they
    /// look at the type of all others.
    #[default]
    Refused,
    /// Nothing. The handler looks at the type of each key before it changes anything.
    Checked,
    /// Deletes them: the administrator's way to end what is held.
    Deleted,
    /// It is one of their own commands.
    Own,
}

/// What carries a command out.
pub type Handler = fn(&mut Context<'_>, &[&[u8]]) -> Result;

/// One row of the table.
#[derive(Debug)]
pub struct Command {
    /// In lower case; of a subcommand only its own word.
    pub name: &'static str,
    /// Number of arguments, the name (and, for a subcommand, its container) counted; negative: at least so many.
    pub arity: i32,
    /// What kind of command it is.
    pub flags: Flags,
    /// Where its keys are.
    pub keys: Keys,
    /// What it does to them.
    pub access: Access,
    /// What it does to them more exactly, where that does not follow from `access` (which it then replaces): one entry for all keys, or
    /// one for each key of a range, the last standing for all that remain. See [`crate::engine::command_keys`].
    pub key_uses: &'static [(Access, KeyUse)],
    /// Of a key specification with [`KeyUse::VARIABLE`]: what this very request does, given its arguments.
    pub use_in: fn(&[&[u8]]) -> (Access, KeyUse),
    /// What is to be said about each of its key specifications, in our words; nothing where that is empty.
    pub key_notes: &'static [&'static str],
    /// What it may do to locks, semaphores, latches and guards.
    pub natives: Natives,
    /// Whether this very request, given its arguments, writes only keys that are not there: with a word like NX.
    pub only_creates: fn(&[&[u8]]) -> bool,
    /// Which of its arguments are channels.
    pub channels: Channels,
    /// The arguments that decide about the slot in a cluster, where those are not its keys.
    pub slot_args: Option<Finds>,
    /// The arguments that are secrets: `MONITOR` and the slow log do not show them.
    pub secrets: Finds,
    /// What else the engine knows of it.
    pub traits: Traits,
    /// What it replies with.
    pub replies: Replies,
    /// What it runs.
    pub runs: Runs,
    /// Why it refuses all that it is asked for; empty where it does not.
    #[cfg_attr(
        not(any(test, feature = "internals")),
        expect(dead_code, reason = "the page of all commands shows it, which a test makes")
    )]
    pub refused: &'static str,
    /// Its group.
    pub group: Group,
    /// ACL categories beyond those that follow from group and flags.
    pub categories: Categories,
    /// The Redis (or Valkey) version that introduced it; of what no other server has, ours.
    pub since: &'static str,
    /// One line of what it does, in our words.
    pub summary: &'static str,
    /// Its cost in big-O terms.
    pub complexity: &'static str,
    /// Its arguments in the notation of the documentation, from which `COMMAND DOCS` derives the argument tree:
    /// `key value [NX | XX] [EX seconds | PX milliseconds]`. See `commands::syntax`.
    pub syntax: &'static str,
    /// Command tips for proxies and clients (`nondeterministic_output`, `request_policy:all_shards`, …).
    pub tips: &'static [&'static str],
    /// Carries it out. A container's own handler is called when no subcommand was given.
    pub handler: Handler,
    /// Subcommands of a container.
    pub subcommands: &'static [Command],
}

impl Command {
    /// A row to start from: `Command { name: …, ..Command::DEFAULT }`.
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

    /// Whether `argc` arguments, the name included, are a number it takes.
    pub fn takes(&self, argc: usize) -> bool {
        let least = self.arity.unsigned_abs() as usize;
        argc == least || (self.arity < 0 && argc > least)
    }
}

/// The handler of a row that is never called itself: a container without its subcommand fails on arity first.
fn no_handler(_: &mut Context<'_>, _: &[&[u8]]) -> Result {
    Err(crate::base::error::Error::SYNTAX)
}
