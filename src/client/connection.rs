//! One connection on which any number of tasks send requests. Requests are written together, and replies are handed out in order.
//!
//! ```text
//!   Connection::send ─▶ queue ─▶ Driver: out ─▶ socket ─▶ inbox ─▶ replies ─▶ the callers, in order
//!                                                            └──▶ pushes ─▶ Pushes
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

use crate::client::error::{Error, Result};
use crate::client::pushes::Pushes;
use crate::client::value::Value;
use crate::client::wire::{READ, Wire, closed_by_server};

/// Maximum number of requests that wait to be written.
const QUEUE_MAX: usize = 1024;
/// Maximum number of requests that are written and unanswered.
const IN_FLIGHT_MAX: usize = 16 << 10;
/// Number of unwritten bytes at which no further request is taken.
const OUT_MAX: usize = 256 << 10;

/// The receiver of a request's replies.
enum Answer {
    One(oneshot::Sender<Result<Value>>),
    /// The replies of several commands.
    Many {
        left: usize,
        replies: Vec<Value>,
        to: oneshot::Sender<Result<Vec<Value>>>,
    },
}

impl Answer {
    fn fail(self, error: Error) {
        // The caller may be gone.
        match self {
            Answer::One(to) => drop(to.send(Err(error))),
            Answer::Many { to, .. } => drop(to.send(Err(error))),
        }
    }

    fn is_abandoned(&self) -> bool {
        match self {
            Answer::One(to) => to.is_closed(),
            Answer::Many { to, .. } => to.is_closed(),
        }
    }
}

struct Request {
    wire: Vec<u8>,
    answer: Answer,
}

/// A connection. It closes when the last clone is dropped and all replies have arrived or been given up.
#[derive(Clone)]
pub(crate) struct Connection {
    requests: mpsc::Sender<Request>,
    known: Arc<Known>,
}

struct Known {
    id: i64,
    protocol: u8,
}

/// A reply in flight.
pub(crate) type Reply<T> = oneshot::Receiver<Result<T>>;

impl Connection {
    /// Spawns a task that drives the connection. With `stall`, the connection counts as broken when a reply is due and nothing
    /// has arrived for that long.
    pub fn spawn(runtime: &Handle, wire: Wire, pushes: Arc<Pushes>, stall: Option<Duration>) -> Connection {
        let (requests, queue) = mpsc::channel(QUEUE_MAX);
        let known = Arc::new(Known { id: wire.id, protocol: wire.protocol });
        let driver = Driver {
            wire,
            queue,
            open: true,
            out: BytesMut::new(),
            unflushed: false,
            taken: 0,
            written: 0,
            in_flight: VecDeque::new(),
            pushes,
            stall,
            quiet_since: Instant::now(),
            alarm: None,
        };
        runtime.spawn(driver);
        Connection { requests, known }
    }

    /// The connection's id on the server; 0 if unknown.
    pub fn id(&self) -> i64 {
        self.known.id
    }

    /// The protocol version, 2 or 3.
    pub fn protocol(&self) -> u8 {
        self.known.protocol
    }

    pub fn is_closed(&self) -> bool {
        self.requests.is_closed()
    }

    /// Returns when the connection has closed.
    pub async fn closed(&self) {
        self.requests.closed().await;
    }

    /// Enqueues a request, when there is room; the receiver yields its reply. Once this returns, the request is sent even if
    /// the receiver is dropped.
    pub async fn send(&self, wire: Vec<u8>) -> Result<Reply<Value>> {
        let (to, reply) = oneshot::channel();
        self.queue(Request { wire, answer: Answer::One(to) }).await?;
        Ok(reply)
    }

    /// As [`Connection::send`], for several commands in one buffer.
    pub async fn send_many(&self, wire: Vec<u8>, count: usize) -> Result<Reply<Vec<Value>>> {
        let (to, reply) = oneshot::channel();
        let answer = Answer::Many { left: count, replies: Vec::with_capacity(count), to };
        self.queue(Request { wire, answer }).await?;
        Ok(reply)
    }

    async fn queue(&self, request: Request) -> Result {
        self.requests.send(request).await.map_err(|_| not_sent("it is closed"))
    }
}

fn not_sent(reason: &str) -> Error {
    Error::Disconnected { maybe_applied: false, reason: reason.to_owned() }
}

/// Waits for a reply. Only a runtime that shuts down drops the sender without one.
pub(crate) async fn received<T>(reply: &mut Reply<T>) -> Result<T> {
    let ended = || Error::Disconnected { maybe_applied: true, reason: "the runtime has ended".to_owned() };
    reply.await.unwrap_or_else(|_| Err(ended()))
}

struct InFlight {
    /// Value of `taken` before this request.
    begins: u64,
    answer: Answer,
}

struct Driver {
    wire: Wire,
    queue: mpsc::Receiver<Request>,
    /// Whether further requests may arrive.
    open: bool,
    out: BytesMut,
    unflushed: bool,
    /// Bytes of all requests taken so far, and the part of them that the socket has accepted.
    taken: u64,
    written: u64,
    in_flight: VecDeque<InFlight>,
    pushes: Arc<Pushes>,
    stall: Option<Duration>,
    /// Start of the current silence: a reply is due and nothing has arrived since.
    quiet_since: Instant,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.turn(cx) {
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
    /// Does all work that is possible now. Returns true when no work will ever follow.
    fn turn(&mut self, cx: &mut Context<'_>) -> Result<bool, String> {
        let fail = |error: io::Error| error.to_string();
        loop {
            self.take_requests(cx);
            self.write(cx).map_err(fail)?;
            if self.read(cx)?.is_pending() {
                break;
            }
        }
        // All callers are gone, and no further requests can arrive.
        if !self.open && self.in_flight.iter().all(|request| request.answer.is_abandoned()) {
            let _ = Pin::new(&mut self.wire.stream).poll_shutdown(cx);
            return Ok(true);
        }
        self.check_stall(cx)?;
        Ok(false)
    }

    fn take_requests(&mut self, cx: &mut Context<'_>) {
        while self.open && self.in_flight.len() < IN_FLIGHT_MAX && self.out.len() < OUT_MAX {
            match self.queue.poll_recv(cx) {
                Poll::Pending => return,
                Poll::Ready(None) => self.open = false,
                Poll::Ready(Some(Request { wire, answer })) => {
                    if self.in_flight.is_empty() {
                        self.quiet_since = Instant::now();
                    }
                    self.in_flight.push_back(InFlight { begins: self.taken, answer });
                    self.taken += wire.len() as u64;
                    self.out.extend_from_slice(&wire);
                }
            }
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while !self.out.is_empty() {
            match Pin::new(&mut self.wire.stream).poll_write(cx, &self.out)? {
                Poll::Pending => return Ok(()),
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(count) => {
                    self.out.advance(count);
                    self.written += count as u64;
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
        if self.stall.is_some() {
            self.quiet_since = Instant::now();
        }
        while let Some(value) = self.wire.decoder.decode(&mut self.wire.inbox).map_err(|error| error.to_string())? {
            match value {
                Value::Push(items) => self.pushes.push(items),
                value => self.give(value)?,
            }
        }
        Ok(Poll::Ready(()))
    }

    fn give(&mut self, value: Value) -> Result<(), String> {
        match self.in_flight.front_mut().map(|request| &mut request.answer) {
            None => {
                // For example, the reason why the server closes the connection.
                return Err(match value {
                    Value::Error(error) => error.text().to_owned(),
                    _ => "a reply that nobody has asked for".to_owned(),
                });
            }
            Some(Answer::Many { left, replies, .. }) if *left > 1 => {
                *left -= 1;
                replies.push(value);
                return Ok(());
            }
            Some(_) => {}
        }
        match self.in_flight.pop_front().map(|request| request.answer) {
            Some(Answer::One(to)) => drop(to.send(value.into_result())),
            Some(Answer::Many { mut replies, to, .. }) => {
                replies.push(value);
                drop(to.send(Ok(replies)));
            }
            None => {}
        }
        Ok(())
    }

    fn check_stall(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        let Some(stall) = self.stall.filter(|_| !self.in_flight.is_empty()) else { return Ok(()) };
        loop {
            let due = self.quiet_since + stall;
            let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
            if alarm.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            if Instant::now() >= due {
                return Err(format!("nothing has come for {stall:?}"));
            }
            alarm.as_mut().reset(due);
        }
    }

    /// Handles a broken connection: fails all requests, and tells each whether it may have been carried out.
    fn fail(&mut self, reason: &str) {
        self.queue.close();
        for request in std::mem::take(&mut self.in_flight) {
            let maybe_applied = self.written > request.begins;
            request.answer.fail(Error::Disconnected { maybe_applied, reason: reason.to_owned() });
        }
        while let Ok(request) = self.queue.try_recv() {
            request.answer.fail(not_sent(reason));
        }
    }
}
