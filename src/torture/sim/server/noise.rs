//! Clients whose replies are not checked. They send requests in pieces or many at once, and read slowly or not at all. They subscribe,
//! pause and kill other clients, and change directives. A server bears all of that: its other clients see delays and broken connections,
//! and nothing else.

use crate::client::Command;
use crate::torture::random::Random;
use crate::torture::sim::net::{Event, Net};
use crate::torture::sim::server::local::{Local, LocalId};
use crate::torture::sim::server::{Server, hello};

/// Number of such clients of a server.
const CLIENTS: usize = 3;
/// Time between two things that they do, in microseconds.
const PAUSE_US: (u64, u64) = (1_000, 200_000);
/// Maximum length of a value in bytes.
const VALUE_MAX: u64 = 40_000;
/// Bytes of the beginning of a request: more than the smallest `client-query-buffer-limit`.
const QUERY_LEN: usize = 1_200_000;
/// Number of bytes that a client reads at first.
const BEGIN_ROOM: usize = 100_000;
/// Maximum number of bytes that a client reads before it is slow again.
const ROOM_MAX: u64 = 300_000;

/// What they send that changes keys. `{key}` is one of their keys, `{n}` a small number and `{value}` a value that may be long.
const WRITES: [&str; 11] = [
    "SET {key} {value}",
    "SET {key} {value}",
    "APPEND {key} {value}",
    "DEL {key}",
    "PEXPIRE {key} {n}",
    "LPUSH list:{n} {value} {value} {value}",
    "BLPOP list:{n} 0.1",
    "DEL list:{n}",
    "LOCK.ACQUIRE lock:{n} {key} {n} WAIT {n}",
    "LOCK.ACQUIRE lock:{n} {key} 1000 SESSION",
    "EVAL for\u{a0}i=1,9\u{a0}do\u{a0}redis.call('RPUSH',KEYS[1],i)\u{a0}end 1 list:{n}",
];

/// What else they send that changes keys, where much may wait to be stored: what the server records of it is long.
const LONG_WRITES: [&str; 8] = [
    "LOCK.ACQUIRE lock:left left 30000",
    "LOCK.ACQUIRE lock:right right 30000",
    "LOCK.ACQUIRE lock:left right 1000 WAIT 3000",
    "LOCK.ACQUIRE lock:right left 1000 WAIT 3000",
    "SWAPDB 1 2",
    "XADD stream * field {n}",
    "XGROUP CREATE stream group $ MKSTREAM",
    "XREADGROUP GROUP group {key} STREAMS stream >",
];

/// What else they send. A command that stands twice is sent more often.
const OTHERS: [&str; 72] = [
    "GET {key}",
    "GET {key}",
    "LRANGE list:{n} 0 -1",
    // A key is missing.
    "GET",
    "SELECT 0",
    "SELECT 1",
    "DBSIZE",
    "LOCK.STATS",
    // More than is written at once.
    "EVAL return\u{a0}string.rep('x',1500000) 0",
    "MULTI",
    "EXEC",
    "DISCARD",
    "WATCH {key}",
    "SUBSCRIBE channel:{n}",
    "UNSUBSCRIBE",
    "PSUBSCRIBE channel:*",
    "PUNSUBSCRIBE",
    "PUBLISH channel:{n} {value}",
    "PUBLISH channel:{n} {n}",
    "SPUBLISH channel:{n} {n}",
    "WAIT 1 {n}",
    "WAIT 2 {n}",
    "WAITAOF 1 0 {n}",
    "CLIENT PAUSE {n}",
    "CLIENT PAUSE {n} WRITE",
    "CLIENT UNPAUSE",
    "CLIENT REPLY OFF",
    "CLIENT REPLY SKIP",
    "CLIENT REPLY ON",
    "CLIENT TRACKING ON",
    "CLIENT TRACKING OFF",
    "CLIENT KILL TYPE pubsub",
    "CLIENT LIST",
    "CLIENT NO-EVICT ON",
    "AUTH secret",
    "HELLO 2",
    "HELLO 3",
    "RESET",
    "QUIT",
    "CONFIG SET timeout 1",
    "CONFIG SET timeout 0",
    "CONFIG SET requirepass secret",
    "CONFIG SET requirepass ",
    "AUTH wrong",
    "CONFIG SET save {n}\u{a0}1",
    "CONFIG SET save ",
    "CONFIG SET stop-writes-on-bgsave-error no",
    "CONFIG SET client-output-buffer-limit normal\u{a0}60000\u{a0}20000\u{a0}1",
    "CONFIG SET client-output-buffer-limit normal\u{a0}0\u{a0}0\u{a0}0\u{a0}pubsub\u{a0}60000\u{a0}20000\u{a0}1",
    "CONFIG SET latency-monitor-threshold {n}",
    "CONFIG SET aof-timestamp-enabled yes",
    "CONFIG SET aof-timestamp-enabled no",
    "CONFIG SET hide-user-data-from-log yes",
    "CONFIG SET hide-user-data-from-log no",
    "CONFIG SET loglevel notice",
    // Nothing is stored less for it.
    "CONFIG SET appendonly yes",
    "CONFIG SET maxmemory-clients 300000",
    "CONFIG SET maxmemory-clients 0",
    "CONFIG SET client-query-buffer-limit 1048576",
    "CONFIG SET client-query-buffer-limit 1073741824",
    "BGSAVE",
    "BGSAVE SCHEDULE",
    "SAVE",
    "BGREWRITEAOF",
    "LASTSAVE",
    "INFO",
    "FAILOVER",
    "NODE HANDOVER",
    "DEBUG OBJECT {key}",
    "LOCK.LIST",
    "MONITOR",
    "NONSENSE",
];

/// The clients of a server.
pub(super) struct Noise {
    random: Random,
    /// Whether they write little at a time, and nothing in transactions, because not much may wait to be stored.
    writes_little: bool,
    clients: [Option<LocalId>; CLIENTS],
}

impl Noise {
    pub(super) fn new(random: Random, writes_little: bool) -> Noise {
        Noise { random, writes_little, clients: [None; CLIENTS] }
    }

    /// What a client sends next.
    fn requests(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        let count = if random.percent(20) { random.between(5, 40) } else { 1 };
        let writes = random.percent(30);
        let little = writes && self.writes_little;
        let mut sent = Vec::new();
        if random.percent(10) {
            // A password may be asked for.
            sent.extend(Command::new("AUTH").arg("secret").wire());
        }
        for _ in 0..if little { 1 } else { count } {
            let (of, more): (&[&str], &[&str]) = match (writes, little) {
                (true, true) => (&WRITES, &[]),
                (true, false) => (&WRITES, &LONG_WRITES),
                (false, _) => (&OTHERS, &[]),
            };
            let which = random.below((of.len() + more.len()) as u64) as usize;
            let command = of.get(which).or_else(|| more.get(which - of.len())).copied().unwrap_or_default();
            if self.writes_little && command == "MULTI" {
                continue;
            }
            let words = command.split(' ').map(|word| {
                let word = word.replace("{key}", &format!("noise:{}", random.below(8)));
                let word = word.replace("{n}", &random.between(1, 50).to_string()).replace('\u{a0}', " ");
                let length = if !little && random.percent(20) { random.below(VALUE_MAX) } else { random.below(20) };
                word.replace("{value}", &"v".repeat(length as usize))
            });
            let command = words.fold(None, |command: Option<Command>, word| {
                Some(if let Some(command) = command { command.arg(word) } else { Command::new(word) })
            });
            sent.extend(command.iter().flat_map(|command| command.wire()));
        }
        let many = random.between(300, 600);
        let get = Command::new("GET").arg(format!("noise:{}", random.below(8)));
        match random.below(60) {
            0 => sent.extend(b"*1\r\n$x\r\n"),
            1 => sent.extend(b"GET 'noise:1'\r\n\r\nPING\r\n"),
            // Many requests whose replies are long, and one with many arguments.
            2 if random.percent(5) => (0..many).for_each(|_| sent.extend(get.wire())),
            3 if random.percent(5) => {
                sent.extend((0..many).fold(Command::new("MGET"), |mget, n| mget.arg(format!("noise:{n}"))).wire())
            }
            // The beginning of a request, longer than a server keeps.
            4 if random.percent(5) => {
                sent.extend(b"*2\r\n$3\r\nGET\r\n$9000000\r\n");
                sent.resize(sent.len() + QUERY_LEN, b'x');
            }
            _ => {}
        }
        sent
    }
}

impl Server {
    /// An unchecked client does something.
    pub fn make_noise(&mut self, net: &mut Net) {
        let number = self.number;
        let Some(mut noise) = self.noise.take() else { return };
        if self.up {
            self.on(net).wake(|serving| serving.server.act_noisily(&mut noise));
        }
        let at_us = net.now_us + noise.random.between(PAUSE_US.0, PAUSE_US.1);
        self.noise = Some(noise);
        net.at(at_us, Event::Noise(number));
    }

    fn act_noisily(&mut self, noise: &mut Noise) {
        let which = noise.random.below(CLIENTS as u64) as usize;
        let Some(client) = noise.clients[which].filter(|client| self.local_reply(*client).is_ok()) else {
            let input = if noise.random.percent(50) { hello().wire().to_vec() } else { Vec::new() };
            let mut client = Local::new(input);
            client.room = BEGIN_ROOM;
            noise.clients[which] = Some(self.open_local(client));
            return;
        };
        let (what, random) = (noise.random.below(20), &mut noise.random);
        let (piece, room) = (random.between(1, 100) as usize, random.below(ROOM_MAX) as usize);
        let requests = if what < 10 { Vec::new() } else { noise.requests() };
        self.act_on_local(client, |client| match what {
            0 => client.broken = true,
            1 => client.ended = true,
            2 => client.piece = piece,
            3 => client.piece = usize::MAX,
            4 => client.room = 0,
            5..10 => client.room = client.room.saturating_add(room),
            _ => client.input.extend(requests),
        });
    }
}
