//! The real world: clients of servers, the clocks of this machine, and tokio.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::client::{Client, Command, Message, Result, Subscription, Value};
use crate::recipes::world::{Messages, World};

/// Clients of one or more servers.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> portcullis::client::Result<()> {
/// # let server = portcullis::TestServer::start();
/// use std::time::Duration;
/// use portcullis::client::Client;
/// use portcullis::recipes::{Algorithm, Live, ReleaseOutcome, Request, Token};
///
/// let world = Live::new([Client::connect(&server.url()).await?]);
/// let (alice, bob) = (Request::new("door", "alice", Duration::from_secs(30)), Request::new("door", "bob", Duration::from_secs(30)));
/// let lock = Token::default();
/// let grant = lock.acquire(&world, &alice).await?.expect("the lock is free");
/// assert!(lock.acquire(&world, &bob).await?.is_none());
/// assert_eq!(lock.release(&world, &grant).await?, ReleaseOutcome::Released);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Live {
    shared: Arc<Shared>,
}

struct Shared {
    clients: Vec<Client>,
    /// For each server, subscriptions without channels that are kept for reuse.
    idle: Vec<Mutex<Vec<Subscription>>>,
    start: Instant,
    /// State of the SplitMix64 generator.
    random: AtomicU64,
}

impl Live {
    /// A world of these servers. Only algorithms for several servers use more than the first.
    ///
    /// # Panics
    /// If there is no server.
    pub fn new(clients: impl IntoIterator<Item = Client>) -> Live {
        let clients: Vec<Client> = clients.into_iter().collect();
        assert!(!clients.is_empty(), "a world has at least one server");
        // Without the system's randomness, an address and the clock suffice, because random numbers only spread pauses.
        let seed = getrandom::u64().unwrap_or_else(|_| clients.as_ptr() as u64 ^ unix_ns());
        let idle = clients.iter().map(|_| Mutex::default()).collect();
        Live { shared: Arc::new(Shared { clients, idle, start: Instant::now(), random: AtomicU64::new(seed) }) }
    }

    fn idle(&self, server: usize) -> MutexGuard<'_, Vec<Subscription>> {
        self.shared.idle[server].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client of one server.
    pub fn client(&self, server: usize) -> &Client {
        &self.shared.clients[server]
    }
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl World for Live {
    type Messages = LiveMessages;

    fn servers(&self) -> usize {
        self.shared.clients.len()
    }

    async fn call(&self, server: usize, command: Command) -> Result<Value> {
        self.shared.clients[server].run(command).await
    }

    async fn subscribe(&self, server: usize, channel: &[u8]) -> Result<LiveMessages> {
        let idle = self.idle(server).pop();
        let subscription = match idle {
            Some(mut subscription) => match subscription.listen_to(&[channel]).await {
                Ok(()) => subscription,
                Err(_) => self.shared.clients[server].subscribe(&[channel]).await?,
            },
            None => self.shared.clients[server].subscribe(&[channel]).await?,
        };
        Ok(LiveMessages { subscription: Some(subscription), world: self.clone(), server })
    }

    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn elapsed(&self) -> Duration {
        self.shared.start.elapsed()
    }

    fn unix_ms(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms),
        }
    }

    /// The next number of the SplitMix64 generator.
    fn random(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.shared.random.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        // If the runtime has shut down, the task does not run.
        self.shared.clients[0].core.runtime.spawn(task);
    }
}

/// A subscription of a [`Live`] world. Dropping it keeps its connection for the next subscription.
pub struct LiveMessages {
    subscription: Option<Subscription>,
    world: Live,
    server: usize,
}

impl Messages for LiveMessages {
    async fn next(&mut self) -> Result<Message> {
        if let Some(subscription) = &mut self.subscription { subscription.next().await } else { std::future::pending().await }
    }
}

impl Drop for LiveMessages {
    fn drop(&mut self) {
        let Some(mut subscription) = self.subscription.take().filter(Subscription::is_connected) else { return };
        let (world, server) = (self.world.clone(), self.server);
        self.world.spawn(async move {
            if subscription.listen_to(&[] as &[&[u8]; 0]).await.is_ok() {
                world.idle(server).push(subscription);
            }
        });
    }
}
