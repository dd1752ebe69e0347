//! fred: a lock by hand, scripts, transactions, blocking pops, pub/sub with reconnection; RESP2 and RESP3.

use std::sync::Arc;
use std::time::{Duration, Instant};

use client_suites::*;
use fred::clients::SubscriberClient;
use fred::prelude::*;
use fred::types::scripts::Script;
use fred::types::{Expiration, RespVersion, SetOptions};

const UNLOCK: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

fn builder() -> Builder {
    let version = if resp3() { RespVersion::RESP3 } else { RespVersion::RESP2 };
    let config = Config { server: ServerConfig::new_centralized(host(), port()), version, ..Config::default() };
    let mut builder = Builder::from_config(config);
    builder.set_policy(ReconnectPolicy::new_constant(20, 20));
    builder
}

async fn connect() -> Result<Client, Failure> {
    let client = builder().build()?;
    client.init().await?;
    Ok(client)
}

async fn clean() -> Result<Client, Failure> {
    let client = connect().await?;
    client.flushall::<()>(false).await?;
    Ok(client)
}

async fn acquire(client: &Client, name: &str, token: &str, lease_ms: i64) -> Result<bool, Failure> {
    let taken: Option<String> = client.set(name, token, Some(Expiration::PX(lease_ms)), Some(SetOptions::NX), false).await?;
    Ok(taken.is_some())
}

async fn exclusion() -> Outcome {
    clean().await?;
    let witness = Arc::new(Witness::default());
    let mut workers = Vec::new();
    for worker in 0..8 {
        let witness = witness.clone();
        workers.push(tokio::spawn(async move {
            let client = connect().await?;
            let (token, unlock) = (format!("w{worker}"), Script::from_lua(UNLOCK));
            unlock.load(&client).await?;
            for _ in 0..15 {
                while !acquire(&client, "lock", &token, 10_000).await? {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                witness.visit().await;
                equal(unlock.evalsha::<i64, _, _, _>(&client, vec!["lock"], vec![token.as_str()]).await?, 1)?;
            }
            Ok::<_, Failure>(())
        }));
    }
    for worker in workers {
        worker.await??;
    }
    witness.verdict(120)
}

async fn dead_holder_and_owner() -> Outcome {
    let client = clean().await?;
    check(acquire(&client, "lock", "dead", 200).await?, "taken")?;
    let unlock = Script::from_lua(UNLOCK);
    unlock.load(&client).await?;
    equal(unlock.evalsha::<i64, _, _, _>(&client, vec!["lock"], vec!["other"]).await?, 0)?;
    let start = Instant::now();
    while !acquire(&client, "lock", "next", 1000).await? {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    check(start.elapsed() > Duration::from_millis(100), "too early")
}

async fn renewal() -> Outcome {
    let client = clean().await?;
    check(acquire(&client, "lock", "me", 300).await?, "taken")?;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        equal(client.pexpire::<i64, _>("lock", 300, None).await?, 1)?;
    }
    equal(client.get::<String, _>("lock").await?, "me".to_owned())
}

async fn transactions() -> Outcome {
    let client = clean().await?;
    let transaction = client.multi();
    transaction.set::<(), _, _>("n", 1, None, None, false).await?;
    transaction.incr::<(), _>("n").await?;
    let (_, n): (String, i64) = transaction.exec(true).await?;
    equal(n, 2)
}

async fn waiting() -> Outcome {
    let client = clean().await?;
    let waiter = tokio::spawn(async move {
        let own = connect().await?;
        Ok::<(String, String), Failure>(own.blpop(vec!["jobs"], 5.0).await?)
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    client.rpush::<(), _, _>("jobs", "x").await?;
    equal(waiter.await??, ("jobs".to_owned(), "x".to_owned()))?;
    // This client reports a null reply to a blocking command as a time-out.
    match client.blpop::<Option<(String, String)>, _>(vec!["jobs"], 0.1).await {
        Err(error) if *error.kind() == fred::error::ErrorKind::Timeout => Ok(()),
        other => Err(format!("{other:?} instead of a time-out").into()),
    }
}

async fn messages() -> Outcome {
    let client = clean().await?;
    let subscriber: SubscriberClient = builder().build_subscriber_client()?;
    subscriber.init().await?;
    let mut messages = subscriber.message_rx();
    subscriber.subscribe("news").await?;
    subscriber.manage_subscriptions();
    client.publish::<(), _, _>("news", "hello").await?;
    equal(messages.recv().await?.value.convert::<String>()?, "hello".to_owned())?;
    // Killed, it reconnects and subscribes again.
    client.custom::<(), _>(fred::cmd!("CLIENT"), vec!["KILL", "TYPE", "pubsub"]).await?;
    for _ in 0..100 {
        if client.publish::<i64, _, _>("news", "again").await? == 1 {
            return equal(messages.recv().await?.value.convert::<String>()?, "again".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err("did not subscribe again".into())
}

#[tokio::main]
async fn main() {
    let mut suite = Suite::default();
    suite.case("mutual exclusion", exclusion()).await;
    suite.case("a dead holder is outlived, another owner refused", dead_holder_and_owner()).await;
    suite.case("renewal", renewal()).await;
    suite.case("transactions", transactions()).await;
    suite.case("waiting for an element", waiting()).await;
    suite.case("publish, subscribe, subscribe again", messages()).await;
    suite.end()
}
