//! The floor: a server that does next to nothing but `epoll_wait`, `recv` and `send`, and `fdatasync` if it is to. No server costs
//! less than these system calls.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use portcullis::bench::servers::process::Process;
use portcullis::ports;
use rustix::event::epoll;

use crate::workloads;

/// With this flag, a kind and a port, the bench's program is such a server.
pub const FLAG: &str = "--floor";

/// A kind of floor.
#[derive(Clone, Copy)]
pub enum Kind {
    /// Hands one lock on among its clients.
    HandOff,
    /// Answers the requests of [`workloads`].
    Workloads,
    /// Answers so many clients at once, when a file has the requests of all of them.
    Synced(usize),
}

impl Kind {
    fn name(self) -> String {
        match self {
            Kind::HandOff => "handoff".to_owned(),
            Kind::Workloads => "workloads".to_owned(),
            Kind::Synced(clients) => clients.to_string(),
        }
    }
}

/// Answers the input of a connection.
trait Answer {
    fn answer(&mut self, who: usize, input: &[u8], sockets: &mut [TcpStream]);
}

/// Starts this program as such a server.
pub fn process(kind: Kind) -> Result<Process> {
    let port = ports::free()?;
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.args([FLAG, &kind.name(), &port.to_string()]);
    let mut process = Process::spawn(command, port)?;
    process.wait_until_listening()?;
    Ok(process)
}

/// Serves until it is killed.
pub fn serve(kind: &str, port: u16) -> ! {
    match kind.parse() {
        Ok(clients) => run(Synced::new(clients), port),
        Err(_) if kind == Kind::HandOff.name() => run(HandOff::default(), port),
        Err(_) => run(Workloads::default(), port),
    }
}

fn run(mut floor: impl Answer, port: u16) -> ! {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("a free port");
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    const LISTENER: u64 = u64::MAX;
    let add = |socket: &dyn std::os::fd::AsFd, data: u64| {
        epoll::add(&poll, socket.as_fd(), epoll::EventData::new_u64(data), epoll::EventFlags::IN).expect("epoll");
    };
    add(&listener, LISTENER);
    let mut sockets: Vec<TcpStream> = Vec::new();
    let mut events = Vec::with_capacity(64);
    let mut buffer = [0; 16 << 10];
    loop {
        events.clear();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None).expect("epoll");
        for event in &events {
            let data = event.data.u64();
            if data == LISTENER {
                let (socket, _) = listener.accept().expect("accept");
                socket.set_nodelay(true).expect("nodelay");
                add(&socket, sockets.len() as u64);
                sockets.push(socket);
                continue;
            }
            let who = data as usize;
            match sockets[who].read(&mut buffer).unwrap_or(0) {
                0 => epoll::delete(&poll, &sockets[who]).expect("epoll"),
                count => floor.answer(who, &buffer[..count], &mut sockets),
            }
        }
    }
}

/// Has one lock, and recognizes `LOCK.ACQUIRE … WAIT 0`, `LOCK.RELEASE` and the parts of `INFO` that a bench asks for. It parses
/// nothing, and has neither leases nor a history.
#[derive(Default)]
struct HandOff {
    line: VecDeque<usize>,
    held: bool,
    granted: u64,
}

impl Answer for HandOff {
    fn answer(&mut self, who: usize, input: &[u8], sockets: &mut [TcpStream]) {
        // All requests have the command's name at the same place.
        let name = &input[input.iter().position(|&byte| byte == b'\n').unwrap_or(0)..];
        if name.starts_with(b"\n$4\r\nINFO") {
            let text = format!("blocked_clients:{}\r\n", self.line.len());
            sockets[who].write_all(format!("${}\r\n{text}\r\n", text.len()).as_bytes()).expect("write");
            sockets[who].shutdown(Shutdown::Write).expect("shutdown");
            return;
        }
        let releases = name.starts_with(b"\n$12\r\nLOCK.RELEASE");
        self.held &= !releases;
        self.line.push_back(who);
        let next = if self.held { None } else { self.line.pop_front() };
        self.held = true;
        if let Some(next) = next {
            self.granted += 1;
            let own = if releases && next == who { ":0\r\n" } else { "" };
            sockets[next].write_all(format!("{own}:{}\r\n", 1_000_000_000_000_000 + self.granted).as_bytes()).expect("write");
        }
        if releases && next != Some(who) {
            sockets[who].write_all(b":0\r\n").expect("write");
        }
    }
}

/// Recognizes the end and the name of each request, and stores nothing. Each name has one reply.
#[derive(Default)]
struct Workloads {
    /// Incomplete requests, by connection.
    begun: Vec<Vec<u8>>,
    replies: Vec<u8>,
}

impl Answer for Workloads {
    fn answer(&mut self, who: usize, input: &[u8], sockets: &mut [TcpStream]) {
        if self.begun.len() <= who {
            self.begun.resize_with(who + 1, Vec::new);
        }
        let mut begun = std::mem::take(&mut self.begun[who]);
        let mut rest = input;
        if !begun.is_empty() {
            begun.extend_from_slice(input);
            rest = &begun;
        }
        self.replies.clear();
        while let Some((name, end)) = request(rest) {
            self.replies.extend_from_slice(workloads::reply(name).as_bytes());
            rest = &rest[end..];
        }
        self.begun[who] = rest.to_vec();
        if !self.replies.is_empty() {
            sockets[who].write_all(&self.replies).expect("write");
        }
    }
}

/// Appends requests to a file as they come, and replies OK to all clients when those of all are durable. No client may have two
/// requests on the way.
struct Synced {
    file: File,
    clients: usize,
    waiting: Vec<usize>,
    requests: Vec<u8>,
}

impl Synced {
    fn new(clients: usize) -> Synced {
        let path = std::env::temp_dir().join(format!("portcullis-bench-floor-{}", std::process::id()));
        let file = File::create(&path).and_then(|file| std::fs::remove_file(&path).map(|()| file));
        Synced { file: file.expect("a file"), clients, waiting: Vec::new(), requests: Vec::new() }
    }
}

impl Answer for Synced {
    fn answer(&mut self, who: usize, input: &[u8], sockets: &mut [TcpStream]) {
        self.requests.extend_from_slice(input);
        self.waiting.push(who);
        if self.waiting.len() == self.clients {
            self.file.write_all(&self.requests).and_then(|()| self.file.sync_data()).expect("a disk");
            self.waiting.drain(..).for_each(|who| sockets[who].write_all(b"+OK\r\n").expect("write"));
            self.requests.clear();
        }
    }
}

/// The name and the end of the first request. `None` if it is incomplete.
fn request(input: &[u8]) -> Option<(&[u8], usize)> {
    let number = |from: usize| {
        let line = input.get(from + 1..)?;
        let len = line.iter().position(|&byte| byte == b'\r')?;
        let number = line[..len].iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
        Some((number, from + 1 + len + 2))
    };
    let (count, first) = number(0)?;
    let (mut name, mut at) = (&input[..0], first);
    for argument in 0..count {
        let (len, start) = number(at)?;
        at = start + len + 2;
        if argument == 0 {
            name = input.get(start..start + len)?;
        }
    }
    (at <= input.len()).then_some((name, at))
}
