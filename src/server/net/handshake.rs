//! TLS handshakes in progress, and the limits on their number and duration.
//!
//! A client has no session before its handshake is done, so a client that never completes it costs a socket and little more, and
//! only for a limited time. A storm of honest clients waits in the backlog; a silent client makes room for others after a second.

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

/// Maximum number of handshakes in progress.
const UNFINISHED_MAX: usize = 256;
/// Maximum duration of a handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Minimum time before a handshake is given up to make room for others.
const PATIENCE: Duration = Duration::from_secs(1);

/// A handshake in progress.
struct Unfinished {
    since: Instant,
    addr: SocketAddr,
    accept: Pin<Box<Accept<Socket>>>,
    /// Whether it is in the queue of handshakes to continue.
    queued: bool,
}

/// A client whose handshake is done.
pub(crate) struct TlsAccepted {
    pub(crate) tls: TlsStream<Socket>,
    pub(crate) addr: SocketAddr,
}

/// The handshakes of a server.
pub(crate) struct Handshakes {
    /// `None` until TLS is configured; until then no handshake begins.
    settings: RefCell<Option<Arc<ServerConfig>>>,
    unfinished: RefCell<BTreeMap<u32, Unfinished>>,
    begun: Cell<u32>,
    /// Handshakes whose sockets are ready, in FIFO order.
    run_queue: RefCell<VecDeque<u32>>,
    registry: Registry,
}

impl Handshakes {
    /// Creates the set, with no handshake in progress.
    pub(crate) fn new(settings: Option<Arc<ServerConfig>>, registry: Registry) -> Handshakes {
        Handshakes {
            settings: RefCell::new(settings),
            unfinished: RefCell::default(),
            begun: Cell::new(0),
            run_queue: RefCell::default(),
            registry,
        }
    }

    /// Replaces the settings of future handshakes.
    pub(crate) fn renew(&self, settings: Arc<ServerConfig>) {
        *self.settings.borrow_mut() = Some(settings);
    }

    /// Begins a handshake. [`Handshakes::go_on`] continues it when its socket is ready, and returns its result.
    pub(crate) fn begin(&self, stream: TcpStream, addr: SocketAddr) {
        let Some(settings) = self.settings.borrow().clone() else { return };
        let number = self.begun.get();
        self.begun.set(number.wrapping_add(1));
        if let Err(error) = self.registry.add(&stream, Source::Handshake(number)) {
            tracing::warn!(%error, "cannot register a TLS handshake with the poller");
            return;
        }
        let accept = Box::pin(TlsAcceptor::from(settings).accept(Socket::new(stream)));
        self.unfinished.borrow_mut().insert(number, Unfinished { since: Instant::now(), addr, accept, queued: false });
    }

    /// Queues a handshake whose socket is ready.
    pub(crate) fn note(&self, number: u32) {
        if let Some(handshake) = self.unfinished.borrow_mut().get_mut(&number)
            && !std::mem::replace(&mut handshake.queued, true)
        {
            self.run_queue.borrow_mut().push_back(number);
        }
    }

    /// Whether a handshake is ready to continue.
    pub(crate) fn has_queued(&self) -> bool {
        !self.run_queue.borrow().is_empty()
    }

    /// Takes the next handshake to continue.
    pub(crate) fn next_queued(&self) -> Option<u32> {
        self.run_queue.borrow_mut().pop_front()
    }

    /// Continues a handshake as far as it can without waiting. Returns the client if that completes it.
    pub(crate) fn go_on(&self, number: u32) -> Option<TlsAccepted> {
        let mut unfinished = self.unfinished.borrow_mut();
        let handshake = unfinished.get_mut(&number)?;
        handshake.queued = false;
        let (addr, done) = (handshake.addr, tls::go_on(|cx| handshake.accept.as_mut().poll(cx)));
        if matches!(done, Err(Errno::AGAIN)) {
            return None;
        }
        unfinished.remove(&number);
        match done {
            Ok(tls) => Some(TlsAccepted { tls, addr }),
            Err(error) => {
                tracing::debug!(%addr, %error, "a TLS handshake failed");
                None
            }
        }
    }

    /// Continues all handshakes.
    pub(crate) fn resume_all(&self) -> Vec<TlsAccepted> {
        let numbers: Vec<u32> = self.unfinished.borrow().keys().copied().collect();
        numbers.into_iter().filter_map(|number| self.go_on(number)).collect()
    }

    /// The oldest handshake and its start. Numbers grow, so the first entry is the oldest: no search is needed. Numbers wrap only
    /// after four billion.
    fn oldest(&self) -> Option<(u32, Instant)> {
        self.unfinished.borrow().first_key_value().map(|(number, oldest)| (*number, oldest.since))
    }

    /// Drops handshakes that have taken too long.
    pub(crate) fn give_up_late(&self) {
        while let Some((number, since)) = self.oldest()
            && since.elapsed() >= HANDSHAKE_MAX
        {
            let late = self.unfinished.borrow_mut().remove(&number);
            tracing::debug!(addr = ?late.map(|handshake| handshake.addr), "a TLS handshake took too long");
        }
    }

    /// When the oldest handshake will have taken too long.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.oldest().map(|(_, since)| since + HANDSHAKE_MAX)
    }

    /// Whether another handshake may begin at once.
    pub(crate) fn has_room(&self) -> bool {
        self.unfinished.borrow().len() < UNFINISHED_MAX
    }

    /// Until when no handshake may begin if none in progress ends; `None` if one may begin at once.
    pub(crate) fn full_until(&self) -> Option<Instant> {
        if self.has_room() { None } else { self.oldest().map(|(_, since)| since + PATIENCE) }
    }

    /// Makes room for another handshake, if necessary by dropping the oldest one once its minimum time is over. Returns false if
    /// there is no room yet.
    pub(crate) fn make_room(&self, now: Instant) -> bool {
        if self.has_room() {
            return true;
        }
        let Some((number, _)) = self.oldest().filter(|(_, since)| *since + PATIENCE <= now) else { return false };
        self.unfinished.borrow_mut().remove(&number);
        true
    }
}
