//! The globals of scripts.
//!
//! Scripts share their globals: `redis`, the libraries and the functions of Lua's base library. Each shared table is read-only; see
//! [`read_only`].
//!
//! Missing here are functions that read files or print, `newproxy` (its finalizers would run in the middle of a command),
//! `setfenv` and `getfenv` (they change the globals of other functions), and bytecode.
//!
//! [`setup`] builds the table of globals and is the place to begin. [`redis_table`] is the `redis` table.

pub(crate) mod base;
mod gc;
mod load;
mod os;
pub(crate) mod pcall;
pub(crate) mod read_only;
mod redis_table;
mod setup;

pub(crate) use crate::script::globals::setup::{ERROR_HANDLER, install};
