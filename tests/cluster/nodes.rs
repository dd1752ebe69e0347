//! Nodes as processes, and a client that looks for their leader.

use std::fs::File;
use std::io::{BufRead, BufReader, Error, ErrorKind, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

use crate::common::ports;

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long a client waits for a reply before it asks another node.
const REPLY: Duration = Duration::from_millis(300);

/// Three nodes or more, each with a folder. Dropping it kills them.
pub struct Cluster {
    folder: PathBuf,
    /// Where the nodes reach each other.
    peers: Vec<u16>,
    /// Where each listens for the others, if they reach it through a proxy.
    listens: Option<Vec<u16>>,
    pub clients: Vec<SocketAddr>,
    children: Vec<Option<Child>>,
    /// More arguments of each node.
    pub arguments: Vec<Vec<String>>,
    /// More of the environment of each node.
    pub environment: Vec<Vec<(&'static str, PathBuf)>>,
}

/// Whether tests are to run for as long as it takes to find what is rare.
pub fn full_size() -> bool {
    std::env::var_os("PORTCULLIS_FULL_SIZE").is_some_and(|value| !value.is_empty())
}

/// The program: `PORTCULLIS_PROGRAM`, such as one that was built for release, or the one that cargo has built.
fn program() -> PathBuf {
    std::env::var_os("PORTCULLIS_PROGRAM").map_or_else(|| env!("CARGO_BIN_EXE_portcullis").into(), PathBuf::from)
}

/// Ports that are free, and stay so while nodes are down.
fn free_ports<const N: usize>() -> [u16; N] {
    [(); N].map(|()| ports::free())
}

impl Cluster {
    /// Starts three nodes, and waits until one leads and all vote.
    #[track_caller]
    pub fn start() -> Cluster {
        let mut cluster = Cluster::prepare();
        (0..3).for_each(|node| cluster.start_node(node));
        cluster.leader();
        (0..3).for_each(|node| cluster.until_votes(node));
        cluster
    }

    /// Waits until a node votes, which it does not at once after its start.
    #[track_caller]
    pub fn until_votes(&mut self, node: usize) {
        self.wait("a vote", |cluster| {
            let log = cluster.log(node);
            (log.rfind(" listening on ") < log.rfind("this node votes")).then_some(())
        });
    }

    /// Chooses folders and ports.
    pub fn prepare() -> Cluster {
        Cluster::prepare_behind(|_| None)
    }

    /// As [`Cluster::prepare`]. `proxies` gets the ports on which the nodes listen, and returns those on which they reach each other.
    pub fn prepare_behind(proxies: impl FnOnce(&[u16]) -> Option<Vec<u16>>) -> Cluster {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("portcullis-cluster-{}-{number}", std::process::id()));
        (1..=3).for_each(|node| std::fs::create_dir_all(folder.join(node.to_string())).unwrap());
        let ports = free_ports::<6>();
        let clients = ports[3..].iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect();
        let listens = ports[..3].to_vec();
        let (peers, listens) = match proxies(&listens) {
            Some(peers) => (peers, Some(listens)),
            None => (listens, None),
        };
        let (children, arguments, environment) = (vec![None, None, None], vec![Vec::new(); 3], vec![Vec::new(); 3]);
        Cluster { folder, peers, listens, clients, children, arguments, environment }
    }

    /// Chooses a folder and ports for one more node. Returns its number, counted from 0.
    pub fn another(&mut self) -> usize {
        let node = self.peers.len();
        let [peer, client] = free_ports();
        self.peers.push(peer);
        self.clients.push(SocketAddr::from(([127, 0, 0, 1], client)));
        self.children.push(None);
        self.arguments.push(self.arguments[0].clone());
        self.environment.push(Vec::new());
        std::fs::create_dir_all(self.dir(node)).unwrap();
        node
    }

    /// The address of a node among the nodes.
    pub fn address(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.peers[node])
    }

    /// The URLs of all nodes.
    pub fn urls(&self) -> String {
        self.clients.iter().map(|addr| format!("redis://{addr}")).collect::<Vec<_>>().join(",")
    }

    /// The `dir` of a node, counted from 0.
    pub fn dir(&self, node: usize) -> PathBuf {
        self.folder.join((node + 1).to_string())
    }

    fn log_path(&self, node: usize) -> PathBuf {
        self.folder.join(format!("{}.log", node + 1))
    }

    /// What a node has said.
    pub fn log(&self, node: usize) -> String {
        std::fs::read_to_string(self.log_path(node)).unwrap_or_default()
    }

    /// The arguments of a node.
    fn command(&self, node: usize, dir: &Path, more: &[&str]) -> Command {
        let peers: Vec<String> = self.peers.iter().zip(1..).map(|(port, id)| format!("{id}=127.0.0.1:{port}")).collect();
        // The signal that tells of a limit on files would end it.
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"]).arg(program());
        command.args(["serve", "--node-id", &(node + 1).to_string(), "--peers", &peers.join(",")]);
        command.args(["--port", &self.clients[node].port().to_string(), "--dir"]).arg(dir).args(more);
        command.args(&self.arguments[node]);
        command.envs(self.environment[node].iter().map(|(name, value)| (name, value)));
        if let Some(listens) = &self.listens {
            command.arg("--peer-listen").arg(format!("127.0.0.1:{}", listens[node]));
        }
        let log = File::options().create(true).append(true).open(self.log_path(node)).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        command
    }

    /// Starts a node.
    #[track_caller]
    pub fn start_node(&mut self, node: usize) {
        assert!(self.children[node].is_none(), "it runs");
        let child = self.command(node, &self.dir(node), &[]).spawn().unwrap();
        self.children[node] = Some(child);
        let addr = self.clients[node];
        self.wait(&format!("node {}", node + 1), |cluster| {
            let ended = cluster.children[node].as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "node {} ended: {ended:?}\n{}", node + 1, cluster.log(node));
            ask_briefly(addr, &["PING"]).is_ok().then_some(())
        });
    }

    /// Starts a node on a folder, which it must refuse. Returns what it says.
    #[track_caller]
    pub fn refused(&mut self, node: usize, dir: &Path, more: &[&str]) -> String {
        let mut child = self.command(node, dir, more).spawn().unwrap();
        let ended = self.wait("the refusal", |_| child.try_wait().unwrap());
        assert_eq!(ended.code(), Some(1), "{}", self.log(node));
        self.log(node)
    }

    /// Ends a node with SIGKILL.
    #[track_caller]
    pub fn kill(&mut self, node: usize) {
        let mut child = self.children[node].take().expect("it runs");
        assert!(child.try_wait().unwrap().is_none(), "node {} ended:\n{}", node + 1, self.log(node));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Ends a node with SIGTERM, and waits for its end.
    #[track_caller]
    pub fn terminate(&mut self, node: usize) {
        self.signal(node, Signal::TERM);
        let mut child = self.children[node].take().expect("it runs");
        let ended = self.wait("the end of a node", |_| child.try_wait().unwrap());
        assert!(ended.success(), "node {} ended: {ended}\n{}", node + 1, self.log(node));
    }

    fn signal(&self, node: usize, signal: Signal) {
        kill_process(Pid::from_child(self.children[node].as_ref().expect("it runs")), signal).unwrap();
    }

    /// Lets no file of a node grow beyond this many bytes, or any number of them: a disk that is full for as long as the test wants.
    pub fn limit_files(&self, node: usize, bytes: Option<u64>) {
        let pid = Pid::from_child(self.children[node].as_ref().expect("it runs"));
        prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
    }

    /// Pauses a node.
    pub fn pause(&self, node: usize) {
        self.signal(node, Signal::STOP);
    }

    /// Lets a paused node go on.
    pub fn resume(&self, node: usize) {
        self.signal(node, Signal::CONT);
    }

    /// The node that leads, as it says itself.
    #[track_caller]
    pub fn leader(&mut self) -> usize {
        self.wait("a leader", |cluster| {
            (0..cluster.clients.len()).find(|node| role(cluster.clients[*node]).is_ok_and(|role| role == "master"))
        })
    }

    /// Waits until a node follows.
    #[track_caller]
    pub fn until_follows(&mut self, node: usize) {
        self.wait("a follower", |cluster| {
            let follows = role(cluster.clients[node]).is_ok_and(|role| role == "slave");
            (follows && info(cluster.clients[node], "master_link_status").is_ok_and(|status| status == "up")).then_some(())
        });
    }

    /// Waits until a node leads, or follows a leader.
    #[track_caller]
    pub fn until_equal(&mut self, node: usize) {
        self.wait("an equal node", |cluster| {
            let addr = cluster.clients[node];
            let follows = || info(addr, "master_link_status").is_ok_and(|up| up == "up");
            (role(addr).is_ok_and(|role| role == "master") || follows()).then_some(())
        });
    }

    /// Repeats a look until it returns something.
    #[track_caller]
    pub fn wait<T>(&mut self, what: &str, mut look: impl FnMut(&mut Cluster) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(seen) = look(self) {
                return seen;
            }
            if begin.elapsed() > PATIENCE {
                let logs: Vec<String> =
                    (0..self.clients.len()).map(|node| format!("node {}:\n{}", node + 1, self.log(node))).collect();
                panic!("waited in vain for {what}\n{}", logs.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Asks the leader, whichever it is, until it answers anything but that it does not lead. Requests that get no answer are sent
    /// again: they must be such that this does no harm.
    #[track_caller]
    pub fn ask_leader(&self, request: &[&str]) -> String {
        Asker { clients: self.clients.clone(), last: 0 }.ask(request)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A client that looks for the leader.
pub struct Asker {
    pub clients: Vec<SocketAddr>,
    pub last: usize,
}

impl Asker {
    /// Asks until the leader answers.
    #[track_caller]
    pub fn ask(&mut self, request: &[&str]) -> String {
        let begin = Instant::now();
        loop {
            match ask_briefly(self.clients[self.last], request) {
                Ok(reply) if !["-READONLY", "-MASTERDOWN", "-CLUSTERDOWN"].iter().any(|error| reply.starts_with(error)) => {
                    return reply;
                }
                _ => self.last = (self.last + 1) % self.clients.len(),
            }
            assert!(begin.elapsed() < PATIENCE, "no leader answers {request:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Sends a request on a connection of its own. Returns the first line of the reply; of a bulk string, its first line.
pub fn ask(addr: SocketAddr, request: &[&str]) -> Result<String> {
    ask_within(PATIENCE, addr, request)
}

/// As [`ask`], of a node that may not answer.
pub fn ask_briefly(addr: SocketAddr, request: &[&str]) -> Result<String> {
    ask_within(REPLY, addr, request)
}

fn ask_within(time: Duration, addr: SocketAddr, request: &[&str]) -> Result<String> {
    let mut lines = send(time, addr, request)?;
    let mut line = String::new();
    lines.read_line(&mut line)?;
    if line.starts_with('$') && !line.starts_with("$-1") {
        line.clear();
        lines.read_line(&mut line)?;
    }
    if line.is_empty() { Err(Error::from(ErrorKind::UnexpectedEof)) } else { Ok(line.trim_end().to_owned()) }
}

fn send(time: Duration, addr: SocketAddr, request: &[&str]) -> Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect_timeout(&addr, time)?;
    stream.set_read_timeout(Some(time))?;
    let mut bytes = format!("*{}\r\n", request.len());
    request.iter().for_each(|arg| bytes += &format!("${}\r\n{arg}\r\n", arg.len()));
    stream.write_all(bytes.as_bytes())?;
    Ok(BufReader::new(stream))
}

/// What a node says that runs, however busy the machine is.
#[track_caller]
pub fn said<T>(mut ask: impl FnMut() -> Result<T>) -> T {
    let begin = Instant::now();
    loop {
        match ask() {
            Ok(said) => return said,
            Err(error) => assert!(begin.elapsed() < PATIENCE, "it does not answer: {error}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The first word of `ROLE`.
pub fn role(addr: SocketAddr) -> Result<String> {
    let mut lines = send(REPLY, addr, &["ROLE"])?.lines();
    lines.nth(2).unwrap_or_else(|| Err(Error::from(ErrorKind::UnexpectedEof)))
}

/// A field of `INFO replication`.
pub fn info(addr: SocketAddr, field: &str) -> Result<String> {
    info_of(addr, "replication", field)
}

/// A field of a section of `INFO`.
pub fn info_of(addr: SocketAddr, section: &str, field: &str) -> Result<String> {
    for line in send(REPLY, addr, &["INFO", section])?.lines() {
        if let Some(value) = line?.strip_prefix(field).and_then(|rest| rest.strip_prefix(':')) {
            return Ok(value.to_owned());
        }
    }
    Err(Error::from(ErrorKind::NotFound))
}
