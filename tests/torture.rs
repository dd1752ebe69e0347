//! The simulator is deterministic, and what it finds of lock algorithms is what is known of them.

#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;

use portcullis::torture::plan::{Fault, Settings};
use portcullis::torture::run::{Outcome, run};
use portcullis::torture::subject::Subject;

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
