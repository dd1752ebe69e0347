//! One Lua interpreter: its state, its compiled scripts, and the run that is under way.
//!
//! It is reached by a raw pointer, from Rust by its owner [`super::Scripts`] and from Lua through the first upvalue of each of our
//! functions. Nobody keeps a reference to all of it across a call into Lua or into the engine.

use std::ffi::c_char;
use std::mem::offset_of;
use std::os::raw::{c_int, c_void};
use std::ptr::{self, NonNull};

use mlua::ffi::*;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::resp::reply::Protocol;
use crate::script::bounds::{self, Bounds};
use crate::script::failure;
use crate::script::functions::Draft;
use crate::script::globals;
use crate::script::layout;
use crate::script::libraries::buffer::{Buffer, Level};
use crate::script::locals::{self, Locals, Shared};
use crate::script::memory::{self, Memory};
use crate::script::names::{self, Names};
use crate::script::parameters::{self, Parameter};
use crate::script::stack::{push_bytes, set_field};

/// What a script that runs can reach.
pub(super) struct Frame {
    /// The engine; null while no script runs.
    pub engine: *mut Engine,
    /// The instant of the whole run.
    pub now: Now,
    /// Who runs it.
    pub session: SessionId,
    /// The database its commands work on.
    pub db: u32,
    /// The protocol whose types its commands' replies have.
    pub protocol: Protocol,
    /// Whether commands that write are refused.
    pub read_only: bool,
    /// Whether commands are carried out although `maxmemory` is used up.
    pub allow_oom: bool,
    /// Whether a command that writes was called.
    pub wrote: bool,
    /// Whether it is a function, and not a script.
    pub function: bool,
    /// In a cluster, the slot that all keys must have which its commands touch, by the keys it was given or the first that a command
    /// touched; `None` as long as any will do.
    pub slot: Option<u16>,
    /// Whether its commands may each have a slot of their own.
    pub cross_slot: bool,
    /// Whether its user may do everything; the user's rules do not change while it runs.
    pub unrestricted: bool,
    /// Whether each command that scripts may call is carried out: its user may do everything, it may write, `maxmemory` is not set, and
    /// there is no cluster. None of that changes while it runs.
    pub free: bool,
    /// What bounds it.
    pub bounds: Bounds,
}

impl Frame {
    /// The frame of a run that begins.
    pub(super) fn new(engine: *mut Engine, now: Now, session: SessionId, db: u32) -> Self {
        let protocol = Protocol::Resp2;
        let bounds = Bounds::default();
        Frame {
            engine,
            now,
            session,
            db,
            protocol,
            read_only: false,
            allow_oom: false,
            wrote: false,
            function: false,
            slot: None,
            cross_slot: false,
            unrestricted: false,
            free: false,
            bounds,
        }
    }
}

/// A compiled script, or a function of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Function {
    /// Where the registry keeps it.
    reference: c_int,
    /// What it is given as locals; `None` where it finds all among the globals.
    locals: Option<Locals>,
    /// Whether it may look for them among the globals.
    globals: bool,
    /// Whether nothing of its run outlives it, so that the tables of keys and arguments can be used again.
    forgets: bool,
}

impl Function {
    /// A function that the registry keeps and that takes keys and arguments.
    pub(super) fn callback(reference: c_int) -> Self {
        Function { reference, locals: Some(Locals::default()), globals: false, forgets: false }
    }
}

/// Bytes of the short replies that the calls of a plan may have; what is beyond that takes memory of its own.
const TEXTS: usize = 1 << 10;

/// The state and what goes with it; lives at one address.
pub(super) struct Interpreter {
    pub lua: *mut lua_State,
    pub memory: Memory,
    pub frame: Frame,
    /// The commands that scripts call.
    pub names: Names,
    /// What scripts are given as locals.
    shared: Shared,
    /// The tables of keys and of arguments.
    parameters: [Parameter; 2],
    /// What the library that loads has registered; `None` while none does.
    pub draft: Option<Draft>,
    /// Arguments of a `redis.call` with very many.
    pub arguments: Vec<&'static [u8]>,
    /// Room for the replies to the calls of a plan while it runs.
    pub texts: [u8; TEXTS],
    /// The result that a library writes.
    pub buffer: Buffer,
    /// Tables that a library is inside of.
    pub levels: Vec<Level>,
}

/// Where the registry keeps the table of globals without its cover.
pub(super) const GLOBALS: c_int = 1;
/// Where it keeps the `redis` table without its cover.
pub(super) const REDIS: c_int = 2;
/// Where it keeps the strings `ok` and `OK`.
pub(super) const OK_FIELD: c_int = 3;
pub(super) const OK_TEXT: c_int = 4;
/// Where it keeps what is used again: the names of commands, and tables of keys and of arguments.
const NAMES: c_int = 5;
const KEPT_KEYS: c_int = 6;
const KEPT_ARGV: c_int = 7;
/// Values that there is room for when a run begins.
const STACK_MIN: c_int = 60;
/// Where the error function lies on the stack, under everything else.
const ERROR_FUNCTION: c_int = 1;
/// Where the copy of the first key lies above it while a script runs: it is not collected, whatever becomes of `KEYS`.
const FIRST_KEY: c_int = 2;

impl Interpreter {
    /// A new interpreter that may take so many bytes; to be freed by [`Interpreter::free`].
    pub(super) fn create(memory_limit: usize) -> NonNull<Interpreter> {
        let this = Box::into_raw(Box::new(Interpreter {
            lua: ptr::null_mut(),
            memory: Memory::new(memory_limit),
            frame: Frame::new(ptr::null_mut(), Now::default(), SessionId(0), 0),
            names: Names::new(NAMES),
            shared: Shared::default(),
            parameters: [Parameter::new(KEPT_KEYS), Parameter::new(KEPT_ARGV)],
            draft: None,
            arguments: Vec::new(),
            texts: [0; TEXTS],
            buffer: Buffer::default(),
            levels: Vec::new(),
        }));
        // SAFETY: `this` is valid until `free`. Allocations cannot fail here, so Lua raises nothing outside of a protected call.
        unsafe {
            let lua = lua_newstate(memory::allocate, (&raw mut (*this).memory).cast());
            assert!(!lua.is_null(), "the state is allocated or the process ends");
            (*this).lua = lua;
            layout::check(lua, (&raw mut (*this).memory).cast());
            for slot in [GLOBALS, REDIS, OK_FIELD, OK_TEXT, NAMES, KEPT_KEYS, KEPT_ARGV] {
                match slot {
                    OK_FIELD => push_bytes(lua, b"ok"),
                    OK_TEXT => push_bytes(lua, b"OK"),
                    // All its places, so that it takes as much whichever of them are used.
                    NAMES => lua_createtable(lua, names::NAMES as c_int, 0),
                    _ => lua_createtable(lua, 0, 0),
                }
                let reference = luaL_ref(lua, LUA_REGISTRYINDEX);
                assert_eq!(reference, slot, "references count from one in an empty registry");
            }
            globals::install(lua, this);
            (*this).shared = Shared::read(lua);
            lua_settop(lua, 0);
            lua_checkstack(lua, STACK_MIN);
            lua_pushcclosure(lua, failure::settle, 0);
            (*this).memory.attach(lua);
            NonNull::new_unchecked(this)
        }
    }

    /// Ends an interpreter. One in which a run has begun and not ended is left as it is, and its memory with it: the run may go on, as
    /// when the engine's supervisor, which is asked during a run, drops the scripts; or it was broken off by a panic.
    ///
    /// # Safety
    /// It came from [`Interpreter::create`], and nothing but a run that goes on uses it any more.
    pub(super) unsafe fn free(this: NonNull<Interpreter>) {
        // SAFETY: as promised; the account outlives the state.
        unsafe {
            if Self::is_running(this.as_ptr()) {
                return;
            }
            lua_close(this.as_ref().lua);
            drop(Box::from_raw(this.as_ptr()));
        }
    }

    /// Begins to take all from an interpreter that keeps values alive. It can only be freed then, at once or after
    /// [`Interpreter::empty_some`] and [`Interpreter::collect_some`].
    ///
    /// # Safety
    /// `this` is valid and no script runs on it.
    pub(super) unsafe fn empty(this: *mut Interpreter) {
        // SAFETY: as promised; allocations cannot fail.
        unsafe {
            let lua = (*this).lua;
            lua_settop(lua, 0);
            lua_createtable(lua, 0, 0);
            lua_replace(lua, LUA_GLOBALSINDEX);
            // Strings share a metatable, which has their library.
            push_bytes(lua, b"");
            lua_pushnil(lua);
            lua_setmetatable(lua, -2);
            lua_settop(lua, 0);
            // What the walk over the registry goes on from.
            lua_pushnil(lua);
        }
    }

    /// Takes so many more entries from the registry, which has those of all scripts; whether it is empty.
    ///
    /// # Safety
    /// As for [`Interpreter::empty`], which was called; [`Interpreter::collect_some`] has not been since.
    pub(super) unsafe fn empty_some(this: *mut Interpreter, count: u32) -> bool {
        // SAFETY: as promised; nothing is allocated. A table may lose entries while it is walked, and its collector does not run.
        unsafe {
            let lua = (*this).lua;
            for _ in 0..count {
                if lua_next(lua, LUA_REGISTRYINDEX) == 0 {
                    return true;
                }
                lua_pop(lua, 1);
                lua_pushvalue(lua, -1);
                lua_pushnil(lua);
                lua_rawset(lua, LUA_REGISTRYINDEX);
            }
        }
        false
    }

    /// Has the collector take one of its steps; whether it has come to the end of a cycle.
    ///
    /// # Safety
    /// As for [`Interpreter::empty`].
    pub(super) unsafe fn collect_some(this: *mut Interpreter) -> bool {
        // SAFETY: as promised.
        unsafe { lua_gc((*this).lua, LUA_GCSTEP, 0) != 0 }
    }

    /// The interpreter that has this state.
    ///
    /// # Safety
    /// It has one: the state is that of a function that Lua has called, say.
    #[inline]
    pub(super) unsafe fn of(lua: *mut lua_State) -> *mut Interpreter {
        // SAFETY: `create` gave the state the account in its interpreter, by a pointer made from that to the interpreter.
        unsafe { layout::account(lua).byte_sub(offset_of!(Interpreter, memory)).cast() }
    }

    /// Compiles a script; an error is Lua's message.
    ///
    /// # Safety
    /// `this` is valid and no script runs on it.
    pub(super) unsafe fn compile(this: *mut Interpreter, script: &[u8]) -> Result<Function, Vec<u8>> {
        let locals = Locals::of(script);
        let globals = locals.is_none() || locals::reaches_globals(script);
        let prefix = locals.map_or_else(|| b" ".to_vec(), Locals::prefix);
        // SAFETY: as promised; the message is copied before it is popped.
        unsafe {
            let lua = (*this).lua;
            let mut function = Function { reference: 0, locals, globals, forgets: true };
            if Self::load(this, [&prefix, script]) != LUA_OK {
                lua_settop(lua, ERROR_FUNCTION);
                // A few locals more can be too many: what the script says by itself decides.
                if Self::load(this, [b" ", script]) != LUA_OK {
                    let message = super::stack::bytes(lua, -1).unwrap_or_default().to_vec();
                    lua_settop(lua, ERROR_FUNCTION);
                    return Err(message);
                }
                function = Function { locals: None, globals: true, ..function };
            }
            function.reference = luaL_ref(lua, LUA_REGISTRYINDEX);
            Ok(function)
        }
    }

    /// Pushes the function that a source compiles to, or the error message.
    unsafe fn load(this: *mut Interpreter, pieces: [&[u8]; 2]) -> c_int {
        let mut source = Source::new(pieces);
        // SAFETY: as for `compile`; `lua_load` is protected, so allocations may fail in it.
        unsafe {
            (*this).memory.strict = true;
            let status = lua_load((*this).lua, Source::read, (&raw mut source).cast(), c"@user_script".as_ptr());
            (*this).memory.strict = false;
            status
        }
    }

    /// Forgets a compiled script.
    ///
    /// # Safety
    /// As for [`Interpreter::compile`]; the function came from this interpreter.
    pub(super) unsafe fn forget(this: *mut Interpreter, function: Function) {
        // SAFETY: as promised.
        unsafe { luaL_unref((*this).lua, LUA_REGISTRYINDEX, function.reference) }
    }

    /// Runs a script: its result, or with `false` its error, is then on top of the stack, until [`Interpreter::finish`].
    ///
    /// # Safety
    /// As for [`Interpreter::forget`]. The frame is that of this run; its engine is valid, and reached through it only until this
    /// returns.
    pub(super) unsafe fn run(this: *mut Interpreter, function: Function, keys: &[&[u8]], args: &[&[u8]]) -> bool {
        // SAFETY: as promised; allocations fail only inside of the protected call.
        unsafe {
            let lua = (*this).lua;
            debug_assert_eq!(lua_gettop(lua), ERROR_FUNCTION, "nothing is left of earlier runs");
            lua_pushnil(lua);
            lua_rawgeti_(lua, LUA_REGISTRYINDEX, function.reference);
            for (list, kept) in [keys, args].into_iter().zip(&mut (*this).parameters) {
                if function.forgets { kept.push(lua, list) } else { parameters::push_new(lua, list, list.len()) }
            }
            if let Some(key) = keys.first() {
                Self::remember_places(this, key);
            }
            if function.globals {
                lua_rawgeti_(lua, LUA_REGISTRYINDEX, GLOBALS);
                for (name, index) in [(c"KEYS", -3), (c"ARGV", -2)] {
                    lua_pushvalue(lua, index);
                    set_field(lua, name);
                }
                lua_pop(lua, 1);
            }
            match function.locals {
                None => lua_pop(lua, 2),
                Some(locals) => (*this).shared.push(lua, locals),
            }
            ((*this).memory.thread, (*this).memory.largest) = (lua, 0);
            bounds::arm(lua);
            (*this).memory.strict = true;
            let status = lua_pcall(lua, function.locals.map_or(0, Locals::count), 1, ERROR_FUNCTION);
            (*this).memory.strict = false;
            // The result in its place, as far down as it would lie without it.
            lua_replace(lua, FIRST_KEY);
            if !keys.is_empty() {
                (*(*this).frame.engine).keyspace.space.uncache_place(true);
            }
            if status == LUA_ERRMEM || (*this).memory.is_swollen() {
                bounds::collect(this);
                (*this).memory.note_collected();
            }
            (*this).frame.engine = ptr::null_mut();
            (*this).memory.thread = ptr::null_mut();
            (*this).memory.pace(lua);
            status == LUA_OK
        }
    }

    /// Has it remembered where the first key is, which most calls are about. They are given its copy in the table of keys, which lies
    /// under that of arguments.
    unsafe fn remember_places(this: *mut Interpreter, key: &[u8]) {
        // SAFETY: as for `run`, which has put a nil in the place for the copy, and a table with the key in the one for keys.
        unsafe {
            let lua = (*this).lua;
            let copy = layout::first_element(lua, layout::count(lua) - 2);
            layout::replace(lua, FIRST_KEY as usize - 1, copy);
            if let Some(copy) = copy.text() {
                (*(*this).frame.engine).keyspace.space.cache_place_of_copy(key, copy);
            }
        }
    }

    /// Whether a run has begun and not ended.
    ///
    /// # Safety
    /// `this` is valid.
    #[inline]
    pub(super) unsafe fn is_running(this: *mut Interpreter) -> bool {
        // SAFETY: as promised.
        unsafe { !(*this).frame.engine.is_null() }
    }

    /// Leaves the stack as it was found. Gives whether much memory was freed.
    ///
    /// # Safety
    /// `this` is valid and no script runs on it.
    pub(super) unsafe fn finish(this: *mut Interpreter) -> bool {
        // SAFETY: as promised.
        unsafe {
            lua_settop((*this).lua, ERROR_FUNCTION);
            (*this).buffer.clear(&mut (*this).memory);
            std::mem::take(&mut (*this).memory.collected)
        }
    }
}

/// Source text for `lua_load`, in two pieces. The first piece is never empty and never begins as bytecode does, so bytecode is
/// a syntax error.
pub(super) struct Source {
    pieces: [(*const u8, usize); 2],
    next: usize,
}

impl Source {
    pub(super) fn new(pieces: [&[u8]; 2]) -> Self {
        Source { pieces: pieces.map(|piece| (piece.as_ptr(), piece.len())), next: 0 }
    }

    /// Gives Lua the next piece.
    pub(super) unsafe extern "C-unwind" fn read(_: *mut lua_State, source: *mut c_void, size: *mut usize) -> *const c_char {
        // SAFETY: `lua_load` passes on the source it was given and a place for the size. The pieces live as long as it runs.
        unsafe {
            let source = source.cast::<Source>();
            let (text, len) = (*source).pieces.get((*source).next).copied().unwrap_or((ptr::null(), 0));
            (*source).next += 1;
            *size = len;
            text.cast()
        }
    }
}
