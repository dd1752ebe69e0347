//! Helpers for the tests of the client.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portcullis::TestServer;
use portcullis::client::{Client, Command, Options, Value};

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Runs a test with a time limit of a minute.
pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(60), test).await.expect("it ends");
    });
}

pub fn options(addr: SocketAddr) -> Options {
    format!("redis://{addr}").parse().expect("options")
}

pub fn frozen() -> TestServer {
    TestServer::builder().frozen(true).start()
}

pub async fn client(server: &TestServer) -> Client {
    Client::connect(&server.url()).await.expect("a client")
}

/// A number from `LOCK.INFO` about the first holder.
pub async fn of_holder(client: &Client, name: &str, field: &str) -> Option<i64> {
    let info = client.command(&["LOCK.INFO", name]).await.expect("a reply");
    info.field("holders")?.as_array()?.first()?.field(field)?.as_integer()
}

/// Waits until a lock has this number of waiters.
pub async fn until_waiting(client: &Client, name: &str, count: usize) {
    loop {
        let info = client.command(&["LOCK.INFO", name]).await.expect("a reply");
        let waiters = info.field("waiters").and_then(Value::as_array).map_or(0, <[Value]>::len);
        if waiters == count {
            return;
        }
        tokio::time::sleep(ms(1)).await;
    }
}

/// Waits until a server has no keys.
pub async fn until_empty(server: &TestServer) {
    let begin = Instant::now();
    while server.dbsize() != 0 {
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", server.execute(&["LOCK.LIST"]));
        tokio::time::sleep(ms(1)).await;
    }
}

/// Waits until this number of connections is blocked on the server.
pub async fn until_blocked(client: &Client, count: usize) {
    loop {
        let info: String = client.query(Command::new("INFO").arg("clients")).await.expect("a reply");
        if info.lines().any(|line| line.trim_end() == format!("blocked_clients:{count}")) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
