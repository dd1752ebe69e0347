//! Loading: puts what a reader returns into a keyspace.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::base::ids::Key;
use crate::base::time::Now;
use crate::keyspace::change::Event as Published;
use crate::keyspace::databases::{Keyspace, Ttl};
use crate::keyspace::lock_records::{Coming, LockRecords};
use crate::keyspace::rdb::kind;
use crate::keyspace::rdb::load::{Builder, Loaded};
use crate::keyspace::rdb::parts::string;
use crate::lock::requests::{Remembered, Whose};
use crate::lock::sessions::Session;
use crate::lock::{Fate, Lock};
use crate::persist::natives::clock::{BootClock, Moment};
use crate::persist::natives::{self, Native, Refusal};
use crate::persist::rdb_file::consumers::{self, Deliveries};
use crate::persist::rdb_file::fault::{Doing, Fault, Reason};
use crate::persist::rdb_file::read::{Checksum, Event, KeyRecord};
use crate::store::values::value::Value;

/// Maximum number of empty keys that the log names.
const EMPTY_NAMED_MAX: u64 = 10;

/// How a file is loaded.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Keys and fields of hashes that have expired are loaded, too: they expire afterwards. For the base of an append-only file,
    /// whose commands meet the keys as they were.
    pub keep_expired: bool,
    /// Milliseconds that a named session gets at least for its client to come back.
    pub session_grace_ms: u64,
    /// The present time of the boot clock.
    pub boot: BootClock,
    /// Nothing is logged about what goes well: the file is not one that anybody wrote.
    pub quiet: bool,
    /// The log names no keys.
    pub hide_keys: bool,
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
type Refused = (Reason, Option<Box<[u8]>>);

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
    /// Sessions and requests, which must be there before the locks.
    records: LockRecords,
    session_ids: BTreeSet<Box<[u8]>>,
    /// Whether a lock was stored.
    has_locks: bool,
    /// For the stream that follows.
    deliveries: Option<Deliveries>,
}

impl Loader {
    /// Begins to load a file at `now`.
    pub fn new(now: Now, options: Options) -> Loader {
        let (records, tally) = (LockRecords::default(), Tally::default());
        Loader { options, now, db: 0, tally, records, session_ids: BTreeSet::new(), has_locks: false, deliveries: None }
    }

    /// Sets the time of what is applied next.
    pub fn set_moment(&mut self, moment: Moment) {
        (self.now, self.options.boot) = (moment.now, moment.boot);
    }

    /// The numbers of keys so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Applies what a reader returned. The source of a library is the caller's to load: this does nothing with it.
    pub fn apply(&mut self, keyspace: &mut Keyspace, event: Event<'_>) -> Result<(), Fault> {
        match event {
            Event::Version(_) | Event::Library(_) | Event::Sizes { .. } | Event::Slot { .. } => Ok(()),
            Event::Database { db, offset, counts } => {
                if db as usize >= keyspace.databases() {
                    let reason = Reason::Databases(keyspace.databases());
                    return Err(Fault { reason, offset, doing: Doing::Length, key: None, kind: None, counts });
                }
                self.db = db;
                Ok(())
            }
            Event::Aux { name, value, offset, counts } => {
                let fault = |(reason, key)| Fault { reason, offset, doing: Doing::Aux, key, kind: None, counts };
                self.field(keyspace, &name, &value).map_err(fault)
            }
            Event::Key(key) => self.key(keyspace, key),
            Event::End(checksum) => {
                self.end(keyspace, checksum);
                Ok(())
            }
        }
    }

    /// Applies a named field. An error names the key where there is one.
    fn field(&mut self, keyspace: &mut Keyspace, field: &[u8], value: &[u8]) -> Result<(), Refused> {
        if !natives::is_native(field) {
            if !self.options.quiet {
                self.log(field, value);
            }
            return Ok(());
        }
        let text = || String::from_utf8_lossy(field).into_owned();
        let refused = |refusal| (Reason::Native(text(), refusal), None);
        if field == consumers::NAME {
            self.deliveries = Some(Deliveries::read(value).map_err(refused)?);
            return Ok(());
        }
        match natives::read(&[field, value], &self.moment()).map_err(refused)? {
            Native::Session { .. } | Native::Requests { .. } if self.has_locks => Err((Reason::Late(text()), None)),
            Native::Session { number, session } => self.session(number, session),
            Native::Requests { name, owner, remembered } => self.requests(name, owner, remembered),
            Native::Lock { name, lock } => self.lock(keyspace, name, lock),
            Native::Latch { name, left, deadline } => self.count(keyspace, name, Value::Latch(left), deadline),
            Native::Guard { name, seen, deadline } => self.count(keyspace, name, Value::Guard(seen), deadline),
            Native::Token(next) => {
                if let Some(locks) = &mut keyspace.changes.locks {
                    locks.set_next_token(next);
                }
                Ok(())
            }
            // A state has no such records.
            Native::Forget { .. } | Native::EndSession { .. } => Err(refused(Refusal::Malformed)),
        }
    }

    fn session(&mut self, number: u64, session: Session) -> Result<(), Refused> {
        let sessions = &mut self.records.sessions;
        if sessions.contains_key(&number) || !self.session_ids.insert(session.id.clone()) {
            return Err((Reason::Repeated(format!("the session '{}'", session.id.escape_ascii())), None));
        }
        sessions.insert(number, session);
        Ok(())
    }

    fn requests(&mut self, name: &[u8], owner: &[u8], remembered: Remembered) -> Result<(), Refused> {
        let whose = Whose { home: self.db, name: name.into(), owner: owner.into() };
        match self.records.requests.insert(whose, remembered) {
            None => Ok(()),
            Some(_) => Err((Reason::Repeated(format!("the requests of '{}'", owner.escape_ascii())), Some(name.into()))),
        }
    }

    fn lock(&mut self, keyspace: &mut Keyspace, name: &[u8], lock: Lock) -> Result<(), Refused> {
        self.check_free(keyspace, name).map_err(|reason| (reason, Some(name.into())))?;
        self.adopt_records(keyspace);
        self.has_locks = true;
        keyspace.has_natives = true;
        let twice = keyspace.changes.locks.as_ref().and_then(|locks| lock.holders.iter().find(|grant| locks.is_bound(grant)));
        if let Some(grant) = twice {
            return Err((Reason::Repeated(format!("the token {}", grant.token)), Some(name.into())));
        }
        self.tally.natives += 1;
        keyspace.with_locks(self.now, |locks, keys| locks.adopt(keys, self.now, Key { db: self.db, name }, lock, |_| Fate::Gone));
        Ok(())
    }

    /// Stores a latch or a guard.
    fn count(&mut self, keyspace: &mut Keyspace, name: &[u8], value: Value, deadline: Option<u64>) -> Result<(), Refused> {
        let refused = |reason| (reason, Some(name.into()));
        self.check_free(keyspace, name).map_err(refused)?;
        if self.is_left_out(deadline) {
            return Ok(());
        }
        keyspace.has_natives = true;
        self.put(keyspace, name, value, deadline).map_err(refused)?;
        self.tally.natives += 1;
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

    /// The present by all clocks.
    fn moment(&self) -> Moment {
        Moment { now: self.now, boot: self.options.boot }
    }

    /// Whether a key with this deadline has expired and is not loaded. Counts it.
    fn is_left_out(&mut self, deadline: Option<u64>) -> bool {
        let left_out = !self.options.keep_expired && deadline.is_some_and(|deadline| self.now.reached(deadline));
        self.tally.expired += u64::from(left_out);
        left_out
    }

    fn check_free(&self, keyspace: &Keyspace, key: &[u8]) -> Result<(), Reason> {
        if keyspace.end_of(self.db, key).is_none() { Ok(()) } else { Err(self.duplicate(key)) }
    }

    /// Another value is in the way of this key.
    fn duplicate(&self, key: &[u8]) -> Reason {
        Reason::Duplicate(key.into(), self.db)
    }

    /// Stores a value under a free name.
    fn put(&self, keyspace: &mut Keyspace, key: &[u8], value: Value, deadline: Option<u64>) -> Result<(), Reason> {
        let ttl = deadline.map_or(Ttl::Clear, Ttl::At);
        let stored = keyspace.db(self.db, self.now).put(key, Box::new(value), ttl, Published::SILENT);
        stored.map_err(|_| self.duplicate(key))
    }

    fn adopt_records(&mut self, keyspace: &mut Keyspace) {
        let records = std::mem::take(&mut self.records);
        if !records.sessions.is_empty() || !records.requests.is_empty() {
            let coming = Coming::Restarted(self.options.session_grace_ms);
            keyspace.put_lock_records(self.now, records, 0, coming, |_| false);
        }
    }

    fn key(&mut self, keyspace: &mut Keyspace, key: KeyRecord<'_>) -> Result<(), Fault> {
        let deadline = key.deadline.map(|unix_ms| self.moment().deadline_ms(unix_ms));
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
                stored.map_err(|_| key.fault(self.duplicate(&key.name)))?;
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
                self.put(keyspace, &key.name, value, deadline).map_err(|reason| key.fault(reason))?;
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
    fn build(&mut self, keyspace: &Keyspace, key: &KeyRecord<'_>) -> Result<Option<Value>, Fault> {
        let deadline_at = |unix_ms| {
            let at_ms = self.moment().deadline_ms(unix_ms);
            (self.options.keep_expired || !self.now.reached(at_ms)).then_some(at_ms)
        };
        match Builder::of(keyspace, &deadline_at).read(key.kind, key.value) {
            Some(Loaded::Value(value)) => Ok(Some(value)),
            None => Err(key.fault(Reason::Malformed)),
            Some(Loaded::Empty) => {
                if self.tally.empty < EMPTY_NAMED_MAX && !self.options.hide_keys {
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
        if self.options.quiet {
            return;
        }
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
