//! What all records say together: the state, and where each entry is.

use std::cmp::Ordering;
use std::collections::VecDeque;

use crate::quorum::store::header::State;
use crate::quorum::store::record::{Kind, Record};
use crate::quorum::types::{LogId, Vote};

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of its segment.
    pub segment: u32,
    /// Offset of its record in bytes.
    pub offset: u32,
    /// Length of its record in bytes.
    pub len: u32,
}

/// What a record changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// An entry follows the last one.
    Entry(LogId, Place),
    /// The node's vote.
    Vote(Vote),
    /// The last entry that is known to be committed.
    Committed(Option<LogId>),
    /// All entries behind this one are removed.
    Truncate(Option<LogId>),
    /// All entries up to this one are not needed any more.
    Purge(LogId),
    /// Another segment follows.
    Seal,
}

impl Change {
    /// What a record of a segment with this number changes.
    ///
    /// # Errors
    /// In words, if the payload cannot be read.
    pub fn of(record: &Record<'_>, segment: u64, offset: u64) -> Result<Change, String> {
        fn read<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
            postcard::take_from_bytes(bytes).map(|(value, _)| value).map_err(|error| format!("a payload cannot be read: {error}"))
        }
        Ok(match record.kind {
            // An entry begins with its id. The rest is not needed here.
            Kind::Entry => {
                let place = Place { segment: segment as u32, offset: offset as u32, len: record.len as u32 };
                Change::Entry(read(record.payload)?, place)
            }
            Kind::Vote => Change::Vote(read(record.payload)?),
            Kind::Committed => Change::Committed(read(record.payload)?),
            Kind::Truncate => Change::Truncate(read(record.payload)?),
            Kind::Purge => Change::Purge(read(record.payload)?),
            Kind::Seal => Change::Seal,
        })
    }
}

/// The state, and where each entry is that is not purged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The state.
    pub state: State,
    /// Index of the first entry that is there; if there is none, of the next one.
    first: u64,
    places: VecDeque<Place>,
}

/// The index behind an entry; 0 if there is none.
pub fn next_index(last: Option<LogId>) -> u64 {
    last.map_or(0, |last| last.index + 1)
}

impl Contents {
    /// The contents of a log that begins with this state, and whose entries so far are elsewhere or nowhere.
    pub fn from_state(state: State) -> Contents {
        Contents { state, first: next_index(state.last), places: VecDeque::new() }
    }

    /// Index of the first entry that is there; if there is none, of the next one.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Where an entry is.
    pub fn place(&self, index: u64) -> Option<Place> {
        let at = usize::try_from(index.checked_sub(self.first)?).ok()?;
        self.places.get(at).copied()
    }

    /// Number of the first segment that has an entry that is needed.
    pub fn first_segment(&self) -> Option<u64> {
        self.places.front().map(|place| u64::from(place.segment))
    }

    /// Makes a change.
    ///
    /// # Errors
    /// In words, if an entry does not follow the last one, or a vote is less than the last one.
    pub fn apply(&mut self, change: Change) -> Result<(), String> {
        let last = self.state.last;
        match change {
            Change::Entry(id, place) => {
                if let Some(last) = last.filter(|last| id.index != last.index + 1) {
                    return Err(format!("entry {} follows entry {}", id.index, last.index));
                }
                if self.places.is_empty() {
                    self.first = id.index;
                }
                self.places.push_back(place);
                self.state.last = Some(id);
            }
            Change::Vote(vote) => {
                if let Some(last) = self.state.vote.filter(|last| vote.partial_cmp(last).is_none_or(Ordering::is_lt)) {
                    return Err(format!("vote {vote} follows vote {last}"));
                }
                self.state.vote = Some(vote);
            }
            Change::Committed(committed) => self.state.committed = committed,
            Change::Truncate(after) => {
                let next = next_index(after);
                if next < next_index(last) {
                    self.places.truncate(usize::try_from(next.saturating_sub(self.first)).unwrap_or(usize::MAX));
                    self.state.last = after.max(self.state.purged);
                }
            }
            Change::Purge(upto) => {
                let gone = usize::try_from((upto.index + 1).saturating_sub(self.first)).unwrap_or(usize::MAX);
                self.places.drain(..gone.min(self.places.len()));
                self.first = self.first.max(upto.index + 1);
                self.state.purged = self.state.purged.max(Some(upto));
                self.state.last = self.state.last.max(Some(upto));
            }
            Change::Seal => {}
        }
        if self.places.is_empty() {
            self.first = next_index(self.state.last);
        }
        Ok(())
    }
}
