//! Hands the leadership over, and ends a leader in order.
//!
//! ```text
//!   requests are held back ─▶ all that was executed is settled ─▶ openraft transfers ─▶ another node leads ─▶ (the server ends)
//! ```
//!
//! So no request is carried out whose reply is lost: those that were executed have their replies, and those that were not get none,
//! because the connections close when the leadership ends. Their clients send them again to the next leader.

use crate::engine::pause::Mode;
use crate::quorum::node::Status;
use crate::quorum::types::NodeId;
use crate::server::replicated::{HandOver, Part, Replicated};
use crate::server::shell::Shell;

/// Time in which a hand-over must be done, in milliseconds. Requests are held back for no longer.
const HAND_OVER_MS: u64 = 2_000;

impl Replicated {
    /// The nodes that could lead instead of this one: they vote and answer.
    fn successors(&self, status: &Status) -> Vec<NodeId> {
        let answers = |id: NodeId| self.node.directory().get(id).is_some_and(|peer| peer.connected);
        let voters = status.members.keys().copied().filter(|id| *id != self.id && !status.learners.contains(id));
        voters.filter(|id| answers(*id)).collect()
    }

    /// Of these nodes the wanted one, or else the one that has most of the log.
    fn successor(&self, wanted: Option<NodeId>) -> Option<NodeId> {
        let status = self.node.status();
        let mut successors = self.successors(&status).into_iter();
        match wanted {
            Some(wanted) => successors.find(|id| *id == wanted),
            None => successors.max_by_key(|id| status.matched.get(id).copied()),
        }
    }
}

impl Shell {
    /// Hands the leadership over to a node, or to the one that has most of the log. A node that does not lead asks the leader.
    pub(in crate::server) fn transfer_leadership(&mut self, to: Option<NodeId>) {
        match &self.replicated {
            Some(replicated) if !replicated.leads() => replicated.node.ask_for_hand_over(to),
            _ => self.hand_over_own(to),
        }
    }

    /// Hands this node's leadership over, if it has it. Another node may ask for it that does not know better.
    pub(in crate::server) fn hand_over_own(&mut self, to: Option<NodeId>) {
        let Some(replicated) = self.replicated.as_ref().filter(|replicated| replicated.leads()) else { return };
        if replicated.handing_over.is_some() {
            return;
        }
        match replicated.successor(to) {
            Some(to) => self.begin_hand_over(to, false),
            None => tracing::warn!(to, "there is no such node that answers and could lead"),
        }
    }

    /// If this node leads and another one can: hands the leadership over, and ends the server afterwards. Returns whether it does.
    pub(in crate::server) fn hand_over_and_end(&mut self) -> bool {
        let Some(replicated) = &mut self.replicated else { return false };
        if let Some(handing_over) = &mut replicated.handing_over {
            handing_over.ends = true;
            return true;
        }
        let leads = matches!(&replicated.part, Part::Leads(leadership) if !leadership.alone());
        match replicated.successor(None).filter(|_| leads) {
            Some(to) => {
                self.begin_hand_over(to, true);
                true
            }
            None => false,
        }
    }

    fn begin_hand_over(&mut self, to: NodeId, ends: bool) {
        let until_ms = self.clock.now().deadline_in(HAND_OVER_MS);
        let Some(replicated) = &mut self.replicated else { return };
        tracing::info!("hands the leadership over to node {to}");
        replicated.handing_over = Some(HandOver { to, until_ms, ordered: false, ends });
        self.engine.pause(Mode::All, until_ms);
        self.show_cluster();
        self.go_on_handing_over();
    }

    /// Orders the transfer when everything is settled; gives it up when its time is over.
    pub(super) fn go_on_handing_over(&mut self) {
        let now = self.clock.now();
        let settled = self.durable.as_ref().is_none_or(|durable| !durable.gate.in_flight() && durable.log.pending_bytes() == 0);
        let Some(replicated) = &mut self.replicated else { return };
        let Some(handing_over) = &mut replicated.handing_over else { return };
        if now.reached(handing_over.until_ms) {
            tracing::warn!("node {} has not taken over the leadership in time", handing_over.to);
            self.end_hand_over();
        } else if settled && !handing_over.ordered {
            handing_over.ordered = true;
            replicated.node.transfer(handing_over.to);
        }
    }

    /// Ends a hand-over when another node leads.
    pub(super) fn note_leader(&mut self) {
        let Some(replicated) = &self.replicated else { return };
        let follows = replicated.status.leader.is_some_and(|leader| leader != replicated.id);
        if replicated.handing_over.is_some() && follows && !replicated.leads() {
            self.end_hand_over();
        }
    }

    fn end_hand_over(&mut self) {
        let Some(replicated) = &mut self.replicated else { return };
        let Some(handing_over) = replicated.handing_over.take() else { return };
        self.engine.unpause();
        self.ending |= handing_over.ends;
        self.show_cluster();
    }
}
