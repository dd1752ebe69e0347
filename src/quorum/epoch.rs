//! The epoch of a cluster, in the folder of a node that a version without ids has recovered from a lost majority: such a version drew one
//! then. It is the id of the cluster (see `quorum::lineage`), and is read once, when the log has no id yet.

use crate::persist::disk::{Disk, read_whole};
use crate::quorum::types::ClusterId;

/// The file: sixteen hexadecimal digits in a line.
const FILE: &str = "epoch";

/// Maximum length of the file in bytes.
const LENGTH_MAX: usize = 1 << 10;

/// Reads the epoch of a folder; 0 without a file.
///
/// # Errors
/// In words: the system's, or the file is damaged.
pub fn read(folder: &mut impl Disk) -> Result<ClusterId, String> {
    let found = read_whole(folder, FILE.as_bytes(), LENGTH_MAX).map_err(|error| error.to_string())?;
    let Some(bytes) = found else { return Ok(0) };
    let digits = std::str::from_utf8(&bytes).ok().and_then(|text| text.strip_suffix('\n')).filter(|digits| digits.len() == 16);
    let epoch = digits.and_then(|digits| ClusterId::from_str_radix(digits, 16).ok());
    epoch.ok_or_else(|| format!("{FILE}: it is damaged: an epoch is sixteen hexadecimal digits"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::persist::disk::append_all;
    use crate::persist::disk::simulated::SimulatedDisk;

    #[test]
    fn an_epoch_is_read_or_refused() {
        let mut disk = SimulatedDisk::new(1);
        assert_eq!(read(&mut disk), Ok(0));
        let mut file = disk.create(FILE.as_bytes()).unwrap();
        append_all(&mut disk, &mut file, b"0000000000000abc").unwrap();
        assert!(read(&mut disk).unwrap_err().contains("it is damaged"));
        append_all(&mut disk, &mut file, b"\n").unwrap();
        assert_eq!(read(&mut disk), Ok(0xabc));
    }
}
