//! Servers that a bench starts on loopback and ends: redis-server from the path, and this crate's own program.

#[allow(dead_code, reason = "not every bench asks")]
pub mod floor;
#[allow(dead_code, reason = "not every bench asks")]
pub mod memory;
#[allow(dead_code, reason = "not every bench asks")]
pub mod redisson;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use portcullis::bench::process::{self, Process, free_port};

/// A running server; ended when dropped.
pub struct Server {
    process: Process,
    /// Where it listens.
    pub addr: SocketAddr,
}

impl Server {
    /// The redis-server in the path; `None` where there is none.
    pub fn redis() -> Option<Server> {
        Process::redis(Path::new("redis-server")).ok().map(Server::of)
    }

    /// This crate's program.
    pub fn portcullis() -> Server {
        let program = Path::new(env!("CARGO_BIN_EXE_portcullis"));
        Server::of(Process::portcullis(program).expect("the program was built with this bench"))
    }

    /// The least that could be a server for hand-offs: [`floor::serve`], as a process of this bench's program, which has to call it when
    /// it is started with `--floor <port>`.
    #[allow(dead_code, reason = "not every bench asks")]
    pub fn floor() -> Server {
        let port = free_port().expect("a free port").to_string();
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--floor", &port]);
        Server::of(Process::start(command, &port).expect("this program"))
    }

    fn of(process: Process) -> Server {
        Server { addr: process.addr(), process }
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
        process::cpu_ns(self.process.pid()).expect("a running process")
    }

    /// Nanoseconds that its threads were ready to run and waited for a processor: how far other processes disturbed it.
    #[allow(dead_code, reason = "not every bench asks")]
    pub fn waited_ns(&self) -> u64 {
        process::waited_ns(self.process.pid()).expect("a running process")
    }

    /// Resident memory.
    #[allow(dead_code, reason = "not every bench asks")]
    pub fn resident_bytes(&self) -> u64 {
        process::resident_bytes(self.process.pid()).expect("a running process")
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

/// Lets this process, and what it starts from now on, open so many files, as far as the hard limit goes.
#[allow(dead_code, reason = "not every bench asks")]
pub fn raise_file_limit(files: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < files) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(files.min(limit.maximum.unwrap_or(files))), ..limit });
    }
}
