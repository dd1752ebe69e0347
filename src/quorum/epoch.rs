//! The epoch of a cluster, in a node's folder: 0 without a file.
//!
//! It is drawn when a node is recovered from a lost majority, and tells the nodes of the recovered cluster from those of the old one.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// The file: sixteen hexadecimal digits in a line.
const FILE: &str = "epoch";

/// Reads the epoch of a folder.
///
/// # Errors
/// In words: the system's, or the file is damaged.
pub fn read(folder: &Path) -> Result<u64, String> {
    let path = folder.join(FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let digits = text.strip_suffix('\n').filter(|digits| digits.len() == 16);
    let epoch = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    epoch.ok_or_else(|| format!("{}: it is damaged: an epoch is sixteen hexadecimal digits", path.display()))
}

/// Writes the epoch of a folder. It is durable afterwards.
///
/// # Errors
/// In words: the system's.
pub fn write(folder: &Path, epoch: u64) -> Result<(), String> {
    let (path, fresh) = (folder.join(FILE), folder.join("epoch.new"));
    let write = || {
        let mut file = File::create(&fresh)?;
        file.write_all(format!("{epoch:016x}\n").as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&fresh, &path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(|error: io::Error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_read_as_it_was_written() {
        let folder = std::env::temp_dir().join(format!("portcullis-epoch-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(read(&folder), Ok(0));
        write(&folder, 0xabc).unwrap();
        assert_eq!(read(&folder), Ok(0xabc));
        std::fs::write(folder.join(FILE), "0000000000000a").unwrap();
        assert!(read(&folder).unwrap_err().contains("it is damaged"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
