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
#[cfg(feature = "torture")]
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use tokio::sync::watch;

use crate::quorum::cluster::{Cluster, Foreign, Pair, Side, Standing};
use crate::quorum::net::frame::{FRAME_MAX, Frame, HEAD, Kind, LENGTH, Malformed, decode_beginning, encode};
use crate::quorum::net::wire::Wire;
use crate::quorum::runtime::{fill_random, timeout};
use crate::quorum::sane::{Nonsense, expect_name};
use crate::quorum::types::{ClusterId, NodeId};

/// First bytes of each hello.
const MAGIC: [u8; 8] = *b"PTCLNODE";

/// Version of the protocol: major and minor. Nodes with another major version are refused. A higher minor version may append fields to
/// hellos, which older nodes ignore, and may send new kinds of frames, but only to nodes of that version.
pub const VERSION: [u8; 2] = [1, 1];

/// The first minor version whose nodes know that clusters have ids.
pub const MINOR_WITH_IDS: u8 = 1;

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
    /// Its cluster.
    pub cluster: Cluster,
    /// It has nothing that a leader has added: no entry but the one that begins a cluster.
    pub blank: bool,
    /// It votes, if it is a member.
    pub votes: bool,
    /// Where clients reach it.
    pub client: ClientAddress,
    /// Version of the program.
    pub program: String,
    /// What only the hello that begins a connection says. A later one leaves it as it was.
    #[serde(skip)]
    pub greeting: Option<Greeting>,
}

impl Hello {
    /// What the node says of its standing.
    pub fn standing(&self) -> Standing {
        let Hello { cluster, blank, votes, .. } = *self;
        let parent = self.greeting.map_or(0, |greeting| greeting.parent);
        Standing { cluster, parent, blank, votes, ..Standing::default() }
    }

    /// Expects names of a sane length in what a node says again. What it says at first has a small frame.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), Nonsense> {
        expect_name(self.client.host.len().max(self.program.len()))
    }

    /// Whether the node runs a version that knows that clusters have ids.
    pub fn knows_ids(&self) -> bool {
        self.greeting.is_some_and(|greeting| greeting.minor >= MINOR_WITH_IDS)
    }
}

/// What a node says of itself only when a connection begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Greeting {
    /// Minor version of the protocol.
    pub minor: u8,
    /// The cluster from which its own was recovered, or 0.
    pub parent: ClusterId,
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

/// Who this node is.
pub struct Identity {
    node: NodeId,
    client: ClientAddress,
    secret: Option<Vec<u8>>,
    standing: watch::Sender<Standing>,
    successor: watch::Sender<ClusterId>,
    /// Whether a test has planted that nodes of any cluster are taken.
    #[cfg(feature = "torture")]
    takes_any: AtomicBool,
}

impl Identity {
    /// `secret`: nodes with another one, or none, are refused.
    pub fn new(node: NodeId, client: ClientAddress, secret: Option<Vec<u8>>, standing: Standing) -> Identity {
        let (standing, successor) = (watch::Sender::new(standing), watch::Sender::new(0));
        Identity {
            node,
            client,
            secret,
            standing,
            successor,
            #[cfg(feature = "torture")]
            takes_any: AtomicBool::new(false),
        }
    }

    /// Plants a fault: nodes of any cluster are taken.
    #[cfg(feature = "torture")]
    pub fn take_any_cluster(&self) {
        self.takes_any.store(true, Relaxed);
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
        let Standing { cluster, parent, blank, votes, .. } = *self.standing.borrow();
        Hello {
            node: self.node,
            cluster,
            blank,
            votes,
            client: self.client.clone(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            greeting: Some(Greeting { minor: VERSION[1], parent }),
        }
    }

    /// Whether another node may be one of this node's cluster.
    ///
    /// # Errors
    /// Why not.
    pub fn check_cluster(&self, theirs: &Hello, side: Side) -> Result<(), Refusal> {
        let standing = *self.standing.borrow();
        #[cfg(feature = "torture")]
        if self.takes_any.load(Relaxed) {
            return Ok(());
        }
        standing.check(self.node, theirs.node, &theirs.standing(), side).map_err(Refusal::Foreign)
    }

    /// Tells of the cluster that was recovered from this one, and has taken its place. 0: none is known.
    pub fn successor(&self) -> &watch::Sender<ClusterId> {
        &self.successor
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
    Foreign(Foreign),
    /// Another node was expected at the address.
    Node {
        /// The expected one.
        expected: NodeId,
        /// The one that is there.
        found: NodeId,
    },
    /// It has the number of this node.
    SameNode(NodeId),
    /// Another process is connected at the address of this node, for clients at the address that is given: both have the same number,
    /// or copies of one folder. With the id of the cluster in which it is that node.
    Twin(NodeId, ClusterId, String),
    /// There are too many connections.
    Full,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Version(theirs) => write!(f, "protocol version {theirs}, but this node speaks version {}", VERSION[0]),
            Refusal::Secret => f.write_str("wrong cluster-secret"),
            Refusal::NoSecret => f.write_str("a cluster-secret was given, but this node has none"),
            Refusal::Foreign(foreign) => write!(f, "{foreign}"),
            Refusal::Node { expected, found } => {
                write!(f, "node {expected} was expected at this address, which is that of node {found}")
            }
            Refusal::SameNode(node) => write!(f, "both nodes have the number {node}"),
            Refusal::Twin(node, id, addr) => {
                write!(f, "node {node} of cluster {id:016x} is another process, for clients at {addr}: ")?;
                f.write_str("two processes have its number, or copies of its folder")
            }
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

impl Failure {
    /// Whether the nodes do not belong together: then it stays so until somebody changes it.
    pub fn lasts(&self) -> bool {
        matches!(self, Failure::RefusedBy(_) | Failure::Refusing(_))
    }

    /// Whether it is over as soon as the other node has found its cluster.
    pub fn is_early(&self) -> bool {
        matches!(self, Failure::Refusing(Refusal::Foreign(Foreign::NoId(_))))
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
            .and_then(|()| me.check_cluster(&opened.hello, Side::Connector))
            .and_then(|()| expect_node(target, opened.hello.node));
        if let Err(Refusal::Foreign(Foreign::Replaced(Pair { theirs: (node, successor), .. }))) = checked
            && node == target
        {
            me.successor.send_replace(successor);
        }
        refuse_if(wire, checked).await?;
        wire.set_max(FRAME_MAX);
        Ok(opened.hello)
    })
    .await
}

/// Begins a connection that another node has opened, if `fits` takes it, too.
///
/// # Errors
/// See [`Failure`]. A refusal has been told to the other node.
pub async fn accept(
    wire: &mut Wire,
    me: &Identity,
    fits: impl FnOnce(&Hello) -> Result<(), Refusal>,
) -> Result<(Hello, Purpose), Failure> {
    within_time(async {
        let theirs = expect(wire, Kind::Hello).await?;
        let opened = read_opening(wire, &theirs.body).await?;
        let ours = opening(me, None, opened.purpose)?;
        wire.push(encode(Kind::Hello, 0, &ours));
        let given = expect(wire, Kind::Proof).await?;
        let checked = check_proof(me, b"connector", &theirs.body, &ours, &given.body)
            .and_then(|()| me.check_cluster(&opened.hello, Side::Acceptor))
            .and_then(|()| expect_node(opened.target.unwrap_or(me.node), me.node))
            .and_then(|()| expect_other(me.node, opened.hello.node))
            .and_then(|()| fits(&opened.hello));
        let welcome = encode(Kind::Welcome, 0, &proof(me, b"acceptor", &theirs.body, &ours));
        if let Err(refusal @ Refusal::Foreign(Foreign::Left(_))) = checked {
            // It was left behind. It believes that once it has seen that this node knows the secret, and refuses the connection itself.
            wire.push(welcome);
            wire.flush().await?;
            return Err(Failure::Refusing(refusal));
        }
        refuse_if(wire, checked).await?;
        wire.push(welcome);
        wire.flush().await?;
        wire.set_max(FRAME_MAX);
        Ok((opened.hello, opened.purpose))
    })
    .await
}

async fn within_time<T>(greeting: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let late = |_| Failure::Io(io::Error::new(io::ErrorKind::TimedOut, "the other side did not say who it is in time"));
    timeout(GREETING_TIME, greeting).await.map_err(late)?
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
    fill_random(&mut nonce);
    let mut body = [MAGIC.as_slice(), &VERSION].concat();
    let opening = postcard::to_stdvec(&Opening { hello: me.hello(), nonce, target, purpose });
    body.extend(opening.map_err(|error| io::Error::other(error.to_string()))?);
    // Behind the opening are the fields of minor versions.
    let parent = postcard::to_stdvec(&me.standing.borrow().parent);
    body.extend(parent.map_err(|error| io::Error::other(error.to_string()))?);
    Ok(body)
}

/// Reads a hello. The version comes first: what follows depends on it.
async fn read_opening(wire: &mut Wire, body: &[u8]) -> Result<Opening, Failure> {
    let rest = body.strip_prefix(&MAGIC).ok_or(Malformed::Body)?;
    let (&[major, minor], rest) = rest.split_first_chunk().ok_or(Malformed::Body)?;
    let same = if major == VERSION[0] { Ok(()) } else { Err(Refusal::Version(major)) };
    refuse_if(wire, same).await?;
    let (mut opening, rest): (Opening, _) = postcard::take_from_bytes(rest).map_err(|_| Malformed::Body)?;
    let parent = if minor >= MINOR_WITH_IDS { decode_beginning(rest)? } else { 0 };
    opening.hello.greeting = Some(Greeting { minor, parent });
    Ok(opening)
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
