//! `redis.register_function`, which a loading library calls.

use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::conversion::errors;
use crate::script::functions::load_context::{LoadContext, RegisteredFunction};
use crate::script::functions::metadata::{NAME_RULE, is_name};
use crate::script::interpreter::Interpreter;
use crate::script::interpreter::function::Function;
use crate::script::lua::stack::{bytes, c_bytes};
use crate::script::shebang::ScriptFlags;

// SAFETY of the functions below: Lua calls them, with room for twenty values beyond their arguments. Nothing with a destructor is
// alive where Lua may raise an error: when it allocates while `may_fail` is set, and where an error is raised.

/// `redis.register_function(name, callback)` or `redis.register_function{function_name = …, callback = …, …}`
pub(super) unsafe extern "C-unwind" fn register_function(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, with room for twenty values beyond the arguments. While `register` owns something, `may_fail` is
    // not set and nothing raises an error; afterwards nothing here has a destructor.
    unsafe {
        let this = Interpreter::of(lua);
        (*this).memory.may_fail = false;
        let refused = register(this, lua).err();
        (*this).memory.may_fail = true;
        if let Some(text) = refused { errors::raise(lua, text) } else { 0 }
    }
}

unsafe fn register(this: *mut Interpreter, lua: *mut lua_State) -> Result<(), &'static str> {
    // SAFETY: called by `register_function`; no other reference to the context is alive.
    unsafe {
        let context = (*this).load.as_mut().ok_or("redis.register_function can only be called on FUNCTION LOAD command")?;
        let mut arguments = Arguments::default();
        let registered = arguments.read(this, lua).and_then(|()| arguments.add_to(context));
        if registered.is_err()
            && let Some(callback) = arguments.callback
        {
            Interpreter::release(this, callback);
        }
        registered
    }
}

/// The arguments of one call.
#[derive(Default)]
struct Arguments {
    name: Option<Vec<u8>>,
    description: Option<Vec<u8>>,
    callback: Option<Function>,
    flags: Option<ScriptFlags>,
}

impl Arguments {
    unsafe fn read(&mut self, this: *mut Interpreter, lua: *mut lua_State) -> Result<(), &'static str> {
        // SAFETY: as for `register`.
        unsafe {
            match lua_gettop(lua) {
                1 => self.read_table(this, lua),
                2 => {
                    self.name = Some(string(lua, 1).ok_or("first argument to redis.register_function must be a string")?);
                    fail_if!(lua_type(lua, 2) != LUA_TFUNCTION, "second argument to redis.register_function must be a function");
                    self.callback = Some(Function::callback(luaL_ref(lua, LUA_REGISTRYINDEX)));
                    Ok(())
                }
                _ => Err("wrong number of arguments to redis.register_function"),
            }
        }
    }

    /// Reads named arguments from a table.
    unsafe fn read_table(&mut self, this: *mut Interpreter, lua: *mut lua_State) -> Result<(), &'static str> {
        const UNKNOWN: &str = "unknown argument given to redis.register_function";
        // SAFETY: as for `register`. The iteration does not change its keys: a number is not converted to a string.
        unsafe {
            if lua_type(lua, 1) != LUA_TTABLE {
                return Err(
                    "calling redis.register_function with a single argument is only applicable to Lua table (representing named arguments).",
                );
            }
            lua_pushnil(lua);
            while lua_next(lua, 1) != 0 {
                match lua_type(lua, -2) {
                    LUA_TSTRING => {}
                    LUA_TNUMBER => return Err(UNKNOWN),
                    _ => return Err("named argument key given to redis.register_function is not a string"),
                }
                let name = c_bytes(lua, -2).unwrap_or_default();
                if name.eq_ignore_ascii_case(b"function_name") {
                    let name =
                        string(lua, -1).ok_or("function_name argument given to redis.register_function must be a string")?;
                    self.name = Some(name);
                } else if name.eq_ignore_ascii_case(b"description") {
                    let text = string(lua, -1).ok_or("description argument given to redis.register_function must be a string")?;
                    self.description = Some(text);
                } else if name.eq_ignore_ascii_case(b"callback") {
                    if lua_type(lua, -1) != LUA_TFUNCTION {
                        return Err("callback argument given to redis.register_function must be a function");
                    }
                    lua_pushvalue(lua, -1);
                    let callback = Function::callback(luaL_ref(lua, LUA_REGISTRYINDEX));
                    if let Some(other) = self.callback.replace(callback) {
                        Interpreter::release(this, other);
                    }
                } else if name.eq_ignore_ascii_case(b"flags") {
                    if lua_type(lua, -1) != LUA_TTABLE {
                        return Err("flags argument to redis.register_function must be a table representing function flags");
                    }
                    self.flags = Some(flags(lua)?);
                } else {
                    return Err(UNKNOWN);
                }
                lua_pop(lua, 1);
            }
        }
        fail_if!(self.name.is_none(), "redis.register_function must get a function name argument");
        fail_if!(self.callback.is_none(), "redis.register_function must get a callback argument");
        Ok(())
    }

    fn add_to(&mut self, context: &mut LoadContext) -> Result<(), &'static str> {
        let name = self.name.take().unwrap_or_default();
        fail_if!(!is_name(&name), NAME_RULE);
        fail_if!(context.functions.contains_key(&name), "Function already exists in the library");
        let Some(function) = self.callback else { return Err("redis.register_function must get a callback argument") };
        let flags = self.flags.unwrap_or(ScriptFlags::empty());
        context.add(name, RegisteredFunction { function, flags, description: self.description.take() })
    }
}

/// A copy of a string, or of a number's text. `None` for other types.
unsafe fn string(lua: *mut lua_State, index: c_int) -> Option<Vec<u8>> {
    // SAFETY: as for `register`.
    unsafe { if lua_isstring(lua, index) != 0 { bytes(lua, index).map(<[u8]>::to_vec) } else { None } }
}

/// The flags in the list on top of the stack.
unsafe fn flags(lua: *mut lua_State) -> Result<ScriptFlags, &'static str> {
    const UNKNOWN: &str = "unknown flag given";
    let mut flags = ScriptFlags::empty();
    // SAFETY: as for `register`.
    unsafe {
        for index in 1.. {
            lua_rawgeti_(lua, -1, index);
            if lua_type(lua, -1) == LUA_TNIL {
                lua_pop(lua, 1);
                break;
            }
            fail_if!(lua_isstring(lua, -1) == 0, UNKNOWN);
            let name = c_bytes(lua, -1).unwrap_or_default();
            flags |= ScriptFlags::named(name).ok_or(UNKNOWN)?;
            lua_pop(lua, 1);
        }
    }
    Ok(flags)
}
