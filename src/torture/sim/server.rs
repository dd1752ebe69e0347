//! A server of the simulation: the real engine and its driver, fed by connections and a clock of its own. [`serving`] has what they run
//! on, [`storing`] how it starts from files, [`journal`] how it loses writes, [`local`] its unchecked clients and [`noise`] what most of
//! those do.

mod journal;
pub(in crate::torture::sim) mod local;
mod noise;
pub(in crate::torture::sim) mod serving;
mod storing;

use std::collections::{BTreeMap, VecDeque};

use bytes::BytesMut;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::client::{Command, Decoder, Value};
use crate::driver::backpressure::Limits;
use crate::driver::file::Phase;
use crate::driver::round::adapter::Adapter;
use crate::driver::round::{Driving, Rounds};
use crate::driver::{Driver, Present};
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::engine::session::SessionFlags;
use crate::persist::disk::simulated::SimulatedDisk;
use crate::persist::natives::clock::BootClock;
use crate::server::durable::start::Loading;
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
use crate::torture::sim::server::local::{LocalId, Locals};
use crate::torture::sim::server::noise::Noise;
use crate::torture::sim::server::serving::Serving;
use crate::torture::sim::threads::{Done, Lock, Threads};
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

/// What a client begins with, whether or not the server asks for a password.
fn hello() -> Command {
    Command::new("HELLO").arg(3).arg("AUTH").arg("default").arg("secret")
}

/// Whose a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::torture::sim) enum Who {
    /// A checked client's.
    Checked(ConnId),
    /// Another one's.
    Local(LocalId),
}

/// How a process ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// As it was told to.
    InOrder,
    /// It cannot start from its files.
    Refused,
}

/// The connection of a checked client, and its session.
pub(in crate::torture::sim) struct Session {
    /// The session, once the connection was accepted.
    id: Option<SessionId>,
    /// Whether the reply to [`hello`] was written.
    greeted: bool,
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
    fn new() -> Session {
        Session {
            id: None,
            greeted: false,
            input: hello().wire().to_vec(),
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
                _ if !self.greeted => {
                    self.greeted = true;
                    continue;
                }
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
    /// Whether it is to end, and how it has ended.
    ending: bool,
    ended: Option<Ended>,
    /// Whether the machine is down too, so that connections are not even refused.
    silent: bool,
    pub(in crate::torture::sim) sessions: BTreeMap<ConnId, Session>,
    /// The other clients.
    locals: Locals,
    /// Connections that are not accepted yet.
    arriving: Vec<Who>,
    /// Whose the connection of each session is, by session id.
    who: Vec<Option<Who>>,
    /// The true time at which the timer fires, if it is armed, that of the next round, and that at which a thread works next.
    timer_us: Option<u64>,
    round_us: Option<u64>,
    threads_us: Option<u64>,
    /// How late its timers are.
    random: Random,
    decoder: Decoder,
    journal: Option<Journal>,
    /// The clocks of the process.
    pub(in crate::torture::sim) clock: ProcessClock,
    /// The machine, if the server is durable.
    durable: Option<Durable>,
    pub(in crate::torture::sim) threads: Threads,
    /// The files that are loaded, if any are.
    loading: Option<Box<Loading<SharedDisk, Lock>>>,
    /// The node, if the server is one.
    pub(in crate::torture::sim) replica: Option<Box<Replica>>,
    /// Until when the server stands still.
    pub stalled_until_us: u64,
    /// What the driver keeps no more of.
    pub(in crate::torture::sim) limits: Limits,
    /// The greatest number of bytes that has waited.
    pub waited_max: u64,
    /// What it has done.
    pub done: Done,
    /// Unchecked clients, if there are any.
    noise: Option<Noise>,
}

/// The configuration of a server that is not durable. Some make no snapshots.
pub(in crate::torture::sim) fn config(seed: u64) -> Config {
    let mut config = Config::default();
    if seed.is_multiple_of(8) {
        config.dbfilename.clear();
    }
    config
}

fn engine(seed: u64, at_us: u64) -> Engine {
    let mut engine = Engine::new(config(seed), seed, now(at_us), crate::commands::table());
    engine.bound_scripts(Some(SCRIPT_STEPS_MAX));
    engine
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
            ended: None,
            silent: false,
            sessions: BTreeMap::new(),
            locals: Locals::default(),
            arriving: Vec::new(),
            who: Vec::new(),
            timer_us: None,
            round_us: None,
            threads_us: None,
            random: Random::new(seed, streams::TIMER, 0),
            decoder: Decoder::new(REPLY_MAX),
            journal,
            clock: ProcessClock::new(0, BEGIN_US, 0),
            durable: None,
            threads: Threads::new(seed, SharedDisk::new(SimulatedDisk::new(seed), Planted::Nothing, false)),
            loading: None,
            replica: None,
            stalled_until_us: 0,
            limits: Limits::default(),
            waited_max: 0,
            done: Done::default(),
            noise: None,
        };
        server.count_writes();
        server
    }

    /// A durable server that does not run yet. `planted` is a fault in it.
    pub fn durable(number: u32, seed: u64, planted: Planted) -> Server {
        let mut server = Server::new(number, seed, false);
        let disk = SharedDisk::new(SimulatedDisk::new(seed), planted, false);
        server.threads = Threads::new(seed, disk.clone());
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
        let mut noted = Vec::new();
        self.on(&mut world).wake(|serving| {
            let Serving { server, net } = serving;
            noted = server.take(net, conn, message);
        });
        self.note(world.now_us, noted);
    }

    /// Takes a message that has arrived at the socket of a connection. Returns what of it is noted in a journal.
    fn take(&mut self, net: &mut Net, conn: ConnId, message: ToServer) -> Vec<Entry> {
        let (Server { sessions, driver, arriving, .. }, mut noted) = (self, Vec::new());
        if let (ToServer::Close, false) = (&message, sessions.contains_key(&conn)) {
            net.end_session(conn);
            return noted;
        }
        let session = sessions.entry(conn).or_insert_with(|| {
            arriving.push(Who::Checked(conn));
            noted.push(Entry::Connect(conn));
            Session::new()
        });
        match message {
            ToServer::Close => {
                session.closed = true;
                noted.push(Entry::Close(conn));
            }
            ToServer::Request(command) => {
                session.arrived.push_back(net.stamp());
                session.input.extend_from_slice(command.wire());
                noted.push(Entry::Request(conn, command));
            }
        }
        session.id.into_iter().for_each(|id| driver.wake(id));
        noted
    }

    /// The server at work on this network.
    pub(in crate::torture::sim) fn on<'a>(&'a mut self, net: &'a mut Net) -> Serving<'a> {
        Serving { server: self, net }
    }

    /// Whose the connection of a session is.
    fn who(&self, id: SessionId) -> Option<Who> {
        self.who.get(id.index()).copied().flatten()
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
        if !self.sessions.contains_key(&conn) {
            return world.end_session(conn);
        }
        self.on(&mut world).wake(|serving| {
            let Server { sessions, driver, .. } = &mut *serving.server;
            if let Some(session) = sessions.get_mut(&conn) {
                session.broken = true;
                session.id.into_iter().for_each(|id| driver.wake(id));
            }
        });
        self.note(world.now_us, vec![Entry::Disconnect(conn)]);
    }

    /// The connections whose clients wait in a request.
    pub(in crate::torture::sim) fn waiting(&self) -> Vec<ConnId> {
        let sessions = self.driver.engine.sessions();
        let waits = |session: &Session| session.id.is_some_and(|id| sessions[id].flags.contains(SessionFlags::BLOCKED));
        self.sessions.iter().filter(|(_, session)| waits(session)).map(|(conn, _)| *conn).collect()
    }

    /// Whether the server ends grants whose connections end: as a node, it leads as far as it knows.
    fn sees_ends(&self) -> bool {
        self.replica.is_none() || self.driver.member().is_some_and(|member| member.leads())
    }

    /// The timer has fired, or the next round begins.
    pub fn tick(&mut self, net: &Shared) {
        let mut world = lock(net);
        let at_us = world.now_us;
        // Another one may be scheduled instead.
        let fires = self.timer_us.take_if(|timer_us| *timer_us <= at_us).is_some();
        let goes_on = self.round_us.take_if(|round_us| *round_us <= at_us).is_some();
        if self.up && (fires || goes_on) {
            self.on(&mut world).wake(|serving| {
                if fires {
                    serving.driver().timer_fired();
                }
            });
            self.note(at_us, vec![Entry::Tick { fires }]);
        }
    }

    /// The server's threads do what they do by now.
    pub fn work(&mut self, net: &Shared) {
        let mut world = lock(net);
        let at_us = world.now_us;
        if self.up && self.threads_us.take_if(|threads_us| *threads_us <= at_us).is_some() {
            let mut serving = self.on(&mut world);
            serving.let_threads_work();
            if serving.has_closures() {
                serving.wake(|_| ());
            }
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
            self.threads.inbox.send(|serving| serving.told_to_end(false));
            self.on(&mut world).wake(|_| ());
        }
        self.take_ended().is_some()
    }

    /// How the process has ended by itself. This is told once.
    pub(in crate::torture::sim) fn take_ended(&mut self) -> Option<Ended> {
        self.ended.take()
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
        if lost.is_none() && self.replica.is_none() {
            // Its data is lost, and its snapshots with it.
            let seed = self.seed;
            self.threads.disk.act(|disk| *disk = SimulatedDisk::new(seed));
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
        (self.timer_us, self.round_us, self.threads_us) = (None, None, None);
    }

    fn go_down(&mut self, net: &mut Net, silent: bool) {
        (self.up, self.silent, self.ending) = (false, silent, false);
        self.threads.end();
        self.loading = None;
        self.drop_sessions(net, !silent);
    }

    /// The process has ended, and with it all sessions. With `tells`, its machine closes the connections.
    fn drop_sessions(&mut self, net: &mut Net, tells: bool) {
        self.locals.clear();
        self.arriving.clear();
        for conn in std::mem::take(&mut self.sessions).into_keys() {
            net.abandon(conn, tells);
        }
    }

    /// Starts the server, or starts it again. Returns false if it is durable and its files were refused.
    pub fn start(&mut self, net: &Shared) -> bool {
        let at_us = lock(net).now_us;
        self.up = true;
        self.forget_timers();
        match &mut self.journal {
            Some(journal) if !journal.is_empty() => {
                journal.note(at_us, vec![Entry::Start]);
                self.restore();
                // What was rebuilt has set no timer here.
                self.driver.reset_timer();
            }
            _ => {
                let mut net = lock(net);
                if let Err(reason) = self.on(&mut net).start_process() {
                    tracing::warn!(reason, "files are refused");
                    self.go_down(&mut net, false);
                    return false;
                }
                if let Some(journal) = &mut self.journal {
                    *journal = Journal::new(at_us);
                }
                self.count_writes();
            }
        }
        self.on(&mut lock(net)).run();
        true
    }

    /// The elements of a list of numbers, at the end of an episode.
    pub fn list(&mut self, net: &mut Net, key: &[u8]) -> Vec<u64> {
        let Value::Array(elements) = self.answer(net, &Command::new("LRANGE").arg(key).arg(0).arg(-1)) else { return Vec::new() };
        elements.iter().filter_map(|element| element.as_str()?.parse().ok()).collect()
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

    #[test]
    fn a_failover_gives_no_token_twice_though_a_waiter_was_to_have_it_when_time_went_on() {
        let net = Arc::new(Mutex::new(Net::new(&Plan::draw(&Settings::default(), 0))));
        let mut server = Server::new(0, 1, true);
        let ask = |server: &mut Server, command: Command| server.answer(&mut lock(&net), &command);
        let acquire = |owner: &str| Command::new("LOCK.ACQUIRE").arg("door").arg(owner).arg(10_000);
        lock(&net).call(0, 0, None, acquire("alice"));
        run(&net, &mut server, 1_000_000);
        lock(&net).call(1, 0, None, acquire("bob").arg("WAIT").arg(0));
        // Alice's lease ends, and Bob is granted the lock.
        run(&net, &mut server, 10_500_000);
        let next = |server: &Server| server.driver.engine.keyspace().changes.locks.as_ref().map_or(0, |locks| locks.next_token());
        let of_bob = next(&server) - 1;
        let check = |token: u64| Command::new("LOCK.CHECK").arg("door").arg(token);
        assert_eq!(ask(&mut server, check(of_bob)), Value::Integer(1));
        // The replica does not know of the grant, and its clock is past the end of Alice's lease.
        assert!(server.down(&net, Some(1), false));
        lock(&net).now_us = 11_000_000;
        server.start(&net);
        assert!(next(&server) > of_bob);
        assert_eq!(ask(&mut server, check(of_bob)), Value::Integer(0), "bob has the token again");
        let token = ask(&mut server, acquire("carol"));
        assert!(matches!(token, Value::Integer(token) if token as u64 > of_bob), "{token:?}");
    }
}
