//! What connections do with bytes: received requests execute in batches, and replies are written as far as they may be shown. Each
//! connection has its turn. The adapter has the sockets, and asks in a turn for one step after the other:
//!
//! ```text
//!   wake ─▶ run queue ─▶ next_connection ─▶ step ─▶ Write   ─▶ output, written ─┐
//!            ▲                               ▲  ├─▶ ExecuteKept ▶ execute_kept ─┤
//!            │                               │  ├─▶ Receive ─▶ execute_received ┤
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
use std::ops::{Index, IndexMut};

use crate::base::ids::SessionId;
use crate::driver::connections::kept::Kept;
use crate::driver::connections::window::Window;
use crate::resp::request::RequestParser;

/// What the driver knows of a session, besides the engine's part.
#[derive(Default)]
struct Slot {
    /// The generation of the session, if there is a connection; `None` for a session inside the process.
    generation: Option<u32>,
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

impl Slot {
    /// Whether it is the slot of this session.
    #[inline]
    fn is_of(&self, id: SessionId) -> bool {
        self.generation == Some(id.generation())
    }
}

/// The slots of all connections, by session number. A slot is found only for the session that it was added for.
#[derive(Default)]
struct Slots(Vec<Slot>);

impl Slots {
    fn add(&mut self, id: SessionId) {
        if self.0.len() <= id.index() {
            self.0.resize_with(id.index() + 1, Slot::default);
        }
        self.0[id.index()] = Slot { generation: Some(id.generation()), ..Slot::default() };
    }

    fn remove(&mut self, id: SessionId) {
        drop(self.get_mut(id).map(std::mem::take));
    }

    #[inline]
    fn get(&self, id: SessionId) -> Option<&Slot> {
        self.0.get(id.index()).filter(|slot| slot.is_of(id))
    }

    #[inline]
    fn get_mut(&mut self, id: SessionId) -> Option<&mut Slot> {
        self.0.get_mut(id.index()).filter(|slot| slot.is_of(id))
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.0.iter_mut()
    }
}

impl Index<SessionId> for Slots {
    type Output = Slot;

    #[inline]
    fn index(&self, id: SessionId) -> &Slot {
        let slot = &self.0[id.index()];
        debug_assert!(slot.is_of(id), "a connection that has its turn");
        slot
    }
}

impl IndexMut<SessionId> for Slots {
    #[inline]
    fn index_mut(&mut self, id: SessionId) -> &mut Slot {
        let slot = &mut self.0[id.index()];
        debug_assert!(slot.is_of(id), "a connection that has its turn");
        slot
    }
}

/// The connections of a server.
pub(super) struct Connections {
    slots: Slots,
    /// Sessions whose connections get a turn, in FIFO order.
    run_queue: VecDeque<SessionId>,
    /// Sessions whose connections go on after all others that are ready.
    later: Vec<SessionId>,
    /// Parser lent to the session whose input is executed, to reuse its allocation; `None` while a session has it, and until there
    /// is one.
    parser: Option<Box<RequestParser>>,
    /// Storage for the requests that a batch parses ahead; empty while a batch uses it.
    window: Window<'static>,
    /// Reply buffer lent to the session whose requests are executed; empty while a session has it.
    out_buffer: Vec<u8>,
    /// Sessions that the current batch has written to.
    pending_writes: Vec<SessionId>,
    /// Time of the next sweep of sessions, in monotonic milliseconds; see [`sweep`].
    sweep_ms: Option<u64>,
    /// The last batch wrote to other sessions, to so few that they run before the connection whose batch it was.
    yields: bool,
    /// The current turn lets all others run before it writes.
    goes_last: bool,
    /// Nothing executes any more: see [`Driver::stop_executing`](crate::driver::Driver::stop_executing).
    only_write: bool,
    /// The session that moves the clock.
    clock_mover: Option<SessionId>,
}

impl Connections {
    pub(super) fn new() -> Connections {
        Connections {
            slots: Slots::default(),
            run_queue: VecDeque::new(),
            later: Vec::new(),
            parser: None,
            window: Window::default(),
            out_buffer: Vec::new(),
            pending_writes: Vec::new(),
            sweep_ms: None,
            yields: false,
            goes_last: false,
            only_write: false,
            clock_mover: None,
        }
    }

    /// Queues the session's connection for a turn, in which it looks at its input, its outbox and its flags.
    #[inline]
    fn wake(&mut self, id: SessionId) {
        if let Some(slot) = self.slots.get_mut(id)
            && !slot.queued
        {
            slot.queued = true;
            self.run_queue.push_back(id);
        }
    }
}
