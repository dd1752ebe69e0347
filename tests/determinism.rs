//! The rule everything rests on: the same inputs give the same bytes and the same changes. And the change log says all that
//! happens to the data: whoever applies its effects, in order, holds what the databases hold.

#![allow(clippy::unwrap_used)]

#[path = "common/random.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod random;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use portcullis::engine::Engine;
use portcullis::engine::change::{Change, ChangeLog, Effect};
use portcullis::engine::config::Config;
use portcullis::engine::session::{Peer, SessionId};
use portcullis::engine::time::Now;
use portcullis::store::entry::ValueRef;
use portcullis::store::hash::{Field, Hash};
use portcullis::store::value::Value;
use proptest::prelude::*;
use random::Random;

/// Requests with places to fill in: `K` a key, `F` a field, `V` a value, `N` a number, `T` milliseconds, `U` a unix time in
/// milliseconds, `D` a database.
const REQUESTS: &[&str] = &[
    "SET K V",
    "SET K V PX T",
    "SET K V NX PX T",
    "SET K V XX KEEPTTL GET",
    "SET K N IFEQ N",
    "SETNX K V",
    "PSETEX K T V",
    "GETSET K V",
    "GETDEL K",
    "GETEX K PX T",
    "GETEX K PERSIST",
    "MSET K V K V",
    "MSETNX K V K V",
    "MSETEX 2 K V K V PX T",
    "INCRBY K N",
    "INCRBYFLOAT K N",
    "APPEND K V",
    "SETRANGE K 3 V",
    "DELEX K IFEQ N",
    "DEL K K",
    "UNLINK K",
    "EXISTS K K",
    "TYPE K",
    "PEXPIRE K T",
    "PEXPIRE K T GT",
    "PEXPIREAT K U",
    "PTTL K",
    "PERSIST K",
    "RENAME K K",
    "RENAMENX K K",
    "COPY K K REPLACE",
    "COPY K K DB D REPLACE",
    "MOVE K D",
    "SELECT D",
    "SWAPDB D D",
    "OBJECT ENCODING K",
    "KEYS *",
    "SCAN 0 COUNT 3",
    "RANDOMKEY",
    "DBSIZE",
    "GET K",
    "MGET K K K",
    "HSET K F V F V",
    "HSET K F V",
    "HSETNX K F V",
    "HDEL K F F",
    "HINCRBY K F N",
    "HINCRBYFLOAT K F N",
    "HGETALL K",
    "HLEN K",
    "HRANDFIELD K -5 WITHVALUES",
    "HRANDFIELD K 2",
    "HSCAN K 0",
    "HPEXPIRE K T FIELDS 2 F F",
    "HPEXPIREAT K U FIELDS 1 F",
    "HPTTL K FIELDS 2 F F",
    "HPERSIST K FIELDS 2 F F",
    "HGETDEL K FIELDS 2 F F",
    "HGETEX K PX T FIELDS 2 F F",
    "HSETEX K PX T FIELDS 2 F V F V",
    "HSETEX K FNX KEEPTTL FIELDS 1 F V",
    "EVAL redis.call('set',KEYS[1],ARGV[1],'PX',ARGV[2]);return(redis.call('keys','*')) 1 K V T",
    "EVAL return(redis.pcall('hset',KEYS[1],ARGV[1],ARGV[2])) 1 K F V",
    "EVAL return({math.random(),tostring({})~=nil,redis.call('hgetall',KEYS[1])}) 1 K",
    "CONFIG SET hash-max-listpack-entries 3",
    "CONFIG SET hash-max-listpack-entries 512",
    "HELLO 3",
    "HELLO 2",
];
/// Requests that come less often.
const RARE: &[&str] = &["FLUSHDB", "FLUSHALL ASYNC", "DEBUG SET-ACTIVE-EXPIRE 0", "DEBUG SET-ACTIVE-EXPIRE 1", "SCRIPT FLUSH"];

/// What a key holds.
#[derive(Clone, Debug, PartialEq)]
enum Held {
    Bytes(Vec<u8>),
    /// Fields with their values and deadlines in unix milliseconds.
    Hash(BTreeMap<Vec<u8>, (Vec<u8>, Option<i64>)>),
}

/// The data: by database and key, with deadlines in unix milliseconds.
type Data = BTreeMap<(u32, Vec<u8>), (Held, Option<i64>)>;

/// A change log that applies what it is told, and keeps it as text.
#[derive(Default)]
struct Journal {
    data: Data,
    lines: Vec<String>,
}

struct Shared(Rc<RefCell<Journal>>);

fn fields(hash: &Hash, now: Now) -> Held {
    let field = |f: Field<'_>| (f.name.to_vec(), (f.value.to_vec(), f.deadline.map(|d| now.unix_of(d))));
    Held::Hash(hash.iter().map(field).collect())
}

impl ChangeLog for Shared {
    fn record(&mut self, change: &Change<'_>) {
        let mut journal = self.0.borrow_mut();
        let Journal { data, lines } = &mut *journal;
        lines.push(format!("{} {} {:?} {:?}", change.db, change.event.name, change.key, change.effect));
        let at = (change.db, change.key.to_vec());
        match change.effect {
            Effect::SetString { value, deadline } => drop(data.insert(at, (Held::Bytes(value.to_vec()), deadline))),
            Effect::Store { value: Value::Hash(hash), deadline } => drop(data.insert(at, (fields(hash, change.now), deadline))),
            Effect::Store { value: Value::Bytes(_), .. } => panic!("a string is set, not stored"),
            Effect::Delete => assert!(data.remove(&at).is_some(), "a key that was not there is deleted"),
            Effect::Deadline(deadline) => data.get_mut(&at).unwrap().1 = deadline,
            Effect::HashSet { field, value, deadline } => {
                let (held, _) = data.entry(at).or_insert_with(|| (Held::Hash(BTreeMap::new()), None));
                let Held::Hash(fields) = held else { panic!("a field of a string") };
                fields.insert(field.to_vec(), (value.to_vec(), deadline));
            }
            Effect::HashRemove { field } => {
                let Some((Held::Hash(fields), _)) = data.get_mut(&at) else { panic!("a field of no hash") };
                assert!(fields.remove(field).is_some(), "a field that was not there is removed");
                if fields.is_empty() {
                    data.remove(&at);
                }
            }
            Effect::Flush => data.retain(|(db, _), _| *db != change.db),
            Effect::Swap { with } => {
                let swapped = |db| {
                    if db == change.db {
                        with
                    } else if db == with {
                        change.db
                    } else {
                        db
                    }
                };
                *data = std::mem::take(data).into_iter().map(|((db, key), held)| ((swapped(db), key), held)).collect();
            }
            Effect::None => {}
        }
    }
}

/// What is there for a reader: without what has ended.
fn living(data: &Data, now: Now) -> Data {
    let lives = |deadline: &Option<i64>| deadline.is_none_or(|d| d > now.unix_ms());
    let mut data = data.clone();
    data.retain(|_, (held, deadline)| {
        let emptied = match held {
            Held::Bytes(_) => false,
            Held::Hash(fields) => {
                fields.retain(|_, (_, deadline)| lives(deadline));
                fields.is_empty()
            }
        };
        lives(deadline) && !emptied
    });
    data
}

struct Run {
    engine: Engine,
    now: Now,
    sessions: [SessionId; 3],
    journal: Rc<RefCell<Journal>>,
    written: Vec<Vec<u8>>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let now = Now::new(1_000_000_000, 1_700_000_000_000);
        let mut engine = Engine::new(Config { databases: 3, ..Config::default() }, seed, now);
        let sessions = [0; 3].map(|_| engine.connect(now, Peer::default()));
        let journal = Rc::<RefCell<Journal>>::default();
        engine.keyspace.changes.log = Some(Box::new(Shared(journal.clone())));
        engine.execute(now, sessions[0], &[b"CONFIG", b"SET", b"notify-keyspace-events", b"AKEmn"]);
        engine.execute(now, sessions[0], &[b"PSUBSCRIBE", b"*"]);
        Run { engine, now, sessions, journal, written: Vec::new() }
    }

    fn play(mut self, seed: u64, requests: usize) -> Self {
        let mut random = Random::new(seed);
        for step in 0..requests {
            if random.one_in(4) {
                self.now.mono_us += random.below(20_000);
                let turns = random.below(3);
                for _ in 0..turns {
                    self.engine.advance(self.now);
                }
            }
            let request = if random.one_in(40) { *random.pick(RARE) } else { *random.pick(REQUESTS) };
            let words: Vec<Vec<u8>> = request.split(' ').map(|word| fill(word, &mut random, self.now)).collect();
            let args: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let session = self.sessions[1 + random.below(2) as usize];
            self.engine.execute(self.now, session, &args);
            for id in self.sessions {
                self.written.push(std::mem::take(&mut self.engine.sessions[id.0 as usize].out));
            }
            self.engine.take_dirty(&mut Vec::new());
            if step % 16 == 0 {
                self.check(request);
            }
        }
        self.engine.keyspace.active_expire = true;
        self.now.mono_us += 100_000;
        while self.engine.advance(self.now) {}
        self.check("the end");
        self
    }

    /// The log and the databases say the same.
    fn check(&mut self, after: &str) {
        self.engine.check_invariants();
        let mut data = Data::new();
        for index in 0..3 {
            self.engine.keyspace.db(index, self.now).scan(0, usize::MAX, |entry| {
                let held = match entry.value() {
                    ValueRef::Bytes(bytes) => Held::Bytes(bytes.to_vec()),
                    ValueRef::Boxed(Value::Bytes(bytes)) => Held::Bytes(bytes.clone()),
                    ValueRef::Boxed(Value::Hash(hash)) => fields(hash, self.now),
                };
                data.insert((index, entry.key().to_vec()), (held, entry.deadline().map(|d| self.now.unix_of(d))));
            });
        }
        assert_eq!(living(&data, self.now), living(&self.journal.borrow().data, self.now), "after {after}");
    }
}

fn fill(word: &str, random: &mut Random, now: Now) -> Vec<u8> {
    let text = match word {
        "K" => format!("key{}", random.below(6)),
        "F" => format!("field{}", random.below(6)),
        "V" if random.one_in(8) => "long".repeat(random.below(1500) as usize),
        "V" => format!("value{}", random.below(1000)),
        "N" => random.below(10).to_string(),
        "T" => (random.below(60) + 1).to_string(),
        "U" => (now.unix_ms() - 5 + random.below(40) as i64).to_string(),
        "D" => random.below(3).to_string(),
        other => other.to_owned(),
    };
    text.into_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn the_same_inputs_give_the_same_bytes_and_changes(seed in any::<u64>(), stream in any::<u64>()) {
        let first = Run::new(seed).play(stream, 600);
        let second = Run::new(seed).play(stream, 600);
        prop_assert!(first.journal.borrow().lines.len() > 100);
        prop_assert_eq!(first.written, second.written);
        prop_assert_eq!(&first.journal.borrow().lines, &second.journal.borrow().lines);
    }
}
