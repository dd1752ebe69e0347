//! While a script runs long: the sockets are looked after from inside of it.
//!
//! There is one thread, and the script has it. But all that a script does is counted (see [`crate::script::bounds`]), and after some
//! tens of microseconds' worth the engine asks its supervisor, which is this, whether it may go on. That is where the clock is: from
//! `busy-reply-threshold` milliseconds on, it looks at all sockets without waiting for any, has the requests that came executed (nearly
//! all are answered `BUSY`), and writes the replies. One of them may be `SCRIPT KILL`.
//!
//! ```text
//!   script ─▶ bounds: ask ─▶ Engine::supervisor ─▶ poll(2) ─▶ recv, parse, execute, send
//!                                                     └─────▶ accept: a session at once, a connection after the script
//!          ◀─ goes on, or ends with an error ◀─┘
//! ```
//!
//! Such a request finds the engine as the script has left it so far, in the middle of what others are to see as one step. So it may only
//! be one that changes no key and shows none (`ALLOW_BUSY` in its row), and none that runs a script.
//!
//! A script that never ends must not keep the server from ending either: where it has been asked to, a run that goes on for more than
//! a moment is ended from here, whatever it has done. The log of changes ends before it.
//!
//! The connections have no turns meanwhile, since the one whose script runs has not ended its own. What was received here and is
//! no complete request is kept, and the connection goes on with it afterwards. A connection whose input was cut by the
//! beginning of the script in the middle of a request is left alone: its bytes wait in the socket.

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
use crate::engine::long_run::Verdict;
use crate::engine::session::SessionFlags;
use crate::engine::{Action, Engine};
use crate::resp::reply::{Sink, WireReply};
use crate::resp::request::{Limits, Progress, RequestParser};
use crate::server::net::accept::Listening;
use crate::server::net::connection::Stream;
use crate::server::net::handshake::Greeted;
use crate::server::net::listener;
use crate::server::net::listener::{Accepted, Newcomer};
use crate::server::net::tls;
use crate::server::net::tls::Tls;

/// Sockets are looked at so often, in microseconds: often enough for a client that waits for each reply, seldom enough for the script
/// to get on.
const LOOK_EVERY_US: u64 = 2_000;
/// With very many clients, the script gets so many times the time that a look took, but no more microseconds than these.
const LOOK_SHARE: u64 = 10;
const LOOK_AGAIN_US: u64 = 20_000;
/// Bytes received at once.
const RECEIVED_MAX: usize = 16 << 10;
/// A client with so many bytes of replies that it has not read is not read from.
const UNSENT_MAX: usize = 64 << 10;
/// What a script that runs when the server is asked to end has left, in microseconds: most are done by then.
const ENDING_GRACE_US: u64 = 100_000;
/// Records of one TLS connection that are decrypted at one look.
const RECORDS_MAX: usize = 16;

/// What was received of one connection during a script.
#[derive(Default)]
struct Received {
    /// The request that is not complete yet.
    bytes: Vec<u8>,
    parser: RequestParser,
    /// Whether there is nothing more to be had of its socket.
    ended: bool,
}

/// One connection, as far as this module knows it.
struct Watched {
    fd: RawFd,
    /// What it is read and written by, where that is not the socket itself.
    tls: Option<Tls>,
    received: Option<Box<Received>>,
}

/// The sockets of a server, for the time when a script runs long.
#[derive(Default)]
pub(super) struct Busy {
    /// By the number of the session.
    connections: RefCell<Vec<Option<Watched>>>,
    /// Connections with something received.
    stashed: Cell<usize>,
    /// Who was let in during a script and has no connection yet.
    newcomers: RefCell<Vec<Newcomer>>,
}

impl Busy {
    /// Notes the socket of a connection, which stays open until [`Busy::forget`].
    pub(super) fn watch(&self, id: SessionId, fd: RawFd) {
        let mut connections = self.connections.borrow_mut();
        let index = id.0 as usize;
        if connections.len() <= index {
            connections.resize_with(index + 1, || None);
        }
        // One that was accepted during a script may have something received already.
        match &mut connections[index] {
            Some(watched) => watched.fd = fd,
            none => *none = Some(Watched { fd, tls: None, received: None }),
        }
    }

    /// Notes what a connection that is watched is read and written by.
    pub(super) fn watch_tls(&self, id: SessionId, tls: Tls) {
        if let Some(Some(watched)) = self.connections.borrow_mut().get_mut(id.0 as usize) {
            watched.tls = Some(tls);
        }
    }

    /// Whether somebody was let in during a script and has no connection yet.
    #[inline]
    pub(super) fn has_newcomers(&self) -> bool {
        !self.newcomers.borrow().is_empty()
    }

    /// Those who were let in during a script, to be given their connections.
    pub(super) fn take_newcomers(&self) -> Vec<Newcomer> {
        std::mem::take(&mut *self.newcomers.borrow_mut())
    }

    fn tls(&self, id: SessionId) -> Option<Tls> {
        self.connections.borrow().get(id.0 as usize)?.as_ref()?.tls.clone()
    }

    /// Notes that a connection's socket is about to be closed.
    pub(super) fn forget(&self, id: SessionId) {
        self.take(id);
        if let Some(connection) = self.connections.borrow_mut().get_mut(id.0 as usize) {
            *connection = None;
        }
    }

    /// What was received of a connection during a script and is yet to be parsed, if anything.
    #[inline]
    pub(super) fn take(&self, id: SessionId) -> Option<Vec<u8>> {
        if self.stashed.get() == 0 {
            return None;
        }
        let mut connections = self.connections.borrow_mut();
        let received = connections.get_mut(id.0 as usize)?.as_mut()?.received.take()?;
        self.stashed.set(self.stashed.get() - 1);
        if received.bytes.is_empty() { None } else { Some(received.bytes) }
    }
}

fn monotonic_us() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1000
}

/// Watches over the scripts of an engine.
pub(super) struct Watch {
    busy: Rc<Busy>,
    listening: Rc<Listening>,
    /// Whether the server has been asked to end, and since when it is known.
    ending: Arc<AtomicBool>,
    ending_since_us: Option<u64>,
    /// When the run was first looked at.
    began_us: u64,
    look_us: u64,
    long: bool,
    buffer: Vec<u8>,
}

impl Watch {
    /// One for the engine of this shell.
    pub(super) fn new(busy: Rc<Busy>, listening: Rc<Listening>, ending: Arc<AtomicBool>) -> Self {
        Watch { busy, listening, ending, ending_since_us: None, began_us: 0, look_us: 0, long: false, buffer: Vec::new() }
    }

    /// Looks after the sockets if it is time to; the engine's supervisor.
    pub(super) fn look(&mut self, engine: &mut Engine, now: Now, running: SessionId, first: bool) -> Verdict {
        if self.ending.load(Ordering::Relaxed) {
            let at_us = monotonic_us();
            if at_us - *self.ending_since_us.get_or_insert(at_us) >= ENDING_GRACE_US {
                return Verdict::Kill;
            }
        }
        let threshold_us = engine.config.busy_reply_threshold.saturating_mul(1000);
        if threshold_us == 0 {
            return Verdict::Continue;
        }
        let at_us = monotonic_us();
        if first {
            (self.began_us, self.look_us, self.long) = (at_us, 0, false);
        }
        if at_us - self.began_us < threshold_us || at_us < self.look_us {
            return Verdict::Continue;
        }
        if !self.long {
            self.long = true;
            let ms = (at_us - self.began_us) / 1000;
            tracing::warn!(ms, "slow script: others are told that the server is busy; SCRIPT KILL ends it");
        }
        if let Some(run) = &mut engine.long_run {
            run.ms = (at_us - self.began_us) / 1000;
        }
        let verdict = self.serve(engine, now, running);
        let done_us = monotonic_us();
        self.look_us = done_us + ((done_us - at_us) * LOOK_SHARE).clamp(LOOK_EVERY_US, LOOK_AGAIN_US);
        verdict
    }

    fn serve(&mut self, engine: &mut Engine, now: Now, running: SessionId) -> Verdict {
        self.buffer.resize(RECEIVED_MAX, 0);
        for accepted in self.listening.accept_in_script() {
            self.welcome(engine, now, accepted);
        }
        for Greeted { tls, addr } in self.listening.handshakes().go_on_with_all() {
            self.welcome(engine, now, Accepted::tls(tls, addr));
        }
        for (id, fd, readable) in self.ready(engine, running) {
            // SAFETY: a connection's socket is open for as long as it is watched, and no connection that could close it has a turn meanwhile.
            let socket = Socket { fd: unsafe { BorrowedFd::borrow_raw(fd) }, tls: self.busy.tls(id) };
            if readable {
                self.receive(engine, now, id, &socket);
            }
            send(engine, id, &socket);
            // Its connection looks at what has become of it when the script has ended.
            engine.mark_dirty(id);
        }
        self.buffer = Vec::new();
        let actions = engine.take_actions();
        let shutdown = actions.contains(&Action::Shutdown);
        for action in actions {
            engine.act(action);
        }
        if shutdown { Verdict::Kill } else { Verdict::Continue }
    }

    /// The connections with something to receive or to send, and whether it is to receive.
    fn ready(&self, engine: &Engine, running: SessionId) -> Vec<(SessionId, RawFd, bool)> {
        let connections = self.busy.connections.borrow();
        let mut wanted = Vec::new();
        let mut polled = Vec::new();
        for (index, watched) in connections.iter().enumerate() {
            let (Some(watched), Some(session)) = (watched, engine.sessions.get(index)) else { continue };
            if index == running.0 as usize {
                // Its outbox is taken, which may have been written in part.
                continue;
            }
            let (decrypted, encrypted) = watched.tls.as_ref().map_or((false, false), tls::holds);
            // What is held back waits for the script, too.
            let gated = session.flags.contains(SessionFlags::GATED);
            let unsent = if gated { 0 } else { session.out.len() - session.sent } + usize::from(encrypted);
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
            wanted.push((SessionId(index as u32), watched.fd, flags.contains(PollFlags::IN), decrypted));
        }
        if poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_err() {
            return Vec::new();
        }
        let found =
            wanted.into_iter().zip(&polled).filter(|((.., decrypted), polled)| *decrypted || !polled.revents().is_empty());
        let readable = |polled: &PollFd<'_>| polled.revents().intersects(!PollFlags::OUT);
        found.map(|((id, fd, read, decrypted), polled)| (id, fd, read && (decrypted || readable(polled)))).collect()
    }

    /// Receives once from a connection, and has the requests that are complete executed.
    fn receive(&mut self, engine: &mut Engine, now: Now, id: SessionId, socket: &Socket<'_>) {
        let mut received = {
            let mut connections = self.busy.connections.borrow_mut();
            let Some(Some(watched)) = connections.get_mut(id.0 as usize) else { return };
            match watched.received.take() {
                Some(received) => received,
                None => {
                    self.busy.stashed.set(self.busy.stashed.get() + 1);
                    Box::default()
                }
            }
        };
        // What is encrypted comes in records, of which the socket tells only when the first has come.
        for _ in 0..if socket.tls.is_some() { RECORDS_MAX } else { 1 } {
            match socket.receive(&mut self.buffer) {
                Ok(0) => received.ended = true,
                Ok(count) => {
                    engine.sessions[id.0 as usize].net_in += count as u64;
                    engine.stats.net_in += count as u64;
                    engine.stats.reads += 1;
                    received.bytes.extend_from_slice(&self.buffer[..count]);
                    execute(engine, now, id, &mut received);
                    let held = received.bytes.len() as u64;
                    if held > engine.config.client_query_buffer_limit {
                        engine.stats.query_limit_disconnections += 1;
                        engine.sessions[id.0 as usize].flags |= SessionFlags::CLOSE_NOW;
                    }
                    continue;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => received.ended = true,
            }
            break;
        }
        if let Some(Some(watched)) = self.busy.connections.borrow_mut().get_mut(id.0 as usize) {
            watched.received = Some(received);
        }
    }

    fn welcome(&self, engine: &mut Engine, now: Now, accepted: Accepted) {
        let Some(newcomer) = listener::welcome(engine, now, accepted) else { return };
        self.busy.watch(newcomer.id, newcomer.fd());
        if let Stream::Tls(tls) = &newcomer.stream {
            self.busy.watch_tls(newcomer.id, Rc::clone(tls));
        }
        self.busy.newcomers.borrow_mut().push(newcomer);
    }
}

/// How a connection is read and written here.
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

    /// Sees to it that the socket has got all that was sent.
    fn flush(&self) -> Result<(), Errno> {
        match &self.tls {
            None => Ok(()),
            Some(tls) => tls::flush(tls),
        }
    }

    fn shut_down(&self) {
        if let Some(tls) = &self.tls {
            tls::say_goodbye(tls);
        }
        let _ = rustix::net::shutdown(self.fd, Shutdown::Both);
    }
}

/// Has the complete requests of a connection executed; what is left of them stays.
fn execute(engine: &mut Engine, now: Now, id: SessionId, received: &mut Received) {
    let mut start = 0;
    while start < received.bytes.len() {
        let flags = engine.sessions[id.0 as usize].flags;
        if flags.intersects(SessionFlags::CLOSE_AFTER_REPLY | SessionFlags::CLOSE_NOW) {
            start = received.bytes.len();
            break;
        }
        if flags.contains(SessionFlags::BLOCKED) {
            break;
        }
        let authenticated = !engine.must_log_in(id);
        let limits = Limits { authenticated, max_bulk_len: engine.config.proto_max_bulk_len, ..Limits::default() };
        let rest = &received.bytes[start..];
        match received.parser.parse(rest, &limits) {
            Ok(Progress::Complete { consumed }) => {
                let args: SmallVec<[&[u8]; 16]> = received.parser.arguments(rest).collect();
                if engine.faults.armed() {
                    engine.execute_with_faults(now, id, None, &args);
                } else {
                    engine.execute(now, id, &args);
                }
                start += consumed;
            }
            Ok(Progress::Empty { consumed }) => start += consumed,
            Ok(Progress::Incomplete) => break,
            Err(error) => {
                let session = &mut engine.sessions[id.0 as usize];
                WireReply::new(&mut session.out, session.protocol).error(&error.text());
                session.flags |= SessionFlags::CLOSE_AFTER_REPLY;
                continue;
            }
        }
        received.parser.reset();
    }
    received.bytes.drain(..start);
}

/// Writes what is in a connection's outbox, as far as the socket takes it; ends the connection where that was all it waited for.
fn send(engine: &mut Engine, id: SessionId, socket: &Socket<'_>) {
    let session = &mut engine.sessions[id.0 as usize];
    if session.flags.contains(SessionFlags::GATED) {
        return;
    }
    while session.sent < session.out.len() {
        match socket.send(&session.out[session.sent..]) {
            Ok(count) => {
                session.sent += count;
                session.net_out += count as u64;
                engine.stats.net_out += count as u64;
                engine.stats.writes += 1;
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return,
            Err(_) => {
                session.flags |= SessionFlags::CLOSE_NOW;
                return;
            }
        }
    }
    (session.out, session.sent) = (Vec::new(), 0);
    if socket.flush() == Err(Errno::AGAIN) {
        return;
    }
    if session.flags.intersects(SessionFlags::CLOSE_AFTER_REPLY | SessionFlags::CLOSE_NOW) {
        socket.shut_down();
    }
}
