//! Tells the executor when followers have what it awaits of them.

use openraft::async_runtime::WatchReceiver;
use tokio::sync::watch;

use crate::persist::disk::SendDisk;
use crate::quorum::node::Raft;
use crate::quorum::node::application::{Application, Asked};

/// So many nodes besides the leader have the log up to this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// Number of nodes.
    pub nodes: u64,
    /// Index in the log.
    pub index: u64,
}

/// Tells the application once when any of what is awaited has come true, until openraft or the executor ends. The indexes, which change
/// with each commit, are looked at only while something is awaited.
pub async fn followed<D: SendDisk, M: Application>(raft: Raft<D, M>, application: M, mut awaited: watch::Receiver<Vec<Awaited>>) {
    let mut indexes = raft.data_metrics();
    loop {
        let waits = {
            let awaited = awaited.borrow_and_update();
            let reached = !awaited.is_empty() && {
                let data = indexes.borrow_watched();
                let others = data.replication.iter().flatten().filter(|(id, _)| *id != raft.node_id());
                let others: Vec<u64> = others.map(|(_, at)| at.map_or(0, |at| at.index)).collect();
                awaited.iter().any(|of| others.iter().filter(|&&index| index >= of.index).count() as u64 >= of.nodes)
            };
            if reached {
                application.ask(Asked::WaitReached);
            }
            !awaited.is_empty() && !reached
        };
        let ended = tokio::select! {
            // Without random choices, a simulation can be repeated.
            biased;
            changed = awaited.changed() => changed.is_err(),
            changed = indexes.changed(), if waits => changed.is_err(),
        };
        if ended {
            return;
        }
    }
}
