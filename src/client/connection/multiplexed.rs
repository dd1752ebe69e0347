//! A connection on which any number of tasks send requests. One task drives the connection: it writes the requests together, and
//! hands out the replies in order.
//!
//! ```text
//!   Connection::send ─▶ queue ─▶ Driver: outbox ─▶ socket ─▶ inbox ─▶ replies ─▶ the callers, in order
//!                                                               └──▶ pushes ─▶ Pushes
//! ```

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Sleep};

use crate::client::connection::pushes::Pushes;
use crate::client::connection::wire::{READ, Wire, closed_by_server, is_not_leader};
use crate::client::error::{Error, Result};
use crate::client::value::Value;

/// Maximum number of requests in the queue to the driver.
const QUEUE_MAX: usize = 1024;
/// Maximum number of requests that the driver has taken and that are unanswered.
const IN_FLIGHT_MAX: usize = 16 << 10;
/// Number of unwritten bytes at which the driver takes no further request.
const OUTBOX_MAX: usize = 256 << 10;

/// Where the replies to a request go.
enum ReplySender {
    /// The reply to one command.
    One(oneshot::Sender<Result<Value>>),
    /// The replies to several commands.
    Many {
        /// Number of replies that have not arrived.
        missing: usize,
        replies: Vec<Value>,
        to: oneshot::Sender<Result<Vec<Value>>>,
    },
}

impl ReplySender {
    fn fail(self, error: Error) {
        // The caller may be gone already.
        match self {
            ReplySender::One(to) => drop(to.send(Err(error))),
            ReplySender::Many { to, .. } => drop(to.send(Err(error))),
        }
    }

    /// Whether the caller is gone.
    fn is_abandoned(&self) -> bool {
        match self {
            ReplySender::One(to) => to.is_closed(),
            ReplySender::Many { to, .. } => to.is_closed(),
        }
    }
}

struct Request {
    wire: Vec<u8>,
    reply_to: ReplySender,
}

/// A connection. It closes when the last clone is dropped and no caller waits for a reply.
#[derive(Clone)]
pub(crate) struct Connection {
    requests: mpsc::Sender<Request>,
    identity: Arc<Identity>,
}

/// What the handshake found out.
struct Identity {
    id: i64,
    protocol: u8,
    node: usize,
}

/// A reply in flight.
pub(crate) type Reply<T> = oneshot::Receiver<Result<T>>;

impl Connection {
    /// Spawns the task that drives the connection. With a `stall_timeout`, the connection counts as broken when a reply is due
    /// and nothing has arrived for that long.
    pub fn spawn(runtime: &Handle, wire: Wire, pushes: Arc<Pushes>, stall_timeout: Option<Duration>) -> Connection {
        let (requests, queue) = mpsc::channel(QUEUE_MAX);
        let identity = Arc::new(Identity { id: wire.id, protocol: wire.protocol, node: wire.node });
        let driver = Driver {
            wire,
            queue,
            open: true,
            outbox: BytesMut::new(),
            unflushed: false,
            taken_bytes: 0,
            written_bytes: 0,
            in_flight: VecDeque::new(),
            pushes,
            stall_timeout,
            silent_since: Instant::now(),
            stall_timer: None,
        };
        runtime.spawn(driver);
        Connection { requests, identity }
    }

    /// The connection's id on the server; 0 if unknown.
    pub fn id(&self) -> i64 {
        self.identity.id
    }

    /// The protocol version, 2 or 3.
    pub fn protocol(&self) -> u8 {
        self.identity.protocol
    }

    /// The number of the node that it leads to; 0 if there is one server.
    pub fn node(&self) -> usize {
        self.identity.node
    }

    /// Whether the other one is a clone of this one.
    pub fn is_same(&self, other: &Connection) -> bool {
        Arc::ptr_eq(&self.identity, &other.identity)
    }

    pub fn is_closed(&self) -> bool {
        self.requests.is_closed()
    }

    /// Returns when the connection has closed.
    pub async fn closed(&self) {
        self.requests.closed().await;
    }

    /// Enqueues a command, when there is room in the queue, and returns the receiver of its reply. From then on the command is
    /// sent even if the receiver is dropped.
    pub async fn send(&self, wire: Vec<u8>) -> Result<Reply<Value>> {
        let (to, reply) = oneshot::channel();
        self.enqueue(Request { wire, reply_to: ReplySender::One(to) }).await?;
        Ok(reply)
    }

    /// As [`Connection::send`], for several encoded commands.
    pub async fn send_many(&self, wire: Vec<u8>, count: usize) -> Result<Reply<Vec<Value>>> {
        let (to, reply) = oneshot::channel();
        let reply_to = ReplySender::Many { missing: count, replies: Vec::with_capacity(count), to };
        self.enqueue(Request { wire, reply_to }).await?;
        Ok(reply)
    }

    async fn enqueue(&self, request: Request) -> Result {
        self.requests.send(request).await.map_err(|_| not_sent("it is already closed"))
    }
}

fn not_sent(reason: &str) -> Error {
    Error::Disconnected { maybe_applied: false, reason: reason.to_owned() }
}

/// The error of a request to a node that has stopped answering and does not lead any more.
pub(crate) fn not_answered() -> Error {
    Error::Disconnected { maybe_applied: true, reason: "another node leads meanwhile".to_owned() }
}

/// The error of a task that was dropped before it had an outcome, because the runtime has shut down.
pub(crate) fn runtime_ended() -> Error {
    Error::Disconnected { maybe_applied: true, reason: "the tokio runtime has shut down".to_owned() }
}

/// Waits for a reply. Only a runtime that shuts down drops the sender without one.
pub(crate) async fn received<T>(reply: &mut Reply<T>) -> Result<T> {
    reply.await.unwrap_or_else(|_| Err(runtime_ended()))
}

/// A request that is taken and unanswered.
struct InFlight {
    /// Value of `taken_bytes` before this request.
    begins: u64,
    reply_to: ReplySender,
}

struct Driver {
    wire: Wire,
    queue: mpsc::Receiver<Request>,
    /// Whether further requests may arrive.
    open: bool,
    /// Requests that are not written yet.
    outbox: BytesMut,
    /// Whether bytes have been written since the last flush.
    unflushed: bool,
    /// Number of bytes of all requests that were taken from the queue.
    taken_bytes: u64,
    /// Number of these bytes that the socket has accepted.
    written_bytes: u64,
    in_flight: VecDeque<InFlight>,
    pushes: Arc<Pushes>,
    stall_timeout: Option<Duration>,
    /// Start of the current silence: a reply is due and nothing has arrived since.
    silent_since: Instant,
    stall_timer: Option<Pin<Box<Sleep>>>,
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.make_progress(cx) {
            Ok(false) => Poll::Pending,
            Ok(true) => Poll::Ready(()),
            Err(reason) => {
                self.fail(&reason);
                Poll::Ready(())
            }
        }
    }
}

impl Driver {
    /// Does all work that is possible now. Returns true when the connection is no longer needed.
    fn make_progress(&mut self, cx: &mut Context<'_>) -> Result<bool, String> {
        let fail = |error: io::Error| error.to_string();
        loop {
            self.take_requests(cx);
            self.write(cx).map_err(fail)?;
            if self.read(cx)?.is_pending() {
                break;
            }
        }
        // No further requests can arrive, and the callers of all requests in flight are gone.
        if !self.open && self.in_flight.iter().all(|request| request.reply_to.is_abandoned()) {
            let _ = Pin::new(&mut self.wire.stream).poll_shutdown(cx);
            return Ok(true);
        }
        self.check_stall(cx)?;
        Ok(false)
    }

    /// Takes requests from the queue.
    fn take_requests(&mut self, cx: &mut Context<'_>) {
        while self.open && self.in_flight.len() < IN_FLIGHT_MAX && self.outbox.len() < OUTBOX_MAX {
            match self.queue.poll_recv(cx) {
                Poll::Pending => return,
                Poll::Ready(None) => self.open = false,
                Poll::Ready(Some(Request { wire, reply_to })) => {
                    if self.in_flight.is_empty() {
                        self.silent_since = Instant::now();
                    }
                    self.in_flight.push_back(InFlight { begins: self.taken_bytes, reply_to });
                    self.taken_bytes += wire.len() as u64;
                    self.outbox.extend_from_slice(&wire);
                }
            }
        }
    }

    /// Writes as much of the outbox as the socket accepts.
    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while !self.outbox.is_empty() {
            match Pin::new(&mut self.wire.stream).poll_write(cx, &self.outbox)? {
                Poll::Pending => return Ok(()),
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(count) => {
                    self.outbox.advance(count);
                    self.written_bytes += count as u64;
                    self.unflushed = true;
                }
            }
        }
        if self.unflushed && Pin::new(&mut self.wire.stream).poll_flush(cx)?.is_ready() {
            self.unflushed = false;
        }
        Ok(())
    }

    /// Reads once, and dispatches the replies and pushes.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<Poll<()>, String> {
        let Wire { stream, inbox, .. } = &mut self.wire;
        inbox.reserve(READ);
        match std::pin::pin!(stream.read_buf(inbox)).poll(cx) {
            Poll::Pending => return Ok(Poll::Pending),
            Poll::Ready(Err(error)) => return Err(error.to_string()),
            Poll::Ready(Ok(0)) => return Err(closed_by_server().to_string()),
            Poll::Ready(Ok(_)) => {}
        }
        if self.stall_timeout.is_some() {
            self.silent_since = Instant::now();
        }
        while let Some(value) = self.wire.decoder.decode(&mut self.wire.inbox).map_err(|error| error.to_string())? {
            match value {
                Value::Push(items) => self.pushes.push(items),
                value => self.hand_out(value)?,
            }
        }
        Ok(Poll::Ready(()))
    }

    /// Hands a reply to the request that it answers.
    fn hand_out(&mut self, value: Value) -> Result<(), String> {
        match self.in_flight.front_mut().map(|request| &mut request.reply_to) {
            None => {
                // An error without a request says, for example, why the server closes the connection.
                return Err(match value {
                    Value::Error(error) => error.text().to_owned(),
                    _ => "the server sent a reply without a request".to_owned(),
                });
            }
            Some(ReplySender::Many { missing, replies, .. }) if *missing > 1 => {
                *missing -= 1;
                replies.push(value);
                return Ok(());
            }
            Some(_) => {}
        }
        match self.in_flight.pop_front().map(|request| request.reply_to) {
            Some(ReplySender::One(to)) => {
                let outcome = value.into_result();
                if let Err(error) = &outcome
                    && self.wire.to_leader
                    && is_not_leader(error)
                {
                    // The request goes to the next leader, as those behind it do.
                    let reason = error.to_string();
                    drop(to.send(Err(not_sent(&reason))));
                    return Err(reason);
                }
                drop(to.send(outcome));
            }
            Some(ReplySender::Many { mut replies, to, .. }) => {
                replies.push(value);
                drop(to.send(Ok(replies)));
            }
            None => {}
        }
        Ok(())
    }

    /// Fails if a reply is due and nothing has arrived for the stall time-out.
    fn check_stall(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        let Some(timeout) = self.stall_timeout.filter(|_| !self.in_flight.is_empty()) else { return Ok(()) };
        loop {
            let due = self.silent_since + timeout;
            let timer = self.stall_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
            if timer.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            fail_if!(Instant::now() >= due, format!("no data received for {timeout:?}"));
            timer.as_mut().reset(due);
        }
    }

    /// Handles a broken connection: fails all requests, each with an error that says whether it may have been carried out.
    fn fail(&mut self, reason: &str) {
        self.queue.close();
        for request in std::mem::take(&mut self.in_flight) {
            let maybe_applied = self.written_bytes > request.begins;
            request.reply_to.fail(Error::Disconnected { maybe_applied, reason: reason.to_owned() });
        }
        while let Ok(request) = self.queue.try_recv() {
            request.reply_to.fail(not_sent(reason));
        }
    }
}
