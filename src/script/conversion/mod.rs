//! Conversion between values of Lua and replies of Redis.
//!
//! [`to_lua`] turns the reply of a command that a script calls into a Lua value. [`to_reply`] turns a script's result into a reply.
//! [`errors`] has the error tables that scripts see.

pub(crate) mod errors;
pub(crate) mod to_lua;
pub(crate) mod to_reply;
