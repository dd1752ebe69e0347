//! Messages of clients to the subscribers of other nodes.
//!
//! A message leaves when everything is settled that its publisher had seen or changed. It goes straight to the other nodes and is
//! in no log: a node that cannot be reached misses it, as a replica of Redis does.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::driver::gate::BatchNumber;
use crate::driver::replicated::Member;
use crate::engine::pubsub::Kind;
use crate::engine::pubsub::relayed::Relayed;

/// Messages that wait for batches.
#[derive(Debug, Default)]
pub struct Messages {
    /// In the order of batches. Each message is encoded.
    pub(super) waiting: VecDeque<(BatchNumber, Vec<u8>)>,
}

impl Messages {
    /// Drops all: the changes that they may show were not committed.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }
}

/// What a message between nodes is made of: whether each is for a shard channel, its channel and its payload.
type Wire = Vec<(bool, Bytes, Bytes)>;

/// Encodes messages for another node.
pub(super) fn encode(messages: Vec<Relayed>) -> Option<Vec<u8>> {
    let wire: Wire = messages
        .into_iter()
        .map(|relayed| (relayed.kind == Kind::Shard, Bytes::from(relayed.channel), Bytes::from(relayed.message)))
        .collect();
    postcard::to_stdvec(&wire).ok()
}

/// Reads what [`encode`] has written. `None` if it is damaged.
pub(super) fn decode(message: &[u8]) -> Option<Vec<Relayed>> {
    let wire: Wire = postcard::from_bytes(message).ok()?;
    let relayed = |(shard, channel, message): (bool, Bytes, Bytes)| Relayed {
        kind: if shard { Kind::Shard } else { Kind::Channel },
        channel: channel[..].into(),
        message: message[..].into(),
    };
    Some(wire.into_iter().map(relayed).collect())
}

impl Member {
    /// Sends the messages that waited for this batch or an earlier one.
    pub(super) fn settle_messages(&mut self, settled: BatchNumber) {
        let settled = self.messages.waiting.partition_point(|(batch, _)| *batch <= settled);
        for (_, message) in self.messages.waiting.drain(..settled) {
            self.node.tell_all(&message);
        }
    }

    /// Sends a message as soon as a batch is settled; 0 for at once.
    pub(super) fn relay(&mut self, batch: BatchNumber, message: Vec<u8>) {
        if batch == 0 && self.messages.waiting.is_empty() {
            return self.node.tell_all(&message);
        }
        // Messages keep their order, also behind those that wait for more.
        let last = self.messages.waiting.back().map_or(0, |(last, _)| *last);
        self.messages.waiting.push_back((batch.max(last), message));
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
