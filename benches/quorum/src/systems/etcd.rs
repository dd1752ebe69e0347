//! etcd: its lock as the library `concurrency` of its Go client has it.
//!
//! A client has a lease, which it keeps alive. A lock is a prefix; whoever wants it creates `prefix/lease` in a transaction, which
//! also returns the oldest key of the prefix. Who has the oldest key holds the lock. Others watch the youngest key that is older
//! than theirs, until it is deleted.

use std::io::{Error, Result};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, EventType, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse,
    WatchOptions, WatchStream,
};
use tokio::task::JoinHandle;

use crate::cluster::Ports;
use crate::systems::failed;

/// The time to live of a lease in seconds: the default of `concurrency`. A third of it is the pause between keep-alives.
const LEASE_SECONDS: u64 = 60;

/// The command that starts a node.
pub fn command(program: &Path, number: usize, ports: &[Ports], dir: &Path) -> Command {
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let member = |(index, ports): (usize, &Ports)| format!("n{index}={}", url(ports.peer));
    let members: Vec<String> = ports.iter().enumerate().map(member).collect();
    let (client, peer) = (url(ports[number].client), url(ports[number].peer));
    let mut command = Command::new(program);
    command.args(["--name", &format!("n{number}"), "--logger", "zap", "--log-level", "error", "--data-dir"]).arg(dir);
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &members.join(","), "--initial-cluster-state", "new"]);
    command
}

async fn open(addr: SocketAddr) -> Result<etcd_client::Client> {
    etcd_client::Client::connect([format!("http://{addr}")], None).await.map_err(error)
}

/// Whether a node is the leader.
pub async fn leads(addr: SocketAddr) -> Result<bool> {
    let status = open(addr).await?.status().await.map_err(error)?;
    match (status.leader(), status.header()) {
        (0, _) | (_, None) => Err(Error::other("it knows no leader")),
        (leader, Some(header)) => Ok(leader == header.member_id()),
    }
}

/// The version of a node.
pub async fn version(addr: SocketAddr) -> Result<String> {
    let status = open(addr).await?.status().await.map_err(error)?;
    Ok(format!("etcd {}", status.version()))
}

fn error(error: etcd_client::Error) -> Error {
    failed("etcd", error)
}

/// A client.
pub struct Client {
    etcd: etcd_client::Client,
    lease: i64,
    keeper: JoinHandle<()>,
    /// The stream of all its watches.
    watches: Option<WatchStream>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl Client {
    pub async fn connect(addr: SocketAddr) -> Result<Client> {
        let mut etcd = open(addr).await?;
        let lease = etcd.lease_grant(LEASE_SECONDS as i64, None).await.map_err(error)?.id();
        let keeper = tokio::task::spawn_local(keep_alive(etcd.clone(), lease));
        Ok(Client { etcd, lease, keeper, watches: None })
    }

    pub async fn acquire(&mut self, lock: &str) -> Result<String> {
        let prefix = format!("{lock}/");
        let key = format!("{prefix}{:x}", self.lease);
        let oldest = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(1);
        let get_oldest = TxnOp::get(prefix.as_str(), Some(oldest));
        let create = TxnOp::put(key.as_str(), "", Some(PutOptions::new().with_lease(self.lease)));
        let txn = Txn::new()
            .when([Compare::create_revision(key.as_str(), CompareOp::Equal, 0)])
            .and_then([create, get_oldest.clone()])
            .or_else([TxnOp::get(key.as_str(), None), get_oldest]);
        let reply = self.etcd.txn(txn).await.map_err(error)?;
        if !reply.succeeded() {
            return Err(Error::other("etcd: the client wants the lock already"));
        }
        let ours =
            reply.header().map(|header| header.revision()).ok_or_else(|| Error::other("etcd: a reply without a revision"))?;
        let oldest = match reply.op_responses().get(1) {
            Some(TxnOpResponse::Get(found)) => found.kvs().first().map(KeyValue::create_revision),
            _ => return Err(Error::other("etcd: a transaction without its second reply")),
        };
        if oldest != Some(ours) {
            self.wait(&prefix, ours - 1).await?;
            // The lease may have ended meanwhile.
            if self.etcd.get(key.as_str(), None).await.map_err(error)?.kvs().is_empty() {
                return Err(Error::other("etcd: the session expired"));
            }
        }
        Ok(key)
    }

    /// Waits until all keys of a prefix are gone that were created up to a revision.
    async fn wait(&mut self, prefix: &str, revision: i64) -> Result<()> {
        loop {
            let youngest = GetOptions::new()
                .with_prefix()
                .with_sort(SortTarget::Create, SortOrder::Descend)
                .with_limit(1)
                .with_max_create_revision(revision);
            let found = self.etcd.get(prefix, Some(youngest)).await.map_err(error)?;
            let Some(key) = found.kvs().first() else { return Ok(()) };
            let now = found.header().map_or(0, |header| header.revision());
            self.deleted(key.key(), now).await?;
        }
    }

    /// Waits until a key is deleted that was there at a revision.
    async fn deleted(&mut self, key: &[u8], revision: i64) -> Result<()> {
        let options = Some(WatchOptions::new().with_start_revision(revision));
        let mut watches = match self.watches.take() {
            Some(mut watches) => {
                watches.watch(key, options).await.map_err(error)?;
                watches
            }
            None => self.etcd.watch(key, options).await.map_err(error)?,
        };
        let mut id = None;
        loop {
            let Some(message) = watches.message().await.map_err(error)? else {
                return Err(Error::other("etcd: a watch ended"));
            };
            if message.created() {
                id = Some(message.watch_id());
            } else if message.canceled() && id == Some(message.watch_id()) {
                return Err(Error::other(format!("etcd: a watch was refused: {}", message.cancel_reason())));
            }
            if let Some(id) = id.filter(|id| *id == message.watch_id())
                && message.events().iter().any(|event| event.event_type() == EventType::Delete)
            {
                watches.cancel(id).await.map_err(error)?;
                self.watches = Some(watches);
                return Ok(());
            }
        }
    }

    pub async fn release(&mut self, key: &str) -> Result<()> {
        match self.etcd.delete(key, None).await.map_err(error)?.deleted() {
            1 => Ok(()),
            deleted => Err(Error::other(format!("etcd: a release deleted {deleted} keys"))),
        }
    }
}

/// Keeps a lease alive until the connection fails.
async fn keep_alive(mut etcd: etcd_client::Client, lease: i64) {
    let Ok((mut keeper, mut replies)) = etcd.lease_keep_alive(lease).await else { return };
    loop {
        tokio::time::sleep(Duration::from_secs(LEASE_SECONDS / 3)).await;
        if keeper.keep_alive().await.is_err() || !matches!(replies.message().await, Ok(Some(_))) {
            return;
        }
    }
}
