//! A server at work: what its driver runs on ([`Adapter`]), its connections ([`Rounds`]), their sockets ([`Socket`]), and its files ([`Starts`]).

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::driver::Driver;
use crate::driver::connections::turn::{Next, Turn};
use crate::driver::copy::CopyProgress;
use crate::driver::copy::received::Message;
use crate::driver::file::BaseOrder;
use crate::driver::round::adapter::Adapter;
use crate::driver::round::storing::Storing;
use crate::driver::round::writers::{Target, Writers};
use crate::driver::round::{ACCEPTED_MAX, Driving, RECEIVED_MAX, RoundEnd, Rounds, Socket, take_turn};
use crate::engine::Action;
use crate::engine::session::Peer;
use crate::persist::natives::clock::{BootClock, Moment};
use crate::server::durable::rewrite::BaseMaker;
use crate::server::durable::start::{Loading, Starts};
use crate::torture::sim::disk::SharedDisk;
use crate::torture::sim::net::{Event, Net, ToClient};
use crate::torture::sim::server::{Ended, Server, Session, Who};
use crate::torture::sim::threads::{Begun, Lock, Opened, SimWriter};

/// Why a server without files makes no log.
const NO_DISK: &str = "this server has no disk";
/// What a server does between two readings of [`busy_clock`], in nanoseconds.
const READING_NS: u64 = 100_000;
/// Time that a round takes which leaves work to the next one: requests come between the two.
const ROUND_US: u64 = 100;
/// Time after which a server is woken by what a thread has sent.
const WAKE_US: u64 = 10;

/// A clock that goes on while a server loads or applies. The time of the simulation stands still meanwhile.
fn busy_clock() -> u64 {
    thread_local!(static CLOCK: Cell<u64> = const { Cell::new(0) });
    CLOCK.replace(CLOCK.get() + READING_NS)
}

/// A server, and the network that it works on.
pub struct Serving<'a> {
    pub(in crate::torture::sim) server: &'a mut Server,
    pub(in crate::torture::sim) net: &'a mut Net,
}

impl Adapter for Serving<'_> {
    type Boot = BootClock;
    type Folder = Box<Opened>;
    type Writer = SimWriter;
    type Files = Begun;

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

    fn perform(&mut self, _: Action) {
        // Nobody asks a server of the simulation for what the driver leaves to it.
    }

    fn writers(&mut self) -> &mut Writers<SimWriter, Box<Opened>> {
        &mut self.server.threads.writers
    }

    fn open_folder(&mut self) -> Result<Box<Opened>, String> {
        fail_if!(self.server.durable.is_none(), NO_DISK.to_owned());
        fail_if!(self.server.threads.fails(), "the folder cannot be opened".to_owned());
        self.open_anew()
    }

    fn new_writer(&mut self, _: &Box<Opened>) -> SimWriter {
        SimWriter::new(self.server.threads.inbox.clone())
    }

    fn begin_copy(&mut self, target: Target<Box<Opened>>, moment: Moment, progress: Arc<CopyProgress>) -> Result<(), String> {
        let config = self.server.driver.engine.config().clone();
        self.server.threads.begin_copy(target, (config, moment, progress))
    }

    fn send_to_copy(&mut self, message: Message) {
        if let Message::End(moment) = &message {
            let keys = self.server.driver.engine.keyspace().images(Some(moment.now)).len();
            self.server.threads.expect_keys(keys);
        }
        self.server.threads.send_to_copy(self.net.now_us, message);
    }

    fn forget_copy(&mut self) {
        self.server.threads.forget_copy();
    }

    fn start_writer(&mut self, writer: &mut SimWriter, files: Begun) -> Result<(), String> {
        writer.begin(self.net.now_us, &self.server.threads.disk, files);
        Ok(())
    }

    fn make_base(&mut self, order: BaseOrder) -> Result<(), String> {
        let maker = BaseMaker::new(self, order)?;
        self.server.threads.make_base(self.net.now_us, maker);
        Ok(())
    }

    fn write_snapshot(&mut self) -> Result<(), String> {
        let fills = self.server.threads.fill();
        let saved = self.save_at_once();
        self.server.threads.make_room(fills);
        saved
    }

    fn end(&mut self) {
        self.server.ending = true;
    }

    fn fail(&mut self, reason: String) {
        self.server.fail(self.net, &reason);
    }

    /// Notes when what was written to a checked client was written.
    fn after_batch(&mut self, _: Now, id: Option<SessionId>) -> u64 {
        id.into_iter().for_each(|id| self.note_written(id));
        u64::MAX
    }

    fn set_timer(&mut self, at_ms: u64) -> bool {
        let Serving { server, net } = self;
        // Under stress, it fires late.
        let late_us = if !server.threads.hurries {
            0
        } else if server.random.percent(5) {
            server.random.below(5_000)
        } else {
            server.random.below(100)
        };
        let at_us = server.clock.true_us(at_ms) + late_us;
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
        let conn = match self.server.who(id) {
            Some(Who::Checked(conn)) => conn,
            Some(Who::Local(local)) => {
                let Some(client) = self.server.locals.get_mut(local) else { return Next::Wait };
                let mut client = std::mem::take(client);
                let next = take_turn(self, &mut (id, &mut client));
                // It may have been closed.
                self.server.locals.get_mut(local).into_iter().for_each(|of| std::mem::swap(of, &mut client));
                return next;
            }
            None => return Next::Wait,
        };
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
        match self.server.who(id) {
            Some(Who::Checked(conn)) => {
                if self.server.sessions.remove(&conn).is_some_and(|session| session.closed || session.broken) {
                    if self.server.sees_ends() {
                        self.net.record_hangup(conn);
                    }
                } else {
                    self.net.send_back(conn, ToClient::Reset);
                }
                self.net.end_session(conn);
            }
            Some(Who::Local(local)) => self.server.locals.remove(local),
            None => {}
        }
        self.close_session(id);
    }

    fn is_ending(&self) -> bool {
        self.server.ending
    }

    fn has_closures(&self) -> bool {
        !self.server.threads.inbox.is_empty() || self.server.has_asked()
    }

    fn run_closure(&mut self) -> bool {
        self.server.take_asked();
        let closure = self.server.threads.inbox.next();
        let any = closure.is_some();
        closure.into_iter().for_each(|closure| closure(self));
        any
    }

    fn accept_some(&mut self) {
        let some = self.server.arriving.len().min(ACCEPTED_MAX);
        self.server.arriving.drain(..some).collect::<Vec<_>>().into_iter().for_each(|who| self.accept(who));
    }

    fn load_some(&mut self) -> Result<(), String> {
        Starts::load_some(self)
    }

    fn next_load(&mut self) -> Option<Duration> {
        Starts::next_load(self)
    }

    fn all_connections(&self) -> Vec<SessionId> {
        self.server.driver.engine.sessions().ids(|_| true)
    }

    fn has_own_work(&self) -> bool {
        !self.server.arriving.is_empty()
    }
}

impl Serving<'_> {
    /// The server has waited, and notes by `take` what has come. Then it runs a round.
    pub(in crate::torture::sim) fn wake(&mut self, take: impl FnOnce(&mut Self)) {
        self.after_wait(take);
        self.run();
    }

    /// Runs a round, and schedules the next one.
    pub(in crate::torture::sim) fn run(&mut self) {
        match self.run_round() {
            Ok(Some(end)) => self.schedule(end),
            Ok(None) => self.end(Ended::InOrder),
            Err(reason) => {
                tracing::warn!(reason, "files are refused");
                self.end(Ended::Refused);
            }
        }
    }

    /// Schedules the next round, if nothing else comes before it.
    fn schedule(&mut self, end: RoundEnd) {
        self.let_threads_work();
        let has_closures = self.has_closures();
        let Serving { server, net } = self;
        server.waited_max = server.waited_max.max(server.driver.waiting());
        let in_us = |wait: Duration| 1 + wait.as_micros() as u64;
        let waits_us = match end {
            RoundEnd::GoesOn => Some(ROUND_US),
            RoundEnd::WaitsBriefly(rest) => Some(in_us(rest)),
            RoundEnd::Waits(load) => load.map(in_us),
        };
        let wakes_us = has_closures.then_some(WAKE_US);
        // What the last round wanted does not hold any more.
        server.round_us = [waits_us, wakes_us].into_iter().flatten().min().map(|wait_us| net.now_us + wait_us);
        server.round_us.into_iter().for_each(|next_us| net.at(next_us, Event::Tick(server.number)));
    }

    /// The server's threads do what they do by now. Schedules what they do next.
    pub(in crate::torture::sim) fn let_threads_work(&mut self) {
        let Serving { server, net } = self;
        server.threads.work(net.now_us);
        let Some(next_us) = server.threads.next_us().map(|next_us| next_us.max(net.now_us + 1)) else { return };
        if server.threads_us.is_none_or(|threads_us| next_us < threads_us) {
            server.threads_us = Some(next_us);
            net.at(next_us, Event::Threads(server.number));
        }
    }

    /// Accepts a connection, or refuses it.
    fn accept(&mut self, who: Who) {
        let now = self.now();
        let Server { driver, who: all, sessions, locals, .. } = &mut *self.server;
        if driver.engine.refusal(now, true, String::new).is_some() {
            match who {
                Who::Checked(conn) => {
                    sessions.remove(&conn);
                    self.net.send_back(conn, ToClient::Reset);
                    self.net.end_session(conn);
                }
                Who::Local(local) => locals.remove(local),
            }
            return;
        }
        let id = driver.engine.connect(now, Peer::default());
        match who {
            Who::Checked(conn) => sessions.get_mut(&conn).into_iter().for_each(|session| session.id = Some(id)),
            Who::Local(local) => locals.accepted(local, id),
        }
        if all.len() <= id.index() {
            all.resize(id.index() + 1, None);
        }
        all[id.index()] = Some(who);
        self.open_session(id);
        self.driver().wake(id);
    }

    /// Notes how far the output of a checked client's session goes now. The engine has granted, or not, by now, whenever that may be
    /// told.
    fn note_written(&mut self, id: SessionId) {
        let Serving { server, net } = self;
        let Some(Who::Checked(conn)) = server.who(id) else { return };
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

impl Socket<Serving<'_>> for Open {
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
        let some = self.input.len().min(RECEIVED_MAX);
        let input: Vec<u8> = self.input.drain(..some).collect();
        fail_if!(input.is_empty() && !self.closed, Next::Wait);
        serving.received(self.id, &input, turn)
    }
}

impl Starts for Serving<'_> {
    type Disk = SharedDisk;
    type Lock = Lock;

    fn lock_folder(&mut self) -> Result<(SharedDisk, Lock), String> {
        let threads = &mut self.server.threads;
        let inbox = threads.inbox.clone();
        let freed = move || inbox.send(|serving| serving.folder_freed());
        Ok((threads.disk.clone(), threads.writers.folder_locked((), Box::new(freed))))
    }

    fn folder_of_snapshots(&self) -> (SharedDisk, u32) {
        (self.server.threads.disk.clone(), 0)
    }

    fn loaded(&mut self) {
        self.server.done.loads += 1;
    }

    fn loading(&mut self) -> &mut Option<Box<Loading<SharedDisk, Lock>>> {
        &mut self.server.loading
    }
}
