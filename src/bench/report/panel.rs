//! A panel of the page: a bar for each outcome, with its figure on it and its ratio to the best one beside it.

use std::fmt::Write;

use crate::bench::report::measure::{self, Better, Measure};
use crate::bench::report::outcome::Outcome;
use crate::bench::report::page::{escaped, thousands};
use crate::bench::report::scale::Scale;

/// The part of a bar's line that the longest bar takes, in percent. The rest is for its figure.
const WIDEST: f64 = 68.0;

/// Outcomes that are shown under one name.
pub struct Group<'a> {
    /// The name; empty if there is one group only.
    pub name: &'a str,
    /// The outcomes, each with the label of its bar as HTML.
    pub bars: Vec<(String, &'a Outcome)>,
}

/// Renders the panel of a measure. `None` if no outcome has a figure.
pub fn of_measure(measure: &Measure, groups: &[Group<'_>], level: u8) -> Option<String> {
    let all = || groups.iter().flat_map(|group| group.bars.iter().map(|(_, outcome)| *outcome));
    all().find_map(|outcome| measure.of(outcome))?;
    let (scale, best) = (measure.scale(all()), measure.best(all()));
    let how = match (measure.better, scale) {
        (Better::Less, Scale::Logarithmic { .. }) => "Less is better. Logarithmic.",
        (Better::Less, Scale::Linear { .. }) => "Less is better.",
        (Better::More, Scale::Logarithmic { .. }) => "More is better. Logarithmic.",
        (Better::More, Scale::Linear { .. }) => "More is better.",
    };
    let mut out = opened(measure.id, measure.title, &format!("{} {how}", measure.about), level);
    out.push_str(&axis(measure, scale));
    for group in groups {
        let belongs = |outcome: &Outcome| !measure.of_locks || outcome.violations.is_some() || outcome.skipped.is_some();
        let bars: Vec<String> = (group.bars.iter().filter(|(_, outcome)| belongs(outcome)))
            .map(|(label, outcome)| row(label, outcome, &bar(measure, scale, best, outcome)))
            .collect();
        push_group(group.name, &bars, &mut out);
    }
    out.push_str("</section>\n");
    Some(out)
}

/// Renders the panel of mutual exclusion. `None` if no outcome is one of a lock.
pub fn of_exclusion(groups: &[Group<'_>], level: u8) -> Option<String> {
    groups.iter().flat_map(|group| &group.bars).find(|(_, outcome)| outcome.violations.is_some())?;
    let about = "Whether a critical section that knows nothing of the lock saw two clients inside, or lost a count.";
    let mut out = opened("exclusion", "Exclusion", about, level);
    for group in groups {
        let is_lock = |outcome: &Outcome| outcome.violations.is_some() || outcome.skipped.is_some();
        let bars: Vec<String> = (group.bars.iter().filter(|(_, outcome)| is_lock(outcome)))
            .map(|(label, outcome)| row(label, outcome, &exclusion(outcome)))
            .collect();
        push_group(group.name, &bars, &mut out);
    }
    out.push_str("</section>\n");
    Some(out)
}

fn opened(id: &str, title: &str, about: &str, level: u8) -> String {
    let (prefix, class) = if level == 2 { ("all-", " card") } else { ("", "") };
    format!(
        "<section class=\"panel{class}\" aria-labelledby=\"{prefix}{id}\">\n<h{level} id=\"{prefix}{id}\">{title}</h{level}>\n\
         <p class=\"note\">{about}</p>\n"
    )
}

fn push_group(name: &str, bars: &[String], out: &mut String) {
    if bars.is_empty() {
        return;
    }
    let heading = if name.is_empty() { String::new() } else { format!("<h4 class=\"name\">{}</h4>", escaped(name)) };
    let _ = writeln!(out, "<div class=\"group\">{heading}<ul>\n{}</ul></div>", bars.concat());
}

fn row(label: &str, outcome: &Outcome, bar: &str) -> String {
    let own = if outcome.target.starts_with("portcullis") { " own" } else { "" };
    format!("<li class=\"bar{own}\"><span class=\"server\">{label}</span>{bar}</li>\n")
}

/// The line of labelled ticks above the bars.
fn axis(measure: &Measure, scale: Scale) -> String {
    let mut marks = String::new();
    for (number, tick) in scale.ticks().into_iter().enumerate() {
        let (x, anchor) = (place(scale, tick), if number == 0 { "start" } else { "middle" });
        let text = tick_text(measure, tick);
        // A narrow panel has room for every other one.
        let class = if number % 2 == 1 { " class=\"extra\"" } else { "" };
        let _ = write!(marks, "<text{class} x=\"{x:.2}%\" y=\"11\" text-anchor=\"{anchor}\">{text}</text>");
    }
    format!("<div class=\"bar axis\" aria-hidden=\"true\"><svg width=\"100%\" height=\"15\">{marks}</svg></div>\n")
}

/// The text of a tick, without decimals that are 0.
fn tick_text(measure: &Measure, tick: f64) -> String {
    let text = if measure.unit { tick.to_string() } else { (measure.text)(tick) };
    let number = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(number);
    let digits = if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    format!("{digits}{unit}")
}

/// The position of a figure in percent of the line's width. The left edge is 0 even for a figure whose bar has a least width.
fn place(scale: Scale, figure: f64) -> f64 {
    let at_edge = match scale {
        Scale::Logarithmic { low, .. } => figure <= low,
        Scale::Linear { .. } => figure <= 0.0,
    };
    if at_edge { 0.0 } else { scale.part(figure) * WIDEST }
}

/// The line of an outcome: its bar with its figure, and its ratio to the best figure.
fn bar(measure: &Measure, scale: Scale, best: Option<f64>, outcome: &Outcome) -> String {
    let Some(figure) = measure.of(outcome) else {
        return format!("<span class=\"none\">{}</span>", escaped(&why_none(measure, outcome)));
    };
    if figure < 0.0 {
        let early = (measure.text)(-figure);
        return format!("<span class=\"none danger\">✗ early by {early}: the lease was not kept</span>");
    }
    let text = (measure.text)(figure);
    let (beside, is_best) = match best {
        _ if outcome.is_broken() => ("broken".to_owned(), false),
        // Figures that read the same are equal for a reader.
        Some(best) if text == (measure.text)(best) => ("best".to_owned(), true),
        Some(best) => (measure.ratio(figure, best).map_or_else(String::new, ratio), false),
        None => (String::new(), false),
    };
    let class = if outcome.is_broken() { "fill broken" } else { "fill" };
    let mut marks = String::new();
    for tick in scale.ticks() {
        let x = place(scale, tick);
        let _ = write!(marks, "<line class=\"grid\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"0\" y2=\"22\"/>");
    }
    let width = scale.part(figure) * WIDEST;
    let _ = write!(marks, "<rect class=\"{class}\" x=\"0\" y=\"4\" width=\"{width:.2}%\" height=\"14\"/>");
    let (mut end, mut range) = (width, String::new());
    if let Some(worst) = (measure.worst)(outcome).filter(|worst| *worst > figure) {
        end = scale.part(worst) * WIDEST;
        range = format!("<tspan class=\"range\"> – {}</tspan>", (measure.text)(worst));
        let _ = write!(
            marks,
            "<line class=\"worst\" x1=\"{width:.2}%\" x2=\"{end:.2}%\" y1=\"11\" y2=\"11\"/>\
             <line class=\"worst\" x1=\"{end:.2}%\" x2=\"{end:.2}%\" y1=\"7\" y2=\"15\"/><title>{text}, at worst {}</title>",
            (measure.text)(worst)
        );
    }
    let _ = write!(marks, "<text x=\"{end:.2}%\" dx=\"6\" y=\"15\">{text}{range}</text>");
    let label = escaped(&format!("{} on {}: {text} {beside}", outcome.workload, outcome.target));
    let weight = if is_best { " is-best" } else { "" };
    format!(
        "<svg width=\"100%\" height=\"22\" role=\"img\" aria-label=\"{label}\">{marks}</svg><span class=\"ratio{weight}\">{beside}</span>"
    )
}

/// Why an outcome has no figure, in words for people.
fn why_none(measure: &Measure, outcome: &Outcome) -> String {
    let expires = measure::algorithm(outcome).is_none_or(|facts| facts.expires);
    match &outcome.skipped {
        Some(reason) => reason.clone(),
        None if outcome.done == 0 => "it never worked".to_owned(),
        None if measure.id == "late" && !expires => "no lease: a crashed holder keeps it for ever".to_owned(),
        None => "not measured".to_owned(),
    }
}

fn exclusion(outcome: &Outcome) -> String {
    let done = thousands(outcome.done);
    match (&outcome.skipped, outcome.violations) {
        (Some(reason), _) => format!("<span class=\"none\">{}</span>", escaped(reason)),
        (None, _) if outcome.done == 0 => "<span class=\"none danger\">✗ it never worked</span>".to_owned(),
        (None, Some(violations)) if outcome.is_broken() => format!(
            "<span class=\"verdict danger\">✗ broken {} times in {done} acquisitions</span>",
            thousands(violations.overlaps.max(violations.lost_counts))
        ),
        (None, _) => format!("<span class=\"verdict good\">✓ held in {done} acquisitions</span>"),
    }
}

/// A ratio to the best figure, for people.
fn ratio(ratio: f64) -> String {
    match ratio {
        near if near < 9.95 => format!("{near:.1}×"),
        far => format!("{}×", thousands(far.round() as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::measure::{OF_LOCKS, OTHERS};
    use crate::bench::report::scale::PART_MIN;

    /// An outcome with one hand-off.
    fn outcome(target: &str, hand_off_us: u64) -> Outcome {
        let mut outcome = Outcome::new("native", target, 2, "scheduler");
        (outcome.done, outcome.shares) = (2, vec![1, 1]);
        outcome.hand_offs_us.saturating_record(hand_off_us);
        outcome.violations = Some(Default::default());
        outcome
    }

    fn widths(panel: &str) -> Vec<f64> {
        let bars = panel.split("<rect ").skip(1);
        let width = |bar: &str| bar.split("width=\"").nth(1)?.split('%').next()?.parse().ok();
        bars.filter_map(width).collect()
    }

    #[test]
    fn the_shortest_bar_can_be_seen_and_every_figure_is_on_its_bar() {
        let outcomes = [outcome("a", 1), outcome("b", 40), outcome("c", 400_000_000)];
        let bars = outcomes.iter().map(|outcome| (escaped(&outcome.target), outcome)).collect();
        let panel = of_measure(&OF_LOCKS[0], &[Group { name: "native", bars }], 2).unwrap_or_default();
        let widths = widths(&panel);
        assert!(widths.len() == 3 && widths.is_sorted() && widths[0] >= PART_MIN * WIDEST, "{widths:?}");
        assert!(widths[1] > 1.3 * widths[0] && widths[2] > 3.0 * widths[1], "the largest flattens no other: {widths:?}");
        for text in ["1 µs", "40 µs", "400", ">best<", ">40×<"] {
            assert!(panel.contains(text), "{text}: {panel}");
        }
    }

    #[test]
    fn ticks_say_where_they_are() {
        let ticks = [0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e7];
        let of = |measure: &Measure| ticks.map(|tick| tick_text(measure, tick)).join(" ");
        assert_eq!(of(&OF_LOCKS[3]), "0.1 µs 1 µs 10 µs 100 µs 1 ms 10 ms 100 ms 1 s 10 s");
        assert_eq!(of(&OTHERS[0]), "0/s 1/s 10/s 100/s 1000/s 10k/s 100k/s 1000k/s 10000k/s");
        assert_eq!(of(&OTHERS[2]), "0.1 1 10 100 1000 10000 100000 1000000 10000000");
        assert_eq!([0.0, 0.5, 1.0].map(|tick| tick_text(&OF_LOCKS[2], tick)).join(" "), "0 0.5 1");
    }

    #[test]
    fn broken_locks_and_early_leases_are_marked() {
        let (mut broken, mut early) = (outcome("a", 1), outcome("b", 40));
        broken.violations = Some(crate::bench::run::critical_section::Violations { overlaps: 1963, lost_counts: 12 });
        early.late_us = vec![-3000];
        let bars = || vec![("a".to_owned(), &broken), ("b".to_owned(), &early)];
        let groups = [Group { name: "x <y>", bars: bars() }];
        let hand_off = of_measure(&OF_LOCKS[0], &groups, 2).unwrap_or_default();
        assert!(hand_off.contains("fill broken") && hand_off.contains("x &lt;y&gt;"), "{hand_off}");
        assert!(of_exclusion(&groups, 2).unwrap_or_default().contains("✗ broken 1,963 times in 2 acquisitions<"));
        assert!(of_measure(&OF_LOCKS[1], &groups, 2).unwrap_or_default().contains("✗ early by 3.00 ms"));
    }
}
