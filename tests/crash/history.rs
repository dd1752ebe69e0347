//! One history: clients of an engine, whose log goes to a disk on which each operation is a crash point.

use std::collections::VecDeque;

use portcullis::base::ids::SessionId;
use portcullis::base::time::Now;
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::engine::session::{Peer, SessionFlags};
use portcullis::persist::append::clock::Moment;
use portcullis::persist::disk::simulated::{Injected, SimulatedDisk};
use portcullis::server::durable::gate::{BatchNumber, Executed};
use portcullis::torture::sim::disk::{Planted, SharedDisk};
use portcullis::torture::sim::machine::{Log, Machine, ProcessClock, make_base};

use crate::commands::{CONNECTIONS, draw};
use crate::random::Random;
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
    engine: Engine,
    clock: ProcessClock,
    log: Log,
    at_us: u64,
    /// By how much leases may be longer than they were, after all boots so far.
    late_us: u64,
    sessions: Vec<SessionId>,
    /// Bytes of output of each session, by session id.
    given: Vec<u64>,
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
    let (mut engine, clock, log) = machine.start(1_000, Config::default(), seed).expect("an empty disk is a beginning");
    let mut first = State::of(&mut engine, clock.now(1_000), &clock);
    // No token was given.
    let first_token = std::mem::take(&mut first.next_token);
    let mut history = History {
        seed,
        random,
        machine,
        engine,
        clock,
        log,
        at_us: 1_000,
        late_us: 0,
        sessions: Vec::new(),
        given: vec![0; 64],
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
        self.sessions = (0..CONNECTIONS).map(|_| self.engine.connect(now, Peer::default())).collect();
    }

    fn turn(&mut self, number: u64) -> Result<(), String> {
        self.at_us += match self.random.below(10) {
            0 => self.random.below(2_000_000),
            1..4 => self.random.below(60_000),
            _ => self.random.below(900),
        };
        let now = self.now();
        while self.engine.has_work(now) {
            self.engine.advance(now);
        }
        self.engine.take_actions();
        self.note_output(None);
        let which = self.random.below(CONNECTIONS);
        let id = self.sessions[which as usize];
        if self.random.one_in(60) {
            self.engine.disconnect(now, id);
            self.engine.take_actions();
            self.log.gate.forget(id);
            self.waiting.retain(|waiting| waiting.id != id);
            self.note_output(None);
            self.sessions[which as usize] = self.engine.connect(now, Peer::default());
            self.given[id.0 as usize] = 0;
        } else if !self.engine.sessions[id.0 as usize].flags.contains(SessionFlags::BLOCKED) {
            for request in draw(&mut self.random, which, number) {
                self.outcome.requests += 1;
                let args: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
                let session = &self.engine.sessions[id.0 as usize];
                let (db, start) = (session.db, session.out.len());
                self.engine.begin_batch(now, now.mono_us() * 1000, None);
                self.engine.execute(now, id, &args);
                self.engine.end_batch(now);
                self.engine.take_actions();
                let reply = &self.engine.sessions[id.0 as usize].out[start..];
                let executed = Executed { commands: self.engine.commands, row: None, args: &args, db, queued: false, reply };
                let batch = self.log.batch_of_reply(executed);
                self.log.gate.hold(id, self.given[id.0 as usize] + start as u64, batch);
                self.engine.mark_dirty(id);
                self.note_output(Some(id));
            }
        }
        if self.log.is_stuck() {
            self.submit()?;
        }
        if self.random.below(10) < 7 && self.log.has_pending() && !self.log.gate.is_on_its_way() {
            self.append()?;
        }
        if self.random.below(10) < 7 && self.log.gate.is_on_its_way() && !self.ended {
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
        let own = if self.log.has_pending() { self.log.gate.pending() } else { 0 };
        let batch = self.log.batch_of_others(requester.is_some());
        let mut dirty = Vec::new();
        self.engine.take_dirty(&mut dirty);
        for id in dirty {
            let session = &mut self.engine.sessions[id.0 as usize];
            let given = &mut self.given[id.0 as usize];
            if session.out.is_empty() {
                continue;
            }
            if Some(id) != requester {
                self.log.gate.hold(id, *given, batch);
            }
            // A reply to a request that changed nothing shows what may be settled: only the gate knows that.
            let wrote = Some(id) != requester || batch == own;
            self.waiting.push_back(Waiting { id, at: *given, batch: if wrote { own.min(batch) } else { 0 } });
            *given += session.out.len() as u64;
            session.out.clear();
        }
        self.send();
    }

    /// Sends what the gate lets go. Clients know of its batches then.
    fn send(&mut self) {
        let (gate, known, replies) = (&self.log.gate, &mut self.known, &mut self.outcome.replies);
        self.waiting.retain(|waiting| {
            let goes = waiting.at < gate.end(waiting.id);
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
        let mut state = State::of(&mut self.engine, now, &self.clock);
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
        let moment = self.moment();
        let result = self.log.submit(moment);
        self.check_points()?;
        self.ended |= result.is_err();
        if !self.ended {
            self.log.settle_unsynced();
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
        let result = self.log.sync();
        // The machine may crash in it: nothing of it is known then.
        self.check_points()?;
        self.ended |= result.is_err();
        if !self.ended {
            self.send();
        }
        Ok(())
    }

    /// Makes a new base, while requests go on.
    fn rewrite(&mut self) -> Result<(), String> {
        if self.log.gate.is_on_its_way() {
            self.sync()?;
        }
        if self.log.has_pending() && !self.log.is_stuck() && !self.ended {
            self.append()?;
            self.sync()?;
        }
        if self.log.is_stuck() || self.ended {
            return Ok(());
        }
        let disk = self.machine.disk.clone();
        let files = self.log.next_increment(&mut self.engine, &disk);
        self.check_points()?;
        let Ok(files) = files else {
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
            if self.engine.sessions[id.0 as usize].flags.contains(SessionFlags::BLOCKED) || self.ended {
                break;
            }
            self.engine.execute(now, id, &args);
            let executed = Executed { commands: self.engine.commands, row: None, args: &args, db: 0, queued: false, reply: b"" };
            let batch = self.log.batch_of_reply(executed);
            self.log.gate.hold(id, self.given[id.0 as usize], batch);
            self.engine.mark_dirty(id);
            self.note_output(Some(id));
            if self.log.has_pending() && !self.log.gate.is_on_its_way() {
                self.append()?;
                self.sync()?;
            }
        }
        if self.ended {
            return Ok(());
        }
        let made = make_base(&disk, files, moment, Config::default());
        self.check_points()?;
        let (base, len) = match made {
            Ok(made) => made,
            // The old files stay in force.
            Err(reason) if may_pass(&reason) => return Ok(()),
            Err(reason) => return Err(reason),
        };
        self.ended = self.log.set_base(base, len).is_err();
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
        let (mut engine, clock, log) = loop {
            match self.machine.start(self.at_us, Config::default(), self.random.next()) {
                Ok(started) => break started,
                Err(reason) if attempts == STARTS_MAX || !may_pass(&reason) => {
                    return Err(reason);
                }
                Err(_) => attempts += 1,
            }
        };
        let mut loaded = State::of(&mut engine, clock.now(self.at_us), &clock);
        self.judge(&loaded, &clock, self.at_us, self.late_us)?;
        // If the machine crashes in the start, what the process before had not made durable may be lost: nobody knew of it.
        self.check_points()?;
        (self.engine, self.clock, self.log, self.ended) = (engine, clock, log, false);
        self.known = 0;
        // The batch that was found may be one that no client knows and no file has: a lease that was over leaves nothing to see.
        let next_token = self.next_token.max(loaded.after_tokens());
        self.first_token = std::mem::replace(&mut loaded.next_token, next_token);
        self.states = vec![loaded];
        // A record's times are rounded to milliseconds, by less than four in all.
        self.rounded_us += 4_000;
        self.waiting.clear();
        self.given.fill(0);
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
        let (mut engine, clock) = machine.load(at_us, Config::default(), seed)?;
        let loaded = State::of(&mut engine, clock.now(at_us), &clock);
        let found = self.judge(&loaded, &clock, at_us, late_us)?;
        if self.outcome.points.is_multiple_of(16) {
            // It crashes again while it starts. What was found once is found again.
            let crash = self.random.below(24);
            machine.disk.act(|disk| disk.crash_at(disk.operations() + crash));
            let _ = machine.start(at_us, Config::default(), seed);
            machine.lose_power(at_us, 0);
            let (mut engine, clock) = machine.load(at_us, Config::default(), seed)?;
            let again = State::of(&mut engine, clock.now(at_us), &clock);
            let restart = Restart { at_us, unix_ms: clock.now(at_us).unix_ms(), late_us, rounded_us: self.rounded_us };
            self.states[found].compare(&again, restart).map_err(|reason| format!("a second start: {reason}"))?;
        }
        Ok(())
    }
}
