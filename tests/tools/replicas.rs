//! A replicated service in the simulator: native locks hold whatever happens to a minority, and faults that are planted in the nodes
//! show. `PORTCULLIS_FULL_SIZE=1` runs what the guide promises instead of a few minutes.

use std::ops::{ControlFlow, Range};

use portcullis::torture::check::{Property, linear};
use portcullis::torture::plan::{Fault, Plan, Replicas, Settings};
use portcullis::torture::run::{Outcome, run};
use portcullis::torture::sim::replica::Flaw;
use portcullis::torture::sim::run_registers;
use portcullis::torture::subject::Subject;

use crate::torture::program;

const MINUTE_US: u64 = 60_000_000;
/// Length of an episode, unless the tests run in full size.
const SHORT_US: u64 = 60_000_000;

fn is_full_size() -> bool {
    std::env::var_os("PORTCULLIS_FULL_SIZE").is_some()
}

fn settings(nodes: u32, faults: &[Fault], seed: u64, planted: Flaw) -> Settings {
    let subject = Subject { replicas: nodes, ..Subject::new("native") };
    let replicas = Some(Replicas { nodes, planted });
    let episode_us = if is_full_size() { Settings::default().episode_us } else { SHORT_US };
    subject.settings(&Settings { seed, faults: faults.to_vec(), replicas, episode_us, ..Settings::default() })
}

/// Runs native locks, until a property is violated if `until_violated`.
fn torture(settings: &Settings, minutes: u64, until_violated: bool) -> Outcome {
    torture_of("native", settings, minutes, until_violated)
}

/// As [`torture`], of an algorithm.
fn torture_of(algorithm: &str, settings: &Settings, minutes: u64, until_violated: bool) -> Outcome {
    let algorithm = Subject::new(algorithm).sim_algorithm().unwrap();
    run(settings, &algorithm, 0, minutes * MINUTE_US, |_, history, outcome| {
        let refused = history.text().contains("has refused its files");
        assert!(!refused, "a node refused its files or could not go on:\n{}", history.text());
        match until_violated && outcome.violated().any(|verdict| verdict.property != Property::Sections) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    })
}

fn violated(outcome: &Outcome) -> Vec<(Property, String)> {
    let of = |verdict: &portcullis::torture::run::Verdict| {
        let first = verdict.first().map(|found| format!("episode {}: {}", found.episode, found.violation.message));
        (verdict.property, first.unwrap_or_default())
    };
    outcome.violated().map(of).collect()
}

/// Clients that pause work on after their leases; the resource refuses what they write then.
fn but_sections(outcome: &Outcome) -> Vec<(Property, String)> {
    violated(outcome).into_iter().filter(|(property, _)| *property != Property::Sections).collect()
}

#[test]
fn native_locks_hold_under_all_faults_of_three_and_five_nodes() {
    let (minutes, seeds) = if is_full_size() { (20 * 60, 5) } else { (1, 1) };
    for seed in 1..=seeds {
        for nodes in [3, 5] {
            let outcome = torture(&settings(nodes, &Fault::REPLICATED, seed, Flaw::Nothing), minutes, false);
            assert_eq!(but_sections(&outcome), [], "{nodes} nodes, seed {seed}");
            let checked = outcome.of(Property::Exclusion).checked;
            assert!(checked > minutes * 2, "{checked} grants");
        }
    }
}

#[test]
fn native_locks_hold_under_each_fault() {
    let (minutes, seeds) = if is_full_size() { (10 * 60, 5) } else { (1, 1) };
    // Those that only nodes have, unless there is time.
    let faults = Fault::REPLICATED.into_iter().filter(|fault| is_full_size() || fault.is_of_nodes());
    for seed in 1..=seeds {
        for fault in faults.clone() {
            let outcome = torture(&settings(3, &[fault], seed, Flaw::Nothing), minutes, false);
            assert_eq!(but_sections(&outcome), [], "{fault}, seed {seed}");
            assert!(outcome.of(Property::Exclusion).checked > 0, "{fault}, seed {seed}");
        }
    }
}

/// The kinds of native locks that end with connections.
const SESSIONS: [&str; 2] = ["native+session", "native+named-session"];

#[test]
fn session_locks_end_early_only_when_a_leader_has_seen_their_connections_end() {
    let (minutes, seeds) = if is_full_size() { (10 * 60, 5) } else { (1, 1) };
    let cut_off = [Fault::CutOff, Fault::Stall, Fault::Crash, Fault::Drop];
    for seed in 1..=seeds {
        for algorithm in SESSIONS {
            for faults in [&cut_off[..], &Fault::REPLICATED] {
                let outcome = torture_of(algorithm, &settings(3, faults, seed, Flaw::Nothing), minutes, false);
                assert_eq!(but_sections(&outcome), [], "{algorithm}, {faults:?}, seed {seed}");
                assert!(outcome.of(Property::Exclusion).checked > 0, "{algorithm}, {faults:?}, seed {seed}");
            }
        }
    }
}

#[test]
fn leaders_that_end_sessions_unseen_or_leave_waiters_are_found() {
    for (algorithm, flaw, property) in
        [("native+session", Flaw::SessionsEnded, Property::Early), ("native", Flaw::WaitersLeft, Property::Stuck)]
    {
        let outcome = torture_of(algorithm, &settings(3, &[Fault::CutOff], 1, flaw), 60, true);
        assert!(outcome.violated().any(|verdict| verdict.property == property), "{flaw:?}: {:?}", but_sections(&outcome));
    }
}

#[test]
fn planted_faults_show() {
    let mut missed = Vec::new();
    // With a seed that shows them soon.
    for (flaw, faults) in [
        (Flaw::AcknowledgeBeforeMajority, &[Fault::Partition][..]),
        (Flaw::FollowerAnswers, &[Fault::Restart, Fault::Partition]),
        (Flaw::TokenFromClock, &[Fault::Skew, Fault::Restart, Fault::Partition]),
        (Flaw::LeaseNotShifted, &[Fault::Restart, Fault::Partition]),
        (Flaw::HungDiskLeads, &[Fault::HungDisk]),
    ] {
        let outcome = torture(&settings(3, faults, 1, flaw), 60, true);
        if but_sections(&outcome).is_empty() {
            missed.push(flaw);
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// A node of another cluster whose log is longer overwrites what was agreed on, or openraft finds that and ends the process.
#[test]
fn nodes_that_do_not_look_at_ids_of_clusters_show() {
    let found = std::thread::spawn(|| {
        let outcome = torture(&settings(3, &[Fault::Foreign], 1, Flaw::AnyCluster), 60, true);
        !but_sections(&outcome).is_empty()
    });
    assert!(found.join().unwrap_or(true));
}

#[test]
fn the_same_seed_gives_the_same_history_of_nodes() {
    let digest = torture(&settings(3, &Fault::REPLICATED, 7, Flaw::Nothing), 1, false).digest;
    let episode_s = if is_full_size() { 300 } else { 60 };
    let arguments = format!("--algorithm native --replicas 3 --seed 7 --hours 0.01 --episode-s {episode_s} --json - --no-shrink");
    let (said, _) = program(&arguments);
    assert!(said.contains(&format!("\"digest\": \"{digest:016x}\"")), "{said}");
}

/// The first episode in which plain commands were not linearizable, if there is one.
fn not_linear(faults: &[Fault], nodes: u32, seed: u64, mut episodes: Range<u64>, planted: Flaw) -> Option<u64> {
    let settings = settings(nodes, faults, seed, planted);
    episodes.find(|episode| {
        let operations = run_registers(&Plan::draw(&settings, *episode)).operations;
        assert!(operations.len() > 100, "{} operations", operations.len());
        linear::violation(&operations).is_some()
    })
}

#[test]
fn plain_commands_are_linearizable() {
    let (episodes, seeds) = if is_full_size() { (120, 5) } else { (1, 1) };
    // A client library that sends a command twice has it carried out twice.
    let faults: Vec<Fault> = Fault::REPLICATED.into_iter().filter(|fault| *fault != Fault::Duplicate).collect();
    for seed in 1..=seeds {
        for nodes in if is_full_size() { &[3, 5][..] } else { &[3] } {
            assert_eq!(not_linear(&faults, *nodes, seed, 0..episodes, Flaw::Nothing), None, "seed {seed}, {nodes} nodes");
        }
        // The same process leads more than once: what it has kept of its first leadership shows.
        assert_eq!(
            not_linear(&[Fault::Stall], 3, seed, 0..episodes.max(3), Flaw::Nothing),
            None,
            "seed {seed}, nodes that stand still"
        );
        if is_full_size() {
            assert_eq!(not_linear(&[Fault::Partition], 3, seed, 0..episodes, Flaw::Nothing), None, "seed {seed}, partitions");
        }
    }
}

#[test]
fn a_node_that_keeps_libraries_when_it_ceases_to_lead_is_found() {
    assert!(not_linear(&[Fault::Stall, Fault::CutOff], 3, 1, 0..60, Flaw::LibrariesKept).is_some());
}
