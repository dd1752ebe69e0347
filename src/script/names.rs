//! Names of commands that scripts call, found by the string's address: a script calls the same few again and again.
//!
//! Lua has each string once, so that the address of one that is in use names its text. The strings here are kept in use.

use std::os::raw::c_int;

use mlua::ffi::*;

use crate::engine::command::{Command, Flags};
use crate::engine::observe::command_stats::CommandStats;
use crate::script::bounds;
use crate::script::layout;

/// Names that are known at the same time; a power of two.
pub(super) const NAMES: usize = 64;

/// A command that is called by its name alone.
#[derive(Clone, Copy)]
pub(super) struct Known {
    pub command: &'static Command,
    /// See [`bounds::least_work`].
    pub least_work: u64,
    /// Its number in the statistics of commands.
    pub slot: usize,
    /// The numbers of arguments that it takes, its name included.
    takes: (usize, usize),
    /// Whether scripts may call it as a matter of course.
    pub common: bool,
}

impl Known {
    pub(super) fn new(command: &'static Command, stats: &mut CommandStats) -> Self {
        let arity = command.arity.unsigned_abs() as usize;
        Known {
            command,
            least_work: bounds::least_work(command),
            slot: stats.find(command),
            takes: (arity, if command.arity >= 0 { arity } else { usize::MAX }),
            common: !command.flags.contains(Flags::NOSCRIPT),
        }
    }

    /// Whether so many arguments, the name included, are a number it takes.
    #[inline]
    pub(super) fn takes(&self, argc: usize) -> bool {
        (self.takes.0..=self.takes.1).contains(&argc)
    }
}

/// The names that were called last.
pub(super) struct Names {
    /// The registry has a table at this place that keeps their strings from being collected.
    anchor: c_int,
    known: [Option<(usize, Known)>; NAMES],
}

impl Names {
    /// `anchor` is the place of a table in the registry.
    pub(super) fn new(anchor: c_int) -> Self {
        Names { anchor, known: [None; NAMES] }
    }

    /// By the text: which names are known, and so what is kept in use, does not depend on where strings lie.
    ///
    /// # Safety
    /// A string is at the address.
    #[inline]
    unsafe fn slot(address: usize) -> usize {
        // SAFETY: as promised.
        unsafe { layout::text_hash(address) as usize % NAMES }
    }

    /// The command that is called by the string at this address, if it is known.
    ///
    /// # Safety
    /// A string is at the address.
    #[inline]
    pub(super) unsafe fn find(&self, address: usize) -> Option<&Known> {
        // SAFETY: as promised.
        self.known[unsafe { Self::slot(address) }].as_ref().filter(|(of, _)| *of == address).map(|(_, known)| known)
    }

    /// Notes the command that is called by the string at an index of the stack, whose address is this.
    ///
    /// # Safety
    /// It is; the stack has room for two values, and allocations cannot fail.
    pub(super) unsafe fn note(&mut self, lua: *mut lua_State, index: c_int, address: usize, known: Known) {
        // SAFETY: as promised, for a positive index.
        let slot = unsafe { Self::slot(address) };
        // SAFETY: likewise.
        unsafe {
            lua_rawgeti_(lua, LUA_REGISTRYINDEX, self.anchor);
            lua_pushvalue(lua, index);
            lua_rawseti_(lua, -2, slot as c_int + 1);
            lua_pop(lua, 1);
        }
        self.known[slot] = Some((address, known));
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn names_are_told_apart_whatever_becomes_of_their_strings() {
        let mut harness = Harness::new();
        // Names in many spellings, made anew each time and collected in between, some of them of no command.
        let script = "local wrong = {}
            for round = 1, 60 do
                for i, name in ipairs({'set', 'get', 'strlen', 'exists', 'del', 'incr', 'decr', 'ttl', 'type', 'nothing'}) do
                    local at = round % #name + 1
                    local spelt = name:sub(1, at - 1) .. name:sub(at, at):upper() .. name:sub(at + 1)
                    local reply = spelt:lower() == 'set' and redis.pcall(spelt, 'k', round) or redis.pcall(spelt, 'k')
                    if type(reply) == 'table' then reply = reply.ok or reply.err end
                    wrong[#wrong + 1] = name .. '=' .. tostring(reply)
                end
                if round % 7 == 0 then collectgarbage() end
            end
            local last = {} for i = #wrong - 9, #wrong do last[#last + 1] = wrong[i] end
            return table.concat(last, ' ')";
        let reply = harness.args(&[b"EVAL", script.as_bytes(), b"0"]);
        let expected = "set=OK get=60 strlen=2 exists=1 del=1 incr=1 decr=0 ttl=-1 type=string \
            nothing=ERR Unknown Redis command called from script";
        assert_eq!(String::from_utf8_lossy(&reply), format!("${}\r\n{expected}\r\n", expected.len()));
        // A known name with a number of arguments that it does not take, and names whose next word decides.
        let script = "redis.call('get', 'k') local wrong = redis.pcall('get').err
            redis.call('object', 'refcount', 'k')
            return {wrong, redis.pcall('object', 'none').err, redis.call('object', 'encoding', 'k')}";
        let reply = harness.args(&[b"EVAL", script.as_bytes(), b"0"]);
        let reply = String::from_utf8_lossy(&reply).into_owned();
        assert!(
            reply.contains("Wrong number of args") && reply.contains("Unknown Redis") && reply.ends_with("int\r\n"),
            "{reply}"
        );
    }
}
