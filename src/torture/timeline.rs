//! Draws a history as a self-contained page of HTML: a lane for each client and server, with waits, leases, critical sections,
//! writes and faults, and with the violation marked.

use std::fmt::Write;

use crate::torture::check::{Acquisition, Acquisitions, Violation};
use crate::torture::history::{EventKind, History, NO_CLIENT, Outcome, Seconds};

/// Width of the drawing.
const WIDTH: f64 = 1400.0;
/// Space for the names of lanes.
const LEFT: f64 = 110.0;
/// Height of a lane.
const LANE: f64 = 74.0;
/// Space above the lanes.
const TOP: f64 = 40.0;

const STYLE: &str = "\
body{font:14px/1.45 system-ui,sans-serif;margin:24px;color:#1c2430;background:#fff}\
h1{font-size:20px;margin:0 0 4px}p{margin:4px 0}code{background:#eef1f5;padding:1px 4px;border-radius:3px}\
svg{width:100%;height:auto;border:1px solid #d5dbe3;border-radius:6px;margin:14px 0}\
text{font:12px system-ui,sans-serif;fill:#1c2430}.small{font-size:10px;fill:#5a6676}.lane{stroke:#d5dbe3}\
.grid{stroke:#eef1f5}.wait{fill:#e7ebf1}.lease{fill:#bcd7f5}.held{fill:#6ea8e5}.work{fill:#2f7d4f}.bad{fill:#c93636}\
.pause{fill:url(#stop)}.down{fill:#4a3f55}.impairment{fill:#f3d38a}.yes{stroke:#1c2430}.no{stroke:#c93636}\
.mark{fill:#c93636;opacity:.13}.edge{stroke:#c93636;stroke-dasharray:4 3}.key span{display:inline-block;margin-right:16px}\
.key i{display:inline-block;width:22px;height:11px;margin-right:5px;vertical-align:-1px}\
pre{background:#f6f8fa;padding:12px;border-radius:6px;overflow:auto;font-size:12px}pre b{color:#c93636}";

const KEY: &[(&str, &str)] = &[
    ("#e7ebf1", "waits for the lock"),
    ("#bcd7f5", "lease, as far as the holder knows"),
    ("#2f7d4f", "critical section"),
    ("#c93636", "concerned by the violation"),
    ("#9aa4b1", "pause"),
    ("#f3d38a", "messages late or lost"),
    ("#4a3f55", "crashed, or server down"),
];

/// Escapes text for HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

struct Page<'a> {
    out: String,
    from_us: u64,
    to_us: u64,
    history: &'a History,
    violation: Option<&'a Violation>,
    clients: Vec<u32>,
    servers: Vec<u32>,
}

/// Draws a history. `title` is the heading, and `command` runs the episode again.
pub fn page(title: &str, history: &History, violation: Option<&Violation>, command: &str) -> String {
    let mut clients: Vec<u32> = history.events.iter().map(|event| event.client).filter(|client| *client != NO_CLIENT).collect();
    clients.sort_unstable();
    clients.dedup();
    let server = |kind: &EventKind| match kind {
        EventKind::Down { server, .. } | EventKind::PowerLoss { server, .. } | EventKind::Up { server } => Some(*server),
        _ => None,
    };
    let mut servers: Vec<u32> = history.events.iter().filter_map(|event| server(&event.kind)).collect();
    servers.sort_unstable();
    servers.dedup();
    let of_work = |event: &&crate::torture::history::Event| event.kind.op().is_some();
    let from_us = history.events.iter().find(of_work).map_or(0, |event| event.at_us);
    let to_us = history.events.iter().rev().find(of_work).map_or(1, |event| event.at_us).max(from_us + 1);
    let margin_us = (to_us - from_us) / 60 + 1;
    let (from_us, to_us) = (from_us.saturating_sub(margin_us), to_us + margin_us);
    let mut page = Page { out: String::new(), from_us, to_us, history, violation, clients, servers };
    page.draw(title, command);
    page.out
}

impl Page<'_> {
    fn x(&self, at_us: u64) -> f64 {
        let at_us = at_us.clamp(self.from_us, self.to_us);
        LEFT + (at_us - self.from_us) as f64 / (self.to_us - self.from_us) as f64 * (WIDTH - LEFT - 16.0)
    }

    fn lane_y(&self, client: u32) -> f64 {
        TOP + LANE * self.clients.iter().position(|other| *other == client).unwrap_or(0) as f64
    }

    fn bar(&mut self, class: &str, (from_us, to_us): (u64, u64), y: f64, height: f64, message: &str) {
        let (x, end) = (self.x(from_us), self.x(to_us));
        let width = (end - x).max(1.5);
        let _ = writeln!(
            self.out,
            "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height}\" rx=\"2\"><title>{}</title></rect>",
            escaped(message)
        );
    }

    fn draw(&mut self, title: &str, command: &str) {
        let _ = writeln!(
            self.out,
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title><style>{STYLE}</style></head><body>\n<h1>{0}</h1>",
            escaped(title)
        );
        match self.violation {
            Some(violation) => {
                let _ = writeln!(
                    self.out,
                    "<p><b>{}</b>: {}.</p>",
                    escaped(violation.property.meaning()),
                    escaped(&violation.message)
                );
            }
            None => self.out.push_str("<p>Nothing is violated.</p>\n"),
        }
        let _ = writeln!(self.out, "<p>Again: <code>{}</code></p>\n<p class=\"key\">", escaped(command));
        for (colour, message) in KEY {
            let _ = write!(self.out, "<span><i style=\"background:{colour}\"></i>{message}</span>");
        }
        let height = TOP + LANE * (self.clients.len() + self.servers.len()) as f64 + 10.0;
        let _ = writeln!(
            self.out,
            "</p>\n<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\"><defs><pattern id=\"stop\" width=\"6\" height=\"6\" \
             patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#e3e6eb\"/>\
             <rect width=\"3\" height=\"6\" fill=\"#9aa4b1\"/></pattern></defs>"
        );
        self.draw_axis(height);
        self.draw_lanes();
        let acquisitions = Acquisitions::of(self.history);
        for acquisition in &acquisitions.all {
            self.draw_acquisition(acquisition, acquisitions.end_us);
        }
        self.draw_faults();
        if let Some(violation) = self.violation {
            let x = self.x(violation.at_us);
            let _ = writeln!(
                self.out,
                "<line class=\"edge\" x1=\"{x:.2}\" x2=\"{x:.2}\" y1=\"{TOP}\" y2=\"{height}\"/><text x=\"{x:.2}\" y=\"{}\" \
                 text-anchor=\"middle\" style=\"fill:#c93636\">violated</text>",
                TOP - 6.0
            );
        }
        self.out.push_str("</svg>\n<pre>");
        let concerned = self.violation.map_or(&[][..], |violation| &violation.ops);
        for event in &self.history.events {
            let line = escaped(&event.to_string());
            let _ = match event.kind.op().is_some_and(|op| concerned.contains(&op)) {
                true => writeln!(self.out, "<b>{line}</b>"),
                false => writeln!(self.out, "{line}"),
            };
        }
        self.out.push_str("</pre>\n</body></html>\n");
    }

    fn draw_axis(&mut self, height: f64) {
        // About ten marks at round times.
        let span_us = self.to_us - self.from_us;
        let mut step_us = 10u64.pow((span_us / 10).max(1).ilog10());
        while span_us / step_us > 14 {
            step_us *= if step_us.to_string().starts_with('1') { 2 } else { 5 };
        }
        let mut at_us = self.from_us.next_multiple_of(step_us);
        while at_us < self.to_us {
            let x = self.x(at_us);
            let _ = writeln!(
                self.out,
                "<line class=\"grid\" x1=\"{x:.2}\" x2=\"{x:.2}\" y1=\"{TOP}\" y2=\"{height}\"/><text class=\"small\" x=\"{x:.2}\" y=\"14\" \
                 text-anchor=\"middle\">{} s</text>",
                at_us as f64 / 1e6
            );
            at_us += step_us;
        }
    }

    fn draw_lanes(&mut self) {
        let names: Vec<String> = (self.clients.iter().map(|client| format!("client {client}")))
            .chain(self.servers.iter().map(|server| format!("server {server}")))
            .collect();
        for (at, name) in names.iter().enumerate() {
            let y = TOP + LANE * at as f64;
            let _ = writeln!(
                self.out,
                "<line class=\"lane\" x1=\"0\" x2=\"{WIDTH}\" y1=\"{y}\" y2=\"{y}\"/><text x=\"12\" y=\"{}\">{name}</text>",
                y + 40.0
            );
        }
    }

    /// Draws an acquisition: the wait and the lease above, the critical section below.
    fn draw_acquisition(&mut self, acquisition: &Acquisition, end_us: u64) {
        let y = self.lane_y(acquisition.client);
        let concerned = self.violation.is_some_and(|violation| violation.ops.contains(&acquisition.op));
        let waited_us = acquisition.granted_us.unwrap_or_else(|| acquisition.waited_until_us()).min(end_us);
        let name = format!("#{} lock {}", acquisition.op, acquisition.lock);
        self.bar(
            "wait",
            (acquisition.requested_us, waited_us),
            y + 24.0,
            9.0,
            &format!("{name}: asked for at {} s", Seconds(acquisition.requested_us)),
        );
        if let Some(start_us) = acquisition.start_us() {
            let ends = [acquisition.valid_until_us, acquisition.released_us, acquisition.crashed_us];
            let lease_us = ends.into_iter().flatten().min().unwrap_or(end_us);
            let token = acquisition.token.map_or(String::new(), |token| format!(", token {token}"));
            self.bar("lease", (start_us, lease_us), y + 24.0, 9.0, &format!("{name}: granted at {} s{token}", Seconds(start_us)));
        }
        if let Some(entered_us) = acquisition.entered_us {
            let left_us = acquisition.exited_us.or(acquisition.crashed_us).unwrap_or(end_us);
            let class = if concerned { "bad" } else { "work" };
            let message = format!("{name}: at work from {} to {} s", Seconds(entered_us), Seconds(left_us));
            self.bar(class, (entered_us, left_us), y + 38.0, 16.0, &message);
        }
        if self.violation.is_some_and(|_| concerned) || self.history.events.len() < 400 {
            let x = self.x(acquisition.requested_us);
            let _ = writeln!(self.out, "<text class=\"small\" x=\"{x:.2}\" y=\"{}\">#{}</text>", y + 20.0, acquisition.op);
        }
    }

    fn draw_faults(&mut self) {
        let events = &self.history.events;
        for (at, event) in events.iter().enumerate() {
            let (at_us, client) = (event.at_us, event.client);
            let y = if client == NO_CLIENT { 0.0 } else { self.lane_y(client) };
            let message = event.to_string();
            match &event.kind {
                EventKind::Pause { for_us } => self.bar("pause", (at_us, at_us + for_us), y + 58.0, 9.0, &message),
                EventKind::Delay { for_us, .. } | EventKind::Loss { for_us, .. } => {
                    self.bar("impairment", (at_us, at_us + for_us), y + 68.0, 4.0, &message);
                }
                EventKind::Resend { .. } => self.bar("impairment", (at_us, at_us), y + 64.0, 8.0, &message),
                EventKind::Crash { .. } => {
                    let restarts =
                        |other: &&crate::torture::history::Event| other.client == client && other.kind == EventKind::Start;
                    let until_us = events[at..].iter().find(restarts).map_or(self.to_us, |other| other.at_us);
                    self.bar("down", (at_us, until_us), y + 58.0, 9.0, &message);
                }
                EventKind::Jump { by_ms } if at_us > 0 => {
                    let x = self.x(at_us);
                    let _ = writeln!(self.out, "<text class=\"small\" x=\"{x:.2}\" y=\"{}\">clock {by_ms:+} ms</text>", y + 67.0);
                }
                EventKind::Down { server, .. } | EventKind::PowerLoss { server, .. } => {
                    let up = |other: &&crate::torture::history::Event| other.kind == EventKind::Up { server: *server };
                    let until_us = events[at..].iter().find(up).map_or(self.to_us, |other| other.at_us);
                    let lane = self.clients.len() + self.servers.iter().position(|other| other == server).unwrap_or(0);
                    self.bar("down", (at_us, until_us), TOP + LANE * lane as f64 + 30.0, 16.0, &message);
                }
                EventKind::Written { outcome, .. } => {
                    let (x, class) = (self.x(at_us), if *outcome == Outcome::No { "no" } else { "yes" });
                    let _ = writeln!(
                        self.out,
                        "<line class=\"{class}\" x1=\"{x:.2}\" x2=\"{x:.2}\" y1=\"{}\" y2=\"{}\"><title>{}</title></line>",
                        y + 36.0,
                        y + 56.0,
                        escaped(&message)
                    );
                }
                _ => {}
            }
        }
    }
}
