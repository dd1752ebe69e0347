//! What clients and the world round them share: the queue of what is to happen, connections, calls that wait for replies, timers.
//!
//! ```text
//!   call ─▶ Conn.to_server ─▶ Event::ToServer ─▶ the engine (sim/server.rs)
//!   call ◀─ Conn.in_flight ◀─ Event::ToClient ◀─ Conn.to_client ◀─┘
//! ```

mod calls;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::task::Waker;

use slab::Slab;

use crate::client::{Command, Error, Message, Result, Value};
use crate::torture::history::{History, Op, Stamp, What};
use crate::torture::plan::{Plan, When, purpose};
use crate::torture::random::Random;
use crate::torture::sim::clock::Clock;
use crate::torture::sim::executor::Run;
use crate::torture::sim::link::{Fate, Link};

/// How long a reply is waited for, beyond what its command waits on the server: a lease divided by this. A client notices at the latest after
/// that, by keep-alive, that a connection is dead.
const TIMEOUTS_IN_LEASE: u64 = 5;
/// A server does after so many leases at the latest.
const NOTICED_LEASES: u64 = 2;

/// Events of most episodes, for which there is room from the beginning.
const HISTORY_USUAL: usize = 4_096;

/// Number of a connection, never given twice.
pub type ConnId = u32;

/// What is to happen.
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
    /// A timer.
    Timer(Key),
    /// A call has waited for too long.
    Timeout(Key),
    /// A server has something to do.
    Tick(u32),
    /// Something goes wrong, by its number in the plan.
    Fault(u32),
    /// A client that pauses goes on.
    Resume(u32),
    /// A client that crashed starts again.
    Restart(u32),
    /// A server is there again.
    Up(u32),
}

/// A place in a slab, and a number that is never given twice, by which it is known whether somebody else is there by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    index: u32,
    number: u64,
}

/// What a client sends.
#[derive(Debug)]
pub enum ToServer {
    /// A command, and the call that waits for its reply.
    Request(Command),
    /// Nothing more.
    Close,
}

/// What a server sends.
#[derive(Debug)]
pub enum ToClient {
    /// A reply to the first command that has none yet, when that arrived, and when it was answered.
    Reply(Value, Stamp, Stamp),
    /// What was not asked for.
    Push(Vec<Value>),
    /// There is no such server.
    Refused,
    /// There is no such connection.
    Reset,
}

/// What has come of a call.
pub struct Answer {
    /// The reply, or why there is none.
    pub result: Result<Value>,
    /// When the command arrived, and when it was answered, if it was.
    pub stamps: Option<(Stamp, Stamp)>,
    /// When it was sent again, if it was.
    pub resent_us: Option<u64>,
    /// Whether it waited on the server.
    pub waited: bool,
}

/// Who uses a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// All commands of a client that are answered at once.
    Shared,
    /// One command at a time, that may wait on the server.
    Pooled,
    /// A subscription.
    Subscription,
}

/// A connection.
#[derive(Debug)]
pub struct Conn {
    /// Whose.
    pub client: u32,
    /// To which server.
    pub server: u32,
    usage: Use,
    /// The client has not closed it, nor heard that it is broken.
    open: bool,
    /// Nothing passes any more, and nobody has said so.
    cut: bool,
    /// The server has no such session any more.
    gone: bool,
    /// Whether something was sent on it: the first message has to wait for the handshake.
    begun: bool,
    to_server: VecDeque<ToServer>,
    to_client: VecDeque<ToClient>,
    /// When the last message arrives, there and back.
    arrives_us: (u64, u64),
    in_flight: VecDeque<Key>,
    /// Messages of a subscription, and who waits for them.
    messages: VecDeque<Message>,
    waker: Option<Waker>,
}

struct Call {
    number: u64,
    conn: ConnId,
    /// Kept where it may be sent again.
    command: Option<Command>,
    /// Whether it is sent again when its connection breaks.
    again: bool,
    resent_us: Option<u64>,
    waker: Option<Waker>,
    done: Option<Answer>,
}

struct Timer {
    number: u64,
    waker: Option<Waker>,
    fired: bool,
}

/// A client, as the world sees it.
pub struct Client {
    /// Its clocks.
    pub clock: Clock,
    /// What its luck follows from, and how often it was asked, and when.
    luck: (u64, u64, u64),
    /// Commands that it has sent.
    pub sent: u64,
    /// What is to go wrong after so many commands: their number, when, and which fault; the first last.
    triggers: Vec<(u64, u64, u32)>,
    /// The connection of each server that all commands share.
    shared: Vec<Option<ConnId>>,
    /// Connections of each server that nobody uses.
    idle: Vec<Vec<ConnId>>,
    last_conn: Option<ConnId>,
}

/// All of it.
pub struct Net {
    /// True time.
    pub now_us: u64,
    /// What has happened.
    pub history: History,
    /// The clients.
    pub clients: Vec<Client>,
    /// Tasks that clients have begun.
    pub spawned: Vec<(u32, Run)>,
    /// Independent servers; the guarded resources are on one more.
    pub servers: u32,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    last: u64,
    conns: Vec<Conn>,
    calls: Slab<Call>,
    timers: Slab<Timer>,
    links: Vec<Link>,
    ops: Op,
    stamps: u64,
    lease_us: u64,
    /// Commands are kept, as they may be sent again.
    keeps: bool,
    /// Replies may be lost.
    loses: bool,
}

/// Keeps whom to wake; most often it is known.
fn keep(known: &mut Option<Waker>, waker: &Waker) {
    match known {
        Some(known) => known.clone_from(waker),
        None => *known = Some(waker.clone()),
    }
}

impl Net {
    /// The world of a plan.
    pub fn new(plan: &Plan) -> Net {
        let servers = plan.servers as usize + 1;
        let client = |number: u32| {
            let trigger = |(index, fault): (usize, &crate::torture::plan::Planned)| match fault.when {
                When::Sent { client, nth, after_us } if client == number => Some((nth, after_us, index as u32)),
                _ => None,
            };
            let mut triggers: Vec<_> = plan.faults.iter().enumerate().filter_map(trigger).collect();
            triggers.sort_by_key(|trigger| Reverse((trigger.0, trigger.2)));
            Client {
                clock: Clock::default(),
                luck: (Random::new(plan.seed, purpose::CLIENT, u64::from(number)).draw(), 0, 0),
                sent: 0,
                triggers,
                shared: vec![None; servers],
                idle: vec![Vec::new(); servers],
                last_conn: None,
            }
        };
        let clients = plan.clients.len() as u32;
        let link = |number: u64| Link::new(Random::new(plan.seed, purpose::LINK, number));
        let mut net = Net {
            now_us: 0,
            history: History { events: Vec::with_capacity(HISTORY_USUAL), commands: 0 },
            clients: (0..clients).map(client).collect(),
            spawned: Vec::new(),
            servers: plan.servers,
            queue: BinaryHeap::new(),
            last: 0,
            conns: Vec::new(),
            calls: Slab::new(),
            timers: Slab::new(),
            links: (0..u64::from(clients)).flat_map(|c| (0..servers as u64).map(move |s| c << 32 | s)).map(link).collect(),
            ops: 0,
            stamps: 0,
            lease_us: plan.lease_us,
            keeps: plan.faults.iter().any(|fault| matches!(fault.harm, crate::torture::plan::Harm::Resend { .. })),
            loses: !plan.faults.is_empty(),
        };
        for (index, fault) in plan.faults.iter().enumerate() {
            if let When::At(at_us) = fault.when {
                net.at(at_us, Event::Fault(index as u32));
            }
        }
        net
    }

    /// Has something happen then.
    pub fn at(&mut self, at_us: u64, event: Event) {
        self.last += 1;
        self.queue.push(Reverse((at_us.max(self.now_us), self.last, event)));
    }

    /// Lets time pass until the next thing that happens, which is not after `end_us`.
    pub fn next(&mut self, end_us: u64) -> Option<Event> {
        let Reverse((at_us, ..)) = self.queue.peek()?;
        if *at_us > end_us {
            return None;
        }
        let Reverse((at_us, _, event)) = self.queue.pop()?;
        self.now_us = at_us;
        Some(event)
    }

    /// How long a reply is waited for.
    fn timeout_us(&self) -> u64 {
        self.lease_us / TIMEOUTS_IN_LEASE
    }

    /// Notes what happens to a client.
    pub fn record(&mut self, client: u32, what: What) {
        self.history.push(self.now_us, client, what);
    }

    /// A random number for a client: as with links, its luck is that of the moment.
    pub fn random(&mut self, client: u32) -> u64 {
        let luck = &mut self.clients[client as usize].luck;
        *luck = (luck.0, self.now_us, if luck.1 == self.now_us { luck.2 + 1 } else { 0 });
        Random::new(luck.0, luck.1, luck.2).draw()
    }

    /// A number for an acquisition.
    pub fn next_op(&mut self) -> Op {
        self.ops += 1;
        self.ops
    }

    /// When a server does something, which is now.
    pub fn stamp(&mut self) -> Stamp {
        self.stamps += 1;
        Stamp { order: self.stamps, at_us: self.now_us }
    }

    /// The way between a client and a server.
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

    // ---- timers

    /// A timer that fires after so long in truth.
    pub fn timer(&mut self, after_us: u64) -> Key {
        self.last += 1;
        let number = self.last;
        let index = self.timers.insert(Timer { number, waker: None, fired: false }) as u32;
        let key = Key { index, number };
        self.at(self.now_us + after_us, Event::Timer(key));
        key
    }

    /// Whether it has fired; if not, whom to wake then.
    pub fn poll_timer(&mut self, key: Key, waker: &Waker) -> bool {
        let Some(timer) = self.timers.get_mut(key.index as usize).filter(|timer| timer.number == key.number) else { return true };
        if !timer.fired {
            keep(&mut timer.waker, waker);
            return false;
        }
        self.timers.remove(key.index as usize);
        true
    }

    /// Nobody waits for it any more.
    pub fn drop_timer(&mut self, key: Key) {
        if self.timers.get(key.index as usize).is_some_and(|timer| timer.number == key.number) {
            self.timers.remove(key.index as usize);
        }
    }

    /// A timer fires.
    pub fn fire(&mut self, key: Key) {
        if let Some(timer) = self.timers.get_mut(key.index as usize).filter(|timer| timer.number == key.number) {
            timer.fired = true;
            if let Some(waker) = timer.waker.take() {
                waker.wake();
            }
        }
    }

    // ---- connections

    fn open(&mut self, client: u32, server: u32, usage: Use) -> ConnId {
        self.conns.push(Conn {
            client,
            server,
            usage,
            open: true,
            cut: false,
            gone: false,
            begun: false,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            arrives_us: (0, 0),
            in_flight: VecDeque::new(),
            messages: VecDeque::new(),
            waker: None,
        });
        self.conns.len() as ConnId - 1
    }

    fn conn_for(&mut self, client: u32, server: u32, usage: Use) -> ConnId {
        let of = &mut self.clients[client as usize];
        let found = match usage {
            Use::Shared => of.shared[server as usize],
            Use::Pooled => of.idle[server as usize].pop(),
            Use::Subscription => None,
        };
        let conn = found.unwrap_or_else(|| self.open(client, server, usage));
        if usage == Use::Shared {
            self.clients[client as usize].shared[server as usize] = Some(conn);
        }
        conn
    }

    fn send(&mut self, id: ConnId, message: ToServer) {
        let now_us = self.now_us;
        let conn = &self.conns[id as usize];
        if conn.cut {
            return;
        }
        let begun = conn.begun;
        let link = self.link_of(id);
        let handshake_us = if begun { 0 } else { link.latency_us(now_us) + link.latency_us(now_us) };
        match link.send(now_us) {
            Fate::Breaks => self.cut(id),
            Fate::Arrives(after_us) => {
                let conn = &mut self.conns[id as usize];
                conn.begun = true;
                let at_us = (now_us + handshake_us + after_us).max(conn.arrives_us.0);
                conn.arrives_us.0 = at_us;
                conn.to_server.push_back(message);
                self.at(at_us, Event::ToServer(id));
            }
        }
    }

    /// A server sends something.
    pub fn send_back(&mut self, id: ConnId, message: ToClient) {
        let now_us = self.now_us;
        if self.conns[id as usize].cut {
            return;
        }
        match self.link_of(id).send(now_us) {
            Fate::Breaks => self.cut(id),
            Fate::Arrives(after_us) => {
                let conn = &mut self.conns[id as usize];
                let at_us = (now_us + after_us).max(conn.arrives_us.1);
                conn.arrives_us.1 = at_us;
                conn.to_client.push_back(message);
                self.at(at_us, Event::ToClient(id));
            }
        }
    }

    /// From now on nothing passes on a connection. Either side notices that some time.
    fn cut(&mut self, id: ConnId) {
        let conn = &mut self.conns[id as usize];
        if std::mem::replace(&mut conn.cut, true) {
            return;
        }
        let (now_us, lease_us, timeout_us) = (self.now_us, self.lease_us, self.timeout_us());
        let random = self.link_of(id).random(now_us);
        let (client_us, server_us) = (random.below(timeout_us), random.below(NOTICED_LEASES * lease_us));
        self.at(self.now_us + client_us, Event::Broken(id));
        self.at(self.now_us + server_us, Event::BrokenAtServer(id));
    }

    /// The server of a connection is no more: its clients notice, at once where its machine tells them.
    pub fn abandon(&mut self, id: ConnId, told: bool) {
        let (now_us, timeout_us) = (self.now_us, self.timeout_us());
        let link = self.link_of(id);
        let noticed_us = if told { link.latency_us(now_us) } else { link.random(now_us).below(timeout_us) };
        let conn = &mut self.conns[id as usize];
        (conn.cut, conn.gone) = (true, true);
        self.at(self.now_us + noticed_us, Event::Broken(id));
    }

    /// The server has ended the session of a connection. What still comes on it goes nowhere.
    pub fn end_session(&mut self, id: ConnId) {
        self.conns[id as usize].gone = true;
    }

    /// The client closes a connection. What it has sent arrives before that.
    fn close(&mut self, id: ConnId) {
        if self.conns[id as usize].open {
            self.send(id, ToServer::Close);
            self.forget(id);
        }
    }

    /// The client has no such connection any more.
    fn forget(&mut self, id: ConnId) {
        let conn = &mut self.conns[id as usize];
        conn.open = false;
        let (client, server) = (conn.client as usize, conn.server as usize);
        let of = &mut self.clients[client];
        if of.shared[server] == Some(id) {
            of.shared[server] = None;
        }
        of.idle[server].retain(|idle| *idle != id);
    }

    /// The client notices that a connection is broken.
    pub fn broken(&mut self, id: ConnId, refused: bool) {
        if !self.conns[id as usize].open {
            return;
        }
        self.forget(id);
        let conn = &mut self.conns[id as usize];
        if let Some(waker) = conn.waker.take() {
            waker.wake();
        }
        for key in std::mem::take(&mut conn.in_flight) {
            let error = match refused {
                true => Error::Connect("connection refused".to_owned()),
                false => Error::Disconnected { maybe_applied: true, reason: "connection reset by peer".to_owned() },
            };
            self.finish(key, Err(error), None);
        }
    }

    /// The next message at a connection's server; `None` where that does not know the connection any more.
    pub fn take_to_server(&mut self, id: ConnId) -> Option<ToServer> {
        let conn = &mut self.conns[id as usize];
        conn.to_server.pop_front().filter(|_| !conn.gone)
    }

    /// A message arrives at its client.
    pub fn arrive(&mut self, id: ConnId) {
        let conn = &mut self.conns[id as usize];
        let Some(message) = conn.to_client.pop_front() else { return };
        if !conn.open {
            return;
        }
        match message {
            ToClient::Refused => self.broken(id, true),
            ToClient::Reset => self.broken(id, false),
            ToClient::Reply(value, arrived, answered) => {
                let Some(key) = conn.in_flight.pop_front() else { return };
                if conn.usage == Use::Pooled {
                    let (client, server) = (conn.client as usize, conn.server as usize);
                    self.clients[client].idle[server].push(id);
                }
                self.finish(key, value.into_result(), Some((arrived, answered)));
            }
            ToClient::Push(parts) => match (parts.first().and_then(Value::as_str), &parts[..]) {
                (Some("message"), [_, Value::Bytes(channel), Value::Bytes(payload)]) => {
                    let message = Message { channel: channel.clone(), pattern: None, payload: payload.clone() };
                    conn.messages.push_back(message);
                    if let Some(waker) = conn.waker.take() {
                        waker.wake();
                    }
                }
                (Some("subscribe"), _) => {
                    let Some(key) = conn.in_flight.pop_front() else { return };
                    self.finish(key, Ok(Value::Null), None);
                }
                // Such as that a lock is lost: no algorithm here listens to that.
                _ => {}
            },
        }
    }

    /// A client crashes: it forgets its connections. Their servers hear of it, unless its machine crashed, too.
    pub fn crash(&mut self, client: u32, machine: bool, again_us: u64) {
        for id in 0..self.conns.len() as ConnId {
            let conn = &self.conns[id as usize];
            if conn.client != client || !conn.open {
                continue;
            }
            match machine {
                false => self.send(id, ToServer::Close),
                true => {
                    self.conns[id as usize].cut = true;
                    let (now_us, lease_us) = (self.now_us, self.lease_us);
                    let noticed_us = self.link_of(id).random(now_us).below(NOTICED_LEASES * lease_us);
                    self.at((self.now_us + noticed_us).min(again_us), Event::BrokenAtServer(id));
                }
            }
            self.forget(id);
            self.conns[id as usize].in_flight.clear();
        }
    }
}
