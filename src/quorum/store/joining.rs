//! A mark in a node's folder: the node has no vote yet.
//!
//! A node that has lost its disk gets entries again long before it has all that it once confirmed. If it restarts meanwhile, its log is
//! not blank, and must not be taken for that of a node that votes.

use crate::persist::disk::{Disk, Result};
use crate::quorum::store::snapshots::Snapshots;
use crate::quorum::store::storage::LogStore;

/// The file. It is empty.
const MARK: &[u8] = b"joining";

impl<D: Disk> Snapshots<D> {
    /// Whether the node has no vote yet: from its first start on a folder until [`Snapshots::joined`]. Marks a folder whose log is
    /// blank: call it before anything is written to the log.
    ///
    /// # Errors
    /// The disk's.
    pub fn joins(&mut self, log: &LogStore) -> Result<bool> {
        let disk = self.disk();
        if disk.open(MARK)?.is_some() {
            // A process that ended before it had synced the folder has left a name that only the cache has.
            disk.sync_folder()?;
            return Ok(true);
        }
        if !log.is_blank() {
            return Ok(false);
        }
        disk.create(MARK)?;
        disk.sync_folder()?;
        Ok(true)
    }

    /// The node votes from now on, also after a restart.
    ///
    /// # Errors
    /// The disk's.
    pub fn joined(&mut self) -> Result {
        let disk = self.disk();
        if disk.open(MARK)?.is_some() {
            disk.remove(MARK)?;
            disk.sync_folder()?;
        }
        Ok(())
    }
}
