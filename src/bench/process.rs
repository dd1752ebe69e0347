//! Servers as processes on loopback: started, measured by the system's accounts, ended.

use std::future::poll_fn;
use std::io::{Error, Result};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
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
    folder: PathBuf,
}

impl Process {
    /// Starts something that will listen on a port of 127.0.0.1, in an empty folder of its own, where it finds no configuration and
    /// leaves no file.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn spawn(mut command: Command, port: u16) -> Result<Process> {
        let folder = std::env::temp_dir().join(format!("{}{port}", folder_prefix()));
        std::fs::create_dir_all(&folder)?;
        command.current_dir(&folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => Ok(Process { child, folder, addr: SocketAddr::from(([127, 0, 0, 1], port)) }),
            Err(error) => {
                let _ = std::fs::remove_dir_all(&folder);
                Err(Error::other(format!("{}: {error}", command.get_program().display())))
            }
        }
    }

    /// Waits until it listens.
    ///
    /// # Errors
    /// Where it ends before, or does not listen in time.
    pub fn until_it_listens(&mut self) -> Result<()> {
        let started = Instant::now();
        while TcpStream::connect(self.addr).is_err() {
            if let Some(status) = self.child.try_wait()? {
                return Err(Error::other(format!("it ended: {status}")));
            }
            if started.elapsed() > STARTS_WITHIN {
                return Err(Error::other("it does not listen"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
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
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(super) fn folder_prefix() -> String {
    format!("portcullis-bench-{}-", std::process::id())
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
pub(super) fn scheduled(pid: u32, field: usize) -> Option<u64> {
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
