//! Measures the guarantees of native locks: `cargo bench --bench locks [-- --quick] [--only lease|session|waits]`.
//!
//! - **lease**: how late after the end of a lease a waiter is granted the lock, with a million other leases. Counted from when
//!   the holder's request was sent, so that its way to the server counts too.
//! - **session**: how long after the death of a holder's client (`SIGKILL` of its process; a TCP reset) a waiter is granted the
//!   lock.
//! - **waits**: the server's CPU time for adding a waiter to ten thousand others, including the receipt of its request, for
//!   several shapes of the wait-for graph.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use portcullis::bench::machine::raise_file_limit;
use portcullis::bench::report::statistics::quantile;
use portcullis::bench::servers::kind::ServerKind;
use portcullis::bench::servers::process::Process;
use portcullis::bench::servers::wire::{self, call, call_expecting, encode};
use rustix::event::epoll;

/// A lease that does not end during the bench.
const LONG_MS: &str = "36000000";
/// Number of requests that are sent at once.
const BATCH: usize = 1_000;
/// Number of waits that are measured for each shape.
const MEASURED: usize = 200;
/// Number of waiters in the first part.
const CONTENDED: usize = 100;

fn portcullis() -> Process {
    ServerKind::Portcullis.start(Path::new(env!("CARGO_BIN_EXE_portcullis"))).expect("the program was built with this bench")
}

fn connect(addr: SocketAddr) -> TcpStream {
    wire::connect(addr).expect("connect")
}

/// A connection that acquires locks for any owner.
struct Agent {
    socket: TcpStream,
    replies: BufReader<TcpStream>,
}

impl Agent {
    fn new(addr: SocketAddr) -> Agent {
        let socket = connect(addr);
        Agent { replies: BufReader::new(socket.try_clone().expect("a second handle")), socket }
    }

    /// Sends requests and checks that each reply is a number. Returns the last one.
    fn send(&mut self, requests: impl Iterator<Item = Vec<u8>>) -> u64 {
        let requests: Vec<Vec<u8>> = requests.collect();
        let (mut line, mut last) = (String::new(), 0);
        for batch in requests.chunks(BATCH) {
            self.socket.write_all(&batch.concat()).expect("write");
            for _ in batch {
                line.clear();
                self.replies.read_line(&mut line).expect("read");
                last =
                    line.trim_end().strip_prefix(':').and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{line}"));
            }
        }
        last
    }

    fn hold<'a>(&mut self, what: impl Iterator<Item = (String, String)> + 'a, words: &'a [&'a str]) {
        self.send(what.map(|(name, owner)| encode(&[&["LOCK.ACQUIRE", &name, &owner, LONG_MS], words].concat())));
    }
}

/// Reads a fencing token.
fn read_token(socket: &mut TcpStream) -> u64 {
    let mut reply = [0; 64];
    let count = socket.read(&mut reply).expect("read");
    let text = String::from_utf8_lossy(&reply[..count]);
    text.trim_end().strip_prefix(':').and_then(|token| token.parse().ok()).unwrap_or_else(|| panic!("{text:?}"))
}

fn print_latencies(what: &str, mut us: Vec<i64>, bar: &str) {
    us.sort_unstable();
    let at = |share: f64| quantile(&us, share).unwrap_or(0) as f64 / 1000.0;
    println!("| {what} | {} | {:.3} | {:.3} | {:.3} | {bar} |", us.len(), at(0.5), at(0.99), at(1.0));
}

/// First part: from the end of a lease to the next grant.
fn leases(quick: bool) {
    let others = if quick { 100_000 } else { 1_000_000 };
    let server = portcullis();
    let mut agent = Agent::new(server.addr());
    // The leases end over the next hours, each in its own millisecond, so that the timer wheel is as full as in practice.
    let other = |n: usize| {
        let lease_ms = (600_000 + n * 7919 % 7_200_000).to_string();
        encode(&["LOCK.ACQUIRE", &format!("other:{n}"), "5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21", &lease_ms])
    };
    for first in (0..others).step_by(50_000) {
        agent.send((first..first + 50_000).map(other));
    }
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    let mut waiters: Vec<TcpStream> = (0..CONTENDED).map(|_| connect(server.addr())).collect();
    for (number, socket) in waiters.iter().enumerate() {
        epoll::add(&poll, socket, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN).expect("epoll");
    }
    let name = |number: usize| format!("contended:{number}");
    let mut random = 1u64;
    // Lets a holder acquire the lock for a short lease, and a waiter wait for it. Returns the end of the lease.
    let mut contend = |agent: &mut Agent, waiter: &mut TcpStream, number: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let lease_ms = 50 + (random >> 33) % 400;
        let sent = Instant::now();
        agent.send([encode(&["LOCK.ACQUIRE", &name(number), "holder", &lease_ms.to_string()])].into_iter());
        waiter.write_all(&encode(&["LOCK.ACQUIRE", &name(number), "waiter", LONG_MS, "WAIT", "0"])).expect("write");
        sent + Duration::from_millis(lease_ms)
    };
    let mut due: Vec<Instant> = Vec::new();
    for (number, waiter) in waiters.iter_mut().enumerate() {
        due.push(contend(&mut agent, waiter, number));
    }
    let end = Instant::now() + Duration::from_secs(if quick { 2 } else { 20 });
    let waited_ns = server.waited_ns().expect("a running process");
    let mut late_us = Vec::new();
    // A separate thread records when replies come, so that other work of this program does not count as lateness.
    let (sender, arrivals) = std::sync::mpsc::channel();
    let sockets: Vec<TcpStream> = waiters.iter().map(|socket| socket.try_clone().expect("a second handle")).collect();
    std::thread::spawn(move || listen(&poll, sockets, &sender));
    while Instant::now() < end {
        let (number, came): (usize, Instant) = arrivals.recv().expect("a grant");
        let late = came.checked_duration_since(due[number]).expect("no grant before the end of the lease");
        late_us.push(late.as_micros() as i64);
        assert_eq!(agent.send([encode(&["LOCK.RELEASE", &name(number), "waiter"])].into_iter()), 0);
        due[number] = contend(&mut agent, &mut waiters[number], number);
    }
    let waited_ms = (server.waited_ns().expect("a running process") - waited_ns) / 1_000_000;
    let what =
        format!("end of a lease to the next grant, {others} others running (server waited {waited_ms} ms for a processor)");
    print_latencies(&what, late_us, "p99 ≤ 2 ms");
}

/// Records when each waiter is granted its lock, until the receiver is dropped.
fn listen(poll: &OwnedFd, mut waiters: Vec<TcpStream>, told: &Sender<(usize, Instant)>) {
    let mut events = Vec::with_capacity(CONTENDED);
    loop {
        events.clear();
        epoll::wait(poll, rustix::buffer::spare_capacity(&mut events), None).expect("epoll");
        let came = Instant::now();
        for event in &events {
            let number = event.data.u64() as usize;
            // At the end of the bench the server is gone.
            let granted = waiters[number].read(&mut [0; 64]).is_ok_and(|count| count > 0);
            if !granted || told.send((number, came)).is_err() {
                return;
            }
        }
    }
}

/// The process of a holder: acquires a lock that ends with its connection, prints the token, and waits to be killed.
fn hold_forever(addr: &str) {
    let mut socket = connect(addr.parse().expect("an address"));
    socket.write_all(&encode(&["LOCK.ACQUIRE", "session", "holder", LONG_MS, "SESSION"])).expect("write");
    println!("{}", read_token(&mut socket));
    std::io::stdout().flush().expect("flush");
    std::thread::sleep(Duration::from_secs(60));
}

/// Second part: from the death of a holder to the next grant.
fn sessions(quick: bool) {
    let trials = if quick { 50 } else { 300 };
    let server = portcullis();
    let mut agent = Agent::new(server.addr());
    let mut waiter = connect(server.addr());
    let release = || [encode(&["LOCK.RELEASE", "session", "waiter"])].into_iter();
    let mut wait = || {
        waiter.write_all(&encode(&["LOCK.ACQUIRE", "session", "waiter", LONG_MS, "WAIT", "0"])).expect("write");
        while !call(server.addr(), &["INFO", "clients"]).expect("a reply").contains("blocked_clients:1\r\n") {
            std::thread::yield_now();
        }
        waiter.try_clone().expect("a second handle")
    };
    let (mut killed_us, mut reset_us) = (Vec::new(), Vec::new());
    for _ in 0..trials {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        let mut child = command.args(["--hold", &server.addr().to_string()]).stdout(Stdio::piped()).spawn().expect("a process");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("read");
        let held: u64 = line.trim_end().parse().expect("a fencing token");
        let mut socket = wait();
        let began = Instant::now();
        child.kill().expect("kill");
        let token = read_token(&mut socket);
        killed_us.push(began.elapsed().as_micros() as i64);
        assert!(token > held);
        child.wait().expect("wait");
        agent.send(release());
    }
    for _ in 0..trials {
        let mut holder = connect(server.addr());
        holder.write_all(&encode(&["LOCK.ACQUIRE", "session", "holder", LONG_MS, "SESSION"])).expect("write");
        read_token(&mut holder);
        let mut socket = wait();
        socket2::SockRef::from(&holder).set_linger(Some(Duration::ZERO)).expect("linger");
        let began = Instant::now();
        drop(holder);
        read_token(&mut socket);
        reset_us.push(began.elapsed().as_micros() as i64);
        agent.send(release());
    }
    print_latencies("SIGKILL of a SESSION holder to the next grant", killed_us, "≤ 5 ms");
    print_latencies("TCP reset of a SESSION holder to the next grant", reset_us, "≤ 5 ms");
}

/// A shape of the wait-for graph.
struct Shape {
    what: &'static str,
    /// Builds the shape with this number of owners.
    build: fn(&mut Crowd, usize),
    /// The lock that the measured owners request.
    target: &'static str,
}

const SHAPES: [Shape; 8] = [
    Shape { what: "no other waiters", build: |crowd, _| crowd.hold("l", "boss"), target: "l" },
    Shape {
        what: "all wait for one lock",
        build: |crowd, count| {
            crowd.hold("l", "boss");
            crowd.wait((0..count).map(|n| ("l".into(), format!("w{n}"))));
        },
        target: "l",
    },
    Shape {
        what: "all wait for one lock, and each holds another uncontended one",
        build: |crowd, count| {
            crowd.hold("l", "boss");
            crowd.hold_all((0..count).map(|n| (format!("m{n}"), format!("w{n}"))), &[]);
            crowd.wait((0..count).map(|n| ("l".into(), format!("w{n}"))));
        },
        target: "l",
    },
    Shape {
        what: "half wait for one lock, and each holds another one that one of the other half waits for",
        build: |crowd, count| {
            crowd.hold("l", "boss");
            crowd.hold_all((0..count / 2).map(|n| (format!("m{n}"), format!("w{n}"))), &[]);
            crowd.wait((0..count / 2).map(|n| (format!("m{n}"), format!("v{n}"))));
            crowd.wait((0..count / 2).map(|n| ("l".into(), format!("w{n}"))));
        },
        target: "l",
    },
    Shape {
        what: "spread over 100 locks, each held by an owner that waits for the next",
        build: |crowd, count| {
            crowd.hold_all((0..100).map(|n| (format!("c{n}"), format!("w{n}"))), &[]);
            crowd.wait((0..99).map(|n| (format!("c{}", n + 1), format!("w{n}"))));
            crowd.wait((99..count).map(|n| (format!("c{}", n % 100), format!("v{n}"))));
        },
        target: "c0",
    },
    Shape {
        what: "a chain: each holds the lock that the one before waits for",
        build: |crowd, count| {
            crowd.hold_all((0..=count).map(|n| (format!("c{n}"), format!("w{n}"))), &[]);
            crowd.wait((0..count).map(|n| (format!("c{}", n + 1), format!("w{n}"))));
        },
        target: "c0",
    },
    Shape {
        what: "all share the lock, and each waits for another",
        build: |crowd, count| {
            crowd.hold_all((0..count).map(|n| ("l".into(), format!("w{n}"))), &["SHARED"]);
            crowd.hold_all((0..count).map(|n| (format!("d{n}"), "boss".into())), &[]);
            crowd.wait((0..count).map(|n| (format!("d{n}"), format!("w{n}"))));
        },
        target: "l",
    },
    Shape {
        what: "a third share the lock and wait for others; a third wait for the measured owners, and hold the locks that the last third waits for",
        build: |crowd, count| {
            let part = count / 3;
            crowd.hold_all((0..part).map(|n| ("l".into(), format!("w{n}"))), &["SHARED"]);
            crowd.hold_all((0..part).map(|n| (format!("d{n}"), "boss".into())), &[]);
            crowd.wait((0..part).map(|n| (format!("d{n}"), format!("w{n}"))));
            crowd.hold_all((0..part).map(|n| (format!("m{n}"), format!("u{n}"))), &[]);
            crowd.wait((0..part).map(|n| (format!("m{n}"), format!("v{n}"))));
            // The owners that wait for the measured ones share a lock for which the rest of the crowd waits.
            crowd.hold_all((0..MEASURED).map(|n| ("k".into(), format!("y{n}"))), &["SHARED"]);
            crowd.wait((0..part).map(|n| ("k".into(), format!("u{n}"))));
        },
        target: "l",
    },
];

/// Owners of locks on a server, and the connections of those that wait.
struct Crowd {
    server: Process,
    agent: Agent,
    waiting: Vec<TcpStream>,
}

impl Crowd {
    fn new() -> Crowd {
        let server = portcullis();
        call_expecting(server.addr(), &["CONFIG", "SET", "maxclients", "15000"], "+OK\r\n").expect("it is taken");
        Crowd { agent: Agent::new(server.addr()), server, waiting: Vec::new() }
    }

    fn hold(&mut self, name: &str, owner: &str) {
        self.hold_all([(name.to_owned(), owner.to_owned())].into_iter(), &[]);
    }

    fn hold_all(&mut self, what: impl Iterator<Item = (String, String)>, words: &[&str]) {
        self.agent.hold(what, words);
    }

    /// Lets each of these owners wait on its own connection.
    fn wait(&mut self, what: impl Iterator<Item = (String, String)>) {
        let before = self.waiting.len();
        for (name, owner) in what {
            let mut socket = connect(self.server.addr());
            socket.write_all(&encode(&["LOCK.ACQUIRE", &name, &owner, LONG_MS, "WAIT", "0"])).expect("write");
            self.waiting.push(socket);
            // No more at once than fit into the listener's backlog.
            if (self.waiting.len() - before).is_multiple_of(100) {
                self.settle();
            }
        }
        self.settle();
    }

    /// Waits until all owners are blocked.
    fn settle(&self) {
        let all = format!("blocked_clients:{}\r\n", self.waiting.len());
        let began = Instant::now();
        while !call(self.server.addr(), &["INFO", "clients"]).expect("a reply").contains(&all) {
            assert!(began.elapsed() < Duration::from_secs(20), "an owner is not blocked");
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Third part: the cost of beginning to wait.
fn waits(quick: bool) {
    raise_file_limit(20_000);
    println!("\n| adding a wait with 10,000 others | server CPU, µs | bar |");
    println!("| --- | ---: | ---: |");
    let count = if quick { 2_000 } else { 10_000 };
    for shape in &SHAPES {
        let mut crowd = Crowd::new();
        // Each measured owner holds a lock for which another owner waits. Otherwise it could be in no cycle, and there would be
        // nothing to check.
        crowd.hold_all((0..MEASURED).map(|n| (format!("own{n}"), format!("x{n}"))), &[]);
        crowd.wait((0..MEASURED).map(|n| (format!("own{n}"), format!("y{n}"))));
        (shape.build)(&mut crowd, count);
        let sockets: Vec<TcpStream> = (0..MEASURED).map(|_| connect(crowd.server.addr())).collect();
        for mut socket in &sockets {
            socket.write_all(b"PING\r\n").expect("write");
            socket.read_exact(&mut [0; 7]).expect("read");
        }
        let requests: Vec<Vec<u8>> =
            (0..MEASURED).map(|n| encode(&["LOCK.ACQUIRE", shape.target, &format!("x{n}"), LONG_MS, "WAIT", "0"])).collect();
        let before = crowd.server.cpu_ns().expect("a running process");
        for (mut socket, request) in sockets.iter().zip(&requests) {
            socket.write_all(request).expect("write");
        }
        // The server does not tell when the last owner is blocked. It is, long before this pause ends.
        std::thread::sleep(Duration::from_millis(if quick { 100 } else { 500 }));
        let spent = (crowd.server.cpu_ns().expect("a running process") - before) as f64 / MEASURED as f64 / 1000.0;
        crowd.waiting.extend(sockets);
        crowd.settle();
        println!("| {} | {spent:.1} | ≤ 20 |", shape.what);
    }
}

fn main() {
    // `cargo bench` passes --bench. `cargo test --benches` passes --test; then nothing is measured.
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--test") {
        return;
    }
    let value = |name: &str| args.iter().skip_while(|arg| *arg != name).nth(1);
    if let Some(addr) = value("--hold") {
        return hold_forever(addr);
    }
    let quick = args.iter().any(|arg| arg == "--quick");
    let only = value("--only").map_or("", String::as_str);
    if only != "waits" {
        println!("| | trials | p50 ms | p99 ms | max ms | bar |");
        println!("| --- | ---: | ---: | ---: | ---: | --- |");
    }
    if only.is_empty() || only == "lease" {
        leases(quick);
    }
    if only.is_empty() || only == "session" {
        sessions(quick);
    }
    if only.is_empty() || only == "waits" {
        waits(quick);
    }
}
