//! One history: clients of an engine, whose log goes to a disk on which each operation is a crash point.

use std::collections::VecDeque;

use portcullis::base::ids::SessionId;
use portcullis::base::time::Now;
use portcullis::driver::file::{BaseOrder, Reported};
use portcullis::driver::gate::BatchNumber;
use portcullis::driver::{Driver, Present};
use portcullis::engine::config::Config;
use portcullis::engine::session::{Peer, SessionFlags};
use portcullis::persist::append::clock::Moment;
use portcullis::persist::disk::DiskError;
use portcullis::persist::disk::simulated::{Injected, SimulatedDisk};
use portcullis::server::durable::rewrite::make_base;
use portcullis::torture::sim::disk::{Planted, SharedDisk};
use portcullis::torture::sim::durable::config;
use portcullis::torture::sim::machine::{Machine, ProcessClock, Writer};

use crate::commands::{CONNECTIONS, draw};
use crate::random::Random;
use crate::start::{NAME, load, start};
use crate::state::{Restart, State};

/// Processes of a history, one after the other.
const PROCESSES: u64 = 5;
/// Turns of a process.
const TURNS: u64 = 150;

/// Attempts to start beyond the first.
const STARTS_MAX: u64 = 10;

/// What a history has shown.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Number of crash points.
    pub points: u64,
    /// Number of requests.
    pub requests: u64,
    /// Replies that were held back, and those that left.
    pub replies: u64,
    /// The first violation, in words.
    pub violation: Option<String>,
}

/// Output of a session that was not sent yet.
struct Waiting {
    id: SessionId,
    at: u64,
    /// The batch with the changes of the turn that wrote it; 0 without any.
    batch: BatchNumber,
}

struct History {
    seed: u64,
    random: Random,
    machine: Machine,
    driver: Driver,
    clock: ProcessClock,
    writer: Writer,
    at_us: u64,
    /// By how much leases may be longer than they were, after all boots so far.
    late_us: u64,
    sessions: Vec<SessionId>,
    waiting: VecDeque<Waiting>,
    /// The state at the start, and after each batch of this process.
    states: Vec<State>,
    /// The last batch of which a client knows.
    known: BatchNumber,
    /// The largest next token that a client may know of.
    next_token: u64,
    /// The next token at the start of the process, before it had given any.
    first_token: u64,
    /// See [`Restart::rounded_us`].
    rounded_us: u64,
    /// Whether a sync has failed: the process must end.
    ended: bool,
    outcome: Outcome,
}

/// Whether a failure is one of the disk, which a later attempt may not meet.
fn may_pass(reason: &str) -> bool {
    reason.ends_with("has changed since it was read") || reason.ends_with("No space left on device")
}

/// Runs the history of a seed.
pub fn history(seed: u64, planted: Planted) -> Outcome {
    let mut random = Random::new(seed);
    let disk = SharedDisk::new(SimulatedDisk::new(random.next()), planted, true);
    let mut machine = Machine::new(disk, 0);
    let (mut driver, clock, writer) = start(&mut machine, 1_000, config(), seed).expect("an empty disk is a beginning");
    let mut first = State::of(&mut driver.engine, clock.now(1_000), &clock);
    // No token was given.
    let first_token = std::mem::take(&mut first.next_token);
    let mut history = History {
        seed,
        random,
        machine,
        driver,
        clock,
        writer,
        at_us: 1_000,
        late_us: 0,
        sessions: Vec::new(),
        waiting: VecDeque::new(),
        states: vec![first],
        known: 0,
        next_token: 0,
        first_token,
        rounded_us: 0,
        ended: false,
        outcome: Outcome::default(),
    };
    let result = history.run();
    Outcome { violation: result.err().map(|text| format!("seed {seed}: {text}")), ..history.outcome }
}

impl History {
    fn now(&self) -> Now {
        self.clock.now(self.at_us)
    }

    /// The present, in which no batch waits for others.
    fn present(&self) -> Present {
        Present { now: self.now(), ns: self.at_us * 1_000, frozen: true }
    }

    /// Whether a batch was handed to the disk and is not settled.
    fn is_on_its_way(&self) -> bool {
        self.driver.file().is_some_and(|file| file.log.gate.is_on_its_way())
    }

    /// Whether there are changes that no batch has.
    fn has_pending(&self) -> bool {
        self.driver.file().is_some_and(|file| file.log.records.has_pending())
    }

    /// Holds back the reply to a request of a session, which begins at `start` of its outbox.
    fn hold_reply(&mut self, id: SessionId, args: &[&[u8]], db: u32, start: usize) {
        let mut outbox = self.driver.engine.take_outbox(id);
        self.driver.hold_reply(self.at_us * 1_000, &outbox, None, args, db, start);
        outbox.put_back(&mut self.driver.engine);
    }

    fn moment(&self) -> Moment {
        Moment { now: self.now(), boot: self.machine.boot_clock(self.at_us) }
    }

    fn run(&mut self) -> Result<(), String> {
        for process in 0..PROCESSES {
            self.check_points()?;
            self.connect();
            for turn in 0..TURNS {
                self.turn(process * TURNS + turn)?;
                if self.ended {
                    break;
                }
            }
            self.restart()?;
        }
        self.check_points()
    }

    fn connect(&mut self) {
        let now = self.now();
        self.sessions = (0..CONNECTIONS).map(|_| self.driver.engine.connect(now, Peer::default())).collect();
    }

    fn turn(&mut self, number: u64) -> Result<(), String> {
        self.at_us += match self.random.below(10) {
            0 => self.random.below(2_000_000),
            1..4 => self.random.below(60_000),
            _ => self.random.below(900),
        };
        let now = self.now();
        while self.driver.engine.has_work(now) {
            self.driver.engine.advance(now);
        }
        self.driver.engine.take_actions();
        self.note_output(None);
        let which = self.random.below(CONNECTIONS);
        let id = self.sessions[which as usize];
        if self.random.one_in(60) {
            self.driver.engine.disconnect(now, id);
            self.driver.engine.take_actions();
            self.driver.forget(id);
            self.waiting.retain(|waiting| waiting.id != id);
            self.note_output(None);
            self.sessions[which as usize] = self.driver.engine.connect(now, Peer::default());
        } else if !self.driver.engine.sessions()[id].flags.contains(SessionFlags::BLOCKED) {
            for request in draw(&mut self.random, which, number) {
                self.outcome.requests += 1;
                let args: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
                let session = &self.driver.engine.sessions()[id];
                let (db, start) = (session.db, session.out.len());
                self.driver.engine.begin_times(now, now.mono_us() * 1000, None);
                self.driver.engine.execute(now, id, &args);
                self.driver.engine.end_times(now);
                self.driver.engine.take_actions();
                self.hold_reply(id, &args, db, start);
                self.driver.engine.mark_pending_write(id);
                self.note_output(Some(id));
            }
        }
        if self.writer.is_stuck() {
            self.submit()?;
        }
        if self.random.below(10) < 7 && self.has_pending() && !self.is_on_its_way() {
            self.append()?;
        }
        if self.random.below(10) < 7 && self.is_on_its_way() && !self.ended {
            self.sync()?;
        }
        if self.random.one_in(70) && !self.ended {
            self.rewrite()?;
        }
        Ok(())
    }

    /// Takes what sessions have to send; it waits for what the gate says.
    fn note_output(&mut self, requester: Option<SessionId>) {
        // What the turn changed is in the batch that is pending now.
        let own = match self.driver.file() {
            Some(file) if file.log.records.has_pending() => file.log.gate.pending(),
            _ => 0,
        };
        let mut dirty = Vec::new();
        self.driver.engine.take_pending_writes(&mut dirty);
        self.driver.hold_others(requester, &dirty);
        self.driver.take_demands();
        for id in dirty {
            // What changed nothing shows what may be settled: only the gate knows that.
            let waits_for = self.driver.file().map_or(0, |file| file.log.gate.last_of(id));
            let batch = if waits_for == own { own } else { 0 };
            let session = &mut self.driver.engine.sessions_mut()[id];
            if session.out.is_empty() {
                continue;
            }
            self.waiting.push_back(Waiting { id, at: session.net_out, batch });
            session.net_out += session.out.len() as u64;
            session.out.clear();
        }
        self.send();
    }

    /// Sends what the gate lets go. Clients know of its batches then.
    fn send(&mut self) {
        let (driver, known, replies) = (&self.driver, &mut self.known, &mut self.outcome.replies);
        self.waiting.retain(|waiting| {
            let goes = waiting.at < driver.output_end(waiting.id);
            if goes {
                *known = (*known).max(waiting.batch);
                *replies += 1;
            }
            !goes
        });
        if let Some(state) = self.states.get(self.known as usize) {
            self.next_token = self.next_token.max(state.next_token);
        }
    }

    /// Hands a batch to the disk.
    fn append(&mut self) -> Result<(), String> {
        let now = self.now();
        let mut state = State::of(&mut self.driver.engine, now, &self.clock);
        if state.next_token == self.first_token {
            state.next_token = self.states.last().map_or(0, |last| last.next_token);
        }
        self.states.push(state);
        if self.random.one_in(100) {
            // The disk is full for a moment.
            self.machine.disk.act(|disk| disk.fail_at(disk.operations(), Injected::Full));
        }
        self.submit()
    }

    /// Appends the batch, or tries one again for which the disk had no space.
    fn submit(&mut self) -> Result<(), String> {
        let (at, boot) = (self.present(), self.machine.boot_clock(self.at_us));
        self.driver.submit(at, false, || boot);
        let result = self.write();
        self.check_points()?;
        self.ended |= result.is_err();
        if !self.ended {
            self.send();
        }
        Ok(())
    }

    /// Syncs the batch that is on its way.
    fn sync(&mut self) -> Result<(), String> {
        if self.random.one_in(1_500) {
            // What of it is on the disk is not known then.
            self.machine.disk.act(|disk| disk.fail_at(disk.operations(), Injected::Failed));
        }
        let result = self.writer.sync();
        // The machine may crash in it: nothing of it is known then.
        self.check_points()?;
        self.ended |= result.is_err();
        self.take_reports();
        if !self.ended {
            self.send();
        }
        Ok(())
    }

    /// Carries out what was ordered of the log's writer.
    fn write(&mut self) -> Result<(), DiskError> {
        self.driver.take_demands().file.into_iter().for_each(|order| self.writer.order(order));
        self.writer.around().set_time(self.at_us);
        let result = self.writer.step().map(drop);
        if let Some(BaseOrder { number, .. }) = self.take_reports() {
            // A start has asked for a new base. It cannot be made, and the old files stay in force.
            self.driver.base_made(self.present(), number, Err("there is no time".to_owned()));
        }
        result
    }

    /// Tells the driver what the writer has reported. Returns the new base that is to be made.
    fn take_reports(&mut self) -> Option<BaseOrder> {
        let (at, mut order) = (self.present(), None);
        while let Some(report) = self.writer.around().take_report() {
            if let Some(Reported::MakeBase(base)) = self.driver.take_report(at, report) {
                order = Some(*base);
            }
        }
        order
    }

    /// Makes a new base, while requests go on.
    fn rewrite(&mut self) -> Result<(), String> {
        if self.is_on_its_way() {
            self.sync()?;
        }
        if self.has_pending() && !self.writer.is_stuck() && !self.ended {
            self.append()?;
            self.sync()?;
        }
        if self.writer.is_stuck() || self.ended {
            return Ok(());
        }
        let disk = self.machine.disk.clone();
        let boot = self.machine.boot_clock(self.at_us);
        self.driver.rewrite(self.present());
        self.driver.submit(self.present(), false, || boot);
        self.driver.take_demands().file.into_iter().for_each(|order| self.writer.order(order));
        let result = self.writer.step();
        self.check_points()?;
        let (Ok(_), Some(order)) = (result, self.take_reports()) else {
            self.ended = true;
            return Ok(());
        };
        let moment = self.moment();
        for number in 0..self.random.below(6) {
            self.at_us += 100;
            let now = self.now();
            let id = self.sessions[0];
            let value = number.to_string();
            let args: [&[u8]; 3] = [b"SET", b"k0", value.as_bytes()];
            if self.driver.engine.sessions()[id].flags.contains(SessionFlags::BLOCKED) || self.ended {
                break;
            }
            self.driver.engine.execute(now, id, &args);
            self.hold_reply(id, &args, 0, 0);
            self.driver.engine.mark_pending_write(id);
            self.note_output(Some(id));
            if self.has_pending() && !self.is_on_its_way() {
                self.append()?;
                self.sync()?;
            }
        }
        if self.ended {
            return Ok(());
        }
        let number = order.number;
        let made = make_base(&mut disk.clone(), NAME, order, moment, || true);
        self.check_points()?;
        match &made {
            // The old files stay in force.
            Err(reason) if !may_pass(reason) => return Err(reason.clone()),
            _ => self.driver.base_made(self.present(), number, made),
        }
        self.ended = self.write().is_err();
        self.check_points()
    }

    /// The process ends, or the whole machine; the next one starts.
    fn restart(&mut self) -> Result<(), String> {
        let powerless = self.random.one_in(2);
        if powerless {
            self.lose_power();
        } else {
            self.machine.disk.act(SimulatedDisk::restart_process);
        }
        self.at_us += 1 + self.random.below(3_000_000);
        // After a failed sync the cache may drop what it has shown meanwhile: the start ends then, and the next one succeeds.
        let mut attempts = 0;
        let (mut driver, clock, writer) = loop {
            match start(&mut self.machine, self.at_us, config(), self.random.next()) {
                Ok(started) => break started,
                Err(reason) if attempts == STARTS_MAX || !may_pass(&reason) => {
                    return Err(reason);
                }
                Err(_) => attempts += 1,
            }
        };
        let mut loaded = State::of(&mut driver.engine, clock.now(self.at_us), &clock);
        self.judge(&loaded, &clock, self.at_us, self.late_us)?;
        // If the machine crashes in the start, what the process before had not made durable may be lost: nobody knew of it.
        self.check_points()?;
        (self.driver, self.clock, self.writer, self.ended) = (driver, clock, writer, false);
        self.known = 0;
        // The batch that was found may be one that no client knows and no file has: a lease that was over leaves nothing to see.
        let next_token = self.next_token.max(loaded.after_tokens());
        self.first_token = std::mem::replace(&mut loaded.next_token, next_token);
        self.states = vec![loaded];
        // A record's times are rounded to milliseconds, by less than four in all.
        self.rounded_us += 4_000;
        self.waiting.clear();
        Ok(())
    }

    /// Sets the wall clock back at most: one that is set forward ends leases early.
    fn lose_power(&mut self) {
        let back_ms = if self.random.one_in(2) { self.random.below(1_500) } else { 0 };
        self.machine.lose_power(self.at_us, -(back_ms as i64));
        self.late_us += back_ms * 1000;
    }

    /// The batch whose state was loaded: the last one of which a client knows, or a later one.
    fn judge(&self, loaded: &State, clock: &ProcessClock, at_us: u64, late_us: u64) -> Result<usize, String> {
        let restart = Restart { at_us, unix_ms: clock.now(at_us).unix_ms(), late_us, rounded_us: self.rounded_us };
        let from = self.known as usize;
        let mut reasons = Vec::new();
        for (batch, state) in self.states.iter().enumerate().skip(from).rev() {
            match state.compare(loaded, restart) {
                Ok(()) if loaded.next_token < self.next_token => {
                    return Err(format!(
                        "the next token is {}, and a client may know {}",
                        loaded.next_token,
                        self.next_token - 1
                    ));
                }
                Ok(()) => return Ok(batch),
                Err(reason) => reasons.push(format!("batch {batch}: {reason}")),
            }
        }
        Err(format!("of the batches {from} to {} none was loaded: {}", self.states.len() - 1, reasons.join("; ")))
    }

    /// Lets the machine crash in each operation since the last call, and starts it again.
    fn check_points(&mut self) -> Result<(), String> {
        for crashed in self.machine.disk.take_crashes() {
            self.outcome.points += 1;
            self.check_point(crashed).map_err(|reason| format!("crash point {}: {reason}", self.outcome.points))?;
        }
        // Earlier states are not asked for again.
        Ok(())
    }

    fn check_point(&mut self, crashed: SimulatedDisk) -> Result<(), String> {
        let mut machine = self.machine.with_disk(SharedDisk::new(crashed, self.machine.disk.planted, false));
        let back_ms = if self.random.one_in(2) { self.random.below(1_500) } else { 0 };
        machine.lose_power(self.at_us, -(back_ms as i64));
        let late_us = self.late_us + back_ms * 1000;
        let at_us = self.at_us + 1 + self.random.below(3_000_000);
        let seed = self.seed ^ self.outcome.points;
        let (mut engine, clock) = load(&mut machine, at_us, Config::default(), seed)?;
        let loaded = State::of(&mut engine, clock.now(at_us), &clock);
        let found = self.judge(&loaded, &clock, at_us, late_us)?;
        if self.outcome.points.is_multiple_of(16) {
            // It crashes again while it starts. What was found once is found again.
            let crash = self.random.below(24);
            machine.disk.act(|disk| disk.crash_at(disk.operations() + crash));
            let _ = start(&mut machine, at_us, Config::default(), seed);
            machine.lose_power(at_us, 0);
            let (mut engine, clock) = load(&mut machine, at_us, Config::default(), seed)?;
            let again = State::of(&mut engine, clock.now(at_us), &clock);
            let restart = Restart { at_us, unix_ms: clock.now(at_us).unix_ms(), late_us, rounded_us: self.rounded_us };
            self.states[found].compare(&again, restart).map_err(|reason| format!("a second start: {reason}"))?;
        }
        Ok(())
    }
}
