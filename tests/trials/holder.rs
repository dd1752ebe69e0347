//! As `holder.py`, by the Rust client: `trial_holder URL PREFIX COUNT LEASE_S GRACE_S`. A grace of 0 is a session without a name.

use std::io::Read;
use std::time::Duration;

use portcullis::client::{Client, LockGuard};

fn say(what: &str, name: &str, more: &str) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    println!("{what} {name} {}.{:06} {more}", now.tv_sec, now.tv_nsec / 1000);
}

async fn acquire(client: Client, name: String, lease: f64, grace: f64) -> LockGuard {
    let lock = client.lock(&name).lease(Duration::from_secs_f64(lease)).wait(Duration::from_secs(30));
    let lock = if grace > 0.0 { lock.session_grace(Duration::from_secs_f64(grace)) } else { lock.session() };
    let guard = lock.acquire().await.expect("granted");
    say("held", &name, "");
    let lost = guard.lost();
    tokio::spawn(async move {
        let lost = lost.await;
        if lost != portcullis::client::Lost::Released {
            say("lost", &name, &lost.to_string());
        }
    });
    guard
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [url, prefix, count, lease, grace] = &words[..] else { panic!("URL PREFIX COUNT LEASE_S GRACE_S") };
    let number = |text: &str| text.parse::<f64>().expect("a number");
    let client = Client::connect(url).await.expect("a client");
    let names = (0..number(count) as usize).map(|at| format!("{prefix}:{at}"));
    let tasks: Vec<_> =
        names.map(|name| (name.clone(), tokio::spawn(acquire(client.clone(), name, number(lease), number(grace))))).collect();
    let mut guards = Vec::new();
    for (name, task) in tasks {
        guards.push((name, task.await.expect("a task")));
    }
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    ended.await.expect("a task").expect("a standard input");
    for (name, guard) in &guards {
        if !guard.is_lost() {
            say("over", name, "");
        }
    }
    for (name, guard) in guards {
        if let Err(error) = guard.release().await {
            eprintln!("{name}: {error}");
        }
    }
}
