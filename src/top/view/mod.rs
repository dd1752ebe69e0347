//! Draws the screen, at any size.

mod columns;
mod fit;
mod overlay;
mod style;
#[cfg(test)]
mod view_tests;

use ratatui::Frame;
use ratatui::layout::Rect;

pub use style::Palette;

use crate::top::ask::{LOCKS_MAX, NODES_MAX};
use crate::top::facts::Absence;
use crate::top::headline::headline;
use crate::top::names::escaped;
use crate::top::rows::{self, Row};
use crate::top::screen::{Broken, Field, Overlay, Screen};
use crate::top::view::fit::{cut, padded, width, wrapped};
use crate::top::view::style::Part;
use crate::top::words::{counted, short, time_of_day};

/// Maximum number of lines for a broken grant.
const BROKEN_LINES: usize = 3;

/// A line, and how it looks.
type Styled = (String, Part);

/// The lines of the screen, from top to bottom.
struct Layout {
    /// The server, the headline, the figures.
    top: Vec<Styled>,
    /// The tree.
    tree: Vec<Styled>,
    /// The broken grants.
    broken: Vec<Styled>,
    /// Number of lines of the table or the detail between them.
    middle: usize,
    /// Whether the table has a heading of its own.
    titled: bool,
}

/// Draws the screen.
pub fn draw(frame: &mut Frame<'_>, screen: &Screen, palette: Palette) {
    let area = frame.area();
    if area.width == 0 || area.height == 0 {
        return;
    }
    let (cells, height) = (usize::from(area.width), usize::from(area.height));
    let layout = layout(screen, cells, height);
    let mut lines = layout.top;
    let middle = match screen.detail_lines() {
        Some(detail) => detail_part(screen, detail, cells, layout.middle),
        None => table_part(screen, cells, layout.middle, layout.titled),
    };
    let end = lines.len() + layout.middle;
    lines.extend(middle);
    lines.resize(end, (String::new(), Part::Text));
    lines.extend(layout.tree);
    lines.extend(layout.broken);
    lines.truncate(height.saturating_sub(1));
    for (at, (text, part)) in lines.iter().enumerate() {
        put(frame, area, at as u16, text, *part, palette);
    }
    let (last, part) = last_line(screen, cells);
    put(frame, area, area.height - 1, &last, part, palette);
    overlay::draw(frame, screen, palette);
}

/// Number of lines that a page of the table or the detail has.
pub fn page(screen: &Screen, area: Rect) -> usize {
    let layout = layout(screen, usize::from(area.width), usize::from(area.height));
    let head = if screen.detail.is_some() { 1 } else { 1 + usize::from(layout.titled) };
    layout.middle.saturating_sub(head).max(1)
}

fn put(frame: &mut Frame<'_>, area: Rect, row: u16, text: &str, part: Part, palette: Palette) {
    let text =
        if part == Part::Selected { padded(text, usize::from(area.width), false) } else { cut(text, usize::from(area.width)) };
    frame.buffer_mut().set_stringn(area.x, area.y + row, &text, usize::from(area.width), palette.style(part));
}

fn layout(screen: &Screen, cells: usize, height: usize) -> Layout {
    let mut top = vec![server_line(screen, cells)];
    let headline_max = if height < 12 { 2 } else { 3 };
    if let Some(facts) = &screen.facts {
        let headline = headline(facts);
        let part = if headline.is_alarm { Part::Alarm } else { Part::Calm };
        top.extend(wrapped(&headline.text, cells, headline_max).into_iter().map(|line| (line, part)));
        if height >= 14 {
            let figures = rows::figures(facts, screen.grants_per_s);
            top.extend(flowed(&figures, cells, 2).into_iter().map(|line| (line, Part::Text)));
        }
    }
    let rest = height.saturating_sub(top.len() + 1);
    let (mut tree, mut broken) = (Vec::new(), Vec::new());
    if height >= 16 && screen.detail.is_none() {
        if !screen.broken.is_empty() && height >= 20 {
            broken.push((heading("broken", cells), Part::Faint));
            // The reason is at the end, so the line is not cut but wrapped.
            let lines = |one: &Broken| wrapped(&rows::broken(&one.name, &one.end, one.ago_ms(screen.now)), cells, BROKEN_LINES);
            broken.extend(screen.broken.iter().take(height / 10).flat_map(lines).map(|line| (line, Part::Text)));
        }
        let room = rest.saturating_sub(broken.len());
        // The tree takes what the table does not need, and two fifths in any case.
        tree = tree_part(screen, cells, (room * 2 / 5).max(room.saturating_sub(screen.locks.len() + 2)));
    }
    let middle = rest.saturating_sub(tree.len() + broken.len());
    Layout { top, tree, broken, middle, titled: height >= 14 }
}

fn server_line(screen: &Screen, cells: usize) -> Styled {
    if let Some(lost) = &screen.lost {
        let passed_ms = screen.now.saturating_sub(lost.since).as_millis() as u64;
        let at = screen.facts.as_ref().map(|facts| facts.server.at.as_str()).unwrap_or("the server");
        let since = time_of_day(lost.since_unix_ms);
        return (format!("NO ANSWER from {at} since {since} ({}): {}", short(passed_ms), lost.reason), Part::Alarm);
    }
    let text = screen.facts.as_ref().map_or("…".to_owned(), rows::server);
    if screen.paused {
        let text = cut(&text, cells.saturating_sub(8));
        let blanks = " ".repeat(cells.saturating_sub(width(&text) + 6));
        return (format!("{text}{blanks}PAUSED"), Part::Heading);
    }
    (text, Part::Heading)
}

/// Joins figures to lines without breaking any.
fn flowed(figures: &[String], cells: usize, lines_max: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for figure in figures {
        match lines.last_mut() {
            Some(line) if width(line) + 3 + width(figure) <= cells => {
                line.push_str("   ");
                line.push_str(figure);
            }
            _ => lines.push(figure.clone()),
        }
    }
    lines.truncate(lines_max);
    lines
}

/// A heading with a rule up to the right edge.
fn heading(text: &str, cells: usize) -> String {
    let text = cut(&format!("── {text} "), cells);
    let rule = "─".repeat(cells.saturating_sub(width(&text)));
    format!("{text}{rule}")
}

fn table_part(screen: &Screen, cells: usize, lines_max: usize, titled: bool) -> Vec<Styled> {
    let mut lines = Vec::new();
    let Some(facts) = &screen.facts else { return lines };
    if titled && facts.locks.is_ok() {
        lines.push((heading(&table_heading(screen), cells), Part::Faint));
    }
    match &facts.locks {
        Ok(_) if screen.locks.is_empty() => {
            let text = match (screen.is_filtered(), screen.all) {
                (true, _) => "No lock matches the filter. Esc ends it.",
                (false, false) => "No lock has waiters. 'a' shows all locks.",
                (false, true) => "There are no locks.",
            };
            lines.push((text.to_owned(), Part::Text));
            return lines;
        }
        Ok(_) => {}
        // The headline says it.
        Err(_) => return lines,
    }
    let table: Vec<Row> = screen.locks.iter().map(|lock| Row::of(lock, &screen.leases)).collect();
    let room = lines_max.saturating_sub(lines.len() + 1).max(1);
    let skipped = (screen.selected + 1).saturating_sub(room);
    let shown = &table[skipped.min(table.len())..(skipped + room).min(table.len())];
    let plan = columns::plan(shown, cells.saturating_sub(2));
    lines.push((format!("  {}", columns::head(&plan)), Part::Heading));
    for (at, row) in shown.iter().enumerate() {
        let (mark, part) = match (skipped + at == screen.selected, row.gone.is_empty()) {
            (true, _) => ('>', Part::Selected),
            (false, false) => ('!', Part::Alarm),
            (false, true) => (' ', Part::Text),
        };
        lines.push((format!("{mark} {}", columns::body(&plan, row)), part));
    }
    lines
}

fn table_heading(screen: &Screen) -> String {
    let contended = screen.facts.as_ref().and_then(|facts| facts.stat("contended"));
    let count = match (screen.locks.len(), contended) {
        (LOCKS_MAX, Some(contended)) if !screen.all && !screen.is_filtered() => {
            format!("{LOCKS_MAX} of {} contended locks in all databases", contended.max(LOCKS_MAX as u64))
        }
        (LOCKS_MAX, _) => format!("the first {LOCKS_MAX} locks"),
        (count, _) => counted(count as u64, "lock"),
    };
    let mut text = format!("{count}, by {}", screen.sort.name());
    if !screen.names.is_empty() {
        text.push_str(&format!(", named {}", escaped(screen.names.as_bytes()).replace("\\x5c", "\\")));
    }
    if !screen.who.is_empty() {
        text.push_str(&format!(", of owner or client {}", escaped(screen.who.as_bytes()).replace("\\x5c", "\\")));
    }
    text
}

fn tree_part(screen: &Screen, cells: usize, lines_max: usize) -> Vec<Styled> {
    let Some(facts) = &screen.facts else { return Vec::new() };
    if lines_max < 2 {
        return Vec::new();
    }
    let title = match &facts.graph {
        Ok(nodes) if nodes.iter().any(|node| node.is_partial) => {
            "who waits for whom, as far as the server has followed them".to_owned()
        }
        Ok(nodes) if nodes.len() >= NODES_MAX => format!("who waits for whom, the first {NODES_MAX} locks"),
        _ => "who waits for whom".to_owned(),
    };
    let mut lines = vec![(heading(&title, cells), Part::Faint)];
    match &facts.graph {
        Ok(nodes) if nodes.is_empty() => return Vec::new(),
        Ok(nodes) => {
            let branches = rows::tree(nodes);
            let room = lines_max - 1;
            let selected = screen.selected_lock().map(|lock| &lock.name);
            let at = branches.iter().position(|branch| Some(&branch.name) == selected);
            let skipped = at.map_or(0, |at| (at + 1).saturating_sub(room));
            for branch in branches.iter().skip(skipped).take(room) {
                let (mark, part) = match (Some(&branch.name) == selected, branch.is_gone) {
                    (true, gone) => ('>', if gone { Part::Alarm } else { Part::Text }),
                    (false, true) => ('!', Part::Alarm),
                    (false, false) => (' ', Part::Text),
                };
                lines.push((format!("{mark} {}{}  {}", branch.lead, rows::brief(&branch.name), branch.text), part));
            }
        }
        Err(Absence::Missing) if facts.locks.is_err() => return Vec::new(),
        Err(absence) => lines.push((rows::absent("LOCK.GRAPH", absence), Part::Text)),
    }
    lines
}

fn detail_part(screen: &Screen, detail: Vec<String>, cells: usize, lines_max: usize) -> Vec<Styled> {
    let name = screen.detail.as_ref().map(ToString::to_string).unwrap_or_default();
    let mut lines = vec![(heading(&name, cells), Part::Faint)];
    let top = screen.top.min(detail.len().saturating_sub(1));
    lines.extend(detail.into_iter().skip(top).map(|line| (line, Part::Text)));
    lines.truncate(lines_max);
    lines
}

fn last_line(screen: &Screen, cells: usize) -> Styled {
    match (&screen.overlay, &screen.notice) {
        (Some(Overlay::Entry(field, text)), _) => {
            let label = match field {
                Field::Names => "names: ",
                Field::Who => "owner or client: ",
            };
            let text = escaped(text.as_bytes()).replace("\\x5c", "\\");
            let room = cells.saturating_sub(width(label) + 1);
            let skipped = width(&text).saturating_sub(room);
            let end: String = text.chars().skip(skipped).collect();
            (format!("{label}{end}_"), Part::Heading)
        }
        (_, Some(notice)) => (notice.clone(), Part::Heading),
        (_, None) if screen.detail.is_some() => ("Esc back  b break  j k scroll  ? help  Ctrl-C quit".to_owned(), Part::Faint),
        (_, None) if cells < 60 && screen.is_filtered() => ("Esc ends the filter  ? help  q quit".to_owned(), Part::Faint),
        (_, None) if screen.is_filtered() => {
            ("Esc ends the filter  Enter detail  / names  o client  b break  ? help  q quit".to_owned(), Part::Faint)
        }
        (_, None) if cells < 60 => ("? help  Enter detail  b break  q quit".to_owned(), Part::Faint),
        (_, None) => ("Enter detail  s sort  / names  o owner  a all  b break  p pause  ? help  q quit".to_owned(), Part::Faint),
    }
}
