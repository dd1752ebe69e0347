//! Measures the executor's turns, so that all time between two waits is counted.
//!
//! ```text
//!   waits │ receives, executes, sends │ receives, executes, sends │ … │ waits        turns, as they are
//!         └─ clock ──────┘└─ clock ──────────────────┘└──────── clock ┘              turns, as they are counted
//! ```
//!
//! A client's turn is charged up to the next reading of the clock, which is when the next client's requests are about to execute.
//! So the time in which a connection receives counts with the turn before it. A connection that sends without having executed
//! anything, or keeps input that it cannot execute, reads the clock first. While the clock is frozen, turns are not
//! counted.
//!
//! Reading the thread's processor time takes a system call. So it is read at most once per millisecond of work, and at the end of
//! a long turn: the difference to the previous reading covers the turn and up to a millisecond before it.

use std::cell::Cell;

use crate::base::ids::SessionId;
use crate::engine::observe::turns::{LONG_NS, Task};
use crate::server::clock::{monotonic_ns, thread_cpu_ns};
use crate::server::shell::Shell;

/// Counters of the polls of the descriptors.
#[derive(Clone, Copy, Default)]
struct Polls {
    /// Number of polls, with or without a wait.
    count: u64,
    /// Nanoseconds for which the executor was busy before its last wait.
    busy_ns: u64,
    /// When it last woke up; 0 without an executor.
    woke_ns: u64,
}

thread_local! {
    static POLLS: Cell<Polls> = const { Cell::new(Polls { count: 0, busy_ns: 0, woke_ns: 0 }) };
}

/// Number of polls by the executor of this thread, and the microseconds for which it was busy.
pub(super) fn event_loop() -> [u64; 2] {
    let Polls { count, busy_ns, woke_ns } = POLLS.get();
    let since_ns = if woke_ns == 0 { 0 } else { monotonic_ns().saturating_sub(woke_ns) };
    [count, (busy_ns + since_ns) / 1000]
}

/// Counts a poll that does not wait.
#[inline]
pub(super) fn count_poll() {
    let polls = POLLS.get();
    POLLS.set(Polls { count: polls.count + 1, ..polls });
}

/// State of the current turn, in nanoseconds of the monotonic clock.
#[derive(Debug)]
pub(super) struct TurnMeter {
    /// When the turn began, as it is counted.
    began_ns: u64,
    /// Whether requests were executed in it.
    executed: bool,
    /// The turn that has ended without a reading of the clock.
    open: Option<Task>,
    /// When the thread's processor time was last read, and its value.
    asked_ns: u64,
    cpu_ns: u64,
}

impl TurnMeter {
    /// Starts the first turn.
    pub(super) fn begin() -> TurnMeter {
        let began_ns = monotonic_ns();
        TurnMeter { began_ns, executed: false, open: None, asked_ns: began_ns, cpu_ns: thread_cpu_ns() }
    }
}

impl Shell {
    /// Ends the turn of a client.
    #[inline]
    pub(super) fn end_client_turn(&mut self, id: SessionId) {
        if std::mem::take(&mut self.meter.executed) {
            self.meter.open = Some(Task::Client(id));
        } else if self.meter.open.is_some() {
            // This client had next to nothing to do. Its time counts with the turn before it, not the other way round.
            self.charge_open_turn();
        } else {
            self.end_turn(Task::Client(id));
        }
    }

    /// Records the clock reading at which a client's requests begin to execute.
    #[inline]
    pub(super) fn note_execution(&mut self, at_ns: u64) {
        self.meter.executed = true;
        self.close_turn_at(at_ns);
    }

    #[inline]
    fn close_turn_at(&mut self, at_ns: u64) {
        if let Some(task) = self.meter.open.take() {
            self.count_turn(task, at_ns);
        }
    }

    /// Closes an open client turn, so that the time from here on does not count with it.
    #[inline]
    pub(super) fn charge_open_turn(&mut self) {
        if self.meter.open.is_some() {
            self.close_turn_at(monotonic_ns());
        }
    }

    /// Ends the current turn and begins the next one.
    #[inline]
    pub(super) fn end_turn(&mut self, task: Task) {
        self.meter.open = None;
        self.count_turn(task, monotonic_ns());
    }

    #[inline]
    fn count_turn(&mut self, task: Task, at_ns: u64) {
        let began_ns = std::mem::replace(&mut self.meter.began_ns, at_ns);
        let mut cpu_ns = None;
        if at_ns.saturating_sub(self.meter.asked_ns) > LONG_NS {
            cpu_ns = Some(self.processor_time(at_ns));
        }
        if !self.clock.is_frozen() {
            self.driver.engine.note_turn(self.clock.at(at_ns), task, at_ns.saturating_sub(began_ns), cpu_ns);
        }
    }

    /// Returns the thread's processor time since the last reading.
    #[cold]
    fn processor_time(&mut self, at_ns: u64) -> u64 {
        let before_ns = std::mem::replace(&mut self.meter.cpu_ns, thread_cpu_ns());
        self.meter.asked_ns = at_ns;
        self.meter.cpu_ns.saturating_sub(before_ns)
    }

    /// Runs `wait`, in which the executor waits for its descriptors. The time belongs to no turn.
    pub(super) fn while_waiting<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        let at_ns = monotonic_ns();
        self.close_turn_at(at_ns);
        let polls = POLLS.get();
        let busy_ns = polls.busy_ns + if polls.woke_ns == 0 { 0 } else { at_ns.saturating_sub(polls.woke_ns) };
        let waited = wait();
        let woke_ns = monotonic_ns();
        self.meter.began_ns = woke_ns;
        POLLS.set(Polls { count: polls.count + 1, busy_ns, woke_ns });
        waited
    }
}
