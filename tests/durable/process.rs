//! Servers on a folder that outlives them, and the files in it.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

use crate::common::ports;
use crate::common::servers::on_path;
use crate::common::talk::call;
use crate::common::wire::{Frame, Wire};

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A fresh folder, which is removed at the end of the test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("portcullis-durable-{}-{number}", std::process::id()));
        std::fs::create_dir_all(path.join("dir")).unwrap();
        Folder(path)
    }

    /// The servers' `dir`.
    pub fn dir(&self) -> PathBuf {
        self.0.join("dir")
    }

    /// Where the servers keep the append-only file.
    pub fn log_dir(&self) -> PathBuf {
        self.0.join("dir/appendonlydir")
    }

    /// The path of the manifest.
    pub fn manifest(&self) -> PathBuf {
        self.log_dir().join("appendonly.aof.manifest")
    }

    /// The increments that the manifest names, in order.
    pub fn increments(&self) -> Vec<PathBuf> {
        let manifest = std::fs::read_to_string(self.manifest()).unwrap();
        let lines = manifest.lines().filter(|line| line.ends_with("type i"));
        lines.map(|line| self.log_dir().join(line.split(' ').nth(1).unwrap())).collect()
    }

    /// Names and contents of the files, except the one that a running server locks. It may remove others meanwhile.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let entries = std::fs::read_dir(self.log_dir()).unwrap().map(|entry| entry.unwrap().path());
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let files = entries.filter(|path| name(path) != "portcullis.lock");
        let mut files: Vec<_> = files.filter_map(|path| Some((name(&path), std::fs::read(path).ok()?))).collect();
        files.sort();
        files
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> usize {
        self.files().iter().map(|(_, content)| content.len()).sum()
    }

    /// Writes files as a server could have left them: a manifest of increments with these contents.
    pub fn write_increments(&self, contents: &[&[u8]]) {
        std::fs::create_dir_all(self.log_dir()).unwrap();
        let mut manifest = String::new();
        for (seq, content) in (1..).zip(contents) {
            let name = format!("appendonly.aof.{seq}.incr.aof");
            std::fs::write(self.log_dir().join(&name), content).unwrap();
            manifest += &format!("file {name} seq {seq} type i\n");
        }
        std::fs::write(self.manifest(), manifest).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server on a folder. Dropping it kills it.
pub struct Server {
    child: Child,
    pub addr: SocketAddr,
    log: PathBuf,
}

impl Server {
    /// Starts the program with `appendonly yes` and additional arguments.
    #[track_caller]
    pub fn start(folder: &Folder, args: &[&str]) -> Server {
        let (child, log) = spawn(folder, args);
        let mut server = Server { child, addr: SocketAddr::from(([127, 0, 0, 1], 0)), log };
        let ready = folder.0.join("ready");
        let bytes = || {
            std::fs::read_dir(folder.log_dir())
                .map_or(0, |dir| dir.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>())
        };
        wait_for(&format!("the start from {} bytes", bytes()), || {
            server.check();
            let text = std::fs::read_to_string(&ready).unwrap_or_default();
            text.split_whitespace().find_map(|word| word.parse().ok()).map(|addr| server.addr = addr)
        });
        server
    }

    /// Starts the program on a port that is free, and waits only until it accepts a connection.
    #[track_caller]
    pub fn start_early(folder: &Folder, args: &[&str]) -> Server {
        for _ in 0..5 {
            let addr = SocketAddr::from(([127, 0, 0, 1], ports::free()));
            let port = addr.port().to_string();
            let (child, log) = spawn(folder, &[&["--port", &port], args].concat());
            let mut server = Server { child, addr, log };
            let accepts = wait_for("a connection", || {
                let ended = server.child.try_wait().unwrap().is_some();
                (ended || Wire::connect(addr).is_ok()).then_some(!ended)
            });
            if accepts {
                return server;
            }
            let log = server.log();
            assert!(log.to_lowercase().contains("address already in use"), "{log}");
        }
        panic!("no port is free");
    }

    /// Starts redis-server with `appendonly yes` and additional arguments, and waits until it has loaded the folder.
    #[track_caller]
    pub fn start_redis(program: &Path, folder: &Folder, args: &[&str]) -> Server {
        Server::start_redis_until(program, folder, args, |reply| !reply.is_error("LOADING"))
    }

    /// As [`Server::start_redis`], until a `GET` has such a reply.
    #[track_caller]
    pub fn start_redis_until(program: &Path, folder: &Folder, args: &[&str], is_up: impl Fn(&Frame) -> bool) -> Server {
        // Another process may take the port before the server does.
        for _ in 0..5 {
            let addr = SocketAddr::from(([127, 0, 0, 1], ports::free()));
            let log = folder.0.join("log");
            let mut command = Command::new(program);
            command.args(["--bind", "127.0.0.1", "--port", &addr.port().to_string(), "--save", "", "--appendonly", "yes"]);
            command.args(["--enable-debug-command", "yes", "--dir"]).arg(folder.dir()).args(args);
            let child = output_to(&mut command, &log).spawn().unwrap();
            let mut server = Server { child, addr, log };
            let answered = wait_for("redis-server", || {
                let ended = server.child.try_wait().unwrap().is_some();
                let reply = Wire::connect(addr).and_then(|mut wire| wire.call(&["GET", "x"]));
                let answers = reply.is_ok_and(|reply| is_up(&reply.frame));
                (ended || answers).then_some(!ended)
            });
            if answered {
                return server;
            }
            let log = server.log();
            assert!(log.to_lowercase().contains("address already in use"), "{log}");
        }
        panic!("no port is free");
    }

    /// Starts the program, which must refuse to. Returns what it says.
    #[track_caller]
    pub fn refused(folder: &Folder, args: &[&str]) -> String {
        let (mut child, log) = spawn(folder, args);
        let ended = wait_for("the refusal", || {
            if folder.0.join("ready").exists() {
                let _ = child.kill();
            }
            child.try_wait().unwrap()
        });
        let log = std::fs::read_to_string(log).unwrap();
        assert_eq!(ended.code(), Some(1), "it started, or ended in another way: {log}");
        assert!(!log.contains("panicked"), "{log}");
        log
    }

    /// Starts the program, and kills it after this time, ready or not.
    pub fn kill_early(folder: &Folder, args: &[&str], after: Duration) {
        let (mut child, _) = spawn(folder, args);
        std::thread::sleep(after);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub fn wire(&self) -> Wire {
        Wire::connect(self.addr).unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Fails if the process has ended.
    #[track_caller]
    pub fn check(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "the server ended: {ended:?}\n{}", self.log());
    }

    /// Ends it with SIGKILL.
    #[track_caller]
    pub fn kill(mut self) {
        self.check();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it with SHUTDOWN.
    #[track_caller]
    pub fn stop(mut self) {
        let mut wire = self.wire();
        wire.queue(&["SHUTDOWN", "NOSAVE"]);
        wire.flush().unwrap();
        let ended = wait_for("the end", || self.child.try_wait().unwrap());
        assert!(ended.success(), "{ended}: {}", self.log());
    }

    /// Sends SIGTERM, and waits for the end.
    #[track_caller]
    pub fn terminate(mut self) -> std::process::ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        wait_for("the end", || self.child.try_wait().unwrap())
    }

    /// Whether it has written its ready file.
    pub fn is_ready(folder: &Folder) -> bool {
        folder.0.join("ready").exists()
    }

    /// Waits until the process has ended, and asserts that it did so without an error.
    #[track_caller]
    pub fn ended(mut self) {
        let ended = wait_for("the end", || self.child.try_wait().unwrap());
        assert!(ended.success(), "{ended}: {}", self.log());
    }

    /// Lets no file of the process grow beyond this many bytes, or any number of them: a disk that is full for as long as the test
    /// wants. The process ignores the signal that tells it.
    pub fn limit_files(&self, bytes: Option<u64>) {
        let pid = Pid::from_raw(self.pid() as i32).unwrap();
        prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &Folder, args: &[&str]) -> (Child, PathBuf) {
    let (ready, log) = (folder.0.join("ready"), folder.0.join("log"));
    let _ = std::fs::remove_file(&ready);
    // A shell passes on which signals are ignored.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_portcullis")]);
    command.args(["serve", "--port", "0", "--appendonly", "yes", "--ready-file"]).arg(ready);
    command.arg("--dir").arg(folder.dir()).args(args);
    (output_to(&mut command, &log).spawn().unwrap(), log)
}

fn output_to<'a>(command: &'a mut Command, log: &Path) -> &'a mut Command {
    let file = File::create(log).unwrap();
    command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file)
}

/// Repeats a look until it returns something.
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(begin.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A field of `INFO persistence`; empty if it is not there.
#[track_caller]
pub fn info(wire: &mut Wire, field: &str) -> String {
    let reply = call(wire, "INFO persistence");
    let line = reply.split_whitespace().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_default().to_owned()
}

/// A number of `INFO persistence`.
#[track_caller]
pub fn figure(wire: &mut Wire, field: &str) -> u64 {
    let text = info(wire, field);
    text.parse().unwrap_or_else(|_| panic!("{field}: {text}"))
}

/// Makes a new base, and waits until it is there.
#[track_caller]
pub fn rewrite(wire: &mut Wire) {
    let before = figure(wire, "aof_rewrites");
    assert_eq!(call(wire, "BGREWRITEAOF"), "+Background append only file rewriting started");
    wait_for("the new base", || {
        assert_eq!(info(wire, "aof_last_bgrewrite_status"), "ok");
        (figure(wire, "aof_rewrites") > before).then_some(())
    });
}

/// Whether a test runs in its full size.
pub fn full_size() -> bool {
    std::env::var_os("PORTCULLIS_FULL_SIZE").is_some_and(|value| !value.is_empty())
}

/// A program of Redis, unless it is missing and the test may be skipped.
pub fn required(name: &str) -> Option<PathBuf> {
    let found = on_path(name);
    if found.is_none() {
        let required = std::env::var_os("PORTCULLIS_REQUIRE_REDIS").is_some_and(|value| !value.is_empty());
        assert!(!required, "no {name} on the PATH, and PORTCULLIS_REQUIRE_REDIS is set");
        println!("SKIPPED: no {name} on the PATH");
    }
    found
}
