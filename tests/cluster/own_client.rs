//! The client of this crate, which is given all nodes: it goes on at the next leader, and what it holds is held.

use std::time::{Duration, Instant};

use portcullis::client::{Client, Command, Options, Result, Value};

use crate::nodes::Cluster;

/// Takes and releases a lock, and reads a key, until `ends`. Returns how often, and the longest time that this took.
async fn work(client: Client, name: String, ends: Instant) -> Result<(u32, Duration)> {
    let (mut rounds, mut longest, mut last) = (0, Duration::ZERO, 0);
    while Instant::now() < ends {
        let began = Instant::now();
        let guard = client.lock(&name).wait(Duration::from_secs(10)).acquire().await?;
        assert!(guard.token() > last, "{name}: {} after {last}", guard.token());
        last = guard.token();
        guard.release().await?;
        // Without that word it fails if its leader dies before it has answered.
        client.run(Command::new("GET").arg(&name).idempotent()).await?;
        (rounds, longest) = (rounds + 1, longest.max(began.elapsed()));
    }
    Ok((rounds, longest))
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
        let client = Client::with(options.response_timeout(Duration::from_secs(5))).await.unwrap();
        let kept = client.lock("kept").lease(Duration::from_secs(5)).acquire().await.unwrap();
        let in_session = client.lock("bound").session_grace(Duration::from_secs(10)).acquire().await.unwrap();
        let ends = Instant::now() + Duration::from_millis(2500);
        let working: Vec<_> = (0..4).map(|number| tokio::spawn(work(client.clone(), format!("busy:{number}"), ends))).collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let leader = cluster.leader();
        cluster.kill(leader);
        for working in working {
            let (rounds, longest) = working.await.unwrap().unwrap();
            assert!(rounds > 5, "{rounds} rounds");
            assert!(longest > Duration::from_millis(100) && longest < Duration::from_secs(10), "{longest:?}");
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
