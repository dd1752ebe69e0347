//! Sockets between nodes: opened to an address, or accepted; encrypted if the cluster uses TLS.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::quorum::net::wire::{Socket, Wire};

/// TCP keep-alive: idle time before the first probe, interval, and number of probes. Pings find a vanished node sooner; this frees
/// sockets of connections that carry none.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 3);

/// Time within which a socket must be open and its handshake of TLS done.
const OPEN_TIME: Duration = Duration::from_secs(2);

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

/// Opens a connection to `host:port`. The name is resolved each time.
///
/// # Errors
/// Those of the resolver, the socket and the handshake; `TimedOut` after two seconds.
pub async fn open(addr: &str, security: &Security) -> io::Result<Wire> {
    in_time(async {
        let stream = TcpStream::connect(addr).await?;
        prepare(&stream)?;
        encrypted(stream, addr, security).await
    })
    .await
}

/// Makes a connection of an accepted socket.
///
/// # Errors
/// Those of the socket and the handshake; `TimedOut` after two seconds.
pub async fn accepted(stream: TcpStream, security: &Security) -> io::Result<Wire> {
    prepare(&stream)?;
    in_time(decrypted(stream, security)).await
}

async fn in_time(opening: impl Future<Output = io::Result<Box<dyn Socket>>>) -> io::Result<Wire> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the connection was not open in time");
    tokio::time::timeout(OPEN_TIME, opening).await.map_err(late)?.map(Wire::new)
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (idle, interval, probes) = KEEPALIVE;
    let keepalive = socket2::TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(probes);
    socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

#[cfg(feature = "tls")]
fn no_handshake(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("no handshake of TLS: {error}"))
}

#[cfg(feature = "tls")]
async fn encrypted(stream: TcpStream, addr: &str, security: &Security) -> io::Result<Box<dyn Socket>> {
    let Some(connector) = &security.connector else { return Ok(Box::new(stream)) };
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host).trim_start_matches('[').trim_end_matches(']');
    let name = tokio_rustls::rustls::pki_types::ServerName::try_from(host.to_owned());
    let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    Ok(Box::new(connector.connect(name, stream).await.map_err(no_handshake)?))
}

#[cfg(not(feature = "tls"))]
async fn encrypted(stream: TcpStream, _: &str, _: &Security) -> io::Result<Box<dyn Socket>> {
    Ok(Box::new(stream))
}

#[cfg(feature = "tls")]
async fn decrypted(stream: TcpStream, security: &Security) -> io::Result<Box<dyn Socket>> {
    match &security.acceptor {
        Some(acceptor) => Ok(Box::new(acceptor.accept(stream).await.map_err(no_handshake)?)),
        None => Ok(Box::new(stream)),
    }
}

#[cfg(not(feature = "tls"))]
async fn decrypted(stream: TcpStream, _: &Security) -> io::Result<Box<dyn Socket>> {
    Ok(Box::new(stream))
}
