//! All subscriptions: one registry for each kind.

use std::sync::Arc;

use foldhash::fast::FixedState;

use crate::base::ids::SessionId;
use crate::engine::pubsub::registry::Registry;
use crate::engine::pubsub::relayed::Relay;

/// What the channels of keyspace events begin with.
const EVENTS: &[u8] = b"__key";
/// What the channels of lost locks begin with.
pub(super) const LOST: &[u8] = b"__portcullis__:lock-lost:";

/// Whether only the node that leads has messages for a channel, or for the channels of a pattern that begins like them.
pub fn is_of_leader(channel: &[u8]) -> bool {
    channel.starts_with(EVENTS) || channel.starts_with(LOST)
}

/// Kinds of subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A channel, by its name.
    Channel,
    /// All channels that match a glob pattern.
    Pattern,
    /// A shard channel. Shard channels have a separate name space that patterns do not match.
    Shard,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Channel, Kind::Pattern, Kind::Shard];

    /// The index of this kind in [`crate::engine::session::Session::subscriptions`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// All subscriptions.
pub struct PubSub {
    pub(super) registries: [Registry; 3],
    /// Whether subscriptions of closed sessions still have to be removed.
    has_retired: bool,
    /// The encoded message that is being delivered.
    pub(super) frame: Vec<u8>,
    /// Buffer for the channel name of a keyspace event.
    pub(super) channel: Vec<u8>,
    /// Messages for other nodes.
    pub relay: Relay,
}

impl PubSub {
    /// Without subscriptions. The seed keeps clients from choosing names whose hashes collide.
    pub fn new(seed: u64) -> Self {
        let registry = || Registry::new(FixedState::with_seed(seed));
        let registries = [registry(), registry(), registry()];
        PubSub { registries, has_retired: false, frame: Vec::new(), channel: Vec::new(), relay: Relay::default() }
    }

    fn registry(&self, kind: Kind) -> &Registry {
        &self.registries[kind.index()]
    }

    /// Subscribes a session. Returns false if it was already subscribed.
    pub(in crate::engine) fn subscribe(&mut self, kind: Kind, id: SessionId, name: &[u8]) -> bool {
        self.registries[kind.index()].subscribe(id, name)
    }

    /// Ends a subscription. Returns false if there was none.
    pub(in crate::engine) fn unsubscribe(&mut self, kind: Kind, id: SessionId, name: &[u8]) -> bool {
        self.registries[kind.index()].unsubscribe(id, name)
    }

    /// Ends a session's oldest subscription. Returns its name.
    pub(in crate::engine) fn unsubscribe_oldest(&mut self, kind: Kind, id: SessionId) -> Option<Arc<[u8]>> {
        self.registries[kind.index()].unsubscribe_oldest(id)
    }

    /// Ends all subscriptions of a session. If they are many, they remain for a while without an owner.
    pub(in crate::engine) fn forget(&mut self, id: SessionId) {
        self.registries.iter_mut().for_each(|registry| registry.forget(id));
        self.note_retired();
    }

    fn note_retired(&mut self) {
        self.has_retired = self.any_retired();
    }

    fn any_retired(&self) -> bool {
        self.registries.iter().any(|registry| !registry.retired.is_empty())
    }

    /// Approximate number of bytes of a session's subscriptions.
    pub fn bytes(&self, id: SessionId) -> usize {
        self.registries.iter().map(|registry| registry.bytes(id)).sum()
    }

    /// Whether subscriptions of closed sessions still have to be removed.
    #[inline]
    pub fn has_retired(&self) -> bool {
        self.has_retired
    }

    /// Removes subscriptions without an owner, at most `budget` of them.
    pub(in crate::engine) fn free_some(&mut self, budget: &mut u32) {
        self.registries.iter_mut().for_each(|registry| registry.free_some(budget));
        self.note_retired();
    }

    /// The names with subscribers, oldest first.
    pub fn topics(&self, kind: Kind) -> impl Iterator<Item = &[u8]> {
        self.registry(kind).topics().map(|(_, topic)| &*topic.name)
    }

    /// Number of stored names: those with subscribers, and those that are being removed.
    pub fn kept(&self, kind: Kind) -> usize {
        self.registry(kind).topics.len()
    }

    /// Begins a walk over the names of a kind, which may come and go meanwhile. Returns its number. [`PubSub::end_walk`] must end
    /// it.
    pub fn begin_walk(&mut self, kind: Kind) -> usize {
        self.registries[kind.index()].begin_walk()
    }

    /// Visits `count` more names and shows those with subscribers, oldest first. Returns whether those were the last.
    pub fn walk_on(&mut self, kind: Kind, number: usize, count: u32, show: impl FnMut(&[u8])) -> bool {
        self.registries[kind.index()].walk_on(number, count, show)
    }

    /// Ends a walk that [`PubSub::begin_walk`] has begun.
    pub fn end_walk(&mut self, kind: Kind, number: usize) {
        self.registries[kind.index()].end_walk(number);
    }

    /// Number of different names with subscribers.
    pub fn topic_count(&self, kind: Kind) -> usize {
        let registry = self.registry(kind);
        if registry.retired.is_empty() { registry.topics.len() } else { registry.topics().count() }
    }

    /// Whether there are subscriptions to a channel or a pattern, including those that are being removed.
    pub fn has_listeners(&self) -> bool {
        [Kind::Channel, Kind::Pattern].iter().any(|&kind| !self.registry(kind).topics.is_empty())
    }

    /// Whether a message may have receivers: there are subscribers of its channel, of either kind, or of any pattern.
    pub fn may_reach(&self, channel: &[u8]) -> bool {
        let [channels, patterns, shards] = &self.registries;
        !patterns.topics.is_empty() || channels.find(channel).is_some() || shards.find(channel).is_some()
    }

    /// Number of sessions subscribed to a name.
    pub fn subscribers(&self, kind: Kind, name: &[u8]) -> usize {
        let registry = self.registry(kind);
        registry.find(name).map_or(0, |topic| registry.count(&registry.topics[topic]))
    }

    /// The names that a session is subscribed to, oldest first.
    pub fn names_of(&self, kind: Kind, id: SessionId) -> impl Iterator<Item = &[u8]> {
        let registry = self.registry(kind);
        registry.of_session(id).map(|subscription| &*registry.topics[subscription.topic].name)
    }

    /// Number of a session's subscriptions.
    pub fn subscriptions(&self, kind: Kind, id: SessionId) -> usize {
        self.registry(kind).of_session(id).count()
    }

    /// Panics if the state violates an invariant. Visits the whole state.
    pub fn check_invariants(&self) {
        for registry in &self.registries {
            registry.check_invariants();
        }
        assert_eq!(self.has_retired, self.any_retired(), "what is still to be removed is known");
    }
}
