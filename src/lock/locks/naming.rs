//! Named sessions: how connections name them, and how they and their grants end.

use super::{Keys, LockTimer, Locks};
use crate::base::ids::Key;
use crate::base::time::Now;
use crate::lock::grant::{Bound, Client, Grant, SessionNumber};
use crate::lock::sessions::Session;

/// The session belongs to another user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedByOtherUser;

impl Locks {
    /// Attaches the connection to the named session with this id, and creates the session if it does not exist. Without `grace_ms`,
    /// the session keeps its grace; a new one has none. Returns the number of its grants.
    pub fn name_session(
        &mut self,
        now: Now,
        client: Client,
        (id, user): (&[u8], &[u8]),
        grace_ms: Option<u64>,
    ) -> Result<u64, OwnedByOtherUser> {
        let known = self.sessions.find(id);
        if let Some(session) = known.and_then(|number| self.sessions.get(number))
            && *session.user != *user
        {
            return Err(OwnedByOtherUser);
        }
        let before = self.sessions.of_client(client.id);
        if before.is_some() && before != known {
            self.leave_session(now, client.id);
        }
        let Some(number) = known else {
            let (id, user, grace_ms) = (id.into(), user.into(), grace_ms.unwrap_or(0));
            let number = self.next_token;
            self.next_token += 1;
            self.sessions.insert(number, Session { id, user, grace_ms, client: Some(client), end_ms: 0, grants: 0 });
            return Ok(0);
        };
        self.drop_deadline(number);
        self.sessions.attach(number, client, grace_ms);
        Ok(self.sessions.get(number).map_or(0, |session| session.grants))
    }

    /// Ends the session with an id and its grants, within `budget`; [`Locks::end_due`] ends the remaining ones. Returns the
    /// number of grants it had.
    pub fn end_session(
        &mut self,
        keys: &mut impl Keys,
        now: Now,
        (id, user): (&[u8], &[u8]),
        budget: &mut u32,
    ) -> Result<u64, OwnedByOtherUser> {
        let Some(number) = self.sessions.find(id) else { return Ok(0) };
        let Some(session) = self.sessions.get(number) else { return Ok(0) };
        fail_if!(*session.user != *user, OwnedByOtherUser);
        let grants = session.grants;
        self.end_named(number);
        self.end_over(keys, now, budget);
        Ok(grants)
    }

    /// Handles a connection that has ended or names another session: the grace of its session begins. A session without a grace
    /// or without grants ends.
    pub fn leave_session(&mut self, now: Now, client: u64) {
        let Some(number) = self.sessions.of_client(client) else { return };
        let Some(session) = self.sessions.get(number) else { return };
        if session.grants == 0 || session.grace_ms == 0 {
            self.end_named(number);
            return;
        }
        let end_ms = now.deadline_in(session.grace_ms);
        self.sessions.detach(number, end_ms);
        self.deadlines.insert((end_ms, LockTimer::Session(number)));
        self.update_next();
    }

    /// The bound of a grant that a connection asks for: its named session, or else the connection.
    pub fn bound_of(&self, client: Client) -> Bound {
        self.sessions.of_client(client.id).map_or(Bound::Connection, |number| Bound::Session(SessionNumber::new(number)))
    }

    /// The bound that a grant can have now: the connection, where the session has ended or has no connection.
    #[inline]
    pub(super) fn usable(&self, bound: Bound) -> Bound {
        match bound {
            Bound::Session(number) if self.sessions.get(number.get()).is_none_or(|session| session.client.is_none()) => {
                Bound::Connection
            }
            bound => bound,
        }
    }

    /// The connection that a grant belongs to: the one that acquired it, or the current one of its session.
    pub fn client_of(&self, grant: &Grant) -> Client {
        match grant.bound {
            Bound::Session(number) => match self.sessions.get(number.get()) {
                Some(session) => session.client.unwrap_or_default(),
                None => grant.client,
            },
            _ => grant.client,
        }
    }

    /// Registers a grant of this name with its connection or session.
    #[inline(always)]
    pub(super) fn bind(&mut self, key: Key<'_>, grant: &Grant) {
        // Most grants end with their leases alone.
        if let Some(to) = grant.bound.key(grant.client) {
            self.bind_to(to, key, grant);
        }
    }

    fn bind_to(&mut self, to: u64, key: Key<'_>, grant: &Grant) {
        self.bound.insert((to, grant.token), self.at_home(key).to_buf());
        if let Bound::Session(number) = grant.bound {
            self.sessions.bind(number.get());
        }
    }

    /// Unregisters a grant from its connection or session: it has ended, or has another token.
    pub(super) fn unbind(&mut self, grant: &Grant) {
        let Some(key) = grant.bound.key(grant.client) else { return };
        if self.bound.remove(&(key, grant.token)).is_some() {
            self.unbound(key);
        }
    }

    /// Handles the removal of a grant from its connection or session. A session without grants and without a connection ends.
    pub(super) fn unbound(&mut self, key: u64) {
        match Bound::session_of_key(key) {
            Some(number) if self.sessions.unbind(number) => self.end_named(number),
            None if !self.unseen.is_empty() && !self.has_bound(key) => _ = self.unseen.remove(&key),
            _ => {}
        }
    }

    /// Ends a session; [`Locks::end_over`] ends its grants.
    pub(super) fn end_named(&mut self, number: u64) {
        self.drop_deadline(number);
        let client = self.sessions.remove(number).and_then(|session| session.client);
        let key = Bound::session_key(number);
        if self.has_bound(key) {
            self.stats.session_ends_held += 1;
            self.ended_sessions.push_back((key, client));
            self.update_next();
        }
    }

    /// Ends grants of ended sessions, at most `budget` of them.
    pub fn end_over(&mut self, keys: &mut impl Keys, now: Now, budget: &mut u32) {
        while *budget > 0
            && let Some(&over) = self.ended_sessions.front()
        {
            if self.end_bound_to(keys, now, over, budget) {
                self.ended_sessions.pop_front();
            }
        }
        self.update_next();
    }

    fn drop_deadline(&mut self, number: u64) {
        let end_ms = self.sessions.get(number).map_or(0, |session| session.end_ms);
        if end_ms != 0 {
            self.deadlines.remove(&(end_ms, LockTimer::Session(number)));
            self.update_next();
        }
    }
}
