//! The runtime of the nodes' tasks: they run one at a time, in rounds, and time stands still meanwhile.

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

/// How late openraft's ticks are: four and a half of its intervals of 91 ms, so that there is one every 455 ms, and not four that find
/// nothing to do before one that sends a heartbeat. Each node has a phase of its own: they stand for election at different times.
const TICK_SLACK: Duration = Duration::from_millis(410);

/// What tasks see of the runtime.
struct Inside {
    now_us: Cell<u64>,
    /// The node whose code runs.
    running: Cell<u32>,
    /// The nodes whose code has run since the last call of [`Runtime::take_ran`]: a bit for each.
    ran: Cell<u32>,
    clocks: RefCell<Vec<Clock>>,
    spawned: RefCell<Vec<(u32, Task)>>,
    /// Alarms by their true times and numbers.
    alarms: RefCell<BTreeMap<(u64, u64), Arc<Alarm>>>,
    last: Cell<u64>,
    random: RefCell<Random>,
}

impl Inside {
    fn enter(&self, node: u32) {
        self.running.set(node);
        self.ran.set(self.ran.get() | 1 << node);
    }

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

    fn tick_slack(&self) -> Duration {
        TICK_SLACK
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
            ran: Cell::new(!0),
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
        self.inside.enter(node);
        self.inside.now_us.set(now_us);
    }

    /// As [`Runtime::enter`], but for a thread of the node: what it does is not looked at at once.
    pub fn enter_thread(&self, node: u32, now_us: u64) {
        self.inside.running.set(node);
        self.inside.now_us.set(now_us);
    }

    /// The nodes whose code has run since the last call: a bit for each. Others have nothing new to be done.
    pub fn take_ran(&self) -> u32 {
        self.inside.ran.replace(0)
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
        let mut alarms = self.inside.alarms.borrow_mut();
        loop {
            let first = alarms.first_entry()?;
            // Nobody sleeps by it any more.
            if Arc::strong_count(first.get()) > 1 {
                return Some(first.key().0);
            }
            first.remove();
        }
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

    /// Runs all tasks that can go on at a true time. Returns whether there was one.
    pub fn run(&mut self, now_us: u64) -> bool {
        self.inside.now_us.set(now_us);
        let mut ran = false;
        loop {
            for (node, task) in self.inside.spawned.take() {
                self.executor.spawn(node, task);
            }
            let inside = &self.inside;
            if !self.executor.run_round(|node| inside.enter(node)) {
                return ran;
            }
            ran = true;
        }
    }

    /// Stops the tasks of a node until [`Runtime::resume`].
    pub fn pause(&mut self, node: u32) {
        self.executor.pause(node);
    }

    /// Lets the tasks of a node go on at a true time.
    pub fn resume(&mut self, node: u32, now_us: u64) {
        self.executor.resume(node);
        self.enter(node, now_us);
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Mutex;

    use openraft::AsyncRuntime;

    use super::*;
    use crate::quorum::runtime::{Instant, Runtime as Real};
    use crate::torture::plan::{Replicas, Settings};
    use crate::torture::sim::replica::Flaw;

    fn runtime() -> Runtime {
        let replicas = Some(Replicas { nodes: 3, planted: Flaw::Nothing });
        Runtime::new(&Plan::draw(&Settings { replicas, ..Settings::default() }, 0))
    }

    /// Lets a node sleep, and notes when it wakes by its own clock.
    fn sleep(runtime: &Runtime, node: u32, ms: u64, woken: &Arc<Mutex<Vec<(u32, Duration)>>>) {
        let woken = Arc::clone(woken);
        runtime.enter(node, 0);
        runtime.spawn(Box::pin(async move {
            let began = Instant::now();
            Real::sleep(Duration::from_millis(ms)).await;
            woken.lock().unwrap().push((node, began.elapsed()));
        }));
    }

    #[test]
    fn each_node_sleeps_by_its_own_clock() {
        let mut runtime = runtime();
        runtime.set_ppm(1, 100_000);
        runtime.set_ppm(2, -100_000);
        let woken = Arc::default();
        (0..3).for_each(|node| sleep(&runtime, node, 100, &woken));
        runtime.run(0);
        let mut rung = Vec::new();
        while let Some(at_us) = runtime.next_us() {
            rung.push(at_us);
            runtime.ring(at_us);
            runtime.run(at_us);
        }
        assert_eq!(rung, [90_910, 100_000, 111_111], "not before its clock shows it");
        let woken = woken.lock().unwrap();
        assert_eq!(woken.iter().map(|(node, _)| *node).collect::<Vec<_>>(), [1, 0, 2]);
        assert!(woken.iter().all(|(_, slept)| (100_000..100_002).contains(&slept.as_micros())), "{woken:?}");
    }

    #[test]
    fn a_node_that_stands_still_goes_on_later_and_one_that_has_crashed_does_not() {
        let mut runtime = runtime();
        let woken = Arc::default();
        (0..3).for_each(|node| sleep(&runtime, node, 10, &woken));
        runtime.run(0);
        runtime.pause(0);
        runtime.crash(1);
        runtime.ring(20_000);
        runtime.run(20_000);
        assert_eq!(woken.lock().unwrap().len(), 1);
        runtime.ring(50_000);
        runtime.resume(0, 50_000);
        runtime.run(50_000);
        assert_eq!(*woken.lock().unwrap(), [(2, Duration::from_millis(20)), (0, Duration::from_millis(50))]);
    }

    #[test]
    fn time_outs_and_random_numbers_are_the_simulations() {
        let draw = || {
            let mut runtime = runtime();
            let late = Arc::new(Mutex::new(None));
            let noted = Arc::clone(&late);
            runtime.enter(0, 0);
            runtime.spawn(Box::pin(async move {
                let late = Real::timeout(Duration::from_millis(5), std::future::pending::<()>()).await;
                let ended = Real::spawn(async { 7 }).await.unwrap();
                *noted.lock().unwrap() = Some((late.is_err(), ended, rand::Rng::next_u64(&mut Real::thread_rng())));
            }));
            runtime.run(0);
            runtime.ring(4_999);
            assert!(!runtime.run(4_999) && late.lock().unwrap().is_none());
            runtime.ring(5_000);
            runtime.run(5_000);
            let (late, ended, random) = late.lock().unwrap().take().unwrap();
            assert_eq!((late, ended), (true, 7));
            random
        };
        assert_eq!(draw(), draw());
    }
}
