//! Loading a library: its source runs once, with little more to reach than `redis.register_function`.
//!
//! While it runs, the globals are a table with nothing in it but a small `redis` table; afterwards they are again what functions see.
//! Neither can be written to, so a library keeps what it shares between its functions in locals, and no other library reaches it.

use std::collections::BTreeMap;
use std::os::raw::{c_int, c_void};
use std::ptr::NonNull;

use mlua::ffi::*;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::script::bounds;
use crate::script::failure;
use crate::script::functions::metadata::{NAME_RULE, is_name};
use crate::script::globals;
use crate::script::interpreter::{Frame, Function, GLOBALS, Interpreter, REDIS, Source};
use crate::script::shebang::ScriptFlags;
use crate::script::stack::{bytes, c_bytes, get_field, set_field, set_function};

/// How long a library may take to load, in instructions or as much other work: somewhat less than half a second; less in tests.
pub(in crate::script) const STEPS_MAX: u64 = if cfg!(test) { 5_000_000 } else { 50_000_000 };
/// The error of one that takes longer.
pub(in crate::script) const TIMEOUT: &[u8] = b"FUNCTION LOAD timeout";

/// Bytes of names and descriptions that one library may register. They are kept outside of Lua's memory and its limit.
const REGISTERED_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 64 << 20 };

/// Its address is the registry's key of the globals of libraries that load.
static LIBRARY_GLOBALS: u8 = 0;

/// One function of a library.
#[derive(Clone, Debug)]
pub(in crate::script) struct Registered {
    /// What is called.
    pub function: Function,
    /// What it says of itself.
    pub flags: ScriptFlags,
    /// A description, if it gave one.
    pub description: Option<Vec<u8>>,
}

/// What a library that loads has registered so far.
#[derive(Default)]
pub(in crate::script) struct Draft {
    functions: BTreeMap<Vec<u8>, Registered>,
    bytes: usize,
}

fn key(of: &'static u8) -> *mut c_void {
    std::ptr::from_ref(of).cast_mut().cast()
}

/// Who is asked, while a library loads, whether it may go on: nobody where there is no engine.
#[derive(Clone, Copy)]
pub(super) struct Host {
    pub engine: *mut Engine,
    pub now: Now,
    pub session: SessionId,
}

impl Host {
    pub(super) fn none() -> Self {
        Host { engine: std::ptr::null_mut(), now: Now::default(), session: SessionId(0) }
    }
}

/// A new interpreter for functions; to be freed by [`Interpreter::free`].
pub(super) fn create(memory_limit: usize) -> NonNull<Interpreter> {
    let interpreter = Interpreter::create(memory_limit);
    let this = interpreter.as_ptr();
    // SAFETY: nothing runs on it, allocations cannot fail, and at most ten values are on the stack.
    unsafe {
        let lua = (*this).lua;
        lua_rawgeti_(lua, LUA_REGISTRYINDEX, GLOBALS);
        lua_pushnil(lua);
        set_field(lua, globals::ERROR_FUNCTION);
        lua_pop(lua, 1);
        lua_pushlightuserdata(lua, key(&LIBRARY_GLOBALS));
        lua_createtable(lua, 0, 1);
        lua_createtable(lua, 0, 8);
        let library = lua_gettop(lua);
        lua_rawgeti_(lua, LUA_REGISTRYINDEX, REDIS);
        for name in [c"breakpoint", c"debug", c"replicate_commands"] {
            lua_pushnil(lua);
            set_field(lua, name);
        }
        for name in [c"log", c"LOG_DEBUG", c"LOG_VERBOSE", c"LOG_NOTICE", c"LOG_WARNING", c"REDIS_VERSION", c"REDIS_VERSION_NUM"]
        {
            lua_pushvalue(lua, library);
            get_field(lua, library + 1, name);
            set_field(lua, name);
            lua_pop(lua, 1);
        }
        lua_pop(lua, 1);
        set_function(lua, this, c"register_function", register_function);
        globals::refuse_absent(lua, this);
        globals::cover(lua);
        set_field(lua, c"redis");
        globals::refuse_absent(lua, this);
        lua_rawset(lua, LUA_REGISTRYINDEX);
        Interpreter::finish(this);
    }
    interpreter
}

/// Runs a library's source and gives the functions it has registered, or the text of the error.
///
/// # Safety
/// The interpreter is valid, came from [`create`], and runs nothing.
pub(super) unsafe fn load(this: *mut Interpreter, host: Host, body: &[u8]) -> Result<BTreeMap<Vec<u8>, Registered>, Vec<u8>> {
    // SAFETY: as promised. Allocations fail only inside of the protected calls.
    unsafe {
        (*this).frame = Frame::new(host.engine, host.now, host.session, 0);
        (*this).frame.function = true;
        let lua = (*this).lua;
        (*this).draft = Some(Draft::default());
        lua_pushlightuserdata(lua, key(&LIBRARY_GLOBALS));
        lua_rawget_(lua, LUA_REGISTRYINDEX);
        globals::show(lua);

        // The body begins with a line feed, so it is no bytecode.
        let mut source = Source::new([body, b""]);
        (*this).memory.strict = true;
        let compiled = lua_load(lua, Source::read, (&raw mut source).cast(), c"@user_function".as_ptr());
        let mut status = compiled;
        if compiled == LUA_OK {
            ((*this).memory.thread, (*this).memory.largest) = (lua, 0);
            bounds::arm(lua);
            status = lua_pcall(lua, 0, 0, 0);
            lua_sethook(lua, None, 0, 0);
            (*this).memory.thread = std::ptr::null_mut();
        }
        (*this).frame.engine = std::ptr::null_mut();
        (*this).memory.strict = false;

        let draft = (*this).draft.take().unwrap_or_default();
        let result = if status == LUA_OK {
            Ok(draft.functions)
        } else {
            for registered in draft.functions.values() {
                Interpreter::forget(this, registered.function);
            }
            let before: &[u8] = if compiled == LUA_OK { b"Error registering functions: " } else { b"Error compiling function: " };
            Err([b"ERR ", before, &message(lua, compiled == LUA_OK)].concat())
        };
        if status == LUA_ERRMEM {
            lua_gc(lua, LUA_GCCOLLECT, 0);
        }
        globals::show_all(lua);
        Interpreter::finish(this);
        (*this).memory.pace(lua);
        result
    }
}

/// The text of the error on top; what was raised, and not by the compiler, has a code.
unsafe fn message(lua: *mut lua_State, raised: bool) -> Vec<u8> {
    // SAFETY: called by `load`. Bytes are copied while their string is on the stack.
    unsafe {
        if lua_isstring(lua, -1) != 0 {
            let text = c_bytes(lua, -1).unwrap_or_default();
            return if raised { [b"ERR ", text].concat() } else { text.to_vec() };
        }
        if lua_type(lua, -1) == LUA_TTABLE {
            get_field(lua, -1, c"err");
            if lua_isstring(lua, -1) != 0 {
                return c_bytes(lua, -1).unwrap_or_default().to_vec();
            }
        }
        b"ERR unknown error".to_vec()
    }
}

// SAFETY of the functions below: Lua calls them, with room for twenty values beyond their arguments. Nothing with a destructor is
// alive where Lua may raise an error: when it is asked for memory while `strict` is set, or to raise one.

/// `redis.register_function(name, callback)` or `redis.register_function{function_name = …, callback = …, …}`
unsafe extern "C-unwind" fn register_function(lua: *mut lua_State) -> c_int {
    // SAFETY: see above. While `strict` is not set, nothing raises an error.
    unsafe {
        let this = Interpreter::of(lua);
        (*this).memory.strict = false;
        let refused = register(this, lua).err();
        (*this).memory.strict = true;
        match refused {
            Some(text) => failure::raise(lua, text),
            None => 0,
        }
    }
}

unsafe fn register(this: *mut Interpreter, lua: *mut lua_State) -> Result<(), &'static str> {
    // SAFETY: called by `register_function`; no other reference to the draft is alive.
    unsafe {
        let draft = (*this).draft.as_mut().ok_or("redis.register_function can only be called on FUNCTION LOAD command")?;
        let mut given = Given::default();
        let checked = given.read(this, lua).and_then(|()| given.add_to(draft));
        if checked.is_err()
            && let Some(callback) = given.callback
        {
            Interpreter::forget(this, callback);
        }
        checked
    }
}

/// The arguments of one call.
#[derive(Default)]
struct Given {
    name: Option<Vec<u8>>,
    description: Option<Vec<u8>>,
    callback: Option<Function>,
    flags: Option<ScriptFlags>,
}

impl Given {
    unsafe fn read(&mut self, this: *mut Interpreter, lua: *mut lua_State) -> Result<(), &'static str> {
        // SAFETY: as for `register`.
        unsafe {
            match lua_gettop(lua) {
                1 => self.read_named(this, lua),
                2 => {
                    self.name = Some(string(lua, 1).ok_or("first argument to redis.register_function must be a string")?);
                    if lua_type(lua, 2) != LUA_TFUNCTION {
                        return Err("second argument to redis.register_function must be a function");
                    }
                    self.callback = Some(Function::callback(luaL_ref(lua, LUA_REGISTRYINDEX)));
                    Ok(())
                }
                _ => Err("wrong number of arguments to redis.register_function"),
            }
        }
    }

    unsafe fn read_named(&mut self, this: *mut Interpreter, lua: *mut lua_State) -> Result<(), &'static str> {
        const UNKNOWN: &str = "unknown argument given to redis.register_function";
        // SAFETY: as for `register`. Keys are not changed on the way: a number is not asked for its text.
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
                        Interpreter::forget(this, other);
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
        if self.name.is_none() {
            return Err("redis.register_function must get a function name argument");
        }
        if self.callback.is_none() {
            return Err("redis.register_function must get a callback argument");
        }
        Ok(())
    }

    fn add_to(&mut self, draft: &mut Draft) -> Result<(), &'static str> {
        let name = self.name.take().unwrap_or_default();
        if !is_name(&name) {
            return Err(NAME_RULE);
        }
        if draft.functions.contains_key(&name) {
            return Err("Function already exists in the library");
        }
        let bytes = name.len() + self.description.as_ref().map_or(0, Vec::len) + size_of::<Registered>();
        if bytes > REGISTERED_BYTES_MAX - draft.bytes {
            return Err("not enough memory");
        }
        let Some(function) = self.callback else { return Err("redis.register_function must get a callback argument") };
        draft.bytes += bytes;
        let flags = self.flags.unwrap_or(ScriptFlags::empty());
        draft.functions.insert(name, Registered { function, flags, description: self.description.take() });
        Ok(())
    }
}

/// A copy of a string, or of a number as one.
unsafe fn string(lua: *mut lua_State, index: c_int) -> Option<Vec<u8>> {
    // SAFETY: as for `register`.
    unsafe { if lua_isstring(lua, index) != 0 { bytes(lua, index).map(<[u8]>::to_vec) } else { None } }
}

/// The flags that the table on top lists.
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
            if lua_isstring(lua, -1) == 0 {
                return Err(UNKNOWN);
            }
            let name = c_bytes(lua, -1).unwrap_or_default();
            flags |= ScriptFlags::named(name).ok_or(UNKNOWN)?;
            lua_pop(lua, 1);
        }
    }
    Ok(flags)
}
