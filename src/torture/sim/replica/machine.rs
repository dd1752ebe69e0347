//! What openraft asks of a simulated server. The server carries it out between tasks, as the executor of a real one does.

use std::collections::VecDeque;
use std::io::{self, Cursor};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::config::Config;
use crate::quorum::node::{Application, Asked};
use crate::quorum::types::{Batch, SnapshotFile};
use crate::server::replicated::content;
use crate::torture::sim::replica::disk::NodeDisk;

/// Gathers what is asked.
#[derive(Clone)]
pub struct SimMachine {
    asked: Arc<Mutex<VecDeque<Asked>>>,
    disk: NodeDisk,
    config: Config,
}

impl SimMachine {
    /// A machine with this disk, for a server with this configuration.
    pub fn new(disk: NodeDisk, config: Config) -> SimMachine {
        SimMachine { asked: Arc::default(), disk, config }
    }

    /// Whether anything was asked.
    pub fn has_asked(&self) -> bool {
        !self.asked.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Takes what was asked first.
    pub fn next(&self) -> Option<Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl Application for SimMachine {
    fn ask(&self, asked: Asked) {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push_back(asked);
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
        content::compact_into(&self.config, previous, batches, &mut bytes)?;
        self.disk.write(into, &bytes)
    }
}
