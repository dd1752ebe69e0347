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
        let message = encode(self.engine.pubsub_mut().relay.take());
        self.member_mut().zip(message).into_iter().for_each(|(member, message)| member.relay(batch, message));
    }

    /// Delivers messages of another node.
    pub fn deliver_message(&mut self, message: &[u8]) {
        match decode(message) {
            Some(messages) => messages.iter().for_each(|relayed| self.engine.deliver(relayed)),
            None => tracing::warn!("another node has sent a message that cannot be read"),
        }
    }
}
