//! Hostile input: no crash, no growth of memory, Redis's errors, and no effect on other clients.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::common::servers;

const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum latency of another client's requests during an attack. On an idle machine it is a few milliseconds. The bound is
/// generous because of loaded machines and unoptimized builds.
const OTHERS_WAIT: Duration = if cfg!(debug_assertions) { Duration::from_secs(2) } else { Duration::from_millis(250) };
/// Maximum growth of the server's memory, by its own figure, after the attackers are gone.
const MEMORY_LEFT: u64 = MIB;
/// Maximum growth of the resident memory after the attackers are gone.
const RESIDENT_LEFT: u64 = 12 * MIB;
const MIB: u64 = 1 << 20;

/// The program in its own process, so that it has its own memory and descriptors.
struct Program {
    child: Child,
    addr: SocketAddr,
}

impl Program {
    fn start(args: &[&str]) -> Program {
        let mut child = Command::new(env!("CARGO_BIN_EXE_portcullis"))
            .args(["serve", "--port", "0", "--bind", "127.0.0.1", "--dbfilename", "", "--loglevel", "nothing"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 256];
        let mut stdout = child.stdout.take().unwrap();
        let len = stdout.read(&mut line).unwrap();
        let line = String::from_utf8_lossy(&line[..len]).into_owned();
        let addr = line.split("listening on ").nth(1).unwrap_or_else(|| panic!("{line:?}")).trim().parse().unwrap();
        let program = Program { child, addr };
        // After the first reply all descriptors of the start are open.
        assert_eq!(program.info("connected_clients"), 1);
        program
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Bytes resident in memory, without the pages of the program file: their number depends on how it was built.
    fn resident(&self) -> u64 {
        self.status("RssAnon:")
    }

    /// The maximum of resident bytes so far.
    fn most_resident(&self) -> u64 {
        self.status("VmHWM:")
    }

    fn status(&self, field: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Open descriptors.
    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// A number from `INFO`.
    fn info(&self, field: &str) -> u64 {
        let text = read_all(self.connect(), b"INFO everything\r\nQUIT\r\n");
        let line = text.lines().find(|line| line.split(':').next() == Some(field));
        line.unwrap_or_else(|| panic!("INFO has no {field}")).split(':').nth(1).unwrap().trim().parse().unwrap()
    }

    /// Runs `attack` while another client sends requests, none of which may take long.
    fn undisturbed<T>(&self, attack: impl FnOnce() -> T) -> T {
        self.timed(attack).0
    }

    /// Like [`Program::undisturbed`]. Returns the other client's maximum latency and its 99.9th percentile.
    fn timed<T>(&self, attack: impl FnOnce() -> T) -> (T, [Duration; 2]) {
        let (stop, stopped) = channel::<()>();
        let mut other = self.connect();
        other.set_nodelay(true).unwrap();
        let asking = std::thread::spawn(move || {
            let mut waits = Vec::new();
            loop {
                let begin = Instant::now();
                other.write_all(b"PING\r\n").unwrap();
                let mut reply = [0; 7];
                other.read_exact(&mut reply).unwrap();
                assert_eq!(&reply, b"+PONG\r\n");
                waits.push(begin.elapsed());
                if stopped.recv_timeout(Duration::from_micros(500)) != Err(RecvTimeoutError::Timeout) {
                    waits.sort_unstable();
                    return [waits[waits.len() - 1], waits[(waits.len() - 1) * 999 / 1000]];
                }
            }
        });
        let withheld = || servers::withheld(self.child.id()) + servers::withheld(std::process::id());
        let before = withheld();
        let outcome = attack();
        stop.send(()).unwrap();
        let waited = asking.join().unwrap();
        let withheld = withheld().saturating_sub(before);
        assert!(waited[0] < OTHERS_WAIT + withheld, "another client waited for {:?}; withheld {withheld:?}", waited[0]);
        (outcome, waited)
    }

    /// Runs an attack and its end. Neither may disturb others, and the memory must be free afterwards. Prints the figures.
    fn withstands<T>(&self, what: &str, attack: impl FnOnce() -> T, end: impl FnOnce(T)) {
        let (used, resident) = (self.info("used_memory"), self.resident());
        let (attacker, meanwhile) = self.timed(attack);
        let used_then = self.info("used_memory");
        let ((), afterwards) = self.timed(|| {
            end(attacker);
            wait_for("its memory to be back", || self.info("used_memory") < used + MEMORY_LEFT);
            wait_for("the system to have it back", || self.resident() < resident + RESIDENT_LEFT);
        });
        let ms = |wait: Duration| wait.as_secs_f64() * 1000.0;
        let mib = |bytes: u64| bytes as f64 / MIB as f64;
        println!(
            "{what}: others waited {:.1} ms at most (99.9 %: {:.1}), {:.1} ms when it went; \
             in use {:.1} MiB before, {:.1} then, {:.1} after; resident {:.0} MiB before, {:.0} at most, {:.0} after",
            ms(meanwhile[0]),
            ms(meanwhile[1]),
            ms(afterwards[0]),
            mib(used),
            mib(used_then),
            mib(self.info("used_memory")),
            mib(resident),
            mib(self.most_resident()),
            mib(self.resident()),
        );
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let alive = self.child.try_wait().unwrap().is_none();
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !std::thread::panicking() {
            assert!(alive, "the server ended by itself");
        }
    }
}

/// The full size if `PORTCULLIS_FULL_SIZE` is set, otherwise the quick one.
fn scaled(quick: usize, full: usize) -> usize {
    if std::env::var_os("PORTCULLIS_FULL_SIZE").is_some() { full } else { quick }
}

/// Requests with a thousand names each.
fn by_thousands(command: &str, names: usize) -> String {
    let mut requests = String::new();
    for from in (0..names).step_by(1000) {
        requests += command;
        (from..from + 1000).for_each(|n| requests += &format!(" name:{n:08}"));
        requests += "\r\n";
    }
    requests
}

/// Sends as much of the requests as the server takes, and reads to the end.
fn read_all(mut stream: TcpStream, request: &[u8]) -> String {
    let mut writer = stream.try_clone().unwrap();
    let request = request.to_vec();
    let writing = std::thread::spawn(move || {
        // The server may close before it has read everything.
        let _ = writer.write_all(&request);
        let _ = writer.shutdown(Shutdown::Write);
    });
    let mut reply = Vec::new();
    let mut part = [0; 65_536];
    loop {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(n) => reply.extend_from_slice(&part[..n]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&reply[..reply.len().min(200)])),
        }
    }
    writing.join().unwrap();
    String::from_utf8_lossy(&reply).into_owned()
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn nested_arrays() {
    let program = Program::start(&[]);
    let reply = program.undisturbed(|| read_all(program.connect(), "*1\r\n".repeat(200_000).as_bytes()));
    assert_eq!(reply, "-ERR Protocol error: expected '$', got '*'\r\n");
    assert!(program.resident() < 36 * MIB);
}

#[test]
fn counts_and_lengths_beyond_all_bounds_take_no_memory() {
    let program = Program::start(&[]);
    let before = program.resident();
    for (request, error) in [
        ("*1000000000\r\n", "invalid multibulk length"),
        ("*2147483648\r\n", "invalid multibulk length"),
        ("*1\r\n$99999999999\r\n", "invalid bulk length"),
        ("*1\r\n$9223372036854775807\r\n", "invalid bulk length"),
        ("*1\r\n$-5\r\n", "invalid bulk length"),
    ] {
        let reply = program.undisturbed(|| read_all(program.connect(), request.as_bytes()));
        assert_eq!(reply, format!("-ERR Protocol error: {error}\r\n"), "{request:?}");
    }
    // A long argument is allowed, and takes memory only as it arrives.
    let promises: Vec<TcpStream> = (0..200)
        .map(|i| {
            let mut stream = program.connect();
            stream
                .write_all(if i % 2 == 0 { b"*2\r\n$3\r\nGET\r\n$536870912\r\nx" } else { b"*1048576\r\n$4\r\nMGET\r\n" })
                .unwrap();
            stream
        })
        .collect();
    wait_for("the promises to arrive", || program.info("connected_clients") > 200);
    assert!(program.resident() < before + 32 * MIB, "{} MiB", program.resident() / MIB);
    drop(promises);
    wait_for("them to be gone", || program.info("connected_clients") == 1);
}

#[test]
fn a_megabyte_without_a_line_end() {
    let program = Program::start(&[]);
    for (start, error) in
        [("", "too big inline request"), ("*", "too big mbulk count string"), ("*1\r\n$", "too big bulk count string")]
    {
        let request = start.to_owned() + &"1".repeat(1 << 20);
        let reply = program.undisturbed(|| read_all(program.connect(), request.as_bytes()));
        assert_eq!(reply, format!("-ERR Protocol error: {error}\r\n"));
    }
    assert!(program.resident() < 36 * MIB);
}

#[test]
fn random_bytes() {
    let program = Program::start(&[]);
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    program.undisturbed(|| {
        for _ in 0..200 {
            let mut request: Vec<u8> = (0..4096).map(|_| next()).collect();
            request.extend_from_slice(b"\r\nQUIT\r\n*x\r\n");
            read_all(program.connect(), &request);
        }
    });
}

#[test]
fn half_a_request_left_open() {
    let program = Program::start(&[]);
    let before = program.resident();
    let halves: Vec<TcpStream> = (0..500)
        .map(|_| {
            let mut stream = program.connect();
            stream.write_all(b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$100000\r\n").unwrap();
            stream.write_all(&[b'x'; 10_000]).unwrap();
            stream
        })
        .collect();
    program.undisturbed(|| wait_for("all of them to be read", || program.info("total_net_input_bytes") >= 500 * 10_000));
    // The server keeps the input, and little more.
    let grown = program.resident().saturating_sub(before);
    assert!(grown < 500 * 40_000, "{grown} bytes");
    assert_eq!(program.info("connected_clients"), 501);
    drop(halves);
    wait_for("them to be gone", || program.info("connected_clients") == 1);
}

#[test]
fn an_incomplete_request_is_cut_off_at_the_query_buffer_limit() {
    let program = Program::start(&["--client-query-buffer-limit", "1mb"]);
    let mut request = b"*2\r\n$4\r\nECHO\r\n$8000000\r\n".to_vec();
    request.resize(8_000_000, b'x');
    assert_eq!(program.undisturbed(|| read_all(program.connect(), &request)), "");
    assert!(program.resident() < 36 * MIB);
}

#[test]
fn connections_opened_and_dropped() {
    let program = Program::start(&[]);
    let (descriptors, before) = (program.descriptors(), program.resident());
    program.undisturbed(|| {
        for batch in 0..100 {
            let connections: Vec<TcpStream> = (0..200).map(|_| program.connect()).collect();
            if batch % 3 == 0 {
                for mut connection in &connections {
                    connection.write_all(b"PING\r\n*1\r\n$4\r\nPI").unwrap();
                }
            }
            // With more than 511 connections that are not accepted yet, even if they have ended, the system drops further
            // connection requests and repeats them a second later. The last client is answered when all have been accepted.
            if batch % 2 == 1 {
                assert_eq!(read_all(program.connect(), b"PING\r\nQUIT\r\n"), "+PONG\r\n+OK\r\n");
            }
        }
    });
    wait_for("all of them to be gone", || program.info("connected_clients") == 1);
    // The connections that `undisturbed` and INFO used are closed or about to be.
    wait_for("their descriptors to be back", || program.descriptors() <= descriptors + 1);
    assert!(program.info("total_connections_received") >= 20_000);
    assert!(program.resident() < before + 32 * MIB, "{} MiB", program.resident() / MIB);
}

#[test]
fn a_huge_pipeline_of_one_who_does_not_read() {
    let program = Program::start(&[]);
    read_all(program.connect(), format!("SET big {}\r\nQUIT\r\n", "x".repeat(20_000)).as_bytes());
    let before = program.resident();
    let request = b"GET big\r\n".repeat(4096);
    program.withstands(
        "one who does not read",
        || {
            let mut deaf = program.connect();
            deaf.set_nonblocking(true).unwrap();
            // 36 MiB of requests (at full size 1 GiB) for at least 80 GiB of replies, or as much as the server takes.
            let mut sent = 0;
            let mut refused = 0;
            while sent < scaled(36 << 20, 1 << 30) && refused < 200 {
                match deaf.write(&request) {
                    Ok(n) => (sent, refused) = (sent + n, 0),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        refused += 1;
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(refused > 0, "the server goes on reading from a client that does not read");
            let grown = program.resident().saturating_sub(before);
            assert!(grown < 8 * MIB, "{grown} bytes");
            deaf
        },
        |deaf| {
            drop(deaf);
            wait_for("it to be gone", || program.info("connected_clients") == 2);
        },
    );
}

#[test]
fn a_huge_pipeline_is_answered_when_it_is_read_at_last() {
    let program = Program::start(&[]);
    let count = 300_000;
    let mut request = b"ECHO 0123456789abcdef\r\n".repeat(count);
    request.extend_from_slice(b"QUIT\r\n");
    let stream = program.connect();
    let reply = program.undisturbed(|| read_all(stream, &request));
    let mut lines = reply.lines();
    for _ in 0..count {
        assert_eq!((lines.next(), lines.next()), (Some("$16"), Some("0123456789abcdef")));
    }
    assert_eq!((lines.next(), lines.next()), (Some("+OK"), None));
}

#[test]
fn a_subscriber_that_does_not_read_is_let_go() {
    let program = Program::start(&["--client-output-buffer-limit", "pubsub", "1mb", "0", "0"]);
    let mut deaf = program.connect();
    deaf.write_all(b"SUBSCRIBE c\r\n").unwrap();
    let mut head = [0; 4];
    deaf.read_exact(&mut head).unwrap();
    let before = program.resident();
    let publish = format!("PUBLISH c {}\r\n", "x".repeat(50_000));
    program.undisturbed(|| {
        let reply = read_all(program.connect(), (publish.repeat(400) + "QUIT\r\n").as_bytes());
        // The socket buffers take some of it before the limit has an effect.
        assert!(reply.starts_with(":1\r\n") && reply.ends_with(":0\r\n+OK\r\n"), "{} bytes", reply.len());
    });
    assert!(program.resident() < before + 16 * MIB, "{} MiB", program.resident() / MIB);
    wait_for("it to be gone", || program.info("connected_clients") == 1);
}

#[test]
fn a_reply_beyond_the_output_limit_ends_the_connection() {
    let program = Program::start(&["--client-output-buffer-limit", "normal", "1mb", "0", "0"]);
    read_all(program.connect(), format!("SET big {}\r\nQUIT\r\n", "x".repeat(60_000)).as_bytes());
    // Any amount of replies is fine if the client reads them. A single huge amount is not.
    let reply = read_all(program.connect(), ("GET big\r\n".repeat(100) + "QUIT\r\n").as_bytes());
    assert!(reply.len() > 6_000_000 && reply.ends_with("+OK\r\n"));
    let reply = read_all(program.connect(), format!("MGET{}\r\nQUIT\r\n", " big".repeat(100)).as_bytes());
    assert_eq!(reply, "");
}

#[test]
fn more_clients_than_descriptors_are_told_or_wait() {
    // A shell sets the limit before the program starts.
    let child = Command::new("sh")
        .args([
            "-c",
            "ulimit -n 64; exec \"$0\" serve --port 0 --bind 127.0.0.1 --loglevel nothing",
            env!("CARGO_BIN_EXE_portcullis"),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    let mut line = [0; 256];
    let len = child.stdout.take().unwrap().read(&mut line).unwrap();
    let line = String::from_utf8_lossy(&line[..len]).into_owned();
    let addr = line.split("listening on ").nth(1).unwrap_or_else(|| panic!("{line:?}")).trim().parse().unwrap();
    let program = Program { child, addr };
    let mut kept: Vec<TcpStream> = (0..60).map(|_| program.connect()).collect();
    let mut served = 0;
    let mut refused = 0;
    for stream in &mut kept {
        // A refused connection may be closed already.
        let _ = stream.write_all(b"PING\r\n");
        let mut reply = Vec::new();
        let mut part = [0; 64];
        while !reply.ends_with(b"\n") {
            match stream.read(&mut part) {
                Ok(n) if n > 0 => reply.extend_from_slice(&part[..n]),
                _ => break,
            }
        }
        match &reply[..] {
            b"+PONG\r\n" => served += 1,
            b"-ERR max number of clients reached\r\n" | b"" => refused += 1,
            other => panic!("{:?}", String::from_utf8_lossy(other)),
        }
    }
    assert!(served >= 20 && refused > 0, "{served} served, {refused} refused");
    drop(kept);
    wait_for("places to be free again", || read_all(program.connect(), b"PING\r\nQUIT\r\n") == "+PONG\r\n+OK\r\n");
}

/// Reads until the connection is closed or a line with the end has come.
fn read_until(stream: &mut TcpStream, end: &[u8]) -> bool {
    let mut tail = Vec::new();
    let mut part = [0; 65_536];
    loop {
        match stream.read(&mut part) {
            Ok(0) => return false,
            Ok(n) => {
                tail.extend_from_slice(&part[..n]);
                if tail.ends_with(end) {
                    return true;
                }
                tail.drain(..tail.len().saturating_sub(end.len()));
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return false,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Connects a client that sends requests and reads their replies. Returns the connection if it is still open.
fn served(program: &Program, requests: String, end: &[u8]) -> Option<TcpStream> {
    let mut stream = program.connect();
    let mut writer = stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        let _ = writer.write_all(requests.as_bytes());
    });
    let whole = read_until(&mut stream, end);
    writing.join().unwrap();
    whole.then_some(stream)
}

#[test]
fn a_subscriber_to_very_many_channels() {
    let names = scaled(20_000, 100_000);
    let program = Program::start(&[]);
    program.withstands(
        &format!("{names} channels"),
        || {
            let before = program.info("used_memory");
            let crowd = served(&program, by_thousands("SUBSCRIBE", names), format!(":{names}\r\n").as_bytes());
            assert!(crowd.is_some() && program.info("pubsub_channels") == names as u64);
            assert!(program.info("used_memory") > before + names as u64 * 64);
            crowd
        },
        |crowd| {
            drop(crowd);
            wait_for("its channels to be gone", || program.info("pubsub_channels") == 0);
        },
    );

    let limited = Program::start(&["--client-query-buffer-limit", "1mb"]);
    let requests = by_thousands("SUBSCRIBE", names);
    assert!(limited.undisturbed(|| served(&limited, requests, format!(":{names}\r\n").as_bytes())).is_none(), "it is closed");
    wait_for("its channels to be gone", || limited.info("pubsub_channels") == 0);
    assert_eq!(limited.info("client_limit_disconnections"), 1);
}

#[test]
fn a_client_that_watches_very_many_keys() {
    let names = scaled(50_000, 1_000_000);
    let program = Program::start(&[]);
    program.withstands(
        &format!("{names} watched keys"),
        || {
            let watcher = served(&program, by_thousands("WATCH", names) + "PING\r\n", b"+PONG\r\n");
            assert!(watcher.is_some() && program.info("total_watched_keys") == names as u64);
            // Requests of others about all keys are no additional work.
            assert_eq!(read_all(program.connect(), b"SET own 1\r\nFLUSHALL\r\nQUIT\r\n"), "+OK\r\n+OK\r\n+OK\r\n");
            watcher
        },
        |watcher| {
            drop(watcher);
            wait_for("its keys to be gone", || program.info("total_watched_keys") == 0);
        },
    );

    let limited = Program::start(&["--client-query-buffer-limit", "1mb"]);
    let requests = by_thousands("WATCH", names) + "PING\r\n";
    assert!(limited.undisturbed(|| served(&limited, requests, b"+PONG\r\n")).is_none(), "it is closed");
    wait_for("its keys to be gone", || limited.info("total_watched_keys") == 0);
    assert_eq!(limited.info("client_limit_disconnections"), 1);
}

#[test]
fn a_client_that_tracks_very_many_keys() {
    let names = scaled(50_000, 2_000_000);
    let room = names as u64 / 2;
    let program = Program::start(&["--tracking-table-max-keys", &room.to_string()]);
    program.withstands(
        &format!("{names} tracked keys, with room for half of them"),
        || {
            let requests = "HELLO 3\r\nCLIENT TRACKING ON\r\n".to_owned() + &by_thousands("MGET", names) + "ECHO the-end\r\n";
            let tracker = served(&program, requests, b"the-end\r\n");
            assert!(tracker.is_some() && program.info("tracking_total_keys") == room);
            // Another client gets its share of the room.
            let own = "HELLO 3\r\nCLIENT TRACKING ON\r\nGET own\r\nECHO the-end\r\n";
            let mut other = served(&program, own.into(), b"the-end\r\n").unwrap();
            assert_eq!(read_all(program.connect(), b"SET own 1\r\nQUIT\r\n"), "+OK\r\n+OK\r\n");
            assert!(read_until(&mut other, b"invalidate\r\n*1\r\n$3\r\nown\r\n"));
            tracker
        },
        |tracker| {
            drop(tracker);
            wait_for("its keys to be gone", || program.info("tracking_total_keys") == 0);
        },
    );
}

/// Sends a request repeatedly until this number of bytes is sent or the connection is closed. Returns the number of bytes sent.
fn flood(stream: &mut TcpStream, request: &[u8], bytes: usize) -> usize {
    let part = request.repeat((MIB as usize / request.len()).max(1));
    let mut sent = 0;
    while sent < bytes {
        match stream.write(&part) {
            Ok(count) => sent += count,
            Err(error) if [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&error.kind()) => break,
            Err(error) => panic!("{error} after {sent} bytes"),
        }
    }
    sent
}

/// Reads and drops all replies in a thread.
fn forget_replies(stream: &TcpStream) -> std::thread::JoinHandle<()> {
    let mut stream = stream.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut part = [0; 65_536];
        while stream.read(&mut part).is_ok_and(|count| count > 0) {}
    })
}

#[test]
fn a_gigabyte_of_pipelined_requests_is_executed_among_those_of_others() {
    let bytes = scaled(16 << 20, 1 << 30);
    let program = Program::start(&[]);
    let request = format!("SET key {}\r\n", "x".repeat(100));
    program.withstands(
        &format!("{} MiB of pipelined requests", bytes >> 20),
        || {
            let mut stream = program.connect();
            let reading = forget_replies(&stream);
            assert!(flood(&mut stream, request.as_bytes(), bytes) >= bytes);
            stream.shutdown(Shutdown::Write).unwrap();
            reading.join().unwrap();
            assert!(program.resident() < 36 * MIB, "{} MiB", program.resident() / MIB);
            stream
        },
        drop,
    );
}

/// As `printf … | nc -N` does.
#[test]
fn a_client_that_sends_no_more_gets_the_replies_to_what_it_sent() {
    let program = Program::start(&[]);
    let mut stream = program.connect();
    for n in 0..5_000 {
        stream.write_all(format!("SET key:{n} x\r\n").as_bytes()).unwrap();
    }
    stream.write_all(b"KEYS *\r\nLOCK.LIST COUNT 10000\r\nSET last x\r\nECHO done\r\nBLPOP none 0\r\nPING\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).unwrap();
    let end = replies.split_once("*5000\r\n").map_or(&replies[..], |(_, end)| end);
    assert_eq!(end.matches("\r\nkey:").count(), 5_000);
    assert!(end.ends_with("\r\n*0\r\n+OK\r\n$4\r\ndone\r\n"), "{}", &end[end.len().saturating_sub(100)..]);
}

#[test]
fn what_is_pipelined_behind_a_request_that_waits_is_bounded() {
    let limit = scaled(8 << 20, 1 << 30);
    for (what, begin, request) in [
        ("behind a request that waits", "BLPOP none 0\r\n", "SET key 0123456789abcdef\r\n".to_owned()),
        ("in a transaction", "MULTI\r\n", format!("SET key {}\r\n", "x".repeat(900))),
        ("in a request without end", "*1048576\r\n$4\r\nMSET\r\n", format!("$100000\r\n{}\r\n", "x".repeat(100_000))),
    ] {
        let program = Program::start(&["--client-query-buffer-limit", &limit.to_string()]);
        program.withstands(
            &format!("{} MiB {what}", limit >> 20),
            || {
                let mut stream = program.connect();
                let reading = forget_replies(&stream);
                stream.write_all(begin.as_bytes()).unwrap();
                flood(&mut stream, request.as_bytes(), limit + limit / 4);
                reading.join().unwrap();
                assert_eq!(program.info("client_limit_disconnections"), 1, "{what}");
                stream
            },
            drop,
        );
        assert!(program.most_resident() < limit as u64 * 5 / 4 + 64 * MIB, "{what}: {} MiB", program.most_resident() / MIB);
        wait_for("the system to have it back", || program.resident() < 8 * MIB);
    }
}

#[test]
fn all_clients_together_are_bounded() {
    let program = Program::start(&["--maxmemory-clients", "8mb"]);
    program.withstands(
        "ten clients with 1 MiB each, where 8 MiB are for all",
        || {
            let mut request = b"*2\r\n$4\r\nECHO\r\n$8000000\r\n".to_vec();
            request.resize(1 << 20, b'x');
            let greedy: Vec<TcpStream> = (0..10)
                .map(|_| {
                    let mut stream = program.connect();
                    stream.write_all(&request).unwrap();
                    stream
                })
                .collect();
            wait_for("some to be closed", || program.info("evicted_clients") >= 3);
            assert_eq!(program.info("evicted_clients"), 3);
            greedy
        },
        drop,
    );
}

#[test]
fn those_who_are_told_of_everything_and_do_not_read() {
    for request in ["MONITOR\r\n", "HELLO 3\r\nCLIENT TRACKING ON BCAST\r\n", "SUBSCRIBE __keyevent@0__:set\r\n"] {
        let program =
            Program::start(&["--client-output-buffer-limit", "pubsub", "1mb", "0", "0", "--notify-keyspace-events", "KEA"]);
        let mut deaf = program.connect();
        deaf.write_all(request.as_bytes()).unwrap();
        wait_for("it to be heard", || program.info("connected_clients") == 2);
        let before = program.resident();
        let set = format!("SET {} 1\r\n", "k".repeat(20_000)).repeat(scaled(1000, 10_000));
        program.undisturbed(|| {
            let replies = read_all(program.connect(), (set.clone() + "QUIT\r\n").as_bytes());
            assert!(replies.lines().all(|line| line == "+OK"), "others are served");
        });
        wait_for("it to be gone", || program.info("connected_clients") == 1);
        assert_eq!(program.info("client_limit_disconnections"), 1, "{request}");
        assert!(program.resident() < before + 16 * MIB, "{} MiB", program.resident() / MIB);
    }
}

#[test]
fn a_subscriber_that_reads_too_slowly_for_too_long_is_let_go() {
    let program = Program::start(&["--client-output-buffer-limit", "pubsub", "0", "64kb", "1"]);
    let mut deaf = program.connect();
    deaf.write_all(b"SUBSCRIBE c\r\n").unwrap();
    let mut head = [0; 4];
    deaf.read_exact(&mut head).unwrap();
    let publish = format!("PUBLISH c {}\r\n", "x".repeat(50_000));
    // More than the socket buffers hold.
    let reply = read_all(program.connect(), (publish.repeat(400) + "QUIT\r\n").as_bytes());
    assert!(reply.starts_with(":1\r\n"), "it may lag behind for a while");
    wait_for("it to be gone", || program.info("connected_clients") == 1);
    assert_eq!(program.info("client_limit_disconnections"), 1);
}
