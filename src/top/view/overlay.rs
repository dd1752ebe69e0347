//! What is drawn in front: the keys, and the dialog that breaks a grant.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph};

use crate::top::facts::Holder;
use crate::top::names::escaped;
use crate::top::screen::{Dialog, Overlay, Phase, Screen};
use crate::top::view::fit::{cut, width, wrapped};
use crate::top::view::style::{Palette, Part};
use crate::top::words::{counted, short};

const HELP: [(&str, &str); 12] = [
    ("j k, arrows", "select a lock"),
    ("Enter", "all of the selected lock: LOCK.INFO, LOCK.WHY"),
    ("s", "sort by oldest wait, waiters, held, name"),
    ("/", "filter by name: a part of it, or a pattern"),
    ("o", "filter by owner, client name or address: a part of it"),
    ("", "(whole owners: of all locks; parts: of those listed)"),
    ("a", "also locks that nobody waits for"),
    ("b", "break a grant: LOCK.BREAK"),
    ("p", "pause, and go on"),
    ("?", "this help"),
    ("q, Ctrl-C", "quit"),
    ("Esc", "back; in the table: ends the filters"),
];

/// What breaking a grant does not do.
fn warning(holder: Option<&Holder>) -> String {
    let told = match holder.and_then(|holder| holder.gone_ms) {
        Some(_) => "Its connection is gone, so that nobody tells the owner.",
        None => "The client is told if it speaks RESP3, but it is not stopped.",
    };
    format!("{told} What the owner still writes is refused only where tokens are checked.")
}

/// Draws what is in front, if anything is.
pub fn draw(frame: &mut Frame<'_>, screen: &Screen, palette: Palette) {
    let area = frame.area();
    match &screen.overlay {
        Some(Overlay::Help) => {
            let lines = HELP.iter().map(|(keys, meaning)| format!("{keys:<12} {meaning}")).collect();
            boxed(frame, " Keys ", lines, area, palette);
        }
        Some(Overlay::Break(dialog)) => {
            let room = usize::from(area.width).min(76).saturating_sub(4);
            let lines = dialog_lines(dialog, screen.now, room, usize::from(area.height).saturating_sub(2));
            boxed(frame, " Break a grant ", lines, area, palette);
        }
        // It is typed in the last line.
        Some(Overlay::Entry(..)) | None => {}
    }
}

fn boxed(frame: &mut Frame<'_>, title: &str, lines: Vec<String>, area: Rect, palette: Palette) {
    let widest = lines.iter().map(|line| width(line)).max().unwrap_or(0).max(width(title));
    let (wide, high) = ((widest + 4).min(usize::from(area.width)) as u16, (lines.len() + 2).min(usize::from(area.height)) as u16);
    let place = Rect { x: area.x + (area.width - wide) / 2, y: area.y + (area.height - high) / 2, width: wide, height: high };
    let room = usize::from(wide).saturating_sub(4);
    let lines: Vec<Line<'_>> = lines.iter().map(|line| Line::raw(format!(" {}", cut(line, room)))).collect();
    let block = Block::bordered().title(title).border_style(palette.style(Part::Heading));
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(block), place);
}

/// The lines of the dialog, the least important of which are left out if there is no room.
fn dialog_lines(dialog: &Dialog, now: Duration, room: usize, lines_max: usize) -> Vec<String> {
    let passed_ms = now.saturating_sub(dialog.opened).as_millis() as u64;
    if dialog.phase == Phase::Choosing {
        return choice(dialog, passed_ms, lines_max);
    }
    let mut facts = vec![format!("lock    {}", dialog.name)];
    if let Some(holder) = dialog.holders.get(dialog.chosen) {
        facts.push(format!("owner   {}", holder.owner));
        facts.push(format!("token   {}", holder.token));
    }
    // What has come of it is in the outcome: the rest is no longer so.
    let lasts = !matches!(dialog.phase, Phase::Done(_));
    if let Some(holder) = dialog.holders.get(dialog.chosen).filter(|_| lasts) {
        facts.push(format!("held    for {}", short(holder.held_ms + passed_ms)));
        let (text, important) = connection(holder, passed_ms);
        if important || lines_max > 12 {
            facts.push(format!("client  {text}"));
        }
    }
    if lasts && lines_max > 12 {
        facts.push(format!("behind  {}", counted(dialog.waiting, "waiter")));
    }
    let mut rest = Vec::new();
    match &dialog.phase {
        Phase::Choosing => {}
        Phase::Reason(reason) => {
            if lines_max > 12 {
                rest.push(String::new());
                rest.extend(wrapped(&warning(dialog.holders.get(dialog.chosen)), room, 3));
                rest.push(String::new());
            }
            rest.push(format!("reason  {}_", end_of(&escaped(reason.as_bytes()), room.saturating_sub(9))));
            rest.push(
                if reason.trim().is_empty() { "Type why.  Esc cancels" } else { "Enter breaks it  Esc cancels" }.to_owned(),
            );
        }
        Phase::Sending(reason) => {
            rest.push(format!("reason  {}", escaped(reason.as_bytes())));
            rest.push("The server is asked …".to_owned());
        }
        Phase::Done(outcome) => {
            rest.push(String::new());
            rest.extend(wrapped(outcome, room, 4));
            rest.push("Any key goes back".to_owned());
        }
    }
    facts.truncate(lines_max.saturating_sub(rest.len()));
    facts.into_iter().chain(rest).collect()
}

/// The end of a text that is typed, so that its last character is seen.
fn end_of(text: &str, cells: usize) -> String {
    let mut start = 0;
    while width(&text[start..]) > cells {
        start += text[start..].chars().next().map_or(1, char::len_utf8);
    }
    text[start..].to_owned()
}

/// What is known of a holder's connection, and whether it is gone, which comes first because the line may be cut.
fn connection(holder: &Holder, passed_ms: u64) -> (String, bool) {
    let gone = holder.gone_ms.map(|gone_ms| format!("gone for {}", short(gone_ms + passed_ms)));
    let id = (holder.client > 0).then(|| format!("id {}", holder.client));
    let known = [&holder.client_name, &holder.addr].into_iter().filter(|name| !name.is_empty()).map(ToString::to_string);
    let parts: Vec<String> = gone.into_iter().chain(known).chain(id).collect();
    (parts.join("  "), holder.gone_ms.is_some())
}

fn choice(dialog: &Dialog, passed_ms: u64, lines_max: usize) -> Vec<String> {
    let shown = lines_max.saturating_sub(2).max(1);
    let skipped = (dialog.chosen + 1).saturating_sub(shown);
    let line = |(at, holder): (usize, &Holder)| {
        let mark = if at == dialog.chosen { '>' } else { ' ' };
        let gone = holder.gone_ms.map(|ms| format!(", gone {}", short(ms + passed_ms))).unwrap_or_default();
        format!("{mark} {}  token {}  for {}{gone}", holder.owner, holder.token, short(holder.held_ms + passed_ms))
    };
    let mut lines = vec![format!("Which grant of {}?", dialog.name)];
    lines.extend(dialog.holders.iter().enumerate().skip(skipped).take(shown).map(line));
    lines.push("Enter chooses  Esc cancels".to_owned());
    lines
}
