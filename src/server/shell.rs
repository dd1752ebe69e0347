//! The shell round the engine: what all connections of one server share. It lives on the executor's thread alone.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use crate::engine::config::Config;
use crate::engine::session::{Peer, SessionFlags, SessionId};
use crate::engine::time::Now;
use crate::engine::{Action, Engine};
use crate::resp::request::{Limits, RequestParser};
use crate::server::clock::Clock;
use crate::server::directory::{Directory, Entry};
use crate::server::timer::Timer;

/// Bytes that are read at most at once.
pub const READ_BUFFER: usize = 64 << 10;
/// The lent reply buffer is given back to the allocator where it grew beyond this.
const KEPT_OUT: usize = 256 << 10;

/// What the shell knows of a connection beside its session.
#[derive(Default)]
struct Slot {
    /// Its task.
    waker: Option<Waker>,
    /// Bytes at the beginning of the session's outbox that are written already.
    sent: usize,
}

/// The engine and what drives it.
pub struct Shell {
    /// The engine.
    pub engine: Engine,
    /// The clock.
    pub clock: Clock,
    /// Wakes the engine at its next deadline.
    pub timer: Timer,
    /// Live connections, for other threads.
    pub directory: Arc<Directory>,
    /// Limits of the request parser, as configured.
    pub limits: Limits,
    /// Told when the server is to end.
    pub stop: Rc<tokio::sync::Notify>,
    /// Read by all connections, one at a time; empty while one has it.
    pub read_buffer: Vec<u8>,
    /// Lent to the session whose requests are executed; empty while one has it.
    out_buffer: Vec<u8>,
    /// Lent like the read buffer, for the sake of the room it keeps.
    pub parser: RequestParser,
    /// What the shell knows of each connection, by session.
    slots: Vec<Slot>,
    dirty: Vec<SessionId>,
}

impl Shell {
    /// A shell round a new engine.
    pub fn new(config: Config, seed: u64, mut clock: Clock, directory: Arc<Directory>) -> io::Result<Self> {
        let now = clock.now();
        let limits = limits_of(&config);
        Ok(Shell {
            engine: Engine::new(config, seed, now),
            clock,
            timer: Timer::new()?,
            directory,
            limits,
            stop: Rc::new(tokio::sync::Notify::new()),
            read_buffer: vec![0; READ_BUFFER],
            out_buffer: Vec::new(),
            parser: RequestParser::new(),
            slots: Vec::new(),
            dirty: Vec::new(),
        })
    }

    /// Registers a connection with the engine.
    pub fn connect(&mut self, peer: Peer, mut entry: Entry) -> SessionId {
        let now = self.clock.now();
        entry.connected_at = now.unix_ms() / 1000;
        let id = self.engine.connect(now, peer);
        if self.slots.len() <= id.0 as usize {
            self.slots.resize_with(id.0 as usize + 1, Slot::default);
        }
        self.directory.insert(self.engine.sessions[id.0 as usize].id, entry);
        id
    }

    /// Ends a session whose connection is closed.
    pub fn disconnect(&mut self, id: SessionId) {
        self.slots[id.0 as usize] = Slot::default();
        self.directory.remove(self.engine.sessions[id.0 as usize].id);
        let now = self.clock.now();
        self.engine.disconnect(now, id);
        self.settle(now, None);
    }

    /// Remembers the task to wake when somebody else writes to the session.
    pub fn watch(&mut self, id: SessionId, waker: &Waker) {
        self.slots[id.0 as usize].waker = Some(waker.clone());
    }

    /// The instant for a batch of requests. What is due by then is ended first.
    #[inline]
    pub fn begin(&mut self, id: SessionId) -> Now {
        let now = self.clock.now();
        if self.engine.next_deadline().is_some_and(|at| now.reached(at)) {
            self.engine.advance(now);
        }
        let session = &mut self.engine.sessions[id.0 as usize];
        if session.out.capacity() == 0 {
            session.out = std::mem::take(&mut self.out_buffer);
        }
        now
    }

    /// What is still to be written of the session's outbox.
    #[inline]
    pub fn unsent(&self, id: SessionId) -> Option<&[u8]> {
        let out = &self.engine.sessions[id.0 as usize].out;
        let sent = self.slots[id.0 as usize].sent;
        if out.len() > sent { Some(&out[sent..]) } else { None }
    }

    /// Counts bytes that were read from the session's socket.
    #[inline]
    pub fn count_read(&mut self, id: SessionId, bytes: usize) {
        self.engine.sessions[id.0 as usize].net_in += bytes as u64;
        self.engine.stats.net_in += bytes as u64;
    }

    /// Notes that so many more bytes of the session's outbox are written.
    #[inline]
    pub fn count_written(&mut self, id: SessionId, bytes: usize) {
        let session = &mut self.engine.sessions[id.0 as usize];
        session.net_out += bytes as u64;
        self.engine.stats.net_out += bytes as u64;
        let slot = &mut self.slots[id.0 as usize];
        slot.sent += bytes;
        if slot.sent == session.out.len() {
            slot.sent = 0;
            session.out.clear();
        } else if slot.sent > session.out.len() / 2 {
            // Moving what is left only then keeps the cost in proportion to what was written.
            session.out.drain(..slot.sent);
            slot.sent = 0;
        }
    }

    /// Takes the lent reply buffer back from a session that has written all of it.
    #[inline]
    pub fn reclaim(&mut self, id: SessionId) {
        let session = &mut self.engine.sessions[id.0 as usize];
        if session.out.capacity() > 0 {
            let out = std::mem::take(&mut session.out);
            if out.capacity() > self.out_buffer.capacity() && out.capacity() <= KEPT_OUT {
                self.out_buffer = out;
            }
        }
    }

    /// After a batch of the session `id`, which flushes itself: wakes those who were written to, does what the engine asked for, arms the timer.
    #[inline]
    pub fn settle(&mut self, now: Now, id: Option<SessionId>) {
        self.engine.take_dirty(&mut self.dirty);
        if !self.dirty.is_empty() {
            self.wake_dirty(id);
        }
        self.arm(now);
    }

    fn wake_dirty(&mut self, id: Option<SessionId>) {
        for dirty in self.dirty.drain(..) {
            if Some(dirty) != id
                && let Some(waker) = &self.slots[dirty.0 as usize].waker
            {
                waker.wake_by_ref();
            }
        }
    }

    fn arm(&mut self, _now: Now) {
        if let Some(deadline) = self.engine.next_deadline()
            && !self.clock.is_frozen()
        {
            let clock = &self.clock;
            self.timer.arm(deadline, |ms| clock.raw_us_of(ms));
        }
    }

    /// Does what the engine asked of its driver; gives the instant after it.
    #[inline]
    pub fn act(&mut self, now: Now) -> Now {
        let actions = self.engine.take_actions();
        if actions.is_empty() { now } else { self.carry_out(actions) }
    }

    #[cold]
    fn carry_out(&mut self, actions: Vec<Action>) -> Now {
        for action in actions {
            match action {
                Action::Shutdown => self.stop.notify_one(),
                Action::Sleep(us) if self.clock.is_frozen() => self.clock.advance_us(us),
                Action::Sleep(us) => std::thread::sleep(std::time::Duration::from_micros(us)),
                Action::ConfigChanged(_) => self.limits = limits_of(&self.engine.config),
            }
        }
        self.clock.now()
    }

    /// Lets time reach the engine; gives whether to call it again soon.
    pub fn tick(&mut self) -> bool {
        let now = self.clock.now();
        let more = self.engine.advance(now);
        self.settle(now, None);
        more
    }

    /// Whether the session is to be closed once its outbox is written.
    pub fn closing(&self, id: SessionId) -> bool {
        self.engine.sessions[id.0 as usize].flags.intersects(SessionFlags::CLOSE_AFTER_REPLY | SessionFlags::CLOSE_NOW)
    }
}

fn limits_of(config: &Config) -> Limits {
    let _ = config;
    Limits::default()
}
