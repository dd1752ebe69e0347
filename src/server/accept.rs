//! The sockets that are listened on, and who comes by them.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};

use crate::server::busy::{Busy, Kind};
use crate::server::handshake::Handshakes;
use crate::server::listener::{Accepted, Listeners};
use crate::server::poller::{Registry, Source};

/// After an accept that failed for want of descriptors or memory, the next attempt waits so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections are let in before others get their turn, at most: each takes some 15 µs.
const ACCEPTED_MAX: usize = 16;

/// Accepts one that has connected, without waiting for any; where from, if it is over TCP and not gone already.
pub(super) fn accept(listener: impl AsFd) -> Result<(OwnedFd, Option<SocketAddr>), Errno> {
    let (socket, addr) = acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    Ok((socket, addr.and_then(|addr| SocketAddr::try_from(addr).ok())))
}

/// A socket that is listened on.
struct Door {
    kind: Kind,
    socket: OwnedFd,
    /// Whether somebody may be waiting there.
    knocked: bool,
    /// Until when nobody is let in after an accept that failed.
    closed_until: Option<Instant>,
}

/// All of them.
#[derive(Default)]
pub(super) struct Doors {
    doors: Vec<Door>,
    /// Those that come over TLS have a handshake first.
    handshakes: Option<Rc<Handshakes>>,
}

impl Doors {
    /// Accepts on all that is listened on from now on.
    pub(super) fn open(listeners: Listeners, registry: &Registry, busy: &Busy) -> std::io::Result<Doors> {
        let Listeners { tcp, tls, unix } = listeners;
        let tcp = tcp.into_iter().map(|listener| (Kind::Tcp, OwnedFd::from(listener)));
        let tls = tls.into_iter().map(|listener| (Kind::Tls, OwnedFd::from(listener)));
        let unix = unix.into_iter().map(|listener| (Kind::Unix, OwnedFd::from(listener)));
        let mut doors = Vec::new();
        for (number, (kind, socket)) in (0..).zip(tcp.chain(tls).chain(unix)) {
            busy.listen(kind, socket.as_raw_fd());
            registry.add(&socket, Source::Listener(number))?;
            doors.push(Door { kind, socket, knocked: false, closed_until: None });
        }
        Ok(Doors { doors, handshakes: busy.handshakes() })
    }

    /// Notes that somebody waits at one.
    pub(super) fn note(&mut self, number: u32) {
        if let Some(door) = self.doors.get_mut(number as usize) {
            door.knocked = true;
        }
    }

    /// Whether somebody may be waiting.
    #[inline]
    pub(super) fn knocked(&self) -> bool {
        self.doors.iter().any(|door| door.knocked)
    }

    /// When somebody may be let in who may be waiting: at once, later, or never, as nobody is.
    pub(super) fn next(&self) -> Option<Instant> {
        let opens = |door: &Door| {
            let handshakes = self.handshakes.as_ref().filter(|_| door.kind == Kind::Tls);
            door.closed_until.max(handshakes.and_then(|handshakes| handshakes.full_until()))
        };
        self.doors.iter().filter(|door| door.knocked).map(|door| opens(door).unwrap_or_else(Instant::now)).min()
    }

    /// Accepts some of those who wait.
    pub(super) fn accept(&mut self) -> Vec<Accepted> {
        let now = Instant::now();
        let mut accepted = Vec::new();
        for door in self.doors.iter_mut().filter(|door| door.knocked) {
            if door.closed_until.is_some_and(|until| until > now) {
                continue;
            }
            door.closed_until = None;
            for _ in 0..ACCEPTED_MAX {
                let handshakes = self.handshakes.as_ref().filter(|_| door.kind == Kind::Tls);
                if handshakes.is_some_and(|handshakes| !handshakes.make_room(now)) {
                    break;
                }
                match (accept(&door.socket), door.kind, handshakes) {
                    (Ok((socket, _)), Kind::Unix, _) => accepted.push(Accepted::unix(socket)),
                    (Ok((socket, Some(addr))), Kind::Tcp, _) => accepted.push(Accepted::tcp(socket, addr)),
                    (Ok((socket, Some(addr))), Kind::Tls, Some(handshakes)) => handshakes.begin(socket.into(), addr),
                    // Without an address it is gone already.
                    (Ok(_), ..) => {}
                    (Err(Errno::AGAIN), ..) => {
                        door.knocked = false;
                        break;
                    }
                    (Err(Errno::INTR), ..) => {}
                    (Err(error), ..) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        // A client that is gone already is no reason to wait; anything else will be no better in an instant.
                        if error != Errno::CONNABORTED {
                            door.closed_until = Some(now + ACCEPT_PAUSE);
                            break;
                        }
                    }
                }
            }
        }
        accepted
    }
}
