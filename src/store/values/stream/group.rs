//! A consumer group: how far it has read, and who has been given what without having acknowledged it.

use std::collections::{BTreeMap, BTreeSet};

use slab::Slab;

use crate::store::values::stream::id::StreamId;

/// An entry that was given to a consumer and not yet acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The number of the consumer.
    consumer: u32,
    /// When it was given last; unix milliseconds.
    pub delivered_ms: i64,
    /// How often it was given.
    pub count: i64,
}

/// A consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// Its name.
    pub name: Box<[u8]>,
    /// When it last asked for anything; unix milliseconds.
    pub seen_ms: i64,
    /// When it last got anything; unix milliseconds.
    pub active_ms: Option<i64>,
    /// Ids of what it has not acknowledged.
    pending: BTreeSet<StreamId>,
}

impl Consumer {
    /// Ids of what it has not acknowledged, in order.
    pub fn pending(&self) -> &BTreeSet<StreamId> {
        &self.pending
    }
}

/// A group.
#[derive(Clone, Debug)]
pub struct Group {
    /// The id of the last entry that was given to any consumer.
    pub last_id: StreamId,
    /// The number of the stream's entries, from the first it ever had, up to that one; `None` where it is not known.
    pub entries_read: Option<u64>,
    pending: BTreeMap<StreamId, Pending>,
    /// Numbers of consumers by name.
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

    /// The consumer of this name, made where there is none, has asked for something now, and got something if `active_ms` says when.
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

    /// Takes a consumer out, and what it has not acknowledged; gives the number of these entries.
    pub fn remove_consumer(&mut self, name: &[u8]) -> Option<usize> {
        let number = self.names.remove(name)?;
        let consumer = self.consumers.remove(number as usize);
        for id in &consumer.pending {
            self.pending.remove(id);
        }
        Some(consumer.pending.len())
    }

    /// What has not been acknowledged, by id.
    pub fn pending(&self) -> &BTreeMap<StreamId, Pending> {
        &self.pending
    }

    /// Who was given an entry.
    pub fn owner(&self, pending: &Pending) -> &Consumer {
        &self.consumers[pending.consumer as usize]
    }

    /// Notes that an entry was given to a consumer, which is made where there is none of this name.
    pub fn set_pending(&mut self, id: StreamId, consumer: &[u8], delivered_ms: i64, count: i64) {
        let consumer = self.number_of(consumer);
        if let Some(old) = self.pending.insert(id, Pending { consumer, delivered_ms, count })
            && old.consumer != consumer
        {
            self.consumers[old.consumer as usize].pending.remove(&id);
        }
        self.consumers[consumer as usize].pending.insert(id);
    }

    /// Notes that an entry was acknowledged; false where it was not pending.
    pub fn remove_pending(&mut self, id: StreamId) -> bool {
        let Some(old) = self.pending.remove(&id) else { return false };
        self.consumers[old.consumer as usize].pending.remove(&id);
        true
    }

    /// Bytes that it takes up, about.
    pub fn allocated(&self) -> usize {
        let names: usize = self.names.keys().map(|name| name.len() * 2 + size_of::<Consumer>() + 40).sum();
        self.pending.len() * 80 + names
    }

    /// Frees up to `budget` pending entries; true when none is left.
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
