//! Native values and what belongs to them, as fields of the kind AUX. A field's value begins with the version of its form.
//!
//! ```text
//!   portcullis-clock      when the file was written: unix ms · ms of the boot clock · id of the boot
//!   portcullis-token      number of the next token
//!   portcullis-session    number · id · user · grace · end
//!   portcullis-requests   database · name · owner · when they are forgotten · { id · answer }
//!   portcullis-lock       name · limit · end of the delay · { owner · token · holds · mode · permits · times · delay · bound }
//!   portcullis-latch      name · count · deadline
//!   portcullis-guard      name · token · deadline
//!   portcullis-consumers  name of the stream that follows · { group · consumer · time of its last delivery }
//! ```
//! Numbers are lengths and texts are strings, both as in the rest of the file. Times are eight bytes: Unix milliseconds, the
//! smallest number for none and the largest for never. A connection is not written, because it does not outlive the process: a
//! grant that ends with its connection comes back as one whose connection is gone.

use crate::keyspace::rdb::parts::{chunk, plain_length, put_length, put_string, string};
use crate::lock::grant::{Owner, SessionNumber};
use crate::lock::requests::{ANSWERS, Answer, Answered, ID_MAX, Remembered, Whose};
use crate::lock::sessions::{self, Session};
use crate::lock::{Bound, Client, Grant, Lock, Mode};
use crate::store::values::stream::Stream;

/// The names of the fields.
pub mod name {
    #![allow(missing_docs)]
    pub const CLOCK: &[u8] = b"portcullis-clock";
    pub const TOKEN: &[u8] = b"portcullis-token";
    pub const SESSION: &[u8] = b"portcullis-session";
    pub const REQUESTS: &[u8] = b"portcullis-requests";
    pub const LOCK: &[u8] = b"portcullis-lock";
    pub const LATCH: &[u8] = b"portcullis-latch";
    pub const GUARD: &[u8] = b"portcullis-guard";
    pub const CONSUMERS: &[u8] = b"portcullis-consumers";
    /// How all of them begin.
    pub const PREFIX: &[u8] = b"portcullis-";
}

/// The version of the forms.
const VERSION: u8 = 1;
const NONE: i64 = i64::MIN;
const NEVER: i64 = i64::MAX;
/// Tokens and numbers of sessions are below this.
const TOKEN_END: u64 = 1 << 53;

const LEASE: u8 = 0;
const CONNECTION: u8 = 1;
const SESSION: u8 = 2;

/// A conversion of monotonic milliseconds to Unix milliseconds.
pub type UnixOf<'a> = &'a dyn Fn(u64) -> i64;
/// A conversion of Unix milliseconds to monotonic milliseconds.
pub type MonoOf<'a> = &'a dyn Fn(i64) -> u64;

/// When a file was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Unix time in milliseconds.
    pub unix_ms: i64,
    /// The clock that runs from the start of the machine on, if it is known.
    pub boot: Option<BootTime>,
}

/// An instant on the clock that runs from the start of the machine on, whatever happens to its wall clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootTime {
    /// The id of this start.
    pub id: Box<[u8]>,
    /// Milliseconds since then.
    pub ms: u64,
}

/// Begins the value of a field.
fn field() -> Vec<u8> {
    vec![VERSION]
}

/// The value of a field behind its version; `None` if that is another one.
fn open(value: &[u8]) -> Option<&[u8]> {
    value.split_first().filter(|(version, _)| **version == VERSION).map(|(_, rest)| rest)
}

fn put_number(out: &mut Vec<u8>, number: u64) {
    put_length(out, number as usize);
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    plain_length(rest).map(|number| number as u64)
}

fn small(rest: &mut &[u8]) -> Option<u32> {
    number(rest)?.try_into().ok()
}

/// A token or the number of a session.
fn token(rest: &mut &[u8]) -> Option<u64> {
    number(rest).filter(|token| *token < TOKEN_END)
}

/// A count of things that take at least `bytes` each.
fn count(rest: &mut &[u8], bytes: usize) -> Option<usize> {
    plain_length(rest).filter(|count| *count <= rest.len() / bytes)
}

fn put_time(out: &mut Vec<u8>, at_ms: Option<u64>, unix_of: UnixOf<'_>) {
    let unix_ms = match at_ms {
        None => NONE,
        Some(at_ms) if at_ms > NEVER as u64 => NEVER,
        Some(at_ms) => unix_of(at_ms).clamp(NONE + 1, NEVER),
    };
    out.extend_from_slice(&unix_ms.to_le_bytes());
}

fn time(rest: &mut &[u8], mono_of: MonoOf<'_>) -> Option<Option<u64>> {
    Some(match i64::from_le_bytes(chunk(rest)?) {
        NONE => None,
        NEVER => Some(u64::MAX),
        unix_ms => Some(mono_of(unix_ms)),
    })
}

/// As [`put_time`] for a time that is 0 for none.
fn put_time_or_zero(out: &mut Vec<u8>, at_ms: u64, unix_of: UnixOf<'_>) {
    put_time(out, (at_ms != 0).then_some(at_ms), unix_of);
}

fn time_or_zero(rest: &mut &[u8], mono_of: MonoOf<'_>) -> Option<u64> {
    time(rest, mono_of).map(|time| time.map_or(0, |at_ms| at_ms.max(1)))
}

/// What was read, if nothing is left.
fn whole<T>(rest: &[u8], value: T) -> Option<T> {
    rest.is_empty().then_some(value)
}

/// Writes when the file is written.
pub fn clock(clock: &Clock) -> Vec<u8> {
    let mut out = field();
    out.extend_from_slice(&clock.unix_ms.to_le_bytes());
    if let Some(boot) = &clock.boot {
        put_number(&mut out, boot.ms);
        put_string(&mut out, &boot.id);
    }
    out
}

/// Reads [`clock`].
pub fn read_clock(value: &[u8]) -> Option<Clock> {
    let mut rest = open(value)?;
    let unix_ms = i64::from_le_bytes(chunk(&mut rest)?);
    let boot = match rest {
        [] => None,
        _ => Some(BootTime { ms: number(&mut rest)?, id: string(&mut rest)?.as_ref().into() }),
    };
    whole(rest, Clock { unix_ms, boot })
}

/// Writes the number of the next token.
pub fn next_token(token: u64) -> Vec<u8> {
    let mut out = field();
    put_number(&mut out, token);
    out
}

/// Reads [`next_token`].
pub fn read_next_token(value: &[u8]) -> Option<u64> {
    let mut rest = open(value)?;
    let token = token(&mut rest)?;
    whole(rest, token)
}

/// Writes a session.
pub fn session(number: u64, session: &Session, unix_of: UnixOf<'_>) -> Vec<u8> {
    let mut out = field();
    put_number(&mut out, number);
    put_string(&mut out, &session.id);
    put_string(&mut out, &session.user);
    put_number(&mut out, session.grace_ms);
    put_time_or_zero(&mut out, session.end_ms, unix_of);
    out
}

/// Reads [`session`].
pub fn read_session(value: &[u8], mono_of: MonoOf<'_>) -> Option<(u64, Session)> {
    let mut rest = open(value)?;
    let session_number = token(&mut rest)?;
    let id = string(&mut rest).filter(|id| id.len() <= sessions::ID_MAX)?.as_ref().into();
    let user = string(&mut rest)?.as_ref().into();
    let grace_ms = number(&mut rest)?;
    let end_ms = time_or_zero(&mut rest, mono_of)?;
    whole(rest, (session_number, Session { id, user, grace_ms, client: None, end_ms, grants: 0 }))
}

/// Writes remembered requests; `db` is the index of their database.
pub fn requests(db: u32, whose: &Whose, remembered: &Remembered, unix_of: UnixOf<'_>) -> Vec<u8> {
    let mut out = field();
    put_number(&mut out, db.into());
    put_string(&mut out, &whose.name);
    put_string(&mut out, &whose.owner);
    put_time_or_zero(&mut out, remembered.forget_ms, unix_of);
    put_length(&mut out, remembered.answers.len());
    for answered in &remembered.answers {
        put_string(&mut out, &answered.id);
        let (kind, number) = match answered.answer {
            Answer::Granted(token) => (0, token),
            Answer::Released(left) => (1, left.into()),
        };
        out.push(kind);
        put_number(&mut out, number);
    }
    out
}

/// Reads [`requests`]. The home of the result is the index of the database.
pub fn read_requests(value: &[u8], mono_of: MonoOf<'_>) -> Option<(Whose, Remembered)> {
    let mut rest = open(value)?;
    let home = small(&mut rest)?;
    let name = string(&mut rest)?.as_ref().into();
    let owner = string(&mut rest)?.as_ref().into();
    let mut remembered = Remembered { forget_ms: time_or_zero(&mut rest, mono_of)?, ..Remembered::default() };
    for _ in 0..count(&mut rest, 3).filter(|count| *count <= ANSWERS)? {
        let id = string(&mut rest).filter(|id| id.len() <= ID_MAX)?.as_ref().into();
        let answer = match chunk(&mut rest)? {
            [0] => Answer::Granted(token(&mut rest)?),
            [1] => Answer::Released(small(&mut rest)?),
            _ => return None,
        };
        remembered.answers.push(Answered { id, answer });
    }
    whole(rest, (Whose { home, name, owner }, remembered))
}

/// Writes a lock or a semaphore.
pub fn lock(name: &[u8], lock: &Lock, unix_of: UnixOf<'_>) -> Vec<u8> {
    let mut out = field();
    put_string(&mut out, name);
    put_number(&mut out, lock.limit.into());
    put_time_or_zero(&mut out, lock.held_back_ms, unix_of);
    put_length(&mut out, lock.holders.len());
    for grant in lock.holders.iter() {
        put_string(&mut out, &grant.owner);
        put_number(&mut out, grant.token);
        put_number(&mut out, grant.holds.into());
        out.push(u8::from(grant.mode == Mode::Shared));
        put_number(&mut out, grant.permits.into());
        put_time_or_zero(&mut out, grant.granted_ms, unix_of);
        put_time_or_zero(&mut out, grant.end_ms, unix_of);
        put_time_or_zero(&mut out, grant.max_end_ms, unix_of);
        put_number(&mut out, grant.delay_ms.into());
        match grant.bound {
            Bound::Lease => out.push(LEASE),
            Bound::Connection => out.push(CONNECTION),
            Bound::Session(session) => {
                out.push(SESSION);
                put_number(&mut out, session.get());
            }
        }
    }
    out
}

/// Fewest bytes of a grant.
const GRANT_MIN: usize = 31;

/// Reads [`lock`].
pub fn read_lock(value: &[u8], mono_of: MonoOf<'_>) -> Option<(Box<[u8]>, Lock)> {
    let mut rest = open(value)?;
    let name = string(&mut rest)?.as_ref().into();
    let mut lock = Lock { limit: small(&mut rest)?, held_back_ms: time_or_zero(&mut rest, mono_of)?, ..Lock::default() };
    let mut last_token = 0;
    for _ in 0..count(&mut rest, GRANT_MIN)? {
        let grant = grant(&mut rest, mono_of)?;
        // Holders stand in the order of their tokens, each once.
        if grant.token <= last_token || lock.holders.get(&grant.owner).is_some() {
            return None;
        }
        last_token = grant.token;
        lock.holders.insert(grant);
    }
    let fits = match lock.limit {
        // The owner of a lock has it alone, or all share it.
        0 => {
            let exclusive = lock.holders.iter().any(|grant| grant.mode == Mode::Exclusive);
            lock.holders.iter().all(|grant| grant.permits == 1) && (!exclusive || lock.holders.len() == 1)
        }
        _ => true,
    };
    (fits && !lock.is_free()).then_some(())?;
    whole(rest, (name, lock))
}

fn grant(rest: &mut &[u8], mono_of: MonoOf<'_>) -> Option<Grant> {
    Some(Grant {
        owner: Owner::from_slice(&string(rest)?),
        token: token(rest)?,
        holds: small(rest).filter(|holds| *holds > 0)?,
        mode: match chunk(rest)? {
            [0] => Mode::Exclusive,
            [1] => Mode::Shared,
            _ => return None,
        },
        permits: small(rest).filter(|permits| *permits > 0)?,
        granted_ms: time_or_zero(rest, mono_of)?,
        end_ms: time_or_zero(rest, mono_of)?,
        max_end_ms: time_or_zero(rest, mono_of)?,
        delay_ms: small(rest)?,
        bound: match chunk(rest)? {
            [LEASE] => Bound::Lease,
            [CONNECTION] => Bound::Connection,
            [SESSION] => Bound::Session(SessionNumber::new(token(rest)?)),
            _ => return None,
        },
        client: Client::default(),
    })
}

/// Writes a latch or a guard: its number and the deadline of its key.
pub fn counter(name: &[u8], number: u64, deadline: Option<u64>, unix_of: UnixOf<'_>) -> Vec<u8> {
    let mut out = field();
    put_string(&mut out, name);
    put_number(&mut out, number);
    put_time(&mut out, deadline, unix_of);
    out
}

/// Reads [`counter`].
pub fn read_counter(value: &[u8], mono_of: MonoOf<'_>) -> Option<(Box<[u8]>, u64, Option<u64>)> {
    let mut rest = open(value)?;
    let name = string(&mut rest)?.as_ref().into();
    let number = number(&mut rest)?;
    let deadline = time(&mut rest, mono_of)?;
    whole(rest, (name, number, deadline))
}

/// Writes the times of last deliveries, for consumers of a stream where the form of the stream cannot tell them.
pub fn consumers(name: &[u8], stream: &Stream) -> Vec<u8> {
    let inexact = || {
        let groups = stream.groups().flat_map(|(group, of)| of.consumers().map(move |consumer| (group, consumer)));
        groups.filter(|(_, consumer)| consumer.active_ms != Some(consumer.seen_ms))
    };
    let mut out = field();
    put_string(&mut out, name);
    put_length(&mut out, inexact().count());
    for (group, consumer) in inexact() {
        put_string(&mut out, group);
        put_string(&mut out, &consumer.name);
        out.extend_from_slice(&consumer.active_ms.unwrap_or(NONE).to_le_bytes());
    }
    out
}

/// A group, a consumer, and the time of its last delivery in Unix milliseconds, if there was one.
pub type Delivery = (Box<[u8]>, Box<[u8]>, Option<i64>);

/// Times of last deliveries, of consumers of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deliveries {
    /// The name of the stream.
    pub stream: Box<[u8]>,
    /// Of each consumer.
    pub consumers: Vec<Delivery>,
}

/// Reads [`consumers`].
pub fn read_consumers(value: &[u8]) -> Option<Deliveries> {
    let mut rest = open(value)?;
    let mut deliveries = Deliveries { stream: string(&mut rest)?.as_ref().into(), consumers: Vec::new() };
    for _ in 0..count(&mut rest, 10)? {
        let group = string(&mut rest)?.as_ref().into();
        let consumer = string(&mut rest)?.as_ref().into();
        let active_ms = i64::from_le_bytes(chunk(&mut rest)?);
        deliveries.consumers.push((group, consumer, (active_ms != NONE).then_some(active_ms)));
    }
    whole(rest, deliveries)
}

impl Deliveries {
    /// Sets them in the stream.
    pub fn set_in(&self, stream: &mut Stream) {
        for (group, name, active_ms) in &self.consumers {
            if let Some(group) = stream.group_mut(group)
                && let Some(seen_ms) = group.consumer(name).map(|consumer| consumer.seen_ms)
            {
                group.set_consumer(name, seen_ms, *active_ms);
            }
        }
    }
}
