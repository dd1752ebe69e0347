//! The native locks against a naive model. Connections acquire, wait, release, renew and close, requests are repeated, sessions
//! change hands, leases and waits end, names are deleted, written over or held back. Every reply, every `lock-lost` push and the
//! contents of `LOCK.INFO` must be those of the model.
//!
//! An input is a list of operations: a byte for the kind of operation, and a few bytes for its parameters.

#[path = "lock_model.rs"]
mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use crate::frames;
use bytes::BytesMut;
use model::{Attempt, Claim, GrantId, Message, Model, Name, Outcome, Refusal, Tie};
use portcullis::base::ids::SessionId;
use portcullis::base::time::Now;
use portcullis::client::{Decoder, Value};
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::engine::session::Peer;
use portcullis::resp::reply::Protocol;

/// Maximum number of operations of one input.
const OPS_MAX: usize = 150;
/// All names are compared with the model after this number of operations.
const COMPARE_EVERY: usize = 40;
const NAMES: [&str; 4] = ["a", "b", "c", "s"];
/// The name that is mostly used as a semaphore, and its limit.
const SEMAPHORE: usize = 3;
const LIMIT: u64 = 3;
/// One of these owners is too long for the short form of a grant.
const OWNERS: [&str; 5] =
    ["v", "w", "x", "y", "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz"];
const CONNECTIONS: usize = 6;
/// The ids of requests and of sessions.
const REQUESTS: [&str; 3] = ["q", "r", "a-request-with-a-longer-name"];
const SESSIONS: [&str; 2] = ["one", "two"];
const START: Now = Now::new(1_000_000, 1_700_000_000_000);

/// Whether operations are printed: if this variable is in the environment.
static TRACED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("PORTCULLIS_FUZZ_TRACE").is_some());

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut world = World::new(data);
    for op in 1..=OPS_MAX {
        if world.input.is_empty() {
            break;
        }
        world.step();
        if op % COMPARE_EVERY == 0 || *TRACED {
            world.compare_names();
        }
    }
    world.compare_names();
    world.engine.check_invariants();
    // Everything ends without further commands.
    world.advance(100_000);
}

/// What a connection should receive.
#[derive(Debug)]
enum Expected {
    /// Exactly these bytes.
    Bytes(Vec<u8>),
    /// An error with this beginning.
    Error(String),
    /// The tokens of these grants; as an array if several names were requested.
    Tokens(Vec<GrantId>, bool),
}

impl Expected {
    /// The grant, if this is the token of a single one.
    fn single_grant(&self) -> Option<GrantId> {
        match self {
            Expected::Tokens(grants, false) => grants.first().copied(),
            _ => None,
        }
    }
}

/// A connection.
struct Connection {
    id: SessionId,
    /// The number of the connection in the engine.
    number: u64,
    resp3: bool,
}

struct World<'a> {
    input: &'a [u8],
    engine: Engine,
    now: Now,
    model: Model,
    connections: Vec<Connection>,
    /// The connection for inspection and for CLIENT UNBLOCK.
    control: SessionId,
    /// The known tokens of grants, and the last token of each name.
    tokens: BTreeMap<GrantId, i64>,
    last_of: [i64; 4],
    last: i64,
    guard: i64,
    /// Whether several leases have ended at one instant since the last comparison.
    together: bool,
}

impl<'a> World<'a> {
    fn new(input: &'a [u8]) -> World<'a> {
        let mut engine = Engine::new(Config::default(), 1, START, portcullis::commands::table());
        let control = engine.connect(START, Peer::default());
        let mut world = World {
            input,
            engine,
            now: START,
            model: Model::new(START.mono_ms()),
            connections: Vec::new(),
            control,
            tokens: BTreeMap::new(),
            last_of: [0; 4],
            last: 0,
            guard: 0,
            together: false,
        };
        world.control_call(&["HELLO", "3"]);
        world.connections = (0..CONNECTIONS).map(|at| world.connect(at % 2 == 1)).collect();
        world
    }

    fn connect(&mut self, resp3: bool) -> Connection {
        let id = self.engine.connect(self.now, Peer::default());
        if resp3 {
            self.engine.execute(self.now, id, &[b"HELLO", b"3"]);
        }
        let session = &mut self.engine.sessions_mut()[id];
        session.out.clear();
        Connection { id, number: session.id, resp3 }
    }

    /// The next byte of the input; 0 after its end.
    fn byte(&mut self) -> usize {
        let (first, rest) = self.input.split_first().unwrap_or((&0, &[]));
        self.input = rest;
        usize::from(*first)
    }

    /// A lease or a wait: mostly short, so that it ends during the input.
    fn time(&mut self) -> u64 {
        let byte = self.byte() as u64;
        if byte < 200 { 1 + byte % 40 } else { 1 + (byte - 200) * 20 }
    }

    /// Executes a request of the control connection.
    fn control_call(&mut self, words: &[&str]) -> Value {
        let args: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.engine.execute(self.now, self.control, &args);
        let out = std::mem::take(&mut self.engine.sessions_mut()[self.control].out);
        match Decoder::new(1 << 20).decode(&mut BytesMut::from(&out[..])) {
            Ok(Some(value)) => value,
            other => panic!("{other:?} to {words:?}"),
        }
    }

    fn step(&mut self) {
        let at = self.byte();
        let connection = self.byte() % CONNECTIONS;
        match at % 32 {
            0..=9 => self.acquire(connection),
            10 | 11 => self.acquire_all(connection),
            12 | 13 => self.semaphore(connection),
            14..=18 => self.release(connection),
            19 | 20 => self.renew(connection),
            21 => self.check(connection),
            22 => self.guard(connection),
            23 => self.delete(connection),
            24 => self.plain(connection),
            25 => self.close(connection),
            26 => self.unblock(connection),
            27 if at >= 128 => self.flush(connection),
            28 => self.session(connection),
            _ => {
                let ms = self.time();
                self.advance(ms);
            }
        }
    }

    /// Sends a request of a connection that is not blocked, and compares the results with the model.
    fn send(&mut self, connection: usize, words: &[String], expected: Option<Expected>) {
        let args: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.engine.execute(self.now, self.connections[connection].id, &args);
        // A driver runs the engine's deadlines before it waits: the holders of flushed locks get their messages then.
        while self.engine.next_deadline().is_some_and(|at| self.now.reached(at)) && self.engine.advance(self.now) {}
        self.model.advance_to(self.model.now);
        self.receive(Some((connection, expected)), &words.join(" "));
    }

    fn busy(&self, connection: usize) -> bool {
        self.model.waits(self.connections[connection].number)
    }

    fn acquire(&mut self, connection: usize) {
        let (what, flags) = (self.byte(), self.byte());
        let (name, owner, lease) = (what % 4, what / 4 % OWNERS.len(), self.time());
        let wait = self.wait(flags);
        if self.busy(connection) {
            return;
        }
        // Sometimes a lock is requested under a semaphore's name. No connection waits for it.
        let wait = if name == SEMAPHORE { None } else { wait };
        let exclusive = flags & 3 != 0;
        let (tie, request) = (self.tie(connection, flags), self.request(owner, &[name]));
        let delay = if flags & 0x30 == 0 { 3 + what as u64 % 7 } else { 0 };
        let max_hold = (flags & 0xc0 == 0).then_some(5 + what as u64 % 30);
        let mut words = text(&["LOCK.ACQUIRE", NAMES[name], OWNERS[owner], &lease.to_string()]);
        if !exclusive {
            words.extend(text(&["SHARED"]));
        }
        if delay > 0 {
            words.extend(text(&["DELAY", &delay.to_string()]));
        }
        if let Some(ms) = max_hold {
            words.extend(text(&["MAXHOLD", &ms.to_string()]));
        }
        let conn = self.connections[connection].number;
        let attempt = Attempt { exclusive, max_hold, delay, tie, request, ..Attempt::new(conn, owner, vec![name], lease) };
        self.attempt(connection, words, attempt, wait);
    }

    fn acquire_all(&mut self, connection: usize) {
        let (what, flags) = (self.byte(), self.byte());
        let (first, count, owner, lease) = (what % 3, 1 + what / 3 % 3, what / 9 % OWNERS.len(), self.time());
        let wait = self.wait(flags);
        if self.busy(connection) {
            return;
        }
        let names: Vec<usize> = (0..count).map(|at| (first + at) % 3).collect();
        let mut words = text(&["LOCK.ACQUIREALL", &count.to_string()]);
        words.extend(names.iter().map(|&name| NAMES[name].to_owned()));
        words.extend(text(&[OWNERS[owner], &lease.to_string()]));
        let (conn, tie) = (self.connections[connection].number, self.tie(connection, flags));
        let request = self.request(owner, &names);
        let attempt = Attempt { all: true, tie, request, ..Attempt::new(conn, owner, names, lease) };
        self.attempt(connection, words, attempt, wait);
    }

    fn semaphore(&mut self, connection: usize) {
        let (what, flags) = (self.byte(), self.byte());
        let (owner, lease) = (what % OWNERS.len(), self.time());
        let wait = self.wait(flags);
        if self.busy(connection) {
            return;
        }
        // Sometimes a semaphore is requested under a lock's name or with another limit. No connection waits for it.
        let usual = what & 0xc0 != 0;
        let (name, limit, wait) = if usual { (SEMAPHORE, LIMIT, wait) } else { (what / 16 % 4, 1 + what as u64 % 3, None) };
        let permits = 1 + flags as u64 / 4 % limit;
        let [lease_text, limit_text, permits_text] = [lease, limit, permits].map(|number| number.to_string());
        let words =
            text(&["SEM.ACQUIRE", NAMES[name], OWNERS[owner], &lease_text, "LIMIT", &limit_text, "PERMITS", &permits_text]);
        let (conn, tie, exclusive) = (self.connections[connection].number, self.tie(connection, flags), limit == 1);
        let request = self.request(owner, &[name]);
        let attempt = Attempt { exclusive, permits, limit, tie, request, ..Attempt::new(conn, owner, vec![name], lease) };
        self.attempt(connection, words, attempt, wait);
    }

    /// The tie of a grant, from the flags of its request.
    fn tie(&self, connection: usize, flags: usize) -> Tie {
        if flags & 12 == 0 { self.model.tie_of(self.connections[connection].number) } else { Tie::None }
    }

    /// A request id for one attempt in three. Two waiting attempts of one owner for a name have the same id: no contract says in
    /// which order they would be answered, and which reply would be forgotten first.
    fn request(&mut self, owner: usize, names: &[usize]) -> Option<usize> {
        let what = self.byte();
        let id = what.is_multiple_of(3).then_some(what / 3 % REQUESTS.len())?;
        let mut waits = names.iter().flat_map(|&name| self.model.queue(name)).filter(|waiter| waiter.attempt.owner == owner);
        waits.all(|waiter| waiter.attempt.request.is_none_or(|of| of == id)).then_some(id)
    }

    /// Attaches to or ends a named session.
    fn session(&mut self, connection: usize) {
        let what = self.byte();
        let (id, conn) = (what % SESSIONS.len(), self.connections[connection].number);
        if self.busy(connection) {
            return;
        }
        let mut words = text(&["LOCK.SESSION", SESSIONS[id]]);
        let grants = match what / 2 % 8 {
            0 => {
                words.extend(text(&["END"]));
                self.model.end_named(id)
            }
            1 | 2 => self.model.name_session(conn, id, None),
            grace => {
                let grace = (grace as u64 - 3) * (what as u64 / 16);
                words.extend(text(&["GRACE", &grace.to_string()]));
                self.model.name_session(conn, id, Some(grace))
            }
        };
        self.send(connection, &words, Some(Expected::Bytes(format!(":{grants}\r\n").into_bytes())));
    }

    /// The wait of an attempt: none, limited or unlimited.
    fn wait(&mut self, flags: usize) -> Option<Option<u64>> {
        match flags % 5 {
            0 => None,
            1 => Some(None),
            _ => Some(Some(self.time())),
        }
    }

    fn attempt(&mut self, connection: usize, mut words: Vec<String>, attempt: Attempt, wait: Option<Option<u64>>) {
        if attempt.tie != Tie::None {
            words.extend(text(&["SESSION"]));
        }
        if let Some(id) = attempt.request {
            words.extend(text(&["REQUEST", REQUESTS[id]]));
        }
        if let Some(ms) = wait {
            words.extend(text(&["WAIT", &ms.unwrap_or(0).to_string()]));
        }
        let (all, owner, name) = (attempt.all, OWNERS[attempt.owner], NAMES[attempt.names[0]]);
        let limit = attempt.max_hold.unwrap_or(attempt.limit);
        let expected = match self.model.acquire(attempt, wait) {
            Ok(Outcome::Granted(grants)) => Some(Expected::Tokens(grants, all)),
            Ok(Outcome::Busy) => Some(self.nil(connection, all)),
            Ok(Outcome::Waits) => None,
            Err(Refusal::Deadlock) => Some(Expected::Error(format!("DEADLOCK '{owner}' waits for '"))),
            Err(refusal) => Some(refused(&refusal, name, owner, limit)),
        };
        self.send(connection, &words, expected);
    }

    fn nil(&self, connection: usize, all: bool) -> Expected {
        Expected::Bytes(nil(self.connections[connection].resp3, all))
    }

    /// The target of a release or renewal, with the words for its token. Mostly there is no token; otherwise it is that of the
    /// owner's grant or of a recent one. A semaphore's name is mostly used as one.
    fn claim(&mut self) -> (Claim, Vec<String>) {
        let (what, which) = (self.byte(), self.byte());
        let (name, owner) = (what % 4, what / 4 % OWNERS.len());
        let semaphore = (name == SEMAPHORE) != (what >= 240);
        let grant = match which % 8 {
            0 | 1 => self.model.names[name].grant_of(owner).map(|grant| grant.id),
            2 => self.tokens.keys().copied().nth_back(which / 8 % 8),
            _ => None,
        };
        let words = grant.map(|grant| text(&["TOKEN", &self.tokens[&grant].to_string()])).unwrap_or_default();
        (Claim { name, owner, semaphore, grant }, words)
    }

    fn release(&mut self, connection: usize) {
        let (claim, token) = self.claim();
        let Claim { name, owner, semaphore, .. } = claim;
        let all = self.byte().is_multiple_of(3) && !semaphore;
        let request = self.request(owner, &[name]);
        if self.busy(connection) {
            return;
        }
        let mut words = text(&[if semaphore { "SEM.RELEASE" } else { "LOCK.RELEASE" }, NAMES[name], OWNERS[owner]]);
        if all {
            words.extend(text(&["ALL"]));
        }
        words.extend(token);
        if let Some(id) = request {
            words.extend(text(&["REQUEST", REQUESTS[id]]));
        }
        let expected = match self.model.release(&claim, all, request) {
            Ok(left) => Expected::Bytes(format!(":{left}\r\n").into_bytes()),
            Err(refusal) => refused(&refusal, NAMES[name], OWNERS[owner], 0),
        };
        self.send(connection, &words, Some(expected));
    }

    fn renew(&mut self, connection: usize) {
        let (claim, token) = self.claim();
        let Claim { name, owner, semaphore, .. } = claim;
        // Some keep the lease.
        let lease = Some(self.time()).filter(|lease| lease % 4 != 3);
        if self.busy(connection) {
            return;
        }
        let wanted = lease.map_or_else(|| "keep".to_owned(), |lease| lease.to_string());
        let mut words = text(&[if semaphore { "SEM.RENEW" } else { "LOCK.RENEW" }, NAMES[name], OWNERS[owner], &wanted]);
        words.extend(token);
        let number = self.connections[connection].number;
        let expected = match self.model.renew(&claim, lease, number) {
            Ok(left) => Expected::Bytes(format!(":{left}\r\n").into_bytes()),
            Err(refusal) => refused(&refusal, NAMES[name], OWNERS[owner], 0),
        };
        self.send(connection, &words, Some(expected));
    }

    /// Checks the token of a recent grant.
    fn check(&mut self, connection: usize) {
        let (name, back) = (self.byte() % 4, self.byte() % 8);
        if self.busy(connection) {
            return;
        }
        let Some((&id, &token)) = self.tokens.iter().rev().nth(back) else { return };
        let expected = match &self.model.names[name] {
            Name::Plain(_) => refused(&Refusal::WrongType, "", "", 0),
            Name::Free => Expected::Bytes(b":0\r\n".to_vec()),
            Name::Held { holders, .. } => {
                Expected::Bytes(format!(":{}\r\n", u8::from(holders.iter().any(|grant| grant.id == id))).into_bytes())
            }
        };
        self.send(connection, &text(&["LOCK.CHECK", NAMES[name], &token.to_string()]), Some(expected));
    }

    fn guard(&mut self, connection: usize) {
        let back = self.byte() % 8;
        if self.busy(connection) {
            return;
        }
        let Some(&token) = self.tokens.values().nth_back(back) else { return };
        let expected = if token < self.guard {
            Expected::Error(format!("STALE token {token} is behind {} for 'r'", self.guard))
        } else {
            self.guard = token;
            Expected::Bytes(b"+OK\r\n".to_vec())
        };
        self.send(connection, &text(&["LOCK.GUARD", "r", &token.to_string()]), Some(expected));
    }

    fn delete(&mut self, connection: usize) {
        let name = self.byte() % 4;
        if self.busy(connection) {
            return;
        }
        let deleted = self.model.delete(name);
        let expected = Expected::Bytes(format!(":{}\r\n", u8::from(deleted)).into_bytes());
        self.send(connection, &text(&["DEL", NAMES[name]]), Some(expected));
    }

    /// Commands of plain keys: on a name that is not a lock they work, on a lock they are refused.
    fn plain(&mut self, connection: usize) {
        let (what, ms) = (self.byte(), self.time());
        let (name, end) = (what % 4, self.model.now + ms);
        if self.busy(connection) {
            return;
        }
        let (is, held) = (&self.model.names[name], matches!(self.model.names[name], Name::Held { .. }));
        let wrong = || refused(&Refusal::WrongType, "", "", 0);
        let ok = || Expected::Bytes(b"+OK\r\n".to_vec());
        let there = !matches!(is, Name::Free);
        let (words, expected) = match what / 4 % 4 {
            0 => {
                let set = self.model.set(name, None);
                (text(&["SET", NAMES[name], "plain"]), if set { ok() } else { wrong() })
            }
            1 if there => (text(&["SET", NAMES[name], "plain", "NX"]), self.nil(connection, false)),
            1 => {
                self.model.set(name, Some(end));
                (text(&["SET", NAMES[name], "plain", "NX", "PX", &ms.to_string()]), ok())
            }
            2 if held => (text(&["PEXPIRE", NAMES[name], &ms.to_string()]), wrong()),
            2 => {
                if there {
                    self.model.set(name, Some(end));
                }
                let words = text(&["PEXPIRE", NAMES[name], &ms.to_string()]);
                (words, Expected::Bytes(format!(":{}\r\n", u8::from(there)).into_bytes()))
            }
            _ if held => (text(&["HSET", NAMES[name], "f", "v"]), wrong()),
            _ => return,
        };
        self.send(connection, &words, Some(expected));
    }

    /// Closes a connection, even if it is blocked, and opens another one.
    fn close(&mut self, connection: usize) {
        let Connection { id, number, resp3 } = self.connections[connection];
        self.engine.disconnect(self.now, id);
        self.model.close(number);
        self.connections[connection] = self.connect(resp3);
        self.receive(None, "a connection is closed");
    }

    /// Unblocks a connection by CLIENT UNBLOCK.
    fn unblock(&mut self, connection: usize) {
        let with_error = self.byte().is_multiple_of(2);
        let number = self.connections[connection].number;
        let how = if with_error { "ERROR" } else { "TIMEOUT" };
        let waiter = self.model.waiting.iter().find(|waiter| waiter.attempt.conn == number).map(|waiter| waiter.attempt.all);
        let unblocked = self.control_call(&["CLIENT", "UNBLOCK", &number.to_string(), how]);
        assert_eq!(unblocked, Value::Integer(i64::from(waiter.is_some())));
        if let Some(all) = waiter {
            self.model.stop_waiting(number);
            let expected = match with_error {
                true => Expected::Error("UNBLOCKED ".to_owned()),
                false => self.nil(connection, all),
            };
            self.receive(Some((connection, Some(expected))), "CLIENT UNBLOCK");
        }
    }

    fn flush(&mut self, connection: usize) {
        if !self.busy(connection) {
            self.model.flush();
            self.guard = 0;
            self.send(connection, &text(&["FLUSHALL"]), Some(Expected::Bytes(b"+OK\r\n".to_vec())));
        }
    }

    /// Advances time, and compares at each instant at which something happens.
    fn advance(&mut self, ms: u64) {
        let end = self.model.now + ms;
        while self.model.now < end {
            let due = [self.model.next(), self.engine.next_deadline()].into_iter().flatten().min().unwrap_or(end);
            let at = due.max(self.model.now + 1).min(end);
            let holds = |model: &Model| model.names.iter().filter(|name| matches!(name, Name::Held { .. })).count();
            let before = holds(&self.model);
            self.now = Now::new(at * 1000, self.now.wall_offset_ms());
            for turn in 0.. {
                if !self.engine.advance(self.now) {
                    break;
                }
                assert!(turn < 10_000, "time does not settle");
            }
            self.model.advance_to(at);
            self.together |= before > holds(&self.model) + 1;
            self.receive(None, "time passes");
        }
    }

    /// Compares what every connection has received with the model's messages, and with the expected reply to one connection.
    fn receive(&mut self, reply: Option<(usize, Option<Expected>)>, what: &str) {
        self.engine.take_pending_writes(&mut Vec::new());
        self.engine.take_actions();
        let messages = std::mem::take(&mut self.model.messages);
        if *TRACED {
            self.trace(reply.as_ref().map(|(connection, _)| *connection), &messages, what);
        }
        // If several connections of one owner are granted a name at once, the grant may be tied to any of them.
        let granted: Vec<GrantId> = messages.iter().flat_map(|(_, message)| message.grants()).copied().collect();
        let distinct: BTreeSet<GrantId> = granted.iter().copied().collect();
        self.together |= distinct.len() < granted.len();
        // If several names become free at one instant, the server handles one after the other. An owner may then be granted
        // several names at once before or after another of its connections is granted one of them; the latter's reply has the
        // token of that time.
        let granted_together: Vec<GrantId> =
            messages.iter().map(|(_, message)| message.grants()).filter(|grants| grants.len() > 1).flatten().copied().collect();
        let before = self.last;
        let (replies_to, mut reply) = reply.map_or((usize::MAX, None), |(connection, reply)| (connection, reply));
        let mut fresh: Vec<(GrantId, i64)> = Vec::new();
        let mut unordered: Vec<(usize, GrantId, Vec<u8>)> = Vec::new();
        for at in 0..self.connections.len() {
            let own_reply = if at == replies_to { reply.take() } else { None };
            let (expected, lost) = self.expected(at, own_reply, &messages);
            let (replies, pushes) = self.received(at);
            let shown = || replies.iter().map(|reply| reply.escape_ascii().to_string()).collect::<Vec<_>>();
            assert_eq!(replies.len(), expected.len(), "{what}: connection {at} got {:?}, not {expected:?}", shown());
            for (got, expected) in replies.iter().zip(&expected) {
                let single = expected.single_grant().filter(|grant| at != replies_to && granted_together.contains(grant));
                if let Some(grant) = single {
                    unordered.push((at, grant, got.clone()));
                    continue;
                }
                let fits = self.fits(got, expected, &mut fresh);
                assert!(fits, "{what}: connection {at} got {}, not {expected:?}", got.escape_ascii());
            }
            assert!(pushes == lost, "{what}: connection {at} is pushed {pushes:?}, not {lost:?}");
        }
        for (at, grant, got) in unordered {
            let same_name = |of: &&GrantId| self.model.granted[**of] == self.model.granted[grant];
            let fits = distinct.iter().filter(same_name).any(|of| self.tokens_fit(&got, &[*of], false, &mut fresh));
            assert!(fits, "{what}: connection {at} got {}, not the token of {grant}", got.escape_ascii());
        }
        self.record_tokens(fresh, before, what);
        if self.together {
            self.compare_names();
        }
    }

    /// Prints an operation, the model's messages and what connections received.
    fn trace(&self, replies_to: Option<usize>, messages: &[(u64, Message)], what: &str) {
        eprintln!("{} ms, {replies_to:?}: {what}; {messages:?}", self.model.now);
        for (at, connection) in self.connections.iter().enumerate() {
            let out = &self.engine.sessions()[connection.id].out;
            if !out.is_empty() {
                eprintln!("    connection {at} gets {}", out.escape_ascii());
            }
        }
    }

    /// Takes what a connection has received: its replies in order, and its push messages, sorted.
    fn received(&mut self, at: usize) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let Connection { id, resp3, .. } = self.connections[at];
        let out = std::mem::take(&mut self.engine.sessions_mut()[id].out);
        let protocol = if resp3 { Protocol::Resp3 } else { Protocol::Resp2 };
        let frames = frames::split(&out, protocol).into_iter().map(<[u8]>::to_vec);
        let (mut pushes, replies): (Vec<Vec<u8>>, Vec<Vec<u8>>) = frames.partition(|frame| frame[0] == b'>');
        pushes.sort();
        (replies, pushes)
    }

    /// What a connection should receive: `reply`, the model's messages to it, and its push messages, sorted.
    fn expected(&self, at: usize, reply: Option<Expected>, messages: &[(u64, Message)]) -> (Vec<Expected>, Vec<Vec<u8>>) {
        let Connection { number, resp3, .. } = self.connections[at];
        let (mut expected, mut lost): (Vec<Expected>, Vec<Vec<u8>>) = (reply.into_iter().collect(), Vec::new());
        for (_, message) in messages.iter().filter(|(conn, _)| *conn == number) {
            match message {
                Message::Granted(grants, all) => expected.push(Expected::Tokens(grants.clone(), *all)),
                Message::Nil(all) => expected.push(Expected::Bytes(nil(resp3, *all))),
                Message::Lost(..) if !resp3 => {}
                Message::Lost(name, owner, grant, reason) => {
                    let (name, owner, token) = (NAMES[*name], OWNERS[*owner], self.tokens[grant]);
                    let [name, owner, reason] = [name, owner, *reason].map(|text| format!("${}\r\n{text}\r\n", text.len()));
                    lost.push(format!(">5\r\n$9\r\nlock-lost\r\n{name}{owner}:{token}\r\n{reason}").into_bytes());
                }
            }
        }
        lost.sort();
        (expected, lost)
    }

    /// Whether a reply is the expected one.
    fn fits(&self, got: &[u8], expected: &Expected, fresh: &mut Vec<(GrantId, i64)>) -> bool {
        match expected {
            Expected::Bytes(bytes) => got == bytes,
            Expected::Error(text) => got.strip_prefix(b"-").is_some_and(|got| got.starts_with(text.as_bytes())),
            Expected::Tokens(grants, all) => self.tokens_fit(got, grants, *all, fresh),
        }
    }

    /// Records new tokens. They must exceed all earlier ones. Several of one name are in the order of its grants: the model's
    /// numbers increase.
    fn record_tokens(&mut self, mut fresh: Vec<(GrantId, i64)>, before: i64, what: &str) {
        fresh.sort_unstable();
        for (grant, token) in fresh {
            let name = self.model.granted[grant];
            assert!(token > before && token > self.last_of[name] && token < 1 << 53, "{what}: token {token} after {before}");
            assert!(!self.tokens.values().any(|other| *other == token), "{what}: token {token} was given before");
            self.tokens.insert(grant, token);
            (self.last_of[name], self.last) = (token, self.last.max(token));
        }
    }

    /// Whether a reply has the tokens of these grants. Tokens that were not known are appended to `fresh`.
    fn tokens_fit(&self, got: &[u8], grants: &[GrantId], all: bool, fresh: &mut Vec<(GrantId, i64)>) -> bool {
        let mut buffer = BytesMut::from(got);
        let value = match Decoder::new(1 << 16).decode(&mut buffer) {
            Ok(Some(value)) => value,
            _ => return false,
        };
        let values = match (&value, all) {
            (Value::Array(values), true) => &values[..],
            (value, false) => std::slice::from_ref(value),
            _ => return false,
        };
        values.len() == grants.len()
            && values.iter().zip(grants).all(|(value, grant)| {
                let Value::Integer(token) = value else { return false };
                // Several connections of one owner may get the token of one grant at once.
                let known = self.tokens.get(grant).copied().or(fresh.iter().find(|(of, _)| of == grant).map(|(_, token)| *token));
                if known.is_none() {
                    fresh.push((*grant, *token));
                }
                known.is_none_or(|known| known == *token)
            })
    }

    /// Compares all names with the model.
    fn compare_names(&mut self) {
        self.together = false;
        for (name, text) in NAMES.iter().enumerate() {
            let kind = match &self.model.names[name] {
                Name::Free => "none",
                Name::Plain(_) => "string",
                Name::Held { limit: 0, .. } => "lock",
                Name::Held { .. } => "semaphore",
            };
            let got = self.control_call(&["TYPE", text]);
            assert_eq!(got.as_str(), Some(kind), "the type of {text}");
            let left = match self.model.names[name].end() {
                None => -2,
                Some(None) => -1,
                Some(Some(end)) => (end - self.model.now) as i64,
            };
            assert_eq!(self.control_call(&["PTTL", text]), Value::Integer(left), "the time left of {text}");
            if kind == "lock" || kind == "semaphore" {
                let shown = self.control_call(&[if kind == "lock" { "LOCK.INFO" } else { "SEM.INFO" }, text]);
                self.compare(name, &shown);
            }
        }
        let numbers: Vec<u64> = self.connections.iter().map(|connection| connection.number).collect();
        for connection in &self.connections {
            let blocked = self.engine.sessions()[connection.id].flags;
            let blocked = blocked.contains(portcullis::engine::session::SessionFlags::BLOCKED);
            assert_eq!(blocked, self.model.waits(connection.number), "connection {} of {numbers:?} waits", connection.number);
        }
    }

    fn compare(&mut self, name: usize, shown: &Value) {
        let now = self.model.now;
        let Name::Held { holders, held_back, limit } = &self.model.names[name] else { return };
        let number = |value: &Value, field: &str| value.field(field).and_then(Value::as_integer);
        let list = |field: &str| shown.field(field).and_then(Value::as_array).unwrap_or_default();
        assert_eq!(number(shown, "held-back"), held_back.map(|at| (at - now) as i64), "{} is held back", NAMES[name]);
        assert_eq!(list("holders").len(), holders.len(), "holders of {}: {holders:?} {shown:?}", NAMES[name]);
        let mut adopted = Vec::new();
        for grant in holders {
            let of = |value: &&Value| value.field("owner").and_then(Value::as_str) == Some(OWNERS[grant.owner]);
            let Some(got) = list("holders").iter().find(of) else { panic!("{grant:?} is not in {shown:?}") };
            let client = number(got, "client");
            let session =
                |got: &Value| got.field("session-id").and_then(|id| SESSIONS.iter().position(|of| Some(*of) == id.as_str()));
            let (shown, known) = ((client, session(got)), (self.model.conn_of(grant), self.model.session_of(grant)));
            let same = shown == (Some(known.0 as i64), known.1);
            if !same && grant.has_several_ties() {
                adopted.push((grant.owner, client.unwrap_or(0) as u64, session(got)));
            }
            let expected = [Some(grant.holds), Some(grant.end - now), (*limit > 0).then_some(grant.permits)];
            let shown = [number(got, "holds"), number(got, "lease"), number(got, "permits")];
            assert_eq!(shown, expected.map(|number| number.map(|number| number as i64)), "{grant:?} in {got:?}");
            assert_eq!(number(got, "token"), self.tokens.get(&grant.id).copied(), "{grant:?} in {got:?}");
            assert_eq!(number(got, "session"), Some(i64::from(grant.tie != Tie::None)), "{grant:?} in {got:?}");
            let mode = if grant.exclusive { "exclusive" } else { "shared" };
            assert_eq!(got.field("mode").and_then(Value::as_str), Some(mode), "{grant:?} in {got:?}");
            assert!(same || grant.has_several_ties(), "{grant:?} in {got:?}");
        }
        let waiters = list("waiters");
        let queue: Vec<_> = self.model.queue(name).map(|waiter| (waiter.attempt.conn, waiter.deadline)).collect();
        let got: Vec<_> = waiters
            .iter()
            .map(|got| (number(got, "client").unwrap_or(0) as u64, number(got, "left").map(|ms| now + ms as u64)))
            .collect();
        assert_eq!(got, queue, "the queue of {}", NAMES[name]);
        for (owner, conn, session) in adopted {
            self.model.adopt(name, owner, conn, session);
        }
    }
}

fn text(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn nil(resp3: bool, all: bool) -> Vec<u8> {
    match (resp3, all) {
        (true, _) => b"_\r\n".to_vec(),
        (false, true) => b"*-1\r\n".to_vec(),
        (false, false) => b"$-1\r\n".to_vec(),
    }
}

fn refused(refusal: &Refusal, name: &str, owner: &str, limit: u64) -> Expected {
    Expected::Error(match refusal {
        Refusal::WrongType => "WRONGTYPE ".to_owned(),
        Refusal::Limit(has) => format!("LIMIT semaphore '{name}' has limit {has}, not {limit}"),
        Refusal::NotHeld => format!("NOTHELD lock '{name}' is not held by '{owner}': "),
        Refusal::Ended(name) => format!("NOTHELD lock '{}' is not held by '{owner}': ", NAMES[*name]),
        Refusal::HeldTooLong(for_ms) => format!("ERR MAXHOLD {limit} is over: '{owner}' has held lock '{name}' for {for_ms} ms"),
        Refusal::Deadlock => "DEADLOCK ".to_owned(),
    })
}
