//! Channels, patterns and who listens to them. (placeholder, for now)

use crate::engine::Engine;
use crate::engine::session::SessionId;

/// Subscriptions.
#[derive(Default)]
pub struct PubSub {}

impl PubSub {
    /// Ends all subscriptions of a session.
    pub fn forget(&mut self, _id: SessionId) {}
}

/// Publishes the keyspace events that wait.
pub fn publish_pending(engine: &mut Engine) {
    engine.keyspace.changes.pending.clear();
}
