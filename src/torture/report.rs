//! The report on one algorithm, as text and as JSON.

use std::fmt::Write;
use std::time::Duration;

use crate::torture::check::Property;
use crate::torture::history::{Event, EventKind, Op, Seconds};
use crate::torture::known;
use crate::torture::live::nodes::Toll;
use crate::torture::plan::{Fault, Settings};
use crate::torture::run::{Outcome, Verdict};
use crate::torture::shrink::Counterexample;

/// Maximum number of events of a schedule in the text. With its other lines a violation takes at most sixty lines.
const EVENTS_MAX: usize = 54;
/// Number of holders that the text shows on each side of a stale write.
const WRITERS_SHOWN: usize = 4;

/// The report on one algorithm.
pub struct Report {
    /// The label of the [`Subject`](crate::torture::subject::Subject).
    pub label: String,
    /// A one-line summary of the algorithm.
    pub summary: String,
    /// The settings of the run.
    pub settings: Settings,
    /// The outcome of the run.
    pub outcome: Outcome,
    /// The shortest schedule that was found for each violated property.
    pub counterexamples: Vec<Counterexample>,
    /// The known violations, with the first episode of each if it is known. `None` if the algorithm has no known verdicts.
    pub known: Option<Vec<(Property, Option<u64>)>>,
    /// Whether the run has the settings of the known verdicts, so that the same episodes show the same violations.
    pub comparable: bool,
    /// Real time that the run took.
    pub elapsed: Duration,
    /// User CPU time that the run took. 0 for a live run, which mostly waits.
    pub user_cpu: Duration,
    /// The servers of a live run.
    pub live: Vec<String>,
    /// For each server that was given by its URL: the source of the order in which it granted locks.
    pub order_sources: Vec<String>,
    /// What a live run did to the nodes of a replicated service.
    pub toll: Option<Toll>,
}

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
fn summarize_writes(ops: &[Op], concerned: &[Op]) -> String {
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
    /// Whether the run failed: it violated a property, or, with `expect_known`, its violations differ from the known ones.
    pub fn failed(&self, expect_known: bool) -> bool {
        if self.toll.as_ref().is_some_and(Toll::failed) {
            return true;
        }
        match expect_known {
            false => self.outcome.violated().next().is_some(),
            true => !self.unexpected().is_empty() || !self.missing().is_empty(),
        }
    }

    fn knows(&self, property: Property) -> bool {
        self.known.iter().flatten().any(|(known, _)| *known == property)
    }

    /// The violated properties that are not known to be violated.
    pub fn unexpected(&self) -> Vec<Property> {
        self.outcome.violated().map(|verdict| verdict.property).filter(|property| !self.knows(*property)).collect()
    }

    /// The properties that are known to be violated and were not, although the run was long enough. A run with other settings
    /// than those of the known verdicts counts only if it showed no violation at all.
    pub fn missing(&self) -> Vec<Property> {
        let unseen = |property: &Property| self.outcome.of(*property).violations == 0;
        let known = self.known.iter().flatten().filter(|(property, _)| unseen(property));
        let due = |episode: &Option<u64>| self.comparable && episode.is_some_and(|episode| episode < self.outcome.episodes);
        let none_seen = self.outcome.violated().next().is_none();
        let expected = |episode: &Option<u64>| due(episode) || (none_seen && !(self.comparable && episode.is_some()));
        known.filter(|(_, episode)| expected(episode)).map(|(property, _)| *property).collect()
    }

    /// The command that runs an episode again.
    pub fn command(&self, episode: u64) -> String {
        let settings = &self.settings;
        let usual = Settings::default();
        let subject = crate::torture::subject::Subject::from_label(&self.label);
        let mut command = format!(
            "portcullis torture --algorithm {} --faults {}",
            subject.algorithm,
            Fault::format_list(&self.settings.faults)
        );
        let _ = write!(command, " --seed {}", settings.seed);
        let mut differs = |name: &str, value: u64, usual: u64| {
            if value != usual {
                let _ = write!(command, " --{name} {value}");
            }
        };
        differs("clients", u64::from(settings.clients), u64::from(usual.clients));
        differs("locks", u64::from(settings.locks), u64::from(usual.locks));
        differs("servers", u64::from(settings.servers), u64::from(subject.servers()));
        differs("lease-ms", settings.lease_us / 1000, usual.lease_us / 1000);
        differs("episode-s", settings.episode_us / 1_000_000, usual.episode_us / 1_000_000);
        differs("restart-delay-ms", settings.restart_delay_us / 1000, 0);
        if !settings.fencing {
            command.push_str(" --no-fencing");
        }
        if settings.durable.is_some() {
            command.push_str(" --durable");
        }
        if let Some(replicas) = settings.replicas {
            let _ = write!(command, " --replicas {}", replicas.nodes);
            if let Some(flaw) = replicas.planted.name() {
                let _ = write!(command, " --planted {flaw}");
            }
        }
        let _ = write!(command, " --episode {episode}");
        command
    }

    /// Renders the report as text.
    pub fn text(&self) -> String {
        let (settings, outcome) = (&self.settings, &self.outcome);
        let mut out = format!("{}: {}\n", self.label, self.summary);
        let _ = writeln!(
            out,
            "  faults: {}; seed {}; {}, {}, {}; lease {} ms",
            Fault::format_list(&self.settings.faults),
            settings.seed,
            plural(settings.clients as usize, "client"),
            plural(settings.locks as usize, "lock"),
            match settings.replicas {
                Some(replicas) => format!("1 server of {} nodes", replicas.nodes),
                None => plural(settings.servers as usize, if settings.durable.is_some() { "durable server" } else { "server" }),
            },
            settings.lease_us / 1000
        );
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
        let reason = known::reason(&self.label, &self.settings.faults, verdict.property);
        let reason = reason.filter(|_| self.settings.faults.len() > 1);
        let known = match (self.knows(verdict.property), reason) {
            (false, _) => String::new(),
            (true, None) => " (known)".to_owned(),
            (true, Some(reason)) => format!(" (known: {reason})"),
        };
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
            let _ = writeln!(out, "    … {left_out} more are left out; --history, --timeline and --json have them");
        }
        for event in &counterexample.history.events {
            if let EventKind::Stored { lock, ops } = &event.kind
                && violation.property == Property::Writes
            {
                let _ = writeln!(out, "    the resource of lock {lock} has accepted {}", summarize_writes(ops, &violation.ops));
            }
        }
        if let Some((episode, _)) = &self.outcome.of(violation.property).first
            && self.live.is_empty()
        {
            let _ = writeln!(out, "  run it again: {}", self.command(*episode));
        }
    }

    /// Renders the report as JSON in one line.
    pub fn json(&self) -> String {
        let mut json = Json::default();
        json.open('{');
        json.string("algorithm", &self.label);
        json.list("faults", self.settings.faults.iter().map(|fault| quoted(fault.name())));
        json.number("seed", self.settings.seed);
        json.number("clients", u64::from(self.settings.clients));
        json.number("locks", u64::from(self.settings.locks));
        json.number("servers", u64::from(self.settings.servers));
        json.number("lease_ms", self.settings.lease_us / 1000);
        json.list("live", self.live.iter().map(|server| quoted(server)));
        json.list("orders", self.order_sources.iter().map(|source| quoted(source)));
        json.number("episodes", self.outcome.episodes);
        json.number("lock_operations", self.outcome.operations);
        json.number("commands", self.outcome.commands);
        json.raw("simulated_seconds", &Seconds(self.outcome.simulated_us).to_string());
        json.raw("real_seconds", &format!("{:.6}", self.elapsed.as_secs_f64()));
        json.raw("user_cpu_seconds", &format!("{:.6}", self.user_cpu.as_secs_f64()));
        json.string("digest", &format!("{:016x}", self.outcome.digest));
        let verdicts = self.outcome.verdicts.iter().filter(|verdict| verdict.checked > 0).map(|verdict| {
            let mut json = Json::default();
            json.open('{');
            json.string("property", verdict.property.name());
            json.string("meaning", verdict.property.meaning());
            json.number("checked", verdict.checked);
            json.number("violations", verdict.violations);
            if let Some((episode, violation)) = &verdict.first {
                json.number("episode", *episode);
                json.raw("at_seconds", &Seconds(violation.at_us).to_string());
                json.string("says", &violation.message);
                if self.live.is_empty() {
                    json.string("again", &self.command(*episode));
                }
            }
            let found = self.counterexamples.iter().find(|found| found.violation.property == verdict.property);
            if let Some(found) = found {
                json.list("schedule", found.history.events.iter().map(|event| quoted(event.to_string().trim_start())));
            }
            json.close('}')
        });
        json.list("verdicts", verdicts);
        if let Some(toll) = &self.toll {
            json.raw("nodes", &toll.json());
        }
        json.close('}')
    }
}

/// A writer of JSON objects.
#[derive(Default)]
struct Json {
    text: String,
}

impl Json {
    fn open(&mut self, bracket: char) {
        self.text.push(bracket);
    }

    fn close(mut self, bracket: char) -> String {
        self.text.push(bracket);
        self.text
    }

    fn raw(&mut self, name: &str, value: &str) {
        if !self.text.ends_with('{') {
            self.text.push(',');
        }
        let _ = write!(self.text, "{}:{value}", quoted(name));
    }

    fn string(&mut self, name: &str, value: &str) {
        self.raw(name, &quoted(value));
    }

    fn number(&mut self, name: &str, value: u64) {
        self.raw(name, &value.to_string());
    }

    fn list(&mut self, name: &str, items: impl Iterator<Item = String>) {
        self.raw(name, &format!("[{}]", items.collect::<Vec<_>>().join(",")));
    }
}

/// Quotes a string for JSON.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
