//! Scenes: requests of several clients in turn, with the bytes that each of them must receive.
//!
//! ```text
//!   A: WATCH k => +OK            client A sends a request and gets this reply
//!   B: BLPOP l 0                 client B sends one and waits; the scene goes on when the server lists it as blocked
//!   B: GET k ...                 client B sends another one, which may be read at any time
//!   A: LPUSH l x => :1
//!   B <= *2 $1 l $1 x            client B receives this
//!   B closes
//!   pass 100                     100 milliseconds pass
//!   # a remark
//! ```
//! Line ends of replies are written as blanks. `\s` in a request stands for a blank, `*` at the end of a reply for anything. A
//! scene runs against a server of this crate, on a virtual clock, and against redis-server if it is installed, which proves that
//! the scene is right.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portcullis::testing::TestServer;

use super::servers::{Server, on_path};
use super::wire::Wire;

/// Runs a scene against both servers.
#[track_caller]
pub fn play(scene: &str) {
    play_here(scene);
    match on_path("redis-server") {
        Some(program) => play_there(scene, &program),
        None => println!("SKIPPED: no redis-server on the PATH, the scene was not held against one"),
    }
}

/// Runs a scene against a server of this crate, and against the redis-server 7.4 or later that `PORTCULLIS_REDIS8` names.
#[track_caller]
pub fn play_as_newer(scene: &str) {
    play_here(scene);
    match std::env::var_os("PORTCULLIS_REDIS8").filter(|program| !program.is_empty()) {
        Some(program) => play_there(scene, program.as_ref()),
        None => println!("SKIPPED: PORTCULLIS_REDIS8 names no redis-server, the scene was not held against one"),
    }
}

/// Runs a scene only against a server of this crate, which differs from Redis in it on purpose.
#[track_caller]
pub fn play_here(scene: &str) {
    let server = TestServer::builder().frozen(true).config("enable-debug-command", "yes").start();
    perform(scene, server.addr(), "here", |ms| server.clock().advance(Duration::from_millis(ms)));
    server.check_invariants();
}

#[track_caller]
fn play_there(scene: &str, program: &std::path::Path) {
    let server = Server::redis(program).expect("the redis-server starts");
    perform(scene, server.addr, "on redis", |ms| std::thread::sleep(Duration::from_millis(ms)));
}

struct Clients {
    addr: SocketAddr,
    control: Wire,
    /// The open clients, with their ids.
    open: BTreeMap<String, (Wire, String)>,
}

impl Clients {
    fn get(&mut self, name: &str) -> &mut (Wire, String) {
        self.open.entry(name.to_owned()).or_insert_with(|| {
            let mut wire = Wire::connect(self.addr).expect("the server accepts");
            let id = shown(&wire.call(&["CLIENT", "ID"]).expect("an id").raw);
            (wire, id.trim_start_matches(':').to_owned())
        })
    }

    /// Whether the server lists a client as blocked. `None` if it does not list the client.
    fn blocked(&mut self, id: &str) -> Option<bool> {
        let list = self.control.call(&["CLIENT", "LIST", "ID", id]).expect("a list").raw;
        let list = String::from_utf8_lossy(&list).into_owned();
        Some(list.split(' ').find_map(|field| field.strip_prefix("flags="))?.contains('b'))
    }
}

fn shown(raw: &[u8]) -> String {
    String::from_utf8_lossy(raw).trim_end().replace("\r\n", " ")
}

#[track_caller]
fn perform(scene: &str, addr: SocketAddr, place: &str, pass: impl Fn(u64)) {
    let control = Wire::connect(addr).expect("the server accepts");
    let mut clients = Clients { addr, control, open: BTreeMap::new() };
    for line in scene.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let say = |what: &str| panic!("{place}: {line}: {what}");
        if let Some(ms) = line.strip_prefix("pass ") {
            pass(ms.parse().expect("milliseconds"));
        } else if let Some(name) = line.strip_suffix(" closes") {
            let (wire, id) = clients.open.remove(name).expect("a client");
            drop(wire);
            until(|| clients.blocked(&id).is_none(), || say("it is still there"));
        } else if let Some((name, expected)) = line.split_once(" <= ") {
            expect(&mut clients.get(name).0, expected, line, place);
        } else if let Some((name, rest)) = line.split_once(": ") {
            let (request, expected) = match rest.split_once(" => ") {
                Some((request, expected)) => (request, Some(expected)),
                None => (rest, None),
            };
            let (request, unseen) = match request.strip_suffix(" ...") {
                Some(request) => (request, true),
                None => (request, false),
            };
            let request = clients
                .open
                .iter()
                .fold(request.to_owned(), |request, (name, (_, id))| request.replace(&format!("<{name}>"), id));
            let args: Vec<String> = request.split_whitespace().map(|word| word.replace("\\s", " ")).collect();
            let (wire, id) = clients.get(name);
            wire.queue(&args);
            wire.flush().unwrap_or_else(|error| say(&error.to_string()));
            let id = id.clone();
            match expected {
                Some(expected) => expect(&mut clients.get(name).0, expected, line, place),
                None if unseen => {}
                None => until(|| clients.blocked(&id) == Some(true), || say("it does not wait")),
            }
        } else {
            say("no line of a scene");
        }
    }
}

#[track_caller]
fn expect(wire: &mut Wire, expected: &str, line: &str, place: &str) {
    let reply = match wire.reply() {
        Ok(reply) => shown(&reply.raw),
        Err(error) => panic!("{place}: {line}: {error}"),
    };
    match expected.strip_suffix('*').filter(|start| !start.is_empty()) {
        Some(start) => assert!(reply.starts_with(start), "{place}: {line}: got {reply}"),
        None => assert_eq!(reply, expected, "{place}: {line}"),
    }
}

#[track_caller]
fn until(mut done: impl FnMut() -> bool, fail: impl Fn()) {
    let end = Instant::now() + Duration::from_secs(10);
    while !done() {
        if Instant::now() > end {
            fail();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
