//! The runtime that a node runs on, with openraft and the transport: tokio's, or that of a simulation on whose thread it runs.
//!
//! In a simulation, time, tasks and random numbers are the simulation's, and what would wait for a disk on a thread of its own is done
//! at once. Nothing else differs: channels and locks are tokio's, which need no runtime. A server never simulates.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::TryFutureExt;
use futures_util::future::{Either, MapErr};
use openraft::AsyncRuntime;
use openraft_rt_tokio::{TokioMpsc, TokioMutex, TokioOneshot, TokioWatch};
use rand::TryRng;
use tokio::sync::oneshot;

/// A task of a simulation.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a simulation does for the tasks that run in it.
pub trait Simulation {
    /// What the monotonic clock of the task that runs shows, from any beginning on.
    fn now(&self) -> Duration;

    /// Runs a task on the machine of the task that runs.
    fn spawn(&self, task: Task);

    /// Rings an alarm when the clock of the task that runs shows `at`.
    fn ring_at(&self, at: Duration, alarm: Arc<Alarm>);

    /// How late `sleep_until` wakes. Only openraft's tick sleeps so: it then has fewer ticks, most of which find nothing to do.
    fn tick_slack(&self) -> Duration;

    /// A random number.
    fn random(&self) -> u64;
}

thread_local! {
    static SIMULATION: RefCell<Option<(std::time::Instant, Rc<dyn Simulation>)>> = const { RefCell::new(None) };
}

/// Makes this thread the thread of a simulation, or of none.
#[cfg_attr(not(feature = "torture"), allow(dead_code))]
pub fn set_simulation(simulation: Option<Rc<dyn Simulation>>) {
    SIMULATION.set(simulation.map(|simulation| (std::time::Instant::now(), simulation)));
}

/// Asks the simulation of this thread, if there is one.
fn simulated<T>(ask: impl FnOnce(std::time::Instant, &dyn Simulation) -> T) -> Option<T> {
    SIMULATION.with_borrow(|simulation| simulation.as_ref().map(|(began, simulation)| ask(*began, &**simulation)))
}

/// Whether this thread is that of a simulation.
pub fn is_simulated() -> bool {
    simulated(|_, _| ()).is_some()
}

/// Runs what waits for a disk: at once on a thread for such work, or when it is awaited in a simulation.
///
/// # Errors
/// The work has panicked.
pub fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> impl Future<Output = io::Result<T>> + Send {
    match is_simulated() {
        true => Either::Left(async { Ok(work()) }),
        false => Either::Right(tokio::task::spawn_blocking(work).map_err(io::Error::other)),
    }
}

/// What the monotonic clock shows, from a beginning on that is the same for all threads of the process.
pub fn monotonic() -> Duration {
    static BEGAN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    simulated(|_, simulation| simulation.now()).unwrap_or_else(|| BEGAN.elapsed())
}

/// What wakes a task of a simulation at a time.
#[derive(Debug, Default)]
pub struct Alarm {
    waker: Mutex<Option<Waker>>,
}

impl Alarm {
    fn set(&self, waker: Option<&Waker>) {
        let mut known = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        match (&mut *known, waker) {
            (Some(known), Some(waker)) => known.clone_from(waker),
            (known, waker) => *known = waker.cloned(),
        }
    }

    /// Wakes the task, if it still waits.
    #[cfg_attr(not(feature = "torture"), allow(dead_code))]
    pub fn ring(&self) {
        if let Some(waker) = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            waker.wake();
        }
    }
}

/// A time of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(std::time::Instant);

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, time: Duration) -> Instant {
        Instant(self.0 + time)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        self.0 += time;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    fn sub(self, time: Duration) -> Instant {
        Instant(self.0 - time)
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, time: Duration) {
        self.0 -= time;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.0 - earlier.0
    }
}

impl Instant {
    /// What the clock shows.
    pub fn now() -> Instant {
        Instant(simulated(|began, simulation| began + simulation.now()).unwrap_or_else(std::time::Instant::now))
    }

    /// The time since then.
    pub fn elapsed(self) -> Duration {
        Instant::now().0.saturating_duration_since(self.0)
    }
}

impl openraft::Instant for Instant {
    fn now() -> Instant {
        Instant::now()
    }
}

/// Sleeps in a simulation.
pub struct SimulatedSleep {
    until: Instant,
    alarm: Option<Arc<Alarm>>,
}

impl Future for SimulatedSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let until = self.until;
        let alarm = self.alarm.get_or_insert_default();
        let is_new = Arc::strong_count(alarm) == 1;
        let now = Instant::now();
        if now >= until {
            return Poll::Ready(());
        }
        alarm.set(Some(context.waker()));
        if is_new {
            simulated(|began, simulation| simulation.ring_at(until.0 - began, Arc::clone(alarm)));
        }
        Poll::Pending
    }
}

impl Drop for SimulatedSleep {
    fn drop(&mut self) {
        if let Some(alarm) = &self.alarm {
            alarm.set(None);
        }
    }
}

/// A time-out in a simulation.
pub struct SimulatedTimeout<F> {
    future: Pin<Box<F>>,
    sleep: SimulatedSleep,
}

impl<F: Future> Future for SimulatedTimeout<F> {
    type Output = Result<F::Output, Late>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<F::Output, Late>> {
        if let Poll::Ready(output) = self.future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut self.sleep).poll(context).map(|()| Err(Late))
    }
}

/// A time-out has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late;

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it took too long")
    }
}

impl From<tokio::time::error::Elapsed> for Late {
    fn from(_: tokio::time::error::Elapsed) -> Late {
        Late
    }
}

/// Why a task has no result.
#[derive(Debug)]
pub enum JoinError {
    /// Tokio's reason.
    Tokio(tokio::task::JoinError),
    /// The machine of a simulation has ended.
    Ended,
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Tokio(error) => error.fmt(f),
            JoinError::Ended => f.write_str("the machine has ended"),
        }
    }
}

/// The result of a task.
pub enum JoinHandle<T> {
    /// Of tokio's.
    Tokio(tokio::task::JoinHandle<T>),
    /// Of a simulation's.
    Simulated(oneshot::Receiver<T>),
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        match &mut *self {
            JoinHandle::Tokio(task) => Pin::new(task).poll(context).map_err(JoinError::Tokio),
            JoinHandle::Simulated(task) => Pin::new(task).poll(context).map_err(|_| JoinError::Ended),
        }
    }
}

/// Random numbers: the thread's, or the simulation's.
pub struct Random;

impl TryRng for Random {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.number() as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.number())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.number().to_le_bytes()[..part.len()]);
        }
        Ok(())
    }
}

impl Random {
    fn number(&self) -> u64 {
        simulated(|_, simulation| simulation.random()).unwrap_or_else(|| rand::Rng::next_u64(&mut rand::rng()))
    }
}

/// A random number; in a simulation the simulation's.
pub fn random() -> u64 {
    Random.number()
}

/// Fills `bytes` with random ones: unpredictable ones, or in a simulation those that follow from its seed.
pub fn fill_random(bytes: &mut [u8]) {
    if is_simulated() { rand::Rng::fill_bytes(&mut Random, bytes) } else { rand::Rng::fill_bytes(&mut rand::rng(), bytes) }
}

/// Runs a task whose result is not used.
pub fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    drop(Runtime::spawn(future));
}

/// Sleeps for a time.
pub fn sleep(time: Duration) -> Sleep {
    Runtime::sleep(time)
}

/// A sleep.
pub type Sleep = <Runtime as AsyncRuntime>::Sleep;

/// Waits for a future, but no longer than a time.
///
/// # Errors
/// It took longer.
pub async fn timeout<T>(time: Duration, future: impl Future<Output = T>) -> Result<T, Late> {
    if is_simulated() {
        let sleep = SimulatedSleep { until: Instant::now() + time, alarm: None };
        return SimulatedTimeout { future: Box::pin(future), sleep }.await;
    }
    Ok(tokio::time::timeout(time, future).await?)
}

/// Ticks at an interval. The first tick comes at once, and after a late tick the whole interval passes.
pub struct Ticks {
    every: Duration,
    sleep: Pin<Box<Sleep>>,
}

impl Ticks {
    /// Ticks at this interval.
    pub fn new(every: Duration) -> Ticks {
        Ticks { every, sleep: Box::pin(sleep(Duration::ZERO)) }
    }

    /// Waits for the next tick. It may be dropped and called again.
    pub async fn tick(&mut self) {
        self.sleep.as_mut().await;
        self.sleep.set(sleep(self.every));
    }
}

/// The runtime.
#[derive(Debug)]
pub struct Runtime(tokio::runtime::Runtime);

impl AsyncRuntime for Runtime {
    type JoinError = JoinError;
    type JoinHandle<T: Send + 'static> = JoinHandle<T>;
    type Sleep = Either<tokio::time::Sleep, SimulatedSleep>;
    type Instant = Instant;
    type TimeoutError = Late;
    type Timeout<R, F: Future<Output = R> + Send> =
        Either<MapErr<tokio::time::Timeout<F>, fn(tokio::time::error::Elapsed) -> Late>, SimulatedTimeout<F>>;
    type ThreadLocalRng = Random;

    fn spawn<F>(future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        // The future belongs to one of the two: it is taken where it is spawned.
        let mut future = Some(future);
        let handle = simulated(|_, simulation| {
            let (sender, receiver) = oneshot::channel();
            if let Some(future) = future.take() {
                // Who has spawned it may not care for the result.
                simulation.spawn(Box::pin(async move { drop(sender.send(future.await)) }));
            }
            JoinHandle::Simulated(receiver)
        });
        match (handle, future) {
            (None, Some(future)) => JoinHandle::Tokio(tokio::spawn(future)),
            (handle, _) => handle.unwrap_or_else(|| JoinHandle::Simulated(oneshot::channel().1)),
        }
    }

    fn sleep(time: Duration) -> Self::Sleep {
        let until = Instant::now() + time;
        match is_simulated() {
            true => Either::Right(SimulatedSleep { until, alarm: None }),
            false => Either::Left(tokio::time::sleep_until(until.0.into())),
        }
    }

    fn sleep_until(until: Instant) -> Self::Sleep {
        match simulated(|_, simulation| simulation.tick_slack()) {
            Some(slack) => Either::Right(SimulatedSleep { until: until + slack, alarm: None }),
            None => Either::Left(tokio::time::sleep_until(until.0.into())),
        }
    }

    fn timeout<R, F: Future<Output = R> + Send>(time: Duration, future: F) -> Self::Timeout<R, F> {
        Self::timeout_at(Instant::now() + time, future)
    }

    fn timeout_at<R, F: Future<Output = R> + Send>(until: Instant, future: F) -> Self::Timeout<R, F> {
        match is_simulated() {
            true => {
                let sleep = SimulatedSleep { until, alarm: None };
                Either::Right(SimulatedTimeout { future: Box::pin(future), sleep })
            }
            false => Either::Left(tokio::time::timeout_at(until.0.into(), future).map_err(Late::from)),
        }
    }

    fn is_panic(error: &JoinError) -> bool {
        matches!(error, JoinError::Tokio(error) if error.is_panic())
    }

    fn thread_rng() -> Random {
        Random
    }

    type Mpsc = TokioMpsc;
    type Watch = TokioWatch;
    type Oneshot = TokioOneshot;
    type Mutex<T: Send + 'static> = TokioMutex<T>;

    #[allow(clippy::expect_used, reason = "openraft itself does not use it")]
    fn new(_threads: usize) -> Self {
        Runtime(tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}
