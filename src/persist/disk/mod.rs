//! A folder on a disk, as the log sees it, and what it promises.
//!
//! Written bytes are durable after [`Disk::sync`] of their file. Files that were created, renamed or removed are durable after
//! [`Disk::sync_folder`]. Before that, a crash of the machine may keep any part of either, in any order.
//!
//! `simulated` implements it in memory and crashes on demand. `server::durable::folder` implements it with files.

#[cfg(any(test, feature = "internals", feature = "torture"))]
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

/// A folder whose files are appended to. Names have no folder; they are bytes, as in a manifest. A disk need not have the operations
/// that only the log of the quorum uses: writing at an offset, and listing.
pub trait Disk {
    /// A file that is open for reading and appending.
    type File;

    /// Opens a file. Returns it and its length in bytes; `None` if it does not exist.
    fn open(&mut self, name: &[u8]) -> Result<Option<(Self::File, u64)>>;

    /// Creates an empty file. A file that has the name is emptied; a crash may leave a mixture of its old and its new content.
    fn create(&mut self, name: &[u8]) -> Result<Self::File>;

    /// Reads bytes from an offset on, possibly fewer than there is room for. Returns how many; 0 only at the end of the file.
    fn read_at(&mut self, file: &mut Self::File, offset: u64, into: &mut [u8]) -> Result<usize>;

    /// Appends bytes, possibly fewer than given. Returns how many.
    fn append(&mut self, file: &mut Self::File, bytes: &[u8]) -> Result<usize>;

    /// Cuts a file to a length in bytes, which is at most its present length.
    fn truncate(&mut self, file: &mut Self::File, len: u64) -> Result;

    /// Makes the content of a file durable (`fdatasync`). After an error it is unknown which bytes are durable. A later call may
    /// succeed without making them durable, also in another process.
    fn sync(&mut self, file: &mut Self::File) -> Result;

    /// Makes it durable which files exist, and under which names.
    fn sync_folder(&mut self) -> Result;

    /// Renames a file. A file that has the new name is replaced.
    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result;

    /// Removes a file.
    fn remove(&mut self, name: &[u8]) -> Result;

    /// Replaces bytes of a file from an offset on, which is at most the file's length, possibly fewer bytes than given. The file grows
    /// if it ends sooner. Returns how many.
    fn write_at(&mut self, _file: &mut Self::File, _offset: u64, _bytes: &[u8]) -> Result<usize> {
        Err(DiskError::Failed("the disk only appends".to_owned()))
    }

    /// The names of all files of the folder, in no particular order.
    fn names(&mut self) -> Result<Vec<Vec<u8>>> {
        Err(DiskError::Failed("the disk does not list its files".to_owned()))
    }
}

/// Makes methods of a [`Disk`] that another disk carries out. The method before each name calls a closure with that disk.
#[cfg(feature = "torture")]
macro_rules! forward {
    ($($through:ident $method:ident($($argument:ident: $type:ty),*) -> $returned:ty;)*) => {$(
        fn $method(&mut self $(, $argument: $type)*) -> $returned {
            self.$through(|disk| disk.$method($($argument),*))
        }
    )*};
}
#[cfg(feature = "torture")]
pub(crate) use forward;

/// A disk that another thread may use.
pub trait SendDisk: Disk<File: Send> + Send + 'static {}

impl<D: Disk<File: Send> + Send + 'static> SendDisk for D {}

/// A disk that is borrowed.
impl<D: Disk> Disk for &mut D {
    type File = D::File;

    fn open(&mut self, name: &[u8]) -> Result<Option<(D::File, u64)>> {
        (**self).open(name)
    }

    fn create(&mut self, name: &[u8]) -> Result<D::File> {
        (**self).create(name)
    }

    fn read_at(&mut self, file: &mut D::File, offset: u64, into: &mut [u8]) -> Result<usize> {
        (**self).read_at(file, offset, into)
    }

    fn append(&mut self, file: &mut D::File, bytes: &[u8]) -> Result<usize> {
        (**self).append(file, bytes)
    }

    fn truncate(&mut self, file: &mut D::File, len: u64) -> Result {
        (**self).truncate(file, len)
    }

    fn sync(&mut self, file: &mut D::File) -> Result {
        (**self).sync(file)
    }

    fn sync_folder(&mut self) -> Result {
        (**self).sync_folder()
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result {
        (**self).rename(from, to)
    }

    fn remove(&mut self, name: &[u8]) -> Result {
        (**self).remove(name)
    }

    fn write_at(&mut self, file: &mut D::File, offset: u64, bytes: &[u8]) -> Result<usize> {
        (**self).write_at(file, offset, bytes)
    }

    fn names(&mut self) -> Result<Vec<Vec<u8>>> {
        (**self).names()
    }
}

/// Appends all bytes.
///
/// # Errors
/// The disk's; then a part of them may be in the file.
pub fn append_all<D: Disk>(disk: &mut D, file: &mut D::File, bytes: &[u8]) -> Result {
    let mut rest = bytes;
    while !rest.is_empty() {
        match disk.append(file, rest)? {
            0 => return Err(DiskError::Failed("nothing was written".to_owned())),
            count => rest = &rest[count.min(rest.len())..],
        }
    }
    Ok(())
}

/// Writes all bytes from an offset on.
///
/// # Errors
/// The disk's; then a part of them may be in the file.
#[cfg_attr(not(feature = "quorum"), allow(dead_code))]
pub fn write_all_at<D: Disk>(disk: &mut D, file: &mut D::File, mut offset: u64, bytes: &[u8]) -> Result {
    let mut rest = bytes;
    while !rest.is_empty() {
        match disk.write_at(file, offset, rest)? {
            0 => return Err(DiskError::Failed("nothing was written".to_owned())),
            count => {
                let count = count.min(rest.len());
                offset += count as u64;
                rest = &rest[count..];
            }
        }
    }
    Ok(())
}

/// Reads a whole file, of at most `max` bytes; `None` if it does not exist.
///
/// # Errors
/// The disk's. A longer file is an error.
#[cfg_attr(not(feature = "quorum"), allow(dead_code))]
pub fn read_whole<D: Disk>(disk: &mut D, name: &[u8], max: usize) -> Result<Option<Vec<u8>>> {
    let Some((mut file, len)) = disk.open(name)? else { return Ok(None) };
    let len = usize::try_from(len).ok().filter(|len| *len <= max);
    let Some(len) = len else {
        return Err(DiskError::Failed(format!("{} has more than {max} bytes", String::from_utf8_lossy(name))));
    };
    let (mut bytes, mut at) = (vec![0; len], 0);
    while at < len {
        match disk.read_at(&mut file, at as u64, &mut bytes[at..])? {
            0 => break,
            count => at += count,
        }
    }
    bytes.truncate(at);
    Ok(Some(bytes))
}
