//! `redis.call` and `redis.pcall`: from the Lua stack to the handler and back.
//!
//! Arguments are borrowed from the strings on the Lua stack, numbers are written into a buffer beside it, and the handler's reply
//! goes through [`LuaSink`] onto the stack: no request and no reply is formed as bytes.

use std::mem::MaybeUninit;
use std::os::raw::c_int;

use mlua::ffi::*;

use crate::base::error::Error;
use crate::engine::Engine;
use crate::engine::cluster;
use crate::engine::command::{Command, Flags, Traits};
use crate::engine::context::{Context, Origin};
use crate::resp::double::{DOUBLE_MAX, format_double};
use crate::resp::reply::Sink;
use crate::script::bounds;
use crate::script::failure;
use crate::script::interpreter::{Frame, Interpreter};
use crate::script::layout;
use crate::script::names::Known;
use crate::script::sink::LuaSink;
use crate::script::stack::{bytes, push_bytes};

/// Calls with at most so many arguments need no memory of their own.
pub(super) const FEW: usize = 16;

/// What is said where an argument is neither a string nor a number.
pub(super) const ARGUMENT_TYPES: &[u8] = b"Lua redis lib command arguments must be strings or integers";

const NOT_ALLOWED: &str = "ERR This Redis command is not allowed from script";

/// `redis.call`
pub(super) unsafe extern "C-unwind" fn call(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this; nothing with a destructor is alive when the error is raised.
    unsafe { if perform(lua) { lua_error(lua) } else { 1 } }
}

/// `redis.pcall`
pub(super) unsafe extern "C-unwind" fn pcall(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this.
    unsafe {
        perform(lua);
    }
    1
}

/// Carries the call out and pushes its reply; whether that is an error.
#[inline(always)]
unsafe fn perform(lua: *mut lua_State) -> bool {
    // SAFETY: called by functions of the interpreter while a script runs. Until allocations cannot fail any more, nothing with a
    // destructor is alive; the arguments stay on the stack, which keeps their bytes, until the handler has returned.
    unsafe {
        let interpreter = Interpreter::of(lua);
        let values = layout::values(lua);
        if !(1..=FEW).contains(&values.len()) {
            return perform_many(interpreter, lua, values.len());
        }
        let mut numbers = [const { MaybeUninit::<[u8; DOUBLE_MAX]>::uninit() }; FEW];
        let mut args = [const { MaybeUninit::<&[u8]>::uninit() }; FEW];
        let number_at = numbers.as_mut_ptr();
        for at in 0..values.len() {
            // All three have a place for it, and each is used once.
            let (value, arg) = (values.get_unchecked(at), args.get_unchecked_mut(at));
            match value.text().or_else(|| number_argument(value, &mut *number_at.add(at))) {
                Some(text) => arg.write(text),
                None => return refuse_types(lua),
            };
        }
        // As many as there are values have been written.
        let args = std::slice::from_raw_parts(args.as_ptr().cast::<&[u8]>(), values.len());
        (*interpreter).memory.strict = false;
        let failed = execute(interpreter, lua, values[0].text_address(), args);
        (*interpreter).memory.strict = true;
        bounds::settle(lua, interpreter);
        failed
    }
}

/// As [`perform`] for no arguments, or for more than a few.
#[cold]
unsafe fn perform_many(interpreter: *mut Interpreter, lua: *mut lua_State, count: usize) -> bool {
    // SAFETY: as for `perform`.
    unsafe {
        if count == 0 {
            failure::push(lua, b"Please specify at least one argument for this redis lib call");
            return true;
        }
        let mut number = MaybeUninit::uninit();
        for index in 1..=count as c_int {
            if lua_type(lua, index) == LUA_TNUMBER {
                let text = format_number(lua_tonumber(lua, index), number.write([0; DOUBLE_MAX]));
                push_bytes(lua, text);
                lua_replace(lua, index);
            } else if lua_type(lua, index) != LUA_TSTRING {
                return refuse_types(lua);
            }
        }
        (*interpreter).memory.strict = false;
        let mut args = std::mem::take(&mut (*interpreter).arguments);
        args.extend((1..=count as c_int).map(|index| bytes(lua, index).unwrap_or_default()));
        let failed = execute(interpreter, lua, layout::values(lua)[0].text_address(), &args);
        args.clear();
        args.shrink_to(1024);
        (*interpreter).arguments = args;
        (*interpreter).memory.strict = true;
        bounds::settle(lua, interpreter);
        failed
    }
}

unsafe fn refuse_types(lua: *mut lua_State) -> bool {
    // SAFETY: a C function has room for twenty values beyond its arguments.
    unsafe { failure::push(lua, ARGUMENT_TYPES) };
    true
}

/// The bytes of an argument, a number's written into `number`; `None` where it is neither.
///
/// # Safety
/// The value stays on the stack for as long as its bytes are used.
unsafe fn argument<'a>(value: &layout::Value, number: &'a mut MaybeUninit<[u8; DOUBLE_MAX]>) -> Option<&'a [u8]> {
    // SAFETY: as promised.
    unsafe { value.text() }.or_else(|| number_argument(value, number))
}

/// The text of an argument that is a number, written into `number`; `None` where it is none.
#[inline(never)]
fn number_argument<'a>(value: &layout::Value, number: &'a mut MaybeUninit<[u8; DOUBLE_MAX]>) -> Option<&'a [u8]> {
    value.number().map(|value| format_number(value, number.write([0; DOUBLE_MAX])))
}

/// A number as commands are given it: a whole one in digits only, as far as it is exact, and any other by its shortest form.
pub(super) fn format_number(value: f64, text: &mut [u8; DOUBLE_MAX]) -> &[u8] {
    const WHOLE: f64 = (i64::MAX / 2) as f64;
    let whole = value as i64;
    if (-WHOLE..=WHOLE).contains(&value) && whole as f64 == value {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(whole).as_bytes();
        text[..digits.len()].copy_from_slice(digits);
        &text[..digits.len()]
    } else {
        format_double(value, text)
    }
}

/// Finds the command, checks that a script may call it, and runs it. Pushes its reply; whether that is an error. `name` is the address
/// of the first argument where that is a string.
#[inline(always)]
unsafe fn execute(interpreter: *mut Interpreter, lua: *mut lua_State, name: Option<usize>, args: &[&[u8]]) -> bool {
    // SAFETY: a script runs, so the frame's engine is valid and nobody else has a reference to it. Allocations cannot fail.
    unsafe {
        // Names change only when one is resolved, which this call does not any more once it has found its command.
        let known = name.and_then(|address| (*interpreter).names.find(address)).filter(|known| known.takes(args.len()));
        let resolved;
        let known = match known {
            Some(known) => known,
            None => {
                resolved = resolve(interpreter, lua, name, args);
                match &resolved {
                    Some(known) => known,
                    None => {
                        let engine = &mut *(*interpreter).frame.engine;
                        let named = engine.commands.named(args);
                        return reject(engine, lua, named, &Error::new(not_found(named)));
                    }
                }
            }
        };
        if let Err(error) = admit(interpreter, known, args) {
            return refuse(&mut *(*interpreter).frame.engine, lua, &error);
        }
        let base = layout::count(lua);
        let mut sink = LuaSink::new(lua, (*interpreter).frame.protocol);
        carry_out(interpreter, known, args, &mut sink);
        bounds::charge_call(interpreter, known.least_work, args.len(), sink.elements());
        if sink.too_large() || layout::count(lua) != base + 1 {
            lua_settop(lua, base as c_int);
            let text = if sink.too_large() { "ERR reached lua stack limit" } else { "ERR The command gave no single reply" };
            return refuse(&mut *(*interpreter).frame.engine, lua, &Error::new(text));
        }
        sink.failed()
    }
}

/// Whether the script that runs may make this call now; where it may not, that is counted, but not its error.
///
/// # Safety
/// A script runs, and nobody has a reference to its engine.
#[inline(always)]
pub(super) unsafe fn admit(interpreter: *mut Interpreter, known: &Known, args: &[&[u8]]) -> Result<(), Error> {
    // SAFETY: as promised.
    unsafe {
        let frame = &mut (*interpreter).frame;
        let command = known.command;
        if frame.free & known.common {
            frame.wrote |= command.flags.contains(Flags::WRITE);
            return Ok(());
        }
        admit_with_care(frame, known, args)
    }
}

/// Goes on where not everything is allowed.
#[inline(never)]
unsafe fn admit_with_care(frame: &mut Frame, known: &Known, args: &[&[u8]]) -> Result<(), Error> {
    // SAFETY: as promised to `admit`.
    unsafe {
        let engine = &mut *frame.engine;
        let command = known.command;
        let admitted = if !(known.common || engine.debug_from_scripts && command.traits.contains(Traits::DEBUG)) {
            Err(Error::new(NOT_ALLOWED))
        } else if !frame.unrestricted
            && let Err(error) = engine.check_access_of_script(frame.now, frame.session, command, args)
        {
            Err(error)
        } else if frame.read_only && command.flags.intersects(Flags::WRITE.union(Flags::MAY_REPLICATE)) {
            Err(Error::new("ERR Write commands are not allowed from read-only scripts."))
        } else if !frame.wrote && !frame.allow_oom && engine.check_memory_within(frame.now, command, args).is_err() {
            // What has begun to write is not stopped in the middle.
            Err(Error::new("OOM command not allowed when used memory > 'maxmemory'."))
        } else if engine.in_cluster()
            && let Err(error) = keep_to_slot(frame, command, args)
        {
            Err(error)
        } else {
            frame.wrote |= command.flags.contains(Flags::WRITE);
            return Ok(());
        };
        count_rejected(engine, command);
        admitted
    }
}

/// Has the engine carry out a call that was admitted.
///
/// # Safety
/// As for [`admit`]; allocations cannot fail.
#[inline(always)]
pub(super) unsafe fn carry_out(interpreter: *mut Interpreter, known: &Known, args: &[&[u8]], sink: &mut dyn Sink) {
    // SAFETY: as promised; the command does not reach the interpreter.
    unsafe {
        let frame = &mut (*interpreter).frame;
        let (command, slot, origin) = (known.command, known.slot, Origin::Script);
        let engine = &mut *frame.engine;
        let mut cx = Context { engine, now: frame.now, session: frame.session, db: frame.db, origin, command, slot, reply: sink };
        cx.run(args);
        frame.db = cx.db;
    }
}

#[cold]
fn count_rejected(engine: &mut Engine, command: &'static Command) {
    engine.command_stats.of(command).rejected += 1;
}

/// In a cluster: an error where a call's keys have several slots, or another than the script keeps to.
#[cold]
fn keep_to_slot(frame: &mut Frame, command: &'static Command, args: &[&[u8]]) -> Result<(), Error> {
    let slot = cluster::request_slot(command, args).map_err(|_| {
        // SAFETY: as promised to `execute`; the table is no part of the engine.
        let commands = unsafe { (*frame.engine).commands };
        let name = commands.full_name(command);
        Error::new(format!("ERR Command '{name}' in script attempted to access keys that don't hash to the same slot"))
    })?;
    match slot {
        Some(slot) if !frame.cross_slot && *frame.slot.get_or_insert(slot) != slot => {
            Err(Error::new("ERR Script attempted to access keys that do not hash to the same slot"))
        }
        _ => Ok(()),
    }
}

/// Whether the user of the script may make the call that lies on the stack; `None` where there is no such command.
///
/// # Safety
/// As for a function of the interpreter that Lua calls with at least one argument, all of them strings or numbers.
pub(super) unsafe fn is_permitted(lua: *mut lua_State) -> Option<bool> {
    // SAFETY: as promised; nothing in here raises an error, so what is taken is given back.
    unsafe {
        let interpreter = Interpreter::of(lua);
        let mut number = MaybeUninit::uninit();
        let owned: Vec<Vec<u8>> =
            layout::values(lua).iter().map(|value| argument(value, &mut number).unwrap_or_default().to_vec()).collect();
        let args: Vec<&[u8]> = owned.iter().map(Vec::as_slice).collect();
        let engine = &*(*interpreter).frame.engine;
        let command = engine.commands.named(&args)?;
        Some(engine.permits((*interpreter).frame.session, command, &args).is_ok())
    }
}

/// Looks a command up, and notes it for the next time where its name says all.
#[cold]
unsafe fn resolve(interpreter: *mut Interpreter, lua: *mut lua_State, name: Option<usize>, args: &[&[u8]]) -> Option<Known> {
    // SAFETY: as promised to `execute`; the table is no part of the engine.
    let commands = unsafe { (*(*interpreter).frame.engine).commands };
    let command = commands.resolve(args).ok()?;
    // SAFETY: as promised to `execute`; neither reference outlives its statement.
    let known = unsafe { Known::new(command, &mut (*(*interpreter).frame.engine).command_stats) };
    if let Some(address) = name
        && commands.lookup(args[0]).is_some_and(|row| row.subcommands.is_empty())
    {
        // SAFETY: the first argument lies first on the stack; a C function has room for twenty values beyond its arguments.
        unsafe { (*interpreter).names.note(lua, 1, address, known) }
    }
    Some(known)
}

/// Why a command was not found, in the words that scripts are told.
fn not_found(named: Option<&'static Command>) -> &'static str {
    match named {
        None => "ERR Unknown Redis command called from script",
        Some(_) => "ERR Wrong number of args calling Redis command from script",
    }
}

/// Refuses a call before it is made; of which command it would have been is counted.
#[cold]
unsafe fn reject(engine: &mut Engine, lua: *mut lua_State, command: Option<&'static Command>, error: &Error) -> bool {
    if let Some(command) = command {
        engine.command_stats.of(command).rejected += 1;
    }
    // SAFETY: as in `refuse`.
    unsafe { refuse(engine, lua, error) }
}

unsafe fn refuse(engine: &mut Engine, lua: *mut lua_State, error: &Error) -> bool {
    engine.stats.error(error);
    // SAFETY: a C function has room for twenty values beyond its arguments.
    unsafe { failure::push_counted(lua, error.text()) };
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_redis_gives_them_to_commands() {
        let shown = |value| String::from_utf8_lossy(format_number(value, &mut [0; DOUBLE_MAX])).into_owned();
        for (value, text) in [
            (10.0, "10"),
            (-0.0, "0"),
            (2.75, "2.75"),
            (1e20, "1e+20"),
            (9007199254740992.0, "9007199254740992"),
            (1e-7, "1e-7"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(shown(value), text);
        }
    }
}
