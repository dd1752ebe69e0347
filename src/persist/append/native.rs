//! Native records: locks and what belongs to them, as requests of our own that no redis-server knows.
//!
//! ```text
//!   PORTCULLIS.LOCK name payload               the lock or semaphore with its holders
//!   PORTCULLIS.LATCH name payload              PORTCULLIS.GUARD name payload
//!   PORTCULLIS.REQUESTS name owner payload     PORTCULLIS.FORGET name owner         the owner's remembered requests
//!   PORTCULLIS.SESSION id payload              PORTCULLIS.ENDSESSION id number      a named session
//!   PORTCULLIS.TOKEN number                    the fencing token that is given next is at least this one
//! ```
//!
//! A payload begins with its version, 1 byte, and the moment of the record: unix milliseconds, the id of the boot (16 bytes), and
//! milliseconds since the boot. Numbers have seven bits a byte, the lowest first, and a mark on all but the last byte; one with a
//! sign is doubled, and a negative one turned over. Other times are distances from the moment: see [`super::clock`].
//!
//! A lock that is gone is deleted with `DEL`, as every key. Databases are those that `SELECT` selects; sessions belong to none.

use std::fmt;

use smallvec::SmallVec;

use crate::lock::grant::{Owner, SessionNumber};
use crate::lock::requests::{Answer, Answered, Remembered};
use crate::lock::sessions::Session;
use crate::lock::{Bound, Client, Grant, Lock, Mode};
use crate::persist::append::clock::{BootClock, Moment, Written};
use crate::persist::append::request::put_request;

/// The beginning of the names of all native records.
pub const PREFIX: &[u8] = b"PORTCULLIS.";

/// The version of payloads that we write, and the newest that we read.
const VERSION: u8 = 1;

/// A native record as it is read. Times are monotonic milliseconds of the reader; one that has passed may be any earlier one.
#[derive(Clone, Debug)]
pub enum Native<'a> {
    /// The key is this lock now. Its clients are those of the process that wrote it.
    Lock {
        /// Its name.
        name: &'a [u8],
        /// The lock.
        lock: Lock,
    },
    /// The key is a latch now.
    Latch {
        /// Its name.
        name: &'a [u8],
        /// What is left to count down.
        left: u64,
        /// Its deadline.
        deadline: Option<u64>,
    },
    /// The key is a guard now.
    Guard {
        /// Its name.
        name: &'a [u8],
        /// The largest token that it has seen.
        seen: u64,
        /// Its deadline.
        deadline: Option<u64>,
    },
    /// The remembered requests of an owner for a lock.
    Requests {
        /// The lock's name.
        name: &'a [u8],
        /// The owner.
        owner: &'a [u8],
        /// The requests.
        remembered: Remembered,
    },
    /// The remembered requests of an owner for a lock were forgotten.
    Forget {
        /// The lock's name.
        name: &'a [u8],
        /// The owner.
        owner: &'a [u8],
    },
    /// A named session was created or changed. It has no client, its grants are not counted, and if it was attached, it has no end.
    Session {
        /// Its number.
        number: u64,
        /// The session.
        session: Session,
    },
    /// A named session has ended.
    EndSession {
        /// Its id.
        id: &'a [u8],
        /// Its number.
        number: u64,
    },
    /// No token below this one is given any more.
    Token(u64),
}

/// Why a native record is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its name is unknown.
    Unknown,
    /// Its payload has a version that a newer program wrote.
    Newer(u8),
    /// It is not what any program wrote.
    Malformed,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Unknown => f.write_str("a record of an unknown kind, probably from a newer version of Portcullis"),
            Refusal::Newer(version) => {
                write!(f, "a record in version {version} of its format, from a newer version of Portcullis")
            }
            Refusal::Malformed => f.write_str("a malformed record of a lock"),
        }
    }
}

/// Whether a request is a native record.
pub fn is_native(name: &[u8]) -> bool {
    name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

/// A payload while it is written.
struct Payload<'m> {
    bytes: Vec<u8>,
    moment: &'m Moment,
}

impl<'m> Payload<'m> {
    fn new(moment: &'m Moment) -> Self {
        let written = Written::at(moment);
        let mut payload = Payload { bytes: Vec::with_capacity(128), moment };
        payload.bytes.push(VERSION);
        payload.signed(written.unix_ms);
        payload.bytes.extend_from_slice(&written.boot.id);
        payload.number(written.boot.now_ms);
        payload
    }

    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    fn signed(&mut self, number: i64) {
        self.number((number << 1 ^ number >> 63) as u64);
    }

    fn string(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// A monotonic time.
    fn time(&mut self, at_ms: u64) {
        self.signed(self.moment.distance_ms(at_ms));
    }

    /// A monotonic time that may be 0 for none.
    fn optional_time(&mut self, at_ms: u64) {
        self.bytes.push(u8::from(at_ms != 0));
        if at_ms != 0 {
            self.time(at_ms);
        }
    }

    fn grant(&mut self, grant: &Grant) {
        self.string(&grant.owner);
        self.number(grant.token);
        self.number(grant.holds.into());
        self.bytes.push(u8::from(grant.mode == Mode::Shared));
        self.number(grant.permits.into());
        self.time(grant.granted_ms);
        self.time(grant.end_ms);
        self.optional_time(grant.max_end_ms);
        self.number(grant.delay_ms.into());
        match grant.bound {
            Bound::Lease => self.bytes.push(0),
            Bound::Connection => self.bytes.push(1),
            Bound::Session(number) => {
                self.bytes.push(2);
                self.number(number.get());
            }
        }
        self.number(grant.client.id);
        self.number(grant.client.slot.into());
    }
}

/// Writes a lock.
pub fn put_lock(out: &mut Vec<u8>, moment: &Moment, name: &[u8], lock: &Lock) {
    let mut payload = Payload::new(moment);
    payload.number(lock.limit.into());
    payload.optional_time(lock.held_back_ms);
    payload.number(lock.holders.len() as u64);
    lock.holders.iter().for_each(|grant| payload.grant(grant));
    put_request(out, &[b"PORTCULLIS.LOCK", name, &payload.bytes]);
}

/// Writes a latch or a guard: its number and its deadline in unix milliseconds.
fn put_count(out: &mut Vec<u8>, moment: &Moment, (kind, name): (&[u8], &[u8]), count: u64, deadline: Option<i64>) {
    let mut payload = Payload::new(moment);
    payload.number(count);
    payload.bytes.push(u8::from(deadline.is_some()));
    if let Some(deadline) = deadline {
        payload.signed(moment.distance_to_unix_ms(deadline));
    }
    put_request(out, &[kind, name, &payload.bytes]);
}

/// Writes a latch. Its deadline is in unix milliseconds.
pub fn put_latch(out: &mut Vec<u8>, moment: &Moment, name: &[u8], left: u64, deadline: Option<i64>) {
    put_count(out, moment, (b"PORTCULLIS.LATCH", name), left, deadline);
}

/// Writes a guard. Its deadline is in unix milliseconds.
pub fn put_guard(out: &mut Vec<u8>, moment: &Moment, name: &[u8], seen: u64, deadline: Option<i64>) {
    put_count(out, moment, (b"PORTCULLIS.GUARD", name), seen, deadline);
}

/// Writes the remembered requests of an owner.
pub fn put_requests(out: &mut Vec<u8>, moment: &Moment, name: &[u8], owner: &[u8], remembered: &Remembered) {
    let mut payload = Payload::new(moment);
    payload.optional_time(remembered.forget_ms);
    payload.number(remembered.answers.len() as u64);
    for Answered { id, answer } in &remembered.answers {
        payload.string(id);
        let (kind, number) = match *answer {
            Answer::Granted(token) => (0, token),
            Answer::Released(left) => (1, left.into()),
        };
        payload.bytes.push(kind);
        payload.number(number);
    }
    put_request(out, &[b"PORTCULLIS.REQUESTS", name, owner, &payload.bytes]);
}

/// Writes that the remembered requests of an owner were forgotten.
pub fn put_forget(out: &mut Vec<u8>, name: &[u8], owner: &[u8]) {
    put_request(out, &[b"PORTCULLIS.FORGET", name, owner]);
}

/// Writes a named session.
pub fn put_session(out: &mut Vec<u8>, moment: &Moment, number: u64, session: &Session) {
    let mut payload = Payload::new(moment);
    payload.number(number);
    payload.string(&session.user);
    payload.number(session.grace_ms);
    payload.optional_time(session.end_ms);
    put_request(out, &[b"PORTCULLIS.SESSION", &session.id, &payload.bytes]);
}

/// Writes that a named session has ended.
pub fn put_session_end(out: &mut Vec<u8>, id: &[u8], number: u64) {
    put_request(out, &[b"PORTCULLIS.ENDSESSION", id, itoa::Buffer::new().format(number).as_bytes()]);
}

/// Writes that no token below this one is given any more.
pub fn put_token(out: &mut Vec<u8>, next: u64) {
    put_request(out, &[b"PORTCULLIS.TOKEN", itoa::Buffer::new().format(next).as_bytes()]);
}

/// A payload while it is read.
struct Fields<'a, 'm> {
    rest: &'a [u8],
    written: Written,
    reader: &'m Moment,
}

impl<'a, 'm> Fields<'a, 'm> {
    fn new(payload: &'a [u8], reader: &'m Moment) -> Result<Self, Refusal> {
        let (&version, rest) = payload.split_first().ok_or(Refusal::Malformed)?;
        if version > VERSION {
            return Err(Refusal::Newer(version));
        }
        let mut fields = Fields { rest, written: Written { unix_ms: 0, boot: BootClock::default() }, reader };
        fields.written = fields.moment().filter(|_| version == VERSION).ok_or(Refusal::Malformed)?;
        Ok(fields)
    }

    fn moment(&mut self) -> Option<Written> {
        let unix_ms = self.signed()?;
        let id = self.take(16)?.try_into().ok()?;
        Some(Written { unix_ms, boot: BootClock { id, now_ms: self.number()? } })
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    fn flag(&mut self) -> Option<bool> {
        self.byte().filter(|&byte| byte <= 1).map(|byte| byte == 1)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn number32(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    fn signed(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.number()?.try_into().ok()?;
        self.take(len)
    }

    fn time(&mut self) -> Option<u64> {
        let distance_ms = self.signed()?;
        Some(self.written.monotonic_ms(self.reader, distance_ms))
    }

    fn optional_time(&mut self) -> Option<u64> {
        if self.flag()? { self.time() } else { Some(0) }
    }

    fn end(&self) -> Option<()> {
        self.rest.is_empty().then_some(())
    }

    fn grant(&mut self) -> Option<Grant> {
        Some(Grant {
            owner: Owner::from_slice(self.string()?),
            token: self.number()?,
            holds: self.number32().filter(|&holds| holds > 0)?,
            mode: if self.flag()? { Mode::Shared } else { Mode::Exclusive },
            permits: self.number32().filter(|&permits| permits > 0)?,
            granted_ms: self.time()?,
            end_ms: self.time()?,
            max_end_ms: self.optional_time()?,
            delay_ms: self.number32()?,
            bound: match self.byte()? {
                0 => Bound::Lease,
                1 => Bound::Connection,
                2 => Bound::Session(SessionNumber::new(self.number().filter(|number| number >> 56 == 0)?)),
                _ => return None,
            },
            client: Client { id: self.number()?, slot: self.number32()? },
        })
    }

    fn lock(mut self) -> Option<Lock> {
        let mut lock = Lock { limit: self.number32()?, held_back_ms: self.optional_time()?, ..Lock::default() };
        let mut last_token = None;
        for _ in 0..self.number()? {
            let grant = self.grant()?;
            // Holders are in the order of their tokens, and an owner has one grant.
            if last_token >= Some(grant.token) || lock.holders.get(&grant.owner).is_some() {
                return None;
            }
            last_token = Some(grant.token);
            lock.holders.insert(grant);
        }
        self.end()?;
        Some(lock)
    }

    fn count(mut self) -> Option<(u64, Option<u64>)> {
        let count = self.number()?;
        let deadline = if self.flag()? { Some(self.time()?) } else { None };
        self.end()?;
        Some((count, deadline))
    }

    fn remembered(mut self) -> Option<Remembered> {
        let mut remembered = Remembered { answers: SmallVec::new(), forget_ms: self.optional_time()? };
        for _ in 0..self.number()? {
            let id = self.string()?.into();
            let answer = match (self.byte()?, self.number()?) {
                (0, token) => Answer::Granted(token),
                (1, left) => Answer::Released(left.try_into().ok()?),
                _ => return None,
            };
            remembered.answers.push(Answered { id, answer });
        }
        self.end()?;
        Some(remembered)
    }

    fn session(mut self, id: &[u8]) -> Option<(u64, Session)> {
        // Grants refer to a session by this number.
        let number = self.number().filter(|number| number >> 56 == 0)?;
        let user = self.string()?.into();
        let grace_ms = self.number()?;
        let end_ms = self.optional_time()?;
        self.end()?;
        Some((number, Session { id: id.into(), user, grace_ms, client: None, end_ms, grants: 0 }))
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| plain)?.parse().ok()
}

/// Reads a native record. Its times become those of the reader.
pub fn read<'a>(args: &[&'a [u8]], reader: &Moment) -> Result<Native<'a>, Refusal> {
    let (name, args) = args.split_first().ok_or(Refusal::Malformed)?;
    if !is_native(name) {
        return Err(Refusal::Unknown);
    }
    let name = name[PREFIX.len()..].to_ascii_uppercase();
    let native = match (&name[..], args) {
        (b"LOCK", &[name, payload]) => Fields::new(payload, reader)?.lock().map(|lock| Native::Lock { name, lock }),
        (b"LATCH", &[name, payload]) => {
            Fields::new(payload, reader)?.count().map(|(left, deadline)| Native::Latch { name, left, deadline })
        }
        (b"GUARD", &[name, payload]) => {
            Fields::new(payload, reader)?.count().map(|(seen, deadline)| Native::Guard { name, seen, deadline })
        }
        (b"REQUESTS", &[name, owner, payload]) => {
            Fields::new(payload, reader)?.remembered().map(|remembered| Native::Requests { name, owner, remembered })
        }
        (b"FORGET", &[name, owner]) => Some(Native::Forget { name, owner }),
        (b"SESSION", &[id, payload]) => {
            Fields::new(payload, reader)?.session(id).map(|(number, session)| Native::Session { number, session })
        }
        (b"ENDSESSION", &[id, number]) => decimal(number).map(|number| Native::EndSession { id, number }),
        (b"TOKEN", &[next]) => decimal(next).map(Native::Token),
        (b"LOCK" | b"LATCH" | b"GUARD" | b"REQUESTS" | b"FORGET" | b"SESSION" | b"ENDSESSION" | b"TOKEN", _) => None,
        _ => return Err(Refusal::Unknown),
    };
    native.ok_or(Refusal::Malformed)
}
