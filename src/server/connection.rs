//! A connection: reads requests, has the engine execute them, writes what came of it.
//!
//! ```text
//!   readable ─▶ recv into the shared buffer ─▶ parse, execute, parse, execute … ─▶ one send of all replies
//! ```
//!
//! Written by hand as a future, since there may be tens of thousands of idle ones: it owns a socket, a session's number and
//! nothing else. Only an incomplete request, or requests that wait because their client does not read, have a buffer of
//! their own.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::session::{SessionFlags, SessionId};
use crate::engine::time::Now;
use crate::engine::turns::Task;
use crate::resp::reply::{Sink, WireReply};
use crate::resp::request::{Limits, RequestParser};
use crate::server::shell::{READ_BUFFER, Shell};
use crate::server::sweep::OUTBOX_FREE;
use crate::server::tls::{self, Tls};
use crate::server::window::WINDOW;

/// So many arguments of requests may one connection have executed before others get their turn. An empty request counts as one.
const ARGUMENTS_PER_TURN: usize = 512;
/// Replies are written out, and no more requests executed meanwhile, once so many bytes of them have gathered.
const REPLIES_PER_WRITE: usize = 256 << 10;

/// Bytes of replies that one connection may write before others get their turn: the system copies them, and on the way to the same
/// machine it delivers them, too.
const WRITTEN_PER_TURN: usize = 256 << 10;

/// A connected socket.
pub enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a unix socket.
    Unix(UnixStream),
    /// Over TCP, encrypted.
    Tls(Tls),
}

impl Stream {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(&mut *stream.borrow_mut()).poll_read(cx, buf),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(stream) => Pin::new(&mut *stream.borrow_mut()).poll_write(cx, bytes),
        }
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
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(_) | Stream::Unix(_) => Poll::Ready(Ok(())),
            Stream::Tls(stream) => Pin::new(&mut *stream.borrow_mut()).poll_flush(cx),
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
    shell: Rc<RefCell<Shell>>,
    stream: Stream,
    held: Option<Box<Held>>,
    id: SessionId,
    watched: bool,
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
    pub fn new(shell: Rc<RefCell<Shell>>, stream: Stream, id: SessionId) -> Self {
        Connection { shell, stream, held: None, id, watched: false }
    }

    /// Goes on until it must wait; ready when the connection is to be closed.
    fn turn(&mut self, shell: &mut Shell, cx: &mut Context<'_>) -> Poll<()> {
        let mut turn_left = READ_BUFFER;
        loop {
            if shell.aborted(self.id) {
                return Poll::Ready(());
            }
            if shell.gives_way() {
                return wait_for_others(cx);
            }
            if std::mem::take(&mut shell.others_first) && turn_left > 0 {
                // They are in line already.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match ready!(self.flush(shell, cx)) {
                Ok(()) if !shell.closing(self.id) => {}
                _ => return Poll::Ready(()),
            }
            if turn_left == 0 {
                return wait_for_others(cx);
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
            let read = match ready!(self.read(shell, cx)) {
                Ok(0) | Err(_) => return Poll::Ready(()),
                Ok(read) => read,
            };
            turn_left = turn_left.saturating_sub(read);
        }
    }

    /// Receives once and executes what came.
    fn read(&mut self, shell: &mut Shell, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut buffer = std::mem::take(&mut shell.read_buffer);
        let mut into = ReadBuf::new(&mut buffer);
        let polled = self.stream.poll_read(cx, &mut into);
        let read = into.filled().len();
        if let Poll::Ready(Ok(())) = polled
            && read > 0
        {
            shell.count_read(self.id, read);
            match &mut self.held {
                Some(held) => {
                    if shell.blocked(self.id) {
                        held.append_behind(&buffer[..read]);
                    } else {
                        held.bytes.extend_from_slice(&buffer[..read]);
                    }
                    held.ready = true;
                    shell.note_held(self.id, held.len());
                }
                // What comes behind a request that waits is kept; that the client is gone is noticed.
                None if shell.blocked(self.id) => {
                    let bytes = buffer[..read].to_vec();
                    shell.note_held(self.id, bytes.len());
                    self.held = Some(Held::new(bytes, RequestParser::new(), true));
                }
                None => self.execute_fresh(shell, &buffer[..read]),
            }
        }
        shell.read_buffer = buffer;
        polled.map_ok(|()| read)
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

    /// Writes the session's outbox; ready when all of it is written.
    #[inline]
    fn flush(&mut self, shell: &mut Shell, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut left = WRITTEN_PER_TURN;
        loop {
            let Some(bytes) = shell.unsent(self.id) else {
                if shell.gated(self.id) {
                    return self.wait_at_gate(shell, cx);
                }
                shell.reclaim(self.id);
                return self.stream.poll_flush(cx);
            };
            if left == 0 {
                return wait_for_others(cx).map(Ok);
            }
            match self.stream.poll_write(cx, &bytes[..bytes.len().min(left)]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => {
                    shell.count_written(self.id, written);
                    left -= written;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// What may be written is, and the rest is held back: others' requests go on meanwhile, and the client's own, if the outbox is not full.
    /// Who opens a gate wakes the task.
    #[cold]
    fn wait_at_gate(&mut self, shell: &Shell, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.stream.poll_flush(cx))?;
        let full = shell.engine.sessions[self.id.0 as usize].out.len() > REPLIES_PER_WRITE;
        if full || shell.closing(self.id) { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
}

/// Ends a connection's turn: it goes on when all others that have something to do have had theirs. A task that wakes itself would come before
/// those who are not known yet to have something to do, and that for sixty turns, as the runtime looks for them only so often.
fn wait_for_others(cx: &mut Context<'_>) -> Poll<()> {
    let asked = std::pin::pin!(tokio::task::yield_now()).poll(cx);
    debug_assert!(asked.is_pending(), "whoever yields waits");
    Poll::Pending
}

/// Executes what a session sent as its connection does with what it has received, but without a socket, for those who count what that
/// takes. The replies are in the session's outbox. Gives how many bytes of the input are done with.
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

impl Future for Connection {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let shell = Rc::clone(&this.shell);
        let mut shell = shell.borrow_mut();
        let _guard = shell.stop.on_panic();
        if !this.watched {
            this.watched = true;
            shell.watch(this.id, cx.waker());
        }
        let polled = this.turn(&mut shell, cx);
        shell.end_turn(Task::Client(this.id));
        polled
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Stream::Tls(stream) = &self.stream {
            tls::say_goodbye(stream);
        }
        let shell = Rc::clone(&self.shell);
        let mut shell = shell.borrow_mut();
        if shell.engine.sessions[self.id.0 as usize].flags.contains(SessionFlags::RESET_SOCKET) {
            self.stream.reset_when_closed();
        }
        self.let_go(&mut shell);
        shell.disconnect(self.id);
        shell.end_turn(Task::Client(self.id));
    }
}
