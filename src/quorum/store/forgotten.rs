//! Marks in a node's folder: what the node may have forgotten of what it has promised. It has no vote yet.
//!
//! A node that has lost its disk gets entries again long before it has all that it once confirmed. If it restarts meanwhile, its log is
//! not blank, and must not be taken for that of a node that votes.
//!
//! The end of a log that is not a whole record may be a write that a crash has torn: nobody was told of it. It may as well be the last
//! record, damaged: then the node has confirmed it. Nothing in the file tells the two apart.

use crate::persist::disk::{Disk, Result};
use crate::quorum::store::segments::CUT;
use crate::quorum::store::snapshots::Snapshots;
use crate::quorum::store::storage::LogStore;

/// The mark of a node whose log was blank. The file is empty.
const JOINING: &[u8] = b"joining";

/// What a node may have forgotten. It has no vote before it has caught up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLoss {
    /// Nothing.
    #[default]
    Nothing,
    /// What was at the end of its log.
    End,
    /// All: it is new, or its disk was lost.
    All,
}

impl<D: Disk> Snapshots<D> {
    /// What the node may have forgotten, from the start that finds it so until [`Snapshots::joined`]. Marks a folder whose log is blank:
    /// call it before anything is written to the log.
    ///
    /// # Errors
    /// The disk's.
    pub fn forgotten(&mut self, log: &LogStore) -> Result<LogLoss> {
        let disk = self.disk();
        let joining = disk.open(JOINING)?.is_some();
        let found = match joining || log.is_blank() {
            true => LogLoss::All,
            false if log.was_cut() || disk.open(CUT)?.is_some() => LogLoss::End,
            false => return Ok(LogLoss::Nothing),
        };
        if found == LogLoss::All && !joining {
            disk.create(JOINING)?;
        }
        // A process that ended before it had synced the folder has left a name that only the cache has.
        disk.sync_folder()?;
        Ok(found)
    }

    /// The node votes from now on, also after a restart.
    ///
    /// # Errors
    /// The disk's.
    pub fn joined(&mut self) -> Result {
        let disk = self.disk();
        let mut any = false;
        for mark in [JOINING, CUT] {
            if disk.open(mark)?.is_some() {
                disk.remove(mark)?;
                any = true;
            }
        }
        if any { disk.sync_folder() } else { Ok(()) }
    }
}
