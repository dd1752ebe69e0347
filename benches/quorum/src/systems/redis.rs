//! redis-server: `SET NX PX` and a compare-and-delete, each with `WAIT 1 0`.

use std::io::{Error, Result};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use portcullis::bench::servers::info::field;
use portcullis::bench::servers::wire::{call, encode, encode_onto, unexpected_reply};

use crate::cluster::Ports;
use crate::systems::LEASE_MS;
use crate::systems::wire::Wire;

/// How long a client sleeps that did not get a lock: the default of redis-py's lock.
const RETRY: Duration = Duration::from_millis(100);

const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// The command that starts a node. The first one is the master.
pub fn command(program: &Path, number: usize, ports: &[Ports], dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--port", &ports[number].client.to_string(), "--bind", "127.0.0.1", "--save", "", "--daemonize", "no"]);
    command.args(["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"]);
    command.args(["--repl-diskless-sync-delay", "0", "--dir"]).arg(dir);
    if number > 0 {
        command.args(["--replicaof", "127.0.0.1", &ports[0].client.to_string()]);
    }
    command
}

/// Whether a node is the master and both replicas are there.
pub fn leads(addr: SocketAddr) -> Result<bool> {
    let info = call(addr, &["INFO", "replication"])?;
    match field(&info, "role") {
        Some("master") if info.matches("state=online").count() == 2 => Ok(true),
        Some("master") => Err(Error::other("the replicas are not online")),
        _ if field(&info, "master_link_status") == Some("up") => Ok(false),
        _ => Err(Error::other("a replica is not connected")),
    }
}

/// A client.
pub struct Client {
    wire: Wire,
    owner: String,
    script: String,
}

impl Client {
    pub async fn connect(addr: SocketAddr, owner: String) -> Result<Client> {
        let mut wire = Wire::connect(addr).await?;
        wire.send(&encode(&["SCRIPT", "LOAD", RELEASE])).await?;
        let length = wire.line().await?;
        if length != "$40" {
            return Err(unexpected_reply("SCRIPT LOAD", length.as_bytes()));
        }
        let script = wire.line().await?;
        Ok(Client { wire, owner, script })
    }

    pub async fn acquire(&mut self, lock: &str) -> Result<String> {
        let mut request = encode(&["SET", lock, &self.owner, "NX", "PX", LEASE_MS]);
        encode_onto(&mut request, &["WAIT", "1", "0"]);
        loop {
            self.wire.send(&request).await?;
            let reply = self.wire.line().await?;
            match reply.as_str() {
                "+OK" => {
                    self.wire.integer("WAIT", 1).await?;
                    return Ok(lock.to_owned());
                }
                "$-1" => {
                    self.wire.integer("WAIT", 0).await?;
                    tokio::time::sleep(RETRY).await;
                }
                _ => return Err(unexpected_reply("SET", reply.as_bytes())),
            }
        }
    }

    pub async fn release(&mut self, lock: &str) -> Result<()> {
        let mut request = encode(&["EVALSHA", &self.script, "1", lock, &self.owner]);
        encode_onto(&mut request, &["WAIT", "1", "0"]);
        self.wire.send(&request).await?;
        self.wire.integer("EVALSHA", 1).await?;
        self.wire.integer("WAIT", 1).await.map(|_| ())
    }
}
