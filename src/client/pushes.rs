//! What the server says unasked, and who wants to hear it.

use tokio::sync::broadcast;

use crate::client::value::Value;

/// Pushes that are kept for a listener that does not take them.
const KEPT: usize = 1024;

/// Gives out what came unasked on any of a client's connections.
pub(crate) struct Pushes {
    others: broadcast::Sender<Vec<Value>>,
}

impl Pushes {
    pub fn new() -> Pushes {
        Pushes { others: broadcast::Sender::new(KEPT) }
    }

    /// All of it, from now on.
    pub fn listen(&self) -> broadcast::Receiver<Vec<Value>> {
        self.others.subscribe()
    }

    pub fn push(&self, items: Vec<Value>) {
        // Nobody may be listening.
        let _ = self.others.send(items);
    }
}
