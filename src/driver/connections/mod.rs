//! What connections do with bytes: received requests execute in batches, and replies are written as far as they may be shown. Each
//! connection has its turn. The adapter has the sockets, and asks in a turn for one step after the other:
//!
//! ```text
//!   wake ─▶ run queue ─▶ next_connection ─▶ step ─▶ Write   ─▶ output, written ─┐
//!            ▲                               ▲  ├─▶ Execute ─▶ execute_kept  ───┤
//!            │                               │  ├─▶ Receive ─▶ receive ─────────┤
//!            │                               └──┼───────────────────────────────┘
//!            └── who was written to, or goes on ◀── End
//! ```
//!
//! There may be tens of thousands of idle connections, so each has next to nothing here. A connection has a buffer of its own only
//! for an incomplete request, or for requests that wait because their client does not read, or because it is blocked.
//!
//! - [`queue`]: who has a turn; [`turn`]: what comes next in it; [`sweep`]: closes who is idle or does not read;
//! - [`execute`]: a batch of requests, parsed ahead in a [`window`]; [`input`]: what waits to execute, and is [`kept`] until then;
//! - [`output`]: what may be written.

pub mod execute;
mod input;
mod kept;
mod output;
pub mod queue;
mod sweep;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
pub mod turn;
mod window;

use std::collections::VecDeque;
use std::num::NonZeroU64;

use crate::base::ids::SessionId;
use crate::driver::connections::kept::Kept;
use crate::driver::connections::window::Window;
use crate::resp::request::RequestParser;

/// What the driver knows of a session, besides the engine's part.
#[derive(Default)]
struct Slot {
    /// Whether the session belongs to a connection; false for one inside the process.
    connected: bool,
    /// Whether the session is in the run queue.
    queued: bool,
    /// Whether the client sends no more.
    input_ended: bool,
    /// Input that waits to execute.
    kept: Option<Box<Kept>>,
    /// When the outbox began to exceed its soft limit, in monotonic milliseconds; `None` if it does not.
    soft_since_ms: Option<NonZeroU64>,
    /// When the traffic was last reported.
    traffic_ms: u64,
}

/// The connections of a server.
pub(super) struct Connections {
    /// By session number.
    slots: Vec<Slot>,
    /// Sessions whose connections get a turn, in FIFO order.
    run_queue: VecDeque<SessionId>,
    /// Parser lent to the session whose input is executed, to reuse its allocation; `None` while a session has it, and until there
    /// is one.
    parser: Option<Box<RequestParser>>,
    /// Storage for the requests that a batch parses ahead; empty while a batch uses it.
    window: Window<'static>,
    /// Reply buffer lent to the session whose requests are executed; empty while a session has it.
    out_buffer: Vec<u8>,
    /// Sessions that the current batch has written to.
    dirty: Vec<SessionId>,
    /// Time of the next sweep of sessions, in monotonic milliseconds; see [`sweep`].
    sweep_ms: Option<u64>,
    /// The last batch wrote to other sessions, to so few that they run before the connection whose batch it was.
    yields: bool,
    /// The current turn lets all others run before it writes.
    goes_last: bool,
    /// The session that moves the clock.
    clock_mover: Option<SessionId>,
}

impl Connections {
    pub(super) fn new() -> Connections {
        Connections {
            slots: Vec::new(),
            run_queue: VecDeque::new(),
            parser: None,
            window: Window::default(),
            out_buffer: Vec::new(),
            dirty: Vec::new(),
            sweep_ms: None,
            yields: false,
            goes_last: false,
            clock_mover: None,
        }
    }

    /// Queues the session's connection for a turn, in which it looks at its input, its outbox and its flags.
    #[inline]
    fn wake(&mut self, id: SessionId) {
        if let Some(slot) = self.slots.get_mut(id.0 as usize)
            && slot.connected
            && !slot.queued
        {
            slot.queued = true;
            self.run_queue.push_back(id);
        }
    }
}
