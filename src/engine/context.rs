//! The context of a command handler: the engine, the instant, the session, and the reply.

use crate::base::ids::{Key, SessionId};
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::session::{Session, SessionFlags};
use crate::keyspace::databases::Db;
use crate::resp::reply::Sink;

/// Who called a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A session, directly.
    Client,
    /// A script that a session runs.
    Script,
}

/// One call of one command.
pub struct Context<'a> {
    /// The whole engine.
    pub engine: &'a mut Engine,
    /// The instant. It does not change while the command (or its script) runs.
    pub now: Now,
    /// The calling session.
    pub session: SessionId,
    /// The selected database: the session's, or the script's own after a `SELECT` in it.
    pub db: u32,
    /// How it was called.
    pub caller: Caller,
    /// The row of the command.
    pub command: &'static Command,
    /// The number of the command's slot in [`Engine::command_stats`].
    pub stats_slot: usize,
    /// Receives the reply. A handler that returns an error must not have written to it.
    pub reply: &'a mut dyn Sink,
}

impl Context<'_> {
    /// The selected database.
    #[inline]
    pub fn db(&mut self) -> Db<'_> {
        self.db_at(self.db)
    }

    /// Another database; the index must be below `databases`.
    #[inline]
    pub fn db_at(&mut self, index: u32) -> Db<'_> {
        let touch = !self.engine.clients.sessions[self.session].flags.contains(SessionFlags::NO_TOUCH);
        let mut db = self.engine.keyspace.db(index, self.now);
        db.touch = touch;
        db
    }

    /// The selected database and the reply, for writing values without copying them.
    #[inline]
    pub fn db_and_reply(&mut self) -> (Db<'_>, &mut dyn Sink) {
        let touch = !self.engine.clients.sessions[self.session].flags.contains(SessionFlags::NO_TOUCH);
        let mut db = self.engine.keyspace.db(self.db, self.now);
        db.touch = touch;
        (db, &mut *self.reply)
    }

    /// The key of this name in the request's database.
    pub fn key<'n>(&self, name: &'n [u8]) -> Key<'n> {
        Key { db: self.db, name }
    }

    /// As [`Context::db`] for a command that may write locks of Redis clients: notes with them who wrote them. The name and the
    /// address of the client are remembered when its connection ends.
    #[inline]
    pub fn db_noting_writer(&mut self) -> Db<'_> {
        self.db_noting_writer_and_reply(true).0
    }

    /// As [`Context::db_and_reply`], and as [`Context::db_noting_writer`] if the command `may_lock`.
    #[inline]
    pub fn db_noting_writer_and_reply(&mut self, may_lock: bool) -> (Db<'_>, &mut dyn Sink) {
        let session = &mut self.engine.clients.sessions[self.session];
        let mut writer = 0;
        if may_lock {
            session.flags |= SessionFlags::ACQUIRED;
            writer = session.id as u32;
        }
        let touch = !session.flags.contains(SessionFlags::NO_TOUCH);
        let mut db = self.engine.keyspace.db(self.db, self.now);
        (db.touch, db.writer) = (touch, writer);
        (db, &mut *self.reply)
    }

    /// The calling session.
    pub fn session(&mut self) -> &mut Session {
        &mut self.engine.clients.sessions[self.session]
    }
}
