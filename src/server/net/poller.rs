//! The poller: reports events of the server's descriptors (epoll, edge-triggered).
//!
//! epoll reports an edge once, so the receiver of an event remembers that a socket is readable or writable until the system
//! says otherwise.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::base::ids::SessionId;

/// Maximum number of events taken by one `epoll_wait`.
const EVENTS_MAX: usize = 256;

/// For a poll that does not wait.
pub const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

const TIMER: u32 = u32::MAX;
const CLOSURES: u32 = u32::MAX - 1;
const LISTENER: u32 = u32::MAX - 2;
const HANDSHAKE: u32 = u32::MAX - 3;

/// The owner of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The timer.
    Timer,
    /// Wake-up descriptor (eventfd) of the control queue.
    Closures,
    /// The listening socket of that number.
    Listener(u32),
    /// The socket of the TLS handshake of that number.
    Handshake(u32),
    /// The socket of a session.
    Client(SessionId),
}

/// Readiness that an event reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Bytes, or the end of the input, can be read.
    pub readable: bool,
    /// The socket accepts bytes.
    pub writable: bool,
    /// A read that fills less than its buffer has not emptied the socket: the end of the input follows, or urgent data, at which
    /// a read stops.
    pub read_on: bool,
}

impl Source {
    /// The word that epoll keeps for a descriptor: a session's id, or a kind in the place of the session's number. There are never so
    /// many sessions that a number is one of the kinds.
    const fn data(self) -> EventData {
        let id = match self {
            Source::Client(id) => id,
            Source::Timer => SessionId::new(TIMER, 0),
            Source::Closures => SessionId::new(CLOSURES, 0),
            Source::Listener(number) => SessionId::new(LISTENER, number),
            Source::Handshake(number) => SessionId::new(HANDSHAKE, number),
        };
        EventData::new_u64(id.to_bits())
    }

    #[inline]
    fn of(data: u64) -> Source {
        let id = SessionId::from_bits(data);
        match id.number() {
            TIMER => Source::Timer,
            CLOSURES => Source::Closures,
            LISTENER => Source::Listener(id.generation()),
            HANDSHAKE => Source::Handshake(id.generation()),
            _ => Source::Client(id),
        }
    }

    const fn interest(self) -> EventFlags {
        let flags = EventFlags::ET.union(EventFlags::IN);
        match self {
            Source::Client(_) | Source::Handshake(_) => {
                flags.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::PRI)
            }
            Source::Timer | Source::Closures | Source::Listener(_) => flags,
        }
    }
}

/// The set of descriptors that epoll watches.
#[derive(Clone)]
pub struct Registry {
    epoll: Rc<OwnedFd>,
}

impl Registry {
    /// Watches a descriptor until it is closed. Its present readiness is reported as an event, too.
    pub fn add(&self, fd: impl AsFd, source: Source) -> io::Result<()> {
        Ok(epoll::add(&*self.epoll, fd, source.data(), source.interest())?)
    }

    /// Changes the owner of a watched descriptor.
    pub fn hand_over(&self, fd: impl AsFd, source: Source) -> io::Result<()> {
        Ok(epoll::modify(&*self.epoll, fd, source.data(), source.interest())?)
    }
}

/// The epoll instance and the events of its last wait.
pub struct Poller {
    /// The descriptors it watches.
    pub registry: Registry,
    events: Vec<Event>,
}

impl Poller {
    /// Creates a poller that watches nothing yet.
    pub fn new() -> io::Result<Poller> {
        let registry = Registry { epoll: Rc::new(epoll::create(CreateFlags::CLOEXEC)?) };
        Ok(Poller { registry, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Waits for events, at most for `timeout`; `None` waits for ever.
    pub fn wait(&mut self, timeout: Option<&Timespec>) -> io::Result<()> {
        self.events.clear();
        match epoll::wait(&*self.registry.epoll, spare_capacity(&mut self.events), timeout) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// As [`Poller::wait`], for a time below a millisecond, to which `epoll_wait` would round it up. (`epoll_pwait2` needs Linux
    /// 5.11.)
    pub fn wait_briefly(&mut self, timeout: Duration) -> io::Result<()> {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&*self.registry.epoll, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => self.wait(Some(&NO_TIME)),
            Err(error) => Err(error.into()),
        }
    }

    /// The events of the last wait.
    pub fn events(&self) -> impl Iterator<Item = (Source, Readiness)> {
        self.events.iter().map(|event| {
            let (flags, data) = (event.flags, event.data);
            let broken = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            let read_on = broken || flags.intersects(EventFlags::RDHUP | EventFlags::PRI);
            let readable = read_on || flags.contains(EventFlags::IN);
            (Source::of(data.u64()), Readiness { readable, writable: broken || flags.contains(EventFlags::OUT), read_on })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn told(poller: &mut Poller) -> Vec<(Source, Readiness)> {
        poller.wait(Some(&NO_TIME)).unwrap();
        poller.events().collect()
    }

    #[test]
    fn whose_a_descriptor_is_comes_back() {
        let client = |number| Source::Client(SessionId::new(number, u32::MAX - number));
        let listed = [
            Source::Timer,
            Source::Closures,
            Source::Listener(0),
            Source::Listener(7),
            Source::Handshake(u32::MAX),
            client(0),
            client(99),
        ];
        for source in listed {
            assert_eq!(Source::of(source.data().u64()), source);
        }
    }

    #[test]
    fn an_edge_is_told_once_and_the_end_with_it() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let mut poller = Poller::new().unwrap();
        let source = Source::Client(SessionId::new(3, 4));
        poller.registry.add(&here, source).unwrap();
        let ready = |readable, read_on| vec![(source, Readiness { readable, writable: true, read_on })];
        assert_eq!(told(&mut poller), ready(false, false));
        assert_eq!(told(&mut poller), []);
        there.write_all(b"PING").unwrap();
        assert_eq!(told(&mut poller), ready(true, false));
        assert_eq!(told(&mut poller), []);
        there.write_all(b"\r\n").unwrap();
        there.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(told(&mut poller), ready(true, true));
        let mut all = Vec::new();
        here.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"PING\r\n");
        drop(here);
        assert_eq!(told(&mut poller), []);
    }

    #[test]
    fn what_is_handed_over_is_told_to_whom_it_is_given() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let mut poller = Poller::new().unwrap();
        poller.registry.add(&here, Source::Handshake(1)).unwrap();
        there.write_all(b"hello").unwrap();
        assert_eq!(told(&mut poller).len(), 1);
        let source = Source::Client(SessionId::new(9, 10));
        poller.registry.hand_over(&here, source).unwrap();
        let told = told(&mut poller);
        assert!(matches!(told[..], [(told, Readiness { readable: true, .. })] if told == source), "{told:?}");
    }
}
