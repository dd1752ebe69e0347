//! The schedule of a violation for the page: an event for each line, and the spans of time that are drawn as bars. The page's
//! script draws them.

use serde_json::{Value, json};

use crate::torture::check::{Acquisition, Acquisitions, Property, Violation};
use crate::torture::history::{Event, EventKind, History, NO_CLIENT, Op, Outcome, Seconds};
use crate::torture::report::text::summarize_writes;

/// Maximum length of an event's line.
const LINE_MAX: usize = 400;

/// The timeline of at most `events_max` events.
pub fn json(history: &History, violation: &Violation, events_max: usize) -> Value {
    let mut shown = match history.events.len() > events_max {
        true => last_events(history.concerning(&violation.ops), &violation.ops, events_max),
        false => history.clone(),
    };
    let left_out = history.events.len() - shown.events.len();
    // What the resource stored matters for a stale write only.
    let is_shown = |event: &Event| !matches!(event.kind, EventKind::Stored { .. }) || violation.property == Property::Writes;
    shown.events.retain(is_shown);
    let event = |event: &Event| json!({ "at_us": event.at_us, "lane": lane(event), "op": event.kind.op(), "says": line(event, &violation.ops) });
    let acquisitions = Acquisitions::of(&shown);
    let work = acquisitions.all.iter().flat_map(|acquisition| work(&shown, acquisition, acquisitions.end_us, &violation.ops));
    let faults = (0..shown.events.len()).filter_map(|index| fault_or_write(&shown.events, index));
    json!({
        "at_us": violation.at_us,
        "ops": violation.ops,
        "events": shown.events.iter().map(event).collect::<Vec<_>>(),
        "bars": work.chain(faults).collect::<Vec<_>>(),
        "left_out": left_out,
    })
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

/// The lane of an event: that of its client, of its server, of faults that strike several servers, or of the guarded resource.
fn lane(event: &Event) -> String {
    if event.client != NO_CLIENT {
        return format!("client {}", event.client);
    }
    match event.kind {
        EventKind::Down { server, .. }
        | EventKind::Up { server }
        | EventKind::PowerLoss { server, .. }
        | EventKind::Refused { server }
        | EventKind::Stall { server, .. }
        | EventKind::Wipe { server }
        | EventKind::BadDisk { server, .. }
        | EventKind::HungDisk { server, .. }
        | EventKind::HungLeader { server, .. }
        | EventKind::BitRot { server, .. }
        | EventKind::Replaced { server }
        | EventKind::DriftOfNode { server, .. }
        | EventKind::StepOfNode { server, .. }
        | EventKind::Leads { server } => format!("server {server}"),
        EventKind::Stored { .. } => "guarded resource".to_owned(),
        _ => "all servers".to_owned(),
    }
}

/// What happened, in a line that is not too long.
fn line(event: &Event, ops: &[Op]) -> String {
    let mut line = match &event.kind {
        EventKind::Stored { lock, ops: stored } => {
            format!("the resource of lock {lock} has accepted {}", summarize_writes(stored, ops))
        }
        kind => kind.to_string(),
    };
    if let Some((end, _)) = line.char_indices().nth(LINE_MAX) {
        line.replace_range(end.., "…");
    }
    line
}

/// A bar with the indices of its events. Without an end, it ends with the timeline.
fn bar(class: &str, from_us: u64, to_us: Option<u64>, events: &[usize]) -> Value {
    json!({ "class": class, "from_us": from_us, "to_us": to_us, "events": events })
}

/// The bars of an acquisition: its wait, its lease and its critical section.
fn work(history: &History, acquisition: &Acquisition, end_us: u64, concerned: &[Op]) -> Vec<Value> {
    use EventKind::{Acquire, Enter, Exit, Failed, Granted, NotGranted, Release, Released, Renew, Renewed};
    let mut bars = Vec::new();
    let mut push = |class: &str, from_us: u64, to_us: u64, wanted: &dyn Fn(&EventKind) -> bool, says: &str| {
        let is_of_bar = |kind: &EventKind| kind.op() == Some(acquisition.op) && wanted(kind);
        let events: Vec<usize> = (0..history.events.len()).filter(|index| is_of_bar(&history.events[*index].kind)).collect();
        let mut bar = bar(class, from_us, Some(to_us), &events);
        bar["says"] = format!("#{}, lock {}: {says}", acquisition.op, acquisition.lock).into();
        bars.extend((!events.is_empty()).then_some(bar));
    };
    let requested_us = acquisition.requested_us;
    let waited_us = acquisition.granted_us.unwrap_or_else(|| acquisition.waited_until_us()).min(end_us);
    let of_wait = |kind: &EventKind| matches!(kind, Acquire { .. } | Granted { .. } | NotGranted { .. } | Failed { .. });
    push("wait", requested_us, waited_us, &of_wait, &format!("asked for at {} s", Seconds(requested_us)));
    if let Some(start_us) = acquisition.start_us() {
        let ends = [acquisition.valid_until_us, acquisition.released_us, acquisition.crashed_us];
        let lease_us = ends.into_iter().flatten().min().unwrap_or(end_us);
        let token = acquisition.token.map_or(String::new(), |token| format!(", token {token}"));
        let of_lease =
            |kind: &EventKind| matches!(kind, Granted { .. } | Renew { .. } | Renewed { .. } | Release { .. } | Released { .. });
        push("lease", start_us, lease_us, &of_lease, &format!("granted at {} s{token}", Seconds(start_us)));
    }
    if let Some(entered_us) = acquisition.entered_us {
        let left_us = acquisition.exited_us.or(acquisition.crashed_us).unwrap_or(end_us);
        let class = if concerned.contains(&acquisition.op) { "bad" } else { "work" };
        let says = format!("in its critical section from {} to {} s", Seconds(entered_us), Seconds(left_us));
        push(class, entered_us, left_us, &|kind| matches!(kind, Enter { .. } | Exit { .. }), &says);
    }
    bars
}

/// The bar of a fault, or the tick of a write. `None` if the event is neither, or only ends a fault.
fn fault_or_write(events: &[Event], index: usize) -> Option<Value> {
    use EventKind::{BadDisk, BitRot, Crash, Delay, Disorder, Down, Foreign, HungDisk, Leaderless, Leads, Loss, Members};
    use EventKind::{Partition, Pause, PowerLoss, Stall, Start, Up, Wipe, Write, Written};
    let event = &events[index];
    let at_us = event.at_us;
    let until = |class: &str, ends: &dyn Fn(&Event) -> bool| {
        let end = (index + 1..events.len()).find(|end| ends(&events[*end]));
        let shown: Vec<usize> = std::iter::once(index).chain(end).collect();
        bar(class, at_us, end.map(|end| events[end].at_us), &shown)
    };
    Some(match &event.kind {
        Pause { for_us } | Stall { for_us, .. } => bar("pause", at_us, Some(at_us + for_us), &[index]),
        Delay { for_us, .. }
        | Loss { for_us, .. }
        | Partition { for_us, .. }
        | Disorder { for_us }
        | BadDisk { for_us, .. }
        | HungDisk { for_us, .. }
        | Members { for_us, .. } => bar("impaired", at_us, Some(at_us + for_us), &[index]),
        Crash { .. } => until("down", &|other| other.client == event.client && other.kind == Start),
        Down { server, .. } | PowerLoss { server, .. } | Wipe { server } | Foreign { server, .. } | BitRot { server, .. } => {
            until("down", &|other| other.kind == Up { server: *server })
        }
        Leaderless => until("pause", &|other| matches!(other.kind, Leads { .. })),
        Written { op, outcome } => {
            let sent = events[..index].iter().rposition(|other| other.kind == Write { op: *op });
            let shown: Vec<usize> = sent.into_iter().chain([index]).collect();
            bar(if *outcome == Outcome::No { "no" } else { "yes" }, at_us, Some(at_us), &shown)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torture::history::Trace;

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
        Violation { property, at_us: 3_500, ops: vec![1], message: "it is late".to_owned() }
    }

    #[test]
    fn every_span_of_time_is_a_bar() {
        let drawn = json(&crashed(), &violation(Property::Writes), 100);
        let found = |name: &str| drawn[name].as_array().cloned().unwrap_or_default();
        let bars: Vec<String> = found("bars")
            .iter()
            .map(|bar| format!("{} {} {} {}", bar["class"], bar["from_us"], bar["to_us"], bar["events"]))
            .collect();
        assert_eq!(
            bars,
            [
                "\"wait\" 1000 2000 [1,2]",
                "\"lease\" 2000 4000 [2]",
                "\"bad\" 2000 4000 [3]",
                "\"down\" 4000 null [5]",
                "\"pause\" 5000 9005000 [6]",
                "\"impaired\" 6000 1006000 [7]"
            ]
        );
        let lanes: Vec<Value> = found("events").into_iter().map(|event| event["lane"].clone()).collect();
        assert_eq!(lanes[5..], ["client 0", "server 1", "all servers", "guarded resource"]);
    }

    #[test]
    fn what_the_resource_stored_is_shown_for_stale_writes_only() {
        assert!(!json(&crashed(), &violation(Property::Early), 100).to_string().contains("guarded resource"));
    }

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
