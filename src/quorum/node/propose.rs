//! Proposes batches in their order, each when the one before it is committed.
//!
//! openraft refuses a write while no majority has answered for a lease, and while the leadership is handed over. The leadership may go
//! on all the same. Then the batch is proposed again: its client would wait for ever, and no later batch may go before it.

use std::collections::VecDeque;
use std::time::Duration;

use openraft::AsyncRuntime;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, ForwardReason};
use openraft::impls::ProgressResponder;
use tokio::sync::mpsc;

use crate::persist::disk::SendDisk;
use crate::quorum::node::Raft;
use crate::quorum::node::application::Application;
use crate::quorum::runtime::Runtime;
use crate::quorum::types::{Batch, LeaderId};

/// Pause before a batch that was refused is proposed again.
const AGAIN: Duration = Duration::from_millis(5);

/// Proposes batches until no more can come, or openraft has ended. A batch of a leadership that has ended is dropped: `watch` tells the
/// executor of that.
pub async fn propose<D: SendDisk, M: Application>(raft: Raft<D, M>, mut batches: mpsc::UnboundedReceiver<(Batch, LeaderId)>) {
    let leads = |leadership| raft.as_leader().is_ok_and(|leader| leader.to_committed_leader_id() == leadership);
    let mut servers = raft.server_metrics();
    // openraft warns of receivers that are gone when a batch is applied.
    let mut unapplied = VecDeque::new();
    while let Some((batch, leadership)) = batches.recv().await {
        while leads(leadership) {
            let (responder, mut committed, applied) = ProgressResponder::new();
            if raft.write(batch.clone()).with_leader(leadership).responder(responder).await.is_err() {
                return;
            }
            let committed = loop {
                tokio::select! {
                    biased;
                    committed = &mut committed => break committed.is_ok(),
                    changed = servers.changed() => match changed {
                        Ok(()) if leads(leadership) => {}
                        Ok(()) => break true,
                        Err(_) => return,
                    },
                }
            };
            if committed {
                unapplied.push_back(applied);
                break;
            }
            match applied.await {
                Ok(Err(ClientWriteError::ForwardToLeader(to)))
                    if matches!(to.reason, ForwardReason::LeaseExpired | ForwardReason::LeadershipTransfer) =>
                {
                    Runtime::sleep(AGAIN).await;
                }
                // It may be in the log of a leadership that has ended.
                _ => break,
            }
        }
        while let Some(first) = unapplied.front_mut()
            && !matches!(first.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Empty))
        {
            unapplied.pop_front();
        }
    }
}
