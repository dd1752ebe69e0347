//! Crashes at every operation of the disk, under the real engine, log, gate and loader: what a client knows is there afterwards.
//!
//! ```text
//!   seed ─▶ requests, time, restarts ─▶ engine ─▶ log ─▶ SimulatedDisk: at each operation a copy that crashes in it
//!                                         │                                             │ restart, load
//!                                         └─ state after each batch ─▶ equal to one of ─┘ the last known batch or later
//! ```
//!
//! `PORTCULLIS_CRASH_SEEDS` has the number of histories in percent of the usual one; with it, all planted faults are looked for. The
//! full run of more than a million crash points:
//!
//! ```sh
//! PORTCULLIS_CRASH_SEEDS=35000 cargo test --release --test crash -- --nocapture a_crash_at_any_operation
//! ```

mod commands;
mod history;
#[path = "../common/random.rs"]
#[allow(dead_code)] // each test program uses its own part of it
mod random;
mod start;
mod state;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use history::{Outcome, history};
use portcullis::driver::flaw::Flaw;
use portcullis::torture::sim::disk::Planted;

/// Number of histories that are run by default.
const SEEDS: u64 = 3;
/// Number of histories in which a planted fault must be found.
const PLANTED_SEEDS: u64 = 60;

/// Runs histories on all cores. Returns their sums, and the first violation.
fn run(seeds: u64, planted: Planted) -> Outcome {
    let next = AtomicU64::new(0);
    let work = || {
        let mut sum = Outcome::default();
        while sum.violation.is_none() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                break;
            }
            let outcome = history(seed, planted);
            sum.points += outcome.points;
            sum.requests += outcome.requests;
            sum.replies += outcome.replies;
            sum.violation = outcome.violation;
        }
        sum
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let sums: Vec<Outcome> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a history")).collect()
    });
    let mut all = Outcome::default();
    for sum in sums {
        all.points += sum.points;
        all.requests += sum.requests;
        all.replies += sum.replies;
        all.violation = all.violation.or(sum.violation);
    }
    all
}

#[test]
fn a_crash_at_any_operation_loses_nothing_that_a_client_knows() {
    let percent = std::env::var("PORTCULLIS_CRASH_SEEDS").ok().and_then(|percent| percent.parse().ok()).unwrap_or(100);
    let seeds = (SEEDS * percent / 100).max(1);
    let began = Instant::now();
    let outcome = run(seeds, Planted::Nothing);
    println!(
        "{seeds} histories, {} crash points, {} requests, {} replies in {:.1} s",
        outcome.points,
        outcome.requests,
        outcome.replies,
        began.elapsed().as_secs_f64()
    );
    assert_eq!(outcome.violation, None);
    assert!(outcome.points > 300 * seeds, "there are crash points: {outcome:?}");
    assert!(outcome.replies > 100 * seeds, "clients are told: {outcome:?}");
}

#[test]
fn planted_faults_are_found() {
    let mut faults = vec![Planted::OfDriver(Flaw::AcknowledgeEarly), Planted::NoSyncOfFolder, Planted::NoChecksum];
    // It shows where a wall clock was set back and no record has the last token: after minutes without optimization.
    if std::env::var_os("PORTCULLIS_CRASH_SEEDS").is_some() {
        faults.push(Planted::NoTokenRecord);
    }
    for planted in faults {
        let began = Instant::now();
        let outcome = run(PLANTED_SEEDS, planted);
        println!("{planted:?} in {:.1} s: {:?}", began.elapsed().as_secs_f64(), outcome.violation);
        assert!(outcome.violation.is_some(), "{planted:?} was not found in {} crash points", outcome.points);
    }
}
