//! The passing of time: what ends by itself, and work that is done in slices between requests.

use crate::base::time::Now;
use crate::engine::{Action, Engine};

/// Maximum number of steps (entries fired, moved on the wheel or freed) in one call of [`Engine::advance`]. A command may have to
/// wait for two such calls, the one in progress when it arrives and the one before its own turn: 0.1 to 0.2 ms each, where 2,000
/// steps took up to 0.9 ms. The total work costs the same.
pub const ADVANCE_BUDGET: u32 = 512;

/// Number of notified listeners that take as long as one step.
const TOLD_A_STEP: u32 = 2;

impl Engine {
    /// Advances time to `now`: ends keys and fields whose deadlines have passed, at most [`ADVANCE_BUDGET`] steps per call, and
    /// frees pending memory. Returns whether more work is due already; if so, call it again soon.
    pub fn advance(&mut self, now: Now) -> bool {
        self.mark_journal(true);
        self.end_pause(now);
        if now.reached(self.testing.faults.next_ms()) {
            self.end_delays(now);
        }
        if now.reached(self.testing.gates.next_ms()) {
            self.open_gates(now);
        }
        let mut budget = ADVANCE_BUDGET;
        if now.reached(self.keyspace.changes.locks_due_ms) && !self.keyspace.keep_expired {
            self.run_lock_timers(now, &mut budget);
        }
        if now.reached(self.remembered_due_ms()) {
            self.keyspace.with_locks(now, |locks, _| locks.requests.forget_some(now.mono_ms(), &mut budget));
        }
        let visited = self.running.visited;
        loop {
            // The changes of one deadline are a unit.
            self.keyspace.changes.begin();
            let more = budget > 0 && self.keyspace.expire_due(now, &mut budget);
            self.keyspace.changes.end();
            self.invalidate_others();
            self.publish_events();
            // Notifying listeners takes time too.
            budget = budget.saturating_sub((self.running.visited - visited) as u32 / TOLD_A_STEP);
            self.running.visited = visited;
            if !more {
                break;
            }
        }
        self.publish_events();
        if self.memory.evicting {
            self.go_on_evicting(now);
            self.invalidate_others();
        }
        if self.clients.pubsub.has_retired() {
            self.free_subscriptions(&mut budget);
        }
        if self.counts_clients() {
            self.evict_clients(now);
        }
        self.time_out_key_waits(now, &mut budget);
        if !self.clients.ending.is_empty() {
            self.end_more_grants(now);
        }
        if self.has_jobs() {
            self.run_jobs(now, &mut budget);
        }
        if !self.work.discards.is_empty() {
            self.work.discards.free_some(&mut budget);
        }
        if self.scripting.touched {
            self.free_scripts(&mut budget);
        }
        if self.diagnosis.exceeds {
            self.bound_diagnosis();
        }
        self.settle_journal();
        self.mark_journal(false);
        if self.keyspace.changes.has_follow_up || self.clients.pause.held() > 0 {
            self.follow_up(now);
        }
        self.diagnosis.stats.advances += 1;
        self.diagnosis.stats.full_advances += (budget == 0) as u64;
        self.has_work(now)
    }

    /// Frees some memory of removed scripts.
    #[cold]
    fn free_scripts(&mut self, budget: &mut u32) {
        if self.scripting.interpreters.has_garbage() && self.scripting.interpreters.free_some(budget) {
            self.ask(Action::ReturnMemory);
        }
        self.scripting.touched = self.scripting.interpreters.has_garbage();
    }

    /// Whether [`Engine::advance`] has work now.
    #[inline]
    pub fn has_work(&self, now: Now) -> bool {
        self.next_deadline().is_some_and(|at| now.reached(at))
    }

    /// Whether work that a client has begun continues, which needs no passing of time: it continues even while the clock is
    /// frozen.
    #[inline]
    pub fn has_client_work(&self) -> bool {
        self.has_jobs() || !self.clients.ending.is_empty()
    }

    /// The next time at which remembered lock requests are forgotten, in monotonic milliseconds; `u64::MAX` if there is none.
    #[inline(always)]
    fn remembered_due_ms(&self) -> u64 {
        let Some(locks) = &self.keyspace.changes.locks else { return u64::MAX };
        locks.requests.next_ms()
    }

    /// The monotonic millisecond at which [`Engine::advance`] must be called if nothing happens before; a time in the past means
    /// at once.
    #[inline(always)]
    pub fn next_deadline(&self) -> Option<u64> {
        let clients_go = self.counts_clients() && self.clients_exceed();
        let unfreed = (self.scripting.touched && self.scripting.interpreters.has_garbage())
            || !self.work.discards.is_empty()
            || self.clients.pubsub.has_retired();
        let unfreed = unfreed || self.has_client_work() || self.diagnosis.exceeds;
        if unfreed || (self.memory.evicting && self.may_evict()) || clients_go {
            return Some(0);
        }
        let locks_ms = if self.keyspace.keep_expired { u64::MAX } else { self.keyspace.changes.locks_due_ms };
        let ordered_ms = self.testing.faults.next_ms().min(self.testing.gates.next_ms());
        let next_ms = self.keyspace.changes.waits.next_ms().min(self.clients.pause.next_ms()).min(ordered_ms).min(locks_ms);
        let next_ms = next_ms.min(self.remembered_due_ms());
        let next_ms = self.keyspace.next_wake().unwrap_or(u64::MAX).min(next_ms);
        (next_ms != u64::MAX).then_some(next_ms)
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn notifying_listeners_uses_up_the_budget_of_advance() {
        // The number of turns in which a thousand keys expire, by number of listeners.
        let turns = [0, 20].map(|listeners| {
            let mut h = Harness::new();
            h.run("CONFIG SET notify-keyspace-events Ex");
            for _ in 0..listeners {
                let id = h.engine.connect(h.now, Default::default());
                h.engine.execute(h.now, id, &[b"SUBSCRIBE", b"__keyevent@0__:expired"]);
            }
            (0..1000).for_each(|n| drop(h.args(&[b"SET", format!("k{n}").as_bytes(), b"v", b"PX", b"5"])));
            h.now.advance_us(5000);
            let mut turns = 1;
            while h.engine.advance(h.now) {
                turns += 1;
            }
            h.engine.check_invariants();
            assert_eq!(h.run("DBSIZE"), ":0");
            turns
        });
        assert!(turns[0] <= 6, "{turns:?}");
        assert!((20..=30).contains(&turns[1]), "{turns:?}");
    }
}
