//! The sockets of the nodes: TCP as far as nodes notice it. Bytes arrive once and in order, however late, until the connection breaks.
//!
//! ```text
//!   Socket: written ─▶ a segment; lost: again later ─▶ Event::Arrives ─▶ arrived ─▶ Socket of the other node
//! ```
//!
//! The kernel of a node that stands still goes on. It closes the sockets of a process that has ended. A machine that loses its power closes
//! nothing. Once it runs again, it breaks a connection of which it knows nothing when something comes on it, or the other node's kernel asks.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io::{self, Cursor, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::quorum::net::{self, KEEPALIVE, Listener, Platform};
use crate::quorum::types::NodeId;
use crate::torture::random::Random;
use crate::torture::sim::net::{Event, Net};
use crate::torture::sim::replica::disk::NodeDisk;
use crate::torture::sim::replica::links::{Fate, Links};

/// Number of bytes that wait at most between two nodes. A socket takes no more.
const BUFFER: usize = 64 << 10;
/// Time after which a lost segment is sent again; and after which an opening is. Each loss doubles it.
const AGAIN_US: (u64, u64) = (200_000, 1_000_000);
/// Time between the parts of a segment, at most, and percentage of those that come in parts.
const PARTS: (u64, u64) = (200, 5);
/// Time after which the other node learns that nobody takes what it sends.
const BREAKS_US: u64 = 200;
/// Time after which a kernel asks whether an idle connection is still there, and after which it gives up.
const KEEPALIVE_US: (u64, u64) = {
    let (idle, interval, probes) = KEEPALIVE;
    let idle_us = idle.as_micros() as u64;
    (idle_us, idle_us + interval.as_micros() as u64 * probes as u64)
};

/// Number of a connection. Numbers are not reused.
pub type Number = u64;

/// The node that has opened a connection, and the other one.
const OPENER: usize = 0;
const ACCEPTOR: usize = 1;

/// The host of a node.
pub fn host(node: NodeId) -> String {
    format!("node-{node}")
}

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Opening,
    Refused,
    Open,
    Broken,
}

/// One end of a connection, and what is on its way from it.
#[derive(Default)]
struct End {
    /// Index of the node.
    node: u32,
    /// Bytes that no segment has yet.
    written: BytesMut,
    /// Whether nothing more is written; and whether a segment that says so was sent.
    closed: bool,
    close_sent: bool,
    /// Segments in their order. The last one is empty.
    under_way: VecDeque<Bytes>,
    /// When the last one arrives.
    arrives_us: u64,
    /// How long after the last loss it is sent again; and whether nothing is sent before that.
    again_us: u64,
    waits: bool,
    /// What has come from the other end and was not read; and whether nothing more comes.
    arrived: BytesMut,
    ended: bool,
    /// Whether there is no socket any more.
    gone: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl End {
    fn wake(&mut self) {
        [self.reader.take(), self.writer.take()].into_iter().flatten().for_each(Waker::wake);
    }
}

struct Connection {
    state: State,
    ends: [End; 2],
}

impl Connection {
    /// Number of bytes that wait on the way from an end to what reads at the other one.
    fn waiting(&self, side: usize) -> usize {
        let end = &self.ends[side];
        let under_way: usize = end.under_way.iter().map(Bytes::len).sum();
        end.written.len() + under_way + self.ends[1 - side].arrived.len()
    }

    fn turn(&mut self, state: State) {
        self.state = state;
        self.ends.iter_mut().for_each(End::wake);
    }
}

/// What accepts the connections of a node.
#[derive(Default)]
struct Port {
    waiting: VecDeque<Number>,
    waker: Option<Waker>,
}

/// The sockets of all nodes.
pub struct Sockets {
    connections: BTreeMap<Number, Connection>,
    last: Number,
    ports: BTreeMap<u32, Port>,
    /// The machines without power: a bit for each.
    off: u32,
    /// Ends that have something to send.
    sends: Vec<(Number, usize)>,
    /// Connections that break, and the time until they do.
    breaks: Vec<(Number, u64)>,
    random: Random,
}

/// The sockets as tasks use them. The lock is never contended, because there is one thread.
pub type Shared = Arc<Mutex<Sockets>>;

/// Locks what nodes share.
pub fn lock(shared: &Shared) -> MutexGuard<'_, Sockets> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sockets {
    /// No sockets.
    pub fn new(random: Random) -> Sockets {
        let (connections, ports) = (BTreeMap::new(), BTreeMap::new());
        Sockets { connections, last: 0, ports, off: 0, sends: Vec::new(), breaks: Vec::new(), random }
    }

    /// Sends what has been written. Returns whether there was anything.
    pub fn send(&mut self, net: &mut Net, links: &mut Links) -> bool {
        let sends = std::mem::take(&mut self.sends);
        let any = !sends.is_empty();
        sends.into_iter().for_each(|(number, side)| self.send_from(net, links, number, side));
        self.breaks.drain(..).for_each(|(number, us)| net.at(net.now_us + us, Event::Breaks(number)));
        any
    }

    fn send_from(&mut self, net: &mut Net, links: &mut Links, number: Number, side: usize) {
        let Some(Connection { state, ends }) = self.connections.get_mut(&number) else { return };
        let to = ends[1 - side].node;
        let end = &mut ends[side];
        if self.off >> end.node & 1 == 1 {
            return;
        }
        let opens = *state == State::Opening;
        let closes = end.closed && !end.close_sent;
        if end.waits || *state == State::Broken || !(opens || closes || !end.written.is_empty()) {
            return;
        }
        let fate = match links.send(net.now_us, end.node, to) {
            // The answer does not arrive.
            Fate::Arrives(_) if opens && links.is_cut(net.now_us, to, end.node) => Fate::Lost,
            fate => fate,
        };
        match fate {
            Fate::Arrives(at_us) => {
                (end.again_us, end.arrives_us) = (0, end.arrives_us.max(at_us));
                let mut bytes = end.written.split().freeze();
                if bytes.len() > 1 && self.random.percent(PARTS.1) {
                    let part = bytes.split_to(self.random.between(1, bytes.len() as u64) as usize);
                    end.under_way.push_back(part);
                    net.at(end.arrives_us, Event::Arrives(number, side));
                    end.arrives_us += self.random.below(PARTS.0);
                }
                if opens || !bytes.is_empty() {
                    end.under_way.extend((!opens).then_some(bytes));
                    net.at(end.arrives_us, Event::Arrives(number, side));
                }
                if closes {
                    end.close_sent = true;
                    end.under_way.push_back(Bytes::new());
                    net.at(end.arrives_us, Event::Arrives(number, side));
                }
            }
            Fate::Lost => {
                let first_us = if opens { AGAIN_US.1 } else { AGAIN_US.0 };
                end.again_us = (end.again_us * 2).max(first_us);
                end.waits = true;
                net.at(net.now_us + end.again_us, Event::SentAgain(number, side));
            }
            Fate::Breaks(at_us) => {
                // Nothing more is sent until then.
                end.waits = true;
                net.at(at_us, Event::Breaks(number));
            }
        }
    }

    /// What was lost is sent again.
    pub fn again(&mut self, number: Number, side: usize) {
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.ends[side].waits = false;
            self.sends.push((number, side));
        }
    }

    /// The next segment from an end arrives at the other one.
    pub fn arrives(&mut self, net: &mut Net, links: &Links, number: Number, side: usize) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let (from, to) = (connection.ends[side].node, connection.ends[1 - side].node);
        let is_off = self.off >> to & 1 == 1;
        if connection.state == State::Opening {
            match self.ports.get_mut(&to) {
                _ if is_off => {
                    connection.ends[side].waits = true;
                    net.at(net.now_us + AGAIN_US.1, Event::SentAgain(number, side));
                }
                Some(port) => {
                    port.waiting.push_back(number);
                    port.waker.take().into_iter().for_each(Waker::wake);
                    connection.turn(State::Open);
                }
                None => connection.turn(State::Refused),
            }
            return;
        }
        if connection.state == State::Broken {
            return;
        }
        let is_gone = connection.ends[1 - side].gone;
        if is_gone && (is_off || links.is_cut(net.now_us, to, from)) {
            // Nothing comes back, and it is sent again.
            return net.at(net.now_us + AGAIN_US.1, Event::Arrives(number, side));
        }
        if is_gone {
            self.breaks.push((number, BREAKS_US));
        }
        let Some(bytes) = connection.ends[side].under_way.pop_front() else { return };
        let end = &mut connection.ends[1 - side];
        if !end.gone {
            end.ended |= bytes.is_empty();
            end.arrived.extend_from_slice(&bytes);
            end.reader.take().into_iter().for_each(Waker::wake);
        }
    }

    /// A connection breaks, as both nodes notice.
    pub fn breaks(&mut self, number: Number) {
        if let Some(connection) = self.connections.get_mut(&number) {
            let opens = matches!(connection.state, State::Opening | State::Refused);
            connection.turn(if opens { State::Refused } else { State::Broken });
        }
    }

    /// A machine loses its power.
    pub fn power_lost(&mut self, node: u32) {
        self.off |= 1 << node;
        for (number, connection) in &mut self.connections {
            let opens = connection.state == State::Opening;
            if opens && connection.ends[OPENER].node == node {
                connection.state = State::Refused;
            }
            // What is opened to it does not know of it yet.
            let ends = connection.ends.iter_mut().take(if opens { 1 } else { 2 });
            for end in ends.filter(|end| end.node == node) {
                (end.gone, end.close_sent) = (true, true);
                end.written.clear();
                self.breaks.push((*number, KEEPALIVE_US.1));
            }
        }
        self.connections.retain(|_, connection| !connection.ends.iter().all(|end| end.gone));
    }

    /// A machine has power again.
    pub fn power_back(&mut self, node: u32) {
        if self.off >> node & 1 == 1 {
            self.off &= !(1 << node);
            let forgotten = self.connections.iter().filter(|(_, of)| of.ends.iter().any(|end| end.gone && end.node == node));
            self.breaks.extend(forgotten.map(|(number, _)| (*number, KEEPALIVE_US.0)));
        }
    }

    fn open(&mut self, from: u32, to: u32) -> Number {
        self.last += 1;
        let ends = [from, to].map(|node| End { node, ..End::default() });
        self.connections.insert(self.last, Connection { state: State::Opening, ends });
        self.sends.push((self.last, OPENER));
        self.last
    }

    /// Closes an end for writing, and if it is `gone` for reading, too.
    fn close(&mut self, number: Number, side: usize, gone: bool) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let [end, other] = ends(connection, side);
        if gone && !end.gone {
            end.gone = true;
            // What nobody has read is told to its sender.
            if !std::mem::take(&mut end.arrived).is_empty() {
                self.breaks.push((number, BREAKS_US));
            }
            other.writer.take().into_iter().for_each(Waker::wake);
        }
        end.closed = true;
        self.sends.push((number, side));
        let is_over = matches!(connection.state, State::Opening | State::Refused);
        if is_over || connection.ends.iter().all(|end| end.gone) {
            self.connections.remove(&number);
        }
    }
}

/// One end of a connection.
struct Socket {
    sockets: Shared,
    number: Number,
    side: usize,
}

impl Socket {
    /// Acts on the connection. The second argument is [`Sockets::sends`].
    fn act<T>(&self, act: impl FnOnce(&mut Connection, &mut Vec<(Number, usize)>) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let mut sockets = lock(&self.sockets);
        let Sockets { connections, sends, .. } = &mut *sockets;
        match connections.get_mut(&self.number) {
            Some(connection) => act(connection, sends),
            None => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.act(|connection, _| {
            let is_broken = connection.state == State::Broken;
            let [mine, other] = ends(connection, self.side);
            if mine.arrived.is_empty() && !mine.ended {
                if is_broken {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                mine.reader = Some(context.waker().clone());
                return Poll::Pending;
            }
            into.put_slice(&mine.arrived.split_to(mine.arrived.len().min(into.remaining())));
            other.writer.take().into_iter().for_each(Waker::wake);
            Poll::Ready(Ok(()))
        })
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.act(|connection, sends| {
            let room = BUFFER.saturating_sub(connection.waiting(self.side));
            let is_broken = connection.state == State::Broken;
            let [mine, _] = ends(connection, self.side);
            if is_broken || mine.closed {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if room == 0 {
                mine.writer = Some(context.waker().clone());
                return Poll::Pending;
            }
            let taken = &bytes[..bytes.len().min(room)];
            mine.written.extend_from_slice(taken);
            sends.push((self.number, self.side));
            Poll::Ready(Ok(taken.len()))
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.sockets).close(self.number, self.side, false);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        lock(&self.sockets).close(self.number, self.side, true);
    }
}

/// The end of a side, and the other one.
fn ends(connection: &mut Connection, side: usize) -> [&mut End; 2] {
    let [opener, acceptor] = &mut connection.ends;
    if side == OPENER { [opener, acceptor] } else { [acceptor, opener] }
}

/// What a node uses to reach the others.
pub struct SimPlatform {
    /// Index of the node.
    pub node: u32,
    /// The sockets of all nodes.
    pub sockets: Shared,
    /// The node's disk.
    pub disk: NodeDisk,
}

impl Platform for SimPlatform {
    fn connect(&self, addr: String) -> BoxFuture<'static, io::Result<Box<dyn net::Socket>>> {
        let to = addr.strip_prefix(&host(0)[..5]).and_then(|id| id.parse::<u32>().ok());
        let (node, sockets) = (self.node, Arc::clone(&self.sockets));
        async move {
            let to = to.ok_or(io::ErrorKind::AddrNotAvailable)?;
            let number = lock(&sockets).open(node, to - 1);
            let socket = Socket { sockets, number, side: OPENER };
            poll_fn(|context| socket.opened(context)).await?;
            Ok(Box::new(socket) as Box<dyn net::Socket>)
        }
        .boxed()
    }

    fn open_snapshot(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(Cursor::new(self.disk.read(path).map_err(io::Error::other)?)))
    }
}

impl Socket {
    fn opened(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.act(|connection, _| match connection.state {
            State::Opening => {
                connection.ends[self.side].reader = Some(context.waker().clone());
                Poll::Pending
            }
            State::Refused => Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into())),
            _ => Poll::Ready(Ok(())),
        })
    }
}

/// What accepts the connections of a node.
pub struct SimListener {
    node: u32,
    sockets: Shared,
}

impl SimListener {
    /// Listens on the address of a node.
    pub fn new(node: u32, sockets: Shared) -> SimListener {
        let mut shared = lock(&sockets);
        shared.ports.insert(node, Port::default());
        drop(shared);
        SimListener { node, sockets }
    }

    fn accepted(&self, context: &mut Context<'_>) -> Poll<Number> {
        let mut sockets = lock(&self.sockets);
        let port = sockets.ports.entry(self.node).or_default();
        match port.waiting.pop_front() {
            Some(number) => Poll::Ready(number),
            None => {
                port.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Listener for SimListener {
    async fn accept(&self) -> io::Result<(Box<dyn net::Socket>, IpAddr)> {
        let number = poll_fn(|context| self.accepted(context)).await;
        let socket = Socket { sockets: Arc::clone(&self.sockets), number, side: ACCEPTOR };
        Ok((Box::new(socket), Ipv4Addr::LOCALHOST.into()))
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut sockets = lock(&self.sockets);
        let port = sockets.ports.remove(&self.node).unwrap_or_default();
        port.waiting.into_iter().for_each(|number| sockets.close(number, ACCEPTOR, true));
    }
}
