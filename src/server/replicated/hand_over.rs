//! Hands the leadership over, and ends a leader in order.
//!
//! ```text
//!   requests are held back ─▶ all that was executed is settled ─▶ openraft transfers ─▶ another node leads ─▶ (the server ends)
//! ```
//!
//! So no request is carried out whose reply is lost: those that were executed have their replies, and those that were not get none,
//! because the connections close when the leadership ends. Their clients send them again to the next leader.

use crate::engine::pause::Mode;
use crate::quorum::store::DiskNow;
use crate::quorum::types::NodeId;
use crate::server::replicated::leadership::{Closing, Part, successor};
use crate::server::replicated::{HandOver, Replicated, Why};
use crate::server::shell::Shell;

/// Time in which a hand-over must be done, in milliseconds. Requests are held back for no longer.
const HAND_OVER_MS: u64 = 2_000;

impl Replicated {
    /// The node that could lead instead of this one. See [`successor`].
    fn successor(&self, wanted: Option<NodeId>, stored: bool) -> Option<NodeId> {
        let answers = |id: NodeId| self.node.directory().get(id).is_some_and(|peer| peer.connected);
        successor(&self.node.status(), self.id, wanted, stored, answers)
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
        match replicated.successor(to, false) {
            Some(to) => self.begin_hand_over(to, Why::Asked),
            None => tracing::warn!(to, "there is no such node that answers and could lead"),
        }
    }

    /// If this node leads and another one can: hands the leadership over, and ends the server afterwards. Returns whether it does.
    pub(in crate::server) fn hand_over_and_end(&mut self) -> bool {
        let Some(replicated) = &mut self.replicated else { return false };
        if let Some(handing_over) = &mut replicated.handing_over {
            handing_over.why = Why::Ends;
            return true;
        }
        let leads = matches!(&replicated.part, Part::Leads(leadership) if !leadership.alone());
        match replicated.successor(None, false).filter(|_| leads) {
            Some(to) => {
                self.begin_hand_over(to, Why::Ends);
                true
            }
            None => false,
        }
    }

    /// Hands the leadership over because the disk of this node does not answer, if another node has stored all that is committed.
    pub(super) fn hand_over_for_disk(&mut self) {
        let Some(replicated) = self.replicated.as_ref().filter(|replicated| replicated.handing_over.is_none()) else { return };
        if let Some(to) = replicated.successor(None, true) {
            let DiskNow { busy, refuses } = replicated.node.disk();
            let ms = busy.as_millis() as u64;
            let what = if refuses { "the disk takes nothing" } else { "the disk does not answer" };
            tracing::warn!(ms, "{what}: this node does not go on leading");
            self.begin_hand_over(to, Why::Disk);
        }
    }

    /// Ceases to serve because of the disk. The next leader is not known here: to note one, a vote must be stored.
    fn step_down(&mut self) {
        let Some(Replicated { node, part: Part::Leads(leadership), .. }) = self.replicated.as_deref_mut() else { return };
        leadership.step_down();
        node.set_heartbeats(false);
        self.close_sessions(Closing::Deposed);
        self.end_hand_over();
    }

    fn begin_hand_over(&mut self, to: NodeId, why: Why) {
        let until_ms = self.clock.now().deadline_in(HAND_OVER_MS);
        let Some(replicated) = &mut self.replicated else { return };
        tracing::info!("hands the leadership over to node {to}");
        replicated.handing_over = Some(HandOver { to, until_ms, ordered: false, why });
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
            if handing_over.why == Why::Disk {
                self.step_down();
            }
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

    pub(super) fn end_hand_over(&mut self) {
        let Some(replicated) = &mut self.replicated else { return };
        let Some(handing_over) = replicated.handing_over.take() else { return };
        self.engine.unpause();
        self.ending |= handing_over.why == Why::Ends;
        self.show_cluster();
    }
}
