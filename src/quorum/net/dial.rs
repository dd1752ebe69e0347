//! Sockets between nodes: opened to an address, or accepted; encrypted if the cluster uses TLS.

use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::net::{TcpListener, TcpStream};

use crate::quorum::net::wire::{Socket, Wire};
use crate::quorum::runtime::timeout;

/// TCP keep-alive: idle time before the first probe, interval, and number of probes. Pings find a vanished node sooner; this frees
/// sockets of connections that carry none.
pub const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 3);

/// Time within which a socket must be open and its handshake of TLS done.
const OPEN_TIME: Duration = Duration::from_secs(2);

/// What nodes use to reach each other: the system, or a simulation.
pub trait Platform: Send + Sync + 'static {
    /// Opens a socket to `host:port`.
    ///
    /// # Errors
    /// Those of the resolver and the socket.
    fn connect(&self, addr: String) -> BoxFuture<'static, io::Result<Box<dyn Socket>>>;

    /// Opens the file of a snapshot. It may wait for the disk.
    ///
    /// # Errors
    /// The disk's.
    fn open_snapshot(&self, path: &Path) -> io::Result<Box<dyn Read + Send>>;
}

/// What accepts sockets of other nodes.
pub trait Listener: Send + Sync {
    /// Waits for the next socket. Returns where it comes from, too. It may be dropped and called again.
    ///
    /// # Errors
    /// The system's. The next call may succeed.
    fn accept(&self) -> impl Future<Output = io::Result<(Box<dyn Socket>, IpAddr)>> + Send;
}

/// The system: TCP and files.
pub struct System;

impl Platform for System {
    /// The name is resolved each time.
    fn connect(&self, addr: String) -> BoxFuture<'static, io::Result<Box<dyn Socket>>> {
        async move {
            let stream = TcpStream::connect(addr).await?;
            prepare(&stream)?;
            Ok(Box::new(stream) as Box<dyn Socket>)
        }
        .boxed()
    }

    fn open_snapshot(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(File::open(path)?))
    }
}

impl Listener for TcpListener {
    async fn accept(&self) -> io::Result<(Box<dyn Socket>, IpAddr)> {
        let (stream, from) = TcpListener::accept(self).await?;
        // This fails if the socket has ended meanwhile. The first read finds that, too, and its error is logged with the address.
        let _ = prepare(&stream);
        Ok((Box::new(stream), from.ip()))
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (idle, interval, probes) = KEEPALIVE;
    let keepalive = socket2::TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(probes);
    socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// How sockets between nodes are encrypted.
#[derive(Clone, Default)]
pub struct Security {
    /// For connections that this node opens. The certificate must name the host of the address.
    #[cfg(feature = "tls")]
    pub connector: Option<tokio_rustls::TlsConnector>,
    /// For connections that this node accepts.
    #[cfg(feature = "tls")]
    pub acceptor: Option<tokio_rustls::TlsAcceptor>,
}

/// Opens a connection to `host:port`.
///
/// # Errors
/// Those of the platform and the handshake; `TimedOut` after two seconds.
pub async fn open(platform: &dyn Platform, addr: &str, security: &Security) -> io::Result<Wire> {
    in_time(async { encrypted(platform.connect(addr.to_owned()).await?, addr, security).await }).await
}

/// Makes a connection of an accepted socket.
///
/// # Errors
/// Those of the handshake; `TimedOut` after two seconds.
pub async fn accepted(socket: Box<dyn Socket>, security: &Security) -> io::Result<Wire> {
    in_time(decrypted(socket, security)).await
}

async fn in_time(opening: impl Future<Output = io::Result<Box<dyn Socket>>>) -> io::Result<Wire> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the connection was not open in time");
    timeout(OPEN_TIME, opening).await.map_err(late)?.map(Wire::new)
}

#[cfg(feature = "tls")]
fn no_handshake(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("no handshake of TLS: {error}"))
}

#[cfg(feature = "tls")]
async fn encrypted(socket: Box<dyn Socket>, addr: &str, security: &Security) -> io::Result<Box<dyn Socket>> {
    let Some(connector) = &security.connector else { return Ok(socket) };
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host).trim_start_matches('[').trim_end_matches(']');
    let name = tokio_rustls::rustls::pki_types::ServerName::try_from(host.to_owned());
    let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    Ok(Box::new(connector.connect(name, socket).await.map_err(no_handshake)?))
}

#[cfg(not(feature = "tls"))]
async fn encrypted(socket: Box<dyn Socket>, _: &str, _: &Security) -> io::Result<Box<dyn Socket>> {
    Ok(socket)
}

#[cfg(feature = "tls")]
async fn decrypted(socket: Box<dyn Socket>, security: &Security) -> io::Result<Box<dyn Socket>> {
    match &security.acceptor {
        Some(acceptor) => Ok(Box::new(acceptor.accept(socket).await.map_err(no_handshake)?)),
        None => Ok(socket),
    }
}

#[cfg(not(feature = "tls"))]
async fn decrypted(socket: Box<dyn Socket>, _: &Security) -> io::Result<Box<dyn Socket>> {
    Ok(socket)
}
