//! The log of denied requests, newest first, as `ACL LOG` shows it.

use crate::base::kept::{Dated, Kept, block};
use crate::base::words::brief;

/// Number of entries searched for one with the same content.
const LOOKED_AT: usize = 10;
/// Maximum age of such an entry, in milliseconds, for its counter to be incremented.
const MERGED_WITHIN_MS: u64 = 60_000;
/// Maximum number of bytes of a key or channel in an entry. Redis keeps all of them; a log that clients can fill needs a
/// bound.
const OBJECT_MAX: usize = 1024;

named! {
    /// What was denied, by its name in `ACL LOG`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Reason {
        /// A login.
        Auth = "auth",
        /// A command.
        Command = "command",
        /// A key.
        Key = "key",
        /// A channel.
        Channel = "channel",
    }
}

named! {
    /// The context of the denied request, by its name in `ACL LOG`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Place {
        /// A direct request of a client.
        TopLevel = "toplevel",
        /// In a transaction.
        Multi = "multi",
        /// In a script or function.
        Lua = "lua",
    }
}

/// A denied request.
#[derive(Clone, Debug)]
pub struct Denied {
    /// What was denied.
    pub reason: Reason,
    /// The context of the request.
    pub place: Place,
    /// The command, key or channel.
    pub object: Box<[u8]>,
    /// The user's name.
    pub user: Box<[u8]>,
    /// The `CLIENT LIST` line of the client of the last request.
    pub client: Box<str>,
}

impl Denied {
    /// A denied request, of whose key or channel and user the entry has the beginning.
    pub fn new(reason: Reason, place: Place, object: &[u8], user: &[u8], client: Box<str>) -> Denied {
        let object = object[..object.len().min(OBJECT_MAX)].into();
        Denied { reason, place, object, user: brief(user).into(), client }
    }
}

/// An entry: the same request, denied one or more times.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The denied request.
    pub denied: Denied,
    /// Number of denials.
    pub count: u64,
    /// The entry's id, which is never reused.
    pub id: u64,
    /// Monotonic milliseconds of the last denial.
    pub updated_ms: u64,
    /// Unix milliseconds of the first denial.
    pub created_unix_ms: i64,
    /// Unix milliseconds of the last denial.
    pub updated_unix_ms: i64,
}

impl Dated for Entry {
    fn at_ms(&self) -> u64 {
        self.updated_ms
    }

    fn heap_bytes(&self) -> usize {
        let Denied { object, user, client, .. } = &self.denied;
        [object.len(), user.len(), client.len()].into_iter().map(block).sum()
    }
}

/// The log.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The entries, in the order of their last denials.
    pub kept: Kept<Entry>,
    next_id: u64,
    denied: [u64; 4],
}

impl Log {
    /// Records a denial, and keeps at most `entries_max` entries.
    pub fn add(&mut self, denied: Denied, now: crate::base::time::Now, entries_max: usize) {
        self.denied[denied.reason as usize] += 1;
        if entries_max == 0 {
            self.kept.clear();
            return;
        }
        let (now_ms, unix_ms) = (now.mono_ms(), now.unix_ms());
        let same = |entry: &Entry| {
            let known = &entry.denied;
            known.reason == denied.reason
                && known.place == denied.place
                && known.object == denied.object
                && known.user == denied.user
                && now_ms.saturating_sub(entry.updated_ms) <= MERGED_WITHIN_MS
        };
        let found = self.kept.latest().take(LOOKED_AT).position(same);
        let entry = match found.and_then(|later| self.kept.take(later)) {
            Some(mut entry) => {
                entry.denied.client = denied.client;
                entry.count += 1;
                (entry.updated_ms, entry.updated_unix_ms) = (now_ms, unix_ms);
                entry
            }
            None => {
                let id = self.next_id;
                self.next_id += 1;
                Entry { denied, count: 1, id, updated_ms: now_ms, created_unix_ms: unix_ms, updated_unix_ms: unix_ms }
            }
        };
        self.kept.push(entry, entries_max);
    }

    /// The entries, newest first.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.kept.latest()
    }

    /// Removes all entries; the totals stay.
    pub fn clear(&mut self) {
        self.kept.clear();
    }

    /// Number of denials since the start for each [`Reason`], in their order.
    pub fn denied(&self) -> [u64; 4] {
        self.denied
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::Now;

    fn denied(object: &str) -> Denied {
        Denied::new(Reason::Key, Place::TopLevel, object.as_bytes(), b"bob", "".into())
    }

    fn shown(log: &Log) -> Vec<(u64, String, u64)> {
        let text = |entry: &Entry| String::from_utf8_lossy(&entry.denied.object).into_owned();
        log.entries().map(|entry| (entry.id, text(entry), entry.count)).collect()
    }

    #[test]
    fn the_same_is_counted_up_for_a_minute_and_moves_to_the_front() {
        let mut log = Log::default();
        let at = |ms: u64| Now::new(ms * 1000, 0);
        log.add(denied("a"), at(0), 128);
        log.add(denied("b"), at(10), 128);
        log.add(denied("a"), at(60_000), 128);
        assert_eq!(shown(&log), [(0, "a".into(), 2), (1, "b".into(), 1)]);
        log.add(denied("b"), at(60_011), 128);
        assert_eq!(shown(&log)[0], (2, "b".into(), 1));
        assert_eq!(log.denied(), [0, 0, 4, 0]);
    }

    #[test]
    fn it_is_no_longer_than_told_and_looks_no_further_than_ten() {
        let mut log = Log::default();
        let now = Now::new(0, 0);
        for n in 0..11 {
            log.add(denied(&n.to_string()), now, 128);
        }
        log.add(denied("0"), now, 128);
        assert_eq!(shown(&log)[0], (11, "0".into(), 1));
        log.add(denied("x"), now, 3);
        assert_eq!(log.entries().len(), 3);
        log.add(denied("x"), now, 0);
        assert_eq!((log.entries().len(), log.denied()[2]), (0, 14));
        log.add(denied(&"k".repeat(5000)), now, 3);
        assert_eq!(log.entries().next().map(|entry| entry.denied.object.len()), Some(1024));
    }
}
