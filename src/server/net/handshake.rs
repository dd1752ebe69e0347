//! TLS handshakes: those that are under way, and how many of them and for how long there may be.
//!
//! A client has no session before its handshake is done, so that one who never gets there costs a socket and little more, and that
//! not for long. A storm of clients that mean it waits in the backlog; clients that are silent make room after a second.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::server::net::poller::{Registry, Source};
use crate::server::net::tls::{self, Accept, ServerConfig, Socket, TlsAcceptor, TlsStream};

/// Handshakes that may be under way at once.
const UNFINISHED_MAX: usize = 256;
/// How long one may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How long one is safe from being given up for others.
const PATIENCE: Duration = Duration::from_secs(1);

/// A handshake that is under way.
struct Unfinished {
    since: Instant,
    addr: SocketAddr,
    accept: Pin<Box<Accept<Socket>>>,
    /// Whether it is in line to go on.
    in_line: bool,
}

/// A client whose handshake is done.
pub(crate) struct Greeted {
    pub(crate) tls: TlsStream<Socket>,
    pub(crate) addr: SocketAddr,
}

/// The handshakes of a server.
pub(crate) struct Handshakes {
    /// `None` until TLS is configured; without it none begins.
    settings: RefCell<Option<Arc<ServerConfig>>>,
    unfinished: RefCell<BTreeMap<u32, Unfinished>>,
    begun: Cell<u32>,
    /// Those whose sockets have something, in this order.
    line: RefCell<VecDeque<u32>>,
    registry: Registry,
}

impl Handshakes {
    /// None is under way yet.
    pub(crate) fn new(settings: Option<Arc<ServerConfig>>, registry: Registry) -> Handshakes {
        Handshakes {
            settings: RefCell::new(settings),
            unfinished: RefCell::default(),
            begun: Cell::new(0),
            line: RefCell::default(),
            registry,
        }
    }

    /// Has the handshakes to come made by something else.
    pub(crate) fn renew(&self, settings: Arc<ServerConfig>) {
        *self.settings.borrow_mut() = Some(settings);
    }

    /// Begins one. What comes of it is told by [`Handshakes::go_on`], when its socket has something.
    pub(crate) fn begin(&self, stream: TcpStream, addr: SocketAddr) {
        let Some(settings) = self.settings.borrow().clone() else { return };
        let number = self.begun.get();
        self.begun.set(number.wrapping_add(1));
        if let Err(error) = self.registry.add(&stream, Source::Handshake(number)) {
            tracing::warn!(%error, "cannot wait for a TLS handshake");
            return;
        }
        let accept = Box::pin(TlsAcceptor::from(settings).accept(Socket::new(stream)));
        self.unfinished.borrow_mut().insert(number, Unfinished { since: Instant::now(), addr, accept, in_line: false });
    }

    /// Notes that the socket of one has something.
    pub(crate) fn note(&self, number: u32) {
        if let Some(handshake) = self.unfinished.borrow_mut().get_mut(&number)
            && !std::mem::replace(&mut handshake.in_line, true)
        {
            self.line.borrow_mut().push_back(number);
        }
    }

    /// Whether one is to go on.
    pub(crate) fn are_in_line(&self) -> bool {
        !self.line.borrow().is_empty()
    }

    /// The next that is to go on.
    pub(crate) fn next_in_line(&self) -> Option<u32> {
        self.line.borrow_mut().pop_front()
    }

    /// Goes on with one, as far as that can be done at once; gives the client when it is done by that.
    pub(crate) fn go_on(&self, number: u32) -> Option<Greeted> {
        let mut unfinished = self.unfinished.borrow_mut();
        let handshake = unfinished.get_mut(&number)?;
        handshake.in_line = false;
        let (addr, done) = (handshake.addr, tls::go_on(|cx| handshake.accept.as_mut().poll(cx)));
        if matches!(done, Err(Errno::AGAIN)) {
            return None;
        }
        unfinished.remove(&number);
        match done {
            Ok(tls) => Some(Greeted { tls, addr }),
            Err(error) => {
                tracing::debug!(%addr, %error, "a TLS handshake failed");
                None
            }
        }
    }

    /// Goes on with all of them.
    pub(crate) fn go_on_with_all(&self) -> Vec<Greeted> {
        let numbers: Vec<u32> = self.unfinished.borrow().keys().copied().collect();
        numbers.into_iter().filter_map(|number| self.go_on(number)).collect()
    }

    /// When the oldest began: there may be many, so none is looked for. Numbers begin anew only after four billion.
    fn oldest(&self) -> Option<(u32, Instant)> {
        self.unfinished.borrow().first_key_value().map(|(number, oldest)| (*number, oldest.since))
    }

    /// Gives those up that have taken too long.
    pub(crate) fn give_up_late(&self) {
        while let Some((number, since)) = self.oldest()
            && since.elapsed() >= HANDSHAKE_MAX
        {
            let late = self.unfinished.borrow_mut().remove(&number);
            tracing::debug!(addr = ?late.map(|handshake| handshake.addr), "a TLS handshake took too long");
        }
    }

    /// When one will have taken too long, if all are silent from now on.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.oldest().map(|(_, since)| since + HANDSHAKE_MAX)
    }

    /// Whether another may begin at once.
    pub(crate) fn has_room(&self) -> bool {
        self.unfinished.borrow().len() < UNFINISHED_MAX
    }

    /// Until when no other may begin if none of those under way ends; `None` where one may at once.
    pub(crate) fn full_until(&self) -> Option<Instant> {
        if self.has_room() { None } else { self.oldest().map(|(_, since)| since + PATIENCE) }
    }

    /// Makes room for another, if need be by giving one up that has been silent for a while; false where there is none yet.
    pub(crate) fn make_room(&self, now: Instant) -> bool {
        if self.has_room() {
            return true;
        }
        let Some((number, _)) = self.oldest().filter(|(_, since)| *since + PATIENCE <= now) else { return false };
        self.unfinished.borrow_mut().remove(&number);
        true
    }
}
