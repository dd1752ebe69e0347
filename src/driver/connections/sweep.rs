//! Closes clients that are idle for too long, or do not read what is sent to them.
//!
//! There is no periodic tick: the driver keeps the earliest time at which a client may have to be closed, and sweeps the sessions
//! then.

use std::num::NonZeroU64;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::driver::Driver;
use crate::engine::session::{Session, SessionFlags};

/// Minimum interval between sweeps, in milliseconds.
const SWEEP_EVERY_MS: u64 = 100;
/// Outboxes up to this size never exceed a limit, as on Redis, whose limits do not count the first 16 KiB.
pub(super) const OUTBOX_FREE: usize = 16 << 10;

impl Driver {
    /// Schedules the sweep that closes a session which becomes idle now.
    #[inline]
    pub fn expect_idle(&mut self, now: Now) {
        let timeout = self.engine.config().timeout;
        if timeout > 0 && self.connections.sweep_ms.is_none() {
            self.connections.sweep_ms = Some(now.mono_ms() + u64::from(timeout) * 1000 + 1);
        }
    }

    /// When the sessions are to be swept, in monotonic milliseconds; `None` if nothing would be found.
    #[inline]
    pub fn sweep_ms(&self) -> Option<u64> {
        self.connections.sweep_ms
    }

    /// Sweeps the sessions, if it is time for that: closes those that were idle, or exceeded a soft output limit, for too long.
    #[inline]
    pub fn sweep_when_due(&mut self, now: Now) {
        if self.connections.sweep_ms.is_some_and(|at| now.reached(at)) {
            self.sweep(now);
        }
    }

    /// Has the sessions swept at the next occasion.
    pub(in crate::driver) fn sweep_soon(&mut self, now: Now) {
        self.connections.sweep_ms = Some(now.mono_ms());
    }

    #[cold]
    fn sweep(&mut self, now: Now) {
        let timeout_ms = u64::from(self.engine.config().timeout) * 1000;
        let mut next: Option<u64> = None;
        let mut soonest = |at: u64| next = Some(next.map_or(at, |known: u64| known.min(at)));
        let (mut closing, mut slow) = (Vec::new(), 0);
        for (id, session) in self.engine.sessions().iter() {
            // A session with this flag closes in its next turn.
            let slot = self.connections.slots.get(id).filter(|_| !session.flags.contains(SessionFlags::CLOSE_NOW));
            let Some(slot) = slot else { continue };
            if timeout_ms > 0 && session.subscriptions == [0; 3] {
                // A blocked client, or one that is moving the clock, is not idle.
                let waits = session.flags.contains(SessionFlags::BLOCKED) || self.connections.clock_mover == Some(id);
                let due = if waits { now.mono_ms() } else { session.last_ms } + timeout_ms + 1;
                if now.reached(due) {
                    tracing::debug!(client = session.id, addr = session.addr, "closing an idle client");
                    closing.push(id);
                } else {
                    soonest(due);
                }
            }
            if let Some(since) = slot.soft_since_ms {
                let due = soft_due(since.get(), self.engine.config().client_output_buffer_limit[class(session)].seconds);
                if now.reached(due) {
                    tracing::warn!(
                        client = session.id,
                        addr = session.addr,
                        "closing a client that reads its replies too slowly"
                    );
                    slow += 1;
                    closing.push(id);
                } else {
                    soonest(due);
                }
            }
        }
        self.engine.stats_mut().output_limit_disconnections += slow;
        self.connections.sweep_ms = next.map(|at| at.max(now.mono_ms() + SWEEP_EVERY_MS));
        for id in closing {
            self.abort(id);
        }
    }

    /// Closes a session without writing anything more.
    pub(super) fn abort(&mut self, id: SessionId) {
        self.engine.sessions_mut()[id].flags |= SessionFlags::CLOSE_NOW;
        if self.engine.counts_clients() {
            self.engine.count_client(id);
        }
        self.wake(id);
    }

    /// Enforces `client-output-buffer-limit`. Returns whether the session is closed for it.
    #[inline]
    pub(super) fn check_output(&mut self, id: SessionId, now: Now) -> bool {
        let session = &self.engine.sessions()[id];
        let unsent = session.out.len().saturating_sub(session.sent);
        unsent > OUTBOX_FREE && self.check_large_output(id, now, unsent as u64)
    }

    #[cold]
    fn check_large_output(&mut self, id: SessionId, now: Now, unsent: u64) -> bool {
        let session = &self.engine.sessions()[id];
        let limit = self.engine.config().client_output_buffer_limit[class(session)];
        // What is inside the process has no limit.
        let exceeded = self.connections.slots.get_mut(id).is_some_and(|slot| {
            let mut exceeded = limit.hard > 0 && unsent > limit.hard;
            if limit.soft > 0 && unsent > limit.soft {
                let since = NonZeroU64::MIN.saturating_add(now.mono_ms().saturating_sub(1));
                let due = soft_due(slot.soft_since_ms.get_or_insert(since).get(), limit.seconds);
                exceeded |= now.reached(due);
                self.connections.sweep_ms = Some(self.connections.sweep_ms.map_or(due, |at| at.min(due)));
            } else {
                slot.soft_since_ms = None;
            }
            exceeded
        });
        if exceeded {
            tracing::warn!(client = session.id, addr = session.addr, unsent, "closing a client that does not read its replies");
            self.engine.stats_mut().output_limit_disconnections += 1;
            self.abort(id);
        }
        exceeded
    }
}

/// When a soft limit exceeded since `since_ms` has been exceeded for too long, in monotonic milliseconds.
fn soft_due(since_ms: u64, seconds: u64) -> u64 {
    seconds.saturating_mul(1000).saturating_add(since_ms).saturating_add(1)
}

/// The index of the session's class in `client-output-buffer-limit`.
fn class(session: &Session) -> usize {
    let fed = session.subscriptions != [0; 3] || session.flags.contains(SessionFlags::MONITOR);
    if fed { 2 } else { 0 }
}
