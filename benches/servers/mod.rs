//! Servers that a bench starts on loopback and ends: redis-server from the path, and this crate's own program.

#[allow(dead_code, reason = "not every bench asks")]
pub mod floor;
#[allow(dead_code, reason = "not every bench asks")]
pub mod memory;
#[allow(dead_code, reason = "not every bench asks")]
pub mod redisson;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server; ended when dropped.
pub struct Server {
    child: Child,
    /// Where it listens.
    pub addr: SocketAddr,
}

impl Server {
    /// The redis-server in the path; `None` where there is none.
    pub fn redis() -> Option<Server> {
        let port = free_port();
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--daemonize",
            "no",
        ]);
        Server::start(command, port)
    }

    /// This crate's program.
    pub fn portcullis() -> Server {
        let port = free_port();
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.args(["serve", "--port", &port.to_string()]);
        Server::start(command, port).expect("the program was built with this bench")
    }

    /// The least that could be a server for hand-offs: [`floor::serve`], as a process of this bench's program, which has to call it when
    /// it is started with `--floor <port>`.
    #[allow(dead_code, reason = "not every bench asks")]
    pub fn floor() -> Server {
        let port = free_port();
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--floor", &port.to_string()]);
        Server::start(command, port).expect("this program")
    }

    fn start(mut command: Command, port: u16) -> Option<Server> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let server = Server { child, addr };
        let started = Instant::now();
        while TcpStream::connect(addr).is_err() {
            assert!(started.elapsed() < Duration::from_secs(10), "{command:?} does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(server)
    }

    /// Sends one request on a connection of its own and gives the raw reply.
    #[allow(dead_code, reason = "not every bench asks")]
    pub fn call(&self, args: &[&str]) -> String {
        let mut socket = TcpStream::connect(self.addr).expect("connect");
        let mut request = format!("*{}\r\n", args.len());
        for arg in args {
            request += &format!("${}\r\n{arg}\r\n", arg.len());
        }
        socket.write_all(request.as_bytes()).expect("write");
        socket.shutdown(std::net::Shutdown::Write).expect("shutdown");
        let mut reply = Vec::new();
        socket.read_to_end(&mut reply).expect("read");
        String::from_utf8_lossy(&reply).into_owned()
    }

    /// The version that `INFO` reports.
    #[allow(dead_code, reason = "not every bench asks")]
    pub fn version(&self) -> String {
        let info = self.call(&["INFO", "server"]);
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("?");
        format!("redis-server {}", version.trim())
    }

    /// Nanoseconds of CPU that all its threads have used.
    #[allow(dead_code, reason = "not every bench asks")]
    pub fn cpu_ns(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("a running process");
        let spent = |task: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
            let stat = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            stat.split(' ').next()?.parse().ok()
        };
        tasks.filter_map(spent).sum()
    }

    /// Nanoseconds that its threads were ready to run and waited for a processor: how far other processes disturbed it.
    #[allow(dead_code, reason = "not every bench asks")]
    pub fn waited_ns(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("a running process");
        let waited = |task: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
            let stat = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            stat.split(' ').nth(1)?.parse().ok()
        };
        tasks.filter_map(waited).sum()
    }

    /// Resident memory.
    #[allow(dead_code, reason = "not every bench asks")]
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("a running process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request as it goes on the wire.
#[allow(dead_code, reason = "not every bench asks")]
pub fn encode(args: &[&str]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend_from_slice(format!("${}\r\n{arg}\r\n", arg.len()).as_bytes());
    }
    out
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}

/// Lets this process, and what it starts from now on, open so many files, as far as the hard limit goes.
#[allow(dead_code, reason = "not every bench asks")]
pub fn raise_file_limit(files: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < files) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(files.min(limit.maximum.unwrap_or(files))), ..limit });
    }
}
