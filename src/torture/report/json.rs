//! The report as JSON, for programs.

use serde_json::{Value, json};

use crate::bench::report::run_facts::RunFacts;
use crate::torture::report::Report;
use crate::torture::run::{Found, Verdict};

/// The document with all reports of a run.
pub fn document(reports: &[Report], facts: &RunFacts) -> String {
    // What the algorithms have in common. The number of servers differs.
    let settings = reports.first().map(|Report { settings, live, .. }| {
        json!({
            "faults": settings.faults.iter().map(|fault| fault.name()).collect::<Vec<_>>(),
            "seed": settings.seed,
            "clients": settings.clients,
            "locks": settings.locks,
            "lease_ms": settings.lease_us / 1000,
            "episode_seconds": seconds(settings.episode_us),
            "live": live,
        })
    });
    facts.document("torture", &settings.unwrap_or_default(), &reports.iter().map(Report::json).collect::<Vec<_>>())
}

impl Report {
    /// Renders the report as a JSON object.
    pub fn json(&self) -> Value {
        let outcome = &self.outcome;
        let mut all = json!({
            "algorithm": self.label,
            "servers": self.settings.servers,
            "orders": self.order_sources,
            "episodes": outcome.episodes,
            "lock_operations": outcome.operations,
            "commands": outcome.commands,
            "simulated_seconds": seconds(outcome.simulated_us),
            "real_seconds": self.elapsed.as_secs_f64(),
            "user_cpu_seconds": self.user_cpu.as_secs_f64(),
            "digest": format!("{:016x}", outcome.digest),
            "verdicts": outcome.verdicts.iter().filter(|verdict| verdict.checked > 0).map(|verdict| self.verdict(verdict)).collect::<Vec<_>>(),
        });
        if let Some(toll) = &self.toll {
            all["nodes"] = toll.json();
        }
        all
    }

    fn verdict(&self, verdict: &Verdict) -> Value {
        let mut all = json!({
            "property": verdict.property.name(),
            "meaning": verdict.property.meaning(),
            "checked": verdict.checked,
            "violations": verdict.violations,
            "known": self.knows(verdict.property),
            "found": verdict.found.iter().map(|found| self.found(found)).collect::<Vec<_>>(),
        });
        if let Some(found) = self.counterexamples.iter().find(|found| found.violation.property == verdict.property) {
            let lines = found.history.events.iter().map(|event| event.to_string().trim_start().to_owned());
            all["schedule"] = lines.collect();
        }
        all
    }

    fn found(&self, Found { episode, violation, .. }: &Found) -> Value {
        let mut all = json!({ "episode": episode, "at_seconds": seconds(violation.at_us), "says": violation.message });
        if self.live.is_empty() {
            all["again"] = self.command(*episode).into();
        }
        all
    }
}

/// Microseconds as seconds.
fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}
