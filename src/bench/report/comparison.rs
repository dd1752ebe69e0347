//! Tables of servers side by side: the figure of each server, its ratio to the figure of the base, and whether Portcullis reaches
//! its goal.
//!
//! The columns are kinds of servers, of which Redis is the base, or others: see [`Column`]. A lower figure is better, except in
//! rows whose unit is [`Unit::PerSecond`].

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::bench::report::table;
use crate::bench::servers::kind::ServerKind;

/// A figure up to this many times another one counts as equal: the noise that is left in a median of slices.
const NOISE: f64 = 1.02;

/// A column of a table: a server, or several that work together.
pub trait Column: Copy + PartialEq + 'static {
    /// Portcullis.
    const OURS: Self;
    /// The column that ratios compare the others with.
    const BASE: Self;

    /// The heading.
    fn name(self) -> &'static str;
}

impl Column for ServerKind {
    const OURS: ServerKind = ServerKind::Portcullis;
    const BASE: ServerKind = ServerKind::Redis;

    fn name(self) -> &'static str {
        ServerKind::name(self)
    }
}

named! {
    /// The unit of a figure.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Unit {
        /// Nanoseconds of a cost.
        Nanoseconds = "ns",
        /// Microseconds of a wait or a delay.
        Microseconds = "us",
        /// Bytes of memory.
        Bytes = "bytes",
        /// A ratio, without a unit.
        Ratio = "ratio",
        /// A number of events in a second. A higher figure is better.
        PerSecond = "per_second",
    }
}

/// The result of one measurement on one server.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A figure.
    Value(f64),
    /// A lower bound: the measurement ended before the figure was known.
    AtLeast(f64),
    /// No figure, and the reason.
    Failed(String),
    /// No figure, because the server has no such feature.
    Unsupported,
}

impl Cell {
    /// A figure, or the reason why there is none.
    pub fn of(figure: std::io::Result<f64>) -> Cell {
        figure.map_or_else(|error| Cell::Failed(error.to_string()), Cell::Value)
    }

    /// The figure, if there is one.
    pub fn figure(&self) -> Option<f64> {
        match self {
            Cell::Value(figure) | Cell::AtLeast(figure) => Some(*figure),
            Cell::Failed(_) | Cell::Unsupported => None,
        }
    }
}

/// The goal of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar<C: Column = ServerKind> {
    /// Portcullis is at least this many times as good as the base: its figure is that much smaller, or larger if a higher one is
    /// better.
    RatioAtLeast(f64),
    /// Portcullis is at least so many times as good as each of these.
    EachAtLeast(&'static [(C, f64)]),
    /// Portcullis's figure is at most this.
    AtMost(f64),
}

/// One measurement on several servers.
#[derive(Clone, Debug)]
pub struct Row<C: Column = ServerKind> {
    /// The name of the measurement.
    pub what: String,
    /// The parameter of the measurement, such as the depth of a pipeline or the number of waiters. Empty if it has none.
    pub at: String,
    /// The unit of the figures.
    pub unit: Unit,
    /// The cell of each server.
    pub cells: Vec<(C, Cell)>,
    /// The goal.
    pub bar: Option<Bar<C>>,
    /// Details for programs.
    pub more: Value,
}

/// A table.
#[derive(Clone, Debug)]
pub struct Section<C: Column = ServerKind> {
    /// The name that selects the section on the command line.
    pub name: &'static str,
    /// The heading of the first column, which says what the rows measure.
    pub title: &'static str,
    /// The heading of the column for [`Row::at`]. Empty if there is no such column.
    pub at: &'static str,
    /// The rows.
    pub rows: Vec<Row<C>>,
    /// Notes below the table.
    pub notes: Vec<String>,
}

impl<C: Column> Row<C> {
    /// A row without cells.
    pub fn new(what: impl Into<String>, at: impl Into<String>, unit: Unit) -> Row<C> {
        Row { what: what.into(), at: at.into(), unit, cells: Vec::new(), bar: None, more: json!({}) }
    }

    /// Sets the goal.
    #[must_use]
    pub fn bar(mut self, bar: Option<Bar<C>>) -> Row<C> {
        self.bar = bar;
        self
    }

    fn cell(&self, column: C) -> Option<&Cell> {
        self.cells.iter().find(|(other, _)| *other == column).map(|(_, cell)| cell)
    }

    fn figure(&self, column: C) -> Option<f64> {
        self.cell(column)?.figure()
    }

    /// The figure, or its inverse if a higher figure is better. `None` if it is missing or 0.
    fn cost(&self, column: C) -> Option<f64> {
        let figure = self.figure(column).filter(|figure| *figure > 0.0)?;
        Some(if self.unit == Unit::PerSecond { 1.0 / figure } else { figure })
    }

    /// How many times `of` is as good as `than`. `None` if a figure is missing.
    fn advantage(&self, of: C, than: C) -> Option<f64> {
        Some(self.cost(than)? / self.cost(of)?)
    }

    /// The base's figure divided by that of this column, or the other way round if a higher figure is better.
    pub fn ratio(&self, column: C) -> Option<f64> {
        self.advantage(column, C::BASE)
    }

    /// Whether the goal is reached. `None` if there is no goal or a figure is missing.
    pub fn is_met(&self) -> Option<bool> {
        Some(match self.bar? {
            Bar::RatioAtLeast(least) => self.ratio(C::OURS)? >= least,
            Bar::EachAtLeast(others) => {
                let reaches = |(other, least): &(C, f64)| Some(self.advantage(C::OURS, *other)? >= *least);
                others.iter().map(reaches).collect::<Option<Vec<bool>>>()?.into_iter().all(|reached| reached)
            }
            Bar::AtMost(most) => self.figure(C::OURS)? <= most,
        })
    }

    /// The best of the other columns, and the part by which its cost is below Portcullis's (negative if it is above). `None` if
    /// a figure is missing.
    pub fn best_other(&self) -> Option<(C, f64)> {
        let ours = self.cost(C::OURS)?;
        let others = self.cells.iter().filter(|(column, _)| *column != C::OURS);
        let costs = others.filter_map(|(column, _)| Some((*column, self.cost(*column)?)));
        costs.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(column, cost)| (column, 1.0 - cost / ours))
    }

    /// Whether no other server is better by more than the noise. `None` if a figure is missing.
    pub fn is_least(&self) -> Option<bool> {
        self.best_other().map(|(_, less)| 1.0 - less >= 1.0 / NOISE)
    }

    fn name(&self, at: &str) -> String {
        match self.at.as_bytes().first() {
            None => self.what.clone(),
            Some(b'0'..=b'9') if at.len() == 1 => format!("{}, {at}{}", self.what, self.at),
            Some(b'0'..=b'9') => format!("{}, {} {at}", self.what, self.at),
            Some(_) => format!("{}, {}", self.what, self.at),
        }
    }

    fn bar_text(&self) -> String {
        let Some(bar) = self.bar else { return "–".to_owned() };
        let aim = match bar {
            Bar::RatioAtLeast(least) => format!("≥ {least}×"),
            Bar::EachAtLeast(others) => {
                others.iter().map(|(other, least)| format!("≥ {least}× {}", other.name())).collect::<Vec<_>>().join(", ")
            }
            Bar::AtMost(most) => format!("≤ {}", self.unit.text(most)),
        };
        let verdict = self.is_met().map_or("", |met| if met { ": met" } else { ": **missed**" });
        aim + verdict
    }

    /// What the goal is compared with.
    fn stands(&self) -> String {
        let ratios: Option<Vec<String>> = match self.bar {
            Some(Bar::RatioAtLeast(_)) => self.ratio(C::OURS).map(|ratio| vec![times(ratio)]),
            Some(Bar::EachAtLeast(others)) => {
                others.iter().map(|(other, _)| self.advantage(C::OURS, *other).map(times)).collect()
            }
            _ => None,
        };
        ratios.map(|ratios| ratios.join(", ")).or_else(|| Some(self.unit.text(self.figure(C::OURS)?))).unwrap_or_default()
    }

    fn least_text(&self) -> String {
        match (self.is_least(), self.best_other()) {
            (Some(true), _) => "yes".to_owned(),
            (Some(false), Some((kind, less))) => format!("**{}** −{:.0} %", kind.name(), less * 100.0),
            _ => "–".to_owned(),
        }
    }

    fn json(&self) -> Value {
        let servers = self.cells.iter().map(|(kind, cell)| {
            let value = match cell {
                Cell::Value(figure) => json!({ "value": figure, "ratio": self.ratio(*kind) }),
                Cell::AtLeast(figure) => json!({ "value": figure, "at_least": true, "ratio": self.ratio(*kind) }),
                Cell::Failed(reason) => json!({ "failed": reason }),
                Cell::Unsupported => Value::Null,
            };
            (kind.name().to_owned(), value)
        });
        json!({
            "what": self.what,
            "at": self.at,
            "unit": self.unit.name(),
            "servers": servers.collect::<serde_json::Map<_, _>>(),
            "bar": match self.bar {
                None => Value::Null,
                Some(Bar::RatioAtLeast(least)) => json!({ "ratio_at_least": least, "met": self.is_met() }),
                Some(Bar::EachAtLeast(others)) => {
                    let each = others.iter().map(|(other, least)| (other.name().to_owned(), json!(least)));
                    json!({ "each_at_least": each.collect::<serde_json::Map<_, _>>(), "met": self.is_met() })
                }
                Some(Bar::AtMost(most)) => json!({ "at_most": most, "met": self.is_met() }),
            },
            "no_other_is_better": self.is_least(),
            "more": self.more,
        })
    }
}

impl<C: Column> Section<C> {
    /// A section without rows.
    pub fn new(name: &'static str, title: &'static str, at: &'static str) -> Section<C> {
        Section { name, title, at, rows: Vec::new(), notes: Vec::new() }
    }

    /// Renders the table in Markdown for these servers, and below it the reasons for missing figures.
    pub fn markdown(&self, servers: &[C]) -> String {
        let has_at = !self.at.is_empty();
        let mut head = vec![self.title];
        head.extend(has_at.then_some(self.at));
        head.extend(servers.iter().map(|kind| kind.name()));
        head.extend(["bar", "no other is better"]);
        let mut out = format!("| {} |\n| --- |", head.join(" | "));
        (1..head.len()).for_each(|_| out.push_str(" ---: |"));
        out.push('\n');
        for row in &self.rows {
            let mut line = vec![row.what.clone()];
            line.extend(has_at.then(|| row.at.clone()));
            line.extend(servers.iter().map(|&kind| row.cell_text(kind)));
            line.extend([row.bar_text(), row.least_text()]);
            let _ = writeln!(out, "| {} |", line.join(" | "));
        }
        let notes: Vec<String> = self.reasons().into_iter().chain(self.notes.iter().cloned()).collect();
        if !notes.is_empty() {
            out.push('\n');
        }
        notes.iter().for_each(|note| {
            let _ = writeln!(out, "- {note}");
        });
        out
    }

    /// The reasons for missing figures, each reason of a server once.
    fn reasons(&self) -> Vec<String> {
        let mut reasons: Vec<(C, &str, Vec<String>)> = Vec::new();
        for row in &self.rows {
            for (kind, cell) in &row.cells {
                let Cell::Failed(reason) = cell else { continue };
                let name = row.name(self.at);
                match reasons.iter_mut().find(|(other, known, _)| other == kind && known == reason) {
                    Some((.., names)) => names.push(name),
                    None => reasons.push((*kind, reason, vec![name])),
                }
            }
        }
        let text = |(kind, reason, names): (C, &str, Vec<String>)| {
            let rest = if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
            format!("{} has no figure for {}{rest}: `{}`", kind.name(), names[0], reason.replace('`', "'"))
        };
        reasons.into_iter().map(text).collect()
    }

    /// The section as JSON, for programs.
    pub fn json(&self) -> Value {
        json!({ "section": self.name, "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(), "notes": self.notes })
    }
}

impl<C: Column> Row<C> {
    fn cell_text(&self, kind: C) -> String {
        let Some(cell) = self.cell(kind) else { return "–".to_owned() };
        let Some(figure) = cell.figure() else { return "–".to_owned() };
        let least = if matches!(cell, Cell::AtLeast(_)) { "≥ " } else { "" };
        let text = format!("{least}{}", self.unit.text(figure));
        match self.ratio(kind) {
            Some(ratio) if kind != C::BASE && self.unit != Unit::Ratio => format!("{text} ({})", times(ratio)),
            _ => text,
        }
    }
}

/// A ratio in the form for people.
fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio < 0.1 => format!("{ratio:.3}×"),
        ratio if ratio < 10.0 => format!("{ratio:.2}×"),
        ratio => format!("{ratio:.0}×"),
    }
}

impl Unit {
    fn text(self, figure: f64) -> String {
        match self {
            Unit::Nanoseconds if figure >= 100_000.0 => table::time(figure / 1000.0),
            Unit::Nanoseconds => format!("{figure:.0} ns"),
            Unit::Microseconds => table::time(figure),
            Unit::Bytes if figure >= 1e7 => format!("{:.0} MB", figure / 1e6),
            Unit::Bytes => format!("{figure:.0} B"),
            Unit::Ratio => format!("{figure:.2}"),
            Unit::PerSecond => format!("{figure:.0}/s"),
        }
    }
}

/// A summary of all sections: the goals that were missed, and the rows in which another server is better.
pub fn verdict<C: Column>(sections: &[Section<C>]) -> String {
    let (mut bars, mut missed, mut compared, mut better) = (0, Vec::new(), 0, Vec::new());
    for section in sections {
        for row in &section.rows {
            let name = row.name(section.at);
            bars += usize::from(row.is_met().is_some());
            if row.is_met() == Some(false) {
                missed.push(format!("{name} ({} is {})", row.bar_text().replace(": **missed**", ""), row.stands()));
            }
            compared += usize::from(row.is_least().is_some());
            if let (Some(false), Some((kind, less))) = (row.is_least(), row.best_other()) {
                better.push(format!("{name} ({} by {:.0} %)", kind.name(), less * 100.0));
            }
        }
    }
    let list = |what: &[String]| if what.is_empty() { "none".to_owned() } else { what.join("; ") };
    format!(
        "{} of {bars} bars are met; missed: {}.\n\nNo other server is better in {} of {compared} rows; another is in: {}.\n",
        bars - missed.len(),
        list(&missed),
        compared - better.len(),
        list(&better)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(redis: Cell, kevy: Cell, ours: f64, bar: Option<Bar>) -> Row {
        let mut row = Row::new("GET", "16", Unit::Nanoseconds).bar(bar);
        row.cells = vec![(ServerKind::Redis, redis), (ServerKind::Kevy, kevy), (ServerKind::Portcullis, Cell::Value(ours))];
        row
    }

    #[test]
    fn a_ratio_is_redis_s_figure_over_another_one() {
        let row = row(Cell::Value(300.0), Cell::Value(150.0), 100.0, Some(Bar::RatioAtLeast(3.0)));
        assert_eq!((row.ratio(ServerKind::Kevy), row.ratio(ServerKind::Portcullis)), (Some(2.0), Some(3.0)));
        assert_eq!((row.is_met(), row.is_least()), (Some(true), Some(true)));
    }

    #[test]
    fn a_higher_number_a_second_is_better() {
        const BAR: Bar = Bar::EachAtLeast(&[(ServerKind::Redis, 2.0), (ServerKind::Kevy, 1.0)]);
        let rate = |kevy, ours| {
            let mut row: Row = Row::new("pairs", "64", Unit::PerSecond).bar(Some(BAR));
            row.cells = vec![(ServerKind::Redis, Cell::Value(100.0)), (ServerKind::Kevy, kevy), (ServerKind::Portcullis, ours)];
            row
        };
        let better = rate(Cell::Value(150.0), Cell::Value(200.0));
        assert_eq!(
            (better.ratio(ServerKind::Portcullis), better.is_met(), better.is_least()),
            (Some(2.0), Some(true), Some(true))
        );
        let worse = rate(Cell::Value(400.0), Cell::Value(200.0));
        assert_eq!((worse.is_met(), worse.best_other()), (Some(false), Some((ServerKind::Kevy, 0.5))));
        assert_eq!(
            (worse.bar_text().as_str(), worse.stands().as_str()),
            ("≥ 2× redis-server, ≥ 1× kevy: **missed**", "2.00×, 0.50×")
        );
        assert_eq!(rate(Cell::Unsupported, Cell::Value(200.0)).is_met(), None);
    }

    #[test]
    fn a_better_server_is_named_and_two_percent_are_noise() {
        let close = row(Cell::Value(300.0), Cell::Value(99.0), 100.0, Some(Bar::AtMost(99.0)));
        assert_eq!((close.is_met(), close.is_least()), (Some(false), Some(true)));
        let worse = row(Cell::Value(300.0), Cell::Value(80.0), 100.0, None);
        assert_eq!((worse.is_met(), worse.is_least()), (None, Some(false)));
        assert_eq!(worse.least_text(), "**kevy** −20 %");
    }

    #[test]
    fn missing_figures_are_not_compared() {
        let alone = row(Cell::Unsupported, Cell::Failed("it ended".to_owned()), 100.0, Some(Bar::RatioAtLeast(2.0)));
        assert_eq!((alone.is_met(), alone.is_least()), (None, None));
        let late = row(Cell::AtLeast(5.0), Cell::Unsupported, 1.0, Some(Bar::RatioAtLeast(2.0)));
        assert_eq!((late.is_met(), late.is_least()), (Some(true), Some(true)));
    }

    #[test]
    fn a_table_says_why_figures_are_missing() {
        let mut section = Section::new("cpu", "server CPU per operation", "P");
        section.rows.push(row(
            Cell::Value(300.0),
            Cell::Failed("GET a: -ERR `no`".to_owned()),
            100.0,
            Some(Bar::RatioAtLeast(4.0)),
        ));
        section.rows.push(row(Cell::Value(300.0), Cell::Failed("GET a: -ERR `no`".to_owned()), 200.0, None));
        let expected = "\
| server CPU per operation | P | redis-server | kevy | portcullis | bar | no other is better |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
| GET | 16 | 300 ns | – | 100 ns (3.00×) | ≥ 4×: **missed** | yes |
| GET | 16 | 300 ns | – | 200 ns (1.50×) | – | yes |

- kevy has no figure for GET, P16 and 1 more: `GET a: -ERR 'no'`
";
        assert_eq!(section.markdown(&[ServerKind::Redis, ServerKind::Kevy, ServerKind::Portcullis]), expected);
        let verdict = verdict(&[section]);
        assert!(verdict.contains("0 of 1 bars are met; missed: GET, P16 (≥ 4× is 3.00×)."), "{verdict}");
        assert!(verdict.contains("better in 2 of 2 rows; another is in: none."), "{verdict}");
    }
}
