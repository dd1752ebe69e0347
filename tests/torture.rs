//! The simulator is deterministic, and what it finds of lock algorithms is what is known of them.

#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;

use portcullis::torture::check::Property;
use portcullis::torture::plan::{Fault, Plan, Settings};
use portcullis::torture::run::{self, Outcome, run};
use portcullis::torture::shrink::shrink;
use portcullis::torture::subject::Subject;
use portcullis::torture::timeline;

const HOUR_US: u64 = 3_600_000_000;

/// A run of an algorithm with these faults, for so many simulated minutes.
fn torture(label: &str, faults: &[Fault], seed: u64, minutes: u64) -> Outcome {
    let subject = Subject::labelled(label);
    let settings = subject.settings(&Settings { seed, faults: faults.to_vec(), ..Settings::default() });
    run(&settings, &subject.simulated().unwrap(), 0, minutes * HOUR_US / 60, |_, _, _| ControlFlow::Continue(()))
}

/// The digest of all that happens in a few episodes in which everything goes wrong.
fn digest(label: &str, seed: u64) -> u64 {
    torture(label, &Fault::ALL, seed, 12).digest
}

#[test]
fn the_same_seed_gives_the_same_history_byte_for_byte() {
    for label in ["set-nx-px", "redlock", "native", "blpop"] {
        assert_eq!(digest(label, 7), digest(label, 7), "{label}");
        assert_ne!(digest(label, 7), digest(label, 8), "{label}");
    }
    // And in another process.
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_portcullis"))
        .args(["torture", "--algorithm", "redlock", "--seed", "7", "--hours", "0.2", "--json", "--no-shrink"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains(&format!("\"digest\":\"{:016x}\"", digest("redlock", 7))), "{said}");
}

/// Asserts that these are violated and those are not.
#[track_caller]
fn known(label: &str, fault: Fault, seed: u64, minutes: u64, violated: &[Property], holds: &[Property]) {
    let outcome = torture(label, &[fault], seed, minutes);
    for property in violated {
        assert_ne!(outcome.of(*property).violations, 0, "{label} under {fault} is known to violate {property}");
    }
    for property in holds {
        let verdict = outcome.of(*property);
        assert_ne!(verdict.checked, 0, "{property}");
        assert_eq!(verdict.violations, 0, "{label} under {fault}: {:?}", verdict.first);
    }
}

#[test]
fn plain_setnx_is_stuck_after_a_crash() {
    known("setnx", Fault::Crash, 1, 6, &[Property::Stuck], &[Property::Exclusion]);
    known("set-nx-px", Fault::Crash, 1, 6, &[], &[Property::Stuck, Property::Late]);
}

#[test]
fn setnx_with_getset_breaks_under_skew() {
    known("setnx-getset", Fault::Skew, 1, 6, &[Property::Exclusion, Property::Sections], &[]);
    known("set-nx-px", Fault::Skew, 1, 6, &[], &[Property::Exclusion, Property::Sections]);
}

#[test]
fn del_without_a_check_releases_what_another_holds_after_a_pause() {
    known("set-nx-px-del", Fault::Pause, 1, 6, &[Property::Release], &[]);
}

#[test]
fn compare_and_delete_keeps_the_servers_order_but_sections_overlap_after_a_pause() {
    let holds = [Property::Exclusion, Property::Release, Property::Early];
    known("set-nx-px", Fault::Pause, 1, 6, &[Property::Sections], &holds);
}

#[test]
fn fencing_stops_the_stale_write() {
    let (of_pauses, seed) = (Fault::Pause, 1);
    known("native+unfenced", of_pauses, seed, 12, &[Property::Sections, Property::Writes], &[Property::Tokens]);
    known("native", of_pauses, seed, 12, &[Property::Sections], &[Property::Writes, Property::Tokens]);
}

#[test]
fn a_server_that_loses_its_last_writes_breaks_exclusion() {
    known("set-nx-px", Fault::Lose, 1, 12, &[Property::Exclusion, Property::Early], &[]);
}

#[test]
fn redlock_survives_a_server_that_loses_all_only_when_it_comes_back_after_a_lease() {
    known("redlock", Fault::Restart, 1, 6, &[Property::Exclusion], &[]);
    known("redlock+delayed", Fault::Restart, 1, 6, &[], &[Property::Exclusion, Property::Sections]);
}

#[test]
fn native_locks_never_accept_a_stale_write() {
    let outcome = torture("native", &Fault::ALL, 1, 60);
    let of = |property| outcome.of(property);
    assert!(of(Property::Sections).violations > 0 && of(Property::Exclusion).violations > 0, "all goes wrong");
    assert!(of(Property::Writes).checked > 1_000);
    assert_eq!((of(Property::Writes).violations, of(Property::Tokens).violations), (0, 0));
}

#[test]
fn nothing_is_violated_where_nothing_goes_wrong() {
    for label in ["native", "blpop"] {
        assert_eq!(torture(label, &[], 1, 6).violated().count(), 0, "{label}");
    }
}

#[test]
fn a_violation_is_shrunk_to_what_matters_and_drawn() {
    let subject = Subject::new("set-nx-px");
    let settings = subject.settings(&Settings { faults: vec![Fault::Pause], ..Settings::default() });
    let algorithm = subject.simulated().unwrap();
    let rules = run::rules(&settings, &algorithm);
    let shown = shrink(&Plan::draw(&settings, 0), &algorithm, &rules, Property::Sections, 300).unwrap();
    assert_eq!((shown.plan.wishes(), shown.plan.faults.len()), (2, 1), "two who want it, and a pause");
    let again = shrink(&shown.plan, &algorithm, &rules, Property::Sections, 1).unwrap();
    assert_eq!(again.history, shown.history);
    let page = timeline::page("set-nx-px", &shown.history, Some(&shown.violation), "again");
    assert!(page.contains("class=\"bad\"") && page.contains("class=\"pause\"") && page.contains("violated</text>"));
    assert!(!page.contains("http") && !page.contains("<script"), "it needs nothing else");
}
