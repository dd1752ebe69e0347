//! A folder on a disk, as the log sees it, and what it promises.
//!
//! Written bytes are durable after [`Disk::sync`] of their file. Files that were created, renamed or removed are durable after
//! [`Disk::sync_folder`]. Before that, a crash of the machine may keep any part of either, in any order.
//!
//! [`simulated`] implements it in memory and crashes on demand. The server has no implementation with files yet.

#[cfg(any(test, feature = "internals"))]
pub mod simulated;

use std::fmt;

/// Why an operation on the disk failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// No space is left. The operation may succeed later.
    Full,
    /// Anything else, in the system's words.
    Failed(String),
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskError::Full => f.write_str("No space left on device"),
            DiskError::Failed(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for DiskError {}

/// The result of an operation on the disk.
pub type Result<T = ()> = std::result::Result<T, DiskError>;

/// A folder whose files are appended to.
pub trait Disk {
    /// A file that is open for appending.
    type File;

    /// Opens a file for appending, and creates it if it does not exist. Returns the file and its length in bytes.
    fn open(&mut self, name: &str) -> Result<(Self::File, u64)>;

    /// Appends bytes, possibly fewer than given. Returns how many.
    fn append(&mut self, file: &mut Self::File, bytes: &[u8]) -> Result<usize>;

    /// Cuts a file to a length in bytes, which is at most its present length.
    fn truncate(&mut self, file: &mut Self::File, len: u64) -> Result;

    /// Makes the content of a file durable (`fdatasync`). After an error it is unknown which bytes are durable, even if a later
    /// call succeeds.
    fn sync(&mut self, file: &mut Self::File) -> Result;

    /// Makes it durable which files exist, and under which names.
    fn sync_folder(&mut self) -> Result;

    /// Renames a file. A file that has the new name is replaced.
    fn rename(&mut self, from: &str, to: &str) -> Result;

    /// Removes a file.
    fn remove(&mut self, name: &str) -> Result;

    /// The content of a file; `None` if it does not exist.
    fn read(&mut self, name: &str) -> Result<Option<Vec<u8>>>;
}
