//! How long one client's large request holds up other clients, side by side with redis-server: `cargo bench --bench steadiness
//! [-- --quick] [--only WORD] [--no-redis]`. With `--commands`: the longest turn of each command, see `commands.rs`.
//!
//! For each row a server is filled. One client then sends one request (or many), and another one sends a PING every 200 µs until
//! the server has done all deferred work of the request. The figure is the longest wait of that other client. Beside it are the
//! longest turn by the server's own figure (`LATENCY TURNS`), the time that the server's thread waited for a processor, and the
//! resident memory before the server was filled and at the end.
//!
//! On a busy machine the waits are those of its scheduler. `chrt -f 10 cargo bench --bench steadiness`, as root, avoids that.

mod commands;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portcullis::bench::machine::raise_file_limit;
use portcullis::bench::servers::kind::ServerKind;
use portcullis::bench::servers::process::Process;
use portcullis::bench::servers::wire::encode;

/// Interval between the other client's requests.
const PACE: Duration = Duration::from_micros(200);
/// Number of arguments of a request that fills a collection.
const ARGUMENTS: usize = 20;
/// Maximum time for the server's deferred work.
const DEFERRED_WORK_TIMEOUT: Duration = Duration::from_secs(30);
/// Time from the last FLUSHALL to the reading of the resident memory.
const MEMORY_SETTLES: Duration = Duration::from_secs(2);
/// Number of waiters and subscribers: as many as the usual limit of open files permits.
const CROWD: usize = 5000;

/// A blocking client.
struct Client {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    fn connect(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect(addr).expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        let reader = BufReader::with_capacity(1 << 20, stream.try_clone().expect("a second handle"));
        Client { stream, reader }
    }

    fn send(&mut self, args: &[&str]) {
        self.stream.write_all(&encode(args)).expect("write");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("a reply");
        line.trim_end().to_owned()
    }

    /// Reads a reply. Returns its text, or the text of its last element. Panics on an error reply.
    fn read(&mut self) -> String {
        self.read_all().unwrap_or_else(|error| panic!("{error}")).pop().unwrap_or_default()
    }

    /// Reads a reply. Returns the texts of all its elements, or the last error among them.
    fn read_all(&mut self) -> Result<Vec<String>, String> {
        let line = self.line();
        let (kind, rest) = line.split_at(1);
        match kind {
            "-" => Err(line),
            "$" if rest != "-1" => {
                let mut bytes = vec![0; rest.parse::<usize>().expect("a length") + 2];
                self.reader.read_exact(&mut bytes).expect("a bulk");
                Ok(vec![String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned()])
            }
            "*" if rest != "-1" => {
                let mut all = Ok(Vec::new());
                for _ in 0..rest.parse::<usize>().expect("a length") {
                    match (self.read_all(), &mut all) {
                        (Ok(more), Ok(texts)) => texts.extend(more),
                        (Err(error), _) => all = Err(error),
                        _ => {}
                    }
                }
                all
            }
            _ => Ok(vec![rest.to_owned()]),
        }
    }

    fn call(&mut self, args: &[&str]) -> String {
        self.send(args);
        self.read()
    }

    /// Sends requests, a thousand at a time, and reads their replies.
    fn pipe(&mut self, requests: impl Iterator<Item = Vec<u8>>) {
        let mut requests = requests.peekable();
        while requests.peek().is_some() {
            let batch: Vec<Vec<u8>> = requests.by_ref().take(1000).collect();
            self.stream.write_all(&batch.concat()).expect("write");
            batch.iter().for_each(|_| drop(self.read()));
        }
    }

    /// A number from the reply to `INFO`.
    fn info(&mut self, name: &str) -> Option<u64> {
        let text = self.call(&["INFO", "everything"]);
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.parse().ok())
    }

    /// Sets `n` keys.
    fn keys(&mut self, n: usize) {
        self.pipe((0..n).map(|n| encode(&["SET", &format!("key:{n}"), "5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21"])));
    }

    /// Adds `n` elements to the collection `big`. `element` gives the arguments of one element.
    fn grow(&mut self, command: &str, n: usize, element: impl Fn(usize) -> Vec<String>) {
        self.pipe((0..n.div_ceil(ARGUMENTS)).map(|batch| {
            let elements: Vec<String> = (batch * ARGUMENTS..((batch + 1) * ARGUMENTS).min(n)).flat_map(&element).collect();
            let args: Vec<&str> = [command, "big"].into_iter().chain(elements.iter().map(String::as_str)).collect();
            encode(&args)
        }));
    }

    fn hash(&mut self, n: usize) {
        self.grow("HSET", n, |n| vec![format!("field:{n}"), format!("value:{n}")]);
    }

    fn zset(&mut self, n: usize) {
        self.grow("ZADD", n, |n| vec![(n * 7919 % 1_000_003).to_string(), format!("member:{n}")]);
    }

    fn set(&mut self, n: usize) {
        self.grow("SADD", n, |n| vec![format!("member:{n}")]);
    }

    fn list(&mut self, n: usize) {
        self.grow("RPUSH", n, |n| vec![format!("element:{n}")]);
    }

    /// Subscribes to `n` channels.
    fn channels(&mut self, n: usize) {
        for batch in 0..n.div_ceil(ARGUMENTS) {
            let names: Vec<String> = (batch * ARGUMENTS..(batch + 1) * ARGUMENTS).map(|n| format!("channel:{n}")).collect();
            self.send(&["SUBSCRIBE"].into_iter().chain(names.iter().map(String::as_str)).collect::<Vec<_>>());
            names.iter().for_each(|_| drop(self.read()));
        }
    }

    fn string(&mut self, n: usize) {
        self.call(&["SETRANGE", "big", &(n * 100).to_string(), "x"]);
    }
}

/// A row: how the server is filled, and the request that is measured. Both get the number of keys, elements or hundreds of bytes.
struct Row {
    name: &'static str,
    fill: fn(&mut Client, usize),
    ask: fn(&mut Client, usize),
    /// Whether redis-server has the request too.
    on_redis: bool,
}

const fn row(name: &'static str, fill: fn(&mut Client, usize), ask: fn(&mut Client, usize)) -> Row {
    Row { name, fill, ask, on_redis: true }
}

/// Waits until this number of clients is blocked.
fn until_blocked(c: &mut Client, waiters: usize) {
    while c.info("blocked_clients").unwrap_or(0) < waiters as u64 {
        std::thread::sleep(Duration::from_millis(20));
    }
}

const ROWS: &[Row] = &[
    row("keys are set one by one", |_, _| (), |c, n| c.keys(n)),
    row("FLUSHALL", |c, n| c.keys(n), |c, _| drop(c.call(&["FLUSHALL"]))),
    row("FLUSHALL ASYNC", |c, n| c.keys(n), |c, _| drop(c.call(&["FLUSHALL", "ASYNC"]))),
    row(
        "keys are deleted one by one",
        |c, n| c.keys(n),
        |c, n| {
            c.pipe((0..n).map(|n| encode(&["DEL", &format!("key:{n}")])));
        },
    ),
    row(
        "all keys end in one millisecond",
        |_, _| (),
        |c, n| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock after 1970");
            let at = (now.as_millis() + 1000 + n as u128 / 100).to_string();
            c.pipe((0..n).map(|n| encode(&["SET", &format!("key:{n}"), "v", "PXAT", &at])));
            while c.call(&["DBSIZE"]) != "0" {
                std::thread::sleep(Duration::from_millis(20));
            }
        },
    ),
    row("SCAN 0 COUNT n", |c, n| c.keys(n), |c, n| drop(c.call(&["SCAN", "0", "COUNT", &n.to_string()]))),
    row("KEYS *", |c, n| c.keys(n), |c, _| drop(c.call(&["KEYS", "*"]))),
    row("KEYS nosuch*", |c, n| c.keys(n), |c, _| drop(c.call(&["KEYS", "nosuch*"]))),
    row("a hash grows", |_, _| (), |c, n| c.hash(n)),
    row("DEL of a hash", |c, n| c.hash(n), |c, _| drop(c.call(&["DEL", "big"]))),
    row("UNLINK of a hash", |c, n| c.hash(n), |c, _| drop(c.call(&["UNLINK", "big"]))),
    row("SET over a hash", |c, n| c.hash(n), |c, _| drop(c.call(&["SET", "big", "v"]))),
    row("RENAME of a hash", |c, n| c.hash(n), |c, _| drop(c.call(&["RENAME", "big", "other"]))),
    row("HSCAN COUNT n of a hash", |c, n| c.hash(n), |c, n| drop(c.call(&["HSCAN", "big", "0", "COUNT", &n.to_string()]))),
    row("DEL of a set", |c, n| c.set(n), |c, _| drop(c.call(&["DEL", "big"]))),
    row("a sorted set grows", |_, _| (), |c, n| c.zset(n)),
    row("DEL of a sorted set", |c, n| c.zset(n), |c, _| drop(c.call(&["DEL", "big"]))),
    row("DEL of a list", |c, n| c.list(n), |c, _| drop(c.call(&["DEL", "big"]))),
    row("DEL of a string of 100 bytes times n", |c, n| c.string(n), |c, _| drop(c.call(&["DEL", "big"]))),
    row("SET over such a string", |c, n| c.string(n), |c, _| drop(c.call(&["SET", "big", "v"]))),
    row(
        "5,000 clients connect",
        |_, _| (),
        |c, _| {
            let addr = c.stream.peer_addr().expect("an address");
            drop((0..CROWD).map(|_| Client::connect(addr)).collect::<Vec<_>>());
        },
    ),
    row(
        "5,000 waiters leave",
        |_, _| (),
        |c, _| {
            let addr = c.stream.peer_addr().expect("an address");
            let mut crowd: Vec<Client> = (0..CROWD).map(|_| Client::connect(addr)).collect();
            crowd.iter_mut().for_each(|waiter| waiter.send(&["BLPOP", "queue", "0"]));
            until_blocked(c, CROWD);
        },
    ),
    row(
        "PUBLISH to 5,000 subscribers",
        |_, _| (),
        |c, _| {
            let addr = c.stream.peer_addr().expect("an address");
            let mut crowd: Vec<Client> = (0..CROWD).map(|_| Client::connect(addr)).collect();
            crowd.iter_mut().for_each(|listener| drop(listener.call(&["SUBSCRIBE", "news"])));
            c.call(&["PUBLISH", "news", "something"]);
            crowd.iter_mut().for_each(|listener| drop(listener.read()));
        },
    ),
    Row {
        name: "CLIENT LIST of 5,000",
        fill: |c, _| {
            let addr = c.stream.peer_addr().expect("an address");
            // The connections stay until the bench ends, so there is no room for those of another server.
            (0..CROWD).for_each(|_| std::mem::forget(Client::connect(addr)));
            while c.info("connected_clients").unwrap_or(0) < CROWD as u64 {
                std::thread::sleep(Duration::from_millis(20));
            }
        },
        ask: |c, _| assert!(c.call(&["CLIENT", "LIST"]).lines().count() > CROWD),
        on_redis: false,
    },
    row(
        "PUBSUB CHANNELS of a tenth of n",
        |c, n| {
            let mut listener = Client::connect(c.stream.peer_addr().expect("an address"));
            listener.channels(n / 10);
            std::mem::forget(listener);
        },
        |c, _| drop(c.call(&["PUBSUB", "CHANNELS"])),
    ),
    row(
        "UNSUBSCRIBE from a tenth of n",
        |_, _| (),
        |c, n| {
            let mut listener = Client::connect(c.stream.peer_addr().expect("an address"));
            listener.channels(n / 10);
            listener.send(&["UNSUBSCRIBE"]);
            (0..n / 10).for_each(|_| drop(listener.read()));
        },
    ),
    row(
        "SCRIPT FLUSH of a fiftieth of n",
        |c, n| c.pipe((0..n / 50).map(|n| encode(&["SCRIPT", "LOAD", &format!("return redis.call('get', KEYS[1]) == '{n}'")]))),
        |c, _| drop(c.call(&["SCRIPT", "FLUSH"])),
    ),
    Row {
        name: "FLUSHALL of native locks",
        fill: |c, n| c.pipe((0..n).map(|n| encode(&["LOCK.ACQUIRE", &format!("lock:{n}"), "owner", "1000000"]))),
        ask: |c, _| drop(c.call(&["FLUSHALL"])),
        on_redis: false,
    },
    // From here on a reply or a value is made in one step, whose time is proportional to its size.
    row("COPY of a hash", |c, n| c.hash(n), |c, _| drop(c.call(&["COPY", "big", "other"]))),
    row("HGETALL", |c, n| c.hash(n), |c, _| drop(c.call(&["HGETALL", "big"]))),
    row("SMEMBERS", |c, n| c.set(n), |c, _| drop(c.call(&["SMEMBERS", "big"]))),
    row("LRANGE 0 -1", |c, n| c.list(n), |c, _| drop(c.call(&["LRANGE", "big", "0", "-1"]))),
    row("ZRANGE 0 -1", |c, n| c.zset(n), |c, _| drop(c.call(&["ZRANGE", "big", "0", "-1"]))),
    row("SUNIONSTORE", |c, n| c.set(n), |c, _| drop(c.call(&["SUNIONSTORE", "other", "big"]))),
    row("SORT … LIMIT 0 1", |c, n| c.set(n), |c, _| drop(c.call(&["SORT", "big", "ALPHA", "LIMIT", "0", "1"]))),
    row("GET of a string of 100 bytes times n", |c, n| c.string(n), |c, _| drop(c.call(&["GET", "big"]))),
];

/// Sends PINGs until told to stop. Returns the longest latency.
fn ping(addr: SocketAddr, stop: Arc<AtomicBool>) -> JoinHandle<Duration> {
    let mut client = Client::connect(addr);
    std::thread::spawn(move || {
        let mut longest = Duration::ZERO;
        while !stop.load(Ordering::Relaxed) {
            let sent = Instant::now();
            client.call(&["PING"]);
            longest = longest.max(sent.elapsed());
            std::thread::sleep(PACE);
        }
        longest
    })
}

/// The figures of a row on one server.
struct Outcome {
    waited: Duration,
    turn_us: Option<u64>,
    off_processor: Duration,
    resident: [u64; 2],
}

fn run(server: &Process, row: &Row, n: usize) -> Outcome {
    let resident = || server.resident_bytes().expect("a running process");
    let waited = || server.waited_ns().expect("a running process");
    let before = resident();
    let mut client = Client::connect(server.addr());
    (row.fill)(&mut client, n);
    client.call(&["CONFIG", "RESETSTAT"]);
    let stop = Arc::new(AtomicBool::new(false));
    let pinging = ping(server.addr(), Arc::clone(&stop));
    let waited_ns = waited();
    (row.ask)(&mut client, n);
    let asked = Instant::now();
    let left = ["memory_waits_to_be_freed", "lazyfree_pending_objects"];
    while asked.elapsed() < DEFERRED_WORK_TIMEOUT && left.iter().any(|name| client.info(name).is_some_and(|left| left > 0)) {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(500));
    let off_processor = Duration::from_nanos(waited() - waited_ns);
    stop.store(true, Ordering::Relaxed);
    let longest = pinging.join().expect("the other client");
    let turn_us = client.info("turn_longest_usec");
    client.call(&["FLUSHALL"]);
    std::thread::sleep(MEMORY_SETTLES);
    Outcome { waited: longest, turn_us, off_processor, resident: [before, resident()] }
}

fn ms(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64() * 1000.0)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let only = args.iter().position(|arg| arg == "--only").and_then(|at| args.get(at + 1)).map(String::as_str).unwrap_or("");
    let n = if has("--quick") {
        100_000
    } else if has("--tiny") {
        3_000
    } else {
        1_000_000
    };
    raise_file_limit(20_000);
    if has("--commands") {
        std::process::exit(i32::from(!commands::run(n, only)));
    }
    println!("{n} keys or elements; milliseconds\n");
    println!("| | longest turn | another client's longest wait | without a processor | on redis-server | MiB before and after |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for row in ROWS.iter().filter(|row| row.name.contains(only)) {
        let program = Path::new(env!("CARGO_BIN_EXE_portcullis"));
        let ours = run(&ServerKind::Portcullis.start(program).expect("the program was built with this bench"), row, n);
        let redis = ServerKind::Redis.find().filter(|_| row.on_redis && !has("--no-redis"));
        let redis = redis.and_then(|program| ServerKind::Redis.start(&program).ok()).map(|redis| run(&redis, row, n));
        let [before, after] = ours.resident.map(|bytes| bytes >> 20);
        println!(
            "| {} | {:.2} | {} | {} | {} | {before} → {after} |",
            row.name,
            ours.turn_us.unwrap_or(0) as f64 / 1000.0,
            ms(ours.waited),
            ms(ours.off_processor),
            redis.map_or("–".into(), |redis| ms(redis.waited)),
        );
    }
}
