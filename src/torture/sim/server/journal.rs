//! The inputs of a server that loses its last writes when it ends: its state is rebuilt from those before.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::base::ids::SessionId;
use crate::client::Command;
use crate::driver::Driver;
use crate::keyspace::change::{Change, ChangeLog};
use crate::torture::sim::net::ConnId;
use crate::torture::sim::server::{Server, advance, connect, engine, execute, now};

/// The inputs of a server, from which its state can be rebuilt.
pub(super) struct Journal {
    began_us: u64,
    entries: Vec<(u64, u64, Entry)>,
    /// Number of changes so far.
    writes: Rc<Cell<u64>>,
}

pub(super) enum Entry {
    Connect(ConnId),
    Disconnect(ConnId),
    Request(ConnId, Command),
    Tick,
    /// The server restarted.
    Start,
}

/// Counts the changes of an engine.
struct Writes(Rc<Cell<u64>>);

impl ChangeLog for Writes {
    fn record(&mut self, _: &Change<'_>) {}

    fn commit(&mut self) {
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
            self.driver.engine.keyspace.changes.log = Some(Box::new(Writes(Rc::clone(&journal.writes))));
        }
    }

    pub(super) fn note(&mut self, at_us: u64, entry: impl FnOnce() -> Entry) {
        if let Some(journal) = &mut self.journal {
            journal.note(at_us, entry());
        }
    }

    /// Rebuilds the engine from the journal.
    pub(super) fn restore(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        let mut engine = engine(self.seed, journal.began_us);
        journal.writes = Rc::default();
        engine.keyspace.changes.log = Some(Box::new(Writes(Rc::clone(&journal.writes))));
        let mut sessions: BTreeMap<ConnId, SessionId> = BTreeMap::new();
        let mut last_us = journal.began_us;
        for (at_us, writes, entry) in &mut journal.entries {
            let at = now(*at_us);
            match entry {
                Entry::Connect(conn) => {
                    sessions.insert(*conn, connect(&mut engine, at));
                }
                Entry::Disconnect(conn) => {
                    if let Some(id) = sessions.remove(conn) {
                        engine.disconnect(at, id);
                    }
                }
                Entry::Request(conn, command) => {
                    if let Some(id) = sessions.get(conn) {
                        execute(&mut engine, at, *id, command);
                        engine.sessions[id.0 as usize].out.clear();
                    }
                }
                Entry::Tick => advance(&mut engine, at),
                Entry::Start => {
                    // As at a real start: before any grant, the next token is set above all tokens ever given.
                    engine.keyspace.first_token(at);
                    // The connections ended with the server, at the time of its last input.
                    for id in std::mem::take(&mut sessions).into_values() {
                        engine.disconnect(now(last_us), id);
                    }
                }
            }
            engine.take_actions();
            engine.take_dirty(&mut Vec::new());
            *writes = journal.writes.get();
            last_us = *at_us;
        }
        self.driver = Driver::new(engine);
    }
}
