//! The payloads of native records, written and read.

use smallvec::SmallVec;

use crate::lock::grant::{Owner, SessionNumber, TOKEN_END};
use crate::lock::requests::{Answer, Answered, Remembered};
use crate::lock::sessions::{ID_MAX, Session};
use crate::lock::{Bound, Client, Grant, Lock, Mode, UserKey};
use crate::persist::natives::Refusal;
use crate::persist::natives::clock::{BootClock, Moment, Written};

/// The version of most payloads that we write, and that of locks with the users of their owners, which is the newest that we read.
const VERSION: u8 = 1;
const WITH_USERS: u8 = 2;

/// Bounds of grants.
const LEASE: u8 = 0;
const CONNECTION: u8 = 1;
const SESSION: u8 = 2;
/// Added to the bound of a grant whose user follows: any but the default one.
const USER: u8 = 4;

/// Answers of remembered requests.
const GRANTED: u8 = 0;
const RELEASED: u8 = 1;

/// A payload while it is written.
#[derive(Debug)]
pub struct Payload(Vec<u8>);

impl Payload {
    /// Begins a payload.
    pub fn begin() -> Payload {
        let mut bytes = Vec::with_capacity(128);
        bytes.push(VERSION);
        Payload(bytes)
    }

    /// Begins a payload with the moment at which it is written.
    fn begin_at(moment: &Moment) -> Payload {
        let mut payload = Payload::begin();
        let Written { unix_ms, boot } = Written::at(moment);
        payload.signed(unix_ms);
        payload.0.extend_from_slice(&boot.id);
        payload.number(boot.now_ms);
        payload
    }

    /// The whole payload.
    pub fn end(self) -> Vec<u8> {
        self.0
    }

    /// Writes a number.
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Writes a signed number.
    pub fn signed(&mut self, number: i64) {
        self.number((number << 1 ^ number >> 63) as u64);
    }

    /// Writes a string with its length.
    pub fn string(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Writes whether there is a number, and the number.
    pub fn optional(&mut self, number: Option<i64>) {
        self.0.push(u8::from(number.is_some()));
        if let Some(number) = number {
            self.signed(number);
        }
    }

    /// Writes a monotonic time.
    fn time(&mut self, moment: &Moment, at_ms: u64) {
        self.signed(moment.distance_ms(at_ms));
    }

    /// Writes a monotonic time that may be 0 for none.
    fn optional_time(&mut self, moment: &Moment, at_ms: u64) {
        self.optional((at_ms != 0).then(|| moment.distance_ms(at_ms)));
    }

    fn grant(&mut self, moment: &Moment, grant: &Grant) {
        self.string(&grant.owner);
        self.number(grant.token);
        self.number(grant.holds.into());
        self.0.push(u8::from(grant.mode == Mode::Shared));
        self.number(grant.permits.into());
        self.time(moment, grant.granted_ms);
        self.time(moment, grant.end_ms);
        self.optional_time(moment, grant.max_end_ms);
        self.number(grant.delay_ms.into());
        let user = grant.client.user;
        let with_user = if user == UserKey::default() { 0 } else { USER };
        match grant.bound {
            Bound::Lease => self.0.push(LEASE | with_user),
            Bound::Connection => self.0.push(CONNECTION | with_user),
            Bound::Session(number) => {
                self.0.push(SESSION | with_user);
                self.number(number.get());
            }
        }
        if with_user != 0 {
            self.0[0] = WITH_USERS;
            self.number(user.0.into());
        }
    }
}

/// The payload of a lock or a semaphore.
pub fn lock(moment: &Moment, name: &[u8], lock: &Lock) -> Vec<u8> {
    let mut payload = Payload::begin_at(moment);
    payload.string(name);
    payload.number(lock.limit.into());
    payload.optional_time(moment, lock.held_back_ms);
    payload.number(lock.holders.len() as u64);
    lock.holders.iter().for_each(|grant| payload.grant(moment, grant));
    payload.end()
}

/// The payload of a latch or a guard: its number, and its deadline in Unix milliseconds.
pub fn count(name: &[u8], count: u64, deadline: Option<i64>) -> Vec<u8> {
    let mut payload = Payload::begin();
    payload.string(name);
    payload.number(count);
    payload.optional(deadline);
    payload.end()
}

/// The payload of the remembered requests of an owner for a lock.
pub fn requests(moment: &Moment, name: &[u8], owner: &[u8], remembered: &Remembered) -> Vec<u8> {
    let mut payload = Payload::begin_at(moment);
    payload.string(name);
    payload.string(owner);
    payload.optional_time(moment, remembered.forget_ms);
    payload.number(remembered.answers.len() as u64);
    for Answered { id, answer } in &remembered.answers {
        payload.string(id);
        let (kind, number) = match *answer {
            Answer::Granted(token) => (GRANTED, token),
            Answer::Released(left) => (RELEASED, left.into()),
        };
        payload.0.push(kind);
        payload.number(number);
    }
    payload.end()
}

/// The payload of a named session.
pub fn session(moment: &Moment, number: u64, session: &Session) -> Vec<u8> {
    let mut payload = Payload::begin_at(moment);
    payload.number(number);
    payload.string(&session.id);
    payload.string(&session.user);
    payload.number(session.grace_ms);
    payload.optional_time(moment, session.end_ms);
    payload.end()
}

/// The payload of the next token.
pub fn token(next: u64) -> Vec<u8> {
    let mut payload = Payload::begin();
    payload.number(next);
    payload.end()
}

/// A payload while it is read. Methods return `None` where it is malformed.
#[derive(Debug)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Begins to read a payload of a version that is known.
    pub fn open(payload: &'a [u8]) -> Result<Fields<'a>, Refusal> {
        match payload.split_first() {
            Some((&(VERSION..=WITH_USERS), rest)) => Ok(Fields(rest)),
            Some((&version, _)) if version > WITH_USERS => Err(Refusal::Newer(version)),
            _ => Err(Refusal::Malformed),
        }
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    fn flag(&mut self) -> Option<bool> {
        self.byte().filter(|&byte| byte <= 1).map(|byte| byte == 1)
    }

    /// Reads a number.
    pub fn number(&mut self) -> Option<u64> {
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

    /// Reads a token or the number of a session, which are below [`TOKEN_END`].
    pub(super) fn token_or_session(&mut self) -> Option<u64> {
        self.number().filter(|&number| number < TOKEN_END)
    }

    /// Reads a signed number.
    pub fn signed(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// Reads a string.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.number()?.try_into().ok()?;
        self.take(len)
    }

    /// Reads a number, if there is one.
    pub fn optional(&mut self) -> Option<Option<i64>> {
        if self.flag()? { self.signed().map(Some) } else { Some(None) }
    }

    /// Ends the reading: nothing may be left.
    pub fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }

    fn moment(&mut self) -> Option<Written> {
        let unix_ms = self.signed()?;
        let id = self.take(16)?.try_into().ok()?;
        Some(Written { unix_ms, boot: BootClock { id, now_ms: self.number()? } })
    }

    fn time(&mut self, written: &Written, reader: &Moment) -> Option<u64> {
        self.signed().map(|distance_ms| written.monotonic_ms(reader, distance_ms))
    }

    fn optional_time(&mut self, written: &Written, reader: &Moment) -> Option<u64> {
        self.optional().map(|distance_ms| distance_ms.map_or(0, |distance_ms| written.monotonic_ms(reader, distance_ms)))
    }

    fn grant(&mut self, written: &Written, reader: &Moment) -> Option<Grant> {
        let mut grant = Grant {
            owner: Owner::from_slice(self.string()?),
            token: self.token_or_session()?,
            holds: self.number32()?,
            mode: if self.flag()? { Mode::Shared } else { Mode::Exclusive },
            permits: self.number32()?,
            renewed: 0,
            granted_ms: self.time(written, reader)?,
            end_ms: self.time(written, reader)?,
            max_end_ms: self.optional_time(written, reader)?,
            delay_ms: self.number32()?,
            bound: Bound::Lease,
            client: Client::default(),
        };
        let bound = self.byte()?;
        grant.bound = match bound & !USER {
            LEASE => Bound::Lease,
            CONNECTION => Bound::Connection,
            SESSION => Bound::Session(SessionNumber::new(self.token_or_session()?)),
            _ => return None,
        };
        if bound & USER != 0 {
            grant.client.user = UserKey(self.number32()?);
        }
        Some(grant)
    }

    pub(super) fn lock(mut self, reader: &Moment) -> Option<(&'a [u8], Lock)> {
        let written = self.moment()?;
        let name = self.string()?;
        let (limit, held_back_ms) = (self.number32()?, self.optional_time(&written, reader)?);
        let mut grants = Vec::new();
        for _ in 0..self.number()? {
            grants.push(self.grant(&written, reader)?);
        }
        self.end()?;
        Some((name, Lock::from_parts(limit, held_back_ms, grants)?))
    }

    /// Reads a latch or a guard: its name, its number, and its deadline in monotonic milliseconds.
    pub(super) fn count(mut self, reader: &Moment) -> Option<(&'a [u8], u64, Option<u64>)> {
        let (name, count) = (self.string()?, self.number()?);
        let deadline = self.optional()?.map(|unix_ms| reader.deadline_ms(unix_ms));
        self.end()?;
        Some((name, count, deadline))
    }

    pub(super) fn requests(mut self, reader: &Moment) -> Option<(&'a [u8], &'a [u8], Remembered)> {
        let written = self.moment()?;
        let (name, owner) = (self.string()?, self.string()?);
        let mut remembered = Remembered { answers: SmallVec::new(), forget_ms: self.optional_time(&written, reader)? };
        for _ in 0..self.number()? {
            let id = self.string()?.into();
            let answer = match (self.byte()?, self.number()?) {
                (GRANTED, token) => Answer::Granted(token),
                (RELEASED, left) => Answer::Released(left.try_into().ok()?),
                _ => return None,
            };
            remembered.answers.push(Answered { id, answer });
        }
        self.end()?;
        remembered.is_valid().then_some((name, owner, remembered))
    }

    pub(super) fn session(mut self, reader: &Moment) -> Option<(u64, Session)> {
        let written = self.moment()?;
        let number = self.token_or_session()?;
        let id = self.string().filter(|id| id.len() <= ID_MAX)?.into();
        let user = self.string()?.into();
        let grace_ms = self.number()?;
        let end_ms = self.optional_time(&written, reader)?;
        self.end()?;
        Some((number, Session { id, user, grace_ms, client: None, end_ms, grants: 0 }))
    }

    pub(super) fn token(mut self) -> Option<u64> {
        let next = self.token_or_session()?;
        self.end()?;
        Some(next)
    }
}
