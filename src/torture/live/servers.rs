//! Servers of a live run: given by their URLs, or started here and ended with the run.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::{Client, Command, Result};
use crate::engine::config::Config;
use crate::server::{Server, ServerOptions};
use crate::torture::live::orders::Orders;

/// How long a server that is started here may take until it accepts connections.
const START_MAX: Duration = Duration::from_secs(10);
/// Writes that a server of this crate keeps, so that it can lose them.
const JOURNAL: u64 = 64;

/// What a server is.
enum Kind {
    /// One of this crate's, in this process.
    Own(Option<Server>),
    /// The program `redis-server`.
    Redis(Option<Child>),
    /// Another one that runs: whether it is in test mode, and whether it is one of this crate's.
    Given { test_mode: bool, native: bool },
}

/// A server.
pub struct Backend {
    /// `host:port`.
    pub addr: String,
    /// What comes before and behind that in its URL.
    around: (String, String),
    kind: Kind,
    /// Where what it does is noted, if it is started here.
    orders: Arc<Orders>,
}

impl Backend {
    /// `self` and `redis-server` are started; all else is the URL of one that runs.
    ///
    /// # Errors
    /// Where that does not work.
    pub async fn new(word: &str, orders: Arc<Orders>) -> std::result::Result<Backend, String> {
        let around = ("redis://".to_owned(), String::new());
        match word {
            "self" => {
                let server = own(0, &orders)?;
                let addr = server.addresses().first().map(ToString::to_string).unwrap_or_default();
                Ok(Backend { addr, around, kind: Kind::Own(Some(server)), orders })
            }
            "redis-server" => {
                let port = free_port().map_err(|error| error.to_string())?;
                let child = redis(port)?;
                Ok(Backend { addr: format!("127.0.0.1:{port}"), around, kind: Kind::Redis(Some(child)), orders })
            }
            url => Self::given(url, orders).await,
        }
    }

    async fn given(url: &str, orders: Arc<Orders>) -> std::result::Result<Backend, String> {
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
        Ok(Backend { addr, around, kind: Kind::Given { test_mode, native }, orders })
    }

    /// Its URL, by way of another address.
    pub fn url_by(&self, addr: &str) -> String {
        format!("{}{addr}{}", self.around.0, self.around.1)
    }

    /// Whether it was given and has native locks, so that what it shows by `MONITOR` tells in which order it granted them.
    pub fn can_be_followed(&self) -> bool {
        matches!(self.kind, Kind::Given { native: true, .. })
    }

    /// Whether it can be made to end and to lose so many writes, or all.
    pub fn can_go_down(&self, lost: Option<u64>) -> bool {
        match self.kind {
            Kind::Own(_) | Kind::Given { test_mode: true, .. } => true,
            Kind::Redis(_) => lost.is_none(),
            Kind::Given { test_mode: false, .. } => false,
        }
    }

    /// It ends. False where it is there again already, as it was told to start again at once.
    pub async fn down(&mut self, lost: Option<u64>) -> bool {
        match (&mut self.kind, lost) {
            (Kind::Own(server), None) => drop(server.take()),
            (Kind::Redis(child), _) => end(child),
            _ => {
                // Those that cannot, or that have gone, stay as they are.
                let _ = self.restart(lost).await;
                return false;
            }
        }
        true
    }

    /// Has a server in test mode restart.
    async fn restart(&self, lost: Option<u64>) -> Result<()> {
        let client = Client::connect(&self.url_by(&self.addr)).await?;
        let restart = Command::new("FAULT").arg("RESTART");
        // It may end the connection before it replies.
        let _ = client.run(lost.into_iter().fold(restart, |restart, lost| restart.arg("LOSE").arg(lost))).await;
        Ok(())
    }

    /// It starts again, where it was.
    ///
    /// # Errors
    /// Where that does not work.
    pub fn up(&mut self) -> std::result::Result<(), String> {
        let port = self.addr.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0);
        match &mut self.kind {
            Kind::Own(server @ None) => *server = Some(own(port, &self.orders)?),
            Kind::Redis(child @ None) => *child = Some(redis(port)?),
            _ => {}
        }
        Ok(())
    }

    /// Removes what was left on a server that goes on.
    pub async fn clean(&self, prefix: &str) {
        if !matches!(self.kind, Kind::Given { .. }) {
            return;
        }
        let Ok(client) = Client::connect(&self.url_by(&self.addr)).await else { return };
        let mut cursor = "0".to_owned();
        loop {
            let scan = Command::new("SCAN").arg(&cursor).arg("MATCH").arg(format!("*{prefix}*")).arg("COUNT").arg(1000);
            let Ok((next, keys)) = client.query::<(String, Vec<Vec<u8>>)>(scan).await else { return };
            if !keys.is_empty() && client.run(Command::new("UNLINK").args(keys)).await.is_err() {
                return;
            }
            cursor = next;
            if cursor == "0" {
                return;
            }
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        if let Kind::Redis(child) = &mut self.kind {
            end(child);
        }
    }
}

fn end(child: &mut Option<Child>) {
    if let Some(mut child) = child.take() {
        // One that has ended by itself is as good.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A server of this crate on loopback, in test mode, whose changes are followed.
fn own(port: u16, orders: &Arc<Orders>) -> std::result::Result<Server, String> {
    let config = Config { port, bind: vec!["127.0.0.1".to_owned()], ..Config::default() };
    let server = Server::start(config, ServerOptions { test_mode: true, ..ServerOptions::default() })
        .map_err(|error| error.to_string())?;
    let log = orders.log();
    server.control(move |shell| {
        shell.engine.keyspace.changes.log = Some(log);
        shell.engine.faults.journal = JOURNAL;
        shell.engine.update_journal();
    });
    Ok(server)
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// A redis-server on loopback that keeps nothing.
fn redis(port: u16) -> std::result::Result<Child, String> {
    let arguments = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", "/tmp", "--port"];
    let child = std::process::Command::new("redis-server")
        .args(arguments)
        .arg(port.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("redis-server: {error}"))?;
    let (addr, began) = (SocketAddr::from((Ipv4Addr::LOCALHOST, port)), Instant::now());
    let mut child = Some(child);
    while TcpStream::connect_timeout(&addr, Duration::from_millis(100)).is_err() {
        if began.elapsed() > START_MAX {
            end(&mut child);
            return Err(format!("redis-server does not accept connections on port {port}"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.ok_or_else(|| "redis-server has ended".to_owned())
}
