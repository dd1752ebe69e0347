//! Serves the sockets from within a script that runs long.
//!
//! There is one thread, and the script occupies it. But all work of a script is counted (see [`crate::script::fuel`]), and
//! after some tens of microseconds' worth of it the engine asks its supervisor, this module, whether the script may continue. The
//! clock is read here. After `busy-reply-threshold` milliseconds, the supervisor polls all sockets without waiting, has the
//! received requests executed (nearly all are answered `BUSY`), and writes the replies. One of the requests may be `SCRIPT KILL`.
//!
//! ```text
//!   script ─▶ fuel: check ─▶ Engine::supervisor ─▶ poll(2) ─▶ recv, parse, execute, send
//!                                                     └─────▶ accept: a session at once, a connection after the script
//!          ◀─ goes on, or ends with an error ◀─┘
//! ```
//!
//! Such a request finds the engine as the script has left it so far, in the middle of what other clients must see as one step. So
//! only a request that changes and shows no key is allowed (`ALLOW_BUSY` in its row), and none that runs a script.
//!
//! A script that never ends must not keep the server from ending: once the server has been asked to end, a script that runs for
//! longer than a moment is killed here, even if it has written. The change log then ends before that script.
//!
//! Connections get no turns meanwhile, because the one whose script runs has not ended its own. An incomplete request received
//! here is kept, and its connection continues with it afterwards. A connection that already held part of a request when the
//! script began is left alone: its further bytes wait in the socket.

use std::cell::{Cell, RefCell};
use std::os::fd::{BorrowedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use rustix::time::{ClockId, clock_gettime};
use smallvec::SmallVec;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::jobs::long_run::Verdict;
use crate::engine::request::Request;
use crate::engine::session::{Session, SessionFlags};
use crate::resp::reply::{Sink, WireReply};
use crate::resp::request::{Limits, Progress, RequestParser};
use crate::server::net::accept::Listening;
use crate::server::net::connection::Stream;
use crate::server::net::handshake::TlsAccepted;
use crate::server::net::listener;
use crate::server::net::listener::{Accepted, NewConnection};
use crate::server::net::tls;
use crate::server::net::tls::Tls;

/// Minimum interval between polls of the sockets, in microseconds: short enough for a client that waits for each reply, long
/// enough for the script to make progress.
const CHECK_EVERY_US: u64 = 2_000;
/// With very many clients, the script runs for this many times the duration of a poll, but at most for `CHECK_AGAIN_US`
/// microseconds.
const CHECK_SHARE: u64 = 10;
const CHECK_AGAIN_US: u64 = 20_000;
/// Maximum number of bytes received at once.
const RECEIVED_MAX: usize = 16 << 10;
/// A client with more unsent reply bytes than this is not read from.
const UNSENT_MAX: usize = 64 << 10;
/// Grace of a running script after the server was asked to end, in microseconds: most scripts end within it.
const ENDING_GRACE_US: u64 = 100_000;
/// Maximum number of records of one TLS connection decrypted per poll.
const RECORDS_MAX: usize = 16;

/// Input received on one connection during a script.
#[derive(Default)]
struct Received {
    /// The bytes of the incomplete request.
    bytes: Vec<u8>,
    parser: RequestParser,
    /// Whether the socket has reached its end or failed.
    ended: bool,
}

/// This module's view of a connection.
struct Watched {
    id: SessionId,
    fd: RawFd,
    /// The TLS stream, if the connection is encrypted.
    tls: Option<Tls>,
    received: Option<Box<Received>>,
}

type Connections = Vec<Option<Watched>>;

/// The connection of a session, unless another session has its number.
fn watched(connections: &mut Connections, id: SessionId) -> Option<&mut Watched> {
    connections.get_mut(id.index())?.as_mut().filter(|watched| watched.id == id)
}

/// All client sockets of a server, for the time when a script runs long.
#[derive(Default)]
pub(super) struct Busy {
    /// Connections, indexed by session number.
    connections: RefCell<Connections>,
    /// Number of connections with received input.
    stashed: Cell<usize>,
    /// Clients that were admitted during a script and have no connection yet.
    new_connections: RefCell<Vec<NewConnection>>,
}

impl Busy {
    /// Registers the socket of a connection, which stays open until [`Busy::forget`].
    pub(super) fn watch(&self, id: SessionId, fd: RawFd) {
        let mut connections = self.connections.borrow_mut();
        let index = id.index();
        if connections.len() <= index {
            connections.resize_with(index + 1, || None);
        }
        // A connection that was accepted during a script may already have received input.
        match &mut connections[index] {
            Some(watched) if watched.id == id => watched.fd = fd,
            place => *place = Some(Watched { id, fd, tls: None, received: None }),
        }
    }

    /// Registers the TLS stream of a watched connection.
    pub(super) fn watch_tls(&self, id: SessionId, tls: Tls) {
        if let Some(watched) = watched(&mut self.connections.borrow_mut(), id) {
            watched.tls = Some(tls);
        }
    }

    /// Whether clients were admitted during a script that have no connection yet.
    #[inline]
    pub(super) fn has_new_connections(&self) -> bool {
        !self.new_connections.borrow().is_empty()
    }

    /// Adds a client that has no connection yet, as if it were admitted during a script.
    #[cfg(feature = "http")]
    pub(super) fn add_new_connection(&self, connection: NewConnection) {
        self.new_connections.borrow_mut().push(connection);
    }

    /// Takes the clients that were admitted during a script, to give them their connections.
    pub(super) fn take_new_connections(&self) -> Vec<NewConnection> {
        std::mem::take(&mut *self.new_connections.borrow_mut())
    }

    fn tls(&self, id: SessionId) -> Option<Tls> {
        watched(&mut self.connections.borrow_mut(), id)?.tls.clone()
    }

    /// Forgets a connection, whose socket is about to be closed.
    pub(super) fn forget(&self, id: SessionId) {
        self.take(id);
        let mut connections = self.connections.borrow_mut();
        if watched(&mut connections, id).is_some() {
            connections[id.index()] = None;
        }
    }

    /// Takes the input that was received during a script and is not yet parsed, if there is any.
    #[inline]
    pub(super) fn take(&self, id: SessionId) -> Option<Vec<u8>> {
        if self.stashed.get() == 0 {
            return None;
        }
        let mut connections = self.connections.borrow_mut();
        let received = watched(&mut connections, id)?.received.take()?;
        self.stashed.set(self.stashed.get() - 1);
        if received.bytes.is_empty() { None } else { Some(received.bytes) }
    }
}

fn monotonic_us() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1000
}

/// Supervises the scripts of an engine.
pub(super) struct Watch {
    busy: Rc<Busy>,
    listening: Rc<Listening>,
    /// Whether the server has been asked to end, and when this was first noticed.
    ending: Arc<AtomicBool>,
    ending_since_us: Option<u64>,
    /// When the current run was first checked.
    began_us: u64,
    next_check_us: u64,
    long: bool,
    buffer: Vec<u8>,
}

impl Watch {
    /// Creates the supervisor of this shell's engine.
    pub(super) fn new(busy: Rc<Busy>, listening: Rc<Listening>, ending: Arc<AtomicBool>) -> Self {
        Watch { busy, listening, ending, ending_since_us: None, began_us: 0, next_check_us: 0, long: false, buffer: Vec::new() }
    }

    /// The engine's supervisor: serves the sockets when it is time to.
    pub(super) fn check(&mut self, engine: &mut Engine, now: Now, running: SessionId, first: bool) -> Verdict {
        if self.ending.load(Ordering::Relaxed) {
            let at_us = monotonic_us();
            if at_us - *self.ending_since_us.get_or_insert(at_us) >= ENDING_GRACE_US {
                return Verdict::Kill;
            }
        }
        let threshold_us = engine.config().busy_reply_threshold.saturating_mul(1000);
        if threshold_us == 0 {
            return Verdict::Continue;
        }
        let at_us = monotonic_us();
        if first {
            (self.began_us, self.next_check_us, self.long) = (at_us, 0, false);
        }
        if at_us - self.began_us < threshold_us || at_us < self.next_check_us {
            return Verdict::Continue;
        }
        if !self.long {
            self.long = true;
            let ms = (at_us - self.began_us) / 1000;
            tracing::warn!(ms, "slow script: others are told that the server is busy; SCRIPT KILL ends it");
        }
        if let Some(run) = engine.long_run_mut() {
            run.ms = (at_us - self.began_us) / 1000;
        }
        let verdict = self.serve_others(engine, now, running);
        let done_us = monotonic_us();
        self.next_check_us = done_us + ((done_us - at_us) * CHECK_SHARE).clamp(CHECK_EVERY_US, CHECK_AGAIN_US);
        verdict
    }

    fn serve_others(&mut self, engine: &mut Engine, now: Now, running: SessionId) -> Verdict {
        self.buffer.resize(RECEIVED_MAX, 0);
        for accepted in self.listening.accept_in_script() {
            self.welcome(engine, now, accepted);
        }
        for TlsAccepted { tls, addr } in self.listening.handshakes().resume_all() {
            self.welcome(engine, now, Accepted::tls(tls, addr));
        }
        for (id, fd, readable) in self.ready(engine, running) {
            // SAFETY: a connection's socket is open while it is watched, and no connection that could close it has a turn
            // meanwhile.
            let socket = Socket { fd: unsafe { BorrowedFd::borrow_raw(fd) }, tls: self.busy.tls(id) };
            if readable {
                self.receive(engine, now, id, &socket);
            }
            send(engine, id, &socket);
            // Its connection handles the new state when the script has ended.
            engine.mark_pending_write(id);
        }
        self.buffer = Vec::new();
        if engine.is_ending() { Verdict::Kill } else { Verdict::Continue }
    }

    /// Returns the connections that are ready to receive or send, and whether each is to receive.
    fn ready(&self, engine: &Engine, running: SessionId) -> Vec<(SessionId, RawFd, bool)> {
        let connections = self.busy.connections.borrow();
        let mut wanted = Vec::new();
        let mut polled = Vec::new();
        for watched in connections.iter().flatten() {
            let id = watched.id;
            let Some(session) = engine.sessions().get(id) else { continue };
            if id == running {
                // The running session's outbox is taken out, and may be written in part.
                continue;
            }
            let (decrypted, encrypted) = watched.tls.as_ref().map_or((false, false), tls::holds);
            let unsent = if is_held(engine, session) { 0 } else { session.out.len() - session.sent } + usize::from(encrypted);
            let ended = watched.received.as_ref().is_some_and(|received| received.ended)
                || session.flags.intersects(SessionFlags::CLOSE_AFTER_REPLY | SessionFlags::CLOSE_NOW);
            let mut flags = PollFlags::empty();
            let blocked = session.flags.contains(SessionFlags::BLOCKED);
            flags.set(PollFlags::IN, !ended && !blocked && session.query_buffer == 0 && unsent <= UNSENT_MAX);
            flags.set(PollFlags::OUT, unsent > 0);
            if flags.is_empty() {
                continue;
            }
            // SAFETY: as in `serve`.
            polled.push(PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(watched.fd) }, flags));
            wanted.push((id, watched.fd, flags.contains(PollFlags::IN), decrypted));
        }
        if poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_err() {
            return Vec::new();
        }
        let found =
            wanted.into_iter().zip(&polled).filter(|((.., decrypted), polled)| *decrypted || !polled.revents().is_empty());
        let readable = |polled: &PollFd<'_>| polled.revents().intersects(!PollFlags::OUT);
        found.map(|((id, fd, read, decrypted), polled)| (id, fd, read && (decrypted || readable(polled)))).collect()
    }

    /// Receives once from a connection and executes its complete requests.
    fn receive(&mut self, engine: &mut Engine, now: Now, id: SessionId, socket: &Socket<'_>) {
        let mut received = {
            let mut connections = self.busy.connections.borrow_mut();
            let Some(watched) = watched(&mut connections, id) else { return };
            match watched.received.take() {
                Some(received) => received,
                None => {
                    self.busy.stashed.set(self.busy.stashed.get() + 1);
                    Box::default()
                }
            }
        };
        // TLS input comes in records, and poll(2) reports only the first one.
        for _ in 0..if socket.tls.is_some() { RECORDS_MAX } else { 1 } {
            match socket.receive(&mut self.buffer) {
                Ok(0) => received.ended = true,
                Ok(count) => {
                    engine.count_read(id, count);
                    received.bytes.extend_from_slice(&self.buffer[..count]);
                    let session = &mut engine.sessions_mut()[id];
                    if session.out.is_empty() {
                        session.pushed = 0;
                    }
                    execute(engine, now, id, &mut received);
                    let held = received.bytes.len() as u64;
                    if held > engine.config().client_query_buffer_limit {
                        engine.stats_mut().query_limit_disconnections += 1;
                        engine.sessions_mut()[id].flags |= SessionFlags::CLOSE_NOW;
                    }
                    continue;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => received.ended = true,
            }
            break;
        }
        if let Some(watched) = watched(&mut self.busy.connections.borrow_mut(), id) {
            watched.received = Some(received);
        }
    }

    fn welcome(&self, engine: &mut Engine, now: Now, accepted: Accepted) {
        let Some(connection) = listener::welcome(engine, now, accepted) else { return };
        self.busy.watch(connection.id, connection.fd());
        if let Stream::Tls(tls) = &connection.stream {
            self.busy.watch_tls(connection.id, Rc::clone(tls));
        }
        self.busy.new_connections.borrow_mut().push(connection);
    }
}

/// The socket of a connection, as this module reads and writes it.
struct Socket<'a> {
    fd: BorrowedFd<'a>,
    tls: Option<Tls>,
}

impl Socket<'_> {
    fn receive(&self, into: &mut [u8]) -> Result<usize, Errno> {
        match &self.tls {
            None => rustix::net::recv(self.fd, into, RecvFlags::DONTWAIT).map(|(count, _)| count),
            Some(tls) => tls::receive(tls, into),
        }
    }

    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        match &self.tls {
            None => rustix::net::send(self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
            Some(tls) => tls::send(tls, bytes),
        }
    }

    /// Flushes encrypted bytes to the socket.
    fn flush(&self) -> Result<(), Errno> {
        if let Some(tls) = &self.tls { tls::flush(tls) } else { Ok(()) }
    }

    fn shut_down(&self) {
        if let Some(tls) = &self.tls {
            tls::say_goodbye(tls);
        }
        let _ = rustix::net::shutdown(self.fd, Shutdown::Both);
    }
}

/// Executes the complete requests of a connection and keeps the rest.
fn execute(engine: &mut Engine, now: Now, id: SessionId, received: &mut Received) {
    let mut start = 0;
    while start < received.bytes.len() {
        let flags = engine.sessions()[id].flags;
        if flags.intersects(SessionFlags::CLOSE_AFTER_REPLY | SessionFlags::CLOSE_NOW) {
            start = received.bytes.len();
            break;
        }
        if flags.contains(SessionFlags::BLOCKED) {
            break;
        }
        let authenticated = !engine.must_log_in(id);
        let limits = Limits { authenticated, max_bulk_len: engine.config().proto_max_bulk_len, ..Limits::default() };
        let rest = &received.bytes[start..];
        match received.parser.parse(rest, &limits) {
            Ok(Progress::Complete { consumed }) => {
                let args: SmallVec<[&[u8]; 16]> = received.parser.arguments(rest).collect();
                if engine.faults().armed() {
                    engine.execute_with_faults(now, id, Request::new(&args));
                } else {
                    engine.execute(now, id, &args);
                }
                start += consumed;
            }
            Ok(Progress::Empty { consumed }) => start += consumed,
            Ok(Progress::Incomplete) => break,
            Err(error) => {
                let session = &mut engine.sessions_mut()[id];
                WireReply::new(&mut session.out, session.protocol).error(&error.text());
                session.flags |= SessionFlags::CLOSE_AFTER_REPLY;
                continue;
            }
        }
        received.parser.reset();
    }
    received.bytes.drain(..start);
}

/// Whether a session's output waits for the end of the script: what is held back already, and under `appendfsync always` all messages
/// and pushes, which may show what the script has changed.
fn is_held(engine: &Engine, session: &Session) -> bool {
    // Other readers of the change log, such as a snapshot in progress, hold nothing back.
    let waits = || engine.replication().leads() || (engine.config().appendfsync == "always" && engine.persistence().log_runs());
    session.flags.intersects(SessionFlags::FAULT_GATED | SessionFlags::UNSETTLED) || (session.pushed > 0 && waits())
}

/// Writes a connection's outbox as far as the socket takes it. Shuts the connection down if it was only waiting for that.
fn send(engine: &mut Engine, id: SessionId, socket: &Socket<'_>) {
    if is_held(engine, &engine.sessions()[id]) {
        return;
    }
    loop {
        let session = &mut engine.sessions_mut()[id];
        if session.sent >= session.out.len() {
            break;
        }
        match socket.send(&session.out[session.sent..]) {
            Ok(count) => {
                engine.count_written(id, count);
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return,
            Err(_) => {
                session.flags |= SessionFlags::CLOSE_NOW;
                return;
            }
        }
    }
    let session = &mut engine.sessions_mut()[id];
    (session.out, session.sent) = (Vec::new(), 0);
    if socket.flush() == Err(Errno::AGAIN) {
        return;
    }
    if session.flags.intersects(SessionFlags::CLOSE_AFTER_REPLY | SessionFlags::CLOSE_NOW) {
        socket.shut_down();
    }
}
