//! The job of `KEYS` over a large database.

use crate::base::glob;
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::jobs::{ReplyKind, Work};
use crate::resp::reply::{Protocol, Sink, WireReply};

/// A job over the keys of a database.
pub(crate) struct Keys {
    db: u32,
    /// The pattern that keys must match; `None` matches all.
    pattern: Option<Box<[u8]>>,
    cursor: u64,
    found: usize,
}

impl Keys {
    /// The keys of this database that match.
    pub(crate) fn new(db: u32, pattern: Option<&[u8]>) -> Keys {
        Keys { db, pattern: pattern.map(Box::from), cursor: 0, found: 0 }
    }
}

impl Work for Keys {
    fn go_on(&mut self, engine: &mut Engine, now: Now, _: SessionId, count: u32, reply: &mut Vec<u8>) -> bool {
        // Bulk strings are the same in both protocols.
        let mut reply = WireReply::new(reply, Protocol::Resp2);
        let count = (count as usize / self.pattern.as_deref().map_or(1, glob::cost)).max(1);
        self.cursor = engine.keyspace.db(self.db, now).scan(self.cursor, count, |entry| {
            if self.pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, entry.key(), false)) {
                self.found += 1;
                reply.bulk(entry.key());
            }
        });
        self.cursor == 0
    }

    fn kind(&self) -> ReplyKind {
        ReplyKind::Array(self.found)
    }
}
