//! Hands the leadership over, and ends a leader in order.
//!
//! ```text
//!   requests are held back ─▶ all that was executed is settled ─▶ openraft transfers ─▶ another node leads ─▶ (the server ends)
//! ```
//!
//! So no request is carried out whose reply is lost: those that were executed have their replies, and those that were not get
//! none, because the connections close when the leadership ends. Their clients send them again to the next leader.

use crate::driver::replicated::leadership::{Closing, NodeState, successor};
use crate::driver::replicated::{HandOver, Member, Why};
use crate::driver::{Driver, Present};
use crate::engine::pause::Mode;
use crate::quorum::store::DiskNow;
use crate::quorum::types::NodeId;

/// Time in which a hand-over must be done, in milliseconds. Requests are held back for no longer.
const HAND_OVER_MS: u64 = 2_000;

impl Member {
    /// The node that could lead instead of this one. See [`successor`].
    fn successor(&self, wanted: Option<NodeId>, stored: bool) -> Option<NodeId> {
        let answers = |id: NodeId| self.node.directory().get(id).is_some_and(|peer| peer.connected);
        successor(&self.node.status(), self.id, wanted, stored, answers)
    }
}

impl Driver {
    /// Hands the leadership over to a node, or to the one that has most of the log. A node that does not lead asks the leader.
    pub fn transfer_leadership(&mut self, at: Present, to: Option<NodeId>) {
        match self.member() {
            Some(member) if !member.leads() => member.node.ask_for_hand_over(to),
            _ => self.hand_over_own(at, to),
        }
    }

    /// Hands this node's leadership over, if it has it. Another node may ask for it that does not know better.
    pub fn hand_over_own(&mut self, at: Present, to: Option<NodeId>) {
        let Some(member) = self.member().filter(|member| member.leads() && member.handing_over.is_none()) else { return };
        match member.successor(to, false) {
            Some(to) => self.begin_hand_over(at, to, Why::Asked),
            None => tracing::warn!(to, "there is no such node that answers and could lead"),
        }
    }

    /// If this node leads and another one can: hands the leadership over, and ends the server afterwards. Returns whether it
    /// does.
    pub fn hand_over_and_end(&mut self, at: Present) -> bool {
        let Some(member) = self.member_mut() else { return false };
        if let Some(handing_over) = &mut member.handing_over {
            handing_over.why = Why::Ends;
            return true;
        }
        let successor = if member.serves() { member.successor(None, false) } else { None };
        successor.inspect(|to| self.begin_hand_over(at, *to, Why::Ends)).is_some()
    }

    /// Hands the leadership over because the disk of this node does not answer, if another node has stored all that is committed.
    pub(super) fn hand_over_for_disk(&mut self, at: Present) {
        let Some(member) = self.member().filter(|member| member.handing_over.is_none()) else { return };
        if let Some(to) = member.successor(None, true) {
            let DiskNow { busy, refuses } = member.node.disk();
            let ms = busy.as_millis() as u64;
            let what = if refuses { "the disk takes nothing" } else { "the disk does not answer" };
            tracing::warn!(ms, "{what}: this node does not go on leading");
            self.begin_hand_over(at, to, Why::Disk);
        }
    }

    /// Ceases to serve because of the disk. The next leader is not known here: to note one, a vote must be stored.
    fn step_down(&mut self, at: Present) {
        let Some(Member { node, state: NodeState::Leads(leading), .. }) = self.member_mut() else { return };
        leading.leadership.step_down();
        node.set_heartbeats(false);
        self.close_sessions(at, Closing::Deposed);
        self.end_hand_over(at);
    }

    fn begin_hand_over(&mut self, at: Present, to: NodeId, why: Why) {
        let until_ms = at.now.deadline_in(HAND_OVER_MS);
        tracing::info!("hands the leadership over to node {to}");
        let handing_over = HandOver { to, until_ms, ordered: false, why };
        self.member_mut().into_iter().for_each(|member| member.handing_over = Some(handing_over));
        self.engine.pause(Mode::All, until_ms);
        self.show_cluster(at);
        self.go_on_handing_over(at);
    }

    /// Orders the transfer when everything is settled; gives it up when its time is over.
    pub(super) fn go_on_handing_over(&mut self, at: Present) {
        let settled = self.log().is_none_or(|log| !log.gate.in_flight() && log.records.pending_bytes() == 0);
        let Some(member) = self.member_mut() else { return };
        let Some(handing_over) = &mut member.handing_over else { return };
        if at.now.reached(handing_over.until_ms) {
            tracing::warn!("node {} has not taken over the leadership in time", handing_over.to);
            self.end_hand_over(at);
        } else if settled && !handing_over.ordered {
            handing_over.ordered = true;
            member.node.transfer(handing_over.to);
            if handing_over.why == Why::Disk {
                self.step_down(at);
            }
        }
    }

    /// Ends a hand-over when another node leads.
    pub(super) fn note_leader(&mut self, at: Present) {
        let is_led = |member: &Member| member.status.leader.is_some_and(|leader| leader != member.id);
        if self.member().is_some_and(|member| member.handing_over.is_some() && !member.leads() && is_led(member)) {
            self.end_hand_over(at);
        }
    }

    pub(super) fn end_hand_over(&mut self, at: Present) {
        let Some(handing_over) = self.member_mut().and_then(|member| member.handing_over.take()) else { return };
        self.engine.unpause();
        self.demands.ends |= handing_over.why == Why::Ends;
        self.show_cluster(at);
    }
}
