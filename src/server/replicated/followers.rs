//! How far the followers are, for clients that `WAIT` for more of them than a majority.

use crate::quorum::node::Awaited;
use crate::server::replicated::Replicated;
use crate::server::shell::Shell;

impl Shell {
    /// Tells the engine how far the followers are, if it waits for them. The node's thread calls for another look when they are
    /// further.
    #[cold]
    pub(in crate::server) fn look_at_followers(&mut self) {
        let Some(replicated) = self.leading() else { return };
        let matched = replicated.node.status().matched;
        let now = self.clock.now();
        self.engine.set_follower_positions(now, &matched);
        self.await_followers();
    }

    /// Tells the node's thread what is awaited of the followers now.
    pub(super) fn await_followers(&self) {
        let Some(replicated) = self.leading() else { return };
        let awaited = self.engine.awaited_of_followers();
        replicated.node.await_followers(awaited.into_iter().map(|of| Awaited { nodes: of.followers, index: of.index }).collect());
    }

    fn leading(&self) -> Option<&Replicated> {
        self.replicated.as_deref().filter(|replicated| replicated.leads())
    }
}
