//! Session grants of connections of which nobody knows whether they live.
//!
//! A `SESSION` ends a grant early only when a leader has seen the end of its connection. After a change of leader nobody has seen
//! anything: the connection to the old leader may live, and its holder may work. The same holds if a leader without a majority closes
//! its connections. Such a grant is *unseen*. It lives until its lease ends or it is released, or until its owner has come back on
//! another connection, to which it is bound from then on.

use super::{Found, Keys, Locks};
use crate::base::ids::Key;
use crate::base::time::Now;
use crate::lock::grant::{Bound, Client, Grant};
use crate::lock::holders::Lock;

impl Locks {
    /// Whether there may be unseen grants.
    #[inline]
    pub fn has_unseen(&self) -> bool {
        !self.unseen.is_empty() || self.sessions.unseen() > 0
    }

    /// Whether it is not known if this connection lives, which has session grants.
    pub fn is_unseen(&self, client: u64) -> bool {
        self.unseen.contains(&client)
    }

    /// Makes the grants of a connection unseen, and those of its named session: the connection is about to be closed, and its client
    /// may not learn of that. A session without grants ends.
    pub fn lose_sight(&mut self, client: u64) {
        if let Some(number) = self.sessions.of_client(client) {
            if self.sessions.get(number).is_some_and(|session| session.grants == 0) {
                self.end_named(number);
            } else {
                self.sessions.lose_sight(number);
            }
        }
        if self.has_bound(client) {
            self.unseen.insert(client);
        }
    }

    /// Binds an unseen grant of an owner to the connection on which the owner has come back: to its named session if it has one. A
    /// connection without a session takes over the session of the grant, if that is one of the same `user`.
    pub fn come_back(&mut self, keys: &mut impl Keys, now: Now, key: Key<'_>, owner: &[u8], (by, user): (Client, &[u8])) {
        let mut lock = Lock::default();
        if self.load(keys, now, key, &mut lock) != Found::Lock {
            return;
        }
        let unseen = lock.holders.get(owner).filter(|grant| self.is_unseen_grant(grant)).cloned();
        let Some(before) = unseen else { return keys.put_back(key, &mut lock) };
        if let Bound::Session(number) = before.bound
            && self.sessions.of_client(by.id).is_none()
            && self.sessions.get(number.get()).is_some_and(|session| *session.user == *user)
        {
            self.sessions.attach(number.get(), by, None);
            return keys.put_back(key, &mut lock);
        }
        let bound = self.bound_of(by);
        let after = lock.holders.find(owner).and_then(|holder| {
            lock.holders.change(holder, |grant| {
                grant.bound = bound;
                grant.move_to(by);
                grant.clone()
            })
        });
        if let Some(after) = after {
            self.rebind(key, &before, &after);
        }
        self.store(keys, key, &mut lock);
    }

    /// Whether a grant ends with a connection, or with that of its session, and it is not known if that connection lives.
    pub fn is_unseen_grant(&self, grant: &Grant) -> bool {
        match grant.bound {
            Bound::Lease => false,
            Bound::Connection => self.is_unseen(grant.client.id),
            Bound::Session(number) => self.sessions.get(number.get()).is_some_and(|session| session.is_unseen()),
        }
    }
}
