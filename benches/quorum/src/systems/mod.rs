//! The systems: how each is started, how its leader is found, and how its users lock.
//!
//! - [`portcullis`] and [`redis`]: requests over [`wire`];
//! - [`etcd`]: gRPC; [`zookeeper`]: its own protocol. Both by the client library of their users in Rust.

pub mod etcd;
pub mod portcullis;
pub mod redis;
pub mod wire;
pub mod zookeeper;

use std::io::{Error, Result};
use std::net::SocketAddr;
use std::path::PathBuf;

use ::portcullis::bench::report::comparison::Column;
use ::portcullis::bench::servers::kind::on_path;

/// Lease of a lock that nobody renews, in milliseconds. Longer than any measurement.
const LEASE_MS: &str = "3600000";

/// A system of three nodes. The order is that of the columns in tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Portcullis,
    Etcd,
    ZooKeeper,
    Redis,
}

impl Column for System {
    const OURS: System = System::Portcullis;
    const BASE: System = System::Portcullis;

    fn name(self) -> &'static str {
        self.title()
    }
}

impl System {
    pub const ALL: [System; 4] = [System::Portcullis, System::Etcd, System::ZooKeeper, System::Redis];

    /// The name in tables.
    pub const fn title(self) -> &'static str {
        match self {
            System::Portcullis => "portcullis",
            System::Etcd => "etcd",
            System::ZooKeeper => "ZooKeeper",
            System::Redis => "redis-server, WAIT 1",
        }
    }

    /// The system of a name on the command line.
    pub fn by_name(name: &str) -> Option<System> {
        let starts = |system: &System| !name.is_empty() && system.title().to_lowercase().starts_with(&name.to_lowercase());
        System::ALL.into_iter().find(starts)
    }

    /// How to install the version for which figures are published.
    pub const fn how_to_install(self) -> &'static str {
        match self {
            System::Portcullis => "cargo build --release",
            System::Etcd => "apt-get install etcd-server",
            System::ZooKeeper => "apt-get install zookeeper default-jre-headless",
            System::Redis => "apt-get install redis-server",
        }
    }

    /// The path of the program, from an environment variable or from `PATH`.
    pub fn find(self) -> Option<PathBuf> {
        let (variable, name) = match self {
            System::Portcullis => ("PORTCULLIS", None),
            System::Etcd => ("ETCD", Some("etcd")),
            System::ZooKeeper => ("JAVA", Some("java")),
            System::Redis => ("REDIS_SERVER", Some("redis-server")),
        };
        let program = match std::env::var_os(variable) {
            Some(path) => Some(PathBuf::from(path)).filter(|path| path.is_file()),
            None => name.and_then(on_path),
        };
        program.filter(|_| self != System::ZooKeeper || zookeeper::JAR.iter().any(|jar| std::path::Path::new(jar).is_file()))
    }

    /// Whether another node takes over when the leader is lost.
    pub const fn fails_over(self) -> bool {
        !matches!(self, System::Redis)
    }
}

/// The client of one user.
pub enum Client {
    Portcullis(portcullis::Client),
    Etcd(Box<etcd::Client>),
    ZooKeeper(zookeeper::Client),
    Redis(redis::Client),
}

impl Client {
    /// Connects to the first of these nodes. `name` is unique among the clients of a system.
    pub async fn connect(system: System, nodes: &[SocketAddr], name: String) -> Result<Client> {
        let first = *nodes.first().ok_or_else(|| Error::other("there is no node"))?;
        Ok(match system {
            System::Portcullis => Client::Portcullis(portcullis::Client::connect(first, name).await?),
            System::Etcd => Client::Etcd(Box::new(etcd::Client::connect(first).await?)),
            System::ZooKeeper => Client::ZooKeeper(zookeeper::Client::connect(nodes).await?),
            System::Redis => Client::Redis(redis::Client::connect(first, name).await?),
        })
    }

    /// Acquires a lock, however long it takes. Returns what releases it.
    pub async fn acquire(&mut self, lock: &str) -> Result<String> {
        match self {
            Client::Portcullis(client) => client.acquire(lock).await,
            Client::Etcd(client) => client.acquire(lock).await,
            Client::ZooKeeper(client) => client.acquire(lock).await,
            Client::Redis(client) => client.acquire(lock).await,
        }
    }

    /// Releases a lock.
    pub async fn release(&mut self, held: &str) -> Result<()> {
        match self {
            Client::Portcullis(client) => client.release(held).await,
            Client::Etcd(client) => client.release(held).await,
            Client::ZooKeeper(client) => client.release(held).await,
            Client::Redis(client) => client.release(held).await,
        }
    }

    /// Whether the client finds another node by itself after this error. Otherwise a new client has to connect to one.
    pub fn goes_on(&self) -> bool {
        matches!(self, Client::ZooKeeper(client) if client.is_alive())
    }
}

/// An error of a system's client.
fn failed(system: &str, error: impl std::fmt::Display) -> Error {
    Error::other(format!("{system}: {error}"))
}
