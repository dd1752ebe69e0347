//! How far the followers are, for clients that `WAIT` for more of them than a majority.

use crate::driver::replicated::Member;
use crate::driver::{Driver, Present};
use crate::quorum::node::Awaited;

impl Driver {
    /// Tells the engine how far the followers are, if it waits for them. The node calls for another look when they are further.
    #[cold]
    pub fn look_at_followers(&mut self, at: Present) {
        let matched = self.leader().map(|member| member.node.status().matched);
        matched.iter().for_each(|matched| self.engine.set_follower_positions(at.now, matched));
        self.await_followers();
    }

    /// Tells the node what is awaited of the followers now.
    pub(super) fn await_followers(&self) {
        self.leader().into_iter().for_each(|member| {
            let awaited = self.engine.awaited_of_followers().into_iter();
            member.node.await_followers(awaited.map(|of| Awaited { nodes: of.followers, index: of.index }).collect());
        });
    }

    fn leader(&self) -> Option<&Member> {
        self.member().filter(|member| member.leads())
    }
}
