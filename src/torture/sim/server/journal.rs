//! The inputs of a server that loses its last writes when it ends: its state is rebuilt from those before.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::client::Command;
use crate::driver::connections::turn::{Next, Turn};
use crate::driver::round::{Adapter, Line, Rounds, take_turn};
use crate::driver::{Demands, Driver};
use crate::engine::Action;
use crate::keyspace::change::{Change, ChangeLog};
use crate::persist::append::manifest::Manifest;
use crate::persist::natives::clock::BootClock;
use crate::torture::sim::net::ConnId;
use crate::torture::sim::server::serving::busy_clock;
use crate::torture::sim::server::{Server, connect, engine, now};

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

    /// Rebuilds the state of the server from the journal.
    pub(super) fn restore(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        journal.writes = Rc::default();
        let mut driver = Driver::new(engine(self.seed, journal.began_us));
        driver.engine.keyspace_mut().changes.log = Some(Box::new(Writes(Rc::clone(&journal.writes))));
        let mut restored = Restored { driver, now: now(journal.began_us), connections: BTreeMap::new(), ids: BTreeMap::new() };
        for (at_us, writes, entry) in &mut journal.entries {
            let last = std::mem::replace(&mut restored.now, now(*at_us));
            match entry {
                Entry::Connect(conn) => restored.connect(*conn),
                Entry::Disconnect(conn) => restored.remove(*conn),
                Entry::Close(conn) => restored.arrives(*conn, |of| of.closed = true),
                Entry::Request(conn, command) => restored.arrives(*conn, |of| of.input.extend_from_slice(command.wire())),
                Entry::Tick { fires } => {
                    if *fires {
                        restored.driver.timer_fired();
                    }
                }
                Entry::Start => {
                    // As at a real start: before any grant, the next token is set above all tokens ever given.
                    let now = restored.now;
                    restored.driver.engine.keyspace_mut().first_token(now);
                    // The connections ended with the server, at the time of its last input.
                    restored.now = last;
                    for conn in restored.ids.keys().copied().collect::<Vec<_>>() {
                        restored.remove(conn);
                    }
                    restored.now = now;
                }
            }
            loop {
                restored.run_due();
                restored.run_connections();
                restored.end_round();
                restored.driver.wake_late();
                if !restored.driver.has_connections_to_run() {
                    break;
                }
            }
            *writes = journal.writes.get();
        }
        self.driver = restored.driver;
    }
}

/// A connection of a state that is rebuilt.
struct Connection {
    id: SessionId,
    conn: ConnId,
    input: Vec<u8>,
    closed: bool,
}

/// A state that is rebuilt, whose clients hear nothing.
struct Restored {
    driver: Driver,
    now: Now,
    connections: BTreeMap<SessionId, Connection>,
    ids: BTreeMap<ConnId, SessionId>,
}

impl Adapter for Restored {
    type Boot = ();

    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    fn now_and_stopwatch(&mut self) -> (Now, u64) {
        (self.now, self.now.mono_us() * 1_000)
    }

    fn monotonic_ns(&self) -> fn() -> u64 {
        busy_clock
    }

    fn boot(&self) {}

    fn read_boot((): ()) -> BootClock {
        BootClock::default()
    }

    // This server has no disk, so the driver demands nothing.
    fn meet(&mut self, _: Demands) {}

    fn perform(&mut self, _: Action) {}

    fn make_base(&mut self, _: u64, _: Manifest) {}

    fn let_go_of_file(&mut self) {}

    fn save_now(&mut self) -> bool {
        true
    }

    fn end(&mut self) {}

    fn after_batch(&mut self, _: Now, _: Option<SessionId>) -> u64 {
        u64::MAX
    }

    fn set_timer(&mut self, _: u64) -> bool {
        true
    }
}

impl Rounds for Restored {
    type Adapter = Restored;

    fn adapter(&mut self) -> &mut Restored {
        self
    }

    fn turn(&mut self, id: SessionId) -> Next {
        let Some(mut connection) = self.connections.remove(&id) else { return Next::Wait };
        let next = take_turn(self, &mut connection);
        self.connections.insert(id, connection);
        next
    }

    fn close_connection(&mut self, id: SessionId) {
        let conn = self.connections.get(&id).map(|connection| connection.conn);
        conn.into_iter().for_each(|conn| self.remove(conn));
    }
}

impl Line<Restored> for Connection {
    fn id(&self) -> SessionId {
        self.id
    }

    fn write(&mut self, restored: &mut Restored, turn: &mut Turn) -> Result<(), Next> {
        let taken = restored.driver.output(self.id, turn).len();
        restored.driver.written(self.id, taken, turn);
        Ok(())
    }

    fn receive(&mut self, restored: &mut Restored, turn: &mut Turn) -> Result<(), Next> {
        let input = std::mem::take(&mut self.input);
        if input.is_empty() {
            return Err(if self.closed { restored.driver.end_input(self.id) } else { Next::Wait });
        }
        restored.driver.count_read(self.id, input.len());
        Adapter::receive(restored, self.id, &input, turn);
        Ok(())
    }
}

impl Restored {
    fn connect(&mut self, conn: ConnId) {
        let id = connect(&mut self.driver, self.now);
        self.connections.insert(id, Connection { id, conn, input: Vec::new(), closed: false });
        self.ids.insert(conn, id);
        let now = self.now;
        self.finish_batch(now, None);
    }

    fn arrives(&mut self, conn: ConnId, what: impl FnOnce(&mut Connection)) {
        if let Some(connection) = self.ids.get(&conn).and_then(|id| self.connections.get_mut(id)) {
            what(connection);
            self.driver.wake(connection.id);
        }
    }

    fn remove(&mut self, conn: ConnId) {
        if let Some(id) = self.ids.remove(&conn) {
            self.connections.remove(&id);
            let now = self.now;
            self.driver.remove_connection(now, id);
            self.finish_batch(now, None);
        }
    }
}
