//! Messages on their way between nodes.

use crate::engine::pubsub::subscriptions::Kind;

/// A message on its way to other nodes, or from one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relayed {
    /// The kind of its channel, which is no pattern.
    pub kind: Kind,
    /// The channel.
    pub channel: Box<[u8]>,
    /// The message.
    pub message: Box<[u8]>,
}

/// What the driver is to send to other nodes.
#[derive(Debug, Default)]
pub struct Relay {
    /// Whether there are other nodes.
    on: bool,
    messages: Vec<Relayed>,
}

impl Relay {
    /// Whether messages are relayed: the server has other nodes.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Sets whether messages are relayed.
    pub fn set_on(&mut self, on: bool) {
        self.on = on;
    }

    /// Adds a message, if messages are relayed.
    pub fn add(&mut self, kind: Kind, channel: &[u8], message: &[u8]) {
        if self.on {
            self.messages.push(Relayed { kind, channel: channel.into(), message: message.into() });
        }
    }

    /// Whether there are messages to take.
    #[cfg_attr(not(feature = "quorum"), allow(dead_code, reason = "without nodes nothing is relayed"))]
    pub fn has_messages(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Takes the messages since the last call, in the order in which they were published.
    #[cfg_attr(not(feature = "quorum"), allow(dead_code, reason = "without nodes nothing is relayed"))]
    pub fn take(&mut self) -> Vec<Relayed> {
        std::mem::take(&mut self.messages)
    }
}
