//! The disk of a node: its log and its snapshots use it, from tasks that could run on several threads elsewhere.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::persist::disk::simulated::SimulatedDisk;
use crate::persist::disk::{Disk, Result, append_all, forward, read_whole};

/// Maximum length of a file that is read whole.
const FILE_MAX: usize = 1 << 30;

/// A disk. Copies are the same disk.
#[derive(Clone)]
pub struct NodeDisk(Arc<Mutex<SimulatedDisk>>);

/// The name of a file of this disk that is known by its path.
pub fn name_of(path: &Path) -> Vec<u8> {
    path.file_name().map(|name| name.as_encoded_bytes().to_vec()).unwrap_or_default()
}

impl NodeDisk {
    /// Shares a disk.
    pub fn new(disk: SimulatedDisk) -> NodeDisk {
        NodeDisk(Arc::new(Mutex::new(disk)))
    }

    /// Acts on the disk itself.
    pub fn act<T>(&self, act: impl FnOnce(&mut SimulatedDisk) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads a file by its path.
    ///
    /// # Errors
    /// In words. A file that is not there is an error.
    pub fn read(&self, path: &Path) -> std::result::Result<Vec<u8>, String> {
        let read = self.act(|disk| read_whole(disk, &name_of(path), FILE_MAX)).map_err(|error| error.to_string())?;
        read.ok_or_else(|| format!("there is no file {}", path.display()))
    }

    /// Replaces the content of a file that exists, by its path.
    ///
    /// # Errors
    /// In words.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> std::result::Result<(), String> {
        let written = self.act(|disk| {
            let Some((mut file, _)) = disk.open(&name_of(path))? else { return Ok(false) };
            disk.truncate(&mut file, 0)?;
            append_all(disk, &mut file, bytes)?;
            Ok::<_, crate::persist::disk::DiskError>(true)
        });
        match written {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("there is no file {}", path.display())),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Disk for NodeDisk {
    type File = usize;

    forward! {
        act open(name: &[u8]) -> Result<Option<(usize, u64)>>;
        act create(name: &[u8]) -> Result<usize>;
        act read_at(file: &mut usize, offset: u64, into: &mut [u8]) -> Result<usize>;
        act append(file: &mut usize, bytes: &[u8]) -> Result<usize>;
        act truncate(file: &mut usize, len: u64) -> Result;
        act sync(file: &mut usize) -> Result;
        act sync_folder() -> Result;
        act rename(from: &[u8], to: &[u8]) -> Result;
        act remove(name: &[u8]) -> Result;
        act write_at(file: &mut usize, offset: u64, bytes: &[u8]) -> Result<usize>;
        act names() -> Result<Vec<Vec<u8>>>;
    }
}
