//! How two nodes begin a connection: each says who it is, and proves that it knows the secret.
//!
//! ```text
//!   connector                                        acceptor
//!      ├── Hello: magic, version, who, nonce, whom ────▶│
//!      │◀───────── Hello: magic, version, who, nonce ───┤
//!      ├── Proof: HMAC(secret, both hellos) ───────────▶│  refuses a wrong secret, cluster, target
//!      │◀───────── Welcome: HMAC(secret, both hellos) ──┤
//!      │  refuses a wrong secret, cluster, node         │
//! ```
//!
//! The proofs authenticate the beginning of a connection and its hellos. What follows is protected by TLS, or not at all.

use std::io;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use tokio::sync::watch;

use crate::quorum::net::frame::{FRAME_MAX, Frame, HEAD, Kind, LENGTH, Malformed, decode_beginning, encode};
use crate::quorum::net::wire::Wire;
use crate::quorum::types::NodeId;

/// Identifies a cluster: a hash of its name, and its epoch. Zeros stand for a node that does not know its cluster yet.
///
/// The epoch is 0 until a node is recovered from a lost majority (see `quorum::recover`), which draws another one. Nodes of an older
/// epoch are refused: they may have promised what the recovered cluster does not know. A blank node has the epoch 0 and takes that of
/// the cluster that it finds.
pub type ClusterId = [u8; 16];

/// The identity of a cluster, from a hash of its name and its epoch.
pub fn cluster_id(name: u64, epoch: u64) -> ClusterId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&name.to_be_bytes());
    id[8..].copy_from_slice(&epoch.to_be_bytes());
    id
}

/// The epoch of a cluster.
pub fn epoch_of(cluster: ClusterId) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|at| cluster[8 + at]))
}

/// First bytes of each hello.
const MAGIC: [u8; 8] = *b"PTCLNODE";

/// Version of the protocol: major and minor. Nodes with another major version are refused. A higher minor version may append fields to
/// hellos, which older nodes ignore, and may send new kinds of frames, but only to nodes of that version.
pub const VERSION: [u8; 2] = [1, 0];

/// Time within which a connection must have begun.
pub const GREETING_TIME: Duration = Duration::from_secs(3);

/// Maximum length of a reason that is shown, in bytes.
const REASON_MAX: usize = 300;

/// Where clients reach a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientAddress {
    /// Name or address of the machine.
    pub host: String,
    /// Port without TLS, or 0.
    pub port: u16,
    /// Port with TLS, or 0.
    pub tls_port: u16,
}

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its number.
    pub node: NodeId,
    /// Its cluster, or zeros.
    pub cluster: ClusterId,
    /// It has nothing that a leader has added: no entry but the one that begins a cluster.
    pub blank: bool,
    /// It votes, if it is a member.
    pub votes: bool,
    /// Where clients reach it.
    pub client: ClientAddress,
    /// Version of the program.
    pub program: String,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Requests and pings.
    Requests,
    /// One snapshot.
    Snapshot,
}

/// A hello on the wire, after magic and version.
#[derive(Serialize, Deserialize)]
struct Opening {
    hello: Hello,
    nonce: [u8; 32],
    /// The node that the connector means. The acceptor gives none.
    target: Option<NodeId>,
    purpose: Purpose,
}

/// What changes in the hello of a running node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The cluster, or zeros.
    pub cluster: ClusterId,
    /// The node has nothing that a leader has added: no entry but the one that begins a cluster.
    pub blank: bool,
    /// The node votes, if it is a member.
    pub votes: bool,
}

/// What this node is on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It has opened it.
    Connector,
    /// The other node has.
    Acceptor,
}

/// Who this node is.
pub struct Identity {
    node: NodeId,
    client: ClientAddress,
    secret: Option<Vec<u8>>,
    standing: watch::Sender<Standing>,
}

impl Identity {
    /// `secret`: nodes with another one, or none, are refused.
    pub fn new(node: NodeId, client: ClientAddress, secret: Option<Vec<u8>>, standing: Standing) -> Identity {
        Identity { node, client, secret, standing: watch::Sender::new(standing) }
    }

    /// The number of this node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// What changes, and when it does.
    pub fn standing(&self) -> &watch::Sender<Standing> {
        &self.standing
    }

    /// What this node says of itself now.
    pub fn hello(&self) -> Hello {
        let Standing { cluster, blank, votes } = *self.standing.borrow();
        Hello {
            node: self.node,
            cluster,
            blank,
            votes,
            client: self.client.clone(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Whether another node may be one of this node's cluster.
    ///
    /// A node that joins may connect to a cluster of another epoch, whose epoch it takes. The cluster does not connect to it before: it would
    /// send it entries that it keeps under the wrong epoch.
    pub fn check_cluster(&self, theirs: &Hello, side: Side) -> Result<(), Refusal> {
        let Standing { cluster: ours, votes, .. } = *self.standing.borrow();
        let unknown = ClusterId::default();
        let (connector, connector_votes) = match side {
            Side::Connector => (ours, votes),
            Side::Acceptor => (theirs.cluster, theirs.votes),
        };
        let theirs = theirs.cluster;
        let joins = !connector_votes && epoch_of(connector) == 0 && ours[..8] == theirs[..8];
        if ours == theirs || ours == unknown || theirs == unknown || joins {
            Ok(())
        } else {
            Err(Refusal::Cluster { ours, theirs })
        }
    }
}

/// Why this node refuses another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It speaks another version of the protocol.
    Version(u8),
    /// It has no secret or another one.
    Secret,
    /// It has a secret and this node has none.
    NoSecret,
    /// It is of another cluster.
    Cluster {
        /// The cluster of this node.
        ours: ClusterId,
        /// That of the other one.
        theirs: ClusterId,
    },
    /// Another node was expected at the address.
    Node {
        /// The expected one.
        expected: NodeId,
        /// The one that is there.
        found: NodeId,
    },
    /// It has the number of this node.
    SameNode(NodeId),
    /// There are too many connections.
    Full,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hex = |id: &ClusterId| u128::from_be_bytes(*id);
        match self {
            Refusal::Version(theirs) => write!(f, "protocol version {theirs}, but this node speaks version {}", VERSION[0]),
            Refusal::Secret => f.write_str("wrong cluster-secret"),
            Refusal::NoSecret => f.write_str("a cluster-secret was given, but this node has none"),
            Refusal::Cluster { ours, theirs } if ours[..8] == theirs[..8] => {
                let (ours, theirs) = (epoch_of(*ours), epoch_of(*theirs));
                write!(
                    f,
                    "epoch {theirs:016x} of the cluster, but this node belongs to epoch {ours:016x}: a majority was lost, and "
                )?;
                f.write_str("one of them was recovered; the other one must start with an empty folder")
            }
            Refusal::Cluster { ours, theirs } => {
                write!(f, "cluster {:032x}, but this node belongs to cluster {:032x}", hex(theirs), hex(ours))
            }
            Refusal::Node { expected, found } => {
                write!(f, "node {expected} was expected at this address, which is that of node {found}")
            }
            Refusal::SameNode(node) => write!(f, "both nodes have the number {node}"),
            Refusal::Full => f.write_str("too many connections"),
        }
    }
}

/// Why a connection did not begin.
#[derive(Debug)]
pub enum Failure {
    /// The socket failed, or time was up.
    Io(io::Error),
    /// The other node refused this one, for this reason.
    RefusedBy(String),
    /// This node refused the other one.
    Refusing(Refusal),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("the other side closed the connection")
            }
            Failure::Io(error) => error.fmt(f),
            Failure::RefusedBy(reason) => write!(f, "refused by the other node: {reason}"),
            Failure::Refusing(refusal) => write!(f, "refused: {refusal}"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Failure {
        Failure::Io(io::Error::new(io::ErrorKind::InvalidData, malformed))
    }
}

/// Begins a connection to the node `target`.
///
/// # Errors
/// See [`Failure`]. A refusal has been told to the other node.
pub async fn connect(wire: &mut Wire, me: &Identity, target: NodeId, purpose: Purpose) -> Result<Hello, Failure> {
    within_time(async {
        let ours = opening(me, Some(target), purpose)?;
        wire.push(encode(Kind::Hello, 0, &ours));
        let theirs = expect(wire, Kind::Hello).await?;
        let opened = read_opening(wire, &theirs.body).await?;
        wire.push(encode(Kind::Proof, 0, &proof(me, b"connector", &ours, &theirs.body)));
        let welcome = expect(wire, Kind::Welcome).await?;
        let checked = check_proof(me, b"acceptor", &ours, &theirs.body, &welcome.body)
            .and_then(|()| expect_node(target, opened.hello.node))
            .and_then(|()| me.check_cluster(&opened.hello, Side::Connector));
        refuse_if(wire, checked).await?;
        wire.set_max(FRAME_MAX);
        Ok(opened.hello)
    })
    .await
}

/// Begins a connection that another node has opened.
///
/// # Errors
/// See [`Failure`]. A refusal has been told to the other node.
pub async fn accept(wire: &mut Wire, me: &Identity) -> Result<(Hello, Purpose), Failure> {
    within_time(async {
        let theirs = expect(wire, Kind::Hello).await?;
        let opened = read_opening(wire, &theirs.body).await?;
        let ours = opening(me, None, opened.purpose)?;
        wire.push(encode(Kind::Hello, 0, &ours));
        let given = expect(wire, Kind::Proof).await?;
        let checked = check_proof(me, b"connector", &theirs.body, &ours, &given.body)
            .and_then(|()| expect_node(opened.target.unwrap_or(me.node), me.node))
            .and_then(|()| expect_other(me.node, opened.hello.node))
            .and_then(|()| me.check_cluster(&opened.hello, Side::Acceptor));
        refuse_if(wire, checked).await?;
        wire.push(encode(Kind::Welcome, 0, &proof(me, b"acceptor", &theirs.body, &ours)));
        wire.flush().await?;
        wire.set_max(FRAME_MAX);
        Ok((opened.hello, opened.purpose))
    })
    .await
}

async fn within_time<T>(greeting: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let late = |_| Failure::Io(io::Error::new(io::ErrorKind::TimedOut, "the other side did not say who it is in time"));
    tokio::time::timeout(GREETING_TIME, greeting).await.map_err(late)?
}

/// The text of a refusal by the other node, made safe to show.
pub fn reason(frame: &Frame) -> String {
    let text = String::from_utf8_lossy(&frame.body[..frame.body.len().min(REASON_MAX)]);
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn expect_node(expected: NodeId, found: NodeId) -> Result<(), Refusal> {
    if expected == found { Ok(()) } else { Err(Refusal::Node { expected, found }) }
}

fn expect_other(ours: NodeId, theirs: NodeId) -> Result<(), Refusal> {
    if ours == theirs { Err(Refusal::SameNode(ours)) } else { Ok(()) }
}

async fn refuse_if(wire: &mut Wire, checked: Result<(), Refusal>) -> Result<(), Failure> {
    if let Err(refusal) = checked {
        wire.refuse(&refusal.to_string()).await;
        return Err(Failure::Refusing(refusal));
    }
    Ok(())
}

async fn expect(wire: &mut Wire, kind: Kind) -> Result<Frame, Failure> {
    let frame = wire.next().await?;
    match frame.kind {
        found if found == kind => Ok(frame),
        Kind::Refused => Err(Failure::RefusedBy(reason(&frame))),
        _ => Err(Malformed::Body.into()),
    }
}

/// Number of the first bytes of a connection that [`introduced`] needs.
#[cfg(feature = "torture")]
pub const INTRODUCTION: usize = LENGTH + HEAD + MAGIC.len() + VERSION.len() + 1;

/// The node that has opened a connection without TLS, by its first bytes. Its number must be below 128, so that it has one byte.
#[cfg(feature = "torture")]
pub fn introduced(first: &[u8; INTRODUCTION]) -> NodeId {
    NodeId::from(first[INTRODUCTION - 1])
}

fn opening(me: &Identity, target: Option<NodeId>, purpose: Purpose) -> Result<Vec<u8>, Failure> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
    let mut body = [MAGIC.as_slice(), &VERSION].concat();
    let opening = postcard::to_stdvec(&Opening { hello: me.hello(), nonce, target, purpose });
    body.extend(opening.map_err(|error| io::Error::other(error.to_string()))?);
    Ok(body)
}

/// Reads a hello. The version comes first: what follows depends on it.
async fn read_opening(wire: &mut Wire, body: &[u8]) -> Result<Opening, Failure> {
    let rest = body.strip_prefix(&MAGIC).ok_or(Malformed::Body)?;
    let (&[major, _], rest) = rest.split_first_chunk().ok_or(Malformed::Body)?;
    let same = if major == VERSION[0] { Ok(()) } else { Err(Refusal::Version(major)) };
    refuse_if(wire, same).await?;
    Ok(decode_beginning(rest)?)
}

/// The authentication code of both hellos, or nothing without a secret. The role keeps a node from returning the proof that it got.
fn proof(me: &Identity, role: &[u8], connector: &[u8], acceptor: &[u8]) -> Vec<u8> {
    let code = |secret: &Vec<u8>| Some(code(secret, role, connector, acceptor)?.finalize().into_bytes().to_vec());
    me.secret.as_ref().and_then(code).unwrap_or_default()
}

fn check_proof(me: &Identity, role: &[u8], connector: &[u8], acceptor: &[u8], given: &[u8]) -> Result<(), Refusal> {
    match &me.secret {
        None if given.is_empty() => Ok(()),
        None => Err(Refusal::NoSecret),
        // The comparison takes the same time for all codes.
        Some(secret) => match code(secret, role, connector, acceptor).map(|code| code.verify_slice(given)) {
            Some(Ok(())) => Ok(()),
            _ => Err(Refusal::Secret),
        },
    }
}

fn code(secret: &[u8], role: &[u8], connector: &[u8], acceptor: &[u8]) -> Option<Hmac<Sha256>> {
    let mut code = Hmac::<Sha256>::new_from_slice(secret).ok()?;
    for part in [role, connector, acceptor] {
        code.update(&(part.len() as u64).to_le_bytes());
        code.update(part);
    }
    Some(code)
}
