//! Keyspace events as messages. A subscriber whose user may not read a key hears nothing of it.

use crate::engine::Engine;
use crate::engine::pubsub::deliver::{KEPT, publish_about};
use crate::engine::pubsub::lock_expiry;
use crate::keyspace::change::Classes;

/// Publishes the pending keyspace events in order: for each, first the message on the key's channel, then that on the event's.
pub fn publish_pending(engine: &mut Engine) {
    let mut pending = std::mem::take(&mut engine.keyspace.changes.pending);
    let notify = engine.keyspace.changes.notify;
    let mut channel = std::mem::take(&mut engine.clients.pubsub.channel);
    for waiting in &pending {
        let Some(event) = waiting.event else {
            lock_expiry::publish_expired(engine, waiting.db, &waiting.key);
            continue;
        };
        if notify.contains(Classes::KEYSPACE) {
            name_channel(&mut channel, b"__keyspace@", waiting.db, &waiting.key);
            publish_about(engine, &waiting.key, &channel, event.name.as_bytes());
        }
        if notify.contains(Classes::KEYEVENT) {
            name_channel(&mut channel, b"__keyevent@", waiting.db, event.name.as_bytes());
            publish_about(engine, &waiting.key, &channel, &waiting.key);
        }
    }
    if channel.capacity() <= KEPT {
        engine.clients.pubsub.channel = channel;
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
