//! Memory of clients, and `maxmemory-clients`: when all clients together exceed the limit, the largest are closed.
//!
//! Without a limit, nothing is counted. With one, a session is counted again when its command has ended, when bytes of it were
//! read or written, and before it would be closed. As in Redis, sizes are compared by powers of two, and of the sessions with the
//! same size the one that reached it first is closed first. Sessions with `CLIENT NO-EVICT on` count, but are never closed.
//!
//! ```text
//!   command, read, write ─▶ count_client ─▶ total ─▶ before the next command, or soon after ─▶ evict_clients ─▶ closed
//! ```
//!
//! This file has the counts; `evict.rs` keeps them up to date and closes sessions.

mod evict;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::base::ids::SessionId;

/// Size classes as powers of two: all sessions up to the first one share a class, and so do all from the second one.
const SIZES: (u32, u32) = (15, 33);

/// The counted memory of a session.
#[derive(Clone, Copy, Debug, Default)]
struct Charge {
    bytes: u64,
    /// Its position among the sessions that may be closed: its size class, and when it reached it; `None` if it may not be
    /// closed.
    place: Option<(u32, u64)>,
}

/// The memory of all sessions, while it has a limit.
#[derive(Debug, Default)]
pub struct ClientMemory {
    /// By session number. A session that ends has its charge removed, before another has its number.
    charges: Vec<Charge>,
    total: u64,
    /// The order of closing: by size class, and by when a session reached it.
    order: BTreeSet<(Reverse<u32>, u64, SessionId)>,
    serial: u64,
}

impl ClientMemory {
    fn charge(&mut self, id: SessionId, bytes: u64, may_close: bool) {
        let index = id.index();
        if self.charges.len() <= index {
            self.charges.resize(index + 1, Charge::default());
        }
        let old = self.charges[index];
        self.total = self.total - old.bytes + bytes;
        let size = (u64::BITS - bytes.leading_zeros()).clamp(SIZES.0, SIZES.1);
        let place = match old.place {
            Some((before, serial)) if may_close && before == size => Some((size, serial)),
            before => {
                if let Some((size, serial)) = before {
                    self.order.remove(&(Reverse(size), serial, id));
                }
                may_close.then(|| {
                    self.serial += 1;
                    self.order.insert((Reverse(size), self.serial, id));
                    (size, self.serial)
                })
            }
        };
        self.charges[index] = Charge { bytes, place };
    }
}

#[cfg(test)]
mod tests;
