//! Effects as requests. They contain nothing relative, as far as Redis has a request for it.
//!
//! The reader must apply them as Redis does while it loads: nothing expires, no deadline counts as passed, and no size limit
//! applies. Then Redis 7.0 answers none of them with an error; deadlines of hash fields need Redis 7.4, and native records
//! are for Portcullis alone.
//!
//! Redis has no requests for these parts of the state, which its own append-only file loses, too:
//! - the times of a consumer's last read and last delivery. After loading it has the time of loading. A stream that is stored whole
//!   keeps the time of the last read only, because Redis 7.0 does not read the form with both;
//! - when and how often a key was used, for eviction; forms of values that do not follow from their contents;
//! - a delivery later than the time of loading: `XCLAIM` takes that time instead.

use crate::base::time::Now;
use crate::keyspace::change::{Change, Effect};
use crate::keyspace::rdb::dump::dump;
use crate::keyspace::rdb::parts::{VERSION, seal};
use crate::keyspace::rdb::streams::put_stream_for_7_0;
use crate::persist::append::clock::{BootClock, Moment};
use crate::persist::append::native;
use crate::persist::append::request::{begin, put, put_request};
use crate::resp::double::format_seventeen;
use crate::store::entry::ValueRef;
use crate::store::values::list::End;
use crate::store::values::stream::StreamId;
use crate::store::values::value::Value;

/// Digits of a number.
struct Digits(itoa::Buffer);

impl Digits {
    fn new() -> Self {
        Digits(itoa::Buffer::new())
    }

    fn of(&mut self, number: impl itoa::Integer) -> &[u8] {
        self.0.format(number).as_bytes()
    }

    /// A deadline of a new value, which Redis requires to be above 0.
    fn above_zero(&mut self, deadline: i64) -> &[u8] {
        self.of(deadline.max(1))
    }
}

/// Writes changes as requests.
#[derive(Debug, Default)]
pub struct Encoder {
    /// The database that was selected last; `None` at the beginning of a file.
    selected: Option<u32>,
}

impl Encoder {
    /// The database that was selected last.
    pub fn selected(&self) -> Option<u32> {
        self.selected
    }

    /// Sets the selected database. `None` makes the next request select its database.
    pub fn set_selected(&mut self, db: Option<u32>) {
        self.selected = db;
    }

    /// Writes the requests with the effect of a change, and returns their number, without `SELECT`. `boot` is the time of the
    /// change.
    pub fn encode(&mut self, out: &mut Vec<u8>, change: &Change<'_>, boot: BootClock) -> usize {
        match change.effect {
            Effect::None | Effect::ListPop { count: 0, .. } => 0,
            // An existing string is unchanged, and a new one is empty.
            Effect::SetRange { bytes: b"", len, .. } if len > 0 => 0,
            // A delivery. The consumer is there, and the entries follow.
            Effect::ConsumerSet { active_ms: Some(_), .. } => 0,
            Effect::Swap { with } => {
                let (mut a, mut b) = (Digits::new(), Digits::new());
                put_request(out, &[b"SWAPDB", a.of(change.db), b.of(with)]);
                1
            }
            Effect::LoadLibrary { source } => {
                put_request(out, &[b"FUNCTION", b"LOAD", b"REPLACE", source]);
                1
            }
            Effect::DeleteLibrary { name } => {
                put_request(out, &[b"FUNCTION", b"DELETE", name]);
                1
            }
            Effect::FlushLibraries => {
                put_request(out, &[b"FUNCTION", b"FLUSH"]);
                1
            }
            Effect::SetSession { number, session } => {
                native::put_session(out, &Moment { now: change.now, boot }, number, session);
                1
            }
            Effect::EndSession { number } => {
                native::put_session_end(out, change.key, number);
                1
            }
            _ => {
                self.select(out, change.db);
                put_change(out, change, boot)
            }
        }
    }

    fn select(&mut self, out: &mut Vec<u8>, db: u32) {
        if self.selected != Some(db) {
            put_select(out, db);
            self.selected = Some(db);
        }
    }
}

/// Writes the request that selects a database.
pub fn put_select(out: &mut Vec<u8>, db: u32) {
    put_request(out, &[b"SELECT", Digits::new().of(db)]);
}

/// Writes the requests for a change in the selected database.
fn put_change(out: &mut Vec<u8>, change: &Change<'_>, boot: BootClock) -> usize {
    let (key, now) = (change.key, change.now);
    let moment = Moment { now, boot };
    match change.effect {
        Effect::SetString { value, deadline: None } => put_request(out, &[b"SET", key, value]),
        Effect::SetString { value, deadline: Some(deadline) } => {
            put_request(out, &[b"SET", key, value, b"PXAT", Digits::new().above_zero(deadline)]);
        }
        // A new string without bytes: `SETRANGE` would not create it.
        Effect::SetRange { bytes: b"", .. } => put_request(out, &[b"APPEND", key, b""]),
        Effect::SetRange { offset, bytes, .. } => put_request(out, &[b"SETRANGE", key, Digits::new().of(offset), bytes]),
        Effect::SetLock { lock } => native::put_lock(out, &moment, key, lock),
        Effect::Store { value: Value::Lock(lock), .. } => native::put_lock(out, &moment, key, lock),
        Effect::Store { value: Value::Latch(left), deadline } => native::put_latch(out, key, *left, deadline),
        Effect::Store { value: Value::Guard(seen), deadline } => native::put_guard(out, key, *seen, deadline),
        Effect::Store { value, deadline } => {
            let mut digits = Digits::new();
            // 0 stands for no deadline.
            let ttl = deadline.map_or(&b"0"[..], |deadline| digits.above_zero(deadline));
            put_request(out, &[b"RESTORE", key, ttl, &payload(value, now), b"REPLACE", b"ABSTTL"]);
        }
        Effect::Delete => put_request(out, &[b"DEL", key]),
        Effect::Deadline(None) => put_request(out, &[b"PERSIST", key]),
        Effect::Deadline(Some(deadline)) => put_request(out, &[b"PEXPIREAT", key, Digits::new().of(deadline)]),
        Effect::HashSet { field, value, deadline } => {
            put_request(out, &[b"HSET", key, field, value]);
            if let Some(deadline) = deadline {
                let mut digits = Digits::new();
                put_request(out, &[b"HPEXPIREAT", key, digits.above_zero(deadline), b"FIELDS", b"1", field]);
                return 2;
            }
        }
        Effect::HashRemove { field } => put_request(out, &[b"HDEL", key, field]),
        Effect::ListPush { end, elements } => {
            begin(out, elements.len() + 2);
            put(out, if end == End::Left { b"LPUSH" } else { b"RPUSH" });
            put(out, key);
            elements.iter().for_each(|element| put(out, element));
        }
        Effect::ListPop { end, count } => {
            let name: &[u8] = if end == End::Left { b"LPOP" } else { b"RPOP" };
            put_request(out, &[name, key, Digits::new().of(count)]);
        }
        Effect::ListSet { index, element } => put_request(out, &[b"LSET", key, Digits::new().of(index), element]),
        Effect::ListInsert { pivot, after, element, .. } => {
            let place: &[u8] = if after { b"AFTER" } else { b"BEFORE" };
            put_request(out, &[b"LINSERT", key, place, pivot, element]);
        }
        Effect::ListRemove { from, count, element } => {
            // A negative count searches from the end.
            let count = if from == End::Left { count as i64 } else { -(count as i64) };
            put_request(out, &[b"LREM", key, Digits::new().of(count), element]);
        }
        Effect::ZSetAdd { member, score } => put_request(out, &[b"ZADD", key, format_seventeen(score).as_bytes(), member]),
        Effect::ZSetRemove { member } => put_request(out, &[b"ZREM", key, member]),
        Effect::SetAdd { member } => put_request(out, &[b"SADD", key, member]),
        Effect::SetRemove { member } => put_request(out, &[b"SREM", key, member]),
        Effect::Flush => put_request(out, &[b"FLUSHDB"]),
        Effect::SetRequests { owner, remembered } => native::put_requests(out, &moment, key, owner, remembered),
        Effect::ForgetRequests { owner } => native::put_forget(out, key, owner),
        _ => put_stream_change(out, key, &change.effect),
    }
    1
}

fn id(id: StreamId) -> String {
    id.to_string()
}

/// Writes the request for a change of a stream. [`Encoder::encode`] and [`put_change`] handle all other effects.
fn put_stream_change(out: &mut Vec<u8>, key: &[u8], effect: &Effect<'_>) {
    let mut digits = Digits::new();
    match *effect {
        Effect::StreamAdd { id: of, pairs } => {
            begin(out, pairs.len() + 3);
            put(out, b"XADD");
            put(out, key);
            put(out, id(of).as_bytes());
            pairs.iter().for_each(|part| put(out, part));
        }
        Effect::StreamRemove { id: of } => put_request(out, &[b"XDEL", key, id(of).as_bytes()]),
        Effect::StreamTrim { below: Some(below) } => put_request(out, &[b"XTRIM", key, b"MINID", b"=", id(below).as_bytes()]),
        Effect::StreamTrim { below: None } => put_request(out, &[b"XTRIM", key, b"MAXLEN", b"=", b"0"]),
        Effect::StreamSet { last_id, entries_added, max_deleted_id } => {
            let (last, deleted) = (id(last_id), id(max_deleted_id));
            let counts = [b"ENTRIESADDED", digits.of(entries_added), b"MAXDELETEDID", deleted.as_bytes()];
            put_request(out, &[&[b"XSETID", key, last.as_bytes()][..], &counts].concat());
        }
        Effect::GroupSet { group, last_id, entries_read, created } => {
            let what: &[u8] = if created { b"CREATE" } else { b"SETID" };
            let last = id(last_id);
            let mut args = vec![b"XGROUP", what, key, group, last.as_bytes()];
            if created {
                args.push(b"MKSTREAM");
            }
            // -1: unknown.
            args.extend([&b"ENTRIESREAD"[..], entries_read.map_or(b"-1", |read| digits.of(read))]);
            put_request(out, &args);
        }
        Effect::GroupRemove { group } => put_request(out, &[b"XGROUP", b"DESTROY", key, group]),
        Effect::ConsumerSet { group, consumer, .. } => put_request(out, &[b"XGROUP", b"CREATECONSUMER", key, group, consumer]),
        Effect::ConsumerRemove { group, consumer } => put_request(out, &[b"XGROUP", b"DELCONSUMER", key, group, consumer]),
        Effect::PendingSet { group, id: of, consumer, delivered_ms, count } => {
            let (of, mut time) = (id(of), Digits::new());
            let claim = [b"XCLAIM", key, group, consumer, b"0", of.as_bytes(), b"TIME", time.of(delivered_ms)];
            put_request(out, &[&claim[..], &[b"RETRYCOUNT", digits.of(count), b"FORCE", b"JUSTID"]].concat());
        }
        Effect::PendingRemove { group, id: of } => put_request(out, &[b"XACK", key, group, id(of).as_bytes()]),
        // A new effect must be handled by one of the three functions.
        Effect::SetString { .. }
        | Effect::SetRange { .. }
        | Effect::Store { .. }
        | Effect::Delete
        | Effect::Deadline(_)
        | Effect::HashSet { .. }
        | Effect::HashRemove { .. }
        | Effect::ListPush { .. }
        | Effect::ListPop { .. }
        | Effect::ListSet { .. }
        | Effect::ListInsert { .. }
        | Effect::ListRemove { .. }
        | Effect::ZSetAdd { .. }
        | Effect::ZSetRemove { .. }
        | Effect::SetAdd { .. }
        | Effect::SetRemove { .. }
        | Effect::Flush
        | Effect::Swap { .. }
        | Effect::LoadLibrary { .. }
        | Effect::DeleteLibrary { .. }
        | Effect::FlushLibraries
        | Effect::SetLock { .. }
        | Effect::SetRequests { .. }
        | Effect::ForgetRequests { .. }
        | Effect::SetSession { .. }
        | Effect::EndSession { .. }
        | Effect::None => unreachable!("the callers handle all other effects: {effect:?}"),
    }
}

/// The payload of `RESTORE`. It has every field of a hash, also those that have expired: their removals follow.
fn payload(value: &Value, now: Now) -> Vec<u8> {
    if let Value::Stream(stream) = value {
        let mut payload = Vec::new();
        put_stream_for_7_0(&mut payload, stream);
        seal(&mut payload, VERSION);
        return payload;
    }
    dump(ValueRef::Boxed(value), 0, |deadline| now.unix_of(deadline))
}
