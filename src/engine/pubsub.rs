//! Channels, patterns and who listens to them.
//!
//! Three registries of the same kind: channels, patterns, and shard channels. A subscription is one node in two lists: that of
//! its topic, in which messages are delivered in the order of subscribing, and that of its session, so that a session that goes
//! costs only what it was subscribed to.
//!
//! ```text
//!   PUBLISH, keyspace events ─▶ topic of the channel ─▶ its subscriptions, oldest first ─▶ outboxes
//!                           └─▶ patterns that match, oldest first ─▶ theirs
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use slab::Slab;

use crate::engine::change::Classes;
use crate::engine::config::OutputLimit;
use crate::engine::session::{Session, SessionFlags, SessionId};
use crate::engine::stats::Stats;
use crate::engine::{Engine, glob};
use crate::resp::reply::{Protocol, Sink, WireReply};

/// End of a list.
const NIL: u32 = u32::MAX;

/// Buffers and tables that grew beyond this, in elements, are given back when they are empty again.
const KEPT: usize = 4096;

/// What can be subscribed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A channel, by its name.
    Channel,
    /// All channels that match a glob pattern.
    Pattern,
    /// A shard channel: a name space of its own, which patterns do not reach.
    Shard,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Channel, Kind::Pattern, Kind::Shard];

    /// Where [`Session::subscriptions`] counts it.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// All subscriptions.
pub struct PubSub {
    registries: [Registry; 3],
    /// The message that is being delivered, as it goes on the wire.
    frame: Vec<u8>,
    /// The name of the channel of a keyspace event.
    channel: Vec<u8>,
}

impl PubSub {
    /// Nobody listens yet. The seed keeps clients from choosing names whose hashes collide.
    pub fn new(seed: u64) -> Self {
        let registry = || Registry::new(FixedState::with_seed(seed));
        PubSub { registries: [registry(), registry(), registry()], frame: Vec::new(), channel: Vec::new() }
    }

    fn registry(&self, kind: Kind) -> &Registry {
        &self.registries[kind.index()]
    }

    /// Subscribes a session; false where it was already.
    pub fn subscribe(&mut self, kind: Kind, id: SessionId, name: &[u8]) -> bool {
        self.registries[kind.index()].subscribe(id, name)
    }

    /// Ends a subscription; false where there was none.
    pub fn unsubscribe(&mut self, kind: Kind, id: SessionId, name: &[u8]) -> bool {
        self.registries[kind.index()].unsubscribe(id, name)
    }

    /// Ends the oldest subscription of a session and gives its name.
    pub fn unsubscribe_oldest(&mut self, kind: Kind, id: SessionId) -> Option<Arc<[u8]>> {
        self.registries[kind.index()].unsubscribe_oldest(id)
    }

    /// Ends all subscriptions of a session.
    pub fn forget(&mut self, id: SessionId) {
        for registry in &mut self.registries {
            while registry.unsubscribe_oldest(id).is_some() {}
        }
    }

    /// The names that somebody is subscribed to, oldest first.
    pub fn topics(&self, kind: Kind) -> impl Iterator<Item = &[u8]> {
        self.registry(kind).topics().map(|(_, topic)| &*topic.name)
    }

    /// How many different names somebody is subscribed to.
    pub fn topic_count(&self, kind: Kind) -> usize {
        self.registry(kind).topics.len()
    }

    /// Whether anybody is subscribed to a channel or to a pattern.
    pub fn has_listeners(&self) -> bool {
        self.topic_count(Kind::Channel) + self.topic_count(Kind::Pattern) > 0
    }

    /// How many sessions are subscribed to a name.
    pub fn subscribers(&self, kind: Kind, name: &[u8]) -> usize {
        let registry = self.registry(kind);
        registry.names.get(name).map_or(0, |&topic| registry.topics[topic as usize].count as usize)
    }

    /// The names that a session is subscribed to, oldest first.
    pub fn names_of(&self, kind: Kind, id: SessionId) -> impl Iterator<Item = &[u8]> {
        let registry = self.registry(kind);
        registry.of_session(id).map(|subscription| &*registry.topics[subscription.topic as usize].name)
    }

    /// How many subscriptions a session has.
    pub fn subscriptions(&self, kind: Kind, id: SessionId) -> usize {
        self.registry(kind).of_session(id).count()
    }

    /// Panics where the state is not what it should be. Walks everything.
    pub fn check_invariants(&self) {
        for registry in &self.registries {
            registry.check_invariants();
        }
    }
}

/// One session's interest in one topic.
#[derive(Clone, Copy)]
struct Subscription {
    session: SessionId,
    topic: u32,
    /// Neighbours among the topic's subscriptions.
    topic_prev: u32,
    topic_next: u32,
    /// Neighbours among the session's.
    session_prev: u32,
    session_next: u32,
}

/// Something that somebody is subscribed to.
struct Topic {
    name: Arc<[u8]>,
    /// First and last subscription.
    first: u32,
    last: u32,
    count: u32,
    /// Neighbours among all topics.
    prev: u32,
    next: u32,
}

/// First and last of a list.
#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
}

impl Ends {
    const NONE: Ends = Ends { first: NIL, last: NIL };
}

/// Topics of one kind and their subscriptions.
struct Registry {
    names: HashMap<Arc<[u8]>, u32, FixedState>,
    topics: Slab<Topic>,
    all: Ends,
    subscriptions: Slab<Subscription>,
    /// The subscription of a session to a topic.
    pairs: HashMap<(SessionId, u32), u32, FixedState>,
    sessions: HashMap<SessionId, Ends, FixedState>,
}

impl Registry {
    fn new(hasher: FixedState) -> Self {
        Registry {
            names: HashMap::with_hasher(hasher.clone()),
            topics: Slab::new(),
            all: Ends::NONE,
            subscriptions: Slab::new(),
            pairs: HashMap::with_hasher(hasher.clone()),
            sessions: HashMap::with_hasher(hasher.clone()),
        }
    }

    fn subscribe(&mut self, id: SessionId, name: &[u8]) -> bool {
        let topic = match self.names.get(name) {
            Some(&topic) if self.pairs.contains_key(&(id, topic)) => return false,
            Some(&topic) => topic,
            None => self.add_topic(name),
        };
        let own = self.sessions.entry(id).or_insert(Ends::NONE);
        let at = &mut self.topics[topic as usize];
        let node = self.subscriptions.insert(Subscription {
            session: id,
            topic,
            topic_prev: at.last,
            topic_next: NIL,
            session_prev: own.last,
            session_next: NIL,
        }) as u32;
        match self.subscriptions.get_mut(at.last as usize) {
            Some(before) => before.topic_next = node,
            None => at.first = node,
        }
        at.last = node;
        at.count += 1;
        match self.subscriptions.get_mut(own.last as usize) {
            Some(before) => before.session_next = node,
            None => own.first = node,
        }
        own.last = node;
        self.pairs.insert((id, topic), node);
        true
    }

    fn unsubscribe(&mut self, id: SessionId, name: &[u8]) -> bool {
        let node = self.names.get(name).and_then(|&topic| self.pairs.get(&(id, topic)));
        let Some(&node) = node else { return false };
        self.remove(node);
        true
    }

    fn unsubscribe_oldest(&mut self, id: SessionId) -> Option<Arc<[u8]>> {
        let node = self.sessions.get(&id)?.first;
        Some(self.remove(node))
    }

    /// Takes a subscription out of both its lists, and with the last one the topic. Gives the topic's name.
    fn remove(&mut self, node: u32) -> Arc<[u8]> {
        let gone = self.subscriptions.remove(node as usize);
        self.pairs.remove(&(gone.session, gone.topic));

        let topic = &mut self.topics[gone.topic as usize];
        match self.subscriptions.get_mut(gone.topic_prev as usize) {
            Some(before) => before.topic_next = gone.topic_next,
            None => topic.first = gone.topic_next,
        }
        match self.subscriptions.get_mut(gone.topic_next as usize) {
            Some(after) => after.topic_prev = gone.topic_prev,
            None => topic.last = gone.topic_prev,
        }
        topic.count -= 1;

        if let Some(own) = self.sessions.get_mut(&gone.session) {
            match self.subscriptions.get_mut(gone.session_prev as usize) {
                Some(before) => before.session_next = gone.session_next,
                None => own.first = gone.session_next,
            }
            match self.subscriptions.get_mut(gone.session_next as usize) {
                Some(after) => after.session_prev = gone.session_prev,
                None => own.last = gone.session_prev,
            }
            if own.first == NIL {
                self.sessions.remove(&gone.session);
            }
        }

        if self.topics[gone.topic as usize].count > 0 {
            return self.topics[gone.topic as usize].name.clone();
        }
        let name = self.remove_topic(gone.topic);
        if self.topics.is_empty() && self.subscriptions.capacity() > KEPT {
            *self = Registry::new(self.names.hasher().clone());
        }
        name
    }

    fn add_topic(&mut self, name: &[u8]) -> u32 {
        let name: Arc<[u8]> = name.into();
        let last = self.all.last;
        let topic = Topic { name: name.clone(), first: NIL, last: NIL, count: 0, prev: last, next: NIL };
        let number = self.topics.insert(topic) as u32;
        match self.topics.get_mut(last as usize) {
            Some(before) => before.next = number,
            None => self.all.first = number,
        }
        self.all.last = number;
        self.names.insert(name, number);
        number
    }

    fn remove_topic(&mut self, number: u32) -> Arc<[u8]> {
        let gone = self.topics.remove(number as usize);
        match self.topics.get_mut(gone.prev as usize) {
            Some(before) => before.next = gone.next,
            None => self.all.first = gone.next,
        }
        match self.topics.get_mut(gone.next as usize) {
            Some(after) => after.prev = gone.prev,
            None => self.all.last = gone.prev,
        }
        self.names.remove(&gone.name);
        gone.name
    }

    fn topics(&self) -> impl Iterator<Item = (u32, &Topic)> {
        let mut at = self.all.first;
        std::iter::from_fn(move || {
            let topic = self.topics.get(at as usize)?;
            Some((std::mem::replace(&mut at, topic.next), topic))
        })
    }

    /// The sessions subscribed to a topic, oldest subscription first.
    fn listeners(&self, topic: &Topic) -> impl Iterator<Item = SessionId> {
        let mut at = topic.first;
        std::iter::from_fn(move || {
            let node = self.subscriptions.get(at as usize)?;
            at = node.topic_next;
            Some(node.session)
        })
    }

    /// The subscriptions of a session, oldest first.
    fn of_session(&self, id: SessionId) -> impl Iterator<Item = &Subscription> {
        let mut at = self.sessions.get(&id).map_or(NIL, |own| own.first);
        std::iter::from_fn(move || {
            let node = self.subscriptions.get(at as usize)?;
            at = node.session_next;
            Some(node)
        })
    }

    fn check_invariants(&self) {
        assert_eq!(self.names.len(), self.topics.len(), "a name for each topic");
        assert_eq!(self.pairs.len(), self.subscriptions.len(), "a pair for each subscription");
        assert_eq!(self.topics().count(), self.topics.len(), "each topic in the list of all");
        let mut listed = 0;
        let mut before = NIL;
        for (number, topic) in self.topics() {
            assert_eq!(self.names.get(&topic.name), Some(&number), "a topic under its name");
            assert_eq!(topic.prev, before, "a topic knows the one before it");
            before = number;
            assert!(topic.count > 0, "a topic has subscribers");
            assert_eq!(self.listeners(topic).count(), topic.count as usize, "a topic counts its subscribers");
            for id in self.listeners(topic) {
                let node = self.pairs.get(&(id, number)).map(|&node| self.subscriptions[node as usize]);
                assert!(node.is_some_and(|node| node.session == id && node.topic == number), "a pair leads to its subscription");
            }
            listed += topic.count as usize;
        }
        assert_eq!(self.all.last, before, "the last topic is the last");
        assert_eq!(listed, self.subscriptions.len(), "each subscription in its topic's list");
        let mut listed = 0;
        for (&id, own) in &self.sessions {
            assert_ne!(own.first, NIL, "a session without subscriptions is not kept");
            let mut before = NIL;
            for node in self.of_session(id) {
                assert_eq!(node.session, id, "a session's list holds its own");
                assert_eq!(node.session_prev, before, "a subscription knows the one before it");
                before = self.pairs[&(id, node.topic)];
                listed += 1;
            }
            assert_eq!(own.last, before, "a session's last subscription is the last");
        }
        assert_eq!(listed, self.subscriptions.len(), "each subscription in its session's list");
    }
}

/// What delivery may touch beside the registries.
struct Outboxes<'a> {
    sessions: &'a mut Slab<Session>,
    dirty: &'a mut Vec<SessionId>,
    stats: &'a mut Stats,
    /// Bytes at which an outbox is too full; 0 for no limit.
    hard_limit: u64,
}

impl Outboxes<'_> {
    /// Appends a push to a session's outbox. `frame` begins with the mark of a RESP3 push, which is an array to others.
    fn append(&mut self, id: SessionId, frame: &mut [u8]) {
        let Some(session) = self.sessions.get_mut(id.0 as usize) else { return };
        if session.flags.contains(SessionFlags::CLOSE_NOW) {
            return;
        }
        frame[0] = if session.protocol == Protocol::Resp3 { b'>' } else { b'*' };
        self.append_as_it_is(id, frame);
    }

    /// Appends bytes that a session did not ask for just now to its outbox. Of one that is no subscriber, only what came in this way counts
    /// for the limit: its replies may be of any size.
    fn append_as_it_is(&mut self, id: SessionId, bytes: &[u8]) {
        let Some(session) = self.sessions.get_mut(id.0 as usize) else { return };
        if session.flags.contains(SessionFlags::CLOSE_NOW) {
            return;
        }
        if session.out.is_empty() {
            session.pushed = 0;
        }
        session.pushed += bytes.len() as u64;
        let unread = (session.out.len() + bytes.len()) as u64;
        let counted = if session.subscriptions == [0; 3] { session.pushed.min(unread) } else { unread };
        if self.hard_limit != 0 && counted >= self.hard_limit {
            // A subscriber too slow for what it asked for is let go; nobody else waits for it.
            session.flags |= SessionFlags::CLOSE_NOW;
            session.out = Vec::new();
            self.stats.limit_disconnections += 1;
        } else {
            session.out.extend_from_slice(bytes);
        }
        if !session.flags.contains(SessionFlags::DIRTY) {
            session.flags |= SessionFlags::DIRTY;
            self.dirty.push(id);
        }
    }
}

/// Appends bytes to a session's outbox that it did not ask for just now; it is closed where too many wait there.
pub(super) fn push_to(engine: &mut Engine, id: SessionId, bytes: &[u8]) {
    let [.., OutputLimit { hard: hard_limit, .. }] = engine.config.client_output_buffer_limit;
    let Engine { sessions, dirty, stats, .. } = engine;
    Outboxes { sessions, dirty, stats, hard_limit }.append_as_it_is(id, bytes);
}

/// Delivers a message to whoever is subscribed to the channel or, unless it is a shard channel, to a pattern that matches it.
/// Gives to how many.
pub fn publish(engine: &mut Engine, kind: Kind, channel: &[u8], message: &[u8]) -> usize {
    let [.., OutputLimit { hard: hard_limit, .. }] = engine.config.client_output_buffer_limit;
    let PubSub { registries: [channels, patterns, shards], frame, .. } = &mut engine.pubsub;
    let mut outboxes =
        Outboxes { sessions: &mut engine.sessions, dirty: &mut engine.dirty, stats: &mut engine.stats, hard_limit };
    let (registry, patterns, word): (_, Option<&Registry>, &[u8]) = match kind {
        Kind::Shard => (&*shards, None, b"smessage"),
        Kind::Channel | Kind::Pattern => (&*channels, Some(patterns), b"message"),
    };
    let mut receivers = 0;
    if let Some(&topic) = registry.names.get(channel) {
        encode(frame, &[word, channel, message]);
        for id in registry.listeners(&registry.topics[topic as usize]) {
            outboxes.append(id, frame);
            receivers += 1;
        }
    }
    if let Some(patterns) = patterns {
        for (_, topic) in patterns.topics() {
            if glob::matches(&topic.name, channel, false) {
                encode(frame, &[b"pmessage", &topic.name, channel, message]);
                for id in patterns.listeners(topic) {
                    outboxes.append(id, frame);
                    receivers += 1;
                }
            }
        }
    }
    if frame.capacity() > KEPT {
        *frame = Vec::new();
    }
    engine.visited += (receivers + patterns.map_or(0, |patterns| patterns.topics.len())) as u64;
    receivers
}

/// A push of strings, once for all who get it.
fn encode(frame: &mut Vec<u8>, parts: &[&[u8]]) {
    frame.clear();
    let mut reply = WireReply::new(frame, Protocol::Resp3);
    reply.push(parts.len());
    for part in parts {
        reply.bulk(part);
    }
}

/// Publishes the keyspace events that wait, in order: for each the message on the key's channel, then that on the event's.
pub fn publish_pending(engine: &mut Engine) {
    let mut pending = std::mem::take(&mut engine.keyspace.changes.pending);
    let notify = engine.keyspace.changes.notify;
    let mut channel = std::mem::take(&mut engine.pubsub.channel);
    for waiting in &pending {
        if notify.contains(Classes::KEYSPACE) {
            name_channel(&mut channel, b"__keyspace@", waiting.db, &waiting.key);
            publish(engine, Kind::Channel, &channel, waiting.event.name.as_bytes());
        }
        if notify.contains(Classes::KEYEVENT) {
            name_channel(&mut channel, b"__keyevent@", waiting.db, waiting.event.name.as_bytes());
            publish(engine, Kind::Channel, &channel, &waiting.key);
        }
    }
    if channel.capacity() <= KEPT {
        engine.pubsub.channel = channel;
    }
    pending.clear();
    if pending.capacity() <= KEPT {
        engine.keyspace.changes.pending = pending;
    }
}

/// `<prefix><db>__:<rest>`
fn name_channel(channel: &mut Vec<u8>, prefix: &[u8], db: u32, rest: &[u8]) {
    channel.clear();
    channel.extend_from_slice(prefix);
    channel.extend_from_slice(itoa::Buffer::new().format(db).as_bytes());
    channel.extend_from_slice(b"__:");
    channel.extend_from_slice(rest);
}

/// Ends all subscriptions of a session without telling it.
pub fn unsubscribe_all(engine: &mut Engine, id: SessionId) {
    engine.pubsub.forget(id);
    engine.update_heard();
    engine.sessions[id.0 as usize].subscriptions = [0; 3];
}
