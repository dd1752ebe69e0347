//! How writing goes on after a start, and how the manifest changes: a crash at any operation leaves the old state or the new one.
//!
//! ```text
//!   last increment: closed     ───────────────────────────────▶ stays
//!                   otherwise ── its valid bytes, copied ──▶ increment n + 1, synced; the old one becomes history
//!                                              new file ──▶ increment n + 2, with its first line, synced
//!                                                           folder synced ─▶ manifest exchanged ─▶ written to
//! ```
//!
//! A file that was not closed is never written to again. If an `fdatasync` failed before, the page cache may show bytes that are not
//! on the disk and that no later `fdatasync` would write: what was read must be written anew before anything is built upon it.

use crate::keyspace::rdb::parts::crc64_of_more;
use crate::persist::append::manifest::Manifest;
use crate::persist::append::read::Extent;
use crate::persist::disk::{Disk, DiskError, Result, append_all};
use crate::persist::increment_file::IncrementFile;

/// Bytes that are copied at once.
const PIECE: usize = 64 << 10;

/// How the last increment of a manifest was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// There is no increment.
    Missing,
    /// It ended with the last line of a clean stop ([`Ending::Closed`](crate::persist::append::read::Ending::Closed)).
    Closed,
    /// Anything else: this much of it was read, and is kept.
    Unclean(Extent),
}

/// The name of the manifest. `name` is `appendfilename`.
pub fn manifest_name(name: &[u8]) -> Vec<u8> {
    [name, b".manifest"].concat()
}

/// Replaces the manifest. All files that the new one names must be durable.
///
/// # Errors
/// The disk's. Unless nothing was renamed, it is unknown then which manifest is durable, so no file of either may be removed or
/// written to, and the process should end.
pub fn exchange<D: Disk>(disk: &mut D, name: &[u8], manifest: &Manifest) -> Result {
    let target = manifest_name(name);
    let temporary = [b"temp-", &target[..]].concat();
    let mut file = disk.create(&temporary)?;
    append_all(disk, &mut file, &manifest.write())?;
    disk.sync(&mut file)?;
    disk.rename(&temporary, &target)?;
    disk.sync_folder()
}

/// Begins an increment to write to, after the files of `manifest` were read. Returns the new manifest, which is in force, and the
/// writer. `name` is `appendfilename`; `first_line` is the new file's.
///
/// Files in history can be removed now: [`remove_history`].
///
/// # Errors
/// The disk's. The old manifest or the new one is in force then, and the next start finds all that this one has found. An increment
/// that has changed since it was read is an error, too: the cache has dropped bytes that were never on the disk.
pub fn resume<D: Disk>(
    mut disk: D,
    name: &[u8],
    mut manifest: Manifest,
    last: Last,
    first_line: &[u8],
) -> Result<(Manifest, IncrementFile<D>)> {
    if let Last::Unclean(extent) = last
        && let Some(old) = manifest.increments.pop()
    {
        manifest.history.push(old.clone());
        if extent.bytes > 0 {
            let copied = manifest.next_increment(name);
            copy(&mut disk, &old.name, &copied.name, extent)?;
            manifest.increments.push(copied);
        }
    }
    let next = manifest.next_increment(name);
    // This also makes the copy's name durable.
    let mut writer = IncrementFile::create(disk, &next.name, first_line)?;
    manifest.increments.push(next);
    exchange(writer.disk(), name, &manifest)?;
    Ok((manifest, writer))
}

/// Copies the beginning of a file, and makes the copy's content durable.
fn copy<D: Disk>(disk: &mut D, from: &[u8], to: &[u8], extent: Extent) -> Result {
    let changed = || DiskError::Failed(format!("{} has changed since it was read", String::from_utf8_lossy(from)));
    let (mut source, _) = disk.open(from)?.ok_or_else(changed)?;
    let mut target = disk.create(to)?;
    let mut piece = vec![0; PIECE];
    let (mut at, mut sum) = (0, 0);
    while at < extent.bytes {
        let wanted = (extent.bytes - at).min(PIECE as u64) as usize;
        let count = disk.read_at(&mut source, at, &mut piece[..wanted])?;
        fail_if!(count == 0, changed());
        append_all(disk, &mut target, &piece[..count])?;
        sum = crc64_of_more(sum, &piece[..count]);
        at += count as u64;
    }
    fail_if!(sum != extent.sum, changed());
    disk.sync(&mut target)
}

/// Removes the files in history, and then takes them out of the manifest.
///
/// # Errors
/// The disk's. The manifest still names some or all of them then, unless only the last sync failed.
pub fn remove_history<D: Disk>(disk: &mut D, name: &[u8], manifest: &mut Manifest) -> Result {
    for file in &manifest.history {
        if disk.open(&file.name)?.is_some() {
            disk.remove(&file.name)?;
        }
    }
    let without = Manifest { history: Vec::new(), ..manifest.clone() };
    exchange(disk, name, &without)?;
    *manifest = without;
    Ok(())
}
