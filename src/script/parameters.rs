//! `KEYS` and `ARGV`: tables that are made once, and filled anew for each run.
//!
//! Scripts are given few keys and arguments, again and again, and many of them are those of the run before: a lease, an owner. To make
//! two tables and their strings for each run, and to collect them, cost more than the rest of a small script.
//!
//! Nothing of a script outlives its run but what it leaves in these tables. A table is therefore filled again only where it is as it
//! was made: of the same array, with nothing beside it and no metatable. A script cannot tell it from a new one.

use std::os::raw::c_int;
use std::ptr;

use mlua::ffi::*;

use crate::script::layout::{self, Nodes, Table};
use crate::script::stack::push_bytes;

/// Tables with up to so many places are kept; one for each power of two and one without any.
const PLACES_MAX: usize = 8;
const KEPT: usize = PLACES_MAX.ilog2() as usize + 2;

/// Strings of so many bytes together are not kept beyond their run.
const BYTES_MAX: usize = 4096;

/// A table that is kept.
#[derive(Clone, Copy)]
struct Kept {
    /// Null where none has been made.
    table: *mut Table,
    /// Where a table without places outside of its array has them.
    nodes: Option<Nodes>,
}

/// The tables of one parameter.
pub(super) struct Parameter {
    /// The registry has a table at this place that keeps them from being collected.
    anchor: c_int,
    kept: [Kept; KEPT],
}

impl Parameter {
    /// `anchor` is the place of a table in the registry.
    pub(super) fn new(anchor: c_int) -> Self {
        Parameter { anchor, kept: [Kept { table: ptr::null_mut(), nodes: None }; KEPT] }
    }

    /// Pushes a table with these elements, which may be used until the next one is pushed.
    ///
    /// # Safety
    /// No script runs, the stack has room for four values, and allocations cannot fail.
    pub(super) unsafe fn push(&mut self, lua: *mut lua_State, elements: &[&[u8]]) {
        // As many places as Lua makes for a list that grows element by element.
        let places = if elements.is_empty() { 0 } else { elements.len().next_power_of_two() };
        if places > PLACES_MAX || elements.iter().map(|element| element.len()).sum::<usize>() > BYTES_MAX {
            // SAFETY: as promised.
            return unsafe { push_new(lua, elements, elements.len()) };
        }
        let slot = if places == 0 { 0 } else { places.ilog2() as usize + 1 };
        // SAFETY: as promised; the anchor keeps the table alive. Each step leaves the stack with one table more than before.
        unsafe {
            let Kept { table, nodes } = self.kept[slot];
            if !nodes.is_some_and(|nodes| (*table).is_array_of(places, nodes)) {
                push_new(lua, elements, places);
                lua_rawgeti_(lua, LUA_REGISTRYINDEX, self.anchor);
                lua_pushvalue(lua, -2);
                lua_rawseti_(lua, -2, slot as c_int + 1);
                lua_pop(lua, 1);
                let table: *mut Table = lua_topointer(lua, -1).cast_mut().cast();
                self.kept[slot] = Kept { table, nodes: Some((*table).nodes()) };
                return;
            }
            layout::push_table(lua, table);
            for (index, element) in elements.iter().enumerate() {
                if (*table).places()[index].text() != Some(element) {
                    push_bytes(lua, element);
                    lua_rawseti_(lua, -2, index as c_int + 1);
                }
            }
            for rest in &mut (*table).places()[elements.len()..] {
                rest.clear();
            }
        }
    }
}

/// Pushes a new table with these elements and room for so many.
///
/// # Safety
/// As for [`Parameter::push`].
pub(super) unsafe fn push_new(lua: *mut lua_State, elements: &[&[u8]], places: usize) {
    // SAFETY: as promised.
    unsafe {
        lua_createtable(lua, places as c_int, 0);
        for (index, element) in (1..).zip(elements) {
            push_bytes(lua, element);
            lua_rawseti_(lua, -2, index);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    /// Runs a script with so many keys and arguments and gives its reply.
    fn run(harness: &mut Harness, script: &str, keys: &[&str], args: &[&str]) -> String {
        let count = keys.len().to_string();
        let words = ["EVAL", script, &count].into_iter().chain(keys.iter().copied()).chain(args.iter().copied());
        let words: Vec<_> = words.map(str::as_bytes).collect();
        String::from_utf8_lossy(&harness.args(&words)).replace("\r\n", " ")
    }

    #[test]
    fn nothing_of_a_run_is_seen_by_the_next() {
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
