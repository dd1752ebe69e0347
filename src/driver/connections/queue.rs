//! The run queue: who is connected, who has a turn, and who is woken by what another's requests wrote.

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::driver::Driver;

/// Maximum number of sessions, written to by a connection's batch, that run before that connection goes on. A client that was
/// just granted a released lock has waited longer, and the releasing client sends more requests while its own reply is on the
/// way. A larger number of sessions does not delay the connection.
const FIRST_MAX: usize = 4;
/// Minimum interval between two reports of a connection's traffic, in milliseconds.
const TRAFFIC_EVERY_MS: u64 = 1000;

/// The traffic of a session so far.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// The client's number, as `CLIENT ID` has it.
    pub client: u64,
    /// Number of bytes received.
    pub received: u64,
    /// Number of bytes written.
    pub written: u64,
}

impl Driver {
    /// Adds the connection of a session that the engine has registered.
    pub fn add_connection(&mut self, now: Now, id: SessionId) {
        self.connections.slots.add(id);
        self.expect_idle(now);
    }

    /// Ends a session whose connection has closed. [`Driver::wake_recipients`] belongs behind it.
    pub fn remove_connection(&mut self, now: Now, id: SessionId) {
        self.drop_kept(id);
        self.connections.slots.remove(id);
        self.forget(id);
        self.engine.disconnect(now, id);
    }

    /// Queues the session's connection for a turn.
    #[inline]
    pub fn wake(&mut self, id: SessionId) {
        self.connections.wake(id);
    }

    /// Queues the session's connection for a turn after all others that are ready, including those of the next round.
    #[inline]
    pub fn wake_later(&mut self, id: SessionId) {
        self.connections.later.push(id);
    }

    /// Queues the connections that go on after all others, when those others are queued.
    #[inline]
    pub fn wake_late(&mut self) {
        let mut later = std::mem::take(&mut self.connections.later);
        later.drain(..).for_each(|id| self.wake(id));
        self.connections.later = later;
    }

    /// Whether a connection waits for a turn.
    #[inline]
    pub fn has_connections_to_run(&self) -> bool {
        !self.connections.run_queue.is_empty() || !self.connections.later.is_empty()
    }

    /// Takes the next session from the run queue.
    #[inline]
    pub fn next_connection(&mut self) -> Option<SessionId> {
        loop {
            let id = self.connections.run_queue.pop_front()?;
            // Its connection may have closed meanwhile.
            if let Some(slot) = self.connections.slots.get_mut(id) {
                slot.queued = false;
                return Some(id);
            }
        }
    }

    /// Number of sessions in the run queue.
    #[inline]
    pub fn queued_connections(&self) -> usize {
        self.connections.run_queue.len()
    }

    /// The session's traffic, if it is time to report that.
    #[inline]
    pub fn traffic_to_report(&mut self, now: Now, id: SessionId) -> Option<Traffic> {
        let slot = &mut self.connections.slots[id];
        let is_due = now.mono_ms().saturating_sub(slot.traffic_ms) >= TRAFFIC_EVERY_MS;
        is_due.then(|| {
            slot.traffic_ms = now.mono_ms();
            let session = &self.engine.sessions()[id];
            Traffic { client: session.id, received: session.net_in, written: session.net_out }
        })
    }

    /// Ends a batch of the session `id`, or something else that has used the engine: what it wrote to others is held back as far as
    /// it must be, and those are woken.
    // Two callers, on the way of each turn and each tick: without this, the compiler decides anew with each change elsewhere.
    #[inline(always)]
    pub fn wake_recipients(&mut self, now: Now, id: Option<SessionId>) {
        self.engine.take_pending_writes(&mut self.connections.pending_writes);
        if !self.is_memory_only() || !self.engine.persistence().answered.is_empty() {
            self.hold_pending_writes(id);
        }
        if !self.connections.pending_writes.is_empty() {
            self.wake_pending_writes(now, id);
        }
        if id.is_some() {
            self.engine.end_times(now);
        }
    }

    #[cold]
    fn hold_pending_writes(&mut self, id: Option<SessionId>) {
        let pending_writes = std::mem::take(&mut self.connections.pending_writes);
        self.hold_others(id, &pending_writes);
        self.connections.pending_writes = pending_writes;
    }

    fn wake_pending_writes(&mut self, now: Now, id: Option<SessionId>) {
        let mut pending_writes = std::mem::take(&mut self.connections.pending_writes);
        let mut woken = 0;
        for other in pending_writes.drain(..) {
            if Some(other) != id {
                self.check_output(other, now);
                self.wake(other);
                woken += 1;
            }
        }
        self.connections.yields = id.is_some() && (1..=FIRST_MAX).contains(&woken);
        self.connections.pending_writes = pending_writes;
    }

    /// The session whose connection has the turn moves the clock: all others run before it is written to.
    pub fn let_others_run(&mut self) {
        self.connections.goes_last = true;
    }

    /// Lets a session move the clock; `None` if that is done. Who waits for that is not idle.
    pub fn set_clock_mover(&mut self, id: Option<SessionId>) {
        self.connections.clock_mover = id;
    }

    /// Forgets what was noted by the clock, which was set to another time: all that is due is looked at soon.
    #[cfg(feature = "quorum")]
    pub(in crate::driver) fn forget_times(&mut self, now: Now) {
        self.help_from_us = 0;
        for slot in self.connections.slots.iter_mut() {
            (slot.soft_since_ms, slot.traffic_ms) = (None, 0);
        }
        self.connections.sweep_ms = Some(now.mono_ms());
    }
}
