//! A crowd of clients that push, pop, wait, watch and run transactions at random. Who is served, in which order and with what
//! must be the same as on redis-server.
//!
//! ```text
//!   seed ─▶ each client's requests ─┬─▶ redis-server ─▶ replies by client ─┐
//!                                   └─▶ portcullis   ─▶ replies by client ─┴─▶ equal, step by step
//! ```
//! Redis 7.2 changed how a waiter for several keys is served, so an older redis-server only gets waits for one key. Environment:
//! `PORTCULLIS_REDIS8` names a newer redis-server; `PORTCULLIS_CROWD_STEPS` sets the number of steps.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::common::random::Random;
use crate::common::servers::{Server, on_path};
use crate::common::wire::Wire;

const CLIENTS: usize = 6;
const KEYS: [&str; 4] = ["a", "b", "c", "d"];

/// A server and its clients.
struct Side {
    control: Wire,
    wires: Vec<Wire>,
    ids: Vec<String>,
    /// Whether each client waits for the reply to a request.
    waiting: Vec<bool>,
}

impl Side {
    fn open(addr: SocketAddr) -> Side {
        let mut control = Wire::connect(addr).expect("the server accepts");
        // Those of the round before may still be there: a server that another thread starts has their sockets, too, until it runs.
        control.call(&["CLIENT", "KILL", "TYPE", "normal"]).expect("a reply");
        control.call(&["FLUSHALL"]).expect("a reply");
        let mut wires: Vec<Wire> = (0..CLIENTS).map(|_| Wire::connect(addr).expect("the server accepts")).collect();
        let ids = wires.iter_mut().map(|wire| shown(&wire.call(&["CLIENT", "ID"]).expect("an id").raw)[1..].to_owned()).collect();
        for wire in &mut wires[CLIENTS / 2..] {
            wire.call(&["HELLO", "3"]).expect("a reply");
        }
        Side { control, wires, ids, waiting: vec![false; CLIENTS] }
    }

    /// Sends a request of a client. Returns the replies that follow, with their clients.
    fn step(&mut self, client: usize, request: &[String]) -> Vec<(usize, String)> {
        self.wires[client].queue(request);
        self.wires[client].flush().expect("sent");
        self.waiting[client] = true;
        let end = Instant::now() + Duration::from_secs(20);
        // Until the request is executed: the client is blocked, or there is a reply.
        while !self.blocked().contains(&client) && !self.wires[client].has_input() {
            assert!(Instant::now() < end, "{request:?}: neither a reply nor a wait");
        }
        let blocked = self.blocked();
        let mut got = Vec::new();
        for other in 0..CLIENTS {
            if self.waiting[other] && !blocked.contains(&other) {
                got.push((other, shown(&self.wires[other].reply().expect("a reply").raw)));
                self.waiting[other] = false;
            }
        }
        got
    }

    /// The clients that the server lists as blocked.
    fn blocked(&mut self) -> Vec<usize> {
        let list = self.control.call(&["CLIENT", "LIST"]).expect("a list").raw;
        let list = String::from_utf8_lossy(&list).into_owned();
        let field = |line: &str, name: &str| line.split(' ').find_map(|field| field.strip_prefix(name).map(str::to_owned));
        let blocked = list.lines().filter(|line| field(line, "flags=").is_some_and(|flags| flags.contains('b')));
        blocked.filter_map(|line| self.ids.iter().position(|id| field(line, "id=").as_ref() == Some(id))).collect()
    }
}

fn shown(raw: &[u8]) -> String {
    String::from_utf8_lossy(raw).trim_end().replace("\r\n", " ")
}

/// The next request of a client. `several` permits waits for several keys.
fn request(random: &mut Random, ids: &[String], several: bool) -> Vec<String> {
    let key = |random: &mut Random| KEYS[random.below(KEYS.len() as u64) as usize].to_owned();
    let side = |random: &mut Random| ["LEFT", "RIGHT"][random.below(2) as usize].to_owned();
    let value = |random: &mut Random| random.below(1000).to_string();
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<String>>();
    let keys = |random: &mut Random| -> Vec<String> {
        let count = if several { random.range(1..=3) } else { 1 };
        (0..count).map(|_| key(random)).collect()
    };
    match random.below(40) {
        0..9 => {
            let mut all = words(&[*["BLPOP", "BRPOP"].get(random.below(2) as usize).unwrap_or(&"BLPOP")]);
            all.extend(keys(random));
            all.push("0".to_owned());
            all
        }
        9..12 => vec!["BLMOVE".into(), key(random), key(random), side(random), side(random), "0".into()],
        12..14 => vec!["BRPOPLPUSH".into(), key(random), key(random), "0".into()],
        14..16 => {
            let keys = keys(random);
            let mut all = vec!["BLMPOP".to_owned(), "0".into(), keys.len().to_string()];
            all.extend(keys);
            all.extend([side(random), "COUNT".into(), random.range(1..=3).to_string()]);
            all
        }
        16..22 => {
            let mut all = words(&[["RPUSH", "LPUSH"][random.below(2) as usize]]);
            all.push(key(random));
            all.extend((0..random.range(1..=3)).map(|_| value(random)));
            all
        }
        22 => vec!["LMOVE".into(), key(random), key(random), side(random), side(random)],
        23 => vec!["RENAME".into(), key(random), key(random)],
        24 => vec!["COPY".into(), key(random), key(random)],
        25 => vec!["DEL".into(), key(random)],
        26 if random.one_in(3) => vec!["SET".into(), key(random), value(random)],
        27 => vec![
            "EVAL".into(),
            "redis.call('rpush',KEYS[1],1) redis.call('rpush',KEYS[2],2) return 1".into(),
            "2".into(),
            key(random),
            key(random),
        ],
        28 => vec![
            "CLIENT".into(),
            "UNBLOCK".into(),
            ids[random.below(CLIENTS as u64) as usize].clone(),
            ["TIMEOUT", "ERROR"][random.below(2) as usize].into(),
        ],
        // SWAPDB is left out: Redis then serves the waited-for keys in an order of its own.
        30 => vec!["LRANGE".into(), key(random), "0".into(), "-1".into()],
        31 | 32 => vec!["WATCH".into(), key(random)],
        33 | 34 => words(&["MULTI"]),
        35..38 => words(&["EXEC"]),
        38 if random.one_in(3) => words(&["DISCARD"]),
        _ => vec!["LPUSH".into(), key(random), value(random)],
    }
}

fn compare(program: &std::path::Path, several: bool) {
    let reference = Server::redis(program).expect("the redis-server starts");
    let subject = Server::portcullis(&PathBuf::from(env!("CARGO_BIN_EXE_portcullis"))).expect("portcullis starts");
    let wanted = std::env::var("PORTCULLIS_CROWD_STEPS").map_or(1_500, |steps| steps.parse().expect("a number"));
    let (mut done, mut served, mut seed) = (0, 0, 0);
    while done < wanted {
        seed += 1;
        let mut random = Random::new(seed);
        let (mut theirs, mut ours) = (Side::open(reference.addr), Side::open(subject.addr));
        let mut history = Vec::new();
        for _ in 0..200 {
            let free: Vec<usize> = (0..CLIENTS).filter(|&client| !theirs.waiting[client]).collect();
            if free.is_empty() {
                break;
            }
            let client = free[random.below(free.len() as u64) as usize];
            // The client ids of the two servers differ.
            let places: Vec<String> = (0..CLIENTS).map(|client| format!("<{client}>")).collect();
            let said = request(&mut random, &places, several);
            let of = |side: &Side| -> Vec<String> {
                let named =
                    |word: &String| places.iter().position(|place| place == word).map_or(word.clone(), |at| side.ids[at].clone());
                said.iter().map(named).collect()
            };
            let (their_words, our_words) = (of(&theirs), of(&ours));
            let expected = theirs.step(client, &their_words);
            let got = ours.step(client, &our_words);
            history.push(format!("{client}: {} => {expected:?}", said.join(" ")));
            assert_eq!(got, expected, "seed {seed}, the last is what redis gave\n{}", history.join("\n"));
            served += expected.len().saturating_sub(1);
            done += 1;
        }
    }
    println!("{done} steps in {seed} rounds; {served} times somebody who waited got something");
    assert!(served * 20 > done, "hardly anybody was served");
}

#[test]
fn a_crowd_is_served_as_redis_serves_it() {
    match on_path("redis-server") {
        Some(program) => compare(&program, false),
        None => println!("SKIPPED: no redis-server on the PATH, nothing was compared"),
    }
}

#[test]
fn a_crowd_is_served_as_a_newer_redis_serves_it() {
    match std::env::var_os("PORTCULLIS_REDIS8").filter(|program| !program.is_empty()) {
        Some(program) => compare(program.as_ref(), true),
        None => println!("SKIPPED: PORTCULLIS_REDIS8 names no redis-server, nothing was compared"),
    }
}
