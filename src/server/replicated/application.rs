//! What the node asks of the executor, as orders.

use std::io;
use std::path::Path;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::driver::round::Adapter;
use crate::engine::config::Config;
use crate::quorum::node::{Application, Committed, Done, Status};
use crate::quorum::types::{Batch, NodeId, SnapshotFile};
use crate::server::clock::monotonic_ns;
use crate::server::durable::copy::{ENGINE_STACK, be_nice};
use crate::server::net::control::Control;
use crate::server::replicated::content;
use crate::server::shell::Shell;

/// Hands everything to the executor.
#[derive(Clone)]
pub struct ShellApplication {
    pub control: Control<Shell>,
    pub config: Config,
}

impl ShellApplication {
    fn order(&self, work: impl FnOnce(&mut Shell) + Send + 'static) {
        // If the executor has ended, the node is about to.
        self.control.send(Box::new(move |shell| {
            work(shell);
            shell.after_closure();
        }));
    }
}

impl Application for ShellApplication {
    fn apply(&self, entries: Vec<Committed>, done: Done) {
        self.order(move |shell| shell.drive(|driver, at| driver.take_entries(at, entries, done, monotonic_ns)));
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
        self.order(move |shell| shell.drive(|driver, _| driver.deliver_message(&message)));
    }

    fn followers_reached(&self) {
        self.order(|shell| shell.drive(|driver, at| driver.look_at_followers(at)));
    }

    fn changed(&self, status: Status) {
        self.order(move |shell| shell.cluster_changed(status));
    }

    fn hand_over(&self, to: Option<NodeId>) {
        self.order(move |shell| shell.drive(|driver, at| driver.hand_over_own(at, to)));
    }

    fn failed(&self, reason: String) {
        self.order(move |shell| shell.drive(|driver, _| driver.node_failed(&reason)));
    }
}
