//! Input that waits to execute: an incomplete request, or requests behind one that blocks or whose reply is not read.

use crate::base::ids::SessionId;
use crate::driver::Driver;
use crate::driver::connections::kept::{BLOCK, Kept};
use crate::engine::access::Parts;
use crate::engine::session::SessionFlags;

impl Driver {
    /// Counts bytes that were read from the session's socket.
    #[inline]
    pub fn count_read(&mut self, id: SessionId, bytes: usize) {
        self.engine.count_read(id, bytes);
    }

    /// Keeps received input, if it cannot execute at once. Returns whether it was kept.
    #[inline]
    pub(super) fn keep_input(&mut self, id: SessionId, input: &[u8]) -> bool {
        let blocked = self.is_blocked(id);
        let slot = &mut self.connections.slots[id];
        let len = match &mut slot.kept {
            Some(kept) => {
                // Behind what waits already, even if the session is not blocked any more.
                if blocked || !kept.behind.is_empty() {
                    kept.append_behind(input);
                } else {
                    kept.bytes.extend_from_slice(input);
                }
                kept.ready = true;
                kept.len()
            }
            // Input behind a blocked request is kept. Reading it is how a closed client is noticed.
            None if blocked => {
                slot.kept = Some(Kept::new(input.to_vec(), Box::default(), true));
                input.len()
            }
            None => return false,
        };
        self.note_kept(id, len);
        true
    }

    /// Drops the kept input, which may be very large.
    pub(super) fn drop_kept(&mut self, id: SessionId) {
        let kept = self.connections.slots.get_mut(id).and_then(|slot| slot.kept.take());
        let Some(kept) = kept else { return };
        for buffer in [kept.bytes].into_iter().chain(kept.behind).filter(|buffer| buffer.capacity() >= BLOCK / 4) {
            self.engine.discard(buffer);
        }
    }

    /// Records how many bytes of requests are kept for the session, and closes the session if they exceed the limit.
    pub(super) fn note_kept(&mut self, id: SessionId, bytes: usize) {
        let Parts { sessions, config, .. } = self.engine.parts();
        let session = &mut sessions[id];
        session.query_buffer = u32::try_from(bytes).unwrap_or(u32::MAX);
        if bytes as u64 > config.client_query_buffer_limit {
            tracing::warn!(client = session.id, addr = session.addr, bytes, "closing a client whose request is too large");
            self.engine.stats_mut().query_limit_disconnections += 1;
            self.abort(id);
        }
        if self.engine.counts_clients() {
            self.engine.count_client(id);
        }
    }

    /// Whether the session is blocked in a request, so that none of its further requests run.
    #[inline]
    pub(super) fn is_blocked(&self, id: SessionId) -> bool {
        self.engine.sessions()[id].flags.contains(SessionFlags::BLOCKED)
    }
}
