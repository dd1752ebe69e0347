//! `SLOWLOG`: the last slow requests, without their secrets.

mod request;

use std::collections::VecDeque;

use crate::base::time::Now;

/// Maximum number of arguments kept; if there are more, the last one kept says how many.
const ARGUMENTS_MAX: usize = 32;

/// One slow request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its id, which is never reused.
    pub id: u64,
    /// Unix time, in seconds.
    pub unix_s: i64,
    /// Its duration, in microseconds.
    pub us: u64,
    /// Its arguments, truncated.
    pub args: Vec<Vec<u8>>,
    /// The client's address.
    pub addr: String,
    /// The client's name.
    pub name: Vec<u8>,
}

impl Entry {
    /// The entry of several commands that were timed together and were slow in total. It lists their names, because it is unknown
    /// which one was slow.
    pub fn of_group(now: Now, mut names: Vec<Vec<u8>>) -> Self {
        let count = names.len();
        names.dedup();
        names.truncate(ARGUMENTS_MAX - 1);
        names.push(format!("... ({count} commands, timed together)").into_bytes());
        Entry { id: 0, unix_s: now.unix_ms().div_euclid(1000), us: 0, args: names, addr: String::new(), name: Vec::new() }
    }
}

/// The log.
#[derive(Debug, Default)]
pub struct SlowLog {
    /// Entries, the newest first.
    entries: VecDeque<Entry>,
    next_id: u64,
}

impl SlowLog {
    /// Adds an entry; the oldest ones beyond `max` are removed.
    pub fn push(&mut self, mut entry: Entry, us: u64, max: u64) {
        (entry.id, entry.us) = (self.next_id, us);
        self.next_id += 1;
        self.entries.push_front(entry);
        self.entries.truncate(usize::try_from(max).unwrap_or(usize::MAX));
    }

    /// The entries, the newest first.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.iter()
    }

    /// Removes all entries.
    pub fn reset(&mut self) {
        self.entries = VecDeque::new();
    }
}
