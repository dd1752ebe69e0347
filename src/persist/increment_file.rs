//! An increment of the log: batches are appended to a file and made durable.
//!
//! ```text
//!   batch ─▶ append ─▶ whole in the file ─▶ sync ─▶ durable
//!              │ full, or an error              └── an error: the log has failed, and what is durable is unknown
//!              └─▶ cut back to the last whole batch; the caller keeps the batch and tries again
//! ```
//!
//! A file is written by one process, and after a clean stop by none: the next start begins another one (see
//! [`resume`](crate::persist::resume)).
//!
//! The file grows with each append. Space that is laid out beforehand would make a sync cheaper: for 4 KiB, 116 µs instead of 179 and
//! 64 µs of CPU instead of 80, on the disk of the published figures. Zeros cannot fill it, as a redis-server does not start from a
//! file with zeros at its end. Lines of comments can (`#`, blanks, line feed), but the reader would have to tell them from a lost
//! batch, and batches of 40 KiB gain nothing, because each byte is written twice. It is not done.
//!
//! It has no thread and no clock: the thread of `server::durable` has it called on a folder, and tests call it on a simulated disk.

use crate::persist::disk::{Disk, DiskError, Result, append_all};

/// When a batch counts as settled, which is when its effects may be shown: `appendfsync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "tests use it")]
pub enum Policy {
    /// `always`: when it is durable.
    Always,
    /// `everysec` and `no`: when it is in the file. A crash of the machine may lose it; a crash of the process does not.
    Written,
}

/// The log's file, and how far it is written and durable.
#[derive(Debug)]
pub struct IncrementFile<D: Disk> {
    disk: D,
    file: D::File,
    /// Bytes of the first line and the whole batches in the file.
    len: u64,
    /// Bytes of those that are durable.
    durable_len: u64,
    /// Whether the file may have part of a batch behind them.
    torn: bool,
    /// Number of batches in the file.
    written: u64,
    /// How many of them are durable.
    durable: u64,
    /// Why the log has failed: a sync did not succeed.
    failed: Option<DiskError>,
}

impl<D: Disk> IncrementFile<D> {
    /// Creates a file with this first line ([`AppendLog::begin_file`](crate::persist::append::log::AppendLog::begin_file)), and makes
    /// it durable. A file that has the name is replaced: it must not be in the manifest.
    ///
    /// # Errors
    /// The disk's; then the file may exist.
    pub fn create(mut disk: D, name: &[u8], first_line: &[u8]) -> Result<IncrementFile<D>> {
        let mut file = disk.create(name)?;
        append_all(&mut disk, &mut file, first_line)?;
        disk.sync(&mut file)?;
        disk.sync_folder()?;
        let len = first_line.len() as u64;
        Ok(IncrementFile { disk, file, len, durable_len: len, torn: false, written: 0, durable: 0, failed: None })
    }

    /// Appends a batch as a whole or not at all.
    ///
    /// # Errors
    /// The disk's; then the batch is not in the log, and the caller may try again later. After a failed sync, always that error.
    pub fn append(&mut self, batch: &[u8]) -> Result {
        self.append_whole(batch)?;
        self.written += 1;
        Ok(())
    }

    fn append_whole(&mut self, bytes: &[u8]) -> Result {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.cut_torn_batch()?;
        self.torn = true;
        if let Err(error) = append_all(&mut self.disk, &mut self.file, bytes) {
            // If this fails as well, the next append tries again before it writes.
            let _ = self.cut_torn_batch();
            return Err(error);
        }
        self.torn = false;
        self.len += bytes.len() as u64;
        Ok(())
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
    /// them, and no operation succeeds any more. The process must end: [`resume`](crate::persist::resume) copies what is read.
    pub fn sync(&mut self) -> Result {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.durable_len < self.len {
            self.disk.sync(&mut self.file).inspect_err(|error| self.failed = Some(error.clone()))?;
            (self.durable_len, self.durable) = (self.len, self.written);
        }
        Ok(())
    }

    /// Ends the file after a clean stop: makes all batches durable, and then its last line, which says so. `last_line` is
    /// [`AppendLog::end_file`](crate::persist::append::log::AppendLog::end_file) of [`IncrementFile::bytes`]. Nothing may be appended
    /// afterwards.
    ///
    /// # Errors
    /// The disk's; then the file may lack its last line, and the next start takes it for one that was not closed. If the disk is
    /// full, the caller may try again later: no other file may follow one whose last line is torn.
    pub fn close(&mut self, last_line: &[u8]) -> Result {
        self.sync()?;
        self.append_whole(last_line)?;
        self.sync()
    }

    /// Number of batches whose effects may be shown.
    #[allow(dead_code, reason = "tests use it")]
    pub fn settled(&self, policy: Policy) -> u64 {
        match policy {
            Policy::Always => self.durable,
            Policy::Written => self.written,
        }
    }

    /// Bytes of the first line and the whole batches in the file.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Bytes of the file that are durable: the `synced` of the next batch.
    #[allow(dead_code, reason = "tests use it")]
    pub fn durable_bytes(&self) -> u64 {
        self.durable_len
    }

    /// The disk, for operations on other files.
    pub fn disk(&mut self) -> &mut D {
        &mut self.disk
    }
}

#[cfg(test)]
mod tests;
