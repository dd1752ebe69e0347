//! A connection: reads requests, has the engine execute them, writes what came of it.
//!
//! ```text
//!   readable ─▶ recv into the shared buffer ─▶ parse, execute, parse, execute … ─▶ one send of all replies
//! ```
//!
//! There may be tens of thousands of idle ones: it owns a socket, a session's number and next to nothing else. Only an incomplete
//! request, or requests that wait because their client does not read, have a buffer of their own.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::SockRef;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::session::SessionFlags;
use crate::resp::reply::{Sink, WireReply};
use crate::resp::request::{Limits, RequestParser};
use crate::server::net::poller::Readiness;
use crate::server::net::sweep::OUTBOX_FREE;
use crate::server::net::tls;
use crate::server::net::tls::Tls;
use crate::server::net::window::WINDOW;
use crate::server::shell::{READ_BUFFER, Shell};

/// So many arguments of requests may one connection have executed before others get their turn. An empty request counts as one.
const ARGUMENTS_PER_TURN: usize = 512;
/// Replies are written out, and no more requests executed meanwhile, once so many bytes of them have gathered.
const REPLIES_PER_WRITE: usize = 256 << 10;

/// Bytes of replies that one connection may write before others get their turn: the system copies them, and on the way to the same
/// machine it delivers them, too.
const WRITTEN_PER_TURN: usize = 256 << 10;

/// A connected socket, none of whose calls waits.
pub enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a unix socket.
    Unix(UnixStream),
    /// Over TCP, encrypted.
    Tls(Tls),
}

impl Stream {
    /// Its descriptor.
    pub fn fd(&self) -> RawFd {
        match self {
            Stream::Tcp(stream) => stream.as_raw_fd(),
            Stream::Unix(stream) => stream.as_raw_fd(),
            Stream::Tls(stream) => stream.borrow().get_ref().0.stream().as_raw_fd(),
        }
    }

    /// Does something with its descriptor.
    pub(crate) fn with_fd<T>(&self, act: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        match self {
            Stream::Tcp(stream) => act(stream.as_fd()),
            Stream::Unix(stream) => act(stream.as_fd()),
            Stream::Tls(stream) => act(stream.borrow().get_ref().0.stream().as_fd()),
        }
    }

    #[inline]
    fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Stream::Tcp(stream) => rustix::net::recv(stream, buffer, RecvFlags::empty()).map(|(count, _)| count),
            Stream::Unix(stream) => rustix::net::recv(stream, buffer, RecvFlags::empty()).map(|(count, _)| count),
            Stream::Tls(stream) => tls::receive(stream, buffer),
        }
    }

    #[inline]
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        match self {
            Stream::Tcp(stream) => rustix::net::send(stream, bytes, SendFlags::NOSIGNAL),
            Stream::Unix(stream) => rustix::net::send(stream, bytes, SendFlags::NOSIGNAL),
            Stream::Tls(stream) => tls::send(stream, bytes),
        }
    }

    /// Whether a read that fills less than its buffer has emptied the socket.
    #[inline]
    fn tells_all(&self) -> bool {
        !matches!(self, Stream::Tls(_))
    }

    /// Has the connection end by a TCP reset when it is closed, as if the machine had lost it.
    #[cold]
    fn reset_when_closed(&self) {
        let lingers = match self {
            Stream::Tcp(stream) => SockRef::from(stream).set_linger(Some(Duration::ZERO)),
            Stream::Tls(stream) => SockRef::from(stream.borrow().get_ref().0.stream()).set_linger(Some(Duration::ZERO)),
            Stream::Unix(_) => Ok(()),
        };
        if let Err(error) = lingers {
            tracing::debug!(%error, "a connection is closed without a reset");
        }
    }

    /// Sees to it that the socket has got all that was written. Only what is encrypted may wait before it.
    #[inline]
    fn flush(&self) -> Result<(), Errno> {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => Ok(()),
            Stream::Tls(stream) => tls::flush(stream),
        }
    }
}

/// Input behind a request that waits is kept in blocks of so many bytes.
const BLOCK: usize = 1 << 20;

/// Input that is kept from one turn to the next.
struct Held {
    bytes: Vec<u8>,
    /// What has come behind it while the session waited: very much, perhaps, and never to be moved.
    behind: VecDeque<Vec<u8>>,
    behind_len: usize,
    /// Everything before it is executed.
    start: usize,
    parser: RequestParser,
    /// Whether there may be a complete request in it.
    ready: bool,
}

impl Held {
    fn new(bytes: Vec<u8>, parser: RequestParser, ready: bool) -> Box<Held> {
        Box::new(Held { bytes, behind: VecDeque::new(), behind_len: 0, start: 0, parser, ready })
    }

    /// Bytes that are not yet executed.
    fn len(&self) -> usize {
        self.bytes.len() - self.start + self.behind_len
    }

    /// Takes more in behind what cannot be executed now.
    fn append_behind(&mut self, input: &[u8]) {
        self.behind_len += input.len();
        match self.behind.back_mut() {
            Some(block) if block.len() + input.len() <= BLOCK => block.extend_from_slice(input),
            _ => self.behind.push_back(input.to_vec()),
        }
    }

    /// Goes on to the next block; false where there is none.
    fn advance(&mut self) -> bool {
        let Some(block) = self.behind.pop_front() else { return false };
        self.behind_len -= block.len();
        self.bytes.drain(..self.start);
        self.start = 0;
        if self.bytes.is_empty() {
            self.bytes = block;
        } else {
            self.bytes.extend_from_slice(&block);
        }
        true
    }
}

/// One connection, from accept to close.
pub struct Connection {
    stream: Stream,
    held: Option<Box<Held>>,
    id: SessionId,
    /// What is known of the socket: the system tells only what is new.
    readable: bool,
    writable: bool,
    /// Whether there is more than a read that fills less than its buffer has told.
    read_on: bool,
}

/// What is to become of a connection at the end of its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It has nothing to do until its socket or somebody else has something for it.
    Wait,
    /// It goes on after those who are in line.
    Soon,
    /// It goes on after all others that have something to do, those included who are not known yet to have.
    Later,
    /// It is closed.
    Close,
}

/// How a batch of requests ended.
enum Batch {
    /// What remains is no complete request.
    Drained,
    /// There is more, but others come first: replies to be written, or other connections.
    Paused,
    /// The session waits: nothing more is executed until it goes on.
    Blocked,
}

impl Connection {
    /// A connection whose session the shell has registered.
    pub fn new(stream: Stream, id: SessionId) -> Self {
        // The system tells of the socket what there is; but it cannot know what is decrypted already.
        let readable = !stream.tells_all();
        Connection { stream, held: None, id, readable, writable: true, read_on: false }
    }

    /// Takes note of what has happened to its socket.
    #[inline]
    pub fn note(&mut self, readiness: Readiness) {
        self.readable |= readiness.readable;
        self.writable |= readiness.writable;
        self.read_on |= readiness.read_on;
    }

    /// Goes on until it must wait or others are to have their turn.
    #[inline]
    pub fn turn(&mut self, shell: &mut Shell) -> Next {
        let Err(next) = self.go_on(shell);
        next
    }

    fn go_on(&mut self, shell: &mut Shell) -> Result<Infallible, Next> {
        let mut turn_left = READ_BUFFER;
        loop {
            if shell.aborted(self.id) {
                return Err(Next::Close);
            }
            if shell.gives_way() {
                return Err(Next::Later);
            }
            if std::mem::take(&mut shell.others_first) && turn_left > 0 {
                // They are in line already.
                return Err(Next::Soon);
            }
            self.flush(shell)?;
            if shell.closing(self.id) {
                return Err(Next::Close);
            }
            if turn_left == 0 {
                return Err(Next::Later);
            }
            if let Some(bytes) = shell.busy.take(self.id) {
                // Nothing is held: a connection that holds something is not received from while a script runs long.
                shell.note_held(self.id, bytes.len());
                self.held = Some(Held::new(bytes, RequestParser::new(), true));
                continue;
            }
            if self.held.as_ref().is_some_and(|held| held.ready) && !shell.blocked(self.id) {
                if let Batch::Paused = self.execute_held(shell) {
                    turn_left = 0;
                }
                continue;
            }
            turn_left = turn_left.saturating_sub(self.read(shell)?);
        }
    }

    /// Receives once and executes what came; gives how many bytes that was.
    #[inline]
    fn read(&mut self, shell: &mut Shell) -> Result<usize, Next> {
        if !self.readable {
            return Err(Next::Wait);
        }
        let mut buffer = std::mem::take(&mut shell.read_buffer);
        let received = self.stream.read(&mut buffer);
        if let Ok(count @ 1..) = received {
            // What comes after this is told anew, but that nothing more comes has been.
            self.readable = count == buffer.len() || self.read_on || !self.stream.tells_all();
            self.take_in(shell, &buffer[..count]);
        }
        shell.read_buffer = buffer;
        match received {
            Ok(0) => Err(Next::Close),
            Ok(count) => Ok(count),
            Err(Errno::INTR) => Ok(0),
            Err(Errno::AGAIN) => {
                (self.readable, self.read_on) = (false, false);
                Err(Next::Wait)
            }
            Err(_) => Err(Next::Close),
        }
    }

    /// Executes what was received, or keeps it.
    #[inline]
    fn take_in(&mut self, shell: &mut Shell, input: &[u8]) {
        shell.count_read(self.id, input.len());
        match &mut self.held {
            Some(held) => {
                shell.close_turn();
                if shell.blocked(self.id) {
                    held.append_behind(input);
                } else {
                    held.bytes.extend_from_slice(input);
                }
                held.ready = true;
                shell.note_held(self.id, held.len());
            }
            // What comes behind a request that waits is kept; that the client is gone is noticed.
            None if shell.blocked(self.id) => {
                shell.close_turn();
                shell.note_held(self.id, input.len());
                self.held = Some(Held::new(input.to_vec(), RequestParser::new(), true));
            }
            None => self.execute_fresh(shell, input),
        }
    }

    /// Executes requests out of the shared buffer and keeps what is left of them.
    #[inline]
    fn execute_fresh(&mut self, shell: &mut Shell, input: &[u8]) {
        let mut parser = std::mem::take(&mut shell.parser);
        let (consumed, batch) = execute(shell, self.id, &mut parser, input);
        if consumed < input.len() {
            let bytes = input[consumed..].to_vec();
            let ready = !matches!(batch, Batch::Drained);
            shell.note_held(self.id, bytes.len());
            self.held = Some(Held::new(bytes, parser, ready));
        } else {
            shell.parser = parser;
        }
    }

    /// Executes requests out of the connection's own buffer and lets go of it when nothing is left.
    fn execute_held(&mut self, shell: &mut Shell) -> Batch {
        let Some(held) = &mut self.held else { return Batch::Drained };
        let (consumed, batch) = execute(shell, self.id, &mut held.parser, &held.bytes[held.start..]);
        held.start += consumed;
        held.ready = !matches!(batch, Batch::Drained) || held.advance();
        if held.len() == 0 {
            self.let_go(shell);
            shell.note_held(self.id, 0);
        } else if (!held.ready && held.start > 0) || held.start > held.bytes.len() / 2 {
            held.bytes.drain(..held.start);
            held.start = 0;
        }
        batch
    }

    /// Drops what is held, which may be very much.
    fn let_go(&mut self, shell: &mut Shell) {
        let Some(held) = self.held.take() else { return };
        for buffer in [held.bytes].into_iter().chain(held.behind).filter(|buffer| buffer.capacity() >= BLOCK / 4) {
            shell.discard(buffer);
        }
    }

    /// Writes the session's outbox, all of it.
    #[inline]
    fn flush(&mut self, shell: &mut Shell) -> Result<(), Next> {
        shell.begin_to_write(self.id);
        let mut left = WRITTEN_PER_TURN;
        loop {
            let Some(bytes) = shell.unsent(self.id) else {
                if shell.gated(self.id) {
                    return self.wait_at_gate(shell);
                }
                shell.reclaim(self.id);
                return self.flush_stream();
            };
            if left == 0 {
                return Err(Next::Later);
            }
            if !self.writable {
                return Err(Next::Wait);
            }
            match self.stream.write(&bytes[..bytes.len().min(left)]) {
                Ok(0) => return Err(Next::Close),
                Ok(written) => {
                    shell.count_written(self.id, written);
                    left -= written;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.writable = false;
                    return Err(Next::Wait);
                }
                Err(_) => return Err(Next::Close),
            }
        }
    }

    #[inline]
    fn flush_stream(&mut self) -> Result<(), Next> {
        match self.stream.flush() {
            Ok(()) => Ok(()),
            Err(Errno::AGAIN) => {
                self.writable = false;
                Err(Next::Wait)
            }
            Err(_) => Err(Next::Close),
        }
    }

    /// What may be written is, and the rest is held back: others' requests go on meanwhile, and the client's own, if the outbox is not full.
    /// Who opens a gate has the connection have a turn.
    #[cold]
    fn wait_at_gate(&mut self, shell: &Shell) -> Result<(), Next> {
        self.flush_stream()?;
        let full = shell.engine.sessions[self.id.0 as usize].out.len() > REPLIES_PER_WRITE;
        if full || shell.closing(self.id) { Err(Next::Wait) } else { Ok(()) }
    }

    /// Ends it, and its session.
    pub fn close(mut self, shell: &mut Shell) {
        if let Stream::Tls(stream) = &self.stream {
            tls::say_goodbye(stream);
        }
        if shell.engine.sessions[self.id.0 as usize].flags.contains(SessionFlags::RESET_SOCKET) {
            self.stream.reset_when_closed();
        }
        self.let_go(shell);
        shell.disconnect(self.id);
    }
}

/// Executes what a session sent as its connection does with what it has received, but without a socket, for those who count what that
/// takes. The replies are in the session's outbox. Gives how many bytes of the input are done with.
#[cfg(any(test, feature = "internals"))]
pub fn execute_input(shell: &mut Shell, id: SessionId, input: &[u8]) -> usize {
    let mut parser = std::mem::take(&mut shell.parser);
    let (consumed, _) = execute(shell, id, &mut parser, input);
    shell.parser = parser;
    consumed
}

/// Parses and executes requests until the input or the turn ends; gives how many bytes of it are done with.
fn execute(shell: &mut Shell, id: SessionId, parser: &mut RequestParser, input: &[u8]) -> (usize, Batch) {
    let mut now = shell.begin(id);
    let mut window = std::mem::take(&mut shell.window);
    let mut out = shell.engine.take_outbox(id);
    let mut flags = shell.engine.sessions[id.0 as usize].flags;
    let (mut done, mut arguments) = (0, 0);
    let batch = 'turn: loop {
        let authenticated = !shell.engine.must_log_in(id);
        let limits = Limits { authenticated, ..shell.limits };
        // What may be sent before and after AUTH differs: until then, requests are parsed one by one.
        let ahead = if authenticated { WINDOW } else { 1 };
        let (at, stop) = window.fill(parser, input, done, ahead, &limits);
        window.prefetch(&shell.engine, id);
        for (request, args) in window.requests() {
            const STOP: SessionFlags =
                SessionFlags::CLOSE_AFTER_REPLY.union(SessionFlags::CLOSE_NOW).union(SessionFlags::BLOCKED);
            if flags.intersects(STOP) {
                parser.reset();
                if flags.contains(SessionFlags::BLOCKED) {
                    break 'turn Batch::Blocked;
                }
                done = input.len();
                break 'turn Batch::Drained;
            }
            if arguments >= ARGUMENTS_PER_TURN || out.len() > REPLIES_PER_WRITE {
                // What is parsed and not executed is parsed again then.
                parser.reset();
                break 'turn Batch::Paused;
            }
            let args = &*args;
            if let Some((key, hash)) = request.key(args) {
                shell.engine.keyspace.know(key, hash);
            }
            flags = if shell.engine.faults.armed() {
                execute_with_faults(&mut shell.engine, now, id, request.command, args, &mut out)
            } else {
                shell.engine.execute_next(now, id, request.command, args, &mut out)
            };
            shell.engine.keyspace.forget_known();
            arguments += args.len();
            done = request.end;
            if shell.engine.asks() || out.len() > OUTBOX_FREE {
                (now, flags) = between_requests(shell, now, id, &mut out);
            }
        }
        done = at;
        // Not before, or a turn that ends with so many would begin anew with them.
        arguments += window.blank;
        if stop.is_some() && shell.closing(id) {
            parser.reset();
            done = input.len();
            break Batch::Drained;
        }
        match stop {
            None if arguments >= ARGUMENTS_PER_TURN => break Batch::Paused,
            None => {}
            // It is looked at again when the session goes on.
            Some(Err(_)) if shell.blocked(id) => {
                parser.reset();
                break Batch::Blocked;
            }
            Some(Err(error)) => {
                // The parser is everybody's.
                parser.reset();
                let session = &mut shell.engine.sessions[id.0 as usize];
                WireReply::new(&mut out, session.protocol).error(&error.text());
                session.flags |= SessionFlags::CLOSE_AFTER_REPLY;
                done = input.len();
                break Batch::Drained;
            }
            Some(Ok(_)) => break Batch::Drained,
        }
    };
    shell.window = window.emptied();
    shell.engine.put_outbox_back(id, out);
    shell.settle(now, Some(id));
    (done, batch)
}

/// Executes a request that may meet a fault, for which the session's outbox must be in its place. Gives the session's flags.
#[cold]
fn execute_with_faults(
    engine: &mut Engine,
    now: Now,
    id: SessionId,
    row: Option<&'static Command>,
    args: &[&[u8]],
    out: &mut Vec<u8>,
) -> SessionFlags {
    engine.put_outbox_back(id, std::mem::take(out));
    engine.execute_with_faults(now, id, row, args);
    *out = engine.take_outbox(id);
    engine.sessions[id.0 as usize].flags
}

/// Does what a request has asked for, and holds the outbox to its limit, for both of which it must be in its place. Gives the instant after
/// it, and the session's flags.
#[inline(never)]
fn between_requests(shell: &mut Shell, now: Now, id: SessionId, out: &mut Vec<u8>) -> (Now, SessionFlags) {
    shell.engine.put_outbox_back(id, std::mem::take(out));
    let now = shell.act(now);
    shell.check_output(id, now);
    *out = shell.engine.take_outbox(id);
    (now, shell.engine.sessions[id.0 as usize].flags)
}
