//! The directory of live connections: what threads other than the executor's may know of them.

use std::net::SocketAddr;
use std::os::fd::RawFd;

use dashmap::DashMap;

/// One connection as the rest of the process sees it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The client's address; `None` over a unix socket.
    pub addr: Option<SocketAddr>,
    /// Its file descriptor.
    pub fd: RawFd,
    /// Unix time of the connect, in seconds.
    pub connected_at: i64,
    /// Bytes read, as of at most a second ago.
    pub bytes_in: u64,
    /// Bytes written, as of at most a second ago.
    pub bytes_out: u64,
}

/// Live connections by client id.
#[derive(Debug)]
pub struct Directory {
    entries: DashMap<u64, Entry, foldhash::fast::FixedState>,
}

impl Default for Directory {
    fn default() -> Self {
        // One writer: few shards are enough, and each costs memory.
        Directory { entries: DashMap::with_capacity_and_hasher_and_shard_amount(0, Default::default(), 4) }
    }
}

impl Directory {
    /// Number of live connections.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All of them, by client id.
    pub fn snapshot(&self) -> Vec<(u64, Entry)> {
        let mut all: Vec<_> = self.entries.iter().map(|entry| (*entry.key(), *entry.value())).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    pub(super) fn insert(&self, id: u64, entry: Entry) {
        self.entries.insert(id, entry);
    }

    pub(super) fn remove(&self, id: u64) {
        self.entries.remove(&id);
    }

    pub(super) fn traffic(&self, id: u64, bytes_in: u64, bytes_out: u64) {
        if let Some(mut entry) = self.entries.get_mut(&id) {
            entry.bytes_in = bytes_in;
            entry.bytes_out = bytes_out;
        }
    }
}
