//! `lock-expiry-publish`: notifies waiters on a library's unlock channel when the lock's key has expired.
//!
//! ```text
//!   deadline ─▶ key removed ─▶ `expired` event ─▶ rules that match the key ─▶ PUBLISH, in the same step
//! ```
//!
//! Deleted keys are not covered: the library that deletes them notifies its waiters itself.

use crate::engine::Engine;
use crate::engine::pubsub::relay::publish_to_all;
use crate::engine::pubsub::subscriptions::Kind;
use crate::store::entry::ValueRef;
use crate::store::values::list::End;
use crate::store::values::value::Value;

impl Engine {
    /// Must be called when the rules may have changed.
    pub(crate) fn update_expiry_rules(&mut self) {
        self.keyspace.changes.expiry_rules = !self.config.lock_expiry_publish.is_empty();
    }

    /// The first element of a list, if any. Reads it without side effects: expired keys stay.
    fn head_of(&self, db: u32, key: &[u8]) -> Option<Vec<u8>> {
        let keyspace = &self.keyspace;
        let dict = keyspace.numbers[db as usize] as usize;
        let place = keyspace.space.find(dict, keyspace.space.hash(key), key)?;
        match keyspace.space.get(dict, place).value() {
            ValueRef::Boxed(Value::List(list)) => list.iter(End::Left).next().map(|element| element.to_vec()),
            _ => None,
        }
    }
}

/// Publishes the messages of the rules for an expired key. The channel may be a normal or a shard channel, because libraries use
/// either; a channel without subscribers costs only a lookup.
pub(crate) fn publish_expired(engine: &mut Engine, db: u32, key: &[u8]) {
    let rules = engine.config.lock_expiry_publish.all().clone();
    for rule in rules.iter() {
        let Some(channel) = rule.channel(key, |list| engine.head_of(db, list)) else { continue };
        if !engine.clients.pubsub.may_reach(&channel) && !engine.clients.pubsub.relay.is_on() {
            continue;
        }
        let Some(message) = rule.message(key, |list| engine.head_of(db, list)) else { continue };
        let receivers =
            publish_to_all(engine, Kind::Channel, &channel, &message) + publish_to_all(engine, Kind::Shard, &channel, &message);
        engine.diagnosis.stats.expiry_messages += u64::from(receivers > 0);
    }
}
