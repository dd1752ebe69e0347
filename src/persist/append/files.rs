//! The files of a log, as its writer writes them: the current increment, and the manifest, which names all files.

use crate::persist::append::batch::last_line;
use crate::persist::append::manifest::{File, Manifest};
use crate::persist::disk::{Disk, DiskError, Result};
use crate::persist::increment_file::IncrementFile;
use crate::persist::resume::{Last, exchange, remove_history, resume};

/// The files of a folder, on a disk of the system or on a simulated one.
pub struct Files<D: Disk> {
    /// `appendfilename`.
    name: Vec<u8>,
    manifest: Manifest,
    /// Bytes of the base and the closed increments.
    closed: u64,
    /// The salt of the current increment.
    salt: u64,
    /// The current increment; `None` after an error in the middle of an exchange.
    writer: Option<IncrementFile<D>>,
}

/// The beginning of an increment.
#[derive(Clone, Debug)]
pub struct Head {
    /// The salt of the file.
    pub salt: u64,
    /// Its first line.
    pub line: Vec<u8>,
}

impl<D: Disk> Files<D> {
    /// Begins to write after the files of `manifest` were read. They have `closed` bytes.
    ///
    /// # Errors
    /// The disk's. The next start reads what this one has read.
    pub fn begin(folder: D, name: &[u8], manifest: Manifest, last: Last, closed: u64, head: &Head) -> Result<Files<D>> {
        let (mut manifest, mut writer) = resume(folder, name, manifest, last, &head.line)?;
        if !manifest.history.is_empty()
            && let Err(error) = remove_history(writer.disk(), name, &mut manifest)
        {
            // They take space, and are not read.
            tracing::warn!(%error, "cannot delete old files of the append-only file");
        }
        Ok(Files { name: name.to_vec(), manifest, closed, salt: head.salt, writer: Some(writer) })
    }

    fn writer(&mut self) -> Result<&mut IncrementFile<D>> {
        self.writer.as_mut().ok_or_else(|| DiskError::Failed("the log has ended".to_owned()))
    }

    /// The files, the current increment last.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Appends a batch as a whole or not at all.
    pub fn append(&mut self, batch: &[u8]) -> Result {
        self.writer()?.append(batch)
    }

    /// Makes the current increment durable. After an error, what is on the disk is unknown.
    pub fn sync(&mut self) -> Result {
        self.writer()?.sync()
    }

    /// Bytes of the current increment.
    pub fn bytes(&self) -> u64 {
        self.writer.as_ref().map_or(0, IncrementFile::bytes)
    }

    /// Bytes of the current increment that are durable: the `synced` of the next batch.
    pub fn durable_bytes(&self) -> u64 {
        self.writer.as_ref().map_or(0, IncrementFile::durable_bytes)
    }

    /// Bytes of the base and all increments.
    pub fn total(&self) -> u64 {
        self.closed + self.bytes()
    }

    /// Closes the current increment, and begins the next.
    ///
    /// # Errors
    /// The disk's. If it is full, call this again; after any other error the log has ended.
    pub fn next_increment(&mut self, folder: D, head: &Head) -> Result {
        let bytes = self.bytes();
        self.close()?;
        self.closed += bytes;
        let (manifest, writer) = resume(folder, &self.name, self.manifest.clone(), Last::Closed, &head.line)?;
        (self.manifest, self.writer, self.salt) = (manifest, Some(writer), head.salt);
        Ok(())
    }

    /// Makes `base`, a file of `len` durable bytes with the contents of all files before the current increment, the base, and
    /// deletes those files.
    ///
    /// # Errors
    /// The disk's. If it is full, call this again; after any other error the log has ended.
    pub fn set_base(&mut self, base: File, len: u64) -> Result {
        let name = self.name.clone();
        let mut manifest = self.manifest.clone();
        let present = manifest.increments.pop();
        manifest.history.extend(manifest.base.replace(base));
        manifest.history.append(&mut manifest.increments);
        manifest.increments.extend(present);
        // The name of the base must be durable before the manifest that has it: a crash may keep either rename without the other.
        self.writer()?.disk().sync_folder()?;
        exchange(self.writer()?.disk(), &name, &manifest)?;
        if let Err(error) = remove_history(self.writer()?.disk(), &name, &mut manifest) {
            tracing::warn!(%error, "cannot delete old files of the append-only file");
        }
        (self.manifest, self.closed) = (manifest, len);
        Ok(())
    }

    /// Syncs, and marks the end as clean. Nothing can be written afterwards.
    pub fn close(&mut self) -> Result {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let line = last_line(self.salt, writer.bytes());
        writer.close(&line)?;
        self.writer = None;
        Ok(())
    }
}
