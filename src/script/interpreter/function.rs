//! A compiled script, or a function of a library.

use std::os::raw::c_int;

use crate::script::interpreter::locals::Locals;

/// A Lua function in the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// Its reference in the registry.
    pub reference: c_int,
    /// The locals that it receives as arguments. `None` if it finds everything among the globals.
    pub locals: Option<Locals>,
    /// Whether `KEYS` and `ARGV` must be set as globals before it runs.
    pub sets_globals: bool,
    /// Whether nothing of a run outlives it, so that the tables `KEYS` and `ARGV` can be used again.
    pub reuses_tables: bool,
}

impl Function {
    /// A function of a library in the registry, which takes keys and arguments.
    pub(crate) fn callback(reference: c_int) -> Self {
        Function { reference, locals: Some(Locals::default()), sets_globals: false, reuses_tables: false }
    }
}
