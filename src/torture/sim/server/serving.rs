//! A server at work: what its driver runs on ([`Adapter`]), its connections ([`Rounds`]), and their sockets ([`Line`]).

use std::cell::Cell;
use std::sync::Arc;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::driver::Driver;
use crate::driver::connections::turn::{Next, Turn};
use crate::driver::copy::CopyProgress;
use crate::driver::copy::received::Message;
use crate::driver::file::BaseOrder;
use crate::driver::replicated::asked::NodeAdapter;
use crate::driver::round::adapter::Adapter;
use crate::driver::round::storing::Storing;
use crate::driver::round::{Driving, RoundEnd, Rounds, Socket, take_turn};
use crate::driver::switch::{Target, Writers};
use crate::engine::Action;
use crate::persist::natives::clock::{BootClock, Moment};
use crate::server::durable::start::{resume, serve_loaded};
use crate::torture::sim::durable::Durable;
use crate::torture::sim::machine::{NAME, Writer};
use crate::torture::sim::net::{ConnId, Event, Net, ToClient};
use crate::torture::sim::server::{Server, Session, connect};
use crate::torture::sim::threads::{Done, LockedFolder, NO_DISK, SimWriter};

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
    type Folder = LockedFolder;
    type Writer = SimWriter;
    type Files = (Box<Writer>, LockedFolder);

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

    fn writers(&mut self) -> &mut Writers<SimWriter, LockedFolder> {
        &mut self.server.threads.writers
    }

    fn open_folder(&mut self) -> Result<LockedFolder, String> {
        fail_if!(self.server.durable.is_none(), NO_DISK.to_owned());
        fail_if!(self.server.threads.fails(), "the folder cannot be opened".to_owned());
        let folder = LockedFolder::default();
        self.writers().folder_locked(Arc::downgrade(&folder));
        Ok(folder)
    }

    fn begin_copy(&mut self, target: Target<LockedFolder>, moment: Moment, progress: Arc<CopyProgress>) -> Result<(), String> {
        let config = self.server.driver.engine.config().clone();
        self.server.threads.begin_copy(target, (config, moment, progress))
    }

    fn send_to_copy(&mut self, message: Message) {
        let keys = self.server.driver.engine.keyspace().len();
        self.server.threads.send_to_copy(self.net.now_us, message, keys);
    }

    fn forget_copy(&mut self) {
        self.server.threads.forget_copy();
    }

    fn start_writer(&mut self, files: (Box<Writer>, LockedFolder)) -> Result<(), String> {
        self.writers().current_mut().ok_or("it was switched off")?.begin(files);
        Ok(())
    }

    fn make_base(&mut self, order: BaseOrder) -> Result<(), String> {
        let at = (self.net.now_us, self.moment());
        self.server.threads.make_base(at, order);
        Ok(())
    }

    fn write_snapshot(&mut self) -> Result<(), String> {
        fail_if!(self.server.threads.fails(), "the disk is full".to_owned());
        Ok(())
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
        let Some(conn) = self.server.conn(id) else {
            self.server.noise.iter_mut().for_each(|noise| noise.forget(id));
            return self.close_session(id);
        };
        if self.server.sessions.remove(&conn).is_some_and(|session| session.closed || session.broken) {
            if self.server.sees_ends() {
                self.net.record_hangup(conn);
            }
        } else {
            self.net.send_back(conn, ToClient::Reset);
        }
        self.net.end_session(conn);
        self.close_session(id);
    }

    fn is_ending(&self) -> bool {
        self.server.ending
    }

    fn serve_others(&mut self) {
        while let Some(asked) = self.server.next_asked() {
            self.carry_out(asked);
        }
        let at_us = self.net.now_us;
        loop {
            let Server { threads, durable, .. } = &mut *self.server;
            let Some(done) = threads.take_done(at_us, durable.as_ref().map(|durable| &durable.machine)) else { break };
            match done {
                Done::Report(report) => self.take_report(report),
                Done::Base(number, made) => {
                    self.base_made(number, made);
                    self.folder_freed();
                }
                Done::Snapshot(number, made) => self.snapshot_made(number, made),
                Done::File(made) => self.file_made(made),
                Done::Calls => {}
            }
        }
    }

    fn load_some(&mut self) -> Result<(), String> {
        let at_us = self.net.now_us;
        let Server { driver, durable: Some(durable), .. } = &mut *self.server else { return Ok(()) };
        let Some(loading) = durable.load_some(driver, at_us)? else { return Ok(()) };
        let (machine, folder) = (durable.machine.clone(), LockedFolder::default());
        self.writers().folder_locked(Arc::downgrade(&folder));
        serve_loaded(self, loading, |serving, files, _| {
            let begun = |files, syncs, progress| (Box::new(machine.writer(files, syncs, progress, at_us)), folder);
            resume(serving, machine.disk.clone(), NAME, files, SimWriter::default(), begun)
        })
    }

    fn serve_threads(&mut self) {
        self.serve_others();
    }

    fn close_connections(&mut self) {
        self.server.go_down(self.net, false);
    }
}

impl Serving<'_> {
    /// Runs rounds until nothing is left to do now, and schedules the next one.
    pub(in crate::torture::sim) fn serve(&mut self) {
        loop {
            let end = match self.run_round() {
                Ok(Some(end)) => end,
                Ok(None) => return self.end(),
                // On a full disk the server ends and keeps its files. Others are refused.
                Err(_) if !self.server.has_room() => return self.end(),
                Err(reason) => {
                    self.start_anew(&reason);
                    continue;
                }
            };
            self.server.driver.wake_late();
            self.work();
            if self.server.driver.has_connections_to_run() || self.has_reports() {
                continue;
            }
            self.server.waited_max = self.server.waited_max.max(self.server.driver.waiting());
            return self.schedule(end);
        }
    }

    /// Schedules the next round, if nothing else comes before it.
    fn schedule(&mut self, end: RoundEnd) {
        let Serving { server, net } = self;
        let mut next_us = match end {
            RoundEnd::GoesOn => net.now_us + ROUND_US,
            RoundEnd::WaitsBriefly(rest) => net.now_us + 1 + rest.as_micros() as u64,
            RoundEnd::Waits => u64::MAX,
        };
        let loads_us = server.durable.as_ref().and_then(Durable::loads_us);
        next_us = [server.threads.made_us(), loads_us].into_iter().flatten().fold(next_us, u64::min);
        if next_us != u64::MAX && server.round_us.is_none_or(|round_us| next_us < round_us) {
            server.round_us = Some(next_us);
            net.at(next_us, Event::Tick(server.number));
        }
    }

    /// Gives a client a session, for a connection or without one.
    pub(in crate::torture::sim) fn accept(&mut self, conn: Option<ConnId>) -> SessionId {
        let now = self.now();
        let Server { driver, conns, .. } = &mut *self.server;
        let id = connect(driver, now);
        if conns.len() <= id.index() {
            conns.resize(id.index() + 1, None);
        }
        conns[id.index()] = conn;
        self.open_session(id);
        id
    }

    /// Accepts the connection of a checked client.
    pub(super) fn connect(&mut self, conn: ConnId) {
        let id = self.accept(Some(conn));
        self.server.sessions.insert(conn, Session::new(id));
    }

    /// Executes requests, and drops the replies.
    pub(in crate::torture::sim) fn execute_all(&mut self, id: SessionId, input: Vec<u8>) {
        let mut open = Open { id, broken: false, input, closed: false, output: Vec::new() };
        while matches!(take_turn(self, &mut open), Next::Soon | Next::Later) {}
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
    serving.execute(id, |driver, at| driver.execute_received(at, id, input, turn));
    Ok(())
}
