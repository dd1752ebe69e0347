//! Counts the memory of sessions while it has a limit, and closes the largest sessions when all together exceed it.

use std::cmp::Reverse;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::memory::clients::ClientMemory;
use crate::engine::session::{Session, SessionFlags};

/// The smallest limit, in bytes: with less, no client could be served.
const LIMIT_MIN: u64 = 128 << 10;

impl Engine {
    /// Whether the memory of clients has a limit, so that it is counted.
    #[inline]
    pub fn counts_clients(&self) -> bool {
        self.config.maxmemory_clients != 0
    }

    /// Approximate number of bytes of a session's buffers and interests.
    pub fn client_memory(&self, id: SessionId) -> usize {
        let session = &self.clients.sessions[id];
        let lib = session.lib.as_deref().map_or(0, |lib| size_of_val(lib) + lib.0.len() + lib.1.len());
        let changes = &self.keyspace.changes;
        size_of::<Session>()
            + session.addr.len()
            + session.name.as_ref().map_or(0, |name| name.len())
            + lib
            + session.out.len()
            + session.query_buffer as usize
            + session.transaction.as_ref().map_or(0, |transaction| transaction.memory())
            + changes.waits.bytes(session.waiter)
            + self.clients.pause.bytes(session.held)
            + self.work.jobs.bytes(id)
            + changes.watches.bytes(session.watcher)
            + self.clients.pubsub.bytes(id)
            + changes.tracking.bytes(session.tracker)
    }

    /// Approximate number of bytes of all sessions.
    pub fn all_client_memory(&self) -> usize {
        self.clients.sessions.iter().map(|(id, _)| self.client_memory(id)).sum()
    }

    /// Counts a session's current memory. Must be called only while there is a limit.
    #[cold]
    pub fn count_client(&mut self, id: SessionId) {
        let flags = self.clients.sessions[id].flags;
        // A session that is to be closed no longer counts.
        let closing = flags.contains(SessionFlags::CLOSE_NOW);
        let bytes = if closing { 0 } else { self.client_memory(id) as u64 };
        self.clients.memory.charge(id, bytes, !closing && !flags.contains(SessionFlags::NO_EVICT));
    }

    /// Removes a closed session from the count.
    #[cold]
    pub(crate) fn forget_client(&mut self, id: SessionId) {
        self.clients.memory.charge(id, 0, false);
    }

    /// Starts or stops counting, as configured.
    pub(crate) fn configure_client_memory(&mut self) {
        self.clients.memory = ClientMemory::default();
        if self.counts_clients() {
            let all: Vec<SessionId> = self.clients.sessions.iter().map(|(id, _)| id).collect();
            all.into_iter().for_each(|id| self.count_client(id));
        }
    }

    /// The limit in bytes, if any.
    fn clients_limit(&self) -> Option<u64> {
        let limit = match self.config.maxmemory_clients {
            0 => return None,
            bytes @ 1.. => bytes.unsigned_abs(),
            // A percentage of an unlimited `maxmemory` is unlimited too.
            _ if self.config.maxmemory == 0 => return None,
            percent => (u128::from(self.config.maxmemory) * u128::from(percent.unsigned_abs()) / 100) as u64,
        };
        Some(limit.max(LIMIT_MIN))
    }

    /// Whether sessions are to be closed when there is time.
    #[cold]
    pub(crate) fn clients_exceed(&self) -> bool {
        !self.clients.memory.order.is_empty() && self.clients_limit().is_some_and(|limit| self.clients.memory.total >= limit)
    }

    /// Closes the largest sessions until all together are below the limit. Must be called only while there is a limit.
    #[cold]
    pub fn evict_clients(&mut self, now: Now) {
        let Some(limit) = self.clients_limit() else { return };
        while self.clients.memory.total >= limit {
            let Some(&(.., id)) = self.clients.memory.order.first() else {
                tracing::debug!("clients take up more than maxmemory-clients, and none of them may be closed");
                return;
            };
            let known = self.clients.memory.charges[id.index()].bytes;
            self.count_client(id);
            if self.clients.memory.charges[id.index()].bytes < known {
                // It takes up less memory than counted before, so another one may be larger.
                continue;
            }
            let session = &mut self.clients.sessions[id];
            tracing::info!(client = session.id, addr = session.addr, bytes = known, "closing a client for maxmemory-clients");
            session.flags |= SessionFlags::CLOSE_NOW;
            let out = std::mem::take(&mut session.out);
            self.discard(out);
            self.diagnosis.stats.evicted_clients += 1;
            // What it waits for may be granted to others now.
            self.forget_wait(now, id);
            self.mark_pending_write(id);
            self.forget_client(id);
        }
    }

    /// As [`Engine::evict_clients`], before a request of a session. Returns whether the request must not run, because the session
    /// is to be closed.
    #[cold]
    pub(crate) fn evict_clients_before(&mut self, now: Now, id: SessionId) -> bool {
        self.evict_clients(now);
        self.clients.sessions[id].flags.contains(SessionFlags::CLOSE_NOW)
    }

    /// Panics if the counts are wrong.
    pub(crate) fn check_client_memory(&self) {
        let ClientMemory { charges, total, order, .. } = &self.clients.memory;
        assert_eq!(charges.iter().map(|charge| charge.bytes).sum::<u64>(), *total, "charges are summed up");
        assert_eq!(
            charges.iter().filter(|charge| charge.place.is_some()).count(),
            order.len(),
            "every session that may be closed is in the order"
        );
        for (index, charge) in charges.iter().enumerate() {
            let id = self.clients.sessions.iter().map(|(id, _)| id).find(|id| id.index() == index);
            assert!(charge.bytes == 0 || id.is_some(), "a closed session is not counted");
            if let Some((size, serial)) = charge.place {
                let listed = id.is_some_and(|id| order.contains(&(Reverse(size), serial, id)));
                assert!(listed, "the order has the session's place");
            }
        }
        assert!(self.counts_clients() || charges.is_empty(), "nothing is counted without a limit");
    }
}
