//! The clock under the control of a test, over TCP. Nothing here sleeps where the clock can be moved.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use portcullis::testing::TestServer;
use rustix::pty::OpenptFlags;

use crate::common::servers::Server;
use crate::common::talk::{call, play, send, told, until_blocked};
use crate::common::wire::Wire;

/// The reply to `CLOCK INFO`: whether the clock is frozen, the Unix time in milliseconds, and the skew.
fn clock(wire: &mut Wire) -> (bool, i64, i64) {
    let reply = wire.call(&["CLOCK", "INFO"]).unwrap();
    let fields = reply.frame.elements().unwrap();
    let names: Vec<_> = fields.iter().step_by(2).map(|name| name.text().unwrap()).collect();
    assert_eq!(names, [b"frozen".as_slice(), b"unix-ms", b"skew-ms", b"blocked-clients"]);
    let values: Vec<i64> = fields.iter().skip(1).step_by(2).map(|value| value.integer().unwrap()).collect();
    (values[0] == 1, values[1], values[2])
}

#[test]
fn a_wait_of_thirty_seconds_is_over_at_once() {
    let server = TestServer::start();
    let (mut a, mut b) = (Wire::connect(server.addr()).unwrap(), Wire::connect(server.addr()).unwrap());
    play(&mut a, &[("CLOCK FREEZE", "+OK")]);
    let begin = Instant::now();
    send(&mut b, "BLPOP queue 30");
    until_blocked(&mut a, 1);
    play(&mut a, &[("CLOCK ADVANCE 29999", "+OK")]);
    assert!(!b.has_input());
    play(&mut a, &[("CLOCK ADVANCE 1", "+OK")]);
    // The end of the wait arrives before the clock's reply.
    assert!(b.has_input());
    assert_eq!(told(&mut b), "*-1");
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
}

#[test]
fn all_that_is_due_happens_in_order_before_the_reply() {
    let server = TestServer::builder().frozen(true).config("notify-keyspace-events", "Ex").start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    assert!(call(&mut wire, "HELLO 3").contains("proto"));
    play(&mut wire, &[("PSUBSCRIBE *", ">3 $10 psubscribe $1 * :1")]);
    for i in 0..500u32 {
        let (key, px) = (format!("k{i}"), (i * 7919 % 500 + 1).to_string());
        assert_eq!(wire.call(&["SET", &key, "v", "PX", &px]).unwrap().raw, b"+OK\r\n");
    }
    send(&mut wire, "CLOCK ADVANCE 500");
    for due in 1..=500u32 {
        let key = format!("k{}", (0..500).find(|i| i * 7919 % 500 + 1 == due).unwrap());
        let push = format!(">4 $8 pmessage $1 * $18 __keyevent@0__:expired ${} {key}", key.len());
        assert_eq!(told(&mut wire), push.replace("$18", "$22"));
    }
    assert_eq!(told(&mut wire), "+OK");
    assert_eq!(server.dbsize(), 0);
}

#[test]
fn leases_end_by_time_and_not_by_the_wall_clock() {
    let server = TestServer::builder().frozen(true).start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    let (frozen, start, skew) = clock(&mut wire);
    assert!(frozen && skew == 0);
    play(&mut wire, &[("SET lock a NX PX 10000", "+OK")]);
    play(&mut wire, &[("CLOCK SKEW 3600000", "+OK"), ("PTTL lock", ":10000"), ("CLOCK SKEW -7200000", "+OK")]);
    assert_eq!(clock(&mut wire), (true, start - 3_600_000, -3_600_000));
    play(&mut wire, &[("PTTL lock", ":10000"), ("CLOCK ADVANCE 9999", "+OK"), ("SET lock b NX PX 10000", "$-1")]);
    play(&mut wire, &[("CLOCK ADVANCE 1", "+OK"), ("SET lock b NX PX 10000", "+OK")]);
    // A later time is reached by advancing, an earlier time only changes the wall clock.
    let ahead = start - 3_600_000 + 20_000;
    play(&mut wire, &[(&format!("CLOCK SET {ahead}"), "+OK"), ("EXISTS lock", ":0"), ("SET lock c PX 500", "+OK")]);
    assert_eq!(clock(&mut wire), (true, ahead, -3_600_000));
    play(&mut wire, &[("CLOCK SET 1000", "+OK"), ("PTTL lock", ":500"), ("PEXPIRETIME lock", ":1500"), ("TIME", "*2 $1 1 $1 0")]);
    assert_eq!(clock(&mut wire), (true, 1000, 1000 - ahead - 3_600_000));
    server.check_invariants();
}

#[test]
fn native_locks_go_to_the_next_in_line() {
    let server = TestServer::builder().frozen(true).start();
    let (mut a, mut b) = (Wire::connect(server.addr()).unwrap(), Wire::connect(server.addr()).unwrap());
    assert!(call(&mut a, "LOCK.ACQUIRE door ann 10000").starts_with(['*', ':']));
    send(&mut b, "LOCK.ACQUIRE door bob 10000 WAIT 60000");
    until_blocked(&mut a, 1);
    play(&mut a, &[("CLOCK ADVANCE 10000", "+OK")]);
    assert!(b.has_input());
    assert!(!told(&mut b).starts_with('-'));
}

#[test]
fn a_clock_that_runs_again_ends_what_is_due_by_itself() {
    let server = TestServer::builder().frozen(true).config("notify-keyspace-events", "Ex").start();
    let (mut a, mut b) = (Wire::connect(server.addr()).unwrap(), Wire::connect(server.addr()).unwrap());
    call(&mut b, "SUBSCRIBE __keyevent@0__:expired");
    play(&mut a, &[("SET k v PX 3600010", "+OK"), ("CLOCK ADVANCE 3600000", "+OK"), ("CLOCK RESUME", "+OK")]);
    let begin = Instant::now();
    assert!(told(&mut b).ends_with("$1 k"));
    assert!(begin.elapsed() < Duration::from_secs(5));
    assert!(!clock(&mut a).0);
    // A running clock can be moved too.
    play(&mut a, &[("SET k v EX 3600", "+OK"), ("CLOCK ADVANCE 3600000", "+OK"), ("EXISTS k", ":0")]);
    play(&mut a, &[("CLOCK FREEZE", "+OK"), ("CLOCK FREEZE", "+OK")]);
    let at = clock(&mut a);
    assert_eq!(clock(&mut a), at);
}

#[test]
fn whoever_moves_the_clock_is_not_idle_but_others_are() {
    let server = TestServer::builder().frozen(true).config("timeout", "5").start();
    let (mut a, mut b) = (Wire::connect(server.addr()).unwrap(), Wire::connect(server.addr()).unwrap());
    play(&mut b, &[("PING", "+PONG")]);
    play(&mut a, &[("CLOCK ADVANCE 60000", "+OK"), ("CLOCK ADVANCE 4000", "+OK"), ("PING", "+PONG")]);
    assert!(b.reply().is_err());
    // It becomes idle like any other when another client moves the clock.
    let mut c = Wire::connect(server.addr()).unwrap();
    play(&mut c, &[("CLOCK ADVANCE 60000", "+OK")]);
    assert!(a.reply().is_err());
}

#[test]
fn several_orders_of_one_write_are_carried_out_in_turn() {
    let server = TestServer::builder().frozen(true).start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    for request in
        ["SET k v PX 100", "CLOCK ADVANCE 99", "EXISTS k", "CLOCK ADVANCE 1", "EXISTS k", "CLIENT REPLY SKIP", "CLOCK ADVANCE 5"]
    {
        wire.queue(&request.split(' ').collect::<Vec<_>>());
    }
    wire.queue(&["PING"]);
    wire.flush().unwrap();
    let replies: Vec<_> = (0..6).map(|_| told(&mut wire)).collect();
    assert_eq!(replies, ["+OK", "+OK", ":1", "+OK", ":0", "+PONG"]);
    // Moving the clock takes no time.
    play(&mut wire, &[("SLOWLOG LEN", ":0"), ("LATENCY LATEST", "*0")]);
    assert!(call(&mut wire, "INFO commandstats").contains("cmdstat_clock|advance:calls=3,usec=0,"));
}

#[test]
fn from_inside_the_process_it_is_the_same() {
    use portcullis::testing::Frame;
    let server = TestServer::builder().frozen(true).start();
    server.execute(&["SET", "k", "v", "PX", "10"]);
    let reply = server.execute(&["CLOCK", "ADVANCE", "10"]);
    assert!(matches!(&reply, Frame::SimpleString { data, .. } if data == "OK"), "{reply:?}");
    assert!(!server.exists("k"));
}

#[test]
fn the_program_has_it_only_where_it_was_asked_to() {
    let program = Path::new(env!("CARGO_BIN_EXE_portcullis"));
    let server = Server::portcullis(program).unwrap();
    let mut wire = Wire::connect(server.addr).unwrap();
    let refused = "-ERR CLOCK works only in test mode: start the server with --test-mode";
    play(&mut wire, &[("CLOCK FREEZE", refused), ("CLOCK INFO", refused), ("CLOCK ADVANCE 1", refused)]);
    let server = Server::portcullis_with(program, &["--test-mode"]).unwrap();
    let mut wire = Wire::connect(server.addr).unwrap();
    play(&mut wire, &[("CLOCK FREEZE", "+OK"), ("SET k v EX 3600", "+OK"), ("CLOCK ADVANCE 3600000", "+OK"), ("GET k", "$-1")]);
}

/// The program with `--end-with-stdin`, as soon as it accepts connections.
#[expect(clippy::zombie_processes, reason = "whoever asks for it waits for its end")]
fn that_ends_with(stdin: std::process::Stdio, before: &[&str]) -> (std::process::Child, String) {
    let program = env!("CARGO_BIN_EXE_portcullis");
    let words = ["serve", "--port", "0", "--bind", "127.0.0.1", "--test-mode", "--end-with-stdin"];
    let words: Vec<&str> = before.iter().copied().chain([program]).chain(words).collect();
    let mut command = std::process::Command::new(words[0]);
    let mut child = command.args(&words[1..]).stdin(stdin).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    loop {
        let mut line = String::new();
        assert_ne!(std::io::BufRead::read_line(&mut out, &mut line).unwrap(), 0, "it has ended");
        if line.contains("listening on") {
            return (child, line.trim().rsplit(' ').next().unwrap().to_owned());
        }
    }
}

#[test]
fn the_program_does_not_end_with_an_input_that_has_nothing_yet() {
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&reader, true).unwrap();
    let (mut child, addr) = that_ends_with(reader.into(), &[]);
    let mut wire = Wire::connect(&addr).unwrap();
    // The clock runs, so the server has looked at its standard input meanwhile.
    play(&mut wire, &[("BLPOP nothing 0.2", "*-1")]);
    (&writer).write_all(b"nothing that means anything").unwrap();
    play(&mut wire, &[("BLPOP nothing 0.1", "*-1")]);
    drop(writer);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_program_is_not_stopped_in_the_background_of_a_terminal() {
    let terminal = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    rustix::pty::grantpt(&terminal).unwrap();
    rustix::pty::unlockpt(&terminal).unwrap();
    let name = rustix::pty::ptsname(&terminal, Vec::new()).unwrap();
    let typing = std::fs::OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    // As a shell runs `portcullis … &`.
    let shell = ["setsid", "--ctty", "bash", "-c", "set -m; \"$@\" <&0 & wait", "-"];
    let (mut child, addr) = that_ends_with(typing.into(), &shell);
    let mut wire = Wire::connect(&addr).unwrap();
    rustix::io::write(&terminal, b"typed for somebody else\n").unwrap();
    play(&mut wire, &[("BLPOP nothing 0.5", "*-1")]);
    drop(terminal);
    child.wait().unwrap();
    // The terminal is gone, and the program with it.
    assert!(wire.reply().is_err());
}

#[test]
fn the_program_ends_with_whoever_holds_its_standard_input() {
    let (mut child, addr) = that_ends_with(std::process::Stdio::piped(), &[]);
    let mut wire = Wire::connect(&addr).unwrap();
    // It ends even while a script runs.
    wire.queue(&["EVAL", "while true do end", "0"]);
    wire.flush().unwrap();
    assert!(child.try_wait().unwrap().is_none());
    drop(child.stdin.take());
    let begin = Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}
