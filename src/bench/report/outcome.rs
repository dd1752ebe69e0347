//! The figures of one workload on one target.

use hdrhistogram::Histogram;

use crate::bench::report::statistics::{jain, median};
use crate::bench::run::critical_section::Violations;

/// The longest time that a histogram holds, in microseconds.
const LONGEST_US: u64 = 600_000_000;

/// The figures of one workload on one target.
#[derive(Debug)]
pub struct Outcome {
    /// The workload's name.
    pub workload: String,
    /// The target's name.
    pub target: String,
    /// Why the workload was skipped, if it was.
    pub skipped: Option<String>,
    /// Runs per second, of each slice. A run is an acquisition with its release, or one run of another algorithm or command.
    pub rates: Vec<f64>,
    /// Number of runs.
    pub done: u64,
    /// Number of runs of each client.
    pub shares: Vec<u64>,
    /// Microseconds from a client's request to its grant.
    pub waits_us: Histogram<u64>,
    /// Microseconds from the start of a release to the next grant, if the next holder waited for the lock.
    pub hand_offs_us: Histogram<u64>,
    /// Number of commands that clients sent.
    pub commands: u64,
    /// Nanoseconds of CPU time that the servers used.
    pub cpu_ns: u64,
    /// The source of the CPU time: the scheduler or `INFO`.
    pub cpu_source: &'static str,
    /// Number of acquisitions that were not granted in time.
    pub refused: u64,
    /// Number of errors of servers and connections.
    pub failed: u64,
    /// The first of these errors.
    pub error: Option<String>,
    /// Violations that the critical sections saw. `None` for workloads that are no locks.
    pub violations: Option<Violations>,
    /// Microseconds from the end of a lease to the next grant, sorted. Negative if the grant came before the end.
    pub late_us: Vec<i64>,
}

impl Outcome {
    /// An outcome without figures yet.
    pub fn new(workload: &str, target: &str, clients: usize, cpu_source: &'static str) -> Outcome {
        Outcome {
            workload: workload.to_owned(),
            target: target.to_owned(),
            skipped: None,
            rates: Vec::new(),
            done: 0,
            shares: vec![0; clients],
            waits_us: histogram(),
            hand_offs_us: histogram(),
            commands: 0,
            cpu_ns: 0,
            cpu_source,
            refused: 0,
            failed: 0,
            error: None,
            violations: None,
            late_us: Vec::new(),
        }
    }

    /// Whether mutual exclusion was violated.
    pub fn is_broken(&self) -> bool {
        self.violations.is_some_and(|violations| violations != Violations::default())
    }

    /// Whether no run succeeded and there were errors.
    pub fn is_failure(&self) -> bool {
        self.done == 0 && self.failed > 0
    }

    /// Runs per second: the median of the slices.
    pub fn per_second(&self) -> f64 {
        median(&self.rates)
    }

    /// Commands per run.
    pub fn commands_each(&self) -> Option<f64> {
        self.each(self.commands)
    }

    /// Microseconds of the servers' CPU time per run.
    pub fn cpu_us_each(&self) -> Option<f64> {
        self.each(self.cpu_ns).map(|ns| ns / 1000.0)
    }

    fn each(&self, sum: u64) -> Option<f64> {
        (self.done > 0).then(|| sum as f64 / self.done as f64)
    }

    /// Jain's index of the clients' shares. `None` if there were no runs.
    pub fn fairness(&self) -> Option<f64> {
        jain(&self.shares)
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(LONGEST_US, 3).unwrap_or_else(|error| unreachable!("the bounds are constants: {error}"))
}
