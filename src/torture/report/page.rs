//! All reports of a run as a page of HTML: the verdicts in a table, and each violation with its schedule as a timeline.

use std::fmt::Write;

use crate::bench::report::page::{Page, escaped, thousands};
use crate::bench::report::run_facts::RunFacts;
use crate::torture::check::{Property, Violation};
use crate::torture::history::{Event, History, Op};
use crate::torture::plan::Fault;
use crate::torture::report::Report;
use crate::torture::report::text::plural;
use crate::torture::report::timeline;
use crate::torture::run::{DRAWN_MAX, FOUND_MAX, Found, Verdict};
use crate::torture::shrink::Counterexample;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// How many violations of a property are listed, and how many of those are drawn.
#[derive(Clone, Copy)]
struct Limits {
    listed: usize,
    drawn: usize,
    /// Events of a timeline.
    events: usize,
}

/// Of one algorithm, all that the run has kept.
const OF_ONE: Limits = Limits { listed: FOUND_MAX, drawn: DRAWN_MAX, events: 250 };
/// Of several algorithms, so that a page of all of them stays within some megabytes.
const OF_EACH: Limits = Limits { listed: 50, drawn: 3, events: 80 };

/// Renders the page.
pub fn render(reports: &[Report], facts: &RunFacts) -> String {
    let limits = if reports.len() == 1 { OF_ONE } else { OF_EACH };
    let mut main = format!("{}<div id=\"verdict\">\n{}</div>\n", timeline::DEFS, headline(reports));
    match reports {
        [report] => write_one_table(report, &mut main),
        reports => write_matrix(reports, &mut main),
    }
    if reports.iter().any(|report| !report.counterexamples.is_empty()) {
        main.push_str(
            "<section class=\"card\" aria-labelledby=\"key-title\">\n<h2 id=\"key-title\">How to read the timelines</h2>\n\
             <p class=\"note\">Time runs to the right; each client and server has a lane. Every bar is a link to its lines, and every line to its bar. \
             With the keyboard: Tab to a timeline, arrow keys for the next bar or line, Enter to go over to the other side.</p>\n",
        );
        main.push_str(&timeline::key());
        main.push_str("</section>\n");
    }
    reports.iter().for_each(|report| write_report(report, limits, facts, &mut main));
    let facts_of_run = reports.first().map_or_else(Vec::new, |first| {
        vec![
            ("Seed", first.settings.seed.to_string()),
            ("Faults", escaped(&Fault::format_list(&first.settings.faults))),
            ("Setting", escaped(&first.setting())),
        ]
    });
    let page =
        Page { tool: "torture", title: "Portcullis torture", style: STYLE, script: SCRIPT, main: &main, facts: &facts_of_run };
    page.render(facts)
}

fn name(label: &str) -> String {
    format!("<span class=\"name\">{}</span>", escaped(label))
}

/// A sentence with its first letter in upper case.
fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The identifier of what is about an algorithm, or about a property of it.
fn anchor(report: &Report, property: Option<Property>) -> String {
    let letters: String = report.label.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    property.map_or_else(|| letters.clone(), |property| format!("{letters}--{property}"))
}

fn checked(report: &Report) -> impl Iterator<Item = &Verdict> {
    report.outcome.verdicts.iter().filter(|verdict| verdict.checked > 0)
}

fn headline(reports: &[Report]) -> String {
    let faults = reports.first().map_or_else(String::new, |report| match &report.settings.faults[..] {
        [] => "without faults".to_owned(),
        faults => match Fault::format_list(faults).as_str() {
            "all" => "under all faults".to_owned(),
            list => format!("under {}", list.replace(',', ", ")),
        },
    });
    let mut out = match reports {
        [report] => {
            let violated: Vec<&str> = report.outcome.violated().map(|verdict| verdict.property.name()).collect();
            let all = checked(report).count();
            match violated.len() {
                0 if report.failed(false) => format!(
                    "<h1>{} <span class=\"danger\">✗ lost what it acknowledged</span> {faults}.</h1>\n",
                    name(&report.label)
                ),
                0 => format!(
                    "<h1>{} <span class=\"good\">✓ keeps</span> all {all} properties {faults}.</h1>\n",
                    name(&report.label)
                ),
                broken => format!(
                    "<h1>{} <span class=\"danger\">✗ violates</span> {broken} of {all} properties {faults}: {}.</h1>\n",
                    name(&report.label),
                    violated.join(", ")
                ),
            }
        }
        reports => {
            let keeps = reports.iter().filter(|report| !report.failed(false)).count();
            let class = if keeps == reports.len() { "good" } else { "danger" };
            format!(
                "<h1><span class=\"{class}\">{keeps} of {} algorithms</span> keep all of their properties {faults}.</h1>\n",
                reports.len()
            )
        }
    };
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let operations = thousands(sum(|report| report.outcome.operations));
    let ran = match reports.iter().all(|report| report.live.is_empty()) {
        true => format!(
            "{:.1} simulated hours in {}, {operations} lock operations",
            sum(|report| report.outcome.simulated_us) as f64 / 3.6e9,
            plural(sum(|report| report.outcome.episodes) as usize, "episode")
        ),
        false => format!("{operations} lock operations on real servers"),
    };
    let seed = reports.first().map_or(0, |report| report.settings.seed);
    let _ = writeln!(out, "<p class=\"soft\">{ran}; seed {seed}.</p>");
    out
}

/// The table of one algorithm: a row for each property.
fn write_one_table(report: &Report, out: &mut String) {
    out.push_str(
        "<section class=\"card\" aria-labelledby=\"table-title\">\n<h2 id=\"table-title\">Verdicts</h2>\n\
         <div class=\"scroll\"><table class=\"figures verdicts\">\n<thead><tr><th scope=\"col\" class=\"left\">property</th>\
         <th scope=\"col\" class=\"left\">verdict</th><th scope=\"col\">checks</th><th scope=\"col\" class=\"left\">what a violation is</th></tr></thead>\n<tbody>\n",
    );
    for verdict in checked(report) {
        let property = verdict.property;
        let found = match verdict.violations {
            0 => "<span class=\"good\">✓ holds</span>".to_owned(),
            times => format!(
                "<a class=\"danger\" href=\"#{}\">✗ violated {} times</a>",
                anchor(report, Some(property)),
                thousands(times)
            ),
        };
        let known = report.known_note(property).filter(|_| verdict.violations > 0);
        let known = known.map_or_else(String::new, |note| format!(" <span class=\"soft\">({})</span>", escaped(&note)));
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\" class=\"left\">{property}</th><td class=\"left\">{found}{known}</td><td>{}</td>\
             <td class=\"left soft\">{}</td></tr>",
            thousands(verdict.checked),
            escaped(property.meaning())
        );
    }
    out.push_str("</tbody></table></div>\n</section>\n");
}

/// The table of several algorithms: a row for each, a column for each property.
fn write_matrix(reports: &[Report], out: &mut String) {
    let properties: Vec<Property> = Property::ALL
        .into_iter()
        .filter(|property| reports.iter().any(|report| report.outcome.of(*property).checked > 0))
        .collect();
    out.push_str(
        "<section class=\"card\" aria-labelledby=\"table-title\">\n<h2 id=\"table-title\">Verdicts</h2>\n\
         <p class=\"note\">✓ holds in all checks; ✗ with the number of violations, which is a link to them; – does not apply.</p>\n\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"table-title\"><table class=\"figures matrix\">\n\
         <thead><tr><th scope=\"col\" class=\"left\">algorithm</th>",
    );
    for property in &properties {
        let _ =
            write!(out, "<th scope=\"col\"><abbr title=\"a violation: {}\">{property}</abbr></th>", escaped(property.meaning()));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for report in reports {
        let label = match report.outcome.violated().next() {
            Some(_) => format!("<a href=\"#{}\">{}</a>", anchor(report, None), escaped(&report.label)),
            None => escaped(&report.label),
        };
        let _ = write!(out, "<tr><th scope=\"row\" class=\"left name\">{label}</th>");
        for property in &properties {
            let verdict = report.outcome.of(*property);
            let _ = match (verdict.checked, verdict.violations) {
                (0, _) => write!(out, "<td class=\"soft\">–</td>"),
                (_, 0) => write!(out, "<td class=\"good\">✓</td>"),
                (_, times) => write!(
                    out,
                    "<td class=\"broken\"><a href=\"#{}\" aria-label=\"{} violates {property} {times} times\">✗ {}</a></td>",
                    anchor(report, Some(*property)),
                    escaped(&report.label),
                    thousands(times)
                ),
            };
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n</section>\n");
}

/// Writes what was found about one algorithm. Nothing if the table says it all.
fn write_report(report: &Report, limits: Limits, facts: &RunFacts, out: &mut String) {
    let missing = report.missing();
    if report.outcome.violated().next().is_none() && report.toll.is_none() && missing.is_empty() {
        return;
    }
    let id = anchor(report, None);
    let _ = writeln!(
        out,
        "<section class=\"algorithm\" id=\"{id}\" aria-labelledby=\"{id}-title\">\n<h2 id=\"{id}-title\">{}</h2>\n\
         <p class=\"soft\">{}. {}.</p>",
        name(&report.label),
        escaped(&capitalized(&report.summary)),
        escaped(&capitalized(&report.setting()))
    );
    if let Some(toll) = &report.toll {
        let mut text = String::new();
        toll.write(&mut text);
        toll.write_verdict(&mut text);
        let _ = writeln!(out, "<pre class=\"card\">{}</pre>", escaped(&text));
    }
    for property in missing {
        let _ = writeln!(out, "<p>{property} is known to be violated, but held here.</p>");
    }
    for verdict in report.outcome.violated() {
        write_violated(report, verdict, limits, facts, out);
    }
    out.push_str("</section>\n");
}

/// Writes the violations of one property: the shortest schedule, and the list of all.
fn write_violated(report: &Report, verdict: &Verdict, limits: Limits, facts: &RunFacts, out: &mut String) {
    let (property, id) = (verdict.property, anchor(report, Some(verdict.property)));
    let known =
        report.known_note(property).map_or_else(String::new, |note| format!(" <span class=\"soft\">({})</span>", escaped(&note)));
    let _ = writeln!(
        out,
        "<article class=\"card\" id=\"{id}\" aria-labelledby=\"{id}-title\">\n<h3 id=\"{id}-title\"><span class=\"danger\">✗ {property}</span>: {}</h3>\n\
         <p class=\"note\">Violated {} times in {} checks{known}.</p>",
        escaped(property.meaning()),
        thousands(verdict.violations),
        thousands(verdict.checked)
    );
    let found = report.counterexamples.iter().find(|found| found.violation.property == property);
    if let Some(counterexample) = found {
        write_counterexample(report, verdict, counterexample, (limits, facts), &id, out);
    }
    write_list(report, verdict, limits, facts, &id, out);
    out.push_str("</article>\n");
}

fn write_counterexample(
    report: &Report,
    verdict: &Verdict,
    counterexample: &Counterexample,
    (limits, facts): (Limits, &RunFacts),
    id: &str,
    out: &mut String,
) {
    let Counterexample { plan, history, violation, tried } = counterexample;
    let clients = plan.clients.iter().filter(|jobs| !jobs.is_empty()).count();
    let what = match report.live.is_empty() {
        false => "The events of these acquisitions, and the faults meanwhile.".to_owned(),
        true => format!(
            "{}: {}, {}, {}{}.",
            if *tried > 1 { "The shortest schedule found" } else { "The first schedule that showed it" },
            plural(clients, "client"),
            plural(plan.jobs(), "job"),
            plural(plan.faults.len(), "fault"),
            if *tried > 1 { format!("; {tried} runs") } else { String::new() }
        ),
    };
    let _ = writeln!(out, "<p class=\"says\">{}.</p>\n<p class=\"note\">{what}</p>", escaped(&violation.message));
    write_timeline(&format!("{id}--s"), history, violation, limits, out);
    let episode = verdict.first().map_or(0, |found| found.episode);
    out.push_str(&again(report, episode, facts));
}

/// Writes a timeline of the events that matter most.
fn write_timeline(id: &str, history: &History, violation: &Violation, limits: Limits, out: &mut String) {
    let events = history.events.len();
    if events <= limits.events {
        out.push_str(&timeline::render(id, history, violation));
        return;
    }
    let shown = last_events(history.concerning(&violation.ops), &violation.ops, limits.events);
    out.push_str(&timeline::render(id, &shown, violation));
    let _ = writeln!(
        out,
        "<p class=\"note\">{} events of this history are left out. <code>--history FILE</code> writes all.</p>",
        thousands((events - shown.events.len()) as u64)
    );
}

/// At most `most` events: the last ones of these acquisitions, and as many of the last others as there is room for.
fn last_events(history: History, ops: &[Op], most: usize) -> History {
    let of_ops = |event: &Event| event.kind.op().is_some_and(|op| ops.contains(&op));
    let concerned = history.events.iter().filter(|event| of_ops(event)).count();
    let (mut own, mut others) = (concerned.min(most), most.saturating_sub(concerned));
    let mut events: Vec<Event> = history.events.into_iter().rev().collect();
    events.retain(|event| {
        let left = if of_ops(event) { &mut own } else { &mut others };
        let kept = *left > 0;
        *left = left.saturating_sub(1);
        kept
    });
    events.reverse();
    History { events, commands: 0 }
}

/// How to run an episode again.
fn again(report: &Report, episode: u64, facts: &RunFacts) -> String {
    match report.live.is_empty() {
        true => format!("<p class=\"again\">Run it again: <code>{}</code></p>\n", escaped(&report.command(episode))),
        false => format!(
            "<p class=\"again\">Run it again, in real time, so that its events differ: <code>{}</code></p>\n",
            escaped(&facts.command)
        ),
    }
}

/// Writes the list of all violations of a property, each with its place, its command and its events.
fn write_list(report: &Report, verdict: &Verdict, limits: Limits, facts: &RunFacts, id: &str, out: &mut String) {
    let listed = verdict.found.len().min(limits.listed);
    let all = match verdict.violations as usize > listed {
        true => format!("The first {listed} of {} violations, as the run found them", thousands(verdict.violations)),
        false => format!("All {}, as the run found them", plural(listed, "violation")),
    };
    let _ = writeln!(out, "<details class=\"all\" id=\"{id}--all\"><summary>{all}</summary>\n<ol>");
    for (number, Found { episode, violation, history }) in verdict.found.iter().take(listed).enumerate() {
        let place = match report.live.is_empty() {
            true => format!("episode {episode}, {:.3} s", violation.at_us as f64 / 1e6),
            false => format!("{:.3} s", violation.at_us as f64 / 1e6),
        };
        let _ = writeln!(
            out,
            "<li id=\"{id}--{number}\"><details><summary><span class=\"at\">{place}</span> {}</summary>",
            escaped(&violation.message)
        );
        if let Some(history) = history.as_ref().filter(|history| number < limits.drawn && !history.events.is_empty()) {
            write_timeline(&format!("{id}--{number}-t"), history, violation, limits, out);
        }
        let _ = writeln!(out, "{}</details></li>", again(report, *episode, facts));
    }
    out.push_str("</ol>\n</details>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torture::history::EventKind;

    #[test]
    fn the_events_of_the_violation_are_kept_first() {
        let mut history = History::default();
        for at_us in 0..6 {
            history.push(at_us, 0, EventKind::Pause { for_us: at_us });
            history.push(at_us, 0, EventKind::Enter { op: at_us as Op % 2 });
        }
        let kept = |most| -> Vec<String> {
            let events = last_events(history.clone(), &[1], most).events;
            events.into_iter().map(|event| format!("{} {}", event.at_us, event.kind)).collect()
        };
        assert_eq!(kept(2), ["3 enter #1", "5 enter #1"]);
        assert_eq!(kept(4), ["1 enter #1", "3 enter #1", "5 pauses for 0.000005 s", "5 enter #1"]);
        assert_eq!(kept(100).len(), 12);
    }
}
