//! A connection that this node has opened to another one for its requests. Several requests may be under way.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot, watch};

use crate::quorum::cluster::{Foreign, Side, Standing};
use crate::quorum::lease_evidence::LeaseEvidence;
use crate::quorum::net::directory::{Directory, Traffic};
use crate::quorum::net::frame::{Frame, Kind, decode_beginning, encode_message, set_id};
use crate::quorum::net::hello::{Hello, Identity, Refusal, reason};
use crate::quorum::net::wire::Wire;
use crate::quorum::runtime::{Instant, Ticks, timeout};
use crate::quorum::sane::Nonsense;
use crate::quorum::types::NodeId;

/// Interval of pings.
const PING_INTERVAL: Duration = Duration::from_millis(500);

/// Number of intervals without a frame after which the connection is given up.
const SILENT_MAX: u32 = 4;

/// Number of queued bytes above which requests wait in the channel.
const QUEUE_MAX: usize = 1 << 20;

/// Maximum number of bytes of messages that wait in the channel. More are dropped: a message has no answer to wait for.
const MESSAGES_MAX: usize = 8 << 20;

/// What a request came to: the body of the answer, or why the other node has none.
pub type Answer = Result<Bytes, String>;

/// A request, or a message, on its way to the connection's task.
pub struct Request {
    frame: Vec<u8>,
    /// Where the answer goes; `None` for a message, which has none.
    answer: Option<oneshot::Sender<Answer>>,
}

/// Sends requests and messages on one connection.
#[derive(Clone, Debug)]
pub struct Link {
    requests: mpsc::UnboundedSender<Request>,
    /// Number of bytes of messages in the channel.
    messages: Arc<AtomicUsize>,
}

/// The other end of a [`Link`].
pub struct Requests {
    taken: mpsc::UnboundedReceiver<Request>,
    messages: Arc<AtomicUsize>,
}

impl Requests {
    async fn recv(&mut self) -> Option<Request> {
        let request = self.taken.recv().await?;
        Some(self.note(request))
    }

    fn try_recv(&mut self) -> Option<Request> {
        let request = self.taken.try_recv().ok()?;
        Some(self.note(request))
    }

    fn note(&self, request: Request) -> Request {
        if request.answer.is_none() {
            self.messages.fetch_sub(request.frame.len(), Ordering::Relaxed);
        }
        request
    }
}

impl Link {
    /// Makes the two ends of the channel to a connection's task.
    pub fn new() -> (Link, Requests) {
        // The channel is bounded by its users: a node sends one vote at a time, a stream of appends has a window, and messages are
        // counted.
        let (requests, taken) = mpsc::unbounded_channel();
        let messages = Arc::<AtomicUsize>::default();
        (Link { requests, messages: Arc::clone(&messages) }, Requests { taken, messages })
    }

    /// Sends an encoded message, unless too many wait. It may be lost. Any thread may call this.
    pub fn tell(&self, frame: Vec<u8>) {
        let len = frame.len();
        if self.messages.fetch_add(len, Ordering::Relaxed) + len > MESSAGES_MAX
            || self.requests.send(Request { frame, answer: None }).is_err()
        {
            self.messages.fetch_sub(len, Ordering::Relaxed);
        }
    }

    /// Number of bytes of messages that wait.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.messages.load(Ordering::Relaxed)
    }

    /// Sends an encoded request. The receiver fails if the connection ends before the answer.
    pub fn send(&self, frame: Vec<u8>) -> oneshot::Receiver<Answer> {
        let (answer, receiver) = oneshot::channel();
        // After the connection's end the request is dropped, and the receiver fails.
        let _ = self.requests.send(Request { frame, answer: Some(answer) });
        receiver
    }
}

/// Another node, as far as requests to it are concerned.
pub struct Peer {
    node: NodeId,
    traffic: Arc<Traffic>,
    acks: Arc<LeaseEvidence>,
    /// Its address, or `None` if it is no member any more.
    pub addr: watch::Sender<Option<String>>,
    /// The connection, if there is one.
    pub link: watch::Sender<Option<Link>>,
    /// What was wrong with an answer: the connection is to end.
    pub nonsense: watch::Sender<Option<Nonsense>>,
}

impl Peer {
    /// A node without a connection.
    pub fn new(node: NodeId, addr: String, directory: &Directory) -> Peer {
        let (addr, link, nonsense) = (watch::Sender::new(Some(addr)), watch::Sender::new(None), watch::Sender::new(None));
        Peer { node, traffic: directory.traffic(node), acks: directory.acks.clone(), addr, link, nonsense }
    }

    /// Its number.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Its counters.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// When nodes are known to have followed this one.
    pub fn acks(&self) -> &LeaseEvidence {
        &self.acks
    }

    /// Passes on what was found of an answer. One that makes no sense ends the connection.
    pub fn judge(&self, checked: Result<(), Nonsense>) -> Result<(), Nonsense> {
        checked.inspect_err(|nonsense| _ = self.nonsense.send_replace(Some(nonsense.clone())))
    }

    /// The connection, as soon as there is one, but within this time.
    pub async fn connection(&self, patience: Duration) -> Option<Link> {
        let mut link = self.link.subscribe();
        let found = timeout(patience, link.wait_for(Option::is_some)).await;
        found.ok()?.ok()?.clone()
    }
}

/// Carries requests and answers until the connection ends, and returns why it did.
pub async fn carry(wire: &mut Wire, peer: &Peer, me: &Identity, directory: &Directory, mut requests: Requests) -> String {
    let mut carrier = Carrier { wire, peer, me, directory, next_id: 1, pending: BTreeMap::new(), ping: None };
    let mut ticks = Ticks::new(PING_INTERVAL);
    let mut standing = me.standing().subscribe();
    let mut silent = 0;
    // What this node was when the other one was checked last. It may have changed since the connection began.
    let mut own = Standing::default();
    loop {
        // What comes from elsewhere last: there may always be more of it.
        tokio::select! {
            biased;
            () = ticks.tick() => {
                // Intervals are counted, not time: a process that was stopped first reads what has come meanwhile.
                if silent >= SILENT_MAX {
                    let Some(frame) = carrier.wire.next().now_or_never() else {
                        return format!("nothing was heard for {} ms", PING_INTERVAL.as_millis() * u128::from(SILENT_MAX));
                    };
                    if let Err(reason) = carrier.hear(frame) {
                        return reason;
                    }
                    silent = 0;
                }
                silent += 1;
                carrier.pending.retain(|_, answer| !answer.is_closed());
                carrier.ping();
            }
            Ok(()) = standing.changed() => match carrier.check_own(&mut own) {
                Ok(()) => carrier.ping(),
                Err(reason) => return reason,
            },
            request = requests.recv(), if carrier.wire.queued() < QUEUE_MAX => {
                let Some(request) = request else { return "nobody uses it".to_owned() };
                if let Err(reason) = carrier.check_own(&mut own) {
                    return reason;
                }
                carrier.start(request);
                while carrier.wire.queued() < QUEUE_MAX && let Some(request) = requests.try_recv() {
                    carrier.start(request);
                }
            }
            frame = carrier.wire.next() => {
                silent = 0;
                if let Err(reason) = carrier.hear(frame) {
                    return reason;
                }
            }
        }
    }
}

struct Carrier<'a> {
    wire: &'a mut Wire,
    peer: &'a Peer,
    me: &'a Identity,
    directory: &'a Directory,
    next_id: u64,
    pending: BTreeMap<u64, oneshot::Sender<Answer>>,
    /// The last ping that has no answer yet.
    ping: Option<(u64, Instant)>,
}

impl Carrier<'_> {
    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn start(&mut self, request: Request) {
        let Some(answer) = request.answer else { return self.wire.push(request.frame) };
        // Whoever has asked has given up while the request was in the channel.
        if answer.is_closed() {
            return;
        }
        let id = self.id();
        let mut frame = request.frame;
        set_id(&mut frame, id);
        self.pending.insert(id, answer);
        self.wire.push(frame);
    }

    /// Checks whether the other node still belongs to the cluster of this node, if that has changed.
    ///
    /// # Errors
    /// It does not.
    fn check_own(&self, own: &mut Standing) -> Result<(), String> {
        let now = *self.me.standing().borrow();
        if std::mem::replace(own, now).is_same_cluster(&now) {
            return Ok(());
        }
        let theirs = self.directory.get(self.peer.node).and_then(|peer| peer.dialled);
        theirs.map_or(Ok(()), |theirs| check(self.me, &theirs, self.peer.node, Side::Connector))
    }

    fn ping(&mut self) {
        let id = self.id();
        if let Some(frame) = encode_message(Kind::Ping, id, &self.me.hello(), 128) {
            self.ping = Some((id, Instant::now()));
            self.wire.push(frame);
        }
    }

    /// Takes what has come.
    ///
    /// # Errors
    /// Why the connection must end. The same holds for [`Carrier::take`].
    fn hear(&mut self, frame: io::Result<Frame>) -> Result<(), String> {
        self.directory.heard(self.peer.traffic());
        self.take(frame.map_err(|error| error.to_string())?)
    }

    fn take(&mut self, frame: Frame) -> Result<(), String> {
        match frame.kind {
            Kind::Answer => self.answer(frame.id, Ok(frame.body)),
            Kind::Failed => self.answer(frame.id, Err(reason(&frame))),
            Kind::Pong => {
                if let Some((_, sent)) = self.ping.take_if(|(id, _)| *id == frame.id) {
                    self.peer.traffic().pings.record(sent.elapsed());
                }
                let hello: Hello = decode_beginning(&frame.body).map_err(|malformed| malformed.to_string())?;
                hello.check().map_err(|nonsense| nonsense.to_string())?;
                check(self.me, &hello, self.peer.node, Side::Connector)?;
                self.directory.set_dialled(hello);
            }
            Kind::Refused => return Err(format!("refused by the other node: {}", reason(&frame))),
            kind => return Err(format!("an unexpected frame, {kind:?}")),
        }
        Ok(())
    }

    fn answer(&mut self, id: u64, answer: Answer) {
        if let Some(waiting) = self.pending.remove(&id) {
            // Whoever has asked may have given up.
            let _ = waiting.send(answer);
        }
    }
}

/// Checks what a connected node says of itself again.
///
/// Blank nodes that are about to begin a cluster are connected already, and one of them has the id first. The others take part in nothing
/// until they have it, so the connection may stay.
///
/// # Errors
/// It is not what it was, or it belongs to another cluster.
pub fn check(me: &Identity, hello: &Hello, node: NodeId, side: Side) -> Result<(), String> {
    fail_if!(hello.node != node, format!("node {node} calls itself {} now", hello.node));
    match me.check_cluster(hello, side) {
        Ok(()) | Err(Refusal::Foreign(Foreign::NoId(_))) => Ok(()),
        Err(refusal) => Err(refusal.to_string()),
    }
}
