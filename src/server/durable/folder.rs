//! The folder of the append-only file, on a disk of the system.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

use crate::files::{self, Temporary};
use crate::persist::disk::{Disk, DiskError, Result};

/// Interval between looks at whether a disk that hangs for a test answers again.
const LOOK: Duration = Duration::from_millis(1);

/// Lets a disk hang, for tests: what is written or synced takes until it answers again.
#[derive(Debug)]
pub struct Hang {
    begun: Instant,
    /// Milliseconds after `begun`. 0 unless the disk has hung.
    until_ms: AtomicU64,
}

impl Hang {
    /// A disk that hangs for so many milliseconds.
    pub fn new(for_ms: u64) -> Arc<Hang> {
        let hang = Hang { begun: Instant::now(), until_ms: AtomicU64::new(0) };
        hang.hang(for_ms);
        Arc::new(hang)
    }

    /// From now on it hangs for so many milliseconds, and no longer. 0: it answers.
    pub fn hang(&self, for_ms: u64) {
        let until_ms = if for_ms == 0 { 0 } else { self.begun.elapsed().as_millis() as u64 + for_ms };
        self.until_ms.store(until_ms, Ordering::Relaxed);
    }

    fn wait(&self) {
        while self.begun.elapsed() < Duration::from_millis(self.until_ms.load(Ordering::Relaxed)) {
            sleep(LOOK);
        }
    }
}

/// The folder of an append-only file.
pub trait LogFolder: Disk {
    /// A file that is open to be read.
    type Source: Read + Seek;

    /// Opens a file to be read. Returns its length, too.
    ///
    /// # Errors
    /// The system's.
    fn source(&mut self, name: &[u8]) -> io::Result<(u64, Self::Source)>;

    /// Creates a file that is to get the name `target`, and tells its own name: this one, or another one if that is taken. Other
    /// processes see that it is no remnant.
    fn create_temporary(&mut self, name: &[u8], target: &[u8]) -> Result<(Vec<u8>, Self::File)>;

    /// Removes the remnants of temporary files with such names, which a crash has left. Those of processes that run stay.
    fn remove_remnants(&mut self, is_ours: impl Fn(&str) -> bool);

    /// Its path, for messages.
    fn path(&self) -> &Path;
}

/// A folder whose files are appended to. See [`Disk`].
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    hang: Option<Arc<Hang>>,
}

impl Folder {
    /// Opens a folder, and creates it if it does not exist. Its own existence is durable afterwards.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> Result<Folder> {
        if !path.is_dir() {
            std::fs::create_dir(path).map_err(failed)?;
            let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(above).and_then(|folder| folder.sync_all()).map_err(failed)?;
        }
        Ok(Folder::at(path))
    }

    /// A folder that exists.
    pub fn at(path: &Path) -> Folder {
        Folder { path: path.to_owned(), hang: None }
    }

    /// The same folder on a disk that can be made to hang.
    #[cfg_attr(not(feature = "quorum"), allow(dead_code))]
    pub fn hanging(self, hang: &Arc<Hang>) -> Folder {
        Folder { hang: Some(Arc::clone(hang)), ..self }
    }

    fn until_answered(&self) {
        if let Some(hang) = &self.hang {
            hang.wait();
        }
    }

    /// The path of a file in it.
    pub fn join(&self, name: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(name))
    }
}

impl Disk for Folder {
    type File = File;

    fn open(&mut self, name: &[u8]) -> Result<Option<(File, u64)>> {
        match files::open_to_append(&self.join(name)) {
            Ok(file) => {
                let len = file.metadata().map_err(failed)?.len();
                Ok(Some((file, len)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    fn create(&mut self, name: &[u8]) -> Result<File> {
        self.until_answered();
        files::create_anew(&self.join(name)).map_err(failed)
    }

    fn read_at(&mut self, file: &mut File, offset: u64, into: &mut [u8]) -> Result<usize> {
        loop {
            match FileExt::read_at(file, into, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map_err(failed),
            }
        }
    }

    fn append(&mut self, file: &mut File, bytes: &[u8]) -> Result<usize> {
        self.until_answered();
        loop {
            match file.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map_err(failed),
            }
        }
    }

    fn truncate(&mut self, file: &mut File, len: u64) -> Result {
        self.until_answered();
        file.set_len(len).map_err(failed)
    }

    fn sync(&mut self, file: &mut File) -> Result {
        self.until_answered();
        file.sync_data().map_err(failed)
    }

    fn sync_folder(&mut self) -> Result {
        self.until_answered();
        File::open(&self.path).and_then(|folder| folder.sync_all()).map_err(failed)
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result {
        self.until_answered();
        std::fs::rename(self.join(from), self.join(to)).map_err(failed)
    }

    fn remove(&mut self, name: &[u8]) -> Result {
        self.until_answered();
        std::fs::remove_file(self.join(name)).map_err(failed)
    }

    fn write_at(&mut self, file: &mut File, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.until_answered();
        // With O_APPEND, Linux writes at the end of the file whatever the offset is.
        fcntl_setfl(&*file, OFlags::empty()).map_err(|error| failed(error.into()))?;
        let written = loop {
            match FileExt::write_at(file, bytes, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        fcntl_setfl(&*file, OFlags::APPEND).map_err(|error| failed(error.into()))?;
        written.map_err(failed)
    }

    fn names(&mut self) -> Result<Vec<Vec<u8>>> {
        let entries = std::fs::read_dir(&self.path).map_err(failed)?;
        entries.map(|entry| entry.map(|entry| entry.file_name().into_vec()).map_err(failed)).collect()
    }
}

impl LogFolder for Folder {
    type Source = File;

    fn source(&mut self, name: &[u8]) -> io::Result<(u64, File)> {
        let file = File::open(self.join(name))?;
        Ok((file.metadata()?.len(), file))
    }

    fn create_temporary(&mut self, name: &[u8], target: &[u8]) -> Result<(Vec<u8>, File)> {
        let temporary = Temporary::create(&self.join(name), &self.join(target)).map_err(failed)?;
        let (file, path) = temporary.into_parts().map_err(failed)?;
        Ok((path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default(), file))
    }

    fn remove_remnants(&mut self, is_ours: impl Fn(&str) -> bool) {
        files::remove_remnants(&self.path, is_ours, |path| tracing::info!("removed {}, which was not finished", path.display()));
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// The disk's error of an error of the system, in the system's words.
pub fn failed(error: io::Error) -> DiskError {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        // A limit on the process's files (`ulimit -f`) is a full disk to it.
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => DiskError::Full,
        _ => DiskError::Failed(words(&error)),
    }
}

/// The system's words for an error, without the number that Rust adds.
pub fn words(error: &io::Error) -> String {
    let text = error.to_string();
    if let Some(at) = text.rfind(" (os error ") { text[..at].to_owned() } else { text }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_folder_are_appended_to_cut_renamed_and_removed() {
        let path = std::env::temp_dir().join(format!("portcullis-folder-{}", std::process::id()));
        let mut folder = Folder::open(&path).unwrap();
        assert!(folder.open(b"a").unwrap().is_none());
        let mut file = folder.create(b"a").unwrap();
        assert_eq!(folder.append(&mut file, b"12345").unwrap(), 5);
        folder.truncate(&mut file, 3).unwrap();
        assert_eq!(folder.append(&mut file, b"x").unwrap(), 1, "at the end, wherever that is");
        assert_eq!(folder.write_at(&mut file, 1, b"y").unwrap(), 1);
        assert_eq!(folder.append(&mut file, b"z").unwrap(), 1, "it still appends");
        folder.truncate(&mut file, 4).unwrap();
        assert_eq!(folder.write_at(&mut file, 1, b"2").unwrap(), 1);
        assert_eq!(folder.names().unwrap(), [b"a"]);
        folder.sync(&mut file).unwrap();
        folder.sync_folder().unwrap();
        folder.rename(b"a", b"b").unwrap();
        assert!(folder.open(b"a").unwrap().is_none());
        let (mut file, len) = folder.open(b"b").unwrap().unwrap();
        let mut bytes = [0; 8];
        assert_eq!((len, folder.read_at(&mut file, 1, &mut bytes).unwrap(), &bytes[..3]), (4, 3, &b"23x"[..]));
        folder.create(b"b").unwrap();
        assert_eq!(folder.open(b"b").unwrap().unwrap().1, 0, "creating empties it");
        folder.remove(b"b").unwrap();
        assert_eq!(folder.remove(b"b"), Err(DiskError::Failed("No such file or directory".to_owned())));
        std::fs::remove_dir(&path).unwrap();
    }

    #[test]
    fn a_full_disk_is_told_from_other_errors() {
        assert_eq!(failed(io::Error::from_raw_os_error(28)), DiskError::Full);
        assert_eq!(failed(io::Error::from_raw_os_error(5)), DiskError::Failed("Input/output error".to_owned()));
    }
}
