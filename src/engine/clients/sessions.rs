//! All sessions of an engine, by [`SessionId`].
//!
//! A session's number is its place in a slab, and is used again when the session has ended. The generation is the lower half of the
//! client's id, which counts connections: it needs no memory of its own, and repeats only after four billion connections.

use std::ops::{Index, IndexMut};

use slab::Slab;

use crate::base::ids::SessionId;
use crate::engine::session::{Peer, Session};

/// The sessions. Indexing is for a session that is being served; [`Sessions::get`] is for an id that was kept and may be stale.
#[derive(Debug)]
pub struct Sessions {
    all: Slab<Session>,
    /// The id of the next client.
    next_client: u64,
}

impl Default for Sessions {
    fn default() -> Self {
        Sessions { all: Slab::new(), next_client: 1 }
    }
}

const fn id_of(number: usize, session: &Session) -> SessionId {
    SessionId::new(number as u32, session.id as u32)
}

impl Sessions {
    /// Adds a session of a new client.
    pub(in crate::engine) fn add(&mut self, peer: Peer, now_ms: u64) -> SessionId {
        let session = Session::new(self.next_client, peer, now_ms);
        self.next_client += 1;
        let generation = session.id as u32;
        SessionId::new(self.all.insert(session) as u32, generation)
    }

    /// Removes a session. Its id finds nothing from now on.
    pub(in crate::engine) fn remove(&mut self, id: SessionId) -> Option<Session> {
        self.get(id)?;
        self.all.try_remove(id.index())
    }

    /// The session, unless it has ended.
    #[inline]
    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.all.get(id.index()).filter(|session| session.id as u32 == id.generation())
    }

    /// The session, unless it has ended.
    #[inline]
    pub fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.all.get_mut(id.index()).filter(|session| session.id as u32 == id.generation())
    }

    /// Whether the session has not ended.
    pub fn contains(&self, id: SessionId) -> bool {
        self.get(id).is_some()
    }

    /// The session of a client. Visits all sessions.
    pub fn find(&self, client: u64) -> Option<SessionId> {
        self.iter().find(|(_, session)| session.id == client).map(|(id, _)| id)
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// All sessions.
    pub fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.all.iter().map(|(number, session)| (id_of(number, session), session))
    }

    /// All sessions, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (SessionId, &mut Session)> {
        self.all.iter_mut().map(|(number, session)| (id_of(number, session), session))
    }

    /// The ids of the sessions that a filter lets through.
    pub fn ids(&self, filter: impl Fn(&Session) -> bool) -> Vec<SessionId> {
        self.iter().filter(|(_, session)| filter(session)).map(|(id, _)| id).collect()
    }
}

impl Index<SessionId> for Sessions {
    type Output = Session;

    #[inline]
    fn index(&self, id: SessionId) -> &Session {
        let session = &self.all[id.index()];
        debug_assert_eq!(session.id as u32, id.generation(), "the session that is served has not ended");
        session
    }
}

impl IndexMut<SessionId> for Sessions {
    #[inline]
    fn index_mut(&mut self, id: SessionId) -> &mut Session {
        let session = &mut self.all[id.index()];
        debug_assert_eq!(session.id as u32, id.generation(), "the session that is served has not ended");
        session
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::base::error::Error;
    use crate::base::ids::SessionId;
    use crate::engine::clients::sessions::Sessions;
    use crate::engine::harness::Harness;

    #[test]
    fn a_number_that_is_used_again_does_not_lead_to_the_new_session() {
        let mut sessions = Sessions::default();
        let first = sessions.add(Default::default(), 0);
        assert_eq!(sessions.remove(first).unwrap().id, 1);
        assert!(sessions.remove(first).is_none());
        let second = sessions.add(Default::default(), 0);
        assert_eq!(second.number(), first.number());
        assert_ne!(second, first);
        assert!(sessions.get(first).is_none() && sessions.get_mut(first).is_none() && !sessions.contains(first));
        assert!(sessions.remove(first).is_none(), "a stale id ends no session");
        assert_eq!(sessions[second].id, 2);
        assert_eq!(sessions.find(2), Some(second));
        assert_eq!(sessions.iter().map(|(id, _)| id).collect::<Vec<_>>(), [second]);
    }

    #[test]
    fn an_id_survives_the_way_through_one_word() {
        for id in [SessionId::new(0, 0), SessionId::new(7, u32::MAX), SessionId::new(u32::MAX, 1)] {
            assert_eq!(SessionId::from_bits(id.to_bits()), id);
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "has not ended")]
    fn a_stale_id_is_not_served() {
        let mut sessions = Sessions::default();
        let first = sessions.add(Default::default(), 0);
        sessions.remove(first);
        sessions.add(Default::default(), 0);
        let _ = &sessions[first];
    }

    #[test]
    fn what_is_meant_for_a_session_that_has_ended_reaches_nobody() {
        let mut h = Harness::new();
        let first = h.engine.connect(h.now, Default::default());
        h.engine.disconnect(h.now, first);
        let second = h.engine.connect(h.now, Default::default());
        assert_eq!(second.number(), first.number(), "the number is used again");
        h.engine.execute(h.now, second, &[b"BLPOP", b"k", b"0"]);
        h.engine.take_pending_writes(&mut Vec::new());
        // All that the driver and the server may still hold for the first one.
        assert!(!h.engine.unblock(h.now, first, Some(&Error::UNBLOCKED)));
        h.engine.end_wait_for_driver(h.now, first, None);
        h.engine.mark_pending_write(first);
        crate::engine::pubsub::push_to(&mut h.engine, first, b"+secret\r\n");
        let mut pending_writes = Vec::new();
        h.engine.take_pending_writes(&mut pending_writes);
        assert_eq!(pending_writes, [], "no session has anything to write");
        assert_eq!(h.engine.clients.sessions[second].out, b"");
        h.engine.disconnect(h.now, first);
        assert!(h.engine.clients.sessions.contains(second), "the end of the first is not that of the second");
        h.engine.check_invariants();
    }
}
