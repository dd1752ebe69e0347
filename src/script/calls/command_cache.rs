//! Commands that scripts have called, by the address of their names: scripts call the same few commands again and again.
//!
//! Equal strings of a Lua state are one object, so the address of a string in use identifies its text. The cache keeps its strings
//! in use.

use std::os::raw::c_int;

use mlua::ffi::*;

use crate::engine::command::{Command, Flags};
use crate::engine::observe::command_stats::CommandStats;
use crate::script::fuel::counter::min_call_cost;
use crate::script::lua::layout;

/// Number of cached commands. A power of two.
pub(crate) const SLOTS: usize = 64;

/// A command as scripts call it.
#[derive(Clone, Copy)]
pub(crate) struct CallableCommand {
    pub command: &'static Command,
    /// See [`min_call_cost`].
    pub min_cost: u64,
    /// Its index in the statistics of commands.
    pub stats_slot: usize,
    /// The minimum and maximum number of its arguments, including its name.
    arguments: (usize, usize),
    /// Whether scripts may call it (no `NOSCRIPT` flag).
    pub allowed: bool,
}

impl CallableCommand {
    pub(crate) fn new(command: &'static Command, stats: &mut CommandStats) -> Self {
        let arity = command.arity.unsigned_abs() as usize;
        CallableCommand {
            command,
            min_cost: min_call_cost(command),
            stats_slot: stats.find(command),
            arguments: (arity, if command.arity >= 0 { arity } else { usize::MAX }),
            allowed: !command.flags.contains(Flags::NOSCRIPT),
        }
    }

    /// Whether the command accepts `argc` arguments, including its name.
    #[inline]
    pub(crate) fn accepts(&self, argc: usize) -> bool {
        (self.arguments.0..=self.arguments.1).contains(&argc)
    }
}

/// The cache of one interpreter. A new name replaces the one in its slot.
pub(crate) struct CommandCache {
    /// Registry reference of the table that keeps the names from being collected.
    anchor: c_int,
    commands: [Option<(usize, CallableCommand)>; SLOTS],
}

impl CommandCache {
    /// `anchor` is the registry reference of a table.
    pub(crate) fn new(anchor: c_int) -> Self {
        CommandCache { anchor, commands: [None; SLOTS] }
    }

    /// The slot of a name. It follows from the hash of the text, so that the cached names, and with them the memory in use, do not
    /// depend on addresses.
    ///
    /// # Safety
    /// A string is at the address.
    #[inline]
    unsafe fn slot(address: usize) -> usize {
        // SAFETY: as promised.
        unsafe { layout::string_hash(address) as usize % SLOTS }
    }

    /// The command whose name is the string at this address, if it is cached.
    ///
    /// # Safety
    /// A string is at the address.
    #[inline]
    pub(super) unsafe fn find(&self, address: usize) -> Option<&CallableCommand> {
        // SAFETY: as promised.
        self.commands[unsafe { Self::slot(address) }].as_ref().filter(|(of, _)| *of == address).map(|(_, command)| command)
    }

    /// Caches a command. Its name is the string at the positive stack index `index`, whose address is `address`.
    ///
    /// # Safety
    /// That string is there, the stack has room for two values, and allocations cannot fail.
    pub(super) unsafe fn insert(&mut self, lua: *mut lua_State, index: c_int, address: usize, command: CallableCommand) {
        // SAFETY: the name lies on the stack at `index`, so a string is at its address.
        let slot = unsafe { Self::slot(address) };
        // SAFETY: likewise, for a positive index.
        unsafe {
            lua_rawgeti_(lua, LUA_REGISTRYINDEX, self.anchor);
            lua_pushvalue(lua, index);
            lua_rawseti_(lua, -2, slot as c_int + 1);
            lua_pop(lua, 1);
        }
        self.commands[slot] = Some((address, command));
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn names_are_distinguished_even_if_their_strings_are_collected() {
        let mut harness = Harness::new();
        // Names in many spellings, created anew each time and collected in between. One of them is not a command.
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
        // A cached name with a wrong number of arguments, and a command with subcommands.
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
