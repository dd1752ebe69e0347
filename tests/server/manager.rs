//! What a service manager such as systemd is told through the socket that `NOTIFY_SOCKET` names.

use std::ffi::OsStr;
use std::io::Write;
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

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
