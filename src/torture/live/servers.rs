//! The servers of a live run: given by their URLs, or started here.

use std::path::Path;
use std::sync::Arc;

use crate::bench::servers::kind::ServerKind;
use crate::bench::servers::process::Process;
use crate::bench::servers::target::delete_keys;
use crate::client::{Client, Command, Result};
use crate::engine::config::Config;
use crate::ports;
use crate::server::{Server, ServerOptions};
use crate::torture::live::grant_log::GrantLog;

/// Number of last writes that a server of this crate can lose.
const JOURNAL: u64 = 64;

/// The kind of a server.
enum Kind {
    /// A server of this crate in this process; `None` while it is down.
    Own(Option<Server>),
    /// A process of `redis-server`; `None` while it is down.
    Redis(Option<Process>),
    /// A node of a replicated service, which `nodes` starts and ends.
    Node,
    /// A running server that was given by its URL: whether it is in test mode, and whether it is a server of this crate.
    Given { test_mode: bool, native: bool },
}

/// A server.
pub struct Backend {
    /// `host:port`.
    pub addr: String,
    /// The parts of its URL before and behind the address.
    around: (String, String),
    kind: Kind,
    /// The log of grants, for servers of this crate that are started here.
    grant_log: Arc<GrantLog>,
}

impl Backend {
    /// Starts a server for the words `self` and `redis-server`. All others are the URL of a running one.
    ///
    /// # Errors
    /// The reason why a server cannot be started or reached, in words for people.
    pub async fn new(word: &str, grant_log: Arc<GrantLog>) -> std::result::Result<Backend, String> {
        let around = ("redis://".to_owned(), String::new());
        match word {
            "self" => {
                let server = own(0, &grant_log)?;
                let addr = server.addresses().first().map(ToString::to_string).unwrap_or_default();
                Ok(Backend { addr, around, kind: Kind::Own(Some(server)), grant_log })
            }
            "redis-server" => {
                let port = ports::free().map_err(|error| error.to_string())?;
                let process = redis(port)?;
                Ok(Backend { addr: format!("127.0.0.1:{port}"), around, kind: Kind::Redis(Some(process)), grant_log })
            }
            url => Self::given(url, grant_log).await,
        }
    }

    /// A node at an address.
    pub fn node(addr: String, grant_log: Arc<GrantLog>) -> Backend {
        Backend { addr, around: ("redis://".to_owned(), String::new()), kind: Kind::Node, grant_log }
    }

    async fn given(url: &str, grant_log: Arc<GrantLog>) -> std::result::Result<Backend, String> {
        let rest = url.strip_prefix("redis://").ok_or_else(|| format!("'{url}' is no URL of the kind redis://host:port"))?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let begin = rest[..end].rfind('@').map_or(0, |at| at + 1);
        let around = (format!("redis://{}", &rest[..begin]), rest[end..].to_owned());
        let addr = &rest[begin..end];
        let addr = if addr.contains(':') { addr.to_owned() } else { format!("{addr}:6379") };
        let client = Client::connect(url).await.map_err(|error| format!("{url}: {error}"))?;
        let test_mode = client.command(&["FAULT", "JOURNAL", &JOURNAL.to_string()]).await.is_ok();
        let info = client.query::<String>(Command::new("INFO").arg("portcullis")).await;
        let native = info.is_ok_and(|info| info.contains("portcullis_version:"));
        Ok(Backend { addr, around, kind: Kind::Given { test_mode, native }, grant_log })
    }

    /// The server's URL with another address.
    pub fn url_by(&self, addr: &str) -> String {
        format!("{}{addr}{}", self.around.0, self.around.1)
    }

    /// Whether the server was given and has native locks, so that `MONITOR` tells the order of its grants.
    pub fn can_be_monitored(&self) -> bool {
        matches!(self.kind, Kind::Given { native: true, .. })
    }

    /// Whether the server can be restarted with the loss of its last `lost` writes, or of all data.
    pub fn can_go_down(&self, lost: Option<u64>) -> bool {
        match self.kind {
            Kind::Own(_) | Kind::Given { test_mode: true, .. } => true,
            Kind::Redis(_) => lost.is_none(),
            Kind::Given { test_mode: false, .. } | Kind::Node => false,
        }
    }

    /// Takes the server down. Returns false if it restarts by itself.
    pub async fn down(&mut self, lost: Option<u64>) -> bool {
        match (&mut self.kind, lost) {
            (Kind::Own(server), None) => drop(server.take()),
            (Kind::Redis(process), _) => drop(process.take()),
            _ => {
                // A server that cannot restart, or is gone, stays as it is.
                let _ = self.restart(lost).await;
                return false;
            }
        }
        true
    }

    /// Restarts a server in test mode.
    async fn restart(&self, lost: Option<u64>) -> Result<()> {
        let client = Client::connect(&self.url_by(&self.addr)).await?;
        let restart = Command::new("FAULT").arg("RESTART");
        // The server may end the connection before it replies.
        let _ = client.run(lost.into_iter().fold(restart, |restart, lost| restart.arg("LOSE").arg(lost))).await;
        Ok(())
    }

    /// Starts the server again, at the same address.
    ///
    /// # Errors
    /// The reason why it cannot be started, in words for people.
    pub fn up(&mut self) -> std::result::Result<(), String> {
        let port = self.addr.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0);
        match &mut self.kind {
            Kind::Own(server @ None) => *server = Some(own(port, &self.grant_log)?),
            Kind::Redis(process @ None) => *process = Some(redis(port)?),
            _ => {}
        }
        Ok(())
    }

    /// Deletes the keys with this prefix, if the server outlives the run.
    pub async fn clean(&self, prefix: &str) {
        if !matches!(self.kind, Kind::Given { .. }) {
            return;
        }
        if let Ok(client) = Client::connect(&self.url_by(&self.addr)).await {
            delete_keys(&client, prefix).await;
        }
    }
}

/// A server of this crate on loopback, in test mode, whose changes are logged.
fn own(port: u16, grant_log: &Arc<GrantLog>) -> std::result::Result<Server, String> {
    // Not the snapshot of another server that lies in the working directory.
    let (bind, dbfilename) = (vec!["127.0.0.1".to_owned()], String::new());
    let config = Config { port, bind, dbfilename, ..Config::default() };
    let server = Server::start(config, ServerOptions { test_mode: true, ..ServerOptions::default() })
        .map_err(|error| error.to_string())?;
    let log = grant_log.log();
    server.control(move |shell| {
        shell.driver.engine.keyspace_mut().changes.log = Some(log);
        shell.driver.engine.faults_mut().journal = JOURNAL;
        shell.driver.engine.update_journal();
    });
    Ok(server)
}

/// A redis-server on loopback without persistence.
fn redis(port: u16) -> std::result::Result<Process, String> {
    let command = ServerKind::Redis.command(Path::new("redis-server"), port);
    let started = Process::spawn(command, port).and_then(|mut process| process.wait_until_listening().map(|()| process));
    started.map_err(|error| format!("redis-server on port {port}: {error}"))
}
