//! `NODE`: what it shows of the cluster.

use std::time::Duration;

use crate::driver::replicated::leadership::hangs;
use crate::engine::replication::report::{Disk, Known, Report};
use crate::quorum::node::Observer;
use crate::quorum::store::DiskNow;
use crate::quorum::types::NodeId;

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
