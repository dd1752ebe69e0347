//! Begins and ends subscriptions: in the registry, in the session's counts, and for the events of keys, which are published only if a
//! session listens.

use std::sync::Arc;

use crate::base::ids::SessionId;
use crate::engine::Engine;
use crate::engine::pubsub::subscriptions::Kind;

impl Engine {
    /// Subscribes a session. Returns false if it was already subscribed.
    pub fn subscribe(&mut self, id: SessionId, kind: Kind, name: &[u8]) -> bool {
        let new = self.clients.pubsub.subscribe(kind, id, name);
        if new {
            self.clients.sessions[id].count_subscription(kind.index(), 1);
            self.update_listeners();
        }
        new
    }

    /// Ends a subscription. Returns false if there was none.
    pub fn unsubscribe(&mut self, id: SessionId, kind: Kind, name: &[u8]) -> bool {
        let gone = self.clients.pubsub.unsubscribe(kind, id, name);
        if gone {
            self.clients.sessions[id].count_subscription(kind.index(), -1);
            self.update_listeners();
        }
        gone
    }

    /// Ends a session's oldest subscription. Returns its name.
    pub fn unsubscribe_oldest(&mut self, id: SessionId, kind: Kind) -> Option<Arc<[u8]>> {
        let name = self.clients.pubsub.unsubscribe_oldest(kind, id)?;
        self.clients.sessions[id].count_subscription(kind.index(), -1);
        self.update_listeners();
        Some(name)
    }

    /// Ends all subscriptions of a session without notifying it.
    pub fn unsubscribe_all(&mut self, id: SessionId) {
        self.forget_subscriptions(id);
        self.clients.sessions[id].forget_subscriptions();
    }

    /// Ends all subscriptions of a session that is about to end. If they are many, they remain for a while without an owner.
    pub(in crate::engine) fn forget_subscriptions(&mut self, id: SessionId) {
        self.clients.pubsub.forget(id);
        self.update_listeners();
    }

    /// Removes subscriptions without an owner, at most `budget` of them.
    pub(in crate::engine) fn free_subscriptions(&mut self, budget: &mut u32) {
        self.clients.pubsub.free_some(budget);
        self.update_listeners();
    }

    fn update_listeners(&mut self) {
        self.keyspace.changes.has_listeners = self.clients.pubsub.has_listeners();
    }
}
