//! ZooKeeper: the lock of its page of recipes, with an ephemeral, sequential node for each client that wants it.

use std::io::{Error, Result};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use portcullis::bench::servers::wire::connect;
use zookeeper_client::{Acls, CreateMode, CreateOptions, Error as ZkError, SessionState};

use crate::cluster::Ports;
use crate::systems::failed;

/// Where Debian's package has the server. Its manifest names the libraries.
pub const JAR: [&str; 1] = ["/usr/share/java/zookeeper.jar"];

/// The shortest session that a server grants with a tick of 2 s is 4 s, the longest 40 s.
const SESSION: Duration = Duration::from_secs(30);

/// The beginning of the nodes of those who want a lock.
const WANTS: &str = "lock-";

const PERSISTENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());
const EPHEMERAL: CreateOptions<'static> = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());

/// The command that starts a node. Its configuration is that of Debian's package, but for ports and the number of connections.
pub fn command(java: &Path, number: usize, ports: &[Ports], dir: &Path) -> Result<Command> {
    std::fs::create_dir_all(dir)?;
    let mut config = format!(
        "tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
         admin.enableServer=false\n4lw.commands.whitelist=srvr\n",
        dir.display(),
        ports[number].client
    );
    for (index, ports) in ports.iter().enumerate() {
        config += &format!("server.{}=127.0.0.1:{}:{}\n", index + 1, ports.peer, ports.election);
    }
    std::fs::write(dir.join("zoo.cfg"), config)?;
    std::fs::write(dir.join("myid"), format!("{}\n", number + 1))?;
    let mut command = Command::new(java);
    // The heap is the one of zkServer.sh. Without a configuration the log is silent.
    command.args(["-Xmx1000m", "-cp", JAR[0], "org.apache.zookeeper.server.quorum.QuorumPeerMain"]).arg(dir.join("zoo.cfg"));
    Ok(command)
}

fn srvr(addr: SocketAddr) -> Result<String> {
    use std::io::{Read, Write};
    let mut socket = connect(addr)?;
    socket.write_all(b"srvr")?;
    let mut text = String::new();
    socket.read_to_string(&mut text)?;
    Ok(text)
}

fn srvr_field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// Whether a node is the leader.
pub fn leads(addr: SocketAddr) -> Result<bool> {
    let text = srvr(addr)?;
    match srvr_field(&text, "Mode") {
        Some("leader") => Ok(true),
        Some("follower") => Ok(false),
        _ => Err(Error::other(format!("srvr: {}", text.trim()))),
    }
}

/// The version of a node.
pub fn version(addr: SocketAddr) -> Result<String> {
    let text = srvr(addr)?;
    let version = srvr_field(&text, "Zookeeper version").unwrap_or("of unknown version");
    Ok(format!("ZooKeeper {}", version.split(['-', ',']).next().unwrap_or(version)))
}

fn error(error: ZkError) -> Error {
    failed("ZooKeeper", error)
}

/// A client.
pub struct Client(zookeeper_client::Client);

impl Client {
    pub async fn connect(nodes: &[SocketAddr]) -> Result<Client> {
        let all: Vec<String> = nodes.iter().map(SocketAddr::to_string).collect();
        let connector = zookeeper_client::Client::connector().with_session_timeout(SESSION);
        connector.connect(&all.join(",")).await.map(Client).map_err(error)
    }

    /// Whether the session goes on.
    pub fn is_alive(&self) -> bool {
        !matches!(self.0.state(), SessionState::Expired | SessionState::Closed | SessionState::AuthFailed)
    }

    pub async fn acquire(&self, lock: &str) -> Result<String> {
        let folder = format!("/{lock}");
        let prefix = format!("{folder}/{WANTS}");
        let created = match self.0.create(&prefix, b"", &EPHEMERAL).await {
            Err(ZkError::NoNode) => {
                match self.0.create(&folder, b"", &PERSISTENT).await {
                    Ok(_) | Err(ZkError::NodeExists) => (),
                    Err(other) => return Err(error(other)),
                }
                self.0.create(&prefix, b"", &EPHEMERAL).await
            }
            created => created,
        };
        let (_, sequence) = created.map_err(error)?;
        let ours = format!("{WANTS}{sequence}");
        loop {
            let all = self.0.list_children(&folder).await.map_err(error)?;
            if !all.contains(&ours) {
                return Err(Error::other("ZooKeeper: the session expired"));
            }
            // The numbers have ten digits.
            let Some(before) = all.into_iter().filter(|name| *name < ours).max() else { break };
            let (stat, watcher) = self.0.check_and_watch_stat(&format!("{folder}/{before}")).await.map_err(error)?;
            if stat.is_some() {
                watcher.changed().await;
            }
        }
        Ok(format!("{folder}/{ours}"))
    }

    pub async fn release(&self, node: &str) -> Result<()> {
        self.0.delete(node, None).await.map_err(error)
    }
}
