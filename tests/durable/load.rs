//! A client that makes requests and knows what must be there after a crash.
//!
//! Each client has keys of its own. The server executes its requests in order, and the log keeps that order: after a crash its keys
//! are, all together, as after one of the requests between the last that was answered and the last that was sent.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::common::random::Random;
use crate::common::talk::call;
use crate::common::wire::{Frame, Wire};
use crate::kill::Shared;

/// Lease of what a client has alone. No test takes that long.
const LONG_MS: i64 = 3_600_000;
/// By how many milliseconds a lease may seem to end early: times are rounded to milliseconds.
pub const ROUNDING_MS: i64 = 5;
/// Number of entries from which on a stream is deleted.
const ENTRIES_MAX: usize = 30;

/// The reentrant lock of Redisson: takes it, and returns the number of holds.
const ENTER: &str = "if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[1]) == 1 then \
    redis.call('hincrby', KEYS[1], ARGV[1], 1) redis.call('pexpire', KEYS[1], ARGV[2]) \
    return tonumber(redis.call('hget', KEYS[1], ARGV[1])) end return -1";
/// Its release.
const LEAVE: &str = "local left = redis.call('hincrby', KEYS[1], ARGV[1], -1) \
    if left > 0 then redis.call('pexpire', KEYS[1], ARGV[2]) else redis.call('del', KEYS[1]) end return left";
/// Compare and delete.
const GIVE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

/// A plain lock (`SET NX PX`) or a native one.
#[derive(Clone, Debug)]
struct Held {
    /// Number of the request that took it.
    by: u64,
    /// When its lease began at the earliest.
    since: Instant,
    /// Its token, if it was told.
    token: Option<i64>,
}

/// The keys of a client.
#[derive(Clone, Debug, Default)]
struct Keys {
    counter: u64,
    holds: u64,
    entries: Vec<u64>,
    list: VecDeque<u64>,
    pair: u64,
    plain: Option<Held>,
    native: Option<Held>,
}

/// What a request must be answered.
#[derive(Debug)]
enum Answer {
    /// These bytes.
    Raw(String),
    /// The token of the grant by this request.
    Token(u64),
    /// The id of an entry.
    Id,
}

/// A client. It outlives its connections, and the servers.
pub struct Client {
    number: usize,
    random: Random,
    /// Number of requests for keys of its own.
    sent: u64,
    /// The keys after the last answered request, and after each that was sent since then.
    possible: VecDeque<Keys>,
    answers: VecDeque<Answer>,
    /// Its part in the locks that clients share.
    pub shared: Shared,
    /// The tokens that it was given since they were last taken.
    pub tokens: Vec<i64>,
}

impl Client {
    pub fn new(number: usize, seed: u64) -> Client {
        Client {
            number,
            random: Random::new(seed ^ (number as u64) << 32),
            sent: 0,
            possible: VecDeque::from([Keys::default()]),
            answers: VecDeque::new(),
            shared: Shared::new(number),
            tokens: Vec::new(),
        }
    }

    /// Makes requests until the server is gone. Counts the answers in `answered`.
    pub fn run(&mut self, addr: SocketAddr, answered: &AtomicU64) {
        let Ok(mut wire) = Wire::connect(addr) else { return };
        let result = self.shared.repeat(&mut wire, &mut self.tokens);
        if result.and_then(|()| self.make_requests(&mut wire, answered)).is_ok() {
            unreachable!("requests are made until one fails");
        }
    }

    fn make_requests(&mut self, wire: &mut Wire, answered: &AtomicU64) -> io::Result<()> {
        loop {
            for _ in 0..=self.random.below(4) {
                self.queue(wire);
            }
            wire.flush()?;
            while !self.answers.is_empty() {
                let reply = wire.reply()?;
                self.take_answer(&reply.frame, &reply.raw);
                answered.fetch_add(1, Ordering::Relaxed);
            }
            if self.random.one_in(2) {
                self.shared.step(wire, &mut self.random, &mut self.tokens)?;
                answered.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Queues a request of a random kind, or a transaction.
    fn queue(&mut self, wire: &mut Wire) {
        self.sent += 1;
        let (sent, me) = (self.sent, self.number);
        let before = self.possible.back().unwrap().clone();
        let mut keys = before.clone();
        let held = || Some(Held { by: sent, since: Instant::now(), token: None });
        let integer = |number: u64| Answer::Raw(format!(":{number}\r\n"));
        let line = |line: String| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let script = |script: &str, rest: String| [line("EVAL".to_owned()), vec![script.to_owned()], line(rest)].concat();
        let (request, answer) = match self.random.below(9) {
            0 => {
                keys.counter += 1;
                (line(format!("INCR c:{me}")), integer(keys.counter))
            }
            1 => {
                keys.holds += 1;
                (script(ENTER, format!("1 h:{me} owner {LONG_MS}")), integer(keys.holds))
            }
            2 if keys.holds > 0 => {
                keys.holds -= 1;
                (script(LEAVE, format!("1 h:{me} owner {LONG_MS}")), integer(keys.holds))
            }
            2 | 3 if keys.entries.len() >= ENTRIES_MAX => {
                keys.entries.clear();
                (line(format!("DEL x:{me}")), integer(1))
            }
            2 | 3 => {
                keys.entries.push(sent);
                (line(format!("XADD x:{me} * n {sent}")), Answer::Id)
            }
            4 => {
                keys.pair = sent;
                for (line, answer) in [("MULTI", "+OK"), ("SET p:$:a #", "+QUEUED"), ("SET p:$:b #", "+QUEUED")] {
                    let line = line.replace('$', &me.to_string()).replace('#', &sent.to_string());
                    wire.queue(&line.split(' ').collect::<Vec<_>>());
                    self.possible.push_back(before.clone());
                    self.answers.push_back(Answer::Raw(format!("{answer}\r\n")));
                }
                (line("EXEC".to_owned()), Answer::Raw("*2\r\n+OK\r\n+OK\r\n".to_owned()))
            }
            // Carried out twice, these would leave something else.
            5 if keys.list.len() < 10 && self.random.one_in(2) => {
                keys.list.push_back(sent);
                (line(format!("RPUSH q:{me} {sent}")), integer(keys.list.len() as u64))
            }
            5 if !keys.list.is_empty() => {
                let first = keys.list.pop_front().unwrap().to_string();
                (line(format!("LPOP q:{me}")), Answer::Raw(format!("${}\r\n{first}\r\n", first.len())))
            }
            5 | 6 => match keys.plain.take() {
                Some(held) if self.random.one_in(4) => {
                    keys.plain = Some(held);
                    (line(format!("SET s:{me} {sent} NX PX {LONG_MS}")), Answer::Raw("$-1\r\n".to_owned()))
                }
                Some(held) => (script(GIVE, format!("1 s:{me} {}", held.by)), integer(1)),
                None => {
                    keys.plain = held();
                    (line(format!("SET s:{me} {sent} NX PX {LONG_MS}")), Answer::Raw("+OK\r\n".to_owned()))
                }
            },
            _ => match keys.native.take() {
                Some(old) if self.random.one_in(2) => {
                    keys.native = Some(Held { since: Instant::now(), ..old });
                    (line(format!("LOCK.RENEW l:{me} owner:{me} {LONG_MS}")), Answer::Raw(format!(":{LONG_MS}\r\n")))
                }
                Some(_) => (line(format!("LOCK.RELEASE l:{me} owner:{me} REQUEST r{sent}")), integer(0)),
                None => {
                    keys.native = held();
                    (line(format!("LOCK.ACQUIRE l:{me} owner:{me} {LONG_MS} REQUEST r{sent}")), Answer::Token(sent))
                }
            },
        };
        wire.queue(&request);
        self.possible.push_back(keys);
        self.answers.push_back(answer);
    }

    fn take_answer(&mut self, frame: &Frame, raw: &[u8]) {
        let raw = String::from_utf8_lossy(raw);
        self.possible.pop_front();
        match self.answers.pop_front().unwrap() {
            Answer::Raw(wanted) => assert_eq!(raw, wanted),
            Answer::Id => assert!(raw.starts_with('$'), "{raw}"),
            Answer::Token(by) => {
                let token = frame.integer().unwrap_or_else(|| panic!("no token but {raw}"));
                self.tokens.push(token);
                let grants = self.possible.iter_mut().filter_map(|keys| keys.native.as_mut());
                grants.filter(|held| held.by == by).for_each(|held| held.token = Some(token));
            }
        }
    }

    /// Checks the keys after a restart: they are those after a request that was sent, and no earlier one than the last that was
    /// answered.
    #[track_caller]
    pub fn check(&mut self, wire: &mut Wire) {
        let me = self.number;
        let found = Found {
            counter: number(&call(wire, &format!("GET c:{me}"))),
            holds: number(&call(wire, &format!("HGET h:{me} owner"))),
            entries: entries(wire, &format!("x:{me}")),
            list: list(wire, &format!("q:{me}")),
            pair: [number(&call(wire, &format!("GET p:{me}:a"))), number(&call(wire, &format!("GET p:{me}:b")))],
            plain: number(&call(wire, &format!("GET s:{me}"))),
            plain_left_ms: integer(&call(wire, &format!("PTTL s:{me}"))),
            native: LockInfo::read(wire, &format!("l:{me}")),
        };
        let now = Instant::now();
        assert_eq!(found.pair[0], found.pair[1], "half of a transaction of client {me}");
        let at = self.possible.iter().position(|keys| found.is_after(keys, me, now));
        let at = at.unwrap_or_else(|| panic!("client {me} found {found:#?}, which is none of {:#?}", self.possible));
        let mut keys = self.possible.swap_remove_back(at).unwrap();
        if let (Some(held), Some(native)) = (&mut keys.native, &found.native) {
            // Nobody was told this token, but it was given.
            if held.token.is_none() {
                self.tokens.push(native.token);
            }
            held.token = Some(native.token);
        }
        self.possible = VecDeque::from([keys]);
        self.answers.clear();
    }
}

/// The keys of a client as they are found; 0 where there is none.
#[derive(Debug)]
struct Found {
    counter: u64,
    holds: u64,
    entries: Vec<u64>,
    list: VecDeque<u64>,
    pair: [u64; 2],
    plain: u64,
    plain_left_ms: i64,
    native: Option<LockInfo>,
}

impl Found {
    fn is_after(&self, keys: &Keys, me: usize, now: Instant) -> bool {
        let least_ms = |held: &Held| LONG_MS - now.duration_since(held.since).as_millis() as i64 - ROUNDING_MS;
        let plain = match &keys.plain {
            None => self.plain == 0,
            Some(held) => self.plain == held.by && (least_ms(held)..=LONG_MS).contains(&self.plain_left_ms),
        };
        let native = match (&keys.native, &self.native) {
            (None, None) => true,
            (Some(held), Some(found)) => {
                found.owner == format!("owner:{me}")
                    && found.holds == 1
                    && held.token.is_none_or(|token| token == found.token)
                    && (least_ms(held)..=LONG_MS).contains(&found.left_ms)
            }
            _ => false,
        };
        let others = (keys.counter, keys.holds, &keys.entries, &keys.list, keys.pair);
        plain && native && others == (self.counter, self.holds, &self.entries, &self.list, self.pair[0])
    }
}

/// The only holder of a lock.
#[derive(Clone, Debug)]
pub struct LockInfo {
    pub owner: String,
    pub token: i64,
    pub holds: i64,
    /// What is left of the lease.
    pub left_ms: i64,
}

impl LockInfo {
    /// The holder now, if there is one.
    #[track_caller]
    pub fn read(wire: &mut Wire, name: &str) -> Option<LockInfo> {
        let reply = wire.call(&["LOCK.INFO", name]).unwrap().frame;
        let holders = field(&reply, "holders")?.elements().unwrap().to_vec();
        assert!(holders.len() <= 1, "{name} has several holders: {holders:?}");
        let holder = holders.first()?;
        let number = |name: &str| field(holder, name).and_then(Frame::integer).unwrap();
        let owner = String::from_utf8(field(holder, "owner").unwrap().text().unwrap().to_vec()).unwrap();
        Some(LockInfo { owner, token: number("token"), holds: number("holds"), left_ms: number("lease") })
    }
}

fn field<'a>(map: &'a Frame, name: &str) -> Option<&'a Frame> {
    let mut pairs = map.elements()?.chunks_exact(2);
    pairs.find(|pair| pair[0].text() == Some(name.as_bytes())).map(|pair| &pair[1])
}

/// The number in a bulk string; 0 without one.
#[track_caller]
fn number(reply: &str) -> u64 {
    match reply.split_once(' ') {
        Some((_, digits)) => digits.parse().unwrap_or_else(|_| panic!("no number: {reply}")),
        None => 0,
    }
}

#[track_caller]
fn integer(reply: &str) -> i64 {
    reply[1..].parse().unwrap_or_else(|_| panic!("no integer: {reply}"))
}

/// The elements of a list.
#[track_caller]
fn list(wire: &mut Wire, key: &str) -> VecDeque<u64> {
    let reply = wire.call(&["LRANGE", key, "0", "-1"]).unwrap().frame;
    let value = |element: &Frame| std::str::from_utf8(element.text()?).ok()?.parse().ok();
    reply.elements().unwrap().iter().map(|element| value(element).unwrap()).collect()
}

/// The values of the entries of a stream.
#[track_caller]
fn entries(wire: &mut Wire, key: &str) -> Vec<u64> {
    let reply = wire.call(&["XRANGE", key, "-", "+"]).unwrap().frame;
    let value = |entry: &Frame| {
        let text = entry.elements()?[1].elements()?[1].text()?;
        std::str::from_utf8(text).ok()?.parse().ok()
    };
    reply.elements().unwrap().iter().map(|entry| value(entry).unwrap()).collect()
}
