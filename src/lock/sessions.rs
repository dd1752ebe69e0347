//! Named sessions: grants bound to a session outlive its connection by the session's grace, and another connection may take the
//! session over.
//!
//! ```text
//!   LOCK.SESSION id ─▶ attached ── its connection is seen to end ─▶ detached ── grace over, or END ─▶ ended, and its grants with it
//!                        ▲  │                                          │
//!                        │  └─ another server leads ─▶ unseen          │      a detached session without grants ends at once
//!                        │                               │             │      an unseen one ends with its last grant
//!                        └────── a connection names it ──┴─────────────┘
//! ```
//!
//! A session is *unseen* while nobody knows whether its connection lives: the connection was one to a former leader, or the leader
//! has closed it because it had no majority. Its client may still work, so its grants live until their leases end.

use std::collections::BTreeMap;

use crate::lock::grant::Client;

/// Maximum number of bytes of an id.
pub const ID_MAX: usize = 64;

/// A named session. Times are monotonic milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its id, chosen by its client.
    pub id: Box<[u8]>,
    /// The user that created it; only connections of that user may take it over.
    pub user: Box<[u8]>,
    /// How long its grants outlive its connection.
    pub grace_ms: u64,
    /// Its connection; `None` while it is detached or unseen.
    pub client: Option<Client>,
    /// The end of its grace; 0 unless it is detached.
    pub end_ms: u64,
    /// Number of grants bound to it.
    pub grants: u64,
}

impl Session {
    /// Whether it is not known if its connection lives.
    pub fn is_unseen(&self) -> bool {
        self.client.is_none() && self.end_ms == 0
    }
}

/// A change of a session, for the change log.
#[derive(Debug)]
pub enum News {
    /// The session with this number.
    Changed(u64),
    /// The session with this number and id has ended.
    Ended(u64, Box<[u8]>),
}

/// All named sessions. Their numbers are never reused.
#[derive(Default)]
pub struct Sessions {
    sessions: BTreeMap<u64, Session>,
    by_id: BTreeMap<Box<[u8]>, u64>,
    by_client: BTreeMap<u64, u64>,
    /// Number of unseen sessions.
    unseen: usize,
    /// Changes that were not taken yet.
    pub news: Vec<News>,
}

impl Sessions {
    /// Number of sessions.
    pub fn count(&self) -> usize {
        self.sessions.len()
    }

    /// Number of sessions of which it is not known if their connections live.
    pub fn unseen(&self) -> usize {
        self.unseen
    }

    /// All of them with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Session)> {
        self.sessions.iter().map(|(&number, session)| (number, session))
    }

    /// The sessions with this number or a larger one, in the order of numbers.
    pub fn iter_from(&self, number: u64) -> impl Iterator<Item = (u64, &Session)> {
        self.sessions.range(number..).map(|(&number, session)| (number, session))
    }

    /// A session by its number.
    pub fn get(&self, number: u64) -> Option<&Session> {
        self.sessions.get(&number)
    }

    /// The number of a session by its id.
    pub fn find(&self, id: &[u8]) -> Option<u64> {
        self.by_id.get(id).copied()
    }

    /// The number of a connection's session.
    pub fn of_client(&self, client: u64) -> Option<u64> {
        self.by_client.get(&client).copied()
    }

    /// Adds a session: attached if it has a connection, detached if it has an end, and unseen if it has neither.
    pub fn insert(&mut self, number: u64, session: Session) {
        self.unseen += usize::from(session.is_unseen());
        self.by_id.insert(session.id.clone(), number);
        if let Some(client) = session.client {
            self.by_client.insert(client.id, number);
        }
        self.sessions.insert(number, session);
        self.news.push(News::Changed(number));
    }

    /// Attaches a session to a connection that has none. The session's previous connection loses it.
    pub fn attach(&mut self, number: u64, client: Client, grace_ms: Option<u64>) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        self.unseen -= usize::from(session.is_unseen());
        if let Some(before) = session.client.replace(client) {
            self.by_client.remove(&before.id);
        }
        session.end_ms = 0;
        session.grace_ms = grace_ms.unwrap_or(session.grace_ms);
        self.by_client.insert(client.id, number);
        self.news.push(News::Changed(number));
    }

    /// Detaches a session from its connection. It ends at `end_ms`, in monotonic milliseconds.
    pub fn detach(&mut self, number: u64, end_ms: u64) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        if let Some(client) = session.client.take() {
            self.by_client.remove(&client.id);
        }
        session.end_ms = end_ms.max(1);
        self.news.push(News::Changed(number));
    }

    /// Takes the connection from a session without taking it for ended: from now on it is not known if the connection lives.
    pub fn lose_sight(&mut self, number: u64) {
        let Some(session) = self.sessions.get_mut(&number) else { return };
        if let Some(client) = session.client.take() {
            self.by_client.remove(&client.id);
            self.unseen += 1;
        }
    }

    /// Removes a session that ends.
    pub fn remove(&mut self, number: u64) -> Option<Session> {
        let session = self.sessions.remove(&number)?;
        self.unseen -= usize::from(session.is_unseen());
        self.by_id.remove(&session.id);
        if let Some(client) = session.client {
            self.by_client.remove(&client.id);
        }
        self.news.push(News::Ended(number, session.id.clone()));
        Some(session)
    }

    /// Counts a grant that is bound to a session. Returns false if the session does not exist.
    pub fn bind(&mut self, number: u64) -> bool {
        let session = self.sessions.get_mut(&number);
        session.map(|session| session.grants += 1).is_some()
    }

    /// Counts a grant less. Returns whether the session has neither grants nor a connection left.
    pub fn unbind(&mut self, number: u64) -> bool {
        let Some(session) = self.sessions.get_mut(&number) else { return false };
        session.grants -= 1;
        session.grants == 0 && session.client.is_none()
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self) {
        assert_eq!(self.by_id.len(), self.sessions.len(), "every session is found by its id");
        for (number, session) in &self.sessions {
            assert_eq!(self.by_id.get(&session.id), Some(number), "a session is found by its id");
            assert!(session.client.is_none() || session.end_ms == 0, "a session with a connection has no end");
            assert!(session.client.is_some() || session.grants > 0, "a session is worth keeping");
        }
        let attached = self.sessions.values().filter(|session| session.client.is_some()).count();
        assert_eq!(self.by_client.len(), attached, "a connection has one session");
        assert_eq!(
            self.unseen,
            self.sessions.values().filter(|session| session.is_unseen()).count(),
            "unseen sessions are counted"
        );
        for (client, number) in &self.by_client {
            let session = self.sessions.get(number).and_then(|session| session.client);
            assert!(session.is_some_and(|of| of.id == *client), "a connection's session knows it");
        }
    }
}
