//! The inputs of a server that loses its last writes when it ends: its state is rebuilt from those before.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::client::Command;
use crate::driver::Driver;
use crate::keyspace::change::{Change, ChangeLog};
use crate::torture::plan::{Plan, Settings};
use crate::torture::sim::net::{ConnId, Net};
use crate::torture::sim::server::local::{Local, LocalId};
use crate::torture::sim::server::{Server, engine, hello};

/// The inputs of a server, from which its state can be rebuilt.
pub(super) struct Journal {
    began_us: u64,
    entries: Vec<(u64, u64, Vec<Entry>)>,
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

    pub(super) fn note(&mut self, at_us: u64, entries: Vec<Entry>) {
        self.entries.push((at_us, self.writes.get(), entries));
    }
}

impl Server {
    pub(super) fn count_writes(&mut self) {
        if let Some(journal) = &self.journal {
            self.driver.engine.keyspace_mut().changes.log = Some(Box::new(Writes(Rc::clone(&journal.writes))));
        }
    }

    pub(super) fn note(&mut self, at_us: u64, entries: Vec<Entry>) {
        if let Some(journal) = &mut self.journal {
            journal.note(at_us, entries);
        }
    }

    /// Rebuilds the state of the server from the journal. Clients hear nothing of that.
    pub(super) fn restore(&mut self) {
        let Some(mut journal) = self.journal.take() else { return };
        let mut net = Net::new(&Plan::draw(&Settings::default(), 0));
        let mut restored = Server::new(self.number, self.seed, false);
        restored.driver = Driver::new(engine(self.seed, journal.began_us));
        journal.writes = Rc::default();
        restored.driver.engine.keyspace_mut().changes.log = Some(Box::new(Writes(Rc::clone(&journal.writes))));
        let mut clients: BTreeMap<ConnId, LocalId> = BTreeMap::new();
        for (at_us, writes, entries) in &mut journal.entries {
            net.now_us = *at_us;
            restored.on(&mut net).wake(|serving| {
                entries.iter().for_each(|entry| serving.server.take_again(&mut clients, serving.net.now_us, entry));
            });
            *writes = journal.writes.get();
        }
        (self.driver, self.who) = (restored.driver, Vec::new());
        self.journal = Some(journal);
    }
}

impl Server {
    /// Takes an input of the server that is rebuilt.
    fn take_again(&mut self, clients: &mut BTreeMap<ConnId, LocalId>, at_us: u64, entry: &Entry) {
        let client = |conn: &ConnId| clients.get(conn).copied().unwrap_or_default();
        match entry {
            Entry::Connect(conn) => _ = clients.insert(*conn, self.open_local(Local::new(hello().wire().to_vec()))),
            Entry::Disconnect(conn) => self.act_on_local(client(conn), |client| client.broken = true),
            Entry::Close(conn) => self.act_on_local(client(conn), |client| client.ended = true),
            Entry::Request(conn, command) => {
                self.act_on_local(client(conn), |client| client.input.extend_from_slice(command.wire()));
            }
            Entry::Tick { fires: true } => self.driver.timer_fired(),
            Entry::Tick { fires: false } => {}
            Entry::Start => {
                let now = self.now(at_us);
                self.driver.engine.fail_over(now);
            }
        }
    }
}
