//! The executor's event loop: runs ready connections in FIFO order and blocks in `epoll_wait` when none is ready.
//!
//! ```text
//!   ┌▶ what is due, and others: closures of other threads, new connections, handshakes
//!   │  turns of connections, in FIFO order     ◀─ woken by another session's request
//!   │  a slice of the load, at the start
//!   │  the end of the round: its changes are handed to the log, or proposed to the nodes
//!   └─ poll the descriptors, or wait ─▶ run queue
//! ```
//!
//! The ways of a request, of a write and of a lock from here to the reply are drawn in [`crate::engine`].
//!
//! One thread runs all of it, and no turn blocks. Connections are not tasks of an async runtime: finding and waking a task for
//! each socket event took a third of the cost of a single request besides its system calls, and tasks took half of the memory of
//! an idle connection.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::Timespec;

use crate::base::ids::SessionId;
use crate::driver::connections::turn::Next;
use crate::driver::round::adapter::Adapter;
use crate::driver::round::{RoundEnd, Rounds, take_turn};
use crate::engine::observe::turns::Task;
use crate::server::durable::start::Starts;
use crate::server::net::accept::Listening;
use crate::server::net::connection::{Connection, Stream};
use crate::server::net::control::Inbox;
use crate::server::net::handshake::TlsAccepted;
use crate::server::net::listener;
use crate::server::net::listener::{Accepted, NewConnection};
use crate::server::net::poller::{NO_TIME, Poller, Source};
use crate::server::shell::Shell;
use crate::server::turn_meter;

/// Maximum number of TLS handshakes continued per round: with RSA, each takes up to a millisecond.
const HANDSHAKES_MAX: usize = 4;

/// The event loop and everything that takes turns in it.
pub(crate) struct EventLoop {
    shell: Shell,
    poller: Poller,
    /// Connections, indexed by session number.
    connections: Vec<Option<Connection>>,
    listening: Rc<Listening>,
    inbox: Inbox<Shell>,
    /// Whether closures may be in the inbox.
    has_closures: bool,
}

impl EventLoop {
    /// Creates a loop and registers the timer and the inbox with the poller.
    pub(crate) fn new(shell: Shell, poller: Poller, listening: Rc<Listening>, inbox: Inbox<Shell>) -> io::Result<EventLoop> {
        shell.timer.register(&poller.registry)?;
        inbox.register(&poller.registry)?;
        Ok(EventLoop { shell, poller, connections: Vec::new(), listening, inbox, has_closures: false })
    }

    /// Runs until the server ends.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        loop {
            match self.run_round().map_err(io::Error::other)? {
                Some(ended) => self.poll_events(ended).inspect_err(|_| self.end_in_order())?,
                None => return self.shell.failed.take().map_or(Ok(()), |reason| Err(io::Error::other(reason))),
            }
        }
    }

    fn welcome(&mut self, accepted: Accepted) {
        let now = self.shell.clock.now();
        if let Some(connection) = listener::welcome(&mut self.shell.driver.engine, now, accepted) {
            self.add_connection(connection);
        }
    }

    /// Gives an admitted client its connection.
    fn add_connection(&mut self, connection: NewConnection) {
        let NewConnection { id, entry, stream } = connection;
        self.shell.enter(id, entry);
        let (registry, source) = (&self.poller.registry, Source::Client(id));
        let registered = match &stream {
            // The socket is registered already, for its handshake.
            Stream::Tls(tls) => {
                self.shell.busy.watch_tls(id, tls.clone());
                stream.with_fd(|fd| registry.hand_over(fd, source))
            }
            Stream::Tcp(_) | Stream::Unix(_) => stream.with_fd(|fd| registry.add(fd, source)),
        };
        let connection = Connection::new(stream, id);
        if let Err(error) = registered {
            tracing::warn!(%error, "cannot register a connection with the poller");
            connection.close(&mut self.shell);
            return;
        }
        let index = id.index();
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(connection);
        // Its requests may have run during a script, or may have come with the handshake.
        self.shell.driver.wake(id);
    }

    /// Polls the descriptors after a round that has ended so: without waiting if there is work, otherwise until one is ready.
    fn poll_events(&mut self, ended: RoundEnd) -> io::Result<()> {
        let poller = &mut self.poller;
        match ended {
            RoundEnd::GoesOn => {
                turn_meter::count_poll();
                poller.wait(Some(&NO_TIME))?;
            }
            RoundEnd::WaitsBriefly(wait) => self.shell.while_waiting(|| poller.wait_briefly(wait))?,
            RoundEnd::Waits(load) => {
                let timeout = Self::timeout(load, &self.listening);
                self.shell.while_waiting(|| poller.wait(timeout.as_ref()))?;
            }
        }
        self.after_wait(EventLoop::note_events);
        self.listening.handshakes().give_up_late();
        Ok(())
    }

    /// Notes what is ready.
    fn note_events(&mut self) {
        for (source, readiness) in self.poller.events() {
            match source {
                Source::Client(id) => {
                    // The event may have been meant for a connection that was closed since, whose number is used again.
                    if let Some(Some(connection)) = self.connections.get_mut(id.index())
                        && connection.id == id
                    {
                        connection.note(readiness);
                        self.shell.driver.wake(id);
                    }
                }
                Source::Timer => {
                    self.shell.timer.fired();
                    self.shell.driver.timer_fired();
                }
                Source::Closures => {
                    // What is sent from now on rings again.
                    self.inbox.drain();
                    self.has_closures = true;
                }
                Source::Listener(number) => self.listening.note(number),
                Source::Handshake(number) => self.listening.handshakes().note(number),
            }
        }
    }

    /// How long the loop may wait if no descriptor becomes ready; `None` for ever. The timer covers the engine's deadlines.
    fn timeout(load: Option<Duration>, listening: &Listening) -> Option<Timespec> {
        let next = [listening.next(), listening.handshakes().next()].into_iter().flatten().min();
        let left = next.map(|next| next.saturating_duration_since(Instant::now()));
        let left = [left, load].into_iter().flatten().min()?;
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
    }

    /// Continues some of the TLS handshakes whose sockets are ready.
    #[cold]
    fn finish_handshakes(&mut self) {
        let handshakes = Rc::clone(self.listening.handshakes());
        self.shell.charge_open_turn();
        for number in (0..HANDSHAKES_MAX).map_while(|_| handshakes.next_queued()) {
            if let Some(TlsAccepted { tls, addr }) = handshakes.go_on(number) {
                self.welcome(Accepted::tls(tls, addr));
            }
            self.shell.end_turn(Task::Accept);
        }
    }
}

impl Rounds for EventLoop {
    type Adapter = Shell;

    #[inline]
    fn adapter(&mut self) -> &mut Shell {
        &mut self.shell
    }

    #[inline]
    fn turn(&mut self, id: SessionId) -> Next {
        let connection = self.connections.get_mut(id.index()).and_then(|place| place.as_mut());
        match connection.filter(|connection| connection.id == id) {
            Some(connection) => take_turn(&mut self.shell, connection),
            None => Next::Wait,
        }
    }

    fn close_connection(&mut self, id: SessionId) {
        // The turn is counted while its session still exists.
        self.shell.end_client_turn(id);
        self.shell.charge_open_turn();
        if let Some(connection) = self.connections.get_mut(id.index()).and_then(Option::take) {
            connection.close(&mut self.shell);
        }
    }

    fn is_ending(&self) -> bool {
        self.shell.ending
    }

    #[inline]
    fn has_closures(&self) -> bool {
        self.has_closures
    }

    fn run_closure(&mut self) -> bool {
        let closure = self.inbox.next();
        self.has_closures = closure.is_some();
        closure.into_iter().for_each(|closure| self.shell.as_turn_of(Task::Control, closure));
        self.has_closures
    }

    #[inline]
    fn accept_some(&mut self) {
        if self.shell.driver.is_behind() {
            // Much is due at once. Yielding lets a client on the same processor run, which the kernel would otherwise deny it for
            // milliseconds. Connections get their turn afterwards.
            std::thread::yield_now();
        }
        if self.listening.pending() {
            self.shell.charge_open_turn();
            for accepted in self.listening.accept() {
                self.welcome(accepted);
            }
            self.shell.end_turn(Task::Accept);
        }
        if self.listening.handshakes().has_queued() {
            self.finish_handshakes();
        }
        if self.shell.busy.has_new_connections() {
            self.shell.charge_open_turn();
            for connection in self.shell.busy.take_new_connections() {
                self.add_connection(connection);
            }
            self.shell.end_turn(Task::Accept);
        }
    }

    fn load_some(&mut self) -> Result<(), String> {
        self.shell.load_some()
    }

    fn next_load(&mut self) -> Option<Duration> {
        self.shell.next_load()
    }

    fn all_connections(&self) -> Vec<SessionId> {
        self.connections.iter().flatten().map(|connection| connection.id).collect()
    }

    fn has_own_work(&self) -> bool {
        self.shell.busy.has_new_connections() || self.listening.handshakes().has_queued()
    }

    #[inline]
    fn turn_ended(&mut self, id: SessionId) {
        self.shell.end_client_turn(id);
    }
}
