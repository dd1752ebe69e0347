//! The writer: a file in slices. Between two slices the keyspace must not change, except that keys may expire: each slice goes on
//! where the one before stopped. A [live copy](crate::persist::live_copy) may change meanwhile, as it passes changes on itself.

use crate::base::time::Now;
use crate::base::version::REDIS_VERSION;
use crate::keyspace::databases::{Keyspace, ended};
use crate::keyspace::eviction::Order;
use crate::keyspace::lru::idle_seconds;
use crate::keyspace::natives::lock_of;
use crate::keyspace::rdb::dump::put_value;
use crate::keyspace::rdb::parts::{VERSION, VERSION_WITH_FIELD_DEADLINES, crc64_of_more, put_length, put_string};
use crate::keyspace::rdb::streams::fits_older_form;
use crate::persist::natives::clock::{BootClock, Moment};
use crate::persist::natives::{self, name};
use crate::persist::rdb_file::consumers::{self, consumers};
use crate::persist::rdb_file::{SIGNATURE, opcode};
use crate::store::entry::{EntryRef, ValueRef};
use crate::store::frequency;
use crate::store::values::value::Value;

/// Maximum number of keys, sessions and records that one slice visits, even if they take no bytes.
const VISITS_MAX: usize = 16 * 1024;

/// Options of a file.
#[derive(Clone, Debug)]
pub struct Options {
    /// `rdbchecksum`: whether the file gets a checksum.
    pub checksum: bool,
    /// Whether it is the base of an append-only file.
    pub is_base: bool,
    /// Bytes of memory in use, which Redis shows when it loads the file.
    pub used_memory: u64,
    /// The time of the boot clock at the time of the file.
    pub boot: BootClock,
    /// Sources of the libraries of functions.
    pub libraries: Vec<Box<[u8]>>,
}

/// The keyspace changed between two slices: a hash got a field with a deadline, which the version of the file does not know. The
/// file must be written anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed;

/// What is written next.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Head,
    /// This library.
    Library(usize),
    /// Sessions from this number on.
    Sessions(u64),
    /// Remembered requests from this record on.
    Requests(u32),
    /// Keys of this database, from a cursor on; `None` if its header is still to be written.
    Database(u32, Option<u64>),
    End,
    Done,
}

/// Which attribute keys get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Uses {
    None,
    Idle,
    Frequency,
}

/// Writes a file.
pub struct Writer {
    options: Options,
    now: Now,
    stage: Stage,
    /// The database of the last remembered request.
    selected: Option<u32>,
    crc: u64,
    version: u16,
    uses: Uses,
    /// Number of keys that were written.
    keys: u64,
}

impl Writer {
    /// Begins a file of the state at `now`. It has the version that Redis 7.0 reads, unless fields of a hash have deadlines.
    pub fn new(keyspace: &Keyspace, now: Now, options: Options) -> Writer {
        let timed_fields = (0..keyspace.space.dicts()).any(|dict| keyspace.space.volatile_hashes(dict) > 0);
        let uses = match keyspace.evictor.policy.map(|policy| policy.order) {
            Some(Order::Lru) => Uses::Idle,
            Some(Order::Lfu) => Uses::Frequency,
            _ => Uses::None,
        };
        let version = if timed_fields { VERSION_WITH_FIELD_DEADLINES } else { VERSION };
        Writer { options, now, stage: Stage::Head, selected: None, crc: 0, version, uses, keys: 0 }
    }

    /// Begins a file of a keyspace that changes while it is written, for this program alone: it has the version with all parts, no
    /// checksum, and the caller walks the keys.
    pub(in crate::persist) fn live(keyspace: &Keyspace, moment: Moment, libraries: Vec<Box<[u8]>>) -> Writer {
        let options = Options { checksum: false, is_base: false, used_memory: 0, boot: moment.boot, libraries };
        Writer { version: VERSION_WITH_FIELD_DEADLINES, ..Writer::new(keyspace, moment.now, options) }
    }

    /// Sets the time of what is written next.
    pub(in crate::persist) fn set_moment(&mut self, moment: Moment) {
        (self.now, self.options.boot) = (moment.now, moment.boot);
    }

    /// Whether only keys are left to write, and whether the libraries are written.
    pub(in crate::persist) fn is_past(&self) -> (bool, bool) {
        let keys = matches!(self.stage, Stage::Database(..) | Stage::End | Stage::Done);
        (keys, !matches!(self.stage, Stage::Head | Stage::Library(_)))
    }

    fn moment(&self) -> Moment {
        Moment { now: self.now, boot: self.options.boot }
    }

    /// The version of the file's format.
    #[allow(dead_code, reason = "tests use it")]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Number of keys that were written, native ones included.
    #[allow(dead_code, reason = "tests use it")]
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Appends the next slice to `out`. It ends with the first item that reaches `room` bytes. An item is a key, a record, or a
    /// library; keys whose hashes are equal are one item. Returns whether there is more.
    pub fn next_chunk(&mut self, keyspace: &Keyspace, out: &mut Vec<u8>, room: usize) -> Result<bool, Changed> {
        let start = out.len();
        let mut visits = 0;
        while !matches!(self.stage, Stage::End | Stage::Done) && out.len() - start < room.max(1) && visits < VISITS_MAX {
            visits += self.step(keyspace, out)?;
        }
        if let Stage::End = self.stage {
            out.push(opcode::EOF);
        }
        if self.options.checksum {
            self.crc = crc64_of_more(self.crc, &out[start..]);
        }
        if let Stage::End = self.stage {
            out.extend_from_slice(&self.crc.to_le_bytes());
            self.stage = Stage::Done;
        }
        Ok(!matches!(self.stage, Stage::Done))
    }

    /// Writes the next few items. Returns how many were visited.
    pub(in crate::persist) fn step(&mut self, keyspace: &Keyspace, out: &mut Vec<u8>) -> Result<usize, Changed> {
        let locks = keyspace.changes.locks.as_ref();
        let moment = self.moment();
        self.stage = match self.stage {
            Stage::Head => {
                self.put_head(keyspace, out);
                Stage::Library(0)
            }
            Stage::Library(at) => match self.options.libraries.get(at) {
                Some(source) => {
                    out.push(opcode::FUNCTION2);
                    put_string(out, source);
                    Stage::Library(at + 1)
                }
                None => Stage::Sessions(0),
            },
            Stage::Sessions(from) => match locks.and_then(|locks| locks.sessions.iter_from(from).next()) {
                Some((number, session)) => {
                    put_aux(out, name::SESSION, &natives::session(&moment, number, session));
                    Stage::Sessions(number + 1)
                }
                None => Stage::Requests(0),
            },
            Stage::Requests(number) => match locks.filter(|locks| number < locks.requests.number_bound()) {
                Some(locks) => {
                    if let Some((whose, remembered)) = locks.requests.get(number) {
                        let db = locks.db_at_home(whose.home);
                        if self.selected != Some(db) {
                            put_select(out, db);
                            self.selected = Some(db);
                        }
                        put_aux(out, name::REQUESTS, &natives::requests(&moment, &whose.name, &whose.owner, remembered));
                    }
                    Stage::Requests(number + 1)
                }
                None => Stage::Database(0, None),
            },
            Stage::Database(db, _) if db as usize >= keyspace.databases() => Stage::End,
            Stage::Database(db, None) => {
                let dict = usize::from(keyspace.numbers[db as usize]);
                if keyspace.space.dict(dict).is_empty() {
                    Stage::Database(db + 1, None)
                } else {
                    put_select(out, db);
                    out.push(opcode::RESIZEDB);
                    put_length(out, keyspace.space.plain(dict, false));
                    put_length(out, keyspace.space.plain(dict, true));
                    Stage::Database(db, Some(0))
                }
            }
            Stage::Database(db, Some(cursor)) => {
                let dict = usize::from(keyspace.numbers[db as usize]);
                let (next, visited) = self.put_keys(keyspace, out, dict, cursor)?;
                self.stage = if next == 0 { Stage::Database(db + 1, None) } else { Stage::Database(db, Some(next)) };
                return Ok(visited.max(1));
            }
            stage @ (Stage::End | Stage::Done) => stage,
        };
        Ok(1)
    }

    /// Writes the next key of a dictionary, and those that share its hash. Returns the next cursor, 0 at the end, and the number of
    /// visited keys.
    pub(in crate::persist) fn put_keys(
        &mut self,
        keyspace: &Keyspace,
        out: &mut Vec<u8>,
        dict: usize,
        cursor: u64,
    ) -> Result<(u64, usize), Changed> {
        let mut done = Ok(());
        let (mut visited, mut keys) = (0, 0);
        let next = keyspace.space.dict(dict).scan(cursor, 1, |entry| {
            visited += 1;
            if !ended(entry, self.now) && done.is_ok() {
                keys += 1;
                done = self.put_entry(keyspace, out, entry);
            }
        });
        done?;
        self.keys += keys;
        Ok((next, visited))
    }

    /// Writes signature, version, and the fields about the whole file.
    fn put_head(&self, keyspace: &Keyspace, out: &mut Vec<u8>) {
        out.extend_from_slice(SIGNATURE);
        out.extend_from_slice(format!("{:04}", self.version).as_bytes());
        put_aux(out, b"redis-ver", REDIS_VERSION.as_bytes());
        for (name, number) in [
            (&b"redis-bits"[..], 64),
            (b"ctime", self.now.unix_ms() / 1000),
            (b"used-mem", self.options.used_memory as i64),
            (b"aof-base", i64::from(self.options.is_base)),
        ] {
            put_aux(out, name, itoa::Buffer::new().format(number).as_bytes());
        }
        if let Some(locks) = &keyspace.changes.locks {
            put_aux(out, name::TOKEN, &natives::token(locks.next_token()));
        }
    }

    /// Writes a key.
    fn put_entry(&self, keyspace: &Keyspace, out: &mut Vec<u8>, entry: EntryRef<'_>) -> Result<(), Changed> {
        let unix_of = |at_ms: u64| self.now.unix_of(at_ms);
        let (key, deadline) = (entry.key(), entry.deadline());
        if let Some(lock) = lock_of(entry) {
            put_aux(out, name::LOCK, &natives::lock(&self.moment(), key, &lock));
            return Ok(());
        }
        match entry.value() {
            ValueRef::Boxed(Value::Latch(count)) => {
                put_aux(out, name::LATCH, &natives::count(key, *count, deadline.map(unix_of)));
                return Ok(());
            }
            ValueRef::Boxed(Value::Guard(token)) => {
                put_aux(out, name::GUARD, &natives::count(key, *token, deadline.map(unix_of)));
                return Ok(());
            }
            ValueRef::Boxed(Value::Stream(stream)) if self.version < VERSION_WITH_FIELD_DEADLINES && !fits_older_form(stream) => {
                put_aux(out, consumers::NAME, &consumers(key, stream));
            }
            _ => {}
        }
        if let Some(deadline) = deadline {
            out.push(opcode::EXPIRETIME_MS);
            out.extend_from_slice(&unix_of(deadline).to_le_bytes());
        }
        match self.uses {
            Uses::None => {}
            Uses::Idle => {
                out.push(opcode::IDLE);
                put_length(out, idle_seconds(entry, self.now.second()) as usize);
            }
            Uses::Frequency => {
                let counter = frequency::counter(entry.access(), self.now.minute(), keyspace.lru.rules);
                out.extend_from_slice(&[opcode::FREQ, counter]);
            }
        }
        let version = put_value(out, Some(key), entry.value(), self.version, self.now.ended_ms(), unix_of);
        if version > self.version { Err(Changed) } else { Ok(()) }
    }
}

/// Writes a named field.
pub(in crate::persist) fn put_aux(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.push(opcode::AUX);
    put_string(out, name);
    put_string(out, value);
}

/// Begins the section of a database.
pub(in crate::persist) fn put_select(out: &mut Vec<u8>, db: u32) {
    out.push(opcode::SELECTDB);
    put_length(out, db as usize);
}
