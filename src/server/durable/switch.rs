//! The files of an append-only file that is switched on or off while the server runs. When and how, the driver decides
//! ([`crate::driver::switch`]). Files of an earlier time are replaced, as in Redis.

use std::path::Path;
use std::sync::mpsc::channel;

use crate::driver::copy::CopyProgress;
use crate::driver::copy::received::Copied;
use crate::driver::file::Beginning;
use crate::driver::round::storing::Storing;
use crate::files::remove_remnants;
use crate::persist::append::manifest::Manifest;
use crate::persist::resume::manifest_name;
use crate::server::durable::copy::{Then, caught};
use crate::server::durable::folder::{Folder, words};
use crate::server::durable::load::folder_of;
use crate::server::durable::lock::{FolderLock, lock};
use crate::server::durable::rewrite::begin_files;
use crate::server::durable::{Begun, LogThread, Opened, rewrite};
use crate::server::net::control::Control;
use crate::server::shell::Shell;

/// Checks that there can be a folder for the append-only file, before `CONFIG SET appendonly yes` succeeds.
///
/// # Errors
/// Redis's text; the log has the reason.
pub fn check(path: &Path) -> Result<(), String> {
    Folder::open(path).map(drop).map_err(|error| {
        tracing::warn!(%error, path = %path.display(), "cannot open or create the folder of the append-only file");
        "Unable to turn on AOF. Check server logs.".to_owned()
    })
}

impl Shell {
    /// Opens and locks the folder of the append-only file, for one that is switched on.
    ///
    /// # Errors
    /// In words.
    #[cold]
    pub(in crate::server) fn open_log_folder(&mut self) -> Result<Box<Opened>, String> {
        let config = self.driver.engine.config();
        let (path, name) = (folder_of(config), config.appendfilename.clone().into_bytes());
        let Some(control) = self.control.clone() else { return Err("the server has no event loop".to_owned()) };
        let folder = Folder::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let lock = self.lock_folder(&path, &control)?;
        let manifest = outdated(&path, &name)?;
        Ok(Box::new(Opened { folder, lock, path, name, manifest }))
    }

    /// Locks the folder of the append-only file. When the last thread that needs it has ended, the log is switched on if it is to
    /// be.
    ///
    /// # Errors
    /// In words: another process has locked it.
    pub(super) fn lock_folder(&mut self, path: &Path, control: &Control<Shell>) -> Result<FolderLock, String> {
        let control = control.clone();
        let freed = move || _ = control.send(Box::new(Shell::folder_freed));
        let lock = FolderLock::new(lock(path)?, freed);
        self.background.writers.folder_locked(lock.held());
        remove_temporary(path, self.driver.engine.config().appendfilename.as_bytes());
        Ok(lock)
    }

    /// What is made of a copy for the first base of the file in this folder.
    ///
    /// # Errors
    /// In words: the server has no event loop.
    pub(super) fn base_of_copy(&mut self, opened: Opened, beginning: Beginning) -> Result<Then, String> {
        let Some(control) = self.control.clone() else { return Err("the server has no event loop".to_owned()) };
        let Opened { folder, lock, path, name, manifest } = opened;
        let Beginning { head, progress, syncs } = beginning;
        let checksum = self.driver.engine.config().rdbchecksum;
        let (orders, received) = channel();
        self.background.writers.begin(Box::new(LogThread::new(orders, path)));
        Ok(Box::new(move |copied: Copied, _: &CopyProgress| {
            let begun = caught(|| begin_files(folder, &name, manifest, copied?, checksum, &head));
            let begun = begun.map(|files| Begun { files, orders: received, lock, syncs, progress });
            control.send(Box::new(move |shell: &mut Shell| shell.file_made(begun)));
        }))
    }
}

/// Removes the temporary files that a crash has left in a locked folder. Nothing reads them.
fn remove_temporary(path: &Path, name: &[u8]) {
    let manifest = [b"temp-", &*manifest_name(name)].concat();
    // The last is of earlier versions: a first base.
    let is_ours = |name: &str| [rewrite::TEMPORARY.as_bytes(), &manifest, b"temp-appendonly.rdb"].contains(&name.as_bytes());
    remove_remnants(path, is_ours, |path| tracing::info!("removed {}, which was not finished", path.display()));
}

/// The manifest of a folder, with all of its files in history: what the server has now replaces them.
fn outdated(path: &Path, name: &[u8]) -> Result<Manifest, String> {
    let path = path.join(String::from_utf8_lossy(&manifest_name(name)).as_ref());
    let mut manifest = match std::fs::read(&path) {
        Ok(text) => Manifest::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Manifest::default(),
        Err(error) => return Err(format!("Can't open the AOF manifest {}: {}", path.display(), words(&error))),
    };
    manifest.begin_anew(name);
    Ok(manifest)
}
