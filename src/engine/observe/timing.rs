//! How long requests take, by as few looks at the clock as will do.
//!
//! A look costs 25 ns, a request 300. What a command costs is bounded by what it is sent and replies, for most commands: those share a
//! look, up to `GROUP` of them, and each is taken to have had an equal part of the time. A command that may take longer whatever its
//! size, one with many or large arguments or a large reply, a message to many, and a script that has run long have a look of their
//! own; so has every command while `slowlog-log-slower-than` is below `EACH_BELOW_US`.
//!
//! So: the number of calls is exact. The time of what shares a look is a mean; that of what does not is exact but for up to
//! `GROUP` small commands before it, whose part is estimated. Commands that share a look and took long altogether are in the slow log as
//! one entry, which names them: most likely the machine was busy elsewhere, as `LATENCY TURNS` tells; `LATENCY` shows it as `fast-command`.
//!
//! Without a stopwatch, as in simulations and while the clock stands still, commands take no time but what `DEBUG SLEEP` adds to it.

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::command::{Command, Flags};
use crate::engine::observe::slowlog::Entry;
use crate::engine::session::SessionFlags;
use crate::engine::slow_path::Circumstances;
use crate::engine::{Action, Engine};
use crate::keyspace::interests::NIL;

/// Commands that share a look at the clock, at most.
const GROUP: usize = 16;
/// With a threshold of the slow log below so many microseconds, every command has a look of its own.
const EACH_BELOW_US: i64 = 1000;
/// A request with more arguments, a longer last one or a longer reply, in bytes, has a look of its own.
const ARGUMENTS_MAX: usize = 64;
const BYTES_MAX: usize = 16 << 10;
/// So has one that visits more than this.
const VISITED_MAX: u64 = 256;

/// A request whose time goes on after it was executed, as the driver does what it asked for.
#[derive(Debug)]
struct Unfinished {
    command: &'static Command,
    slot: usize,
    began_ns: u64,
    entry: Entry,
}

/// Where time is taken.
#[derive(Debug, Default)]
pub struct Timing {
    /// Gives nanoseconds since any origin.
    stopwatch: Option<fn() -> u64>,
    /// The last look.
    looked_ns: u64,
    /// What waits for the next look: slots of [`crate::engine::observe::command_stats::CommandStats`].
    group: [u16; GROUP],
    waiting: usize,
    /// How long one of a group took the last time.
    typical_ns: u64,
    /// While a script is interrupted by others' requests: they are not timed.
    pub(crate) suspended: bool,
    /// A script has run for so long that it was asked about.
    pub(crate) long: bool,
    /// Every command has a look of its own.
    each: bool,
    /// What takes so many nanoseconds is in the slow log; all ones where nothing is.
    slow_ns: u64,
    /// When the transaction began that is to be timed as a whole.
    began_ns: Option<u64>,
    unfinished: Option<Box<Unfinished>>,
}

impl Timing {
    /// Whether the next command does not share a look with others for a reason that lies not with itself.
    pub(crate) fn is_particular(&self) -> bool {
        self.each | self.suspended | self.long
    }

    fn look(&self, now: Now) -> u64 {
        self.stopwatch.map_or(now.mono_us.saturating_mul(1000), |look| look())
    }
}

impl Engine {
    /// Tells that requests will be executed, at `at_ns` by the stopwatch; `None` where time stands still, and then that is the
    /// engine's own.
    #[inline]
    pub fn begin_batch(&mut self, now: Now, at_ns: u64, stopwatch: Option<fn() -> u64>) {
        if self.timing.waiting > 0 || self.timing.unfinished.is_some() {
            self.abandon_times(now);
        }
        self.timing.stopwatch = stopwatch;
        self.timing.looked_ns = at_ns;
        if self.rates.due(now.mono_us) {
            self.sample_rates(now);
        }
    }

    #[cold]
    fn abandon_times(&mut self, now: Now) {
        self.finish(now, None);
        self.share(now, 0);
    }

    /// Tells that no more requests follow at once.
    #[inline]
    pub fn end_batch(&mut self, now: Now) {
        if self.timing.waiting > 0 {
            self.take_time(now);
        }
    }

    /// Looks at the clock and gives their parts to those who wait for it. Gives the time.
    pub(crate) fn take_time(&mut self, now: Now) -> u64 {
        let at_ns = self.timing.look(now);
        let passed = at_ns.saturating_sub(self.timing.looked_ns);
        self.timing.looked_ns = at_ns;
        self.share(now, if self.timing.stopwatch.is_some() { passed } else { 0 });
        at_ns
    }

    /// Has the next time counted from now on.
    #[cold]
    pub(crate) fn restart_time(&mut self, now: Now) {
        if self.timing.waiting > 0 {
            self.share(now, 0);
        }
        self.timing.looked_ns = self.timing.look(now);
    }

    /// Has the command that runs timed as a whole, since a time that [`Engine::take_time`] gave.
    pub(crate) fn time_since(&mut self, began_ns: u64) {
        self.timing.began_ns = Some(began_ns);
    }

    fn share(&mut self, now: Now, passed_ns: u64) {
        let waiting = std::mem::take(&mut self.timing.waiting);
        let Some(each_ns) = passed_ns.checked_div(waiting as u64) else { return };
        self.timing.typical_ns = each_ns;
        let (group, track) = (self.timing.group, self.config.latency_tracking);
        let mut rest = &group[..waiting];
        while let Some(&number) = rest.first() {
            let same = rest.iter().take_while(|other| **other == number).count();
            rest = &rest[same..];
            let slot = self.command_stats.slot(number as usize);
            slot.ns += each_ns * same as u64;
            if track {
                slot.histogram.get_or_insert_default().record(each_ns, same as u32);
            }
        }
        self.note_pause("fast-command", now, passed_ns);
        // Where each has a look of its own, these came before that was asked for.
        if passed_ns >= self.timing.slow_ns && !self.timing.each {
            self.log_slow_group(now, &group[..waiting], passed_ns / 1000);
        }
    }

    /// Has commands that share a look in the slow log. Those that are not to be in there are timed alone while every command is.
    #[cold]
    fn log_slow_group(&mut self, now: Now, group: &[u16], us: u64) {
        let rows = group.iter().filter_map(|&number| self.command_stats.slot(number as usize).row());
        let rows = rows.filter(|row| !row.flags.contains(Flags::SKIP_SLOWLOG));
        let names: Vec<Vec<u8>> = rows.map(|row| self.commands.full_name(row).into_owned().into_bytes()).collect();
        if !names.is_empty() {
            self.slowlog.push(Entry::of_group(now, names), us, self.config.slowlog_max_len);
        }
    }

    /// Notes a pause, if it is one.
    #[inline]
    pub(crate) fn note_pause(&mut self, event: &'static str, now: Now, ns: u64) {
        let threshold_ms = self.config.latency_monitor_threshold;
        if threshold_ms > 0 && ns / 1_000_000 >= threshold_ms {
            self.latency.add(event, now, ns / 1_000_000);
        }
    }

    /// After a request of a client was executed, with a reply of so many bytes, which has left the session with these flags: has its time
    /// taken, now or with others'.
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
        let goes_on = flags.contains(SessionFlags::BLOCKED) && self.goes_on_later(id);
        let long = large || self.visited > VISITED_MAX || !self.command_stats.slot(number).bounded;
        if long || goes_on || self.lasts(Circumstances::TIMED.union(Circumstances::ASKED)) {
            self.executed_alone(now, id, command, number, args);
            return;
        }
        let waiting = self.timing.waiting;
        self.timing.group[waiting] = number as u16;
        self.timing.waiting = waiting + 1;
        if waiting + 1 == GROUP {
            self.take_time(now);
        }
    }

    /// Whether a session waits in a command that is executed again when it goes on. One that waits for locks has done all it had to do.
    #[cold]
    fn goes_on_later(&self, id: SessionId) -> bool {
        let session = &self.sessions[id.0 as usize];
        session.flags.contains(SessionFlags::BLOCKED) && session.lock_waiter == NIL
    }

    #[cold]
    fn executed_alone(&mut self, now: Now, id: SessionId, command: &'static Command, number: usize, args: &[&[u8]]) {
        if self.timing.long {
            self.timing.long = false;
            self.update_circumstances();
        }
        self.visited = 0;
        if self.timing.suspended {
            return;
        }
        if self.goes_on_later(id) {
            let slot = self.command_stats.slot(number);
            slot.calls = slot.calls.saturating_sub(1);
            return;
        }
        let whole = self.timing.began_ns.take();
        let entry = Entry::of(now, &self.sessions[id.0 as usize], command, args);
        let at_ns = self.timing.look(now);
        // In a transaction others follow before the driver does anything: what it does for `CONFIG SET` is not waited for.
        let in_exec = self.sessions[id.0 as usize].flags.contains(SessionFlags::IN_EXEC);
        // Nor does a command that moves the clock take the time by which it moves.
        let asked = |action: &Action| match action {
            Action::ConfigChanged(_) => !in_exec,
            Action::Clock(..) => false,
            _ => true,
        };
        if self.timing.unfinished.is_none() && self.actions.iter().any(asked) {
            let began_ns = whole.unwrap_or(self.timing.looked_ns);
            let began_ns = if self.timing.stopwatch.is_some() { began_ns } else { at_ns };
            self.share(now, 0);
            self.timing.unfinished = Some(Box::new(Unfinished { command, slot: number, began_ns, entry }));
            return;
        }
        // Those who came before have had their part of the time since the last look.
        let passed = if self.timing.stopwatch.is_some() { at_ns.saturating_sub(self.timing.looked_ns) } else { 0 };
        let waiting = self.timing.waiting as u64;
        let before = (self.timing.typical_ns * waiting).min(passed / (waiting + 1) * waiting);
        self.share(now, before);
        self.timing.looked_ns = at_ns;
        let took = whole.map_or(passed - before, |began| at_ns.saturating_sub(began));
        self.record(now, command, number, entry, took);
    }

    /// Tells that what the last requests asked of the driver is done.
    pub fn finish_actions(&mut self, now: Now) {
        if self.rates.due(now.mono_us) {
            self.sample_rates(now);
        }
        if self.timing.unfinished.is_some() {
            self.timing.looked_ns = self.timing.look(now);
            self.finish(now, Some(self.timing.looked_ns));
        }
    }

    fn finish(&mut self, now: Now, at_ns: Option<u64>) {
        if let Some(unfinished) = self.timing.unfinished.take() {
            let Unfinished { command, slot, began_ns, entry } = *unfinished;
            self.record(now, command, slot, entry, at_ns.map_or(0, |at| at.saturating_sub(began_ns)));
        }
    }

    fn record(&mut self, now: Now, command: &'static Command, number: usize, entry: Entry, ns: u64) {
        let slot = self.command_stats.slot(number);
        slot.ns += ns;
        if self.config.latency_tracking {
            slot.histogram.get_or_insert_default().record(ns, 1);
        }
        let event = if command.flags.contains(Flags::FAST) { "fast-command" } else { "command" };
        self.note_pause(event, now, ns);
        if ns >= self.timing.slow_ns && !command.flags.contains(Flags::SKIP_SLOWLOG) {
            self.slowlog.push(entry, ns / 1000, self.config.slowlog_max_len);
        }
    }

    /// Whether time passes while requests are executed.
    pub(crate) fn time_passes(&self) -> bool {
        self.timing.stopwatch.is_some()
    }

    /// What the stopwatch shows, in nanoseconds.
    pub(crate) fn look(&self, now: Now) -> u64 {
        self.timing.look(now)
    }

    /// Goes by the configuration. Circumstances follow.
    pub(crate) fn update_timing(&mut self) {
        let threshold_us = if self.config.slowlog_max_len > 0 { self.config.slowlog_log_slower_than } else { -1 };
        self.timing.each = (0..EACH_BELOW_US).contains(&threshold_us);
        self.timing.slow_ns = u64::try_from(threshold_us).map_or(u64::MAX, |us| us.saturating_mul(1000));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use crate::engine::harness::Harness;

    #[test]
    fn commands_that_share_a_look_are_in_the_slow_log_where_they_took_long_together() {
        /// What the stopwatch of this test shows.
        static SHOWN_NS: AtomicU64 = AtomicU64::new(0);
        let mut h = Harness::new();
        for (took_ms, logged) in [(9, ":0"), (138, ":1")] {
            let began_ns = SHOWN_NS.load(Relaxed);
            h.engine.begin_batch(h.now, began_ns, Some(|| SHOWN_NS.load(Relaxed)));
            for request in [["GET", "k"], ["GET", "k"], ["INCR", "n"]] {
                h.engine.execute(h.now, h.session, &request.map(str::as_bytes));
            }
            SHOWN_NS.store(began_ns + took_ms * 1_000_000, Relaxed);
            h.engine.end_batch(h.now);
            h.engine.sessions[h.session.0 as usize].out.clear();
            assert_eq!(h.run("SLOWLOG LEN"), logged);
        }
        let entry = h.run("SLOWLOG GET");
        assert!(entry.contains(":138000 *3 $3 get $4 incr $32 ... (3 commands, timed together) $0  $0"), "{entry}");
    }
}
