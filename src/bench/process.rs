//! Servers as processes on loopback: started, measured by the system's accounts, ended.

use std::future::poll_fn;
use std::io::{Error, Result};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long a server may take until it listens.
const STARTS_WITHIN: Duration = Duration::from_secs(10);

/// A running server; ended when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    addr: SocketAddr,
}

impl Process {
    /// Starts a redis-server, or anything that takes its flags, without any of its files.
    ///
    /// # Errors
    /// Where it cannot be started, ends at once, or does not listen.
    pub fn redis(program: &Path) -> Result<Process> {
        let port = free_port()?.to_string();
        let mut command = Command::new(program);
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
        Process::start(command, &port)
    }

    /// Starts this crate's program.
    ///
    /// # Errors
    /// As [`Process::redis`].
    pub fn portcullis(program: &Path) -> Result<Process> {
        let port = free_port()?.to_string();
        let mut command = Command::new(program);
        command.args(["serve", "--port", &port]);
        Process::start(command, &port)
    }

    /// Starts something that will listen on a port of 127.0.0.1, and waits until it does.
    ///
    /// # Errors
    /// As [`Process::redis`].
    pub fn start(mut command: Command, port: &str) -> Result<Process> {
        let port = port.parse().map_err(Error::other)?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let addr = SocketAddr::from(([127, 0, 0, 1], port));
        let mut process = Process { child, addr };
        let started = Instant::now();
        while TcpStream::connect(addr).is_err() {
            if let Some(status) = process.child.try_wait()? {
                return Err(Error::other(format!("{} ended: {status}", command.get_program().display())));
            }
            if started.elapsed() > STARTS_WITHIN {
                return Err(Error::other(format!("{} does not listen", command.get_program().display())));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(process)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns when this process is told to end (SIGINT, SIGTERM, SIGHUP): whatever was started by then has to be dropped, which a process that
/// just ends does not do. Never where signals cannot be listened to.
pub async fn told_to_end() {
    let of = |kind| signal(kind).ok();
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let mut signals: Vec<Signal> = kinds.into_iter().filter_map(of).collect();
    poll_fn(|context| {
        let told = signals.iter_mut().any(|signal| matches!(signal.poll_recv(context), Poll::Ready(Some(()))));
        if told { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// A port that nobody listens on. Somebody may, a moment later.
///
/// # Errors
/// Where there is none.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A field of what the scheduler has noted of all threads of a process, added up.
fn scheduled(pid: u32, field: usize) -> Option<u64> {
    let spent = |task: Result<std::fs::DirEntry>| -> Option<u64> {
        let stat = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        stat.split(' ').nth(field)?.trim().parse().ok()
    };
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    // A thread may end between the listing and the look.
    Some(tasks.filter_map(spent).sum())
}

/// Nanoseconds of CPU that a process's threads have used; `None` where the system does not tell.
pub fn cpu_ns(pid: u32) -> Option<u64> {
    scheduled(pid, 0)
}

/// Nanoseconds that its threads were ready to run and waited for a processor: how far other processes disturbed it.
pub fn waited_ns(pid: u32) -> Option<u64> {
    scheduled(pid, 1)
}

/// Resident memory of a process.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()? * 1024)
}
