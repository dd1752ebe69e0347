//! `CONFIG SET port`, `bind` and `tls-port` on a running server: which addresses it listens on afterwards, and where they are
//! shown.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portcullis::testing::TestServer;

use crate::common::ports;
use crate::common::servers::{Server, on_path};
use crate::common::wire::Wire;

const BIND_FAILED: &str =
    "-ERR CONFIG SET failed (possibly related to argument 'bind') - Failed to bind to specified addresses.\r\n";
const PORT_FAILED: &str =
    "-ERR CONFIG SET failed (possibly related to argument 'port') - Unable to listen on this port. Check server logs.\r\n";
/// An address of a network without machines (RFC 5737).
const ABSENT: &str = "192.0.2.1";

/// A lock that each test holds while it runs. Between fork and exec, a child process has copies of all sockets of its parent, so
/// a socket that a server of this process has just closed would still listen at that moment.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A loopback address for one test, whose ports are used by nothing else.
fn own_host(of: u8) -> String {
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.{}.{low}.{}", 1 + high % 254, 1 + of)
}

/// Two ports that are free.
fn free_ports() -> [u16; 2] {
    [(); 2].map(|()| ports::free())
}

/// A client of the server, which looks at the addresses.
struct Scene {
    wire: Wire,
    place: &'static str,
}

impl Scene {
    fn new(addr: SocketAddr, place: &'static str) -> Scene {
        Scene { wire: Wire::connect(addr).expect("a connection"), place }
    }

    /// Sends `CONFIG SET` with these pairs and checks the reply.
    #[track_caller]
    fn set(&mut self, pairs: &[&str], reply: &str) {
        let args = [&["CONFIG", "SET"], pairs].concat();
        let got = self.wire.call(&args).expect("a reply").raw;
        assert_eq!(String::from_utf8_lossy(&got), reply, "{}: {pairs:?}", self.place);
    }

    /// Checks the port and the addresses in `INFO` and `CONFIG GET`.
    #[track_caller]
    fn shows(&mut self, port: u16, bind: &str) {
        let info = self.wire.call(&["INFO", "server"]).expect("a reply").raw;
        let info = String::from_utf8_lossy(&info);
        assert!(info.contains(&format!("\r\ntcp_port:{port}\r\n")), "{}: {port}: {info}", self.place);
        for (name, value) in [("port", port.to_string()), ("bind", bind.to_owned())] {
            let shown = self.wire.call(&["CONFIG", "GET", name]).expect("a reply").raw;
            let wanted = format!("*2\r\n${}\r\n{name}\r\n${}\r\n{value}\r\n", name.len(), value.len());
            assert_eq!(String::from_utf8_lossy(&shown), wanted, "{}", self.place);
        }
    }
}

/// Whether a server answers at an address. Without a listener the connection is refused at once.
fn answers(host: &str, port: u16) -> bool {
    let ask = || Wire::connect((host, port))?.call(&["PING"]);
    match ask() {
        Ok(reply) => reply.raw == b"+PONG\r\n",
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{host}:{port}");
            false
        }
    }
}

/// Runs a check against a server of this crate, and against redis-server if it is installed. Both must give the same replies.
fn on_both(check: impl Fn(SocketAddr, &'static str)) {
    // In a process of its own. A server in this process cannot bind an address again while a child that another test starts still has a
    // copy of its socket, between fork and exec.
    let program = Path::new(env!("CARGO_BIN_EXE_portcullis"));
    check(Server::portcullis(program).expect("the server starts").addr, "here");
    match on_path("redis-server") {
        Some(program) => check(Server::redis(&program).expect("the redis-server starts").addr, "on redis"),
        None => println!("SKIPPED: no redis-server on the PATH, the replies were not held against one"),
    }
}

#[test]
fn another_port_is_listened_on_and_clients_stay() {
    let _alone = alone();
    on_both(|addr, place| {
        let host = own_host(0);
        let mut scene = Scene::new(addr, place);
        scene.set(&["bind", &host], "+OK\r\n");
        let before = addr.port();
        assert!(answers(&host, before) && !answers("127.0.0.1", before), "{place}");
        let mut other = Wire::connect((host.as_str(), before)).expect("a connection");
        let [first, second] = free_ports();
        scene.set(&["port", &first.to_string()], "+OK\r\n");
        scene.shows(first, &host);
        assert!(answers(&host, first) && !answers(&host, before), "{place}");
        assert_eq!(other.call(&["PING"]).expect("it is connected still").raw, b"+PONG\r\n");
        // The same values change nothing.
        scene.set(&["port", &first.to_string(), "bind", &host], "+OK\r\n");
        assert!(answers(&host, first), "{place}");

        let taken = TcpListener::bind((host.as_str(), 0)).expect("a port");
        let taken = taken.local_addr().map(|addr| (addr.port(), taken)).expect("an address");
        scene.set(&["port", &taken.0.to_string()], PORT_FAILED);
        scene.set(&["maxmemory", "5mb", "port", &taken.0.to_string(), "timeout", "9"], PORT_FAILED);
        scene.shows(first, &host);
        assert!(answers(&host, first), "{place}");
        let got = scene.wire.call(&["CONFIG", "GET", "maxmemory"]).expect("a reply").raw;
        assert_eq!(got, b"*2\r\n$9\r\nmaxmemory\r\n$1\r\n0\r\n", "{place}: none is set");
        for (value, reason) in [
            ("70000", "argument must be between 0 and 65535 inclusive"),
            ("-1", "argument must be between 0 and 65535 inclusive"),
            ("x", "argument couldn't be parsed into an integer"),
            ("", "argument couldn't be parsed into an integer"),
        ] {
            let reply = format!("-ERR CONFIG SET failed (possibly related to argument 'port') - {reason}\r\n");
            scene.set(&["port", value], &reply);
        }
        let refused = "-ERR CONFIG SET failed (possibly related to argument 'maxmemory') - argument must be a memory value\r\n";
        scene.set(&["port", &second.to_string(), "maxmemory", "zz"], refused);
        assert!(answers(&host, first) && !answers(&host, second), "{place}");

        // In a transaction it is executed in its place.
        for (request, reply) in [("MULTI", "+OK\r\n"), ("INFO server", "+QUEUED\r\n")] {
            let got = scene.wire.call(&request.split(' ').collect::<Vec<_>>()).expect("a reply").raw;
            assert_eq!(String::from_utf8_lossy(&got), reply, "{place}");
        }
        scene.set(&["port", &second.to_string()], "+QUEUED\r\n");
        scene.wire.call(&["INFO", "server"]).expect("a reply");
        let all = scene.wire.call(&["EXEC"]).expect("a reply").raw;
        let all = String::from_utf8_lossy(&all);
        let at = |port: u16| all.find(&format!("\r\ntcp_port:{port}\r\n"));
        assert!(at(first).is_some() && at(first) < at(second), "{place}: {all}");

        scene.set(&["port", "0"], "+OK\r\n");
        scene.shows(0, &host);
        assert!(!answers(&host, second), "{place}: none is listened on");
        scene.set(&["port", &first.to_string()], "+OK\r\n");
        scene.shows(first, &host);
        assert!(answers(&host, first), "{place}");
        assert_eq!(other.call(&["PING"]).expect("it is connected still").raw, b"+PONG\r\n");
    });
}

#[test]
fn other_addresses_are_listened_on_or_all_stays_as_it_was() {
    let _alone = alone();
    on_both(|addr, place| {
        let [host, second] = [1, 2].map(own_host);
        let [port, other_port] = free_ports();
        let mut scene = Scene::new(addr, place);
        // Both at once, in either order.
        scene.set(&["port", &port.to_string(), "bind", &host], "+OK\r\n");
        scene.shows(port, &host);
        assert!(answers(&host, port), "{place}");
        let absent = format!("{host} {ABSENT}");
        for bind in [ABSENT, &absent, &format!("{host} {host}")] {
            scene.set(&["bind", bind], BIND_FAILED);
            scene.shows(port, &host);
            assert!(answers(&host, port), "{place}: {bind}: the old one is bound again");
        }
        // The error names the first directive that changed.
        let elsewhere = other_port.to_string();
        scene.set(&["bind", ABSENT, "port", &elsewhere, "timeout", "7"], BIND_FAILED);
        scene.set(&["port", &elsewhere, "bind", ABSENT], PORT_FAILED);
        scene.set(&["port", &port.to_string(), "bind", ABSENT], BIND_FAILED);
        scene.set(&["timeout", "7", "bind", ABSENT], BIND_FAILED);
        scene.shows(port, &host);
        assert!(answers(&host, port) && !answers(&host, other_port), "{place}");
        let many = vec![host.as_str(); 17].join(" ");
        let refused = "-ERR CONFIG SET failed (possibly related to argument 'bind') - Too many bind addresses specified.\r\n";
        scene.set(&["bind", &many], refused);

        let both = format!("{host} {second}");
        scene.set(&["bind", &both], "+OK\r\n");
        scene.shows(port, &both);
        assert!(answers(&host, port) && answers(&second, port), "{place}");
        scene.set(&["bind", &second], "+OK\r\n");
        assert!(!answers(&host, port) && answers(&second, port), "{place}");
        // Optional addresses may be missing, even if there are no others.
        let optional = format!("-{ABSENT}");
        scene.set(&["bind", &optional], "+OK\r\n");
        scene.shows(port, &optional);
        assert!(!answers(&second, port), "{place}");
        scene.set(&["bind", &format!("{host} {optional}")], "+OK\r\n");
        assert!(answers(&host, port), "{place}");
        scene.set(&["bind", ""], "+OK\r\n");
        scene.shows(port, "");
        assert!(!answers(&host, port), "{place}");
        // To all addresses, including one that was bound before, and back.
        scene.set(&["bind", &host], "+OK\r\n");
        scene.set(&["bind", "*"], "+OK\r\n");
        assert!(answers(&host, port) && answers(&second, port), "{place}");
        scene.set(&["bind", &host, "port", &elsewhere], "+OK\r\n");
        scene.shows(other_port, &host);
        assert!(answers(&host, other_port) && !answers(&host, port) && !answers(&second, other_port), "{place}");
    });
}

#[test]
fn the_server_and_its_cluster_say_where_it_listens_and_the_unix_socket_stays() {
    let _alone = alone();
    let host = own_host(3);
    let path = std::env::temp_dir().join(format!("portcullis-{}-listening", std::process::id()));
    let unixsocket = path.to_str().expect("a path");
    let server = TestServer::builder().config("unixsocket", unixsocket).config("cluster-enabled", "yes").start();
    let mut local = UnixStream::connect(&path).expect("the unix socket");
    let [port, _] = free_ports();
    let request = format!("CONFIG SET port {port} bind {host}\r\nCLUSTER SLOTS\r\nINFO server\r\n");
    local.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");
    local.write_all(request.as_bytes()).expect("it is sent");
    let mut seen = Vec::new();
    let unix = format!("name=unix,bind={unixsocket}\r\n");
    while !seen.ends_with(b"\r\n\r\n") && !String::from_utf8_lossy(&seen).contains(&unix) {
        let mut bytes = [0; 4096];
        let count = local.read(&mut bytes).expect("replies");
        assert!(count > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&bytes[..count]);
    }
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.contains(&format!(":{port}\r\n")), "CLUSTER SLOTS names the port: {seen}");
    assert!(seen.contains(&format!("listener0:name=tcp,bind={host},port={port}\r\n")) && seen.contains(&unix), "{seen}");
    let ip: Ipv4Addr = host.parse().expect("an address");
    assert_eq!(server.server().addresses(), [SocketAddr::new(IpAddr::V4(ip), port)]);
    assert_eq!(server.url(), format!("redis://{host}:{port}/"));
    assert!(answers(&host, server.port()));
    let mut again = UnixStream::connect(&path).expect("the unix socket");
    again.write_all(b"PING\r\n").expect("it is sent");
    let mut pong = [0; 7];
    again.read_exact(&mut pong).expect("a reply");
    assert_eq!(&pong, b"+PONG\r\n");
    drop(server);
    assert!(!path.exists(), "it is removed with the server");
}

#[test]
fn clients_come_by_the_new_address_while_a_script_runs() {
    let _alone = alone();
    let host = own_host(4);
    let server = TestServer::builder().config("busy-reply-threshold", "10").start();
    let [port, _] = free_ports();
    let mut scene = Scene::new(server.addr(), "here");
    let before = server.addr();
    scene.set(&["port", &port.to_string(), "bind", &host], "+OK\r\n");
    scene.wire.queue(&["EVAL", "while true do end", "0"]);
    scene.wire.flush().expect("it is sent");
    let mut other = Wire::connect((host.as_str(), port)).expect("a connection");
    // No client gets BUSY before the script runs.
    while !other.call(&["PING"]).expect("a reply").frame.is_error("BUSY") {}
    assert!(Wire::connect(before).is_err(), "nothing listens there any more");
    assert_eq!(other.call(&["SCRIPT", "KILL"]).expect("a reply").raw, b"+OK\r\n");
    assert!(scene.wire.reply().expect("a reply").frame.is_error("ERR Script killed by user"));
    assert_eq!(other.call(&["PING"]).expect("a reply").raw, b"+PONG\r\n");
}
