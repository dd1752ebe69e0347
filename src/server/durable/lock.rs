//! The lock on the folder of the append-only file: one process uses it at a time.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::driver;
use crate::files::open_lock_file;
use crate::server::durable::folder::words;

/// The file that is locked while a server uses the folder.
pub const LOCK_FILE: &str = "portcullis.lock";

/// A locked folder: locked until this is dropped.
pub type FolderLock = driver::round::writers::FolderLock<File, Box<dyn Fn() + Send + Sync>>;

/// Locks the folder for this process, until the file is closed.
///
/// # Errors
/// In words. If another process has the lock, with its id.
pub fn lock(path: &Path) -> Result<File, String> {
    let path = path.join(LOCK_FILE);
    let describe = |error: std::io::Error| format!("Can't lock {}: {}", path.display(), words(&error));
    let mut file = open_lock_file(&path).map_err(describe)?;
    if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        fail_if!(error != rustix::io::Errno::WOULDBLOCK, describe(error.into()));
        return Err(format!("{} is locked by the server with process id {}", path.display(), owner(&mut file)));
    }
    let text = format!("{}\n", std::process::id());
    let written = file.set_len(0).and_then(|()| std::os::unix::fs::FileExt::write_all_at(&file, text.as_bytes(), 0));
    written.map_err(describe)?;
    Ok(file)
}

/// The process that has locked the folder, as it has written its id; `None` if no process has. Locks the folder for a moment, but
/// creates and writes nothing.
pub fn user_of(path: &Path) -> Option<String> {
    let mut file = File::open(path.join(LOCK_FILE)).ok()?;
    // The lock ends when the file is closed.
    let locked = flock(&file, FlockOperation::NonBlockingLockShared);
    (locked == Err(rustix::io::Errno::WOULDBLOCK)).then(|| owner(&mut file))
}

/// What the owner of the lock has written.
fn owner(file: &mut File) -> String {
    let mut text = String::new();
    let _ = file.read_to_string(&mut text);
    text.trim().to_owned()
}
