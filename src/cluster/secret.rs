//! Secrets that the nodes of a cluster share.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::files;

/// 256 random bits, in hexadecimal.
///
/// # Errors
/// In words: the system has none.
pub fn draw() -> Result<String, String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| format!("the system has no random bytes: {error}"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The configuration file in a folder that has a secret. It is made if it is not there, and only its owner may read it. The list
/// of processes shows arguments to everybody, and the content of files to nobody.
///
/// # Errors
/// In words: it cannot be written.
pub fn file_in(folder: &Path) -> Result<PathBuf, String> {
    let path = folder.join("secret.conf");
    let describe = |error: std::io::Error| format!("{}: {error}", path.display());
    match files::create_private(&path) {
        Ok(mut file) => file.write_all(format!("cluster-secret {}\n", draw()?).as_bytes()).map_err(describe)?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(describe(error)),
    }
    Ok(path)
}
