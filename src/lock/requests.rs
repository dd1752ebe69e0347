//! Remembered requests: a request that is repeated gets the answer it got the first time.
//!
//! ```text
//!   (database, name, owner) ─▶ record: the last answers ── the grant lives ─▶ kept
//!                                                       └─ it has ended ────▶ line of the ended ─ a minute ─▶ forgotten
//! ```
//!
//! A client names an attempt by an id (`REQUEST id`). The last few answers of each owner and name are kept for as long as the
//! owner's grant lives, and for [`KEPT_MS`] after it. The number of records of ended grants is bounded: beyond the bound, those
//! that ended first are forgotten early, and counted. So is their memory: see [`AVERAGE_MAX`].

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use crate::base::chunks::Chunks;
use crate::base::kept::block;
use crate::base::segments::Segments;

/// Maximum number of bytes of an id.
pub const ID_MAX: usize = 64;
/// Milliseconds for which answers are kept after the end of their grant.
pub const KEPT_MS: u64 = 60_000;
/// Number of answers that are kept for each owner and name.
pub const ANSWERS: usize = 4;
/// Default number of records of ended grants that are kept.
pub const ENDED_MAX: usize = 100_000;
/// The records of ended grants have at most as many bytes as the allowed number of records with this many bytes each. Ordinary ones,
/// with names and ids of a UUID, have some 400.
pub const AVERAGE_MAX: usize = 512;
/// A record with more bytes is forgotten with its grant: few locks have names of such a length, and they would push all others out.
const RECORD_MAX: usize = 8192;
/// Maximum number of records that are forgotten early at the end of a grant: as many small ones as one large one needs.
const FORGOTTEN_AT_ONCE: usize = 64;

const NIL: u32 = u32::MAX;

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was granted, with this token.
    Granted(u64),
    /// It was released, with this many holds left.
    Released(u32),
}

/// An answered request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Its id.
    pub id: Box<[u8]>,
    /// The answer.
    pub answer: Answer,
}

/// The remembered requests of an owner for a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// The last answers, oldest first.
    pub answers: SmallVec<[Answered; 2]>,
    /// The time at which they are forgotten, in monotonic milliseconds; 0 while the owner holds the name.
    pub forget_ms: u64,
}

impl Remembered {
    /// Whether operations could have left these answers: there are some, not too many, with ids that are not too long and tokens
    /// below [`TOKEN_END`](crate::lock::grant::TOKEN_END).
    pub fn is_valid(&self) -> bool {
        let fits = |answered: &Answered| {
            let token = if let Answer::Granted(token) = answered.answer { token } else { 0 };
            answered.id.len() <= ID_MAX && token < crate::lock::grant::TOKEN_END
        };
        (1..=ANSWERS).contains(&self.answers.len()) && self.answers.iter().all(fits)
    }
}

/// The key of a record: an owner and a lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whose {
    /// The stable name of the database, which survives swaps.
    pub home: u32,
    /// The name of the lock.
    pub name: Box<[u8]>,
    /// The owner.
    pub owner: Box<[u8]>,
}

#[derive(Debug)]
struct Record {
    whose: Whose,
    hash: u32,
    remembered: Remembered,
    /// Bytes by which it counts in the line of the ended.
    bytes: usize,
    /// Neighbours in the line of the ended.
    older: u32,
    newer: u32,
}

impl Record {
    fn measure(&self) -> usize {
        let ids = self.remembered.answers.iter().map(|answered| block(answered.id.len())).sum::<usize>();
        let answers = if self.remembered.answers.spilled() { block(ANSWERS * size_of::<Answered>()) } else { 0 };
        size_of::<Record>() + block(self.whose.name.len()) + block(self.whose.owner.len()) + answers + ids
    }
}

/// A change of a record, for the change log.
#[derive(Debug)]
pub enum News {
    /// The record with this number.
    Changed(u32),
    /// A record was forgotten.
    Forgotten(Whose),
}

/// All remembered requests.
pub struct Requests {
    hasher: FixedState,
    index: Segments,
    records: Chunks<Record>,
    /// The line of the ended: records are forgotten in its order.
    oldest: u32,
    newest: u32,
    ended: usize,
    ended_bytes: usize,
    ended_max: usize,
    /// Milliseconds for which answers are kept after the end of their grant: [`KEPT_MS`].
    pub kept_ms: u64,
    /// Number of records that were forgotten early because there were too many.
    pub forgotten_early: u64,
    /// Changes that were not taken yet.
    pub news: Vec<News>,
}

impl Requests {
    /// Creates an empty memory. The seed keeps clients from choosing names whose hashes collide.
    pub fn new(seed: u64) -> Self {
        Requests {
            hasher: FixedState::with_seed(seed),
            index: Segments::default(),
            records: Chunks::default(),
            oldest: NIL,
            newest: NIL,
            ended: 0,
            ended_bytes: 0,
            ended_max: ENDED_MAX,
            kept_ms: KEPT_MS,
            forgotten_early: 0,
            news: Vec::new(),
        }
    }

    /// Sets the maximum number of records of ended grants. It applies from the next end of a grant.
    pub fn set_bound(&mut self, ended_max: usize) {
        self.ended_max = ended_max;
    }

    /// Bytes of the records of ended grants.
    pub fn ended_bytes(&self) -> usize {
        self.ended_bytes
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether nothing is remembered.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The time at which the next record is forgotten, in monotonic milliseconds; `u64::MAX` if there is none.
    #[inline(always)]
    pub fn next_ms(&self) -> u64 {
        if self.oldest == NIL { u64::MAX } else { self.oldest_ms() }
    }

    #[inline(never)]
    fn oldest_ms(&self) -> u64 {
        self.records.get(self.oldest).map_or(u64::MAX, |record| record.remembered.forget_ms)
    }

    /// All records.
    pub fn iter(&self) -> impl Iterator<Item = (&Whose, &Remembered)> {
        self.records.iter().map(|(_, record)| (&record.whose, &record.remembered))
    }

    /// All numbers of records are below this.
    pub fn number_bound(&self) -> u32 {
        u32::try_from(self.records.places()).unwrap_or(u32::MAX)
    }

    /// The record with a number, if it still exists.
    pub fn get(&self, number: u32) -> Option<(&Whose, &Remembered)> {
        self.records.get(number).map(|record| (&record.whose, &record.remembered))
    }

    /// The remembered requests of an owner for a name.
    pub fn of(&self, home: u32, name: &[u8], owner: &[u8]) -> Option<&Remembered> {
        self.find(home, name, owner).and_then(|number| self.records.get(number)).map(|record| &record.remembered)
    }

    /// The token of the acquisition with this id.
    pub fn granted(&self, home: u32, name: &[u8], owner: &[u8], id: &[u8]) -> Option<u64> {
        self.answers(home, name, owner, id).find_map(|answer| match answer {
            Answer::Granted(token) => Some(token),
            Answer::Released(_) => None,
        })
    }

    /// The remaining hold count that the release with this id was answered.
    pub fn released(&self, home: u32, name: &[u8], owner: &[u8], id: &[u8]) -> Option<u32> {
        self.answers(home, name, owner, id).find_map(|answer| match answer {
            Answer::Released(left) => Some(left),
            Answer::Granted(_) => None,
        })
    }

    fn answers(&self, home: u32, name: &[u8], owner: &[u8], id: &[u8]) -> impl Iterator<Item = Answer> {
        let answers = self.of(home, name, owner).map(|remembered| &remembered.answers[..]).unwrap_or_default();
        answers.iter().filter(move |answered| *answered.id == *id).map(|answered| answered.answer)
    }

    fn hash(&self, home: u32, name: &[u8], owner: &[u8]) -> u32 {
        self.hasher.hash_one((home, name, owner)) as u32
    }

    fn find(&self, home: u32, name: &[u8], owner: &[u8]) -> Option<u32> {
        if self.records.is_empty() { None } else { self.find_by(self.hash(home, name, owner), home, name, owner) }
    }

    fn find_by(&self, hash: u32, home: u32, name: &[u8], owner: &[u8]) -> Option<u32> {
        self.index.find(hash, |number| {
            let whose = self.records.get(number).map(|record| &record.whose);
            whose.is_some_and(|whose| whose.home == home && *whose.name == *name && *whose.owner == *owner)
        })
    }

    fn find_or_make(&mut self, home: u32, name: &[u8], owner: &[u8]) -> u32 {
        let hash = self.hash(home, name, owner);
        if let Some(number) = self.find_by(hash, home, name, owner) {
            return number;
        }
        let whose = Whose { home, name: name.into(), owner: owner.into() };
        let record = Record { whose, hash, remembered: Remembered::default(), bytes: 0, older: NIL, newer: NIL };
        let number = self.records.insert(record);
        self.index.insert(hash, number);
        number
    }

    /// Remembers an answer. `ended_ms` is the end of the owner's grant; `None` while the grant lives.
    pub fn answered(&mut self, (home, name, owner): (u32, &[u8], &[u8]), id: &[u8], answer: Answer, ended_ms: Option<u64>) {
        let number = self.find_or_make(home, name, owner);
        if let Some(record) = self.records.get_mut(number) {
            let answers = &mut record.remembered.answers;
            if answers.len() >= ANSWERS {
                answers.remove(0);
            }
            answers.push(Answered { id: id.into(), answer });
        }
        match ended_ms {
            None => self.revive(number),
            Some(ended_ms) => self.end(number, ended_ms),
        }
        self.news.push(News::Changed(number));
    }

    /// Records the end of an owner's grant of a name, at a time in monotonic milliseconds.
    #[inline]
    pub fn ended(&mut self, home: u32, name: &[u8], owner: &[u8], ended_ms: u64) {
        if let Some(number) = self.find(home, name, owner) {
            self.end(number, ended_ms);
            self.news.push(News::Changed(number));
        }
    }

    /// Replaces the token of an owner's grant in its remembered answers.
    pub fn retokened(&mut self, home: u32, name: &[u8], owner: &[u8], from: u64, to: u64) {
        if let Some(number) = self.find(home, name, owner)
            && let Some(record) = self.records.get_mut(number)
        {
            for answered in &mut record.remembered.answers {
                if answered.answer == Answer::Granted(from) {
                    answered.answer = Answer::Granted(to);
                }
            }
            self.news.push(News::Changed(number));
        }
    }

    /// Restores a record. Those of ended grants must come in the order in which they are forgotten.
    pub fn adopt(&mut self, whose: &Whose, remembered: Remembered) {
        let number = self.find_or_make(whose.home, &whose.name, &whose.owner);
        let forget_ms = remembered.forget_ms;
        self.revive(number);
        if let Some(record) = self.records.get_mut(number) {
            record.remembered = Remembered { forget_ms: 0, ..remembered };
        }
        if forget_ms != 0 {
            self.line_up(number, forget_ms);
        }
        self.news.push(News::Changed(number));
    }

    /// Forgets records that are due, at most `budget` of them.
    pub fn forget_some(&mut self, now_ms: u64, budget: &mut u32) {
        while *budget > 0 && self.next_ms() <= now_ms {
            *budget -= 1;
            self.forget(self.oldest);
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        let all: Vec<u32> = self.records.iter().map(|(number, _)| number).collect();
        all.into_iter().for_each(|number| self.forget(number));
    }

    /// Takes a record out of the line of the ended: its owner holds the name again.
    fn revive(&mut self, number: u32) {
        let Some(record) = self.records.get(number) else { return };
        if record.remembered.forget_ms != 0 {
            self.leave_line(number);
        }
    }

    fn end(&mut self, number: u32, ended_ms: u64) {
        self.revive(number);
        self.line_up(number, ended_ms.saturating_add(self.kept_ms));
        if self.records.get(number).is_some_and(|record| record.bytes > RECORD_MAX) {
            self.forgotten_early += 1;
            self.forget(number);
        }
        for step in 0..FORGOTTEN_AT_ONCE {
            // Two for one: a lowered bound takes effect step by step.
            let too_many = step < 2 && self.ended > self.ended_max;
            if !too_many && self.ended_bytes <= self.ended_max.saturating_mul(AVERAGE_MAX) {
                break;
            }
            self.forgotten_early += 1;
            self.forget(self.oldest);
        }
    }

    /// Appends a record to the line. One that ended before the last record of the line is kept as long as that.
    fn line_up(&mut self, number: u32, forget_ms: u64) {
        let last_ms = self.records.get(self.newest).map_or(0, |record| record.remembered.forget_ms);
        let newest = std::mem::replace(&mut self.newest, number);
        match self.records.get_mut(newest) {
            Some(record) => record.newer = number,
            None => self.oldest = number,
        }
        if let Some(record) = self.records.get_mut(number) {
            (record.older, record.newer) = (newest, NIL);
            record.remembered.forget_ms = forget_ms.max(last_ms).max(1);
            record.bytes = record.measure();
            self.ended_bytes += record.bytes;
        }
        self.ended += 1;
    }

    fn leave_line(&mut self, number: u32) {
        let Some(record) = self.records.get_mut(number) else { return };
        record.remembered.forget_ms = 0;
        self.ended_bytes -= record.bytes;
        let (older, newer) = (record.older, record.newer);
        (record.older, record.newer) = (NIL, NIL);
        match self.records.get_mut(older) {
            Some(record) => record.newer = newer,
            None => self.oldest = newer,
        }
        match self.records.get_mut(newer) {
            Some(record) => record.older = older,
            None => self.newest = older,
        }
        self.ended -= 1;
    }

    fn forget(&mut self, number: u32) {
        self.revive(number);
        if let Some(record) = self.records.try_remove(number) {
            self.index.remove(record.hash, number);
            self.news.push(News::Forgotten(record.whose));
        }
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self) {
        let (mut at, mut before, mut count, mut last_ms, mut bytes) = (self.oldest, NIL, 0, 0, 0);
        while let Some(record) = self.records.get(at) {
            let forget_ms = record.remembered.forget_ms;
            assert!(forget_ms != 0 && forget_ms >= last_ms, "the ended are forgotten in the order of their line");
            assert_eq!(record.older, before, "neighbours know each other");
            assert_eq!(record.bytes, record.measure(), "a record counts by its size");
            bytes += record.bytes;
            (before, at, count, last_ms) = (at, record.newer, count + 1, forget_ms);
        }
        assert_eq!((before, count), (self.newest, self.ended), "all are in line");
        assert_eq!(bytes, self.ended_bytes, "bytes are counted");
        assert_eq!(self.records.iter().filter(|(_, record)| record.remembered.forget_ms != 0).count(), count);
        for (number, record) in self.records.iter() {
            let Whose { home, name, owner } = &record.whose;
            assert_eq!(self.find(*home, name, owner), Some(number), "a record is found by whose it is");
            assert!((1..=ANSWERS).contains(&record.remembered.answers.len()), "a record has answers");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(requests: &mut Requests, owner: &str, id: &str, token: u64) {
        requests.answered((0, b"a", owner.as_bytes()), id.as_bytes(), Answer::Granted(token), None);
        requests.check_invariants();
    }

    fn token(requests: &Requests, owner: &str, id: &str) -> Option<u64> {
        requests.granted(0, b"a", owner.as_bytes(), id.as_bytes())
    }

    #[test]
    fn the_last_answers_are_kept_a_minute_longer_than_the_grant() {
        let mut requests = Requests::new(1);
        for n in 0..6 {
            granted(&mut requests, "x", &format!("r{n}"), n);
        }
        assert_eq!((0..6).filter_map(|n| token(&requests, "x", &format!("r{n}"))).collect::<Vec<_>>(), [2, 3, 4, 5]);
        assert_eq!(requests.next_ms(), u64::MAX);
        requests.answered((0, b"a", b"x"), b"r9", Answer::Released(0), Some(1000));
        assert_eq!((requests.released(0, b"a", b"x", b"r9"), requests.granted(0, b"a", b"x", b"r9")), (Some(0), None));
        assert_eq!(requests.released(1, b"a", b"x", b"r9"), None, "of another database");
        requests.forget_some(60_999, &mut 9);
        assert_eq!(token(&requests, "x", "r5"), Some(5));
        granted(&mut requests, "x", "r6", 6);
        requests.forget_some(61_000, &mut 9);
        assert_eq!(token(&requests, "x", "r6"), Some(6), "it is held again");
        requests.ended(0, b"a", b"x", 2000);
        requests.forget_some(62_000, &mut 9);
        requests.check_invariants();
        assert!(requests.is_empty());
    }

    #[test]
    fn the_first_ended_is_forgotten_where_there_are_too_many() {
        let mut requests = Requests::new(1);
        requests.set_bound(2);
        for (at, owner) in ["v", "w", "x", "y"].into_iter().enumerate() {
            granted(&mut requests, owner, "r", at as u64);
        }
        assert_eq!(requests.len(), 4, "those whose grants live do not count");
        for owner in ["x", "v", "w"] {
            requests.ended(0, b"a", owner.as_bytes(), 5);
            requests.check_invariants();
        }
        assert_eq!(["v", "w", "x", "y"].map(|owner| token(&requests, owner, "r").is_some()), [true, true, false, true]);
        assert_eq!(requests.forgotten_early, 1);
        requests.set_bound(0);
        requests.ended(0, b"a", b"y", 6);
        requests.check_invariants();
        assert_eq!(requests.len(), 0, "none may have any memory");
        requests.clear();
        requests.check_invariants();
        assert!(requests.is_empty());
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn long_names_are_bounded_by_their_bytes() {
        let mut requests = Requests::new(1);
        requests.set_bound(1000);
        let end = |requests: &mut Requests, at: usize, length: usize| {
            let name = format!("{at:0length$}");
            requests.answered((0, name.as_bytes(), b"x"), b"r", Answer::Granted(at as u64), None);
            requests.ended(0, name.as_bytes(), b"x", at as u64);
            requests.granted(0, name.as_bytes(), b"x", b"r").is_some()
        };
        assert!((0..1000).all(|at| end(&mut requests, at, 200)));
        requests.check_invariants();
        assert_eq!(requests.forgotten_early, 0, "ordinary ones are bounded by their number");
        assert!(!end(&mut requests, 1, 9000));
        assert_eq!((requests.ended, requests.forgotten_early), (1000, 1), "a very long one pushes no other out");
        assert!((0..1000).all(|at| end(&mut requests, at, 7000)));
        requests.check_invariants();
        assert!((65..75).contains(&requests.ended) && requests.ended_bytes <= 512_000, "{}", requests.ended);
    }
}
