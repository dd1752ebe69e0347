//! `portcullis cluster try`: nodes on this machine, as child processes.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use crate::cluster::processes::{self, NodeStart, Place, free_ports};
use crate::cluster::secret;
use crate::cluster::survey::survey;
use crate::files;

/// Number of nodes.
const NODES: u16 = 3;
/// What is added to a port for clients for the one among the nodes, if the ports are given. As for Redis's cluster bus.
const BUS: u16 = 10_000;
/// Time within which a node must lead and all must vote.
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

/// The ports that the nodes of a kept folder have, or else those that are asked for, which it keeps.
fn ports_of(place: &Place, first: Option<u16>) -> Result<Vec<Ports>, String> {
    let file = place.folder.join(PORTS);
    if let Ok(text) = std::fs::read_to_string(&file) {
        let ports = read_ports(&text).ok_or_else(|| format!("{}: it is damaged", file.display()))?;
        if first.is_some_and(|first| ports.first().is_none_or(|(port, _)| *port != first)) {
            return Err(format!("{}: these nodes have other ports: {}", place.folder.display(), text.trim()));
        }
        return Ok(ports);
    }
    let ports = match first {
        Some(first) => (0..NODES).map(|node| successive(first, node)).collect::<Option<Vec<_>>>(),
        None => free_pairs(),
    };
    let ports = ports.ok_or_else(|| "there are not enough ports".to_owned())?;
    let text: String = ports.iter().map(|(client, node)| format!("{client} {node}\n")).collect();
    files::replace(&file, text.as_bytes()).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(ports)
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

/// Ports that are free now, for each node.
fn free_pairs() -> Option<Vec<Ports>> {
    let ports = free_ports(2 * usize::from(NODES))?;
    Some(ports.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}

/// The processes. Dropping them ends them: what clients were told is on the disk.
struct Nodes(Vec<Option<Child>>);

impl Drop for Nodes {
    fn drop(&mut self) {
        self.0.iter_mut().flatten().for_each(processes::end);
    }
}

impl Nodes {
    fn start(place: &Place, ports: &[Ports]) -> Result<Nodes, String> {
        let peers = processes::peers(ports.iter().map(|(_, port)| *port));
        // Other users of this machine reach the ports, too.
        let secret = [secret::file_in(&place.folder)?.to_string_lossy().into_owned()];
        let mut nodes = Nodes(Vec::new());
        for (node, (port, _)) in (1..).zip(ports) {
            let start = NodeStart { node, peers: &peers, port: *port, more: &secret, limited: false };
            nodes.0.push(Some(processes::spawn(place, start)?));
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
            eprintln!("portcullis: node {node} has ended: {status}. The last lines of its log:");
            place.last_lines(node, LINES).iter().for_each(|line| eprintln!("  {line}"));
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
    let place = Place::of(trial.keep.as_deref(), "portcullis-try")?;
    let ports = ports_of(&place, trial.port)?;
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

/// Waits until a node leads and all vote. Returns the number of the one that leads.
async fn leader(place: &Place, nodes: &mut Nodes, ports: &[Ports]) -> Result<usize, String> {
    let began = Instant::now();
    let urls = ports.iter().map(url).collect::<Vec<_>>().join(",");
    loop {
        nodes.look(place)?;
        if let Ok(found) = survey(&urls).await
            && let Some(leader) = found.leader()
            && leader.status.members.iter().all(|member| member.votes)
        {
            return Ok(leader.status.node as usize);
        }
        fail_if!(began.elapsed() > START_TIME, "no node leads, or one has no vote".to_owned());
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
        assert_eq!(free_pairs().unwrap().len(), 3);
        let folder = std::env::temp_dir().join(format!("portcullis-trial-{}", std::process::id()));
        let place = Place::of(Some(&folder), "").unwrap();
        let ports = ports_of(&place, Some(7000)).unwrap();
        assert_eq!(ports, [(7000, 17000), (7001, 17001), (7002, 17002)]);
        assert_eq!(ports_of(&place, None).unwrap(), ports);
        assert!(ports_of(&place, Some(7001)).unwrap_err().contains("these nodes have other ports: 7000 17000"));
        std::fs::write(folder.join(PORTS), "x").unwrap();
        assert!(ports_of(&place, None).unwrap_err().contains("it is damaged"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
