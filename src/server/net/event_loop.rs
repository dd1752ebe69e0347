//! The executor's loop: who has something to do has a turn, one after the other, and if nobody has, all wait.
//!
//! ```text
//!   ┌▶ others: timer, orders of other threads, who connects
//!   │  turns of connections, in line          ◀─ written to or let go on by somebody's request
//!   └─ look at the descriptors, or wait ─▶ into line
//! ```
//!
//! One thread runs all of it, and no turn waits for anything. Connections are not tasks of a runtime: what a runtime does for each time
//! that a socket has something, to find and wake its task, took a third of what a request that comes by itself costs beside its system
//! calls, and its memory half of what an idle connection has.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use rustix::event::Timespec;

use crate::base::ids::SessionId;
use crate::engine::observe::turns::Task;
use crate::server::net::accept::Listening;
use crate::server::net::connection::{Connection, Next, Stream};
use crate::server::net::control::Inbox;
use crate::server::net::handshake::Greeted;
use crate::server::net::listener;
use crate::server::net::listener::{Accepted, Newcomer};
use crate::server::net::poller::{Poller, Source};
use crate::server::shell::Shell;
use crate::server::turns;

/// So many turns of connections go by before it is looked whether others have something to do.
const TURNS_MAX: usize = 64;
/// TLS handshakes that go on before others get their turn: by RSA, each takes up to a millisecond.
const GREETED_MAX: usize = 4;
/// Orders of other threads that are carried out before others get their turn.
const ORDERS_MAX: usize = 64;
const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// All that has turns.
pub(crate) struct EventLoop {
    shell: Shell,
    poller: Poller,
    /// By the number of the session.
    connections: Vec<Option<Connection>>,
    /// Those who go on after all others who have something to do.
    later: Vec<SessionId>,
    listening: Rc<Listening>,
    inbox: Inbox,
    /// The timer has fired, or has left something to be done.
    due: bool,
    /// There may be orders.
    ordered: bool,
}

impl EventLoop {
    /// One that has waited for nothing yet.
    pub(crate) fn new(shell: Shell, poller: Poller, listening: Rc<Listening>, inbox: Inbox) -> io::Result<EventLoop> {
        shell.timer.register(&poller.registry)?;
        inbox.register(&poller.registry)?;
        let (connections, later) = (Vec::new(), Vec::new());
        Ok(EventLoop { shell, poller, connections, later, listening, inbox, due: false, ordered: false })
    }

    /// Runs for as long as the server does.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        loop {
            self.serve_others();
            for _ in 0..TURNS_MAX {
                let Some(id) = self.shell.next_in_line() else { break };
                self.serve(id);
            }
            if self.shell.ending {
                // What is written for others by then is sent.
                for _ in 0..self.shell.in_line() {
                    self.shell.next_in_line().into_iter().for_each(|id| self.serve(id));
                }
                return Ok(());
            }
            self.look()?;
        }
    }

    /// Ends all connections.
    pub(crate) fn close(mut self) {
        for connection in self.connections.drain(..).flatten() {
            connection.close(&mut self.shell);
        }
    }

    #[inline]
    fn serve(&mut self, id: SessionId) {
        let Some(place) = self.connections.get_mut(id.0 as usize) else { return };
        let Some(connection) = place else { return };
        match connection.turn(&mut self.shell) {
            Next::Wait => {}
            Next::Soon => self.shell.wake(id),
            Next::Later => self.later.push(id),
            Next::Close => {
                // What it has done is counted while its session is there to tell of it.
                self.shell.end_client_turn(id);
                self.shell.close_turn();
                place.take().into_iter().for_each(|connection| connection.close(&mut self.shell));
            }
        }
        self.shell.end_client_turn(id);
    }

    /// Lets all others have their turns who have something to do.
    #[inline]
    fn serve_others(&mut self) {
        if self.due {
            self.shell.close_turn();
            self.due = self.shell.tick();
            if self.due {
                // Much is due at once. A client that shares the processor gets it, which the kernel would else deny it for
                // milliseconds; then connections get their turn.
                std::thread::yield_now();
            }
            self.shell.end_turn(Task::Timer);
        }
        if self.ordered {
            self.carry_out();
        }
        if self.listening.pending() {
            self.shell.close_turn();
            for accepted in self.listening.accept() {
                self.welcome(accepted);
            }
            self.shell.end_turn(Task::Accept);
        }
        if self.listening.handshakes().are_in_line() {
            self.greet();
        }
        if self.shell.busy.has_newcomers() {
            self.shell.close_turn();
            for newcomer in self.shell.busy.take_newcomers() {
                self.settle_in(newcomer);
            }
            self.shell.end_turn(Task::Accept);
        }
    }

    fn carry_out(&mut self) {
        self.shell.close_turn();
        self.inbox.hush();
        for _ in 0..ORDERS_MAX {
            let Some(order) = self.inbox.next() else {
                self.ordered = false;
                return;
            };
            order(&mut self.shell);
            self.shell.end_turn(Task::Control);
        }
    }

    fn welcome(&mut self, accepted: Accepted) {
        let now = self.shell.clock.now();
        if let Some(newcomer) = listener::welcome(&mut self.shell.engine, now, accepted) {
            self.settle_in(newcomer);
        }
    }

    /// Gives a client that was let in its connection.
    fn settle_in(&mut self, newcomer: Newcomer) {
        let Newcomer { id, entry, stream } = newcomer;
        self.shell.enter(id, entry);
        let (registry, source) = (&self.poller.registry, Source::Client(id));
        let registered = match &stream {
            // Its handshake was waited for.
            Stream::Tls(tls) => {
                self.shell.busy.watch_tls(id, tls.clone());
                stream.with_fd(|fd| registry.hand_over(fd, source))
            }
            Stream::Tcp(_) | Stream::Unix(_) => stream.with_fd(|fd| registry.add(fd, source)),
        };
        let connection = Connection::new(stream, id);
        if let Err(error) = registered {
            tracing::warn!(%error, "cannot go on with a connection");
            connection.close(&mut self.shell);
            return;
        }
        let index = id.0 as usize;
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(connection);
        // Something may have come of its requests during a script, or with the handshake.
        self.shell.wake(id);
    }

    /// Looks at the descriptors: without waiting where somebody has something to do, else until one of them has.
    fn look(&mut self) -> io::Result<()> {
        let has_work = self.due
            || self.ordered
            || !self.later.is_empty()
            || self.shell.in_line() > 0
            || self.shell.busy.has_newcomers()
            || self.listening.handshakes().are_in_line();
        if has_work {
            turns::count_look();
            self.poller.wait(Some(&NO_TIME))?;
        } else {
            let timeout = self.timeout();
            let poller = &mut self.poller;
            self.shell.while_waiting(|| poller.wait(timeout.as_ref()))?;
        }
        for (source, readiness) in self.poller.events() {
            match source {
                Source::Client(id) => {
                    if let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) {
                        connection.note(readiness);
                        self.shell.wake(id);
                    }
                }
                Source::Timer => {
                    self.shell.timer.fired();
                    self.due = true;
                }
                Source::Orders => self.ordered = true,
                Source::Listener(number) => self.listening.note(number),
                Source::Handshake(number) => self.listening.handshakes().note(number),
            }
        }
        for id in self.later.drain(..) {
            self.shell.wake(id);
        }
        self.listening.handshakes().give_up_late();
        Ok(())
    }

    /// For how long nobody has something to do if nothing comes; `None` for ever. What the engine has to do comes by the timer.
    fn timeout(&self) -> Option<Timespec> {
        let next = [self.listening.next(), self.listening.handshakes().next()].into_iter().flatten().min()?;
        let left = next.saturating_duration_since(Instant::now());
        Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
    }

    /// Goes on with some of the TLS handshakes whose sockets have something.
    #[cold]
    fn greet(&mut self) {
        let handshakes = Rc::clone(self.listening.handshakes());
        self.shell.close_turn();
        for number in (0..GREETED_MAX).map_while(|_| handshakes.next_in_line()) {
            if let Some(Greeted { tls, addr }) = handshakes.go_on(number) {
                self.welcome(Accepted::tls(tls, addr));
            }
            self.shell.end_turn(Task::Accept);
        }
    }
}
