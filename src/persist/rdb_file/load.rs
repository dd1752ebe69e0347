//! Loading: puts what a reader returns into a keyspace.

use std::borrow::Cow;

use crate::base::time::Now;
use crate::keyspace::change::Event as Published;
use crate::keyspace::databases::{Keyspace, Ttl};
use crate::keyspace::lock_records::{Coming, LockRecords};
use crate::keyspace::rdb::kind;
use crate::keyspace::rdb::load::{Builder, Loaded};
use crate::keyspace::rdb::parts::string;
use crate::lock::Lock;
use crate::persist::rdb_file::fault::{Counts, Doing, Fault, Reason};
use crate::persist::rdb_file::natives::{self, BootTime, Clock, Deliveries, name};
use crate::persist::rdb_file::read::{Checksum, Event, Key};
use crate::store::values::value::Value;

/// Maximum number of empty keys that the log names.
const EMPTY_NAMED_MAX: u64 = 10;

/// How a file is loaded.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Keys that have expired are loaded, too: they expire afterwards. For the base of an append-only file, whose commands meet the
    /// keys as they were.
    pub keep_expired: bool,
    /// Milliseconds that a named session gets at least for its client to come back.
    pub session_grace_ms: u64,
    /// The present time on the clock that runs from the start of the machine on.
    pub boot: Option<BootTime>,
}

/// Numbers of keys in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Loaded.
    pub loaded: u64,
    /// Left out, because they have expired.
    pub expired: u64,
    /// Left out, because they have no elements.
    pub empty: u64,
    /// Native locks, semaphores, latches and guards; they are not among the loaded ones.
    pub natives: u64,
}

/// Why a field is refused, and the key that it is about.
type Refusal = (Reason, Option<Box<[u8]>>);

/// A value of a file. A string is copied once, into the keyspace.
enum Content<'a> {
    Text(Cow<'a, [u8]>),
    Value(Value),
}

/// Puts what is in a file into a keyspace.
pub struct Loader {
    options: Options,
    now: Now,
    db: u32,
    tally: Tally,
    /// What is added to a Unix time to give the monotonic time of leases, in milliseconds.
    lease_shift_ms: i64,
    /// Sessions and requests, which must be there before the locks.
    records: LockRecords,
    /// For the stream that follows.
    deliveries: Option<Deliveries>,
}

impl Loader {
    /// Begins to load a file at `now`.
    pub fn new(now: Now, options: Options) -> Loader {
        Loader {
            options,
            now,
            db: 0,
            tally: Tally::default(),
            lease_shift_ms: -now.wall_offset_ms,
            records: LockRecords::default(),
            deliveries: None,
        }
    }

    /// The numbers of keys so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Applies what a reader returned. The source of a library is the caller's to load: this does nothing with it.
    pub fn apply(&mut self, keyspace: &mut Keyspace, event: Event<'_>) -> Result<(), Fault> {
        match event {
            Event::Version(_) | Event::Library(_) | Event::Sizes { .. } | Event::Slot { .. } => Ok(()),
            Event::Database { db, offset } => {
                if db as usize >= keyspace.databases() {
                    let reason = Reason::Databases(keyspace.databases());
                    return Err(Fault { reason, offset, doing: Doing::Length, key: None, kind: None, counts: self.counts() });
                }
                self.db = db;
                Ok(())
            }
            Event::Aux { name, value, offset } => {
                let counts = self.counts();
                self.field(keyspace, &name, &value).map_err(|(reason, key)| Fault {
                    reason,
                    offset,
                    doing: Doing::Aux,
                    key,
                    kind: None,
                    counts,
                })
            }
            Event::Key(key) => self.key(keyspace, key),
            Event::End(checksum) => {
                self.end(keyspace, checksum);
                Ok(())
            }
        }
    }

    fn counts(&self) -> Counts {
        Counts { keys: self.tally.loaded + self.tally.expired + self.tally.empty, expires: 0 }
    }

    /// The monotonic time of a Unix time at which a lease ends.
    fn lease_ms(&self, unix_ms: i64) -> u64 {
        u64::try_from(unix_ms.saturating_add(self.lease_shift_ms)).unwrap_or(0).max(1)
    }

    /// Applies a named field. An error names the key where there is one.
    fn field(&mut self, keyspace: &mut Keyspace, field: &[u8], value: &[u8]) -> Result<(), Refusal> {
        let damaged = || (Reason::Native(String::from_utf8_lossy(field).into_owned()), None);
        let mono_of = |unix_ms| self.lease_ms(unix_ms);
        match field {
            name::CLOCK => {
                let clock = natives::read_clock(value).ok_or_else(damaged)?;
                self.lease_shift_ms = self.lease_shift(&clock);
            }
            name::TOKEN => {
                let token = natives::read_next_token(value).ok_or_else(damaged)?;
                if let Some(locks) = &mut keyspace.changes.locks {
                    locks.set_next_token(token);
                }
            }
            name::SESSION => {
                let (number, session) = natives::read_session(value, &mono_of).ok_or_else(damaged)?;
                self.records.sessions.insert(number, session);
            }
            name::REQUESTS => {
                let (whose, remembered) = natives::read_requests(value, &mono_of).ok_or_else(damaged)?;
                if whose.home as usize >= keyspace.databases() {
                    return Err((Reason::Databases(keyspace.databases()), None));
                }
                self.records.requests.insert(whose, remembered);
            }
            name::LOCK => {
                let (name, lock) = natives::read_lock(value, &mono_of).ok_or_else(damaged)?;
                self.lock(keyspace, name, lock)?;
            }
            name::LATCH | name::GUARD => {
                // Keys have absolute deadlines.
                let deadline_of = |unix_ms| self.deadline(unix_ms);
                let (key, number, deadline) = natives::read_counter(value, &deadline_of).ok_or_else(damaged)?;
                let value = if field == name::LATCH { Value::Latch(number) } else { Value::Guard(number) };
                self.check_free(keyspace, &key).map_err(|reason| (reason, Some(key.clone())))?;
                if self.is_left_out(deadline) {
                    return Ok(());
                }
                self.tally.natives += 1;
                keyspace.natives = true;
                self.put(keyspace, &key, value, deadline);
            }
            name::CONSUMERS => self.deliveries = Some(natives::read_consumers(value).ok_or_else(damaged)?),
            _ if field.starts_with(name::PREFIX) => return Err(damaged()),
            _ => self.log(field, value),
        }
        Ok(())
    }

    /// As Redis logs the fields that it knows.
    fn log(&self, field: &[u8], value: &[u8]) {
        let text = String::from_utf8_lossy(value);
        match field {
            b"redis-ver" => tracing::info!("Loading RDB produced by version {text}"),
            b"ctime" => {
                let age = self.now.unix_ms() / 1000 - text.parse::<i64>().unwrap_or(0);
                tracing::info!("RDB age {} seconds", age.max(0));
            }
            b"used-mem" => {
                let bytes = text.parse::<i64>().unwrap_or(0);
                tracing::info!("RDB memory usage when created {:.2} Mb", bytes as f64 / f64::from(1 << 20));
            }
            b"aof-preamble" if text != "0" => tracing::info!("RDB has an AOF tail"),
            b"aof-base" if text != "0" => tracing::info!("RDB is base AOF"),
            [b'%', ..] => tracing::info!("RDB '{}': {text}", field.escape_ascii()),
            b"aof-preamble" | b"aof-base" | b"redis-bits" | b"lua" | b"repl-stream-db" | b"repl-id" | b"repl-offset" => {}
            _ => tracing::debug!("Unrecognized RDB AUX field: '{}'", field.escape_ascii()),
        }
    }

    /// What is added to Unix times of the file: the time that has passed since it was written counts. The wall clock tells it only
    /// if the machine was started anew, and a wall clock that went back does not make leases longer.
    fn lease_shift(&self, clock: &Clock) -> i64 {
        let passed_ms = match (&clock.boot, &self.options.boot) {
            (Some(then), Some(here)) if then.id == here.id => here.ms.saturating_sub(then.ms),
            _ => u64::try_from(self.now.unix_ms().saturating_sub(clock.unix_ms)).unwrap_or(0),
        };
        // A time `t` of the file is `t - clock.unix_ms - passed_ms` from now. Rounded up, so that no lease ends early.
        let now_ms = self.now.deadline_in(0) as i64;
        now_ms.saturating_sub(clock.unix_ms).saturating_sub(i64::try_from(passed_ms).unwrap_or(i64::MAX))
    }

    /// The monotonic deadline of a Unix time, which may have passed.
    fn deadline(&self, unix_ms: i64) -> u64 {
        u64::try_from(unix_ms.saturating_sub(self.now.wall_offset_ms)).unwrap_or(0).max(1)
    }

    /// Whether a key with this deadline has expired and is not loaded. Counts it.
    fn is_left_out(&mut self, deadline: Option<u64>) -> bool {
        let left_out = !self.options.keep_expired && deadline.is_some_and(|deadline| self.now.reached(deadline));
        self.tally.expired += u64::from(left_out);
        left_out
    }

    fn check_free(&self, keyspace: &mut Keyspace, key: &[u8]) -> Result<(), Reason> {
        let free = keyspace.end_of(self.db, key).is_none();
        if free { Ok(()) } else { Err(Reason::Duplicate(key.into(), self.db)) }
    }

    /// Stores a value under a free name, so that nothing can be in its way.
    fn put(&self, keyspace: &mut Keyspace, key: &[u8], value: Value, deadline: Option<u64>) {
        let ttl = deadline.map_or(Ttl::Clear, Ttl::At);
        let mut db = keyspace.db(self.db, self.now);
        let stored = db.put(key, Box::new(value), ttl, Published::SILENT);
        debug_assert!(stored.is_ok(), "the name is free");
    }

    fn lock(&mut self, keyspace: &mut Keyspace, name: Box<[u8]>, lock: Lock) -> Result<(), Refusal> {
        self.check_free(keyspace, &name).map_err(|reason| (reason, Some(name.clone())))?;
        self.adopt_records(keyspace);
        self.tally.natives += 1;
        keyspace.natives = true;
        keyspace.with_locks(self.now, |locks, keys| locks.adopt(keys, self.now, (self.db, &name), lock, |_| false));
        Ok(())
    }

    fn adopt_records(&mut self, keyspace: &mut Keyspace) {
        let records = std::mem::take(&mut self.records);
        if !records.sessions.is_empty() || !records.requests.is_empty() {
            let coming = Coming::Restarted(self.options.session_grace_ms);
            keyspace.put_lock_records(self.now, records, 0, coming, |_| false);
        }
    }

    fn key(&mut self, keyspace: &mut Keyspace, key: Key<'_>) -> Result<(), Fault> {
        let deadline = key.deadline.map(|unix_ms| self.deadline(unix_ms));
        let deliveries = self.deliveries.take();
        // As Redis, which reads a value before it sees that the key has expired.
        let content = match key.kind {
            kind::STRING => Content::Text(string(&mut &key.value[..]).ok_or_else(|| key.fault(Reason::Malformed))?),
            _ => match self.build(keyspace, &key)? {
                Some(value) => Content::Value(value),
                None => return Ok(()),
            },
        };
        if self.is_left_out(deadline) {
            return Ok(());
        }
        self.check_free(keyspace, &key.name).map_err(|reason| key.fault(reason))?;
        match content {
            Content::Text(bytes) => {
                let ttl = deadline.map_or(Ttl::Clear, Ttl::At);
                let stored = keyspace.db(key.db, self.now).put_string(&key.name, &bytes, ttl, Published::SILENT);
                debug_assert!(stored.is_ok(), "the name is free");
            }
            Content::Value(Value::Hash(hash)) if hash.is_empty() => {
                // All its fields have expired.
                self.tally.expired += 1;
                return Ok(());
            }
            Content::Value(mut value) => {
                if let (Value::Stream(stream), Some(deliveries)) = (&mut value, deliveries)
                    && *deliveries.stream == *key.name
                {
                    deliveries.set_in(stream);
                }
                self.put(keyspace, &key.name, value, deadline);
            }
        }
        self.tally.loaded += 1;
        if let Some(seconds) = key.idle_seconds {
            keyspace.db(key.db, self.now).set_idle(&key.name, seconds);
        }
        if let Some(counter) = key.frequency {
            keyspace.db(key.db, self.now).set_frequency(&key.name, counter);
        }
        Ok(())
    }

    /// Builds a value; `None` if it has no elements.
    fn build(&mut self, keyspace: &Keyspace, key: &Key<'_>) -> Result<Option<Value>, Fault> {
        let builder = Builder {
            hasher: keyspace.hasher(),
            hashes: keyspace.hash_limits,
            lists: keyspace.list_limits,
            sets: keyspace.set_limits,
            zsets: keyspace.zset_limits,
            streams: keyspace.stream_limits,
            deadline_at: &|unix_ms| self.now.deadline_at(unix_ms),
        };
        match builder.read(key.kind, key.value) {
            Loaded::Value(value) => Ok(Some(value)),
            Loaded::Malformed => Err(key.fault(Reason::Malformed)),
            Loaded::Empty => {
                if self.tally.empty < EMPTY_NAMED_MAX {
                    tracing::warn!("rdbLoadObject skipping empty key: {}", key.name.escape_ascii());
                }
                self.tally.empty += 1;
                Ok(None)
            }
        }
    }

    /// Ends the load of a file that has a fault. The keyspace is sound, but has only a part of what is in the file.
    pub fn give_up(&mut self, keyspace: &mut Keyspace) {
        self.adopt_records(keyspace);
        keyspace.with_locks(self.now, |locks, keys| locks.finish_adopting(keys, self.now));
    }

    fn end(&mut self, keyspace: &mut Keyspace, checksum: Checksum) {
        self.give_up(keyspace);
        if checksum == Checksum::None {
            tracing::warn!("RDB file was saved with checksum disabled: no check performed.");
        }
        let Tally { loaded, expired, empty, .. } = self.tally;
        match empty {
            0 => tracing::info!("Done loading RDB, keys loaded: {loaded}, keys expired: {expired}."),
            _ => tracing::warn!("Done loading RDB, keys loaded: {loaded}, keys expired: {expired}, empty keys skipped: {empty}."),
        }
    }
}
