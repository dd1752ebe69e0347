//! Snapshots: files in the node's folder, each with a checked record that says what it is of. What is in them is somebody else's
//! business.
//!
//! ```text
//!   begin: snapshot-new-SERIAL ─▶ content, by whoever has it ─▶ finish: sync ─▶ snapshot-INDEX-SERIAL.rdb, folder synced
//!                                        ─▶ snapshot-INDEX-SERIAL.meta, folder synced: it is the current one ─▶ older ones removed
//! ```
//!
//! INDEX is the last entry that a snapshot includes. SERIAL counts the snapshots of a folder: the largest one is the current one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::persist::disk::{Disk, DiskError, Result, append_all, read_whole};
use crate::quorum::store::header::Owner;
use crate::quorum::store::open::{OpenError, refused};
use crate::quorum::types::{ClusterId, SnapshotFile, SnapshotMeta};

/// What every record of a snapshot begins with; the last byte is the version of its format.
const MAGIC: [u8; 8] = *b"PCSNAP\0\x01";
/// What the names of temporary files begin with.
const TEMPORARY: &[u8] = b"snapshot-new-";
/// Largest record in bytes.
const META_MAX: usize = 1 << 20;

/// A snapshot that is being written.
#[derive(Debug)]
pub struct Temporary<F> {
    name: Vec<u8>,
    path: PathBuf,
    serial: u64,
    file: F,
}

impl<F> Temporary<F> {
    /// Where it is, for those who write it by its path. They need not sync it.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A node's snapshots. All operations wait for the disk.
#[derive(Debug)]
pub struct Snapshots<D: Disk> {
    disk: D,
    folder: PathBuf,
    owner: Owner,
    /// The id of the cluster, which is written into records.
    cluster: ClusterId,
    /// The largest serial that was given.
    serial: u64,
    current: Option<(SnapshotMeta, SnapshotFile)>,
    /// Serial of the current snapshot, and the id of the cluster in its record.
    of_current: (u64, ClusterId),
}

fn name(index: u64, serial: u64, kind: &str) -> Vec<u8> {
    format!("snapshot-{index:020}-{serial:010}.{kind}").into_bytes()
}

/// Index and serial of a file of a snapshot.
fn parse_name(name: &[u8], kind: &str) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(name).ok()?;
    let (index, serial) = text.strip_prefix("snapshot-")?.strip_suffix(kind)?.strip_suffix('.')?.split_once('-')?;
    Some((index.parse().ok()?, serial.parse().ok()?))
}

fn encode(owner: Owner, cluster: ClusterId, len: u64, meta: &SnapshotMeta) -> std::result::Result<Vec<u8>, String> {
    let mut bytes = MAGIC.to_vec();
    for number in [owner.node, owner.cluster, len] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&postcard::to_stdvec(meta).map_err(|error| error.to_string())?);
    // Versions without ids write nothing here, and ignore what is here.
    bytes.extend_from_slice(&cluster.to_le_bytes());
    bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
    Ok(bytes)
}

/// What a record says: what the snapshot is of, its length, and the id of its cluster, or 0.
type Described = (SnapshotMeta, u64, ClusterId);

fn decode(bytes: &[u8], owner: Owner) -> std::result::Result<Described, String> {
    let damaged = || "the record of a snapshot is damaged".to_owned();
    let (record, checksum) = bytes.split_last_chunk::<8>().ok_or_else(damaged)?;
    fail_if!(record.len() < 32 || record[..7] != MAGIC[..7], damaged());
    if record[7] > MAGIC[7] {
        return Err(format!(
            "it has format {}, written by a newer version; this version reads formats up to {}",
            record[7], MAGIC[7]
        ));
    }
    fail_if!(u64::from_le_bytes(*checksum) != xxh3_64(record), damaged());
    let number = |at: usize| record[at..at + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    if number(16) != owner.cluster {
        return Err("it belongs to another cluster, whose cluster-name is not that of this node".to_owned());
    }
    fail_if!(number(8) != owner.node, format!("it belongs to node {}, and this is node {}", number(8), owner.node));
    let (meta, rest) = postcard::take_from_bytes(&record[32..]).map_err(|_| damaged())?;
    let cluster = rest.first_chunk().map_or(0, |bytes| ClusterId::from_le_bytes(*bytes));
    Ok((meta, number(24), cluster))
}

impl<D: Disk> Snapshots<D> {
    /// Finds the current snapshot of a folder. Removes temporary files and older snapshots. `folder` is where the disk's files are.
    ///
    /// # Errors
    /// The disk's, or why the current snapshot is refused: it is damaged, missing in part, or somebody else's.
    pub fn open(mut disk: D, folder: &Path, owner: Owner) -> std::result::Result<Snapshots<D>, OpenError> {
        let names = disk.names()?;
        let newest = names.iter().filter_map(|name| parse_name(name, "meta")).max_by_key(|(_, serial)| *serial);
        let folder = folder.to_owned();
        let mut snapshots = Snapshots { disk, folder, owner, cluster: 0, serial: 0, current: None, of_current: (0, 0) };
        if let Some((index, serial)) = newest {
            snapshots.serial = serial;
            let (meta, file, cluster) = snapshots.read(index, serial)?;
            (snapshots.current, snapshots.of_current) = (Some((meta, file)), (serial, cluster));
            // A process that ended before it had synced the folder has left names that only the cache has.
            snapshots.disk.sync_folder()?;
        }
        for file in &names {
            let of = parse_name(file, "meta").or_else(|| parse_name(file, "rdb"));
            if file.starts_with(TEMPORARY) || of.is_some_and(|(_, serial)| newest.is_none_or(|(_, newest)| serial != newest)) {
                snapshots.disk.remove(file)?;
            }
        }
        Ok(snapshots)
    }

    /// The disk.
    pub(super) fn disk(&mut self) -> &mut D {
        &mut self.disk
    }

    /// From now on the snapshots belong to the cluster that the log belongs to. Call it after [`Snapshots::open`].
    ///
    /// # Errors
    /// The current snapshot belongs to another cluster.
    pub fn belong(&mut self, log: ClusterId) -> std::result::Result<(), OpenError> {
        let (serial, found) = self.of_current;
        // What was written before the cluster had an id belongs to it.
        if let Some((meta, _)) = self.current.as_ref().filter(|_| found != 0 && found != log) {
            let index = meta.last_log_id.map_or(0, |last| last.index);
            let reason = format!("it belongs to another cluster, {found:016x}, and the log to cluster {log:016x}");
            return Err(refused(&name(index, serial, "meta"), None, reason));
        }
        self.cluster = log;
        Ok(())
    }

    /// Rewrites the record of the current snapshot, which belongs to another cluster from now on: the one that was recovered.
    ///
    /// # Errors
    /// The disk's; then the record is as before, unless a crash follows: then it may be either.
    pub fn relabel(&mut self, cluster: ClusterId) -> Result {
        self.cluster = cluster;
        let Some((meta, file)) = self.current.clone() else { return Ok(()) };
        self.write_record(&meta, file.len, self.of_current.0)
    }

    /// Writes the record of a snapshot whose content is durable. It is the current one afterwards.
    fn write_record(&mut self, meta: &SnapshotMeta, len: u64, serial: u64) -> Result {
        let index = meta.last_log_id.map_or(0, |last| last.index);
        let record = encode(self.owner, self.cluster, len, meta).map_err(DiskError::Failed)?;
        let new = [TEMPORARY, b"meta"].concat();
        let mut file = self.disk.create(&new)?;
        append_all(&mut self.disk, &mut file, &record)?;
        self.disk.sync(&mut file)?;
        self.disk.rename(&new, &name(index, serial, "meta"))?;
        self.disk.sync_folder()?;
        self.of_current = (serial, self.cluster);
        Ok(())
    }

    fn read(&mut self, index: u64, serial: u64) -> std::result::Result<(SnapshotMeta, SnapshotFile, ClusterId), OpenError> {
        let (meta_name, content) = (name(index, serial, "meta"), name(index, serial, "rdb"));
        let bytes = read_whole(&mut self.disk, &meta_name, META_MAX)?.unwrap_or_default();
        let (meta, len, cluster) = decode(&bytes, self.owner).map_err(|reason| refused(&meta_name, Some(0), reason))?;
        match self.disk.open(&content)? {
            None => Err(refused(&content, None, "the file of the current snapshot is missing")),
            Some((_, found)) if found != len => {
                Err(refused(&content, None, format!("the current snapshot has {found} bytes, and was written with {len}")))
            }
            Some(_) => Ok((meta, SnapshotFile { path: self.join(&content), len }, cluster)),
        }
    }

    fn join(&self, name: &[u8]) -> PathBuf {
        self.folder.join(OsStr::from_bytes(name))
    }

    /// The current snapshot.
    pub fn current(&self) -> Option<&(SnapshotMeta, SnapshotFile)> {
        self.current.as_ref()
    }

    /// Begins an empty temporary file. Several may be written at a time.
    ///
    /// # Errors
    /// The disk's.
    pub fn begin(&mut self) -> Result<Temporary<D::File>> {
        self.serial += 1;
        let name = [TEMPORARY, self.serial.to_string().as_bytes()].concat();
        let file = self.disk.create(&name)?;
        Ok(Temporary { path: self.join(&name), name, serial: self.serial, file })
    }

    /// Appends to a temporary file.
    ///
    /// # Errors
    /// The disk's; then a part of the bytes may be in the file.
    pub fn append(&mut self, temporary: &mut Temporary<D::File>, bytes: &[u8]) -> Result {
        append_all(&mut self.disk, &mut temporary.file, bytes)
    }

    /// Removes a temporary file.
    ///
    /// # Errors
    /// The disk's; then the next start removes it.
    pub fn abandon(&mut self, temporary: Temporary<D::File>) -> Result {
        self.disk.remove(&temporary.name)
    }

    /// Makes a temporary file, whose content is whole, the current snapshot. It is durable afterwards, and older ones are removed.
    /// A snapshot of fewer entries than the current one is removed instead; the result is the current one in any case.
    ///
    /// # Errors
    /// The disk's; then the current snapshot is the one before, unless a crash follows: then it may be either.
    pub fn finish(&mut self, mut temporary: Temporary<D::File>, meta: &SnapshotMeta) -> Result<SnapshotFile> {
        if let Some((current, file)) = self.current.clone().filter(|(current, _)| current.last_log_id > meta.last_log_id) {
            tracing::debug!("a snapshot is dropped: there is a newer one, {current}");
            self.abandon(temporary)?;
            return Ok(file);
        }
        let index = meta.last_log_id.map_or(0, |last| last.index);
        let content = name(index, temporary.serial, "rdb");
        self.disk.sync(&mut temporary.file)?;
        self.disk.rename(&temporary.name, &content)?;
        // The content is there whenever the record is.
        self.disk.sync_folder()?;
        let Some((_, len)) = self.disk.open(&content)? else {
            return Err(DiskError::Failed("the file of a snapshot is gone".to_owned()));
        };
        self.write_record(meta, len, temporary.serial)?;
        let finished = SnapshotFile { path: self.join(&content), len };
        self.current = Some((meta.clone(), finished.clone()));
        self.remove_others(temporary.serial);
        Ok(finished)
    }

    /// Removes all finished snapshots but one. What cannot be removed now is removed at the next start.
    fn remove_others(&mut self, serial: u64) {
        let names = self.disk.names().unwrap_or_default();
        for file in names {
            let of = parse_name(&file, "meta").or_else(|| parse_name(&file, "rdb"));
            if of.is_some_and(|(_, other)| other < serial)
                && let Err(error) = self.disk.remove(&file)
            {
                tracing::warn!("an old snapshot cannot be removed: {error}");
            }
        }
    }
}
