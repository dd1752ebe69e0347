//! The report as JSON, for programs, and for the page that draws it.

use serde_json::{Value, json};

use crate::bench::report::run_facts::RunFacts;
use crate::torture::check::Property;
use crate::torture::plan::Fault;
use crate::torture::report::{Report, timeline};
use crate::torture::run::{DRAWN_MAX, FOUND_MAX, Found, Verdict};
use crate::torture::shrink::Counterexample;

/// How many violations of a property a page lists, how many of those it draws, and how many events a timeline has.
type Limits = (usize, usize, usize);

/// Of one algorithm, all that the run has kept.
const OF_ONE: Limits = (FOUND_MAX, DRAWN_MAX, 250);
/// Of several algorithms, so that a page of all of them stays within some megabytes.
const OF_EACH: Limits = (50, 3, 80);

/// The document with all reports of a run. A page's has timelines.
pub fn document(reports: &[Report], facts: &RunFacts, is_page: bool) -> Value {
    // What the algorithms have in common. The number of servers differs.
    let settings = reports.first().map(|Report { settings, live, .. }| {
        json!({
            "faults": settings.faults.iter().map(|fault| fault.name()).collect::<Vec<_>>(),
            "fault_list": Fault::format_list(&settings.faults),
            "properties": Property::ALL.map(Property::name),
            "seed": settings.seed,
            "clients": settings.clients,
            "locks": settings.locks,
            "lease_ms": settings.lease_us / 1000,
            "episode_seconds": seconds(settings.episode_us),
            "live": live,
        })
    });
    let limits = is_page.then_some(if reports.len() == 1 { OF_ONE } else { OF_EACH });
    let results: Vec<Value> = reports.iter().map(|report| report.json(limits)).collect();
    facts.document("torture", &settings.unwrap_or_default(), &results)
}

impl Report {
    fn json(&self, limits: Option<Limits>) -> Value {
        let outcome = &self.outcome;
        let checked = outcome.verdicts.iter().filter(|verdict| verdict.checked > 0);
        let mut all = json!({
            "algorithm": self.label,
            "summary": self.summary,
            "setting": self.setting(),
            "servers": self.settings.servers,
            "orders": self.order_sources,
            "episodes": outcome.episodes,
            "lock_operations": outcome.operations,
            "commands": outcome.commands,
            "simulated_seconds": seconds(outcome.simulated_us),
            "real_seconds": self.elapsed.as_secs_f64(),
            "user_cpu_seconds": self.user_cpu.as_secs_f64(),
            "digest": format!("{:016x}", outcome.digest),
            "failed": self.failed(false),
            "missing": self.missing().into_iter().map(Property::name).collect::<Vec<_>>(),
            "verdicts": checked.map(|verdict| self.verdict(verdict, limits)).collect::<Vec<_>>(),
        });
        if let Some(toll) = &self.toll {
            all["nodes"] = toll.json();
        }
        all
    }

    fn verdict(&self, verdict: &Verdict, limits: Option<Limits>) -> Value {
        let Verdict { property, checked, violations, found } = verdict;
        let (listed, drawn, events) = limits.unwrap_or((FOUND_MAX, 0, 0));
        let mut all = json!({
            "property": property.name(),
            "meaning": property.meaning(),
            "checked": checked,
            "violations": violations,
            "known": self.knows(*property),
            "note": self.known_note(*property),
            "found": found.iter().take(listed).map(|found| self.found(found)).collect::<Vec<_>>(),
        });
        for (number, Found { violation, history, .. }) in found.iter().take(drawn).enumerate() {
            if let Some(history) = history.as_ref().filter(|history| !history.events.is_empty()) {
                all["found"][number]["timeline"] = timeline::json(history, violation, events);
            }
        }
        let shortest = self.counterexamples.iter().find(|found| found.violation.property == *property);
        match (shortest, limits) {
            (Some(Counterexample { plan, history, violation, tried }), Some(_)) => {
                all["shortest"] = json!({
                    "says": violation.message,
                    "clients": plan.clients.iter().filter(|jobs| !jobs.is_empty()).count(),
                    "jobs": plan.jobs(),
                    "faults": plan.faults.len(),
                    "runs": tried,
                    "timeline": timeline::json(history, violation, events),
                });
            }
            (Some(Counterexample { history, .. }), None) => {
                all["schedule"] = history.events.iter().map(|event| event.to_string().trim_start().to_owned()).collect();
            }
            (None, _) => {}
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
