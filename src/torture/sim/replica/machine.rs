//! What openraft asks of a simulated server. The server carries it out between tasks, as the executor of a real one does.

use std::collections::VecDeque;
use std::io::{self, Cursor};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::engine::config::Config;
use crate::quorum::node::{Applied, Committed, Machine, Status};
use crate::quorum::types::{Batch, NodeId, SnapshotFile};
use crate::server::replicated::content;
use crate::torture::sim::replica::disk::NodeDisk;

/// What is asked.
pub enum Asked {
    /// See [`Machine::apply`].
    Apply(Vec<Committed>, oneshot::Sender<Applied>),
    /// See [`Machine::install`].
    Install(Option<SnapshotFile>, oneshot::Sender<Result<(), String>>),
    /// See [`Machine::changed`].
    Changed(Status),
    /// See [`Machine::failed`].
    Failed(String),
}

/// Gathers what is asked.
#[derive(Clone)]
pub struct SimMachine {
    asked: Arc<Mutex<VecDeque<Asked>>>,
    disk: NodeDisk,
}

impl SimMachine {
    /// A machine with this disk.
    pub fn new(disk: NodeDisk) -> SimMachine {
        SimMachine { asked: Arc::default(), disk }
    }

    /// Takes what was asked first.
    pub fn next(&self) -> Option<Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn ask(&self, asked: Asked) {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push_back(asked);
    }
}

impl Machine for SimMachine {
    fn apply(&self, entries: Vec<Committed>, done: oneshot::Sender<Applied>) {
        self.ask(Asked::Apply(entries, done));
    }

    fn install(&self, snapshot: Option<SnapshotFile>, done: oneshot::Sender<Result<(), String>>) {
        self.ask(Asked::Install(snapshot, done));
    }

    fn compact(
        &self,
        previous: Option<SnapshotFile>,
        batches: &mut dyn Iterator<Item = io::Result<Batch>>,
        into: &Path,
    ) -> Result<(), String> {
        let previous = match &previous {
            Some(snapshot) => Some((Cursor::new(self.disk.read(&snapshot.path)?), snapshot)),
            None => None,
        };
        let mut bytes = Vec::new();
        content::compact_into(&Config::default(), previous, batches, &mut bytes)?;
        self.disk.write(into, &bytes)
    }

    fn changed(&self, status: Status) {
        self.ask(Asked::Changed(status));
    }

    /// Nobody asks: see the simulation's transport.
    fn hand_over(&self, _to: Option<NodeId>) {}

    fn failed(&self, reason: String) {
        self.ask(Asked::Failed(reason));
    }
}
