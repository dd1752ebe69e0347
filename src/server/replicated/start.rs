//! Starts a server as a node.

use std::net::{TcpListener, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;

use crate::driver::replicated::MemberOptions;
use crate::driver::round::Driving;
use crate::engine::config::Config;
use crate::engine::replication::report::Reporter;
use crate::quorum::net::{ClientAddress, Security, System};
use crate::quorum::node::{self, Timing};
use crate::quorum::store::{self, FolderLock, Owner};
use crate::server::durable::folder::{Folder, Hang};
use crate::server::net::control::Control;
use crate::server::replicated::application::ShellApplication;
use crate::server::replicated::{TICK_MS, members, peers};
use crate::server::shell::Shell;

/// Below `dir`: the node's log, votes and snapshots.
pub(crate) const FOLDER: &str = "quorum";

/// How the nodes' connections are encrypted.
///
/// # Errors
/// In words: certificates are missing or wrong, or this build has no TLS.
fn security(config: &Config) -> Result<Security, String> {
    if !config.tls_cluster && !config.tls_replication {
        return Ok(Security::default());
    }
    #[cfg(feature = "tls")]
    {
        let (connector, acceptor) = crate::server::net::tls::settings_of_nodes(config)?;
        Ok(Security { connector: Some(connector.into()), acceptor: Some(acceptor.into()) })
    }
    #[cfg(not(feature = "tls"))]
    Err("tls-cluster: this build has no TLS".to_owned())
}

/// Expects that the address for the other nodes is protected if other machines reach it.
///
/// # Errors
/// In words, with what mends it: it is not.
fn expect_protected(config: &Config, listened: &str) -> Result<(), String> {
    let protected = !config.cluster_secret.is_empty() || config.tls_cluster || config.tls_replication;
    // An address that is not one is refused when it is bound.
    let mut addresses = listened.to_socket_addrs().into_iter().flatten();
    if protected || addresses.all(|address| address.ip().is_loopback()) {
        return Ok(());
    }
    Err(format!(
        "other machines can reach {listened}, and this node would obey whoever connects there as if it were one of the cluster. Make a \
         secret with `portcullis cluster secret`, and start each node with it: `portcullis serve --cluster-secret SECRET …`. Or set \
         tls-cluster yes, or choose an address of this machine alone, such as 127.0.0.1:{}",
        listened.rsplit(':').next().unwrap_or_default()
    ))
}

/// Starts the node that the configuration describes: `node-id`, `peers`, `dir`.
///
/// # Errors
/// In words: the configuration is wrong, the files cannot be used, or the address cannot be listened on.
pub(crate) fn start(shell: &mut Shell, control: &Control<Shell>) -> Result<(), String> {
    let config = shell.driver.engine.config().clone();
    let (id, members) = (config.node_id, peers::parse(&config.peers)?);
    let addr =
        members.get(&id).cloned().ok_or_else(|| format!("peers: node {id}, which is this one (node-id), is not among them"))?;
    fail_if!(config.appendonly, "appendonly must be no where node-id is set: the nodes have a log of their own".to_owned());
    if shell.driver.engine.test_mode() {
        return Err("a server in test mode cannot be a node: its clock and its faults are not those of the others".to_owned());
    }
    let folder = Path::new(&config.dir).join(FOLDER);
    let describe = |error: &dyn std::fmt::Display| format!("{}: {error}", folder.display());
    let hang = Hang::new(config.test_disk_hangs_ms);
    let disk = || Folder::open(&folder).map(|folder| folder.hanging(&hang)).map_err(|error| describe(&error));
    let disks = (disk()?, disk()?);
    let lock = FolderLock::acquire(&folder)?;
    let listened = if config.peer_listen.is_empty() { &addr } else { &config.peer_listen };
    expect_protected(&config, listened)?;
    let listener =
        TcpListener::bind(listened).map_err(|error| format!("Can't listen on {listened} for the other nodes: {error}"))?;
    let announced = Some(config.cluster_announce_ip.clone()).filter(|host| !host.is_empty());
    let host = announced.unwrap_or_else(|| peers::host_of(&addr).to_owned());
    let port = if config.cluster_announce_port > 0 { config.cluster_announce_port } else { config.port };
    let client = ClientAddress { host, port, tls_port: config.tls_port };
    let owner = Owner::of(id, &config.cluster_name);
    let options = node::Options {
        node: id,
        members,
        disks,
        folder: folder.clone(),
        log: store::Options::new(owner, Some(lock)),
        client: client.clone(),
        secret: Some(config.cluster_secret.clone()).filter(|secret| !secret.is_empty()),
        platform: Arc::new(System),
        security: security(&config)?,
        timing: Timing::default(),
    };
    let application = ShellApplication { control: control.clone(), config };
    let node = node::start(options, listener, application)?;
    let (observer, lease_max) = (node.observer(), node.lease_max());
    shell.driver.engine.replication_mut().reporter =
        Some(Reporter::new(move || members::report(&observer, id, &addr, lease_max)));
    shell.background.hang = Some(hang);
    let options = MemberOptions { node, id, cluster: owner.cluster, client, tick_every_ms: TICK_MS };
    shell.drive(|driver, at| driver.begin_membership(at, options));
    Ok(())
}
