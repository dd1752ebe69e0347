//! What a service manager such as systemd is told through the socket that `NOTIFY_SOCKET` names.

use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::until;

const PATIENCE: Duration = Duration::from_secs(20);

/// The manager's socket, and the server that it started.
struct Service {
    socket: UnixDatagram,
    server: Child,
}

impl Service {
    /// Starts the server with the manager's address in its environment.
    fn start(socket: UnixDatagram, address: &OsStr, args: &[&str]) -> Service {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.args(["serve", "--port", "0", "--bind", "127.0.0.1"]).args(args).env("NOTIFY_SOCKET", address);
        let server = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Service { socket, server }
    }

    /// The lines of the next message.
    fn next(&self) -> Vec<String> {
        let mut message = [0; 1024];
        let len = self.socket.recv(&mut message).expect("a message comes");
        String::from_utf8(message[..len].to_vec()).unwrap().lines().map(str::to_owned).collect()
    }

    /// Expects the messages of a start, and returns the address that the server listens on.
    fn starts(&self) -> String {
        assert_eq!(self.next(), ["STATUS=loading the files", "EXTEND_TIMEOUT_USEC=30000000"]);
        let ready = self.next();
        assert_eq!(ready[0], "READY=1");
        let address = ready[1].strip_prefix("STATUS=listening on ").unwrap_or_else(|| panic!("{ready:?}"));
        address.split_whitespace().next().unwrap().to_owned()
    }

    fn ends(mut self) {
        assert_eq!(self.next()[0], "STOPPING=1");
        assert!(self.server.wait().unwrap().success());
        self.socket.set_nonblocking(true).unwrap();
        assert!(self.socket.recv(&mut [0; 1024]).is_err(), "nothing comes after the end");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A folder that is removed with its value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("portcullis-{}-manager-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn in_folder(folder: &Path, args: &[&str]) -> Service {
    let path = folder.join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    Service::start(socket, path.as_os_str(), args)
}

#[test]
fn it_hears_of_the_start_and_of_the_end_by_a_signal() {
    let folder = Folder::new("signal");
    let service = in_folder(&folder.0, &[]);
    let address = service.starts();
    TcpStream::connect(address).expect("a server that is ready accepts connections");
    kill_process(Pid::from_child(&service.server), Signal::TERM).unwrap();
    service.ends();
}

#[test]
fn it_hears_of_an_end_by_a_client() {
    let folder = Folder::new("client");
    let service = in_folder(&folder.0, &[]);
    let mut client = TcpStream::connect(service.starts()).unwrap();
    client.write_all(b"SHUTDOWN NOSAVE\r\n").unwrap();
    service.ends();
}

#[test]
fn its_socket_may_have_an_abstract_name() {
    let name = format!("portcullis-{}-manager", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    let service = Service::start(socket, OsStr::new(&format!("@{name}")), &[]);
    service.starts();
    kill_process(Pid::from_child(&service.server), Signal::TERM).unwrap();
    service.ends();
}

#[test]
fn a_manager_that_is_gone_is_an_error_of_the_start() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(["serve", "--port", "0", "--bind", "127.0.0.1"]).env("NOTIFY_SOCKET", "/nonexistent/notify");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && told.contains("NOTIFY_SOCKET"), "{told}");
}

/// Fills a socket until it takes no message of a new sender. Returns how many it holds.
fn fill(path: &Path) -> usize {
    for held in 0.. {
        // Each sender has a limit of its own, which could end before the room in the socket.
        let sender = UnixDatagram::unbound().unwrap();
        sender.set_nonblocking(true).unwrap();
        sender.connect(path).unwrap();
        match sender.send(b"STATUS=of another service") {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                return held;
            }
        }
    }
    unreachable!("a socket has bounds")
}

#[test]
fn a_manager_that_does_not_read_its_socket_delays_neither_the_start_nor_the_end() {
    let folder = Folder::new("deaf");
    let [path, ready, log] = ["notify", "ready", "log"].map(|name| folder.0.join(name));
    let socket = UnixDatagram::bind(&path).unwrap();
    let held = fill(&path);
    let args = ["--ready-file", ready.to_str().unwrap(), "--logfile", log.to_str().unwrap()];
    let mut service = Service::start(socket, path.as_os_str(), &args);
    until("the ready file", || ready.exists());
    let address = std::fs::read_to_string(&ready).unwrap();
    TcpStream::connect(address.trim()).expect("a server that is ready accepts connections");
    kill_process(Pid::from_child(&service.server), Signal::TERM).unwrap();
    let mut code = None;
    until("the server's end", || {
        code = service.server.try_wait().unwrap();
        code.is_some()
    });
    assert!(code.unwrap().success());
    // Each of its three messages failed, and the log says so.
    let log = std::fs::read_to_string(&log).unwrap();
    assert_eq!(log.matches("the service manager does not take messages").count(), 3, "{log}");
    service.socket.set_nonblocking(true).unwrap();
    let told = std::iter::from_fn(|| service.socket.recv(&mut [0; 1024]).ok()).count();
    assert_eq!(told, held, "only the other services' messages are in the socket");
}

#[test]
fn a_manager_that_is_busy_for_a_moment_gets_every_message() {
    // The server's patience is measured in real time, and this test may be the one that is kept waiting.
    assert!((0..5).any(|_| is_told_late()), "a message to a socket that is full for a moment is lost each time");
}

/// Starts a server while the manager's socket is full, then empties it. Returns whether the server's first message came after all.
fn is_told_late() -> bool {
    let folder = Folder::new("busy");
    let path = folder.0.join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let held = fill(&path);
    let service = Service::start(socket, path.as_os_str(), &[]);
    until("a message that waits", || waits_in_a_socket(service.server.id()));
    for _ in 0..held {
        assert_eq!(service.next(), ["STATUS=of another service"]);
    }
    service.next()[0] == "STATUS=loading the files"
}

/// Whether a thread of the process is in a system call that writes to a socket.
fn waits_in_a_socket(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.filter_map(Result::ok).any(|thread| {
        // The number of the system call, and its arguments in hexadecimal digits.
        let call = std::fs::read_to_string(thread.path().join("syscall")).unwrap_or_default();
        let mut words = call.split(' ');
        let sends = words
            .next()
            .is_some_and(|number| [libc::SYS_write, libc::SYS_sendto].map(|of| of.to_string()).contains(&number.into()));
        let descriptor = words.next().and_then(|word| i32::from_str_radix(word.trim_start_matches("0x"), 16).ok());
        let file = descriptor.and_then(|descriptor| std::fs::read_link(format!("/proc/{process}/fd/{descriptor}")).ok());
        sends && file.is_some_and(|file| file.to_string_lossy().starts_with("socket:"))
    })
}
