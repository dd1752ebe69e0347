//! A node's part in messages between nodes: sends what was published here, and delivers what was published elsewhere.

use crate::driver::Driver;
use crate::driver::gate::BatchNumber;
use crate::driver::replicated::messages::{decode, encode};

impl Driver {
    /// Sends what was published in this turn to the other nodes, as soon as a batch is settled; 0 for at once.
    pub(in crate::driver) fn relay_messages(&mut self, batch: BatchNumber) {
        if !self.engine.pubsub().relay.has_messages() {
            return;
        }
        let messages = self.engine.pubsub_mut().relay.take();
        let Some(member) = self.member_mut() else { return };
        let Some(message) = encode(messages) else { return };
        if batch == 0 && member.messages.waiting.is_empty() {
            return member.node.tell_all(&message);
        }
        // Messages keep their order, also behind those that wait for more.
        let last = member.messages.waiting.back().map_or(0, |(last, _)| *last);
        member.messages.waiting.push_back((batch.max(last), message));
    }

    /// Delivers messages of another node.
    pub fn deliver_message(&mut self, message: &[u8]) {
        match decode(message) {
            Some(messages) => messages.iter().for_each(|relayed| self.engine.deliver(relayed)),
            None => tracing::warn!("another node has sent a message that cannot be read"),
        }
    }
}
