//! The listening sockets, and the connections that are accepted from them.
//!
//! ```text
//!   event loop, supervisor of a long script ─▶ Listening ─▶ Accepted, handshakes
//!                                CONFIG SET ─▶ Listening: other sockets ─▶ Addresses, shown by INFO, CLUSTER and Server
//! ```

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};

use crate::driver::round::ACCEPTED_MAX;
use crate::engine::config::Config;
use crate::server::net::handshake::Handshakes;
use crate::server::net::listener::{Accepted, Addresses, Endpoints, Listeners};
use crate::server::net::poller::{Registry, Source};

/// Back-off after `accept` fails for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The same limit while a script runs.
const ACCEPTED_IN_SCRIPT_MAX: usize = 64;

/// Kind of the connections that a listening socket accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Plain TCP.
    Tcp,
    /// A unix socket.
    Unix,
    /// TLS over TCP.
    Tls,
}

/// Accepts one connection without waiting. Returns the peer's address if the connection is over TCP and still open.
fn accept(listener: impl AsFd) -> Result<(OwnedFd, Option<SocketAddr>), Errno> {
    let (socket, addr) = acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    Ok((socket, addr.and_then(|addr| SocketAddr::try_from(addr).ok())))
}

/// A listening socket.
struct Listener {
    kind: Kind,
    /// Source number in the poller. Each socket gets a new one, so a late event of a closed socket finds no other.
    number: u32,
    socket: OwnedFd,
    /// Whether connections may be waiting.
    pending: bool,
    /// End of the back-off after a failed accept.
    paused_until: Option<Instant>,
}

/// Returns the first of the directives set that asks for sockets of the kind that failed, and the refusal in Redis's words.
fn refusal(kind: Kind, old: &Endpoints, new: &Endpoints, names: &[&'static str]) -> (&'static str, String) {
    let asks = |name: &&&'static str| match **name {
        "bind" => old.bind != new.bind,
        "port" => kind == Kind::Tcp && old.port != new.port,
        "tls-port" => kind == Kind::Tls && old.tls_port != new.tls_port,
        _ => false,
    };
    match names.iter().find(asks).copied().unwrap_or("bind") {
        "bind" => ("bind", "Failed to bind to specified addresses.".to_owned()),
        port => (port, "Unable to listen on this port. Check server logs.".to_owned()),
    }
}

/// The listening sockets of a server. `CONFIG SET` replaces them while the event loop runs; connections that were accepted stay.
pub(crate) struct Listening {
    listeners: RefCell<Vec<Listener>>,
    next_number: Cell<u32>,
    /// The endpoints that the TCP sockets are bound to.
    endpoints: RefCell<Endpoints>,
    /// The addresses that the sockets are bound to, for all threads.
    addresses: Arc<Mutex<Addresses>>,
    handshakes: Rc<Handshakes>,
    registry: Registry,
}

impl Listening {
    /// Registers sockets that are already bound.
    pub(crate) fn new(
        bound: Listeners,
        endpoints: Endpoints,
        addresses: Arc<Mutex<Addresses>>,
        handshakes: Rc<Handshakes>,
        registry: Registry,
    ) -> io::Result<Listening> {
        let listening = Listening {
            listeners: RefCell::default(),
            next_number: Cell::new(0),
            endpoints: RefCell::new(endpoints),
            addresses,
            handshakes,
            registry,
        };
        let Listeners { tcp, tls, unix } = bound;
        let mut listeners = listening.register(Kind::Tcp, tcp)?;
        listeners.extend(listening.register(Kind::Tls, tls)?);
        listeners.extend(listening.register(Kind::Unix, unix)?);
        listening.listeners.replace(listeners);
        Ok(listening)
    }

    /// The TLS handshakes in progress.
    pub(crate) fn handshakes(&self) -> &Rc<Handshakes> {
        &self.handshakes
    }

    fn register(&self, kind: Kind, sockets: impl IntoIterator<Item = impl Into<OwnedFd>>) -> io::Result<Vec<Listener>> {
        let register = |socket: OwnedFd| {
            let number = self.next_number.get();
            self.next_number.set(number.wrapping_add(1));
            self.registry.add(&socket, Source::Listener(number))?;
            Ok(Listener { kind, number, socket, pending: false, paused_until: None })
        };
        sockets.into_iter().map(Into::into).map(register).collect()
    }

    /// Listens on the addresses and ports of another configuration, and returns them. Connections that wait at a closed socket
    /// are lost, as on Redis.
    ///
    /// # Errors
    /// Names the directive that cannot be applied, and the reason. The server then listens as before.
    pub(crate) fn rebind(&self, config: &Config, names: &[&'static str]) -> Result<Addresses, (&'static str, String)> {
        let (old, new) = (self.endpoints.borrow().clone(), Endpoints::of(config));
        if old == new {
            return Ok(self.addresses.lock().unwrap_or_else(PoisonError::into_inner).clone());
        }
        let kinds = [(Kind::Tcp, old.port, new.port), (Kind::Tls, old.tls_port, new.tls_port)];
        let changed = || kinds.into_iter().filter(|(_, old_port, new_port)| old_port != new_port || old.bind != new.bind);
        // On the same port, the old sockets may block the new ones: a wildcard address excludes each single address.
        for (kind, ..) in changed().filter(|(_, old_port, new_port)| old_port == new_port) {
            self.close(kind);
        }
        let mut fresh = Vec::new();
        for (kind, _, port) in changed() {
            match self.bind(kind, &new, port) {
                Ok(listeners) => fresh.push((kind, listeners)),
                Err(error) => {
                    tracing::warn!(%error, "cannot listen as CONFIG SET asks for; listening as before");
                    drop(fresh);
                    self.reopen(&old);
                    return Err(refusal(kind, &old, &new, names));
                }
            }
        }
        for (kind, listeners) in fresh {
            self.close(kind);
            self.listeners.borrow_mut().extend(listeners);
        }
        self.endpoints.replace(new);
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        *addresses = Addresses { http: addresses.http, ..self.bound(addresses.unix.take()) };
        tracing::info!(addresses = %addresses, "listening on other addresses");
        Ok(addresses.clone())
    }

    fn bind(&self, kind: Kind, endpoints: &Endpoints, port: u16) -> Result<Vec<Listener>, Box<dyn std::error::Error>> {
        // While a server runs, port 0 stands for no socket.
        let sockets: Vec<TcpListener> = if port == 0 { Vec::new() } else { endpoints.bind(port)?.0 };
        Ok(self.register(kind, sockets)?)
    }

    fn close(&self, kind: Kind) {
        self.listeners.borrow_mut().retain(|listener| listener.kind != kind);
    }

    /// Binds the closed sockets again.
    fn reopen(&self, old: &Endpoints) {
        for (kind, port) in [(Kind::Tcp, old.port), (Kind::Tls, old.tls_port)] {
            if self.listeners.borrow().iter().any(|listener| listener.kind == kind) {
                continue;
            }
            match self.bind(kind, old, port) {
                Ok(listeners) => self.listeners.borrow_mut().extend(listeners),
                Err(error) => tracing::error!(%error, "cannot listen as before either; connected clients are served on"),
            }
        }
    }

    /// The addresses that the sockets are bound to.
    fn bound(&self, unix: Option<String>) -> Addresses {
        let listeners = self.listeners.borrow();
        let of = |kind: Kind| {
            let sockets = listeners.iter().filter(|listener| listener.kind == kind);
            sockets.filter_map(|listener| rustix::net::getsockname(&listener.socket).ok()?.try_into().ok()).collect()
        };
        let endpoints = self.endpoints.borrow();
        Addresses { port: endpoints.port, tls_port: endpoints.tls_port, tcp: of(Kind::Tcp), tls: of(Kind::Tls), unix, http: None }
    }

    /// Notes that connections wait at a socket.
    pub(crate) fn note(&self, number: u32) {
        if let Some(listener) = self.listeners.borrow_mut().iter_mut().find(|listener| listener.number == number) {
            listener.pending = true;
        }
    }

    /// Whether connections may be waiting.
    #[inline]
    pub(crate) fn pending(&self) -> bool {
        self.listeners.borrow().iter().any(|listener| listener.pending)
    }

    /// When connections that may be waiting can be accepted; `None` if none wait.
    pub(crate) fn next(&self) -> Option<Instant> {
        let opens = |listener: &Listener| {
            let full_until = if listener.kind == Kind::Tls { self.handshakes.full_until() } else { None };
            listener.paused_until.max(full_until)
        };
        let listeners = self.listeners.borrow();
        listeners.iter().filter(|listener| listener.pending).map(|listener| opens(listener).unwrap_or_else(Instant::now)).min()
    }

    /// Accepts some of the waiting connections. Those over TLS begin their handshake.
    pub(crate) fn accept(&self) -> Vec<Accepted> {
        let now = Instant::now();
        let mut accepted = Vec::new();
        for listener in self.listeners.borrow_mut().iter_mut().filter(|listener| listener.pending) {
            if listener.paused_until.is_some_and(|until| until > now) {
                continue;
            }
            listener.paused_until = None;
            for _ in 0..ACCEPTED_MAX {
                if listener.kind == Kind::Tls && !self.handshakes.make_room(now) {
                    break;
                }
                match accept(&listener.socket) {
                    Ok((socket, addr)) => accepted.extend(self.accepted(listener.kind, socket, addr)),
                    Err(Errno::AGAIN) => {
                        listener.pending = false;
                        break;
                    }
                    Err(Errno::INTR) => {}
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        // A client that disconnected already is no reason to wait. Any other failure would repeat at once.
                        if error != Errno::CONNABORTED {
                            listener.paused_until = Some(now + ACCEPT_PAUSE);
                            break;
                        }
                    }
                }
            }
        }
        accepted
    }

    /// Accepts connections while a script runs, when the event loop does not: the client that kills the script may be among them.
    pub(crate) fn accept_in_script(&self) -> Vec<Accepted> {
        let mut accepted = Vec::new();
        for listener in self.listeners.borrow().iter() {
            for _ in 0..ACCEPTED_IN_SCRIPT_MAX {
                let Ok((socket, addr)) = accept(&listener.socket) else { break };
                if listener.kind != Kind::Tls || self.handshakes.has_room() {
                    accepted.extend(self.accepted(listener.kind, socket, addr));
                }
            }
        }
        accepted
    }

    fn accepted(&self, kind: Kind, socket: OwnedFd, addr: Option<SocketAddr>) -> Option<Accepted> {
        match (kind, addr) {
            (Kind::Unix, _) => Some(Accepted::unix(socket)),
            (Kind::Tcp, Some(addr)) => Some(Accepted::tcp(socket, addr)),
            (Kind::Tls, Some(addr)) => {
                self.handshakes.begin(socket.into(), addr);
                None
            }
            // A connection without an address is closed already.
            (Kind::Tcp | Kind::Tls, None) => None,
        }
    }
}
