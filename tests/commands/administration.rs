//! Requests of administrators, over TCP and a Unix socket, byte by byte: SLOWLOG, LATENCY, CLUSTER and MONITOR; and the messages
//! to monitors and tracking clients while a script runs long.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use portcullis::testing::TestServer;

use crate::common::wire::Wire;

const BUSY: &[u8] = b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n";

/// Sends words and expects these bytes.
#[track_caller]
fn ask(wire: &mut Wire, request: &str, reply: &str) {
    let args: Vec<&str> = request.split(' ').collect();
    let got = wire.call(&args).unwrap().raw;
    assert_eq!(String::from_utf8_lossy(&got), reply, "{request}");
}

/// The bulk string of a text.
fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// Freezes the clock at the start of a second, so that what follows happens within it. Returns the second.
fn at_full_second(server: &TestServer) -> i64 {
    let past_ms = server.clock().now_unix_ms() % 1000;
    server.clock().advance(Duration::from_millis(1000 - past_ms as u64));
    server.clock().now_unix_ms() / 1000
}

fn client_address(wire: &mut Wire) -> String {
    let line = String::from_utf8(wire.call(&["CLIENT", "INFO"]).unwrap().raw).unwrap();
    line.split_once(" addr=").unwrap().1.split(' ').next().unwrap().to_owned()
}

#[test]
fn slow_requests_are_listed() {
    let server = TestServer::builder().frozen(true).config("enable-debug-command", "yes").start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    ask(&mut wire, "SLOWLOG GET", "*0\r\n");
    ask(&mut wire, "CLIENT SETNAME me", "+OK\r\n");
    let (second, address) = (at_full_second(&server), client_address(&mut wire));
    ask(&mut wire, "DEBUG SLEEP 0.25", "+OK\r\n");
    let sleeping = |id: u8, us: u32, seconds: &str, name: &str| {
        let args = [bulk("DEBUG"), bulk("SLEEP"), bulk(seconds)].concat();
        format!("*6\r\n:{id}\r\n:{second}\r\n:{us}\r\n*3\r\n{args}{}{}", bulk(&address), bulk(name))
    };
    let first = sleeping(0, 250_000, "0.25", "me");
    ask(&mut wire, "SLOWLOG GET", &format!("*1\r\n{first}"));
    ask(&mut wire, "CLIENT SETNAME ", "+OK\r\n");
    ask(&mut wire, "DEBUG SLEEP 0.125", "+OK\r\n");
    let both = format!("*2\r\n{}{first}", sleeping(1, 125_000, "0.125", ""));
    for (request, reply) in [
        ("SLOWLOG LEN", ":2\r\n"),
        ("SLOWLOG GET -1", &both),
        ("SLOWLOG GET 1", &both.replace("*2\r\n*6", "*1\r\n*6").replace(&first, "")),
        ("SLOWLOG GET 0", "*0\r\n"),
        ("SLOWLOG GET -2", "-ERR count should be greater than or equal to -1\r\n"),
        ("SLOWLOG NOSUCH", "-ERR unknown subcommand 'NOSUCH'. Try SLOWLOG HELP.\r\n"),
        ("SLOWLOG LEN x", "-ERR wrong number of arguments for 'slowlog|len' command\r\n"),
        ("CONFIG SET slowlog-log-slower-than 200000", "+OK\r\n"),
        ("DEBUG SLEEP 0.19", "+OK\r\n"),
        ("SLOWLOG LEN", ":2\r\n"),
        ("SLOWLOG RESET", "+OK\r\n"),
        ("SLOWLOG GET", "*0\r\n"),
    ] {
        ask(&mut wire, request, reply);
    }
    wire.call(&["HELLO", "3"]).unwrap();
    ask(&mut wire, "SLOWLOG GET", "*0\r\n");
}

#[test]
fn pauses_are_listed_by_event() {
    let server = TestServer::builder().frozen(true).config("enable-debug-command", "yes").start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    ask(&mut wire, "LATENCY LATEST", "*0\r\n");
    ask(&mut wire, "CONFIG SET latency-monitor-threshold 100", "+OK\r\n");
    let second = at_full_second(&server);
    ask(&mut wire, "DEBUG SLEEP 0.3", "+OK\r\n");
    ask(&mut wire, "DEBUG SLEEP 0.2", "+OK\r\n");
    ask(&mut wire, "DEBUG SLEEP 0.05", "+OK\r\n");
    server.clock().advance(Duration::from_secs(2));
    ask(&mut wire, "DEBUG SLEEP 0.15", "+OK\r\n");
    for (request, reply) in [
        // For each second the longest one is kept.
        ("LATENCY LATEST", format!("*1\r\n*4\r\n$7\r\ncommand\r\n:{}\r\n:150\r\n:300\r\n", second + 2)),
        ("LATENCY HISTORY command", format!("*2\r\n*2\r\n:{second}\r\n:300\r\n*2\r\n:{}\r\n:150\r\n", second + 2)),
        ("LATENCY HISTORY nosuch", "*0\r\n".into()),
        ("LATENCY GRAPH nosuch", "-ERR No samples available for event 'nosuch'\r\n".into()),
        ("LATENCY RESET nosuch", ":0\r\n".into()),
        ("LATENCY RESET nosuch command", ":1\r\n".into()),
        ("LATENCY LATEST", "*0\r\n".into()),
        ("LATENCY HISTOGRAM nosuch", "*0\r\n".into()),
        ("LATENCY HISTORY", "-ERR wrong number of arguments for 'latency|history' command\r\n".into()),
    ] {
        ask(&mut wire, request, &reply);
    }
    // Upper bounds in microseconds, with the number of calls up to each.
    let (head, counts) = (format!("{}*4\r\n", bulk("debug")), ":67633\r\n:1\r\n:270532\r\n:3\r\n:541065\r\n:4\r\n");
    let histogram = format!("{head}{}:4\r\n{}*6\r\n{counts}", bulk("calls"), bulk("histogram_usec"));
    ask(&mut wire, "LATENCY HISTOGRAM debug", &format!("*2\r\n{histogram}"));
    wire.call(&["HELLO", "3"]).unwrap();
    let histogram = histogram.replace("*4\r\n", "%2\r\n").replace("*6\r\n", "%3\r\n");
    ask(&mut wire, "LATENCY HISTOGRAM debug", &format!("%1\r\n{histogram}"));
}

#[test]
fn a_cluster_of_one_node_describes_itself() {
    let directory = Scratch::new("cluster");
    let socket = directory.0.join("socket");
    let server = TestServer::builder().config("cluster-enabled", "yes").config("unixsocket", socket.to_str().unwrap()).start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    let id = String::from_utf8(wire.call(&["CLUSTER", "MYID"]).unwrap().frame.text().unwrap().to_vec()).unwrap();
    assert!(id.len() == 40 && id.bytes().all(|b| b.is_ascii_hexdigit()));
    let port = server.port();
    let slots = |ip: &str| format!("*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n{}:{port}\r\n{}*0\r\n", bulk(ip), bulk(&id));
    let nodes = |ip: &str| format!("{id} {ip}:{port}@0 myself,master - 0 0 1 connected 0-16383\n");
    let shards = |map: &str, of: usize| {
        let text = |name: &str, value: &str| [bulk(name), bulk(value)].concat();
        let node = [
            text("id", &id),
            format!("{}:{port}\r\n", bulk("port")),
            text("ip", "127.0.0.1"),
            text("endpoint", "127.0.0.1"),
            text("role", "master"),
            format!("{}:0\r\n", bulk("replication-offset")),
            text("health", "online"),
        ];
        let (outer, inner) = (2 * of, 7 * of);
        let (slots, nodes) = (bulk("slots"), bulk("nodes"));
        format!("*1\r\n{map}{outer}\r\n{slots}*2\r\n:0\r\n:16383\r\n{nodes}*1\r\n{map}{inner}\r\n{}", node.concat())
    };
    for (request, reply) in [
        ("CLUSTER SLOTS", slots("127.0.0.1")),
        ("CLUSTER NODES", bulk(&nodes("127.0.0.1"))),
        ("CLUSTER SHARDS", shards("*", 2)),
        ("CLUSTER KEYSLOT foo", ":12182\r\n".into()),
        ("SET foo 1", "+OK\r\n".into()),
        ("CLUSTER COUNTKEYSINSLOT 12182", ":1\r\n".into()),
        ("CLUSTER GETKEYSINSLOT 12182 10", "*1\r\n$3\r\nfoo\r\n".into()),
        ("CLUSTER COUNTKEYSINSLOT 16384", "-ERR Invalid slot\r\n".into()),
        ("MGET foo bar", "-CROSSSLOT Keys in request don't hash to the same slot\r\n".into()),
        ("SELECT 1", "-ERR SELECT is not allowed in cluster mode\r\n".into()),
        ("READONLY", "+OK\r\n".into()),
        ("CLUSTER NOSUCH", "-ERR unknown subcommand 'NOSUCH'. Try CLUSTER HELP.\r\n".into()),
    ] {
        ask(&mut wire, request, &reply);
    }
    let info = String::from_utf8(wire.call(&["CLUSTER", "INFO"]).unwrap().frame.text().unwrap().to_vec()).unwrap();
    assert!(info.starts_with("cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_slots_ok:16384\r\n"), "{info}");
    // A Unix socket has no address that others could reach.
    let mut local = Local::connect(&socket);
    local.send("CLUSTER SLOTS\r\nCLUSTER NODES\r\n");
    local.expect(&slots(""));
    local.expect(&bulk(&nodes("")));
    wire.call(&["HELLO", "3"]).unwrap();
    ask(&mut wire, "CLUSTER SHARDS", &shards("%", 1));
    let line = nodes("127.0.0.1");
    ask(&mut wire, "CLUSTER NODES", &format!("={}\r\ntxt:{line}\r\n", line.len() + 4));
}

#[test]
fn monitors_see_the_requests_of_unix_sockets_and_from_them() {
    let directory = Scratch::new("monitor");
    let path = directory.0.join("socket");
    let server = TestServer::builder().frozen(true).config("unixsocket", path.to_str().unwrap()).start();
    let (mut local, mut monitor, mut wire) =
        (Local::connect(&path), Local::connect(&path), Wire::connect(server.addr()).unwrap());
    let now_ms = server.clock().now_unix_ms();
    let time = format!("{}.{:03}000", now_ms / 1000, now_ms % 1000);
    let (path, address) = (path.to_str().unwrap(), client_address(&mut wire));
    monitor.send("MONITOR\r\n");
    monitor.expect("+OK\r\n");
    local.send("SET k v\r\n");
    local.expect("+OK\r\n");
    monitor.expect(&format!("+{time} [0 unix:{path}] \"SET\" \"k\" \"v\"\r\n"));
    ask(&mut wire, "GET k", "$1\r\nv\r\n");
    monitor.expect(&format!("+{time} [0 {address}] \"GET\" \"k\"\r\n"));
    server.clock().advance(Duration::from_millis(1));
    local.send("EVAL \"return redis.call('incr', KEYS[1])\" 1 n\r\n");
    local.expect(":1\r\n");
    let now_ms = now_ms + 1;
    let time = format!("{}.{:03}000", now_ms / 1000, now_ms % 1000);
    monitor.expect(&format!("+{time} [0 unix:{path}] \"EVAL\" \"return redis.call('incr', KEYS[1])\" \"1\" \"n\"\r\n"));
    monitor.expect(&format!("+{time} [0 lua] \"incr\" \"n\"\r\n"));
}

/// The line that a monitor receives, without its time and address.
fn shown(monitor: &mut Wire) -> String {
    let line = String::from_utf8(monitor.reply().unwrap().raw).unwrap();
    line.trim_end().split_once("] ").unwrap_or_else(|| panic!("{line:?}")).1.to_owned()
}

#[test]
fn monitors_are_shown_what_a_script_does_while_it_runs() {
    let server = TestServer::builder().config("busy-reply-threshold", "20").start();
    let [mut monitor, mut runner, mut other] = [0; 3].map(|_| Wire::connect(server.addr()).unwrap());
    ask(&mut monitor, "MONITOR", "+OK\r\n");
    runner.queue(&["EVAL", "redis.call('get', 'k') while true do end", "0"]);
    runner.flush().unwrap();
    assert_eq!(shown(&mut monitor), r#""EVAL" "redis.call('get', 'k') while true do end" "0""#);
    assert_eq!(shown(&mut monitor), r#""get" "k""#);
    // Refused commands are not shown. Executed ones are.
    assert_eq!(other.call(&["GET", "k"]).unwrap().raw, BUSY);
    ask(&mut other, "RESET", "+RESET\r\n");
    assert_eq!(shown(&mut monitor), r#""RESET""#);
    ask(&mut other, "SCRIPT KILL", "+OK\r\n");
    assert_eq!(shown(&mut monitor), r#""SCRIPT" "KILL""#);
    assert!(runner.reply().unwrap().frame.is_error("ERR Script killed by user with SCRIPT KILL"));
    ask(&mut other, "GET k", "$-1\r\n");
    assert_eq!(shown(&mut monitor), r#""GET" "k""#);
}

#[test]
fn who_tracks_a_key_is_told_while_the_script_runs_that_changed_it() {
    let server = TestServer::builder().config("busy-reply-threshold", "20").start();
    let [mut tracker, mut by_prefix, mut runner, mut other] = [0; 4].map(|_| Wire::connect(server.addr()).unwrap());
    for (wire, tracking) in [(&mut tracker, "CLIENT TRACKING ON"), (&mut by_prefix, "CLIENT TRACKING ON BCAST PREFIX k")] {
        wire.call(&["HELLO", "3"]).unwrap();
        ask(wire, tracking, "+OK\r\n");
    }
    ask(&mut tracker, "GET k", "_\r\n");
    let invalidated = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
    runner.queue(&["EVAL", "redis.call('set', 'k', 1) for i = 1, 1e8 do end return redis.call('get', 'k')", "0"]);
    runner.flush().unwrap();
    assert_eq!(tracker.reply().unwrap().raw, invalidated);
    assert_eq!(other.call(&["GET", "k"]).unwrap().raw, BUSY, "the script still runs");
    // Clients that track by prefixes get messages at the end of a turn, as with Redis.
    assert!(!by_prefix.has_input());
    assert_eq!(runner.reply().unwrap().raw, b"$1\r\n1\r\n");
    assert_eq!(by_prefix.reply().unwrap().raw, invalidated);
    ask(&mut tracker, "GET k", "$1\r\n1\r\n");
    ask(&mut other, "SET k 2", "+OK\r\n");
    assert_eq!(tracker.reply().unwrap().raw, invalidated);
}

/// A connection to a Unix socket.
struct Local(UnixStream);

impl Local {
    fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Local(stream)
    }

    fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }

    #[track_caller]
    fn expect(&mut self, text: &str) {
        let mut got = vec![0; text.len()];
        self.0.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), text);
    }
}

/// A directory for one test, which is removed with it. Its name is short, because the paths of sockets must be.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("portcullis-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
