//! The native locks against a naive model: connections that acquire, wait, release, renew and close, requests that are sent again, sessions
//! that change hands, leases and waits that end, names that are deleted, written over or held back. Every reply, every `lock-lost` push and what `LOCK.INFO` shows is what the model says.
//!
//! An input is a list of operations: a byte that says which, and a few bytes that say about what.

#[path = "lock_model.rs"]
mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use crate::frames;
use bytes::BytesMut;
use model::{Attempt, Claim, GrantId, Model, Name, Refusal, Tie, Told, Wish};
use portcullis::base::ids::SessionId;
use portcullis::base::time::Now;
use portcullis::client::{Decoder, Value};
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::engine::session::Peer;
use portcullis::resp::reply::Protocol;

/// Operations of one input.
const OPS_MAX: usize = 150;
/// What the names hold is looked at after so many operations.
const LOOK_EVERY: usize = 40;
const NAMES: [&str; 4] = ["a", "b", "c", "s"];
/// The name that is a semaphore, most of the time, and its limit.
const SEMAPHORE: usize = 3;
const LIMIT: u64 = 3;
/// One of them is too long for the short form of a grant.
const OWNERS: [&str; 5] =
    ["v", "w", "x", "y", "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz"];
const CONNECTIONS: usize = 6;
/// What clients call their attempts, and their sessions.
const REQUESTS: [&str; 3] = ["q", "r", "a-request-with-a-longer-name"];
const SESSIONS: [&str; 2] = ["one", "two"];
const START: Now = Now::new(1_000_000, 1_700_000_000_000);

/// With this variable in the environment, every operation is shown.
static TRACED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("PORTCULLIS_FUZZ_TRACE").is_some());

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut world = World::new(data);
    for op in 1..=OPS_MAX {
        if world.input.is_empty() {
            break;
        }
        world.step();
        if op % LOOK_EVERY == 0 || *TRACED {
            world.look();
        }
    }
    world.look();
    world.engine.check_invariants();
    // All comes to its end, without any further command.
    world.pass(100_000);
}

/// What a connection is to receive.
#[derive(Debug)]
enum Expected {
    /// These bytes.
    Bytes(Vec<u8>),
    /// An error that begins so.
    Error(String),
    /// Tokens, in an array where several were asked for.
    Tokens(Vec<GrantId>, bool),
}

/// A connection.
struct Connection {
    id: SessionId,
    /// Its number, as the locks know it.
    number: u64,
    resp3: bool,
}

struct World<'a> {
    input: &'a [u8],
    engine: Engine,
    now: Now,
    model: Model,
    connections: Vec<Connection>,
    /// Looks and unblocks.
    control: SessionId,
    /// Tokens of grants, as far as they are known, and the last one of each name.
    tokens: BTreeMap<GrantId, i64>,
    last_of: [i64; 4],
    last: i64,
    guard: i64,
    /// Leases of several names have ended at one instant since the last look.
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
        world.ask(&["HELLO", "3"]);
        world.connections = (0..CONNECTIONS).map(|at| world.connect(at % 2 == 1)).collect();
        world
    }

    fn connect(&mut self, resp3: bool) -> Connection {
        let id = self.engine.connect(self.now, Peer::default());
        if resp3 {
            self.engine.execute(self.now, id, &[b"HELLO", b"3"]);
        }
        let session = &mut self.engine.sessions[id.0 as usize];
        session.out.clear();
        Connection { id, number: session.id, resp3 }
    }

    /// The next byte of the input; 0 behind its end.
    fn byte(&mut self) -> usize {
        let (first, rest) = self.input.split_first().unwrap_or((&0, &[]));
        self.input = rest;
        usize::from(*first)
    }

    /// A lease or a wait: mostly short, so that it ends within the input.
    fn time(&mut self) -> u64 {
        let byte = self.byte() as u64;
        if byte < 200 { 1 + byte % 40 } else { 1 + (byte - 200) * 20 }
    }

    /// Executes a request of the control connection.
    fn ask(&mut self, words: &[&str]) -> Value {
        let args: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.engine.execute(self.now, self.control, &args);
        let out = std::mem::take(&mut self.engine.sessions[self.control.0 as usize].out);
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
                self.pass(ms);
            }
        }
    }

    /// Sends a request of a connection, which is not waiting, and holds what comes of it against what the model says.
    fn send(&mut self, connection: usize, words: &[String], expected: Option<Expected>) {
        let args: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.engine.execute(self.now, self.connections[connection].id, &args);
        // As every driver does before it waits: the holders of what was flushed are told then.
        while self.engine.next_deadline().is_some_and(|at| self.now.reached(at)) && self.engine.advance(self.now) {}
        self.model.pass_to(self.model.now);
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
        // A semaphore's name is asked for as a lock now and then, but no connection waits for it as one.
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
        let wish = Wish {
            conn,
            owner,
            names: vec![name],
            all: false,
            exclusive,
            permits: 1,
            limit: 0,
            lease,
            max_hold,
            delay,
            tie,
            request,
        };
        self.attempt(connection, words, wish, wait);
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
        let wish = Wish {
            conn,
            owner,
            names,
            all: true,
            exclusive: true,
            permits: 1,
            limit: 0,
            lease,
            max_hold: None,
            delay: 0,
            tie,
            request,
        };
        self.attempt(connection, words, wish, wait);
    }

    fn semaphore(&mut self, connection: usize) {
        let (what, flags) = (self.byte(), self.byte());
        let (owner, lease) = (what % OWNERS.len(), self.time());
        let wait = self.wait(flags);
        if self.busy(connection) {
            return;
        }
        // A lock's name, or another limit, is asked for now and then, but no connection waits for it.
        let usual = what & 0xc0 != 0;
        let (name, limit, wait) = if usual { (SEMAPHORE, LIMIT, wait) } else { (what / 16 % 4, 1 + what as u64 % 3, None) };
        let permits = 1 + flags as u64 / 4 % limit;
        let [lease_text, limit_text, permits_text] = [lease, limit, permits].map(|number| number.to_string());
        let words =
            text(&["SEM.ACQUIRE", NAMES[name], OWNERS[owner], &lease_text, "LIMIT", &limit_text, "PERMITS", &permits_text]);
        let (conn, tie, exclusive) = (self.connections[connection].number, self.tie(connection, flags), limit == 1);
        let request = self.request(owner, &[name]);
        let wish = Wish {
            conn,
            owner,
            names: vec![name],
            all: false,
            exclusive,
            permits,
            limit,
            lease,
            max_hold: None,
            delay: 0,
            tie,
            request,
        };
        self.attempt(connection, words, wish, wait);
    }

    /// What a grant is to end with, by the flags of its request.
    fn tie(&self, connection: usize, flags: usize) -> Tie {
        if flags & 12 == 0 { self.model.tie_of(self.connections[connection].number) } else { Tie::None }
    }

    /// An id for one attempt in three. Two attempts of one owner that wait for a name have one id between them: in which order they would
    /// be answered, and which answer were forgotten first, is not told.
    fn request(&mut self, owner: usize, names: &[usize]) -> Option<usize> {
        let what = self.byte();
        let id = what.is_multiple_of(3).then_some(what / 3 % REQUESTS.len())?;
        let mut waits = names.iter().flat_map(|&name| self.model.queue(name)).filter(|waiter| waiter.wish.owner == owner);
        waits.all(|waiter| waiter.wish.request.is_none_or(|of| of == id)).then_some(id)
    }

    /// Names a session, or ends one.
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

    /// How long to wait: not at all, for a while, or without limit.
    fn wait(&mut self, flags: usize) -> Option<Option<u64>> {
        match flags % 5 {
            0 => None,
            1 => Some(None),
            _ => Some(Some(self.time())),
        }
    }

    fn attempt(&mut self, connection: usize, mut words: Vec<String>, wish: Wish, wait: Option<Option<u64>>) {
        if wish.tie != Tie::None {
            words.extend(text(&["SESSION"]));
        }
        if let Some(id) = wish.request {
            words.extend(text(&["REQUEST", REQUESTS[id]]));
        }
        if let Some(ms) = wait {
            words.extend(text(&["WAIT", &ms.unwrap_or(0).to_string()]));
        }
        let (all, owner, name) = (wish.all, OWNERS[wish.owner], NAMES[wish.names[0]]);
        let limit = wish.max_hold.unwrap_or(wish.limit);
        let expected = match self.model.acquire(wish, wait) {
            Ok(Attempt::Granted(grants)) => Some(Expected::Tokens(grants, all)),
            Ok(Attempt::Busy) => Some(self.nil(connection, all)),
            Ok(Attempt::Waits) => None,
            Err(Refusal::Deadlock) => Some(Expected::Error(format!("DEADLOCK '{owner}' waits for '"))),
            Err(refusal) => Some(refused(&refusal, name, owner, limit)),
        };
        self.send(connection, &words, expected);
    }

    fn nil(&self, connection: usize, all: bool) -> Expected {
        Expected::Bytes(nil(self.connections[connection].resp3, all))
    }

    /// What a release or renewal is about, with the words for its token: mostly none, and else that of the owner's grant or of a late one.
    /// As of a semaphore, mostly, where it is one.
    fn claim(&mut self) -> (Claim, Vec<String>) {
        let (what, which) = (self.byte(), self.byte());
        let (name, owner) = (what % 4, what / 4 % OWNERS.len());
        let semaphore = (name == SEMAPHORE) != (what >= 240);
        let grant = match which % 8 {
            0 | 1 => self.model.names[name].of(owner).map(|grant| grant.id),
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
        let lease = self.time();
        if self.busy(connection) {
            return;
        }
        let mut words =
            text(&[if semaphore { "SEM.RENEW" } else { "LOCK.RENEW" }, NAMES[name], OWNERS[owner], &lease.to_string()]);
        words.extend(token);
        let expected = match self.model.renew(&claim, lease) {
            Ok(left) => Expected::Bytes(format!(":{left}\r\n").into_bytes()),
            Err(refusal) => refused(&refusal, NAMES[name], OWNERS[owner], 0),
        };
        self.send(connection, &words, Some(expected));
    }

    /// Asks for the token of the grant that came so many before the last.
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

    /// A plain key in the place of a lock, and commands of plain keys on a lock, which is beyond their reach.
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

    /// Closes a connection, whatever it does, and opens another in its place.
    fn close(&mut self, connection: usize) {
        let Connection { id, number, resp3 } = self.connections[connection];
        self.engine.disconnect(self.now, id);
        self.model.close(number);
        self.connections[connection] = self.connect(resp3);
        self.receive(None, "a connection is closed");
    }

    /// Ends the wait of a connection from outside.
    fn unblock(&mut self, connection: usize) {
        let with_error = self.byte().is_multiple_of(2);
        let number = self.connections[connection].number;
        let how = if with_error { "ERROR" } else { "TIMEOUT" };
        let waiter = self.model.waiting.iter().find(|waiter| waiter.wish.conn == number).map(|waiter| waiter.wish.all);
        let unblocked = self.ask(&["CLIENT", "UNBLOCK", &number.to_string(), how]);
        assert_eq!(unblocked, Value::Integer(i64::from(waiter.is_some())));
        if let Some(all) = waiter {
            self.model.leave(number);
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

    /// Lets milliseconds pass, and looks at each instant at which anything comes about.
    fn pass(&mut self, ms: u64) {
        let end = self.model.now + ms;
        while self.model.now < end {
            let due = [self.model.next(), self.engine.next_deadline()].into_iter().flatten().min().unwrap_or(end);
            let at = due.max(self.model.now + 1).min(end);
            let holds = |model: &Model| model.names.iter().filter(|name| matches!(name, Name::Held { .. })).count();
            let before = holds(&self.model);
            self.now.mono_us = at * 1000;
            for turn in 0.. {
                if !self.engine.advance(self.now) {
                    break;
                }
                assert!(turn < 10_000, "time does not settle");
            }
            self.model.pass_to(at);
            self.together |= before > holds(&self.model) + 1;
            self.receive(None, "time passes");
        }
    }

    /// Holds what every connection has received against what it was to receive.
    fn receive(&mut self, reply: Option<(usize, Option<Expected>)>, what: &str) {
        self.engine.take_dirty(&mut Vec::new());
        self.engine.take_actions();
        let told = std::mem::take(&mut self.model.told);
        // Several connections of one owner that are granted a name at once may each be the one that the grant ends with.
        let mut granted = BTreeSet::new();
        for (_, told) in &told {
            if let Told::Granted(grants, _) = told {
                for grant in grants {
                    self.together |= !granted.insert(*grant);
                }
            }
        }
        // Where several names become free at one instant, the server sees to one after the other: another connection of an owner that
        // waits for several at once may come before that one or after it, with the token of then.
        let taken_with_others: Vec<GrantId> = told
            .iter()
            .filter_map(|(_, told)| match told {
                Told::Granted(grants, true) if grants.len() > 1 => Some(grants.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        let mut beside: Vec<(usize, GrantId, Vec<u8>)> = Vec::new();
        if *TRACED {
            eprintln!("{} ms, {:?}: {what}; {told:?}", self.model.now, reply.as_ref().map(|(connection, _)| connection));
            for (at, connection) in self.connections.iter().enumerate() {
                let out = &self.engine.sessions[connection.id.0 as usize].out;
                if !out.is_empty() {
                    eprintln!("    connection {at} gets {}", out.escape_ascii());
                }
            }
        }
        let before = self.last;
        let (replies_to, mut reply) = reply.map_or((usize::MAX, None), |(connection, reply)| (connection, reply));
        // In the order in which they were granted, where a name has several: the model's numbers grow.
        let mut fresh: Vec<(GrantId, i64)> = Vec::new();
        for at in 0..self.connections.len() {
            let Connection { id, number, resp3 } = self.connections[at];
            let session = &mut self.engine.sessions[id.0 as usize];
            let out = std::mem::take(&mut session.out);
            let protocol = if resp3 { Protocol::Resp3 } else { Protocol::Resp2 };
            let (pushes, replies): (Vec<&[u8]>, Vec<&[u8]>) =
                frames::split(&out, protocol).into_iter().partition(|f| f[0] == b'>');
            let mut expected: Vec<Expected> = if at == replies_to { reply.take().into_iter().collect() } else { Vec::new() };
            let mut lost: Vec<Vec<u8>> = Vec::new();
            for (_, told) in told.iter().filter(|(conn, _)| *conn == number) {
                match told {
                    Told::Granted(grants, all) => expected.push(Expected::Tokens(grants.clone(), *all)),
                    Told::Nil(all) => expected.push(Expected::Bytes(nil(resp3, *all))),
                    Told::Lost(..) if !resp3 => {}
                    Told::Lost(name, owner, grant, reason) => {
                        let (name, owner, token) = (NAMES[*name], OWNERS[*owner], self.tokens[grant]);
                        let lengths = [name.len(), owner.len(), reason.len()];
                        lost.push(
                            format!(
                                ">5\r\n$9\r\nlock-lost\r\n${}\r\n{name}\r\n${}\r\n{owner}\r\n:{token}\r\n${}\r\n{reason}\r\n",
                                lengths[0], lengths[1], lengths[2]
                            )
                            .into_bytes(),
                        );
                    }
                }
            }
            let shown = || replies.iter().map(|reply| reply.escape_ascii().to_string()).collect::<Vec<_>>();
            assert_eq!(replies.len(), expected.len(), "{what}: connection {at} got {:?}, not {expected:?}", shown());
            for (got, expected) in replies.iter().zip(&expected) {
                if let Expected::Tokens(grants, false) = expected
                    && let [grant] = grants[..]
                    && at != replies_to
                    && taken_with_others.contains(&grant)
                {
                    beside.push((at, grant, got.to_vec()));
                    continue;
                }
                let fits = match expected {
                    Expected::Bytes(bytes) => got == bytes,
                    Expected::Error(text) => got.strip_prefix(b"-").is_some_and(|got| got.starts_with(text.as_bytes())),
                    Expected::Tokens(grants, all) => self.tokens_fit(got, grants, *all, &mut fresh),
                };
                assert!(fits, "{what}: connection {at} got {}, not {expected:?}", got.escape_ascii());
            }
            let mut pushed: Vec<Vec<u8>> = pushes.into_iter().map(<[u8]>::to_vec).collect();
            pushed.sort();
            lost.sort();
            assert!(pushed == lost, "{what}: connection {at} is pushed {pushed:?}, not {lost:?}");
        }
        for (at, grant, got) in beside {
            let alike = |of: &&GrantId| self.model.granted[**of] == self.model.granted[grant];
            let fits = granted.iter().filter(alike).any(|of| self.tokens_fit(&got, &[*of], false, &mut fresh));
            assert!(fits, "{what}: connection {at} got {}, not the token of {grant}", got.escape_ascii());
        }
        fresh.sort_unstable();
        for (grant, token) in fresh {
            let name = self.model.granted[grant];
            assert!(token > before && token > self.last_of[name] && token < 1 << 53, "{what}: token {token} after {before}");
            assert!(!self.tokens.values().any(|other| *other == token), "{what}: token {token} was given before");
            self.tokens.insert(grant, token);
            (self.last_of[name], self.last) = (token, self.last.max(token));
        }
        if self.together {
            self.look();
        }
    }

    /// Whether a reply has the tokens of these grants; those that are not known yet are gathered.
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
                // Several connections of one owner may be told of one grant at once.
                let known = self.tokens.get(grant).copied().or(fresh.iter().find(|(of, _)| of == grant).map(|(_, token)| *token));
                if known.is_none() {
                    fresh.push((*grant, *token));
                }
                known.is_none_or(|known| known == *token)
            })
    }

    /// Holds what all names are against the model.
    fn look(&mut self) {
        self.together = false;
        for (name, text) in NAMES.iter().enumerate() {
            let kind = match &self.model.names[name] {
                Name::Free => "none",
                Name::Plain(_) => "string",
                Name::Held { limit: 0, .. } => "lock",
                Name::Held { .. } => "semaphore",
            };
            let got = self.ask(&["TYPE", text]);
            assert_eq!(got.as_str(), Some(kind), "the type of {text}");
            let left = match self.model.names[name].end() {
                None => -2,
                Some(None) => -1,
                Some(Some(end)) => (end - self.model.now) as i64,
            };
            assert_eq!(self.ask(&["PTTL", text]), Value::Integer(left), "the time left of {text}");
            if kind == "lock" || kind == "semaphore" {
                let shown = self.ask(&[if kind == "lock" { "LOCK.INFO" } else { "SEM.INFO" }, text]);
                self.compare(name, &shown);
            }
        }
        let numbers: Vec<u64> = self.connections.iter().map(|connection| connection.number).collect();
        for connection in &self.connections {
            let blocked = self.engine.sessions[connection.id.0 as usize].flags;
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
            if !same && grant.is_tied_by_several() {
                adopted.push((grant.owner, client.unwrap_or(0) as u64, session(got)));
            }
            let expected = [Some(grant.holds), Some(grant.end - now), (*limit > 0).then_some(grant.permits)];
            let shown = [number(got, "holds"), number(got, "lease"), number(got, "permits")];
            assert_eq!(shown, expected.map(|number| number.map(|number| number as i64)), "{grant:?} in {got:?}");
            assert_eq!(number(got, "token"), self.tokens.get(&grant.id).copied(), "{grant:?} in {got:?}");
            assert_eq!(number(got, "session"), Some(i64::from(grant.tie != Tie::None)), "{grant:?} in {got:?}");
            let mode = if grant.exclusive { "exclusive" } else { "shared" };
            assert_eq!(got.field("mode").and_then(Value::as_str), Some(mode), "{grant:?} in {got:?}");
            assert!(same || grant.is_tied_by_several(), "{grant:?} in {got:?}");
        }
        let waiters = list("waiters");
        let queue: Vec<_> = self.model.queue(name).map(|waiter| (waiter.wish.conn, waiter.deadline)).collect();
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
