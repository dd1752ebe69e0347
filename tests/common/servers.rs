//! Server processes for tests, on a free port of 127.0.0.1. Dropping one ends the process.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::wire::Wire;

/// A running server.
pub struct Server {
    child: Child,
    /// The address that it listens on.
    pub addr: SocketAddr,
    /// Its scratch directory, which is removed with it.
    dir: PathBuf,
}

impl Server {
    /// Starts redis-server, or another program with its flags, and waits until it answers.
    pub fn redis(program: &Path) -> io::Result<Server> {
        Server::redis_with(program, &[])
    }

    /// Like [`Server::redis`], with additional flags.
    pub fn redis_with(program: &Path, args: &[&str]) -> io::Result<Server> {
        Server::redis_in(program, args, |_| Ok(()))
    }

    /// Like [`Server::redis_with`], in a directory that is filled first.
    pub fn redis_in(program: &Path, args: &[&str], fill: impl Fn(&Path) -> io::Result<()>) -> io::Result<Server> {
        let mut last = io::Error::other("never tried");
        // Another process may take the port before the server does.
        for _ in 0..5 {
            let addr = SocketAddr::from(([127, 0, 0, 1], super::ports::free()));
            let dir = scratch()?;
            fill(&dir)?;
            let log = std::fs::File::create(dir.join("log"))?;
            let child = Command::new(program)
                .args([
                    "--bind",
                    "127.0.0.1",
                    "--port",
                    &addr.port().to_string(),
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--enable-debug-command",
                    "yes",
                    "--crash-memcheck-enabled",
                    "no",
                ])
                .args(args)
                .arg("--dir")
                .arg(&dir)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()?;
            let mut server = Server { child, addr, dir };
            match server.wait_until_it_answers().and_then(|()| server.is_itself()) {
                Ok(()) => return Ok(server),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Starts the program of this crate on a port that it chooses.
    pub fn portcullis(program: &Path) -> io::Result<Server> {
        Server::portcullis_with(program, &[])
    }

    /// Like [`Server::portcullis`], with additional arguments of `serve`.
    pub fn portcullis_with(program: &Path, args: &[&str]) -> io::Result<Server> {
        let dir = scratch()?;
        let ready = dir.join("ready");
        let log = std::fs::File::create(dir.join("log"))?;
        let child = Command::new(program)
            .args(["serve", "--port", "0", "--ready-file"])
            .arg(&ready)
            .arg("--dir")
            .arg(&dir)
            .args(args)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut server = Server { child, addr: SocketAddr::from(([127, 0, 0, 1], 0)), dir };
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            if let Some(addr) = std::fs::read_to_string(&ready).ok().as_deref().and_then(address) {
                server.addr = addr;
                // Without a plain port the address is that of the TLS port.
                if !args.contains(&"--tls-port") || args.contains(&"--port") {
                    server.wait_until_it_answers()?;
                }
                return Ok(server);
            }
            server.check()?;
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(io::Error::other("the ready file did not name an address within 20 s"))
    }

    fn wait_until_it_answers(&mut self) -> io::Result<()> {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let tried = Wire::connect(self.addr).and_then(|mut wire| wire.call(&["PING"]));
            match tried {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= end => return Err(error),
                Err(_) => {}
            }
            self.check()?;
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Fails if another server answers at its address, because it had the port first.
    fn is_itself(&mut self) -> io::Result<()> {
        let reply = Wire::connect(self.addr)?.call(&["INFO", "server"])?.raw;
        let text = String::from_utf8_lossy(&reply);
        // A server that wants a password does not say.
        let pid = text.lines().find_map(|line| line.strip_prefix("process_id:")?.trim().parse::<u32>().ok());
        match pid.is_none_or(|pid| pid == self.pid()) {
            true => self.check(),
            false => Err(io::Error::other(format!("another server is at {}", self.addr))),
        }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Fails if the process has ended.
    pub fn check(&mut self) -> io::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                let log = self.log();
                let tail: Vec<&str> = log.lines().rev().take(40).collect();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                Err(io::Error::other(format!("the server ended: {status}\n{}", tail.join("\n"))))
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Does something while a child process is stopped. What is sent to it meanwhile it finds at once.
pub fn while_stopped<T>(pid: u32, work: impl FnOnce() -> T) -> T {
    let pid = Pid::from_raw(pid as i32).expect("a process");
    kill_process(pid, Signal::STOP).expect("it runs");
    // All its threads have stopped when this returns.
    waitpid(Some(pid), WaitOptions::UNTRACED).expect("it stops");
    let done = work();
    kill_process(pid, Signal::CONT).expect("it is stopped");
    done
}

/// Waits until a process has a handler for a signal that would end it otherwise.
pub fn until_it_handles(pid: u32, signal: Signal) {
    let end = Instant::now() + Duration::from_secs(20);
    let handles = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let handled = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let handled = handled.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        handled.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
    };
    while !handles() {
        assert!(Instant::now() < end, "it handles no {signal:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The time for which the threads of a process were ready to run and had to wait for a processor. A bound on how quickly something
/// happens holds on a machine that gives the processor, so tests add this to it.
pub fn withheld(pid: u32) -> Duration {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Duration::ZERO };
    let waited = threads.flatten().filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').nth(1)?.parse::<u64>().ok()
    });
    Duration::from_nanos(waited.sum())
}

/// The time for which any process of this machine had to wait for a processor. While a processor is free it stands still.
pub fn withheld_from_any() -> Duration {
    let text = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let some = text.lines().find_map(|line| line.strip_prefix("some ")?.split("total=").nth(1)?.parse().ok());
    some.map_or(Duration::ZERO, Duration::from_micros)
}

/// As [`withheld`], of the calling thread.
pub fn withheld_here() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').nth(1).and_then(|waited| waited.parse().ok()).map_or(Duration::ZERO, Duration::from_nanos)
}

/// The first `address:port` in a text.
fn address(text: &str) -> Option<SocketAddr> {
    text.split(|c: char| c.is_whitespace() || c == '=').find_map(|word| word.parse().ok())
}

fn scratch() -> io::Result<PathBuf> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let dir =
        std::env::temp_dir().join(format!("portcullis-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// The program of this name in `PATH`.
pub fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| path.is_file())
}
