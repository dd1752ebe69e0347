//! The files of an append-only file that is switched on or off while the server runs. When and how, the driver decides
//! ([`crate::driver::switch`]). Files of an earlier time are replaced, as in Redis.

use std::path::Path;

use crate::driver::file::Beginning;
use crate::driver::round::storing::Storing;
use crate::engine::Engine;
use crate::files::remove_remnants;
use crate::persist::append::clock::Moment;
use crate::persist::append::files::Files;
use crate::persist::resume::{Last, manifest_name};
use crate::server::durable::folder::{Folder, LogFolder};
use crate::server::durable::load::{folder_of, read_manifest};
use crate::server::durable::lock::{FolderLock, lock};
use crate::server::durable::rewrite::{TEMPORARY, put_base};
use crate::server::durable::{Begun, Opened};
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
        Opened::anew(folder, lock, name).map(Box::new)
    }

    /// Locks the folder of the append-only file. When the last thread that needs it has ended, the log is switched on if it is to
    /// be.
    ///
    /// # Errors
    /// In words: another process has locked it.
    pub(super) fn lock_folder(&mut self, path: &Path, control: &Control<Shell>) -> Result<FolderLock, String> {
        let control = control.clone();
        let freed = move || _ = control.send(Box::new(Shell::folder_freed));
        let lock = self.background.writers.folder_locked(lock(path)?, Box::new(freed) as Box<dyn Fn() + Send + Sync>);
        remove_temporary(path, self.driver.engine.config().appendfilename.as_bytes());
        Ok(lock)
    }
}

impl<F: LogFolder, L> Opened<F, L> {
    /// A folder that is locked, for a file that is switched on: what the server has then replaces what is in it.
    ///
    /// # Errors
    /// In words: its manifest cannot be read.
    pub fn anew(mut folder: F, lock: L, name: Vec<u8>) -> Result<Opened<F, L>, String> {
        let mut manifest = read_manifest(&mut folder, &name)?.unwrap_or_default();
        manifest.begin_anew(&name);
        Ok(Opened { folder, lock, name, manifest })
    }

    /// Makes the first base of a copy, and begins the first increment.
    ///
    /// # Errors
    /// In words.
    pub fn begin(
        self,
        (engine, moment): (Box<Engine>, Moment),
        Beginning { head, progress, syncs }: Beginning,
        checksum: bool,
    ) -> Result<Begun<F, L>, String> {
        let Opened { mut folder, lock, name, manifest } = self;
        let Some(base) = &manifest.base else { return Err("the manifest names no base".to_owned()) };
        let len = put_base(&mut folder, &engine, moment, base, checksum, || true)?;
        drop(engine);
        let files = Files::begin(folder, &name, manifest, Last::Missing, len, &head).map_err(|error| error.to_string())?;
        Ok(Begun { files, lock, syncs, progress })
    }
}

/// Removes the temporary files that a crash has left in a locked folder. Nothing reads them.
fn remove_temporary(path: &Path, name: &[u8]) {
    let manifest = [b"temp-", &*manifest_name(name)].concat();
    // The last is of earlier versions: a first base.
    let is_ours = |name: &str| [TEMPORARY.as_bytes(), &manifest, b"temp-appendonly.rdb"].contains(&name.as_bytes());
    remove_remnants(path, is_ours, |path| tracing::info!("removed {}, which was not finished", path.display()));
}
