//! The engine's interface to its script interpreter. `script` implements it.
//!
//! The engine receives the implementation with its [command table](crate::engine::table), and does not know the scripts'
//! language.

mod flags;

use std::any::Any;

use crate::base::error::Error;
use crate::engine::command::flags::{Flags, Runs};

/// Scripts and libraries of functions, and the interpreters that run them.
pub trait Scripting: Any {
    /// The flags of a command that runs a script or a function: those that the script or function declares, or else `flags`, those
    /// of the command's row. `args` contains the name of the script or function.
    fn flags(&self, runs: Runs, flags: Flags, args: &[&[u8]]) -> Flags;

    /// Sets the maximum of an interpreter's memory, in bytes.
    fn set_memory_limit(&mut self, bytes: u64);

    /// Sources of the cached scripts.
    fn sources(&self) -> Vec<Box<[u8]>>;

    /// Caches a script.
    ///
    /// # Errors
    /// If it does not compile.
    fn load_script(&mut self, source: &[u8]) -> Result<(), Error>;

    /// Sources of the function libraries, ordered by name.
    fn libraries(&self) -> Vec<Box<[u8]>>;

    /// Loads a function library, and replaces the one with its name.
    ///
    /// # Errors
    /// If it does not load.
    fn load_library(&mut self, source: &[u8]) -> Result<(), Error>;

    /// Removes all scripts and libraries. Returns whether there were libraries. Their memory is freed by
    /// [`Scripting::free_some`].
    fn flush(&mut self) -> bool;

    /// Whether memory of removed scripts and libraries waits to be freed.
    fn has_garbage(&self) -> bool;

    /// Frees some of that memory in at most `budget` steps. Returns whether an interpreter was freed whole.
    fn free_some(&mut self, budget: &mut u32) -> bool;

    /// Panics if the state is inconsistent.
    fn check_invariants(&self);
}
