//! A round of a server: the order in which things happen to a driver, and what follows from each.
//!
//! ```text
//!   ┌▶ what came from elsewhere: time that has passed, reports      ─▶ tick, drive … after_closure
//!   │  turns of connections: step ─▶ Write, Flush, ExecuteKept, Receive ─▶ execute: what is due, the batch, actions, finish_batch
//!   └─ the end of the round: copies, applies, hands changes on      ─▶ end_round: what the adapter waits for
//! ```
//!
//! An [`Adapter`] gives the clocks, and does what the driver cannot do by itself. What follows is here, so that the server and the
//! simulation run the same: [`Driving`] and [`Storing`] for every adapter, [`Rounds`] for one with connections. A [`Socket`] is that
//! of one connection.

pub mod adapter;
pub mod storing;
pub mod writers;

use std::convert::Infallible;
use std::time::Duration;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::driver::connections::execute::BatchStart;
use crate::driver::connections::turn::{Next, Step, Turn};
use crate::driver::round::adapter::Adapter;
use crate::driver::round::storing::Storing;
use crate::driver::{Driver, Present};
use crate::engine::Action;
use crate::engine::observe::turns::Task;

/// Number of connection turns before the other sources are checked.
const TURNS_MAX: usize = 64;
/// Maximum number of closures of other threads that run per round.
const CLOSURES_MAX: usize = 64;
/// Maximum number of connections accepted from one socket per round: each takes some 15 µs.
pub const ACCEPTED_MAX: usize = 16;
/// Maximum number of bytes that are received at once.
pub const RECEIVED_MAX: usize = 64 << 10;

/// What follows from what happens to a driver.
pub trait Driving: Adapter {
    /// Lets the driver act on the present, and does what it asks for.
    #[cold]
    fn drive<T>(&mut self, act: impl FnOnce(&mut Driver, Present) -> T) -> T {
        let at = self.present();
        let result = act(self.driver(), at);
        self.meet_demands();
        result
    }

    /// Does what the driver asks for.
    #[cold]
    fn meet_demands(&mut self) {
        let demands = self.driver().take_demands();
        self.meet(demands);
        let due_ms = self.driver().due_ms();
        if !self.is_frozen() {
            self.arm(due_ms);
        }
    }

    /// Has the timer fire at this time at the latest; `u64::MAX`: it need not.
    #[inline]
    fn arm(&mut self, at_ms: u64) {
        let is_early = self.driver().timer.armed_ms.is_some_and(|armed_ms| armed_ms <= at_ms);
        if !is_early && at_ms != u64::MAX && self.set_timer(at_ms) {
            self.driver().timer.armed_ms = Some(at_ms);
        }
    }

    /// Whether anything may be due in the engine. Nothing is before the instant that the timer was armed for after the engine's last
    /// use. While the clock is frozen, the timer is not armed for deadlines.
    #[inline]
    fn may_be_due(&mut self, now: Now) -> bool {
        self.is_frozen() || self.driver().timer.armed_ms.is_none_or(|at_ms| now.reached(at_ms))
    }

    /// Reads the clocks for a batch of requests. Settles what is due by then first.
    #[inline]
    fn begin(&mut self) -> BatchStart {
        let (mut now, mut ns) = self.now_and_stopwatch();
        self.execution_begins(ns);
        if self.may_be_due(now) && self.driver().helps_timer(now) {
            self.advance_engine(now);
            ns = self.now_and_stopwatch().1;
            if self.driver().engine.has_actions() {
                // Requests that a pause held back have run: what they ask for, such as syncing before replies, comes before this batch.
                self.perform_asked();
                (now, ns) = self.now_and_stopwatch();
            }
        }
        BatchStart { now, ns, stopwatch: self.stopwatch() }
    }

    /// Has a batch of a session's requests executed, and does what follows from it.
    #[inline]
    fn execute<T>(&mut self, id: SessionId, batch: impl FnOnce(&mut Driver, BatchStart) -> T) -> T {
        let at = self.begin();
        let result = batch(self.driver(), at);
        let now = self.perform_actions(at.now);
        self.finish_batch(now, Some(id));
        result
    }

    /// Input of a session's client was received; nothing is its end. Executes what it has.
    ///
    /// # Errors
    /// The turn ends.
    #[inline]
    fn received(&mut self, id: SessionId, input: &[u8], turn: &mut Turn) -> Result<(), Next> {
        if input.is_empty() {
            return Err(self.driver().end_input(id));
        }
        self.driver().count_read(id, input.len());
        self.execute(id, |driver, at| driver.execute_received(at, id, input, turn));
        Ok(())
    }

    /// The client of a session is connected.
    fn open_session(&mut self, id: SessionId) {
        let now = self.now();
        self.driver().add_connection(now, id);
        self.finish_batch(now, None);
    }

    /// The connection of a session has closed: ends it.
    fn close_session(&mut self, id: SessionId) {
        let now = self.now();
        self.driver().remove_connection(now, id);
        self.finish_batch(now, None);
    }

    /// Ends a batch of the session `id`, or something else that has used the engine.
    #[inline]
    fn finish_batch(&mut self, now: Now, id: Option<SessionId>) {
        self.driver().wake_recipients(now, id);
        let own_ms = self.after_batch(now, id);
        let next_ms = self.driver().next_wake_ms().min(own_ms);
        if !self.is_frozen() || self.driver().engine.has_client_work() {
            self.arm(next_ms);
        }
    }

    /// Carries out the actions that the engine asked of its driver. Returns the instant after them.
    #[inline]
    fn perform_actions(&mut self, now: Now) -> Now {
        if self.driver().engine.has_actions() { self.perform_asked() } else { now }
    }

    /// As [`Driving::perform_actions`], if there are any.
    #[cold]
    fn perform_asked(&mut self) -> Now {
        let boot = self.boot();
        while let Some(action) = self.drive(|driver, at| driver.perform_own_actions(at, || Self::read_boot(boot))) {
            match action {
                Action::Shutdown { session, save, force } => self.shut_down(Some(session), save, force),
                other => self.perform(other),
            }
        }
        self.now()
    }

    /// Advances the engine and all else to the present time, and performs what requests have asked for that a pause held back until
    /// now. Returns whether to call this again soon.
    fn tick(&mut self) -> bool {
        let more = self.advance();
        if self.driver().engine.has_actions() {
            self.after_closure();
        }
        more
    }

    /// As [`Driving::tick`], but for what requests have asked for.
    fn advance(&mut self) -> bool {
        let now = self.now();
        let more = self.advance_engine(now);
        self.driver().sweep_when_due(now);
        if self.driver().due_ms() <= now.mono_ms() {
            self.do_what_is_due();
        }
        let more = self.give_back(now) || more;
        self.finish_batch(now, None);
        more
    }

    /// Advances the engine by a slice of what is due. Returns whether more is.
    fn advance_engine(&mut self, now: Now) -> bool {
        let began_ns = self.now_and_stopwatch().1;
        let frozen = self.is_frozen();
        let more = self.driver().advance(Present { now, ns: began_ns, frozen });
        if self.driver().has_round_work() {
            self.meet_demands();
        }
        let spent_ns = self.now_and_stopwatch().1.saturating_sub(began_ns);
        self.driver().engine.note_expiry(now, spent_ns);
        self.engine_advanced();
        more
    }

    /// Does background work that is due.
    #[cold]
    fn do_what_is_due(&mut self) {
        self.drive(|driver, at| driver.housekeep(at));
        // A test that moves the clock gets here without a round, which would hand the changes over.
        self.submit_pending(false);
    }

    /// Hands the pending changes on, if it is time for that or `at_once`.
    #[cold]
    fn submit_pending(&mut self, at_once: bool) {
        let boot = self.boot();
        self.drive(|driver, at| driver.submit(at, at_once, || Self::read_boot(boot)));
    }

    /// Does what follows when something other than a request has used the engine.
    fn after_closure(&mut self) {
        let now = self.now();
        let now = self.perform_actions(now);
        if self.driver().has_round_work() {
            // What the driver decided is handed on before anything else is written.
            self.submit_pending(false);
        }
        self.driver().reset_timer();
        self.finish_batch(now, None);
    }

    /// Does what is to be done between the turns of connections: copies some keys, applies what a leader has committed, and hands the
    /// changes of this round on. Returns whether to call this again soon.
    #[cold]
    fn work_between_turns(&mut self) -> bool {
        let mut copies = false;
        if self.driver().copies() {
            let boot = self.boot();
            // The boot clock behind the present: time that passes between the two makes a lease end later, not earlier.
            let copy_some = |driver: &mut Driver, at| driver.copy_some(at, Self::read_boot(boot));
            copies = self.as_turn_of(Task::Copy, |this| this.drive(copy_some));
        }
        let applies = self.go_on_applying();
        self.submit_pending(false);
        applies || copies
    }

    /// Goes on with what is to be applied. Returns whether that goes on at once.
    #[cold]
    fn go_on_applying(&mut self) -> bool {
        #[cfg(feature = "quorum")]
        {
            let (clock, ns) = (self.monotonic_ns(), self.present().ns);
            self.driver().applies(ns)
                && self.as_turn_of(Task::Control, |this| this.drive(|driver, at| driver.go_on_applying(at, clock)))
        }
        #[cfg(not(feature = "quorum"))]
        false
    }

    /// The process has waited, or stood still: looks at the lease before anything is read that has come meanwhile, because another
    /// node may have led.
    #[inline]
    fn look_at_leadership(&mut self) {
        #[cfg(feature = "quorum")]
        if self.driver().has_round_work() && self.driver().member().is_some_and(|member| member.leads()) {
            let now = self.now();
            if self.driver().due_ms() <= now.mono_ms() {
                self.do_what_is_due();
            }
        }
    }

    /// Ends the server, after a snapshot if `save` says so, or if there are save points. If that fails, or the append-only file is
    /// being switched on, the server goes on, unless `force`, and the session that asked for the end gets an error.
    #[cold]
    fn shut_down(&mut self, session: Option<SessionId>, save: Option<bool>, force: bool) {
        let driver = self.driver();
        // While files are loaded, what there is would replace what they have.
        let saves = save.unwrap_or(!driver.engine.config().save.is_empty()) && !driver.engine.is_loading();
        let switches_log_on = driver.switches_log_on();
        if switches_log_on && !force {
            tracing::warn!("Writing initial AOF, can't exit.");
        } else {
            if switches_log_on {
                tracing::warn!("Writing initial AOF. Exit anyway.");
            }
            if !saves || self.save_now() || force {
                if force || !self.hands_over_and_ends() {
                    self.end_after_round();
                }
                return;
            }
            tracing::warn!("Error trying to save the DB, can't exit.");
        }
        // Redis says this as well.
        tracing::warn!("Errors trying to shut down the server. Check the logs for more information.");
        if let Some(id) = session {
            self.driver().refuse_to_end(id);
        }
    }

    /// The server is told to end, from outside. With `force` it ends whatever its files say.
    fn told_to_end(&mut self, force: bool) {
        self.shut_down(None, None, force);
        self.after_closure();
    }

    /// The server is to end after this round. Nothing executes from now on.
    fn end_after_round(&mut self) {
        self.driver().stop_executing();
        self.end();
    }

    /// Whether the leadership must be handed over before the server ends. If so, that has begun, and it ends afterwards.
    #[cold]
    fn hands_over_and_ends(&mut self) -> bool {
        #[cfg(feature = "quorum")]
        return self.drive(|driver, at| driver.hand_over_and_end(at));
        #[cfg(not(feature = "quorum"))]
        false
    }
}

impl<T: Adapter> Driving for T {}

/// The socket of a connection, as its turn uses it.
pub trait Socket<A: Adapter> {
    /// Its session.
    fn id(&self) -> SessionId;

    /// Writes [`Driver::output`], as much of it as the socket takes, and reports that by [`Driver::written`].
    ///
    /// # Errors
    /// The turn ends.
    fn write(&mut self, adapter: &mut A, turn: &mut Turn) -> Result<(), Next>;

    /// Passes on what was written, if anything in between keeps it.
    ///
    /// # Errors
    /// The turn ends.
    fn flush(&mut self) -> Result<(), Next> {
        Ok(())
    }

    /// Receives input, at most [`RECEIVED_MAX`] bytes, or its end, and passes it to [`Driving::received`].
    ///
    /// # Errors
    /// The turn ends.
    fn receive(&mut self, adapter: &mut A, turn: &mut Turn) -> Result<(), Next>;
}

/// Gives a connection its turn: it runs until it must wait, or until others are to have theirs.
#[inline]
pub fn take_turn<A: Adapter, S: Socket<A>>(adapter: &mut A, socket: &mut S) -> Next {
    let mut turn = adapter.driver().begin_turn();
    let Err(next) = go_on(adapter, socket, &mut turn);
    if turn.leaves_work() {
        let now = adapter.now();
        adapter.finish_batch(now, None);
    }
    next
}

#[inline]
fn go_on<A: Adapter, S: Socket<A>>(adapter: &mut A, socket: &mut S, turn: &mut Turn) -> Result<Infallible, Next> {
    let id = socket.id();
    loop {
        match adapter.driver().step(id, turn) {
            Step::Write => socket.write(adapter, turn)?,
            Step::Flush => socket.flush()?,
            Step::ExecuteKept => adapter.execute(id, |driver, at| driver.execute_kept(at, id, turn)),
            Step::Receive => socket.receive(adapter, turn)?,
            Step::End(next) => return Err(next),
        }
    }
}

/// How a round ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundEnd {
    /// The next round begins at once.
    GoesOn,
    /// The server waits for whatever comes, for this long at most: [`Driver::rest`].
    WaitsBriefly(Duration),
    /// The server waits for whatever comes, or is due; for this long at most, if there is something to load then.
    Waits(Option<Duration>),
}

/// An adapter with its connections.
pub trait Rounds {
    /// The adapter.
    type Adapter: Adapter;

    /// The adapter.
    fn adapter(&mut self) -> &mut Self::Adapter;

    /// Gives a connection its turn ([`take_turn`]), if it is still there.
    fn turn(&mut self, id: SessionId) -> Next;

    /// Closes a connection, and ends its session.
    fn close_connection(&mut self, id: SessionId);

    /// Whether the server is to end.
    fn is_ending(&self) -> bool;

    /// Whether other threads may have sent closures.
    fn has_closures(&self) -> bool;

    /// Runs the first closure that other threads have sent. Returns false if there is none.
    fn run_closure(&mut self) -> bool;

    /// Accepts new connections, some of them at a time.
    fn accept_some(&mut self);

    /// Loads a slice of the files, if one is due.
    ///
    /// # Errors
    /// In words: the server cannot start.
    fn load_some(&mut self) -> Result<(), String>;

    /// How long the next slice is to be waited for; `None` if nothing is loaded.
    fn next_load(&mut self) -> Option<Duration>;

    /// The sessions of all connections.
    fn all_connections(&self) -> Vec<SessionId>;

    /// Whether there is work for the adapter itself, so that it waits for nothing.
    fn has_own_work(&self) -> bool {
        false
    }

    /// A turn has ended, and so has the connection, if it was to be closed.
    fn turn_ended(&mut self, _id: SessionId) {}

    /// Gives a connection its turn, and does what follows from it.
    #[inline]
    fn run_connection(&mut self, id: SessionId) {
        match self.turn(id) {
            Next::Wait => {}
            Next::Soon => self.adapter().driver().wake(id),
            Next::Later => self.adapter().driver().wake_later(id),
            Next::Close => self.close_connection(id),
        }
        self.turn_ended(id);
    }

    /// Gives connections their turns, until others are to have theirs.
    #[inline]
    fn run_connections(&mut self) {
        for _ in 0..TURNS_MAX {
            let Some(id) = self.adapter().driver().next_connection() else { break };
            self.run_connection(id);
        }
    }

    /// Gives each connection that waits for one a last turn, as the server ends: its output is still sent, and nothing executes.
    fn run_last_turns(&mut self) {
        for _ in 0..self.adapter().driver().queued_connections() {
            let Some(id) = self.adapter().driver().next_connection() else { break };
            self.run_connection(id);
        }
    }

    /// Does a slice of what is due, if the timer has fired or the last slice has left something. Connections get their turns between
    /// two of them.
    #[inline]
    fn run_due(&mut self) {
        if self.adapter().driver().timer.fired {
            let more = self.adapter().as_turn_of(Task::Timer, Driving::tick);
            self.adapter().driver().timer.fired = more;
        }
    }

    /// Runs closures that other threads have sent, some of them at a time.
    #[inline]
    fn run_closures(&mut self) {
        if self.has_closures() {
            for _ in 0..CLOSURES_MAX {
                if !self.run_closure() {
                    break;
                }
            }
        }
    }

    /// Behind each round: the server has waited as the round's end says, or has stood still. `take` notes what has come meanwhile. The
    /// lease is looked at before, because another node may have led.
    #[inline]
    fn after_wait<T>(&mut self, take: impl FnOnce(&mut Self) -> T) -> T {
        self.adapter().look_at_leadership();
        let taken = take(self);
        self.adapter().driver().wake_late();
        taken
    }

    /// Runs a round. Returns how it ends, and [`Rounds::after_wait`] belongs behind that; `None` if the server has ended.
    ///
    /// # Errors
    /// In words: the server cannot start, and has ended.
    #[inline]
    fn run_round(&mut self) -> Result<Option<RoundEnd>, String> {
        let ran = self.round_body();
        if !matches!(ran, Ok(Some(_))) {
            self.end_in_order();
        }
        ran
    }

    /// A round itself. Behind `None` or an error, the server is to end in order.
    ///
    /// # Errors
    /// As [`Rounds::run_round`].
    #[inline]
    fn round_body(&mut self) -> Result<Option<RoundEnd>, String> {
        self.run_due();
        self.run_closures();
        self.accept_some();
        self.run_connections();
        if self.is_ending() {
            return Ok(None);
        }
        if self.adapter().driver().has_round_work() {
            self.load_some()?;
        }
        Ok(Some(self.end_round()))
    }

    /// Ends the server in order: what was recorded is stored, and the replies that waited for that are sent. Nothing executes any more:
    /// that holds for a server, too, that cannot start behind what it has loaded.
    fn end_in_order(&mut self) {
        self.adapter().driver().stop_executing();
        self.run_last_turns();
        self.adapter().close_log();
        while self.run_closure() {}
        self.run_last_turns();
        self.all_connections().into_iter().for_each(|id| self.close_connection(id));
    }

    /// Ends a round: copies, applies, and hands the changes of the round on. Returns what is waited for now.
    #[inline]
    fn end_round(&mut self) -> RoundEnd {
        let adapter = self.adapter();
        let has_work = adapter.driver().has_round_work();
        let runs_on = has_work && adapter.work_between_turns();
        let driver = adapter.driver();
        if runs_on || driver.has_connections_to_run() || driver.is_behind() || self.has_closures() || self.has_own_work() {
            return RoundEnd::GoesOn;
        }
        if !has_work {
            return RoundEnd::Waits(None);
        }
        let load = self.next_load();
        if load.is_some_and(|wait| wait.is_zero()) {
            return RoundEnd::GoesOn;
        }
        let adapter = self.adapter();
        let ns = adapter.present().ns;
        adapter.driver().rest(ns).map_or(RoundEnd::Waits(load), RoundEnd::WaitsBriefly)
    }
}
