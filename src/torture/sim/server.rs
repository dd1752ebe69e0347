//! A server of the simulation: the real engine and its driver, fed by connections and a clock of its own. [`storing`] has how it
//! stores, [`journal`] how it loses writes, and [`noise`] its unchecked clients.

mod journal;
mod noise;
mod storing;

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

use bytes::BytesMut;
use smallvec::SmallVec;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::client::{Command, Decoder, Value};
use crate::driver::backpressure::Limits;
use crate::driver::connections::execute::BatchStart;
use crate::driver::connections::turn::{Next, Step, Turn};
use crate::driver::{Driver, Present};
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::engine::session::{Peer, SessionFlags};
use crate::persist::disk::simulated::SimulatedDisk;
use crate::persist::natives::clock::BootClock;
use crate::resp::reply::Protocol;
use crate::torture::history::Stamp;
use crate::torture::plan::streams;
use crate::torture::random::Random;
use crate::torture::sim::clock::{BEGIN_UNIX_MS, Clock};
use crate::torture::sim::disk::{Planted, SharedDisk};
use crate::torture::sim::durable::Durable;
use crate::torture::sim::machine::ProcessClock;
use crate::torture::sim::net::{ConnId, Event, Net, ToClient, ToServer};
use crate::torture::sim::replica::node::Replica;
use crate::torture::sim::server::journal::{Entry, Journal};
use crate::torture::sim::server::noise::Noise;
use crate::torture::sim::world::{Shared, lock};

/// The engine's monotonic clock at the beginning.
pub(in crate::torture::sim) const BEGIN_US: u64 = 1_000_000_000;
/// What a server does between two readings of [`busy_clock`], in nanoseconds.
const READING_NS: u64 = 100_000;
/// Interval between two slices of a copy.
const COPY_EVERY_US: u64 = 100;
/// Maximum length of a reply.
const REPLY_MAX: usize = 16 << 20;
/// Maximum number of steps of a script, in thousands.
pub(in crate::torture::sim) const SCRIPT_STEPS_MAX: u64 = 100_000;

/// The engine's time at a true time.
fn now(true_us: u64) -> Now {
    Now::new(BEGIN_US + true_us, BEGIN_UNIX_MS - (BEGIN_US / 1000) as i64)
}

/// A session of the server, and its connection.
pub(in crate::torture::sim) struct Session {
    pub(in crate::torture::sim) id: SessionId,
    /// What has arrived and was not received yet.
    input: Vec<u8>,
    /// Whether the client has closed the connection behind that.
    closed: bool,
    /// Arrival times of the unanswered requests.
    arrived: VecDeque<Stamp>,
    /// Number of bytes of the session's output that `unsent` was read from.
    seen: u64,
    /// Messages that were not sent yet, with their positions in the session's output.
    unsent: VecDeque<(u64, ToClient)>,
}

impl Session {
    /// Reads the messages that were written to the session since it was last called. The engine has granted, or not, now, whenever
    /// that may be told.
    fn read_output(&mut self, engine: &Engine, decoder: &mut Decoder, net: &mut Net) {
        let Some(session) = engine.sessions().get(self.id) else { return };
        let from = session.sent + (self.seen - session.net_out) as usize;
        // A client that is thrown out loses what was held back for it.
        let mut bytes = BytesMut::from(session.out.get(from..).unwrap_or_default());
        // The engine writes complete, valid replies.
        loop {
            let (at, before) = (self.seen, bytes.len());
            let Ok(Some(value)) = decoder.decode(&mut bytes) else { break };
            self.seen += (before - bytes.len()) as u64;
            let message = match value {
                Value::Push(parts) => ToClient::Push(parts),
                value => {
                    let answered = net.stamp();
                    ToClient::Reply(value, self.arrived.pop_front().unwrap_or(answered), answered)
                }
            };
            self.unsent.push_back((at, message));
        }
    }

    /// Sends the messages that were written to the connection.
    fn send(&mut self, engine: &Engine, net: &mut Net, conn: ConnId) {
        let Some(session) = engine.sessions().get(self.id) else { return };
        while self.unsent.front().is_some_and(|(at, _)| *at < session.net_out)
            && let Some((_, message)) = self.unsent.pop_front()
        {
            net.send_back(conn, message);
        }
    }
}

/// A server.
pub struct Server {
    pub(in crate::torture::sim) number: u32,
    pub(in crate::torture::sim) seed: u64,
    pub(in crate::torture::sim) driver: Driver,
    pub(in crate::torture::sim) up: bool,
    /// Whether the machine is down too, so that connections are not even refused.
    silent: bool,
    pub(in crate::torture::sim) sessions: BTreeMap<ConnId, Session>,
    /// The connection of each session, by session id; of a session of `noise`, none.
    conns: Vec<Option<ConnId>>,
    /// The true time of the next tick that is scheduled.
    pub(in crate::torture::sim) tick_us: Option<u64>,
    decoder: Decoder,
    journal: Option<Journal>,
    /// The clocks of the process.
    pub(in crate::torture::sim) clock: ProcessClock,
    /// The machine and the log, if the server is durable.
    durable: Option<Durable>,
    /// The node, if the server is one.
    pub(in crate::torture::sim) replica: Option<Box<Replica>>,
    /// Until when the server stands still.
    pub stalled_until_us: u64,
    /// What the driver keeps no more of, if not as much as usual.
    limits: Option<Limits>,
    /// The greatest number of bytes that has waited.
    pub waited_max: u64,
    /// Unchecked clients, if there are any.
    noise: Option<Noise>,
}

pub(in crate::torture::sim) fn engine(seed: u64, at_us: u64) -> Engine {
    let mut engine = Engine::new(Config::default(), seed, now(at_us), crate::commands::table());
    engine.bound_scripts(Some(SCRIPT_STEPS_MAX));
    engine
}

fn connect(driver: &mut Driver, at: Now) -> SessionId {
    let id = driver.engine.connect(at, Peer::default());
    // As after HELLO 3.
    driver.engine.sessions_mut()[id].protocol = Protocol::Resp3;
    driver.add_connection(at, id);
    id
}

/// Executes a request besides those of clients.
fn execute(engine: &mut Engine, at: Now, id: SessionId, command: &Command) {
    advance_engine(engine, at);
    let args: SmallVec<[&[u8]; 16]> = command.arguments().collect();
    engine.begin_batch(at, at.mono_us() * 1000, None);
    engine.execute(at, id, &args);
    engine.end_batch(at);
}

/// Lets time pass, as far as anything is due.
fn advance(driver: &mut Driver, at: Present) {
    while driver.engine.has_work(at.now) {
        driver.advance(at);
    }
}

/// A clock that goes on while a server loads or applies. The time of the simulation stands still meanwhile.
pub(in crate::torture::sim) fn busy_clock() -> u64 {
    thread_local!(static CLOCK: Cell<u64> = const { Cell::new(0) });
    CLOCK.replace(CLOCK.get() + READING_NS)
}

/// Carries out what the engine asks of its driver.
fn act(driver: &mut Driver, at: Present, boot: BootClock) {
    if !driver.engine.has_actions() {
        return;
    }
    // The simulation has no use for actions that the driver leaves to it.
    while driver.next_action(at, || boot).is_some() {}
}

/// A socket, as a connection's turn uses it.
trait Line {
    /// Takes output, as much as there is room for. Returns the number of bytes.
    fn take(&mut self, output: &[u8]) -> usize;

    /// Returns what has come, or nothing at its end; `None` if nothing has come.
    fn receive(&mut self) -> Option<Vec<u8>>;
}

/// A socket that takes and gives all there is: what has come, and whether that is the end.
struct Open<'a>(&'a mut Vec<u8>, bool);

impl Line for Open<'_> {
    fn take(&mut self, output: &[u8]) -> usize {
        output.len()
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        (!self.0.is_empty() || self.1).then(|| std::mem::take(self.0))
    }
}

/// A turn of a connection: does what the driver wants next. `executed` is called whenever requests were executed.
fn take_turn(
    driver: &mut Driver,
    (at, boot): (Present, BootClock),
    id: SessionId,
    line: &mut impl Line,
    mut executed: impl FnMut(&mut Driver),
) -> Next {
    let mut turn = Turn::begin();
    let reading = BatchStart { now: at.now, ns: at.ns, stopwatch: None };
    loop {
        match driver.step(id, &mut turn) {
            Step::Write => match line.take(driver.output(id, &turn)) {
                0 => return Next::Wait,
                bytes => {
                    driver.written(id, bytes, &mut turn);
                    continue;
                }
            },
            Step::Flush => continue,
            Step::Execute => driver.execute_kept(reading, id, &mut turn),
            Step::Receive => match line.receive() {
                None => return Next::Wait,
                Some(input) if input.is_empty() => return driver.end_input(id),
                Some(input) => {
                    driver.count_read(id, input.len());
                    driver.receive(reading, id, &input, &mut turn);
                }
            },
            Step::End(next) => return next,
        }
        act(driver, at, boot);
        driver.finish_batch(at.now, Some(id));
        executed(driver);
    }
}

fn advance_engine(engine: &mut Engine, at: Now) {
    while engine.has_work(at) {
        engine.advance(at);
    }
}

impl Server {
    /// A server that is up. With `keeps_journal` it can lose its last writes.
    pub fn new(number: u32, seed: u64, keeps_journal: bool) -> Server {
        let journal = keeps_journal.then(|| Journal::new(0));
        let mut server = Server {
            number,
            seed,
            driver: Driver::new(engine(seed, 0)),
            up: true,
            silent: false,
            sessions: BTreeMap::new(),
            conns: Vec::new(),
            tick_us: None,
            decoder: Decoder::new(REPLY_MAX),
            journal,
            clock: ProcessClock::new(0, BEGIN_US, 0),
            durable: None,
            replica: None,
            stalled_until_us: 0,
            limits: None,
            waited_max: 0,
            noise: None,
        };
        server.count_writes();
        server
    }

    /// A durable server that is up. `planted` is a fault in it.
    pub fn durable(number: u32, seed: u64, planted: Planted) -> Server {
        let mut server = Server::new(number, seed, false);
        let disk = SharedDisk::new(SimulatedDisk::new(seed), planted, false);
        server.durable = Some(Durable::new(disk, seed));
        server.start_process(0);
        server
    }

    /// Lets unchecked clients use the server, by [`Event::Noise`]. On a durable server, few bytes may wait to be stored, and the
    /// operator often changes how it stores.
    pub fn stress(&mut self, waiting_max: u64) {
        self.noise = Some(Noise::new(Random::new(self.seed, streams::NOISE, 0), self.durable.is_some()));
        if self.durable.is_none() {
            return;
        }
        let limits = Limits { waiting: waiting_max, backlog: 256, changes: 2048, copied: 64 };
        self.limits = Some(limits);
        self.driver.limit(limits);
        if let Some(durable) = &mut self.durable {
            durable.hurry();
        }
    }

    fn now(&self, true_us: u64) -> Now {
        self.clock.now(true_us)
    }

    /// Receives a message of a connection.
    pub fn arrive(&mut self, net: &Shared, conn: ConnId) {
        let mut world = lock(net);
        let Some(message) = world.take_to_server(conn) else { return };
        if !self.up {
            if !self.silent {
                world.end_session(conn);
                world.send_back(conn, ToClient::Refused);
            } else if self.replica.is_some() {
                // Nothing answers, which its client notices by keep-alive.
                world.abandon(conn, false);
            }
            return;
        }
        let at_us = world.now_us;
        match message {
            ToServer::Close => {
                drop(world);
                if let Some(session) = self.sessions.get_mut(&conn) {
                    session.closed = true;
                    self.driver.wake(session.id);
                    self.note(at_us, || Entry::Close(conn));
                } else {
                    lock(net).end_session(conn);
                }
            }
            ToServer::Request(command) => {
                let arrived = world.stamp();
                drop(world);
                if !self.sessions.contains_key(&conn) {
                    self.connect(at_us, conn);
                }
                let Some(session) = self.sessions.get_mut(&conn) else { return };
                session.arrived.push_back(arrived);
                session.input.extend_from_slice(command.wire());
                self.driver.wake(session.id);
                self.serve(&mut lock(net));
                self.note(at_us, || Entry::Request(conn, command));
                return;
            }
        }
        self.serve(&mut lock(net));
    }

    fn connect(&mut self, at_us: u64, conn: ConnId) {
        let id = self.accept(at_us, Some(conn));
        let (arrived, unsent) = (VecDeque::new(), VecDeque::new());
        self.sessions.insert(conn, Session { id, input: Vec::new(), closed: false, arrived, seen: 0, unsent });
        self.note(at_us, || Entry::Connect(conn));
    }

    /// Gives a client a session. Without a connection, it is an unchecked one.
    fn accept(&mut self, at_us: u64, conn: Option<ConnId>) -> SessionId {
        let id = connect(&mut self.driver, self.clock.now(at_us));
        if self.conns.len() <= id.index() {
            self.conns.resize(id.index() + 1, None);
        }
        self.conns[id.index()] = conn;
        id
    }

    /// The present, as this server's clocks show it.
    pub(in crate::torture::sim) fn present(&self, at_us: u64) -> Present {
        let ppm = self.replica.as_ref().map_or(0, |replica| replica.ppm);
        let ns = Clock { ppm, set_by_ms: 0 }.elapsed_us(at_us) * 1_000;
        Present { now: self.now(at_us), ns, frozen: false }
    }

    /// The boot clock of the server's machine, if it is durable.
    fn boot_clock(&self, at_us: u64) -> BootClock {
        self.durable.as_ref().map(|durable| durable.boot_clock(at_us)).unwrap_or_default()
    }

    /// Lets time pass, as far as anything is due.
    fn advance(&mut self, at: Present) {
        advance(&mut self.driver, at);
    }

    /// Ends a session, because the server notices that its connection is broken.
    pub fn disconnect(&mut self, net: &Shared, conn: ConnId) {
        let mut world = lock(net);
        self.end(&mut world, conn);
        self.note(world.now_us, || Entry::Disconnect(conn));
        self.serve(&mut world);
    }

    /// The connections whose clients wait in a request.
    pub(in crate::torture::sim) fn waiting(&self) -> Vec<ConnId> {
        let waits = |session: &Session| self.driver.engine.sessions()[session.id].flags.contains(SessionFlags::BLOCKED);
        self.sessions.iter().filter(|(_, session)| waits(session)).map(|(conn, _)| *conn).collect()
    }

    /// Whether the server ends grants whose connections end: as a node, it leads as far as it knows.
    fn sees_ends(&self) -> bool {
        self.replica.is_none() || self.driver.member().is_some_and(|member| member.leads())
    }

    /// Ends a session whose connection has ended.
    fn end(&mut self, net: &mut Net, conn: ConnId) {
        net.end_session(conn);
        if !self.sessions.contains_key(&conn) {
            return;
        }
        if self.sees_ends() {
            net.record_hangup(conn);
        }
        self.remove(net.now_us, conn);
    }

    fn remove(&mut self, at_us: u64, conn: ConnId) {
        let Some(session) = self.sessions.remove(&conn) else { return };
        let now = self.now(at_us);
        self.driver.remove_connection(now, session.id);
        self.driver.finish_batch(now, None);
    }

    /// Does what is due by now.
    pub fn tick(&mut self, net: &Shared) {
        let mut world = lock(net);
        // Another one may be scheduled instead.
        if self.tick_us.take_if(|tick_us| *tick_us <= world.now_us).is_some() && self.up {
            let at = self.present(world.now_us);
            if self.driver.engine.has_work(at.now) {
                self.advance(at);
                let boot = self.boot_clock(world.now_us);
                act(&mut self.driver, at, boot);
                self.note(world.now_us, || Entry::Tick);
            }
            self.tick_driver(world.now_us);
            self.load_some(&mut world);
            self.copy_some(world.now_us);
            self.serve(&mut world);
        }
    }

    /// Does what is due in the driver.
    pub(in crate::torture::sim) fn tick_driver(&mut self, now_us: u64) {
        let at = self.present(now_us);
        if at.now.reached(self.driver.due_ms()) {
            self.driver.housekeep(at);
        }
    }

    /// Gives those connections that are to have one a turn, hands the changes on, and schedules the next deadline.
    pub(in crate::torture::sim) fn serve(&mut self, net: &mut Net) {
        let now = self.now(net.now_us);
        self.driver.finish_batch(now, None);
        loop {
            if let Some(reason) = self.meet_demands(net.now_us) {
                self.fail(net, &reason);
            }
            if let Some(id) = self.driver.next_connection() {
                self.serve_connection(net, id);
                continue;
            }
            self.go_on_applying(net.now_us);
            self.hand_on(net);
            if self.driver.has_demands() {
                continue;
            }
            self.write_log(net);
            self.take_made(net.now_us);
            self.driver.finish_batch(now, None);
            if !self.driver.has_demands() && self.driver.queued_connections() == 0 {
                break;
            }
        }
        self.waited_max = self.waited_max.max(self.driver.waiting());
        let next_ms = self.driver.engine.next_deadline().unwrap_or(u64::MAX).min(self.driver.due_ms());
        let mut next_us = if next_ms == u64::MAX { u64::MAX } else { self.clock.true_us(next_ms) };
        if let Some(rest) = self.driver.rest(self.present(net.now_us).ns) {
            next_us = next_us.min(net.now_us + 1 + rest.as_micros() as u64);
        }
        if let Some(durable) = &self.durable {
            next_us = next_us.min(durable.made_us().unwrap_or(u64::MAX)).min(durable.loads_us().unwrap_or(u64::MAX));
        }
        if self.driver.copies() && !self.durable.as_ref().is_some_and(Durable::copy_waits) {
            // Requests come between two slices.
            next_us = next_us.min(net.now_us + COPY_EVERY_US);
        }
        if next_us != u64::MAX && self.tick_us.is_none_or(|tick_us| next_us < tick_us) {
            self.tick_us = Some(next_us);
            net.at(next_us, Event::Tick(self.number));
        }
    }

    /// Hands the changes of this turn on.
    fn hand_on(&mut self, net: &mut Net) {
        let (at, boot) = (self.present(net.now_us), self.boot_clock(net.now_us));
        self.driver.submit(at, false, || boot);
    }

    /// Gives a connection its turn.
    fn serve_connection(&mut self, net: &mut Net, id: SessionId) {
        let (at, now_us) = (self.present(net.now_us), net.now_us);
        let boot = self.boot_clock(now_us);
        self.advance(at);
        let Some(conn) = self.conns[id.index()] else { return self.serve_noise(net, id) };
        let Server { driver, durable, sessions, decoder, .. } = self;
        let Some(session) = sessions.get_mut(&conn) else { return };
        session.read_output(&driver.engine, decoder, net);
        let (mut input, mut failed) = (std::mem::take(&mut session.input), None);
        let next = take_turn(driver, (at, boot), id, &mut Open(&mut input, session.closed), |driver| {
            failed = failed.take().or(storing::carry_out(driver, durable.as_mut(), at, now_us));
            session.read_output(&driver.engine, decoder, net);
        });
        session.input = input;
        session.send(&driver.engine, net, conn);
        match next {
            Next::Wait => {}
            Next::Soon | Next::Later => driver.wake(id),
            Next::Close if session.closed => self.end(net, conn),
            Next::Close => {
                net.send_back(conn, ToClient::Reset);
                net.end_session(conn);
                self.remove(now_us, conn);
            }
        }
        if let Some(reason) = failed {
            self.fail(net, &reason);
        }
    }

    /// Takes the server down. `lost` is the number of its last writes that will be lost, `None` for all data. Returns false if it
    /// is down already.
    pub fn down(&mut self, net: &Shared, lost: Option<u64>, silent: bool) -> bool {
        // An operator who has let a server store less does not end it.
        let may_end = self.durable.as_mut().is_none_or(|durable| durable.loses_nothing(&self.driver));
        if !self.up || !may_end {
            return false;
        }
        (self.up, self.silent) = (false, silent);
        let mut net = lock(net);
        self.drop_sessions(&mut net, !silent);
        let at_us = net.now_us;
        if let Some(durable) = &mut self.durable {
            durable.end_process();
            return true;
        }
        if self.replica.is_some() {
            return true;
        }
        match (lost, &mut self.journal) {
            (Some(lost), Some(journal)) => journal.lose(lost),
            (None, Some(journal)) => *journal = Journal::new(at_us),
            (_, None) => {}
        }
        true
    }

    /// The process has ended, and with it all sessions. With `tells`, its machine closes the connections.
    fn drop_sessions(&mut self, net: &mut Net, tells: bool) {
        self.noise.iter_mut().for_each(Noise::disconnected);
        for conn in std::mem::take(&mut self.sessions).into_keys() {
            net.abandon(conn, tells);
        }
    }

    /// Starts the server again. Returns false if it is durable and its files were refused.
    pub fn start(&mut self, net: &Shared) -> bool {
        let at_us = lock(net).now_us;
        self.up = true;
        let mut kept = true;
        match &mut self.journal {
            _ if self.durable.is_some() => kept = self.start_process(at_us),
            Some(journal) if !journal.is_empty() => {
                journal.note(at_us, Entry::Start);
                self.restore();
            }
            _ => {
                self.seed = self.seed.wrapping_add(1);
                self.driver = Driver::new(engine(self.seed, at_us));
                if let Some(journal) = &mut self.journal {
                    *journal = Journal::new(at_us);
                }
                self.count_writes();
            }
        }
        self.tick_us = None;
        self.serve(&mut lock(net));
        kept
    }

    /// The elements of a list of numbers, at the end of an episode.
    pub fn list(&mut self, at_us: u64, key: &[u8]) -> Vec<u64> {
        let at = self.now(at_us);
        let id = connect(&mut self.driver, at);
        execute(&mut self.driver.engine, at, id, &Command::new("LRANGE").arg(key).arg(0).arg(-1));
        // The lines of the reply that are numbers; the others are lengths.
        let lines = self.driver.engine.sessions()[id].out.split(|byte| *byte == b'\n');
        lines.filter_map(|line| std::str::from_utf8(line.strip_suffix(b"\r")?).ok()?.parse().ok()).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::torture::plan::{Plan, Settings};

    /// Runs the server's events until a time.
    fn run(net: &Shared, server: &mut Server, until_us: u64) {
        loop {
            let Some(event) = lock(net).next(until_us) else { break };
            match event {
                Event::ToServer(conn) => server.arrive(net, conn),
                Event::Tick(_) => server.tick(net),
                _ => {}
            }
        }
        lock(net).now_us = until_us;
    }

    fn ask(server: &mut Server, at_us: u64, command: Command) -> String {
        let id = connect(&mut server.driver, now(at_us));
        execute(&mut server.driver.engine, now(at_us), id, &command);
        String::from_utf8(server.driver.engine.sessions()[id].out.to_vec()).unwrap()
    }

    #[test]
    fn a_failover_gives_no_token_twice_though_a_waiter_was_to_have_it_when_time_went_on() {
        let net = Arc::new(Mutex::new(Net::new(&Plan::draw(&Settings::default(), 0))));
        let mut server = Server::new(0, 1, true);
        let acquire = |owner: &str| Command::new("LOCK.ACQUIRE").arg("door").arg(owner).arg(10_000);
        lock(&net).call(0, 0, None, acquire("alice"));
        run(&net, &mut server, 1_000_000);
        lock(&net).call(1, 0, None, acquire("bob").arg("WAIT").arg(0));
        // Alice's lease ends, and Bob is granted the lock.
        run(&net, &mut server, 10_500_000);
        let next = |server: &Server| server.driver.engine.keyspace().changes.locks.as_ref().map_or(0, |locks| locks.next_token());
        let of_bob = next(&server) - 1;
        let check = |token: u64| Command::new("LOCK.CHECK").arg("door").arg(token);
        assert_eq!(ask(&mut server, 10_500_000, check(of_bob)), ":1\r\n");
        // The replica does not know of the grant, and its clock is past the end of Alice's lease.
        assert!(server.down(&net, Some(1), false));
        lock(&net).now_us = 11_000_000;
        server.start(&net);
        assert!(next(&server) > of_bob);
        assert_eq!(ask(&mut server, 11_000_000, check(of_bob)), ":0\r\n", "bob has the token again");
        let token = ask(&mut server, 11_000_000, acquire("carol"));
        assert!(token.trim().trim_start_matches(':').parse::<u64>().unwrap() > of_bob, "{token}");
    }
}
