//! Functions: libraries written in Lua that stay until they are deleted.
//!
//! ```text
//!   FUNCTION LOAD, RESTORE ─▶ metadata: name ─▶ loading: run once ─▶ register: its functions ─▶ Libraries
//!   FCALL ─▶ Callback by name ─▶ execute, as scripts
//! ```
//!
//! Functions have an interpreter of their own, so a flush of the scripts does not affect them. They belong to the server rather
//! than to a database.
//!
//! [`store`] has the struct [`Functions`](store::Functions) and is the place to begin. [`commands`] has the operations for a
//! session.

mod commands;
mod libraries;
pub(crate) mod load_context;
mod loading;
mod metadata;
mod payload;
mod register;
pub mod store;
#[cfg(test)]
mod tests;

pub(crate) use crate::script::functions::commands::{call, delete, flush, load, restore};
pub(crate) use crate::script::functions::store::Policy;
