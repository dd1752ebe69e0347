//! The log of changes that is written to the file, or proposed to the nodes: gathers units in a batch.
//!
//! ```text
//!   engine ── record, end_unit ─▶ AppendLog ◀─ take_batch ── driver, when a batch is handed on
//!                                 bytes: room for a header · whole units │ the unit in progress
//!                                 keys:  hashes of what they changed     │ of what it changed
//! ```

use std::cell::RefCell;
use std::hash::{BuildHasher, Hasher};
use std::rc::Rc;

use foldhash::quality::FixedState;

use crate::base::time::Now;
use crate::keyspace::change::{Change, ChangeLog, Effect};
use crate::persist::append::batch::{HEADER, first_line, last_line, seal};
use crate::persist::append::clock::BootClock;
use crate::persist::append::encode::{Encoder, put_select};
use crate::persist::append::request::put_request;
use crate::persist::append::tail::TIMESTAMP;

/// Maximum number of bytes for which a batch has room before it has any.
const CAPACITY_MAX: usize = 64 << 10;

/// Stands for a database in the hashes of named sessions, which are in none.
const NO_DB: u32 = u32::MAX;

/// The hash of a key, by which a batch tells what it changed. The seed is that of [`AppendLog::new`].
pub fn key_hash(seed: u64, db: u32, key: &[u8]) -> u64 {
    let mut hasher = FixedState::with_seed(seed).build_hasher();
    hasher.write_u32(db);
    hasher.write(key);
    hasher.finish()
}

/// As [`key_hash`], of a named session of locks.
pub fn session_hash(seed: u64, id: &[u8]) -> u64 {
    key_hash(seed, NO_DB, id)
}

/// What the units of a batch changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// These keys and named sessions, by [`key_hash`] and [`session_hash`]; some more than once.
    Keys(Vec<u64>),
    /// Possibly all: a whole database, or the libraries of functions.
    Everything,
}

/// A batch to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Header and body, as they are in the file, behind a time if there is one.
    pub bytes: Vec<u8>,
    /// What its units changed.
    pub changed: Changed,
}

/// The gathered batch, shared by the engine, which records, and the server, which takes batches.
#[derive(Clone, Debug)]
pub struct AppendLog(Rc<RefCell<Gathered>>);

#[derive(Debug)]
struct Gathered {
    encoder: Encoder,
    /// Room for the header, whole units, and behind them the one in progress.
    bytes: Vec<u8>,
    /// Where the unit in progress begins.
    unit: usize,
    /// Number of its requests.
    requests: usize,
    /// The database that was selected before it.
    selected_before: Option<u32>,
    /// What the whole units changed, and behind them the one in progress.
    keys: Vec<u64>,
    /// Where the keys of the unit in progress begin.
    unit_keys: usize,
    /// Whether the whole units changed everything, and whether the one in progress did.
    everything: [bool; 2],
    /// The boot, and its clock at the origin of the engine's monotonic clock, in milliseconds.
    boot: ([u8; 16], i64),
    /// Bytes of all batches that were taken.
    taken: u64,
    /// Whether batches begin with a time: `aof-timestamp-enabled`.
    timestamps: bool,
    /// When the first change that no batch has was made, in Unix seconds.
    first_s: Option<i64>,
    /// The last time in the file, in Unix seconds.
    written_s: i64,
    /// The seed of the hashes.
    seed: u64,
    /// The salt of the file.
    salt: u64,
}

impl AppendLog {
    /// An empty log, for which [`AppendLog::begin_file`] or [`AppendLog::begin_alone`] must be called before a batch is taken. `seed` is that of [`key_hash`].
    pub fn new(now: Now, boot: BootClock, seed: u64) -> Self {
        let gathered = Gathered {
            encoder: Encoder::default(),
            bytes: vec![0; HEADER],
            unit: HEADER,
            requests: 0,
            selected_before: None,
            keys: Vec::new(),
            unit_keys: 0,
            everything: [false; 2],
            boot: (boot.id, 0),
            taken: 0,
            timestamps: false,
            first_s: None,
            written_s: 0,
            seed,
            salt: 0,
        };
        let log = AppendLog(Rc::new(RefCell::new(gathered)));
        log.set_boot_clock(now, boot);
        log
    }

    /// Sets the time of the boot clock at `now`. The two clocks move apart when the machine is suspended, so this belongs into
    /// each turn.
    pub fn set_boot_clock(&self, now: Now, boot: BootClock) {
        let origin_ms = i128::from(boot.now_ms) - i128::from(now.mono_ms());
        self.0.borrow_mut().boot = (boot.id, origin_ms as i64);
    }

    /// Begins batches with a time from now on, as a redis-server with `aof-timestamp-enabled` does with requests; or no longer.
    pub fn set_timestamps(&self, enabled: bool) {
        let gathered = &mut *self.0.borrow_mut();
        gathered.timestamps = enabled;
        gathered.first_s = gathered.first_s.filter(|_| enabled);
    }

    /// Bytes of all batches since the start up to the last change, the unit in progress included. Headers to come do not count.
    pub fn position(&self) -> u64 {
        let gathered = self.0.borrow();
        gathered.taken + (gathered.bytes.len() - HEADER) as u64
    }

    /// Whether there are whole units that no batch has.
    #[allow(dead_code, reason = "tests use it")]
    pub fn has_pending(&self) -> bool {
        self.0.borrow().unit > HEADER
    }

    /// Bytes of the whole units that no batch has.
    pub fn pending_bytes(&self) -> usize {
        self.0.borrow().unit - HEADER
    }

    /// Calls `take` with the hashes of the keys that the whole units changed since the last call, and with whether they may have
    /// changed all; `None` if they changed nothing. A batch that is taken afterwards does not tell it again.
    pub fn take_changed<T>(&self, take: impl FnOnce(&[u64], bool) -> T) -> Option<T> {
        let gathered = &mut *self.0.borrow_mut();
        let everything = std::mem::take(&mut gathered.everything[0]);
        if gathered.unit_keys == 0 && !everything {
            return None;
        }
        let taken = take(&gathered.keys[..gathered.unit_keys], everything);
        gathered.keys.drain(..gathered.unit_keys);
        gathered.unit_keys = 0;
        Some(taken)
    }

    /// Takes the whole units since the last call as a batch; `None` if there are none. A unit in progress remains. `synced` is the
    /// number of bytes of the file that are durable: [`IncrementFile::durable_bytes`](crate::persist::increment_file::IncrementFile::durable_bytes).
    pub fn take_batch(&self, synced: u64) -> Option<Batch> {
        let gathered = &mut *self.0.borrow_mut();
        if gathered.unit == HEADER {
            return None;
        }
        let mut rest = Vec::with_capacity(gathered.bytes.len().min(CAPACITY_MAX));
        rest.resize(HEADER, 0);
        rest.extend_from_slice(&gathered.bytes[gathered.unit..]);
        let mut bytes = std::mem::replace(&mut gathered.bytes, rest);
        bytes.truncate(gathered.unit);
        gathered.unit = HEADER;
        seal(&mut bytes, gathered.salt, synced);
        // The time of the first change: who cuts the file at a time loses nothing that is older. Times only go forward.
        if let Some(first_s) = gathered.first_s.take().filter(|first_s| *first_s > gathered.written_s) {
            gathered.written_s = first_s;
            bytes.splice(..0, [TIMESTAMP, first_s.to_string().as_bytes(), b"\r\n"].concat());
        }
        gathered.taken += bytes.len() as u64;

        let rest = gathered.keys.split_off(gathered.unit_keys);
        let keys = std::mem::replace(&mut gathered.keys, rest);
        gathered.unit_keys = 0;
        let everything = std::mem::take(&mut gathered.everything[0]);
        Some(Batch { bytes, changed: if everything { Changed::Everything } else { Changed::Keys(keys) } })
    }

    /// Lets the next batch stand alone, without those before it: it names its database. All batches before must have been taken.
    pub fn begin_alone(&self) {
        self.begin_file(0);
    }

    /// Must be called when a file begins, with a random number that no client can know and no other file has. Returns the file's
    /// first line; the next batch follows it. All batches before must have been taken.
    pub fn begin_file(&self, salt: u64) -> Vec<u8> {
        let gathered = &mut *self.0.borrow_mut();
        debug_assert_eq!(gathered.unit, HEADER, "all batches of the last file were taken");
        (gathered.salt, gathered.written_s) = (salt, 0);
        match gathered.selected_before {
            // The beginning of the unit in progress is of this database.
            Some(db) if gathered.requests > 0 => {
                let mut select = Vec::new();
                put_select(&mut select, db);
                gathered.bytes.splice(gathered.unit..gathered.unit, select);
            }
            _ if gathered.requests > 0 => {}
            _ => {
                gathered.encoder.set_selected(None);
                gathered.selected_before = None;
            }
        }
        first_line(salt)
    }

    /// The last line of the file, which has this many bytes, for [`IncrementFile::close`](crate::persist::increment_file::IncrementFile::close). All
    /// batches must have been written. Nothing may follow it: another file must begin.
    #[allow(dead_code, reason = "tests use it")]
    pub fn end_file(&self, offset: u64) -> Vec<u8> {
        debug_assert!(!self.has_pending(), "all batches of the file were taken");
        last_line(self.0.borrow().salt, offset)
    }
}

impl ChangeLog for AppendLog {
    fn record(&mut self, change: &Change<'_>) {
        let Gathered {
            encoder,
            bytes,
            unit,
            requests,
            keys,
            unit_keys,
            everything,
            boot: (id, origin_ms),
            seed,
            timestamps,
            first_s,
            ..
        } = &mut *self.0.borrow_mut();
        if *timestamps && first_s.is_none() {
            *first_s = Some(change.now.unix_ms().div_euclid(1000));
        }
        let boot = BootClock { id: *id, now_ms: change.now.mono_ms().saturating_add_signed(*origin_ms) };
        let before = *requests;
        *requests += encoder.encode(bytes, change, boot);
        if before <= 1 && *requests > 1 {
            let mut multi = Vec::new();
            put_request(&mut multi, &[b"MULTI"]);
            bytes.splice(*unit..*unit, multi);
        }
        if *requests == before {
            return;
        }
        let hash = match change.effect {
            Effect::Flush
            | Effect::Swap { .. }
            | Effect::LoadLibrary { .. }
            | Effect::DeleteLibrary { .. }
            | Effect::FlushLibraries => {
                everything[1] = true;
                return;
            }
            Effect::SetSession { .. } | Effect::EndSession { .. } => session_hash(*seed, change.key),
            _ => key_hash(*seed, change.db, change.key),
        };
        // A unit often changes a key several times in a row.
        if keys.get(*unit_keys..).and_then(<[u64]>::last) != Some(&hash) {
            keys.push(hash);
        }
    }

    fn end_unit(&mut self) {
        let gathered = &mut *self.0.borrow_mut();
        if gathered.requests > 1 {
            put_request(&mut gathered.bytes, &[b"EXEC"]);
        }
        (gathered.unit, gathered.requests) = (gathered.bytes.len(), 0);
        gathered.selected_before = gathered.encoder.selected();
        gathered.unit_keys = gathered.keys.len();
        gathered.everything[0] |= std::mem::take(&mut gathered.everything[1]);
    }
}
