//! The stream value: entries by id, in blocks, and the groups that read them.
//!
//! ```text
//!   blocks ── id of the first entry ─▶ Block: some hundred entries in one buffer
//!   groups ── name ─▶ Group: how far it has read, what is pending, consumers
//! ```
//!
//! An entry goes into the last block; when that is full another begins. Whole blocks go when a stream is trimmed.

mod block;
mod group;
mod id;

use std::collections::BTreeMap;

pub use block::{BlockLimits, Entry};
pub use group::{Consumer, Group, Pending};
pub use id::StreamId;

use block::Block;

/// What a stream is trimmed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// `MAXLEN`: so many entries.
    Length(u64),
    /// `MINID`: entries from this id on.
    Id(StreamId),
}

/// How a stream is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// To what.
    pub threshold: Threshold,
    /// `~`: whole blocks only.
    pub approximate: bool,
    /// Entries that may go at most; 0 is no bound.
    pub limit: u64,
}

/// Entries and groups.
#[derive(Clone, Default)]
pub struct Stream {
    blocks: BTreeMap<StreamId, Block>,
    len: u64,
    /// The largest id that was ever given out.
    pub last_id: StreamId,
    /// The largest id that was deleted by itself.
    pub max_deleted_id: StreamId,
    /// Entries that ever came in.
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

    /// The id of the first entry, `0-0` where there is none.
    pub fn first_id(&self) -> StreamId {
        self.range(StreamId::MIN, StreamId::MAX).next().map_or(StreamId::MIN, |entry| entry.id)
    }

    /// The id of the last entry that is there.
    pub fn last_present(&self) -> Option<StreamId> {
        self.range_back(StreamId::MIN, StreamId::MAX).next().map(|entry| entry.id)
    }

    /// Adds an entry, whose id must be greater than the last; `pairs` are names and values, one after the other.
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

    /// The block in which an id would be.
    fn block_of(&self, id: StreamId) -> StreamId {
        self.blocks.range(..=id).next_back().map_or(id, |(base, _)| *base)
    }

    /// The entry of an id.
    pub fn get(&self, id: StreamId) -> Option<Entry<'_>> {
        self.range(id, id).next()
    }

    /// Entries from one id to another, both included.
    pub fn range(&self, start: StreamId, end: StreamId) -> impl Iterator<Item = Entry<'_>> {
        let blocks = (start <= end).then(|| self.blocks.range(self.block_of(start)..=end));
        let entries = blocks.into_iter().flatten().flat_map(|(base, block)| block.iter(*base));
        entries.skip_while(move |entry| entry.id < start).take_while(move |entry| entry.id <= end)
    }

    /// As [`Stream::range`], the last first.
    pub fn range_back(&self, start: StreamId, end: StreamId) -> impl Iterator<Item = Entry<'_>> {
        let blocks = (start <= end).then(|| self.blocks.range(self.block_of(start)..=end).rev());
        let entries = blocks.into_iter().flatten().flat_map(|(base, block)| {
            let entries: Vec<_> = block.iter(*base).collect();
            entries.into_iter().rev()
        });
        entries.skip_while(move |entry| entry.id > end).take_while(move |entry| entry.id >= start)
    }

    /// Deletes an entry; false where it is not there.
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

    /// Takes entries out from the front; the number of them, and the id behind the last.
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

    /// A group by its name, to be changed.
    pub fn group_mut(&mut self, name: &[u8]) -> Option<&mut Group> {
        self.groups.get_mut(name)
    }

    /// All groups, by name.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = (&[u8], &Group)> {
        self.groups.iter().map(|(name, group)| (&**name, group))
    }

    /// Adds a group that is not there.
    pub fn add_group(&mut self, name: &[u8], group: Group) {
        self.groups.insert(name.into(), group);
    }

    /// Takes a group out.
    pub fn remove_group(&mut self, name: &[u8]) -> Option<Group> {
        self.groups.remove(name)
    }

    /// Whether an entry that was deleted by itself has an id from this one on.
    pub fn has_gaps_from(&self, id: StreamId) -> bool {
        self.len > 0 && self.max_deleted_id != StreamId::MIN && id <= self.max_deleted_id
    }

    /// The number of entries, from the first that ever came in, up to this id; `None` where it cannot be told.
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
            // Counters may have been set to anything: as in Redis, they wrap.
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

    /// How many entries a group has still to read; `None` where it cannot be told.
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

    /// How far a group has read once it is given this entry, which comes next.
    pub fn entries_read_with(&self, group: &Group, id: StreamId) -> Option<u64> {
        match group.entries_read {
            Some(read) if !self.has_gaps_from(group.last_id) => Some(read.wrapping_add(1)),
            old if self.entries_added == 0 => old,
            _ => self.entries_up_to(id),
        }
    }

    /// Bytes of the value on the heap, about. Walks blocks and consumers.
    pub fn allocated(&self) -> usize {
        let blocks: usize = self.blocks.values().map(|block| block.allocated() + size_of::<Block>() + 32).sum();
        let groups: usize =
            self.groups.iter().map(|(name, group)| name.len() + size_of::<Group>() + 32 + group.allocated()).sum();
        size_of::<Stream>() + blocks + groups
    }

    /// How many pieces it takes to free it.
    pub fn weight(&self) -> usize {
        self.blocks.len() + self.groups.values().map(|group| group.pending().len() + group.consumers().len()).sum::<usize>() + 1
    }

    /// Frees up to `budget` blocks and pending entries; true when none is left.
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

    /// Panics where the stream is not what it should be. Walks everything.
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
