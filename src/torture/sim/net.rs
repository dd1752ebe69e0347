//! What clients and servers share: the queue of future events, connections, calls that wait for replies, timers.
//!
//! ```text
//!   call ─▶ Conn.to_server ─▶ Event::ToServer ─▶ the engine (sim/server.rs)
//!   call ◀─ Conn.in_flight ◀─ Event::ToClient ◀─ Conn.to_client ◀─┘
//! ```

mod calls;
mod connections;
mod leader;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::task::Waker;

use slab::Slab;

use crate::client::{Command, Message, Result, Value};
use crate::torture::history::{EventKind, History, Op, Stamp};
use crate::torture::plan::{Injection, Plan, Trigger, When, streams};
use crate::torture::random::Random;
use crate::torture::sim::clock::Clock;
use crate::torture::sim::executor::Run;
use crate::torture::sim::link::Link;

/// The time-out of a reply is a lease divided by this, plus the time that the command may block on the server. A client also
/// notices a dead connection within that time, by keep-alive.
const TIMEOUTS_IN_LEASE: u64 = 5;

/// Initial capacity of the history: enough for most episodes.
const HISTORY_USUAL: usize = 4_096;

/// Number of a connection. Numbers are not reused.
pub type ConnId = u32;

/// A future event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// The next message of a connection arrives at its server.
    ToServer(ConnId),
    /// The next message of a connection arrives at its client.
    ToClient(ConnId),
    /// The client notices that the connection is broken.
    Broken(ConnId),
    /// The server notices that the connection is broken.
    BrokenAtServer(ConnId),
    /// A timer fires.
    Timer(SlabKey),
    /// A call times out.
    Timeout(SlabKey),
    /// A server's engine has a deadline.
    Tick(u32),
    /// A fault occurs; its index in the plan.
    Fault(u32),
    /// A paused client resumes.
    Resume(u32),
    /// A crashed client restarts.
    Restart(u32),
    /// A server is up again.
    Up(u32),
    /// The disk of a node has done what the process of this number waited for.
    Synced(u32, u64),
    /// The threads of a server do something.
    Threads(u32),
    /// A call is sent again, to the node that its client takes for the leader.
    Again(SlabKey),
    /// The next segment from a side of a connection between nodes arrives.
    Arrives(u64, usize),
    /// What was lost of it is sent again.
    SentAgain(u64, usize),
    /// The connection between nodes breaks.
    Breaks(u64),
    /// Nobody may wait any more at a node other than this leader, which has led since this time.
    NobodyWaits(u32, u64),
    /// A node that was stopped goes on.
    GoOn(u32),
    /// The disk of a node works again.
    Mended(u32),
    /// The node of another cluster ends, and the node to whose address it came starts again.
    Home(u32),
    /// The operator of the nodes looks at the members.
    Operate,
    /// The operator of a durable server changes how it stores.
    OperateServer(u32),
    /// An unchecked client of a server does something.
    Noise(u32),
}

/// An index in a slab with a number that is not reused, which tells whether the slot has another occupant by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlabKey {
    index: u32,
    number: u64,
}

/// A message from a client.
#[derive(Debug)]
pub enum ToServer {
    /// A command.
    Request(Command),
    /// The end of the connection.
    Close,
}

/// A message from a server.
#[derive(Debug)]
pub enum ToClient {
    /// The reply to the oldest unanswered command, with the times of the command's arrival and of the reply.
    Reply(Value, Stamp, Stamp),
    /// A push message.
    Push(Vec<Value>),
    /// The connection was refused.
    Refused,
    /// The connection was reset.
    Reset,
}

/// The result of a call.
pub struct Answer {
    /// The reply or the error.
    pub result: Result<Value>,
    /// When the command arrived and when it was answered, if it was.
    pub stamps: Option<(Stamp, Stamp)>,
    /// When the command was resent, if it was.
    pub resent_us: Option<u64>,
    /// Whether the command blocked on the server.
    pub waited: bool,
}

/// The use of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Shared by all non-blocking commands of a client.
    Shared,
    /// For one command at a time, which may block on the server.
    Pooled,
    /// For a subscription.
    Subscription,
}

/// A connection.
#[derive(Debug)]
pub struct Conn {
    /// Number of the client.
    pub client: u32,
    /// Number of the server.
    pub server: u32,
    usage: Usage,
    /// The client has neither closed it nor noticed that it is broken.
    open: bool,
    /// Nothing passes any more, without notice to either side.
    cut: bool,
    /// The server has ended the session.
    gone: bool,
    /// Whether a message was sent: the first one waits for the handshake.
    has_sent: bool,
    to_server: VecDeque<ToServer>,
    to_client: VecDeque<ToClient>,
    /// Arrival time of the last message to the server and to the client.
    arrives_us: (u64, u64),
    in_flight: VecDeque<SlabKey>,
    /// Received messages of a subscription, and the waker of the task that waits for them.
    messages: VecDeque<Message>,
    waker: Option<Waker>,
}

struct Call {
    number: u64,
    conn: ConnId,
    /// The command, if it may be resent.
    command: Option<Command>,
    /// A command that is sent before it on the same connection; nobody waits for the reply.
    prelude: Option<Command>,
    /// Whether the command is resent when its connection breaks.
    again: bool,
    /// How often the call was sent to another node.
    moved: u32,
    resent_us: Option<u64>,
    waker: Option<Waker>,
    done: Option<Answer>,
}

struct Timer {
    number: u64,
    waker: Option<Waker>,
    fired: bool,
}

/// The network's state of a client.
pub struct Client {
    /// The client's clocks.
    pub clock: Clock,
    /// The seed of the client's random numbers, the time of the last draw, and the number of draws at that time.
    random_state: (u64, u64, u64),
    /// Number of commands sent.
    pub sent: u64,
    /// See [`Plan::triggers`]. Triggers that fired are removed.
    triggers: Vec<Trigger>,
    /// The shared connection to each server.
    shared: Vec<Option<ConnId>>,
    /// The idle pooled connections to each server.
    idle: Vec<Vec<ConnId>>,
    last_conn: Option<ConnId>,
    /// The node that the client takes for the leader.
    leader: u32,
}

/// The network, with the clock and the history of the simulation.
pub struct Net {
    /// True time since the beginning, in microseconds.
    pub now_us: u64,
    /// The history so far.
    pub history: History,
    /// The clients.
    pub clients: Vec<Client>,
    /// Tasks that clients have spawned, with the number of the client.
    pub spawned: Vec<(u32, Run)>,
    /// Number of servers. The guarded resources are on an additional one.
    pub servers: u32,
    /// Number of servers as algorithms know them: all nodes of a replicated service are one.
    pub known_servers: u32,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    last: u64,
    conns: Vec<Conn>,
    calls: Slab<Call>,
    timers: Slab<Timer>,
    links: Vec<Link>,
    ops: Op,
    stamps: u64,
    lease_us: u64,
    /// Whether commands are stored because they may be resent.
    may_resend: bool,
    /// Whether replies may be lost.
    may_lose_replies: bool,
    /// Whether locks end with the connections that acquired them.
    pub bound_to_connections: bool,
    /// The node that leads and reaches a majority, if there is one.
    pub serving_node: Option<u32>,
}

/// Stores a waker. A stored waker is nearly always the same one, which `clone_from` does not clone again.
fn store_waker(known: &mut Option<Waker>, waker: &Waker) {
    if let Some(known) = known { known.clone_from(waker) } else { *known = Some(waker.clone()) }
}

impl Net {
    /// The network of a plan.
    pub fn new(plan: &Plan) -> Net {
        let servers = plan.machines() as usize + 1;
        let client = |number: u32| Client {
            clock: Clock::default(),
            random_state: (Random::new(plan.seed, streams::CLIENT, u64::from(number)).draw(), 0, 0),
            sent: 0,
            triggers: plan.triggers(number),
            shared: vec![None; servers],
            idle: vec![Vec::new(); servers],
            last_conn: None,
            leader: 0,
        };
        let clients = plan.clients.len() as u32;
        let link = |number: u64| Link::new(Random::new(plan.seed, streams::LINK, number));
        let mut net = Net {
            now_us: 0,
            history: History { events: Vec::with_capacity(HISTORY_USUAL), commands: 0 },
            clients: (0..clients).map(client).collect(),
            spawned: Vec::new(),
            servers: plan.machines(),
            known_servers: plan.servers,
            queue: BinaryHeap::new(),
            last: 0,
            conns: Vec::new(),
            calls: Slab::new(),
            timers: Slab::new(),
            links: (0..u64::from(clients)).flat_map(|c| (0..servers as u64).map(move |s| c << 32 | s)).map(link).collect(),
            ops: 0,
            stamps: 0,
            lease_us: plan.lease_us,
            may_resend: plan.replicas.is_some()
                || plan.faults.iter().any(|fault| matches!(fault.injection, Injection::Resend { .. })),
            may_lose_replies: plan.replicas.is_some() || !plan.faults.is_empty(),
            bound_to_connections: false,
            serving_node: None,
        };
        for (index, fault) in plan.faults.iter().enumerate() {
            if let When::At(at_us) = fault.when {
                net.at(at_us, Event::Fault(index as u32));
            }
        }
        net
    }

    /// Schedules an event.
    pub fn at(&mut self, at_us: u64, event: Event) {
        self.last += 1;
        self.queue.push(Reverse((at_us.max(self.now_us), self.last, event)));
    }

    /// When the next event is.
    pub fn next_us(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse((at_us, ..))| *at_us)
    }

    /// Advances time to the next event that is not after `end_us`, and returns it.
    pub fn next(&mut self, end_us: u64) -> Option<Event> {
        let Reverse((at_us, ..)) = self.queue.peek()?;
        if *at_us > end_us {
            return None;
        }
        let Reverse((at_us, _, event)) = self.queue.pop()?;
        self.now_us = at_us;
        Some(event)
    }

    /// The time-out of a reply to a non-blocking command.
    fn timeout_us(&self) -> u64 {
        self.lease_us / TIMEOUTS_IN_LEASE
    }

    /// Records an event of a client in the history.
    pub fn record(&mut self, client: u32, kind: EventKind) {
        self.history.push(self.now_us, client, kind);
    }

    /// Records that the server of a connection has seen its end, if locks may end by that. A leader that was replaced decides
    /// nothing.
    pub fn record_hangup(&mut self, conn: ConnId) {
        let Conn { client, server, .. } = self.conns[conn as usize];
        if self.bound_to_connections && self.serving_node.is_none_or(|node| node == server) {
            self.record(client, EventKind::Hangup { server });
        }
    }

    /// Records that the client of a connection is left waiting at its server.
    pub fn record_left_waiting(&mut self, conn: ConnId) {
        let Conn { client, server, open, cut, .. } = self.conns[conn as usize];
        if open && !cut {
            self.record(client, EventKind::LeftWaiting { server });
        }
    }

    /// A random number for a client. Like a link's, it follows from the time.
    pub fn random(&mut self, client: u32) -> u64 {
        let random_state = &mut self.clients[client as usize].random_state;
        *random_state = (random_state.0, self.now_us, if random_state.1 == self.now_us { random_state.2 + 1 } else { 0 });
        Random::new(random_state.0, random_state.1, random_state.2).draw()
    }

    /// The number of a new acquisition.
    pub fn next_op(&mut self) -> Op {
        self.ops += 1;
        self.ops
    }

    /// A new stamp for an action of a server.
    pub fn stamp(&mut self) -> Stamp {
        self.stamps += 1;
        Stamp { order: self.stamps, at_us: self.now_us }
    }

    /// The link between a client and a server.
    pub fn link(&mut self, client: u32, server: u32) -> &mut Link {
        &mut self.links[client as usize * (self.servers as usize + 1) + server as usize]
    }

    fn link_of(&mut self, conn: ConnId) -> &mut Link {
        let Conn { client, server, .. } = self.conns[conn as usize];
        self.link(client, server)
    }

    /// A connection.
    pub fn conn(&self, conn: ConnId) -> &Conn {
        &self.conns[conn as usize]
    }

    /// A timer that fires after a true time.
    pub fn timer(&mut self, after_us: u64) -> SlabKey {
        self.last += 1;
        let number = self.last;
        let index = self.timers.insert(Timer { number, waker: None, fired: false }) as u32;
        let key = SlabKey { index, number };
        self.at(self.now_us + after_us, Event::Timer(key));
        key
    }

    /// Whether a timer has fired. If not, it will wake the waker.
    pub fn poll_timer(&mut self, key: SlabKey, waker: &Waker) -> bool {
        let Some(timer) = self.timers.get_mut(key.index as usize).filter(|timer| timer.number == key.number) else { return true };
        if !timer.fired {
            store_waker(&mut timer.waker, waker);
            return false;
        }
        self.timers.remove(key.index as usize);
        true
    }

    /// Drops a timer.
    pub fn drop_timer(&mut self, key: SlabKey) {
        if self.timers.get(key.index as usize).is_some_and(|timer| timer.number == key.number) {
            self.timers.remove(key.index as usize);
        }
    }

    /// Fires a timer.
    pub fn fire(&mut self, key: SlabKey) {
        if let Some(timer) = self.timers.get_mut(key.index as usize).filter(|timer| timer.number == key.number) {
            timer.fired = true;
            if let Some(waker) = timer.waker.take() {
                waker.wake();
            }
        }
    }
}
