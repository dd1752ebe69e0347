//! Health while a server loads, is busy, or has no leader.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::client::{Answer, PATIENCE, Talk, builder, get, start};

/// A server as a process, and its scratch folder.
struct Process {
    child: Child,
    port: u16,
    http: SocketAddr,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    crate::common::ports::free()
}

/// Starts a server, and waits until its endpoint is there, which is before it has loaded its files.
fn run(args: &[&str]) -> Process {
    let mut last = String::new();
    // Another process may take a port before the server does.
    for _ in 0..5 {
        let (port, http) = (free_port(), SocketAddr::from(([127, 0, 0, 1], free_port())));
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.args(["serve", "--port", &port.to_string(), "--http", &http.to_string()]).args(args);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if TcpStream::connect(http).is_ok() {
                return Process { child, port, http };
            }
            if child.try_wait().unwrap().is_some() {
                let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
                last = lines.collect::<Vec<_>>().join("\n");
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
    panic!("it does not start: {last}");
}

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("portcullis-http-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Asks until the status comes.
#[track_caller]
fn until(addr: SocketAddr, path: &str, status: u16) -> Answer {
    let begin = Instant::now();
    loop {
        let answer = get(addr, path);
        if answer.status == status {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "{path} stays {answer:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_server_that_loads_is_alive_and_not_ready() {
    let folder = Scratch::new("loading");
    let dir = ["--dir", folder.path()];
    {
        let filled = run(&dir);
        let mut talk = Talk::to(SocketAddr::from(([127, 0, 0, 1], filled.port)));
        (0..200).for_each(|number| assert_eq!(talk.say(&format!("SET key:{number} v")), "+OK"));
        assert_eq!(talk.say("SAVE"), "+OK");
    }
    let server = run(&[&dir[..], &["--key-load-delay", "100000"]].concat());
    let answer = until(server.http, "/readyz", 503);
    assert!(answer.error().starts_with("loading"), "{answer:?}");
    assert_eq!(get(server.http, "/healthz").status, 200);
    let metrics = get(server.http, "/metrics");
    assert!(metrics.body.contains("\nredis_loading_dump_file 1\n") && metrics.body.contains("\nredis_up 1\n"), "{metrics:?}");
    let answer = get(server.http, "/api/locks");
    assert!(answer.status == 503 && answer.error().starts_with("LOADING"), "{answer:?}");
    let mut talk = Talk::to(SocketAddr::from(([127, 0, 0, 1], server.port)));
    assert_eq!(talk.say("CONFIG SET key-load-delay 0"), "+OK");
    until(server.http, "/readyz", 200);
    assert_eq!(get(server.http, "/api/locks").status, 200);
}

#[test]
fn a_node_without_a_leader_is_alive_and_not_ready() {
    let folder = Scratch::new("alone");
    let peers: Vec<String> = (1..=3).map(|id| format!("{id}=127.0.0.1:{}", free_port())).collect();
    let server = run(&["--dir", folder.path(), "--node-id", "1", "--peers", &peers.join(",")]);
    let answer = until(server.http, "/readyz", 503);
    assert!(answer.error().starts_with("no leader"), "{answer:?}");
    assert_eq!(get(server.http, "/healthz").status, 200);
    let figures = get(server.http, "/api/figures").json();
    assert_eq!(figures["server"]["node-id"], 1, "{figures}");
    // The cluster has not begun, so the node knows of itself alone.
    assert_eq!((&figures["cluster"][0]["node"], &figures["cluster"][0]["lag"]), (&1.into(), &0.into()), "{figures}");
    assert_eq!(figures["figures"]["grants"], serde_json::Value::Null, "{figures}");
}

#[test]
fn an_executor_that_stands_still_is_not_alive() {
    let (server, addr) = start(builder());
    assert_eq!((get(addr, "/healthz").status, get(addr, "/readyz").status), (200, 200));
    Talk::to(server.addr()).begin("DEBUG SLEEP 2.5");
    let answer = until(addr, "/healthz", 503);
    assert!(answer.error().contains("did not answer within 1 s"), "{answer:?}");
    until(addr, "/healthz", 200);
}
