//! Globals that a script receives as locals, as long as it cannot see the difference.
//!
//! A lookup of a global goes through a table behind a proxy, and a lookup of a library's function through two more. That costs more
//! than many of those functions do. Therefore the text of a script is prefixed with a line such as
//! `local KEYS, ARGV, redis, string = ...;`.
//!
//! A name becomes a local only if the script's text shows that nothing else changes: `KEYS` and `ARGV` are not assigned to; a
//! library is used only to call its functions by name, because the local is the library without its read-only proxy; a function is
//! only called. The text is searched without regard to comments and strings, so that some scripts receive fewer locals than they
//! could.

use std::ffi::CStr;
use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::globals::read_only;
use crate::script::lua::layout;
use crate::script::plan::tokens::is_name_byte;

/// Libraries and functions that can become locals, besides `KEYS` and `ARGV`.
const NAMES: [&CStr; 18] = [
    c"redis",
    c"string",
    c"table",
    c"math",
    c"cjson",
    c"cmsgpack",
    c"struct",
    c"bit",
    c"tonumber",
    c"tostring",
    c"type",
    c"pairs",
    c"ipairs",
    c"next",
    c"select",
    c"unpack",
    c"pcall",
    c"error",
];

/// Number of libraries among them, which come first.
const LIBRARIES: usize = 8;

/// The locals of one script besides `KEYS` and `ARGV`: one bit for each of [`NAMES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Locals(u32);

impl Locals {
    /// The locals for a script. `None` if it must find even `KEYS` and `ARGV` among the globals.
    pub(super) fn of(script: &[u8]) -> Option<Self> {
        if needs_globals(script) {
            return None;
        }
        if words(script, b"function").any(|(_, after)| after.trim_ascii_start().starts_with(b"-")) {
            // A comment may hide the name of the function that is defined there.
            return Some(Locals(0));
        }
        let mut locals = 0;
        for (number, name) in NAMES.iter().enumerate() {
            let mut used = false;
            let only_calls = words(script, name.to_bytes()).all(|(before, after)| {
                used = true;
                // `function string.rep()` is an assignment.
                !before.trim_ascii_end().ends_with(b"function") && is_call(after, number < LIBRARIES)
            });
            locals |= u32::from(used && only_calls) << number;
        }
        Some(Locals(locals))
    }

    /// Number of locals, including `KEYS` and `ARGV`.
    #[inline]
    pub(super) fn count(self) -> c_int {
        2 + self.0.count_ones() as c_int
    }

    /// The text before the script. It has no line end, so the script keeps its line numbers, and it ends with a semicolon, so that
    /// it does not merge with the script's first statement.
    pub(super) fn prefix(self) -> Vec<u8> {
        let mut text = b"local KEYS, ARGV".to_vec();
        for (number, name) in NAMES.iter().enumerate() {
            if self.0 & 1 << number != 0 {
                text.extend_from_slice(b", ");
                text.extend_from_slice(name.to_bytes());
            }
        }
        text.extend_from_slice(b" = ...; ");
        text
    }
}

/// The values of [`NAMES`] in one interpreter, which keeps them alive.
#[derive(Default)]
pub(crate) struct LocalValues(Vec<layout::Value>);

impl LocalValues {
    /// Reads them from the globals. Libraries are read without their read-only proxies.
    ///
    /// # Safety
    /// The globals are installed, the stack has room for four values, and allocations cannot fail.
    pub(super) unsafe fn read(lua: *mut lua_State) -> Self {
        let mut values = Vec::with_capacity(NAMES.len());
        for name in NAMES {
            // SAFETY: the globals are installed and have all names, so none of their metamethods is called. At most three values
            // are on the stack at once.
            unsafe {
                lua_getfield_(lua, LUA_GLOBALSINDEX, name.as_ptr());
                read_only::unwrap(lua, lua_gettop(lua));
                values.extend(layout::stack_values(lua).last());
                lua_pop(lua, 1);
            }
        }
        LocalValues(values)
    }

    /// Pushes the values of these locals.
    ///
    /// # Safety
    /// The values are of this state, whose stack has room for all of them.
    #[inline]
    pub(super) unsafe fn push(&self, lua: *mut lua_State, locals: Locals) {
        let mut left = locals.0;
        while left != 0 {
            // SAFETY: the stack has room for the value, and the globals, which no script can change, keep its object alive.
            unsafe { layout::push(lua, self.0[left.trailing_zeros() as usize]) };
            left &= left - 1;
        }
    }
}

/// The text before and after each place where `name` is a whole word.
fn words<'s>(script: &'s [u8], name: &'s [u8]) -> impl Iterator<Item = (&'s [u8], &'s [u8])> {
    memchr::memmem::find_iter(script, name)
        .map(move |at| (&script[..at], &script[at + name.len()..]))
        .filter(|(before, after)| !before.last().is_some_and(is_name_byte) && !after.first().is_some_and(is_name_byte))
}

/// Whether the text after a name begins with a call: of the name itself, or with `member` of a function in it.
fn is_call(mut text: &[u8], member: bool) -> bool {
    if member {
        let Some(rest) = text.trim_ascii_start().strip_prefix(b".") else { return false };
        let rest = rest.trim_ascii_start();
        let name = rest.iter().take_while(|byte| is_name_byte(byte)).count();
        if name == 0 {
            return false;
        }
        text = &rest[name..];
    }
    text.trim_ascii_start().first() == Some(&b'(')
}

/// Whether `KEYS` and `ARGV` must be globals of a script: it reads `...`, which would contain them; it may assign to them, which
/// is an error for globals; or it may use one in an operation that fails for tables, whose error says that it is a global.
fn needs_globals(script: &[u8]) -> bool {
    memchr::memmem::find(script, b"...").is_some()
        || [b"KEYS", b"ARGV"].into_iter().any(|name| assigns(script, name) || is_called_or_operand(script, name))
}

/// Whether a name may be called, or be an operand of an operator for numbers or strings.
fn is_called_or_operand(script: &[u8], name: &[u8]) -> bool {
    let blank = |byte: &&u8| byte.is_ascii_whitespace();
    memchr::memmem::find_iter(script, name).any(|at| {
        let before = script[..at].iter().rev().find(|byte| !blank(byte));
        let mut after = script[at + name.len()..].iter().skip_while(blank);
        match after.next() {
            // An element of the table is an ordinary operand.
            Some(b'[') => false,
            Some(b'.') => after.next() == Some(&b'.'),
            Some(byte) if b"+-*/%^<>({'\"".contains(byte) => true,
            _ => before.is_some_and(|byte| b"+-*/%^<>.".contains(byte)),
        }
    })
}

/// Whether a name may be assigned to.
fn assigns(script: &[u8], name: &[u8]) -> bool {
    memchr::memmem::find_iter(script, name).any(|at| {
        // Skips the rest of a list of names, as in `KEYS, other = …`.
        let in_list = |byte: &u8| byte.is_ascii_alphanumeric() || byte.is_ascii_whitespace() || matches!(byte, b'_' | b',');
        let mut rest = script[at + name.len()..].iter().skip_while(|byte| in_list(byte));
        rest.next() == Some(&b'=') && rest.next() != Some(&b'=')
    })
}

/// Whether a script with `KEYS` as a local may also read it as a global.
pub(super) fn may_read_globals(script: &[u8]) -> bool {
    memchr::memmem::find(script, b"load").is_some() || memchr::memmem::find(script, b"_G").is_some()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::engine::harness::Harness;

    fn is_local(script: &str, name: &CStr) -> bool {
        let number = NAMES.iter().position(|known| *known == name).unwrap();
        Locals::of(script.as_bytes()).is_some_and(|Locals(locals)| locals & 1 << number != 0)
    }

    #[test]
    fn libraries_are_locals_of_scripts_that_only_call_their_functions() {
        for script in [
            "return redis.call('get', KEYS[1])",
            "redis . pcall ( 'x' )",
            "local x = redis.sha1hex('a') == 'b'",
            "local function f() return redis.call('x') end return f()",
            "local my_redis, redis2 = 1, 2 return redis.call('x')",
        ] {
            assert!(is_local(script, c"redis"), "{script}");
        }
        for script in [
            "return 1",
            "redis.call = 1",
            "local call = redis.call return call('x')",
            "redis['call'] = 1",
            "f(redis)",
            "redis.log(redis.LOG_NOTICE, 'x')",
            "redis.call, x = 1, 2",
            "for k in pairs(redis) do end",
            "redis:call('x')",
            "redis--[[ ]].call = 1",
            "redis.call--[[(]] = 1",
            "return redis",
            "redis..'x'",
            "function redis.call() end",
            "function\nredis . call() end",
            "local redis = 1",
        ] {
            assert!(!is_local(script, c"redis"), "{script}");
        }
        assert!(is_local("return string.rep('x', 2) .. tonumber('1')", c"string"));
        assert!(is_local("return string.rep('x', 2) .. tonumber('1')", c"tonumber"));
        for script in
            ["tonumber = 1", "local t = tonumber", "function tonumber() end", "f(tonumber)", "tonumber'1'", "function(tonumber)"]
        {
            assert!(!is_local(script, c"tonumber"), "{script}");
        }
        assert!(!is_local("function --[[ ]] tonumber() end", c"tonumber"));
    }

    /// A name behaves the same whether it is a local or a global.
    #[test]
    fn no_script_changes_the_locals_of_others() {
        let mut harness = Harness::new();
        let mut run = |script: &str| String::from_utf8_lossy(&harness.args(&[b"EVAL", script.as_bytes(), b"0"])).into_owned();
        for name in NAMES {
            let name = name.to_str().unwrap();
            for script in [
                format!("function {name}() return 5 end return 1"),
                format!("function {name}.call() return 5 end return 1"),
                format!("function {name}.rep() return 5 end return 1"),
                format!("function --[[ ]]\n{name}.rep() return 5 end return 1"),
                format!("function -- x\n {name}() return 5 end return 1"),
                format!("function {name}.a.b() return 5 end return 1"),
                format!("{name} = 5 return 1"),
                format!("{name}, x = 5, 6 return 1"),
                format!("{name}.rep = 5 return 1"),
            ] {
                let reply = run(&script);
                assert!(reply.starts_with("-ERR"), "{script}: {reply}");
            }
        }
        let look = "return {type(redis.call('get', 'x')), string.rep('x', 2), table.concat({1, 2}, ','), math.max(1, 2),
            cjson.encode({1}), #cmsgpack.pack(1), struct.size('i'), bit.band(3, 2), tonumber('4'), tostring(5), select(2, 6, 7),
            unpack({8}), next({9}), pcall(error, 10)}";
        let reply = run(look).replace("\r\n", " ");
        assert_eq!(reply, "*15 $7 boolean $2 xx $3 1,2 :2 $3 [1] :1 :4 :2 :4 $1 5 :7 :8 :1 $-1 $2 10 ");
    }

    #[test]
    fn assignments_are_distinguished_from_uses() {
        for script in [
            "KEYS = {}",
            "ARGV=1",
            "local a, KEYS = 1",
            "KEYS, x = 1, 2",
            "return ...",
            "KEYS()",
            "return ARGV .. 'x'",
            "return 1 + KEYS",
            "return -ARGV",
            "KEYS'x'",
        ] {
            assert!(needs_globals(script.as_bytes()), "{script}");
        }
        for script in [
            "return KEYS[1]",
            "if KEYS[1] == ARGV[1] then end",
            "return #ARGV",
            "return KEYS==ARGV",
            "f(KEYS, ARGV)",
            "return KEYS.n, #ARGV, KEYS [1] .. ARGV[1]",
            "return 'x' .. KEYS[1], 1 + ARGV[1], -ARGV[2]",
            "return 'a'..'b'",
        ] {
            assert!(!needs_globals(script.as_bytes()), "{script}");
        }
    }
}
