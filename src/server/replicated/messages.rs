//! Messages of clients to the subscribers of other nodes.
//!
//! A message leaves when everything is settled that its publisher had seen or changed. It goes straight to the other nodes and is in
//! no log: a node that cannot be reached misses it, as a replica of Redis does.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::engine::pubsub::Kind;
use crate::engine::pubsub::relayed::Relayed;
use crate::server::durable::gate::BatchNumber;
use crate::server::replicated::Replicated;
use crate::server::shell::Shell;

/// Messages that wait for batches.
#[derive(Debug, Default)]
pub struct Messages {
    /// In the order of batches. Each message is encoded.
    waiting: VecDeque<(BatchNumber, Vec<u8>)>,
}

impl Messages {
    /// Drops all: the changes that they may show were not committed.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }
}

/// What a message between nodes is made of: whether each is for a shard channel, its channel and its payload.
type Wire = Vec<(bool, Bytes, Bytes)>;

fn encode(messages: Vec<Relayed>) -> Option<Vec<u8>> {
    let wire: Wire = messages
        .into_iter()
        .map(|relayed| (relayed.kind == Kind::Shard, Bytes::from(relayed.channel), Bytes::from(relayed.message)))
        .collect();
    postcard::to_stdvec(&wire).ok()
}

fn decode(message: &[u8]) -> Option<Vec<Relayed>> {
    let wire: Wire = postcard::from_bytes(message).ok()?;
    let relayed = |(shard, channel, message): (bool, Bytes, Bytes)| Relayed {
        kind: if shard { Kind::Shard } else { Kind::Channel },
        channel: channel[..].into(),
        message: message[..].into(),
    };
    Some(wire.into_iter().map(relayed).collect())
}

impl Replicated {
    /// Sends the messages that waited for this batch or an earlier one.
    pub fn settle_messages(&mut self, settled: BatchNumber) {
        while self.messages.waiting.front().is_some_and(|(batch, _)| *batch <= settled) {
            if let Some((_, message)) = self.messages.waiting.pop_front() {
                self.node.tell_all(&message);
            }
        }
    }
}

impl Shell {
    /// Sends what was published in this turn to the other nodes, as soon as a batch is settled; 0 for at once.
    pub(in crate::server) fn relay_messages(&mut self, batch: BatchNumber) {
        if !self.engine.pubsub.relay.has_messages() {
            return;
        }
        let messages = self.engine.pubsub.relay.take();
        let Some(replicated) = &mut self.replicated else { return };
        let Some(message) = encode(messages) else { return };
        if batch == 0 && replicated.messages.waiting.is_empty() {
            return replicated.node.tell_all(&message);
        }
        // Messages keep their order, also behind those that wait for more.
        let last = replicated.messages.waiting.back().map_or(0, |(last, _)| *last);
        replicated.messages.waiting.push_back((batch.max(last), message));
    }

    /// Delivers messages of another node.
    pub(in crate::server) fn deliver_message(&mut self, message: &[u8]) {
        match decode(message) {
            Some(messages) => messages.iter().for_each(|relayed| self.engine.deliver(relayed)),
            None => tracing::warn!("another node has sent a message that cannot be read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let of = |kind, channel: &[u8]| Relayed { kind, channel: channel.into(), message: b"\r\n\0".as_slice().into() };
        let messages = vec![of(Kind::Channel, b"news"), of(Kind::Shard, b""), of(Kind::Channel, &[255; 300])];
        let wire = encode(messages.clone()).unwrap();
        assert_eq!(decode(&wire), Some(messages));
        assert_eq!(decode(&wire[..wire.len() - 1]), None);
        assert_eq!(decode(b"\xff\xff\xff\xff\xff"), None);
    }
}
