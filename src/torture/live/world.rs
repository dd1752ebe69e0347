//! A client's view of real servers: its own connections and wrong clocks, and pauses in which nothing of it runs.

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
use crate::torture::arena::Arena;
use crate::torture::history::{History, Op, Trace, What};
use crate::torture::sim::clock::Clock;

/// What is to happen, to whoever looks after all.
pub enum Order {
    /// A fault, by its number in the plan, after so long.
    Harm(u32, Duration),
    /// A client starts again.
    Start(u32),
    /// A server does.
    Up(u32),
    /// A client has nothing more to do, in this of its lives.
    Done(u32, u32),
}

/// What all clients share.
pub struct Shared {
    /// When it began.
    pub start: Instant,
    /// What has happened.
    pub history: Mutex<History>,
    /// What is to happen.
    pub orders: UnboundedSender<Order>,
    ops: AtomicU32,
}

/// What belongs to a client also when it starts again.
pub struct Machine {
    client: u32,
    shared: Arc<Shared>,
    servers: usize,
    clock: Mutex<Clock>,
    paused_until: Mutex<Option<Instant>>,
    /// What is to go wrong after so many commands: their number, when, and which fault; the first last.
    triggers: Mutex<Vec<(u64, Duration, u32)>>,
    sent: AtomicU64,
    /// The next command whose reply is lost is sent again.
    resends: AtomicBool,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// Locks for a moment.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Begins now.
    pub fn new(orders: UnboundedSender<Order>) -> Shared {
        Shared { start: Instant::now(), history: Mutex::default(), orders, ops: AtomicU32::new(0) }
    }

    /// Time since the beginning.
    pub fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Notes what happens now.
    pub fn record(&self, client: u32, what: What) {
        // The time is taken under the lock, so that the history is in its order.
        let mut history = lock(&self.history);
        history.push(self.now_us(), client, what);
    }
}

impl Machine {
    /// A client's.
    pub fn new(client: u32, shared: Arc<Shared>, servers: usize, triggers: Vec<(u64, Duration, u32)>) -> Machine {
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

    /// Nothing of it runs until then. False where it pauses already.
    pub fn pause(&self, until: Instant) -> bool {
        let mut paused = lock(&self.paused_until);
        if paused.is_some_and(|until| until > Instant::now()) {
            return false;
        }
        *paused = Some(until);
        true
    }

    /// Its clocks.
    pub fn clock(&self) -> MutexGuard<'_, Clock> {
        lock(&self.clock)
    }

    /// The next command whose reply is lost is sent again.
    pub fn resend(&self) {
        self.resends.store(true, Ordering::Relaxed);
    }

    /// Runs something of it, until it ends or the client crashes.
    pub fn run(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let gated = Gated { inner: Box::pin(task), machine: Arc::clone(self), pause: None };
        let mut tasks = lock(&self.tasks);
        tasks.retain(|task| !task.is_finished());
        tasks.push(tokio::spawn(gated).abort_handle());
    }

    /// Nothing of it goes on.
    pub fn crash(&self) {
        *lock(&self.paused_until) = None;
        lock(&self.tasks).drain(..).for_each(|task| task.abort());
    }

    fn count_sent(&self) {
        let sent = self.sent.fetch_add(1, Ordering::Relaxed) + 1;
        while let Some((_, after, fault)) = lock(&self.triggers).pop_if(|(nth, ..)| *nth <= sent) {
            let _ = self.shared.orders.send(Order::Harm(fault, after));
        }
    }
}

/// Something that does not run while its client pauses.
struct Gated {
    inner: Pin<Box<dyn Future<Output = ()> + Send>>,
    machine: Arc<Machine>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Future for Gated {
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

/// One life of a client.
#[derive(Clone)]
pub struct LiveWorld {
    live: Live,
    machine: Arc<Machine>,
    /// Whether a command was sent again.
    resent: Arc<AtomicBool>,
}

impl LiveWorld {
    /// On these servers, of which the last has the guarded resources.
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

impl Arena for LiveWorld {
    fn true_us(&self) -> u64 {
        self.machine.shared.now_us()
    }

    fn true_of(&self, elapsed: Duration) -> u64 {
        self.machine.clock().true_duration_us(elapsed)
    }

    fn traced(&self) -> Self {
        LiveWorld { resent: Arc::default(), ..self.clone() }
    }

    /// What servers do, and in which order, is theirs to know.
    fn trace(&self) -> Trace {
        Trace { resent: self.resent.load(Ordering::Relaxed), ..Trace::default() }
    }

    fn next_op(&self) -> Op {
        self.machine.shared.ops.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn record(&self, what: What) {
        self.machine.shared.record(self.machine.client, what);
    }

    fn store(&self) -> usize {
        self.machine.servers
    }
}
