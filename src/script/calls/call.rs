//! `redis.call` and `redis.pcall`: from the Lua stack to the handler and back.
//!
//! Arguments are borrowed from the strings on the Lua stack, and numbers are written to a buffer on the Rust stack. The handler's
//! reply goes through [`LuaSink`] onto the Lua stack. Neither a request nor a reply is serialized.

use std::mem::MaybeUninit;
use std::os::raw::c_int;

use mlua::ffi::*;

use crate::base::error::Error;
use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::context::{Caller, Context};
use crate::resp::double::{DOUBLE_MAX, format_double};
use crate::resp::reply::Sink;
use crate::script::calls::checks::check_call;
use crate::script::calls::command_cache::CallableCommand;
use crate::script::conversion::errors;
use crate::script::conversion::to_lua::LuaSink;
use crate::script::fuel;
use crate::script::interpreter::Interpreter;
use crate::script::lua::layout;
use crate::script::lua::stack::{bytes, push_bytes};

/// Maximum number of arguments in a call that allocates no memory.
pub(crate) const INLINE_ARGUMENTS: usize = 16;

/// The error for an argument that is neither a string nor a number.
pub(crate) const ARGUMENT_TYPES: &str = "Lua redis lib command arguments must be strings or integers";
/// The error for a call without arguments.
pub(crate) const NO_ARGUMENTS: &str = "Please specify at least one argument for this redis lib call";

/// `redis.call`
pub(crate) unsafe extern "C-unwind" fn call(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this; nothing with a destructor is alive when the error is raised.
    unsafe { if generic_call(lua) { lua_error(lua) } else { 1 } }
}

/// `redis.pcall`
pub(crate) unsafe extern "C-unwind" fn pcall(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this.
    unsafe {
        generic_call(lua);
    }
    1
}

/// Calls the command on the stack and pushes its reply. Returns whether the reply is an error.
#[inline(always)]
unsafe fn generic_call(lua: *mut lua_State) -> bool {
    // SAFETY: called by functions of the interpreter while a script runs. Until allocations cannot fail any more, nothing with a
    // destructor is alive; the arguments stay on the stack, which keeps their bytes, until the handler has returned.
    unsafe {
        let interpreter = Interpreter::of(lua);
        let values = layout::stack_values(lua);
        if !(1..=INLINE_ARGUMENTS).contains(&values.len()) {
            return call_with_many_arguments(interpreter, lua, values.len());
        }
        let mut numbers = [const { MaybeUninit::<[u8; DOUBLE_MAX]>::uninit() }; INLINE_ARGUMENTS];
        let mut args = [const { MaybeUninit::<&[u8]>::uninit() }; INLINE_ARGUMENTS];
        let number_at = numbers.as_mut_ptr();
        for at in 0..values.len() {
            // All three have a place for it, and each is used once.
            let (value, arg) = (values.get_unchecked(at), args.get_unchecked_mut(at));
            match value.bytes().or_else(|| number_argument(value, &mut *number_at.add(at))) {
                Some(text) => arg.write(text),
                None => return push_type_error(lua),
            };
        }
        // As many as there are values have been written.
        let args = std::slice::from_raw_parts(args.as_ptr().cast::<&[u8]>(), values.len());
        (*interpreter).memory.may_fail = false;
        let failed = execute(interpreter, lua, values[0].string_address(), args);
        (*interpreter).memory.may_fail = true;
        fuel::check(lua, interpreter);
        failed
    }
}

/// As [`generic_call`] for no argument, or for more than [`INLINE_ARGUMENTS`].
#[cold]
unsafe fn call_with_many_arguments(interpreter: *mut Interpreter, lua: *mut lua_State, count: usize) -> bool {
    // SAFETY: as for `generic_call`.
    unsafe {
        if count == 0 {
            errors::push(lua, NO_ARGUMENTS.as_bytes());
            return true;
        }
        let mut number = MaybeUninit::uninit();
        for index in 1..=count as c_int {
            if lua_type(lua, index) == LUA_TNUMBER {
                let text = format_number(lua_tonumber(lua, index), number.write([0; DOUBLE_MAX]));
                push_bytes(lua, text);
                lua_replace(lua, index);
            } else if lua_type(lua, index) != LUA_TSTRING {
                return push_type_error(lua);
            }
        }
        (*interpreter).memory.may_fail = false;
        let mut args = std::mem::take(&mut (*interpreter).many_arguments);
        args.extend((1..=count as c_int).map(|index| bytes(lua, index).unwrap_or_default()));
        let failed = execute(interpreter, lua, layout::stack_values(lua)[0].string_address(), &args);
        args.clear();
        args.shrink_to(1024);
        (*interpreter).many_arguments = args;
        (*interpreter).memory.may_fail = true;
        fuel::check(lua, interpreter);
        failed
    }
}

unsafe fn push_type_error(lua: *mut lua_State) -> bool {
    // SAFETY: a C function has room for twenty values beyond its arguments.
    unsafe { errors::push(lua, ARGUMENT_TYPES.as_bytes()) };
    true
}

/// The bytes of an argument. Those of a number are written to `number`. `None` for other types.
///
/// # Safety
/// The value stays on the stack as long as its bytes are used.
unsafe fn argument<'a>(value: &layout::Value, number: &'a mut MaybeUninit<[u8; DOUBLE_MAX]>) -> Option<&'a [u8]> {
    // SAFETY: as promised.
    unsafe { value.bytes() }.or_else(|| number_argument(value, number))
}

/// The text of an argument that is a number, written to `number`. `None` for other types.
#[inline(never)]
fn number_argument<'a>(value: &layout::Value, number: &'a mut MaybeUninit<[u8; DOUBLE_MAX]>) -> Option<&'a [u8]> {
    value.number().map(|value| format_number(value, number.write([0; DOUBLE_MAX])))
}

/// A number as an argument of a command: whole numbers that are exact in digits only, all others in their shortest form.
pub(crate) fn format_number(value: f64, text: &mut [u8; DOUBLE_MAX]) -> &[u8] {
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

/// Finds the command, checks that the script may call it, runs it and pushes its reply. Returns whether that is an error. `name` is
/// the address of the first argument if that is a string.
#[inline(always)]
unsafe fn execute(interpreter: *mut Interpreter, lua: *mut lua_State, name: Option<usize>, args: &[&[u8]]) -> bool {
    // SAFETY: a script runs, so the frame's engine is valid and nothing else has a reference to it. Allocations cannot fail.
    unsafe {
        // The cache changes only when a name is resolved, which does not happen again after this call has found its command.
        let cached = name.and_then(|address| (*interpreter).commands.find(address)).filter(|command| command.accepts(args.len()));
        let resolved;
        let callable = match cached {
            Some(callable) => callable,
            None => {
                resolved = resolve(interpreter, lua, name, args);
                match &resolved {
                    Some(callable) => callable,
                    None => {
                        let engine = &mut *(*interpreter).frame.engine;
                        let named = engine.commands().named(args);
                        return push_rejection(engine, lua, named, &Error::new(not_found(named)));
                    }
                }
            }
        };
        if let Err(error) = check_call(interpreter, callable, args) {
            return push_error(&mut *(*interpreter).frame.engine, lua, &error);
        }
        let base = layout::stack_len(lua);
        let mut sink = LuaSink::new(lua, (*interpreter).frame.protocol);
        run_command(interpreter, callable, args, &mut sink);
        fuel::consume_call(interpreter, callable.min_cost, args.len(), sink.elements());
        if sink.too_large() || layout::stack_len(lua) != base + 1 {
            lua_settop(lua, base as c_int);
            let text = if sink.too_large() { "ERR reached lua stack limit" } else { "ERR The command gave no single reply" };
            return push_error(&mut *(*interpreter).frame.engine, lua, &Error::new(text));
        }
        sink.failed()
    }
}

/// Makes the engine run a command that passed [`check_call`].
///
/// # Safety
/// As for [`check_call`]; allocations cannot fail.
#[inline(always)]
pub(crate) unsafe fn run_command(interpreter: *mut Interpreter, callable: &CallableCommand, args: &[&[u8]], sink: &mut dyn Sink) {
    // SAFETY: a script runs, so the frame's engine is valid, and nothing else has a reference to it. The command does not reach
    // the frame, and no allocation of the sink fails.
    unsafe {
        let frame = &mut (*interpreter).frame;
        let (command, slot, caller) = (callable.command, callable.stats_slot, Caller::Script);
        let engine = &mut *frame.engine;
        let mut cx = Context {
            engine,
            now: frame.now,
            session: frame.session,
            db: frame.db,
            caller,
            command,
            stats_slot: slot,
            reply: sink,
        };
        cx.run(args);
        frame.db = cx.db;
    }
}

/// Whether the user of the script may call the command on the stack (`redis.acl_check_cmd`). `None` if there is no such command.
///
/// # Safety
/// Lua called a function of the interpreter with at least one argument, all of them strings or numbers.
pub(crate) unsafe fn is_permitted(lua: *mut lua_State) -> Option<bool> {
    // SAFETY: a script runs, so the frame's engine is valid, and the values stay on the stack while they are copied. Nothing in
    // here raises an error, so all destructors run.
    unsafe {
        let interpreter = Interpreter::of(lua);
        let mut number = MaybeUninit::uninit();
        let owned: Vec<Vec<u8>> =
            layout::stack_values(lua).iter().map(|value| argument(value, &mut number).unwrap_or_default().to_vec()).collect();
        let args: Vec<&[u8]> = owned.iter().map(Vec::as_slice).collect();
        let engine = &*(*interpreter).frame.engine;
        let command = engine.commands().named(&args)?;
        Some(engine.permits((*interpreter).frame.session, command, &args).is_ok())
    }
}

/// Looks a command up. Caches it if its name alone identifies it, which is not so for a command with subcommands.
#[cold]
unsafe fn resolve(
    interpreter: *mut Interpreter,
    lua: *mut lua_State,
    name: Option<usize>,
    args: &[&[u8]],
) -> Option<CallableCommand> {
    // SAFETY: a script runs, so the frame's engine is valid. The field is a copied reference to a table outside of the engine.
    let commands = unsafe { (*(*interpreter).frame.engine).commands() };
    let command = commands.resolve(args).ok()?;
    // SAFETY: a script runs, so the frame's engine is valid. The references to it and to its statistics end with this statement.
    let callable = unsafe { CallableCommand::new(command, (*(*interpreter).frame.engine).command_stats_mut()) };
    if let Some(address) = name
        && commands.lookup(args[0]).is_some_and(|row| row.subcommands.is_empty())
    {
        // SAFETY: the first argument lies first on the stack; a C function has room for twenty values beyond its arguments.
        unsafe { (*interpreter).commands.insert(lua, 1, address, callable) }
    }
    Some(callable)
}

/// The error for a command that was not resolved. `named` is the command with that name, if there is one.
fn not_found(named: Option<&'static Command>) -> &'static str {
    match named {
        None => "ERR Unknown Redis command called from script",
        Some(_) => "ERR Wrong number of args calling Redis command from script",
    }
}

/// Pushes the error of a call that was rejected, and counts it for the command if there is one.
#[cold]
unsafe fn push_rejection(engine: &mut Engine, lua: *mut lua_State, command: Option<&'static Command>, error: &Error) -> bool {
    if let Some(command) = command {
        engine.command_stats_mut().of(command).rejected += 1;
    }
    // SAFETY: as in `push_error`.
    unsafe { push_error(engine, lua, error) }
}

/// Counts an error and pushes it. Returns true.
unsafe fn push_error(engine: &mut Engine, lua: *mut lua_State, error: &Error) -> bool {
    engine.stats_mut().error(error);
    // SAFETY: a C function has room for twenty values beyond its arguments.
    unsafe { errors::push_counted(lua, error.text()) };
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_as_redis_does_for_commands() {
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
