//! What locks and idle connections take up of a server's resident memory.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use super::{Server, encode, redisson};

/// Locks of a kind.
const LOCKS: usize = 1_000_000;
/// Idle connections.
const IDLE: usize = 5_000;
/// Requests that are on their way at once.
const BATCH: usize = 1_000;
/// An owner, or the value of a string lock: a UUID.
const OWNER: &str = "5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21";
const LEASE_MS: &str = "36000000";

/// What takes up memory.
struct Kind {
    name: &'static str,
    /// Bytes of ours at most.
    bar: f64,
    /// What takes one of the locks; `None` for connections.
    request: Option<fn(&str) -> Vec<u8>>,
    /// How each reply to it begins.
    reply: &'static str,
    /// Whether Redis has the like.
    in_redis: bool,
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "a string lock of 1,000,000 (20-byte name, 36-byte value, PX)",
        bar: 105.0,
        request: Some(|name| encode(&["SET", name, OWNER, "NX", "PX", LEASE_MS])),
        reply: "+OK",
        in_redis: true,
    },
    Kind {
        name: "a hash lock of 1,000,000 (20-byte name, one 36-byte owner, PEXPIRE)",
        bar: 120.0,
        request: Some(|name| encode(&["EVALSHA", redisson::ACQUIRE_SHA, "1", name, LEASE_MS, OWNER])),
        reply: "$-1",
        in_redis: true,
    },
    Kind {
        name: "a native lock of 1,000,000 (20-byte name, 36-byte owner)",
        bar: 160.0,
        request: Some(|name| encode(&["LOCK.ACQUIRE", name, OWNER, LEASE_MS])),
        reply: ":",
        in_redis: false,
    },
    Kind { name: "an idle connection of 5,000", bar: 1024.0, request: None, reply: "", in_redis: true },
];

/// Measures all kinds on servers of their own, prints a table, and gives it as the inside of a JSON object, and whether all bars are
/// met.
pub fn print() -> (String, bool) {
    println!("| resident memory | redis | portcullis | portcullis / redis | bar |");
    println!("| --- | ---: | ---: | ---: | ---: |");
    let (mut json, mut met) = (String::from("\"resident_bytes\":["), true);
    for kind in &KINDS {
        let ours = bytes_per(&Server::portcullis(), kind);
        let theirs = if kind.in_redis { Server::redis().map(|server| bytes_per(&server, kind)) } else { None };
        let (redis, ratio) = match theirs {
            Some(theirs) => (format!("{theirs:.0} B"), format!("{:.2}", ours / theirs)),
            None => ("–".to_owned(), "–".to_owned()),
        };
        println!("| {} | {redis} | {ours:.0} B | {ratio} | ≤ {:.0} B |", kind.name, kind.bar);
        let theirs = theirs.map_or_else(|| "null".to_owned(), |theirs| format!("{theirs:.1}"));
        let _ = write!(json, "{{\"what\":\"{}\",\"redis\":{theirs},\"portcullis\":{ours:.1},\"bar\":{}}},", kind.name, kind.bar);
        met &= ours <= kind.bar;
    }
    json.truncate(json.trim_end_matches(',').len());
    (json + "]", met)
}

fn bytes_per(server: &Server, kind: &Kind) -> f64 {
    match kind.request {
        Some(request) => bytes_per_lock(server, request, kind.reply),
        None => bytes_per_connection(server),
    }
}

fn bytes_per_lock(server: &Server, request: fn(&str) -> Vec<u8>, reply: &str) -> f64 {
    assert!(server.call(&["SCRIPT", "LOAD", redisson::ACQUIRE]).contains(redisson::ACQUIRE_SHA));
    let mut socket = TcpStream::connect(server.addr).expect("connect");
    let mut replies = BufReader::new(socket.try_clone().expect("a second handle"));
    let before = server.resident_bytes();
    let mut line = String::new();
    for first in (0..LOCKS).step_by(BATCH) {
        let requests: Vec<u8> = (first..first + BATCH).flat_map(|n| request(&format!("lock:{n:015}"))).collect();
        socket.write_all(&requests).expect("write");
        for _ in 0..BATCH {
            line.clear();
            replies.read_line(&mut line).expect("read");
            assert!(line.starts_with(reply), "{line:?}");
        }
    }
    (server.resident_bytes() - before) as f64 / LOCKS as f64
}

fn bytes_per_connection(server: &Server) -> f64 {
    super::raise_file_limit(3 * IDLE as u64);
    // Every connection has spoken once: a server may put off what an idle one costs until then.
    let connect = || {
        let mut socket = TcpStream::connect(server.addr).expect("connect");
        socket.write_all(b"PING\r\n").expect("write");
        let mut pong = [0; 7];
        socket.read_exact(&mut pong).expect("read");
        socket
    };
    let mut sockets: Vec<TcpStream> = (0..200).map(|_| connect()).collect();
    let before = server.resident_bytes();
    sockets.extend((0..IDLE).map(|_| connect()));
    (server.resident_bytes() - before) as f64 / IDLE as f64
}
