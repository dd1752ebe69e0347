//! Outboxes: the replies and pushes of a session that are not written to its socket yet.
//!
//! A request replies straight into its session's outbox. The engine cannot lend out the outbox while it is part of the engine, so
//! the outbox is taken from the session before the first request of a batch, and returned after the last. Pushes to the session
//! meanwhile gather in the empty outbox that the session keeps, and follow the reply.

use crate::base::ids::SessionId;
use crate::engine::Engine;

/// The outbox of a session, taken from it while the session's requests run.
#[derive(Debug)]
pub struct Outbox {
    /// The session.
    pub session: SessionId,
    /// The replies so far.
    pub bytes: Vec<u8>,
}

impl Outbox {
    /// Returns the outbox to its session, calls `act`, which needs it there, and takes it again.
    pub fn in_place<T>(&mut self, engine: &mut Engine, act: impl FnOnce(&mut Engine) -> T) -> T {
        self.put_back(engine);
        let result = act(engine);
        self.take_again(engine);
        result
    }

    /// Returns the outbox to its session. What was pushed to the session meanwhile follows it.
    #[inline]
    pub fn put_back(&mut self, engine: &mut Engine) {
        let session = &mut engine.clients.sessions[self.session];
        let pushed = std::mem::replace(&mut session.out, std::mem::take(&mut self.bytes));
        session.out.extend_from_slice(&pushed);
    }

    /// Discards the reply that begins there. Out of the way of the requests whose reply is sent.
    #[cold]
    #[inline(never)]
    pub(super) fn discard_reply(&mut self, start: usize) {
        self.bytes.truncate(start);
    }

    /// Takes the outbox again after [`Outbox::put_back`].
    #[inline]
    pub fn take_again(&mut self, engine: &mut Engine) {
        self.bytes = std::mem::take(&mut engine.clients.sessions[self.session].out);
    }
}

impl Engine {
    /// Takes a session's outbox, so that its requests reply into it. [`Outbox::put_back`] must follow.
    #[inline]
    pub fn take_outbox(&mut self, session: SessionId) -> Outbox {
        Outbox { session, bytes: std::mem::take(&mut self.clients.sessions[session].out) }
    }
}
