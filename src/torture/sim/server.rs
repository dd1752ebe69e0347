//! A server of the simulation: the real engine and its driver, fed by connections and a clock of its own. [`serving`] has what they run
//! on, [`storing`] how it stores, [`journal`] how it loses writes, and [`noise`] its unchecked clients.

mod journal;
mod noise;
pub(in crate::torture::sim) mod serving;
mod storing;

use std::collections::{BTreeMap, VecDeque};

use bytes::BytesMut;
use smallvec::SmallVec;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::client::{Command, Decoder, Value};
use crate::driver::backpressure::Limits;
use crate::driver::file::Phase;
use crate::driver::round::{Driving, Rounds};

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
use crate::torture::sim::inherited::inherit;
use crate::torture::sim::machine::ProcessClock;
use crate::torture::sim::net::{ConnId, Net, ToClient, ToServer};
use crate::torture::sim::replica::node::Replica;
use crate::torture::sim::server::journal::{Entry, Journal};
use crate::torture::sim::server::noise::Noise;
use crate::torture::sim::server::serving::Serving;
use crate::torture::sim::threads::Threads;
use crate::torture::sim::world::{Shared, lock};

/// The engine's monotonic clock at the beginning.
pub(in crate::torture::sim) const BEGIN_US: u64 = 1_000_000_000;
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
    /// Whether the connection is broken.
    broken: bool,
    /// Arrival times of the unanswered requests.
    arrived: VecDeque<Stamp>,
    /// What was written to the connection and is not a whole message yet, and how far the messages before it go in the session's output.
    written: BytesMut,
    told: u64,
    /// When the session's output up to a position was written by the engine.
    stamps: VecDeque<(u64, Stamp)>,
}

impl Session {
    fn new(id: SessionId) -> Session {
        Session {
            id,
            input: Vec::new(),
            closed: false,
            broken: false,
            arrived: VecDeque::new(),
            written: BytesMut::new(),
            told: 0,
            stamps: VecDeque::new(),
        }
    }

    /// Notes that the engine has written the session's output up to a position.
    fn note_written(&mut self, end: u64, net: &mut Net) {
        if end > self.stamps.back().map_or(self.told, |(end, _)| *end) {
            self.stamps.push_back((end, net.stamp()));
        }
    }

    /// Sends the messages that are whole with what was written to the connection.
    fn send(&mut self, output: &[u8], decoder: &mut Decoder, net: &mut Net, conn: ConnId) {
        self.written.extend_from_slice(output);
        loop {
            let before = self.written.len();
            // The engine writes valid replies.
            let Ok(Some(value)) = decoder.decode(&mut self.written) else { return };
            self.told += (before - self.written.len()) as u64;
            while self.stamps.front().is_some_and(|(end, _)| *end < self.told) {
                self.stamps.pop_front();
            }
            let message = match value {
                Value::Push(parts) => ToClient::Push(parts),
                value => {
                    let answered = self.stamps.front().map_or_else(|| net.stamp(), |(_, stamp)| *stamp);
                    ToClient::Reply(value, self.arrived.pop_front().unwrap_or(answered), answered)
                }
            };
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
    /// Whether it is to end, and whether it has ended so.
    ending: bool,
    ended: bool,
    /// Whether the machine is down too, so that connections are not even refused.
    silent: bool,
    pub(in crate::torture::sim) sessions: BTreeMap<ConnId, Session>,
    /// The connection of each session, by session id; of a session of `noise`, none.
    conns: Vec<Option<ConnId>>,
    /// The true time at which the timer fires, if it is armed, and that of the next round.
    timer_us: Option<u64>,
    round_us: Option<u64>,
    /// How late its timers are.
    random: Random,
    decoder: Decoder,
    journal: Option<Journal>,
    /// The clocks of the process.
    pub(in crate::torture::sim) clock: ProcessClock,
    /// The machine, if the server is durable.
    durable: Option<Durable>,
    threads: Threads,
    /// The node, if the server is one.
    pub(in crate::torture::sim) replica: Option<Box<Replica>>,
    /// Until when the server stands still.
    pub stalled_until_us: u64,
    /// What the driver keeps no more of.
    pub(in crate::torture::sim) limits: Limits,
    /// The greatest number of bytes that has waited.
    pub waited_max: u64,
    /// Unchecked clients, if there are any.
    noise: Option<Noise>,
}

pub(in crate::torture::sim) fn engine(seed: u64, at_us: u64) -> Engine {
    let mut config = Config::default();
    if seed.is_multiple_of(8) {
        // It makes no snapshots.
        config.dbfilename.clear();
    }
    let mut engine = Engine::new(config, seed, now(at_us), crate::commands::table());
    engine.bound_scripts(Some(SCRIPT_STEPS_MAX));
    engine
}

fn connect(driver: &mut Driver, at: Now) -> SessionId {
    let id = driver.engine.connect(at, Peer::default());
    // As after HELLO 3, with the password that a server may ask for.
    let session = &mut driver.engine.sessions_mut()[id];
    session.protocol = Protocol::Resp3;
    session.flags |= SessionFlags::AUTHENTICATED;
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
            ending: false,
            ended: false,
            silent: false,
            sessions: BTreeMap::new(),
            conns: Vec::new(),
            timer_us: None,
            round_us: None,
            random: Random::new(seed, streams::TIMER, 0),
            decoder: Decoder::new(REPLY_MAX),
            journal,
            clock: ProcessClock::new(0, BEGIN_US, 0),
            durable: None,
            threads: Threads::new(seed),
            replica: None,
            stalled_until_us: 0,
            limits: Limits::default(),
            waited_max: 0,
            noise: None,
        };
        server.count_writes();
        server
    }

    /// A durable server that does not run yet. `planted` is a fault in it.
    pub fn durable(number: u32, seed: u64, planted: Planted) -> Server {
        let mut server = Server::new(number, seed, false);
        let disk = SharedDisk::new(SimulatedDisk::new(seed), planted, false);
        server.durable = Some(Durable::new(disk));
        server.up = false;
        server
    }

    /// The durable server, which has not started yet, finds the files of a Redis.
    pub fn inherit(&mut self) {
        let seed = self.seed;
        // A new disk does not fail.
        self.durable.iter().for_each(|durable| _ = durable.machine.disk.act(|disk| inherit(disk, seed)));
    }

    /// Lets unchecked clients use the server, by [`Event::Noise`]. So many bytes may wait to be stored. The operator of a durable
    /// server often changes how it stores.
    pub fn stress(&mut self, waiting_max: u64) {
        self.noise = Some(Noise::new(Random::new(self.seed, streams::NOISE, 0), self.durable.is_some()));
        self.threads.hurries = true;
        self.limits = Limits { waiting: waiting_max, backlog: 256, changes: 2048, copied: 64 };
        self.driver.limit(self.limits);
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
        self.on(&mut world).look_at_lease();
        let entry = match message {
            ToServer::Close => {
                let Some(session) = self.sessions.get_mut(&conn) else { return world.end_session(conn) };
                session.closed = true;
                self.driver.wake(session.id);
                Entry::Close(conn)
            }
            ToServer::Request(command) => {
                let arrived = world.stamp();
                if !self.sessions.contains_key(&conn) {
                    self.on(&mut world).connect(conn);
                    self.note(at_us, || Entry::Connect(conn));
                }
                let Some(session) = self.sessions.get_mut(&conn) else { return };
                session.arrived.push_back(arrived);
                session.input.extend_from_slice(command.wire());
                self.driver.wake(session.id);
                Entry::Request(conn, command)
            }
        };
        self.on(&mut world).serve();
        self.note(at_us, || entry);
    }

    /// The server at work on this network.
    pub(in crate::torture::sim) fn on<'a>(&'a mut self, net: &'a mut Net) -> Serving<'a> {
        Serving { server: self, net }
    }

    /// The connection of a session; `None` for an unchecked client's.
    fn conn(&self, id: SessionId) -> Option<ConnId> {
        self.conns.get(id.index()).copied().flatten()
    }

    /// The present, as this server's clocks show it.
    pub(in crate::torture::sim) fn present(&self, at_us: u64) -> Present {
        let ppm = self.replica.as_ref().map_or(0, |replica| replica.ppm);
        let ns = Clock { ppm, set_by_ms: 0 }.elapsed_us(at_us) * 1_000;
        Present { now: self.now(at_us), ns, frozen: false }
    }

    /// The boot clock of the server's machine, if it is durable.
    fn boot_clock(&self, at_us: u64) -> BootClock {
        self.durable.as_ref().map(|durable| durable.machine.boot_clock(at_us)).unwrap_or_default()
    }

    /// Ends a session, because the server notices that its connection is broken.
    pub fn disconnect(&mut self, net: &Shared, conn: ConnId) {
        let mut world = lock(net);
        let at_us = world.now_us;
        let Some(session) = self.sessions.get_mut(&conn) else { return world.end_session(conn) };
        session.broken = true;
        self.driver.wake(session.id);
        let mut serving = self.on(&mut world);
        serving.look_at_lease();
        serving.serve();
        self.note(at_us, || Entry::Disconnect(conn));
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

    /// Does what is due by now.
    pub fn tick(&mut self, net: &Shared) {
        let mut world = lock(net);
        let at_us = world.now_us;
        // Another one may be scheduled instead.
        let fires = self.timer_us.take_if(|timer_us| *timer_us <= at_us).is_some();
        let goes_on = self.round_us.take_if(|round_us| *round_us <= at_us).is_some();
        if self.up && (fires || goes_on) {
            let mut serving = self.on(&mut world);
            serving.look_at_lease();
            if fires {
                serving.server.driver.timer_fired();
            }
            serving.work();
            serving.serve();
            self.note(at_us, || Entry::Tick { fires });
        }
    }

    /// Whether an operator can tell the server to end: then it loses nothing.
    pub fn ends_in_order(&self) -> bool {
        self.durable.is_some() || self.replica.is_some()
    }

    /// Whether there is room on the server's disk.
    fn has_room(&self) -> bool {
        self.durable.as_ref().is_none_or(Durable::has_room)
    }

    /// The operator tells the server to end. Returns whether it has ended; a node that leads ends later.
    pub fn terminate(&mut self, net: &Shared) -> bool {
        let running = self.driver.file().is_some_and(|file| file.phase == Phase::Running);
        let may_end = self.durable.is_none() || (running && self.has_room());
        if self.up && may_end {
            let mut world = lock(net);
            let mut serving = self.on(&mut world);
            serving.look_at_lease();
            serving.shut_down(None, None, false);
            serving.serve();
        }
        self.take_ended()
    }

    /// Whether the process has ended as it was told to. This is told once.
    pub(in crate::torture::sim) fn take_ended(&mut self) -> bool {
        std::mem::take(&mut self.ended)
    }

    /// Takes the server down. `lost` is the number of its last writes that will be lost, `None` for all data. Returns false if it
    /// is down already.
    pub fn down(&mut self, net: &Shared, lost: Option<u64>, silent: bool) -> bool {
        // An operator who has let a server store less does not end it.
        let may_end = self.durable.as_mut().is_none_or(|durable| durable.loses_nothing(&self.driver));
        if !self.up || !may_end {
            return false;
        }
        let mut net = lock(net);
        let at_us = net.now_us;
        self.go_down(&mut net, silent);
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

    /// A process begins: none of its timers is set.
    pub(in crate::torture::sim) fn forget_timers(&mut self) {
        (self.timer_us, self.round_us) = (None, None);
    }

    fn go_down(&mut self, net: &mut Net, silent: bool) {
        (self.up, self.silent, self.ending) = (false, silent, false);
        self.threads.end();
        self.drop_sessions(net, !silent);
    }

    /// The process has ended, and with it all sessions. With `tells`, its machine closes the connections.
    fn drop_sessions(&mut self, net: &mut Net, tells: bool) {
        self.noise.iter_mut().for_each(Noise::disconnected);
        for conn in std::mem::take(&mut self.sessions).into_keys() {
            net.abandon(conn, tells);
        }
    }

    /// Starts the server, or starts it again. Returns false if it is durable and its files were refused.
    pub fn start(&mut self, net: &Shared) -> bool {
        let at_us = lock(net).now_us;
        self.up = true;
        self.forget_timers();
        let mut kept = true;
        match &mut self.journal {
            _ if self.durable.is_some() => {
                kept = self.start_process(at_us);
                let mut net = lock(net);
                let mut serving = self.on(&mut net);
                serving.meet_demands();
                if let Err(reason) = serving.load_some() {
                    serving.start_anew(&reason);
                    kept = false;
                }
            }
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
        let mut net = lock(net);
        let mut serving = self.on(&mut net);
        // What was rebuilt has set no timer here.
        serving.server.driver.reset_timer();
        let now = serving.server.now(serving.net.now_us);
        serving.finish_batch(now, None);
        serving.serve();
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
    use crate::torture::sim::net::Event;

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
