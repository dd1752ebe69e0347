//! What a run came to, as text and as JSON.

use std::fmt::Write;
use std::time::Duration;

use crate::torture::check::Property;
use crate::torture::history::{Event, Op, Seconds, What};
use crate::torture::known;
use crate::torture::plan::{Fault, Settings};
use crate::torture::run::Outcome;
use crate::torture::shrink::Shown;

/// Events of a schedule that are shown as text, at most: with what is said of them a violation takes no more than sixty lines.
const EVENTS_MAX: usize = 54;
/// Holders around a stale write that are shown.
const WRITERS_SHOWN: usize = 4;

/// All that there is to say of one algorithm.
pub struct Report {
    /// The label of the [`Subject`](crate::torture::subject::Subject).
    pub label: String,
    /// What the algorithm is, in a line.
    pub summary: String,
    /// How it was run.
    pub settings: Settings,
    /// What came of it.
    pub outcome: Outcome,
    /// The shortest schedules that were found, a property each.
    pub shown: Vec<Shown>,
    /// What was known to be violated, and the first episode in which it is where that is known.
    pub known: Option<Vec<(Property, Option<u64>)>>,
    /// Whether it is run as what is known was.
    pub usual: bool,
    /// How long it took.
    pub took: Duration,
    /// The processor's time that it took, without the system's part; 0 for a live run, most of which is spent waiting.
    pub user: Duration,
    /// Servers that were real, if they were.
    pub live: Vec<String>,
    /// By what it is known in which order those did things that were given by their URLs.
    pub orders: Vec<String>,
}

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

fn plural(number: usize, what: &str) -> String {
    let end = match what {
        _ if number == 1 => what.to_owned(),
        _ if what.ends_with("sh") => format!("{what}es"),
        _ => format!("{what}s"),
    };
    format!("{number} {end}")
}

/// What a resource has accepted, summed up: how many writes, and those around the ones that a violation is about.
fn writes(ops: &[Op], concerned: &[Op]) -> String {
    let mut runs: Vec<(Op, usize)> = Vec::new();
    for op in ops {
        match runs.last_mut() {
            Some((last, times)) if last == op => *times += 1,
            _ => runs.push((*op, 1)),
        }
    }
    let mut text = plural(ops.len(), "write");
    // The stale one is the last of those that are concerned.
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
    /// Whether it violated something; and where what is known is expected, whether it violated anything else, or not what is known.
    pub fn failed(&self, expect_known: bool) -> bool {
        match expect_known {
            false => self.outcome.violated().next().is_some(),
            true => !self.unexpected().is_empty() || !self.missing().is_empty(),
        }
    }

    fn knows(&self, property: Property) -> bool {
        self.known.iter().flatten().any(|(known, _)| *known == property)
    }

    /// What was violated and not known to be.
    pub fn unexpected(&self) -> Vec<Property> {
        self.outcome.violated().map(|verdict| verdict.property).filter(|property| !self.knows(*property)).collect()
    }

    /// What is known to be violated and was not, although it was run for long enough. Of other runs than those by which it is known, that is told
    /// only where nothing of it was seen.
    pub fn missing(&self) -> Vec<Property> {
        let unseen = |property: &Property| self.outcome.of(*property).violations == 0;
        let known = self.known.iter().flatten().filter(|(property, _)| unseen(property));
        let due = |episode: &Option<u64>| self.usual && episode.is_some_and(|episode| episode < self.outcome.episodes);
        let none_seen = self.outcome.violated().next().is_none();
        let told = |episode: &Option<u64>| due(episode) || (none_seen && !(self.usual && episode.is_some()));
        known.filter(|(_, episode)| told(episode)).map(|(property, _)| *property).collect()
    }

    /// The command that runs an episode again.
    pub fn command(&self, episode: u64) -> String {
        let settings = &self.settings;
        let usual = Settings::default();
        let subject = crate::torture::subject::Subject::labelled(&self.label);
        let mut command =
            format!("portcullis torture --algorithm {} --faults {}", subject.algorithm, Fault::write_list(&self.settings.faults));
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
        let _ = write!(command, " --episode {episode}");
        command
    }

    /// As text.
    pub fn text(&self) -> String {
        let (settings, outcome) = (&self.settings, &self.outcome);
        let mut out = format!("{}: {}\n", self.label, self.summary);
        let _ = writeln!(
            out,
            "  faults: {}; seed {}; {}, {}, {}; lease {} ms",
            Fault::write_list(&self.settings.faults),
            settings.seed,
            plural(settings.clients as usize, "client"),
            plural(settings.locks as usize, "lock"),
            plural(settings.servers as usize, "server"),
            settings.lease_us / 1000
        );
        let rate = |times: u64| (times as f64 / self.user.as_secs_f64().max(1e-6)) as u64;
        match &self.live[..] {
            [] => {
                let _ = writeln!(
                    out,
                    "  {:.1} simulated hours in {}, {} lock operations (acquire, renew, release) by {} commands; digest {:016x}",
                    outcome.simulated_us as f64 / 3.6e9,
                    plural(outcome.episodes as usize, "episode"),
                    thousands(outcome.operations),
                    thousands(outcome.commands),
                    outcome.digest
                );
                let _ = writeln!(
                    out,
                    "  took {:.2} s, {:.2} s of user CPU: in each second of that {} lock operations by {} commands",
                    self.took.as_secs_f64(),
                    self.user.as_secs_f64(),
                    thousands(rate(outcome.operations)),
                    thousands(rate(outcome.commands))
                );
            }
            servers => {
                let _ = writeln!(
                    out,
                    "  live against {}: {} lock operations in {:.2} s",
                    servers.join(", "),
                    thousands(outcome.operations),
                    self.took.as_secs_f64()
                );
                for order in &self.orders {
                    let _ = writeln!(out, "  {order}");
                }
            }
        }
        out.push('\n');
        for verdict in &outcome.verdicts {
            let name = verdict.property.name();
            let reason = known::reason(&self.label, &self.settings.faults, verdict.property);
            let reason = reason.filter(|_| self.settings.faults.len() > 1);
            let known = match (self.knows(verdict.property), reason) {
                (false, _) => String::new(),
                (true, None) => " (known)".to_owned(),
                (true, Some(reason)) => format!(" (known: {reason})"),
            };
            let _ = match (verdict.checked, verdict.violations) {
                (0, _) => continue,
                (checked, 0) => writeln!(out, "  {name:<10} holds in {} checks", thousands(checked)),
                (checked, times) => writeln!(
                    out,
                    "  {name:<10} VIOLATED {} times in {} checks{known}: {}",
                    thousands(times),
                    thousands(checked),
                    verdict.property.violated()
                ),
            };
        }
        for missing in self.missing() {
            let _ = writeln!(out, "  {:<10} is known to be violated, and was not", missing.name());
        }
        for shown in &self.shown {
            out.push('\n');
            self.tell(shown, &mut out);
        }
        out
    }

    fn tell(&self, shown: &Shown, out: &mut String) {
        let violation = &shown.violation;
        let clients = shown.plan.clients.iter().filter(|wishes| !wishes.is_empty()).count();
        let _ = writeln!(out, "  {}: {}", violation.property.name(), violation.says);
        let _ = match self.live.is_empty() {
            false => writeln!(out, "  what happened to them, and what went wrong meanwhile:"),
            true => writeln!(
                out,
                "  the shortest schedule found ({}, {}, {}; {}):",
                plural(clients, "client"),
                plural(shown.plan.wishes(), "wish"),
                plural(shown.plan.faults.len(), "fault"),
                plural(shown.tried as usize, "run")
            ),
        };
        let concerning;
        let mut history = &shown.history;
        if history.events.len() > EVENTS_MAX {
            concerning = history.concerning(&violation.ops);
            history = &concerning;
        }
        // The last ones tell most, and what became of the resource is told anyway.
        let (stored, events): (Vec<&Event>, Vec<&Event>) =
            history.events.iter().partition(|event| matches!(event.what, What::Stored { .. }));
        let left_out = shown.history.events.len() - stored.len() - events.len().min(EVENTS_MAX);
        for (at, event) in events.iter().enumerate() {
            match at.checked_sub(EVENTS_MAX / 3) {
                Some(behind) if behind < events.len().saturating_sub(EVENTS_MAX) => {}
                _ => drop(writeln!(out, "    {event}")),
            }
        }
        if left_out > 0 {
            let _ = writeln!(out, "    … without {left_out} more, which --history, --timeline and --json show");
        }
        for event in &shown.history.events {
            if let What::Stored { lock, ops } = &event.what
                && violation.property == Property::Writes
            {
                let _ = writeln!(out, "    the resource of lock {lock} has accepted {}", writes(ops, &violation.ops));
            }
        }
        if let Some((episode, _)) = &self.outcome.of(violation.property).first
            && self.live.is_empty()
        {
            let _ = writeln!(out, "  again: {}", self.command(*episode));
        }
    }

    /// As JSON, without a line break.
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
        json.list("orders", self.orders.iter().map(|order| quoted(order)));
        json.number("episodes", self.outcome.episodes);
        json.number("lock_operations", self.outcome.operations);
        json.number("commands", self.outcome.commands);
        json.raw("simulated_seconds", &Seconds(self.outcome.simulated_us).to_string());
        json.raw("real_seconds", &format!("{:.6}", self.took.as_secs_f64()));
        json.raw("user_cpu_seconds", &format!("{:.6}", self.user.as_secs_f64()));
        json.string("digest", &format!("{:016x}", self.outcome.digest));
        let verdicts = self.outcome.verdicts.iter().filter(|verdict| verdict.checked > 0).map(|verdict| {
            let mut json = Json::default();
            json.open('{');
            json.string("property", verdict.property.name());
            json.string("meaning", verdict.property.violated());
            json.number("checked", verdict.checked);
            json.number("violations", verdict.violations);
            if let Some((episode, violation)) = &verdict.first {
                json.number("episode", *episode);
                json.raw("at_seconds", &Seconds(violation.at_us).to_string());
                json.string("says", &violation.says);
                if self.live.is_empty() {
                    json.string("again", &self.command(*episode));
                }
            }
            if let Some(shown) = self.shown.iter().find(|shown| shown.violation.property == verdict.property) {
                json.list("schedule", shown.history.events.iter().map(|event| quoted(event.to_string().trim_start())));
            }
            json.close('}')
        });
        json.list("verdicts", verdicts);
        json.close('}')
    }
}

/// Writes JSON.
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

/// A string of JSON.
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
