//! `/metrics`: the names of redis_exporter, and the metrics of locks.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use crate::client::{Talk, builder, get, start};
use crate::common::servers::on_path;

/// What redis_exporter 1.45 exports by default from a Redis 7.0 and from this server with an append-only file: a name, a type and
/// labels in each line. One name is left out: it takes `subexpiry` for cached keys.
const NAMES: &str = include_str!("redis_exporter_names.txt");

/// A metric: its type, and all names of labels.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Metric {
    pub kind: String,
    pub labels: BTreeSet<String>,
}

/// The metrics of a text. Fails on anything that is not in their format.
#[track_caller]
pub fn parse(text: &str) -> BTreeMap<String, Metric> {
    let mut all: BTreeMap<String, Metric> = BTreeMap::new();
    let mut present = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(!all.contains_key(name), "{name} is there twice");
            all.insert(name.to_owned(), Metric { kind: kind.to_owned(), labels: BTreeSet::new() });
            present = name.to_owned();
        } else if !line.starts_with("# HELP ") {
            let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert!(value.parse::<f64>().is_ok() || value == "+Inf", "{line}");
            let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
            let ending = name.strip_prefix(&present).unwrap_or_else(|| panic!("{line} below {present}"));
            assert!(["", "_sum", "_count", "_bucket"].contains(&ending), "{line}");
            let names = labels.split("\",").filter_map(|label| label.split_once("=\"")).map(|(name, _)| name.to_owned());
            all.get_mut(&present).unwrap().labels.extend(names);
        }
    }
    all
}

/// The metrics of a server that has done a little of everything.
pub fn of_a_busy_server() -> (String, BTreeMap<String, Metric>) {
    let folder =
        std::env::temp_dir().join(format!("portcullis-http-{}-metrics-{:?}", std::process::id(), std::thread::current().id()));
    std::fs::create_dir_all(&folder).unwrap();
    let busy = builder()
        .config("appendonly", "yes")
        .config("dir", folder.to_str().unwrap())
        .config("slowlog-log-slower-than", "0")
        .config("maxmemory", "1gb");
    let (server, addr) = start(busy);
    let mut talk = Talk::to(server.addr());
    assert_eq!(talk.say("SET key value EX 100"), "+OK");
    assert!(talk.say("NOSUCH").starts_with("-ERR"));
    talk.token("LOCK.ACQUIRE door alice 60000");
    let mut waiter = Talk::to(server.addr());
    waiter.begin("LOCK.ACQUIRE door bob 60000 WAIT 60000");
    talk.until("LOCK.INFO door", "bob");
    let answer = get(addr, "/metrics");
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, Some("text/plain; version=0.0.4; charset=utf-8")),
        "{answer:?}"
    );
    drop(server);
    let _ = std::fs::remove_dir_all(&folder);
    let metrics = parse(&answer.body);
    (answer.body, metrics)
}

#[test]
fn what_redis_exporter_exports_is_there_with_its_types_and_labels() {
    let (_, ours) = of_a_busy_server();
    let lines: Vec<&str> = NAMES.lines().collect();
    assert!(lines.len() > 120, "the names are there");
    let mut missing = Vec::new();
    for line in lines {
        let mut words = line.split(' ');
        let (name, kind) = (words.next().unwrap(), words.next().unwrap());
        let theirs = Metric { kind: kind.to_owned(), labels: words.map(str::to_owned).collect() };
        if ours.get(name) != Some(&theirs) {
            missing.push(format!("{name}: {theirs:?}, here {:?}", ours.get(name)));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn values_are_those_of_the_server() {
    let (text, metrics) = of_a_busy_server();
    for line in [
        "redis_up 1",
        "redis_db_keys{db=\"db0\"} 2",
        "redis_db_keys{db=\"db15\"} 0",
        "redis_db_keys_expiring{db=\"db0\"} 2",
        "redis_config_maxmemory 1073741824",
        "redis_memory_max_bytes 1073741824",
        "redis_aof_enabled 1",
        "redis_aof_last_write_status 1",
        "redis_errors_total{err=\"ERR\"} 1",
        "redis_commands_total{cmd=\"set\"} 1",
        "redis_exporter_last_scrape_error{err=\"\"} 0",
        "portcullis_lock_waiting 1",
        "portcullis_lock_contended 1",
        "portcullis_lock_grants_total 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    let turns = &metrics["portcullis_turn_duration_seconds"];
    assert_eq!((turns.kind.as_str(), turns.labels.contains("le")), ("histogram", true));
}

#[test]
fn the_locks_that_were_waited_for_longest_have_series_of_their_own() {
    let (server, addr) = start(builder().config("http-metrics-locks", "2").frozen(true));
    let mut talk = Talk::to(server.addr());
    assert_eq!(talk.say("SELECT 3"), "+OK");
    let mut waiters = Vec::new();
    for name in ["a", "b", "c"] {
        talk.token(&format!("LOCK.ACQUIRE {name} alice 600000"));
        let mut waiter = Talk::to(server.addr());
        assert_eq!(waiter.say("SELECT 3"), "+OK");
        waiter.begin(&format!("LOCK.ACQUIRE {name} bob 600000 WAIT 600000"));
        talk.until(&format!("LOCK.INFO {name}"), "bob");
        server.clock().advance(std::time::Duration::from_secs(1));
        waiters.push(waiter);
    }
    let text = get(addr, "/metrics").body;
    for (name, seconds) in [("a", 3), ("b", 2)] {
        assert!(text.contains(&format!("portcullis_lock_oldest_wait_seconds{{db=\"3\",name=\"{name}\"}} {seconds}\n")), "{text}");
        assert!(text.contains(&format!("portcullis_lock_waiters{{db=\"3\",name=\"{name}\"}} 1\n")), "{text}");
    }
    assert!(!text.contains("name=\"c\""), "{text}");
    // No lock at all, where none is asked for.
    let (server, addr) = start(builder().config("http-metrics-locks", "0"));
    let mut talk = Talk::to(server.addr());
    talk.token("LOCK.ACQUIRE a alice 600000");
    waiters[0] = Talk::to(server.addr());
    waiters[0].begin("LOCK.ACQUIRE a bob 600000 WAIT 600000");
    talk.until("LOCK.INFO a", "bob");
    assert!(!get(addr, "/metrics").body.contains("portcullis_lock_waiters"));
}

/// The names that redis_exporter has chosen break some customs; our own break none.
#[test]
fn promtool_finds_no_fault_with_our_own_names() {
    let Some(promtool) = on_path("promtool") else { return };
    let (text, _) = of_a_busy_server();
    let mut check =
        Command::new(promtool).args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let told = String::from_utf8_lossy(&check.wait_with_output().unwrap().stderr).into_owned();
    let known: BTreeSet<&str> = NAMES.lines().filter_map(|line| line.split(' ').next()).collect();
    let ours: Vec<&str> = told.lines().filter(|line| !known.contains(line.split(' ').next().unwrap())).collect();
    assert!(ours.is_empty(), "{}", ours.join("\n"));
}
