//! Writes the log: appends batches to a file, makes them durable, and tells up to which batch the log is settled.
//!
//! ```text
//!   batch ─▶ append ─▶ whole in the file ─▶ sync ─▶ durable
//!              │ full, or an error              └── an error: the log has failed, and what is durable is unknown
//!              └─▶ cut back to the last whole batch; the caller keeps the batch and tries again
//! ```
//!
//! It has no thread and no clock, and the server does not use it yet. Tests call it on a simulated disk.

use crate::persist::disk::{Disk, DiskError, Result};

/// When a batch counts as settled, which is when its effects may be shown: `appendfsync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// `always`: when it is durable.
    Always,
    /// `everysec` and `no`: when it is in the file. A crash of the machine may lose it; a crash of the process does not.
    Written,
}

/// The log's file, and how far it is written and durable.
#[derive(Debug)]
pub struct Writer<D: Disk> {
    disk: D,
    file: D::File,
    /// Bytes of the whole batches in the file.
    len: u64,
    /// Whether the file may have part of a batch behind them.
    torn: bool,
    /// Number of batches in the file, since it was opened.
    written: u64,
    /// How many of them are durable.
    durable: u64,
    /// Why the log has failed: a sync did not succeed.
    failed: Option<DiskError>,
}

impl<D: Disk> Writer<D> {
    /// Opens the log's file, of which the first `valid` bytes are whole batches; what is behind them is cut off. Creates the file
    /// if it does not exist. Afterwards its existence and content are durable.
    ///
    /// # Errors
    /// The disk's. A file that is shorter than `valid` is an error, too.
    pub fn open(mut disk: D, name: &str, valid: u64) -> Result<Writer<D>> {
        let (mut file, len) = disk.open(name)?;
        if len < valid {
            return Err(DiskError::Failed(format!("{name} has {len} bytes, where {valid} were read before")));
        }
        if len > valid {
            disk.truncate(&mut file, valid)?;
        }
        disk.sync(&mut file)?;
        disk.sync_folder()?;
        Ok(Writer { disk, file, len: valid, torn: false, written: 0, durable: 0, failed: None })
    }

    /// Appends a batch as a whole or not at all.
    ///
    /// # Errors
    /// The disk's; then the batch is not in the log, and the caller may try again later. After a failed sync, always that error.
    pub fn append(&mut self, batch: &[u8]) -> Result {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.cut_torn_batch()?;
        let mut rest = batch;
        while !rest.is_empty() {
            self.torn = true;
            match self.disk.append(&mut self.file, rest) {
                Ok(0) => return self.give_up_batch(DiskError::Failed("nothing was written".to_owned())),
                Ok(count) => rest = &rest[count.min(rest.len())..],
                Err(error) => return self.give_up_batch(error),
            }
        }
        self.torn = false;
        self.len += batch.len() as u64;
        self.written += 1;
        Ok(())
    }

    fn give_up_batch(&mut self, error: DiskError) -> Result {
        // If this fails as well, the next append tries again before it writes.
        let _ = self.cut_torn_batch();
        Err(error)
    }

    fn cut_torn_batch(&mut self) -> Result {
        if self.torn {
            self.disk.truncate(&mut self.file, self.len)?;
            self.torn = false;
        }
        Ok(())
    }

    /// Makes all batches in the file durable.
    ///
    /// # Errors
    /// The disk's. The log has failed then: it is unknown which batches are durable, a second sync may succeed without writing
    /// them, and no operation succeeds any more.
    pub fn sync(&mut self) -> Result {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.durable < self.written {
            self.disk.sync(&mut self.file).inspect_err(|error| self.failed = Some(error.clone()))?;
            self.durable = self.written;
        }
        Ok(())
    }

    /// Number of batches, since the file was opened, whose effects may be shown.
    pub fn settled(&self, policy: Policy) -> u64 {
        match policy {
            Policy::Always => self.durable,
            Policy::Written => self.written,
        }
    }

    /// Bytes of the whole batches in the file.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// The disk, when the log is closed.
    pub fn into_disk(self) -> D {
        self.disk
    }
}

#[cfg(test)]
mod tests;
