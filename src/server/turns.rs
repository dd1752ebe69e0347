//! Takes the time of the executor's turns, so that nothing between two waits is left out.
//!
//! ```text
//!   waits │ receives, executes, sends │ receives, executes, sends │ … │ waits        turns, as they are
//!         └─ looks ──────┘└─ looks ──────────────────┘└──────── looks ┘              turns, as they are counted
//! ```
//!
//! A client's turn ends, as it is counted, when the next one's requests are about to be executed: there the clock is looked at anyway. So
//! what one receives is counted with what the one before it has executed and sent. While the clock stands still, turns are not counted.

use std::cell::Cell;

use crate::engine::session::SessionId;
use crate::engine::turns::Task;
use crate::server::clock::monotonic_ns;
use crate::server::shell::Shell;

thread_local! {
    /// How often the executor has waited for its descriptors, and for how many nanoseconds it had something to do between such waits.
    static WAITS: Cell<[u64; 2]> = const { Cell::new([0; 2]) };
}

/// How often the executor whose thread this is has waited, and for how many microseconds it had something to do in between.
pub(super) fn event_loop() -> [u64; 2] {
    let [waits, busy_ns] = WAITS.get();
    [waits, busy_ns / 1000]
}

/// What is known of the turn that goes on, in nanoseconds of the monotonic clock.
#[derive(Debug)]
pub(super) struct Turn {
    /// When it began, as it is counted.
    began_ns: u64,
    /// When the executor woke.
    woke_ns: u64,
    /// Whether requests were executed in it.
    executed: bool,
    /// Whose turn has ended without a look at the clock.
    open: Option<Task>,
}

impl Turn {
    /// The first.
    pub(super) fn begin() -> Turn {
        let at_ns = monotonic_ns();
        Turn { began_ns: at_ns, woke_ns: at_ns, executed: false, open: None }
    }
}

impl Shell {
    /// Has the turn of a client end.
    #[inline]
    pub(super) fn end_client_turn(&mut self, id: SessionId) {
        if std::mem::take(&mut self.turn.executed) {
            self.turn.open = Some(Task::Client(id));
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

    /// Has the turn that goes on end, and the next one begin.
    #[inline]
    pub(super) fn end_turn(&mut self, task: Task) {
        self.turn.open = None;
        self.count_turn(task, monotonic_ns());
    }

    #[inline]
    fn count_turn(&mut self, task: Task, at_ns: u64) {
        let began_ns = std::mem::replace(&mut self.turn.began_ns, at_ns);
        if !self.clock.is_frozen() {
            self.engine.note_turn(self.clock.at(at_ns), task, at_ns.saturating_sub(began_ns));
        }
    }

    /// Has the executor wait for its descriptors by `wait`: that is nobody's turn.
    pub(super) fn while_waiting<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        let at_ns = monotonic_ns();
        self.close_turn_at(at_ns);
        let [waits, busy_ns] = WAITS.get();
        WAITS.set([waits + 1, busy_ns + at_ns.saturating_sub(self.turn.woke_ns)]);
        let waited = wait();
        let at_ns = monotonic_ns();
        (self.turn.began_ns, self.turn.woke_ns) = (at_ns, at_ns);
        waited
    }
}
