//! Takes the time of the executor's turns: from the end of the one before, or from when the executor woke, to its end.
//!
//! So there is one look at the clock for each turn and one for each time that the executor wakes, and nothing in between two turns is
//! left out. While the clock stands still, turns are not counted.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;

use crate::engine::turns::Task;
use crate::server::clock::monotonic_ns;
use crate::server::shell::Shell;

thread_local! {
    /// When the turn that goes on has begun, in nanoseconds of the monotonic clock.
    static BEGAN_NS: Cell<u64> = const { Cell::new(0) };
}

/// Has the next turn begin now. For the runtime, which calls it on the executor's thread when that has waited.
pub(super) fn begin() {
    BEGAN_NS.set(monotonic_ns());
}

impl Shell {
    /// Has the turn that goes on end, and the next one begin.
    #[inline]
    pub(super) fn end_turn(&mut self, task: Task) {
        let at_ns = monotonic_ns();
        let began_ns = BEGAN_NS.replace(at_ns);
        if !self.clock.is_frozen() {
            self.engine.note_turn(self.clock.at(at_ns), task, at_ns - began_ns);
        }
    }
}

/// Has each time that a future is polled counted as a turn.
pub(super) fn timed<F: Future>(shell: &Rc<RefCell<Shell>>, task: Task, future: F) -> impl Future<Output = F::Output> + use<F> {
    let (shell, mut future) = (Rc::clone(shell), Box::pin(future));
    poll_fn(move |cx| {
        let polled = future.as_mut().poll(cx);
        shell.borrow_mut().end_turn(task);
        polled
    })
}
