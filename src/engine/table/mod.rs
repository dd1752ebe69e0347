//! The command table: every row, and how one is found by its name.
//!
//! The rows stand beside their handlers in `commands`. The engine is given the table as an argument, as it is given the time.

mod index;
mod numbers;

use std::borrow::Cow;
use std::fmt;

use crate::base::error::Error;
use crate::engine::command::Command;
use crate::engine::scripting::Scripting;
use crate::engine::table::index::Index;
use crate::engine::table::numbers::Numbers;

/// A row and the name under which it is shown: `get`, `config|set`.
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
    /// A table of these families, in the order in which `COMMAND` lists them. The rows must be statics: they are told apart by their
    /// addresses, and a constant may have several. `scripting` makes what runs the scripts of an engine.
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

    /// An interpreter for the scripts of a new engine.
    pub(super) fn scripting(&self) -> Box<dyn Scripting> {
        (self.scripting)()
    }

    /// All commands; subcommands hang on their containers.
    pub fn all(&self) -> impl Iterator<Item = &'static Command> + use<> {
        self.families.iter().flat_map(|family| family.iter())
    }

    /// The command of this name, in any case.
    #[inline]
    pub fn lookup(&self, name: &[u8]) -> Option<&'static Command> {
        self.index.find(name).0
    }

    /// As [`CommandTable::lookup`], with the position of the first key among the arguments; 0 where the row alone does not tell, or there
    /// is none.
    #[inline]
    pub fn lookup_with_first_key(&self, name: &[u8]) -> (Option<&'static Command>, usize) {
        self.index.find(name)
    }

    /// The row for a request: a container's subcommand where it names one.
    ///
    /// # Errors
    /// On unknown names and on a wrong number of arguments.
    #[inline]
    pub fn resolve(&self, args: &[&[u8]]) -> Result<&'static Command, Error> {
        resolve_row(self.lookup(args[0]), args)
    }

    /// The row that a request names, with whatever number of arguments; `None` where it names none.
    pub fn named(&self, args: &[&[u8]]) -> Option<&'static Command> {
        let command = self.lookup(args.first()?)?;
        match args.get(1) {
            Some(word) if !command.subcommands.is_empty() => subcommand(command, word),
            _ => Some(command),
        }
    }

    /// A command by its full name in any case: `get`, `CONFIG|SET`.
    pub fn find(&self, full_name: &[u8]) -> Option<Named> {
        let mut words = full_name.split(|&b| b == b'|');
        let command = self.lookup(words.next()?)?;
        match (words.next(), words.next()) {
            (None, _) => Some((command.name.into(), command)),
            (Some(word), None) => subcommands(command).find(|(_, sub)| sub.name.as_bytes().eq_ignore_ascii_case(word)),
            _ => None,
        }
    }

    /// The name under which statistics and error texts show a command: `get`, or `client|list` for a subcommand.
    pub fn full_name(&self, command: &'static Command) -> Cow<'static, str> {
        // A subcommand is known by the rows that it stands among.
        let holds = |container: &&&Command| container.subcommands.as_ptr_range().contains(&std::ptr::from_ref(command));
        match self.containers.iter().find(holds) {
            Some(container) => format!("{}|{}", container.name, command.name).into(),
            None => command.name.into(),
        }
    }

    /// Number of rows, subcommands included.
    pub fn len(&self) -> usize {
        self.numbers.count()
    }

    /// A row's number, below [`CommandTable::len`], so that a set of commands can be a set of bits; `None` for a row that is not in the
    /// table.
    pub fn number(&self, command: &'static Command) -> Option<usize> {
        self.numbers.of(std::ptr::from_ref(command).addr())
    }
}

/// The row for a request whose name has the row `row`. Errors as [`CommandTable::resolve`].
#[inline]
pub fn resolve_row(row: Option<&'static Command>, args: &[&[u8]]) -> Result<&'static Command, Error> {
    match row {
        Some(command) if command.subcommands.is_empty() && command.takes(args.len()) => Ok(command),
        _ => resolve_subcommand(row, args),
    }
}

/// The subcommands of a container, with their full names.
pub fn subcommands(container: &'static Command) -> impl ExactSizeIterator<Item = Named> {
    container.subcommands.iter().map(|sub| (format!("{}|{}", container.name, sub.name).into(), sub))
}

fn subcommand(container: &'static Command, word: &[u8]) -> Option<&'static Command> {
    container.subcommands.iter().find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(word))
}

/// Handles rows that cannot be called as they stand: they have subcommands, or the request is in error.
#[inline(never)]
fn resolve_subcommand(row: Option<&'static Command>, args: &[&[u8]]) -> Result<&'static Command, Error> {
    let Some(mut command) = row else { return Err(Error::unknown_command(args)) };
    if !command.subcommands.is_empty() && args.len() > 1 {
        let container = command.name;
        command = subcommand(command, args[1]).ok_or_else(|| Error::unknown_subcommand(container, args[1]))?;
        if !command.takes(args.len()) {
            return Err(Error::arity(&format!("{container}|{}", command.name)));
        }
    } else if !command.takes(args.len()) {
        return Err(Error::arity(command.name));
    }
    Ok(command)
}
