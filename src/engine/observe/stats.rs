//! Counters that `INFO` shows and `CONFIG RESETSTAT` clears.

use std::collections::BTreeMap;

use crate::base::error::Error;

/// Counters since the start or the last `CONFIG RESETSTAT`.
#[derive(Debug, Default, Clone)]
pub struct Stats {
    /// Connections accepted.
    pub connections: u64,
    /// Connections refused for `maxclients`.
    pub rejected: u64,
    /// Commands executed, including those of scripts.
    pub commands: u64,
    /// Error replies by their code, at most 128 different ones.
    pub errors: BTreeMap<String, u64>,
    /// Error replies.
    pub error_replies: u64,
    /// Bytes read from clients, as reported by the server.
    pub net_in: u64,
    /// Bytes written to clients, as reported by the server.
    pub net_out: u64,
    /// Reads from clients' sockets that returned data, as reported by the server.
    pub reads: u64,
    /// Writes to clients' sockets that accepted data, as reported by the server.
    pub writes: u64,
    /// Connections closed for exceeding the query buffer limit, which also bounds transactions, watched keys and subscriptions.
    pub query_limit_disconnections: u64,
    /// Connections closed for exceeding an output buffer limit.
    pub output_limit_disconnections: u64,
    /// Time spent in [`crate::engine::Engine::advance`], nanoseconds, as reported by the server.
    pub expiring_ns: u64,
    /// Total time with memory above `maxmemory`, microseconds, without the current excess.
    pub over_maxmemory_us: u64,
    /// Counts of the event loop at the last `CONFIG RESETSTAT`; see `Engine::event_loop`.
    pub event_loop_before: [u64; 2],
    /// Messages of `lock-expiry-publish` that had receivers.
    pub expiry_messages: u64,
    /// Connections closed for `maxmemory-clients`.
    pub evicted_clients: u64,
    /// Calls of [`crate::engine::Engine::advance`].
    pub advances: u64,
    /// Calls that used up their budget.
    pub full_advances: u64,
    /// Maximum memory in use over all queries of it, bytes.
    pub memory_peak: u64,
}

impl Stats {
    /// Counts an error reply.
    pub fn error(&mut self, error: &Error) {
        self.error_replies += 1;
        if let Some(count) = self.errors.get_mut(error.code()) {
            *count += 1;
        } else if self.errors.len() < 128 {
            self.errors.insert(error.code().to_owned(), 1);
        }
    }
}
