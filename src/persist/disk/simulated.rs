//! A disk in memory that loses what a real one may lose.
//!
//! A crash keeps everything that was synced. Of what was not, it keeps an arbitrary part: each write as a whole, up to some byte,
//! with sectors missing in the middle (they read as zeros), or not at all, independent of the order of the writes; each change of
//! the folder or not. Errors are injected by the numbers of operations.
//!
//! A failed sync makes an arbitrary part durable, as a crash does, and forgets that the rest was written: reads show it, but a later
//! sync that succeeds does not make it durable, in this process or in another one. Once the cache has dropped it, reads show what
//! the disk has instead.

use std::collections::BTreeMap;

use crate::persist::disk::{Disk, DiskError, Result};

/// Bytes that a real disk writes as a unit.
const SECTOR: usize = 512;

/// An error to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "tests use it")]
pub enum Injected {
    /// The disk is full: an append writes a part of its bytes, then fails.
    Full,
    /// The operation fails with EIO. A failed sync makes an arbitrary part durable.
    Failed,
}

/// Content of one file.
#[derive(Clone, Debug, Default)]
struct Content {
    /// What reads return.
    bytes: Vec<u8>,
    /// What is durable.
    durable: Vec<u8>,
    /// Writes since the last sync: their ranges in `bytes`.
    unsynced: Vec<(usize, usize)>,
    /// Whether the file was cut since the last sync.
    cut: bool,
}

impl Content {
    fn cut_to(&mut self, len: usize) {
        self.bytes.truncate(len);
        self.unsynced.retain_mut(|(start, end)| {
            *end = (*end).min(len);
            *start < *end
        });
        self.cut |= self.durable.len() > len;
    }

    /// Drops what is cached and not to be written: reads show what is durable. The length stays; what is behind it reads as zeros.
    fn drop_clean(&mut self) {
        let mut shown = self.durable.clone();
        shown.resize(self.bytes.len(), 0);
        for (start, end) in &self.unsynced {
            shown[*start..*end].copy_from_slice(&self.bytes[*start..*end]);
        }
        self.bytes = shown;
    }
}

/// A change of the folder that is not durable yet.
#[derive(Clone, Debug)]
enum Change {
    Created { name: Vec<u8>, inode: usize },
    Renamed { from: Vec<u8>, to: Vec<u8> },
    Removed { name: Vec<u8> },
}

/// The disk.
#[derive(Clone, Debug)]
pub struct SimulatedDisk {
    inodes: Vec<Content>,
    names: BTreeMap<Vec<u8>, usize>,
    durable_names: BTreeMap<Vec<u8>, usize>,
    changes: Vec<Change>,
    /// State of the random sequence (splitmix64).
    random: u64,
    /// Number of operations so far.
    operations: u64,
    /// The operations that are to fail, and how.
    fails: BTreeMap<u64, Injected>,
    /// How changes fail for now: half of them if it is an error of the disk, all that need space if it is full.
    failing: Option<Injected>,
    /// Operations from this number on do nothing and fail: the machine has crashed.
    crashes_at: Option<u64>,
}

impl SimulatedDisk {
    /// An empty disk. Everything random in it follows from the seed.
    pub fn new(seed: u64) -> SimulatedDisk {
        SimulatedDisk {
            inodes: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            changes: Vec::new(),
            random: seed,
            operations: 0,
            fails: BTreeMap::new(),
            failing: None,
            crashes_at: None,
        }
    }

    /// Number of operations so far.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Makes the operation with this number fail, besides others.
    #[allow(dead_code, reason = "tests use it")]
    pub fn fail_at(&mut self, operation: u64, how: Injected) {
        self.fails.insert(operation, how);
    }

    /// Makes changes fail from now on, until it is called again. A crash or a start does not mend a disk.
    pub fn set_failing(&mut self, how: Option<Injected>) {
        self.failing = how;
    }

    /// How changes fail now, if they do.
    pub fn failing(&self) -> Option<Injected> {
        self.failing
    }

    /// Lets the machine crash in the operation with this number: it and all later ones fail, until [`SimulatedDisk::restart`].
    pub fn crash_at(&mut self, operation: u64) {
        self.crashes_at = Some(operation);
    }

    /// Whether the machine has crashed.
    #[allow(dead_code, reason = "tests use it")]
    pub fn has_crashed(&self) -> bool {
        self.crashes_at.is_some_and(|at| self.operations > at)
    }

    /// Starts the process again, on a machine that has not crashed: all is there that was written. Of each file, the cache keeps or
    /// drops what is not to be written any more. Operations fail on as they were told to.
    pub fn restart_process(&mut self) {
        for inode in 0..self.inodes.len() {
            if self.below(2) == 0 {
                self.inodes[inode].drop_clean();
            }
        }
    }

    /// Starts the machine again: what was not durable is lost, or kept in part. No operation fails any more.
    pub fn restart(&mut self) {
        self.crashes_at = None;
        self.fails.clear();
        for inode in 0..self.inodes.len() {
            self.settle_by_chance(inode);
        }
        for change in std::mem::take(&mut self.changes) {
            if self.below(2) == 0 {
                continue;
            }
            match change {
                Change::Created { name, inode } => drop(self.durable_names.insert(name, inode)),
                Change::Renamed { from, to } => {
                    if let Some(inode) = self.durable_names.remove(&from) {
                        self.durable_names.insert(to, inode);
                    }
                }
                Change::Removed { name } => drop(self.durable_names.remove(&name)),
            }
        }
        self.names = self.durable_names.clone();
    }

    /// Flips a bit of a byte of a file, on the disk and in the cache.
    #[allow(dead_code, reason = "tests use it")]
    pub fn flip(&mut self, name: &[u8], offset: u64) {
        if let Some(&inode) = self.names.get(name) {
            let Content { bytes, durable, .. } = &mut self.inodes[inode];
            [bytes, durable].into_iter().filter_map(|bytes| bytes.get_mut(offset as usize)).for_each(|byte| *byte ^= 1);
        }
    }

    /// What reads of a file return. This is no operation of the machine.
    #[cfg_attr(not(feature = "torture"), allow(dead_code))]
    pub fn content(&self, name: &[u8]) -> Option<&[u8]> {
        self.names.get(name).map(|inode| &self.inodes[*inode].bytes[..])
    }

    /// Damages a file: replaces bytes of it, on the disk and in the cache. It is not made longer.
    #[cfg_attr(not(feature = "torture"), allow(dead_code))]
    pub fn overwrite(&mut self, name: &[u8], offset: usize, with: &[u8]) {
        let Some(&inode) = self.names.get(name) else { return };
        let Content { bytes, durable, .. } = &mut self.inodes[inode];
        for bytes in [bytes, durable] {
            let places = bytes.iter_mut().skip(offset);
            places.zip(with).for_each(|(place, byte)| *place = *byte);
        }
    }

    /// Damages the folder: a file is gone, on the disk and in the cache.
    #[cfg_attr(not(feature = "torture"), allow(dead_code))]
    pub fn lose(&mut self, name: &[u8]) {
        self.names.remove(name);
        self.durable_names.remove(name);
    }

    /// Makes an arbitrary part of a file's unsynced content durable, and forgets the rest.
    fn settle_by_chance(&mut self, inode: usize) {
        let cut = self.inodes[inode].cut && self.below(2) == 0;
        let content = &mut self.inodes[inode];
        if cut {
            content.durable.truncate(content.bytes.len());
        }
        for (start, end) in std::mem::take(&mut content.unsynced) {
            self.keep_by_chance(inode, start, end);
        }
        let content = &mut self.inodes[inode];
        content.bytes.clone_from(&content.durable);
        content.cut = false;
    }

    /// Makes an arbitrary part of a write durable.
    fn keep_by_chance(&mut self, inode: usize, start: usize, end: usize) {
        let kept = match self.below(4) {
            0 => return,
            1 => end,
            _ => start + self.below(end - start + 1),
        };
        let end = kept.min(self.inodes[inode].bytes.len());
        if start >= end {
            return;
        }
        let durable = &mut self.inodes[inode].durable;
        if durable.len() < end {
            durable.resize(end, 0);
        }
        let mut at = start;
        while at < end {
            let next = ((at / SECTOR + 1) * SECTOR).min(end);
            // One sector in eight is lost, and reads as before.
            if self.below(8) > 0 {
                let Content { bytes, durable, .. } = &mut self.inodes[inode];
                durable[at..next].copy_from_slice(&bytes[at..next]);
            }
            at = next;
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }

    /// Before bytes are replaced that no sync has made durable, the kernel may have written them: by chance, a part of them is
    /// durable. The bytes that replace them may or may not follow.
    fn write_back_by_chance(&mut self, inode: usize, start: usize, end: usize) {
        let older: Vec<(usize, usize)> = self.inodes[inode].unsynced.clone();
        for (from, to) in older.into_iter().filter(|(from, to)| *from < end && start < *to) {
            self.keep_by_chance(inode, from, to);
        }
    }

    /// Writes bytes from an offset on, or a part of them.
    fn write(&mut self, inode: usize, start: usize, bytes: &[u8]) -> Result<usize> {
        // The write in which the machine crashes has begun.
        let crashes = self.crashes_at == Some(self.operations);
        let injected = self.change_step(true);
        let count = match &injected {
            Ok(None) => {
                if self.below(4) == 0 {
                    // A short write.
                    1 + self.below(bytes.len())
                } else {
                    bytes.len()
                }
            }
            // Not all of it: the rest finds no space.
            Ok(Some(Injected::Full)) => self.below(bytes.len()),
            Ok(Some(Injected::Failed)) => 0,
            Err(_) if crashes => bytes.len(),
            Err(_) => 0,
        }
        .min(bytes.len());
        let end = start + count;
        if count > 0 {
            self.write_back_by_chance(inode, start, end);
            let content = &mut self.inodes[inode];
            content.bytes.resize(content.bytes.len().max(end), 0);
            content.bytes[start..end].copy_from_slice(&bytes[..count]);
            content.unsynced.push((start, end));
        }
        match injected? {
            None => Ok(count),
            // A write that fails with ENOSPC has written nothing; the part before it was a short write.
            Some(Injected::Full) if count > 0 => {
                self.fails.insert(self.operations, Injected::Full);
                Ok(count)
            }
            Some(Injected::Full) => Err(DiskError::Full),
            Some(Injected::Failed) => Err(eio()),
        }
    }

    /// Counts an operation. Returns the error to inject, if any.
    fn step(&mut self) -> Result<Option<Injected>> {
        let number = self.operations;
        self.operations += 1;
        fail_if!(self.crashes_at.is_some_and(|at| number >= at), DiskError::Failed("the machine has crashed".to_owned()));
        Ok(self.fails.get(&number).copied())
    }

    /// As [`SimulatedDisk::step`], for an operation that changes the disk.
    fn change_step(&mut self, needs_space: bool) -> Result<Option<Injected>> {
        let injected = self.step()?;
        let failing = match self.failing {
            Some(Injected::Full) => Some(Injected::Full).filter(|_| needs_space),
            Some(Injected::Failed) => Some(Injected::Failed).filter(|_| self.below(2) == 0),
            None => None,
        };
        Ok(injected.or(failing))
    }

    fn simple_step(&mut self) -> Result {
        let injected = self.step();
        Self::result(injected)
    }

    fn result(injected: Result<Option<Injected>>) -> Result {
        match injected? {
            None => Ok(()),
            Some(Injected::Full) => Err(DiskError::Full),
            Some(Injected::Failed) => Err(eio()),
        }
    }
}

fn eio() -> DiskError {
    DiskError::Failed("Input/output error".to_owned())
}

fn missing(name: &[u8]) -> DiskError {
    DiskError::Failed(format!("{}: No such file or directory", name.escape_ascii()))
}

impl Disk for SimulatedDisk {
    type File = usize;

    fn open(&mut self, name: &[u8]) -> Result<Option<(usize, u64)>> {
        self.simple_step()?;
        let Some(&inode) = self.names.get(name) else { return Ok(None) };
        // The cache may drop clean bytes at any time.
        if self.below(8) == 0 {
            self.inodes[inode].drop_clean();
        }
        Ok(Some((inode, self.inodes[inode].bytes.len() as u64)))
    }

    fn create(&mut self, name: &[u8]) -> Result<usize> {
        Self::result(self.change_step(true))?;
        if let Some(&inode) = self.names.get(name) {
            self.inodes[inode].cut_to(0);
            return Ok(inode);
        }
        let inode = self.inodes.len();
        self.inodes.push(Content::default());
        self.names.insert(name.to_owned(), inode);
        self.changes.push(Change::Created { name: name.to_owned(), inode });
        Ok(inode)
    }

    fn read_at(&mut self, file: &mut usize, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.simple_step()?;
        let bytes = self.inodes[*file].bytes.get(offset as usize..).unwrap_or_default();
        let count = bytes.len().min(into.len());
        into[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn append(&mut self, file: &mut usize, bytes: &[u8]) -> Result<usize> {
        let end = self.inodes[*file].bytes.len();
        self.write(*file, end, bytes)
    }

    fn truncate(&mut self, file: &mut usize, len: u64) -> Result {
        self.simple_step()?;
        self.inodes[*file].cut_to(len as usize);
        Ok(())
    }

    fn sync(&mut self, file: &mut usize) -> Result {
        let crashes = self.crashes_at == Some(self.operations);
        match self.change_step(false) {
            Ok(None) => {
                let Content { bytes, durable, unsynced, cut } = &mut self.inodes[*file];
                durable.truncate(bytes.len());
                for (start, end) in unsynced.drain(..) {
                    durable.resize(durable.len().max(end), 0);
                    durable[start..end].copy_from_slice(&bytes[start..end]);
                }
                *cut = false;
                Ok(())
            }
            Ok(Some(_)) => {
                // The kernel drops the pages that it could not write: reads show them until they leave the cache.
                let shown = self.inodes[*file].bytes.clone();
                self.settle_by_chance(*file);
                self.inodes[*file].bytes = shown;
                Err(eio())
            }
            Err(error) => {
                if crashes {
                    let shown = self.inodes[*file].bytes.clone();
                    self.settle_by_chance(*file);
                    self.inodes[*file].bytes = shown;
                }
                Err(error)
            }
        }
    }

    fn sync_folder(&mut self) -> Result {
        Self::result(self.change_step(false))?;
        self.durable_names = self.names.clone();
        self.changes.clear();
        Ok(())
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result {
        Self::result(self.change_step(false))?;
        let inode = self.names.remove(from).ok_or_else(|| missing(from))?;
        self.names.insert(to.to_owned(), inode);
        self.changes.push(Change::Renamed { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }

    fn remove(&mut self, name: &[u8]) -> Result {
        self.simple_step()?;
        self.names.remove(name).ok_or_else(|| missing(name))?;
        self.changes.push(Change::Removed { name: name.to_owned() });
        Ok(())
    }
    fn write_at(&mut self, file: &mut usize, offset: u64, bytes: &[u8]) -> Result<usize> {
        let len = self.inodes[*file].bytes.len();
        assert!(offset <= len as u64, "a write at {offset} leaves a hole in a file of {len} bytes");
        self.write(*file, offset as usize, bytes)
    }

    fn names(&mut self) -> Result<Vec<Vec<u8>>> {
        self.simple_step()?;
        Ok(self.names.keys().cloned().collect())
    }
}
