//! Listening: binds the configured addresses, and admits or refuses the clients that connect.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::engine::session::Peer;
use crate::server::directory::Entry;
use crate::server::net::connection::Stream;
use crate::server::net::tls::{self, TlsStream};

/// Maximum number of free ports tried: all addresses must share one port.
const FREE_PORT_ATTEMPTS: usize = 16;

/// Refusal of a client from another machine, in protected mode and while there is no password.
/// An address that cannot be listened on.
#[derive(Debug)]
pub struct BindError {
    /// The address, or the path of the unix socket.
    pub address: String,
    /// The reason.
    pub source: io::Error,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source.kind() {
            io::ErrorKind::AddrInUse => write!(
                f,
                "Could not bind {}: address already in use. Something (perhaps a Redis) is listening there; choose another port \
                 with --port, or --port 0 for any free one.",
                self.address
            ),
            io::ErrorKind::PermissionDenied => {
                write!(f, "Could not bind {}: permission denied. Ports below 1024 need privileges; choose another.", self.address)
            }
            _ => write!(f, "Could not bind {}: {}.", self.address, self.source),
        }
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// The configured addresses and ports of TCP sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// Hosts to bind. A host that begins with `-` is optional.
    pub bind: Vec<String>,
    /// Port of plain TCP; 0 for none.
    pub port: u16,
    /// Port of TLS; 0 for none.
    pub tls_port: u16,
    backlog: u32,
}

impl Endpoints {
    /// The endpoints that the configuration names.
    pub fn of(config: &Config) -> Endpoints {
        Endpoints { bind: config.bind.clone(), port: config.port, tls_port: config.tls_port, backlog: config.tcp_backlog }
    }

    /// Binds all hosts to one port, to any free one if `port` is 0. Returns the sockets, and the error of an optional host that
    /// is missing.
    pub(crate) fn bind(&self, mut port: u16) -> Result<(Vec<TcpListener>, Option<BindError>), BindError> {
        let mut listeners: Vec<TcpListener> = Vec::new();
        let mut missing = None;
        for word in &self.bind {
            let (host, optional) = if let Some(host) = word.strip_prefix('-') { (host, true) } else { (word.as_str(), false) };
            let host = match host {
                "*" => "0.0.0.0",
                "::*" => "::",
                host => host,
            };
            match bind_host(host, port, self.backlog) {
                Ok(listener) => {
                    port = listener.local_addr().map_or(port, |addr| addr.port());
                    listeners.push(listener);
                }
                Err(source) => {
                    let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
                    let error = BindError { address, source };
                    let absent = matches!(error.source.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported)
                        || error.source.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error());
                    fail_if!(!(optional && absent), error);
                    missing = Some(error);
                }
            }
        }
        Ok((listeners, missing))
    }

    /// As [`Endpoints::bind`], for a server that starts: it must listen on at least one host, if any is configured.
    fn bind_some(&self, port: u16) -> Result<Vec<TcpListener>, BindError> {
        match self.bind(port)? {
            (listeners, Some(missing)) if listeners.is_empty() => Err(missing),
            (listeners, _) => Ok(listeners),
        }
    }
}

/// The addresses that a server listens on: the source for `INFO`, `CLUSTER` and everything else that shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Port of plain TCP; 0 for none.
    pub port: u16,
    /// Port of TLS; 0 for none.
    pub tls_port: u16,
    /// Addresses of plain TCP.
    pub tcp: Vec<SocketAddr>,
    /// Addresses of TLS.
    pub tls: Vec<SocketAddr>,
    /// Path of the unix socket.
    pub unix: Option<String>,
    /// Address of HTTP.
    pub http: Option<SocketAddr>,
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = self.tls.iter().map(|addr| format!("tls:{addr}"));
        let http = self.http.iter().map(|addr| format!("http:{addr}"));
        let words: Vec<String> = self.tcp.iter().map(ToString::to_string).chain(tls).chain(http).collect();
        f.write_str(&words.join(" "))
    }
}

/// The listening sockets of a server that starts.
#[derive(Debug, Default)]
pub struct Listeners {
    /// TCP, all on one port.
    pub tcp: Vec<TcpListener>,
    /// TCP for TLS, all on one port.
    pub tls: Vec<TcpListener>,
    /// The unix socket.
    pub unix: Option<UnixListener>,
}

impl Listeners {
    /// Binds the configured addresses.
    pub fn bind(config: &Config) -> Result<Listeners, BindError> {
        let endpoints = Endpoints::of(config);
        let tls = if config.tls_port == 0 { Vec::new() } else { endpoints.bind_some(config.tls_port)? };
        let mut attempts = 0;
        let tcp = loop {
            attempts += 1;
            if config.port == 0 && config.tls_port != 0 {
                break Vec::new();
            }
            match endpoints.bind_some(config.port) {
                // The free port chosen for the first address may be taken on the next one.
                Err(error) if config.port == 0 && attempts < FREE_PORT_ATTEMPTS && in_use(&error.source) => continue,
                result => break result?,
            }
        };
        let unix = match config.unixsocket.as_str() {
            "" => None,
            path => Some(bind_unix(path, config).map_err(|source| BindError { address: path.to_owned(), source })?),
        };
        Ok(Listeners { tcp, tls, unix })
    }

    /// The addresses that the sockets are bound to.
    pub fn addresses(&self, config: &Config) -> Addresses {
        let (tcp, tls) = (addresses(&self.tcp), addresses(&self.tls));
        // With port 0, the system chose the port.
        let port = tcp.first().map_or(config.port, SocketAddr::port);
        let unix = self.unix.is_some().then(|| config.unixsocket.clone());
        Addresses { port, tls_port: config.tls_port, tcp, tls, unix, http: None }
    }
}

fn addresses(listeners: &[TcpListener]) -> Vec<SocketAddr> {
    listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
}

fn in_use(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

fn bind_host(host: &str, port: u16, backlog: u32) -> io::Result<TcpListener> {
    let addr = (host, port).to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&addr.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

fn bind_unix(path: &str, config: &Config) -> io::Result<UnixListener> {
    // Remove the socket of a server that was killed: it would block the path.
    let _ = std::fs::remove_file(path);
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    if config.unixsocketperm > 0 {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(config.unixsocketperm))?;
    }
    socket.listen(i32::try_from(config.tcp_backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// An accepted connection that is not yet admitted.
pub(crate) struct Accepted {
    pub(crate) stream: Stream,
    /// The client's address; `None` over a unix socket.
    remote: Option<SocketAddr>,
    /// What `CLIENT LIST` shows as the address of a client within the process.
    within: Option<String>,
}

impl Accepted {
    /// Over TCP.
    pub(crate) fn tcp(socket: OwnedFd, addr: SocketAddr) -> Accepted {
        Accepted { stream: Stream::Tcp(socket.into()), remote: Some(addr), within: None }
    }

    /// Over a unix socket.
    pub(crate) fn unix(socket: OwnedFd) -> Accepted {
        Accepted { stream: Stream::Unix(socket.into()), remote: None, within: None }
    }

    /// From within the process, over one end of a pair of sockets.
    #[cfg(feature = "http")]
    pub(crate) fn within(socket: OwnedFd, shown: String) -> Accepted {
        Accepted { stream: Stream::Unix(socket.into()), remote: None, within: Some(shown) }
    }

    /// Over TLS, after the handshake.
    pub(crate) fn tls(tls: TlsStream<tls::Socket>, addr: SocketAddr) -> Accepted {
        Accepted { stream: Stream::Tls(Rc::new(RefCell::new(tls))), remote: Some(addr), within: None }
    }
}

/// An admitted connection, whose session the engine knows.
pub(crate) struct NewConnection {
    pub(crate) id: SessionId,
    pub(crate) entry: Entry,
    pub(crate) stream: Stream,
}

impl NewConnection {
    /// Its file descriptor.
    pub(crate) fn fd(&self) -> RawFd {
        self.entry.fd
    }
}

fn prepare(socket: &SockRef<'_>, config: &Config) {
    let _ = socket.set_tcp_nodelay(true);
    if config.tcp_keepalive > 0 {
        let seconds = u64::from(config.tcp_keepalive);
        let options = TcpKeepalive::new()
            .with_time(Duration::from_secs(seconds))
            .with_interval(Duration::from_secs((seconds / 3).max(1)))
            .with_retries(3);
        let _ = socket.set_tcp_keepalive(&options);
    }
}

fn describe_tcp(addr: SocketAddr, local: Option<SocketAddr>, fd: RawFd) -> (Peer, Entry) {
    let laddr = local.map(|addr| addr.to_string()).unwrap_or_default().into();
    let peer = Peer { addr: addr.to_string().into(), laddr, unix: false };
    (peer, Entry { addr: Some(addr), fd, connected_at: 0, bytes_in: 0, bytes_out: 0 })
}

fn describe_unix(addr: &str, fd: RawFd) -> (Peer, Entry) {
    let peer = Peer { addr: addr.into(), laddr: addr.into(), unix: true };
    (peer, Entry { addr: None, fd, connected_at: 0, bytes_in: 0, bytes_out: 0 })
}

/// Admits a client and starts its session. Returns `None` if the client is refused.
pub(crate) fn welcome(engine: &mut Engine, now: Now, accepted: Accepted) -> Option<NewConnection> {
    let Accepted { stream, remote, within } = accepted;
    let is_local = remote.is_none_or(|addr| addr.ip().is_loopback());
    if let Some(refusal) = engine.refusal(now, is_local, || remote.map_or_else(String::new, |addr| addr.to_string())) {
        // One attempt is enough: the socket's buffer is empty, and the refusal is a courtesy.
        let _ = stream.write(refusal);
        if let Stream::Tls(tls) = &stream {
            tls::say_goodbye(tls);
        }
        return None;
    }
    let (peer, entry) = match remote {
        Some(addr) => {
            let local = stream.with_fd(|fd| {
                let socket = SockRef::from(&fd);
                prepare(&socket, engine.config());
                socket.local_addr()
            });
            describe_tcp(addr, local.ok().and_then(|addr| addr.as_socket()), stream.fd())
        }
        None => describe_unix(&within.unwrap_or_else(|| format!("{}:0", engine.config().unixsocket)), stream.fd()),
    };
    let id = engine.connect(now, peer);
    Some(NewConnection { id, entry, stream })
}
