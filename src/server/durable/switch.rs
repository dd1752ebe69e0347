//! The files of an append-only file that is switched on or off while the server runs. When and how, the driver decides
//! ([`crate::driver::switch`]). Files of an earlier time are replaced, as in Redis.

use std::path::Path;
use std::sync::Arc;

use crate::driver::file::Beginning;
use crate::engine::Engine;
use crate::persist::append::clock::Moment;
use crate::persist::append::files::Files;
use crate::persist::append::log_writer::{Progress, Syncs};
use crate::persist::append::manifest::Manifest;
use crate::persist::disk::Disk;
use crate::persist::resume::{Last, manifest_name};
use crate::server::durable::folder::{Folder, LogFolder};
use crate::server::durable::load::read_manifest;
use crate::server::durable::lock::FolderLock;
use crate::server::durable::rewrite::{TEMPORARY, put_base};

/// What the writer of a log begins with. `L` keeps the folder locked.
pub struct Begun<F: Disk = Folder, L = FolderLock> {
    /// The files.
    pub files: Files<F>,
    /// Keeps their folder locked.
    pub lock: L,
    /// `appendfsync`.
    pub syncs: Syncs,
    /// What others see of the writer.
    pub progress: Arc<Progress>,
}

/// A folder that this process has locked. `L` keeps the lock.
pub struct Opened<F = Folder, L = FolderLock> {
    /// The folder.
    pub folder: F,
    pub(super) lock: L,
    /// `appendfilename`.
    pub(super) name: Vec<u8>,
    /// What replaces what is in the folder, if the file is switched on.
    manifest: Manifest,
}

impl<F, L> Opened<F, L> {
    /// A folder whose files are loaded.
    pub fn to_load(folder: F, lock: L, name: Vec<u8>) -> Opened<F, L> {
        Opened { folder, lock, name, manifest: Manifest::default() }
    }
}

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
pub(super) fn remove_temporary<F: LogFolder>(folder: &mut F, name: &[u8]) {
    let manifest = [b"temp-", &*manifest_name(name)].concat();
    // The last is of earlier versions: a first base.
    folder.remove_remnants(|name| [TEMPORARY.as_bytes(), &manifest, b"temp-appendonly.rdb"].contains(&name.as_bytes()));
}
