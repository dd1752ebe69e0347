//! The outcomes as JSON, for programs.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::bench::plan::Plan;
use crate::bench::report::outcome::Outcome;
use crate::bench::report::run_facts::RunFacts;
use crate::bench::report::statistics::quantile;
use crate::recipes::facts as facts_of;

/// The document with the outcomes, and the parts of the plan that they depend on.
pub fn document(plan: &Plan, outcomes: &[Outcome], facts: &RunFacts) -> Value {
    let settings = json!({
        "clients": plan.clients,
        "locks": plan.locks,
        "slices": plan.slices,
        "slice_ms": ms(plan.slice),
        "hold_ms": ms(plan.hold),
        "lease_ms": ms(plan.lease),
    });
    facts.document("bench", &settings, &outcomes.iter().map(outcome).collect::<Vec<_>>())
}

fn ms(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn outcome(outcome: &Outcome) -> Value {
    if let Some(reason) = &outcome.skipped {
        return json!({ "workload": outcome.workload, "server": outcome.target, "skipped": reason });
    }
    // A plain command is no algorithm and has no such facts.
    let algorithm = facts_of(outcome.workload.strip_suffix("+watchdog").unwrap_or(&outcome.workload));
    json!({
        "workload": outcome.workload,
        "server": outcome.target,
        "flawed": algorithm.map(|facts| facts.flawed),
        "expires": algorithm.map(|facts| facts.expires),
        "per_second": outcome.per_second(),
        "per_second_of_slices": outcome.rates,
        "done": outcome.done,
        "shares": outcome.shares,
        "wait_us": times(&outcome.waits_us),
        "hand_off_us": times(&outcome.hand_offs_us),
        "commands_each": outcome.commands_each(),
        "server_cpu_us_each": outcome.cpu_us_each(),
        "server_cpu_from": outcome.cpu_source,
        "fairness_jain": outcome.fairness(),
        "expiry_late_us": {
            "p50": quantile(&outcome.late_us, 0.5),
            "max": quantile(&outcome.late_us, 1.0),
            "min": quantile(&outcome.late_us, 0.0),
        },
        "refused": outcome.refused,
        "failed": outcome.failed,
        "error": outcome.error,
        "exclusion": outcome.violations.map(|violations| json!({
            "held": (outcome.done > 0).then(|| !outcome.is_broken()),
            "violations": violations.overlaps,
            "lost_counts": violations.lost_counts,
        })),
    })
}

fn times(times: &Histogram<u64>) -> Value {
    if times.is_empty() {
        return Value::Null;
    }
    let at = |part| times.value_at_quantile(part);
    json!({ "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "max": times.max(), "mean": times.mean() })
}
