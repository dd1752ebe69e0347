//! One Lua interpreter: its state, its compiled scripts, and the run in progress.
//!
//! ```text
//!   create ─▶ compile: source ─▶ Function ─▶ run: KEYS and ARGV, locals, lua_pcall ─▶ result on the stack ─▶ finish
//!                                                    ▲              ▲
//!                                                 keys_argv       locals
//! ```
//!
//! [`state`] has the struct [`Interpreter`] and is the place to begin. [`frame`] is what a running script can reach.
//!
//! An interpreter is reached through a raw pointer: from Rust by its owner (the cache of scripts or the libraries of functions),
//! and from our C functions by [`Interpreter::of`]. No reference to the whole of it is held across a call into Lua or into the
//! engine.

mod compile;
mod create;
pub(crate) mod frame;
pub(crate) mod function;
mod keys_argv;
mod locals;
mod run;
mod state;
mod teardown;

pub(crate) use crate::script::interpreter::compile::Source;
pub(crate) use crate::script::interpreter::state::{GLOBALS, Interpreter, OK_FIELD, OK_TEXT, REDIS};
