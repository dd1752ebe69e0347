//! Applies the files of the log to an engine.
//!
//! Requests of Redis are executed as they are, at [`Now::of_load`]. As in Redis, nothing expires and no limit applies during the
//! load: the requests find the keys as they were. Native locks, sessions and remembered requests are only gathered, because later
//! records replace earlier ones. [`Replay::finish`] hands the last of each to the engine.

use std::collections::BTreeMap;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::session::{Peer, SessionFlags};
use crate::keyspace::change::Event as Published;
use crate::keyspace::databases::Ttl;
use crate::keyspace::lock_records::{Coming, LockRecords};
use crate::lock::Lock;
use crate::lock::requests::Whose;
use crate::persist::append::read::{Request, Unit};
use crate::persist::natives::clock::Moment;
use crate::persist::natives::{self, Native};
use crate::persist::rdb_file::consumers;
use crate::persist::rdb_file::fault::Fault;
use crate::persist::rdb_file::load::{Loader, Options};
use crate::persist::rdb_file::read::Event;
use crate::server::durable::load::Purpose;
use crate::store::values::value::Value;

/// A lock's database and name.
type Place = (u32, Box<[u8]>);

/// Applies files to an engine, which has no clients yet.
pub struct Replay<'e> {
    engine: &'e mut Engine,
    session: SessionId,
    moment: Moment,
    locks: BTreeMap<Place, Lock>,
    records: LockRecords,
    token: u64,
    /// `maxmemory`, which does not apply now.
    maxmemory: u64,
    /// The database of the RDB's next record.
    rdb_db: u32,
    /// Number of requests that were refused.
    refused: u64,
}

impl<'e> Replay<'e> {
    /// Begins to apply files at this moment.
    pub fn new(engine: &'e mut Engine, moment: Moment) -> Self {
        let now = moment.now;
        let session = engine.connect(now, Peer::default());
        engine.sessions[session.0 as usize].flags |= SessionFlags::AUTHENTICATED | SessionFlags::UNRESTRICTED;
        engine.keyspace.keep_expired = true;
        let maxmemory = std::mem::take(&mut engine.config.maxmemory);
        Replay {
            engine,
            session,
            moment,
            locks: BTreeMap::new(),
            records: LockRecords::default(),
            token: 0,
            maxmemory,
            rdb_db: 0,
            refused: 0,
        }
    }

    fn now(&self) -> Now {
        self.moment.now
    }

    /// The Unix time in milliseconds.
    pub fn unix_ms(&self) -> i64 {
        self.moment.now.unix_ms()
    }

    fn db(&self) -> u32 {
        self.engine.sessions[self.session.0 as usize].db
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
        self.engine.execute(self.now().of_load(), self.session, args);
        let session = &mut self.engine.sessions[self.session.0 as usize];
        let out = std::mem::take(&mut session.out);
        session.sent = 0;
        if out.starts_with(b"-") {
            if out.starts_with(b"-ERR unknown command") {
                let name = String::from_utf8_lossy(args.first().copied().unwrap_or_default()).into_owned();
                return Err(format!("Unknown command '{name}' reading the append only file"));
            }
            self.refused += 1;
            if self.refused <= 10 {
                tracing::warn!("a request of the append-only file is refused: {}", out.trim_ascii_end().escape_ascii());
            }
        }
        // A large outbox is not kept for the next request.
        if self.engine.sessions[self.session.0 as usize].out.capacity() == 0 && out.capacity() < 4096 {
            let mut out = out;
            out.clear();
            self.engine.sessions[self.session.0 as usize].out = out;
        }
        Ok(())
    }

    /// What a request of Redis does to gathered locks, which the engine does not have yet.
    fn note_locks(&mut self, args: &[&[u8]]) {
        if self.locks.is_empty() && self.records.requests.is_empty() {
            return;
        }
        let Some((name, args)) = args.split_first() else { return };
        let db = self.db();
        match name.to_ascii_uppercase().as_slice() {
            b"DEL" | b"UNLINK" => args.iter().for_each(|key| _ = self.locks.remove(&(db, Box::from(*key)))),
            b"FLUSHALL" => self.locks.clear(),
            b"FLUSHDB" => self.locks.retain(|(of, _), _| *of != db),
            b"SWAPDB" => {
                let number = |at: usize| args.get(at).and_then(|arg| std::str::from_utf8(arg).ok()?.parse::<u32>().ok());
                if let (Some(a), Some(b)) = (number(0), number(1)) {
                    let other = |db: u32| {
                        if db == a {
                            b
                        } else if db == b {
                            a
                        } else {
                            db
                        }
                    };
                    self.locks =
                        std::mem::take(&mut self.locks).into_iter().map(|((db, name), lock)| ((other(db), name), lock)).collect();
                    let requests = std::mem::take(&mut self.records.requests);
                    let moved = |whose: Whose| Whose { home: other(whose.home), ..whose };
                    self.records.requests = requests.into_iter().map(|(whose, of)| (moved(whose), of)).collect();
                }
            }
            _ => {}
        }
    }

    fn native(&mut self, db: u32, native: Native<'_>) -> Result<(), String> {
        match native {
            Native::Lock { name, lock } => {
                self.token = self.token.max(lock.holders.iter().map(|grant| grant.token + 1).max().unwrap_or(0));
                self.locks.insert((db, name.into()), lock);
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
                self.records.sessions.insert(number, session);
            }
            Native::EndSession { number, .. } => {
                self.records.sessions.remove(&number);
            }
            Native::Token(next) => self.token = self.token.max(next),
        }
        Ok(())
    }

    /// Replaces a latch or a guard.
    fn put(&mut self, db: u32, name: &[u8], value: Value, deadline: Option<u64>) -> Result<(), String> {
        let now = self.now();
        let keyspace = &mut self.engine.keyspace;
        keyspace.natives = true;
        let mut db = keyspace.db(db, now);
        db.force_delete(name, Published::SILENT);
        let ttl = deadline.map_or(Ttl::Clear, Ttl::At);
        db.put(name, Box::new(value), ttl, Published::SILENT).map_err(|error| String::from_utf8_lossy(error.text()).into_owned())
    }

    /// Begins to apply an RDB.
    pub fn begin_rdb(&mut self) -> Loader {
        self.rdb_db = 0;
        let session_grace_ms = self.engine.config.lock_session_grace;
        Loader::new(self.now(), Options { keep_expired: true, session_grace_ms, boot: self.moment.boot })
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
                    Err(_) => loader.apply(&mut self.engine.keyspace, event),
                }
            }
            Event::Library(ref source) => {
                if let Err(error) = self.engine.scripts_mut().load_library(source) {
                    tracing::error!(%error, "cannot load a function library");
                }
                Ok(())
            }
            event => {
                if let Event::Database { db, .. } = event {
                    self.rdb_db = db;
                }
                loader.apply(&mut self.engine.keyspace, event)
            }
        }
    }

    /// Hands the gathered locks to the engine, and lets time pass again. Returns the number of keys.
    ///
    /// At a start, grants of connections end, and their delays begin. For a new base they stay as they are: the next start ends them.
    pub fn finish(self, purpose: Purpose) -> usize {
        let connected = |_| purpose == Purpose::Base;
        let now = self.now();
        let Replay { engine, session, locks, records, token, maxmemory, refused, .. } = self;
        if refused > 0 {
            tracing::warn!(refused, "requests of the append-only file were refused");
        }
        let coming = Coming::Restarted(engine.config.lock_session_grace);
        engine.keyspace.put_lock_records(now, records, 0, coming, |_| false);
        engine.keyspace.natives |= !locks.is_empty();
        for ((db, name), lock) in locks {
            engine.keyspace.with_locks(now, |locks, keys| locks.adopt(keys, now, (db, &name), lock, connected));
        }
        // A session without grants may get some in the increment that follows the base.
        let keeps_idle = purpose == Purpose::Base;
        engine.keyspace.with_locks(now, |locks, keys| locks.finish_adopting(keys, now, keeps_idle));
        if let Some(locks) = &mut engine.keyspace.changes.locks {
            locks.set_next_token(token);
        }
        engine.config.maxmemory = maxmemory;
        engine.keyspace.keep_expired = false;
        engine.disconnect(now, session);
        (0..engine.keyspace.databases() as u32).map(|db| engine.keyspace.db_len(db)).sum()
    }
}

fn whose(db: u32, name: &[u8], owner: &[u8]) -> Whose {
    Whose { home: db, name: name.into(), owner: owner.into() }
}
