//! A turn of a connection: what comes next, until it must wait or others are to have their turn.

use crate::base::ids::SessionId;
use crate::driver::Driver;
use crate::driver::connections::execute::REPLIES_PER_WRITE;
use crate::engine::session::SessionFlags;

/// Number of bytes that one connection receives in a turn before others have theirs.
const RECEIVED_PER_TURN: usize = 64 << 10;
/// Maximum number of reply bytes that one connection writes at once: the kernel copies them, and over loopback it delivers them
/// within the call.
const WRITTEN_PER_TURN: usize = 256 << 10;

/// What a connection does next in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Writes [`Driver::output`], as much of it as its socket takes, and reports that by [`Driver::written`].
    Write,
    /// Passes on what was written, if anything in between keeps it.
    Flush,
    /// Requests that were received before execute: [`Driver::execute_kept`].
    ExecuteKept,
    /// Receives input, and passes it to [`Driver::execute_received`], or its end to [`Driver::end_input`].
    Receive,
    /// The turn ends.
    End(Next),
}

/// What happens to a connection at the end of its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Waits until its socket is ready or another session wakes it.
    Wait,
    /// Continues after the connections in the run queue.
    Soon,
    /// Continues after all other ready connections, including those that the next poll finds.
    Later,
    /// Closes.
    Close,
}

/// A turn in progress.
#[derive(Debug)]
pub struct Turn {
    at: At,
    /// Number of bytes that may still be received.
    left: usize,
    /// Number of bytes that may still be written at once.
    write_left: usize,
    /// Whether a large buffer was dropped.
    pub(super) dropped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Begin,
    Writing,
    Flushed,
}

impl Turn {
    /// Whether [`Driver::wake_recipients`] belongs behind it, though it may have executed nothing.
    #[inline]
    pub fn leaves_work(&self) -> bool {
        self.dropped
    }

    /// Nothing more executes in this turn.
    #[inline]
    pub(super) fn use_up(&mut self) {
        self.left = 0;
    }

    /// Counts received bytes.
    #[inline]
    pub(super) fn count(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
    }
}

impl Driver {
    /// Begins the turn of a connection.
    #[inline]
    pub fn begin_turn(&self) -> Turn {
        let left = if self.connections.only_write { 0 } else { RECEIVED_PER_TURN };
        Turn { at: At::Begin, left, write_left: 0, dropped: false }
    }

    /// From now on connections only write, because the server ends: what executed now would be acknowledged and not stored.
    pub fn stop_executing(&mut self) {
        self.connections.only_write = true;
        self.connections.goes_last = false;
    }

    /// What the connection does next in its turn.
    #[inline]
    pub fn step(&mut self, id: SessionId, turn: &mut Turn) -> Step {
        if turn.at == At::Begin {
            if self.is_aborted(id) {
                return Step::End(Next::Close);
            }
            if std::mem::take(&mut self.connections.goes_last) {
                return Step::End(Next::Later);
            }
            if std::mem::take(&mut self.connections.yields) && turn.left > 0 {
                // Those sessions are in the run queue already.
                return Step::End(Next::Soon);
            }
            (turn.at, turn.write_left) = (At::Writing, WRITTEN_PER_TURN);
        }
        if turn.at == At::Writing {
            if self.unsent(id).is_some() {
                return if turn.write_left == 0 { Step::End(Next::Later) } else { Step::Write };
            }
            if !self.holds_back(id) {
                turn.dropped |= self.reclaim(id);
            }
            turn.at = At::Flushed;
            return Step::Flush;
        }
        if self.holds_back(id) && self.executes_no_more(id) {
            return Step::End(Next::Wait);
        }
        if self.is_closing(id) {
            return Step::End(Next::Close);
        }
        if turn.left == 0 {
            return Step::End(Next::Later);
        }
        turn.at = At::Begin;
        let slot = &self.connections.slots[id];
        if slot.kept.as_ref().is_some_and(|kept| kept.ready) && !self.is_blocked(id) {
            return Step::ExecuteKept;
        }
        if slot.input_ended {
            return Step::End(self.end_input(id));
        }
        Step::Receive
    }

    /// The output that the connection writes now.
    #[inline]
    pub fn output(&self, id: SessionId, turn: &Turn) -> &[u8] {
        let bytes = self.unsent(id).unwrap_or_default();
        &bytes[..bytes.len().min(turn.write_left)]
    }

    /// Takes note that the socket has taken so many bytes of the output.
    #[inline]
    pub fn written(&mut self, id: SessionId, bytes: usize, turn: &mut Turn) {
        self.count_written(id, bytes);
        turn.write_left = turn.write_left.saturating_sub(bytes);
    }

    /// Whether a session whose output is held back waits for the rest, by a fault or until it is settled. Requests of other clients run
    /// on, and the client's own too unless its outbox is full. What opens the gate wakes the connection.
    #[cold]
    fn executes_no_more(&self, id: SessionId) -> bool {
        self.engine.sessions()[id].out.len() > REPLIES_PER_WRITE || self.is_closing(id)
    }

    /// The client sends no more. It may still read, so replies that wait for the disk are written first, as Redis does; and so is that
    /// of a job, which is one step in Redis, and those to what was sent behind it.
    #[cold]
    pub fn end_input(&mut self, id: SessionId) -> Next {
        self.connections.slots[id].input_ended = true;
        if self.engine.has_job(id) {
            return Next::Wait;
        }
        let flags = &mut self.engine.sessions_mut()[id].flags;
        if !flags.contains(SessionFlags::UNSETTLED) {
            return Next::Close;
        }
        *flags |= SessionFlags::CLOSE_AFTER_REPLY;
        Next::Wait
    }
}
