//! redis-rs finds the leader of replicated nodes: its asynchronous cluster client, in RESP2 and RESP3. It works, its leader is killed, and
//! it goes on. The runner (`../nodes.py`) kills the leaders when all suites have said `ready`, and says `killed`.
//!
//! Its `SentinelClient` does not work here: it asks each Sentinel for its `ROLE`, and wants a port that answers `sentinel` and nothing else.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use client_suites::{Failure, Outcome};
use redis::cluster::ClusterClientBuilder;
use redis::{Cmd, ProtocolVersion, Value};
use tokio::io::AsyncBufReadExt;
use tokio::sync::mpsc;

const LEASE_MS: u64 = 600_000;
/// How long a request is repeated when the client gives up.
const PATIENCE: Duration = Duration::from_secs(5);

type Called = Pin<Box<dyn Future<Output = Result<Value, redis::RedisError>> + Send>>;
/// Sends a request by a client.
type Call = Arc<dyn Fn(Cmd) -> Called + Send + Sync>;

fn ports(name: &str) -> Vec<u16> {
    std::env::var(name).expect(name).split(',').map(|port| port.parse().expect("a port")).collect()
}

/// Repeats a request when the client gives up. It must have an id, or do no harm the second time.
async fn call(client: &Call, words: &[&str]) -> Result<Value, Failure> {
    let began = Instant::now();
    loop {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| _ = command.arg(*word));
        match client(command).await {
            Ok(reply) => return Ok(reply),
            Err(error) if began.elapsed() > PATIENCE => return Err(format!("{words:?}: {error}").into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

fn number(reply: &Value) -> Result<i64, Failure> {
    if let Value::Int(number) = reply { Ok(*number) } else { Err(format!("{reply:?} is no number").into()) }
}

fn check(condition: bool, what: &str) -> Outcome {
    if condition { Ok(()) } else { Err(what.into()) }
}

/// Takes and releases locks before the kill and after it. Returns the longest time that this took.
async fn drive(name: &str, client: Call, ready: mpsc::Sender<()>, killed: &AtomicBool) -> Result<Duration, Failure> {
    let [kept, busy, plain] = ["kept", "busy", "plain"].map(|what| format!("{what}:redis-rs:{name}"));
    let lease = LEASE_MS.to_string();
    let token = number(&call(&client, &["LOCK.ACQUIRE", &kept, "me", &lease, "REQUEST", "1"]).await?)?;
    call(&client, &["SET", &plain, "value"]).await?;
    let (mut last, mut after, mut longest, mut round) = (token, 0, Duration::ZERO, 0);
    while after < 20 {
        let (began, late) = (Instant::now(), killed.load(SeqCst));
        round += 1;
        let (acquire, release) = (format!("a{round}"), format!("r{round}"));
        let next = number(&call(&client, &["LOCK.ACQUIRE", &busy, "me", &lease, "REQUEST", &acquire]).await?)?;
        check(next > last, "a token does not grow")?;
        last = next;
        let released = call(&client, &["LOCK.RELEASE", &busy, "me", "TOKEN", &last.to_string(), "REQUEST", &release]).await?;
        check(released == Value::Int(0), "a release has left a hold")?;
        longest = longest.max(began.elapsed());
        if round == 5 {
            ready.send(()).await?;
        }
        after += u32::from(late);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let token = token.to_string();
    check(call(&client, &["LOCK.CHECK", &kept, &token]).await? == Value::Int(1), "the grant is lost")?;
    check(call(&client, &["LOCK.ACQUIRE", &kept, "other", "1000"]).await? == Value::Nil, "it has two holders")?;
    check(call(&client, &["LOCK.RELEASE", &kept, "me", "TOKEN", &token]).await? == Value::Int(0), "it was not released")?;
    check(number(&call(&client, &["LOCK.ACQUIRE", &kept, "other", "1000"]).await?)? > last, "a token does not grow")?;
    check(call(&client, &["GET", &plain]).await? == Value::BulkString(b"value".to_vec()), "a value is lost")?;
    Ok(longest)
}

async fn by_slots(protocol: ProtocolVersion) -> Result<Call, Failure> {
    let nodes: Vec<String> = ports("CLUSTER_PORTS").into_iter().map(|port| format!("redis://127.0.0.1:{port}")).collect();
    let client = ClusterClientBuilder::new(nodes).use_protocol(protocol).build()?;
    let connection = client.get_async_connection().await?;
    Ok(Arc::new(move |command| {
        let mut connection = connection.clone();
        Box::pin(async move { command.query_async(&mut connection).await })
    }))
}

#[tokio::main]
async fn main() -> Outcome {
    let killed: &'static AtomicBool = Box::leak(Box::default());
    tokio::spawn(async {
        let mut lines = tokio::io::BufReader::new(tokio::io::stdin()).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            killed.fetch_or(line == "killed", SeqCst);
        }
    });
    let clients =
        [("cluster RESP2", by_slots(ProtocolVersion::RESP2).await?), ("cluster RESP3", by_slots(ProtocolVersion::RESP3).await?)];
    let (sender, mut ready) = mpsc::channel(clients.len());
    let count = clients.len();
    let driven = clients.map(|(name, client)| {
        let sender = sender.clone();
        tokio::spawn(async move {
            let outcome = drive(name, client, sender.clone(), killed).await;
            let _ = sender.try_send(());
            (name, outcome)
        })
    });
    for _ in 0..count {
        ready.recv().await;
    }
    println!("ready");
    let mut failed = false;
    for task in driven {
        match task.await? {
            (name, Ok(longest)) => println!("ok {name} ({:.1} s without a reply)", longest.as_secs_f64()),
            (name, Err(error)) => {
                println!("not ok {name}: {error}");
                failed = true;
            }
        }
    }
    std::process::exit(i32::from(failed));
}
