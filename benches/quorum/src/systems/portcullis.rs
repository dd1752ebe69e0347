//! Portcullis: `LOCK.ACQUIRE` and `LOCK.RELEASE` over a plain connection.

use std::io::{Error, Result};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use portcullis::bench::servers::wire::{call, encode};

use crate::cluster::Ports;
use crate::systems::LEASE_MS;
use crate::systems::wire::Wire;

/// Longest wait for a lock in milliseconds.
const WAIT_MS: &str = "60000";

/// The command that starts a node.
pub fn command(program: &Path, number: usize, ports: &[Ports], dir: &Path) -> Command {
    let peer = |(index, ports): (usize, &Ports)| format!("{}=127.0.0.1:{}", index + 1, ports.peer);
    let peers: Vec<String> = ports.iter().enumerate().map(peer).collect();
    let mut command = Command::new(program);
    command.args(["serve", "--bind", "127.0.0.1", "--node-id", &(number + 1).to_string(), "--peers", &peers.join(",")]);
    command.args(["--port", &ports[number].client.to_string(), "--dir"]).arg(dir);
    command
}

/// Whether a node is the leader.
pub fn leads(addr: SocketAddr) -> Result<bool> {
    let role = call(addr, &["ROLE"])?;
    match role.lines().nth(2) {
        Some("master") => Ok(true),
        Some("slave") => Ok(false),
        _ => Err(Error::other(format!("ROLE: {}", role.trim_end().replace("\r\n", " ")))),
    }
}

/// A client.
pub struct Client {
    wire: Wire,
    owner: String,
    /// The token of the last grant.
    token: u64,
}

impl Client {
    pub async fn connect(addr: SocketAddr, owner: String) -> Result<Client> {
        Ok(Client { wire: Wire::connect(addr).await?, owner, token: 0 })
    }

    pub async fn acquire(&mut self, lock: &str) -> Result<String> {
        self.wire.send(&encode(&["LOCK.ACQUIRE", lock, &self.owner, LEASE_MS, "WAIT", WAIT_MS])).await?;
        // Tokens grow.
        self.token = self.wire.integer("LOCK.ACQUIRE", self.token + 1).await?;
        Ok(lock.to_owned())
    }

    pub async fn release(&mut self, lock: &str) -> Result<()> {
        self.wire.send(&encode(&["LOCK.RELEASE", lock, &self.owner])).await?;
        match self.wire.integer("LOCK.RELEASE", 0).await? {
            0 => Ok(()),
            holds => Err(Error::other(format!("LOCK.RELEASE: {holds} holds are left"))),
        }
    }
}
