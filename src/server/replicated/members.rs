//! `NODE`: what it shows of the cluster, and the changes of the members that it orders.

use std::time::Duration;

use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::driver::replicated::leadership::hangs;
use crate::driver::round::Adapter;
use crate::engine::replication::members::MemberChange;
use crate::engine::replication::report::{Disk, Known, Report};
use crate::quorum::node::{Change, Observer};
use crate::quorum::store::DiskNow;
use crate::quorum::types::NodeId;
use crate::server::shell::Shell;

/// What a node knows of its cluster. `me`, `addr`: this node. `lease_max`: the length of a whole lease.
pub(super) fn report(observer: &Observer, me: NodeId, addr: &str, lease_max: Duration) -> Report {
    let (status, progress) = (observer.status(), observer.progress());
    let DiskNow { busy, refuses } = progress.disk();
    let disk = match (refuses, hangs(busy, lease_max)) {
        (true, _) => Disk::Refuses,
        (false, true) => Disk::Hangs,
        (false, false) => Disk::Answers,
    };
    let known = |id: NodeId, addr: String| {
        let Some(peer) = observer.directory().get(id).filter(|_| id != me) else {
            return Known { id, addr, matched: status.leads.map(|_| status.applied), ..Known::default() };
        };
        Known {
            id,
            addr,
            joins: peer.hello.as_ref().is_some_and(|hello| !hello.votes),
            version: peer.hello.as_ref().map(|hello| hello.program.clone()),
            heard_ms: peer.last_heard.map(|ago| ago.as_millis() as u64),
            failure: peer.failure.clone(),
            matched: status.matched.get(&id).copied(),
            pings: peer.pings,
            appends: peer.appends,
        }
    };
    let mut nodes: Vec<Known> = status.members.iter().map(|(id, addr)| known(*id, addr.clone())).collect();
    if !status.members.contains_key(&me) {
        nodes.push(known(me, addr.to_owned()));
    }
    Report {
        cluster: status.cluster,
        committed: status.committed,
        applied: status.applied,
        flushes: progress.syncs.read(),
        disk,
        disk_ms: busy.as_millis() as u64,
        nodes,
        refused: observer.directory().refused(),
    }
}

impl Shell {
    /// Has the node change the members, and replies to the session when that is done.
    pub(in crate::server) fn order_members(&mut self, id: SessionId, change: MemberChange) {
        let (Some(member), Some(control)) = (self.driver.member(), self.control.clone()) else {
            return self.tell_members(id, Err("this server is not replicated".to_owned()));
        };
        let change = match change {
            MemberChange::Add { id, addr } => Change::Add(id, addr),
            MemberChange::Remove { id } => Change::Remove(id),
        };
        let changed = move |result| {
            // If the executor has ended, so has the client's connection.
            control.send(Box::new(move |shell: &mut Shell| {
                shell.tell_members(id, result);
                shell.after_closure();
            }));
        };
        member.node().change(change, Box::new(changed));
    }

    /// Replies to the client that has asked for a change, if it is still there.
    fn tell_members(&mut self, id: SessionId, result: Result<(), String>) {
        let now = self.clock.now();
        let error = result.err().map(|reason| Error::new(format!("ERR {reason}")));
        self.driver.engine.end_wait_for_driver(now, id, error.as_ref());
    }
}
