//! The command table's row: what a command is, as data.
//!
//! A family file in `commands/` declares its rows as constants beside their handlers. Arity errors, `COMMAND` and its
//! subcommands, ACL categories, key positions and the guide's table all derive from the row.

mod arity;
mod categories;
pub mod flags;
pub mod keys;
pub mod options;
mod positions;

use crate::base::error::{Error, Result};
pub use crate::engine::command::flags::{Categories, Flags, Group, Natives, Replies, Runs, Traits};
use crate::engine::command::keys::KeyUse;
pub use crate::engine::command::keys::{Access, Channels, Finds, Keys, Positions};
use crate::engine::context::Context;

/// The function that executes a command.
pub type Handler = fn(&mut Context<'_>, &[&[u8]]) -> Result;

/// One row of the table.
#[derive(Debug)]
pub struct Command {
    /// In lower case; for a subcommand, only its own word.
    pub name: &'static str,
    /// Number of arguments, including the name (and, for a subcommand, its container); if negative, the minimum. [`rows`] derives
    /// it from the syntax, unless the row says otherwise.
    pub arity: i32,
    /// Its flags.
    pub flags: Flags,
    /// Positions of its keys.
    pub keys: Keys,
    /// What it does to its keys. [`rows`] sets it for commands that only read.
    pub access: Access,
    /// More exact uses of its keys, where they do not follow from `access` (which they replace): one entry for all keys, or one
    /// for each key of a range, the last one for all remaining keys. See [`crate::engine::command::keys`].
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
    /// The arguments that determine the cluster slot, if those are not the keys but shard channels.
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
    /// The default row: `row!("name", handler, "syntax", "summary"; …, ..Command::DEFAULT)`.
    pub const DEFAULT: Command = Command {
        name: "",
        arity: 0,
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
        self.flags.contains(Flags::FAST) || self.traits.contains(Traits::BOUNDED_COST)
    }

    /// Whether it is `EXEC`.
    pub fn is_exec(&self) -> bool {
        self.traits.contains(Traits::EXEC)
    }

    /// Its name and arguments, as a line of help: `LOCK.RENEW key owner <lease | KEEP> [TOKEN token]`.
    pub fn usage(&self) -> String {
        format!("{} {}", self.name.to_ascii_uppercase(), self.syntax).trim_end().to_owned()
    }

    /// The error of a request with a wrong number of arguments. Redis's text; native commands add their usage.
    #[cold]
    pub(in crate::engine) fn arity_error(&self) -> Error {
        if self.group == Group::Lock { Error::arity_with_usage(self.name, &self.usage()) } else { Error::arity(self.name) }
    }

    /// Whether `argc` arguments, including the name, match the arity.
    pub fn takes(&self, argc: usize) -> bool {
        let least = self.arity.unsigned_abs() as usize;
        argc == least || (self.arity < 0 && argc > least)
    }
}

/// Completes rows of commands at compile time: what follows from other fields is not written in each row.
///
/// The arity follows from the syntax, and a command that only reads has that access to its keys.
pub const fn rows<const N: usize>(rows: [Command; N]) -> [Command; N] {
    complete(rows, 1)
}

/// As [`rows`], for the rows of a container's subcommands.
pub const fn subrows<const N: usize>(rows: [Command; N]) -> [Command; N] {
    complete(rows, 2)
}

/// A row of the table: its name, then its handler, syntax and summary, and behind the semicolon what differs from the row after the
/// two dots. A row may leave out the syntax, or the handler and the syntax, and has those of that row then.
macro_rules! row {
    ($name:expr, $summary:expr; $($field:ident $(: $value:expr)?,)* ..$base:expr) => {
        $crate::engine::command::Command { name: $name, summary: $summary, $($field $(: $value)?,)* ..$base }
    };
    ($name:expr, $handler:expr, $summary:expr; $($fields:tt)*) => {
        row!($name, $summary; handler: $handler, $($fields)*)
    };
    ($name:expr, $handler:expr, $syntax:expr, $summary:expr; $($fields:tt)*) => {
        row!($name, $summary; handler: $handler, syntax: $syntax, $($fields)*)
    };
}
pub(crate) use row;

/// Completes rows whose names have this many words.
const fn complete<const N: usize>(mut rows: [Command; N], words: i32) -> [Command; N] {
    let mut i = 0;
    while i < N {
        let row = &mut rows[i];
        if row.arity == 0 {
            // A container takes the name of a subcommand, and then what that takes.
            row.arity = if row.subcommands.is_empty() { arity::of_syntax(row.syntax, words) } else { -2 };
        }
        // A command that only reads may still store what it computed with the value, as PFCOUNT does.
        if row.flags.contains(Flags::READONLY) && !row.flags.contains(Flags::MAY_REPLICATE) {
            row.access = Access::Read;
        }
        i += 1;
    }
    rows
}

/// The handler of a row that is never called: a container without its subcommand fails on arity first.
fn no_handler(_: &mut Context<'_>, _: &[&[u8]]) -> Result {
    Err(Error::SYNTAX)
}
