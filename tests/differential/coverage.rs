//! Every row of the command table is compared with Redis, or listed here with a reason.

use std::collections::{BTreeMap, BTreeSet};

use portcullis::commands;

use crate::generate::{Catalogue, Step, has};
use crate::session::calls_of;
use crate::{CALLS, SEED, rounds};

/// Rows that are not compared, by the reason.
const EXCEPTIONS: &[(&str, &[&str])] = &[
    (
        "No server to compare with has it: Redis 8.0's, 8.4's or Valkey's own.",
        &["client|capa", "delex", "delifeq", "digest", "hgetdel", "hgetex", "hsetex", "msetex", "script|show"],
    ),
    (
        "The native locks: no other server has them; tests/locks holds them against their contract.",
        &[
            "cl.throttle",
            "latch.await",
            "latch.down",
            "latch.set",
            "lock.acquire",
            "lock.acquireall",
            "lock.break",
            "lock.check",
            "lock.doctor",
            "lock.graph",
            "lock.guard",
            "lock.help",
            "lock.info",
            "lock.leaks",
            "lock.list",
            "lock.recent",
            "lock.release",
            "lock.renew",
            "lock.session",
            "lock.slowlog",
            "lock.stats",
            "lock.why",
            "sem.acquire",
            "sem.info",
            "sem.release",
            "sem.renew",
        ],
    ),
    ("How long the executor's turns took; no other server tells. tests/commands/info.rs calls it.", &["latency|turns"]),
    (
        "Tests have the clock and faults in their hands by them; no other server has that. tests/testing/mode.rs and faults.rs call them.",
        &[
            "clock|advance",
            "clock|freeze",
            "clock|help",
            "clock|info",
            "clock|resume",
            "clock|set",
            "clock|skew",
            "fault|add",
            "fault|del",
            "fault|help",
            "fault|journal",
            "fault|leaks",
            "fault|list",
            "fault|reset",
            "fault|restart",
            "fault|seed",
        ],
    ),
    (
        "There is no replication here, and these say so; a redis-server would make a replica of the client.",
        &["psync", "replconf", "sync"],
    ),
    (
        "Only replicated servers have it, as only redis-sentinel has. The unit tests compare with its replies.",
        &[
            "sentinel|ckquorum",
            "sentinel|failover",
            "sentinel|get-master-addr-by-name",
            "sentinel|help",
            "sentinel|is-master-down-by-addr",
            "sentinel|master",
            "sentinel|masters",
            "sentinel|myid",
            "sentinel|replicas",
            "sentinel|reset",
            "sentinel|sentinels",
            "sentinel|slaves",
        ],
    ),
    (
        "Members and leaders of replicated servers; no other server has it. tests/cluster/members.rs calls it.",
        &["node|add", "node|handover", "node|help", "node|remove", "node|status"],
    ),
    (
        "Refused by its handler; Redis does so before it is queued or counted, and says which directive lets modules be loaded.",
        &["module|load", "module|loadex", "module|unload"],
    ),
    ("It lists all commands of a version, which are never the same; COMMAND INFO asks about each.", &["command"]),
];

/// The full names of rows, with the version that introduced them.
fn table() -> BTreeMap<String, &'static str> {
    let mut rows = BTreeMap::new();
    for row in commands::all() {
        // Of containers only COMMAND can be called without a subcommand.
        if row.subcommands.is_empty() || row.takes(1) {
            rows.insert(row.name.to_owned(), row.since);
        }
        rows.extend(row.subcommands.iter().map(|sub| (format!("{}|{}", row.name, sub.name), sub.since)));
    }
    rows
}

/// The rows that a run of the default length calls with a valid number of arguments, and how often.
fn called(version: (u32, u32), cluster: bool) -> BTreeMap<String, usize> {
    let catalogue = Catalogue::new(version, cluster, |_| true);
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    let mut calls = 0;
    for (steps, _) in rounds(&catalogue, SEED) {
        let watched = steps.iter().filter(|step| matches!(step, Step::Watched { .. })).count();
        *found.entry("monitor".to_owned()).or_default() += watched;
        for call in steps.iter().flat_map(calls_of).filter(|call| !call.is_empty()) {
            calls += 1;
            let words: Vec<&[u8]> = call.iter().map(Vec::as_slice).collect();
            if let Ok(row) = commands::resolve(&words) {
                *found.entry(commands::full_name(row).into_owned()).or_default() += 1;
            }
        }
        if calls >= CALLS {
            break;
        }
    }
    found
}

#[test]
fn every_row_of_the_table_is_compared_or_excepted() {
    let rows = table();
    let excepted: BTreeSet<&str> = EXCEPTIONS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    let (old, newer) = (called((7, 0), false), called((7, 4), false));
    let mut wrong = Vec::new();
    for (row, since) in &rows {
        let least = [(has((7, 0), since), &old), (true, &newer)];
        let seldom = least.iter().filter(|(there, _)| *there).any(|(_, called)| called.get(row).is_none_or(|&times| times < 2));
        if seldom != excepted.contains(&row.as_str()) {
            wrong.push(format!("{row} (since {since}): {:?} and {:?} calls", old.get(row), newer.get(row)));
        }
    }
    wrong.extend(excepted.iter().filter(|name| !rows.contains_key(**name)).map(|name| format!("{name} is no row")));
    assert!(wrong.is_empty(), "neither compared nor excepted, or both:\n{}", wrong.join("\n"));
}
