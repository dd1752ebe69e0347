//! The files of an append-only file that is switched on or off while the server runs. When and how, the driver decides
//! ([`crate::driver::switch`]). Files of an earlier time are replaced, as in Redis.

use std::path::Path;
use std::sync::mpsc::channel;

use crate::driver::copy::CopyProgress;
use crate::driver::copy::received::Copied;
use crate::driver::file::Beginning;
use crate::driver::round::Adapter;
use crate::driver::switch::Writers;
use crate::files::remove_remnants;
use crate::persist::append::manifest::Manifest;
use crate::persist::resume::manifest_name;
use crate::server::durable::copy::Then;
use crate::server::durable::folder::{Folder, words};
use crate::server::durable::load::folder_of;
use crate::server::durable::lock::{FolderLock, lock};
use crate::server::durable::log::reporter;
use crate::server::durable::rewrite::begin_files;
use crate::server::durable::{Begun, Coming, LogThread, Opened, boottime, rewrite};
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
    /// Opens the folder of the append-only file, for one that is switched on. A thread of the last log may still need it; its end
    /// comes back here.
    #[cold]
    pub(in crate::server) fn open_file(&mut self) {
        self.background.awaits_folder = self.background.folder_held.strong_count() > 0;
        if self.background.awaits_folder {
            return;
        }
        match self.open_folder() {
            Ok((opened, manifest)) => {
                let begins = self.drive(|driver, at| driver.file_opened(at, boottime::now()));
                self.background.coming = begins.map(|beginning| Box::new(Coming { opened, manifest, beginning }));
            }
            Err(reason) => self.drive(|driver, at| driver.file_not_begun(at, &reason)),
        }
    }

    fn open_folder(&mut self) -> Result<(Opened, Manifest), String> {
        let config = self.driver.engine.config();
        let (path, name) = (folder_of(config), config.appendfilename.clone().into_bytes());
        let Some(control) = self.control.clone() else { return Err("the server has no event loop".to_owned()) };
        let folder = Folder::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let lock = self.lock_folder(&path, &control)?;
        let manifest = outdated(&path, &name)?;
        Ok((Opened { folder, lock, path, name }, manifest))
    }

    /// Locks the folder of the append-only file. When the last thread that needs it has ended, the log is switched on if it is to
    /// be.
    ///
    /// # Errors
    /// In words: another process has locked it.
    pub(super) fn lock_folder(&mut self, path: &Path, control: &Control<Shell>) -> Result<FolderLock, String> {
        let control = control.clone();
        let freed = move || {
            control.send(Box::new(|shell: &mut Shell| {
                if shell.background.awaits_folder && shell.driver.switches_log_on() {
                    shell.open_file();
                    shell.after_closure();
                }
            }));
        };
        let lock = FolderLock::new(lock(path)?, freed);
        self.background.folder_held = lock.held();
        remove_temporary(path, self.driver.engine.config().appendfilename.as_bytes());
        Ok(lock)
    }

    /// What is made of a copy for the first base of the file that was opened.
    ///
    /// # Errors
    /// In words: there is none.
    pub(super) fn base_of_copy(&mut self) -> Result<Then, String> {
        let Some(control) = self.control.clone() else { return Err("the server has no event loop".to_owned()) };
        let Some(coming) = self.background.coming.take() else { return Err("it was switched off".to_owned()) };
        let Coming { opened: Opened { folder, lock, path, name }, manifest, beginning } = *coming;
        let Beginning { head, progress, syncs } = beginning;
        let checksum = self.driver.engine.config().rdbchecksum;
        let (orders, received) = channel();
        self.background.writers.begin(Box::new(LogThread::new(orders, path.clone())));
        Ok(Box::new(move |copied: Copied, _: &CopyProgress| {
            let begun = copied.and_then(|copied| begin_files(folder, &name, manifest, copied, checksum, &head));
            let begun = begun.map(|files| Begun { files, orders: received, lock, syncs, progress });
            control.send(Box::new(move |shell: &mut Shell| shell.log_begun(begun)));
        }))
    }

    /// Takes the files of a log whose base is on the disk.
    fn log_begun(&mut self, begun: Result<Begun, String>) {
        let begun = begun.and_then(|begun| {
            let Some(file) = self.background.writers.current_mut() else { return Err("it was switched off".to_owned()) };
            let Some(control) = self.control.clone() else { return Err("the server has no event loop".to_owned()) };
            file.spawn(begun, reporter(control))
        });
        match begun {
            Ok(()) => self.drive(|driver, at| driver.file_begun(at)),
            Err(reason) => {
                self.background.writers = Writers::default();
                self.drive(|driver, at| driver.file_not_begun(at, &reason));
            }
        }
        self.after_closure();
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
