//! The shell around the engine: the state that all connections of a server share. It lives on the executor's thread alone.

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::driver::{Driver, Orders, Present};
use crate::engine::config::Config;
#[cfg(any(test, feature = "internals"))]
use crate::engine::session::Peer;
use crate::engine::session::SessionFlags;
use crate::engine::{Action, Engine};
use crate::resp::request::{Limits, RequestParser};
use crate::server::busy::Busy;
use crate::server::clock::{Clock, monotonic_ns};
use crate::server::directory::{Directory, Entry};
#[cfg(feature = "quorum")]
use crate::server::durable::folder::Hang;
use crate::server::durable::load::slices::Loading;
use crate::server::durable::{Coming, LogFile, Message};
use crate::server::environment;
use crate::server::heap::allocator;
use crate::server::heap::blocks;
use crate::server::heap::returns::{Returns, Use};
use crate::server::heap::spans;
use crate::server::heap::spans::Spans;
use crate::server::net::control::Control;
use crate::server::net::descriptors;
use crate::server::net::timer::Timer;
use crate::server::net::window::Window;
#[cfg(feature = "cli")]
use crate::server::program::log;
use crate::server::turns::Turn;

/// Output is held back: by a fault, or until it is durable.
const HELD: SessionFlags = SessionFlags::GATED.union(SessionFlags::UNSETTLED);
/// Size of the shared read buffer: the maximum number of bytes read at once.
pub const READ_BUFFER: usize = 64 << 10;
/// The shared reply buffer is freed if it grew beyond this.
const KEPT_OUT: usize = 512 << 10;
/// The unsent rest of an outbox moves to its beginning if it is at most this long, or if at least `WRITTEN_MAX` bytes before it
/// were written and it is much shorter than they are.
const MOVED_MAX: usize = 512 << 10;
const WRITTEN_MAX: usize = 64 << 20;
/// Minimum interval between updates of a connection's traffic in the directory, in milliseconds.
const TRAFFIC_EVERY_MS: u64 = 1000;

/// Maximum number of sessions, written to by a connection's batch, that run before that connection goes on. A client that was
/// just granted a released lock has waited longer, and the releasing client sends more requests while its own reply is on the
/// way. A larger number of sessions does not delay the connection.
const FIRST_MAX: usize = 4;

/// When much is due at once, a batch of requests helps the timer at most this often, in microseconds, because each batch waits
/// for that help.
const ADVANCE_EVERY_US: u64 = 1000;

/// What the shell knows of a session, besides the engine's part.
#[derive(Default)]
pub(super) struct Slot {
    /// Whether the session belongs to a connection; false for one inside the process.
    pub(super) connected: bool,
    /// Whether the session is in the run queue.
    queued: bool,
    /// When the outbox began to exceed its soft limit, in monotonic milliseconds; `None` if it does not.
    pub(super) soft_since_ms: Option<NonZeroU64>,
    /// When the directory last learned of the traffic.
    traffic_ms: u64,
}

/// The engine and what drives it.
pub struct Shell {
    /// The engine, and where its changes go.
    pub driver: Driver,
    /// The clock.
    pub clock: Clock,
    /// Wakes the engine at its next deadline.
    pub timer: Timer,
    /// Live connections, for other threads.
    pub directory: Arc<Directory>,
    /// Limits of the request parser, as configured.
    pub limits: Limits,
    /// Whether the server is to end.
    pub ending: bool,
    /// Run queue: sessions whose connections get a turn, in FIFO order.
    run_queue: VecDeque<SessionId>,
    pub(super) turn: Turn,
    /// Read buffer shared by all connections, one at a time; empty while a connection has it.
    pub read_buffer: Vec<u8>,
    /// Parser lent like the read buffer, to reuse its allocation.
    pub parser: RequestParser,
    /// Storage for the requests that a turn parses ahead; empty while a turn uses it.
    pub(super) window: Window<'static>,
    /// Reply buffer lent to the session whose requests are executed; empty while a session has it.
    out_buffer: Vec<u8>,
    pub(super) slots: Vec<Slot>,
    /// Time of the next sweep of sessions, in monotonic milliseconds; see [`crate::server::net::sweep`].
    pub(super) sweep_ms: Option<u64>,
    /// The sockets of all connections, for the time when a script runs long.
    pub(super) busy: Rc<Busy>,
    pub(super) dirty: Vec<SessionId>,
    /// Who writes the append-only file, if there is one.
    pub(super) log_file: Option<Box<LogFile>>,
    /// Lets the disk of this node hang, for tests.
    #[cfg(feature = "quorum")]
    pub(super) hang: Option<Arc<Hang>>,
    /// To the thread that receives a copy of the keyspace, if there is one.
    pub(super) copying: Option<Sender<Message>>,
    /// The append-only file that is being switched on, until its copy begins; and until the copy is whole.
    pub(super) coming_file: Option<Box<Coming>>,
    pub(super) next_log_file: Option<Box<LogFile>>,
    /// Exists for as long as a thread of this server keeps the folder of an append-only file locked.
    pub(super) folder_held: Weak<()>,
    /// Whether the append-only file is switched on when that thread has ended.
    pub(super) awaits_folder: bool,
    /// Whether there is any work about files between the turns of connections: a log, a copy or a load.
    pub(super) files_active: bool,
    /// When work about files is due next, in monotonic milliseconds; `u64::MAX` if none is. Kept by `update_files`, as is the
    /// field before: a turn looks at these two alone.
    pub(super) files_due_ms: u64,
    /// By which other threads reach the event loop; `None` without one.
    pub(super) control: Option<Control<Shell>>,
    /// The load at the start, as long as it lasts.
    pub(super) loading: Option<Box<Loading<Shell>>>,
    /// Why the server ends, if it cannot go on.
    pub(super) failed: Option<String>,
    returns: Returns,
    spans: Spans,
    /// The last batch wrote to other sessions, to so few that they run before the connection whose batch it was.
    pub(super) yield_turn: bool,
    /// From when on a batch of requests may help the timer again.
    help_from_us: u64,
    /// The session whose `CLOCK` command is moving the clock.
    pub(super) asking: Option<SessionId>,
    /// The current turn lets others run before it writes.
    pub(super) wait_for_others: bool,
}

impl Shell {
    /// A shell around a new engine.
    pub fn new(config: Config, seed: u64, mut clock: Clock, directory: Arc<Directory>) -> io::Result<Self> {
        let now = clock.now();
        let limits = limits_of(&config);
        Ok(Shell {
            driver: Driver::new(Engine::new(config, seed, now, crate::commands::table())),
            clock,
            timer: Timer::new()?,
            directory,
            limits,
            ending: false,
            run_queue: VecDeque::new(),
            turn: Turn::begin(),
            read_buffer: vec![0; READ_BUFFER],
            parser: RequestParser::new(),
            window: Window::default(),
            out_buffer: Vec::new(),
            slots: Vec::new(),
            sweep_ms: None,
            busy: Rc::default(),
            dirty: Vec::new(),
            log_file: None,
            #[cfg(feature = "quorum")]
            hang: None,
            copying: None,
            coming_file: None,
            next_log_file: None,
            folder_held: Weak::new(),
            awaits_folder: false,
            files_active: false,
            files_due_ms: u64::MAX,
            control: None,
            loading: None,
            failed: None,
            returns: Returns::default(),
            spans: Spans::default(),
            yield_turn: false,
            help_from_us: 0,
            asking: None,
            wait_for_others: false,
        })
    }

    /// Registers a connection with the engine.
    #[cfg(any(test, feature = "internals"))]
    pub fn connect(&mut self, peer: Peer, entry: Entry) -> SessionId {
        let now = self.clock.now();
        let id = self.driver.engine.connect(now, peer);
        self.enter(id, entry);
        id
    }

    /// Adds a session whose connection the engine already knows.
    pub(super) fn enter(&mut self, id: SessionId, mut entry: Entry) {
        let now = self.clock.now();
        entry.connected_at = now.unix_ms() / 1000;
        if self.slots.len() <= id.0 as usize {
            self.slots.resize_with(id.0 as usize + 1, Slot::default);
        }
        self.slots[id.0 as usize].connected = true;
        self.busy.watch(id, entry.fd);
        self.directory.insert(self.driver.engine.sessions[id.0 as usize].id, entry);
        self.expect_idle(now);
        self.finish_batch(now, None);
    }

    /// Ends a session after its connection closed.
    pub fn disconnect(&mut self, id: SessionId) {
        self.slots[id.0 as usize] = Slot::default();
        self.busy.forget(id);
        self.driver.forget(id);
        self.directory.remove(self.driver.engine.sessions[id.0 as usize].id);
        let now = self.clock.now();
        self.driver.engine.disconnect(now, id);
        self.finish_batch(now, None);
    }

    /// Returns the instant for a batch of requests, and the reading of the monotonic clock for it in nanoseconds. Settles what is
    /// due by then first.
    #[inline]
    pub fn begin(&mut self, id: SessionId) -> (Now, u64) {
        let (now, mut at_ns) = self.clock.now_and_stopwatch();
        if !self.clock.is_frozen() {
            self.note_execution(at_ns);
        }
        if self.may_be_due(now)
            && now.mono_us() >= self.help_from_us
            && self.driver.engine.next_deadline().is_some_and(|at| now.reached(at))
        {
            self.advance_engine(now);
            at_ns = self.clock.stopwatch_ns();
        }
        self.driver.engine.begin_batch(now, at_ns, self.clock.stopwatch());
        let session = &mut self.driver.engine.sessions[id.0 as usize];
        if session.out.capacity() == 0 {
            session.out = std::mem::take(&mut self.out_buffer);
        }
        (now, at_ns)
    }

    /// Whether anything may be due. Nothing is due before the instant that the timer was armed for after the engine's last use.
    /// While the clock is frozen, the timer is not armed for deadlines.
    #[inline]
    fn may_be_due(&self, now: Now) -> bool {
        self.clock.is_frozen() || self.timer.armed_ms().is_none_or(|at| now.reached(at))
    }

    /// The part of the session's outbox that can be written now.
    #[inline]
    pub fn unsent(&self, id: SessionId) -> Option<&[u8]> {
        let session = &self.driver.engine.sessions[id.0 as usize];
        let rest = &session.out[session.sent..];
        if session.flags.intersects(HELD) {
            return Some(&rest[..self.passable(id)]).filter(|passing| !passing.is_empty());
        }
        if rest.is_empty() { None } else { Some(rest) }
    }

    /// Number of bytes that a session whose output is held back may be sent now.
    #[cold]
    fn passable(&self, id: SessionId) -> usize {
        let session = &self.driver.engine.sessions[id.0 as usize];
        let rest = session.out.len() - session.sent;
        let by_fault = if session.flags.contains(SessionFlags::GATED) { self.driver.engine.passable(id) } else { rest };
        let settled = self.driver.free_output(id).saturating_sub(session.net_out);
        by_fault.min(usize::try_from(settled).unwrap_or(usize::MAX)).min(rest)
    }

    /// Whether a part of the session's outbox is held back until its time, or until it is durable.
    #[inline]
    pub fn gated(&self, id: SessionId) -> bool {
        self.driver.engine.sessions[id.0 as usize].flags.intersects(HELD)
    }

    /// Counts bytes that were read from the session's socket.
    #[inline]
    pub fn count_read(&mut self, id: SessionId, bytes: usize) {
        self.driver.engine.sessions[id.0 as usize].net_in += bytes as u64;
        self.driver.engine.stats.net_in += bytes as u64;
        self.driver.engine.stats.reads += 1;
    }

    /// Counts bytes of the session's outbox as written.
    #[inline]
    pub fn count_written(&mut self, id: SessionId, bytes: usize) {
        let session = &mut self.driver.engine.sessions[id.0 as usize];
        session.net_out += bytes as u64;
        self.driver.engine.stats.net_out += bytes as u64;
        self.driver.engine.stats.writes += 1;
        session.sent += bytes;
        if session.sent == session.out.len() {
            session.sent = 0;
            session.out.clear();
            self.slots[id.0 as usize].soft_since_ms = None;
        } else if worth_moving(session.out.len() - session.sent, session.sent) {
            session.out.drain(..session.sent);
            session.sent = 0;
        }
        if self.driver.engine.counts_clients() {
            self.driver.engine.count_client(id);
        }
    }

    /// Drops a buffer. The memory of a large one is freed piece by piece, when there is time.
    #[cold]
    pub(super) fn discard(&mut self, buffer: Vec<u8>) {
        self.driver.engine.discard(buffer);
        let now = self.clock.now();
        self.finish_batch(now, None);
    }

    /// Takes the reply buffer back from a session that has written all of its outbox.
    #[inline]
    pub fn reclaim(&mut self, id: SessionId) {
        let session = &mut self.driver.engine.sessions[id.0 as usize];
        if session.out.capacity() > 0 {
            let out = std::mem::take(&mut session.out);
            if out.capacity() > KEPT_OUT {
                self.discard(out);
            } else if out.capacity() > self.out_buffer.capacity() {
                self.out_buffer = out;
            }
        }
    }

    /// Ends a batch of the session `id`, which flushes itself: wakes the sessions that the batch wrote to, updates the directory
    /// and arms the timer.
    #[inline]
    pub fn finish_batch(&mut self, now: Now, id: Option<SessionId>) {
        self.driver.engine.take_dirty(&mut self.dirty);
        if self.files_active {
            self.driver.hold_others(id, &self.dirty);
            if self.driver.has_orders() {
                self.carry_out_orders();
            }
        }
        if !self.dirty.is_empty() {
            self.wake_dirty(now, id);
        }
        if let Some(id) = id {
            self.driver.engine.end_batch(now);
            self.returns.note_request(now.mono_ms());
            let slot = &mut self.slots[id.0 as usize];
            if now.mono_ms().saturating_sub(slot.traffic_ms) >= TRAFFIC_EVERY_MS {
                slot.traffic_ms = now.mono_ms();
                let session = &self.driver.engine.sessions[id.0 as usize];
                self.directory.traffic(session.id, session.net_in, session.net_out);
            }
        }
        let in_use = allocator::library_balance();
        if let Some(in_use) = in_use {
            if self.returns.note_order(in_use) {
                allocator::put_in_order();
            }
            if self.returns.note(now.mono_ms(), in_use) {
                self.return_memory(now, in_use);
            }
        }
        if blocks::empties() > spans::KEPT {
            self.spans.expect(now.mono_ms());
        }
        if let Some(deadline) = self.next_wake(in_use)
            && (!self.clock.is_frozen() || self.driver.engine.has_client_work())
        {
            let clock = &self.clock;
            self.timer.arm(deadline, |ms| clock.raw_us_of(ms));
        }
    }

    /// Returns free memory to the system, if it is time for that.
    #[cold]
    fn return_memory(&mut self, now: Now, in_use: i64) {
        let library = || environment::private().saturating_sub((blocks::account(false).0 * blocks::SPAN) as u64) as i64;
        let private = library();
        let mut now_used = Use { now_ms: now.mono_ms(), in_use, private };
        if self.returns.allowed(now_used) {
            let began_ns = self.clock.stopwatch_ns();
            allocator::return_free();
            let took_ns = self.clock.stopwatch_ns().saturating_sub(began_ns);
            now_used.private = library();
            self.returns.done(now_used, private, took_ns);
            self.driver.engine.note_pause("return-memory", now, took_ns);
        }
    }

    fn wake_dirty(&mut self, now: Now, id: Option<SessionId>) {
        let mut dirty = std::mem::take(&mut self.dirty);
        let mut woken = 0;
        for other in dirty.drain(..) {
            if Some(other) != id {
                self.check_output(other, now);
                self.wake(other);
                woken += 1;
            }
        }
        self.yield_turn = id.is_some() && (1..=FIRST_MAX).contains(&woken);
        self.dirty = dirty;
    }

    /// Queues the session's connection for a turn, in which it checks its socket, its outbox and its flags.
    #[inline]
    pub(super) fn wake(&mut self, id: SessionId) {
        if let Some(slot) = self.slots.get_mut(id.0 as usize)
            && slot.connected
            && !slot.queued
        {
            slot.queued = true;
            self.run_queue.push_back(id);
        }
    }

    /// Takes the next session from the run queue.
    #[inline]
    pub(super) fn next_queued(&mut self) -> Option<SessionId> {
        let id = self.run_queue.pop_front()?;
        self.slots[id.0 as usize].queued = false;
        Some(id)
    }

    /// Length of the run queue.
    #[inline]
    pub(super) fn queue_len(&self) -> usize {
        self.run_queue.len()
    }

    /// Lets the driver act on the present, and carries out what it asks for.
    #[cold]
    pub(super) fn drive<T>(&mut self, act: impl FnOnce(&mut Driver, Present) -> T) -> T {
        let at = self.present();
        let result = act(&mut self.driver, at);
        self.carry_out_orders();
        self.update_files();
        result
    }

    /// The present, as the driver needs it.
    pub(super) fn present(&mut self) -> Present {
        let (now, ns) = self.clock.now_and_stopwatch();
        let frozen = self.clock.is_frozen();
        Present { now, ns: if frozen { monotonic_ns() } else { ns }, frozen }
    }

    #[cold]
    fn carry_out_orders(&mut self) {
        let Orders { copy, file, opens_file, woken, ends, failed } = self.driver.take_orders();
        copy.into_iter().for_each(|order| self.order_copy(order));
        if let Some(log_file) = &self.log_file {
            file.into_iter().for_each(|order| log_file.send(order));
        }
        woken.into_iter().for_each(|id| self.wake(id));
        self.ending |= ends;
        self.failed = self.failed.take().or(failed);
        if opens_file {
            self.open_file();
        }
    }

    /// The next deadline of the shell or the engine, in monotonic milliseconds: work that is due even if no request comes.
    /// `in_use` is [`allocator::library_balance`].
    #[inline(always)]
    fn next_wake(&self, in_use: Option<i64>) -> Option<u64> {
        let or_never = |ms: Option<u64>| ms.unwrap_or(u64::MAX);
        let memory_ms = or_never(in_use.and_then(|in_use| self.returns.next_ms(in_use)));
        let next_ms = or_never(self.driver.engine.next_deadline()).min(self.files_due_ms);
        let next_ms = next_ms.min(or_never(self.sweep_ms)).min(or_never(self.spans.due_ms())).min(memory_ms);
        (next_ms != u64::MAX).then_some(next_ms)
    }

    /// Carries out the actions that the engine asked of its driver. Returns the instant after them.
    #[inline]
    pub fn act(&mut self, now: Now) -> Now {
        let actions = self.driver.engine.take_actions();
        if actions.is_empty() { now } else { self.carry_out(actions) }
    }

    #[cold]
    fn carry_out(&mut self, actions: Vec<Action>) -> Now {
        for action in actions {
            let Some(action) = self.drive(|driver, at| driver.act(at, action)) else { continue };
            match action {
                Action::Shutdown { session, save, force } => self.shut_down(Some(session), save, force),
                Action::Sleep(us) if self.clock.is_frozen() => {
                    self.clock.advance_us(us);
                    while self.tick() {}
                }
                // The executor does nothing at all meanwhile: that is the purpose of `DEBUG SLEEP`.
                Action::Sleep(us) => std::thread::sleep(Duration::from_micros(us)),
                Action::Clock(id, order) => self.order_clock(id, order),
                Action::Restart { last, lose } => self.restart(Some(last), lose),
                Action::Reload(id, from) => self.order_reload(id, from),
                Action::ChangeMembers(id, change) => self.change_members(id, change),
                Action::ReturnMemory => allocator::return_free(),
                Action::ConfigChanged(name) => self.reconfigured(name),
                // The driver does these.
                Action::Save { .. } | Action::RewriteLog | Action::HandOver { .. } | Action::LookAtFollowers => {}
            }
        }
        // What was switched off or is rewritten is handed on before anything else is written.
        self.hand_on(false);
        let now = self.clock.now();
        self.driver.engine.finish_actions(now);
        now
    }

    fn reconfigured(&mut self, name: &str) {
        let config = &self.driver.engine.config;
        match name {
            "proto-max-bulk-len" => self.limits = limits_of(config),
            #[cfg(feature = "cli")]
            "loglevel" => log::set_level(config.loglevel),
            "maxclients" => {
                descriptors::raise(config.maxclients);
            }
            "timeout" | "client-output-buffer-limit" => self.sweep_ms = Some(self.clock.now().mono_ms()),
            _ => {}
        }
    }

    /// Forgets what it has noted by the clock, which was set to another time: all that is due is looked at soon.
    #[cfg(feature = "quorum")]
    pub(super) fn forget_marks(&mut self) {
        for slot in &mut self.slots {
            (slot.soft_since_ms, slot.traffic_ms) = (None, 0);
        }
        self.sweep_ms = Some(self.clock.now().mono_ms());
        self.help_from_us = 0;
        (self.returns, self.spans) = (Returns::default(), Spans::default());
        self.timer.reset();
    }

    /// Advances the engine, the sweep and the heap to the present time. Returns whether to call this again soon.
    pub fn tick(&mut self) -> bool {
        let now = self.clock.now();
        let more = self.advance_engine(now);
        if self.sweep_ms.is_some_and(|at| now.reached(at)) {
            self.sweep(now);
        }
        if self.files_due_ms <= now.mono_ms() {
            self.tick_files();
        }
        let more = self.spans.give_back(now.mono_ms()) || more;
        self.finish_batch(now, None);
        more
    }

    fn advance_engine(&mut self, now: Now) -> bool {
        self.help_from_us = now.mono_us() + ADVANCE_EVERY_US;
        let began_ns = self.clock.stopwatch_ns();
        if self.driver.engine.awaits_followers() {
            // A wait may time out: its reply has the followers of this moment.
            self.read_followers();
        }
        let more = self.driver.engine.advance(now);
        let spent_ns = self.clock.stopwatch_ns().saturating_sub(began_ns);
        self.driver.engine.stats.expiring_ns += spent_ns;
        self.driver.engine.note_pause("expire-cycle", now, spent_ns);
        allocator::put_in_order();
        more
    }

    /// Moves the clock forward. Everything that falls due on the way happens at its own time and in order, before this returns.
    pub fn move_clock(&mut self, us: u64) {
        // Deadlines beyond the end of the clock are never reached.
        let us = self.clock.reachable_us(us);
        let target_us = self.clock.now().mono_us().saturating_add(us);
        while let Some(next_ms) = self.next_wake(allocator::library_balance()).filter(|ms| ms.saturating_mul(1000) <= target_us) {
            let now_us = self.clock.now().mono_us();
            self.clock.advance_us((next_ms * 1000).saturating_sub(now_us));
            while self.tick() {}
        }
        let now_us = self.clock.now().mono_us();
        self.clock.advance_us(target_us.saturating_sub(now_us));
        while self.tick() {}
    }

    /// Does the follow-up work after something other than a request has used the engine.
    pub fn after_order(&mut self) {
        let now = self.clock.now();
        let now = self.act(now);
        if self.files_active {
            // What the driver decided is handed on before anything else is written.
            self.hand_on(false);
        }
        self.timer.reset();
        self.finish_batch(now, None);
    }

    /// Whether the session closes once its outbox is written.
    #[inline]
    pub fn closing(&self, id: SessionId) -> bool {
        let flags = self.driver.engine.sessions[id.0 as usize].flags;
        let done =
            flags.intersection(SessionFlags::CLOSE_WHEN_DONE.union(SessionFlags::BLOCKED)) == SessionFlags::CLOSE_WHEN_DONE;
        done | flags.intersects(SessionFlags::CLOSE_AFTER_REPLY | SessionFlags::CLOSE_NOW)
    }

    /// Whether the session is blocked in a request, so that none of its further requests run.
    #[inline]
    pub fn blocked(&self, id: SessionId) -> bool {
        self.driver.engine.sessions[id.0 as usize].flags.contains(SessionFlags::BLOCKED)
    }

    /// Whether the session closes without writing anything more.
    #[inline]
    pub fn aborted(&self, id: SessionId) -> bool {
        self.driver.engine.sessions[id.0 as usize].flags.contains(SessionFlags::CLOSE_NOW)
    }
}

/// Whether to move the unsent rest of an outbox to its beginning: `left` bytes are unsent, and `written` bytes before them were
/// sent. The cost stays in proportion to the bytes written, and no single move takes noticeable time.
#[inline]
fn worth_moving(left: usize, written: usize) -> bool {
    written > left && (left <= MOVED_MAX || (written >= WRITTEN_MAX && written / 8 > left))
}

/// What a client may send.
pub(super) fn limits_of(config: &Config) -> Limits {
    Limits { max_bulk_len: config.proto_max_bulk_len, ..Limits::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_large_reply_is_moved_only_when_it_is_little() {
        let mut moved = 0;
        let (mut len, mut sent) = (40 << 20, 0);
        while sent < len {
            sent += (64 << 10).min(len - sent);
            if worth_moving(len - sent, sent) {
                moved += len - sent;
                (len, sent) = (len - sent, 0);
            }
        }
        assert!(moved <= 2 * MOVED_MAX, "{moved} bytes moved");
        assert!(worth_moving(10, 11) && !worth_moving(10, 10));
        // The written part of the outbox is bounded even for a client that is always far behind.
        assert!(worth_moving(16 << 20, 129 << 20) && !worth_moving(16 << 20, 100 << 20));
    }
}
