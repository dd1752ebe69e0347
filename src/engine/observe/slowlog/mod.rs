//! `SLOWLOG`: the last slow requests, without their secrets.

mod request;

use crate::base::kept::{Dated, Kept, block};
use crate::base::time::Now;

/// Maximum number of arguments kept; if there are more, the last one kept says how many.
const ARGUMENTS_MAX: usize = 32;

/// One slow request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its id, which is never reused.
    pub id: u64,
    /// Monotonic milliseconds.
    pub at_ms: u64,
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
        let unix_s = now.unix_ms().div_euclid(1000);
        Entry { id: 0, at_ms: now.mono_ms(), unix_s, us: 0, args: names, addr: String::new(), name: Vec::new() }
    }
}

impl Dated for Entry {
    fn at_ms(&self) -> u64 {
        self.at_ms
    }

    fn heap_bytes(&self) -> usize {
        let args = self.args.iter().map(|arg| block(arg.capacity())).sum::<usize>();
        block(self.args.capacity() * size_of::<Vec<u8>>()) + args + block(self.addr.capacity()) + block(self.name.capacity())
    }
}

/// The log.
#[derive(Debug, Default)]
pub struct SlowLog {
    /// The entries.
    pub kept: Kept<Entry>,
    next_id: u64,
}

impl SlowLog {
    /// Adds an entry; the oldest ones beyond `max` are removed.
    pub fn push(&mut self, mut entry: Entry, us: u64, max: u64) {
        (entry.id, entry.us) = (self.next_id, us);
        self.next_id += 1;
        self.kept.push(entry, usize::try_from(max).unwrap_or(usize::MAX));
    }

    /// The entries, the newest first.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.kept.latest()
    }

    /// Removes all entries.
    pub fn reset(&mut self) {
        self.kept.clear();
    }
}
