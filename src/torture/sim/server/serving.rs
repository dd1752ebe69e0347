//! A server at work: what its driver runs on ([`Adapter`]), its connections ([`Rounds`]), and their sockets ([`Line`]).

use std::cell::Cell;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::driver::connections::turn::{Next, Turn};
use crate::driver::round::{Adapter, Line, Rounds, Wait, take_turn};
use crate::driver::{Demands, Driver};
use crate::engine::Action;
use crate::persist::append::manifest::Manifest;
use crate::persist::natives::clock::BootClock;
use crate::torture::sim::durable::Durable;
use crate::torture::sim::net::{ConnId, Event, Net, ToClient};
use crate::torture::sim::server::{Server, Session};

/// What a server does between two readings of [`busy_clock`], in nanoseconds.
const READING_NS: u64 = 100_000;
/// Time that a round takes which leaves work to the next one: requests come between the two.
const ROUND_US: u64 = 100;

/// A clock that goes on while a server loads or applies. The time of the simulation stands still meanwhile.
pub(in crate::torture::sim) fn busy_clock() -> u64 {
    thread_local!(static CLOCK: Cell<u64> = const { Cell::new(0) });
    CLOCK.replace(CLOCK.get() + READING_NS)
}

/// A server, and the network that it works on.
pub(in crate::torture::sim) struct Serving<'a> {
    pub(in crate::torture::sim) server: &'a mut Server,
    pub(in crate::torture::sim) net: &'a mut Net,
}

impl Adapter for Serving<'_> {
    type Boot = BootClock;

    fn driver(&mut self) -> &mut Driver {
        &mut self.server.driver
    }

    fn now_and_stopwatch(&mut self) -> (Now, u64) {
        let at = self.server.present(self.net.now_us);
        (at.now, at.ns)
    }

    fn monotonic_ns(&self) -> fn() -> u64 {
        busy_clock
    }

    fn boot(&self) -> BootClock {
        self.server.boot_clock(self.net.now_us)
    }

    fn read_boot(boot: BootClock) -> BootClock {
        boot
    }

    fn meet(&mut self, demands: Demands) {
        let Demands { copy, file, opens_file, ends, failed } = demands;
        self.server.ending |= ends;
        if let Some(reason) = failed {
            self.server.fail(self.net, &reason);
        }
        let at_us = self.net.now_us;
        for order in copy {
            let ordered = match &mut self.server.durable {
                Some(durable) => durable.order_copy(at_us, order),
                None => Err("this server has no disk".to_owned()),
            };
            if let Err(reason) = ordered {
                self.drive(|driver, at| driver.copy_failed(at, &reason));
            }
        }
        let Some(durable) = &mut self.server.durable else { return };
        file.into_iter().for_each(|order| durable.writers.order(order));
        if opens_file {
            match durable.open_file() {
                Ok(()) => {
                    let boot = self.boot();
                    let begins = self.drive(|driver, at| driver.file_opened(at, boot));
                    if let Some(durable) = &mut self.server.durable {
                        durable.begin(begins);
                    }
                }
                Err(reason) => self.drive(|driver, at| driver.file_not_begun(at, &reason)),
            }
        }
    }

    fn perform(&mut self, _: Action) {
        // Nobody asks a server of the simulation for what the driver leaves to it.
    }

    fn make_base(&mut self, number: u64, files: Manifest) {
        if let Some(durable) = &mut self.server.durable {
            durable.make_base(self.net.now_us, number, files);
        }
    }

    fn let_go_of_file(&mut self) {
        self.server.durable.iter_mut().for_each(Durable::close_file);
    }

    fn save_now(&mut self) -> bool {
        self.drive(|driver, _| driver.abandon_snapshot());
        let made = self.server.durable.as_mut().is_none_or(|durable| !durable.fails());
        self.drive(|driver, at| driver.saved_at_once(at, made));
        made
    }

    fn end(&mut self) {
        self.server.ending = true;
    }

    /// Notes when what was written to a checked client was written.
    fn after_batch(&mut self, _: Now, id: Option<SessionId>) -> u64 {
        id.into_iter().for_each(|id| self.note_written(id));
        u64::MAX
    }

    fn set_timer(&mut self, at_ms: u64) -> bool {
        let Serving { server, net } = self;
        // It fires late, as all timers do.
        let late_us = if server.random.percent(5) { 5_000 } else { 100 };
        let at_us = server.clock.true_us(at_ms) + server.random.below(late_us);
        server.timer_us = Some(at_us);
        net.at(at_us, Event::Tick(server.number));
        true
    }
}

impl<'a> Rounds for Serving<'a> {
    type Adapter = Serving<'a>;

    fn adapter(&mut self) -> &mut Serving<'a> {
        self
    }

    fn turn(&mut self, id: SessionId) -> Next {
        let Some(conn) = self.server.conn(id) else { return self.take_noisy_turn(id) };
        self.note_written(id);
        let Some(session) = self.server.sessions.get_mut(&conn) else { return Next::Wait };
        let Session { broken, closed, .. } = *session;
        let mut open = Open { id, broken, input: std::mem::take(&mut session.input), closed, output: Vec::new() };
        let next = take_turn(self, &mut open);
        let Server { sessions, decoder, .. } = &mut *self.server;
        if let Some(session) = sessions.get_mut(&conn) {
            session.input = open.input;
            session.send(&open.output, decoder, self.net, conn);
        }
        next
    }

    fn close_connection(&mut self, id: SessionId) {
        let Some(conn) = self.server.conn(id) else { return self.close_noisy(id) };
        if self.server.sessions.get(&conn).is_some_and(|session| session.closed || session.broken) {
            return self.end_session(conn);
        }
        self.net.send_back(conn, ToClient::Reset);
        self.net.end_session(conn);
        self.remove(conn);
    }
}

impl Serving<'_> {
    /// Runs rounds until nothing is left to do now, and schedules the next one.
    pub(in crate::torture::sim) fn serve(&mut self) {
        loop {
            self.run_due();
            self.run_connections();
            if self.server.ending {
                return self.end_in_order();
            }
            let wait = self.end_round();
            self.server.driver.wake_late();
            if self.server.driver.has_connections_to_run() || self.take_reports() || self.take_made() {
                continue;
            }
            self.server.waited_max = self.server.waited_max.max(self.server.driver.waiting());
            return self.schedule(wait);
        }
    }

    /// Schedules the next round, if nothing else comes before it.
    fn schedule(&mut self, wait: Wait) {
        let Serving { server, net } = self;
        let mut next_us = match wait {
            Wait::No => net.now_us + ROUND_US,
            Wait::Briefly(rest) => net.now_us + 1 + rest.as_micros() as u64,
            Wait::ForEvents => u64::MAX,
        };
        if let Some(durable) = &server.durable {
            next_us = next_us.min(durable.made_us().unwrap_or(u64::MAX)).min(durable.loads_us().unwrap_or(u64::MAX));
        }
        if next_us != u64::MAX && server.round_us.is_none_or(|round_us| next_us < round_us) {
            server.round_us = Some(next_us);
            net.at(next_us, Event::Tick(server.number));
        }
    }

    /// Executes requests whose replies nobody reads.
    pub(super) fn execute_all(&mut self, id: SessionId, input: Vec<u8>) {
        let mut open = Open { id, broken: false, input, closed: false, output: Vec::new() };
        while matches!(take_turn(self, &mut open), Next::Soon | Next::Later) {}
    }

    /// Ends a session whose connection has ended.
    pub(super) fn end_session(&mut self, conn: ConnId) {
        self.net.end_session(conn);
        if self.server.sees_ends() {
            self.net.record_hangup(conn);
        }
        self.remove(conn);
    }

    pub(super) fn remove(&mut self, conn: ConnId) {
        let Some(session) = self.server.sessions.remove(&conn) else { return };
        let now = self.now();
        self.server.driver.remove_connection(now, session.id);
        self.finish_batch(now, None);
    }

    /// Notes how far the output of a checked client's session goes now. The engine has granted, or not, by now, whenever that may be
    /// told.
    fn note_written(&mut self, id: SessionId) {
        let Serving { server, net } = self;
        let Some(conn) = server.conn(id) else { return };
        if let Some(engine) = server.driver.engine.sessions().get(id)
            && let Some(session) = server.sessions.get_mut(&conn)
        {
            session.note_written(engine.net_out + (engine.out.len() - engine.sent) as u64, net);
        }
    }
}

/// The socket of a checked client: it takes all that is written, in pieces.
struct Open {
    id: SessionId,
    /// Whether the connection is broken.
    broken: bool,
    input: Vec<u8>,
    /// Whether that ends behind it.
    closed: bool,
    output: Vec<u8>,
}

/// Maximum number of bytes that a socket takes at once.
const TAKEN_MAX: usize = 1000;

impl Line<Serving<'_>> for Open {
    fn id(&self) -> SessionId {
        self.id
    }

    fn write(&mut self, serving: &mut Serving<'_>, turn: &mut Turn) -> Result<(), Next> {
        fail_if!(self.broken, Next::Close);
        let output = serving.server.driver.output(self.id, turn);
        let taken = output.len().min(TAKEN_MAX);
        self.output.extend_from_slice(&output[..taken]);
        serving.server.driver.written(self.id, taken, turn);
        Ok(())
    }

    fn receive(&mut self, serving: &mut Serving<'_>, turn: &mut Turn) -> Result<(), Next> {
        fail_if!(self.broken, Next::Close);
        let input = std::mem::take(&mut self.input);
        receive(serving, self.id, &input, self.closed, turn)
    }
}

/// Receives what has come, or the end behind it.
pub(super) fn receive(serving: &mut Serving<'_>, id: SessionId, input: &[u8], ends: bool, turn: &mut Turn) -> Result<(), Next> {
    if input.is_empty() {
        return Err(if ends { serving.server.driver.end_input(id) } else { Next::Wait });
    }
    serving.server.driver.count_read(id, input.len());
    Adapter::receive(serving, id, input, turn);
    Ok(())
}
