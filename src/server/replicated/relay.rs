//! The server's part in messages between nodes: sends what was published here, and delivers what was published elsewhere.

use crate::server::durable::gate::BatchNumber;
use crate::server::replicated::messages::{decode, encode};
use crate::server::shell::Shell;

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
