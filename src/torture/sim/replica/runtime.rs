//! The runtime of the nodes' tasks: they run one at a time in the order in which they were woken, and time stands still meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::quorum::runtime::{Alarm, Simulation, Task, set_simulation};
use crate::torture::plan::{Plan, streams};
use crate::torture::random::Random;
use crate::torture::sim::clock::Clock;
use crate::torture::sim::executor::Executor;

/// What tasks see of the runtime.
struct Inside {
    now_us: Cell<u64>,
    /// The node whose code runs.
    running: Cell<u32>,
    clocks: RefCell<Vec<Clock>>,
    spawned: RefCell<Vec<(u32, Task)>>,
    /// Alarms by their true times and numbers.
    alarms: RefCell<BTreeMap<(u64, u64), Arc<Alarm>>>,
    last: Cell<u64>,
    random: RefCell<Random>,
}

impl Inside {
    fn clock(&self) -> Clock {
        self.clocks.borrow().get(self.running.get() as usize).copied().unwrap_or_default()
    }
}

impl Simulation for Inside {
    fn now(&self) -> Duration {
        Duration::from_micros(self.clock().elapsed_us(self.now_us.get()))
    }

    fn spawn(&self, task: Task) {
        self.spawned.borrow_mut().push((self.running.get(), task));
    }

    fn ring_at(&self, at: Duration, alarm: Arc<Alarm>) {
        let (clock, at_us) = (self.clock(), at.as_nanos().div_ceil(1_000) as u64);
        let mut true_us = clock.true_us(at_us);
        // Not before the clock shows it.
        while clock.elapsed_us(true_us) < at_us {
            true_us += 1;
        }
        self.last.set(self.last.get() + 1);
        self.alarms.borrow_mut().insert((true_us, self.last.get()), alarm);
    }

    fn random(&self) -> u64 {
        self.random.borrow_mut().draw()
    }
}

/// The runtime. Dropping it ends the simulation on this thread.
pub struct Runtime {
    inside: Rc<Inside>,
    executor: Executor,
}

impl Runtime {
    /// The runtime of a plan's nodes, for this thread.
    pub fn new(plan: &Plan) -> Runtime {
        let nodes = plan.machines() as usize;
        let inside = Rc::new(Inside {
            now_us: Cell::new(0),
            running: Cell::new(0),
            clocks: RefCell::new(vec![Clock::default(); nodes]),
            spawned: RefCell::default(),
            alarms: RefCell::default(),
            last: Cell::new(0),
            random: RefCell::new(Random::new(plan.seed, streams::RAFT, 0)),
        });
        set_simulation(Some(Rc::clone(&inside) as Rc<dyn Simulation>));
        Runtime { inside, executor: Executor::new(nodes) }
    }

    /// From now on the code of a node runs, at a true time.
    pub fn enter(&self, node: u32, now_us: u64) {
        self.inside.running.set(node);
        self.inside.now_us.set(now_us);
    }

    /// Runs a task of the node whose code runs.
    pub fn spawn(&self, task: Task) {
        self.inside.spawn(task);
    }

    /// Sets how fast the clocks of a node run. It must not have begun yet.
    pub fn set_ppm(&self, node: u32, ppm: i64) {
        if let Some(clock) = self.inside.clocks.borrow_mut().get_mut(node as usize) {
            clock.ppm = ppm;
        }
    }

    /// The clock of a node.
    pub fn clock(&self, node: u32) -> Clock {
        self.inside.clocks.borrow().get(node as usize).copied().unwrap_or_default()
    }

    /// When the next alarm rings.
    pub fn next_us(&self) -> Option<u64> {
        self.inside.alarms.borrow().first_key_value().map(|((at_us, _), _)| *at_us)
    }

    /// Rings the alarms up to a time.
    pub fn ring(&self, now_us: u64) {
        self.inside.now_us.set(now_us);
        loop {
            let mut alarms = self.inside.alarms.borrow_mut();
            let Some(first) = alarms.first_entry().filter(|first| first.key().0 <= now_us) else { return };
            let alarm = first.remove();
            drop(alarms);
            alarm.ring();
        }
    }

    /// Runs all tasks that can go on. Returns whether there was one.
    pub fn run(&mut self) -> bool {
        let mut ran = false;
        loop {
            for (node, task) in self.inside.spawned.take() {
                self.executor.spawn(node, task);
            }
            let inside = &self.inside;
            if !self.executor.run_one(|node| inside.running.set(node)) {
                return ran;
            }
            ran = true;
        }
    }

    /// Stops the tasks of a node until [`Runtime::resume`].
    pub fn pause(&mut self, node: u32) {
        self.executor.pause(node);
    }

    /// Lets the tasks of a node go on.
    pub fn resume(&mut self, node: u32) {
        self.executor.resume(node);
    }

    /// Drops all tasks of a node.
    pub fn crash(&mut self, node: u32) {
        self.inside.running.set(node);
        self.inside.spawned.borrow_mut().retain(|(of, _)| *of != node);
        self.executor.crash(node);
        self.inside.spawned.borrow_mut().retain(|(of, _)| *of != node);
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        set_simulation(None);
    }
}
