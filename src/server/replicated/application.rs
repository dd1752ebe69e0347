//! What the node asks of the executor, as orders.

use std::io;
use std::path::Path;

use crate::driver::replicated::asked::NodeAdapter;
use crate::engine::config::Config;
use crate::quorum::node::{Application, Asked};
use crate::quorum::types::{Batch, SnapshotFile};
use crate::server::durable::threads::{ENGINE_STACK, be_nice};
use crate::server::net::control::Control;
use crate::server::replicated::content;
use crate::server::shell::Shell;

/// Hands everything to the executor.
#[derive(Clone)]
pub struct ShellApplication {
    pub control: Control<Shell>,
    pub config: Config,
}

impl Application for ShellApplication {
    fn ask(&self, asked: Asked) {
        // If the executor has ended, the node is about to.
        self.control.send(Box::new(move |shell| shell.carry_out(asked)));
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
}
