//! Output: what of a session's outbox may be written, and what becomes of the outbox.

use crate::base::ids::SessionId;
use crate::driver::Driver;
use crate::engine::session::SessionFlags;

/// Output is held back: by a fault, or until what it shows is settled.
const HELD: SessionFlags = SessionFlags::FAULT_GATED.union(SessionFlags::UNSETTLED);
/// The shared reply buffer is freed if it grew beyond this.
const KEPT_OUT: usize = 512 << 10;
/// The unsent rest of an outbox moves to its beginning if it is at most this long, or if at least `WRITTEN_MAX` bytes before it
/// were written and it is much shorter than they are.
const MOVED_MAX: usize = 512 << 10;
const WRITTEN_MAX: usize = 64 << 20;

impl Driver {
    /// The part of the session's outbox that can be written now.
    #[inline]
    pub fn unsent(&self, id: SessionId) -> Option<&[u8]> {
        let session = &self.engine.sessions()[id];
        let rest = &session.out[session.sent..];
        if session.flags.intersects(HELD) {
            return Some(&rest[..self.passable(id)]).filter(|passing| !passing.is_empty());
        }
        if rest.is_empty() { None } else { Some(rest) }
    }

    /// Number of bytes that a session whose output is held back may be sent now.
    #[cold]
    fn passable(&self, id: SessionId) -> usize {
        let session = &self.engine.sessions()[id];
        let rest = session.out.len() - session.sent;
        let by_fault = if session.flags.contains(SessionFlags::FAULT_GATED) { self.engine.passable(id) } else { rest };
        let settled = self.output_end(id).saturating_sub(session.net_out);
        by_fault.min(usize::try_from(settled).unwrap_or(usize::MAX)).min(rest)
    }

    /// Whether a part of the session's outbox is held back until its time, or until it is durable.
    #[inline]
    pub(super) fn holds_back(&self, id: SessionId) -> bool {
        self.engine.sessions()[id].flags.intersects(HELD)
    }

    /// Counts bytes of the session's outbox as written.
    #[inline]
    pub fn count_written(&mut self, id: SessionId, bytes: usize) {
        let session = self.engine.count_written(id, bytes);
        if session.sent == session.out.len() {
            session.sent = 0;
            session.out.clear();
            self.connections.slots[id].soft_since_ms = None;
        } else if worth_moving(session.out.len() - session.sent, session.sent) {
            session.out.drain(..session.sent);
            session.sent = 0;
        }
        if self.engine.counts_clients() {
            self.engine.count_client(id);
        }
    }

    /// Takes the reply buffer back from a session that has written all of its outbox. Returns whether a large one was dropped: its
    /// memory is freed piece by piece, when there is time, so [`Driver::wake_recipients`] belongs behind that.
    #[inline]
    pub fn reclaim(&mut self, id: SessionId) -> bool {
        let session = &mut self.engine.sessions_mut()[id];
        if session.out.capacity() > 0 {
            let out = std::mem::take(&mut session.out);
            if out.capacity() > KEPT_OUT {
                self.engine.discard(out);
                return true;
            }
            if out.capacity() > self.connections.out_buffer.capacity() {
                self.connections.out_buffer = out;
            }
        }
        false
    }

    /// Whether the session closes once its outbox is written.
    #[inline]
    pub(super) fn is_closing(&self, id: SessionId) -> bool {
        let flags = self.engine.sessions()[id].flags;
        let done =
            flags.intersection(SessionFlags::CLOSE_WHEN_DONE.union(SessionFlags::BLOCKED)) == SessionFlags::CLOSE_WHEN_DONE;
        done | flags.intersects(SessionFlags::CLOSE_AFTER_REPLY | SessionFlags::CLOSE_NOW)
    }

    /// Whether the session closes without writing anything more.
    #[inline]
    pub(super) fn is_aborted(&self, id: SessionId) -> bool {
        self.engine.sessions()[id].flags.contains(SessionFlags::CLOSE_NOW)
    }
}

/// Whether to move the unsent rest of an outbox to its beginning: `left` bytes are unsent, and `written` bytes before them were
/// sent. The cost stays in proportion to the bytes written, and no single move takes noticeable time.
#[inline]
fn worth_moving(left: usize, written: usize) -> bool {
    written > left && (left <= MOVED_MAX || (written >= WRITTEN_MAX && written / 8 > left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_large_reply_is_moved_only_when_it_is_little() {
        let mut moved = 0;
        let (mut len, mut sent) = (40 << 20, 0);
        while sent < len {
            sent += (64 << 10).min(len - sent);
            if worth_moving(len - sent, sent) {
                moved += len - sent;
                (len, sent) = (len - sent, 0);
            }
        }
        assert!(moved <= 2 * MOVED_MAX, "{moved} bytes moved");
        assert!(worth_moving(10, 11) && !worth_moving(10, 10));
        // The written part of the outbox is bounded even for a client that is always far behind.
        assert!(worth_moving(16 << 20, 129 << 20) && !worth_moving(16 << 20, 100 << 20));
    }
}
