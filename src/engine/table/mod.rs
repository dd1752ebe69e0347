//! The command table: all rows, and the lookup by name.
//!
//! The rows are next to their handlers in `commands`. The engine gets the table as an argument, as it gets the time.

mod index;
mod numbers;

use std::borrow::Cow;
use std::fmt;

use crate::base::error::Error;
use crate::engine::command::Command;
use crate::engine::scripting::Scripting;
use crate::engine::table::index::Index;
use crate::engine::table::numbers::Numbers;

/// A row and its full name: `get`, `config|set`.
pub type Named = (Cow<'static, str>, &'static Command);

/// All commands.
pub struct CommandTable {
    families: &'static [&'static [Command]],
    index: Index<&'static Command>,
    numbers: Numbers,
    containers: Vec<&'static Command>,
    scripting: fn() -> Box<dyn Scripting>,
}

impl fmt::Debug for CommandTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandTable").field("rows", &self.numbers.count()).finish_non_exhaustive()
    }
}

impl CommandTable {
    /// A table of these families, in the order of `COMMAND`. The rows must be statics, because they are identified by their
    /// addresses, and a constant may have several. `scripting` creates the script interpreter of an engine.
    pub fn new(families: &'static [&'static [Command]], scripting: fn() -> Box<dyn Scripting>) -> CommandTable {
        let rows = || families.iter().flat_map(|family| family.iter());
        let lists = families.iter().flat_map(|family| std::iter::once(*family).chain(family.iter().map(|row| row.subcommands)));
        let addresses = |rows: &'static [Command]| rows.as_ptr().addr()..rows.as_ptr_range().end.addr();
        CommandTable {
            families,
            index: Index::new(rows().map(|row| (row.name, row.first_key(), row))),
            numbers: Numbers::new(lists.map(addresses), size_of::<Command>()),
            containers: rows().filter(|command| !command.subcommands.is_empty()).collect(),
            scripting,
        }
    }

    /// Creates the script interpreter of a new engine.
    pub(super) fn scripting(&self) -> Box<dyn Scripting> {
        (self.scripting)()
    }

    /// All commands. Subcommands are in their containers' rows.
    pub fn all(&self) -> impl Iterator<Item = &'static Command> + use<> {
        self.families.iter().flat_map(|family| family.iter())
    }

    /// The command with this name, case-insensitive.
    #[inline]
    pub fn lookup(&self, name: &[u8]) -> Option<&'static Command> {
        self.index.find(name).0
    }

    /// As [`CommandTable::lookup`], with the position of the first key; 0 if the row alone does not determine it, or if there is
    /// none.
    #[inline]
    pub fn lookup_with_first_key(&self, name: &[u8]) -> (Option<&'static Command>, usize) {
        self.index.find(name)
    }

    /// The row for a request; for a container, the row of the subcommand.
    ///
    /// # Errors
    /// If the name is unknown or the number of arguments is wrong.
    #[inline]
    pub fn resolve(&self, args: &[&[u8]]) -> Result<&'static Command, Error> {
        resolve_row(self.lookup(args[0]), args)
    }

    /// The row that a request names, with any number of arguments; `None` if the name is unknown.
    pub fn named(&self, args: &[&[u8]]) -> Option<&'static Command> {
        let command = self.lookup(args.first()?)?;
        match args.get(1) {
            Some(word) if !command.subcommands.is_empty() => subcommand(command, word),
            _ => Some(command),
        }
    }

    /// A command by its full name, case-insensitive: `get`, `CONFIG|SET`.
    pub fn find(&self, full_name: &[u8]) -> Option<Named> {
        let mut words = full_name.split(|&b| b == b'|');
        let command = self.lookup(words.next()?)?;
        match (words.next(), words.next()) {
            (None, _) => Some((command.name.into(), command)),
            (Some(word), None) => subcommands(command).find(|(_, sub)| sub.name.as_bytes().eq_ignore_ascii_case(word)),
            _ => None,
        }
    }

    /// The name of a command in statistics and error texts: `get`, or `client|list` for a subcommand.
    pub fn full_name(&self, command: &'static Command) -> Cow<'static, str> {
        // The container of a subcommand is the one whose rows include its address.
        let holds = |container: &&&Command| container.subcommands.as_ptr_range().contains(&std::ptr::from_ref(command));
        match self.containers.iter().find(holds) {
            Some(container) => format!("{}|{}", container.name, command.name).into(),
            None => command.name.into(),
        }
    }

    /// Number of rows, including subcommands.
    pub fn len(&self) -> usize {
        self.numbers.count()
    }

    /// The number of a row, below [`CommandTable::len`], so that a set of commands can be a bit set; `None` if the row is not in
    /// the table.
    pub fn number(&self, command: &'static Command) -> Option<usize> {
        self.numbers.of(std::ptr::from_ref(command).addr())
    }
}

/// The row for a request, given the row of its name. Fails as [`CommandTable::resolve`].
#[inline]
pub fn resolve_row(row: Option<&'static Command>, args: &[&[u8]]) -> Result<&'static Command, Error> {
    match row {
        Some(command) if command.subcommands.is_empty() && command.takes(args.len()) => Ok(command),
        _ => resolve_subcommand(row, args),
    }
}

/// The subcommands of a container with their full names.
pub fn subcommands(container: &'static Command) -> impl ExactSizeIterator<Item = Named> {
    container.subcommands.iter().map(|sub| (format!("{}|{}", container.name, sub.name).into(), sub))
}

fn subcommand(container: &'static Command, word: &[u8]) -> Option<&'static Command> {
    container.subcommands.iter().find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(word))
}

/// Resolves subcommands, and returns the error of an invalid request.
#[inline(never)]
fn resolve_subcommand(row: Option<&'static Command>, args: &[&[u8]]) -> Result<&'static Command, Error> {
    let Some(mut command) = row else { return Err(Error::unknown_command(args)) };
    if !command.subcommands.is_empty() && args.len() > 1 {
        let container = command.name;
        command = subcommand(command, args[1]).ok_or_else(|| Error::unknown_subcommand(container, args[1]))?;
        fail_if!(!command.takes(args.len()), Error::arity(&format!("{container}|{}", command.name)));
    } else if !command.takes(args.len()) {
        return Err(command.arity_error());
    }
    Ok(command)
}
