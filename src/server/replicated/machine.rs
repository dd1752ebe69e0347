//! What the node asks of the executor, as orders.

use std::io;
use std::path::Path;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::engine::config::Config;
use crate::quorum::node::{Applied, Committed, Machine, Status};
use crate::quorum::types::{Batch, NodeId, SnapshotFile};
use crate::server::durable::copy::{ENGINE_STACK, be_nice};
use crate::server::net::control::Control;
use crate::server::replicated::content;
use crate::server::shell::Shell;

/// Hands everything to the executor.
#[derive(Clone)]
pub struct ShellMachine {
    pub control: Control<Shell>,
    pub config: Config,
}

impl ShellMachine {
    fn order(&self, work: impl FnOnce(&mut Shell) + Send + 'static) {
        // If the executor has ended, the node is about to.
        self.control.send(Box::new(move |shell| {
            work(shell);
            shell.after_order();
        }));
    }
}

impl Machine for ShellMachine {
    fn apply(&self, entries: Vec<Committed>, done: oneshot::Sender<Applied>) {
        self.order(move |shell| shell.take_entries(entries, done));
    }

    fn install(&self, snapshot: Option<SnapshotFile>, done: oneshot::Sender<Result<(), String>>) {
        self.order(move |shell| _ = done.send(shell.install_state(snapshot.as_ref())));
    }

    fn compact(
        &self,
        previous: Option<SnapshotFile>,
        batches: &mut dyn Iterator<Item = io::Result<Batch>>,
        into: &Path,
    ) -> Result<(), String> {
        // An engine needs more stack than the runtime's threads have.
        let (sender, receiver) = std::sync::mpsc::sync_channel(16);
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("compact".into()).stack_size(ENGINE_STACK);
            let work = thread.spawn_scoped(scope, move || {
                be_nice();
                content::compact(&self.config, previous.as_ref(), &mut receiver.into_iter(), into)
            });
            let work = work.map_err(|error| error.to_string())?;
            // If it has failed, it takes no more.
            while let Some(batch) = batches.next().filter(|_| !work.is_finished()) {
                if sender.send(batch).is_err() {
                    break;
                }
            }
            drop(sender);
            work.join().map_err(|_| "the thread that makes a snapshot has panicked".to_owned())?
        })
    }

    fn message(&self, message: Bytes) {
        self.order(move |shell| shell.deliver_message(&message));
    }

    fn followers_reached(&self) {
        self.order(|shell| shell.look_at_followers());
    }

    fn changed(&self, status: Status) {
        self.order(move |shell| shell.cluster_changed(status));
    }

    fn hand_over(&self, to: Option<NodeId>) {
        self.order(move |shell| shell.hand_over_own(to));
    }

    fn failed(&self, reason: String) {
        self.order(move |shell| shell.node_failed(&reason));
    }
}
