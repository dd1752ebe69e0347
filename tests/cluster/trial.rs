//! `portcullis cluster try`.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::nodes::{Asker, PATIENCE, ask_briefly, said};

/// A trial that runs.
struct Trial {
    child: Child,
    clients: Vec<SocketAddr>,
    folder: PathBuf,
}

impl Trial {
    /// Starts one, and reads how to connect.
    fn start(more: &[&str]) -> Trial {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.args(["cluster", "try"]).args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let first = lines.next().unwrap_or_default();
        let folder = first.strip_prefix("3 nodes run in ").and_then(|rest| rest.split(',').next());
        let folder = folder.unwrap_or_else(|| panic!("{first}")).into();
        let url = |line: &str| -> Option<SocketAddr> { line.split("redis://").nth(1)?.split(' ').next()?.parse().ok() };
        let mut clients = Vec::new();
        for line in lines {
            clients.extend(line.starts_with("  node ").then(|| url(&line).unwrap_or_else(|| panic!("{line}"))));
            if line.starts_with("their state") {
                break;
            }
        }
        assert_eq!(clients.len(), 3);
        Trial { child, clients, folder }
    }

    fn ask(&self, request: &[&str]) -> String {
        Asker { clients: self.clients.clone(), last: 0 }.ask(request)
    }

    /// Ends it as Ctrl-C does. Returns what it has said of its nodes.
    fn end(mut self) -> String {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        assert!(self.child.wait().unwrap().success());
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        for addr in &self.clients {
            assert!(ask_briefly(*addr, &["PING"]).is_err(), "a node is left");
        }
        said
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // A test that failed. The nodes end with their standard input.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn process_id(addr: SocketAddr) -> Pid {
    said(|| crate::nodes::info_of(addr, "server", "process_id")).parse().ok().and_then(Pid::from_raw).unwrap()
}

fn until(what: &str, mut look: impl FnMut() -> bool) {
    let began = Instant::now();
    while !look() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn three_nodes_run_until_control_c_and_leave_nothing() {
    let trial = Trial::start(&[]);
    assert_eq!(trial.ask(&["SET", "a", "1"]), "+OK");
    let folder = trial.folder.clone();
    assert!(folder.is_dir());
    assert_eq!(trial.ask(&["GET", "a"]), "1");
    assert_eq!(trial.end(), "");
    assert!(!folder.exists(), "{}", folder.display());
}

#[test]
fn a_folder_is_kept_and_a_node_that_dies_is_told_of() {
    let folder = std::env::temp_dir().join(format!("portcullis-kept-{}", std::process::id()));
    let keep = folder.to_string_lossy().into_owned();
    let trial = Trial::start(&["--keep", &keep]);
    assert_eq!(trial.ask(&["SET", "a", "1"]), "+OK");
    // Its nodes share a secret, which no other user of the machine reads.
    let secret = folder.join("secret.conf");
    assert_eq!(std::fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_to_string(&secret).unwrap().len(), "cluster-secret ".len() + 64 + 1);
    let clients = trial.clients.clone();
    kill_process(process_id(clients[1]), Signal::KILL).unwrap();
    until("the node ends", || ask_briefly(clients[1], &["PING"]).is_err());
    assert_eq!(trial.ask(&["GET", "a"]), "1");
    // It looks at its processes ten times a second.
    std::thread::sleep(Duration::from_millis(500));
    let said = trial.end();
    assert!(said.contains("node 2 has ended: signal: 9") && said.contains(" INFO "), "{said}");
    let trial = Trial::start(&["--keep", &keep]);
    assert_eq!(trial.clients, clients, "they have their old addresses");
    assert_eq!(trial.ask(&["GET", "a"]), "1");
    trial.end();
    assert!(Path::new(&keep).is_dir());
    std::fs::remove_dir_all(&folder).unwrap();
}
