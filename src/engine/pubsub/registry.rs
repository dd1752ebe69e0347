//! The topics of one kind, their subscriptions, and the sessions that own these.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use slab::Slab;

use crate::base::chunks::Chunks;
use crate::base::ids::SessionId;
use crate::base::segments::Segments;

/// End of a list.
const NIL: u32 = u32::MAX;

/// Maximum number of subscriptions of a session that are removed at once.
const AT_ONCE: u32 = 64;

/// One session's subscription to one topic.
#[derive(Clone, Copy)]
pub(super) struct Subscription {
    owner: u32,
    pub(super) topic: u32,
    /// Neighbours in the topic's list.
    topic_prev: u32,
    topic_next: u32,
    /// Neighbours in the owner's list.
    owner_prev: u32,
    owner_next: u32,
}

/// A channel or pattern with subscriptions.
pub(super) struct Topic {
    pub(super) name: Arc<[u8]>,
    /// First and last subscription.
    first: u32,
    last: u32,
    /// Number of subscriptions, including those without an owner.
    count: u32,
    /// Neighbours in the list of all topics.
    prev: u32,
    next: u32,
}

/// First and last element of a list.
#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
}

impl Ends {
    const NONE: Ends = Ends { first: NIL, last: NIL };
}

/// The owner of subscriptions.
struct Owner {
    /// `None` if the session is closed.
    session: Option<SessionId>,
    first: u32,
    last: u32,
    count: u32,
    /// Total bytes of the names.
    name_bytes: usize,
}

/// Position of a walk over all topics.
#[derive(Clone, Copy)]
struct Cursor {
    /// The next topic.
    next: u32,
    /// Number of visits after which all initial topics have been visited: newer ones come last.
    left: usize,
}

/// Topics of one kind and their subscriptions.
pub(super) struct Registry {
    hasher: FixedState,
    /// Topics by name.
    names: Segments,
    pub(super) topics: Chunks<Topic>,
    all: Ends,
    subscriptions: Chunks<Subscription>,
    /// Subscriptions by owner and topic.
    pairs: Segments,
    owners: Slab<Owner>,
    /// Owners by session.
    sessions: HashMap<SessionId, u32, FixedState>,
    /// Owners of closed sessions, whose subscriptions are being removed.
    pub(super) retired: VecDeque<u32>,
    cursors: Slab<Cursor>,
}

impl Registry {
    pub(super) fn new(hasher: FixedState) -> Self {
        Registry {
            names: Segments::default(),
            topics: Chunks::default(),
            all: Ends::NONE,
            subscriptions: Chunks::default(),
            pairs: Segments::default(),
            owners: Slab::new(),
            sessions: HashMap::with_hasher(hasher.clone()),
            hasher,
            retired: VecDeque::new(),
            cursors: Slab::new(),
        }
    }

    pub(super) fn subscribe(&mut self, id: SessionId, name: &[u8]) -> bool {
        let owners = &mut self.owners;
        let owner = *self
            .sessions
            .entry(id)
            .or_insert_with(|| owners.insert(Owner { session: Some(id), first: NIL, last: NIL, count: 0, name_bytes: 0 }) as u32);
        let topic = match self.find(name) {
            Some(topic) if self.find_pair(owner, topic).is_some() => return false,
            Some(topic) => topic,
            None => self.add_topic(name),
        };
        let own = &mut self.owners[owner as usize];
        let at = &mut self.topics[topic];
        let node = self.subscriptions.insert(Subscription {
            owner,
            topic,
            topic_prev: at.last,
            topic_next: NIL,
            owner_prev: own.last,
            owner_next: NIL,
        });
        match self.subscriptions.get_mut(at.last) {
            Some(before) => before.topic_next = node,
            None => at.first = node,
        }
        at.last = node;
        at.count += 1;
        match self.subscriptions.get_mut(own.last) {
            Some(before) => before.owner_next = node,
            None => own.first = node,
        }
        own.last = node;
        own.count += 1;
        own.name_bytes += name.len();
        self.pairs.insert(self.pair_hash(owner, topic), node);
        true
    }

    pub(super) fn unsubscribe(&mut self, id: SessionId, name: &[u8]) -> bool {
        let (Some(topic), Some(&owner)) = (self.find(name), self.sessions.get(&id)) else { return false };
        let Some(node) = self.find_pair(owner, topic) else { return false };
        self.remove(node);
        true
    }

    pub(super) fn unsubscribe_oldest(&mut self, id: SessionId) -> Option<Arc<[u8]>> {
        let owner = *self.sessions.get(&id)?;
        Some(self.remove(self.owners[owner as usize].first))
    }

    pub(super) fn forget(&mut self, id: SessionId) {
        let Some(&owner) = self.sessions.get(&id) else { return };
        if self.owners[owner as usize].count <= AT_ONCE {
            while self.unsubscribe_oldest(id).is_some() {}
        } else {
            self.sessions.remove(&id);
            self.owners[owner as usize].session = None;
            self.retired.push_back(owner);
        }
    }

    pub(super) fn free_some(&mut self, budget: &mut u32) {
        while *budget > 0
            && let Some(&owner) = self.retired.front()
        {
            *budget -= 1;
            self.remove(self.owners[owner as usize].first);
        }
    }

    pub(super) fn bytes(&self, id: SessionId) -> usize {
        let Some(&owner) = self.sessions.get(&id) else { return 0 };
        let owner = &self.owners[owner as usize];
        owner.name_bytes + owner.count as usize * (size_of::<Topic>() + size_of::<Subscription>() + 64)
    }

    /// Number of subscribers of a topic.
    pub(super) fn count(&self, topic: &Topic) -> usize {
        if self.retired.is_empty() { topic.count as usize } else { self.listeners(topic).count() }
    }

    /// Removes a subscription from both its lists, and the topic with its last one. Returns the topic's name.
    fn remove(&mut self, node: u32) -> Arc<[u8]> {
        let gone = self.subscriptions.remove(node);
        self.pairs.remove(self.pair_hash(gone.owner, gone.topic), node);

        let topic = &mut self.topics[gone.topic];
        match self.subscriptions.get_mut(gone.topic_prev) {
            Some(before) => before.topic_next = gone.topic_next,
            None => topic.first = gone.topic_next,
        }
        match self.subscriptions.get_mut(gone.topic_next) {
            Some(after) => after.topic_prev = gone.topic_prev,
            None => topic.last = gone.topic_prev,
        }
        topic.count -= 1;
        let name_bytes = topic.name.len();

        let own = &mut self.owners[gone.owner as usize];
        match self.subscriptions.get_mut(gone.owner_prev) {
            Some(before) => before.owner_next = gone.owner_next,
            None => own.first = gone.owner_next,
        }
        match self.subscriptions.get_mut(gone.owner_next) {
            Some(after) => after.owner_prev = gone.owner_prev,
            None => own.last = gone.owner_prev,
        }
        own.count -= 1;
        own.name_bytes -= name_bytes;
        if own.first == NIL {
            match own.session {
                Some(session) => {
                    self.sessions.remove(&session);
                }
                // Only the first of the closed owners loses subscriptions.
                None => {
                    self.retired.pop_front();
                }
            }
            self.owners.remove(gone.owner as usize);
        }

        if self.topics[gone.topic].count > 0 {
            return self.topics[gone.topic].name.clone();
        }
        self.remove_topic(gone.topic)
    }

    fn name_hash(&self, name: &[u8]) -> u32 {
        self.hasher.hash_one(name) as u32
    }

    fn pair_hash(&self, owner: u32, topic: u32) -> u32 {
        self.hasher.hash_one(u64::from(owner) << 32 | u64::from(topic)) as u32
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<u32> {
        // Most have no topics: the name is not hashed.
        if self.topics.is_empty() {
            return None;
        }
        self.names.find(self.name_hash(name), |topic| *self.topics[topic].name == *name)
    }

    fn find_pair(&self, owner: u32, topic: u32) -> Option<u32> {
        self.pairs.find(self.pair_hash(owner, topic), |node| {
            let node = &self.subscriptions[node];
            (node.owner, node.topic) == (owner, topic)
        })
    }

    fn add_topic(&mut self, name: &[u8]) -> u32 {
        let last = self.all.last;
        let topic = Topic { name: name.into(), first: NIL, last: NIL, count: 0, prev: last, next: NIL };
        let number = self.topics.insert(topic);
        match self.topics.get_mut(last) {
            Some(before) => before.next = number,
            None => self.all.first = number,
        }
        self.all.last = number;
        self.names.insert(self.name_hash(name), number);
        number
    }

    fn remove_topic(&mut self, number: u32) -> Arc<[u8]> {
        let gone = self.topics.remove(number);
        match self.topics.get_mut(gone.prev) {
            Some(before) => before.next = gone.next,
            None => self.all.first = gone.next,
        }
        match self.topics.get_mut(gone.next) {
            Some(after) => after.prev = gone.prev,
            None => self.all.last = gone.prev,
        }
        self.names.remove(self.name_hash(&gone.name), number);
        for (_, cursor) in self.cursors.iter_mut().filter(|(_, cursor)| cursor.next == number) {
            cursor.next = gone.next;
        }
        gone.name
    }

    /// Begins a walk over all topics. Returns its number.
    pub(super) fn begin_walk(&mut self) -> usize {
        self.cursors.insert(Cursor { next: self.all.first, left: self.topics.len() })
    }

    /// Ends a walk.
    pub(super) fn end_walk(&mut self, number: usize) {
        self.cursors.try_remove(number);
    }

    pub(super) fn walk_on(&mut self, number: usize, count: u32, mut show: impl FnMut(&[u8])) -> bool {
        let Some(&(mut cursor)) = self.cursors.get(number) else { return true };
        for _ in 0..count {
            let Some(topic) = self.topics.get(cursor.next).filter(|_| cursor.left > 0) else { return true };
            if self.retired.is_empty() || self.listeners(topic).next().is_some() {
                show(&topic.name);
            }
            cursor = Cursor { next: topic.next, left: cursor.left - 1 };
        }
        self.cursors[number] = cursor;
        cursor.left == 0 || cursor.next == NIL
    }

    /// Topics with subscribers, oldest first.
    pub(super) fn topics(&self) -> impl Iterator<Item = (u32, &Topic)> {
        let live = |topic: &Topic| self.retired.is_empty() || self.listeners(topic).next().is_some();
        self.all_topics().filter(move |(_, topic)| live(topic))
    }

    fn all_topics(&self) -> impl Iterator<Item = (u32, &Topic)> {
        let mut at = self.all.first;
        std::iter::from_fn(move || {
            let topic = self.topics.get(at)?;
            Some((std::mem::replace(&mut at, topic.next), topic))
        })
    }

    /// The sessions subscribed to a topic, oldest subscription first.
    pub(super) fn listeners(&self, topic: &Topic) -> impl Iterator<Item = SessionId> {
        self.owners_of(topic).filter_map(|owner| self.owners[owner as usize].session)
    }

    fn owners_of(&self, topic: &Topic) -> impl Iterator<Item = u32> {
        let mut at = topic.first;
        std::iter::from_fn(move || {
            let node = self.subscriptions.get(at)?;
            at = node.topic_next;
            Some(node.owner)
        })
    }

    /// The subscriptions of a session, oldest first.
    pub(super) fn of_session(&self, id: SessionId) -> impl Iterator<Item = &Subscription> {
        let own = self.sessions.get(&id).map(|&owner| &self.owners[owner as usize]);
        let mut at = own.map_or(NIL, |own| own.first);
        std::iter::from_fn(move || {
            let node = self.subscriptions.get(at)?;
            at = node.owner_next;
            Some(node)
        })
    }

    pub(super) fn check_invariants(&self) {
        self.names.check_invariants();
        self.topics.check_invariants();
        self.pairs.check_invariants();
        self.subscriptions.check_invariants();
        assert_eq!(self.names.len(), self.topics.len(), "a name for each topic");
        assert_eq!(self.pairs.len(), self.subscriptions.len(), "a pair for each subscription");
        assert_eq!(self.all_topics().count(), self.topics.len(), "each topic in the list of all");
        let mut listed = 0;
        let mut before = NIL;
        for (number, topic) in self.all_topics() {
            assert_eq!(self.find(&topic.name), Some(number), "a topic under its name");
            assert_eq!(topic.prev, before, "a topic knows the one before it");
            before = number;
            assert!(topic.count > 0, "a topic has subscribers");
            assert_eq!(self.owners_of(topic).count(), topic.count as usize, "a topic counts its subscribers");
            for owner in self.owners_of(topic) {
                let node = self.find_pair(owner, number).map(|node| self.subscriptions[node]);
                assert!(node.is_some_and(|node| node.owner == owner && node.topic == number), "a pair leads to its subscription");
            }
            listed += topic.count as usize;
        }
        assert_eq!(self.all.last, before, "the last topic is the last");
        for (_, cursor) in &self.cursors {
            assert!(cursor.next == NIL || self.topics.get(cursor.next).is_some(), "a cursor is at a topic that is there");
        }
        assert_eq!(listed, self.subscriptions.len(), "each subscription in its topic's list");
        let mut listed = 0;
        for (number, own) in &self.owners {
            assert_ne!(own.first, NIL, "an owner without subscriptions is not kept");
            let number = number as u32;
            match own.session {
                Some(session) => assert_eq!(self.sessions.get(&session), Some(&number), "a session knows its subscriptions"),
                None => assert!(self.retired.contains(&number), "an owner without a session is being removed"),
            }
            let (mut at, mut before, mut count, mut name_bytes) = (own.first, NIL, 0, 0);
            while let Some(node) = self.subscriptions.get(at) {
                assert_eq!(
                    (node.owner, node.owner_prev),
                    (number, before),
                    "a subscription knows its owner and the one before it"
                );
                name_bytes += self.topics[node.topic].name.len();
                (before, at, count) = (at, node.owner_next, count + 1);
            }
            assert_eq!((own.last, own.count, own.name_bytes), (before, count, name_bytes), "an owner counts its subscriptions");
            listed += count as usize;
        }
        assert_eq!(self.owners.len(), self.sessions.len() + self.retired.len(), "each owner is a session or gone");
        assert_eq!(listed, self.subscriptions.len(), "each subscription in its session's list");
    }
}
