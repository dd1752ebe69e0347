//! A world for measurements: counts the commands that an algorithm sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::client::{Command, Result, Value};
use crate::recipes::{Live, LiveMessages, World};

/// A [`Live`] world that counts commands. A subscription counts twice, because an unsubscription follows.
#[derive(Clone)]
pub struct CountingWorld {
    live: Live,
    sent: Arc<AtomicU64>,
}

impl CountingWorld {
    /// Wraps a world, with a count of 0.
    pub fn new(live: Live) -> CountingWorld {
        CountingWorld { live, sent: Arc::default() }
    }

    /// Number of commands sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl World for CountingWorld {
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
