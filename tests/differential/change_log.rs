//! The change log is complete: applying it, change by change, gives the keys, values, deadlines and function libraries of the
//! engine. It comes in units: all changes of a request are one unit, even those of a script or a transaction.
//!
//! ```text
//!   generated calls, passing time ─▶ engine ─▶ change log ─▶ plain maps
//!                                       └────── keys ──────────┴─▶ equal
//! ```

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use portcullis::base::ids::SessionId;
use portcullis::base::time::Now;
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::engine::jobs::long_run::Verdict;
use portcullis::engine::session::{Peer, SessionFlags};
use portcullis::keyspace::change::{Change, ChangeLog, Effect};
use portcullis::lock::grant::unpack;
use portcullis::lock::requests::Remembered;
use portcullis::lock::sessions::Session;
use portcullis::lock::{Grant, Lock};
use portcullis::script::functions::store::Functions;
use portcullis::store::entry::ValueRef;
use portcullis::store::values::hash::Hash;
use portcullis::store::values::list::{Element, End, List};
use portcullis::store::values::set::Set;
use portcullis::store::values::stream::{Entry, Group, Stream, StreamId};
use portcullis::store::values::value::Value;
use portcullis::store::values::zset::ZSet;

use crate::catalogue::NEVER;
use crate::common::random::Random;
use crate::generate::{Catalogue, Generator, WAITS_FOR_THE_DRIVER};

/// The value of a field and its deadline in Unix milliseconds.
pub type Fields = BTreeMap<Vec<u8>, (Vec<u8>, Option<i64>)>;

#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    Bytes(Vec<u8>),
    Fields(Fields),
    Elements(VecDeque<Vec<u8>>),
    /// Members and the bits of their scores.
    Scores(BTreeMap<Vec<u8>, u64>),
    Members(BTreeSet<Vec<u8>>),
    Stream(Box<StreamContent>),
    Lock(Holders),
    Latch(u64),
    Guard(u64),
}

/// Owner, token, holds, permits and the end in Unix milliseconds of each holder.
pub type Holders = Vec<(Vec<u8>, u64, u32, u32, i64)>;

pub fn holders(lock: &Lock, now: Now) -> Holders {
    let of = |grant: &Grant| (grant.owner.to_vec(), grant.token, grant.holds, grant.permits, now.unix_of(grant.end_ms));
    lock.holders.iter().map(of).collect()
}

/// Remembered requests by database, name and owner: ids with replies, and the time in Unix milliseconds at which they are
/// forgotten.
pub type Requests = BTreeMap<(u32, Vec<u8>, Vec<u8>), (Vec<(Vec<u8>, String)>, Option<i64>)>;

/// Named sessions by number: id, user, grace period, and the end in Unix milliseconds if there is no connection.
pub type Sessions = BTreeMap<u64, (Vec<u8>, Vec<u8>, u64, Option<i64>)>;

fn unix(at_ms: u64, now: Now) -> Option<i64> {
    (at_ms != 0).then(|| now.unix_of(at_ms))
}

pub fn requests_of(remembered: &Remembered, now: Now) -> (Vec<(Vec<u8>, String)>, Option<i64>) {
    let answers = remembered.answers.iter().map(|answered| (answered.id.to_vec(), format!("{:?}", answered.answer)));
    (answers.collect(), unix(remembered.forget_ms, now))
}

fn session_of(session: &Session, now: Now) -> (Vec<u8>, Vec<u8>, u64, Option<i64>) {
    (session.id.to_vec(), session.user.to_vec(), session.grace_ms, unix(session.end_ms, now))
}

/// The engine's remembered requests and named sessions.
pub fn lock_records(engine: &Engine, now: Now) -> (Requests, Sessions) {
    let locks = engine.keyspace().changes.locks.as_ref().expect("locks");
    let requests = locks.requests.iter().map(|(whose, remembered)| {
        ((locks.db_at_home(whose.home), whose.name.to_vec(), whose.owner.to_vec()), requests_of(remembered, now))
    });
    let sessions = locks.sessions.iter().map(|(number, session)| (number, session_of(session, now)));
    (requests.collect(), sessions.collect())
}

/// A stream, without the times of consumers' last requests, which are not in the log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamContent {
    entries: BTreeMap<StreamId, Vec<Vec<u8>>>,
    last_id: StreamId,
    max_deleted_id: StreamId,
    added: u64,
    pub groups: BTreeMap<Vec<u8>, GroupContent>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupContent {
    last_id: StreamId,
    entries_read: Option<u64>,
    /// When each consumer last received entries.
    pub consumers: BTreeMap<Vec<u8>, Option<i64>>,
    /// The pending entries: consumer, time and number of deliveries.
    pub pending: BTreeMap<StreamId, (Vec<u8>, i64, i64)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    pub content: Content,
    /// The deadline in Unix milliseconds.
    pub deadline: Option<i64>,
}

/// Databases by index, without empty ones.
pub type Databases = BTreeMap<u32, BTreeMap<Vec<u8>, Item>>;

fn fields(hash: &Hash, now: Now) -> Fields {
    hash.iter().map(|field| (field.name.to_vec(), (field.value.to_vec(), field.deadline.map(|d| now.unix_of(d))))).collect()
}

fn elements(list: &List) -> VecDeque<Vec<u8>> {
    list.iter(End::Left).map(Element::to_vec).collect()
}

fn scores(zset: &ZSet) -> BTreeMap<Vec<u8>, u64> {
    zset.iter().map(|item| (item.member.to_vec(), sign_of_zero_lost(item.score))).collect()
}

/// The bits of a score. A large sorted set keeps the sign of a zero, a small one does not.
fn sign_of_zero_lost(score: f64) -> u64 {
    (score + 0.0).to_bits()
}

fn members(set: &Set) -> BTreeSet<Vec<u8>> {
    set.iter().map(|member| member.to_vec()).collect()
}

/// The sources of libraries, by their names.
pub type Libraries = BTreeMap<Vec<u8>, Vec<u8>>;

/// The state of a follower.
#[derive(Default)]
struct Followed {
    databases: Databases,
    libraries: Libraries,
    requests: Requests,
    sessions: Sessions,
    /// Number of changes of the incomplete unit.
    uncommitted: usize,
    /// Number of complete units.
    units: usize,
}

fn stream_content(stream: &Stream) -> StreamContent {
    let fields = |entry: Entry<'_>| entry.iter().flat_map(|(name, value)| [name.to_vec(), value.to_vec()]).collect();
    let group = |group: &Group| GroupContent {
        last_id: group.last_id,
        entries_read: group.entries_read,
        consumers: group.consumers().map(|consumer| (consumer.name.to_vec(), consumer.active_ms)).collect(),
        pending: group
            .pending()
            .iter()
            .map(|(id, pending)| (*id, (group.owner(pending).name.to_vec(), pending.delivered_ms, pending.count)))
            .collect(),
    };
    StreamContent {
        entries: stream.range(StreamId::MIN, StreamId::MAX).map(|entry| (entry.id, fields(entry))).collect(),
        last_id: stream.last_id,
        max_deleted_id: stream.max_deleted_id,
        added: stream.entries_added,
        groups: stream.groups().map(|(name, of)| (name.to_vec(), group(of))).collect(),
    }
}

fn change_stream(stream: &mut StreamContent, effect: &Effect<'_>) {
    match effect {
        Effect::StreamAdd { id, pairs } => {
            assert!(*id > stream.last_id, "an entry out of order");
            stream.entries.insert(*id, pairs.iter().map(|part| part.to_vec()).collect());
            (stream.last_id, stream.added) = (*id, stream.added + 1);
        }
        Effect::StreamRemove { id } => {
            assert!(stream.entries.remove(id).is_some(), "deleted an entry that was not there");
            stream.max_deleted_id = stream.max_deleted_id.max(*id);
        }
        Effect::StreamTrim { below } => {
            stream.entries = below.map_or_else(BTreeMap::new, |below| stream.entries.split_off(&below));
        }
        Effect::StreamSet { last_id, entries_added, max_deleted_id } => {
            (stream.last_id, stream.added, stream.max_deleted_id) = (*last_id, *entries_added, *max_deleted_id);
        }
        Effect::GroupSet { group, last_id, entries_read, created } => {
            assert_eq!(*created, !stream.groups.contains_key(*group), "a group is created once");
            let group = stream.groups.entry(group.to_vec()).or_default();
            (group.last_id, group.entries_read) = (*last_id, *entries_read);
        }
        Effect::GroupRemove { group } => assert!(stream.groups.remove(*group).is_some(), "removed a group that was not there"),
        Effect::ConsumerSet { group, consumer, active_ms, .. } => {
            stream.groups.get_mut(*group).expect("the group").consumers.insert(consumer.to_vec(), *active_ms);
        }
        Effect::ConsumerRemove { group, consumer } => {
            let group = stream.groups.get_mut(*group).expect("the group");
            assert!(group.consumers.remove(*consumer).is_some(), "removed a consumer that was not there");
            group.pending.retain(|_, (owner, _, _)| owner != consumer);
        }
        Effect::PendingSet { group, id, consumer, delivered_ms, count } => {
            let group = stream.groups.get_mut(*group).expect("the group");
            assert!(group.consumers.contains_key(*consumer), "pending for nobody");
            group.pending.insert(*id, (consumer.to_vec(), *delivered_ms, *count));
        }
        Effect::PendingRemove { group, id } => {
            let removed = stream.groups.get_mut(*group).expect("the group").pending.remove(id);
            assert!(removed.is_some(), "acknowledged what was not pending");
        }
        other => panic!("no change of a stream: {other:?}"),
    }
}

/// Applies changes as they come, from what they contain alone.
#[derive(Clone, Default)]
struct Follower(Rc<RefCell<Followed>>);

impl ChangeLog for Follower {
    fn record(&mut self, change: &Change<'_>) {
        let Followed { databases, libraries, requests, sessions, uncommitted, .. } = &mut *self.0.borrow_mut();
        *uncommitted += 1;
        match change.effect {
            Effect::LoadLibrary { source } => return drop(libraries.insert(library_name(source), source.to_vec())),
            Effect::DeleteLibrary { name } => {
                assert!(libraries.remove(name).is_some(), "deleted a library that was not there");
                return;
            }
            Effect::FlushLibraries => return libraries.clear(),
            Effect::SetRequests { owner, remembered } => {
                let key = (change.db, change.key.to_vec(), owner.to_vec());
                return drop(requests.insert(key, requests_of(remembered, change.now)));
            }
            Effect::ForgetRequests { owner } => {
                let key = (change.db, change.key.to_vec(), owner.to_vec());
                assert!(requests.remove(&key).is_some(), "forgot what was not remembered: {change:?}");
                return;
            }
            Effect::SetSession { number, session } => return drop(sessions.insert(number, session_of(session, change.now))),
            Effect::EndSession { number } => {
                assert!(sessions.remove(&number).is_some(), "ended what was no session: {change:?}");
                return;
            }
            _ => {}
        }
        if let Effect::Swap { with } = change.effect {
            let (a, b) = (databases.remove(&change.db), databases.remove(&with));
            a.into_iter().for_each(|a| drop(databases.insert(with, a)));
            b.into_iter().for_each(|b| drop(databases.insert(change.db, b)));
            let swapped = |(db, name, owner): (u32, Vec<u8>, Vec<u8>)| {
                let db = if db == change.db {
                    with
                } else if db == with {
                    change.db
                } else {
                    db
                };
                (db, name, owner)
            };
            *requests = std::mem::take(requests).into_iter().map(|(key, of)| (swapped(key), of)).collect();
            return;
        }
        let keys = databases.entry(change.db).or_default();
        let key = change.key.to_vec();
        match &change.effect {
            Effect::SetString { value, deadline } => {
                keys.insert(key, Item { content: Content::Bytes(value.to_vec()), deadline: *deadline });
            }
            Effect::SetRange { offset, bytes, len } => {
                let new = Item { content: Content::Bytes(Vec::new()), deadline: None };
                let Content::Bytes(string) = &mut keys.entry(key).or_insert(new).content else {
                    panic!("a part of what is no string: {change:?}");
                };
                assert_eq!((*offset + bytes.len()).max(string.len()), *len, "its length follows: {change:?}");
                string.resize(*len, 0);
                string[*offset..*offset + bytes.len()].copy_from_slice(bytes);
            }
            Effect::Store { value, deadline } => {
                let content = match value {
                    Value::Bytes(bytes) => Content::Bytes(bytes.clone()),
                    Value::Hash(hash) => Content::Fields(fields(hash, change.now)),
                    Value::List(list) => Content::Elements(elements(list)),
                    Value::ZSet(zset) => Content::Scores(scores(zset)),
                    Value::Set(set) => Content::Members(members(set)),
                    Value::Stream(stream) => Content::Stream(Box::new(stream_content(stream))),
                    Value::Lock(_) => panic!("a lock is told of as one: {change:?}"),
                    Value::Latch(left) => Content::Latch(*left),
                    Value::Guard(seen) => Content::Guard(*seen),
                };
                keys.insert(key, Item { content, deadline: *deadline });
            }
            Effect::SetLock { lock } => {
                let deadline = Some(change.now.unix_of(lock.deadline_ms()));
                keys.insert(key, Item { content: Content::Lock(holders(lock, change.now)), deadline });
            }
            Effect::Delete => assert!(keys.remove(&key).is_some(), "deleted what was not there: {change:?}"),
            Effect::Deadline(deadline) => match keys.get_mut(&key) {
                Some(item) => item.deadline = *deadline,
                None => panic!("a deadline for what is not there: {change:?}"),
            },
            Effect::HashSet { field, value, deadline } => {
                let new = Item { content: Content::Fields(Fields::new()), deadline: None };
                match &mut keys.entry(key).or_insert(new).content {
                    Content::Fields(fields) => drop(fields.insert(field.to_vec(), (value.to_vec(), *deadline))),
                    _ => panic!("a field of what is no hash: {change:?}"),
                }
            }
            Effect::HashRemove { field } => match keys.get_mut(&key).map(|item| &mut item.content) {
                Some(Content::Fields(fields)) => {
                    assert!(fields.remove(*field).is_some(), "removed a field that was not there: {change:?}");
                    if fields.is_empty() {
                        keys.remove(&key);
                    }
                }
                _ => panic!("removed a field of what is no hash: {change:?}"),
            },
            Effect::ListPush { end, elements } => {
                let new = Item { content: Content::Elements(VecDeque::new()), deadline: None };
                let Content::Elements(list) = &mut keys.entry(key).or_insert(new).content else {
                    panic!("an element of what is no list: {change:?}");
                };
                for element in *elements {
                    match end {
                        End::Left => list.push_front(element.to_vec()),
                        End::Right => list.push_back(element.to_vec()),
                    }
                }
            }
            Effect::ListPop { .. } | Effect::ListSet { .. } | Effect::ListInsert { .. } | Effect::ListRemove { .. } => {
                let Some(Content::Elements(list)) = keys.get_mut(&key).map(|item| &mut item.content) else {
                    panic!("a change of what is no list: {change:?}");
                };
                change_elements(list, &change.effect);
                if list.is_empty() {
                    keys.remove(&key);
                }
            }
            Effect::ZSetAdd { member, score } => {
                let new = Item { content: Content::Scores(BTreeMap::new()), deadline: None };
                match &mut keys.entry(key).or_insert(new).content {
                    Content::Scores(scores) => drop(scores.insert(member.to_vec(), sign_of_zero_lost(*score))),
                    _ => panic!("a member of what is no sorted set: {change:?}"),
                }
            }
            Effect::ZSetRemove { member } => match keys.get_mut(&key).map(|item| &mut item.content) {
                Some(Content::Scores(scores)) => {
                    assert!(scores.remove(*member).is_some(), "removed a member that was not there: {change:?}");
                    if scores.is_empty() {
                        keys.remove(&key);
                    }
                }
                _ => panic!("removed a member of what is no sorted set: {change:?}"),
            },
            Effect::SetAdd { member } => {
                let new = Item { content: Content::Members(BTreeSet::new()), deadline: None };
                let Content::Members(members) = &mut keys.entry(key).or_insert(new).content else {
                    panic!("a member of what is no set: {change:?}");
                };
                assert!(members.insert(member.to_vec()), "added a member that was there: {change:?}");
            }
            Effect::SetRemove { member } => {
                let Some(Content::Members(members)) = keys.get_mut(&key).map(|item| &mut item.content) else {
                    panic!("removed a member of what is no set: {change:?}");
                };
                assert!(members.remove(*member), "removed a member that was not there: {change:?}");
                if members.is_empty() {
                    keys.remove(&key);
                }
            }
            Effect::StreamAdd { .. }
            | Effect::StreamRemove { .. }
            | Effect::StreamTrim { .. }
            | Effect::StreamSet { .. }
            | Effect::GroupSet { .. }
            | Effect::GroupRemove { .. }
            | Effect::ConsumerSet { .. }
            | Effect::ConsumerRemove { .. }
            | Effect::PendingSet { .. }
            | Effect::PendingRemove { .. } => {
                let new = Item { content: Content::Stream(Box::default()), deadline: None };
                let item = match &change.effect {
                    Effect::StreamAdd { .. } => keys.entry(key).or_insert(new),
                    _ => keys.get_mut(&key).expect("the stream is there"),
                };
                let Content::Stream(stream) = &mut item.content else { panic!("a change of what is no stream: {change:?}") };
                change_stream(stream, &change.effect);
            }
            Effect::Flush => keys.clear(),
            _ => {}
        }
        databases.retain(|_, keys| !keys.is_empty());
    }

    fn end_unit(&mut self) {
        let mut followed = self.0.borrow_mut();
        assert!(followed.uncommitted > 0, "a unit without changes");
        (followed.uncommitted, followed.units) = (0, followed.units + 1);
    }
}

/// The name in the first line of a library.
fn library_name(source: &[u8]) -> Vec<u8> {
    let line = source.split(|&byte| byte == b'\n').next().unwrap_or_default();
    line.strip_prefix(b"#!lua name=").expect("a library has a name").to_vec()
}

/// The libraries that the engine holds.
pub fn held_libraries(engine: &Engine) -> Libraries {
    engine.lua().functions.list().map(|library| (library.name.to_vec(), library.source.to_vec())).collect()
}

/// A random request about libraries.
pub fn library_call(random: &mut Random, engine: &Engine) -> Vec<Vec<u8>> {
    let name = ["a", "b", "c"][random.below(3) as usize];
    let source = format!("#!lua name={name}\nredis.register_function('f{name}', function() return {} end)", random.below(10));
    let mut words = match random.below(8) {
        0 | 1 => vec!["LOAD"],
        2 | 3 => vec!["LOAD", "REPLACE"],
        4 | 5 => vec!["DELETE", name],
        6 => vec!["RESTORE"],
        _ => vec!["FLUSH"],
    };
    let mut call: Vec<Vec<u8>> = Vec::new();
    words.insert(0, "FUNCTION");
    call.extend(words.iter().map(|word| word.as_bytes().to_vec()));
    match words[1] {
        "LOAD" => call.push(source.into_bytes()),
        "RESTORE" => {
            let mut other = Functions::default();
            other.load(source.as_bytes(), false).expect("the library loads");
            if random.one_in(2) {
                call.push(engine.lua().functions.dump());
            } else {
                call.push(other.dump());
            }
            call.push(["FLUSH", "APPEND", "REPLACE"][random.below(3) as usize].into());
        }
        _ => {}
    }
    call
}

/// Applies a change of an existing list.
fn change_elements(list: &mut VecDeque<Vec<u8>>, effect: &Effect<'_>) {
    match effect {
        Effect::ListPop { end, count } => {
            for _ in 0..*count {
                let popped = if *end == End::Left { list.pop_front() } else { list.pop_back() };
                assert!(popped.is_some(), "popped more than was there: {effect:?}");
            }
        }
        Effect::ListSet { index, element } => list[*index] = element.to_vec(),
        Effect::ListInsert { index, element, pivot, after } => {
            let found = list.iter().position(|held| held == pivot).expect("the pivot is there");
            assert_eq!(found + usize::from(*after), *index, "inserted beside the pivot");
            list.insert(*index, element.to_vec());
        }
        Effect::ListRemove { from, count, element } => {
            for _ in 0..*count {
                let at = match from {
                    End::Left => list.iter().position(|held| held == element),
                    End::Right => list.iter().rposition(|held| held == element),
                };
                list.remove(at.expect("removed what was not there"));
            }
        }
        _ => unreachable!("no change of a list"),
    }
}

/// The contents of the engine.
pub fn held(engine: &mut Engine, now: Now) -> Databases {
    let mut databases = Databases::new();
    for index in 0..engine.keyspace().databases() as u32 {
        let db = engine.keyspace_mut().db(index, now);
        let mut keys = BTreeMap::new();
        db.scan(0, usize::MAX, |entry| {
            let content = match entry.value() {
                ValueRef::Bytes(bytes) => Content::Bytes(bytes.to_vec()),
                ValueRef::Boxed(Value::Bytes(bytes)) => Content::Bytes(bytes.clone()),
                ValueRef::Boxed(Value::Hash(hash)) => Content::Fields(fields(hash, now)),
                ValueRef::Count { field, count } => Content::Fields(fields(&Hash::of_count(field, count), now)),
                ValueRef::Boxed(Value::List(list)) => Content::Elements(elements(list)),
                ValueRef::Boxed(Value::ZSet(zset)) => Content::Scores(scores(zset)),
                ValueRef::Boxed(Value::Set(set)) => Content::Members(members(set)),
                ValueRef::Boxed(Value::Stream(stream)) => Content::Stream(Box::new(stream_content(stream))),
                ValueRef::Boxed(Value::Latch(left)) => Content::Latch(*left),
                ValueRef::Boxed(Value::Guard(seen)) => Content::Guard(*seen),
                ValueRef::Boxed(Value::Lock(lock)) => Content::Lock(holders(lock, now)),
                ValueRef::Grant(bytes) => {
                    let mut lock = Lock::default();
                    lock.holders.insert(unpack(bytes).expect("a packed grant"));
                    Content::Lock(holders(&lock, now))
                }
            };
            keys.insert(entry.key().to_vec(), Item { content, deadline: entry.deadline().map(|d| now.unix_of(d)) });
        });
        databases.insert(index, keys);
    }
    alive(databases, now)
}

/// Removes expired keys and fields: the engine removes them on access, or when time advances.
fn alive(mut databases: Databases, now: Now) -> Databases {
    let lives = |deadline: &Option<i64>| deadline.is_none_or(|at| at > now.unix_ms());
    databases.retain(|_, keys| {
        keys.retain(|_, item| {
            let filled = match &mut item.content {
                Content::Bytes(_) | Content::Scores(_) | Content::Stream(_) => true,
                Content::Elements(elements) => !elements.is_empty(),
                Content::Members(members) => !members.is_empty(),
                Content::Fields(fields) => {
                    fields.retain(|_, (_, deadline)| lives(deadline));
                    !fields.is_empty()
                }
                Content::Lock(_) | Content::Latch(_) | Content::Guard(_) => true,
            };
            filled && lives(&item.deadline)
        });
        !keys.is_empty()
    });
    databases
}

#[test]
fn who_follows_the_change_log_has_the_same_data() {
    let catalogue = Catalogue::new(NEVER, false, |line| line.name() != WAITS_FOR_THE_DRIVER);
    let (mut compared, mut evicted) = (0, 0);
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let generator = Generator::new(&catalogue, &mut random, true);
        let follower = Follower::default();
        let mut now = Now::new(5_000_000, 1_750_000_000_000);
        // Strings of half a gigabyte would take most of the time and prove nothing more.
        let config = Config { proto_max_bulk_len: 1 << 20, ..Config::default() };
        let mut engine = Engine::new(config, seed, now, portcullis::commands::table());
        engine.keyspace_mut().changes.log = Some(Box::new(follower.clone()));
        let enter = |engine: &mut Engine, now: Now| {
            let session = engine.connect(now, Peer::default());
            engine.sessions_mut()[session].flags |= SessionFlags::AUTHENTICATED;
            session
        };
        let (mut session, mut administrator) = (enter(&mut engine, now), enter(&mut engine, now));
        // With some seeds the server sometimes loses all data or the last writes, or restores a snapshot.
        let mut snapshot = (seed % 5 == 4).then(|| engine.snapshot(now));
        if snapshot.is_some() {
            engine.set_test_mode(true);
            engine.execute(now, administrator, &["FAULT", "JOURNAL", "20"].map(str::as_bytes));
        }
        let mut history = Vec::new();
        for step in 0..500 {
            // With some seeds keys are evicted, sometimes more, sometimes fewer.
            if seed % 4 == 3 && step % 50 == 49 {
                let max = (engine.keyspace().table_bytes() as u64 + random.below(10_000)).to_string();
                let policy = ["allkeys-random", "allkeys-lru", "volatile-ttl"][random.below(3) as usize];
                let request = ["CONFIG", "SET", "maxmemory-policy", policy, "maxmemory", &max].map(str::as_bytes);
                engine.execute(now, administrator, &request);
                engine.sessions_mut()[administrator].out.clear();
                history.push(format!("CONFIG SET maxmemory-policy {policy} maxmemory {max}"));
            }
            if let Some(kept) = &mut snapshot
                && step % 25 == 24
            {
                match random.below(4) {
                    0 => *kept = engine.snapshot(now),
                    1 => engine.restore(now, kept).unwrap(),
                    what => {
                        engine.restart(now, None, (what == 2 || random.one_in(2)).then(|| random.below(25)));
                        [session, administrator].into_iter().for_each(|id| engine.disconnect(now, id));
                        (session, administrator) = (enter(&mut engine, now), enter(&mut engine, now));
                    }
                }
                history.push("as it was once".to_owned());
                engine.check_invariants();
                assert_eq!(follower.0.borrow().libraries, held_libraries(&engine), "{history:?}");
                assert_eq!(held(&mut engine, now), alive(follower.0.borrow().databases.clone(), now), "{history:?}");
            }
            let call = if random.one_in(20) { library_call(&mut random, &engine) } else { generator.call(&mut random) };
            history
                .push(call.iter().map(|arg| arg[..arg.len().min(60)].escape_ascii().to_string()).collect::<Vec<_>>().join(" "));
            let args: Vec<&[u8]> = call.iter().map(Vec::as_slice).collect();
            let units = follower.0.borrow().units;
            engine.execute(now, session, &args);
            {
                let followed = follower.0.borrow();
                assert_eq!(followed.uncommitted, 0, "what a request changes is whole when it is done: {history:?}");
                assert!(followed.units <= units + 1, "what a request changes is one unit: {history:?}");
                assert_eq!(followed.libraries, held_libraries(&engine));
            }
            // A blocked client waits for a few milliseconds.
            while engine.sessions()[session].flags.contains(SessionFlags::BLOCKED) {
                now.advance_us(1_000);
                engine.advance(now);
            }
            engine.sessions_mut()[session].out.clear();
            engine.take_actions();
            // Time passes: a little, or enough for many deadlines. Sometimes nothing runs them at once.
            now.advance_us(random.below(3_000));
            if random.one_in(30) {
                now.advance_us(random.below(4_000_000) * 1_000_000);
            }
            if random.one_in(3) {
                while engine.advance(now) {}
            }
            {
                let followed = follower.0.borrow();
                let (requests, sessions) = lock_records(&engine, now);
                assert_eq!((&followed.requests, &followed.sessions), (&requests, &sessions), "{history:?}");
            }
            let (expected, got) = (held(&mut engine, now), alive(follower.0.borrow().databases.clone(), now));
            if expected != got {
                let from = history.len().saturating_sub(25);
                panic!("seed {seed}, step {step}\nengine   {expected:?}\nfollower {got:?}\n{}", history[from..].join("\n"));
            }
            compared += 1;
        }
        while engine.advance(now) {}
        engine.check_invariants();
        evicted += engine.keyspace().stats.evicted;
        assert_eq!(follower.0.borrow().uncommitted, 0);
        assert_eq!(
            held(&mut engine, now),
            follower.0.borrow().databases,
            "seed {seed}: nothing has ended that the log does not say"
        );
    }
    assert_eq!(compared, 60 * 500);
    assert!(evicted >= 100, "{evicted} keys were evicted");
}

/// Keeps complete units as text: the event and the key of each change.
#[derive(Clone, Default)]
struct Units {
    whole: Rc<RefCell<Vec<Vec<String>>>>,
    open: Vec<String>,
}

impl ChangeLog for Units {
    fn record(&mut self, change: &Change<'_>) {
        if !matches!(change.effect, Effect::None) {
            // A change that several events may follow has no event of its own.
            let name = if change.event.name.is_empty() { "change" } else { change.event.name };
            self.open.push(format!("{name} {}", String::from_utf8_lossy(change.key)));
        }
    }

    fn end_unit(&mut self) {
        let unit = std::mem::take(&mut self.open);
        self.whole.borrow_mut().push(unit);
    }
}

/// An engine with its log and a session.
struct Logged {
    engine: Engine,
    units: Units,
    session: SessionId,
    now: Now,
}

impl Logged {
    fn new() -> Self {
        let now = Now::new(5_000_000, 1_750_000_000_000);
        let mut engine = Engine::new(Config::default(), 1, now, portcullis::commands::table());
        let units = Units::default();
        engine.keyspace_mut().changes.log = Some(Box::new(units.clone()));
        let session = engine.connect(now, Peer::default());
        Logged { engine, units, session, now }
    }

    /// The logged units of a request, with changes separated by commas.
    fn log(&mut self, request: &[&str]) -> Vec<String> {
        let args: Vec<&[u8]> = request.iter().map(|arg| arg.as_bytes()).collect();
        self.engine.execute(self.now, self.session, &args);
        self.whole()
    }

    fn whole(&mut self) -> Vec<String> {
        self.units.whole.borrow_mut().drain(..).map(|unit| unit.join(", ")).collect()
    }
}

#[test]
fn what_a_request_changes_is_one_unit() {
    let mut logged = Logged::new();
    let none: [&str; 0] = [];
    assert_eq!(logged.log(&["GET", "a"]), none);
    assert_eq!(logged.log(&["MSET", "a", "1", "b", "2"]), ["set a, set b"]);
    assert_eq!(logged.log(&["DEL", "a", "b", "c"]), ["del a, del b"]);
    let script = "redis.call('set', 'a', 1) redis.call('incr', 'a') redis.call('hset', 'h', 'f', 1) redis.call('get', 'a')";
    assert_eq!(logged.log(&["EVAL", script, "0"]), ["set a, incrby a, change h"]);
    // Changes of a script before its error stay, and so do those of a call whose error it catches.
    assert_eq!(logged.log(&["EVAL", "redis.call('del', 'a') error('x')", "0"]), ["del a"]);
    assert_eq!(logged.log(&["EVAL", "pcall(redis.call, 'incr', 'h') return redis.call('del', 'h')", "0"]), ["del h"]);
    for request in [&["MULTI"][..], &["SET", "a", "1"], &["EVAL", script, "0"], &["LPUSH", "a", "x"]] {
        assert_eq!(logged.log(request), none);
    }
    assert_eq!(logged.log(&["EXEC"]), ["set a, set a, incrby a, change h"]);
    let library = "#!lua name=lib\nredis.register_function('f', function(keys) return redis.call('del', 'a', 'h') end)";
    assert_eq!(logged.log(&["FUNCTION", "LOAD", library]), ["function "]);
    assert_eq!(logged.log(&["FCALL", "f", "0"]), ["del a, del h"]);
    assert_eq!(logged.log(&["FUNCTION", "DELETE", "nosuch"]), none);
    assert_eq!(logged.log(&["FUNCTION", "DELETE", "lib"]), ["function "]);
    // Each expired deadline is a unit. A key that a script finds expired belongs to the script's unit.
    logged.log(&["MSET", "a", "1", "b", "2", "c", "3"]);
    logged.log(&["EVAL", "for _, key in ipairs({'a', 'b', 'c'}) do redis.call('pexpire', key, 5) end", "0"]);
    logged.now.advance_us(10_000);
    assert_eq!(logged.log(&["EVAL", "redis.call('set', 'd', redis.call('exists', 'a'))", "0"]), ["expired a, set d"]);
    while logged.engine.advance(logged.now) {}
    assert_eq!(logged.whole().len(), 2);
}

#[test]
fn what_is_evicted_is_logged_as_deleted() {
    let mut logged = Logged::new();
    for n in 0..200 {
        logged.log(&["SET", &format!("k{n}"), "v"]);
    }
    let mut left: BTreeSet<String> = (0..200).map(|n| format!("k{n}")).collect();
    let max = (logged.engine.keyspace().table_bytes() + 3000).to_string();
    logged.log(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random", "maxmemory", &max]);
    // Deferred work.
    while logged.engine.advance(logged.now) {}
    let gone = |units: &[String], left: &mut BTreeSet<String>| {
        let changes = units.iter().flat_map(|unit| unit.split(", "));
        let keys: Vec<&str> = changes.filter_map(|change| change.strip_prefix("evicted ")).collect();
        assert!(keys.iter().all(|key| left.remove(*key)), "a key that was not there, or that went twice: {keys:?}");
        keys.len()
    };
    let units = logged.whole();
    let evicted = gone(&units, &mut left);
    assert!(evicted >= 20, "{units:?}");
    // Evictions before a command belong to its unit, like keys that it finds expired.
    let value = "v".repeat(1000);
    let units = logged.log(&["SET", "new", &value]);
    left.insert("new".into());
    assert!(gone(&units, &mut left) > 0 && units.len() == 1 && units[0].ends_with("set new"), "{units:?}");
    // A follower of the log has exactly the existing keys.
    let databases = alive(held(&mut logged.engine, logged.now), logged.now);
    let there: BTreeSet<String> = databases[&0].keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    assert_eq!(there, left);
    assert_eq!(logged.engine.keyspace().stats.evicted as usize, 201 - left.len());
}

#[test]
fn half_a_script_is_never_a_unit() {
    let script = "redis.call('set', 'a', 1) redis.call('set', 'b', 1) while true do end";
    // While the script runs, other clients call, and its unit is incomplete.
    let mut logged = Logged::new();
    let other = logged.engine.connect(logged.now, Peer::default());
    let (whole, mut looks) = (Rc::clone(&logged.units.whole), 0);
    logged.engine.set_supervisor(Some(Box::new(move |engine, now, _, first| {
        looks = if first { 1 } else { looks + 1 };
        for request in [&[&b"PING"[..]][..], &[b"SET", b"c", b"1"], &[b"SCRIPT", b"KILL"]] {
            engine.execute(now, other, request);
        }
        assert!(whole.borrow().is_empty(), "a unit before the script has ended");
        if looks < 50 { Verdict::Continue } else { Verdict::Kill }
    })));
    let none: [&str; 0] = [];
    assert_eq!(logged.log(&["EVAL", script, "0"]), none, "the server ends within the script: it did not happen");
    assert_eq!(logged.log(&["SET", "d", "1"]), none, "nothing that comes after half a script is logged");

    // A simulation that aborts a script keeps its changes, and so does the log.
    let mut logged = Logged::new();
    logged.engine.bound_scripts(Some(100_000));
    assert_eq!(logged.log(&["EVAL", script, "0"]), ["set a, set b"]);
    assert_eq!(logged.log(&["SET", "d", "1"]), ["set d"]);
}
