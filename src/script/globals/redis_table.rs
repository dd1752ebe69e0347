//! The table `redis`, whose second name is `server`.

use std::os::raw::c_int;

use mlua::ffi::*;
use sha1::{Digest, Sha1};

use crate::base::version::REDIS_VERSION;
use crate::resp::reply::Protocol;
use crate::script::calls::call;
use crate::script::conversion::errors;
use crate::script::fuel;
use crate::script::interpreter::Interpreter;
use crate::script::lua::stack::{bytes, c_bytes, push_bytes, set_field};
use crate::script::sha::{Sha, hex};

/// Flags of `redis.set_repl`: effects go to the change log (AOF), and to replicas.
const REPL_AOF: c_int = 1;
const REPL_REPLICA: c_int = 2;

/// Bytes that `redis.sha1hex` hashes at once before it consumes fuel, and in one step.
const HASH_PIECE: usize = 64 << 10;
const HASHED_PER_STEP: u64 = 4;

/// Pushes the table.
///
/// # Safety
/// The stack has room for five values, the interpreter outlives the state, and allocations cannot fail.
pub(super) unsafe fn push_table(lua: *mut lua_State, interpreter: *mut Interpreter) {
    // SAFETY: the stack has room for five values: the table, and the three above it that `set_function` needs. The interpreter
    // outlives the state.
    unsafe {
        lua_createtable(lua, 0, 24);
        let functions: [(_, lua_CFunction); 12] = [
            (c"call", call::call),
            (c"pcall", call::pcall),
            (c"log", log),
            (c"setresp", setresp),
            (c"sha1hex", sha1hex),
            (c"error_reply", error_reply),
            (c"status_reply", status_reply),
            (c"set_repl", set_repl),
            (c"replicate_commands", replicate_commands),
            (c"acl_check_cmd", acl_check_cmd),
            (c"breakpoint", breakpoint),
            (c"debug", debug),
        ];
        for (name, function) in functions {
            Interpreter::set_function(lua, interpreter, name, function);
        }
        let numbers = [
            (c"LOG_DEBUG", 0),
            (c"LOG_VERBOSE", 1),
            (c"LOG_NOTICE", 2),
            (c"LOG_WARNING", 3),
            (c"REPL_NONE", 0),
            (c"REPL_AOF", REPL_AOF),
            (c"REPL_SLAVE", REPL_REPLICA),
            (c"REPL_REPLICA", REPL_REPLICA),
            (c"REPL_ALL", REPL_AOF | REPL_REPLICA),
            (c"REDIS_VERSION_NUM", version_number(REDIS_VERSION)),
        ];
        for (name, number) in numbers {
            lua_pushnumber(lua, number.into());
            set_field(lua, name);
        }
        push_bytes(lua, REDIS_VERSION.as_bytes());
        set_field(lua, c"REDIS_VERSION");
    }
}

/// `0x00MMmmpp` for a version `M.m.p`.
fn version_number(version: &str) -> c_int {
    version.split('.').fold(0, |number, part| (number << 8) | part.parse::<c_int>().unwrap_or(0))
}

// SAFETY of the functions below: Lua calls them, with room for twenty values beyond their arguments. They were set with the
// interpreter, and a script runs, so its frame's engine is valid. Nothing with a destructor is alive where Lua may raise an error:
// when it allocates while `may_fail` is set, and where one is raised.

unsafe extern "C-unwind" fn log(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this. All arguments are converted to strings first, which may raise an error; nothing else does until
    // `parts` and `text` are dropped.
    unsafe {
        let count = lua_gettop(lua);
        if count < 2 {
            return errors::raise(lua, "redis.log() requires two arguments or more.");
        }
        if lua_isnumber(lua, 1) == 0 {
            return errors::raise(lua, "First argument must be a number (log level).");
        }
        let level = lua_tonumber(lua, 1) as i64;
        if !(0..=3).contains(&level) {
            return errors::raise(lua, "Invalid log level.");
        }
        for index in 2..=count {
            lua_tolstring(lua, index, std::ptr::null_mut());
        }
        let parts: Vec<_> = (2..=count).filter_map(|index| bytes(lua, index)).map(String::from_utf8_lossy).collect();
        let text = parts.join(" ");
        match level {
            0 | 1 => tracing::debug!(target: "script", "script: {text}"),
            2 => tracing::info!(target: "script", "script: {text}"),
            _ => tracing::warn!(target: "script", "script: {text}"),
        }
    }
    0
}

unsafe extern "C-unwind" fn setresp(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, so the state belongs to an interpreter. Nothing here has a destructor when an error is raised.
    unsafe {
        if lua_gettop(lua) != 1 {
            return errors::raise(lua, "redis.setresp() requires one argument.");
        }
        let protocol = match lua_tonumber(lua, 1) as i64 {
            2 => Protocol::Resp2,
            3 => Protocol::Resp3,
            _ => return errors::raise(lua, "RESP version must be 2 or 3."),
        };
        (*Interpreter::of(lua)).frame.protocol = protocol;
    }
    0
}

unsafe extern "C-unwind" fn sha1hex(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this while a script runs, and argument 1 stays on the stack while it is hashed. Nothing here has a
    // destructor when an error is raised: `digest` has returned.
    unsafe {
        if lua_gettop(lua) != 1 {
            return errors::raise(lua, "wrong number of arguments");
        }
        let interpreter = Interpreter::of(lua);
        match digest(interpreter, bytes(lua, 1).unwrap_or_default()) {
            Some(digest) => push_bytes(lua, &digest),
            None => return fuel::raise_killed(lua, interpreter),
        }
    }
    1
}

/// The SHA-1 of bytes. `None` if the script must end.
unsafe fn digest(interpreter: *mut Interpreter, bytes: &[u8]) -> Option<Sha> {
    let mut digest = Sha1::new();
    for piece in bytes.chunks(HASH_PIECE) {
        // SAFETY: `sha1hex` calls this while a script runs. `try_consume` raises no error, so the digest is dropped.
        if unsafe { fuel::try_consume(interpreter, piece.len() as u64 / HASHED_PER_STEP) } {
            return None;
        }
        digest.update(piece);
    }
    Some(hex(digest))
}

/// Whether there is one argument and it is a string. Otherwise pushes an error.
unsafe fn one_string(lua: *mut lua_State) -> bool {
    // SAFETY: Lua called the function that calls this, so the stack has room for the error, and nothing here has a destructor if
    // Lua runs out of memory.
    unsafe {
        let is = lua_gettop(lua) == 1 && lua_type(lua, 1) == LUA_TSTRING;
        if !is {
            errors::push(lua, b"wrong number or type of arguments");
        }
        is
    }
}

unsafe extern "C-unwind" fn error_reply(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for twenty values, and `one_string` checks that there is only a string. Either that or
    // the longer one that replaces it stays at index 1 while the error is written.
    unsafe {
        if one_string(lua) {
            let text = c_bytes(lua, 1).unwrap_or_default();
            if !text.starts_with(b"-") {
                push_bytes(lua, b"-");
                lua_insert(lua, 1);
                lua_concat(lua, 2);
            }
            errors::push(lua, c_bytes(lua, 1).unwrap_or_default());
        }
    }
    1
}

unsafe extern "C-unwind" fn status_reply(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the table, a key and a value, and `one_string` checks that there is only a string.
    unsafe {
        if one_string(lua) {
            lua_createtable(lua, 0, 1);
            lua_pushvalue(lua, 1);
            set_field(lua, c"ok");
        }
    }
    1
}

/// The flags are checked and ignored: the effects of a script are always logged.
unsafe extern "C-unwind" fn set_repl(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and nothing here has a destructor when an error is raised.
    unsafe {
        if lua_gettop(lua) != 1 {
            return errors::raise(lua, "redis.set_repl() requires one argument.");
        }
        let flags = lua_tonumber(lua, 1) as c_int;
        if flags & !(REPL_AOF | REPL_REPLICA) != 0 {
            return errors::raise(lua, "Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.");
        }
    }
    0
}

/// Always true: effects are logged rather than scripts.
unsafe extern "C-unwind" fn replicate_commands(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the boolean.
    unsafe { lua_pushboolean(lua, 1) };
    1
}

unsafe extern "C-unwind" fn acl_check_cmd(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this while a script runs, and all arguments are checked to be strings or numbers, as `is_permitted`
    // needs. Nothing here has a destructor when an error is raised.
    unsafe {
        let count = lua_gettop(lua);
        if count == 0 {
            return errors::raise(lua, call::NO_ARGUMENTS);
        }
        if (1..=count).any(|index| lua_isstring(lua, index) == 0) {
            return errors::raise(lua, call::ARGUMENT_TYPES);
        }
        match call::is_permitted(lua) {
            Some(permitted) => lua_pushboolean(lua, permitted.into()),
            None => return errors::raise(lua, "Invalid command passed to redis.acl_check_cmd()"),
        }
    }
    1
}

/// Always false: there is no debugger.
unsafe extern "C-unwind" fn breakpoint(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for the boolean.
    unsafe { lua_pushboolean(lua, 0) };
    1
}

/// Does nothing: there is no debugger.
unsafe extern "C-unwind" fn debug(_: *mut lua_State) -> c_int {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_one_byte_for_each_part() {
        assert_eq!(version_number("7.4.2"), 0x0007_0402);
    }
}
