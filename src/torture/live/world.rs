//! A client's world with real servers: its connections, its wrong clocks, and its pauses.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;
use tokio::time::{Sleep, sleep_until};

use crate::client::{Command, Result, Value};
use crate::recipes::{Live, LiveMessages, World};
use crate::torture::history::{EventKind, History, Op, Trace};
use crate::torture::live::nodes::step::Step;
use crate::torture::plan::Trigger;
use crate::torture::sim::clock::Clock;
use crate::torture::traced_world::TracedWorld;

/// An action for the task that controls the run.
pub enum Action {
    /// Inject a fault, by its index in the plan, after a delay.
    Inject(u32, Duration),
    /// Restart a client.
    Start(u32),
    /// Start a server again.
    Up(u32),
    /// A step of the nodes' faults.
    Node(Step),
    /// A client has finished its jobs; with the number of its life.
    Done(u32, u32),
}

/// What all clients share.
pub struct Shared {
    /// The beginning of the run.
    pub start: Instant,
    /// The history so far.
    pub history: Mutex<History>,
    /// The queue of actions.
    pub actions: UnboundedSender<Action>,
    ops: AtomicU32,
}

/// The machine of a client, which outlives the client's crashes.
pub struct Machine {
    client: u32,
    shared: Arc<Shared>,
    servers: usize,
    clock: Mutex<Clock>,
    paused_until: Mutex<Option<Instant>>,
    /// See [`Plan::triggers`](crate::torture::plan::Plan::triggers). Triggers that fired are removed.
    triggers: Mutex<Vec<Trigger>>,
    sent: AtomicU64,
    /// Whether the next command that loses its reply is resent.
    resends: AtomicBool,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// Locks a mutex.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// The shared state of a run that begins now.
    pub fn new(actions: UnboundedSender<Action>) -> Shared {
        Shared { start: Instant::now(), history: Mutex::default(), actions, ops: AtomicU32::new(0) }
    }

    /// Time since the beginning, in microseconds.
    pub fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Records an event.
    pub fn record(&self, client: u32, kind: EventKind) {
        // The time is read under the lock, so that the history is sorted.
        let mut history = lock(&self.history);
        history.push(self.now_us(), client, kind);
    }
}

impl Machine {
    /// The machine of a client.
    pub fn new(client: u32, shared: Arc<Shared>, servers: usize, triggers: Vec<Trigger>) -> Machine {
        Machine {
            client,
            shared,
            servers,
            clock: Mutex::default(),
            paused_until: Mutex::default(),
            triggers: Mutex::new(triggers),
            sent: AtomicU64::new(0),
            resends: AtomicBool::new(false),
            tasks: Mutex::default(),
        }
    }

    /// Pauses the client until a time. Returns false if it is paused already.
    pub fn pause(&self, until: Instant) -> bool {
        let mut paused = lock(&self.paused_until);
        if paused.is_some_and(|until| until > Instant::now()) {
            return false;
        }
        *paused = Some(until);
        true
    }

    /// The client's clocks.
    pub fn clock(&self) -> MutexGuard<'_, Clock> {
        lock(&self.clock)
    }

    /// Resends the next command that loses its reply.
    pub fn resend(&self) {
        self.resends.store(true, Ordering::Relaxed);
    }

    /// Spawns a task of the client. The task ends when the client crashes, and does not run while the client pauses.
    pub fn run(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let gated = Pausable { inner: Box::pin(task), machine: Arc::clone(self), pause: None };
        let mut tasks = lock(&self.tasks);
        tasks.retain(|task| !task.is_finished());
        tasks.push(tokio::spawn(gated).abort_handle());
    }

    /// Crashes the client: aborts its tasks.
    pub fn crash(&self) {
        *lock(&self.paused_until) = None;
        lock(&self.tasks).drain(..).for_each(|task| task.abort());
    }

    fn count_sent(&self) {
        let sent = self.sent.fetch_add(1, Ordering::Relaxed) + 1;
        while let Some(trigger) = lock(&self.triggers).pop_if(|trigger| trigger.nth <= sent) {
            let after = Duration::from_micros(trigger.after_us);
            let _ = self.shared.actions.send(Action::Inject(trigger.fault, after));
        }
    }
}

/// A future that is not polled while its client pauses.
struct Pausable {
    inner: Pin<Box<dyn Future<Output = ()> + Send>>,
    machine: Arc<Machine>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Future for Pausable {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            let paused_until = *lock(&self.machine.paused_until);
            match paused_until.filter(|until| *until > Instant::now()) {
                Some(until) => self.pause = Some(Box::pin(sleep_until(until.into()))),
                None => return self.inner.as_mut().poll(context),
            }
        }
    }
}

/// The world of one life of a client.
#[derive(Clone)]
pub struct LiveWorld {
    live: Live,
    machine: Arc<Machine>,
    /// Whether a command was resent.
    resent: Arc<AtomicBool>,
}

impl LiveWorld {
    /// A world with these servers. The last one has the guarded resources.
    pub fn new(live: Live, machine: Arc<Machine>) -> LiveWorld {
        LiveWorld { live, machine, resent: Arc::default() }
    }
}

impl World for LiveWorld {
    type Messages = LiveMessages;

    fn servers(&self) -> usize {
        self.machine.servers
    }

    async fn call(&self, server: usize, command: Command) -> Result<Value> {
        self.machine.count_sent();
        let again = command.clone();
        match self.live.call(server, command).await {
            Err(error) if error.maybe_applied() && self.machine.resends.swap(false, Ordering::Relaxed) => {
                self.resent.store(true, Ordering::Relaxed);
                self.live.call(server, again).await
            }
            outcome => outcome,
        }
    }

    async fn subscribe(&self, server: usize, channel: &[u8]) -> Result<LiveMessages> {
        self.live.subscribe(server, channel).await
    }

    async fn sleep(&self, time: Duration) {
        let time = Duration::from_micros(self.machine.clock().true_duration_us(time));
        tokio::time::sleep(time).await;
    }

    fn elapsed(&self) -> Duration {
        Duration::from_micros(self.machine.clock().elapsed_us(self.machine.shared.now_us()))
    }

    fn unix_ms(&self) -> i64 {
        let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
        let clock = *self.machine.clock();
        let passed_us = self.machine.shared.now_us();
        real + (clock.elapsed_us(passed_us) as i64 - passed_us as i64) / 1000 + clock.set_by_ms
    }

    fn random(&self) -> u64 {
        self.live.random()
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.machine.run(task);
    }
}

impl TracedWorld for LiveWorld {
    fn true_us(&self) -> u64 {
        self.machine.shared.now_us()
    }

    fn true_of(&self, elapsed: Duration) -> u64 {
        self.machine.clock().true_duration_us(elapsed)
    }

    fn traced(&self) -> Self {
        LiveWorld { resent: Arc::default(), ..self.clone() }
    }

    /// The stamps stay empty: what servers did is added at the end of the run.
    fn trace(&self) -> Trace {
        Trace { resent: self.resent.load(Ordering::Relaxed), ..Trace::default() }
    }

    fn next_op(&self) -> Op {
        self.machine.shared.ops.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn record(&self, kind: EventKind) {
        self.machine.shared.record(self.machine.client, kind);
    }

    fn store(&self) -> usize {
        self.machine.servers
    }
}
