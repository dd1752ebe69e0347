//! The segments of a log: written, synced, continued in another one, removed when they are not needed, and read.
//!
//! ```text
//!   Group (records) ─▶ write at the end of the current segment ─▶ sync ─▶ durable
//!                        │ behind it: zeros, laid out beforehand, so that a sync need not change the file's length
//!                        └ full: the next segment, named by its number and its first index; then a seal
//! ```
//!
//! Space is laid out in steps. A sync of 4 KiB takes 78 µs and 23 µs of CPU in such space, and 191 and 46 in a file that grows; one of
//! 40 KiB 122 µs instead of 248 (medians, on the disk of the published figures). A step costs a millisecond or two, and is taken
//! while nothing else is to be written if possible.

use std::collections::VecDeque;
use std::fmt;

use crate::persist::disk::{Disk, DiskError, write_all_at};
use crate::quorum::store::contents::{Change, Contents, Place, next_index};
use crate::quorum::store::header::{self, Header, Lineage, Owner, State};
use crate::quorum::store::record::{self, At, Kind};
use crate::quorum::types::{ClusterId, Entry, LogId, Vote};

/// The name of a segment until it is whole and durable.
pub const NEW: &[u8] = b"log-new";

/// The mark of a node whose log was cut; see [`LogLoss`](crate::quorum::store::LogLoss). The file is empty.
pub(super) const CUT: &[u8] = b"cut";

/// How often a short write is tried again as a whole.
const TRIES: usize = 16;

/// How segments are made.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Whose segments they are.
    pub owner: Owner,
    /// Bytes of a segment after which the next one begins. A segment is larger by at most what is written at once.
    pub segment_bytes: u64,
    /// Bytes of zeros that are laid out at a time; 0 for none. Groups that are larger than an eighth of it are just appended, because
    /// each of their bytes would be written twice.
    pub step_bytes: u64,
    /// A fault, in tests of the tests.
    pub planted: Planted,
}

/// A fault that is planted in the store, so that tests show that they find it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code))]
pub enum Planted {
    /// None: the store is as it should be.
    #[default]
    Nothing,
    /// Callbacks are called before the sync.
    AckBeforeSync,
    /// A vote alone is not synced.
    VoteNotSynced,
    /// Checksums are not looked at.
    NoChecksum,
    /// The folder is never synced.
    NoFolderSync,
    /// A truncation is not written.
    TruncationNotWritten,
    /// A segment goes on after a restart although its tail may not be durable.
    TailNotCopied,
    /// A write that fails is taken for one that succeeds.
    WriteErrorIgnored,
    /// A log that is cut is not marked so.
    CutNotMarked,
}

/// Why something could not be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing that counts has changed. It can be tried again.
    Again(DiskError),
    /// It is unknown what is durable, or what was durable is damaged. Nothing may be tried again.
    Fatal(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Again(error) => error.fmt(f),
            Trouble::Fatal(reason) => f.write_str(reason),
        }
    }
}

/// Separates a full disk, which refuses a change of files before anything that counts has changed, from other errors.
fn full_or_fatal(error: DiskError) -> Trouble {
    match error {
        DiskError::Full => Trouble::Again(error),
        DiskError::Failed(reason) => Trouble::Fatal(reason),
    }
}

fn fatal(error: DiskError) -> Trouble {
    Trouble::Fatal(error.to_string())
}

/// Records that are written together, at one place.
#[derive(Debug)]
pub struct Group {
    bytes: Vec<u8>,
    changes: Vec<Change>,
    /// Where it begins.
    at: At,
    /// Bytes of the segment that are durable.
    durable: u32,
    /// Index of the last entry.
    index: u64,
}

impl Group {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    fn add<T: serde::Serialize>(&mut self, kind: Kind, payload: &T) -> Result<Place, String> {
        let start = self.bytes.len();
        let at = At { offset: self.at.offset + start as u64, ..self.at };
        record::encode(&mut self.bytes, at, kind, self.index, self.durable, payload)?;
        Ok(Place { segment: at.segment as u32, offset: at.offset as u32, len: (self.bytes.len() - start) as u32 })
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// In words, if it is too large.
    pub fn entry(&mut self, entry: &Entry) -> Result<(), String> {
        self.index = entry.log_id.index;
        let place = self.add(Kind::Entry, entry)?;
        self.changes.push(Change::Entry(entry.log_id, place));
        Ok(())
    }

    /// Adds a vote.
    pub fn vote(&mut self, vote: Vote) -> Result<(), String> {
        self.changes.push(Change::Vote(vote));
        self.add(Kind::Vote, &vote).map(drop)
    }

    /// Adds what is known to be committed.
    pub fn committed(&mut self, committed: Option<LogId>) -> Result<(), String> {
        self.changes.push(Change::Committed(committed));
        self.add(Kind::Committed, &committed).map(drop)
    }

    /// Removes all entries behind one.
    pub fn truncate(&mut self, after: Option<LogId>) -> Result<(), String> {
        self.changes.push(Change::Truncate(after));
        self.add(Kind::Truncate, &after).map(drop)
    }

    /// Says that entries are not needed any more.
    pub fn purge(&mut self, upto: LogId) -> Result<(), String> {
        self.changes.push(Change::Purge(upto));
        self.add(Kind::Purge, &upto).map(drop)
    }
}

/// A segment that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its number.
    pub number: u64,
    /// The index of its first entry.
    pub first: u64,
    /// Its name.
    pub name: Vec<u8>,
    /// Length of its header and records.
    pub len: u64,
}

/// All segments, the last of which is written.
pub struct Segments<D: Disk> {
    pub(super) disk: D,
    pub(super) layout: Layout,
    /// Oldest first. There is always one.
    pub(super) segments: VecDeque<Segment>,
    /// The last one.
    pub(super) file: D::File,
    /// Bytes of the last one that are durable.
    pub(super) durable: u64,
    /// Length of its file: what is behind its records is zeros.
    pub(super) laid: u64,
    /// Whether there was no room for zeros the last time.
    pub(super) cramped: bool,
    pub(super) contents: Contents,
    /// The cluster.
    pub(super) lineage: Lineage,
    /// The id of the cluster in the last segment's header.
    pub(super) last_id: ClusterId,
    /// The segment that was read last.
    pub(super) reading: Option<(u64, D::File)>,
    /// What could not be done when the log was opened, because the disk was full.
    pub(super) owed: Option<Owed>,
}

/// What must be done before anything is written to a log, and before the node takes part in anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owed {
    /// What the last segment has, which is to be copied; `None` if it need not be.
    pub copy: Option<Vec<u8>>,
    /// Whether the folder must be marked: the log was cut.
    pub mark: bool,
}

impl<D: Disk> Segments<D> {
    /// What all written records say.
    pub fn state(&self) -> State {
        self.contents.state
    }

    /// The cluster.
    pub fn lineage(&self) -> Lineage {
        self.lineage
    }

    /// Sets the cluster. It is durable after [`Segments::begin_next`].
    pub fn set_lineage(&mut self, lineage: Lineage) {
        self.lineage = lineage;
    }

    /// Index of the first entry that is there; if there is none, of the next one.
    pub fn first(&self) -> u64 {
        self.contents.first()
    }

    /// Of each segment, oldest first: the index of its first entry, and its bytes.
    pub fn spans(&self) -> impl Iterator<Item = (u64, u64)> {
        self.segments.iter().map(|segment| (segment.first, segment.len))
    }

    fn last(&mut self) -> &mut Segment {
        let last = self.segments.len() - 1;
        &mut self.segments[last]
    }

    /// Whether the next group belongs into another segment.
    pub fn is_full(&self) -> bool {
        self.segments[self.segments.len() - 1].len >= self.layout.segment_bytes
    }

    /// Whether the current segment has records.
    pub fn has_records(&self) -> bool {
        self.segments[self.segments.len() - 1].len > header::LEN as u64
    }

    /// An empty group that is to be written next.
    pub fn group(&self) -> Group {
        let last = &self.segments[self.segments.len() - 1];
        Group {
            bytes: Vec::new(),
            changes: Vec::new(),
            at: At { segment: last.number, offset: last.len },
            durable: self.durable as u32,
            index: self.contents.state.last.map_or(0, |last| last.index),
        }
    }

    /// Writes a group. It is durable after [`Segments::sync`].
    ///
    /// # Errors
    /// If it was not written as a whole, [`Trouble::Again`]; it must be tried again with the same group.
    pub fn write(&mut self, group: &Group) -> Result<(), Trouble> {
        let end = group.at.offset + group.bytes.len() as u64;
        debug_assert_eq!(self.last().len, group.at.offset);
        self.write_whole(group).map_err(Trouble::Again)?;
        if end > self.laid {
            self.laid = end;
            if group.bytes.len() as u64 <= self.layout.step_bytes / 8 {
                self.lay_out();
            }
        }
        self.last().len = end;
        for change in &group.changes {
            self.contents.apply(*change).map_err(Trouble::Fatal)?;
        }
        Ok(())
    }

    /// After a short write, writes again from the start. So each sector has a beginning of its bytes, whatever part of the writes
    /// survives a crash; see [`record::may_be_torn`]. Systems write regular files as a whole, unless there is no space.
    fn write_whole(&mut self, group: &Group) -> Result<(), DiskError> {
        let mut written = 0;
        for _ in 0..TRIES {
            written = self.disk.write_at(&mut self.file, group.at.offset, &group.bytes)?;
            if written >= group.bytes.len() {
                return Ok(());
            }
        }
        Err(DiskError::Failed(format!("only {written} of {} bytes were written", group.bytes.len())))
    }

    /// Writes zeros behind what is there. Without space for them, the file grows as it is written.
    fn lay_out(&mut self) {
        let zeros = vec![0; self.layout.step_bytes as usize];
        self.cramped = write_all_at(&mut self.disk, &mut self.file, self.laid, &zeros).is_err();
        if !self.cramped {
            self.laid += zeros.len() as u64;
        }
    }

    /// Whether little space is left that is laid out, and there was room for more the last time.
    pub fn wants_space(&self) -> bool {
        let last = &self.segments[self.segments.len() - 1];
        !self.cramped && self.laid - last.len < self.layout.step_bytes / 2 && !self.is_full()
    }

    /// Lays out space while there is nothing else to do, if little is left.
    ///
    /// # Errors
    /// Those of [`Segments::sync`].
    pub fn lay_out_ahead(&mut self) -> Result<(), Trouble> {
        if self.wants_space() {
            self.lay_out();
            self.disk.sync(&mut self.file).map_err(fatal)?;
            self.durable = self.last().len;
        }
        Ok(())
    }

    /// Makes all written records durable.
    ///
    /// # Errors
    /// Always [`Trouble::Fatal`]: it is unknown what is durable, and a second sync may succeed without writing it.
    pub fn sync(&mut self) -> Result<(), Trouble> {
        let len = self.last().len;
        if self.durable < len {
            self.disk.sync(&mut self.file).map_err(fatal)?;
            self.durable = len;
        }
        Ok(())
    }

    fn sync_folder(&mut self) -> Result<(), Trouble> {
        if self.layout.planted == Planted::NoFolderSync {
            return Ok(());
        }
        self.disk.sync_folder().map_err(full_or_fatal)
    }

    /// Makes a file with these bytes and zeros behind them, whole and durable under its name. Returns it and its length.
    fn make(&mut self, name: &[u8], bytes: &[u8]) -> Result<(D::File, u64), Trouble> {
        let mut file = self.disk.create(NEW).map_err(full_or_fatal)?;
        write_all_at(&mut self.disk, &mut file, 0, bytes).map_err(full_or_fatal)?;
        let (mut laid, zeros) = (bytes.len() as u64, vec![0; self.layout.step_bytes as usize]);
        if write_all_at(&mut self.disk, &mut file, laid, &zeros).is_ok() {
            laid += zeros.len() as u64;
        }
        self.disk.sync(&mut file).map_err(fatal)?;
        self.disk.rename(NEW, name).map_err(full_or_fatal)?;
        self.sync_folder()?;
        Ok((file, laid))
    }

    /// Begins the next segment, after all records of this one have been made durable.
    ///
    /// # Errors
    /// [`Trouble::Again`] if the disk is full; then nothing may be written before it is tried again. [`Trouble::Fatal`] otherwise.
    pub fn begin_next(&mut self) -> Result<(), Trouble> {
        self.sync()?;
        let previous = self.last().clone();
        let first = next_index(self.contents.state.last);
        let (number, state) = (previous.number + 1, self.contents.state);
        let (owner, lineage, previous_id) = (self.layout.owner, self.lineage, self.last_id);
        let header = Header { owner, segment: number, first, previous_len: previous.len, state, lineage, previous_id };
        let name = header::name(number, first);
        let (file, laid) = self.make(&name, &header.encode().map_err(Trouble::Fatal)?)?;
        // The seal shows that there must be a next segment. Without space for it, only the loss of that one would not be noticed.
        let mut group = self.group();
        group.add(Kind::Seal, &()).map_err(Trouble::Fatal)?;
        match write_all_at(&mut self.disk, &mut self.file, previous.len, &group.bytes) {
            Ok(()) => self.disk.sync(&mut self.file).map_err(fatal)?,
            Err(error) => tracing::warn!("{} cannot be sealed: {error}", previous.name.escape_ascii()),
        }
        self.file = file;
        self.laid = laid;
        self.durable = header::LEN as u64;
        self.last_id = lineage.id;
        self.segments.push_back(Segment { number, first, name, len: self.durable });
        Ok(())
    }

    /// Replaces the last segment by a copy of what was read from it: nobody knows which of its bytes are durable.
    pub(super) fn copy_last(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        let name = self.last().name.clone();
        (self.file, self.laid) = self.make(&name, bytes)?;
        self.durable = bytes.len() as u64;
        Ok(())
    }

    /// Whether something is to be done first of all: see [`Segments::pay`].
    pub fn owes(&self) -> bool {
        self.owed.is_some()
    }

    /// Does what could not be done when the log was opened.
    ///
    /// # Errors
    /// [`Trouble::Again`] while the disk is full. [`Trouble::Fatal`] otherwise.
    pub fn pay(&mut self) -> Result<(), Trouble> {
        let Some(owed) = self.owed.take() else { return Ok(()) };
        let paid = self.pay_all(&owed);
        if paid.is_err() {
            self.owed = Some(owed);
        }
        paid
    }

    fn pay_all(&mut self, owed: &Owed) -> Result<(), Trouble> {
        if owed.mark {
            self.disk.create(CUT).and_then(|_| self.disk.sync_folder()).map_err(full_or_fatal)?;
        }
        owed.copy.as_ref().map_or(Ok(()), |bytes| self.copy_last(bytes))
    }

    /// The log of a folder that has none: makes its first segment.
    pub(super) fn create(mut disk: D, layout: Layout) -> Result<Segments<D>, Trouble> {
        let (owner, state, lineage) = (layout.owner, State::default(), Lineage::default());
        let header = Header { owner, segment: 1, first: 0, previous_len: 0, state, lineage, previous_id: 0 };
        let name = header::name(1, 0);
        let file = disk.create(NEW).map_err(full_or_fatal)?;
        let len = header::LEN as u64;
        let segments = VecDeque::from([Segment { number: 1, first: 0, name: name.clone(), len }]);
        let contents = Contents::default();
        let (durable, laid, cramped, last_id, reading, owed) = (0, 0, false, 0, None, None);
        let mut log =
            Segments { disk, layout, segments, file, durable, laid, cramped, contents, lineage, last_id, reading, owed };
        log.copy_last(&header.encode().map_err(Trouble::Fatal)?)?;
        Ok(log)
    }

    /// Removes segments of which nothing is needed. They must not come back to life: what makes them useless must be durable.
    ///
    /// # Errors
    /// The disk's. What is left is removed another time.
    pub fn remove_useless(&mut self) -> Result<(), DiskError> {
        let needed = self.contents.first_segment().unwrap_or(u64::MAX);
        while self.segments.len() > 1 && self.segments[0].number < needed {
            let segment = &self.segments[0];
            if self.reading.as_ref().is_some_and(|(number, _)| *number == segment.number) {
                self.reading = None;
            }
            self.disk.remove(&segment.name)?;
            tracing::debug!("removed {}", segment.name.escape_ascii());
            self.segments.pop_front();
        }
        Ok(())
    }

    /// Reads entries from one index up to another, exclusive, all of which must be there. Ends before a record that would make it
    /// more than this number of bytes, but not before the first one.
    ///
    /// # Errors
    /// In words, if an entry is damaged or missing, or if the disk cannot be read.
    pub fn read(&mut self, from: u64, to: u64, bytes_max: usize) -> Result<Vec<Entry>, String> {
        let mut entries = Vec::new();
        let (mut index, mut total) = (from, 0);
        while index < to {
            // Records that follow each other are read at once.
            let first = self.contents.place(index).ok_or_else(|| format!("entry {index} is not in the log"))?;
            let mut run = vec![first];
            let end = |run: &[Place]| run.last().map_or(0, |place| place.offset + place.len);
            while let Some(next) =
                (index + (run.len() as u64) < to).then(|| self.contents.place(index + run.len() as u64)).flatten()
            {
                let len = (end(&run) - first.offset) as usize;
                if next.segment != first.segment || next.offset != end(&run) || total + len + next.len as usize > bytes_max {
                    break;
                }
                // A run has at most a mebibyte, however much is asked for.
                if len + next.len as usize > 1 << 20 {
                    break;
                }
                run.push(next);
            }
            let mut bytes = vec![0; (end(&run) - first.offset) as usize];
            if total > 0 && total + bytes.len() > bytes_max {
                break;
            }
            total += bytes.len();
            self.read_bytes(first, &mut bytes)?;
            for place in run {
                entries.push(self.entry(place, &bytes[(place.offset - first.offset) as usize..], index)?);
                index += 1;
            }
        }
        Ok(entries)
    }

    fn entry(&self, place: Place, bytes: &[u8], index: u64) -> Result<Entry, String> {
        let at = At { segment: u64::from(place.segment), offset: u64::from(place.offset) };
        let record = record::decode(bytes, at, self.layout.planted != Planted::NoChecksum);
        let entry = record.and_then(|record| postcard::from_bytes::<Entry>(record.payload).ok());
        entry.filter(|entry| entry.log_id.index == index).ok_or_else(|| {
            format!("segment {} is damaged at offset {}: entry {index} cannot be read", place.segment, place.offset)
        })
    }

    fn read_bytes(&mut self, place: Place, into: &mut [u8]) -> Result<(), String> {
        let number = u64::from(place.segment);
        let current = self.last().number == number;
        if !current && self.reading.as_ref().is_none_or(|(open, _)| *open != number) {
            let segment = self.segments.iter().find(|segment| segment.number == number);
            let name = &segment.ok_or_else(|| format!("segment {number} is missing"))?.name;
            let opened = self.disk.open(name).map_err(|error| format!("{}: {error}", name.escape_ascii()))?;
            let (file, _) = opened.ok_or_else(|| format!("{} is missing", name.escape_ascii()))?;
            self.reading = Some((number, file));
        }
        let file = match &mut self.reading {
            Some((_, file)) if !current => file,
            _ => &mut self.file,
        };
        let mut at = 0;
        while at < into.len() {
            match self.disk.read_at(file, u64::from(place.offset) + at as u64, &mut into[at..]) {
                Ok(0) => return Err(format!("segment {number} ends at offset {}", u64::from(place.offset) + at as u64)),
                Ok(count) => at += count,
                Err(error) => return Err(format!("segment {number} cannot be read at offset {}: {error}", place.offset)),
            }
        }
        Ok(())
    }
}
