//! Adoption of existing locks: from a snapshot, or from the state that a restarted server still knows.

use super::{Keys, LockTimer, Locks};
use crate::base::ids::Key;
use crate::base::time::Now;
use crate::lock::grant::Grant;
use crate::lock::grant::{Bound, Client, Owner, Reason};
use crate::lock::holders::{Holders, Lock};
use crate::lock::requests::{Remembered, Whose};
use crate::lock::sessions::Session;

/// What is known of the connection of an adopted grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It lives.
    Lives,
    /// It has ended.
    Gone,
    /// It is not known if it lives.
    Unknown,
}

impl Fate {
    /// The fate of a connection that lives, or has ended.
    pub fn of(lives: bool) -> Fate {
        if lives { Fate::Lives } else { Fate::Gone }
    }
}

impl Locks {
    /// Stores a lock under a free name. Grants that end with connections or sessions end now if those are gone: named sessions
    /// must be adopted first. Where `fate` does not know of a connection, the grant is unseen. Later tokens are larger than those in
    /// the lock.
    pub fn adopt(&mut self, keys: &mut impl Keys, now: Now, key: Key<'_>, lock: Lock, fate: impl Fn(Client) -> Fate) {
        let mut kept = Lock { holders: Holders::default(), ..lock };
        let mut ended: Vec<Owner> = Vec::new();
        for grant in lock.holders.iter() {
            self.set_next_token(grant.token + 1);
            self.bind(key, grant);
            let lives = match grant.bound {
                Bound::Lease => true,
                Bound::Connection => match fate(grant.client) {
                    Fate::Lives => true,
                    Fate::Gone => false,
                    Fate::Unknown => {
                        self.unseen.insert(grant.client.id);
                        true
                    }
                },
                Bound::Session(number) => self.sessions.get(number.get()).is_some(),
            };
            if !lives {
                ended.push(grant.owner.clone());
            }
            kept.holders.insert(grant.clone());
            self.held.granted(key, &kept, grant.permits, grant.granted_ms);
            if grant.renewed > 0 {
                self.held.renewed(key.db);
            }
        }
        for owner in ended {
            if let Some(grant) = kept.holders.remove(&owner) {
                self.stats.session_ends += 1;
                self.lose(keys, now, key, &mut kept, grant, Reason::Session);
            }
        }
        self.store(keys, key, &mut kept);
    }

    /// Whether a grant with the token of this one is already bound to the same session. Adopting both would lose one of them.
    pub fn is_bound(&self, grant: &Grant) -> bool {
        grant.bound.key(grant.client).is_some_and(|key| self.bound.contains_key(&(key, grant.token)))
    }

    /// Restores a named session; its grants are adopted later. It has a live connection or an end, or it is unseen.
    pub fn adopt_session(&mut self, number: u64, session: Session) {
        self.set_next_token(number + 1);
        if session.end_ms != 0 {
            self.deadlines.insert((session.end_ms, LockTimer::Session(number)));
            self.update_next();
        }
        self.sessions.insert(number, Session { grants: 0, ..session });
    }

    /// Restores remembered requests. Those of ended grants must come in the order in which they are forgotten.
    pub fn adopt_requests(&mut self, whose: &Whose, remembered: Remembered) {
        self.requests.adopt(whose, remembered);
    }

    /// Completes the adoption. Sessions with neither grants nor a connection end. Requests whose grants were lost on the way get
    /// a time at which they are forgotten.
    pub fn finish_adopting(&mut self, keys: &mut impl Keys, now: Now) {
        let idle = self.sessions.iter().filter(|(_, session)| session.client.is_none() && session.grants == 0);
        for number in idle.map(|(number, _)| number).collect::<Vec<_>>() {
            self.end_named(number);
        }
        let lives = |whose: &Whose, keys: &mut _, locks: &mut Locks| {
            locks.look(keys, now, Key { db: locks.db_at_home(whose.home), name: &whose.name }, |lock| {
                lock.is_some_and(|lock| lock.holders.get(&whose.owner).is_some())
            })
        };
        let held = self.requests.iter().filter(|(_, remembered)| remembered.forget_ms == 0);
        for whose in held.map(|(whose, _)| whose.clone()).collect::<Vec<_>>() {
            if !lives(&whose, keys, self) {
                self.requests.ended(whose.home, &whose.name, &whose.owner, now.mono_ms());
            }
        }
        self.end_over(keys, now, &mut { u32::MAX });
    }

    /// Forgets all requests and ends all named sessions, whose grants must be gone already.
    pub fn forget_all(&mut self) {
        self.requests.clear();
        for number in self.sessions.iter().map(|(number, _)| number).collect::<Vec<_>>() {
            self.end_named(number);
        }
        self.update_next();
    }
}
