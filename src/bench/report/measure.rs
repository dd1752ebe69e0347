//! The measures that the page draws, each with its unit and its scale.

use crate::bench::report::outcome::Outcome;
use crate::bench::report::scale::Scale;
use crate::bench::report::statistics::quantile;
use crate::bench::report::table::time;
use crate::recipes::{Facts, facts};

/// Which figures are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Lower ones.
    Less,
    /// Higher ones.
    More,
}

/// A measure of an outcome.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Its identifier in the page.
    pub id: &'static str,
    /// Its title.
    pub title: &'static str,
    /// What it is, in one sentence.
    pub about: &'static str,
    /// Which figures are better.
    pub better: Better,
    /// Whether only locks have it.
    pub of_locks: bool,
    /// The figure of an outcome. `None` if it was not measured.
    pub figure: fn(&Outcome) -> Option<f64>,
    /// The worst figure of an outcome, for a line that continues the bar.
    pub worst: fn(&Outcome) -> Option<f64>,
    /// A figure as text with its unit.
    pub text: fn(f64) -> String,
    /// Whether all figures are from 0 to 1.
    pub unit: bool,
}

fn of_waits(outcome: &Outcome, part: f64) -> Option<f64> {
    (!outcome.waits_us.is_empty()).then(|| outcome.waits_us.value_at_quantile(part) as f64)
}

fn of_hand_offs(outcome: &Outcome, part: f64) -> Option<f64> {
    (!outcome.hand_offs_us.is_empty()).then(|| outcome.hand_offs_us.value_at_quantile(part) as f64)
}

fn lateness(outcome: &Outcome, part: f64) -> Option<f64> {
    quantile(&outcome.late_us, part).map(|us| us as f64)
}

fn precise(us: f64) -> String {
    if us < 100.0 { format!("{us:.1} µs") } else { time(us) }
}

fn rate(per_second: f64) -> String {
    match per_second {
        few if few < 10_000.0 => format!("{few:.0}/s"),
        many => format!("{:.1}k/s", many / 1000.0),
    }
}

/// The measures that decide about a lock. Exclusion, which is no figure, is shown beside them.
pub const OF_LOCKS: [Measure; 4] = [
    Measure {
        id: "hand-off",
        title: "Hand-off",
        about: "Median time from a release until a waiter has the lock; the line ends at the 99th percentile.",
        better: Better::Less,
        of_locks: true,
        figure: |outcome| of_hand_offs(outcome, 0.5),
        worst: |outcome| of_hand_offs(outcome, 0.99),
        text: time,
        unit: false,
    },
    Measure {
        id: "late",
        title: "Late end of a lease",
        about: "Median time from the end of a forgotten lease until the next client has the lock; the line ends at the maximum.",
        better: Better::Less,
        of_locks: true,
        figure: |outcome| lateness(outcome, 0.5),
        worst: |outcome| lateness(outcome, 1.0),
        text: time,
        unit: false,
    },
    Measure {
        id: "fairness",
        title: "Fairness",
        about: "Jain's index of what each client got: 1 if all got the same.",
        better: Better::More,
        of_locks: true,
        figure: Outcome::fairness,
        worst: |_| None,
        text: |index| format!("{index:.3}"),
        unit: true,
    },
    Measure {
        id: "cpu",
        title: "CPU per operation",
        about: "CPU time of the server for an acquisition with its release, or for a command.",
        better: Better::Less,
        of_locks: false,
        figure: Outcome::cpu_us_each,
        worst: |_| None,
        text: precise,
        unit: false,
    },
];

/// The other measures.
pub const OTHERS: [Measure; 3] = [
    Measure {
        id: "rate",
        title: "Operations per second",
        about: "Acquisitions with their releases, or commands: the median of the slices.",
        better: Better::More,
        of_locks: false,
        figure: |outcome| Some(outcome.per_second()),
        worst: |_| None,
        text: rate,
        unit: false,
    },
    Measure {
        id: "wait",
        title: "Wait, 99th percentile",
        about: "Time from asking to having; the line ends at the maximum.",
        better: Better::Less,
        of_locks: false,
        figure: |outcome| of_waits(outcome, 0.99),
        worst: |outcome| of_waits(outcome, 1.0),
        text: time,
        unit: false,
    },
    Measure {
        id: "commands",
        title: "Commands per operation",
        about: "Commands that a client sends for an acquisition with its release.",
        better: Better::Less,
        of_locks: false,
        figure: Outcome::commands_each,
        worst: |_| None,
        text: |commands| format!("{commands:.1}"),
        unit: false,
    },
];

impl Measure {
    /// The figure of an outcome, unless it was skipped or never worked.
    pub fn of(&self, outcome: &Outcome) -> Option<f64> {
        if outcome.skipped.is_some() || outcome.done == 0 { None } else { (self.figure)(outcome) }
    }

    /// The scale for these outcomes. What broken locks show does not count.
    pub fn scale<'a>(&self, outcomes: impl IntoIterator<Item = &'a Outcome>) -> Scale {
        if self.unit {
            return Scale::Linear { high: 1.0 };
        }
        let sound = outcomes.into_iter().filter(|outcome| !outcome.is_broken());
        Scale::logarithmic(sound.flat_map(|outcome| [self.of(outcome), self.of(outcome).and((self.worst)(outcome))]).flatten())
    }

    /// The best figure of these outcomes. What broken locks show does not count, nor a lease that ended too early.
    pub fn best<'a>(&self, outcomes: impl IntoIterator<Item = &'a Outcome>) -> Option<f64> {
        let sound = outcomes.into_iter().filter(|outcome| !outcome.is_broken());
        let figures = sound.filter_map(|outcome| self.of(outcome)).filter(|figure| *figure >= 0.0);
        match self.better {
            Better::Less => figures.min_by(f64::total_cmp),
            Better::More => figures.max_by(f64::total_cmp),
        }
    }

    /// How many times `figure` is as bad as `best`. `None` if one of them is 0 or below.
    pub fn ratio(&self, figure: f64, best: f64) -> Option<f64> {
        (figure > 0.0 && best > 0.0).then(|| if self.better == Better::Less { figure / best } else { best / figure })
    }
}

/// The facts about the algorithm of an outcome. `None` if it is a plain command.
pub fn algorithm(outcome: &Outcome) -> Option<&'static Facts> {
    facts(outcome.workload.strip_suffix("+watchdog").unwrap_or(&outcome.workload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::run::critical_section::Violations;

    fn outcome(hand_off_us: u64) -> Outcome {
        let mut outcome = Outcome::new("native", "portcullis 0.1.0", 1, "scheduler");
        outcome.done = 1;
        outcome.hand_offs_us.saturating_record(hand_off_us);
        outcome.violations = Some(Violations::default());
        outcome
    }

    #[test]
    fn broken_locks_neither_win_nor_set_the_scale() {
        let mut broken = outcome(1);
        broken.violations = Some(Violations { overlaps: 3, lost_counts: 3 });
        let outcomes = [broken, outcome(40), outcome(90)];
        let measure = OF_LOCKS[0];
        assert_eq!(measure.best(&outcomes), Some(40.0));
        assert_eq!(measure.scale(&outcomes), Scale::logarithmic([40.0, 90.0]));
        assert_eq!((measure.ratio(90.0, 40.0), measure.ratio(90.0, 0.0)), (Some(2.25), None));
    }

    #[test]
    fn skipped_and_failed_outcomes_have_no_figures() {
        let (mut skipped, mut failed) = (outcome(40), outcome(40));
        skipped.skipped = Some("why".to_owned());
        failed.done = 0;
        let figures = OF_LOCKS.iter().chain(&OTHERS).flat_map(|measure| [measure.of(&skipped), measure.of(&failed)]);
        assert_eq!(figures.flatten().count(), 0);
    }

    #[test]
    fn plain_commands_have_no_facts() {
        let of = |name: &str| algorithm(&Outcome::new(name, "s", 1, "")).map(|facts| facts.name);
        assert_eq!((of("native"), of("set-nx-px+watchdog"), of("GET {key}")), (Some("native"), Some("set-nx-px"), None));
    }
}
