//! The page of a run of `portcullis bench`: each server with its best lock, then every workload by every measure, then all figures.

use std::fmt::Write;

use crate::bench::plan::Plan;
use crate::bench::report::measure::{self, Measure, OF_LOCKS, OTHERS};
use crate::bench::report::outcome::Outcome;
use crate::bench::report::page::{Page, escaped, thousands};
use crate::bench::report::panel::{self, Group};
use crate::bench::report::run_facts::RunFacts;
use crate::bench::report::table;

const STYLE: &str = include_str!("bench.css");

/// The pattern of bars of broken locks.
const DEFS: &str = "<svg width=\"0\" height=\"0\" class=\"unseen\" aria-hidden=\"true\"><defs><pattern id=\"broken\" width=\"6\" height=\"6\" \
    patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect class=\"broken-ground\" width=\"6\" height=\"6\"/>\
    <rect class=\"broken-line\" width=\"2.5\" height=\"6\"/></pattern></defs></svg>\n";

/// Renders the page.
pub fn render(plan: &Plan, outcomes: &[Outcome], facts: &RunFacts) -> String {
    let best = best_locks(outcomes);
    let mut main = format!("{DEFS}<div id=\"verdict\">\n{}</div>\n", verdict(outcomes, &best));
    if !best.is_empty() {
        main.push_str(&first_picture(&best));
    }
    let groups = by_workload(outcomes);
    main.push_str("<div class=\"panels\">\n");
    of_every_kind(&groups, 2).for_each(|panel| main.push_str(&panel));
    OTHERS.iter().filter_map(|measure| panel::of_measure(measure, &groups, 2)).for_each(|panel| main.push_str(&panel));
    main.push_str("</div>\n");
    main.push_str(&figures(outcomes));
    let cpu = outcomes.iter().map(|outcome| outcome.cpu_source).find(|source| !source.is_empty()).unwrap_or("unknown");
    let facts_of_plan = [
        ("Servers", escaped(&targets(outcomes).join(", "))),
        ("Method", escaped(&table::method(plan))),
        ("CPU time by", escaped(cpu)),
    ];
    let page = Page { tool: "bench", title: "Portcullis bench", style: STYLE, script: "", main: &main, facts: &facts_of_plan };
    page.render(facts)
}

/// The panels of the measures that decide about a lock, with exclusion before the cost.
fn of_every_kind(groups: &[Group<'_>], level: u8) -> impl Iterator<Item = String> {
    let of = |measure: &Measure| panel::of_measure(measure, groups, level);
    let [hand_off, late, fairness, cpu] = &OF_LOCKS;
    [of(hand_off), of(late), of(fairness), panel::of_exclusion(groups, level), of(cpu)].into_iter().flatten()
}

/// The names of the servers, in the order of the run.
fn targets(outcomes: &[Outcome]) -> Vec<&str> {
    let mut targets: Vec<&str> = Vec::new();
    for outcome in outcomes {
        if !targets.contains(&outcome.target.as_str()) {
            targets.push(&outcome.target);
        }
    }
    targets
}

fn by_workload(outcomes: &[Outcome]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for outcome in outcomes {
        let bar = (escaped(&outcome.target), outcome);
        match groups.last_mut() {
            Some(group) if group.name == outcome.workload => group.bars.push(bar),
            _ => groups.push(Group { name: &outcome.workload, bars: vec![bar] }),
        }
    }
    groups
}

/// The best lock on each server: the one with the fastest hand-off among those that held and whose algorithm has no flaw that is
/// known. If there is none, one of the others.
fn best_locks(outcomes: &[Outcome]) -> Vec<&Outcome> {
    let merit = |outcome: &Outcome| {
        let flawed = measure::algorithm(outcome).is_some_and(|facts| facts.flawed);
        let hand_off_us = OF_LOCKS[0].of(outcome).map_or(u64::MAX, |us| us as u64);
        (outcome.is_broken(), flawed, hand_off_us)
    };
    let of = |target: &str| {
        let locks =
            outcomes.iter().filter(|outcome| outcome.target == target && outcome.violations.is_some() && outcome.done > 0);
        locks.min_by_key(|outcome| merit(outcome))
    };
    targets(outcomes).into_iter().filter_map(of).collect()
}

fn first_picture(best: &[&Outcome]) -> String {
    let label =
        |outcome: &Outcome| format!("{}<span class=\"name\">{}</span>", escaped(&outcome.target), escaped(&outcome.workload));
    let bars = best.iter().map(|outcome| (label(outcome), *outcome)).collect();
    let panels: String = of_every_kind(&[Group { name: "", bars }], 3).collect();
    format!(
        "<section class=\"card\" id=\"best\" aria-labelledby=\"best-title\">\n<h2 id=\"best-title\">Each server with its best lock</h2>\n\
         <p class=\"note\">The lock with the fastest hand-off among those that held and that have no flaw by design. All others are below.</p>\n\
         <div class=\"strip\">\n{panels}</div>\n</section>\n"
    )
}

/// The headline, and a sentence on what it leaves open.
fn verdict(outcomes: &[Outcome], best: &[&Outcome]) -> String {
    let name =
        |outcome: &Outcome| format!("<span class=\"name\">{}</span> on {}", escaped(&outcome.workload), escaped(&outcome.target));
    let locks: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.violations.is_some() && outcome.done > 0).collect();
    let broken: Vec<&&Outcome> = locks.iter().filter(|outcome| outcome.is_broken()).collect();
    let held = match (locks.len(), broken.len()) {
        (0, _) => String::new(),
        (all, 0) => format!("<p class=\"good\">✓ Mutual exclusion held in all {all} measurements of locks.</p>\n"),
        (all, lost) => format!("<p>Mutual exclusion held in {} of {all} measurements of locks.</p>\n", all - lost),
    };
    let mut by_hand_off: Vec<(f64, &Outcome)> = best
        .iter()
        .filter(|outcome| !outcome.is_broken())
        .filter_map(|outcome| Some((OF_LOCKS[0].of(outcome)?, *outcome)))
        .collect();
    by_hand_off.sort_by(|a, b| a.0.total_cmp(&b.0));
    let headline = if let Some(first) = broken.first() {
        let times = first.violations.map_or(0, |violations| violations.overlaps.max(violations.lost_counts));
        let more = if broken.len() > 1 { format!(", and {} more", broken.len() - 1) } else { String::new() };
        format!("<span class=\"danger\">✗ Mutual exclusion broke</span> {} times: {}{more}.", thousands(times), name(first))
    } else if let Some(((fastest_us, fastest), others)) = by_hand_off.split_first() {
        let mut text = format!("{} hands a lock over in {}", name(fastest), table::time(*fastest_us));
        for (us, outcome) in others {
            let _ = write!(text, "; {} takes {}", name(outcome), table::time(*us));
        }
        text + "."
    } else {
        let works = by_workload(outcomes).len();
        format!("{works} {} on {}.", if works == 1 { "workload" } else { "workloads" }, escaped(&targets(outcomes).join(" and ")))
    };
    format!("<h1>{headline}</h1>\n{held}")
}

/// The table of all figures, and what clients were refused.
fn figures(outcomes: &[Outcome]) -> String {
    let mut out = String::from(
        "<section class=\"card\" aria-labelledby=\"figures-title\">\n<h2 id=\"figures-title\">All figures</h2>\n\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"figures-title\"><table class=\"figures\">\n<thead><tr>",
    );
    let is_text = |column: usize| matches!(column, 0 | 1) || column == table::HEAD.len() - 1;
    let class = |column: usize| if is_text(column) { " class=\"left\"" } else { "" };
    for (column, head) in table::HEAD.iter().enumerate() {
        let _ = write!(out, "<th scope=\"col\"{}>{}</th>", class(column), escaped(head));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for outcome in outcomes {
        out.push_str("<tr>");
        for (column, cell) in table::row(outcome).iter().enumerate() {
            let (text, danger) = (escaped(cell), if cell.starts_with("BROKEN") { " danger" } else { "" });
            let _ = match column {
                0 => write!(out, "<th scope=\"row\" class=\"left name\">{text}</th>"),
                column if is_text(column) => write!(out, "<td class=\"left{danger}\">{text}</td>"),
                _ => write!(out, "<td>{text}</td>"),
            };
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    for note in table::notes(outcomes) {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", escaped(&note));
    }
    out.push_str("</section>\n");
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::bench::cli;
    use crate::bench::machine::Machine;
    use crate::bench::report::page::assert_well_formed;
    use crate::bench::run::critical_section::Violations;

    fn lock(name: &str, target: &str, hand_off_us: u64) -> Outcome {
        let mut outcome = Outcome::new(name, target, 2, "scheduler");
        (outcome.done, outcome.shares, outcome.rates) = (2, vec![1, 1], vec![2.0]);
        (outcome.cpu_ns, outcome.commands) = (4000, 4);
        outcome.hand_offs_us.saturating_record(hand_off_us);
        outcome.violations = Some(Violations::default());
        outcome
    }

    fn page(outcomes: &[Outcome]) -> String {
        let plan =
            cli::parse(&cli::command().try_get_matches_from(["bench", "native", "--against", "portcullis"]).unwrap()).unwrap();
        let machine = Machine { cpu: "a processor".to_owned(), cores: 2, kernel: "6.1".to_owned() };
        let page = render(&plan, outcomes, &RunFacts::of(std::time::SystemTime::UNIX_EPOCH, machine, ["bench".to_owned()]));
        assert_well_formed(&page);
        page
    }

    #[test]
    fn the_headline_compares_the_best_sound_lock_of_each_server() {
        let mut skipped = lock("native", "redis 7", 1);
        (skipped.skipped, skipped.done) = (Some("it needs native locks".to_owned()), 0);
        let outcomes = [
            lock("fair", "portcullis 1", 90),
            lock("fair", "redis 7", 140),
            // It is flawed by design.
            lock("blpop", "redis 7", 20),
            lock("native", "portcullis 1", 27),
            skipped,
        ];
        let page = page(&outcomes);
        let headline = "<span class=\"name\">native</span> on portcullis 1 hands a lock over in 27 µs; \
            <span class=\"name\">fair</span> on redis 7 takes 140 µs.";
        assert!(page.contains(headline) && page.contains("✓ Mutual exclusion held in all 4 measurements"), "{page}");
        assert!(page.contains("<span class=\"none\">it needs native locks</span>"), "{page}");
    }

    #[test]
    fn a_broken_lock_is_the_headline_and_never_the_best() {
        let mut broken = lock("broken", "portcullis 1", 1);
        broken.violations = Some(Violations { overlaps: 5, lost_counts: 7 });
        let page = page(&[broken, lock("native", "portcullis 1", 27)]);
        assert!(
            page.contains("✗ Mutual exclusion broke</span> 7 times: <span class=\"name\">broken</span> on portcullis 1."),
            "{page}"
        );
        let best = page.split("id=\"best\"").nth(1).unwrap().split("class=\"panels\"").next().unwrap();
        assert!(best.contains("native") && !best.contains("broken"), "{best}");
    }

    #[test]
    fn names_are_only_text() {
        let mut plain = lock("SET {key} '<img src=x>'", "<script>", 5);
        plain.violations = None;
        plain.error = Some("<b>".to_owned());
        let page = page(&[plain]);
        assert!(!page.contains("<img") && !page.contains("<script>") && !page.contains("<b>"), "{page}");
        assert!(!page.contains("id=\"best\""), "there is no lock");
    }
}
