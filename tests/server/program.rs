//! The server over TCP and as a process, byte by byte.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use portcullis::TestServer;

const PATIENCE: Duration = Duration::from_secs(20);

/// A raw connection.
struct Raw(TcpStream);

impl Raw {
    fn to(server: &TestServer) -> Raw {
        Raw::connect(server.addr())
    }

    fn connect(addr: impl std::net::ToSocketAddrs) -> Raw {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Raw(stream)
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Raw {
        self.0.write_all(bytes.as_ref()).unwrap();
        self
    }

    /// Reads exactly this text.
    #[track_caller]
    fn expect(&mut self, bytes: impl AsRef<[u8]>) -> &mut Raw {
        let bytes = bytes.as_ref();
        let mut got = vec![0; bytes.len()];
        let mut len = 0;
        while len < got.len() {
            match self.0.read(&mut got[len..]) {
                Ok(0) => break,
                Ok(n) => len += n,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&got[..len.min(200)])),
            }
        }
        assert!(
            got[..len] == *bytes,
            "got {:?}, not {:?}",
            String::from_utf8_lossy(&got[..len.min(400)]),
            String::from_utf8_lossy(&bytes[..bytes.len().min(400)])
        );
        self
    }

    /// Expects the end of the stream.
    #[track_caller]
    fn expect_end(&mut self) {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
            _ => assert!(rest.is_empty(), "{:?}", String::from_utf8_lossy(&rest[..rest.len().min(400)])),
        }
    }
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A number from `INFO`.
fn info(server: &TestServer, field: &str) -> u64 {
    let mut raw = Raw::to(server);
    raw.send("INFO everything\r\n").0.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    raw.0.read_to_string(&mut text).unwrap();
    let line = text.lines().find(|line| line.split(':').next() == Some(field));
    line.unwrap_or_else(|| panic!("INFO has no {field}")).split(':').nth(1).unwrap().trim().parse().unwrap()
}

#[test]
fn a_pipeline_is_answered_in_order() {
    let server = TestServer::start();
    let mut request = Vec::new();
    let mut reply = Vec::new();
    for i in 0..20_000 {
        let key = format!("k{}", i % 100);
        request.extend(
            format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$1\r\nv\r\n*2\r\n$4\r\nECHO\r\n$5\r\n{i:05}\r\n", key.len()).bytes(),
        );
        reply.extend(format!("+OK\r\n$5\r\n{i:05}\r\n").bytes());
    }
    let mut raw = Raw::to(&server);
    let mut writer = raw.0.try_clone().unwrap();
    let writing = std::thread::spawn(move || writer.write_all(&request).unwrap());
    raw.expect(&reply);
    writing.join().unwrap();
    assert_eq!(server.dbsize(), 100);
}

#[test]
fn requests_may_come_byte_by_byte_or_cut_anywhere() {
    let server = TestServer::start();
    let request = b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nva\r\nl\r\nPING\r\n*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n";
    let reply = "+OK\r\n+PONG\r\n$5\r\nva\r\nl\r\n";
    let mut raw = Raw::to(&server);
    for byte in request {
        raw.send([*byte]);
    }
    raw.expect(reply);
    for cut in 1..request.len() {
        raw.send(&request[..cut]);
        // Long enough that the server mostly reads the first part alone.
        std::thread::sleep(Duration::from_micros(300));
        raw.send(&request[cut..]).expect(reply);
    }
}

#[test]
fn what_comes_behind_an_urgent_byte_is_read_with_what_comes_before_it() {
    let server = TestServer::start();
    let mut other = Raw::to(&server);
    for _ in 0..5 {
        let mut raw = Raw::to(&server);
        raw.send("PING\r\n").expect("+PONG\r\n");
        // The server finds all of it at once. A read ends before a byte that a terminal sends for an interrupt.
        other.send("DEBUG SLEEP 0.02\r\n");
        std::thread::sleep(Duration::from_millis(5));
        raw.send("PI");
        socket2::SockRef::from(&raw.0).send_out_of_band(b"!").unwrap();
        raw.send("NG\r\n").expect("+PONG\r\n").send("PING\r\n").expect("+PONG\r\n");
        other.expect("+OK\r\n");
    }
}

#[test]
fn people_may_type_requests() {
    let server = TestServer::start();
    Raw::to(&server)
        .send("PING\r\n")
        .expect("+PONG\r\n")
        .send("  set  'a b'  \"x\\x41\\n\" \n")
        .expect("+OK\r\n")
        .send("get 'a b'\r\n\r\n\r\nping\r\n")
        .expect("$3\r\nxA\n\r\n+PONG\r\n");
}

#[test]
fn any_number_of_empty_lines_may_come_before_a_request() {
    let server = TestServer::start();
    let mut raw = Raw::to(&server);
    for lines in [1, 500, 600, 1023, 1024, 5000] {
        raw.send("\r\n".repeat(lines) + "PING\r\n").expect("+PONG\r\n");
        raw.send(("\r\n".repeat(lines) + "PING\r\n").repeat(3)).expect("+PONG\r\n".repeat(3));
    }
}

#[test]
fn large_values_come_back_whole() {
    let server = TestServer::start();
    let value: Vec<u8> = (0..10_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let header = format!("${}\r\n", value.len());
    let request = [b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n", header.as_bytes(), &value, b"\r\n"].concat();
    let reply = [header.as_bytes(), &value, b"\r\n"].concat();
    let mut raw = Raw::to(&server);
    raw.send(&request).expect("+OK\r\n");
    raw.send("GET k\r\n").expect(&reply).send("STRLEN k\r\nPING\r\n").expect(":10000000\r\n+PONG\r\n");
    assert_eq!(server.get_bytes("k").unwrap(), value);
}

#[test]
fn quit_answers_and_closes_and_what_follows_it_is_not_executed() {
    let server = TestServer::start();
    Raw::to(&server).send("SET a 1\r\nQUIT\r\nSET b 1\r\n").expect("+OK\r\n+OK\r\n").expect_end();
    assert_eq!(server.keys(), ["a"]);
    // Not even a protocol error behind QUIT is reported.
    Raw::to(&server).send("QUIT\r\n*x\r\n").expect("+OK\r\n").expect_end();
}

#[test]
fn protocol_errors_are_told_and_end_the_connection() {
    let server = TestServer::start();
    for (request, error) in [
        ("*x\r\n", "invalid multibulk length"),
        ("*1048577\r\n", "invalid multibulk length"),
        ("*1000000000\r\n", "invalid multibulk length"),
        ("*99999999999999999999\r\n", "invalid multibulk length"),
        ("*1\r\nPING\r\n", "expected '$', got 'P'"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$99999999999\r\n", "invalid bulk length"),
        ("*1\r\n$536870913\r\n", "invalid bulk length"),
        ("SET \"a\r\n", "unbalanced quotes in request"),
    ] {
        let mut raw = Raw::to(&server);
        raw.send("PING\r\n").send(request).send("SET late 1\r\n");
        raw.expect(format!("+PONG\r\n-ERR Protocol error: {error}\r\n")).expect_end();
    }
    assert_eq!(server.dbsize(), 0);
}

#[test]
fn a_browser_that_was_made_to_speak_to_us_is_cut_off() {
    let server = TestServer::start();
    for request in ["POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nSET stolen 1\r\n", "Host: 127.0.0.1\r\nSET stolen 1\r\n"] {
        Raw::to(&server).send(request).expect_end();
    }
    assert!(!server.exists("stolen"));
}

#[test]
fn a_client_that_has_not_authenticated_is_held_to_small_requests() {
    let server = TestServer::builder().config("requirepass", "open sesame").start();
    let refused = "-NOAUTH Authentication required.\r\n";
    Raw::to(&server)
        .send("GET k\r\n")
        .expect(refused)
        .send("AUTH wrong\r\n")
        .expect("-WRONGPASS invalid username-password pair or user is disabled.\r\n")
        .send("*2\r\n$4\r\nAUTH\r\n$11\r\nopen sesame\r\nSET k v\r\n")
        .expect("+OK\r\n+OK\r\n");
    Raw::to(&server).send("*11\r\n").expect("-ERR Protocol error: unauthenticated multibulk length\r\n").expect_end();
    Raw::to(&server).send("*2\r\n$16385\r\n").expect("-ERR Protocol error: unauthenticated bulk length\r\n").expect_end();
}

#[test]
fn beyond_maxclients_nobody_is_let_in_until_somebody_leaves() {
    let server = TestServer::builder().config("maxclients", "3").start();
    let mut inside: Vec<Raw> = (0..3).map(|_| Raw::to(&server)).collect();
    for raw in &mut inside {
        raw.send("PING\r\n").expect("+PONG\r\n");
    }
    Raw::to(&server).expect("-ERR max number of clients reached\r\n").expect_end();
    inside.pop();
    wait_for("the place of the one that left", || server.server().directory().len() == 2);
    assert_eq!(info(&server, "rejected_connections"), 1);
    inside[0].send("CONFIG SET maxclients 4\r\n").expect("+OK\r\n");
    let mut third = Raw::to(&server);
    third.send("PING\r\n").expect("+PONG\r\n");
    Raw::to(&server).send("PING\r\n").expect("+PONG\r\n");
}

#[test]
fn idle_clients_are_closed_by_the_servers_clock_and_subscribers_are_not() {
    let server = TestServer::builder().frozen(true).config("timeout", "10").start();
    let mut idle = Raw::to(&server);
    idle.send("PING\r\n").expect("+PONG\r\n");
    let mut busy = Raw::to(&server);
    let mut subscriber = Raw::to(&server);
    subscriber.send("SUBSCRIBE c\r\n").expect("*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
    for _ in 0..3 {
        server.clock().advance(Duration::from_secs(5));
        busy.send("PING\r\n").expect("+PONG\r\n");
    }
    idle.expect_end();
    // Each client is closed once, no matter how far the clock moves.
    let mut other = Raw::to(&server);
    other.send("PING\r\n").expect("+PONG\r\n");
    server.clock().advance(Duration::from_secs(365 * 86_400));
    other.expect_end();
    busy.expect_end();
    let mut busy = Raw::to(&server);
    busy.send("PUBLISH c m\r\n").expect(":1\r\n");
    subscriber.expect("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n");
    busy.send("CONFIG SET timeout 0\r\n").expect("+OK\r\n");
    server.clock().advance(Duration::from_secs(3600));
    busy.send("PING\r\n").expect("+PONG\r\n");
}

#[test]
fn without_a_password_clients_of_other_machines_are_denied() {
    // Connecting a datagram socket sends nothing, but shows which address this machine would use. The target is a documentation
    // address.
    let probe = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let Some(ip) = probe.connect("192.0.2.1:9").and_then(|()| probe.local_addr()).ok().map(|addr| addr.ip()) else { return };
    if ip.is_loopback() || ip.is_unspecified() {
        return;
    }
    let server = TestServer::builder().config("bind", "0.0.0.0").start();
    let mut raw = Raw::connect((ip, server.port()));
    raw.expect("-DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the default user. ");
    let mut near = Raw::connect(("127.0.0.1", server.port()));
    near.send("CONFIG SET protected-mode no\r\n").expect("+OK\r\n");
    Raw::connect((ip, server.port())).send("PING\r\n").expect("+PONG\r\n");
    near.send("CONFIG SET protected-mode yes requirepass x\r\n").expect("+OK\r\n");
    Raw::connect((ip, server.port())).send("PING\r\n").expect("-NOAUTH Authentication required.\r\n");
    // A client that connected before the password was removed is not limited to small requests.
    let mut early = Raw::connect(("127.0.0.1", server.port()));
    near.send("CONFIG SET requirepass \"\"\r\n").expect("+OK\r\n");
    early
        .send("*12\r\n$4\r\nMGET\r\n".to_owned() + &"$1\r\nk\r\n".repeat(11))
        .expect("*11\r\n".to_owned() + &"$-1\r\n".repeat(11));
}

#[test]
fn a_subscriber_may_lag_behind_for_as_long_as_the_soft_limit_says() {
    let server = TestServer::builder().frozen(true).config("client-output-buffer-limit", "pubsub 0 64kb 5").start();
    let mut deaf = Raw::to(&server);
    deaf.send("SUBSCRIBE c\r\n").expect("*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
    let mut publisher = Raw::to(&server);
    let message = "x".repeat(1 << 20);
    for _ in 0..30 {
        publisher.send(format!("*3\r\n$7\r\nPUBLISH\r\n$1\r\nc\r\n${}\r\n{message}\r\n", message.len())).expect(":1\r\n");
    }
    server.clock().advance(Duration::from_secs(5));
    publisher.send("PUBLISH c m\r\n").expect(":1\r\n");
    server.clock().advance(Duration::from_secs(1));
    wait_for("it to be closed", || server.server().directory().len() == 1);
    publisher.send("PUBLISH c m\r\n").expect(":0\r\n");
}

#[test]
fn what_others_cause_is_written_at_once() {
    let server = TestServer::start();
    let mut subscribers: Vec<Raw> = (0..50).map(|_| Raw::to(&server)).collect();
    for raw in &mut subscribers {
        raw.send("SUBSCRIBE news\r\n").expect("*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
    }
    let mut publisher = Raw::to(&server);
    publisher.send("PUBLISH news hello\r\n").expect(":50\r\n");
    for raw in &mut subscribers {
        raw.expect("*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\nhello\r\n");
    }
    publisher.send("CLIENT KILL TYPE pubsub\r\n").expect(":50\r\n");
    for raw in &mut subscribers {
        raw.expect_end();
    }
    wait_for("the killed ones to be gone", || server.server().directory().len() == 1);
}

#[test]
fn expired_keys_are_announced_on_time_without_any_request() {
    let server = TestServer::builder().config("notify-keyspace-events", "Ex").start();
    let mut listener = Raw::to(&server);
    listener
        .send("SUBSCRIBE __keyevent@0__:expired\r\n")
        .expect("*3\r\n$9\r\nsubscribe\r\n$22\r\n__keyevent@0__:expired\r\n:1\r\n");
    let mut writer = Raw::to(&server);
    let begin = Instant::now();
    writer.send("SET lease x PX 50\r\n").expect("+OK\r\n");
    listener.expect("*3\r\n$7\r\nmessage\r\n$22\r\n__keyevent@0__:expired\r\n$5\r\nlease\r\n");
    // How late it comes on a busy machine is the machine's affair. A bench measures the punctuality.
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(49), "{took:?}");
}

#[test]
fn a_frozen_clock_does_not_hang_a_sleep() {
    let server = TestServer::builder().frozen(true).start();
    let before = server.clock().now_unix_ms();
    let mut raw = Raw::to(&server);
    raw.send("SET k v PX 1500\r\nDEBUG SLEEP 1\r\nPTTL k\r\nDEBUG SLEEP 0.5\r\nEXISTS k\r\n")
        .expect("+OK\r\n+OK\r\n:500\r\n+OK\r\n:0\r\n");
    assert_eq!(server.clock().now_unix_ms(), before + 1500);
}

#[test]
fn a_sleep_keeps_everybody_waiting() {
    let server = TestServer::start();
    let mut sleeper = Raw::to(&server);
    let mut other = Raw::to(&server);
    let mut waited = Vec::new();
    // On a busy machine the server may sleep only after the other request, or may have slept before it.
    while waited.len() < 20 {
        sleeper.send("DEBUG SLEEP 0.2\r\n");
        std::thread::sleep(Duration::from_millis(50));
        let begin = Instant::now();
        other.send("PING\r\n").expect("+PONG\r\n");
        waited.push(begin.elapsed());
        sleeper.expect("+OK\r\n");
        if waited.last().is_some_and(|waited| *waited >= Duration::from_millis(100)) {
            return;
        }
    }
    panic!("nobody was kept waiting: {waited:?}");
}

#[test]
fn traffic_is_counted() {
    let server = TestServer::start();
    let mut raw = Raw::to(&server);
    raw.send("PING\r\n").expect("+PONG\r\n");
    let snapshot = server.server().directory().snapshot();
    assert_eq!(snapshot.len(), 1);
    assert_eq!(snapshot[0].1.addr.unwrap(), raw.0.local_addr().unwrap());
    assert_eq!(info(&server, "total_connections_received"), 2);
    assert!(info(&server, "total_net_input_bytes") >= 6);
    assert!(info(&server, "total_net_output_bytes") >= 7);
}

/// A folder for one test, which is removed at its end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("portcullis-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_unix_socket_serves_as_well() {
    let folder = Folder::new("unix");
    let path = folder.file("p.sock");
    std::fs::write(&path, "left behind").unwrap();
    let server = TestServer::builder().config("unixsocket", &path).config("unixsocketperm", "700").start();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"SET k v\r\nCLIENT INFO\r\nQUIT\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("+OK\r\n$") && text.contains(&format!("addr={path}:0 ")), "{text}");
    assert_eq!(server.keys(), ["k"]);
    drop(server);
    assert!(!PathBuf::from(&path).exists());
}

/// The program. Dropping it ends the process.
struct Program {
    child: Child,
    address: String,
}

impl Program {
    fn start(args: &[&str]) -> Program {
        let mut child = command(args).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("listening on ").nth(1).unwrap_or_else(|| panic!("{line:?}"));
        Program { child, address: address.split_whitespace().next().unwrap().to_owned() }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for the end and returns the exit code.
    fn end(&mut self) -> Option<i32> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(begin.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(args: &[&str]) -> (Output, String) {
    let output = command(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    (output, text)
}

#[test]
fn the_program_says_where_it_listens_and_ends_on_sigterm() {
    let folder = Folder::new("ready");
    let ready = folder.file("ready");
    let mut program = Program::start(&["serve", "--port", "0", "--bind", "127.0.0.1", "--ready-file", &ready]);
    wait_for("the ready file", || PathBuf::from(&ready).exists());
    assert_eq!(std::fs::read_to_string(&ready).unwrap(), format!("{}\n", program.address));
    let mut raw = Raw::connect(&program.address);
    raw.send("PING\r\n").expect("+PONG\r\n");
    program.signal(rustix::process::Signal::TERM);
    assert_eq!(program.end(), Some(0));
    raw.expect_end();
    assert!(!PathBuf::from(&ready).exists());
}

#[test]
fn a_second_signal_ends_a_busy_program() {
    // On a busy machine the program may get the signal before it is busy, and then ends at once.
    for doubled in 0..8 {
        let mut program = Program::start(&["serve", "--port", "0", "--bind", "127.0.0.1"]);
        Raw::connect(&program.address).send("DEBUG SLEEP 600\r\n");
        std::thread::sleep(Duration::from_millis(100 << doubled));
        program.signal(rustix::process::Signal::INT);
        std::thread::sleep(Duration::from_millis(100));
        if let Some(status) = program.child.try_wait().unwrap() {
            assert_eq!(status.code(), Some(0), "it was not busy");
            continue;
        }
        // Two signals at once are one.
        wait_for("its end", || {
            program.signal(rustix::process::Signal::INT);
            std::thread::sleep(Duration::from_millis(100));
            program.child.try_wait().unwrap().is_some()
        });
        assert_eq!(program.end(), Some(1));
        return;
    }
    panic!("it was never busy");
}

#[test]
fn shutdown_ends_the_program_without_a_reply() {
    let mut program = Program::start(&["serve", "--port", "0", "--bind", "127.0.0.1"]);
    Raw::connect(&program.address).send("SET a 1\r\nSHUTDOWN NOSAVE\r\n").expect("+OK\r\n").expect_end();
    assert_eq!(program.end(), Some(0));
}

#[test]
fn a_port_that_is_taken_is_told_with_advice() {
    let server = TestServer::start();
    let (output, text) = run(&["serve", "--port", &server.port().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    let told = format!(
        "Could not bind 127.0.0.1:{}: address already in use. Something (perhaps a Redis) is listening there",
        server.port()
    );
    assert!(text.contains(&told) && text.contains("--port 0"), "{text}");
}

#[test]
fn a_file_configures_it_flags_win_and_rewrite_writes_it_back() {
    let folder = Folder::new("conf");
    let conf = folder.file("p.conf");
    std::fs::write(&conf, "# mine\nport 1\nbind 127.0.0.1\nmaxclients 77\ntimeout 5\nrdbcompression yes\n").unwrap();
    let program = Program::start(&["serve", &conf, "--port", "0", "--timeout", "6"]);
    let mut raw = Raw::connect(&program.address);
    raw.send("CONFIG GET maxclients\r\nCONFIG GET timeout\r\n");
    raw.expect("*2\r\n$10\r\nmaxclients\r\n$2\r\n77\r\n*2\r\n$7\r\ntimeout\r\n$1\r\n6\r\n");
    raw.send("CONFIG SET maxclients 78 databases 4\r\n");
    raw.expect("-ERR CONFIG SET failed (possibly related to argument 'databases') - can't set immutable config\r\n");
    raw.send("CONFIG SET maxclients 78 requirepass x\r\nCONFIG REWRITE\r\n").expect("+OK\r\n+OK\r\n");
    let text = std::fs::read_to_string(&conf).unwrap();
    let port = program.address.split(':').nth(1).unwrap();
    for line in ["# mine", "maxclients 78", "timeout 6", "rdbcompression yes", "requirepass x", &format!("port {port}")] {
        assert!(text.lines().any(|known| known == line), "{line} is not in {text}");
    }
}

#[test]
fn mistakes_on_the_command_line_are_told() {
    for (args, told) in [
        (&["serve", "--port", "x"][..], "--port"),
        (&["serve", "--daemonize", "yes"], "foreground"),
        (&["serve", "/nonexistent/p.conf"], "/nonexistent/p.conf"),
        (&["serve", "--nosuch", "1"], "--nosuch"),
    ] {
        let (output, text) = run(args);
        assert!(!output.status.success() && text.contains(told), "{args:?}: {text}");
    }
    let (output, text) = run(&["--version"]);
    assert!(output.status.success() && text.starts_with(concat!("portcullis ", env!("CARGO_PKG_VERSION"))), "{text}");
    let (_, text) = run(&[]);
    assert!(text.contains("serve"), "{text}");
}

#[test]
fn logs_can_be_json() {
    let folder = Folder::new("log");
    let log = folder.file("log");
    let mut program = Program::start(&["serve", "--port", "0", "--bind", "127.0.0.1", "--log-format", "json", "--logfile", &log]);
    program.signal(rustix::process::Signal::TERM);
    assert_eq!(program.end(), Some(0));
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.lines().count() >= 2 && text.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{text}");
}
