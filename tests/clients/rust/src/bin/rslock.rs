//! rslock: RedLock over several servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use client_suites::*;
use rslock::LockManager;

fn manager() -> LockManager {
    LockManager::new(
        ports()
            .into_iter()
            .map(|port| format!("redis://{}:{port}/{}", host(), if resp3() { "?protocol=resp3" } else { "" }))
            .collect(),
    )
}

async fn exclusion() -> Outcome {
    let witness = Arc::new(Witness::default());
    let mut workers = Vec::new();
    for _ in 0..5 {
        let witness = witness.clone();
        workers.push(tokio::spawn(async move {
            let manager = manager();
            for _ in 0..5 {
                let lock = loop {
                    match manager.lock("exclusion", Duration::from_secs(10)).await {
                        Ok(lock) => break lock,
                        Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
                    }
                };
                witness.visit().await;
                manager.unlock(&lock).await;
            }
            Ok::<_, Failure>(())
        }));
    }
    for worker in workers {
        worker.await??;
    }
    witness.verdict(25)
}

async fn dead_holder() -> Outcome {
    let manager = manager();
    manager.lock("dead", Duration::from_millis(400)).await.map_err(|error| error.to_string())?;
    let start = Instant::now();
    while manager.lock("dead", Duration::from_secs(1)).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    check(start.elapsed() > Duration::from_millis(200), "too early")
}

async fn renewal() -> Outcome {
    let manager = manager();
    let mut lock = manager.lock("renewed", Duration::from_millis(500)).await.map_err(|error| error.to_string())?;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        lock = manager.extend(&lock, Duration::from_millis(500)).await.map_err(|error| error.to_string())?;
    }
    check(manager.lock("renewed", Duration::from_millis(100)).await.is_err(), "taken while it was held")?;
    manager.unlock(&lock).await;
    manager.lock("renewed", Duration::from_millis(100)).await.map_err(|error| error.to_string())?;
    Ok(())
}

#[tokio::main]
async fn main() {
    let mut suite = Suite::default();
    suite.case("mutual exclusion", exclusion()).await;
    suite.case("a dead holder is outlived", dead_holder()).await;
    suite.case("renewal", renewal()).await;
    suite.end()
}
