//! Figures of servers side by side: what each needs, how that compares with Redis, and whether it is what was aimed at.
//!
//! Less is better in all of them.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::bench::peer::Peer;
use crate::bench::table;

/// By how much a figure may be above another's and count as no worse: what is left of noise in a median of slices.
const ALIKE: f64 = 1.02;

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds of something that costs the same every time.
    Nanoseconds,
    /// Microseconds that somebody waited, or was late.
    Microseconds,
    /// Bytes of memory.
    Bytes,
    /// Of nothing.
    Ratio,
}

/// What came out of one measurement on one server.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A figure.
    Is(f64),
    /// A figure that would have been larger, had there been more patience.
    AtLeast(f64),
    /// None, and why.
    Not(String),
    /// None, as the server has nothing like it.
    Foreign,
}

impl Cell {
    /// A figure, or why there is none.
    pub fn of(figure: std::io::Result<f64>) -> Cell {
        figure.map_or_else(|error| Cell::Not(error.to_string()), Cell::Is)
    }

    /// The figure, if there is one.
    pub fn figure(&self) -> Option<f64> {
        match self {
            Cell::Is(figure) | Cell::AtLeast(figure) => Some(*figure),
            Cell::Not(_) | Cell::Foreign => None,
        }
    }
}

/// What is aimed at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// Redis needs this many times as much as Portcullis, or more.
    Ratio(f64),
    /// Portcullis needs this or less.
    Most(f64),
}

/// One thing that was measured on several servers.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// How far it was driven, where it was driven in several ways: the depth of a pipeline, the number of waiters.
    pub at: String,
    /// What the figures count.
    pub unit: Unit,
    /// One of each server.
    pub cells: Vec<(Peer, Cell)>,
    /// What is aimed at.
    pub bar: Option<Bar>,
    /// What else is known, for programs.
    pub more: Value,
}

/// Rows that belong together.
#[derive(Clone, Debug)]
pub struct Section {
    /// The name by which it is chosen.
    pub name: &'static str,
    /// What stands above the table.
    pub title: &'static str,
    /// What [`Row::at`] says.
    pub at: &'static str,
    /// The rows.
    pub rows: Vec<Row>,
    /// What stands below it.
    pub notes: Vec<String>,
}

impl Row {
    /// A row without figures yet.
    pub fn new(what: impl Into<String>, at: impl Into<String>, unit: Unit) -> Row {
        Row { what: what.into(), at: at.into(), unit, cells: Vec::new(), bar: None, more: json!({}) }
    }

    /// With what is aimed at.
    #[must_use]
    pub fn bar(mut self, bar: Option<Bar>) -> Row {
        self.bar = bar;
        self
    }

    fn cell(&self, peer: Peer) -> Option<&Cell> {
        self.cells.iter().find(|(other, _)| *other == peer).map(|(_, cell)| cell)
    }

    fn figure(&self, peer: Peer) -> Option<f64> {
        self.cell(peer)?.figure()
    }

    /// How many times as much Redis needs.
    pub fn ratio(&self, peer: Peer) -> Option<f64> {
        Some(self.figure(Peer::Redis)? / self.figure(peer).filter(|figure| *figure > 0.0)?)
    }

    /// Whether what is aimed at is reached; `None` where it cannot be told.
    pub fn is_met(&self) -> Option<bool> {
        Some(match self.bar? {
            Bar::Ratio(least) => self.ratio(Peer::Portcullis)? >= least,
            Bar::Most(most) => self.figure(Peer::Portcullis)? <= most,
        })
    }

    /// The server that needs least of all others, and what part less than Portcullis: below 0 where it needs more. `None` where nothing can
    /// be compared.
    pub fn best_other(&self) -> Option<(Peer, f64)> {
        let ours = self.figure(Peer::Portcullis).filter(|ours| *ours > 0.0)?;
        let others = self.cells.iter().filter(|(peer, _)| *peer != Peer::Portcullis);
        let figures = others.filter_map(|(peer, cell)| Some((*peer, cell.figure()?)));
        figures.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(peer, figure)| (peer, 1.0 - figure / ours))
    }

    /// Whether no other server needs clearly less; `None` where nothing can be compared.
    pub fn is_least(&self) -> Option<bool> {
        self.best_other().map(|(_, less)| 1.0 - less >= 1.0 / ALIKE)
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
            Bar::Ratio(least) => format!("≥ {least}×"),
            Bar::Most(most) => format!("≤ {}", self.unit.text(most)),
        };
        let verdict = self.is_met().map_or("", |met| if met { ": met" } else { ": **missed**" });
        aim + verdict
    }

    fn least_text(&self) -> String {
        match (self.is_least(), self.best_other()) {
            (Some(true), _) => "yes".to_owned(),
            (Some(false), Some((peer, less))) => format!("**{}** −{:.0} %", peer.name(), less * 100.0),
            _ => "–".to_owned(),
        }
    }

    fn json(&self) -> Value {
        let servers = self.cells.iter().map(|(peer, cell)| {
            let value = match cell {
                Cell::Is(figure) => json!({ "value": figure, "ratio": self.ratio(*peer) }),
                Cell::AtLeast(figure) => json!({ "value": figure, "at_least": true, "ratio": self.ratio(*peer) }),
                Cell::Not(reason) => json!({ "failed": reason }),
                Cell::Foreign => Value::Null,
            };
            (peer.name().to_owned(), value)
        });
        json!({
            "what": self.what,
            "at": self.at,
            "unit": self.unit.name(),
            "servers": servers.collect::<serde_json::Map<_, _>>(),
            "bar": match self.bar {
                None => Value::Null,
                Some(Bar::Ratio(least)) => json!({ "ratio_at_least": least, "met": self.is_met() }),
                Some(Bar::Most(most)) => json!({ "at_most": most, "met": self.is_met() }),
            },
            "no_other_is_better": self.is_least(),
            "more": self.more,
        })
    }
}

impl Section {
    /// Without rows yet.
    pub fn new(name: &'static str, title: &'static str, at: &'static str) -> Section {
        Section { name, title, at, rows: Vec::new(), notes: Vec::new() }
    }

    /// A table in Markdown of these servers, and below it why some figures are missing.
    pub fn markdown(&self, peers: &[Peer]) -> String {
        let has_at = !self.at.is_empty();
        let mut head = vec![self.title];
        head.extend(has_at.then_some(self.at));
        head.extend(peers.iter().map(|peer| peer.name()));
        head.extend(["bar", "no other is better"]);
        let mut out = format!("| {} |\n| --- |", head.join(" | "));
        (1..head.len()).for_each(|_| out.push_str(" ---: |"));
        out.push('\n');
        for row in &self.rows {
            let mut line = vec![row.what.clone()];
            line.extend(has_at.then(|| row.at.clone()));
            line.extend(peers.iter().map(|&peer| row.cell_text(peer)));
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

    /// Why figures are missing: each reason of a server once.
    fn reasons(&self) -> Vec<String> {
        let mut reasons: Vec<(Peer, &str, Vec<String>)> = Vec::new();
        for row in &self.rows {
            for (peer, cell) in &row.cells {
                let Cell::Not(reason) = cell else { continue };
                let name = row.name(self.at);
                match reasons.iter_mut().find(|(other, known, _)| other == peer && known == reason) {
                    Some((.., names)) => names.push(name),
                    None => reasons.push((*peer, reason, vec![name])),
                }
            }
        }
        let text = |(peer, reason, names): (Peer, &str, Vec<String>)| {
            let rest = if names.len() > 1 { format!(" and {} more", names.len() - 1) } else { String::new() };
            format!("{} has no figure for {}{rest}: `{}`", peer.name(), names[0], reason.replace('`', "'"))
        };
        reasons.into_iter().map(text).collect()
    }

    /// All of it, for programs.
    pub fn json(&self) -> Value {
        json!({ "section": self.name, "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(), "notes": self.notes })
    }
}

impl Row {
    fn cell_text(&self, peer: Peer) -> String {
        let Some(cell) = self.cell(peer) else { return "–".to_owned() };
        let Some(figure) = cell.figure() else { return "–".to_owned() };
        let least = if matches!(cell, Cell::AtLeast(_)) { "≥ " } else { "" };
        let text = format!("{least}{}", self.unit.text(figure));
        match self.ratio(peer) {
            Some(ratio) if peer != Peer::Redis && self.unit != Unit::Ratio => format!("{text} ({})", times(ratio)),
            _ => text,
        }
    }
}

/// How many times as much, as people read it.
fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio < 0.1 => format!("{ratio:.3}×"),
        ratio if ratio < 10.0 => format!("{ratio:.2}×"),
        ratio => format!("{ratio:.0}×"),
    }
}

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "ns",
            Unit::Microseconds => "us",
            Unit::Bytes => "bytes",
            Unit::Ratio => "ratio",
        }
    }

    fn text(self, figure: f64) -> String {
        match self {
            Unit::Nanoseconds if figure >= 100_000.0 => table::time(figure / 1000.0),
            Unit::Nanoseconds => format!("{figure:.0} ns"),
            Unit::Microseconds => table::time(figure),
            Unit::Bytes => format!("{figure:.0} B"),
            Unit::Ratio => format!("{figure:.2}"),
        }
    }
}

/// What came out in all: bars that were missed, and where another server is better.
pub fn verdict(sections: &[Section]) -> String {
    let (mut bars, mut missed, mut compared, mut better) = (0, Vec::new(), 0, Vec::new());
    for section in sections {
        for row in &section.rows {
            let name = row.name(section.at);
            bars += usize::from(row.is_met().is_some());
            if row.is_met() == Some(false) {
                let stands = row.ratio(Peer::Portcullis).filter(|_| matches!(row.bar, Some(Bar::Ratio(_))));
                let stands = stands.map(times).or_else(|| row.figure(Peer::Portcullis).map(|figure| row.unit.text(figure)));
                missed.push(format!("{name} ({} is {})", row.bar_text().replace(": **missed**", ""), stands.unwrap_or_default()));
            }
            compared += usize::from(row.is_least().is_some());
            if let (Some(false), Some((peer, less))) = (row.is_least(), row.best_other()) {
                better.push(format!("{name} ({} by {:.0} %)", peer.name(), less * 100.0));
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
        row.cells = vec![(Peer::Redis, redis), (Peer::Kevy, kevy), (Peer::Portcullis, Cell::Is(ours))];
        row
    }

    #[test]
    fn a_ratio_is_what_redis_needs_over_what_another_needs() {
        let row = row(Cell::Is(300.0), Cell::Is(150.0), 100.0, Some(Bar::Ratio(3.0)));
        assert_eq!((row.ratio(Peer::Kevy), row.ratio(Peer::Portcullis)), (Some(2.0), Some(3.0)));
        assert_eq!((row.is_met(), row.is_least()), (Some(true), Some(true)));
    }

    #[test]
    fn whoever_is_better_is_named_and_two_percent_are_noise() {
        let close = row(Cell::Is(300.0), Cell::Is(99.0), 100.0, Some(Bar::Most(99.0)));
        assert_eq!((close.is_met(), close.is_least()), (Some(false), Some(true)));
        let worse = row(Cell::Is(300.0), Cell::Is(80.0), 100.0, None);
        assert_eq!((worse.is_met(), worse.is_least()), (None, Some(false)));
        assert_eq!(worse.least_text(), "**kevy** −20 %");
    }

    #[test]
    fn nothing_is_said_of_what_is_not_known() {
        let alone = row(Cell::Foreign, Cell::Not("it ended".to_owned()), 100.0, Some(Bar::Ratio(2.0)));
        assert_eq!((alone.is_met(), alone.is_least()), (None, None));
        let late = row(Cell::AtLeast(5.0), Cell::Foreign, 1.0, Some(Bar::Ratio(2.0)));
        assert_eq!((late.is_met(), late.is_least()), (Some(true), Some(true)));
    }

    #[test]
    fn a_table_says_why_figures_are_missing() {
        let mut section = Section::new("cpu", "server CPU per operation", "P");
        section.rows.push(row(Cell::Is(300.0), Cell::Not("GET a: -ERR `no`".to_owned()), 100.0, Some(Bar::Ratio(4.0))));
        section.rows.push(row(Cell::Is(300.0), Cell::Not("GET a: -ERR `no`".to_owned()), 200.0, None));
        let expected = "\
| server CPU per operation | P | redis-server | kevy | portcullis | bar | no other is better |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
| GET | 16 | 300 ns | – | 100 ns (3.00×) | ≥ 4×: **missed** | yes |
| GET | 16 | 300 ns | – | 200 ns (1.50×) | – | yes |

- kevy has no figure for GET, P16 and 1 more: `GET a: -ERR 'no'`
";
        assert_eq!(section.markdown(&[Peer::Redis, Peer::Kevy, Peer::Portcullis]), expected);
        let verdict = verdict(&[section]);
        assert!(verdict.contains("0 of 1 bars are met; missed: GET, P16 (≥ 4× is 3.00×)."), "{verdict}");
        assert!(verdict.contains("better in 2 of 2 rows; another is in: none."), "{verdict}");
    }
}
