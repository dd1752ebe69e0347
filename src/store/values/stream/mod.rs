//! The stream value: entries by id in blocks, and consumer groups.
//!
//! ```text
//!   blocks ── id of the first entry ─▶ Block: about a hundred entries in one buffer
//!   groups ── name ─▶ Group: position, pending entries, consumers
//! ```
//!
//! An entry is added to the last block; if that is full, to a new one. Trimming removes whole blocks first.

mod block;
mod group;
mod id;

use std::collections::BTreeMap;

pub use block::{BlockLimits, Entry};
pub use group::{Consumer, Group, Pending};
pub use id::StreamId;

use block::Block;

/// What remains after trimming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// `MAXLEN`: this many entries.
    Length(u64),
    /// `MINID`: the entries from this id on.
    Id(StreamId),
}

/// How to trim a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// What remains.
    pub threshold: Threshold,
    /// `~`: remove whole blocks only.
    pub approximate: bool,
    /// Maximum number of removed entries; 0 for no limit.
    pub limit: u64,
}

/// Entries and consumer groups.
#[derive(Clone, Default)]
pub struct Stream {
    blocks: BTreeMap<StreamId, Block>,
    len: u64,
    /// The largest id of any entry ever added.
    pub last_id: StreamId,
    /// The largest id that was deleted individually.
    pub max_deleted_id: StreamId,
    /// Number of entries ever added.
    pub entries_added: u64,
    groups: BTreeMap<Box<[u8]>, Group>,
}

impl Stream {
    /// Number of entries.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The id of the first entry; `0-0` if there is none.
    pub fn first_id(&self) -> StreamId {
        self.range(StreamId::MIN, StreamId::MAX).next().map_or(StreamId::MIN, |entry| entry.id)
    }

    /// The id of the last existing entry.
    pub fn last_present(&self) -> Option<StreamId> {
        self.range_back(StreamId::MIN, StreamId::MAX).next().map(|entry| entry.id)
    }

    /// Adds an entry. Its id must be greater than the last one; `pairs` are alternating names and values.
    pub fn append(&mut self, limits: BlockLimits, id: StreamId, pairs: &[&[u8]]) {
        debug_assert!(id > self.last_id);
        let base = match self.blocks.last_key_value() {
            Some((base, block)) if !block.is_full(limits, pairs) => *base,
            _ => {
                self.blocks.insert(id, Block::new(pairs));
                id
            }
        };
        if let Some(block) = self.blocks.get_mut(&base) {
            block.push(base, id, pairs);
        }
        self.len += 1;
        self.entries_added += 1;
        self.last_id = id;
    }

    /// The key of the block that would contain an id.
    fn block_of(&self, id: StreamId) -> StreamId {
        self.blocks.range(..=id).next_back().map_or(id, |(base, _)| *base)
    }

    /// The entry of an id.
    pub fn get(&self, id: StreamId) -> Option<Entry<'_>> {
        self.range(id, id).next()
    }

    /// Entries in a range of ids, both included.
    pub fn range(&self, start: StreamId, end: StreamId) -> impl Iterator<Item = Entry<'_>> {
        let blocks = (start <= end).then(|| self.blocks.range(self.block_of(start)..=end));
        let entries = blocks.into_iter().flatten().flat_map(|(base, block)| block.iter(*base));
        entries.skip_while(move |entry| entry.id < start).take_while(move |entry| entry.id <= end)
    }

    /// As [`Stream::range`] in descending order.
    pub fn range_back(&self, start: StreamId, end: StreamId) -> impl Iterator<Item = Entry<'_>> {
        let blocks = (start <= end).then(|| self.blocks.range(self.block_of(start)..=end).rev());
        let entries = blocks.into_iter().flatten().flat_map(|(base, block)| {
            let entries: Vec<_> = block.iter(*base).collect();
            entries.into_iter().rev()
        });
        entries.skip_while(move |entry| entry.id > end).take_while(move |entry| entry.id >= start)
    }

    /// Deletes an entry. Returns false if it does not exist.
    pub fn remove(&mut self, id: StreamId) -> bool {
        let base = self.block_of(id);
        let Some(block) = self.blocks.get_mut(&base) else { return false };
        if !block.remove(base, id) {
            return false;
        }
        if block.len() == 0 {
            self.blocks.remove(&base);
        }
        self.len -= 1;
        self.max_deleted_id = self.max_deleted_id.max(id);
        true
    }

    /// Removes entries from the front. Returns their number and the id after the last one.
    pub fn trim(&mut self, trim: Trim) -> (u64, Option<StreamId>) {
        let (mut removed, mut last) = (0, None);
        while let Some(mut first) = self.blocks.first_entry() {
            let base = *first.key();
            let block = first.get_mut();
            let entries = block.len() as u64;
            let len = self.len;
            if matches!(trim.threshold, Threshold::Length(max) if len <= max)
                || (trim.limit > 0 && removed + entries > trim.limit)
            {
                break;
            }
            let whole = match trim.threshold {
                Threshold::Length(max) => len - entries >= max,
                Threshold::Id(id) => block.last() < id,
            };
            if whole {
                last = Some(block.last());
                first.remove();
                removed += entries;
                self.len -= entries;
                continue;
            }
            if trim.approximate {
                break;
            }
            let (some, behind) = block.remove_front(base, |removed, id| match trim.threshold {
                Threshold::Length(max) => len - removed as u64 > max,
                Threshold::Id(min) => id < min,
            });
            last = behind.or(last);
            removed += some as u64;
            self.len -= some as u64;
            if block.len() == 0 {
                first.remove();
            }
            break;
        }
        (removed, last.and_then(StreamId::next))
    }

    /// A group by its name.
    pub fn group(&self, name: &[u8]) -> Option<&Group> {
        self.groups.get(name)
    }

    /// A group by its name, for changes.
    pub fn group_mut(&mut self, name: &[u8]) -> Option<&mut Group> {
        self.groups.get_mut(name)
    }

    /// All groups, in the order of their names.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = (&[u8], &Group)> {
        self.groups.iter().map(|(name, group)| (&**name, group))
    }

    /// Adds a group that does not exist.
    pub fn add_group(&mut self, name: &[u8], group: Group) {
        self.groups.insert(name.into(), group);
    }

    /// Removes a group.
    pub fn remove_group(&mut self, name: &[u8]) -> Option<Group> {
        self.groups.remove(name)
    }

    /// Whether an entry with this id or a later one was deleted individually.
    pub fn has_gaps_from(&self, id: StreamId) -> bool {
        self.len > 0 && self.max_deleted_id != StreamId::MIN && id <= self.max_deleted_id
    }

    /// The number of entries ever added up to this id; `None` if it is unknown.
    pub fn entries_up_to(&self, id: StreamId) -> Option<u64> {
        if self.entries_added == 0 {
            return Some(0);
        }
        if self.len == 0 && id <= self.last_id {
            return Some(self.entries_added);
        }
        if id != StreamId::MIN && id < self.max_deleted_id {
            return None;
        }
        if id >= self.last_id {
            return (id == self.last_id).then_some(self.entries_added);
        }
        let first = self.first_id();
        if self.max_deleted_id == StreamId::MIN || self.max_deleted_id < first {
            // Clients can set the counters to any value; as in Redis, they wrap around.
            let before = self.entries_added.wrapping_sub(self.len);
            if id < first {
                return Some(before);
            }
            if id == first {
                return Some(before.wrapping_add(1));
            }
        }
        None
    }

    /// The number of entries that a group has not yet read; `None` if it is unknown.
    pub fn lag(&self, group: &Group) -> Option<i64> {
        if self.entries_added == 0 || self.len == 0 {
            return Some(0);
        }
        let first = self.first_id();
        if group.last_id < first && self.max_deleted_id < first {
            return Some(self.len as i64);
        }
        let read = match group.entries_read {
            Some(read) if !self.has_gaps_from(group.last_id) => read,
            _ => self.entries_up_to(group.last_id)?,
        };
        Some(self.entries_added.wrapping_sub(read) as i64)
    }

    /// `entries_read` of a group after the delivery of this entry, its next one.
    pub fn entries_read_with(&self, group: &Group, id: StreamId) -> Option<u64> {
        match group.entries_read {
            Some(read) if !self.has_gaps_from(group.last_id) => Some(read.wrapping_add(1)),
            old if self.entries_added == 0 => old,
            _ => self.entries_up_to(id),
        }
    }

    /// Approximate bytes of the value on the heap. Walks blocks and consumers.
    pub fn allocated(&self) -> usize {
        let blocks: usize = self.blocks.values().map(|block| block.allocated() + size_of::<Block>() + 32).sum();
        let groups: usize =
            self.groups.iter().map(|(name, group)| name.len() + size_of::<Group>() + 32 + group.allocated()).sum();
        size_of::<Stream>() + blocks + groups
    }

    /// Number of budget steps for freeing it.
    pub fn weight(&self) -> usize {
        self.blocks.len() + self.groups.values().map(|group| group.pending().len() + group.consumers().len()).sum::<usize>() + 1
    }

    /// Frees up to `budget` blocks and pending entries. Returns true when nothing is left.
    pub fn free_some(&mut self, budget: &mut u32) -> bool {
        while *budget > 0 {
            if self.blocks.pop_last().is_some() {
                *budget -= 1;
            } else if let Some(mut group) = self.groups.first_entry() {
                if group.get_mut().free_some(budget) {
                    group.remove();
                    *budget = budget.saturating_sub(1);
                }
            } else {
                return true;
            }
        }
        false
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self) {
        let (mut len, mut last) = (0, None);
        for (base, block) in &self.blocks {
            assert!(block.len() > 0, "an empty block");
            let mut count = 0;
            for entry in block.iter(*base) {
                assert!(last < Some(entry.id) && entry.id >= *base && entry.id <= block.last(), "{} is out of order", entry.id);
                assert_eq!(entry.iter().count(), entry.len(), "fields of {}", entry.id);
                last = Some(entry.id);
                count += 1;
            }
            assert_eq!(count, block.len(), "entries of a block");
            len += count as u64;
        }
        assert_eq!(len, self.len, "len");
        assert!(last.is_none_or(|last| last <= self.last_id), "an entry behind the last");
        self.groups.values().for_each(Group::check_invariants);
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "up to {}, {} added, deleted up to {}: ", self.last_id, self.entries_added, self.max_deleted_id)?;
        f.debug_list().entries(self.range(StreamId::MIN, StreamId::MAX)).finish()?;
        f.debug_map()
            .entries(self.groups.iter().map(|(name, group)| (String::from_utf8_lossy(name).into_owned(), group)))
            .finish()
    }
}

#[cfg(test)]
mod tests;
