//! The world of an algorithm that is measured: the live one, and how many commands were sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::client::{Command, Result, Value};
use crate::recipes::{Live, LiveMessages, World};

/// A [`Live`] world that counts what is sent: each command once, and each subscription twice, as it has an end.
#[derive(Clone)]
pub struct Counted {
    live: Live,
    sent: Arc<AtomicU64>,
}

impl Counted {
    /// Counts what is sent in this world.
    pub fn new(live: Live) -> Counted {
        Counted { live, sent: Arc::default() }
    }

    /// Commands that were sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl World for Counted {
    type Messages = LiveMessages;

    fn servers(&self) -> usize {
        self.live.servers()
    }

    async fn call(&self, server: usize, command: Command) -> Result<Value> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.live.call(server, command).await
    }

    async fn subscribe(&self, server: usize, channel: &[u8]) -> Result<LiveMessages> {
        self.sent.fetch_add(2, Ordering::Relaxed);
        self.live.subscribe(server, channel).await
    }

    async fn sleep(&self, time: Duration) {
        self.live.sleep(time).await;
    }

    fn elapsed(&self) -> Duration {
        self.live.elapsed()
    }

    fn unix_ms(&self) -> i64 {
        self.live.unix_ms()
    }

    fn random(&self) -> u64 {
        self.live.random()
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.live.spawn(task);
    }
}
