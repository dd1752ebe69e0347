//! Changes of the members, as `NODE ADD` and `NODE REMOVE` ask for them.

use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::driver::{Driver, Present};
use crate::engine::replication::members::MemberChange;
use crate::quorum::node::Change;

impl Driver {
    /// Has the node change the members. The session gets its reply when that is done.
    pub(in crate::driver) fn change_members(&mut self, at: Present, id: SessionId, change: MemberChange) {
        let change = match change {
            MemberChange::Add { id, addr } => Change::Add(id, addr),
            MemberChange::Remove { id } => Change::Remove(id),
        };
        match self.member() {
            Some(member) => member.node.change(change, id),
            None => self.members_changed(at, id, Err("this server is not replicated".to_owned())),
        }
    }

    /// Replies to the session that has asked for a change, if it is still there.
    pub(super) fn members_changed(&mut self, at: Present, id: SessionId, result: Result<(), String>) {
        let error = result.err().map(|reason| Error::new(format!("ERR {reason}")));
        self.engine.end_wait_for_driver(at.now, id, error.as_ref());
    }
}
