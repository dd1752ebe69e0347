//! What every Rust suite shares: where the server is, cases that report one line each, and a witness of mutual exclusion.
//! A case prints `ok NAME` or `not ok NAME: why`; the runner (`../run.py`) counts the lines.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// What a case fails with.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
/// What a case gives.
pub type Outcome = Result<(), Failure>;

fn variable(name: &str, otherwise: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| otherwise.to_owned())
}

/// The server's host.
pub fn host() -> String {
    variable("SERVER_HOST", "127.0.0.1")
}

/// Its port.
pub fn port() -> u16 {
    variable("SERVER_PORT", "6379").parse().expect("a port")
}

/// Ports of several independent servers, for RedLock.
pub fn ports() -> Vec<u16> {
    variable("SERVER_PORTS", &port().to_string()).split(',').map(|port| port.parse().expect("a port")).collect()
}

/// Whether RESP3 is to be spoken.
pub fn resp3() -> bool {
    variable("PROTOCOL", "2") == "3"
}

/// Counts the cases that failed.
#[derive(Default)]
pub struct Suite {
    failed: usize,
}

impl Suite {
    /// Runs one case.
    pub async fn case(&mut self, name: &str, work: impl Future<Output = Outcome> + Send + 'static) {
        let ended = tokio::time::timeout(Duration::from_secs(60), tokio::spawn(work)).await;
        match ended {
            Ok(Ok(Ok(()))) => println!("ok {name}"),
            Ok(Ok(Err(error))) => self.fail(name, &error.to_string()),
            Ok(Err(panic)) => self.fail(name, &panic.to_string()),
            Err(_) => self.fail(name, "took more than 60 s"),
        }
    }

    fn fail(&mut self, name: &str, why: &str) {
        println!("not ok {name}: {why}");
        self.failed += 1;
    }

    /// Ends the process, with 1 if a case failed.
    pub fn end(self) -> ! {
        std::process::exit(i32::from(self.failed > 0))
    }
}

/// A critical section that records every entry while another worker is inside.
#[derive(Default)]
pub struct Witness {
    inside: AtomicUsize,
    most: AtomicUsize,
    entries: AtomicUsize,
}

impl Witness {
    /// One visit of a millisecond.
    pub async fn visit(&self) {
        let inside = self.inside.fetch_add(1, SeqCst) + 1;
        self.entries.fetch_add(1, SeqCst);
        self.most.fetch_max(inside, SeqCst);
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.inside.fetch_sub(1, SeqCst);
    }

    /// Fails unless so many came in, one at a time.
    pub fn verdict(&self, entries: usize) -> Outcome {
        let (most, seen) = (self.most.load(SeqCst), self.entries.load(SeqCst));
        if most > 1 || seen != entries {
            return Err(format!("{most} at once, {seen} entries instead of {entries}").into());
        }
        Ok(())
    }
}

/// Fails with both values unless they are equal.
pub fn equal<T: PartialEq + std::fmt::Debug>(actual: T, expected: T) -> Outcome {
    if actual == expected { Ok(()) } else { Err(format!("{actual:?} instead of {expected:?}").into()) }
}

/// Fails unless it holds.
pub fn check(holds: bool, what: &str) -> Outcome {
    if holds { Ok(()) } else { Err(what.to_owned().into()) }
}
