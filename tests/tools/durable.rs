//! Durable servers in the simulator: native locks hold through restarts and power losses, and faults that are planted in
//! the server show. `PORTCULLIS_FULL_SIZE=1` runs plain commands for longer.

use std::ops::{ControlFlow, Range};

use portcullis::driver::flaw::Flaw;
use portcullis::torture::check::{Property, linear};
use portcullis::torture::plan::{Fault, Plan, Settings};
use portcullis::torture::run::{Outcome, run};
use portcullis::torture::sim::disk::Planted;
use portcullis::torture::sim::threads::Done;
use portcullis::torture::sim::{Registers, WAITING_MAX, run_registers};
use portcullis::torture::subject::Subject;

use crate::torture::program;

const MINUTE_US: u64 = 60_000_000;

/// Runs an algorithm on durable servers under these faults.
fn torture(algorithm: &str, faults: &[Fault], seed: u64, minutes: u64, planted: Planted) -> Outcome {
    let subject = Subject { durable: true, ..Subject::new(algorithm) };
    let settings = Settings { seed, faults: faults.to_vec(), durable: Some(planted), ..Settings::default() };
    let settings = subject.settings(&settings);
    run(&settings, &subject.sim_algorithm().unwrap(), 0, minutes * MINUTE_US, |_, _, _| ControlFlow::Continue(()))
}

fn violated(outcome: &Outcome) -> Vec<Property> {
    outcome.violated().map(|verdict| verdict.property).collect()
}

#[test]
fn native_locks_hold_through_restarts_and_power_losses() {
    for (seed, faults) in [
        (11, &[][..]),
        (12, &[Fault::Restart]),
        (13, &[Fault::PowerLoss]),
        (14, &[Fault::Restart, Fault::PowerLoss]),
        (15, &[Fault::Skew, Fault::Crash, Fault::Restart, Fault::Drop, Fault::Duplicate, Fault::PowerLoss]),
    ] {
        let outcome = torture("native", faults, seed, 40, Planted::Nothing);
        let first: Vec<_> = outcome.violated().filter_map(|verdict| verdict.first().cloned()).collect();
        assert_eq!(violated(&outcome), [], "{faults:?}: {first:?}");
        let checked = outcome.of(Property::Exclusion).checked;
        assert!(checked > 800, "{checked} grants under {faults:?}");
    }
}

/// A client that pauses or whose writes are late works on after its lease; the resource refuses what it writes then.
#[test]
fn under_all_faults_only_sections_overlap() {
    let outcome = torture("native", &Fault::DURABLE, 16, 60, Planted::Nothing);
    assert_eq!(violated(&outcome), [Property::Sections]);
}

/// Deadlines of keys go by the wall clock, which is set back by at most a third of a lease.
#[test]
fn locks_of_plain_commands_hold_too() {
    for algorithm in ["set-nx-px", "reentrant", "nodes"] {
        let outcome = torture(algorithm, &[Fault::Restart, Fault::PowerLoss], 17, 40, Planted::Nothing);
        let but_order: Vec<_> = violated(&outcome).into_iter().filter(|property| *property != Property::Fairness).collect();
        assert_eq!(but_order, [], "{algorithm}");
    }
}

/// Power losses seldom meet a batch that is torn within a sector, or a base without grants behind it: `tests/crash` finds those.
#[test]
fn planted_faults_show() {
    let mut missed = Vec::new();
    for (planted, minutes, expected) in
        [(Planted::OfDriver(Flaw::AcknowledgeEarly), 200, Property::Early), (Planted::NoSyncOfFolder, 20, Property::Early)]
    {
        let outcome = torture("native", &[Fault::Restart, Fault::PowerLoss], 19, minutes, planted);
        if !violated(&outcome).contains(&expected) {
            missed.push((planted, violated(&outcome)));
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
fn faults_are_planted_by_their_names() {
    for (servers, name, other) in
        [("--durable", "base-lacks-increment", "settles-ahead"), ("--replicas 3", "kept-libraries", "unsynced-vote")]
    {
        let run = |fault: &str| program(&format!("native {servers} --planted {fault} --faults none --hours 0.01"));
        assert_eq!(run(name).1, Some(0), "nothing happens that shows it");
        let (said, code) = run("nonsense");
        assert!(code == Some(2) && said.contains(name) && said.contains(other), "{said}");
    }
    let (said, code) = program("native --planted early-reply --hours 0.01");
    assert!(code == Some(2) && said.contains("with --durable or --replicas"), "{said}");
}

fn is_full_size() -> bool {
    std::env::var_os("PORTCULLIS_FULL_SIZE").is_some()
}

/// What shows a fault when clients use plain keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// Commands are not linearizable.
    NotLinear,
    /// More waits to be stored than may.
    Overload,
}

/// Runs clients that use plain keys, and returns what the first episode shows that shows anything.
fn use_registers(seed: u64, mut episodes: Range<u64>, planted: Planted) -> Option<(u64, Shown)> {
    let subject = Subject { durable: true, ..Subject::new("native") };
    let faults = vec![Fault::Restart, Fault::PowerLoss];
    let settings = Settings { seed, faults, durable: Some(planted), ..Settings::default() };
    let settings = subject.settings(&settings);
    episodes.find_map(|episode| {
        let Registers { operations, waited_max, .. } = run_registers(&Plan::draw(&settings, episode));
        assert!(operations.len() > 100, "{} operations", operations.len());
        let shown = match linear::violation(&operations) {
            Some(_) => Shown::NotLinear,
            // A command is refused because of those before it.
            None if waited_max > 2 * WAITING_MAX => Shown::Overload,
            None => return None,
        };
        Some((episode, shown))
    })
}

#[test]
fn plain_commands_are_linearizable_while_operators_change_how_servers_store() {
    let (seeds, episodes) = if is_full_size() { (5, 200) } else { (2, 4) };
    for seed in 1..=seeds {
        assert_eq!(use_registers(seed, 0..episodes, Planted::Nothing), None, "seed {seed}");
    }
}

/// The other tests judge only what happens. This one expects that it does.
#[test]
fn servers_load_files_make_bases_and_snapshots_and_switch_files_on() {
    let faults = vec![Fault::Restart, Fault::PowerLoss];
    let durable = Subject { durable: true, ..Subject::new("native") }.settings(&Settings {
        seed: 1,
        faults,
        durable: Some(Planted::Nothing),
        ..Settings::default()
    });
    let mut done = Done::default();
    (0..2).for_each(|episode| done += run_registers(&Plan::draw(&durable, episode)).done);
    let Done { snapshots, bases, files, loads } = done;
    assert!(
        snapshots > 5 && bases > 5 && files > 5 && loads > 5,
        "{snapshots} snapshots, {bases} bases, {files} files, {loads} loads"
    );
}

#[test]
fn faults_of_the_driver_show() {
    for (flaw, shown) in [
        (Flaw::SettlesAhead, Shown::NotLinear),
        (Flaw::Unbounded, Shown::Overload),
        (Flaw::SwitchLosesChanges, Shown::NotLinear),
        (Flaw::BaseLacksIncrement, Shown::NotLinear),
    ] {
        // An early episode may show something else first.
        let shows =
            |episode| use_registers(1, episode..episode + 1, Planted::OfDriver(flaw)).map(|(_, shown)| shown) == Some(shown);
        assert!((0..100).any(shows), "{flaw:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_history_of_durable_servers() {
    let digest = |seed| torture("native", &Fault::DURABLE, seed, 12, Planted::Nothing).digest;
    assert_ne!(digest(7), digest(8));
    let (said, _) = program("--algorithm native --durable --seed 7 --hours 0.2 --json - --no-shrink");
    assert!(said.contains(&format!("\"digest\": \"{:016x}\"", digest(7))), "{said}");
}

#[test]
fn the_report_says_that_servers_are_durable() {
    let (said, code) = program("--algorithm blpop --durable --faults restart,powerloss --hours 1 --no-shrink");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("blpop+durable") && said.contains("1 durable server;"), "{said}");
    assert!(said.contains("--durable --episode"), "{said}");
}
