//! Opening a log: finds its segments, checks every record, and cuts what a crash left behind the last one.
//!
//! What a crash may leave is mended: a torn tail, which costs the node its vote until it has caught up (see [`LogLoss`]), a segment that was not finished, segments of which nothing is needed any more. It
//! refuses everything else, because a node that has forgotten a vote or an entry breaks the promises it has made: a damaged record,
//! a missing segment, the files of another node or of a newer format.

use std::collections::VecDeque;
use std::fmt;

use crate::persist::disk::{Disk, DiskError, read_whole};
use crate::quorum::store::contents::{Change, Contents, next_index};
use crate::quorum::store::header::{self, Header, Lineage};
use crate::quorum::store::record::{self, At};
use crate::quorum::store::segments::{Layout, NEW, Owed, Planted, Segment, Segments, Trouble};

/// Why a log was not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The disk failed.
    Disk(DiskError),
    /// The files are not what they must be.
    Refused {
        /// Name of the file in the node's folder.
        file: String,
        /// Where in it, in bytes, if it is a place in it.
        offset: Option<u64>,
        /// What is wrong, in words.
        reason: String,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Disk(error) => write!(f, "the log cannot be opened: {error}"),
            OpenError::Refused { file, offset: Some(offset), reason } => write!(f, "{file} at offset {offset}: {reason}"),
            OpenError::Refused { file, offset: None, reason } => write!(f, "{file}: {reason}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<DiskError> for OpenError {
    fn from(error: DiskError) -> OpenError {
        OpenError::Disk(error)
    }
}

impl From<Trouble> for OpenError {
    fn from(trouble: Trouble) -> OpenError {
        match trouble {
            Trouble::Again(error) => OpenError::Disk(error),
            Trouble::Fatal(reason) => OpenError::Disk(DiskError::Failed(reason)),
        }
    }
}

pub(super) fn refused(file: &[u8], offset: Option<u64>, reason: impl Into<String>) -> OpenError {
    OpenError::Refused { file: String::from_utf8_lossy(file).into_owned(), offset, reason: reason.into() }
}

/// A segment that is read.
struct Read {
    segment: Segment,
    bytes: Vec<u8>,
    header: Header,
}

/// Opens the log in a folder, or begins one in a folder that has none.
///
/// # Errors
/// The disk's, or why the log is refused.
pub fn open<D: Disk>(mut disk: D, layout: Layout) -> Result<Segments<D>, OpenError> {
    let names = disk.names()?;
    let mut found: Vec<(u64, u64)> = names.iter().filter_map(|name| header::parse_name(name)).collect();
    found.sort_unstable();
    if names.iter().any(|name| name == NEW) {
        disk.remove(NEW)?;
    }
    let Some(&last) = found.last() else {
        if let Some(snapshot) = names.iter().find(|name| name.starts_with(b"snapshot-") && name.ends_with(b".meta")) {
            return Err(refused(snapshot, None, "there is a snapshot, but the log is missing"));
        }
        return Ok(Segments::create(disk, layout)?);
    };
    if let Some(twice) = found.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(refused(&header::name(twice[1].0, twice[1].1), None, "another segment has its number"));
    }
    // Segments without a gap up to the last one. What is before a gap is useless, or the log is refused below.
    let gap = found.windows(2).rposition(|pair| pair[0].0 + 1 != pair[1].0);
    let useless: Vec<(u64, u64)> = found.drain(..gap.map_or(0, |before| before + 1)).collect();

    let mut contents = Contents::default();
    let (mut lineage, mut last_id) = (Lineage::default(), 0);
    let mut segments = VecDeque::new();
    let mut next = Some(read(&mut disk, &layout, found[0])?);
    let (mut open, mut cut) = (None, false);
    for at in 0..found.len() {
        let Some(Read { mut segment, bytes, header }) = next.take() else { break };
        if at == 0 {
            contents = Contents::from_state(header.state);
        } else if header.state != contents.state {
            return Err(refused(&segment.name, Some(0), "it does not continue the segment before it"));
        }
        // An older version writes no ids.
        let says = (header.lineage, header.previous_id) != (Lineage::default(), 0);
        if says && at > 0 && header.previous_id != last_id {
            let reason = "it belongs to another cluster: it continues a log of cluster";
            return Err(refused(
                &segment.name,
                Some(0),
                format!("{reason} {:016x}, and the segment before it belongs to cluster {last_id:016x}", header.previous_id),
            ));
        }
        if says {
            (lineage, last_id) = (header.lineage, header.lineage.id);
        }
        let end = match found.get(at + 1) {
            Some(following) => Some(next.insert(read(&mut disk, &layout, *following)?).header.previous_len),
            None => None,
        };
        (segment.len, cut) = replay(&mut contents, &segment, &bytes, end, &layout)?;
        if end.is_none() {
            open = Some(bytes);
        }
        segments.push_back(segment);
    }
    if let Some(missing) = missing(&contents, found[0].0) {
        let name = header::name(found[0].0, found[0].1);
        return Err(refused(&name, None, format!("the segment before it is missing: {missing}")));
    }
    // A process that ended before it had synced the folder has left names that only the cache has.
    if layout.planted != Planted::NoFolderSync {
        disk.sync_folder()?;
    }
    for (number, first) in useless {
        disk.remove(&header::name(number, first))?;
    }

    let Some((file, laid)) = disk.open(&header::name(last.0, last.1))? else {
        return Err(refused(&header::name(last.0, last.1), None, "it is gone while the log is opened"));
    };
    let len = segments.back().map_or(0, |segment: &Segment| segment.len);
    let durable = header::LEN as u64;
    let (cramped, reading, owed) = (false, None, None);
    let mut log = Segments { disk, layout, segments, file, durable, laid, cramped, contents, lineage, last_id, reading, owed };
    let mut owed = Owed { copy: None, mark: cut && log.layout.planted != Planted::CutNotMarked };
    let bytes = open.unwrap_or_default();
    if log.layout.planted != Planted::TailNotCopied {
        // What is behind the records is not always zeros. What is in them is not always durable: if a sync has failed, the cache shows
        // records that no later sync writes to this file.
        let records = bytes.get(..len as usize).unwrap_or_default();
        if records.len() > header::LEN || bytes[records.len()..].iter().any(|byte| *byte != 0) {
            owed.copy = Some(records.to_vec());
        }
    }
    log.owed = (owed.mark || owed.copy.is_some()).then_some(owed);
    match log.pay() {
        // The node starts all the same, and says how it is. It takes part in nothing until this is done.
        Err(Trouble::Again(error)) => tracing::warn!("the log cannot be made ready, and is tried again: {error}"),
        paid => paid?,
    }
    Ok(log)
}

/// What is missing at the beginning of a log whose first segment has this number.
fn missing(contents: &Contents, first_segment: u64) -> Option<String> {
    let purged = contents.state.purged;
    let needed = next_index(purged);
    (first_segment > 1 && contents.first() > needed)
        .then(|| format!("entries from {needed} up to {} are needed", contents.first() - 1))
}

fn read<D: Disk>(disk: &mut D, layout: &Layout, (number, first): (u64, u64)) -> Result<Read, OpenError> {
    let name = header::name(number, first);
    // Offsets have 32 bits.
    let bytes = read_whole(disk, &name, u32::MAX as usize)?.unwrap_or_default();
    let header = Header::decode(&bytes, layout.owner).map_err(|reason| refused(&name, Some(0), reason))?;
    if (header.segment, header.first) != (number, first) {
        return Err(refused(
            &name,
            Some(0),
            format!("it is segment {} from entry {} on by its header", header.segment, header.first),
        ));
    }
    Ok(Read { segment: Segment { number, first, name, len: 0 }, bytes, header })
}

/// Reads the records of a segment; up to `end` if another segment says that this one ends there. Returns their length with the header,
/// and whether there is something behind them that is cut.
fn replay(
    contents: &mut Contents,
    segment: &Segment,
    bytes: &[u8],
    end: Option<u64>,
    layout: &Layout,
) -> Result<(u64, bool), OpenError> {
    let checked = layout.planted != Planted::NoChecksum;
    let mut offset = header::LEN;
    let wrong = |offset: usize, reason: String| refused(&segment.name, Some(offset as u64), reason);
    loop {
        if end.is_some_and(|end| end == offset as u64) {
            return Ok((offset as u64, false));
        }
        let at = At { segment: segment.number, offset: offset as u64 };
        let Some(record) = record::decode(bytes.get(offset..).unwrap_or_default(), at, checked) else { break };
        let change = Change::of(&record, segment.number, at.offset).map_err(|reason| wrong(offset, reason))?;
        fail_if!(change == Change::Seal, wrong(offset, "the segment after this one is missing".to_owned()));
        contents.apply(change).map_err(|reason| wrong(offset, reason))?;
        offset += record.len;
    }
    if let Some(end) = end {
        return Err(wrong(offset, format!("a record is damaged or missing; the records end at offset {end}")));
    }
    let rest = bytes.get(offset..).unwrap_or_default();
    let Some(behind) = rest.iter().rposition(|byte| *byte != 0) else { return Ok((offset as u64, false)) };
    // A record that was written when this place was durable shows that this place was not torn.
    for later in (offset + 8..offset + behind + 1).step_by(8) {
        let at = At { segment: segment.number, offset: later as u64 };
        if let Some(record) = record::decode(&bytes[later..], at, true).filter(|record| record.durable as usize > offset) {
            let reason = format!("a record is damaged that was durable when the one at offset {later} was written");
            return Err(wrong(offset, format!("{reason} (index {})", record.index)));
        }
    }
    let at = At { segment: segment.number, offset: offset as u64 };
    if checked && !record::may_be_torn(rest, at) {
        return Err(wrong(offset, "the last record is damaged; it was not torn by a crash".to_owned()));
    }
    tracing::warn!(
        "{}: cut at offset {offset}: {} bytes of a write that a crash has torn, or of a damaged record",
        segment.name.escape_ascii(),
        behind + 1
    );
    Ok((offset as u64, true))
}
