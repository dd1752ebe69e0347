//! How requests are timed: what the engine does with [`Timing`](crate::engine::observe::timing::Timing), whose page says which
//! requests share a clock read.

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::command::{Command, Flags};
use crate::engine::observe::notices::{Notice, SLOW_NS};
use crate::engine::observe::slowlog::Entry;
use crate::engine::observe::timing::{GROUP, Unfinished};
use crate::engine::session::SessionFlags;
use crate::engine::slow_path::SlowPath;
use crate::engine::{Action, Engine};
use crate::keyspace::interests::NIL;

/// If the slow log's threshold is below this many microseconds, every command has a clock read of its own.
const EACH_BELOW_US: i64 = 1000;
/// A request with more arguments, a longer last argument or a longer reply, in bytes, has a clock read of its own.
const ARGUMENTS_MAX: usize = 64;
const BYTES_MAX: usize = 16 << 10;
/// So has a request that visits more elements than this.
const VISITED_MAX: u64 = 256;

impl Engine {
    /// Announces that requests will be executed, beginning at `at_ns` by the stopwatch; `None` while time stands still, which
    /// then is the engine's own time.
    #[inline]
    pub fn begin_times(&mut self, now: Now, at_ns: u64, stopwatch: Option<fn() -> u64>) {
        if self.diagnosis.timing.waiting > 0 || self.diagnosis.timing.unfinished.is_some() {
            self.abandon_times(now);
        }
        self.diagnosis.timing.stopwatch = stopwatch;
        self.diagnosis.timing.looked_ns = at_ns;
        if self.diagnosis.rates.due(now.mono_us()) {
            self.sample_rates(now);
        }
    }

    #[cold]
    fn abandon_times(&mut self, now: Now) {
        self.finish(now, None);
        self.share(now, 0);
    }

    /// Announces that no further requests follow at once.
    #[inline]
    pub fn end_times(&mut self, now: Now) {
        if self.diagnosis.timing.waiting > 0 {
            self.take_time(now);
        }
    }

    /// Reads the clock and distributes the time over the commands that wait for it. Returns the time.
    pub(crate) fn take_time(&mut self, now: Now) -> u64 {
        let at_ns = self.diagnosis.timing.look(now);
        let passed = at_ns.saturating_sub(self.diagnosis.timing.looked_ns);
        self.diagnosis.timing.looked_ns = at_ns;
        self.share(now, if self.diagnosis.timing.stopwatch.is_some() { passed } else { 0 });
        at_ns
    }

    /// Starts the next measurement now.
    #[cold]
    pub(crate) fn restart_time(&mut self, now: Now) {
        if self.diagnosis.timing.waiting > 0 {
            self.share(now, 0);
        }
        self.diagnosis.timing.looked_ns = self.diagnosis.timing.look(now);
    }

    /// Times the running command as a whole, from a time that [`Engine::take_time`] returned.
    pub(crate) fn time_since(&mut self, began_ns: u64) {
        self.diagnosis.timing.began_ns = Some(began_ns);
    }

    fn share(&mut self, now: Now, passed_ns: u64) {
        let waiting = std::mem::take(&mut self.diagnosis.timing.waiting);
        let Some(each_ns) = passed_ns.checked_div(waiting as u64) else { return };
        self.diagnosis.timing.typical_ns = each_ns;
        let (group, track) = (self.diagnosis.timing.group, self.config.latency_tracking);
        let mut rest = &group[..waiting];
        while let Some(&number) = rest.first() {
            let same = rest.iter().take_while(|other| **other == number).count();
            rest = &rest[same..];
            let slot = self.diagnosis.command_stats.slot(number as usize);
            slot.ns += each_ns * same as u64;
            if track {
                slot.histogram.get_or_insert_default().record(each_ns, same as u32);
            }
        }
        self.note_pause("fast-command", now, passed_ns);
        // If every command has a clock read, these came before that was configured.
        if passed_ns >= self.diagnosis.timing.slow_ns && !self.diagnosis.timing.each {
            self.log_slow_group(now, &group[..waiting], passed_ns / 1000);
        }
    }

    /// Logs commands that share a clock read. Commands that must not be in the slow log are timed alone while every command is.
    #[cold]
    fn log_slow_group(&mut self, now: Now, group: &[u16], us: u64) {
        let rows = group.iter().filter_map(|&number| self.diagnosis.command_stats.slot(number as usize).row());
        let rows = rows.filter(|row| !row.flags.contains(Flags::SKIP_SLOWLOG));
        let names: Vec<Vec<u8>> = rows.map(|row| self.commands.full_name(row).into_owned().into_bytes()).collect();
        if !names.is_empty() {
            let entry = Entry::of_group(now, names);
            self.notice_slow(now, &entry, us * 1000);
            self.log_slow(entry, us);
        }
    }

    #[cold]
    fn log_slow(&mut self, entry: Entry, us: u64) {
        self.diagnosis.slowlog.push(entry, us, self.config.slowlog_max_len);
        self.bound_diagnosis();
    }

    /// Tells the log's reader of a slow request.
    #[cold]
    fn notice_slow(&mut self, now: Now, entry: &Entry, ns: u64) {
        if ns >= SLOW_NS {
            let command = entry.args.first().map_or(&b""[..], Vec::as_slice);
            self.notice(now, None, Notice::Slow { command, addr: &entry.addr, name: &entry.name, us: ns / 1000 });
        }
    }

    /// Records a pause, if it is long enough.
    #[inline]
    pub(crate) fn note_pause(&mut self, event: &'static str, now: Now, ns: u64) {
        let threshold_ms = self.config.latency_monitor_threshold;
        if threshold_ms > 0 && ns / 1_000_000 >= threshold_ms {
            self.diagnosis.latency.add(event, now, ns / 1_000_000);
        }
    }

    /// Records how long the engine took for time that has passed.
    pub(crate) fn note_expiry(&mut self, now: Now, ns: u64) {
        self.stats_mut().expiring_ns += ns;
        self.note_pause("expire-cycle", now, ns);
    }

    /// Called after a client's request was executed, with the size of its reply in bytes and the session's flags afterwards:
    /// measures its time now or together with others.
    #[inline(always)]
    pub(crate) fn executed(
        &mut self,
        now: Now,
        id: SessionId,
        flags: SessionFlags,
        (command, number): (&'static Command, usize),
        args: &[&[u8]],
        replied: usize,
    ) {
        let large = args.len() > ARGUMENTS_MAX || replied > BYTES_MAX || args.last().is_some_and(|arg| arg.len() > BYTES_MAX);
        if large
            || self.running.visited > VISITED_MAX
            || !self.diagnosis.command_stats.slot(number).bounded
            || self.on_slow_path(SlowPath::TIMED.union(SlowPath::ACTIONS))
            || flags.contains(SessionFlags::BLOCKED) && self.is_executed_again(id)
        {
            self.executed_alone(now, id, command, number, args);
            return;
        }
        let waiting = self.diagnosis.timing.waiting;
        self.diagnosis.timing.group[waiting] = number as u16;
        self.diagnosis.timing.waiting = waiting + 1;
        if waiting + 1 == GROUP {
            self.take_time(now);
        }
    }

    /// Whether a session is blocked in a command that is executed again later. One that waits for locks is not.
    #[cold]
    fn is_executed_again(&self, id: SessionId) -> bool {
        let session = &self.clients.sessions[id];
        session.flags.contains(SessionFlags::BLOCKED) && session.lock_waiter == NIL
    }

    #[cold]
    fn executed_alone(&mut self, now: Now, id: SessionId, command: &'static Command, number: usize, args: &[&[u8]]) {
        if self.diagnosis.timing.long {
            self.diagnosis.timing.long = false;
            self.update_slow_path();
        }
        self.running.visited = 0;
        if self.diagnosis.timing.suspended {
            return;
        }
        if self.is_executed_again(id) {
            let slot = self.diagnosis.command_stats.slot(number);
            slot.calls = slot.calls.saturating_sub(1);
            return;
        }
        let whole = self.diagnosis.timing.began_ns.take();
        let entry = Entry::of(now, &self.clients.sessions[id], command, args);
        let at_ns = self.diagnosis.timing.look(now);
        // In a transaction, further commands follow before the driver acts: its actions for `CONFIG SET` are not timed.
        let in_exec = self.clients.sessions[id].flags.contains(SessionFlags::IN_EXEC);
        // The time by which a command moves the clock does not count either.
        let asked = |action: &Action| match action {
            Action::Reconfigured(_) => !in_exec,
            Action::Clock(..) => false,
            _ => true,
        };
        if self.diagnosis.timing.unfinished.is_none() && self.work.actions.iter().any(asked) {
            let began_ns = whole.unwrap_or(self.diagnosis.timing.looked_ns);
            let began_ns = if self.diagnosis.timing.stopwatch.is_some() { began_ns } else { at_ns };
            self.share(now, 0);
            self.diagnosis.timing.unfinished = Some(Box::new(Unfinished { slot: number, began_ns, entry }));
            return;
        }
        // The earlier commands have received their part of the time since the last clock read.
        let passed =
            if self.diagnosis.timing.stopwatch.is_some() { at_ns.saturating_sub(self.diagnosis.timing.looked_ns) } else { 0 };
        let waiting = self.diagnosis.timing.waiting as u64;
        let before = (self.diagnosis.timing.typical_ns * waiting).min(passed / (waiting + 1) * waiting);
        self.share(now, before);
        self.diagnosis.timing.looked_ns = at_ns;
        let took = whole.map_or(passed - before, |began| at_ns.saturating_sub(began));
        self.record(now, number, entry, took);
    }

    /// Announces that the driver has carried out the actions of the last requests.
    pub fn finish_actions(&mut self, now: Now) {
        if self.diagnosis.rates.due(now.mono_us()) {
            self.sample_rates(now);
        }
        if self.diagnosis.timing.unfinished.is_some() {
            self.diagnosis.timing.looked_ns = self.diagnosis.timing.look(now);
            self.finish(now, Some(self.diagnosis.timing.looked_ns));
        }
    }

    fn finish(&mut self, now: Now, at_ns: Option<u64>) {
        if let Some(unfinished) = self.diagnosis.timing.unfinished.take() {
            let Unfinished { slot, began_ns, entry } = *unfinished;
            self.record(now, slot, entry, at_ns.map_or(0, |at| at.saturating_sub(began_ns)));
        }
    }

    fn record(&mut self, now: Now, number: usize, entry: Entry, ns: u64) {
        let slot = self.diagnosis.command_stats.slot(number);
        slot.ns += ns;
        if self.config.latency_tracking {
            slot.histogram.get_or_insert_default().record(ns, 1);
        }
        let flags = slot.row().map_or(Flags::empty(), |row| row.flags);
        let event = if flags.contains(Flags::FAST) { "fast-command" } else { "command" };
        self.note_pause(event, now, ns);
        if ns >= self.diagnosis.timing.slow_ns && !flags.contains(Flags::SKIP_SLOWLOG) {
            self.notice_slow(now, &entry, ns);
            self.log_slow(entry, ns / 1000);
        }
    }

    /// Whether time passes while requests are executed.
    pub(crate) fn time_passes(&self) -> bool {
        self.diagnosis.timing.stopwatch.is_some()
    }

    /// The stopwatch's time, in nanoseconds.
    pub(crate) fn look(&self, now: Now) -> u64 {
        self.diagnosis.timing.look(now)
    }

    /// Applies the threshold of the slow log. The caller updates the slow path.
    pub(crate) fn update_timing(&mut self) {
        let threshold_us = if self.config.slowlog_max_len > 0 { self.config.slowlog_log_slower_than } else { -1 };
        self.diagnosis.timing.each = (0..EACH_BELOW_US).contains(&threshold_us);
        self.diagnosis.timing.slow_ns = u64::try_from(threshold_us).map_or(u64::MAX, |us| us.saturating_mul(1000));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use crate::engine::harness::Harness;

    #[test]
    fn commands_that_share_a_look_are_in_the_slow_log_where_they_took_long_together() {
        /// The time of this test's stopwatch.
        static SHOWN_NS: AtomicU64 = AtomicU64::new(0);
        let mut h = Harness::new();
        for (took_ms, logged) in [(9, ":0"), (138, ":1")] {
            let began_ns = SHOWN_NS.load(Relaxed);
            h.engine.begin_times(h.now, began_ns, Some(|| SHOWN_NS.load(Relaxed)));
            for request in [["GET", "k"], ["GET", "k"], ["INCR", "n"]] {
                h.engine.execute(h.now, h.session, &request.map(str::as_bytes));
            }
            SHOWN_NS.store(began_ns + took_ms * 1_000_000, Relaxed);
            h.engine.end_times(h.now);
            h.engine.clients.sessions[h.session].out.clear();
            assert_eq!(h.run("SLOWLOG LEN"), logged);
        }
        let entry = h.run("SLOWLOG GET");
        assert!(entry.contains(":138000 *3 $3 get $4 incr $32 ... (3 commands, timed together) $0  $0"), "{entry}");
    }
}
