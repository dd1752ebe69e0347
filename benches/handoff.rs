//! What handing a lock on costs among those who wait for it, side by side with redis-server:
//! `cargo bench --bench handoff [-- --quick] [--only native|blpop|subscribe] [--waiters N]`.
//!
//! W clients want one lock and hold it for no time at all. Three ways, each with two requests an acquisition if all goes well:
//!
//! - **native**: `LOCK.ACQUIRE … WAIT 0` and `LOCK.RELEASE`; beside it what comes closest on Redis, the next one;
//! - **blpop**: a token in a list; whoever gets it gives it back with `RPUSH` and waits again;
//! - **subscribe**: what libraries do today, here with Redisson's scripts: who cannot have the lock waits for a message to the lock's
//!   channel and tries again. All stay subscribed, so that subscribing is not counted.
//!
//! Beside the first way stands the floor: what it costs a loop of `epoll_wait`, `recv` and `send` that does nothing else, see
//! `servers/floor.rs`. No server can cost less than the system calls that bring the requests and the replies.
//!
//! Servers take turns in short slices, every byte of theirs is checked. The figure is the server's own CPU time per acquisition and
//! release, the median of the slices; then how many commands an acquisition took by the server's own count, and Jain's index of how
//! fair the shares of the clients were (1: all alike; 1/W: one had everything), over all slices, where there was enough to share out.

mod servers;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;

use rustix::event::epoll;

use servers::{Server, encode, redisson};

const WAITERS: [usize; 5] = [1, 16, 64, 256, 1024];
/// Who released can have had no other reply than this before it is granted the lock again.
const RELEASED: &[u8] = b":0\r\n";
const PUSHED: &[u8] = b":1\r\n";
const TAKEN: &[u8] = b"*2\r\n$5\r\ntoken\r\n$1\r\nt\r\n";
const CHANNEL: &str = "redisson_lock__channel:{lock}";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Native,
    Blpop,
    Subscribe,
}

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Way::Native => "native",
            Way::Blpop => "blpop",
            Way::Subscribe => "subscribe",
        }
    }

    /// The commands that clients send, of which the server counts how many it has run.
    fn commands(self) -> &'static [&'static str] {
        match self {
            Way::Native => &["lock.acquire", "lock.release"],
            Way::Blpop => &["blpop", "rpush"],
            Way::Subscribe => &["evalsha"],
        }
    }

    /// Acquisitions of a slice: whole rounds, and not more than is worth the time where each wakes everybody.
    fn hand_offs(self, waiters: usize, quick: bool) -> usize {
        let rounds = match (self, quick) {
            (Way::Subscribe, true) => 16_384 / waiters / waiters,
            (Way::Subscribe, false) => (65_536 / waiters / waiters).min(16_384),
            (_, true) => 8_192 / waiters,
            (_, false) => 32_768 / waiters,
        };
        rounds.max(1) * waiters
    }
}

/// A client, and what it has read of its next reply.
struct Client {
    socket: TcpStream,
    /// Where messages come in.
    listening: Option<TcpStream>,
    read: Vec<u8>,
    take: Vec<u8>,
    /// Gives the lock back, and takes it again where the server has a line.
    hand_on: Vec<u8>,
    served: u64,
    /// Bytes of messages.
    heard: usize,
    /// A reply is to come.
    asked: bool,
    holds: bool,
    /// A message came after the request that is on its way.
    called: bool,
}

/// Clients of one server, all of which want one lock.
struct Ring {
    way: Way,
    server: Server,
    poll: OwnedFd,
    clients: Vec<Client>,
    /// Nanoseconds per acquisition of each slice.
    costs: Vec<f64>,
    acquired: u64,
    commands: u64,
    /// The largest fencing token.
    token: u64,
    /// Who holds the lock between slices.
    holder: usize,
    /// Releases, each of which everybody hears of.
    messages: usize,
}

impl Ring {
    fn new(server: Server, way: Way, count: usize) -> Ring {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
        if way == Way::Subscribe {
            for (script, sha) in [(redisson::ACQUIRE, redisson::ACQUIRE_SHA), (redisson::RELEASE, redisson::RELEASE_SHA)] {
                assert_eq!(server.call(&["SCRIPT", "LOAD", script]), format!("$40\r\n{sha}\r\n"));
            }
        }
        let clients = (0..count).map(|number| Client::new(&server, &poll, way, number)).collect();
        let mut ring =
            Ring { way, server, poll, clients, costs: Vec::new(), acquired: 0, commands: 0, token: 0, holder: 0, messages: 0 };
        if way == Way::Subscribe {
            return ring;
        }
        for client in &mut ring.clients {
            client.socket.write_all(&client.take).expect("write");
        }
        // The first one has the lock; the token of a list is still to come.
        let waiting = if way == Way::Native { count - 1 } else { count };
        while !ring.server.call(&["INFO", "clients"]).contains(&format!("blocked_clients:{waiting}\r\n")) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        if way == Way::Native {
            let holder = ring.read_grant();
            ring.holder = holder;
        }
        ring
    }

    /// Waits for the one client that is granted the lock to begin with.
    fn read_grant(&mut self) -> usize {
        let mut events = Vec::with_capacity(1);
        epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), None).expect("epoll");
        let number = events[0].data.u64() as usize;
        self.clients[number].receive();
        self.token = self.clients[number].next_token().expect("a fencing token");
        number
    }

    /// How many of the clients' commands the server has run.
    fn commands_run(&self) -> u64 {
        let info = self.server.call(&["INFO", "commandstats"]);
        let calls = |name: &str| -> u64 {
            let row = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
            row.and_then(|row| row.split(',').next()).map_or(0, |calls| calls.parse().expect("a number"))
        };
        self.way.commands().iter().map(|name| calls(name)).sum()
    }

    /// Lets the lock change hands so many times, and checks every byte.
    fn slice(&mut self, hand_offs: usize) {
        let commands = self.commands_run();
        let before = self.server.cpu_ns();
        match self.way {
            Way::Native => {
                let holder = &mut self.clients[self.holder];
                holder.socket.write_all(&holder.hand_on).expect("write");
            }
            Way::Blpop => assert_eq!(self.server.call(&["RPUSH", "token", "t"]), ":1\r\n"),
            Way::Subscribe => self.clients.iter_mut().for_each(Client::ask),
        }
        let mut left = hand_offs;
        let mut events = Vec::with_capacity(16);
        while left > 0 || (self.way == Way::Subscribe && !self.is_quiet()) {
            events.clear();
            epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), None).expect("epoll");
            for event in &events {
                let number = event.data.u64() as usize;
                match self.way {
                    Way::Native => self.on_native(number, &mut left),
                    Way::Blpop => self.on_blpop(number, &mut left),
                    Way::Subscribe => self.on_subscribe(number, &mut left),
                }
            }
        }
        let after = self.server.cpu_ns();
        self.costs.push((after - before) as f64 / hand_offs as f64);
        // The token of a list is put there in the beginning by somebody else, and comes out of it in the end.
        self.commands += self.commands_run() - commands;
        self.acquired += hand_offs as u64;
    }

    /// Nobody has anything to do any more, and everybody has heard everything.
    fn is_quiet(&self) -> bool {
        let heard = self.messages * message_len();
        self.clients.iter().all(|client| !client.asked && client.heard == heard)
    }

    fn on_native(&mut self, number: usize, left: &mut usize) {
        let client = &mut self.clients[number];
        client.receive();
        if client.read.starts_with(RELEASED) {
            client.read.drain(..RELEASED.len());
        }
        if let Some(token) = client.next_token() {
            assert!(token > self.token, "fencing tokens grow: {token} after {}", self.token);
            (self.token, self.holder) = (token, number);
            client.served += 1;
            *left = left.saturating_sub(1);
            if *left > 0 {
                client.socket.write_all(&client.hand_on).expect("write");
            }
        }
    }

    fn on_blpop(&mut self, number: usize, left: &mut usize) {
        let client = &mut self.clients[number];
        client.receive();
        // What it pushed before is answered before the token comes to it again.
        if client.read.starts_with(PUSHED) {
            client.read.drain(..PUSHED.len());
        }
        if client.read == TAKEN {
            client.read.clear();
            client.served += 1;
            *left = left.saturating_sub(1);
            let request = if *left > 0 { &client.hand_on } else { &client.take };
            client.socket.write_all(request).expect("write");
        } else {
            assert!(TAKEN.starts_with(&client.read), "{:?}", String::from_utf8_lossy(&client.read));
        }
    }

    fn on_subscribe(&mut self, number: usize, left: &mut usize) {
        let (at, listens) = (number / 2, number % 2 == 1);
        let client = &mut self.clients[at];
        if listens {
            client.listen();
            if client.called && !client.asked && *left > 0 {
                client.ask();
            }
            return;
        }
        client.receive();
        if !client.read.ends_with(b"\r\n") {
            return;
        }
        let reply = std::mem::take(&mut client.read);
        client.asked = false;
        if client.holds {
            assert_eq!(reply, b":1\r\n");
            client.holds = false;
            self.messages += 1;
            if *left > 0 {
                client.ask();
            }
        } else if reply == b"$-1\r\n" {
            client.served += 1;
            *left = left.saturating_sub(1);
            (client.holds, client.asked) = (true, true);
            client.socket.write_all(&client.hand_on).expect("write");
        } else {
            assert!(reply.starts_with(b":"), "{:?}", String::from_utf8_lossy(&reply));
            if client.called && *left > 0 {
                client.ask();
            }
        }
    }

    fn median(&mut self) -> f64 {
        self.costs.sort_by(f64::total_cmp);
        self.costs[self.costs.len() / 2]
    }

    /// Jain's index of the clients' shares; `None` where there were too few acquisitions to be shared out.
    fn fairness(&self) -> Option<f64> {
        let shares = self.clients.iter().map(|client| client.served as f64);
        let (sum, squares) = shares.fold((0.0, 0.0), |(sum, squares), share| (sum + share, squares + share * share));
        let enough = self.acquired as usize >= 8 * self.clients.len();
        enough.then(|| sum * sum / (self.clients.len() as f64 * squares))
    }

    fn figures(&mut self) -> Figures {
        let commands = self.commands as f64 / self.acquired as f64;
        Figures { ns: self.median(), commands, fairness: self.fairness() }
    }
}

/// Bytes of a message that the lock is free.
fn message_len() -> usize {
    encode(&["message", CHANNEL, "0"]).len()
}

impl Client {
    fn new(server: &Server, poll: &OwnedFd, way: Way, number: usize) -> Client {
        let connect = |data: usize| {
            let socket = TcpStream::connect(server.addr).expect("connect");
            socket.set_nodelay(true).expect("nodelay");
            epoll::add(poll, &socket, epoll::EventData::new_u64(data as u64), epoll::EventFlags::IN).expect("epoll");
            socket
        };
        let owner = format!("{number:08x}-8f0e-4f0c-9a31-0a6c1d8f4e21");
        let (take, give) = match way {
            Way::Native => {
                (encode(&["LOCK.ACQUIRE", "lock", &owner, "30000", "WAIT", "0"]), encode(&["LOCK.RELEASE", "lock", &owner]))
            }
            Way::Blpop => (encode(&["BLPOP", "token", "0"]), encode(&["RPUSH", "token", "t"])),
            Way::Subscribe => (
                encode(&["EVALSHA", redisson::ACQUIRE_SHA, "1", "lock", "30000", &owner]),
                encode(&["EVALSHA", redisson::RELEASE_SHA, "2", "lock", CHANNEL, "0", "30000", &owner]),
            ),
        };
        let again = if way == Way::Subscribe { &[][..] } else { &take };
        let hand_on = [&give, again].concat();
        let mut client = Client {
            socket: connect(if way == Way::Subscribe { 2 * number } else { number }),
            listening: (way == Way::Subscribe).then(|| connect(2 * number + 1)),
            read: Vec::new(),
            take,
            hand_on,
            served: 0,
            heard: 0,
            asked: false,
            holds: false,
            called: false,
        };
        if let Some(socket) = &mut client.listening {
            socket.write_all(&encode(&["SUBSCRIBE", CHANNEL])).expect("write");
            let reply = format!("*3\r\n$9\r\nsubscribe\r\n${}\r\n{CHANNEL}\r\n:1\r\n", CHANNEL.len());
            let mut buffer = vec![0; reply.len()];
            socket.read_exact(&mut buffer).expect("read");
            assert_eq!(buffer, reply.as_bytes());
            socket.set_nonblocking(true).expect("nonblocking");
        }
        client
    }

    fn ask(&mut self) {
        (self.asked, self.called) = (true, false);
        self.socket.write_all(&self.take).expect("write");
    }

    fn receive(&mut self) {
        let mut buffer = [0; 256];
        let count = self.socket.read(&mut buffer).expect("read");
        assert!(count > 0, "the server closed a connection");
        self.read.extend_from_slice(&buffer[..count]);
    }

    fn listen(&mut self) {
        let mut buffer = [0; 1024];
        let Some(socket) = &mut self.listening else { return };
        match socket.read(&mut buffer) {
            Ok(0) => panic!("the server closed a connection"),
            Ok(count) => (self.heard, self.called) = (self.heard + count, true),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }

    /// The fencing token that has come, if it has come whole.
    fn next_token(&mut self) -> Option<u64> {
        if self.read.is_empty() || self.read == b":0\r" || !self.read.ends_with(b"\r\n") {
            return None;
        }
        let reply = String::from_utf8(std::mem::take(&mut self.read)).expect("digits");
        let token = reply.strip_prefix(':').and_then(|rest| rest.strip_suffix("\r\n"));
        Some(token.and_then(|token| token.parse().ok()).unwrap_or_else(|| panic!("{reply:?}")))
    }
}

#[derive(Clone, Copy)]
struct Figures {
    ns: f64,
    /// Commands per acquisition.
    commands: f64,
    fairness: Option<f64>,
}

impl Figures {
    fn columns(figures: Option<Figures>) -> String {
        let Some(Figures { ns, commands, fairness }) = figures else {
            return format!("{:>8} {:>8} {:>6}", "–", "–", "–");
        };
        let fairness = fairness.map_or_else(|| "–".to_owned(), |fairness| format!("{fairness:.3}"));
        format!("{ns:>8.0} {commands:>8.2} {fairness:>6}")
    }
}

fn header(title: &str) {
    println!("\n{title}");
    println!("{:>7}  {:^24}  {:^24}", "", "portcullis", "redis");
    let columns = format!("{:>8} {:>8} {:>6}", "ns", "commands", "Jain");
    println!("{:>7}  {columns}  {columns}  {:>6}  {:>8}  {:>6}", "waiters", "ratio", "floor ns", "ratio");
}

fn row(waiters: usize, ours: Option<Figures>, theirs: Option<Figures>, floor: Option<Figures>) {
    let dash = || "–".to_owned();
    let ratio = |of: Option<Figures>| of.zip(theirs).map_or_else(dash, |(of, theirs)| format!("{:.2}", theirs.ns / of.ns));
    let least = floor.map_or_else(dash, |floor| format!("{:.0}", floor.ns));
    println!(
        "{waiters:>7}  {}  {}  {:>6}  {least:>8}  {:>6}",
        Figures::columns(ours),
        Figures::columns(theirs),
        ratio(ours),
        ratio(floor)
    );
}

fn main() {
    // `cargo bench` passes --bench; `cargo test --benches` passes --test and wants nothing measured.
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--test") {
        return;
    }
    let value = |name: &str| args.iter().skip_while(|arg| *arg != name).nth(1);
    if let Some(port) = value("--floor") {
        return servers::floor::serve(port.parse().expect("--floor takes a port"));
    }
    let quick = args.iter().any(|arg| arg == "--quick");
    let only = value("--only").map_or("", String::as_str);
    let waiters: Vec<usize> = match value("--waiters") {
        Some(count) => vec![count.parse().expect("--waiters takes a number")],
        None => WAITERS.to_vec(),
    };
    let slices = if quick { 5 } else { 11 };
    servers::raise_file_limit(16_384);
    println!(
        "CPU of the server per acquisition and release, commands per acquisition, fairness; ratios: Redis's CPU over ours, and over the floor's"
    );
    let chosen = |way: Way| only.is_empty() || way.name() == only;
    let titles = [
        (Way::Native, "native: LOCK.ACQUIRE and LOCK.RELEASE; BLPOP and RPUSH of a token on Redis (bar: 1.5, flat; Jain ≥ 0.99)"),
        (Way::Blpop, "blpop: BLPOP and RPUSH of a token, on both"),
        (Way::Subscribe, "subscribe: Redisson's scripts, trying again at each message that the lock is free, on both"),
    ];
    for (way, title) in titles.into_iter().filter(|&(way, _)| chosen(way)) {
        header(title);
        let theirs = if way == Way::Native { Way::Blpop } else { way };
        let mut native = Vec::new();
        for &count in &waiters {
            let floor = (way == Way::Native).then(|| Ring::new(Server::floor(), way, count));
            let redis = Server::redis().map(|server| Ring::new(server, theirs, count));
            let mut rings = [Some(Ring::new(Server::portcullis(), way, count)), redis, floor];
            for round in 0..slices {
                for turn in 0..3 {
                    if let Some(ring) = &mut rings[(round + turn) % 3] {
                        ring.slice(way.hand_offs(count, quick));
                    }
                }
            }
            let [ours, theirs, floor] = rings.map(|ring| ring.map(|mut ring| ring.figures()));
            row(count, ours, theirs, floor);
            if way == Way::Native {
                native.extend(ours.map(|ours| (count, ours.ns)));
            }
        }
        let of = |waiters| native.iter().find(|&&(count, _)| count == waiters).map(|&(_, ns)| ns);
        if let (Some(few), Some(many)) = (of(16), of(256)) {
            println!("256 waiters over 16: {:.2} (bar: 1.2)", many / few);
        }
    }
}
