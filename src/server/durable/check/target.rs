//! Which files a path stands for.

use std::path::{Path, PathBuf};

use crate::server::durable::folder::words;

/// The end of a manifest's name.
pub const MANIFEST_END: &str = ".manifest";
/// In the names of copies of what `--fix` has cut off.
pub const CUT: &str = ".cut-";

/// What a path stands for.
pub enum Target {
    /// An RDB or an append-only file.
    File(PathBuf),
    /// A manifest and the files that it names.
    Manifest(PathBuf),
    /// A folder: manifests in it and in folders in it, and files that a server keeps beside them.
    Folder {
        /// The manifests.
        manifests: Vec<PathBuf>,
        /// RDB files and append-only files in a folder without a manifest.
        files: Vec<PathBuf>,
    },
}

/// What a path stands for.
///
/// # Errors
/// It does not exist, or there is nothing to check, in words.
pub fn find(path: &Path) -> Result<Target, String> {
    let data = std::fs::metadata(path).map_err(|error| format!("Can't read {}: {}", path.display(), words(&error)))?;
    if !data.is_dir() {
        let is_manifest = path.to_string_lossy().ends_with(MANIFEST_END);
        return Ok(if is_manifest { Target::Manifest(path.to_owned()) } else { Target::File(path.to_owned()) });
    }
    let mut manifests = manifests_in(path)?;
    let mut files = Vec::new();
    if manifests.is_empty() {
        files = files_in(path)?;
        files.retain(|file| is_log_or_rdb(&file.file_name().unwrap_or_default().to_string_lossy()));
        for folder in entries(path)?.into_iter().filter(|entry| entry.is_dir()) {
            // A folder of others may be closed.
            manifests.extend(manifests_in(&folder).unwrap_or_default());
        }
    }
    if manifests.is_empty() && files.is_empty() {
        return Err(format!("{} has no manifest, no append-only file and no RDB", path.display()));
    }
    Ok(Target::Folder { manifests, files })
}

fn manifests_in(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = files_in(folder)?;
    let is_temporary = |name: &str| name.starts_with("temp-");
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(MANIFEST_END) && !is_temporary(&name)
    });
    Ok(files)
}

/// The folder of a file.
pub fn folder_of(path: &Path) -> PathBuf {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

/// Whether a file is an RDB or an append-only file by its name.
pub fn is_log_or_rdb(name: &str) -> bool {
    (name.ends_with(".rdb") || name.ends_with(".aof")) && !name.contains(CUT)
}

/// The files in a folder, sorted.
pub fn files_in(folder: &Path) -> Result<Vec<PathBuf>, String> {
    Ok(entries(folder)?.into_iter().filter(|entry| entry.is_file()).collect())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let describe = |error: std::io::Error| format!("Can't read {}: {}", folder.display(), words(&error));
    let entries = std::fs::read_dir(folder).map_err(describe)?;
    let mut paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>().map_err(describe)?;
    paths.sort();
    Ok(paths)
}
