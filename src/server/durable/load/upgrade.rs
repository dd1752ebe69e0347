//! An append-only file as Redis up to 6 wrote it, a single file in `dir`: it becomes the base of the folder, as in Redis 7.

use std::path::Path;

use crate::persist::append::manifest::{File, Manifest};
use crate::persist::disk::Disk;
use crate::persist::resume::exchange;
use crate::server::durable::folder::{Folder, words};

/// Whether the file `old` of this name is to become the base: the folder has no files, or a start was interrupted after the manifest
/// and before `new` was there.
pub fn is_wanted(old: &Path, new: &Path, manifest: Option<&Manifest>, name: &[u8]) -> bool {
    let is_interrupted = |base: &File| base.name == name && !new.exists();
    old.is_file()
        && manifest.is_none_or(|manifest| manifest.increments.is_empty() && manifest.base.as_ref().is_none_or(is_interrupted))
}

/// Writes the manifest, and then moves the file into the folder: a crash between the two is what [`is_wanted`] finds.
///
/// # Errors
/// In words, with the path.
pub fn upgrade(folder: &mut Folder, old: &Path, path: &Path, name: &str) -> Result<Manifest, String> {
    let failed = |error: &dyn std::fmt::Display| format!("Can't move {} into {}: {error}", old.display(), path.display());
    let base = Some(File { name: name.as_bytes().to_vec(), seq: 1 });
    let manifest = Manifest { base, ..Manifest::default() };
    exchange(folder, name.as_bytes(), &manifest).map_err(|error| failed(&error))?;
    std::fs::rename(old, path.join(name)).map_err(|error| failed(&words(&error)))?;
    folder.sync_folder().map_err(|error| failed(&error))?;
    tracing::info!(
        "Successfully migrated an old-style AOF file ({name}) into the AOF directory ({}).",
        path.file_name().map_or_else(|| path.to_string_lossy(), |folder| folder.to_string_lossy())
    );
    Ok(manifest)
}
