//! Takes the time of the executor's turns, so that nothing between two waits is left out.
//!
//! ```text
//!   waits │ receives, executes, sends │ receives, executes, sends │ … │ waits        turns, as they are
//!         └─ looks ──────┘└─ looks ──────────────────┘└──────── looks ┘              turns, as they are counted
//! ```
//!
//! A client's turn ends, as it is counted, when the next one's requests are about to be executed: there the clock is looked at anyway. So
//! what one receives is counted with what the one before it has executed and sent. Whoever sends without having executed anything, or
//! keeps what it cannot execute, looks at the clock before. While the clock stands still, turns are not counted.
//!
//! For how long the thread had the processor is a system call to ask. So it is asked at most once a millisecond of work, and at the end of
//! a long turn: what it had since the last time is what it had in the turn, and up to a millisecond before.

use std::cell::Cell;

use crate::base::ids::SessionId;
use crate::engine::observe::turns::{LONG_NS, Task};
use crate::server::clock::{monotonic_ns, thread_cpu_ns};
use crate::server::shell::Shell;

/// What is counted of the looks at the descriptors.
#[derive(Clone, Copy, Default)]
struct Looks {
    /// All of them, with or without a wait.
    count: u64,
    /// For how many nanoseconds the executor had something to do before it last waited.
    busy_ns: u64,
    /// Since when it has again; 0 where there is no executor.
    woke_ns: u64,
}

thread_local! {
    static LOOKS: Cell<Looks> = const { Cell::new(Looks { count: 0, busy_ns: 0, woke_ns: 0 }) };
}

/// How often the executor whose thread this is has looked at its descriptors, and for how many microseconds it had something to do.
pub(super) fn event_loop() -> [u64; 2] {
    let Looks { count, busy_ns, woke_ns } = LOOKS.get();
    let since_ns = if woke_ns == 0 { 0 } else { monotonic_ns().saturating_sub(woke_ns) };
    [count, (busy_ns + since_ns) / 1000]
}

/// Counts a look at the descriptors that waits for nothing.
#[inline]
pub(super) fn count_look() {
    let looks = LOOKS.get();
    LOOKS.set(Looks { count: looks.count + 1, ..looks });
}

/// What is known of the turn that goes on, in nanoseconds of the monotonic clock.
#[derive(Debug)]
pub(super) struct Turn {
    /// When it began, as it is counted.
    began_ns: u64,
    /// Whether requests were executed in it.
    executed: bool,
    /// Whose turn has ended without a look at the clock.
    open: Option<Task>,
    /// When the thread's processor time was last asked for, and what it was.
    asked_ns: u64,
    cpu_ns: u64,
}

impl Turn {
    /// The first.
    pub(super) fn begin() -> Turn {
        let began_ns = monotonic_ns();
        Turn { began_ns, executed: false, open: None, asked_ns: began_ns, cpu_ns: thread_cpu_ns() }
    }
}

impl Shell {
    /// Has the turn of a client end.
    #[inline]
    pub(super) fn end_client_turn(&mut self, id: SessionId) {
        if std::mem::take(&mut self.turn.executed) {
            self.turn.open = Some(Task::Client(id));
        } else if self.turn.open.is_some() {
            // It had next to nothing to do: that is counted with the turn before it, and not the other way round.
            self.close_turn();
        } else {
            self.end_turn(Task::Client(id));
        }
    }

    /// Tells what the clock shows when a client's requests are about to be executed.
    #[inline]
    pub(super) fn note_execution(&mut self, at_ns: u64) {
        self.turn.executed = true;
        self.close_turn_at(at_ns);
    }

    #[inline]
    fn close_turn_at(&mut self, at_ns: u64) {
        if let Some(task) = self.turn.open.take() {
            self.count_turn(task, at_ns);
        }
    }

    /// Sees to it that what comes is not counted with the turn of a client.
    #[inline]
    pub(super) fn close_turn(&mut self) {
        if self.turn.open.is_some() {
            self.close_turn_at(monotonic_ns());
        }
    }

    /// Sees to it that what a session is sent without having asked for it in its turn is not counted with the turn of another.
    #[inline]
    pub(super) fn begin_to_write(&mut self, id: SessionId) {
        if self.turn.open.is_some() && self.unsent(id).is_some() {
            self.close_turn();
        }
    }

    /// Has the turn that goes on end, and the next one begin.
    #[inline]
    pub(super) fn end_turn(&mut self, task: Task) {
        self.turn.open = None;
        self.count_turn(task, monotonic_ns());
    }

    #[inline]
    fn count_turn(&mut self, task: Task, at_ns: u64) {
        let began_ns = std::mem::replace(&mut self.turn.began_ns, at_ns);
        let mut cpu_ns = None;
        if at_ns.saturating_sub(self.turn.asked_ns) > LONG_NS {
            cpu_ns = Some(self.processor_time(at_ns));
        }
        if !self.clock.is_frozen() {
            self.engine.note_turn(self.clock.at(at_ns), task, at_ns.saturating_sub(began_ns), cpu_ns);
        }
    }

    /// For how long the thread had the processor since this was last asked.
    #[cold]
    fn processor_time(&mut self, at_ns: u64) -> u64 {
        let before_ns = std::mem::replace(&mut self.turn.cpu_ns, thread_cpu_ns());
        self.turn.asked_ns = at_ns;
        self.turn.cpu_ns.saturating_sub(before_ns)
    }

    /// Has the executor wait for its descriptors by `wait`: that is nobody's turn.
    pub(super) fn while_waiting<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        let at_ns = monotonic_ns();
        self.close_turn_at(at_ns);
        let looks = LOOKS.get();
        let busy_ns = looks.busy_ns + if looks.woke_ns == 0 { 0 } else { at_ns.saturating_sub(looks.woke_ns) };
        let waited = wait();
        let woke_ns = monotonic_ns();
        self.turn.began_ns = woke_ns;
        LOOKS.set(Looks { count: looks.count + 1, busy_ns, woke_ns });
        waited
    }
}
