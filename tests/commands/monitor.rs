//! `MONITOR`: the lines that a monitor receives, here and on redis-server.

use std::net::SocketAddr;
use std::path::Path;

use portcullis::testing::TestServer;

use crate::common::servers::{Server, on_path};
use crate::common::wire::Wire;

/// Runs a scene against a server of this crate, and against redis-servers that are installed.
fn everywhere(scene: impl Fn(SocketAddr)) {
    let server = TestServer::start();
    scene(server.addr());
    server.check_invariants();
    let newer = std::env::var_os("PORTCULLIS_REDIS8").filter(|program| !program.is_empty());
    match newer.or_else(|| on_path("redis-server").map(Into::into)) {
        Some(program) => scene(Server::redis(Path::new(&program)).expect("the redis-server starts").addr),
        None => println!("SKIPPED: no redis-server on the PATH, the scene was not held against one"),
    }
}

fn connect(addr: SocketAddr) -> Wire {
    Wire::connect(addr).expect("the server accepts")
}

#[track_caller]
fn ask(wire: &mut Wire, request: &str, reply: &str) {
    let args: Vec<&str> = request.split(' ').collect();
    let got = wire.call(&args).expect("a reply").raw;
    assert_eq!(String::from_utf8_lossy(&got).trim_end().replace("\r\n", " "), reply, "{request}");
}

/// The next line. Checks and removes its time, and replaces its address by the kind of address.
#[track_caller]
fn shown(monitor: &mut Wire) -> String {
    let line = String::from_utf8(monitor.reply().expect("a line").raw).expect("text");
    let (time, rest) = line.trim_start_matches('+').trim_end().split_once(' ').expect("a time");
    let (seconds, micros) = time.split_once('.').expect("a point");
    assert!(seconds.parse::<u64>().is_ok_and(|s| s > 1_500_000_000) && micros.len() == 6, "{line:?}");
    rest.split(' ').map(|word| if word.starts_with("127.0.0.1:") { "address]" } else { word }).collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn shows(monitor: &mut Wire, lines: &[&str]) {
    for line in lines {
        assert_eq!(shown(monitor), *line);
    }
}

#[test]
fn requests_are_shown_as_they_are_executed() {
    everywhere(|addr| {
        let (mut monitor, mut other) = (connect(addr), connect(addr));
        ask(&mut monitor, "MONITOR", "+OK");
        ask(&mut other, "set k v", "+OK");
        other.call(&[&b"SET"[..], b"\"\\\n\r\t\x07\x08\x00\xff", "ä ".as_bytes()]).expect("a reply");
        ask(&mut other, "SELECT 5", "+OK");
        ask(&mut other, "INCR k", ":1");
        // Failed commands are shown. Commands that are refused before they run are not, and neither are those for administrators.
        ask(&mut other, "LPUSH k 1", "-WRONGTYPE Operation against a key holding the wrong kind of value");
        ask(&mut other, "GET", "-ERR wrong number of arguments for 'get' command");
        ask(&mut other, "CONFIG SET maxmemory 0", "+OK");
        ask(&mut other, "PING", "+PONG");
        shows(
            &mut monitor,
            &[
                r#"[0 address] "set" "k" "v""#,
                r#"[0 address] "SET" "\"\\\n\r\t\a\b\x00\xff" "\xc3\xa4 ""#,
                r#"[5 address] "SELECT" "5""#,
                r#"[5 address] "INCR" "k""#,
                r#"[5 address] "LPUSH" "k" "1""#,
                r#"[5 address] "PING""#,
            ],
        );
    });
}

#[test]
fn passwords_are_not_shown() {
    everywhere(|addr| {
        let (mut monitor, mut other) = (connect(addr), connect(addr));
        ask(&mut monitor, "MONITOR", "+OK");
        other.call(&["AUTH", "secret"]).expect("an error");
        other.call(&["AUTH", "default", "secret"]).expect("a reply");
        other.call(&["HELLO", "2", "AUTH", "default", "secret", "SETNAME", "me"]).expect("a reply");
        ask(&mut other, "PING", "+PONG");
        shows(
            &mut monitor,
            &[
                r#"[0 address] "AUTH" "(redacted)""#,
                r#"[0 address] "AUTH" "(redacted)" "(redacted)""#,
                r#"[0 address] "HELLO" "2" "AUTH" "(redacted)" "(redacted)" "SETNAME" "me""#,
                r#"[0 address] "PING""#,
            ],
        );
    });
}

#[test]
fn scripts_and_transactions_are_shown_with_what_they_do() {
    everywhere(|addr| {
        let (mut monitor, mut other) = (connect(addr), connect(addr));
        ask(&mut monitor, "MONITOR", "+OK");
        other.call(&["EVAL", "redis.call('select', 3); return redis.call('set', KEYS[1], 1.5)", "1", "k"]).expect("a reply");
        ask(&mut other, "MULTI", "+OK");
        ask(&mut other, "SET k 1", "+QUEUED");
        ask(&mut other, "EXEC", "*1 +OK");
        ask(&mut other, "MULTI", "+OK");
        ask(&mut other, "SET k", "-ERR wrong number of arguments for 'set' command");
        ask(&mut other, "EXEC", "-EXECABORT Transaction discarded because of previous errors.");
        shows(
            &mut monitor,
            &[
                r#"[0 address] "EVAL" "redis.call('select', 3); return redis.call('set', KEYS[1], 1.5)" "1" "k""#,
                r#"[0 lua] "select" "3""#.replace("[0", "[3").as_str(),
                r#"[3 lua] "set" "k" "1.5""#,
                r#"[0 address] "MULTI""#,
                r#"[0 address] "SET" "k" "1""#,
                r#"[0 address] "EXEC""#,
                r#"[0 address] "MULTI""#,
                r#"[0 address] "EXEC""#,
            ],
        );
    });
}

#[test]
fn whoever_monitors_uses_no_keys_until_it_resets() {
    everywhere(|addr| {
        let mut monitor = connect(addr);
        ask(&mut monitor, "MONITOR", "+OK");
        ask(&mut monitor, "PING", "+PONG");
        shows(&mut monitor, &[r#"[0 address] "PING""#]);
        for request in ["GET k", "SET k 1", "EVAL return_1 0"] {
            ask(&mut monitor, request, "-ERR Replica can't interact with the keyspace");
        }
        let line = String::from_utf8(monitor.call(&["CLIENT", "INFO"]).expect("a line").raw).expect("text");
        assert!(line.contains(" flags=O "), "{line}");
        shows(&mut monitor, &[r#"[0 address] "CLIENT" "INFO""#]);
        ask(&mut monitor, "RESET", "+RESET");
        ask(&mut monitor, "SET k 1", "+OK");
        ask(&mut monitor, "GET k", "$1 1");
        ask(&mut monitor, "MULTI", "+OK");
        ask(&mut monitor, "MONITOR", "+QUEUED");
        ask(&mut monitor, "EXEC", "*1 -ERR MONITOR isn't allowed for DENY BLOCKING client");
    });
}

#[test]
fn who_waits_is_shown_once() {
    everywhere(|addr| {
        let (mut monitor, mut waiter, mut other) = (connect(addr), connect(addr), connect(addr));
        ask(&mut monitor, "MONITOR", "+OK");
        waiter.queue(&["BLPOP", "l", "0"]);
        waiter.flush().expect("sent");
        shows(&mut monitor, &[r#"[0 address] "BLPOP" "l" "0""#]);
        ask(&mut other, "RPUSH l x", ":1");
        assert!(waiter.reply().is_ok());
        ask(&mut other, "PING", "+PONG");
        shows(&mut monitor, &[r#"[0 address] "RPUSH" "l" "x""#, r#"[0 address] "PING""#]);
    });
}
