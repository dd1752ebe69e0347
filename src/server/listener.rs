//! Listening: binds the configured addresses and turns what they accept into connections.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};

use crate::engine::session::Peer;
use crate::server::connection::{Connection, Stream};
use crate::server::directory::Entry;
use crate::server::shell::Shell;

/// After an accept that failed for want of descriptors or memory, the next attempt waits so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds a TCP address and listens on it.
pub fn bind(host: &str, port: u16, backlog: i32) -> io::Result<StdTcpListener> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no such address");
    for addr in (host, port).to_socket_addrs()? {
        match listen(addr, backlog) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn listen(addr: SocketAddr, backlog: i32) -> io::Result<StdTcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&addr.into())?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

/// Accepts for as long as the server runs.
pub async fn accept_tcp(shell: Rc<RefCell<Shell>>, listener: StdTcpListener) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        match listener.accept().await {
            Ok((stream, addr)) => welcome(&shell, stream, addr),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn welcome(shell: &Rc<RefCell<Shell>>, stream: TcpStream, addr: SocketAddr) {
    let mut state = shell.borrow_mut();
    let _ = stream.set_nodelay(true);
    let keepalive = 300;
    if keepalive > 0 {
        let every = Duration::from_secs((keepalive / 3).max(1));
        let options = TcpKeepalive::new().with_time(Duration::from_secs(keepalive)).with_interval(every).with_retries(3);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&options);
    }
    let laddr = stream.local_addr().map(|addr| addr.to_string()).unwrap_or_default();
    let id = state.connect(
        Peer { addr: addr.to_string(), laddr, unix: false },
        Entry { addr: Some(addr), fd: stream.as_raw_fd(), connected_at: 0, bytes_in: 0, bytes_out: 0 },
    );
    drop(state);
    tokio::task::spawn_local(Connection::new(Rc::clone(shell), Stream::Tcp(stream), id));
}
