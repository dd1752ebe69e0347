//! A connection: reads requests, has the engine execute them, writes the replies.
//!
//! ```text
//!   readable ─▶ recv into the shared buffer ─▶ parse, execute, parse, execute … ─▶ one send of all replies
//! ```
//!
//! There may be tens of thousands of idle connections, so each owns a socket, a session number and next to nothing else. A
//! connection has a buffer of its own only for an incomplete request, or for requests that wait because their client does not
//! read.

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
use crate::engine::outbox::Outbox;
use crate::engine::request::Request;
use crate::engine::session::SessionFlags;
use crate::resp::reply::{Sink, WireReply};
use crate::resp::request::{Limits, RequestParser};
use crate::server::net::poller::Readiness;
use crate::server::net::sweep::OUTBOX_FREE;
use crate::server::net::tls;
use crate::server::net::tls::Tls;
use crate::server::net::window::WINDOW;
use crate::server::shell::{READ_BUFFER, Shell};

/// Maximum number of request arguments that one connection has executed in a turn. An empty request counts as one.
const ARGUMENTS_PER_TURN: usize = 512;
/// No more requests run, and the replies are written out, once this many bytes of replies have gathered.
const REPLIES_PER_WRITE: usize = 256 << 10;

/// Maximum number of reply bytes that one connection writes in a turn: the kernel copies them, and over loopback it delivers them
/// within the call.
const WRITTEN_PER_TURN: usize = 256 << 10;

/// A connected, non-blocking socket.
pub enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a unix socket.
    Unix(UnixStream),
    /// Over TCP, encrypted.
    Tls(Tls),
}

impl Stream {
    /// Its file descriptor.
    pub fn fd(&self) -> RawFd {
        match self {
            Stream::Tcp(stream) => stream.as_raw_fd(),
            Stream::Unix(stream) => stream.as_raw_fd(),
            Stream::Tls(stream) => stream.borrow().get_ref().0.stream().as_raw_fd(),
        }
    }

    /// Calls `act` with its file descriptor.
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

    /// Makes the connection end with a TCP reset when it is closed, as if the machine had lost it.
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

    /// Flushes bytes that were written but have not reached the socket. Only TLS buffers them.
    #[inline]
    fn flush(&self) -> Result<(), Errno> {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => Ok(()),
            Stream::Tls(stream) => tls::flush(stream),
        }
    }
}

/// Size of the blocks in which a blocked connection's input is kept.
const BLOCK: usize = 1 << 20;

/// Input that is kept from one turn to the next.
struct Held {
    bytes: Vec<u8>,
    /// Input that arrived while the session was blocked. It may be very large, so it is never moved.
    behind: VecDeque<Vec<u8>>,
    behind_len: usize,
    /// Offset of the first byte that is not yet executed.
    start: usize,
    parser: RequestParser,
    /// Whether a complete request may be in it.
    ready: bool,
}

impl Held {
    fn new(bytes: Vec<u8>, parser: RequestParser, ready: bool) -> Box<Held> {
        Box::new(Held { bytes, behind: VecDeque::new(), behind_len: 0, start: 0, parser, ready })
    }

    /// Number of bytes not yet executed.
    fn len(&self) -> usize {
        self.bytes.len() - self.start + self.behind_len
    }

    /// Appends input behind what cannot be executed now.
    fn append_behind(&mut self, input: &[u8]) {
        self.behind_len += input.len();
        match self.behind.back_mut() {
            Some(block) if block.len() + input.len() <= BLOCK => block.extend_from_slice(input),
            _ => self.behind.push_back(input.to_vec()),
        }
    }

    /// Continues with the next block. Returns false if there is none.
    fn next_block(&mut self) -> bool {
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
    /// Known state of the socket: edge-triggered epoll reports changes only.
    readable: bool,
    writable: bool,
    /// Whether the socket holds more even after a read that fills less than its buffer.
    read_on: bool,
    /// Whether the client sends no more, and waits for what it has sent.
    ended: bool,
}

/// What happens to a connection at the end of its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Waits until its socket is ready or another session wakes it.
    Wait,
    /// Continues after the connections in the run queue.
    Soon,
    /// Continues after all other ready connections, including those that the next poll finds.
    Later,
    /// Closes.
    Close,
}

/// How a batch of requests ended.
enum Batch {
    /// The rest is not a complete request.
    Drained,
    /// More requests remain, but replies must be written or other connections served first.
    Paused,
    /// The session is blocked: nothing more runs until it is served.
    Blocked,
}

impl Connection {
    /// Creates the connection of a session that the shell has registered.
    pub fn new(stream: Stream, id: SessionId) -> Self {
        // epoll reports what the socket holds, but does not know of bytes that TLS has already decrypted.
        let readable = !stream.tells_all();
        Connection { stream, held: None, id, readable, writable: true, read_on: false, ended: false }
    }

    /// Records the readiness of its socket.
    #[inline]
    pub fn note(&mut self, readiness: Readiness) {
        self.readable |= readiness.readable;
        self.writable |= readiness.writable;
        self.read_on |= readiness.read_on;
    }

    /// Runs until the connection must wait, or until others are to have their turn.
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
            if shell.take_yield() {
                return Err(Next::Later);
            }
            if std::mem::take(&mut shell.yield_turn) && turn_left > 0 {
                // Those sessions are in the run queue already.
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
                // Nothing is held here: while a script runs long, no input is received for a connection that holds some.
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

    /// Receives once and executes the requests. Returns the number of bytes received.
    #[inline]
    fn read(&mut self, shell: &mut Shell) -> Result<usize, Next> {
        if !self.readable {
            return Err(if self.ended { self.end_input(shell) } else { Next::Wait });
        }
        let mut buffer = std::mem::take(&mut shell.read_buffer);
        let received = self.stream.read(&mut buffer);
        if let Ok(count @ 1..) = received {
            // epoll reports later input with a new event, but it has already reported the end of the input (`read_on`).
            self.readable = count == buffer.len() || self.read_on || !self.stream.tells_all();
            self.take_in(shell, &buffer[..count]);
        }
        shell.read_buffer = buffer;
        match received {
            Ok(0) => Err(self.end_input(shell)),
            Ok(count) => Ok(count),
            Err(Errno::INTR) => Ok(0),
            Err(Errno::AGAIN) => {
                (self.readable, self.read_on) = (false, false);
                Err(Next::Wait)
            }
            Err(_) => Err(Next::Close),
        }
    }

    /// The client sends no more. It may still read, so replies that wait for the disk are written first, as Redis does; and so is that
    /// of a job, which is one step in Redis, and those to what was sent behind it.
    #[cold]
    fn end_input(&mut self, shell: &mut Shell) -> Next {
        if shell.driver.engine.has_job(self.id) {
            (self.readable, self.ended) = (false, true);
            return Next::Wait;
        }
        let flags = &mut shell.driver.engine.sessions[self.id.0 as usize].flags;
        if !flags.contains(SessionFlags::UNSETTLED) {
            return Next::Close;
        }
        *flags |= SessionFlags::CLOSE_AFTER_REPLY;
        self.readable = false;
        Next::Wait
    }

    /// Executes received input, or keeps it.
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
            // Input behind a blocked request is kept. Reading it is how a closed client is noticed.
            None if shell.blocked(self.id) => {
                shell.close_turn();
                shell.note_held(self.id, input.len());
                self.held = Some(Held::new(input.to_vec(), RequestParser::new(), true));
            }
            None => self.execute_fresh(shell, input),
        }
    }

    /// Executes requests from the shared buffer and keeps the rest.
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

    /// Executes requests from the connection's own buffer, and frees the buffer when nothing is left.
    fn execute_held(&mut self, shell: &mut Shell) -> Batch {
        let Some(held) = &mut self.held else { return Batch::Drained };
        let (consumed, batch) = execute(shell, self.id, &mut held.parser, &held.bytes[held.start..]);
        held.start += consumed;
        held.ready = !matches!(batch, Batch::Drained) || held.next_block();
        if held.len() == 0 {
            self.let_go(shell);
            shell.note_held(self.id, 0);
        } else if (!held.ready && held.start > 0) || held.start > held.bytes.len() / 2 {
            held.bytes.drain(..held.start);
            held.start = 0;
        }
        batch
    }

    /// Drops the held input, which may be very large.
    fn let_go(&mut self, shell: &mut Shell) {
        let Some(held) = self.held.take() else { return };
        for buffer in [held.bytes].into_iter().chain(held.behind).filter(|buffer| buffer.capacity() >= BLOCK / 4) {
            shell.discard(buffer);
        }
    }

    /// Writes the session's whole outbox.
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

    /// Writes what may be written while a fault, or the disk, holds the rest back. Requests of other clients run on, and the client's own too
    /// unless its outbox is full. Opening the gate wakes the connection.
    #[cold]
    fn wait_at_gate(&mut self, shell: &Shell) -> Result<(), Next> {
        self.flush_stream()?;
        let full = shell.driver.engine.sessions[self.id.0 as usize].out.len() > REPLIES_PER_WRITE;
        if full || shell.closing(self.id) { Err(Next::Wait) } else { Ok(()) }
    }

    /// Closes the connection and ends its session.
    pub fn close(mut self, shell: &mut Shell) {
        if let Stream::Tls(stream) = &self.stream {
            tls::say_goodbye(stream);
        }
        if shell.driver.engine.sessions[self.id.0 as usize].flags.contains(SessionFlags::RESET_SOCKET) {
            self.stream.reset_when_closed();
        }
        self.let_go(shell);
        shell.disconnect(self.id);
    }
}

/// Executes input as a session's connection does, but without a socket, for benches that count the cost. The replies are in the
/// session's outbox. Returns the number of input bytes consumed.
#[cfg(any(test, feature = "internals"))]
pub fn execute_input(shell: &mut Shell, id: SessionId, input: &[u8]) -> usize {
    let mut parser = std::mem::take(&mut shell.parser);
    let (consumed, _) = execute(shell, id, &mut parser, input);
    shell.parser = parser;
    consumed
}

/// Parses and executes requests until the input or the turn ends. Returns the number of input bytes consumed.
fn execute(shell: &mut Shell, id: SessionId, parser: &mut RequestParser, input: &[u8]) -> (usize, Batch) {
    let (mut now, began_ns) = shell.begin(id);
    let mut window = std::mem::take(&mut shell.window);
    let mut outbox = shell.driver.engine.take_outbox(id);
    let mut flags = shell.driver.engine.sessions[id.0 as usize].flags;
    let holds = shell.driver.holds_output();
    let (mut done, mut arguments) = (0, 0);
    let batch = 'turn: loop {
        let authenticated = !shell.driver.engine.must_log_in(id);
        let limits = Limits { authenticated, ..shell.limits };
        // Request limits differ before and after AUTH, so requests are parsed one by one until then.
        let ahead = if authenticated { WINDOW } else { 1 };
        let (at, stop) = window.fill(parser, input, done, ahead, &limits);
        window.prefetch(&shell.driver.engine, id);
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
            if arguments >= ARGUMENTS_PER_TURN || outbox.bytes.len() > REPLIES_PER_WRITE {
                // Requests that were parsed but not executed are parsed again in the next turn.
                parser.reset();
                break 'turn Batch::Paused;
            }
            let args = &*args;
            let known = Request { args, row: request.command, key: request.key(args) };
            let before = holds.then(|| (outbox.bytes.len(), shell.driver.engine.sessions[id.0 as usize].db));
            flags = if shell.driver.engine.faults.armed() {
                outbox.in_place(&mut shell.driver.engine, |engine| {
                    engine.execute_with_faults(now, id, known);
                    engine.sessions[id.0 as usize].flags
                })
            } else {
                shell.driver.engine.execute_next(now, known, &mut outbox)
            };
            if let Some((start, db)) = before {
                shell.driver.hold_reply(began_ns, &outbox, request.command, args, db, start);
            }
            arguments += args.len();
            done = request.end;
            if shell.driver.engine.has_actions() || outbox.bytes.len() > OUTBOX_FREE {
                (now, flags) = between_requests(shell, now, &mut outbox);
            }
        }
        done = at;
        // Blank lines count only after the requests of their window. Counted before, many of them would end the turn before a
        // request ran, and the next turn would parse them again.
        arguments += window.blank;
        if stop.is_some() && shell.closing(id) {
            parser.reset();
            done = input.len();
            break Batch::Drained;
        }
        match stop {
            None if arguments >= ARGUMENTS_PER_TURN => break Batch::Paused,
            None => {}
            // The error is reported when the session is unblocked.
            Some(Err(_)) if shell.blocked(id) => {
                parser.reset();
                break Batch::Blocked;
            }
            Some(Err(error)) => {
                // The parser is shared by all connections.
                parser.reset();
                let session = &mut shell.driver.engine.sessions[id.0 as usize];
                WireReply::new(&mut outbox.bytes, session.protocol).error(&error.text());
                session.flags |= SessionFlags::CLOSE_AFTER_REPLY;
                done = input.len();
                break Batch::Drained;
            }
            Some(Ok(_)) => break Batch::Drained,
        }
    };
    shell.window = window.emptied();
    outbox.put_back(&mut shell.driver.engine);
    shell.finish_batch(now, Some(id));
    (done, batch)
}

/// Carries out the actions of a request and enforces the outbox limit; both need the outbox in its place. Returns the instant
/// after it, and the session's flags.
#[inline(never)]
fn between_requests(shell: &mut Shell, now: Now, outbox: &mut Outbox) -> (Now, SessionFlags) {
    let id = outbox.session;
    outbox.put_back(&mut shell.driver.engine);
    let now = shell.act(now);
    shell.check_output(id, now);
    outbox.take_again(&mut shell.driver.engine);
    (now, shell.driver.engine.sessions[id.0 as usize].flags)
}
