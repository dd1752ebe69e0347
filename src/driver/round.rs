//! A round of a server: the order in which things happen to a driver, and what follows from each.
//!
//! ```text
//!   ┌▶ what came from elsewhere: time that has passed, reports      ─▶ tick, drive … after_closure
//!   │  turns of connections: step ─▶ Write, Flush, Execute, Receive ─▶ execute: what is due, the batch, actions, finish_batch
//!   └─ the end of the round: copies, applies, hands changes on      ─▶ end_round: what the adapter waits for
//! ```
//!
//! An [`Adapter`] gives the clocks, and does what the driver cannot do by itself. [`Rounds`] has the connections beside it, and a
//! [`Line`] is one connection's socket. What they have in common is here, so that the server and the simulation run the same.

use std::convert::Infallible;
use std::time::Duration;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::driver::connections::execute::BatchStart;
use crate::driver::connections::turn::{Next, Step, Turn};
use crate::driver::file::Reported;
use crate::driver::{Demands, Driver, Present};
use crate::engine::Action;
use crate::engine::observe::turns::Task;
use crate::persist::append::log_writer::Report;
use crate::persist::append::manifest::Manifest;
use crate::persist::natives::clock::BootClock;

/// Number of connection turns before the other sources are checked.
const TURNS_MAX: usize = 64;

/// What a driver runs on.
pub trait Adapter: Sized {
    /// By which the boot clock is read, also while the driver is in use.
    type Boot: Copy;

    /// The driver.
    fn driver(&mut self) -> &mut Driver;

    /// The engine's time, and the stopwatch in nanoseconds: a monotonic clock, or the engine's time while that stands still.
    fn now_and_stopwatch(&mut self) -> (Now, u64);

    /// Reads the stopwatch again; `None` if requests are timed by the engine's time.
    fn stopwatch(&self) -> Option<fn() -> u64> {
        None
    }

    /// Whether the engine's time stands still.
    fn is_frozen(&self) -> bool {
        false
    }

    /// A monotonic clock in nanoseconds, which goes on while the driver works, even if the engine's time stands still.
    fn monotonic_ns(&self) -> fn() -> u64;

    /// What [`Adapter::read_boot`] needs.
    fn boot(&self) -> Self::Boot;

    /// Reads the boot clock.
    fn read_boot(boot: Self::Boot) -> BootClock;

    /// Does what the driver asks for.
    fn meet(&mut self, demands: Demands);

    /// Carries out an action that the driver cannot carry out.
    fn perform(&mut self, action: Action);

    /// Makes a base of these files but the last, for the file of this number, and has the driver told ([`Driver::base_made`]).
    fn make_base(&mut self, number: u64, files: Manifest);

    /// The writer of the file is closed: lets go of it.
    fn let_go_of_file(&mut self);

    /// Writes a snapshot before this returns. Returns false if it failed.
    fn save_now(&mut self) -> bool;

    /// The server is to end after this round.
    fn end(&mut self);

    /// A batch of a session, or something else that has used the engine, has ended. Returns when there is work for the adapter
    /// itself, in monotonic milliseconds; `u64::MAX` if there is none.
    fn after_batch(&mut self, now: Now, id: Option<SessionId>) -> u64;

    /// Has [`Driver::timer_fired`] called at this time, in monotonic milliseconds, whatever was asked for before. Returns false if
    /// that fails.
    fn set_timer(&mut self, at_ms: u64) -> bool;

    /// Requests begin to execute at this reading of the stopwatch.
    fn execution_begins(&mut self, _ns: u64) {}

    /// Time has passed in the engine.
    fn engine_advanced(&mut self) {}

    /// Gives some memory back. Returns whether there is more.
    fn give_back(&mut self, _now: Now) -> bool {
        false
    }

    /// Runs something that counts as a turn of this task.
    fn as_task<T>(&mut self, _task: Task, act: impl FnOnce(&mut Self) -> T) -> T {
        act(self)
    }

    /// The engine's time.
    #[inline]
    fn now(&mut self) -> Now {
        self.now_and_stopwatch().0
    }

    /// The present, as the driver needs it.
    fn present(&mut self) -> Present {
        let (now, ns) = self.now_and_stopwatch();
        let frozen = self.is_frozen();
        Present { now, ns: if frozen { self.monotonic_ns()() } else { ns }, frozen }
    }

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

    /// Takes what a connection has received.
    #[inline]
    fn receive(&mut self, id: SessionId, input: &[u8], turn: &mut Turn) {
        self.execute(id, |driver, at| driver.receive(at, id, input, turn));
    }

    /// Ends a batch of the session `id`, or something else that has used the engine.
    #[inline]
    fn finish_batch(&mut self, now: Now, id: Option<SessionId>) {
        self.driver().finish_batch(now, id);
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

    /// As [`Adapter::perform_actions`], if there are any.
    #[cold]
    fn perform_asked(&mut self) -> Now {
        let boot = self.boot();
        while let Some(action) = self.drive(|driver, at| driver.next_action(at, || Self::read_boot(boot))) {
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

    /// As [`Adapter::tick`], but for what requests have asked for.
    fn advance(&mut self) -> bool {
        let now = self.now();
        let more = self.advance_engine(now);
        self.driver().sweep_when_due(now);
        if self.driver().due_ms() <= now.mono_ms() {
            self.tick_background();
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
        if self.driver().has_background_work() {
            self.meet_demands();
        }
        let spent_ns = self.now_and_stopwatch().1.saturating_sub(began_ns);
        self.driver().engine.note_expiry(now, spent_ns);
        self.engine_advanced();
        more
    }

    /// Does background work that is due.
    #[cold]
    fn tick_background(&mut self) {
        self.drive(|driver, at| driver.housekeep(at));
        // A test that moves the clock gets here without a round, which would hand the changes over.
        self.hand_on(false);
    }

    /// Hands the pending changes on, if it is time for that or `at_once`.
    #[cold]
    fn hand_on(&mut self, at_once: bool) {
        let boot = self.boot();
        self.drive(|driver, at| driver.submit(at, at_once, || Self::read_boot(boot)));
    }

    /// Does what follows when something other than a request has used the engine.
    fn after_closure(&mut self) {
        let now = self.now();
        let now = self.perform_actions(now);
        if self.driver().has_background_work() {
            // What the driver decided is handed on before anything else is written.
            self.hand_on(false);
        }
        self.driver().reset_timer();
        self.finish_batch(now, None);
    }

    /// Takes a report of the writer of the file. [`Adapter::after_closure`] belongs behind it: the next batch is handed over there,
    /// before the replies are written, because the disk does not wait for those.
    fn take_report(&mut self, report: Report) {
        match self.drive(|driver, at| driver.take_report(at, report)) {
            None => {}
            Some(Reported::MakeBase(number, files)) => self.make_base(number, files),
            Some(Reported::Closed) => {
                self.let_go_of_file();
                self.drive(|driver, at| driver.file_closed(at));
            }
        }
    }

    /// Does what is to be done between the turns of connections: copies some keys, applies what a leader has committed, and hands the
    /// changes of this round on. Returns whether to call this again soon.
    #[cold]
    fn run_background(&mut self) -> bool {
        let mut copies = false;
        if self.driver().copies() {
            let boot = self.boot();
            // The boot clock behind the present: time that passes between the two makes a lease end later, not earlier.
            let copy_some = |driver: &mut Driver, at| driver.copy_some(at, Self::read_boot(boot));
            copies = self.as_task(Task::Copy, |this| this.drive(copy_some));
        }
        let applies = self.go_on_applying();
        self.hand_on(false);
        applies || copies
    }

    /// Goes on with what is to be applied. Returns whether that goes on at once.
    #[cold]
    fn go_on_applying(&mut self) -> bool {
        #[cfg(feature = "quorum")]
        {
            let (clock, ns) = (self.monotonic_ns(), self.present().ns);
            self.driver().applies(ns)
                && self.as_task(Task::Control, |this| this.drive(|driver, at| driver.go_on_applying(at, clock)))
        }
        #[cfg(not(feature = "quorum"))]
        false
    }

    /// The process has waited, or stood still: looks at the lease before anything is read that has come meanwhile, because another
    /// node may have led.
    #[inline]
    fn woke(&mut self) {
        #[cfg(feature = "quorum")]
        if self.driver().has_background_work() && self.driver().member().is_some_and(|member| member.leads()) {
            let now = self.now();
            if self.driver().due_ms() <= now.mono_ms() {
                self.tick_background();
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
                    self.end();
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

    /// Whether the leadership must be handed over before the server ends. If so, that has begun, and it ends afterwards.
    #[cold]
    fn hands_over_and_ends(&mut self) -> bool {
        #[cfg(feature = "quorum")]
        return self.drive(|driver, at| driver.hand_over_and_end(at));
        #[cfg(not(feature = "quorum"))]
        false
    }

    /// Hands on all that was recorded, at the end of the server.
    fn hand_on_all(&mut self) {
        self.drive(|driver, _| driver.abandon_files());
        self.hand_on(true);
    }
}

/// The socket of a connection, as its turn uses it.
pub trait Line<A: Adapter> {
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

    /// Receives input, and passes it to [`Adapter::receive`], or its end to [`Driver::end_input`].
    ///
    /// # Errors
    /// The turn ends.
    fn receive(&mut self, adapter: &mut A, turn: &mut Turn) -> Result<(), Next>;
}

/// Gives a connection its turn: it runs until it must wait, or until others are to have theirs.
#[inline]
pub fn take_turn<A: Adapter, L: Line<A>>(adapter: &mut A, line: &mut L) -> Next {
    let mut turn = Turn::begin();
    let Err(next) = go_on(adapter, line, &mut turn);
    if turn.leaves_work() {
        let now = adapter.now();
        adapter.finish_batch(now, None);
    }
    next
}

#[inline]
fn go_on<A: Adapter, L: Line<A>>(adapter: &mut A, line: &mut L, turn: &mut Turn) -> Result<Infallible, Next> {
    let id = line.id();
    loop {
        match adapter.driver().step(id, turn) {
            Step::Write => line.write(adapter, turn)?,
            Step::Flush => line.flush()?,
            Step::Execute => adapter.execute(id, |driver, at| driver.execute_kept(at, id, turn)),
            Step::Receive => line.receive(adapter, turn)?,
            Step::End(next) => return Err(next),
        }
    }
}

/// What a server waits for at the end of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Nothing: the next round begins at once.
    No,
    /// Whatever comes, for this long at most: [`Driver::rest`].
    Briefly(Duration),
    /// Whatever comes, or is due.
    ForEvents,
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

    /// Whether there is other work for this loop, so that it waits for nothing.
    fn has_other_work(&self) -> bool {
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

    /// Gives each connection that waits for one a last turn, as the server ends: what is written to it is still sent.
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
            let more = self.adapter().as_task(Task::Timer, Adapter::tick);
            self.adapter().driver().timer.fired = more;
        }
    }

    /// Ends a round: copies, applies, and hands the changes of the round on. Returns what is waited for now. [`Driver::wake_late`]
    /// belongs behind that.
    #[inline]
    fn end_round(&mut self) -> Wait {
        let adapter = self.adapter();
        let has_work = adapter.driver().has_background_work();
        let runs_on = has_work && adapter.run_background();
        if runs_on || adapter.driver().has_connections_to_run() || adapter.driver().is_behind() || self.has_other_work() {
            return Wait::No;
        }
        if has_work {
            let adapter = self.adapter();
            let ns = adapter.present().ns;
            if let Some(rest) = adapter.driver().rest(ns) {
                return Wait::Briefly(rest);
            }
        }
        Wait::ForEvents
    }
}
