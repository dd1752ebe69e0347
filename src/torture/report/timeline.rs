//! Draws the schedule of a violation: a lane for each client and server with waits, leases, critical sections, writes and faults,
//! and below it a line for each event. Bars and lines are links to each other, which need no script.

use std::fmt::Write;

use crate::bench::report::page::escaped;
use crate::torture::check::{Acquisition, Acquisitions, Property, Violation};
use crate::torture::history::{Event, EventKind, History, Op, Outcome, Seconds};
use crate::torture::report::lanes::Lane;
use crate::torture::report::text::summarize_writes;

/// The height of the axis in pixels.
const TOP: f64 = 34.0;
/// The left edge and the width of the time that is shown, in percent of the drawing.
const LEFT: f64 = 1.0;
const WIDTH: f64 = 98.0;
/// Least distance of two labels in a lane, in percent: on a wide drawing, and on a phone.
const LABELS_APART: f64 = 4.0;
const LABELS_APART_ON_PHONE: f64 = 13.0;
/// A text so near to an edge, in percent, has its anchor there.
const EDGE: f64 = 15.0;
/// Maximum length of an event's line.
const LINE_MAX: usize = 400;

/// What the drawing means, by class.
const KEY: [(&str, &str); 8] = [
    ("wait", "waits"),
    ("lease", "lease, as the holder knows it"),
    ("work", "critical section"),
    ("bad", "critical section of the violation"),
    ("pause", "stopped"),
    ("impaired", "messages late or lost"),
    ("down", "down"),
    ("dot", "other event"),
];

/// The patterns of bars. A page with timelines has them once.
pub const DEFS: &str = "<svg width=\"0\" height=\"0\" class=\"unseen\" aria-hidden=\"true\"><defs>\
    <pattern id=\"p-pause\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
    <rect class=\"g\" width=\"6\" height=\"6\"/><rect class=\"l\" width=\"2.5\" height=\"6\"/></pattern>\
    <pattern id=\"p-bad\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(-45)\">\
    <rect class=\"g\" width=\"5\" height=\"5\"/><rect class=\"l\" width=\"2\" height=\"5\"/></pattern></defs></svg>\n";

/// The key of all timelines of a page.
pub fn key() -> String {
    let item = |(class, what): &(&str, &str)| {
        let shape = match *class {
            "dot" => "<circle class=\"dot\" cx=\"11\" cy=\"6\" r=\"3\"/>".to_owned(),
            class => format!("<rect class=\"{class}\" y=\"1\" width=\"22\" height=\"10\"/>"),
        };
        format!("<li><svg width=\"22\" height=\"12\" aria-hidden=\"true\">{shape}</svg> {what}</li>")
    };
    let ticks = "<li><svg width=\"22\" height=\"12\" aria-hidden=\"true\"><line class=\"yes\" x1=\"6\" x2=\"6\" y1=\"0\" y2=\"12\"/>\
        <line class=\"no\" x1=\"16\" x2=\"16\" y1=\"0\" y2=\"12\"/></svg> write, refused write (dashed)</li>";
    format!("<ul class=\"key\">{}{ticks}</ul>\n", KEY.iter().map(item).collect::<String>())
}

/// A bar or mark of the drawing.
struct Bar {
    /// The indices of the events that it shows.
    events: Vec<usize>,
    /// Its shape as SVG.
    shape: String,
}

struct Timeline<'a> {
    id: &'a str,
    history: &'a History,
    violation: &'a Violation,
    lanes: Vec<Lane>,
    from_us: u64,
    to_us: u64,
    bars: Vec<Bar>,
}

/// Draws a history and lists its events. `id` is a prefix for identifiers that no other timeline of the page has.
pub fn render(id: &str, history: &History, violation: &Violation) -> String {
    let mut timeline = Timeline::of(id, history, violation);
    timeline.draw_acquisitions();
    timeline.draw_events();
    timeline.draw_marks();
    let mut out = format!("<div class=\"timeline\" id=\"{id}\">\n");
    timeline.write_drawing(&mut out);
    timeline.write_lines(&mut out);
    out.push_str("</div>\n");
    out
}

impl<'a> Timeline<'a> {
    fn of(id: &'a str, history: &'a History, violation: &'a Violation) -> Timeline<'a> {
        let shown = |event: &&Event| is_shown(event, violation);
        let mut lanes: Vec<Lane> = history.events.iter().filter(shown).map(Lane::of).collect();
        lanes.sort_unstable();
        lanes.dedup();
        let of_work = |event: &&Event| event.kind.op().is_some();
        let from_us = history.events.iter().find(of_work).map_or(0, |event| event.at_us);
        let to_us =
            history.events.iter().rev().find(of_work).map_or(1, |event| event.at_us).max(violation.at_us).max(from_us + 1);
        let margin_us = (to_us - from_us) / 60 + 1;
        let (from_us, to_us) = (from_us.saturating_sub(margin_us), to_us + margin_us);
        Timeline { id, history, violation, lanes, from_us, to_us, bars: Vec::new() }
    }

    fn x(&self, at_us: u64) -> f64 {
        let at_us = at_us.clamp(self.from_us, self.to_us);
        LEFT + (at_us - self.from_us) as f64 / (self.to_us - self.from_us) as f64 * WIDTH
    }

    fn y(&self, lane: Lane) -> f64 {
        TOP + self.lanes.iter().take_while(|other| **other != lane).map(|other| other.height()).sum::<f64>()
    }

    fn height(&self) -> f64 {
        TOP + self.lanes.iter().map(|lane| lane.height()).sum::<f64>()
    }

    /// The indices of the events of an acquisition that are of some kinds.
    fn events_of(&self, op: Op, wanted: impl Fn(&EventKind) -> bool) -> Vec<usize> {
        let events = self.history.events.iter().enumerate();
        events.filter(|(_, event)| event.kind.op() == Some(op) && wanted(&event.kind)).map(|(index, _)| index).collect()
    }

    fn bar(&mut self, class: &str, (from_us, to_us): (u64, u64), (y, height): (f64, f64), events: Vec<usize>, what: &str) {
        let (x, end) = (self.x(from_us), self.x(to_us));
        let width = end - x;
        let shape = format!(
            "<rect class=\"{class}\" x=\"{x:.2}%\" y=\"{y}\" width=\"{width:.2}%\" height=\"{height}\"><title>{}</title></rect>",
            escaped(what)
        );
        self.bars.push(Bar { events, shape });
    }

    /// Draws each acquisition: the wait and the lease above, the critical section below.
    fn draw_acquisitions(&mut self) {
        let acquisitions = Acquisitions::of(self.history);
        for acquisition in &acquisitions.all {
            self.draw_acquisition(acquisition, acquisitions.end_us);
        }
    }

    fn draw_acquisition(&mut self, acquisition: &Acquisition, end_us: u64) {
        use EventKind::{Acquire, Enter, Exit, Failed, Granted, NotGranted, Release, Released, Renew, Renewed};
        let (op, y) = (acquisition.op, self.y(Lane::Client(acquisition.client)));
        let waited_us = acquisition.granted_us.unwrap_or_else(|| acquisition.waited_until_us()).min(end_us);
        let name = format!("#{op}, lock {}", acquisition.lock);
        let events =
            self.events_of(op, |kind| matches!(kind, Acquire { .. } | Granted { .. } | NotGranted { .. } | Failed { .. }));
        let what = format!("{name}: asked for at {} s", Seconds(acquisition.requested_us));
        self.bar("wait", (acquisition.requested_us, waited_us), (y + 33.0, 10.0), events, &what);
        if let Some(start_us) = acquisition.start_us() {
            let ends = [acquisition.valid_until_us, acquisition.released_us, acquisition.crashed_us];
            let lease_us = ends.into_iter().flatten().min().unwrap_or(end_us);
            let token = acquisition.token.map_or(String::new(), |token| format!(", token {token}"));
            let events = self.events_of(op, |kind| {
                matches!(kind, Granted { .. } | Renew { .. } | Renewed { .. } | Release { .. } | Released { .. })
            });
            let what = format!("{name}: granted at {} s{token}", Seconds(start_us));
            self.bar("lease", (start_us, lease_us), (y + 33.0, 10.0), events, &what);
        }
        if let Some(entered_us) = acquisition.entered_us {
            let left_us = acquisition.exited_us.or(acquisition.crashed_us).unwrap_or(end_us);
            let class = if self.violation.ops.contains(&op) { "bad" } else { "work" };
            let events = self.events_of(op, |kind| matches!(kind, Enter { .. } | Exit { .. }));
            let what = format!("{name}: in its critical section from {} to {} s", Seconds(entered_us), Seconds(left_us));
            self.bar(class, (entered_us, left_us), (y + 46.0, 15.0), events, &what);
        }
    }

    /// Draws faults and writes.
    fn draw_events(&mut self) {
        let history = self.history;
        for (index, event) in history.events.iter().enumerate() {
            let (at_us, lane, what) = (event.at_us, Lane::of(event), event.to_string().trim_start().to_owned());
            if !is_shown(event, self.violation) {
                continue;
            }
            let top = self.y(lane);
            let (y, thin) = ((top + lane.faults_y(), 10.0), (top + lane.faults_y() + 3.0, 5.0));
            let until = |ends: &dyn Fn(&Event) -> bool| {
                let found = history.events.iter().enumerate().skip(index + 1).find(|(_, other)| ends(other));
                found.map_or((self.to_us, vec![index]), |(end, other)| (other.at_us, vec![index, end]))
            };
            match &event.kind {
                EventKind::Pause { for_us } | EventKind::Stall { for_us, .. } => {
                    self.bar("pause", (at_us, at_us + for_us), y, vec![index], &what);
                }
                EventKind::Delay { for_us, .. }
                | EventKind::Loss { for_us, .. }
                | EventKind::Partition { for_us, .. }
                | EventKind::Disorder { for_us }
                | EventKind::BadDisk { for_us, .. }
                | EventKind::HungDisk { for_us, .. }
                | EventKind::Members { for_us, .. } => self.bar("impaired", (at_us, at_us + for_us), thin, vec![index], &what),
                EventKind::Crash { .. } => {
                    let (end_us, events) = until(&|other| other.client == event.client && other.kind == EventKind::Start);
                    self.bar("down", (at_us, end_us), y, events, &what);
                }
                EventKind::Down { server, .. }
                | EventKind::PowerLoss { server, .. }
                | EventKind::Wipe { server }
                | EventKind::Foreign { server, .. }
                | EventKind::BitRot { server, .. } => {
                    let (end_us, events) = until(&|other| other.kind == EventKind::Up { server: *server });
                    self.bar("down", (at_us, end_us), y, events, &what);
                }
                EventKind::Leaderless => {
                    let (end_us, events) = until(&|other| matches!(other.kind, EventKind::Leads { .. }));
                    self.bar("pause", (at_us, end_us), y, events, &what);
                }
                EventKind::Written { op, outcome } => {
                    let sent = history.events[..index].iter().rposition(|other| other.kind == EventKind::Write { op: *op });
                    let (x, class) = (self.x(at_us), if *outcome == Outcome::No { "no" } else { "yes" });
                    let shape = format!(
                        "<line class=\"{class}\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"{}\" y2=\"{}\"><title>{}</title></line>",
                        top + 43.0,
                        top + 64.0,
                        escaped(&what)
                    );
                    self.bars.push(Bar { events: sent.into_iter().chain([index]).collect(), shape });
                }
                _ => {}
            }
        }
    }

    /// Draws a mark for each event that no bar shows.
    fn draw_marks(&mut self) {
        for (index, event) in self.history.events.iter().enumerate().filter(|(_, event)| is_shown(event, self.violation)) {
            if self.bars.iter().any(|bar| bar.events.contains(&index)) {
                continue;
            }
            let lane = Lane::of(event);
            let shape = format!(
                "<circle class=\"dot\" cx=\"{:.2}%\" cy=\"{}\" r=\"3\"><title>{}</title></circle>",
                self.x(event.at_us),
                self.y(lane) + lane.faults_y() + 5.0,
                escaped(event.to_string().trim_start())
            );
            self.bars.push(Bar { events: vec![index], shape });
        }
    }

    fn write_drawing(&self, out: &mut String) {
        let height = self.height();
        let _ = writeln!(
            out,
            "<svg class=\"lanes\" width=\"100%\" height=\"{height}\" role=\"group\" aria-label=\"Timeline: {}\">",
            escaped(&self.violation.message)
        );
        self.write_axis(height, out);
        for lane in &self.lanes {
            let y = self.y(*lane);
            let _ = writeln!(
                out,
                "<line class=\"lane\" x1=\"0\" x2=\"100%\" y1=\"{y}\" y2=\"{y}\"/><text class=\"who\" x=\"{LEFT}%\" y=\"{}\">{}</text>",
                y + 15.0,
                lane.name()
            );
        }
        self.write_labels(out);
        for (number, bar) in self.bars.iter().enumerate() {
            let events = bar.events.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
            let target = bar.events.first().map_or(String::new(), |event| format!(" href=\"#{}-e{event}\"", self.id));
            let _ = writeln!(out, "<a id=\"{}-b{number}\"{target} data-e=\"{events}\">{}</a>", self.id, bar.shape);
        }
        let x = self.x(self.violation.at_us);
        let anchor = anchor(x, EDGE);
        let _ = writeln!(
            out,
            "<line class=\"edge\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"{}\" y2=\"{height}\"/>\
             <text class=\"violated\" x=\"{x:.2}%\" y=\"{}\" text-anchor=\"{anchor}\">✗ violated</text>",
            TOP - 4.0,
            TOP - 7.0
        );
        let _ = writeln!(out, "<line class=\"cursor\" x1=\"0\" x2=\"0\" y1=\"{TOP}\" y2=\"{height}\"/></svg>");
    }

    /// Writes the times above the lanes: at most seven. A phone has room for every other one.
    fn write_axis(&self, height: f64, out: &mut String) {
        let span_us = self.to_us - self.from_us;
        let mut step_us = 10u64.pow((span_us / 10).max(1).ilog10());
        while span_us / step_us > 6 {
            step_us *= if step_us.to_string().starts_with('1') { 2 } else { 5 };
        }
        let (mut at_us, mut extra) = (self.from_us.next_multiple_of(step_us), false);
        while at_us < self.to_us {
            let x = self.x(at_us);
            let (anchor, class) = (anchor(x, 10.0), if extra { "small extra" } else { "small" });
            extra = !extra;
            let _ = writeln!(
                out,
                "<line class=\"grid\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"{TOP}\" y2=\"{height}\"/>\
                 <text class=\"{class}\" x=\"{x:.2}%\" y=\"12\" text-anchor=\"{anchor}\">{} s</text>",
                at_us as f64 / 1e6
            );
            at_us += step_us;
        }
    }

    /// Writes the numbers of acquisitions above their bars, where there is room.
    fn write_labels(&self, out: &mut String) {
        for lane in &self.lanes {
            let Lane::Client(client) = lane else { continue };
            let (mut free_from, mut free_on_phone) = (0.0, 0.0);
            for event in self.history.events.iter().filter(|event| event.client == *client) {
                let EventKind::Acquire { op, .. } = event.kind else { continue };
                let (x, y) = (self.x(event.at_us), self.y(*lane) + 29.0);
                let at_end = x > 100.0 - EDGE;
                let left = |width: f64| if at_end { x - width } else { x };
                if left(LABELS_APART) < free_from {
                    continue;
                }
                free_from = left(LABELS_APART) + LABELS_APART;
                let class = if left(LABELS_APART_ON_PHONE) < free_on_phone { "small extra" } else { "small" };
                if class == "small" {
                    free_on_phone = left(LABELS_APART_ON_PHONE) + LABELS_APART_ON_PHONE;
                }
                // Beside the line of the violation, which often begins where an acquisition does.
                let (anchor, dx) = if at_end { ("end", -3) } else { ("start", 3) };
                let _ = writeln!(
                    out,
                    "<text class=\"{class}\" x=\"{x:.2}%\" dx=\"{dx}\" y=\"{y}\" text-anchor=\"{anchor}\">#{op}</text>"
                );
            }
        }
    }

    fn write_lines(&self, out: &mut String) {
        out.push_str("<ol class=\"events\">\n");
        let concerns = |event: &Event| event.kind.op().is_some_and(|op| self.violation.ops.contains(&op));
        // The event with which the property is violated: the last one by then of the acquisitions that it concerns.
        let by_then = |event: &&Event| event.at_us <= self.violation.at_us && concerns(event);
        let violated = self.history.events.iter().rposition(|event| by_then(&event));
        for (index, event) in self.history.events.iter().enumerate().filter(|(_, event)| is_shown(event, self.violation)) {
            let class = match (concerns(event), violated == Some(index)) {
                (_, true) => " class=\"concerned violated\"",
                (true, false) => " class=\"concerned\"",
                (false, false) => "",
            };
            // The bar that begins with the event is nearer to it than the one that ends with it.
            let begins = self.bars.iter().position(|bar| bar.events.first() == Some(&index));
            let bar = begins.or_else(|| self.bars.iter().position(|bar| bar.events.contains(&index)));
            let target = bar.map_or(String::new(), |bar| format!(" href=\"#{}-b{bar}\"", self.id));
            let who = match Lane::of(event) {
                Lane::Client(client) => format!("c{client}"),
                Lane::Server(server) => format!("s{server}"),
                Lane::Servers | Lane::Resource => "–".to_owned(),
            };
            let _ = writeln!(
                out,
                "<li id=\"{}-e{index}\"{class} data-e=\"{index}\" data-x=\"{:.2}\"><a{target}><span class=\"at\">{}</span> \
                 <span class=\"who\">{who}</span> <span class=\"what\">{}</span></a></li>",
                self.id,
                self.x(event.at_us),
                Seconds(event.at_us),
                escaped(&self.line(event))
            );
        }
        out.push_str("</ol>\n");
    }

    /// What happened, in a line that is not too long.
    fn line(&self, event: &Event) -> String {
        let line = match &event.kind {
            EventKind::Stored { lock, ops } => {
                format!("the resource of lock {lock} has accepted {}", summarize_writes(ops, &self.violation.ops))
            }
            kind => kind.to_string(),
        };
        match line.char_indices().nth(LINE_MAX) {
            Some((end, _)) => format!("{}…", &line[..end]),
            None => line,
        }
    }
}

/// The anchor of a text in the middle of `x`, which stays within the drawing.
fn anchor(x: f64, edge: f64) -> &'static str {
    match x {
        x if x > 100.0 - edge => "end",
        x if x < edge => "start",
        _ => "middle",
    }
}

/// Whether an event is shown. What the resource stored matters for a stale write only.
fn is_shown(event: &Event, violation: &Violation) -> bool {
    !matches!(event.kind, EventKind::Stored { .. }) || violation.property == Property::Writes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::page::assert_well_formed;
    use crate::torture::history::{NO_CLIENT, Trace};

    /// A client asks for the lock, is granted it and crashes after it has sent a write.
    fn crashed() -> History {
        let mut history = History::default();
        let mut push = |at_us, client, kind| history.push(at_us, client, kind);
        push(0, 0, EventKind::Start);
        push(1_000, 0, EventKind::Acquire { op: 1, lock: 0, lease_us: 10_000_000, wait_us: 0, job: 0 });
        let trace = Trace::default();
        push(2_000, 0, EventKind::Granted { op: 1, token: Some(7), valid_until_us: Some(10_000_000), watched: false, trace });
        push(2_000, 0, EventKind::Enter { op: 1 });
        push(3_000, 0, EventKind::Write { op: 1 });
        push(4_000, 0, EventKind::Crash { machine: true });
        push(5_000, NO_CLIENT, EventKind::Stall { server: 1, for_us: 9_000_000 });
        push(6_000, NO_CLIENT, EventKind::Partition { apart: (1, 2), ways: (true, true), for_us: 1_000_000 });
        push(7_000, NO_CLIENT, EventKind::Stored { lock: 0, ops: vec![1] });
        history
    }

    fn violation(property: Property) -> Violation {
        Violation { property, at_us: 3_500, ops: vec![1], message: "it <is> \"late\" & lost".to_owned() }
    }

    #[test]
    fn every_event_has_a_line_and_a_bar() {
        let history = crashed();
        let drawn = render("t", &history, &violation(Property::Writes));
        assert_well_formed(&drawn);
        let bars: Vec<&str> = drawn.lines().filter(|line| line.starts_with("<a ")).collect();
        for index in 0..history.events.len() {
            assert!(drawn.contains(&format!("<li id=\"t-e{index}\"")), "{index}: {drawn}");
            let shows = |bar: &&&str| {
                bar.split("data-e=\"")
                    .nth(1)
                    .is_some_and(|list| list[..list.find('"').unwrap_or(0)].split(' ').any(|event| event == index.to_string()))
            };
            assert!(bars.iter().any(|bar| shows(&bar)), "{index}: {drawn}");
        }
        for lane in ["client 0", "server 1", "all servers", "guarded resource"] {
            assert!(drawn.contains(lane), "{lane}: {drawn}");
        }
        assert!(drawn.contains("it &lt;is&gt; &quot;late&quot; &amp; lost") && !drawn.contains("<is>"));
        assert_eq!(drawn.matches("class=\"concerned violated\"").count(), 1);
    }

    #[test]
    fn what_the_resource_stored_is_shown_for_stale_writes_only() {
        assert!(!render("t", &crashed(), &violation(Property::Early)).contains("guarded resource"));
    }
}
