//! `maxmemory`: commands that need more memory are refused once it is used up.

use crate::engine::Engine;
use crate::engine::command::{Command, Flags};
use crate::engine::error::{Error, Result};
use crate::engine::time::Now;
use crate::script;

/// Milliseconds for which a measurement of the memory in use is good, while what was asked for since stays below the bound.
const MEASURE_MS: u64 = 100;
/// Bytes that an argument takes up beside itself, estimated on the safe side.
const ARGUMENT_OVERHEAD: usize = 64;

/// What is known of the memory in use.
#[derive(Debug, Default)]
pub struct MemoryGuard {
    /// Bytes in use when they were measured.
    measured: u64,
    /// When that was, monotonic milliseconds.
    measured_ms: u64,
    /// Bytes that commands have asked for since, at the most.
    since: u64,
}

impl Engine {
    /// Errors for a command that may need more memory where `maxmemory` is used up.
    ///
    /// Measuring costs more than a command, so that between two measurements the arguments of commands are counted as taken.
    #[inline]
    pub(crate) fn check_memory(&mut self, now: Now, command: &Command, args: &[&[u8]]) -> Result {
        if self.config.maxmemory == 0 || !script::command_flags(self, command, args).contains(Flags::DENYOOM) {
            return Ok(());
        }
        let wanted: usize = args.iter().map(|arg| arg.len() + ARGUMENT_OVERHEAD).sum();
        self.check_room(now, wanted)
    }

    /// Errors where `maxmemory` leaves no room for so many bytes, and counts them as taken otherwise.
    pub(crate) fn check_room(&mut self, now: Now, wanted: usize) -> Result {
        if self.config.maxmemory == 0 {
            return Ok(());
        }
        let full = |guard: &MemoryGuard, max: u64| guard.measured + guard.since + wanted as u64 > max;
        let age_ms = now.mono_ms() - self.memory.measured_ms.min(now.mono_ms());
        if age_ms >= MEASURE_MS || (full(&self.memory, self.config.maxmemory) && age_ms > 0) {
            let measured = crate::commands::memory_in_use(self);
            self.memory = MemoryGuard { measured, measured_ms: now.mono_ms(), since: 0 };
        }
        if full(&self.memory, self.config.maxmemory) {
            return Err(Error::OOM);
        }
        self.memory.since += wanted as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::environment::Usage;
    use crate::engine::harness::Harness;

    #[test]
    fn writes_are_refused_and_the_rest_goes_on_when_memory_is_used_up() {
        let mut h = Harness::new();
        h.engine.environment.usage = Some(|| Usage { allocated: 900_000, ..Usage::default() });
        h.script(&[("SET k v", "+OK"), ("CONFIG SET maxmemory 1000000", "+OK")]);
        let value = vec![b'v'; 60_000];
        assert_eq!(h.args(&[b"SET", b"a", &value]), b"+OK\r\n");
        let refused = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n";
        assert_eq!(h.args(&[b"SET", b"b", &value]), refused, "what the first took is counted before it is measured");
        h.script(&[
            ("GET k", "$1 v"),
            ("DEL k", ":1"),
            ("SET k v", "+OK"),
            ("CONFIG SET maxmemory 100000", "+OK"),
            ("SET k w", "-OOM command not allowed when used memory > 'maxmemory'."),
            ("GET k", "$1 v"),
            ("EXPIRE k 100", ":1"),
            ("CONFIG SET maxmemory 0", "+OK"),
            ("SET k w", "+OK"),
        ]);
        h.engine.check_invariants();
    }
}
