//! The inputs of a server that loses its last writes when it ends: its state is rebuilt from those before.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::client::Command;
use crate::driver::connections::turn::Next;
use crate::driver::{Driver, Present};
use crate::keyspace::change::{Change, ChangeLog};
use crate::persist::natives::clock::BootClock;
use crate::torture::sim::net::ConnId;
use crate::torture::sim::server::{Open, Server, advance, connect, engine, now, take_turn};

/// The inputs of a server, from which its state can be rebuilt.
pub(super) struct Journal {
    began_us: u64,
    entries: Vec<(u64, u64, Entry)>,
    /// Number of changes so far.
    writes: Rc<Cell<u64>>,
}

pub(super) enum Entry {
    Connect(ConnId),
    /// The server has noticed that the connection is broken.
    Disconnect(ConnId),
    /// The client has closed the connection.
    Close(ConnId),
    Request(ConnId, Command),
    Tick,
    /// The server restarted.
    Start,
}

/// Counts the changes of an engine.
struct Writes(Rc<Cell<u64>>);

impl ChangeLog for Writes {
    fn record(&mut self, _: &Change<'_>) {}

    fn end_unit(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

impl Journal {
    /// A journal that begins at a true time.
    pub(super) fn new(began_us: u64) -> Journal {
        Journal { began_us, entries: Vec::new(), writes: Rc::default() }
    }

    /// Whether nothing has happened since it began.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets the last `lost` writes, and what came behind the first of them.
    pub(super) fn lose(&mut self, lost: u64) {
        let left = self.writes.get().saturating_sub(lost);
        let kept = self.entries.iter().position(|(_, writes, _)| *writes > left).unwrap_or(self.entries.len());
        self.entries.truncate(kept);
    }

    pub(super) fn note(&mut self, at_us: u64, entry: Entry) {
        self.entries.push((at_us, self.writes.get(), entry));
    }
}

impl Server {
    pub(super) fn count_writes(&mut self) {
        if let Some(journal) = &self.journal {
            self.driver.engine.keyspace_mut().changes.log = Some(Box::new(Writes(Rc::clone(&journal.writes))));
        }
    }

    pub(super) fn note(&mut self, at_us: u64, entry: impl FnOnce() -> Entry) {
        if let Some(journal) = &mut self.journal {
            journal.note(at_us, entry());
        }
    }

    /// Rebuilds the state of the server from the journal.
    pub(super) fn restore(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        let mut driver = Driver::new(engine(self.seed, journal.began_us));
        journal.writes = Rc::default();
        driver.engine.keyspace_mut().changes.log = Some(Box::new(Writes(Rc::clone(&journal.writes))));
        let mut sessions = Restored::default();
        let mut last_us = journal.began_us;
        for (at_us, writes, entry) in &mut journal.entries {
            let now = now(*at_us);
            let at = Present { now, ns: now.mono_us() * 1_000, frozen: false };
            match entry {
                Entry::Connect(conn) => {
                    let id = connect(&mut driver, now);
                    sessions.add(*conn, id);
                }
                Entry::Disconnect(conn) => sessions.remove(&mut driver, now, *conn),
                Entry::Close(conn) => sessions.arrives(&mut driver, *conn, |of| of.closed = true),
                Entry::Request(conn, command) => {
                    advance(&mut driver, at);
                    sessions.arrives(&mut driver, *conn, |of| of.input.extend_from_slice(command.wire()));
                }
                Entry::Tick => advance(&mut driver, at),
                Entry::Start => {
                    // As at a real start: before any grant, the next token is set above all tokens ever given.
                    driver.engine.keyspace_mut().first_token(now);
                    // The connections ended with the server, at the time of its last input.
                    for conn in sessions.all() {
                        sessions.remove(&mut driver, self::now(last_us), conn);
                    }
                }
            }
            driver.finish_batch(now, None);
            sessions.serve(&mut driver, at);
            *writes = journal.writes.get();
            last_us = *at_us;
        }
        self.driver = driver;
    }
}

/// A connection of a state that is rebuilt.
struct Connection {
    conn: ConnId,
    input: Vec<u8>,
    closed: bool,
}

/// The connections of a state that is rebuilt, whose clients hear nothing.
#[derive(Default)]
struct Restored {
    by_session: BTreeMap<SessionId, Connection>,
    ids: BTreeMap<ConnId, SessionId>,
}

impl Restored {
    fn add(&mut self, conn: ConnId, id: SessionId) {
        self.by_session.insert(id, Connection { conn, input: Vec::new(), closed: false });
        self.ids.insert(conn, id);
    }

    fn all(&self) -> Vec<ConnId> {
        self.ids.keys().copied().collect()
    }

    fn arrives(&mut self, driver: &mut Driver, conn: ConnId, what: impl FnOnce(&mut Connection)) {
        let Some((id, connection)) = self.ids.get(&conn).and_then(|id| Some((*id, self.by_session.get_mut(id)?))) else { return };
        what(connection);
        driver.wake(id);
    }

    fn remove(&mut self, driver: &mut Driver, at: Now, conn: ConnId) {
        if let Some(id) = self.ids.remove(&conn) {
            self.by_session.remove(&id);
            driver.remove_connection(at, id);
        }
    }

    fn serve(&mut self, driver: &mut Driver, at: Present) {
        while let Some(id) = driver.next_connection() {
            let Some(connection) = self.by_session.get_mut(&id) else { continue };
            let (conn, closed) = (connection.conn, connection.closed);
            match take_turn(driver, (at, BootClock::default()), id, &mut Open(&mut connection.input, closed), |_| ()) {
                Next::Wait => {}
                Next::Soon | Next::Later => driver.wake(id),
                Next::Close => {
                    self.remove(driver, at.now, conn);
                    driver.finish_batch(at.now, None);
                }
            }
        }
    }
}
