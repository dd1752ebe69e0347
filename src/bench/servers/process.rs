//! Servers as child processes on loopback.

use std::future::poll_fn;
use std::io::{Error, Result};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::files;

/// Maximum time from the start of a server until it accepts connections.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A running server. Dropping it kills the process and removes its folder.
#[derive(Debug)]
pub struct Process {
    child: Child,
    addr: SocketAddr,
    folder: PathBuf,
}

impl Process {
    /// Starts a command that will listen on a port of 127.0.0.1. Its working directory is a new, empty folder, so that it finds
    /// no configuration and leaves no file.
    ///
    /// # Errors
    /// Those of the folder and of starting the process.
    pub fn spawn(mut command: Command, port: u16) -> Result<Process> {
        let folder = files::temporary_folder(&format!("{}{port}", folder_prefix()))?;
        command.current_dir(&folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => Ok(Process { child, folder, addr: SocketAddr::from(([127, 0, 0, 1], port)) }),
            Err(error) => {
                let _ = std::fs::remove_dir_all(&folder);
                Err(Error::other(format!("{}: {error}", command.get_program().display())))
            }
        }
    }

    /// Waits until the server accepts connections.
    ///
    /// # Errors
    /// The process ended, or does not listen in time.
    pub fn wait_until_listening(&mut self) -> Result<()> {
        let started = Instant::now();
        while TcpStream::connect(self.addr).is_err() {
            if let Some(status) = self.child.try_wait()? {
                return Err(Error::other(format!("the process ended: {status}")));
            }
            fail_if!(started.elapsed() > START_TIMEOUT, Error::other("the process does not listen"));
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// The address that the server listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The process id.
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

/// What the names of the folders of this process's servers begin with.
pub(super) fn folder_prefix() -> String {
    format!("portcullis-bench-{}-", std::process::id())
}

/// Returns when this process receives SIGINT, SIGTERM or SIGHUP. The caller can then drop the servers that it started, which the
/// default action of these signals would leave running. Never returns if signals cannot be listened to.
pub async fn shutdown_signal() {
    let listen = |kind| signal(kind).ok();
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let mut signals: Vec<Signal> = kinds.into_iter().filter_map(listen).collect();
    poll_fn(|context| {
        let received = signals.iter_mut().any(|signal| matches!(signal.poll_recv(context), Poll::Ready(Some(()))));
        if received { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// The sum of a field of `schedstat` over all threads of a process.
pub(super) fn scheduled(pid: u32, field: usize) -> Option<u64> {
    let spent = |task: Result<std::fs::DirEntry>| -> Option<u64> {
        let stat = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        stat.split(' ').nth(field)?.trim().parse().ok()
    };
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    // A thread may end after it is listed; it is left out.
    Some(tasks.filter_map(spent).sum())
}

/// Nanoseconds of CPU time that a process's threads have used. `None` if the system does not say.
pub fn cpu_ns(pid: u32) -> Option<u64> {
    scheduled(pid, 0)
}
