//! What an engine has, in terms that a restart does not change: values, deadlines in Unix milliseconds, and leases in true time.

use std::collections::BTreeMap;

use portcullis::base::time::Now;
use portcullis::engine::Engine;
use portcullis::keyspace::rdb::dump::dump;
use portcullis::lock::grant::unpack;
use portcullis::lock::{Bound, Grant, Lock};
use portcullis::store::entry::ValueRef;
use portcullis::store::values::value::Value;
use portcullis::torture::sim::machine::ProcessClock;

/// A grant.
#[derive(Clone, Debug)]
pub struct Held {
    /// Owner, token, holds, mode, permits, and the session's number.
    what: (Vec<u8>, u64, u32, &'static str, u32, Bound),
    /// The end of its lease.
    end_us: u64,
}

/// A database's index and a key.
type Place = (u32, Vec<u8>);

/// The database, the lock and the owner of remembered answers.
type Asked = (u32, Vec<u8>, Vec<u8>);

/// The state of an engine after a batch.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Values of keys that are no locks, with their deadlines in Unix milliseconds.
    values: BTreeMap<Place, (Vec<u8>, Option<i64>)>,
    /// The grants of each lock.
    locks: BTreeMap<Place, Vec<Held>>,
    /// Remembered answers by database, lock and owner, and the time at which they are forgotten.
    requests: BTreeMap<Asked, (String, Option<u64>)>,
    /// Named sessions: number, grace period in milliseconds, and the end if there is no connection.
    sessions: BTreeMap<Vec<u8>, (u64, u64, Option<u64>)>,
    /// Sources of the libraries of functions.
    libraries: Vec<Vec<u8>>,
    /// The next fencing token; of a state that was not loaded, 0 if none was given before.
    pub next_token: u64,
}

/// What changes leases at a restart.
#[derive(Clone, Copy, Debug)]
pub struct Restart {
    /// When it ends.
    pub at_us: u64,
    /// The wall clock then.
    pub unix_ms: i64,
    /// By how much a lease may be longer than it was.
    pub late_us: u64,
    /// By how much earlier restarts have rounded leases up that are in the state: what is loaded may be as it was before them.
    pub rounded_us: u64,
}

/// Times are rounded to milliseconds several times: where they are written, and where they are read.
const ROUNDING_US: u64 = 20_000;
/// A named session has at least this time to come back.
const GRACE_MS: u64 = 5_000;

impl State {
    /// The state of an engine.
    pub fn of(engine: &mut Engine, now: Now, clock: &ProcessClock) -> State {
        let mut state = State::default();
        let held = |lock: &Lock| {
            let of = |grant: &Grant| Held {
                what: (grant.owner.to_vec(), grant.token, grant.holds, grant.mode.name(), grant.permits, grant.bound),
                end_us: clock.true_us(grant.end_ms),
            };
            lock.holders.iter().map(of).collect::<Vec<_>>()
        };
        for index in 0..2 {
            engine.keyspace_mut().db(index, now).scan(0, usize::MAX, |entry| {
                let place = (index, entry.key().to_vec());
                let bytes = match entry.value() {
                    ValueRef::Boxed(Value::Lock(lock)) => return drop(state.locks.insert(place, held(lock))),
                    ValueRef::Grant(bytes) => {
                        let mut lock = Lock::default();
                        lock.holders.insert(unpack(bytes).expect("a packed grant"));
                        return drop(state.locks.insert(place, held(&lock)));
                    }
                    ValueRef::Boxed(Value::Latch(left)) => format!("latch {left}").into_bytes(),
                    ValueRef::Boxed(Value::Guard(seen)) => format!("guard {seen}").into_bytes(),
                    value => dump(value, 0, |ms| now.unix_of(ms)),
                };
                state.values.insert(place, (bytes, entry.deadline().map(|ms| now.unix_of(ms))));
            });
        }
        let locks = engine.keyspace().changes.locks.as_ref().expect("locks");
        let at = |ms: u64| (ms != 0).then(|| clock.true_us(ms));
        for (whose, remembered) in locks.requests.iter() {
            let place = (locks.db_at_home(whose.home), whose.name.to_vec(), whose.owner.to_vec());
            let answers: Vec<_> = remembered.answers.iter().map(|answered| (&answered.id, &answered.answer)).collect();
            state.requests.insert(place, (format!("{answers:?}"), at(remembered.forget_ms)));
        }
        for (number, session) in locks.sessions.iter() {
            state.sessions.insert(session.id.to_vec(), (number, session.grace_ms, at(session.end_ms)));
        }
        state.libraries = engine.lua().functions.list().map(|library| library.source.to_vec()).collect();
        state.next_token = locks.next_token();
        state
    }

    /// The number after the largest token of its grants and sessions.
    pub fn after_tokens(&self) -> u64 {
        let grants = self.locks.values().flatten().map(|held| held.what.1);
        grants.chain(self.sessions.values().map(|(number, ..)| *number)).max().map_or(0, |token| token + 1)
    }

    /// Compares what was loaded with what was there when the batch was written.
    ///
    /// # Errors
    /// The first difference, in words.
    pub fn compare(&self, loaded: &State, restart: Restart) -> Result<(), String> {
        let past_us = restart.at_us + ROUNDING_US;
        // What ends about now may be there or not, as what had ended before the wall clock was set back.
        let ended_ms = restart.unix_ms + ((ROUNDING_US + restart.late_us) / 1000) as i64;
        let lives = |deadline: Option<i64>| deadline.is_none_or(|unix_ms| unix_ms > ended_ms);
        let values = |state: &State| {
            let alive = state.values.iter().filter(|(_, (_, deadline))| lives(*deadline));
            alive.map(|(place, value)| (place.clone(), value.clone())).collect::<BTreeMap<_, _>>()
        };
        let (there, here) = (values(self), values(loaded));
        if there != here {
            let differs = |place: &&Place| there.get(*place) != here.get(*place);
            let place = there.keys().chain(here.keys()).find(differs);
            return Err(place.map_or_else(String::new, |place| {
                format!("{}: {:?} became {:?}", text(place), there.get(place), here.get(place))
            }));
        }
        self.compare_locks(loaded, past_us, restart)?;
        for (place, (answers, forget_us)) in &self.requests {
            if forget_us.is_none_or(|at_us| at_us > past_us)
                && loaded.requests.get(place).is_none_or(|(other, _)| other != answers)
            {
                return Err(format!("requests of {place:?}: {answers} became {:?}", loaded.requests.get(place)));
            }
        }
        for (id, (number, grace_ms, end_us)) in &self.sessions {
            let binds =
                |held: &Held| held.end_us > past_us && matches!(held.what.5, Bound::Session(bound) if bound.get() == *number);
            // A session whose grants end has ended with the last of them.
            if end_us.is_some_and(|at_us| at_us <= past_us) || !self.locks.values().flatten().any(binds) {
                continue;
            }
            let least_us = restart.at_us + (*grace_ms).max(GRACE_MS) * 1000;
            match loaded.sessions.get(id) {
                Some((other, _, Some(until_us))) if other == number && *until_us >= least_us => {}
                other => return Err(format!("session {}: {number} became {other:?}", id.escape_ascii())),
            }
        }
        if let Some(id) = loaded.sessions.keys().find(|id| !self.sessions.contains_key(*id)) {
            return Err(format!("session {} came from nowhere", id.escape_ascii()));
        }
        if self.libraries != loaded.libraries {
            return Err("libraries of functions differ".to_owned());
        }
        if loaded.next_token < self.next_token {
            return Err(format!("the next token is {} and was {}", loaded.next_token, self.next_token));
        }
        Ok(())
    }

    fn compare_locks(&self, loaded: &State, past_us: u64, restart: Restart) -> Result<(), String> {
        let has_ended = |bound: u64| {
            let mut sessions = self.sessions.values();
            sessions.any(|(number, _, end_us)| *number == bound && end_us.is_some_and(|at_us| at_us <= past_us))
        };
        // What is bound to a connection ends with it, and what is bound to a session whose grace is over, with that.
        let live = |held: &&Held| {
            let bound_is_gone = match held.what.5 {
                Bound::Lease => false,
                Bound::Connection => true,
                Bound::Session(number) => has_ended(number.get()),
            };
            held.end_us > past_us && !bound_is_gone
        };
        for place in self.locks.keys().chain(loaded.locks.keys()) {
            let of = |state: &State| state.locks.get(place).cloned().unwrap_or_default();
            let (there, here) = (of(self), of(loaded));
            for held in there.iter().filter(live) {
                let lease = here.iter().find(|other| other.what == held.what).map(|other| other.end_us);
                // Neither early nor longer than it was.
                let promised_us = held.end_us - restart.rounded_us;
                let latest_us = held.end_us + restart.late_us + ROUNDING_US;
                if lease.is_none_or(|end_us| end_us < promised_us || end_us > latest_us) {
                    let sessions = (&self.sessions, &loaded.sessions);
                    return Err(format!("{}: {held:?} became {here:?}, {restart:?}, sessions {sessions:?}", text(place)));
                }
            }
            // One that had ended before the wall clock was set back may be there again, unless another was granted.
            let came_back = |other: &Held| there.is_empty() && other.end_us <= past_us + restart.late_us;
            let expected = |other: &&Held| !came_back(other) && !there.iter().any(|held| held.what == other.what);
            if let Some(other) = here.iter().find(expected) {
                return Err(format!("{}: {other:?} came from nowhere", text(place)));
            }
        }
        Ok(())
    }
}

fn text(place: &Place) -> String {
    format!("{} in database {}", place.1.escape_ascii(), place.0)
}
