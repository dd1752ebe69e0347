//! `portcullis cluster try`: nodes on this machine, as child processes.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use crate::cluster::survey::survey;

/// Number of nodes.
const NODES: u16 = 3;
/// What is added to a port for clients for the one among the nodes, if the ports are given. As for Redis's cluster bus.
const BUS: u16 = 10_000;
/// Time within which a node must lead.
const START_TIME: Duration = Duration::from_secs(20);
/// Interval between looks at the processes.
const LOOK: Duration = Duration::from_millis(100);
/// Number of lines of a node's log that are shown when it has ended.
const LINES: usize = 5;
/// In a folder that is kept: the ports, as nodes know each other by their addresses.
const PORTS: &str = "ports";

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// The first port for clients; the others follow it. `None`: free ones.
    pub port: Option<u16>,
    /// The folder that is kept. `None`: a temporary one.
    pub keep: Option<PathBuf>,
}

/// The ports of a node: for clients, and among the nodes.
type Ports = (u16, u16);

/// The nodes' folder. A temporary one is removed with it.
struct Place {
    folder: PathBuf,
    temporary: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.temporary
            && let Err(error) = std::fs::remove_dir_all(&self.folder)
        {
            eprintln!("portcullis: {}: {error}", self.folder.display());
        }
    }
}

impl Place {
    fn of(keep: Option<&Path>) -> Result<Place, String> {
        let unique = format!("portcullis-try-{}", std::process::id());
        let folder = keep.map_or_else(|| std::env::temp_dir().join(unique), Path::to_owned);
        let folder = std::path::absolute(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let made = if keep.is_some() { std::fs::create_dir_all(&folder) } else { std::fs::create_dir(&folder) };
        made.map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Place { folder, temporary: keep.is_none() })
    }

    /// The ports that the nodes of a kept folder have, or else those that are asked for, which it keeps.
    fn ports(&self, first: Option<u16>) -> Result<Vec<Ports>, String> {
        let file = self.folder.join(PORTS);
        if let Ok(text) = std::fs::read_to_string(&file) {
            let ports = read_ports(&text).ok_or_else(|| format!("{}: it is damaged", file.display()))?;
            if first.is_some_and(|first| ports.first().is_none_or(|(port, _)| *port != first)) {
                return Err(format!("{}: these nodes have other ports: {}", self.folder.display(), text.trim()));
            }
            return Ok(ports);
        }
        let ports = match first {
            Some(first) => (0..NODES).map(|node| successive(first, node)).collect::<Option<Vec<_>>>(),
            None => free_ports(),
        };
        let ports = ports.ok_or_else(|| "there are not enough ports".to_owned())?;
        let text: String = ports.iter().map(|(client, node)| format!("{client} {node}\n")).collect();
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(ports)
    }

    fn log(&self, node: usize) -> PathBuf {
        self.folder.join(format!("{node}.log"))
    }
}

fn read_ports(text: &str) -> Option<Vec<Ports>> {
    let pair = |line: &str| {
        let (client, node) = line.split_once(' ')?;
        Some((client.parse().ok()?, node.parse().ok()?))
    };
    text.lines().map(pair).collect::<Option<Vec<_>>>().filter(|ports| !ports.is_empty())
}

fn successive(first: u16, node: u16) -> Option<Ports> {
    let port = first.checked_add(node)?;
    Some((port, port.checked_add(BUS)?))
}

/// Ports that are free now. Another process may take one meanwhile: its node then ends, and that is said.
fn free_ports() -> Option<Vec<Ports>> {
    let listeners: Vec<TcpListener> = (0..2 * NODES).map(|_| TcpListener::bind("127.0.0.1:0").ok()).collect::<Option<_>>()?;
    let ports: Vec<u16> = listeners.iter().map(|listener| Some(listener.local_addr().ok()?.port())).collect::<Option<_>>()?;
    Some(ports.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}

/// The processes. Dropping them ends them: what clients were told is on the disk.
struct Nodes(Vec<Option<Child>>);

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in self.0.iter_mut().flatten() {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Nodes {
    fn start(place: &Place, ports: &[Ports]) -> Result<Nodes, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let peers: Vec<String> = ports.iter().zip(1..).map(|((_, port), id)| format!("{id}=127.0.0.1:{port}")).collect();
        let mut nodes = Nodes(Vec::new());
        for (number, (port, _)) in ports.iter().enumerate() {
            let id = number + 1;
            let dir = place.folder.join(id.to_string());
            std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
            let mut command = Command::new(&program);
            command.args(["serve", "--node-id", &id.to_string(), "--peers", &peers.join(","), "--bind", "127.0.0.1"]);
            command.args(["--port", &port.to_string(), "--end-with-stdin"]);
            command.arg("--dir").arg(dir).arg("--logfile").arg(place.log(id));
            // Ctrl-C is for this process alone. If it is killed, the nodes end with their standard input.
            command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            nodes.0.push(Some(command.spawn().map_err(|error| format!("{}: {error}", program.display()))?));
        }
        Ok(nodes)
    }

    /// The nodes that have ended since the last look, counted from 1.
    fn ended(&mut self) -> Vec<(usize, ExitStatus)> {
        let mut ended = Vec::new();
        for (number, child) in self.0.iter_mut().enumerate() {
            if let Some(Ok(Some(status))) = child.as_mut().map(Child::try_wait) {
                *child = None;
                ended.push((number + 1, status));
            }
        }
        ended
    }

    /// Says which nodes have ended.
    ///
    /// # Errors
    /// All have.
    fn look(&mut self, place: &Place) -> Result<(), String> {
        for (node, status) in self.ended() {
            let log = std::fs::read_to_string(place.log(node)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("portcullis: node {node} has ended: {status}. The last lines of its log:");
            lines[lines.len().saturating_sub(LINES)..].iter().for_each(|line| eprintln!("  {line}"));
        }
        if self.0.iter().any(Option::is_some) { Ok(()) } else { Err("all nodes have ended".to_owned()) }
    }
}

/// Runs the nodes until a signal.
///
/// # Errors
/// In words: a node could not be started, none leads, or all have ended.
pub async fn run(trial: &Trial) -> Result<(), String> {
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    let place = Place::of(trial.keep.as_deref())?;
    let ports = place.ports(trial.port)?;
    let mut nodes = Nodes::start(&place, &ports)?;
    let running = async {
        let leader = leader(&place, &mut nodes, &ports).await?;
        // The reader may have closed the pipe.
        let _ = std::io::stdout().write_all(how_to_connect(&place, &ports, leader).as_bytes());
        loop {
            nodes.look(&place)?;
            sleep(LOOK).await;
        }
    };
    tokio::select! {
        ended = running => ended,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

fn url((port, _): &Ports) -> String {
    format!("redis://127.0.0.1:{port}")
}

/// Waits until a node leads. Returns its number.
async fn leader(place: &Place, nodes: &mut Nodes, ports: &[Ports]) -> Result<usize, String> {
    let began = Instant::now();
    let urls = ports.iter().map(url).collect::<Vec<_>>().join(",");
    loop {
        nodes.look(place)?;
        if let Ok(found) = survey(&urls).await
            && let Some(leader) = found.leader()
        {
            return Ok(leader.status.node as usize);
        }
        if began.elapsed() > START_TIME {
            return Err("no node leads".to_owned());
        }
        sleep(LOOK).await;
    }
}

fn how_to_connect(place: &Place, ports: &[Ports], leader: usize) -> String {
    let folder = place.folder.display();
    let fate = if place.temporary { "is removed at the end" } else { "is kept" };
    let lines: String = ports
        .iter()
        .enumerate()
        .map(|(at, ports)| format!("  node {}  {}{}\n", at + 1, url(ports), if at + 1 == leader { "  leads" } else { "" }))
        .collect();
    let leads = ports.get(leader.wrapping_sub(1)).map_or(0, |ports| ports.0);
    let addresses = ports.iter().map(|ports| format!("127.0.0.1:{}", ports.0)).collect::<Vec<_>>().join(",");
    let first = ports.first().map(url).unwrap_or_default();
    let urls = ports.iter().map(url).collect::<Vec<_>>().join(",");
    format!(
        "\
{count} nodes run in {folder}, which {fate}. Ctrl-C ends them.

{lines}
the leader     redis-cli -p {leads}
by Sentinel    sentinels {addresses}, master mymaster
all URLs       {urls}
their state    portcullis cluster status {first}
",
        count = ports.len(),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_successive_or_free_and_stay_with_a_folder() {
        assert_eq!(successive(7000, 2), Some((7002, 17002)));
        assert_eq!(successive(60_000, 0), None);
        assert_eq!(free_ports().unwrap().len(), 3);
        let folder = std::env::temp_dir().join(format!("portcullis-trial-{}", std::process::id()));
        let place = Place::of(Some(&folder)).unwrap();
        let ports = place.ports(Some(7000)).unwrap();
        assert_eq!(ports, [(7000, 17000), (7001, 17001), (7002, 17002)]);
        assert_eq!(place.ports(None).unwrap(), ports);
        assert!(place.ports(Some(7001)).unwrap_err().contains("these nodes have other ports: 7000 17000"));
        std::fs::write(folder.join(PORTS), "x").unwrap();
        assert!(place.ports(None).unwrap_err().contains("it is damaged"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
