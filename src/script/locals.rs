//! What a script is given as locals, where for all it can see they are globals.
//!
//! A global is looked up in a table behind a table, and a function of a library in two more: that costs more than many of those
//! functions do. So the text of a script is put behind a line such as `local KEYS, ARGV, redis, string = ...;`, if it can be seen in it
//! that nothing else comes of that: of `KEYS` and `ARGV`, that they are not assigned to; of a library, that functions of it are
//! called by name and nothing more, since it is given without its cover; of a function, that it is called. The text is read
//! without regard to what is a comment or a string in it, so that some scripts are given less than they could be.

use std::ffi::CStr;
use std::os::raw::c_int;

use mlua::ffi::*;

use crate::script::globals::uncover;
use crate::script::layout;

/// Libraries and functions that scripts are given, beside `KEYS` and `ARGV`.
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

/// How many of them are libraries.
const LIBRARIES: usize = 8;

/// What one script is given beside `KEYS` and `ARGV`: one bit for each of [`NAMES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Locals(u32);

impl Locals {
    /// What a script is given; `None` where it must find even `KEYS` and `ARGV` among the globals.
    pub(super) fn of(script: &[u8]) -> Option<Self> {
        if needs_globals(script) {
            return None;
        }
        if words(script, b"function").any(|(_, after)| after.trim_ascii_start().starts_with(b"-")) {
            // A comment may hide what is defined there.
            return Some(Locals(0));
        }
        let mut given = 0;
        for (number, name) in NAMES.iter().enumerate() {
            let mut used = false;
            let only_calls = words(script, name.to_bytes()).all(|(before, after)| {
                used = true;
                // `function string.rep()` is an assignment.
                !before.trim_ascii_end().ends_with(b"function") && is_call(after, number < LIBRARIES)
            });
            given |= u32::from(used && only_calls) << number;
        }
        Some(Locals(given))
    }

    /// How many values it is given, with `KEYS` and `ARGV`.
    #[inline]
    pub(super) fn count(self) -> c_int {
        2 + self.0.count_ones() as c_int
    }

    /// What is put before the script. It is all on the script's first line, and ends with a semicolon so that it goes into nothing that
    /// follows.
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

/// The values of [`NAMES`] in one interpreter, which has them for as long as it lives.
#[derive(Default)]
pub(super) struct Shared(Vec<layout::Value>);

impl Shared {
    /// Reads them from the globals, libraries without their covers.
    ///
    /// # Safety
    /// The globals are in place, the stack has room for four values, and allocations cannot fail.
    pub(super) unsafe fn read(lua: *mut lua_State) -> Self {
        let mut values = Vec::with_capacity(NAMES.len());
        for name in NAMES {
            // SAFETY: as promised; no metamethod of the globals is asked for a name that is there.
            unsafe {
                lua_getfield_(lua, LUA_GLOBALSINDEX, name.as_ptr());
                uncover(lua, lua_gettop(lua));
                values.extend(layout::values(lua).last());
                lua_pop(lua, 1);
            }
        }
        Shared(values)
    }

    /// Pushes those that a script is given.
    ///
    /// # Safety
    /// The values are of this state, whose stack has room for all of them.
    #[inline]
    pub(super) unsafe fn push(&self, lua: *mut lua_State, locals: Locals) {
        let mut left = locals.0;
        while left != 0 {
            // SAFETY: as promised.
            unsafe { layout::push(lua, self.0[left.trailing_zeros() as usize]) };
            left &= left - 1;
        }
    }
}

fn is_name(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || *byte == b'_'
}

/// What is before and behind each place where a name stands by itself.
fn words<'s>(script: &'s [u8], name: &'s [u8]) -> impl Iterator<Item = (&'s [u8], &'s [u8])> {
    memchr::memmem::find_iter(script, name)
        .map(move |at| (&script[..at], &script[at + name.len()..]))
        .filter(|(before, after)| !before.last().is_some_and(is_name) && !after.first().is_some_and(is_name))
}

/// Whether a text begins with a call: of what stands before it, or of a function in it.
fn is_call(mut text: &[u8], member: bool) -> bool {
    if member {
        let Some(rest) = text.trim_ascii_start().strip_prefix(b".") else { return false };
        let rest = rest.trim_ascii_start();
        let name = rest.iter().take_while(|byte| is_name(byte)).count();
        if name == 0 {
            return false;
        }
        text = &rest[name..];
    }
    text.trim_ascii_start().first() == Some(&b'(')
}

/// Whether a script cannot do with `KEYS` and `ARGV` as parameters: it looks at `...`, where they would show, or it may assign to
/// them, which is refused for globals, or it may do with them what no table lets be done, and the error says that they are globals.
fn needs_globals(script: &[u8]) -> bool {
    memchr::memmem::find(script, b"...").is_some()
        || [b"KEYS", b"ARGV"].into_iter().any(|name| assigns(script, name) || computes(script, name))
}

/// Whether such a name may be called, or be an operand of what is for numbers or strings.
fn computes(script: &[u8], name: &[u8]) -> bool {
    let blank = |byte: &&u8| byte.is_ascii_whitespace();
    memchr::memmem::find_iter(script, name).any(|at| {
        let before = script[..at].iter().rev().find(|byte| !blank(byte));
        let mut after = script[at + name.len()..].iter().skip_while(blank);
        match after.next() {
            // An element is an operand like any other.
            Some(b'[') => false,
            Some(b'.') => after.next() == Some(&b'.'),
            Some(byte) if b"+-*/%^<>({'\"".contains(byte) => true,
            _ => before.is_some_and(|byte| b"+-*/%^<>.".contains(byte)),
        }
    })
}

fn assigns(script: &[u8], name: &[u8]) -> bool {
    memchr::memmem::find_iter(script, name).any(|at| {
        // Over the rest of a list of names, as in `KEYS, other = …`.
        let in_list = |byte: &u8| byte.is_ascii_alphanumeric() || byte.is_ascii_whitespace() || matches!(byte, b'_' | b',');
        let mut rest = script[at + name.len()..].iter().skip_while(|byte| in_list(byte));
        rest.next() == Some(&b'=') && rest.next() != Some(&b'=')
    })
}

/// Whether a script whose `KEYS` are parameters may also look for them among the globals.
pub(super) fn reaches_globals(script: &[u8]) -> bool {
    memchr::memmem::find(script, b"load").is_some() || memchr::memmem::find(script, b"_G").is_some()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::engine::harness::Harness;

    fn is_given(script: &str, name: &CStr) -> bool {
        let number = NAMES.iter().position(|known| *known == name).unwrap();
        Locals::of(script.as_bytes()).is_some_and(|Locals(given)| given & 1 << number != 0)
    }

    #[test]
    fn libraries_are_given_to_scripts_that_only_call_their_functions() {
        for script in [
            "return redis.call('get', KEYS[1])",
            "redis . pcall ( 'x' )",
            "local x = redis.sha1hex('a') == 'b'",
            "local function f() return redis.call('x') end return f()",
            "local my_redis, redis2 = 1, 2 return redis.call('x')",
        ] {
            assert!(is_given(script, c"redis"), "{script}");
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
            assert!(!is_given(script, c"redis"), "{script}");
        }
        assert!(is_given("return string.rep('x', 2) .. tonumber('1')", c"string"));
        assert!(is_given("return string.rep('x', 2) .. tonumber('1')", c"tonumber"));
        for script in
            ["tonumber = 1", "local t = tonumber", "function tonumber() end", "f(tonumber)", "tonumber'1'", "function(tonumber)"]
        {
            assert!(!is_given(script, c"tonumber"), "{script}");
        }
        assert!(!is_given("function --[[ ]] tonumber() end", c"tonumber"));
    }

    /// What a script says of a name is the same whether it is a local or not.
    #[test]
    fn no_script_changes_what_others_are_given() {
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
    fn assignments_are_told_from_uses() {
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
