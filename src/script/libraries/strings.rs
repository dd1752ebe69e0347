//! Functions of `string` whose time depends on their arguments: those that match patterns, and those that write a string byte by
//! byte. They behave as Lua's own, but consume fuel while they work. [`format`](super::format) is in its own file.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::fuel;
use crate::script::interpreter::Interpreter;
use crate::script::libraries::format::format;
use crate::script::libraries::pattern::{Capture, Fault, Matcher};
use crate::script::libraries::writer::{PIECE, Writer};
use crate::script::lua::stack::{bytes, check_string, get_field, push_bytes, set_field};

/// Fuel for a replacement, besides that of the function it may call.
const REPLACEMENT_COST: u64 = 8;
/// Up to this length in bytes, a result is written without the buffer.
const SHORT: usize = 64;

/// Replaces functions of the library on top of the stack.
///
/// # Safety
/// As for [`crate::script::globals::install`].
pub(crate) unsafe fn install(lua: *mut lua_State, interpreter: *mut Interpreter) {
    let functions: [(&CStr, lua_CFunction); 8] = [
        (c"find", find),
        (c"match", match_),
        (c"gmatch", gmatch),
        (c"gsub", gsub),
        (c"rep", rep),
        (c"lower", lower),
        (c"upper", upper),
        (c"reverse", reverse),
    ];
    // SAFETY: the library is on top of the stack of the new state, which has room for three more values. The interpreter outlives
    // the state.
    unsafe {
        for (name, function) in functions {
            Interpreter::set_function(lua, interpreter, name, function);
        }
        // Its old name.
        get_field(lua, -1, c"gmatch");
        set_field(lua, c"gfind");
        // Its second upvalue is Lua's own function.
        lua_pushlightuserdata(lua, interpreter.cast());
        get_field(lua, -2, c"format");
        lua_pushcclosure(lua, format, 2);
        set_field(lua, c"format");
    }
}

/// A pattern up to its first NUL, as Lua 5.1 reads it.
fn up_to_nul(pattern: &[u8]) -> &[u8] {
    &pattern[..memchr::memchr(0, pattern).unwrap_or(pattern.len())]
}

/// A pattern without its anchor, and whether it has one.
fn split_anchor(pattern: &[u8]) -> (&[u8], bool) {
    if let Some(rest) = pattern.strip_prefix(b"^") { (rest, true) } else { (pattern, false) }
}

/// A matcher whose steps consume the script's fuel.
///
/// # Safety
/// The interpreter is valid, and a script runs on it as long as the matcher is used.
unsafe fn matcher<'a>(
    interpreter: *mut Interpreter,
    subject: &'a [u8],
    pattern: &'a [u8],
) -> Matcher<'a, impl FnMut(u64) -> bool + use<'a>> {
    // SAFETY: a script runs on the interpreter as long as the matcher is used, and only functions that Lua called use it.
    Matcher::new(subject, pattern, move |steps| unsafe { fuel::try_consume(interpreter, steps) })
}

// SAFETY of the functions below: Lua calls them, with room for twenty values beyond their arguments and with the interpreter as
// their first upvalue, while a script runs. Subject and pattern stay on the stack or in an upvalue, which keeps their bytes.
// Nothing has a destructor, a matcher included.

/// Raises the error of a match.
unsafe fn raise(lua: *mut lua_State, interpreter: *mut Interpreter, fault: Fault) -> c_int {
    // SAFETY: Lua called the function that failed to match, and nothing there has a destructor, its matcher included.
    unsafe {
        match fault {
            Fault::Malformed(text) => luaL_error(lua, c"%s".as_ptr(), text.as_ptr()),
            Fault::Killed => fuel::raise_killed(lua, interpreter),
        }
    }
}

/// Consumes the fuel for a match that has ended.
unsafe fn finish<F: FnMut(u64) -> bool>(lua: *mut lua_State, interpreter: *mut Interpreter, matcher: &mut Matcher<'_, F>) {
    if matcher.finish() {
        // SAFETY: Lua called the function that matches, and nothing there has a destructor, its matcher included.
        unsafe { fuel::raise_killed(lua, interpreter) };
    }
}

/// Pushes a capture. If the pattern has no captures, the first one is the whole match.
unsafe fn push_capture(lua: *mut lua_State, subject: &[u8], captures: &[Capture], index: usize, whole: Option<(usize, usize)>) {
    // SAFETY: the function that Lua called has room for one more value on its stack. Nothing there has a destructor when the
    // capture is not valid.
    unsafe {
        match (captures.get(index), whole) {
            (Some(&Capture::Span(start, len)), _) => push_bytes(lua, &subject[start..start + len]),
            (Some(&Capture::Position(at)), _) => lua_pushinteger(lua, at as lua_Integer + 1),
            (Some(Capture::Open(_)), _) => {
                luaL_error(lua, c"unfinished capture".as_ptr());
            }
            (None, Some((start, end))) if index == 0 => push_bytes(lua, &subject[start..end]),
            (None, _) => {
                luaL_error(lua, c"invalid capture index".as_ptr());
            }
        }
    }
}

/// Pushes all captures, or the whole match if the pattern has none. Returns the number of values.
unsafe fn push_captures(lua: *mut lua_State, subject: &[u8], captures: &[Capture], whole: Option<(usize, usize)>) -> c_int {
    // SAFETY: `luaL_checkstack` makes room for the captures. Nothing in the function that Lua called has a destructor when an
    // error is raised.
    unsafe {
        let count = if captures.is_empty() { usize::from(whole.is_some()) } else { captures.len() };
        luaL_checkstack_(lua, count as c_int, c"too many captures".as_ptr());
        for index in 0..count {
            push_capture(lua, subject, captures, index, whole);
        }
        count as c_int
    }
}

unsafe extern "C-unwind" fn find(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and `search` checks the arguments.
    unsafe { search(lua, true) }
}

unsafe extern "C-unwind" fn match_(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and `search` checks the arguments.
    unsafe { search(lua, false) }
}

/// `find` and `match`.
unsafe fn search(lua: *mut lua_State, find: bool) -> c_int {
    // SAFETY: Lua called the function that calls this, and arguments 1 and 2 are checked to be strings, which stay on the stack.
    // Nothing has a destructor when an error is raised, the matcher included.
    unsafe {
        let interpreter = Interpreter::of(lua);
        let (subject, given) = (check_string(lua, 1), check_string(lua, 2));
        let mut init = luaL_optinteger(lua, 3, 1);
        if init < 0 {
            init = init.saturating_add(subject.len() as lua_Integer + 1);
        }
        let init = usize::try_from(init.saturating_sub(1)).unwrap_or(0).min(subject.len());
        let pattern = up_to_nul(given);
        if find && (lua_toboolean(lua, 4) != 0 || !pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte))) {
            fuel::consume(lua, interpreter, (subject.len() - init) as u64 / fuel::BYTES_PER_STEP);
            return match memchr::memmem::find(&subject[init..], given) {
                Some(at) => {
                    lua_pushinteger(lua, (init + at) as lua_Integer + 1);
                    lua_pushinteger(lua, (init + at + given.len()) as lua_Integer);
                    2
                }
                None => {
                    lua_pushnil(lua);
                    1
                }
            };
        }
        let (pattern, anchored) = split_anchor(pattern);
        let mut matcher = matcher(interpreter, subject, pattern);
        let last = if anchored { init } else { subject.len() };
        for start in init..=last {
            let end = match matcher.match_at(start) {
                Ok(Some(end)) => end,
                Ok(None) => continue,
                Err(fault) => return raise(lua, interpreter, fault),
            };
            finish(lua, interpreter, &mut matcher);
            if find {
                lua_pushinteger(lua, start as lua_Integer + 1);
                lua_pushinteger(lua, end as lua_Integer);
                return 2 + push_captures(lua, subject, matcher.captures(), None);
            }
            return push_captures(lua, subject, matcher.captures(), Some((start, end)));
        }
        finish(lua, interpreter, &mut matcher);
        lua_pushnil(lua);
        1
    }
}

unsafe extern "C-unwind" fn gmatch(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and both arguments are checked to be strings. With the interpreter below and the position above
    // them, they are the four upvalues.
    unsafe {
        check_string(lua, 1);
        check_string(lua, 2);
        lua_settop(lua, 2);
        lua_pushlightuserdata(lua, Interpreter::of(lua).cast());
        lua_insert(lua, 1);
        lua_pushinteger(lua, 0);
        lua_pushcclosure(lua, next_match, 4);
        1
    }
}

/// The iterator that [`gmatch`] returns. Its upvalues are the interpreter, the subject, the pattern and the position to continue
/// from.
unsafe extern "C-unwind" fn next_match(lua: *mut lua_State) -> c_int {
    // SAFETY: `gmatch` made the subject and the pattern upvalues, which keep their bytes. Nothing here has a destructor when an
    // error is raised, the matcher included.
    unsafe {
        let interpreter = Interpreter::of(lua);
        let subject = bytes(lua, lua_upvalueindex(2)).unwrap_or_default();
        let pattern = up_to_nul(bytes(lua, lua_upvalueindex(3)).unwrap_or_default());
        let from = lua_tointeger(lua, lua_upvalueindex(4)) as usize;
        let mut matcher = matcher(interpreter, subject, pattern);
        for start in from..=subject.len() {
            match matcher.match_at(start) {
                Ok(Some(end)) => {
                    finish(lua, interpreter, &mut matcher);
                    lua_pushinteger(lua, (end + usize::from(end == start)) as lua_Integer);
                    lua_replace(lua, lua_upvalueindex(4));
                    return push_captures(lua, subject, matcher.captures(), Some((start, end)));
                }
                Ok(None) => {}
                Err(fault) => return raise(lua, interpreter, fault),
            }
        }
        finish(lua, interpreter, &mut matcher);
        0
    }
}

unsafe extern "C-unwind" fn gsub(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and the texts are arguments, which stay on the stack. Nothing is left above the pieces of the
    // buffer there, and nothing has a destructor when an error is raised.
    unsafe {
        let interpreter = Interpreter::of(lua);
        let (subject, pattern) = (check_string(lua, 1), up_to_nul(check_string(lua, 2)));
        let kind = lua_type(lua, 3);
        let max = luaL_optinteger(lua, 4, subject.len() as lua_Integer + 1) as c_int;
        if !matches!(kind, LUA_TNUMBER | LUA_TSTRING | LUA_TFUNCTION | LUA_TTABLE) {
            return luaL_argerror(lua, 3, c"string/function/table expected".as_ptr());
        }
        let (pattern, anchored) = split_anchor(pattern);
        let replacement = if matches!(kind, LUA_TNUMBER | LUA_TSTRING) { check_string(lua, 3) } else { b"" };
        let mut buffer = MaybeUninit::<luaL_Buffer>::uninit();
        let buffer = buffer.as_mut_ptr();
        luaL_buffinit(lua, buffer);
        let mut matcher = matcher(interpreter, subject, pattern);
        let (mut at, mut copied, mut count) = (0, 0, 0);
        while count < max {
            let matched = match matcher.match_at(at) {
                Ok(matched) => matched,
                Err(fault) => return raise(lua, interpreter, fault),
            };
            if let Some(end) = matched {
                count += 1;
                let steps = REPLACEMENT_COST + (end - copied + replacement.len()) as u64 / fuel::BYTES_PER_STEP;
                fuel::consume(lua, interpreter, steps);
                add(buffer, &subject[copied..at]);
                copied = end;
                let captures = matcher.captures();
                if matches!(kind, LUA_TNUMBER | LUA_TSTRING) {
                    add_expanded(lua, buffer, subject, captures, (at, end), replacement);
                } else {
                    add_replaced(lua, buffer, subject, captures, (at, end), kind);
                }
            }
            match matched {
                Some(end) if end > at => at = end,
                _ if at < subject.len() => at += 1,
                _ => break,
            }
            if anchored {
                break;
            }
        }
        finish(lua, interpreter, &mut matcher);
        add(buffer, &subject[copied.min(subject.len())..]);
        luaL_pushresult(buffer);
        lua_pushinteger(lua, count.into());
        2
    }
}

unsafe fn add(buffer: *mut luaL_Buffer, text: &[u8]) {
    // SAFETY: `gsub` has initialized the buffer, and nothing is on the stack above its pieces. Nothing in `gsub` has a destructor
    // if Lua runs out of memory.
    unsafe { luaL_addlstring(buffer, text.as_ptr().cast(), text.len()) }
}

/// Adds a replacement text, in which `%1` stands for a capture.
unsafe fn add_expanded(
    lua: *mut lua_State,
    buffer: *mut luaL_Buffer,
    subject: &[u8],
    captures: &[Capture],
    whole: (usize, usize),
    replacement: &[u8],
) {
    let mut rest = replacement;
    // SAFETY: nothing is on the stack above the pieces of the buffer but the capture that is to be added. Nothing in `gsub` has a
    // destructor when an error is raised.
    unsafe {
        while let Some(at) = memchr::memchr(b'%', rest) {
            add(buffer, &rest[..at]);
            // After the last byte Lua reads the NUL that ends its strings.
            let escaped = rest.get(at + 1).copied().unwrap_or(0);
            rest = rest.get(at + 2..).unwrap_or_default();
            match escaped {
                b'0' => add(buffer, &subject[whole.0..whole.1]),
                b'1'..=b'9' => {
                    push_capture(lua, subject, captures, usize::from(escaped - b'1'), Some(whole));
                    luaL_addvalue(buffer);
                }
                _ => add(buffer, &[escaped]),
            }
        }
        add(buffer, rest);
    }
}

/// Adds the replacement from a function or a table. If that is false or nil, adds the match itself.
unsafe fn add_replaced(
    lua: *mut lua_State,
    buffer: *mut luaL_Buffer,
    subject: &[u8],
    captures: &[Capture],
    whole: (usize, usize),
    kind: c_int,
) {
    // SAFETY: argument 3 of `gsub` is a function or a table, and only its result is on the stack above the pieces of the buffer
    // when it is added. Nothing in `gsub` has a destructor when the script's code raises an error.
    unsafe {
        if kind == LUA_TFUNCTION {
            lua_pushvalue(lua, 3);
            let count = push_captures(lua, subject, captures, Some(whole));
            lua_call(lua, count, 1);
        } else {
            push_capture(lua, subject, captures, 0, Some(whole));
            lua_gettable_(lua, 3);
        }
        if lua_toboolean(lua, -1) == 0 {
            lua_pop(lua, 1);
            push_bytes(lua, &subject[whole.0..whole.1]);
        } else if lua_isstring(lua, -1) == 0 {
            luaL_error(lua, c"invalid replacement value (a %s)".as_ptr(), luaL_typename(lua, -1));
        }
        luaL_addvalue(buffer);
    }
}

unsafe extern "C-unwind" fn rep(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and argument 1 is checked to be a string, which stays on the stack while it is written. Nothing
    // here has a destructor when an error is raised.
    unsafe {
        let text = check_string(lua, 1);
        let times = usize::try_from(luaL_checkinteger(lua, 2) as c_int).unwrap_or(0);
        let total = text.len().saturating_mul(times);
        let out = Writer::new(lua);
        out.reserve(total);
        // A short text is first repeated within one piece.
        let mut room = [0; PIECE];
        let copies = (PIECE / text.len().max(1)).min(times);
        for copy in room[..copies * text.len()].chunks_exact_mut(text.len().max(1)) {
            copy.copy_from_slice(text);
        }
        let piece = if copies > 1 { &room[..copies * text.len()] } else { text };
        let mut left = total;
        while left > 0 {
            let part = &piece[..piece.len().min(left)];
            out.put_pieces(part);
            left -= part.len();
        }
        out.push();
        1
    }
}

unsafe extern "C-unwind" fn lower(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and `push_changed` checks the argument.
    unsafe { push_changed(lua, false, u8::to_ascii_lowercase) }
}

unsafe extern "C-unwind" fn upper(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and `push_changed` checks the argument.
    unsafe { push_changed(lua, false, u8::to_ascii_uppercase) }
}

unsafe extern "C-unwind" fn reverse(lua: *mut lua_State) -> c_int {
    // SAFETY: Lua calls this, and `push_changed` checks the argument.
    unsafe { push_changed(lua, true, |&byte| byte) }
}

/// Pushes the argument with each byte changed, in reverse order if `backwards` is set.
unsafe fn push_changed(lua: *mut lua_State, backwards: bool, change: impl Fn(&u8) -> u8) -> c_int {
    // SAFETY: Lua called the function that calls this, and argument 1 is checked to be a string, which stays on the stack.
    // Nothing has a destructor when an error is raised, `change` included.
    unsafe {
        let text = check_string(lua, 1);
        if text.len() <= SHORT {
            let mut room = [0; SHORT];
            for (at, byte) in text.iter().enumerate() {
                room[if backwards { text.len() - 1 - at } else { at }] = change(byte);
            }
            push_bytes(lua, &room[..text.len()]);
            return 1;
        }
        let out = Writer::new(lua);
        let mut room = [0; PIECE];
        let mut put = |piece: &[u8]| {
            let room = &mut room[..piece.len()];
            for (to, from) in room.iter_mut().zip(piece) {
                *to = change(from);
            }
            if backwards {
                room.reverse();
            }
            out.put(room);
        };
        if backwards {
            text.rchunks(PIECE).for_each(&mut put);
        } else {
            text.chunks(PIECE).for_each(&mut put);
        }
        out.push();
        1
    }
}
