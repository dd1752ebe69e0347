//! Scripts: Lua inside the engine.
//!
//! ```text
//!   EVAL, EVALSHA ─▶ cache: SHA-1 ─▶ Program ┐
//!   FCALL ─▶ functions: name ─▶ Program ─────┴▶ execute ┬▶ plan::run, without Lua ─────────────────────────────────▶ reply
//!                                                       └▶ Interpreter::run ─▶ Lua value ─▶ conversion::to_reply ─▶ reply
//!                                                               │        ▲
//!                                                    redis.call │        │ conversion::to_lua
//!                                                               └▶ calls ┴▶ Context::run
//! ```
//!
//! [`execute`] is the place to begin. Folders:
//!
//! - `cache`: the scripts of EVAL. `functions`: the libraries of FCALL.
//! - `interpreter`: one Lua state and its runs. `lua`: helpers below Lua's C interface. `globals`: what scripts find in it, with
//!   `libraries` (`string`, `table`, `cjson`, `cmsgpack`, `struct`, `bit`).
//! - `calls`: `redis.call`. `conversion`: values between Lua and Redis. `plan`: small scripts that run without Lua.
//! - `fuel`: counts the work of a script and ends scripts that run too long.
//!
//! The code calls Lua's C interface directly rather than through a safe binding, because a call through a binding's closures costs
//! more than most commands. Three rules make that sound:
//!
//! - Lua raises errors, which jump over Rust frames, only where nothing with a destructor is alive.
//! - Allocations cannot fail outside of a script's own code (see [`lua::memory`]).
//! - While a script runs, the engine is reached through the frame of the run only (see [`interpreter`]).

mod cache;
mod calls;
mod conversion;
mod execute;
#[cfg(test)]
mod first_key_tests;
pub(crate) mod fuel;
pub mod functions;
mod globals;
mod interpreter;
mod libraries;
mod lua;
mod plan;
mod program;
#[cfg(test)]
mod sandbox_tests;
#[cfg(test)]
mod semantics_tests;
mod sha;
mod shebang;
mod state;
#[cfg(test)]
mod tests;

pub use crate::script::execute::{Request, Source, run};
pub(crate) use crate::script::lua::layout::check_at_start as check_layout;
pub use crate::script::state::ScriptState;
pub(crate) use crate::script::state::scripting;
