//! The epoch of a cluster, in the folder of a node that a version without ids has recovered from a lost majority: such a version drew one
//! then. It is the id of the cluster (see `quorum::lineage`), and is read once, when the log has no id yet.

use std::io;
use std::path::Path;

use crate::quorum::types::ClusterId;

/// The file: sixteen hexadecimal digits in a line.
const FILE: &str = "epoch";

/// Reads the epoch of a folder; 0 without a file.
///
/// # Errors
/// In words: the system's, or the file is damaged.
pub fn read(folder: &Path) -> Result<ClusterId, String> {
    let path = folder.join(FILE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let digits = text.strip_suffix('\n').filter(|digits| digits.len() == 16);
    let epoch = digits.and_then(|digits| ClusterId::from_str_radix(digits, 16).ok());
    epoch.ok_or_else(|| format!("{}: it is damaged: an epoch is sixteen hexadecimal digits", path.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_read_or_refused() {
        let folder = std::env::temp_dir().join(format!("portcullis-epoch-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(read(&folder), Ok(0));
        std::fs::write(folder.join(FILE), "0000000000000abc\n").unwrap();
        assert_eq!(read(&folder), Ok(0xabc));
        std::fs::write(folder.join(FILE), "0000000000000a").unwrap();
        assert!(read(&folder).unwrap_err().contains("it is damaged"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
