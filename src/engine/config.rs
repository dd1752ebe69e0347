//! Configuration directives. (placeholder, for now)

use crate::engine::change::Classes;

/// The values of all directives.
#[derive(Clone, Debug)]
pub struct Config {
    /// `databases`
    pub databases: u32,
    /// `requirepass`
    pub requirepass: Vec<u8>,
    /// `notify-keyspace-events`
    pub notify_keyspace_events: Classes,
    /// `proto-max-bulk-len`, bytes
    pub proto_max_bulk_len: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            databases: 16,
            requirepass: Vec::new(),
            notify_keyspace_events: Classes::default(),
            proto_max_bulk_len: 512 << 20,
        }
    }
}
