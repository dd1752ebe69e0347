//! The inputs of a server that loses its last writes when it ends: its state is rebuilt from those before.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::base::ids::SessionId;
use crate::client::Command;
use crate::driver::Driver;
use crate::driver::round::Rounds;
use crate::driver::round::adapter::Adapter;
use crate::keyspace::change::{Change, ChangeLog};
use crate::torture::plan::{Plan, Settings};
use crate::torture::sim::net::{ConnId, Net};
use crate::torture::sim::server::noise::Noise;
use crate::torture::sim::server::serving::Serving;
use crate::torture::sim::server::{Server, engine};

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
    /// A round. `fires`: the timer has fired.
    Tick {
        fires: bool,
    },
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

    /// Rebuilds the state of the server from the journal. Clients hear nothing of that.
    pub(super) fn restore(&mut self) {
        let Some(mut journal) = self.journal.take() else { return };
        let mut net = Net::new(&Plan::draw(&Settings::default(), 0));
        let mut restored = Server::new(self.number, self.seed, false);
        restored.driver = Driver::new(engine(self.seed, journal.began_us));
        restored.noise = Some(Noise::silent());
        journal.writes = Rc::default();
        restored.driver.engine.keyspace_mut().changes.log = Some(Box::new(Writes(Rc::clone(&journal.writes))));
        let mut ids: BTreeMap<ConnId, SessionId> = BTreeMap::new();
        for (at_us, writes, entry) in &mut journal.entries {
            let last_us = std::mem::replace(&mut net.now_us, *at_us);
            let mut on = restored.on(&mut net);
            match entry {
                Entry::Connect(conn) => {
                    let id = on.accept(None);
                    on.server.noise.iter_mut().for_each(|noise| noise.add(id));
                    ids.insert(*conn, id);
                }
                Entry::Disconnect(conn) => on.close(ids.remove(conn)),
                Entry::Close(conn) => on.hear(ids.get(conn), None),
                Entry::Request(conn, command) => on.hear(ids.get(conn), Some(command.wire())),
                Entry::Tick { fires: true } => on.driver().timer_fired(),
                Entry::Tick { fires: false } => {}
                Entry::Start => {
                    // As at a real start: before any grant, the next token is set above all tokens ever given.
                    let now = on.now();
                    on.driver().engine.keyspace_mut().first_token(now);
                    // The connections ended with the server, at the time of its last input.
                    on.net.now_us = last_us;
                    std::mem::take(&mut ids).into_values().for_each(|id| on.close(Some(id)));
                    on.net.now_us = *at_us;
                }
            }
            on.serve();
            *writes = journal.writes.get();
        }
        (self.driver, self.conns) = (restored.driver, restored.conns);
        self.journal = Some(journal);
    }
}

impl Serving<'_> {
    /// The connection of a client of a state that is rebuilt ends, if the server has not closed it.
    fn close(&mut self, id: Option<SessionId>) {
        let is_open = |id: &SessionId| self.server.noise.as_ref().is_some_and(|noise| noise.has(*id));
        id.filter(is_open).into_iter().for_each(|id| self.close_connection(id));
    }

    /// A client of a state that is rebuilt sends something, or the end of its input.
    fn hear(&mut self, id: Option<&SessionId>, input: Option<&[u8]>) {
        // The server may have closed the connection.
        let Some(&id) = id else { return };
        self.server.noise.iter_mut().for_each(|noise| noise.send(id, input));
        self.server.driver.wake(id);
    }
}
