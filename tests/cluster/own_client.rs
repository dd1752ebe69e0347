//! The client of this crate, which is given all nodes: it goes on at the next leader, and what it holds is held.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use portcullis::client::{Client, Command, Options, Result, Value};

use crate::nodes::Cluster;

/// Takes and releases a lock, and reads a key, until it is to end. Counts how often, and returns the longest time that this took.
async fn work(client: Client, name: String, rounds: Arc<AtomicU32>, ends: Arc<AtomicBool>) -> Result<Duration> {
    let (mut longest, mut last) = (Duration::ZERO, 0);
    while !ends.load(Ordering::Relaxed) {
        let began = Instant::now();
        let guard = client.lock(&name).wait(Duration::from_secs(30)).acquire().await?;
        assert!(guard.token() > last, "{name}: {} after {last}", guard.token());
        last = guard.token();
        guard.release().await?;
        // Without that word it fails if its leader dies before it has answered.
        client.run(Command::new("GET").arg(&name).idempotent()).await?;
        longest = longest.max(began.elapsed());
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    Ok(longest)
}

/// Waits until all have done this many rounds more.
async fn until_all_have_done(more: u32, counts: &[Arc<AtomicU32>]) {
    let counted = || counts.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let (before, began) = (counted(), Instant::now());
    while counted().iter().zip(&before).any(|(now, before)| *now < before + more) {
        assert!(began.elapsed() < Duration::from_secs(30), "{before:?} rounds became {:?}", counted());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until one client waits for a lock.
async fn until_waiting(client: &Client, name: &str) {
    loop {
        let info = client.run(Command::new("LOCK.INFO").arg(name).idempotent()).await.unwrap();
        if info.field("waiters").and_then(Value::as_array).is_some_and(|waiters| waiters.len() == 1) {
            return;
        }
    }
}

#[test]
fn the_client_follows_the_leader() {
    let mut cluster = Cluster::start();
    let nodes: Vec<String> = cluster.clients.iter().map(ToString::to_string).collect();
    let url = format!("redis://{}", nodes.join(","));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let options: Options = url.parse().unwrap();
        let client = Client::with(options.response_timeout(Duration::from_secs(30))).await.unwrap();
        let kept = client.lock("kept").lease(Duration::from_secs(15)).acquire().await.unwrap();
        let in_session = client.lock("bound").session_grace(Duration::from_secs(10)).acquire().await.unwrap();
        let (counts, ends) = ([(); 4].map(|()| Arc::new(AtomicU32::new(0))), Arc::new(AtomicBool::new(false)));
        let work = |(number, count)| work(client.clone(), format!("busy:{number}"), Arc::clone(count), Arc::clone(&ends));
        let working: Vec<_> = counts.iter().enumerate().map(|of| tokio::spawn(work(of))).collect();
        until_all_have_done(3, &counts).await;
        let leader = cluster.leader();
        cluster.kill(leader);
        until_all_have_done(3, &counts).await;
        ends.store(true, Ordering::Relaxed);
        for working in working {
            let longest = working.await.unwrap().unwrap();
            assert!(longest > Duration::from_millis(100), "nobody waited for the next leader: {longest:?}");
        }
        assert!(!kept.is_lost() && kept.check().await.unwrap(), "the guard still holds its lock");
        assert!(!in_session.is_lost() && in_session.check().await.unwrap(), "so does that of a session");
        let other = client.lock("kept").try_acquire().await.unwrap();
        assert!(other.is_none(), "it has two holders");
        // The leader hands over, and so ends the wait of a client, which goes on at the next one.
        let token = kept.token();
        let waits = client.clone();
        let waiting = tokio::spawn(async move { waits.lock("kept").wait(Duration::from_secs(20)).acquire().await });
        until_waiting(&client, "kept").await;
        assert_eq!(cluster.ask_leader(&["NODE", "HANDOVER"]), "+OK");
        until_waiting(&client, "kept").await;
        assert!(!kept.is_lost() && kept.check().await.unwrap());
        kept.release().await.unwrap();
        in_session.release().await.unwrap();
        let next = waiting.await.unwrap().unwrap();
        assert!(next.token() > token);
        next.release().await.unwrap();
    });
}
