//! What a run of `portcullis bench` measures, and how.

use std::path::PathBuf;
use std::time::Duration;

use crate::bench::run::workload::Workload;
use crate::bench::servers::target::ServerSpec;
use crate::recipes::Retry;

/// What a run measures, and how.
pub struct Plan {
    /// What clients run.
    pub workloads: Vec<Workload>,
    /// The servers that are compared.
    pub servers: Vec<ServerSpec>,
    /// Clients of each server, with a connection each.
    pub clients: usize,
    /// Number of locks. Client n acquires lock n modulo this number.
    pub locks: usize,
    /// Slices of each workload on each server.
    pub slices: usize,
    /// Length of a slice.
    pub slice: Duration,
    /// How long a client holds a lock.
    pub hold: Duration,
    /// The lease of a lock.
    pub lease: Duration,
    /// The lease of the locks whose expiry is measured.
    pub forgotten_lease: Duration,
    /// How algorithms that cannot block wait.
    pub retry: Retry,
    /// What the names of all keys begin with.
    pub prefix: String,
    /// Where the figures are written. `-` stands for standard output.
    pub json: Option<PathBuf>,
    /// Where the page is written.
    pub html: Option<PathBuf>,
}

impl Plan {
    /// The name of a lock's key.
    pub fn key(&self, workload: &Workload, lock: usize) -> String {
        let letters: String = workload.name().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        format!("{}:{letters}:{lock}", self.prefix)
    }
}
