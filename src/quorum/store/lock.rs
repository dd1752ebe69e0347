//! The lock on a node's folder: one process uses it at a time.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::files::open_lock_file;

/// The file that is locked while a node uses the folder.
pub const LOCK_FILE: &str = "quorum.lock";

/// A locked folder: locked until this is dropped, or the process ends.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Locks a folder, which must exist.
    ///
    /// # Errors
    /// In words. If another process has the lock, with its id.
    pub fn acquire(folder: &Path) -> Result<FolderLock, String> {
        let path = folder.join(LOCK_FILE);
        let describe = |error: std::io::Error| format!("Can't lock {}: {error}", path.display());
        let mut file = open_lock_file(&path).map_err(describe)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut owner = String::new();
                // The owner's id is an aid only.
                let _ = file.read_to_string(&mut owner);
                return Err(format!("{} is locked by the node with process id {}", path.display(), owner.trim()));
            }
            Err(error) => return Err(describe(error.into())),
        }
        let text = format!("{}\n", std::process::id());
        match file.set_len(0).and_then(|()| file.write_all_at(text.as_bytes(), 0)) {
            // On a full disk it is locked without its owner's id.
            Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge) => {
            }
            written => written.map_err(describe)?,
        }
        Ok(FolderLock { _file: file })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_locked_once() {
        let folder = std::env::temp_dir().join(format!("portcullis-quorum-lock-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let lock = FolderLock::acquire(&folder).unwrap();
        let refused = FolderLock::acquire(&folder).unwrap_err();
        assert!(
            refused.ends_with(&format!("quorum.lock is locked by the node with process id {}", std::process::id())),
            "{refused}"
        );
        drop(lock);
        drop(FolderLock::acquire(&folder).unwrap());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
