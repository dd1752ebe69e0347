//! Tells a subscriber that a connection's grant has ended.
//!
//! A RESP3 connection gets the push `lock-lost`. Client libraries with RESP2, or without a way to receive pushes, subscribe to a
//! channel instead, as they do for client tracking: another connection subscribes to `__portcullis__:lock-lost:<id>`, where the id is
//! the one that `CLIENT ID` answers on the connection that acquires. The message is `<token> <reason> <name>`. A subscriber whose
//! user may not read the lock does not get it.

use crate::engine::Engine;
use crate::engine::pubsub::deliver::publish_about;
use crate::engine::pubsub::subscriptions::LOST;
use crate::lock::grant::Client;

/// Publishes that a grant has ended without its release. Stays on this node, as keyspace events do. Without subscribers it costs
/// nothing.
pub(in crate::engine) fn publish_lost(engine: &mut Engine, client: Client, name: &[u8], token: u64, reason: &str) {
    if !engine.clients.pubsub.has_listeners() {
        return;
    }
    let mut number = itoa::Buffer::new();
    let channel = [LOST, number.format(client.id).as_bytes()].concat();
    if engine.clients.pubsub.may_reach(&channel) {
        let message = [number.format(token).as_bytes(), b" ", reason.as_bytes(), b" ", name].concat();
        publish_about(engine, name, &channel, &message);
    }
}
