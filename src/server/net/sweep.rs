//! Closes clients that are idle for too long, or do not read what is sent to them.
//!
//! There is no periodic tick: the shell keeps the earliest time at which a client may have to be closed, and sweeps the sessions
//! then.

use std::num::NonZeroU64;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::session::{Session, SessionFlags};
use crate::server::shell::Shell;

/// Minimum interval between sweeps, in milliseconds.
const SWEEP_EVERY_MS: u64 = 100;
/// Outboxes up to this size never exceed a limit, as on Redis, whose limits do not count the first 16 KiB.
pub(crate) const OUTBOX_FREE: usize = 16 << 10;

impl Shell {
    /// Schedules the sweep that closes a session which becomes idle now.
    #[inline]
    pub(crate) fn expect_idle(&mut self, now: Now) {
        let timeout = self.driver.engine.config.timeout;
        if timeout > 0 && self.sweep_ms.is_none() {
            self.sweep_ms = Some(now.mono_ms() + u64::from(timeout) * 1000 + 1);
        }
    }

    /// Sweeps the sessions: closes those that were idle, or exceeded a soft output limit, for too long.
    #[cold]
    pub(crate) fn sweep(&mut self, now: Now) {
        let timeout_ms = u64::from(self.driver.engine.config.timeout) * 1000;
        let mut next: Option<u64> = None;
        let mut soonest = |at: u64| next = Some(next.map_or(at, |known: u64| known.min(at)));
        let mut closing = Vec::new();
        for (index, session) in &self.driver.engine.sessions {
            let id = SessionId(index as u32);
            if session.flags.contains(SessionFlags::CLOSE_NOW) {
                // It closes in its next turn.
                continue;
            }
            if timeout_ms > 0 && session.subscriptions == [0; 3] && self.slots.get(index).is_some_and(|slot| slot.connected) {
                // A blocked client, or one that is moving the clock, is not idle.
                let waits = session.flags.contains(SessionFlags::BLOCKED) || self.asking == Some(id);
                let due = if waits { now.mono_ms() } else { session.last_ms } + timeout_ms + 1;
                if now.reached(due) {
                    tracing::debug!(client = session.id, addr = session.addr, "closing an idle client");
                    closing.push(id);
                } else {
                    soonest(due);
                }
            }
            if let Some(since) = self.slots.get(index).and_then(|slot| slot.soft_since_ms) {
                let due = soft_due(since.get(), self.driver.engine.config.client_output_buffer_limit[class(session)].seconds);
                if now.reached(due) {
                    tracing::warn!(
                        client = session.id,
                        addr = session.addr,
                        "closing a client that reads its replies too slowly"
                    );
                    self.driver.engine.stats.output_limit_disconnections += 1;
                    closing.push(id);
                } else {
                    soonest(due);
                }
            }
        }
        self.sweep_ms = next.map(|at| at.max(now.mono_ms() + SWEEP_EVERY_MS));
        for id in closing {
            self.abort(id);
        }
    }

    /// Records how many bytes of requests are held for the session, and closes the session if they exceed the limit.
    pub(crate) fn note_held(&mut self, id: SessionId, bytes: usize) {
        let session = &mut self.driver.engine.sessions[id.0 as usize];
        session.query_buffer = u32::try_from(bytes).unwrap_or(u32::MAX);
        if bytes as u64 > self.driver.engine.config.client_query_buffer_limit {
            tracing::warn!(client = session.id, addr = session.addr, bytes, "closing a client whose request is too large");
            self.driver.engine.stats.query_limit_disconnections += 1;
            self.abort(id);
        }
        if self.driver.engine.counts_clients() {
            self.driver.engine.count_client(id);
            let now = self.clock.now();
            self.finish_batch(now, None);
        }
    }

    /// Closes a session without writing anything more.
    pub(crate) fn abort(&mut self, id: SessionId) {
        self.driver.engine.sessions[id.0 as usize].flags |= SessionFlags::CLOSE_NOW;
        if self.driver.engine.counts_clients() {
            self.driver.engine.count_client(id);
        }
        self.wake(id);
    }

    /// Enforces `client-output-buffer-limit`. Returns whether the session is closed for it.
    #[inline]
    pub(crate) fn check_output(&mut self, id: SessionId, now: Now) -> bool {
        let session = &self.driver.engine.sessions[id.0 as usize];
        let unsent = session.out.len().saturating_sub(session.sent);
        unsent > OUTBOX_FREE && self.check_large_output(id, now, unsent as u64)
    }

    #[cold]
    fn check_large_output(&mut self, id: SessionId, now: Now, unsent: u64) -> bool {
        let session = &self.driver.engine.sessions[id.0 as usize];
        let limit = self.driver.engine.config.client_output_buffer_limit[class(session)];
        let Some(slot) = self.slots.get_mut(id.0 as usize) else { return false };
        let mut exceeded = limit.hard > 0 && unsent > limit.hard;
        if limit.soft > 0 && unsent > limit.soft {
            let since = slot.soft_since_ms.get_or_insert(NonZeroU64::MIN.saturating_add(now.mono_ms().saturating_sub(1))).get();
            let due = soft_due(since, limit.seconds);
            exceeded |= now.reached(due);
            self.sweep_ms = Some(self.sweep_ms.map_or(due, |at| at.min(due)));
        } else {
            slot.soft_since_ms = None;
        }
        if exceeded {
            tracing::warn!(client = session.id, addr = session.addr, unsent, "closing a client that does not read its replies");
            self.driver.engine.stats.output_limit_disconnections += 1;
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
