//! A live copy: the keyspace at one moment, copied while it changes, without a fork and without a long turn.
//!
//! ```text
//!   keyspace ─ step: the next keys ─▶ Items ───┐
//!                                              ├─ take ─▶ another engine, which has the keyspace of the moment of `finish`
//!   changes of keys behind the walk ─▶ Changes ┘
//! ```
//!
//! The walk visits keys in the order of their hashes. A change of a key that it has visited is passed on as a request of the
//! append-only file. A change of a key before it is not: the walk finds it there. So the receiver has exactly the keys behind the
//! walk, and when the walk is over, all of them. The moment of the copy is its end, not its beginning.
//!
//! What belongs to no key (sessions, remembered requests, libraries) has changes that replace the whole; those are always passed on.

use std::cell::RefCell;
use std::rc::Rc;

use crate::keyspace::change::{Change, ChangeLog, Effect};
use crate::keyspace::databases::Keyspace;
use crate::persist::append::encode::Encoder;
use crate::persist::natives::clock::{BootClock, Moment};
use crate::persist::natives::{self, name};
use crate::persist::rdb_file::opcode;
use crate::persist::rdb_file::write::{Changed, Writer, put_aux, put_select};
use crate::store::dict::KeyHasher;

/// Maximum number of keys that one step visits, even if they take no bytes.
const VISITS_MAX: usize = 512;

/// A piece of a copy. The pieces must be applied in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The next bytes of one RDB file.
    Items(Vec<u8>),
    /// Requests as in an append-only file without batches.
    Changes(Vec<u8>),
}

impl Part {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Part::Items(bytes) | Part::Changes(bytes) => bytes,
        }
    }
}

/// A copy in progress, shared by the server, which walks, and the engine, which reports changes.
#[derive(Clone)]
pub struct LiveCopy(Rc<RefCell<State>>);

struct State {
    writer: Writer,
    /// The dictionary in which the walk is, and its cursor there. All keys with smaller hashes were visited.
    dict: usize,
    cursor: u64,
    /// Number of dictionaries.
    dicts: usize,
    hasher: KeyHasher,
    /// The dictionary of each database.
    numbers: Vec<u16>,
    encoder: Encoder,
    /// What changed since the last item.
    changes: Vec<u8>,
    parts: Vec<Part>,
    /// The boot, and its clock at the origin of the engine's monotonic clock, in milliseconds.
    boot: ([u8; 16], i64),
}

impl LiveCopy {
    /// Begins to copy a keyspace. All changes from now on must be recorded with this [`ChangeLog`].
    pub fn begin(keyspace: &Keyspace, moment: Moment, libraries: Vec<Box<[u8]>>) -> LiveCopy {
        let mut writer = Writer::live(keyspace, moment, libraries);
        // A change may delete a library that is not written yet, so all are written before the first change.
        let mut head = Vec::new();
        while !writer.is_past().1 && writer.step(keyspace, &mut head).is_ok() {}
        LiveCopy(Rc::new(RefCell::new(State {
            writer,
            dict: 0,
            cursor: 0,
            dicts: keyspace.databases(),
            hasher: keyspace.hasher().clone(),
            numbers: keyspace.numbers.clone(),
            encoder: Encoder::default(),
            changes: Vec::new(),
            parts: vec![Part::Items(head)],
            boot: origin(moment),
        })))
    }

    /// Visits further keys, until they have `room` bytes or a bounded number of them was visited. A single key is not divided.
    /// Returns whether there are more.
    ///
    /// # Errors
    /// None: the form of the copy has room for everything.
    pub fn step(&self, keyspace: &Keyspace, moment: Moment, room: usize) -> Result<bool, Changed> {
        let state = &mut *self.0.borrow_mut();
        state.boot = origin(moment);
        state.writer.set_moment(moment);
        state.end_changes();
        let (mut out, mut visits) = (Vec::new(), 0);
        while state.dict < state.dicts && out.len() < room && visits < VISITS_MAX {
            let at_keys = state.writer.is_past().0;
            visits += if at_keys { state.visit(keyspace, &mut out)? } else { state.writer.step(keyspace, &mut out)? };
        }
        if !out.is_empty() {
            state.parts.push(Part::Items(out));
        }
        Ok(state.dict < state.dicts)
    }

    /// Bytes that were not taken.
    pub fn pending_bytes(&self) -> usize {
        let state = self.0.borrow();
        state.changes.len() + state.parts.iter().map(|part| part.bytes().len()).sum::<usize>()
    }

    /// Number of keys that were visited.
    pub fn keys(&self) -> u64 {
        self.0.borrow().writer.keys()
    }

    /// Takes what is copied since the last call.
    pub fn take(&self) -> Vec<Part> {
        let state = &mut *self.0.borrow_mut();
        state.end_changes();
        std::mem::take(&mut state.parts)
    }

    /// Ends the copy after its last step: it has the present state of the keyspace. Must not be called in the middle of a unit of
    /// changes, and no change may be recorded afterwards.
    pub fn finish(&self, keyspace: &Keyspace) -> Vec<Part> {
        let state = &mut *self.0.borrow_mut();
        debug_assert!(state.dict == state.dicts && !keyspace.changes.in_unit(), "the walk is over, and no unit is in progress");
        state.end_changes();
        let mut out = Vec::new();
        if let Some(locks) = &keyspace.changes.locks {
            put_aux(&mut out, name::TOKEN, &natives::token(locks.next_token()));
        }
        out.push(opcode::EOF);
        out.extend_from_slice(&[0; 8]);
        state.parts.push(Part::Items(out));
        std::mem::take(&mut state.parts)
    }
}

/// The boot, and its clock at the origin of the monotonic clock.
fn origin(moment: Moment) -> ([u8; 16], i64) {
    (moment.boot.id, (i128::from(moment.boot.now_ms) - i128::from(moment.now.mono_ms())) as i64)
}

impl State {
    /// Ends a piece of changes: items follow, or the pieces are taken.
    fn end_changes(&mut self) {
        if !self.changes.is_empty() {
            self.parts.push(Part::Changes(std::mem::take(&mut self.changes)));
            self.encoder.set_selected(None);
        }
    }

    /// Visits the next key. Returns how many were visited.
    fn visit(&mut self, keyspace: &Keyspace, out: &mut Vec<u8>) -> Result<usize, Changed> {
        if self.cursor == 0 && keyspace.space.dict(self.dict).is_empty() {
            self.dict += 1;
            return Ok(1);
        }
        if out.is_empty() || self.cursor == 0 {
            // Databases may have been swapped since the last step.
            put_select(out, keyspace.index_of(self.dict));
        }
        let (next, visited) = self.writer.put_keys(keyspace, out, self.dict, self.cursor)?;
        (self.dict, self.cursor) = if next == 0 { (self.dict + 1, 0) } else { (self.dict, next) };
        Ok(visited.max(1))
    }

    /// Whether the walk is behind this key.
    fn has_visited(&self, db: u32, key: &[u8]) -> bool {
        let dict = usize::from(self.numbers[db as usize]);
        dict < self.dict || dict == self.dict && u64::from(self.hasher.hash(key).bits()) < self.cursor
    }
}

impl ChangeLog for LiveCopy {
    fn record(&mut self, change: &Change<'_>) {
        let state = &mut *self.0.borrow_mut();
        let passed_on = match change.effect {
            Effect::Swap { with } => {
                state.numbers.swap(change.db as usize, with as usize);
                true
            }
            Effect::Flush | Effect::LoadLibrary { .. } | Effect::DeleteLibrary { .. } | Effect::FlushLibraries => true,
            _ => change.effect.is_beside_the_keys() || state.has_visited(change.db, change.key),
        };
        if passed_on {
            let (id, origin_ms) = state.boot;
            let boot = BootClock { id, now_ms: change.now.mono_ms().saturating_add_signed(origin_ms) };
            state.encoder.encode(&mut state.changes, change, boot);
        }
    }

    fn end_unit(&mut self) {}
}

/// Records changes in two logs.
pub struct Both<A, B>(pub A, pub B);

impl<A: ChangeLog, B: ChangeLog> ChangeLog for Both<A, B> {
    fn record(&mut self, change: &Change<'_>) {
        self.0.record(change);
        self.1.record(change);
    }

    fn end_unit(&mut self) {
        self.0.end_unit();
        self.1.end_unit();
    }
}
