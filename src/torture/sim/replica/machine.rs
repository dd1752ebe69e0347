//! What openraft asks of a simulated server. The server carries it out between tasks, as the executor of a real one does.

use std::collections::VecDeque;
use std::io::{self, Cursor};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::engine::config::Config;
use crate::quorum::node::{Application, Committed, Done, Status};
use crate::quorum::types::{Batch, NodeId, SnapshotFile};
use crate::server::replicated::content;
use crate::torture::sim::replica::disk::NodeDisk;

/// What is asked.
pub enum Asked {
    /// See [`Application::apply`].
    Apply(Vec<Committed>, Done),
    /// See [`Application::install`].
    Install(Option<SnapshotFile>, oneshot::Sender<Result<(), String>>),
    /// See [`Application::message`].
    Message(Bytes),
    /// See [`Application::followers_reached`].
    FollowersReached,
    /// See [`Application::changed`].
    Changed(Status),
    /// See [`Application::hand_over`].
    HandOver(Option<NodeId>),
    /// See [`Application::failed`].
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

impl Application for SimMachine {
    fn apply(&self, entries: Vec<Committed>, done: Done) {
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

    fn message(&self, message: Bytes) {
        self.ask(Asked::Message(message));
    }

    fn followers_reached(&self) {
        self.ask(Asked::FollowersReached);
    }

    fn hand_over(&self, to: Option<NodeId>) {
        self.ask(Asked::HandOver(to));
    }

    fn failed(&self, reason: String) {
        self.ask(Asked::Failed(reason));
    }
}
