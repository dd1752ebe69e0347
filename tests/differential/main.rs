//! Sends generated calls of every command to Portcullis and to a real redis-server and compares the replies byte for byte.
//!
//! ```text
//!   seed ─▶ generate ─▶ steps ─┬─▶ redis-server ─▶ replies ─┐
//!                              └─▶ portcullis   ─▶ replies ─┴─▶ equal, excused by a rule (rules.rs), or a shrunk difference
//! ```
//!
//! It is skipped without a redis-server in `PATH`, and says so. Environment:
//! - `PORTCULLIS_REQUIRE_REDIS=1`: fail instead of skipping;
//! - `PORTCULLIS_DIFF_SEED`, `PORTCULLIS_DIFF_COMMANDS`: the seed and the number of calls;
//! - `PORTCULLIS_REDIS8`: a newer redis-server to compare with as well, including deadlines of hash fields;
//! - `PORTCULLIS_DIFF_SUBJECT`: a redis-server to test instead of Portcullis, which shows whether rules and generator are sound.
//!
//! Three more tests use the generated calls without a redis-server: `change_log`, `determinism` and `live_copy`. In another one, `append_only`, a
//! redis-server loads the append-only file of an engine that got them.

#[path = "../common/mod.rs"]
mod common;

mod administration;
mod append_only;
mod bending;
mod caller;
mod catalogue;
mod change_log;
mod coverage;
mod determinism;
mod generate;
mod grammar;
mod live_copy;
mod rules;
mod rules_of_administration;
mod scripts;
mod session;
mod slots;
mod steps;
mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::random::Random;
use common::servers::{Server, on_path};
use common::wire::Wire;
use generate::{Catalogue, Generator, Step};
use rules::{Why, rules};
use session::{Difference, Servers, Tally, run, show_step, shrink};

const CALLS: usize = 60_000;
/// Number of calls to clusters of one node.
const CALLS_OF_A_CLUSTER: usize = 6_000;
/// Maximum number of differences that are shrunk and shown.
const SHOWN: usize = 40;

const SEED: u64 = 20_250_101;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[test]
fn agrees_with_the_installed_redis() {
    match on_path("redis-server") {
        Some(program) => compare(&program, false),
        None if variable("PORTCULLIS_REQUIRE_REDIS").is_some() => {
            panic!("no redis-server on the PATH, and PORTCULLIS_REQUIRE_REDIS is set")
        }
        None => println!("SKIPPED: no redis-server on the PATH, nothing was compared"),
    }
}

#[test]
fn a_cluster_agrees_with_the_installed_redis() {
    match on_path("redis-server") {
        Some(program) => compare(&program, true),
        None if variable("PORTCULLIS_REQUIRE_REDIS").is_some() => {
            panic!("no redis-server on the PATH, and PORTCULLIS_REQUIRE_REDIS is set")
        }
        None => println!("SKIPPED: no redis-server on the PATH, nothing was compared"),
    }
}

#[test]
fn a_cluster_agrees_with_a_newer_redis() {
    match variable("PORTCULLIS_REDIS8") {
        Some(program) => compare(Path::new(&program), true),
        None => println!("SKIPPED: PORTCULLIS_REDIS8 names no redis-server, nothing was compared"),
    }
}

#[test]
fn agrees_with_a_newer_redis() {
    match variable("PORTCULLIS_REDIS8") {
        Some(program) => compare(Path::new(&program), false),
        None => println!("SKIPPED: PORTCULLIS_REDIS8 names no redis-server, nothing was compared"),
    }
}

/// Starts both servers, as clusters of one node if asked for, and compares them.
fn compare(program: &Path, cluster: bool) {
    let args: &[&str] = if cluster { &["--cluster-enabled", "yes"] } else { &[] };
    let mut reference = Server::redis_with(program, args).expect("the redis-server starts");
    let mut subject = match variable("PORTCULLIS_DIFF_SUBJECT") {
        Some(other) => Server::redis_with(Path::new(&other), args).expect("the other redis-server starts"),
        None => {
            let program = PathBuf::from(env!("CARGO_BIN_EXE_portcullis"));
            Server::portcullis_with(&program, &[args, &["--enable-debug-command", "yes"]].concat()).expect("portcullis starts")
        }
    };
    let version = version_of(&reference);
    let servers = Servers { reference: reference.addr, subject: subject.addr, version };
    if cluster {
        take_all_slots(&reference);
        if variable("PORTCULLIS_DIFF_SUBJECT").is_some() {
            take_all_slots(&subject);
        }
    }
    let seed = variable("PORTCULLIS_DIFF_SEED").map_or(SEED, |s| s.parse().expect("PORTCULLIS_DIFF_SEED is a number"));
    let calls = if cluster { CALLS_OF_A_CLUSTER } else { CALLS };
    let wanted = variable("PORTCULLIS_DIFF_COMMANDS").map_or(calls, |s| s.parse().expect("PORTCULLIS_DIFF_COMMANDS is a number"));

    let missing = missing_commands(servers);
    let catalogue = Catalogue::new(version, cluster, |line| !missing.contains(&line.name()));
    let mut tally = Tally::default();
    let mut found: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let mut round = 0;
    let mut fatal = None;
    for (steps, events) in rounds(&catalogue, seed).take(40 * wanted.div_ceil(100)) {
        if tally.calls >= wanted {
            break;
        }
        round += 1;
        match run(servers, &steps, events, &mut tally) {
            Ok(None) => {}
            Ok(Some(difference)) => {
                let shown = found.len() < SHOWN && !found.contains_key(&difference.signature);
                let entry = found.entry(difference.signature.clone()).or_default();
                entry.0 += 1;
                if shown {
                    entry.1 = describe(&shrink(servers, &steps, &difference, events), round, events);
                }
            }
            Err(error) => {
                let last: Vec<String> = steps.iter().rev().take(60).map(show_step).collect();
                let ended =
                    [reference.check(), subject.check()].map(|state| state.err().map(|e| e.to_string()).unwrap_or_default());
                fatal = Some(format!(
                    "round {round}: {error}\n{}\n{}\nthe steps of the round, from the last:\n  {}",
                    ended[0],
                    ended[1],
                    last.join("\n  ")
                ));
                break;
            }
        }
        if let Err(error) = reference.check() {
            fatal = Some(format!("round {round}: the reference: {error}"));
            break;
        }
        if let Err(error) = subject.check() {
            fatal = Some(format!("round {round}: {error}"));
            break;
        }
    }
    summary(version, seed, round, &tally, &missing, &found);
    if let Some(fatal) = &fatal {
        println!("FATAL: {fatal}");
    }
    assert!(fatal.is_none() && missing.is_empty() && found.is_empty(), "the servers differ: see above");
    assert!(tally.calls >= wanted, "only {} calls were compared", tally.calls);
}

/// The steps of each round, and whether keyspace events are compared in it.
fn rounds(catalogue: &Catalogue, seed: u64) -> impl Iterator<Item = (Vec<Step>, bool)> {
    (1u64..).map(move |round| {
        let mut random = Random::new(seed ^ round.wrapping_mul(0xd134_2543_de82_ef95));
        let events = random.one_in(4);
        let generator = Generator::new(catalogue, &mut random, !events);
        let steps = (0..random.range(40..=400)).map(|_| generator.step(&mut random)).collect();
        (steps, events)
    })
}

/// Makes a redis-server a cluster of one node.
fn take_all_slots(server: &Server) {
    let mut wire = Wire::connect(server.addr).expect("it accepts");
    wire.call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).expect("a reply");
    let end = Instant::now() + Duration::from_secs(20);
    while !String::from_utf8_lossy(&wire.call(&["CLUSTER", "INFO"]).expect("a reply").raw).contains("cluster_state:ok") {
        assert!(Instant::now() < end, "the cluster is not ready after 20 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn version_of(server: &Server) -> (u32, u32) {
    let info = Wire::connect(server.addr).and_then(|mut wire| wire.call(&["INFO", "server"])).expect("INFO");
    let text = String::from_utf8_lossy(&info.raw).into_owned();
    let version = text.lines().find_map(|line| line.strip_prefix("redis_version:")).expect("redis_version");
    let mut numbers = version.split('.').map(|part| part.trim().parse().unwrap_or(0));
    match (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) {
        // A build of the development branch that led to 8.0.
        (255, _) => (7, 4),
        version => version,
    }
}

/// The commands of the catalogue that the reference has and the subject does not.
fn missing_commands(servers: Servers) -> Vec<&'static str> {
    let unknown = |wire: &mut Wire, name: &str| {
        let reply = wire.call(&["COMMAND", "INFO", name]).expect("COMMAND INFO").frame;
        let listed = reply.elements().is_some_and(|e| e.len() == 1 && e[0].elements().is_some());
        // Without COMMAND, calls each command without arguments unless that would do harm.
        let harmless = !["FLUSHALL", "FLUSHDB", "RESET"].contains(&name);
        !listed && (!harmless || wire.call(&[name]).expect("a reply").frame.is_error("ERR unknown command"))
    };
    let mut reference = Wire::connect(servers.reference).expect("the reference accepts");
    let mut subject = Wire::connect(servers.subject).expect("the subject accepts");
    let mut names = Catalogue::new(servers.version, false, |_| true).names();
    names.retain(|name| !unknown(&mut reference, name) && unknown(&mut subject, name));
    names
}

fn describe((steps, difference): &(Vec<Step>, Difference), round: u64, events: bool) -> String {
    let steps: Vec<String> = steps.iter().map(show_step).collect();
    let events = if events { ", with keyspace events" } else { "" };
    format!("round {round}{events}\n    {}\n  {}", steps.join("\n    "), difference.shown)
}

fn summary(
    version: (u32, u32),
    seed: u64,
    rounds: u64,
    tally: &Tally,
    missing: &[&str],
    found: &BTreeMap<String, (usize, String)>,
) {
    println!(
        "compared with redis {}.{}: {} calls and {} events in {rounds} rounds, seed {seed}",
        version.0, version.1, tally.calls, tally.events
    );
    println!("replies that differ by rule:");
    for rule in rules() {
        let (kind, reason) = match rule.why {
            Why::Inherent(reason) => ("inherent", reason),
            Why::Version(reason) => ("version", reason),
        };
        println!("  {:6}  {} ({kind}): {reason}", tally.rules.get(rule.name).copied().unwrap_or(0), rule.name);
    }
    if !missing.is_empty() {
        println!("missing commands: {}", missing.join(" "));
    }
    for (signature, (times, shown)) in found {
        println!("DIFFERENCE ({times} times) {signature}\n  {shown}");
    }
    println!("{} kinds of differences, {} missing commands", found.len(), missing.len());
}
