//! The `redis` crate: a lock by hand, scripts, pipelines, transactions, blocking pops, pub/sub, streams; RESP2 and RESP3.

use std::sync::Arc;
use std::time::{Duration, Instant};

use client_suites::*;
use futures_util::StreamExt;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamReadOptions, StreamReadReply};
use redis::{AsyncCommands, Script};

const UNLOCK: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

fn client() -> redis::Client {
    let protocol = if resp3() { "?protocol=resp3" } else { "" };
    redis::Client::open(format!("redis://{}:{}/{protocol}", host(), port())).expect("a url")
}

async fn connect() -> Result<MultiplexedConnection, Failure> {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(20)));
    Ok(client().get_multiplexed_async_connection_with_config(&config).await?)
}

async fn clean() -> Result<MultiplexedConnection, Failure> {
    let mut connection = connect().await?;
    redis::cmd("FLUSHALL").exec_async(&mut connection).await?;
    Ok(connection)
}

async fn acquire(connection: &mut MultiplexedConnection, name: &str, token: &str, lease_ms: u64) -> Result<bool, Failure> {
    let taken: Option<String> =
        redis::cmd("SET").arg(name).arg(token).arg("NX").arg("PX").arg(lease_ms).query_async(connection).await?;
    Ok(taken.is_some())
}

async fn exclusion() -> Outcome {
    clean().await?;
    let witness = Arc::new(Witness::default());
    let mut workers = Vec::new();
    for worker in 0..8 {
        let witness = witness.clone();
        workers.push(tokio::spawn(async move {
            let mut connection = connect().await?;
            let (token, unlock) = (format!("w{worker}"), Script::new(UNLOCK));
            for _ in 0..15 {
                while !acquire(&mut connection, "lock", &token, 10_000).await? {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                witness.visit().await;
                equal(unlock.key("lock").arg(&token).invoke_async::<i64>(&mut connection).await?, 1)?;
            }
            Ok::<_, Failure>(())
        }));
    }
    for worker in workers {
        worker.await??;
    }
    witness.verdict(120)
}

async fn dead_holder() -> Outcome {
    let mut connection = clean().await?;
    check(acquire(&mut connection, "lock", "dead", 200).await?, "taken")?;
    let start = Instant::now();
    while !acquire(&mut connection, "lock", "next", 1000).await? {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    check(start.elapsed() > Duration::from_millis(100), "too early")
}

async fn owner_and_renewal() -> Outcome {
    let mut connection = clean().await?;
    check(acquire(&mut connection, "lock", "me", 300).await?, "taken")?;
    let unlock = Script::new(UNLOCK);
    equal(unlock.key("lock").arg("you").invoke_async::<i64>(&mut connection).await?, 0)?;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        check(connection.pexpire("lock", 300).await?, "renewed")?;
    }
    equal(connection.get::<_, String>("lock").await?, "me".to_owned())
}

async fn transactions() -> Outcome {
    let mut connection = clean().await?;
    let (n, text): (i64, String) =
        redis::pipe().atomic().set("n", 1).ignore().incr("n", 1).get("n").query_async(&mut connection).await?;
    equal((n, text), (2, "2".to_owned()))?;
    let values: (i64, i64) = redis::pipe().incr("n", 1).incr("n", 1).query_async(&mut connection).await?;
    equal(values, (3, 4))?;
    redis::cmd("WATCH").arg("n").exec_async(&mut connection).await?;
    let mut other = connect().await?;
    other.set::<_, _, ()>("n", 0).await?;
    let nothing: Option<(i64,)> = redis::pipe().atomic().incr("n", 1).query_async(&mut connection).await?;
    equal(nothing, None)
}

async fn waiting() -> Outcome {
    let mut connection = clean().await?;
    let waiter = tokio::spawn(async move {
        let mut own = connect().await?;
        Ok::<(String, String), Failure>(own.blpop("jobs", 5.0).await?)
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    connection.rpush::<_, _, ()>("jobs", "x").await?;
    equal(waiter.await??, ("jobs".to_owned(), "x".to_owned()))?;
    equal(connection.blpop::<_, Option<(String, String)>>("jobs", 0.1).await?, None)
}

async fn messages() -> Outcome {
    let mut connection = clean().await?;
    let (mut sink, mut stream) = client().get_async_pubsub().await?.split();
    sink.subscribe("news").await?;
    sink.psubscribe("lock:*").await?;
    connection.publish::<_, _, ()>("news", "hello").await?;
    connection.publish::<_, _, ()>("lock:7", "free").await?;
    let first = stream.next().await.ok_or("no message")?;
    equal(first.get_payload::<String>()?, "hello".to_owned())?;
    let second = stream.next().await.ok_or("no message")?;
    equal(second.get_pattern::<String>()?, "lock:*".to_owned())?;
    equal(second.get_payload::<String>()?, "free".to_owned())
}

async fn streams() -> Outcome {
    let mut connection = clean().await?;
    connection.xgroup_create_mkstream::<_, _, _, ()>("tasks", "workers", "0").await?;
    let id: String = connection.xadd("tasks", "*", &[("n", 1)]).await?;
    let options = StreamReadOptions::default().group("workers", "w1").count(5);
    let read: StreamReadReply = connection.xread_options(&["tasks"], &[">"], &options).await?;
    equal(read.keys[0].ids[0].id.clone(), id.clone())?;
    equal(connection.xack::<_, _, _, i64>("tasks", "workers", &[id]).await?, 1)
}

async fn manager() -> Outcome {
    let mut manager = client().get_connection_manager().await?;
    manager.set::<_, _, ()>("k", "v").await?;
    let id: u64 = redis::cmd("CLIENT").arg("ID").query_async(&mut manager).await?;
    let mut other = connect().await?;
    redis::cmd("CLIENT").arg("KILL").arg("ID").arg(id).exec_async(&mut other).await?;
    for _ in 0..50 {
        if let Ok(value) = manager.get::<_, String>("k").await {
            return equal(value, "v".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err("did not come back".into())
}

#[tokio::main]
async fn main() {
    let mut suite = Suite::default();
    suite.case("mutual exclusion", exclusion()).await;
    suite.case("a dead holder is outlived", dead_holder()).await;
    suite.case("another owner is refused, a lease renewed", owner_and_renewal()).await;
    suite.case("pipelines and transactions", transactions()).await;
    suite.case("waiting for an element", waiting()).await;
    suite.case("publish and subscribe", messages()).await;
    suite.case("streams", streams()).await;
    suite.case("a killed connection comes back", manager()).await;
    suite.end()
}
