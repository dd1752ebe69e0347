//! What stands between the engine and a machine: where changes go, which output waits for that, and what a node does as leader
//! and as follower. It has no socket, file, thread or clock. Adapters give it what happens, and carry out what it asks for:
//!
//! ```text
//!   requests ─▶ Engine ─ changes ─▶ Log ─ submit ─▶ a batch for the file, or a proposal to the nodes
//!     │ hold: output that shows an unsettled change            │
//!     └──────── gate ◀────── settled, or committed ◀───────────┘
//! ```
//!
//! The way of a write through all of it is drawn in [`crate::engine`]. There are two adapters: the server ([`crate::server`]: sockets, threads, files, the machine's clocks) and the simulation of
//! `torture` (a network, disks and clocks of its own). They are to translate, and to decide nothing: then what a simulated hour
//! proves is proved of what runs. What reads and makes files is the server's, over any disk.
//!
//! - [`round`]: the order of it all, and what an adapter has to be;
//! - [`connections`]: what connections do with bytes, and who has a turn;
//! - [`log`]: what records the changes, and which output waits ([`gate`]); [`file`]: an append-only file; [`group_commit`], [`backpressure`], [`delay`]: how
//!   long a batch waits for more, how much may wait, and when a sync takes too long;
//! - [`copy`]: copies of the keyspace, for snapshots ([`saving`]) and when the file is switched on ([`switch`]);
//! - `replicated`: one of several nodes;
//! - [`replay`]: applies what a log has to an engine, in slices ([`pace`]).

mod actions;
pub mod backpressure;
pub mod connections;
pub mod copy;
pub mod delay;
pub mod file;
pub mod flaw;
pub mod gate;
pub mod group_commit;
pub mod log;
pub mod pace;
pub mod replay;
#[cfg(feature = "quorum")]
pub mod replicated;
pub mod round;
pub mod saving;
pub mod switch;

use crate::base::time::Now;
use crate::driver::backpressure::Limits;
use crate::driver::connections::Connections;
use crate::driver::copy::{CopyOrder, Copying};
use crate::driver::file::{FileLog, Phase};
use crate::driver::flaw::Flaw;
use crate::driver::log::Log;
#[cfg(feature = "quorum")]
use crate::driver::replicated::Member;
use crate::driver::saving::Saving;
use crate::engine::Engine;
use crate::persist::append::log_writer::Order;
use crate::persist::live_copy::Both;

/// When much is due at once, a batch of requests helps the timer at most this often, in microseconds, because each batch waits
/// for that help.
const ADVANCE_EVERY_US: u64 = 1000;

/// The present, as an adapter reads its clocks.
#[derive(Clone, Copy, Debug)]
pub struct Present {
    /// The engine's time.
    pub now: Now,
    /// The machine's monotonic clock in nanoseconds, which no test freezes.
    pub ns: u64,
    /// Whether the engine's time stands still: nothing may wait until it goes on.
    pub frozen: bool,
}

/// Where changes go.
#[derive(Default)]
pub enum Destination {
    /// Nowhere: they end with the process.
    #[default]
    Nowhere,
    /// To an append-only file.
    File(Box<FileLog>),
    /// To the nodes of a cluster that this one is a member of, while it leads them.
    #[cfg(feature = "quorum")]
    Quorum(Box<Member>),
}

/// What the adapter is to do.
#[derive(Default)]
pub struct Demands {
    /// For the receiver of a copy, in this order; before those for the writer.
    pub copy: Vec<CopyOrder>,
    /// For the writer of the file, in this order.
    pub file: Vec<Order>,
    /// The folder of the append-only file is to be opened, and its present files are to be replaced: [`Driver::file_opened`].
    pub opens_file: bool,
    /// The process is to end.
    pub ends: bool,
    /// The process cannot go on, for this reason.
    pub failed: Option<String>,
}

/// The adapter's timer.
#[derive(Clone, Copy, Debug, Default)]
struct Timer {
    /// What it is armed for, in monotonic milliseconds; `None` if it is not armed, or has fired.
    armed_ms: Option<u64>,
    /// Whether it has fired, or has left work to do.
    fired: bool,
}

/// The driver of an engine.
pub struct Driver {
    /// The engine.
    pub engine: Engine,
    connections: Connections,
    destination: Destination,
    /// The copy of the keyspace in progress, which records changes, too.
    copying: Option<Copying>,
    saving: Saving,
    /// Whether an append-only file is being switched on, until its base is on the disk and it is written.
    begins_log: bool,
    /// When it is tried again to switch one on, in monotonic milliseconds.
    log_again_ms: Option<u64>,
    /// Whether a new base of the file is to be begun when the pending changes are handed on, and whether it is to be closed then.
    rewrite_asked: bool,
    switch_off_asked: bool,
    /// Number of files so far that changes went to.
    files_begun: u64,
    /// Number of requests in the files that were refused when they were loaded, and that no base has replaced since.
    refused_at_load: u64,
    limits: Limits,
    demands: Demands,
    /// Whether there is work besides requests, and when it is due, in monotonic milliseconds, as of the last
    /// [`Driver::take_demands`]: a turn looks at these two alone.
    active: bool,
    due_ms: u64,
    timer: Timer,
    /// From when on a batch of requests may help the timer again, in monotonic microseconds.
    help_from_us: u64,
    /// A fault that a test has planted.
    #[cfg(any(test, feature = "torture"))]
    flaw: Flaw,
}

impl Driver {
    /// A driver whose changes go nowhere.
    pub fn new(engine: Engine) -> Driver {
        let saving = Saving::of(&engine);
        Driver {
            due_ms: saving.look_ms.unwrap_or(u64::MAX),
            connections: Connections::new(),
            engine,
            destination: Destination::Nowhere,
            copying: None,
            saving,
            begins_log: false,
            log_again_ms: None,
            rewrite_asked: false,
            switch_off_asked: false,
            files_begun: 0,
            refused_at_load: 0,
            limits: Limits::default(),
            demands: Demands::default(),
            active: false,
            timer: Timer::default(),
            help_from_us: 0,
            #[cfg(any(test, feature = "torture"))]
            flaw: Flaw::Nothing,
        }
    }

    /// Plants a fault, so that a test shows that it finds it.
    #[cfg(feature = "torture")]
    pub fn plant(&mut self, flaw: Flaw) {
        self.flaw = flaw;
    }

    /// Keeps less, so that a test shows what follows.
    #[cfg(feature = "torture")]
    pub fn limit(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Whether a test has planted this fault.
    #[inline]
    fn has_flaw(&self, flaw: Flaw) -> bool {
        #[cfg(any(test, feature = "torture"))]
        return self.flaw == flaw;
        #[cfg(not(any(test, feature = "torture")))]
        {
            let _ = flaw;
            false
        }
    }

    /// Takes what the adapter is to do. It has to be asked after each call of a method that changes the driver, and
    /// [`Driver::submit`] has to be called before anything else is written.
    pub fn take_demands(&mut self) -> Demands {
        let waits = self.copies() || self.engine.persistence().figures.is_some() || self.engine.is_loading();
        self.active = !self.is_memory_only() || waits;
        let own = [self.saving.look_ms, self.log_again_ms, self.sweep_ms()];
        self.due_ms = own.into_iter().flatten().fold(self.log().map_or(u64::MAX, Log::due_ms), u64::min);
        #[cfg(feature = "quorum")]
        if let Destination::Quorum(member) = &self.destination {
            self.due_ms = self.due_ms.min(member.due_ms());
        }
        std::mem::take(&mut self.demands)
    }

    /// Whether nothing is recorded or replicated: then there is nothing to hold, hand on or look at.
    #[inline]
    pub fn is_memory_only(&self) -> bool {
        matches!(self.destination, Destination::Nowhere)
    }

    /// The append-only file, if changes go to one.
    pub fn file(&self) -> Option<&FileLog> {
        if let Destination::File(file) = &self.destination { Some(file) } else { None }
    }

    fn file_mut(&mut self) -> Option<&mut FileLog> {
        if let Destination::File(file) = &mut self.destination { Some(file) } else { None }
    }

    /// Lets changes go to a file from now on.
    fn set_file(&mut self, file: Box<FileLog>) {
        self.destination = Destination::File(file);
        self.files_begun += 1;
        self.record_changes();
    }

    /// Lets changes go nowhere from now on. Nothing waits any more for the file that they went to.
    fn end_file(&mut self) {
        match std::mem::take(&mut self.destination) {
            Destination::File(mut file) => {
                let last = file.log.gate.last();
                self.open(file.log.gate.settle(last));
                self.record_changes();
                self.refuse_writes();
            }
            others => self.destination = others,
        }
    }

    /// What records changes now, if anything does.
    fn log(&self) -> Option<&Log> {
        match &self.destination {
            Destination::Nowhere => None,
            Destination::File(file) => Some(&file.log),
            #[cfg(feature = "quorum")]
            Destination::Quorum(member) => member.leading().map(|leading| &leading.log),
        }
    }

    fn log_mut(&mut self) -> Option<&mut Log> {
        match &mut self.destination {
            Destination::Nowhere => None,
            Destination::File(file) => Some(&mut file.log),
            #[cfg(feature = "quorum")]
            Destination::Quorum(member) => member.leading_mut().map(|leading| &mut leading.log),
        }
    }

    /// Makes the engine record its changes where they are wanted now.
    fn record_changes(&mut self) {
        let is_late = self.has_flaw(Flaw::SwitchLosesChanges);
        let records = match &self.destination {
            Destination::File(file) if !file.records() || (is_late && file.phase == Phase::Starting) => None,
            _ => self.log().map(|log| log.records.clone()),
        };
        self.engine.keyspace_mut().changes.log = match (records, self.copying.as_ref().and_then(|copying| copying.copy.clone())) {
            (None, None) => None,
            (Some(log), None) => Some(Box::new(log)),
            (None, Some(copy)) => Some(Box::new(copy)),
            (Some(log), Some(copy)) => Some(Box::new(Both(log, copy))),
        };
    }

    /// When something is due, in monotonic milliseconds; `u64::MAX` if nothing is. See [`Driver::housekeep`].
    #[inline]
    pub fn due_ms(&self) -> u64 {
        self.due_ms
    }

    /// When anything is due, in the engine as well, in monotonic milliseconds; `u64::MAX` if nothing is.
    #[inline(always)]
    pub fn next_wake_ms(&self) -> u64 {
        let or_never = |ms: Option<u64>| ms.unwrap_or(u64::MAX);
        or_never(self.engine.next_deadline()).min(self.due_ms).min(or_never(self.sweep_ms()))
    }

    /// Whether there is work at the end of a round: whenever changes go somewhere, and while something is copied, loaded or waits for
    /// that.
    #[inline]
    pub fn has_round_work(&self) -> bool {
        self.active
    }

    /// The adapter's timer has fired.
    pub fn timer_fired(&mut self) {
        self.timer = Timer { armed_ms: None, fired: true };
    }

    /// Whether more was due than a slice of it.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.timer.fired
    }

    /// The timer is armed anew for what is due next: its clock may show another time.
    pub fn reset_timer(&mut self) {
        self.timer.armed_ms = None;
    }

    /// Whether something is due in the engine, and a batch of requests is to help with it.
    #[inline]
    pub fn helps_timer(&self, now: Now) -> bool {
        now.mono_us() >= self.help_from_us && self.engine.next_deadline().is_some_and(|at| now.reached(at))
    }

    /// Lets time pass in the engine, a slice of what is due. What that writes to sessions is held back as far as it must be. Returns
    /// whether more is due.
    pub fn advance(&mut self, at: Present) -> bool {
        #[cfg(feature = "quorum")]
        if self.engine.awaits_followers() {
            // A wait may time out: its reply has the followers of this moment.
            self.look_at_followers(at);
        }
        self.help_from_us = at.now.mono_us() + ADVANCE_EVERY_US;
        let more = self.engine.advance(at.now);
        // Not with the batch of requests that may follow: its sessions have not asked for this.
        self.wake_recipients(at.now, None);
        more
    }

    /// Does what is due. [`Driver::submit`] belongs behind it.
    pub fn housekeep(&mut self, at: Present) {
        self.sweep_when_due(at.now);
        if self.saving.look_ms.is_some_and(|due_ms| at.now.reached(due_ms)) {
            self.look_at_save_points(at);
        }
        if self.log_again_ms.is_some_and(|due_ms| at.now.reached(due_ms)) {
            self.log_as_configured(at);
        }
        #[cfg(feature = "quorum")]
        self.tick_cluster(at);
    }
}
