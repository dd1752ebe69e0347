//! The socket of a connection: TCP, TLS over TCP, or a unix socket.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::client::connection::tls::{TlsConnector, TlsStream};
use crate::client::error::{Error, Result};
use crate::client::options::{Address, Options};

/// TCP keep-alive: idle time before the first probe, interval, and number of probes. The client detects a vanished server within
/// about half a minute, also on an idle connection.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(15), Duration::from_secs(5), 3);

pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream>),
    Unix(UnixStream),
}

/// A server, or a node of a replicated one.
#[derive(Clone)]
struct Target {
    address: Address,
    tls: Option<TlsConnector>,
}

/// Opens sockets to one server, or to the nodes of a replicated one. It has read the certificates.
#[derive(Clone)]
pub(crate) struct Connector {
    targets: Vec<Target>,
    /// The one that is tried first: the last one that led.
    first: Arc<AtomicUsize>,
}

impl Connector {
    /// Reads the certificates, if any.
    pub fn new(options: &Options) -> Result<Connector> {
        let target = |address: &Address| {
            let tls = match (&options.tls, address) {
                (None, _) => None,
                (Some(_), Address::Unix(_)) => return Err(Error::Invalid("TLS is not supported over a unix socket".to_owned())),
                (Some(tls), Address::Tcp { host, .. }) => Some(TlsConnector::new(tls, host)?),
            };
            Ok(Target { address: address.clone(), tls })
        };
        let targets = std::iter::once(&options.address).chain(&options.others).map(target).collect::<Result<_>>()?;
        Ok(Connector { targets, first: Arc::default() })
    }

    /// Whether there are several nodes, of which only the leader is of use.
    pub fn has_nodes(&self) -> bool {
        self.targets.len() > 1
    }

    /// The numbers of the nodes in the order in which they are to be tried.
    pub fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (count, first) = (self.targets.len(), self.first.load(Ordering::Relaxed));
        (0..count).map(move |step| (first + step) % count)
    }

    /// Notes that a node did not answer in time: another one is tried first.
    pub fn doubt(&self, number: usize) {
        let next = (number + 1) % self.targets.len();
        // Another task may have found the leader meanwhile.
        let _ = self.first.compare_exchange(number, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes that a node leads.
    pub fn leads(&self, number: usize) {
        self.first.store(number, Ordering::Relaxed);
    }

    /// Opens a socket to a node.
    pub async fn connect(&self, number: usize) -> io::Result<Stream> {
        let Some(target) = self.targets.get(number) else { return Err(io::ErrorKind::NotFound.into()) };
        let (host, port) = match &target.address {
            Address::Unix(path) => return UnixStream::connect(path).await.map(Stream::Unix),
            Address::Tcp { host, port } => (host.as_str(), *port),
        };
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        let (idle, interval, probes) = KEEPALIVE;
        let keepalive = socket2::TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(probes);
        socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        match &target.tls {
            None => Ok(Stream::Tcp(stream)),
            Some(connector) => Ok(Stream::Tls(Box::new(connector.connect(stream).await?))),
        }
    }
}

/// Evaluates the same expression for each kind of socket.
macro_rules! for_each_socket {
    ($self:expr, $stream:ident => $what:expr) => {
        match $self.get_mut() {
            Stream::Tcp($stream) => $what,
            Stream::Tls($stream) => $what,
            Stream::Unix($stream) => $what,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        for_each_socket!(self, stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        for_each_socket!(self, stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for_each_socket!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for_each_socket!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}
