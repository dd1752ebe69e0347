//! The report as text for a terminal.

use std::fmt::Write;

use crate::torture::check::Property;
use crate::torture::history::{Event, EventKind, Op};
use crate::torture::known;
use crate::torture::plan::Fault;
use crate::torture::report::Report;
use crate::torture::run::Verdict;
use crate::torture::shrink::Counterexample;

/// Maximum number of events of a schedule in the text. With its other lines a violation takes at most sixty lines.
const EVENTS_MAX: usize = 54;
/// Number of holders that the text shows on each side of a stale write.
const WRITERS_SHOWN: usize = 4;

/// A number with a comma every three digits.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with its noun, which takes an `s` unless the number is 1.
fn plural(number: usize, what: &str) -> String {
    if number == 1 { format!("{number} {what}") } else { format!("{number} {what}s") }
}

/// A summary of the writes that a resource accepted: their number, and the writes around the violation.
pub(super) fn summarize_writes(ops: &[Op], concerned: &[Op]) -> String {
    let mut runs: Vec<(Op, usize)> = Vec::new();
    for op in ops {
        match runs.last_mut() {
            Some((last, times)) if last == op => *times += 1,
            _ => runs.push((*op, 1)),
        }
    }
    let mut text = plural(ops.len(), "write");
    // The stale write is the last one of the violation's acquisitions.
    let Some(at) = runs.iter().rposition(|(op, _)| concerned.contains(op)) else { return text };
    let from = at.saturating_sub(WRITERS_SHOWN);
    let shown = &runs[from..(at + WRITERS_SHOWN).min(runs.len())];
    text.push_str(if from > 0 { ": …" } else { ":" });
    for (op, times) in shown {
        let _ = match times {
            1 => write!(text, " #{op}"),
            times => write!(text, " #{op} ({times} times)"),
        };
    }
    if from + shown.len() < runs.len() {
        text.push_str(" …");
    }
    text
}

impl Report {
    /// Renders the report as text.
    pub fn text(&self) -> String {
        let outcome = &self.outcome;
        let mut out = format!("{}: {}\n  {}\n", self.label, self.summary, self.setting());
        self.write_totals(&mut out);
        self.toll.iter().for_each(|toll| toll.write(&mut out));
        out.push('\n');
        outcome.verdicts.iter().for_each(|verdict| self.write_verdict(verdict, &mut out));
        self.toll.iter().for_each(|toll| toll.write_verdict(&mut out));
        for missing in self.missing() {
            let _ = writeln!(out, "  {:<10} is known to be violated, but held here", missing.name());
        }
        for counterexample in &self.counterexamples {
            out.push('\n');
            self.write_counterexample(counterexample, &mut out);
        }
        out
    }

    /// The faults, the seed, and who takes part, in one line.
    pub(super) fn setting(&self) -> String {
        let settings = &self.settings;
        let servers = match settings.replicas {
            Some(replicas) => format!("1 server of {} nodes", replicas.nodes),
            None => plural(settings.servers as usize, if settings.durable.is_some() { "durable server" } else { "server" }),
        };
        format!(
            "faults: {}; seed {}; {}, {}, {servers}; lease {} ms",
            Fault::format_list(&settings.faults),
            settings.seed,
            plural(settings.clients as usize, "client"),
            plural(settings.locks as usize, "lock"),
            settings.lease_us / 1000
        )
    }

    /// Writes how much was run, and how fast.
    fn write_totals(&self, out: &mut String) {
        let rate = |times: u64| (times as f64 / self.user_cpu.as_secs_f64().max(1e-6)) as u64;
        match &self.live[..] {
            [] => {
                let _ = writeln!(
                    out,
                    "  {:.1} simulated hours in {}, {} lock operations (acquire, renew, release) with {} commands; digest {:016x}",
                    self.outcome.simulated_us as f64 / 3.6e9,
                    plural(self.outcome.episodes as usize, "episode"),
                    thousands(self.outcome.operations),
                    thousands(self.outcome.commands),
                    self.outcome.digest
                );
                let _ = writeln!(
                    out,
                    "  took {:.2} s, {:.2} s of user CPU: per second of that {} lock operations with {} commands",
                    self.elapsed.as_secs_f64(),
                    self.user_cpu.as_secs_f64(),
                    thousands(rate(self.outcome.operations)),
                    thousands(rate(self.outcome.commands))
                );
            }
            servers => {
                let _ = writeln!(
                    out,
                    "  live against {}: {} lock operations in {:.2} s",
                    match self.settings.replicas {
                        Some(replicas) => format!("{} processes", replicas.nodes),
                        None => servers.join(", "),
                    },
                    thousands(self.outcome.operations),
                    self.elapsed.as_secs_f64()
                );
                for source in &self.order_sources {
                    let _ = writeln!(out, "  {source}");
                }
            }
        }
    }

    /// Writes the line of one property, unless it was never checked.
    fn write_verdict(&self, verdict: &Verdict, out: &mut String) {
        let name = verdict.property.name();
        let known = self.known_note(verdict.property).map_or_else(String::new, |note| format!(" ({note})"));
        let _ = match (verdict.checked, verdict.violations) {
            (0, _) => Ok(()),
            (checked, 0) => writeln!(out, "  {name:<10} holds in {} checks", thousands(checked)),
            (checked, times) => writeln!(
                out,
                "  {name:<10} VIOLATED {} times in {} checks{known}: {}",
                thousands(times),
                thousands(checked),
                verdict.property.meaning()
            ),
        };
    }

    /// That a violation of the property is known, and why it occurs under several faults. `None` if it is not known.
    pub(super) fn known_note(&self, property: Property) -> Option<String> {
        let reason = known::reason(&self.label, &self.settings.faults, property).filter(|_| self.settings.faults.len() > 1);
        self.knows(property).then(|| reason.map_or_else(|| "known".to_owned(), |reason| format!("known: {reason}")))
    }

    /// Writes the schedule of one violation.
    fn write_counterexample(&self, counterexample: &Counterexample, out: &mut String) {
        let violation = &counterexample.violation;
        let clients = counterexample.plan.clients.iter().filter(|jobs| !jobs.is_empty()).count();
        let _ = writeln!(out, "  {}: {}", violation.property.name(), violation.message);
        let _ = match self.live.is_empty() {
            false => writeln!(out, "  the events of these acquisitions, and the faults meanwhile:"),
            true => writeln!(
                out,
                "  the shortest schedule found ({}, {}, {}; {}):",
                plural(clients, "client"),
                plural(counterexample.plan.jobs(), "job"),
                plural(counterexample.plan.faults.len(), "fault"),
                plural(counterexample.tried as usize, "run")
            ),
        };
        let concerning;
        let mut history = &counterexample.history;
        if history.events.len() > EVENTS_MAX {
            concerning = history.concerning(&violation.ops);
            history = &concerning;
        }
        // The last events matter most. The state of the resource has its own line below.
        let (stored, events): (Vec<&Event>, Vec<&Event>) =
            history.events.iter().partition(|event| matches!(event.kind, EventKind::Stored { .. }));
        let left_out = counterexample.history.events.len() - stored.len() - events.len().min(EVENTS_MAX);
        for (at, event) in events.iter().enumerate() {
            match at.checked_sub(EVENTS_MAX / 3) {
                Some(behind) if behind < events.len().saturating_sub(EVENTS_MAX) => {}
                _ => drop(writeln!(out, "    {event}")),
            }
        }
        if left_out > 0 {
            let _ = writeln!(out, "    … {left_out} more are left out; --history, --html and --json have them");
        }
        for event in &counterexample.history.events {
            if let EventKind::Stored { lock, ops } = &event.kind
                && violation.property == Property::Writes
            {
                let _ = writeln!(out, "    the resource of lock {lock} has accepted {}", summarize_writes(ops, &violation.ops));
            }
        }
        if let Some(found) = self.outcome.of(violation.property).first()
            && self.live.is_empty()
        {
            let _ = writeln!(out, "  run it again: {}", self.command(found.episode));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands).join(" "), "0 999 1,000 1,234,567");
    }
}
