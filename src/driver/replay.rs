//! Applies the files of the log to an engine.
//!
//! Requests of Redis are executed as they are, at [`Now::of_load`]. As in Redis, nothing expires and no limit applies during the
//! load: the requests find the keys as they were. Native locks, sessions and remembered requests are only gathered, because later
//! records replace earlier ones. [`Replay::finish`] hands the last of each to the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::DerefMut;

use crate::base::ids::{Key, KeyBuf, SessionId};
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::session::{Peer, SessionFlags};
use crate::keyspace::change::Event as Published;
use crate::keyspace::databases::Ttl;
use crate::keyspace::lock_records::{Coming, LockRecords};
use crate::lock::requests::Whose;
use crate::lock::{Fate, Lock};
use crate::persist::append::read::{Request, Unit};
use crate::persist::natives::clock::Moment;
use crate::persist::natives::{self, Native};
use crate::persist::rdb_file::consumers;
use crate::persist::rdb_file::fault::{Fault, Reason};
use crate::persist::rdb_file::load::{Loader, Options};
use crate::persist::rdb_file::read::Event;
use crate::store::values::value::Value;

/// Maximum number of requests that the log names of those that were refused.
const REFUSALS_NAMED_MAX: usize = 10;
/// Maximum number of libraries whose errors are kept.
const LIBRARIES_NAMED_MAX: usize = 100;

/// Why files are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A server starts. The connections of the last one are gone.
    Start {
        /// `aof-load-truncated`: the end of the last file may be torn.
        truncates: bool,
    },
    /// A server leads after another one, whose connections may live.
    TakeOver,
    /// A new base is made, while the server that wrote the files runs.
    Base,
}

/// Applies files to an engine that has no clients: `E` is a `&mut Engine` or a `Box<Engine>`.
pub struct Replay<E> {
    engine: E,
    session: SessionId,
    moment: Moment,
    locks: BTreeMap<KeyBuf, Lock>,
    records: LockRecords,
    /// The numbers of sessions by their ids.
    session_ids: BTreeMap<Box<[u8]>, u64>,
    token: u64,
    /// The engine's limits, which do not apply now: what was written under others is not refused.
    limits: [u64; 3],
    /// The database of the RDB's next record.
    rdb_db: u32,
    refusals: Refusals,
}

/// What the engine refused. The load goes on, as on Redis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Number of requests.
    pub requests: u64,
    /// The first of them, each with its error; at most [`REFUSALS_NAMED_MAX`].
    pub named: Vec<String>,
    /// Errors of libraries of functions in an RDB.
    pub libraries: Vec<String>,
}

impl<E: DerefMut<Target = Engine>> Replay<E> {
    /// Begins to apply files at this moment.
    pub fn new(mut engine: E, moment: Moment) -> Self {
        let now = moment.now;
        let session = engine.connect(now, Peer::default());
        engine.sessions_mut()[session].flags |=
            SessionFlags::AUTHENTICATED | SessionFlags::UNRESTRICTED | SessionFlags::NEVER_WAITS;
        engine.keyspace_mut().keep_expired = true;
        let limits = engine.set_limits([0, u64::MAX, u64::MAX]);
        Replay {
            engine,
            session,
            moment,
            locks: BTreeMap::new(),
            records: LockRecords::default(),
            session_ids: BTreeMap::new(),
            token: 0,
            limits,
            rdb_db: 0,
            refusals: Refusals::default(),
        }
    }

    fn now(&self) -> Now {
        self.moment.now
    }

    /// Sets the time of what is applied next, and of [`Replay::finish`].
    pub fn set_moment(&mut self, moment: Moment) {
        self.moment = moment;
    }

    /// The Unix time in milliseconds.
    pub fn unix_ms(&self) -> i64 {
        self.moment.now.unix_ms()
    }

    /// Whether the checksums of RDBs are looked at: `rdbchecksum`.
    pub fn checks_rdb(&self) -> bool {
        self.engine.config().rdbchecksum
    }

    /// `hide-user-data-from-log`.
    pub fn hides_user_data(&self) -> bool {
        self.engine.config().hide_user_data_from_log
    }

    /// `key-load-delay`.
    #[inline]
    pub fn key_load_delay(&self) -> i64 {
        self.engine.config().key_load_delay
    }

    /// Changes `key-load-delay`.
    pub fn set_key_load_delay(&mut self, delay: i64) {
        self.engine.set_key_load_delay(delay);
    }

    fn db(&self) -> u32 {
        self.engine.sessions()[self.session].db
    }

    /// The time at which the files are applied.
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// Number of requests and libraries that were refused.
    pub fn refused(&self) -> u64 {
        self.refusals.requests + self.refusals.libraries.len() as u64
    }

    /// What was refused since the last call.
    pub fn take_refusals(&mut self) -> Refusals {
        std::mem::take(&mut self.refusals)
    }

    /// Applies a unit.
    ///
    /// # Errors
    /// In words: a record that this version does not read, or a command that does not exist.
    pub fn unit(&mut self, unit: Unit<'_>) -> Result<(), String> {
        let moment = self.moment;
        for request in unit.requests(&moment) {
            match request.map_err(|damage| damage.to_string())? {
                Request::Redis(args) => self.request(&args)?,
                Request::Native(native) => self.native(self.db(), native)?,
            }
        }
        Ok(())
    }

    fn request(&mut self, args: &[&[u8]]) -> Result<(), String> {
        self.note_locks(args);
        let (now, id) = (self.now().of_load(), self.session);
        let engine = &mut *self.engine;
        engine.execute(now, id, args);
        let session = &mut engine.sessions_mut()[id];
        let mut out = std::mem::take(&mut session.out);
        session.sent = 0;
        if out.starts_with(b"-") {
            if out.starts_with(b"-ERR unknown command") {
                let name = String::from_utf8_lossy(args.first().copied().unwrap_or_default()).into_owned();
                return Err(format!("Unknown command '{name}' reading the append only file"));
            }
            self.refusals.requests += 1;
            if self.refusals.named.len() < REFUSALS_NAMED_MAX {
                let error = out.trim_ascii_end().escape_ascii();
                // The error may quote the request.
                if self.hides_user_data() {
                    tracing::warn!("a request of the append-only file is refused");
                } else {
                    tracing::warn!("a request of the append-only file is refused: {error}");
                }
                let name = args.first().copied().unwrap_or_default();
                self.refusals.named.push(format!("{}: {error}", name.escape_ascii()));
            }
        }
        // A large outbox is not kept for the next request.
        if out.capacity() < 4096 {
            out.clear();
            self.engine.sessions_mut()[self.session].out = out;
        }
        Ok(())
    }

    /// What a request of Redis does to gathered locks, which the engine does not have yet.
    fn note_locks(&mut self, args: &[&[u8]]) {
        if self.locks.is_empty() && self.records.requests.is_empty() {
            return;
        }
        let name = args.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
        let args = args.get(1..).unwrap_or_default();
        let db = self.db();
        match name.as_slice() {
            b"DEL" | b"UNLINK" => args.iter().for_each(|name| _ = self.locks.remove(&Key { db, name }.to_buf())),
            b"FLUSHALL" => self.locks.clear(),
            b"FLUSHDB" => self.locks.retain(|key, _| key.db != db),
            b"SWAPDB" => {
                let number = |at: usize| args.get(at).and_then(|arg| std::str::from_utf8(arg).ok()?.parse::<u32>().ok());
                let swapped = [number(0), number(1)];
                let other = |db: u32| {
                    let at = swapped.iter().position(|of| *of == Some(db));
                    at.and_then(|at| swapped[1 - at]).unwrap_or(db)
                };
                let locks = std::mem::take(&mut self.locks).into_iter();
                self.locks = locks.map(|(key, lock)| (KeyBuf { db: other(key.db), ..key }, lock)).collect();
                let requests = std::mem::take(&mut self.records.requests);
                let moved = |whose: Whose| Whose { home: other(whose.home), ..whose };
                self.records.requests = requests.into_iter().map(|(whose, of)| (moved(whose), of)).collect();
            }
            _ => {}
        }
    }

    fn native(&mut self, db: u32, native: Native<'_>) -> Result<(), String> {
        match native {
            Native::Lock { name, lock } => {
                self.token = self.token.max(lock.holders.iter().map(|grant| grant.token + 1).max().unwrap_or(0));
                self.locks.insert(Key { db, name }.to_buf(), lock);
            }
            Native::Latch { name, left, deadline } => self.put(db, name, Value::Latch(left), deadline)?,
            Native::Guard { name, seen, deadline } => self.put(db, name, Value::Guard(seen), deadline)?,
            Native::Requests { name, owner, remembered } => {
                self.records.requests.insert(whose(db, name, owner), remembered);
            }
            Native::Forget { name, owner } => {
                self.records.requests.remove(&whose(db, name, owner));
            }
            Native::Session { number, session } => {
                self.token = self.token.max(number + 1);
                // One of this id may have ended at a start, which writes no record of that.
                let before = self.session_ids.insert(session.id.clone(), number);
                self.records.sessions.remove(&before.unwrap_or(number));
                self.records.sessions.insert(number, session);
            }
            Native::EndSession { number, .. } => {
                // A session that began and ended in one unit has no other record, and its number is not given again.
                self.token = self.token.max(number + 1);
                self.records.sessions.remove(&number);
            }
            Native::Token(next) => self.token = self.token.max(next),
        }
        Ok(())
    }

    /// Replaces a latch or a guard.
    fn put(&mut self, db: u32, name: &[u8], value: Value, deadline: Option<u64>) -> Result<(), String> {
        // One that has ended is there, and would not be seen.
        let now = self.now().of_load();
        let keyspace = self.engine.keyspace_mut();
        keyspace.has_natives = true;
        let mut db = keyspace.db(db, now);
        db.force_delete(name, Published::SILENT);
        let ttl = deadline.map_or(Ttl::Clear, Ttl::At);
        db.put(name, Box::new(value), ttl, Published::SILENT).map_err(|error| String::from_utf8_lossy(error.text()).into_owned())
    }

    /// Begins to apply an RDB, with the keys that have expired if `keep_expired`. `quiet`: nothing is logged about what goes
    /// well.
    pub fn begin_rdb(&mut self, keep_expired: bool, quiet: bool) -> Loader {
        self.rdb_db = 0;
        let session_grace_ms = self.engine.config().lock_session_grace;
        let hide_keys = self.hides_user_data();
        Loader::new(self.now(), Options { keep_expired, session_grace_ms, boot: self.moment.boot, quiet, hide_keys })
    }

    /// Applies what a reader of an RDB returned.
    ///
    /// # Errors
    /// The loader's.
    pub fn rdb_event(&mut self, loader: &mut Loader, event: Event<'_>) -> Result<(), Fault> {
        match event {
            Event::Aux { ref name, ref value, .. } if natives::is_native(name) && **name != *consumers::NAME => {
                match natives::read(&[name, value], &self.moment) {
                    Ok(native) => {
                        let _ = self.native(self.rdb_db, native);
                        Ok(())
                    }
                    // The loader says what is wrong with it.
                    Err(_) => loader.apply(self.engine.keyspace_mut(), event),
                }
            }
            Event::Library(ref source) => {
                if let Err(error) = self.engine.scripts_mut().load_library(source) {
                    tracing::error!(%error, "cannot load a function library");
                    if self.refusals.libraries.len() < LIBRARIES_NAMED_MAX {
                        self.refusals.libraries.push(error.to_string());
                    }
                }
                Ok(())
            }
            event => {
                if let Event::Database { db, .. } = event {
                    self.rdb_db = db;
                }
                loader.apply(self.engine.keyspace_mut(), event)
            }
        }
    }

    /// Hands the gathered locks to the engine at `now`, when the load has ended, and lets time pass again. Returns the engine and
    /// the number of keys.
    ///
    /// At a start, grants of connections end, and their delays begin. For a new base they stay as they are: the next start ends
    /// them. When another server has led before, they stay, too, and are unseen.
    ///
    /// # Errors
    /// In words: two records contradict each other. Nothing was handed over then.
    pub fn finish(self, now: Now, purpose: Purpose) -> Result<(E, usize), String> {
        self.check_records()?;
        let fate = |_| match purpose {
            Purpose::Base => Fate::Lives,
            Purpose::TakeOver => Fate::Unknown,
            Purpose::Start { .. } => Fate::Gone,
        };
        let Replay { mut engine, session, locks, records, token, limits, refusals, .. } = self;
        if refusals.requests > 0 {
            tracing::warn!(refused = refusals.requests, "requests of the append-only file were refused");
        }
        let coming = match purpose {
            Purpose::Base => Coming::Copied,
            Purpose::TakeOver => Coming::TakenOver,
            Purpose::Start { .. } => Coming::Restarted(engine.config().lock_session_grace),
        };
        engine.keyspace_mut().put_lock_records(now, records, 0, coming, |_| false);
        engine.keyspace_mut().has_natives |= !locks.is_empty();
        for (key, lock) in locks {
            engine.keyspace_mut().with_locks(now, |locks, keys| locks.adopt(keys, now, key.as_key(), lock, fate));
        }
        engine.keyspace_mut().with_locks(now, |locks, keys| locks.finish_adopting(keys, now));
        engine.keyspace_mut().changes.locks.iter_mut().for_each(|locks| locks.set_next_token(token));
        engine.set_limits(limits);
        engine.keyspace_mut().keep_expired = false;
        engine.disconnect(now, session);
        let keys = engine.keyspace().len();
        Ok((engine, keys))
    }

    /// What no server can have left: two grants with one token.
    fn check_records(&self) -> Result<(), String> {
        let grants = self.locks.values().flat_map(|lock| lock.holders.iter());
        // Only grants that end with something else are found by their tokens.
        let mut found = grants.filter_map(|grant| Some((grant.bound.key(grant.client)?, grant.token)));
        let mut tokens = BTreeSet::new();
        match found.find(|of| !tokens.insert(*of)) {
            Some((_, token)) => Err(Reason::Repeated(format!("the token {token}")).to_string()),
            None => Ok(()),
        }
    }
}

fn whose(db: u32, name: &[u8], owner: &[u8]) -> Whose {
    Whose { home: db, name: name.into(), owner: owner.into() }
}
