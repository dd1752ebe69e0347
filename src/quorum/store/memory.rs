//! What the log says at this moment, and its last entries: the part of the log that is answered without the disk.
//!
//! An entry is here from the moment it is appended. It may leave when it is written, if all entries together are too large.

use std::collections::VecDeque;
use std::io;

use openraft::EntryPayload;

use crate::quorum::store::contents::next_index;
use crate::quorum::store::header::{Lineage, State};
use crate::quorum::types::{Entry, LogId};

/// Bytes of memory that an entry is taken to have besides its effects.
const ENTRY: usize = 128;

/// About how many bytes of memory an entry has.
pub fn weight(entry: &Entry) -> usize {
    ENTRY
        + match &entry.payload {
            EntryPayload::Normal(batch) => batch.bytes.len(),
            EntryPayload::Blank => 0,
            EntryPayload::Membership(membership) => 64 * membership.nodes().count(),
        }
}

struct Cached {
    entry: Entry,
    weight: usize,
    /// Number of the append that brought it.
    append: u64,
}

/// A range of entries: what is here, and what the disk has before it.
#[derive(Debug)]
pub struct Found {
    /// The entries that must be read, from one index up to another, exclusive.
    pub on_disk: std::ops::Range<u64>,
    /// The entries that follow them.
    pub here: Vec<Entry>,
}

/// The log as openraft sees it.
pub struct Memory {
    /// The state, with all that was ordered.
    pub state: State,
    /// The cluster, as the disk has it.
    pub lineage: Lineage,
    /// Why the log has failed.
    pub failed: Option<String>,
    /// Index of the first entry that the log has; if it has none, of the next one.
    first: u64,
    /// The last entries.
    entries: VecDeque<Cached>,
    bytes: usize,
    bytes_max: usize,
    /// Number of appends.
    appends: u64,
    /// The last append that is written.
    written: u64,
    /// The appends that are not written: their numbers and bytes.
    unwritten: VecDeque<(u64, usize)>,
    /// Bytes of those.
    unwritten_bytes: usize,
}

impl Memory {
    /// A log in this state, whose first entry has this index, and which keeps at most so many bytes of entries that are written.
    pub fn new(state: State, lineage: Lineage, first: u64, bytes_max: usize) -> Memory {
        Memory {
            state,
            lineage,
            failed: None,
            first,
            entries: VecDeque::new(),
            bytes: 0,
            bytes_max,
            appends: 0,
            written: 0,
            unwritten: VecDeque::new(),
            unwritten_bytes: 0,
        }
    }

    /// The failure, as openraft is told.
    pub fn check(&self) -> io::Result<()> {
        self.failed.as_ref().map_or(Ok(()), |reason| Err(io::Error::other(reason.clone())))
    }

    /// Bytes of the entries that are here.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the entries that were appended and are not written. The disk's thread has those as well that were removed since.
    pub fn unwritten_bytes(&self) -> usize {
        self.unwritten_bytes
    }

    /// Appends entries. Returns the number of this append.
    ///
    /// # Errors
    /// If they do not follow the last one. Then none is appended.
    pub fn append(&mut self, entries: &[Entry]) -> io::Result<u64> {
        let mut last = self.state.last;
        for entry in entries {
            if let Some(last) = last.filter(|last| entry.log_id.index != last.index + 1) {
                return Err(io::Error::other(format!("entry {} is appended to entry {}", entry.log_id.index, last.index)));
            }
            last = Some(entry.log_id);
        }
        if let Some(first) = entries.first().filter(|_| self.is_empty()) {
            self.first = first.log_id.index;
        }
        self.state.last = last;
        self.appends += 1;
        let bytes = entries.iter().map(weight).sum();
        self.unwritten.push_back((self.appends, bytes));
        self.unwritten_bytes += bytes;
        for entry in entries {
            let weight = weight(entry);
            self.bytes += weight;
            self.entries.push_back(Cached { entry: entry.clone(), weight, append: self.appends });
        }
        Ok(self.appends)
    }

    fn is_empty(&self) -> bool {
        self.first == next_index(self.state.last)
    }

    /// Removes all entries behind one.
    pub fn truncate(&mut self, after: Option<LogId>) {
        let next = next_index(after);
        if next >= next_index(self.state.last) {
            return;
        }
        while self.entries.back().is_some_and(|cached| cached.entry.log_id.index >= next) {
            self.bytes -= self.entries.pop_back().map_or(0, |cached| cached.weight);
        }
        self.state.last = after.max(self.state.purged);
        self.first = self.first.min(next_index(self.state.last));
    }

    /// Removes all entries up to one.
    pub fn purge(&mut self, upto: LogId) {
        while self.entries.front().is_some_and(|cached| cached.entry.log_id.index <= upto.index) {
            self.drop_first();
        }
        self.state.purged = self.state.purged.max(Some(upto));
        self.state.last = self.state.last.max(Some(upto));
        self.first = self.first.max(upto.index + 1);
    }

    /// Notes that all appends up to this one are written.
    pub fn note_written(&mut self, append: u64) {
        self.written = self.written.max(append);
        while self.unwritten.front().is_some_and(|(number, _)| *number <= append) {
            self.unwritten_bytes -= self.unwritten.pop_front().map_or(0, |(_, bytes)| bytes);
        }
        while self.bytes > self.bytes_max && self.entries.front().is_some_and(|cached| cached.append <= self.written) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        self.bytes -= self.entries.pop_front().map_or(0, |cached| cached.weight);
    }

    /// The entries that the log has in a range. Without a limit all of them; with one, as many as have at most so many bytes, but at
    /// least one.
    pub fn find(&self, from: u64, to: u64, limit: Option<usize>) -> Found {
        let next = next_index(self.state.last);
        let (from, to) = (from.max(self.first), to.min(next));
        if from >= to {
            return Found { on_disk: from..from, here: Vec::new() };
        }
        let first_here = self.entries.front().map_or(next, |cached| cached.entry.log_id.index);
        let on_disk = from..to.min(first_here).max(from);
        if limit.is_some() && !on_disk.is_empty() {
            return Found { on_disk, here: Vec::new() };
        }
        let (start, end) = (from.max(first_here), to);
        let mut here = Vec::new();
        if start < end {
            let mut bytes = 0;
            for cached in self.entries.range((start - first_here) as usize..(end - first_here) as usize) {
                bytes += cached.weight;
                if !here.is_empty() && limit.is_some_and(|limit| bytes > limit) {
                    break;
                }
                here.push(cached.entry.clone());
            }
        }
        Found { on_disk, here }
    }
}
