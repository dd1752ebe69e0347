//! `KEYS` and `ARGV`: tables that are created once and refilled for each run.
//!
//! Scripts receive few keys and arguments, often those of the run before: a lease, an owner. Creating and collecting two tables and
//! their strings for each run cost more than the rest of a small script.
//!
//! A script can leave nothing behind for the next run except in these tables. Therefore a table is reused only if it is as it was
//! created: with the same array part, an empty hash part and no metatable. A script cannot distinguish it from a new one.

use std::os::raw::c_int;
use std::ptr;

use mlua::ffi::*;

use crate::script::lua::layout::{self, HashPart, Table};
use crate::script::lua::stack::push_bytes;

/// Maximum array length of tables that are reused, and their number: one for each power of two up to it, and one without elements.
const LEN_MAX: usize = 8;
const TABLES: usize = LEN_MAX.ilog2() as usize + 2;

/// Maximum number of bytes in the strings of a reused table.
const BYTES_MAX: usize = 4096;

/// A table that is reused.
#[derive(Clone, Copy)]
struct ReusedTable {
    /// Null if the table has not been created.
    table: *mut Table,
    /// Its hash part while that is empty.
    empty: Option<HashPart>,
}

/// The tables for `KEYS`, or for `ARGV`.
pub(crate) struct ReusedTables {
    /// Registry reference of the table that keeps them from being collected.
    anchor: c_int,
    tables: [ReusedTable; TABLES],
}

impl ReusedTables {
    /// `anchor` is the registry reference of a table.
    pub(crate) fn new(anchor: c_int) -> Self {
        ReusedTables { anchor, tables: [ReusedTable { table: ptr::null_mut(), empty: None }; TABLES] }
    }

    /// Pushes a table with these elements. The caller may use it until the next call.
    ///
    /// # Safety
    /// No script runs, the stack has room for four values, and allocations cannot fail.
    pub(super) unsafe fn push(&mut self, lua: *mut lua_State, elements: &[&[u8]]) {
        // The array length that a list has in Lua when it grows element by element.
        let len = if elements.is_empty() { 0 } else { elements.len().next_power_of_two() };
        if len > LEN_MAX || elements.iter().map(|element| element.len()).sum::<usize>() > BYTES_MAX {
            // SAFETY: as promised.
            return unsafe { push_new(lua, elements, elements.len()) };
        }
        let slot = if len == 0 { 0 } else { len.ilog2() as usize + 1 };
        // SAFETY: no script runs, so nothing else uses a table while it is refilled, and the anchor keeps it alive. At most three
        // values are pushed, and the table remains.
        unsafe {
            let ReusedTable { table, empty } = self.tables[slot];
            if !empty.is_some_and(|empty| (*table).is_plain_array(len, empty)) {
                push_new(lua, elements, len);
                lua_rawgeti_(lua, LUA_REGISTRYINDEX, self.anchor);
                lua_pushvalue(lua, -2);
                lua_rawseti_(lua, -2, slot as c_int + 1);
                lua_pop(lua, 1);
                let table: *mut Table = lua_topointer(lua, -1).cast_mut().cast();
                self.tables[slot] = ReusedTable { table, empty: Some((*table).hash_part()) };
                return;
            }
            layout::push_table(lua, table);
            for (index, element) in elements.iter().enumerate() {
                if (*table).array()[index].bytes() != Some(element) {
                    push_bytes(lua, element);
                    lua_rawseti_(lua, -2, index as c_int + 1);
                }
            }
            for rest in &mut (*table).array()[elements.len()..] {
                rest.set_nil();
            }
        }
    }
}

/// Pushes a new table with these elements and an array part of `len` places.
///
/// # Safety
/// As for [`ReusedTables::push`].
pub(super) unsafe fn push_new(lua: *mut lua_State, elements: &[&[u8]], len: usize) {
    // SAFETY: the stack has room for the table and an element, and allocations cannot fail.
    unsafe {
        lua_createtable(lua, len as c_int, 0);
        for (index, element) in (1..).zip(elements) {
            push_bytes(lua, element);
            lua_rawseti_(lua, -2, index);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    /// Runs a script with these keys and arguments. Returns the reply with blanks for line ends.
    fn run(harness: &mut Harness, script: &str, keys: &[&str], args: &[&str]) -> String {
        let count = keys.len().to_string();
        let words = ["EVAL", script, &count].into_iter().chain(keys.iter().copied()).chain(args.iter().copied());
        let words: Vec<_> = words.map(str::as_bytes).collect();
        String::from_utf8_lossy(&harness.args(&words)).replace("\r\n", " ")
    }

    #[test]
    fn a_run_sees_nothing_of_the_run_before() {
        const LOOK: &str = "local seen = {} for k, v in pairs(KEYS) do seen[#seen + 1] = k .. '=' .. v end
            for k, v in pairs(ARGV) do seen[#seen + 1] = k .. '=' .. v end
            return table.concat(seen, ' ') .. ' ' .. #KEYS .. ' ' .. #ARGV .. ' ' .. tostring(KEYS.x) .. tostring(ARGV[7])";
        let mut harness = Harness::new();
        for leave in [
            "KEYS[1] = 'other' ARGV[2] = nil return 1",
            "KEYS.x = 1 return 1",
            "KEYS[0] = 1 KEYS[3] = 3 return 1",
            "setmetatable(KEYS, {__index = function() return 'left' end}) return 1",
            "setmetatable(ARGV, {__newindex = function() error('left') end, __mode = 'v'}) return 1",
            "for i = 1, 20 do ARGV[i] = i end for i = 3, 20 do ARGV[i] = nil end return 1",
            "table.insert(KEYS, 'more') table.remove(ARGV) return 1",
            "KEYS[1], KEYS[2] = KEYS[2], KEYS[1] error(ARGV)",
            "ARGV[1] = KEYS return ARGV",
            "local t = KEYS t[1] = t return 1",
        ] {
            run(&mut harness, leave, &["a", "b"], &["c", "d", "e"]);
            let seen = run(&mut harness, LOOK, &["a", "b"], &["c", "d", "e"]);
            assert_eq!(seen, "$30 1=a 2=b 1=c 2=d 3=e 2 3 nilnil ", "after {leave}");
            assert_eq!(run(&mut harness, LOOK, &["a"], &["c", "d"]), "$22 1=a 1=c 2=d 1 2 nilnil ", "after {leave}");
            assert_eq!(run(&mut harness, LOOK, &[], &["x"]), "$14 1=x 0 1 nilnil ", "after {leave}");
            harness.engine.check_invariants();
        }
    }

    #[test]
    fn strings_live_as_long_as_they_are_elements() {
        let mut harness = Harness::new();
        for round in 0..300 {
            let (key, arg) = (format!("key:{}", round / 3), format!("arg:{}", round / 7));
            let script =
                "local g = {} for i = 1, 200 do g[i] = KEYS[1] .. i end collectgarbage() return KEYS[1] .. ARGV[1] .. #KEYS";
            let together = format!("{key}{arg}1");
            assert_eq!(run(&mut harness, script, &[&key], &[&arg]), format!("${} {together} ", together.len()));
        }
        let long = "x".repeat(5000);
        assert_eq!(run(&mut harness, "return #KEYS[1] + #ARGV", &[&long], &["a"; 20]), ":5020 ");
        assert_eq!(run(&mut harness, "return #KEYS[1] + #ARGV", &["k"], &["a"; 8]), ":9 ");
    }
}
