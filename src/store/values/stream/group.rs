//! A consumer group: its position in the stream, its consumers, and their pending entries.

use std::collections::{BTreeMap, BTreeSet};

use slab::Slab;

use crate::store::values::stream::id::StreamId;

/// An entry that was delivered to a consumer and is not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The index of the consumer.
    consumer: u32,
    /// Time of the last delivery, in unix milliseconds.
    pub delivered_ms: i64,
    /// Number of deliveries.
    pub count: i64,
}

/// A consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// Its name.
    pub name: Box<[u8]>,
    /// Time of the last request, in unix milliseconds.
    pub seen_ms: i64,
    /// Time of the last delivery, in unix milliseconds.
    pub active_ms: Option<i64>,
    /// Ids of its pending entries.
    pending: BTreeSet<StreamId>,
}

impl Consumer {
    /// Ids of its pending entries, in order.
    pub fn pending(&self) -> &BTreeSet<StreamId> {
        &self.pending
    }
}

/// A group.
#[derive(Clone, Debug)]
pub struct Group {
    /// The id of the last entry that was delivered to any consumer.
    pub last_id: StreamId,
    /// The number of entries ever added to the stream up to `last_id`; `None` if it is unknown.
    pub entries_read: Option<u64>,
    pending: BTreeMap<StreamId, Pending>,
    /// Indexes of the consumers by name.
    names: BTreeMap<Box<[u8]>, u32>,
    consumers: Slab<Consumer>,
}

impl Group {
    /// A group without consumers.
    pub fn new(last_id: StreamId, entries_read: Option<u64>) -> Self {
        Group { last_id, entries_read, pending: BTreeMap::new(), names: BTreeMap::new(), consumers: Slab::new() }
    }

    /// A consumer by its name.
    pub fn consumer(&self, name: &[u8]) -> Option<&Consumer> {
        self.names.get(name).map(|&number| &self.consumers[number as usize])
    }

    /// All consumers, by name.
    pub fn consumers(&self) -> impl ExactSizeIterator<Item = &Consumer> {
        self.names.values().map(|&number| &self.consumers[number as usize])
    }

    /// Updates the times of a consumer; creates it if it does not exist. `active_ms` is the time of a delivery, if there was one.
    pub fn set_consumer(&mut self, name: &[u8], seen_ms: i64, active_ms: Option<i64>) {
        let number = self.number_of(name);
        let consumer = &mut self.consumers[number as usize];
        consumer.seen_ms = seen_ms;
        consumer.active_ms = active_ms;
    }

    fn number_of(&mut self, name: &[u8]) -> u32 {
        if let Some(&number) = self.names.get(name) {
            return number;
        }
        let consumer = Consumer { name: name.into(), seen_ms: 0, active_ms: None, pending: BTreeSet::new() };
        let number = self.consumers.insert(consumer) as u32;
        self.names.insert(name.into(), number);
        number
    }

    /// Removes a consumer and its pending entries. Returns the number of these.
    pub fn remove_consumer(&mut self, name: &[u8]) -> Option<usize> {
        let number = self.names.remove(name)?;
        let consumer = self.consumers.remove(number as usize);
        for id in &consumer.pending {
            self.pending.remove(id);
        }
        Some(consumer.pending.len())
    }

    /// The pending entries by id.
    pub fn pending(&self) -> &BTreeMap<StreamId, Pending> {
        &self.pending
    }

    /// The consumer of a pending entry.
    pub fn owner(&self, pending: &Pending) -> &Consumer {
        &self.consumers[pending.consumer as usize]
    }

    /// Records a delivery to a consumer; creates the consumer if it does not exist.
    pub fn set_pending(&mut self, id: StreamId, consumer: &[u8], delivered_ms: i64, count: i64) {
        let consumer = self.number_of(consumer);
        if let Some(old) = self.pending.insert(id, Pending { consumer, delivered_ms, count })
            && old.consumer != consumer
        {
            self.consumers[old.consumer as usize].pending.remove(&id);
        }
        self.consumers[consumer as usize].pending.insert(id);
    }

    /// Removes a pending entry. Returns false if it does not exist.
    pub fn remove_pending(&mut self, id: StreamId) -> bool {
        let Some(old) = self.pending.remove(&id) else { return false };
        self.consumers[old.consumer as usize].pending.remove(&id);
        true
    }

    /// Approximate memory usage in bytes.
    pub fn allocated(&self) -> usize {
        let names: usize = self.names.keys().map(|name| name.len() * 2 + size_of::<Consumer>() + 40).sum();
        self.pending.len() * 80 + names
    }

    /// Frees up to `budget` pending entries. Returns true when none is left.
    pub fn free_some(&mut self, budget: &mut u32) -> bool {
        while *budget > 0 {
            let Some((id, pending)) = self.pending.pop_first() else { return true };
            self.consumers[pending.consumer as usize].pending.remove(&id);
            *budget -= 1;
        }
        false
    }

    /// Panics if an invariant is broken.
    pub fn check_invariants(&self) {
        assert_eq!(self.names.len(), self.consumers.len(), "consumers");
        for (name, number) in &self.names {
            assert_eq!(*name, self.consumers[*number as usize].name, "the name of a consumer");
        }
        for (id, pending) in &self.pending {
            assert!(self.owner(pending).pending.contains(id), "{id} is pending for nobody");
        }
        let owned: usize = self.consumers.iter().map(|(_, consumer)| consumer.pending.len()).sum();
        assert_eq!(owned, self.pending.len(), "what is pending for somebody");
    }
}
