//! A batch of requests: what a connection has received executes until the input or the turn ends.

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::driver::Driver;
use crate::driver::connections::kept::Kept;
use crate::driver::connections::sweep::OUTBOX_FREE;
use crate::driver::connections::turn::Turn;
use crate::driver::connections::window::WINDOW;
use crate::engine::outbox::Outbox;
use crate::engine::request::Request;
use crate::engine::session::SessionFlags;
use crate::resp::reply::{Sink, WireReply};
use crate::resp::request::{Limits, RequestParser};

/// Maximum number of request arguments that one connection has executed in a batch. An empty request counts as one.
const ARGUMENTS_PER_BATCH: usize = 512;
/// No more requests run, and the replies are written out, once this many bytes of replies have gathered.
pub(super) const REPLIES_PER_WRITE: usize = 256 << 10;

/// A reading of the adapter's clocks, at which requests begin to execute.
#[derive(Clone, Copy, Debug)]
pub struct BatchStart {
    /// The engine's time.
    pub now: Now,
    /// The machine's monotonic clock in nanoseconds.
    pub ns: u64,
    /// Reads it again; `None` if requests are timed by the engine's time.
    pub stopwatch: Option<fn() -> u64>,
}

/// How a batch of requests ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The rest is not a complete request.
    Drained,
    /// More requests remain, but replies must be written or other connections served first.
    Paused,
    /// The adapter has to act on the last request before the next one executes.
    Acts,
    /// The session is blocked: nothing more runs until it is served.
    Blocked,
}

impl Driver {
    /// Executes received input, or keeps it. The engine's actions are to be carried out behind it, and then
    /// [`Driver::wake_recipients`] belongs there.
    #[inline]
    pub fn execute_received(&mut self, at: BatchStart, id: SessionId, input: &[u8], turn: &mut Turn) {
        turn.count(input.len());
        self.execute_input(at, id, input);
    }

    /// As [`Driver::execute_received`], which need not be in a turn. Returns the number of bytes that were executed.
    #[inline]
    pub fn execute_input(&mut self, at: BatchStart, id: SessionId, input: &[u8]) -> usize {
        if self.keep_input(id, input) {
            return 0;
        }
        let mut parser = self.connections.parser.take().unwrap_or_default();
        let (consumed, stop) = self.execute(at, id, &mut parser, input);
        if consumed < input.len() {
            let bytes = input[consumed..].to_vec();
            let ready = stop != Stop::Drained;
            self.note_kept(id, bytes.len());
            self.connections.slots[id].kept = Some(Kept::new(bytes, parser, ready));
        } else {
            self.connections.parser = Some(parser);
        }
        consumed
    }

    /// Executes requests that were received before, and goes on behind them as [`Driver::execute_received`] does.
    pub fn execute_kept(&mut self, at: BatchStart, id: SessionId, turn: &mut Turn) {
        let Some(mut kept) = self.connections.slots[id].kept.take() else { return };
        let (consumed, stop) = self.execute(at, id, &mut kept.parser, &kept.bytes[kept.start..]);
        kept.start += consumed;
        kept.ready = stop != Stop::Drained || kept.next_block();
        let is_done = kept.len() == 0;
        if !is_done {
            kept.compact();
        }
        self.connections.slots[id].kept = Some(kept);
        if is_done {
            self.drop_kept(id);
            self.note_kept(id, 0);
        }
        match stop {
            Stop::Paused | Stop::Acts => turn.use_up(),
            Stop::Drained | Stop::Blocked => {}
        }
    }

    /// Parses and executes requests until the input or the batch ends. Returns the number of input bytes consumed.
    fn execute(&mut self, at: BatchStart, id: SessionId, parser: &mut RequestParser, input: &[u8]) -> (usize, Stop) {
        let BatchStart { now, ns, stopwatch } = at;
        self.engine.begin_times(now, stopwatch.map_or_else(|| now.mono_us().saturating_mul(1000), |_| ns), stopwatch);
        let mut window = std::mem::take(&mut self.connections.window);
        let mut outbox = self.engine.take_outbox(id);
        if outbox.bytes.capacity() == 0 {
            outbox.bytes = std::mem::take(&mut self.connections.out_buffer);
        }
        let mut flags = self.engine.sessions()[id].flags;
        let holds = self.holds_output();
        let (mut done, mut arguments) = (0, 0);
        let stop = 'requests: loop {
            let authenticated = !self.engine.must_log_in(id);
            let limits = Limits { authenticated, max_bulk_len: self.engine.config().proto_max_bulk_len, ..Limits::default() };
            // Request limits differ before and after AUTH, so requests are parsed one by one until then.
            let ahead = if authenticated { WINDOW } else { 1 };
            let (parsed, end) = window.fill(parser, input, done, ahead, &limits);
            window.prefetch(&self.engine, id);
            for (request, args) in window.requests() {
                const ENDS: SessionFlags =
                    SessionFlags::CLOSE_AFTER_REPLY.union(SessionFlags::CLOSE_NOW).union(SessionFlags::BLOCKED);
                if flags.intersects(ENDS) {
                    parser.reset();
                    if flags.contains(SessionFlags::BLOCKED) {
                        break 'requests Stop::Blocked;
                    }
                    done = input.len();
                    break 'requests Stop::Drained;
                }
                if arguments >= ARGUMENTS_PER_BATCH || outbox.bytes.len() > REPLIES_PER_WRITE {
                    // Requests that were parsed but not executed are parsed again in the next turn.
                    parser.reset();
                    break 'requests Stop::Paused;
                }
                let args = &*args;
                let known = || Request { args, row: request.command, key: request.key(args) };
                let before = holds.then(|| (outbox.bytes.len(), self.engine.sessions()[id].db));
                flags = if self.engine.faults().armed() {
                    outbox.in_place(&mut self.engine, |engine| {
                        engine.execute_with_faults(now, id, known());
                        engine.sessions()[id].flags
                    })
                } else {
                    self.engine.execute_next(now, known(), &mut outbox)
                };
                if let Some((start, db)) = before {
                    self.hold_reply(ns, &outbox, request.command, args, db, start);
                }
                arguments += args.len();
                done = request.end;
                if self.engine.has_actions() {
                    parser.reset();
                    break 'requests Stop::Acts;
                }
                if outbox.bytes.len() > OUTBOX_FREE {
                    flags = self.check_outbox(now, &mut outbox);
                }
            }
            done = parsed;
            // Blank lines count only after the requests of their window. Counted before, many of them would end the batch before a
            // request ran, and the next batch would parse them again.
            arguments += window.blank;
            if end.is_some() && self.is_closing(id) {
                parser.reset();
                done = input.len();
                break Stop::Drained;
            }
            match end {
                None if arguments >= ARGUMENTS_PER_BATCH => break Stop::Paused,
                None => {}
                // The error is reported when the session is unblocked.
                Some(Err(_)) if self.is_blocked(id) => {
                    parser.reset();
                    break Stop::Blocked;
                }
                Some(Err(error)) => {
                    // The parser is shared by all connections.
                    parser.reset();
                    let session = &mut self.engine.sessions_mut()[id];
                    WireReply::new(&mut outbox.bytes, session.protocol).error(&error.text());
                    session.flags |= SessionFlags::CLOSE_AFTER_REPLY;
                    done = input.len();
                    break Stop::Drained;
                }
                Some(Ok(_)) => break Stop::Drained,
            }
        };
        // Nothing is left there that would have to be freed.
        std::mem::forget(std::mem::replace(&mut self.connections.window, window.emptied()));
        outbox.put_back(&mut self.engine);
        (done, stop)
    }

    /// Enforces the limit of the outbox, which needs it in its place. Returns the session's flags.
    #[inline(never)]
    fn check_outbox(&mut self, now: Now, outbox: &mut Outbox) -> SessionFlags {
        let id = outbox.session;
        outbox.put_back(&mut self.engine);
        self.check_output(id, now);
        outbox.take_again(&mut self.engine);
        self.engine.sessions()[id].flags
    }
}
