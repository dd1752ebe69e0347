//! Listening: binds the configured addresses and turns what they accept into connections.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener as StdTcpListener, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::rc::Rc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::timeout;

use crate::engine::Engine;
use crate::engine::config::Config;
use crate::engine::session::{Peer, SessionId};
use crate::engine::time::Now;
use crate::engine::turns::Task;
use crate::server::busy::{Accepted, Listening};
use crate::server::connection::{Connection, Stream};
use crate::server::directory::Entry;
use crate::server::handshake::{self, Greeted};
use crate::server::shell::Shell;
use crate::server::{tls, turns};

/// After an accept that failed for want of descriptors or memory, the next attempt waits so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections are let in before others get their turn, at most: each takes some 15 µs.
const ACCEPTED_MAX: u64 = 16;
/// Ports tried where any will do but all addresses must have the same.
const FREE_PORT_ATTEMPTS: usize = 16;

/// What a client of another machine is told while there is no password.
const DENIED: &[u8] = b"-DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the \
default user. In this mode connections are only accepted from the loopback interface. If you want to connect from external \
computers to Redis you may adopt one of the following solutions: 1) Just disable protected mode sending the command 'CONFIG SET \
protected-mode no' from the loopback interface by connecting to Redis from the same host the server is running, however MAKE SURE \
Redis is not publicly accessible from internet if you do so. Use CONFIG REWRITE to make this change permanent. 2) Alternatively \
you can just disable the protected mode by editing the Redis configuration file, and setting the protected mode option to 'no', \
and then restarting the server. 3) If you started the server manually just for testing, restart it with the '--protected-mode no' \
option. 4) Set up an authentication password for the default user. NOTE: You only need to do one of the above things in order for \
the server to start accepting connections from the outside.\r\n";
/// How long a client that is refused may take to be told why.
const REFUSAL_MAX: Duration = Duration::from_secs(1);
const FULL: &[u8] = b"-ERR max number of clients reached\r\n";

/// An address that cannot be listened on.
#[derive(Debug)]
pub struct BindError {
    /// The address, or the path of the unix socket.
    pub address: String,
    /// Why.
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

/// Everything that is listened on.
#[derive(Debug, Default)]
pub struct Listeners {
    /// TCP, all on one port.
    pub tcp: Vec<StdTcpListener>,
    /// TCP for TLS, all on one port.
    pub tls: Vec<StdTcpListener>,
    /// The unix socket.
    pub unix: Option<StdUnixListener>,
}

impl Listeners {
    /// Binds what the configuration names.
    pub fn bind(config: &Config) -> Result<Listeners, BindError> {
        let tls = if config.tls_port == 0 { Vec::new() } else { bind_all(config, config.tls_port)? };
        let mut attempts = 0;
        let tcp = loop {
            attempts += 1;
            if config.port == 0 && config.tls_port != 0 {
                break Vec::new();
            }
            match bind_all(config, config.port) {
                // The port that the first address was given may be taken on the next one.
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

    /// The TCP addresses that were bound.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        addresses(&self.tcp)
    }

    /// Those of them that are for TLS.
    pub fn tls_addresses(&self) -> Vec<SocketAddr> {
        addresses(&self.tls)
    }

    /// Accepts on all of them for as long as the runtime runs.
    pub(super) fn serve(self, shell: &Rc<RefCell<Shell>>) -> io::Result<()> {
        let busy = Rc::clone(&shell.borrow().busy);
        for listener in self.tcp {
            busy.listen(Listening::Tcp(listener.as_raw_fd()));
            let accepting = accept_tcp(Rc::clone(shell), TcpListener::from_std(listener)?);
            tokio::task::spawn_local(turns::timed(shell, Task::Accept, accepting));
        }
        let handshakes = busy.handshakes();
        for listener in self.tls {
            let Some(handshakes) = handshakes.clone() else { continue };
            busy.listen(Listening::Tls(listener.as_raw_fd()));
            let accepting = handshake::accept(Rc::clone(shell), handshakes, TcpListener::from_std(listener)?);
            tokio::task::spawn_local(turns::timed(shell, Task::Accept, accepting));
        }
        if let Some(listener) = self.unix {
            busy.listen(Listening::Unix(listener.as_raw_fd()));
            let accepting = accept_unix(Rc::clone(shell), UnixListener::from_std(listener)?);
            tokio::task::spawn_local(turns::timed(shell, Task::Accept, accepting));
        }
        Ok(())
    }
}

fn addresses(listeners: &[StdTcpListener]) -> Vec<SocketAddr> {
    listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
}

fn in_use(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

fn bind_all(config: &Config, mut port: u16) -> Result<Vec<StdTcpListener>, BindError> {
    let mut listeners: Vec<StdTcpListener> = Vec::new();
    let mut missing = None;
    for word in &config.bind {
        let (host, optional) = match word.strip_prefix('-') {
            Some(host) => (host, true),
            None => (word.as_str(), false),
        };
        let host = match host {
            "*" => "0.0.0.0",
            "::*" => "::",
            host => host,
        };
        match bind_host(host, port, config.tcp_backlog) {
            Ok(listener) => {
                port = listener.local_addr().map_or(port, |addr| addr.port());
                listeners.push(listener);
            }
            Err(source) => {
                let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
                let error = BindError { address, source };
                let absent = matches!(error.source.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported)
                    || error.source.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error());
                if !(optional && absent) {
                    return Err(error);
                }
                missing = Some(error);
            }
        }
    }
    match missing {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(listeners),
    }
}

fn bind_host(host: &str, port: u16, backlog: u32) -> io::Result<StdTcpListener> {
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

fn bind_unix(path: &str, config: &Config) -> io::Result<StdUnixListener> {
    // A socket that a server left behind when it was killed would be in the way.
    let _ = std::fs::remove_file(path);
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    if config.unixsocketperm > 0 {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(config.unixsocketperm))?;
    }
    socket.listen(i32::try_from(config.tcp_backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

async fn accept_tcp(shell: Rc<RefCell<Shell>>, listener: TcpListener) {
    for accepted in 1u64.. {
        if accepted % ACCEPTED_MAX == 0 {
            tokio::task::yield_now().await;
        }
        match listener.accept().await {
            Ok((stream, addr)) => welcome_tcp(&shell, stream, addr),
            Err(error) => pause(error).await,
        }
    }
}

async fn accept_unix(shell: Rc<RefCell<Shell>>, listener: UnixListener) {
    let path = shell.borrow().engine.config.unixsocket.clone();
    for accepted in 1u64.. {
        if accepted % ACCEPTED_MAX == 0 {
            tokio::task::yield_now().await;
        }
        match listener.accept().await {
            Ok((stream, _)) => welcome_unix(&shell, stream, &path),
            Err(error) => pause(error).await,
        }
    }
}

pub(super) async fn pause(error: io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    // A client that is gone already is no reason to wait; anything else will be no better in an instant.
    if error.kind() != io::ErrorKind::ConnectionAborted {
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// A connection that is let in, and whose session the engine knows.
pub(super) struct Newcomer {
    pub(super) id: SessionId,
    entry: Entry,
    pub(super) stream: Accepted,
}

impl Newcomer {
    /// Its socket.
    pub(super) fn fd(&self) -> RawFd {
        self.entry.fd
    }
}

fn welcome_tcp(shell: &Rc<RefCell<Shell>>, stream: TcpStream, addr: SocketAddr) {
    let mut state = shell.borrow_mut();
    if let Some(refusal) = refusal(&state.engine, Some(addr.ip())) {
        state.engine.stats.rejected += 1;
        // One attempt: the socket's buffer is empty, and the client is told as a courtesy.
        let _ = stream.try_write(refusal);
        return;
    }
    prepare(&SockRef::from(&stream), &state.engine.config);
    let (peer, entry) = describe_tcp(addr, stream.local_addr(), stream.as_raw_fd());
    let id = state.connect(peer, entry);
    drop(state);
    tokio::task::spawn_local(Connection::new(Rc::clone(shell), Stream::Tcp(stream), id));
}

/// Lets a client in whose handshake is done, or tells it why not.
pub(super) async fn welcome_tls(shell: &Rc<RefCell<Shell>>, greeted: Greeted) {
    let Greeted { mut tls, addr } = greeted;
    let refused = refusal(&shell.borrow().engine, Some(addr.ip()));
    if let Some(refusal) = refused {
        shell.borrow_mut().engine.stats.rejected += 1;
        let _ = timeout(REFUSAL_MAX, async {
            tls.write_all(refusal).await?;
            tls.shutdown().await
        })
        .await;
        return;
    }
    let mut state = shell.borrow_mut();
    let socket = tls.get_ref().0.stream();
    prepare(&SockRef::from(socket), &state.engine.config);
    let (peer, entry) = describe_tcp(addr, socket.local_addr(), socket.as_raw_fd());
    let tls = Rc::new(RefCell::new(tls));
    let id = state.connect(peer, entry);
    state.busy.watch_tls(id, Rc::clone(&tls));
    drop(state);
    tokio::task::spawn_local(Connection::new(Rc::clone(shell), Stream::Tls(tls), id));
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

fn describe_tcp(addr: SocketAddr, local: io::Result<SocketAddr>, fd: RawFd) -> (Peer, Entry) {
    let laddr = local.map(|addr| addr.to_string()).unwrap_or_default().into();
    let peer = Peer { addr: addr.to_string().into(), laddr, unix: false };
    (peer, Entry { addr: Some(addr), fd, connected_at: 0, bytes_in: 0, bytes_out: 0 })
}

fn describe_unix(path: &str, fd: RawFd) -> (Peer, Entry) {
    let peer = Peer { addr: format!("{path}:0").into(), laddr: format!("{path}:0").into(), unix: true };
    (peer, Entry { addr: None, fd, connected_at: 0, bytes_in: 0, bytes_out: 0 })
}

fn welcome_unix(shell: &Rc<RefCell<Shell>>, stream: UnixStream, path: &str) {
    let mut state = shell.borrow_mut();
    if let Some(refusal) = refusal(&state.engine, None) {
        state.engine.stats.rejected += 1;
        let _ = stream.try_write(refusal);
        return;
    }
    let (peer, entry) = describe_unix(path, stream.as_raw_fd());
    let id = state.connect(peer, entry);
    drop(state);
    tokio::task::spawn_local(Connection::new(Rc::clone(shell), Stream::Unix(stream), id));
}

/// Lets a client in while a script runs: its session begins at once, its task with [`settle_in`]. `None` where it is refused.
pub(super) fn welcome_during_script(engine: &mut Engine, now: Now, mut stream: Accepted) -> Option<Newcomer> {
    let remote = match &stream {
        // Without an address it is gone already.
        Accepted::Tcp(stream) => Some(stream.peer_addr().ok()?),
        Accepted::Tls(_, addr) => Some(*addr),
        Accepted::Unix(_) => None,
    };
    if let Some(refusal) = refusal(engine, remote.map(|addr| addr.ip())) {
        engine.stats.rejected += 1;
        let _ = match &mut stream {
            Accepted::Tcp(stream) => stream.write(refusal),
            Accepted::Unix(stream) => stream.write(refusal),
            Accepted::Tls(tls, _) => {
                let written = tls.borrow_mut().get_mut().1.writer().write(refusal);
                tls::say_goodbye(tls);
                written
            }
        };
        return None;
    }
    let (peer, entry) = match (&stream, remote) {
        (Accepted::Tcp(stream), Some(addr)) => {
            prepare(&SockRef::from(stream), &engine.config);
            describe_tcp(addr, stream.local_addr(), stream.as_raw_fd())
        }
        (Accepted::Tls(tls, addr), _) => {
            let tls = tls.borrow();
            let socket = tls.get_ref().0.stream();
            prepare(&SockRef::from(socket), &engine.config);
            describe_tcp(*addr, socket.local_addr(), socket.as_raw_fd())
        }
        (Accepted::Tcp(stream), None) => describe_unix(&engine.config.unixsocket, stream.as_raw_fd()),
        (Accepted::Unix(stream), _) => describe_unix(&engine.config.unixsocket, stream.as_raw_fd()),
    };
    let id = engine.connect(now, peer);
    Some(Newcomer { id, entry, stream })
}

/// Gives a client that was let in during a script its task.
pub(super) fn settle_in(shell: &Rc<RefCell<Shell>>, newcomer: Newcomer) {
    let Newcomer { id, entry, stream } = newcomer;
    shell.borrow_mut().enter(id, entry);
    let stream = match stream {
        Accepted::Tcp(stream) => TcpStream::from_std(stream).map(Stream::Tcp),
        Accepted::Unix(stream) => UnixStream::from_std(stream).map(Stream::Unix),
        Accepted::Tls(tls, _) => Ok(Stream::Tls(tls)),
    };
    match stream {
        Ok(stream) => drop(tokio::task::spawn_local(Connection::new(Rc::clone(shell), stream, id))),
        Err(error) => {
            tracing::warn!(%error, "cannot go on with a connection");
            shell.borrow_mut().disconnect(id);
        }
    }
}

/// Why a client that has just connected is not let in.
fn refusal(engine: &Engine, remote: Option<IpAddr>) -> Option<&'static [u8]> {
    let config = &engine.config;
    if engine.sessions.len() >= config.maxclients as usize {
        return Some(FULL);
    }
    if config.protected_mode && engine.users.default_user().nopass && remote.is_some_and(|ip| !ip.is_loopback()) {
        return Some(DENIED);
    }
    None
}
