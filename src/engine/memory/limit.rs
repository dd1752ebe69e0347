//! Checks `maxmemory` before commands, and evicts keys when it is used up.

use crate::base::error::{Error, Result};
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::command::{Command, Flags};
use crate::engine::environment::Usage;
use crate::engine::memory::MemoryGuard;
use crate::engine::observe::notices::Notice;
use crate::keyspace::eviction::{Evicted, Order, Policy};
use crate::store::frequency::Rules;

/// Validity of a measurement of the memory in use, in milliseconds, while the memory requested since stays below the limit.
/// Applies only where measuring costs more than a command.
const MEASURE_MS: u64 = 100;
/// Overhead of an argument in bytes, a conservative estimate.
const ARGUMENT_OVERHEAD: usize = 64;
/// Steps of one eviction turn for each point of `maxmemory-eviction-tenacity`: ten points take some tenths of a millisecond.
const STEPS_PER_POINT: u32 = 128;
/// Points beyond which tenacity makes no difference.
const POINTS_MAX: u32 = 10;
/// Cost of evicting a key in steps, besides one step for each sample.
const EVICTION_STEPS: u32 = 8;

impl Engine {
    /// Applies the configuration of eviction.
    pub(in crate::engine) fn configure_eviction(&mut self) {
        let config = &self.config;
        let policy = Policy::named(config.maxmemory_policy);
        let uses = &mut self.keyspace.lru;
        uses.counted = policy.is_some_and(|policy| policy.order == Order::Lfu);
        uses.rules = Rules { log_factor: config.lfu_log_factor, decay_minutes: config.lfu_decay_time };
        let evictor = &mut self.keyspace.evictor;
        evictor.samples = config.maxmemory_samples as usize;
        if evictor.policy != policy {
            evictor.policy = policy;
            evictor.forget();
        }
    }

    /// Evicts keys if `maxmemory` is used up. Returns an error for a command that may need more memory if none can be evicted.
    #[inline]
    pub(crate) fn check_memory(&mut self, now: Now, command: &Command, args: &[&[u8]]) -> Result {
        if self.config.maxmemory == 0 { Ok(()) } else { self.check_bounded_memory(now, command, args) }
    }

    #[inline(never)]
    fn check_bounded_memory(&mut self, now: Now, command: &Command, args: &[&[u8]]) -> Result {
        if self.flags_of(command, args).contains(Flags::DENYOOM) {
            let room = self.make_room(now, wanted_by(args));
            if room.is_err() {
                let maxmemory = self.config.maxmemory;
                self.notice(now, None, Notice::OutOfMemory { command: command.name, maxmemory });
            }
            return room;
        }
        // Other commands run in any case, such as scripts and transactions, during which no key is evicted.
        if self.keyspace.evictor.policy.is_some() {
            let _ = self.make_room(now, 0);
        }
        Ok(())
    }

    /// As [`Engine::check_memory`], for a command that a script calls: no key is evicted while the script runs.
    #[inline]
    pub(crate) fn check_memory_within(&mut self, now: Now, command: &Command, args: &[&[u8]]) -> Result {
        if self.config.maxmemory == 0 || !command.flags.contains(Flags::DENYOOM) {
            return Ok(());
        }
        self.check_room(now, wanted_by(args))
    }

    /// Returns an error if `maxmemory` leaves no room for this many bytes, and otherwise counts them as used. Evicts nothing now,
    /// because this runs in the middle of commands, but schedules eviction if keys can be evicted.
    pub(crate) fn check_room(&mut self, now: Now, wanted: usize) -> Result {
        if self.config.maxmemory == 0 {
            return Ok(());
        }
        if !self.has_room(now, wanted) {
            let can_go = self.keyspace.evictor.policy.is_some() && !self.memory.exhausted;
            fail_if!(!can_go || wanted as u64 > self.config.maxmemory, Error::OOM);
            self.memory.evicting = true;
        }
        self.memory.since += wanted as u64;
        Ok(())
    }

    /// Evicts keys until there is room for this many bytes, or until a turn's steps are used up, and counts the bytes as used.
    /// Returns an error if there will be no room.
    pub(crate) fn make_room(&mut self, now: Now, wanted: usize) -> Result {
        if self.config.maxmemory == 0 {
            return Ok(());
        }
        if !self.has_room(now, wanted) {
            self.memory.over_since_us.get_or_insert(now.mono_us());
            self.evict(now, wanted)?;
        } else if self.memory.over_since_us.is_some() {
            self.end_excess(now);
        }
        self.memory.exhausted = false;
        self.memory.since += wanted as u64;
        Ok(())
    }

    /// Adds the time above `maxmemory` that has ended.
    #[cold]
    fn end_excess(&mut self, now: Now) {
        self.diagnosis.stats.over_maxmemory_us += self.over_maxmemory_us(now);
        self.memory.over_since_us = None;
    }

    /// Duration of the current excess over `maxmemory` in microseconds; 0 without one.
    pub(crate) fn over_maxmemory_us(&self, now: Now) -> u64 {
        self.memory.over_since_us.map_or(0, |since| now.mono_us().saturating_sub(since))
    }

    /// Memory in use: as measured by the driver, or else by the engine's own account.
    pub(crate) fn usage(&mut self) -> Usage {
        let usage = match self.host.environment.usage {
            Some(measure) => measure(),
            None => {
                let tables = self.keyspace.table_bytes() as u64;
                Usage { allocated: tables, resident: tables, resident_peak: tables, ..Usage::default() }
            }
        };
        self.diagnosis.stats.memory_peak = self.diagnosis.stats.memory_peak.max(usage.allocated);
        usage
    }

    fn has_room(&mut self, now: Now, wanted: usize) -> bool {
        let max = self.config.maxmemory;
        if let Some(allocated) = self.host.environment.allocated {
            return allocated().saturating_sub(self.not_counted()).saturating_add(wanted as u64) <= max;
        }
        let full = |guard: &MemoryGuard| guard.measured.saturating_add(guard.since).saturating_add(wanted as u64) > max;
        let age_ms = now.mono_ms() - self.memory.measured_ms.min(now.mono_ms());
        if age_ms >= MEASURE_MS || (full(&self.memory) && age_ms > 0) {
            self.memory.measured = match self.host.environment.usage {
                Some(_) => self.usage().allocated.saturating_sub(self.not_counted()),
                None => self.keyspace.bytes() as u64,
            };
            (self.memory.measured_ms, self.memory.since) = (now.mono_ms(), 0);
        }
        !full(&self.memory)
    }

    /// Whether keys may be evicted now: during a pause, and while other sessions interrupt a script, the data do not change.
    pub(in crate::engine) fn may_evict(&self) -> bool {
        !self.clients.pause.is_on() && self.scripting.long_run.is_none()
    }

    /// Evicts keys for one turn.
    #[cold]
    fn evict(&mut self, now: Now, wanted: usize) -> Result {
        let evicts = self.keyspace.evictor.policy.is_some();
        let mut steps = self.config.maxmemory_eviction_tenacity.min(POINTS_MAX) * STEPS_PER_POINT;
        if evicts && wanted as u64 > self.config.maxmemory {
            // Not even an empty server has the room.
            return Err(Error::OOM);
        }
        if evicts && !self.may_evict() {
            return Ok(());
        }
        let step = EVICTION_STEPS + self.config.maxmemory_samples;
        // Among many locks, a turn may not meet the few plain keys: then there is no room yet.
        let mut gains = !self.keyspace.has_natives || self.keyspace.has_unfreed();
        loop {
            // Deleted keys take up memory until they are freed: nothing is evicted because of them.
            self.keyspace.free_some(&mut steps);
            if self.has_room(now, wanted) {
                self.end_excess(now);
                return Ok(());
            }
            fail_if!(!evicts, Error::OOM);
            if steps == 0 {
                self.memory.evicting = true;
                return if gains { Ok(()) } else { Err(Error::OOM) };
            }
            match self.keyspace.evict_one(now, self.host.environment.allocated.is_none()) {
                Evicted::Key(bytes) => {
                    gains = true;
                    self.memory.measured = self.memory.measured.saturating_sub(bytes as u64);
                    self.publish_events();
                }
                Evicted::NotFound => {}
                Evicted::Nothing => {
                    self.memory.exhausted = true;
                    return Err(Error::OOM);
                }
            }
            steps = steps.saturating_sub(step);
        }
    }

    /// Evicts for one turn, if eviction is pending.
    #[cold]
    pub(in crate::engine) fn go_on_evicting(&mut self, now: Now) {
        if !self.may_evict() {
            return;
        }
        self.memory.evicting = false;
        if self.config.maxmemory == 0 || self.has_room(now, 0) {
            return self.end_excess(now);
        }
        self.memory.over_since_us.get_or_insert(now.mono_us());
        if self.keyspace.evictor.policy.is_none() {
            return;
        }
        self.keyspace.changes.begin();
        // If nothing can be evicted now, the next attempt is when a command requests memory.
        let _ = self.evict(now, 0);
        self.keyspace.changes.end();
        self.publish_events();
    }
}

/// Estimated memory of a command, from its arguments.
fn wanted_by(args: &[&[u8]]) -> usize {
    args.iter().map(|arg| arg.len() + ARGUMENT_OVERHEAD).sum()
}

#[cfg(test)]
mod tests {
    use crate::engine::environment::Usage;
    use crate::engine::harness::Harness;

    #[test]
    fn writes_are_refused_and_the_rest_goes_on_when_memory_is_used_up() {
        let mut h = Harness::new();
        h.engine.host.environment.usage = Some(|| Usage { allocated: 900_000, ..Usage::default() });
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
