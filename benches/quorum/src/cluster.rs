//! Three processes of a system on loopback.

use std::io::{Error, Result};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use portcullis::bench::servers::info::name_and_version;
use portcullis::bench::servers::kind::on_path;
use portcullis::bench::servers::process::Process;
use portcullis::bench::servers::process_stats::whole_cpu_ns;
use portcullis::bench::servers::wire::call;
use portcullis::ports;
use rustix::process::{Pid, Signal, kill_process};

use crate::plan::Plan;
use crate::systems::{System, etcd, portcullis as ours, redis, zookeeper};

/// Nodes of a cluster.
const NODES: usize = 3;

/// Longest time until all nodes agree on a leader.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// The ports of a node.
#[derive(Clone, Copy)]
pub struct Ports {
    /// For clients.
    pub client: u16,
    /// For the other nodes.
    pub peer: u16,
    /// For ZooKeeper's elections.
    pub election: u16,
}

/// Three nodes. Dropping it ends them and removes their folders.
pub struct Cluster {
    system: System,
    program: PathBuf,
    ports: Vec<Ports>,
    // Dropped before the folder, which they write to.
    nodes: Vec<Option<Process>>,
    folder: Folder,
}

/// A folder that is removed when it is dropped. Its name begins as those of servers do, so that it is removed after a signal, too.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Cluster {
    /// Starts the nodes of a system and waits until they have a leader.
    pub async fn start(plan: &Plan, system: System) -> Result<Cluster> {
        let name = format!("portcullis-bench-{}-{system:?}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&folder.0)?;
        let program = plan.program(system)?.to_owned();
        let mut cluster = Cluster { system, program, ports: free_ports()?, nodes: Vec::new(), folder };
        for number in 0..NODES {
            let process = cluster.spawn(number)?;
            cluster.nodes.push(Some(process));
        }
        cluster.ready().await?;
        Ok(cluster)
    }

    fn spawn(&self, number: usize) -> Result<Process> {
        let dir = self.folder.0.join(number.to_string());
        std::fs::create_dir_all(&dir)?;
        let (program, ports) = (self.program.as_path(), self.ports.as_slice());
        let command = match self.system {
            System::Portcullis => ours::command(program, number, ports, &dir),
            System::Etcd => etcd::command(program, number, ports, &dir),
            System::ZooKeeper => zookeeper::command(program, number, ports, &dir)?,
            System::Redis => redis::command(program, number, ports, &dir),
        };
        let mut process = Process::spawn(bound(command), self.ports[number].client)?;
        process.wait_until_listening().map_err(|error| Error::other(format!("node {}: {error}", number + 1)))?;
        Ok(process)
    }

    /// Waits until all nodes agree that one of them leads. Returns its number.
    pub async fn ready(&self) -> Result<usize> {
        let began = Instant::now();
        loop {
            match self.leader().await {
                Ok(leader) => return Ok(leader),
                Err(error) if began.elapsed() > ELECTION_TIMEOUT => return Err(Error::other(format!("no leader: {error}"))),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    async fn leader(&self) -> Result<usize> {
        let mut leaders = Vec::new();
        for (number, addr) in self.addrs().into_iter().enumerate() {
            let leads = match self.system {
                System::Portcullis => ours::leads(addr)?,
                System::Etcd => etcd::leads(addr).await?,
                System::ZooKeeper => zookeeper::leads(addr)?,
                System::Redis => redis::leads(addr)?,
            };
            leaders.extend(leads.then_some(number));
        }
        match leaders.as_slice() {
            [leader] => Ok(*leader),
            leaders => Err(Error::other(format!("{} nodes lead", leaders.len()))),
        }
    }

    /// The addresses for clients.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.ports.iter().map(|ports| SocketAddr::from(([127, 0, 0, 1], ports.client))).collect()
    }

    /// The name and version.
    pub async fn version(&self) -> String {
        let addr = self.addrs()[0];
        let version = match self.system {
            System::Etcd => etcd::version(addr).await,
            System::ZooKeeper => zookeeper::version(addr),
            System::Portcullis | System::Redis => call(addr, &["INFO"]).map(|info| name_and_version(&info)),
        };
        version.unwrap_or_else(|_| self.system.title().to_owned())
    }

    fn running(&self) -> impl Iterator<Item = &Process> {
        self.nodes.iter().flatten()
    }

    /// Nanoseconds of CPU time of all nodes.
    pub fn cpu_ns(&self) -> Result<u64> {
        let used = self.running().map(|process| whole_cpu_ns(process.pid()));
        used.sum::<Option<u64>>().ok_or_else(|| Error::other("a node has ended"))
    }

    /// Resident memory of all nodes.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.running().map(Process::resident_bytes).sum()
    }

    /// Sends SIGKILL to a node, and does not wait for its end.
    pub fn kill(&self, number: usize) -> Result<()> {
        let pid = self.nodes[number].as_ref().and_then(|process| Pid::from_raw(process.pid() as i32));
        kill_process(pid.ok_or_else(|| Error::other("there is no such node"))?, Signal::KILL)?;
        Ok(())
    }

    /// Starts a killed node again, with its data, and waits until all nodes agree on a leader.
    pub async fn restart(&mut self, number: usize) -> Result<()> {
        // Its working folder is removed before the new process has it.
        drop(self.nodes[number].take());
        self.nodes[number] = Some(self.spawn(number)?);
        self.ready().await.map(|_| ())
    }
}

/// Free ports for all nodes.
fn free_ports() -> Result<Vec<Ports>> {
    let of_node = || Ok(Ports { client: ports::free()?, peer: ports::free()?, election: ports::free()? });
    (0..NODES).map(|_| of_node()).collect()
}

/// A command whose process ends with this one, even after SIGKILL, where `setpriv` is installed.
fn bound(command: Command) -> Command {
    let Some(setpriv) = on_path("setpriv") else { return command };
    let mut bound = Command::new(setpriv);
    bound.args(["--pdeathsig", "KILL", "--"]).arg(Path::new(command.get_program())).args(command.get_args());
    bound
}
