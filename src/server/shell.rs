//! The shell around the engine: the state that all connections of a server share. It lives on the executor's thread alone.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::driver::Driver;
use crate::driver::copy::CopyProgress;
use crate::driver::copy::received::Message;
use crate::driver::file::BaseOrder;
use crate::driver::round::adapter::Adapter;
use crate::driver::round::writers::{Target, Writers};
use crate::driver::round::{Driving, RECEIVED_MAX};
use crate::engine::config::{Config, Effect};
use crate::engine::observe::turns::Task;
#[cfg(any(test, feature = "internals"))]
use crate::engine::session::Peer;
use crate::engine::{Action, Engine};
use crate::persist::natives::clock::{BootClock, Moment};
use crate::server::busy::Busy;
use crate::server::clock::{Clock, monotonic_ns};
use crate::server::directory::{Directory, Entry};
use crate::server::durable::folder::LogFolder;
use crate::server::durable::start::Starts;
use crate::server::durable::switch::{Begun, Opened};
use crate::server::durable::{BackgroundWork, LogThread, boottime};
use crate::server::environment;
use crate::server::heap::allocator;
use crate::server::heap::blocks;
use crate::server::heap::returns::{Returns, Use};
use crate::server::heap::spans;
use crate::server::heap::spans::Spans;
use crate::server::net::control::Control;
use crate::server::net::descriptors;
use crate::server::net::timer::Timer;
#[cfg(feature = "cli")]
use crate::server::program::log;
use crate::server::turn_meter::TurnMeter;

/// When memory is given back to the system.
#[derive(Default)]
struct Memory {
    /// That of the library's heap.
    returns: Returns,
    /// That of our own.
    spans: Spans,
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
    /// Whether the server is to end.
    pub ending: bool,
    pub(super) meter: TurnMeter,
    /// Read buffer shared by all connections, one at a time; empty while a connection has it.
    pub read_buffer: Vec<u8>,
    /// The sockets of all connections, for the time when a script runs long.
    pub(super) busy: Rc<Busy>,
    /// What is done beside requests.
    pub(super) background: BackgroundWork,
    /// By which other threads reach the event loop; `None` without one.
    pub(super) control: Option<Control<Shell>>,
    /// Why the server ends, if it cannot go on.
    pub(super) failed: Option<String>,
    memory: Memory,
}

impl Shell {
    /// A shell around a new engine.
    pub fn new(config: Config, seed: u64, mut clock: Clock, directory: Arc<Directory>) -> io::Result<Self> {
        let now = clock.now();
        Ok(Shell {
            driver: Driver::new(Engine::new(config, seed, now, crate::commands::table())),
            clock,
            timer: Timer::new()?,
            directory,
            ending: false,
            meter: TurnMeter::begin(),
            read_buffer: vec![0; RECEIVED_MAX],
            busy: Rc::default(),
            background: BackgroundWork::default(),
            control: None,
            failed: None,
            memory: Memory::default(),
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
        self.busy.watch(id, entry.fd);
        self.directory.insert(self.driver.engine.sessions()[id].id, entry);
        self.open_session(id);
    }

    /// Ends a session after its connection closed.
    pub fn disconnect(&mut self, id: SessionId) {
        self.busy.forget(id);
        self.directory.remove(self.driver.engine.sessions()[id].id);
        self.close_session(id);
    }

    /// Returns free memory to the system, if it is time for that.
    #[cold]
    fn return_memory(&mut self, now: Now, in_use: i64) {
        let library = || environment::private().saturating_sub((blocks::account(false).0 * blocks::SPAN) as u64) as i64;
        let private = library();
        let mut now_used = Use { now_ms: now.mono_ms(), in_use, private };
        if self.memory.returns.allowed(now_used) {
            let began_ns = self.clock.stopwatch_ns();
            allocator::return_free();
            let took_ns = self.clock.stopwatch_ns().saturating_sub(began_ns);
            now_used.private = library();
            self.memory.returns.done(now_used, private, took_ns);
            self.driver.engine.note_pause("return-memory", now, took_ns);
        }
    }

    /// When memory is to be given back, in monotonic milliseconds; `u64::MAX` if none is. `in_use` is [`allocator::library_balance`].
    #[inline(always)]
    fn memory_ms(&self, in_use: Option<i64>) -> u64 {
        let or_never = |ms: Option<u64>| ms.unwrap_or(u64::MAX);
        or_never(in_use.and_then(|in_use| self.memory.returns.next_ms(in_use))).min(or_never(self.memory.spans.due_ms()))
    }

    /// Forgets what it has noted by the clock, which was set to another time.
    #[cfg(feature = "quorum")]
    pub(super) fn forget_marks(&mut self) {
        self.memory = Memory::default();
    }

    /// Moves the clock forward. Everything that falls due on the way happens at its own time and in order, before this returns.
    pub fn move_clock(&mut self, us: u64) {
        // Deadlines beyond the end of the clock are never reached.
        let us = self.clock.reachable_us(us);
        let target_us = self.clock.now().mono_us().saturating_add(us);
        loop {
            let next_us = self.driver.next_wake_ms().min(self.memory_ms(allocator::library_balance())).saturating_mul(1000);
            if next_us > target_us {
                break;
            }
            let now_us = self.clock.now().mono_us();
            self.clock.advance_us(next_us.saturating_sub(now_us));
            while self.advance() {}
        }
        let now_us = self.clock.now().mono_us();
        self.clock.advance_us(target_us.saturating_sub(now_us));
        while self.advance() {}
    }
}

impl Adapter for Shell {
    type Boot = ();
    type Folder = Box<Opened>;
    type Writer = Box<LogThread>;
    type Files = Begun;

    #[inline]
    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    #[inline]
    fn now_and_stopwatch(&mut self) -> (Now, u64) {
        self.clock.now_and_stopwatch()
    }

    #[inline]
    fn stopwatch(&self) -> Option<fn() -> u64> {
        self.clock.stopwatch()
    }

    #[inline]
    fn is_frozen(&self) -> bool {
        self.clock.is_frozen()
    }

    fn monotonic_ns(&self) -> fn() -> u64 {
        monotonic_ns
    }

    fn boot(&self) {}

    fn read_boot((): ()) -> BootClock {
        boottime::now()
    }

    #[cold]
    fn perform(&mut self, action: Action) {
        match action {
            Action::Sleep(us) if self.clock.is_frozen() => {
                self.clock.advance_us(us);
                while self.advance() {}
            }
            // The executor does nothing at all meanwhile: that is the purpose of `DEBUG SLEEP`.
            Action::Sleep(us) => std::thread::sleep(Duration::from_micros(us)),
            Action::Clock(id, order) => self.order_clock(id, order),
            Action::Restart { last, lose } => self.restart(Some(last), lose),
            Action::Reload(id, from) => self.order_reload(id, from),
            Action::ReturnMemory => allocator::return_free(),
            #[cfg(feature = "cli")]
            Action::Reconfigured(Effect::LogLevel) => log::set_level(self.driver.engine.config().loglevel),
            Action::Reconfigured(Effect::Descriptors) => _ = descriptors::raise(self.driver.engine.config().maxclients),
            // The driver does these, and without a log there is no level.
            Action::Save { .. }
            | Action::RewriteLog
            | Action::HandOver { .. }
            | Action::LookAtFollowers
            | Action::ChangeMembers(..)
            | Action::Shutdown { .. }
            | Action::Reconfigured(_) => {}
        }
    }

    fn writers(&mut self) -> &mut Writers<Box<LogThread>, Box<Opened>> {
        &mut self.background.writers
    }

    fn open_folder(&mut self) -> Result<Box<Opened>, String> {
        self.open_anew()
    }

    fn new_writer(&mut self, opened: &Box<Opened>) -> Box<LogThread> {
        Box::new(LogThread::new(opened.folder.path()))
    }

    fn begin_copy(&mut self, target: Target<Box<Opened>>, moment: Moment, progress: Arc<CopyProgress>) -> Result<(), String> {
        self.spawn_copy(target, moment, progress)
    }

    fn send_to_copy(&mut self, message: Message) {
        let ends = matches!(message, Message::End(_));
        if let Some(messages) = &self.background.copying {
            // The thread ends early only after an error, which it reports.
            let _ = messages.send(message);
        }
        if ends {
            self.background.copying = None;
        }
    }

    fn forget_copy(&mut self) {
        self.background.copying = None;
    }

    fn start_writer(&mut self, writer: &mut Box<LogThread>, files: Begun) -> Result<(), String> {
        writer.spawn(files, self.control.clone().ok_or("the server has no event loop")?)
    }

    fn make_base(&mut self, order: BaseOrder) -> Result<(), String> {
        self.spawn_rewrite(order)
    }

    fn write_snapshot(&mut self) -> Result<(), String> {
        self.save_at_once()
    }

    fn end(&mut self) {
        self.ending = true;
    }

    fn fail(&mut self, reason: String) {
        self.failed.get_or_insert(reason);
    }

    /// Updates the directory, and looks at memory.
    #[inline]
    fn after_batch(&mut self, now: Now, id: Option<SessionId>) -> u64 {
        if let Some(id) = id {
            self.memory.returns.note_request(now.mono_ms());
            if let Some(traffic) = self.driver.traffic_to_report(now, id) {
                self.directory.traffic(traffic);
            }
        }
        let in_use = allocator::library_balance();
        if let Some(in_use) = in_use {
            if self.memory.returns.must_consolidate(in_use) {
                allocator::consolidate();
            }
            if self.memory.returns.note(now.mono_ms(), in_use) {
                self.return_memory(now, in_use);
            }
        }
        if blocks::empties() > spans::KEPT {
            self.memory.spans.expect(now.mono_ms());
        }
        self.memory_ms(in_use)
    }

    fn set_timer(&mut self, at_ms: u64) -> bool {
        self.timer.set(self.clock.raw_us_of(at_ms))
    }

    #[inline]
    fn execution_begins(&mut self, ns: u64) {
        if !self.clock.is_frozen() {
            self.note_execution(ns);
        }
    }

    fn engine_advanced(&mut self) {
        allocator::consolidate();
    }

    fn give_back(&mut self, now: Now) -> bool {
        self.memory.spans.give_back(now.mono_ms())
    }

    fn as_turn_of<T>(&mut self, task: Task, act: impl FnOnce(&mut Shell) -> T) -> T {
        self.charge_open_turn();
        let result = act(self);
        self.end_turn(task);
        result
    }
}
