//! The texts of the table, the tree, the figures and the endings, without their places on a screen.

use std::collections::HashMap;

use crate::client::Value;
use crate::top::facts::{Absence, Event, Facts, Holder, Lock, Node, main_holder};
use crate::top::names::Name;
use crate::top::words::{counted, long, short, short_us};

/// A lock in the table. A cell without content is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The lock's name.
    pub name: String,
    /// What it is.
    pub kind: String,
    /// Number of waiters.
    pub waiters: String,
    /// The longest present wait.
    pub oldest: String,
    /// The holder, and the number of others.
    pub holder: String,
    /// For how long it has been held.
    pub held: String,
    /// What is left of the lease.
    pub lease: String,
    /// That as a part of the whole lease, from 0 to 1.
    pub lease_part: Option<f64>,
    /// Name of the holder's connection.
    pub client: String,
    /// Address of the holder's connection.
    pub address: String,
    /// For how long that connection has been gone.
    pub gone: String,
}

impl Row {
    /// The row of a lock.
    pub fn of(lock: &Lock, leases: &Leases) -> Row {
        let mut row = Row {
            name: lock.name.to_string(),
            kind: lock.kind.to_string(),
            waiters: lock.waiting.to_string(),
            oldest: if lock.waiting > 0 { short(lock.oldest_ms) } else { String::new() },
            ..Row::default()
        };
        if let Some(holder) = main_holder(&lock.holders) {
            let others = lock.holding.saturating_sub(1);
            row.holder = holder.owner.to_string();
            if others > 0 {
                row.holder.push_str(&format!(" +{others}"));
            }
            row.held = short(holder.held_ms);
            row.lease = short(holder.lease_ms);
            row.lease_part = Some(leases.part(&lock.name, holder));
            row.client = holder.client_name.to_string();
            row.address = holder.addr.to_string();
            row.gone = holder.gone_ms.map(short).unwrap_or_default();
        } else if let Some(writer) = &lock.writer {
            row.client = writer.name.to_string();
            row.address = writer.addr.to_string();
            row.gone = writer.gone_ms.map(short).unwrap_or_default();
        }
        row
    }
}

/// The longest lease seen of each present grant. The server says what is left of a lease, not how long it was.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    full_ms: HashMap<(Name, u64), u64>,
}

impl Leases {
    /// Takes note of the leases of these locks, and forgets all others.
    pub fn see(&mut self, locks: &[Lock]) {
        let mut full_ms = HashMap::new();
        for (lock, holder) in locks.iter().flat_map(|lock| lock.holders.iter().map(move |holder| (lock, holder))) {
            let key = (lock.name.clone(), holder.token);
            let seen = self.full_ms.get(&key).copied().unwrap_or(0);
            // A lease that was never renewed began when the lock was granted.
            let first = if holder.renewed == Some(0) { holder.lease_ms + holder.held_ms } else { holder.lease_ms };
            full_ms.insert(key, seen.max(first));
        }
        self.full_ms = full_ms;
    }

    fn part(&self, name: &Name, holder: &Holder) -> f64 {
        let full_ms = self.full_ms.get(&(name.clone(), holder.token)).copied().unwrap_or(0).max(holder.lease_ms);
        if full_ms == 0 { 0.0 } else { holder.lease_ms as f64 / full_ms as f64 }
    }
}

/// A bar of this many cells. Any part above 0 has at least one full cell.
pub fn bar(part: f64, cells: usize) -> String {
    let full = ((part * cells as f64).ceil() as usize).min(cells);
    format!("{}{}", "█".repeat(full), "░".repeat(cells - full))
}

/// A line of the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Branch {
    /// The lines that lead to it.
    pub lead: String,
    /// The lock's name, not escaped.
    pub name: Name,
    /// What is said of it.
    pub text: String,
    /// Whether the connection of the holder is gone.
    pub is_gone: bool,
}

/// The tree of who waits for whom: roots are what everybody below waits for.
pub fn tree(nodes: &[Node]) -> Vec<Branch> {
    let mut branches = Vec::new();
    // Whether the ancestor at each depth has a sibling after it.
    let mut goes_on: Vec<bool> = Vec::new();
    for (at, node) in nodes.iter().enumerate() {
        let depth = node.depth as usize;
        let sibling = nodes[at + 1..].iter().map(|later| later.depth as usize).find(|later| *later <= depth);
        goes_on.resize(depth.min(nodes.len()), false);
        let mut lead: String = goes_on.iter().skip(1).map(|goes_on| if *goes_on { "│ " } else { "  " }).collect();
        if depth > 0 {
            lead.push_str(if sibling == Some(depth) { "├ " } else { "└ " });
        }
        goes_on.push(sibling == Some(depth));
        let is_gone = speaker(node).is_some_and(|holder| holder.gone_ms.is_some());
        branches.push(Branch { lead, name: node.name.clone(), text: said(node), is_gone });
    }
    branches
}

/// The holder that a line of the tree names: the one that waits above, or the one that most likely is the problem.
fn speaker(node: &Node) -> Option<&Holder> {
    let between = node.via.as_ref().and_then(|via| node.holders.iter().find(|holder| holder.owner == *via));
    between.or_else(|| main_holder(&node.holders))
}

fn said(node: &Node) -> String {
    let mut text = format!("{} wait", node.waiters);
    if node.waiters > 0 {
        text.push_str(&format!(" (oldest {})", short(node.oldest_ms)));
    }
    if node.blocked > node.waiters {
        text.push_str(&format!(", {} with those below", node.blocked));
    }
    if let Some(there) = &node.elsewhere {
        text.push_str(&format!("; {} waits for {}", brief(&there.owner), there.in_words(brief)));
    }
    match (speaker(node), &node.via) {
        (Some(holder), via) => {
            // What is wrong comes first, as the end of the line may be cut.
            let gone = holder.gone_ms.map(|gone_ms| format!(" (gone {})", short(gone_ms))).unwrap_or_default();
            text.push_str(&format!("; {}{gone} holds it for {}", brief(&holder.owner), short(holder.held_ms)));
            if node.holders.len() > 1 {
                text.push_str(&format!(" (+{})", node.holders.len() - 1));
            }
            if via.is_some() {
                text.push_str(" and waits above");
            }
        }
        (None, Some(via)) => text.push_str(&format!("; {} holds it and waits above", brief(via))),
        (None, None) => {}
    }
    if node.cut {
        text.push_str("; what is below is left out");
    }
    text
}

/// What is said in place of a part that is absent.
pub fn absent(command: &str, absence: &Absence) -> String {
    match absence {
        Absence::Missing => format!("This server does not have {command}."),
        Absence::Refused(reason) => format!("The server refuses {command}: {reason}"),
    }
}

/// The figures. `grants_per_s` is known from the second look on.
pub fn figures(facts: &Facts, grants_per_s: Option<f64>) -> Vec<String> {
    let mut figures = Vec::new();
    let stat = |name: &str| facts.stat(name);
    if facts.stats.is_ok() {
        let mut of = |value: Option<u64>, put: &dyn Fn(u64) -> String| figures.extend(value.map(put));
        of(stat("waiting"), &|waiting| match stat("oldest-wait-ms") {
            Some(ms) if waiting > 0 => format!("waiting {waiting} (oldest {})", short(ms)),
            _ => format!("waiting {waiting}"),
        });
        of(stat("held"), &|held| match stat("longest-hold-ms") {
            Some(ms) if held > 0 => format!("held {held} (longest {})", short(ms)),
            _ => format!("held {held}"),
        });
        of(stat("grants"), &|grants| match grants_per_s {
            Some(rate) => format!("grants {grants} ({rate:.0}/s)"),
            None => format!("grants {grants}"),
        });
        let percentiles = stat("wait-us-p50").zip(stat("wait-us-p99"));
        of(percentiles.map(|(p50, _)| p50), &|p50| {
            format!("wait p50/p99 {}/{}", short_us(p50), short_us(percentiles.map_or(0, |(_, p99)| p99)))
        });
        let totals = [
            ("expired", "expiries"),
            ("timed out", "timeouts"),
            ("deadlocks", "deadlocks-refused"),
            ("broken", "broken"),
            ("ended with session", "session-ends-held"),
        ];
        for (word, field) in totals {
            of(stat(field), &|total| format!("{word} {total}"));
        }
    } else {
        let server = &facts.server;
        let mut of = |word: &str, value: Option<String>| figures.extend(value.map(|value| format!("{word} {value}")));
        of("clients", server.clients.map(|count| count.to_string()));
        of("blocked", server.blocked.map(|count| count.to_string()));
        of("commands/s", server.ops.map(|count| count.to_string()));
        of("keys", server.keys.map(|count| count.to_string()));
        of("memory", server.memory.clone());
    }
    figures
}

/// The server in a few words.
pub fn server(facts: &Facts) -> String {
    let server = &facts.server;
    let mut text = format!("{} at {}", server.title(), server.at);
    if let Some(uptime_s) = server.uptime_s {
        text.push_str(&format!(", up {}", long(uptime_s * 1000)));
    }
    if server.role.as_deref() == Some("slave") {
        text.push_str(", a follower");
    }
    text
}

/// Who holds a lock, from the reply to `LOCK.INFO`, in a sentence.
pub fn holds_now(info: &Value) -> String {
    let lock = if info.is_null() { Lock::default() } else { Lock::of(info) };
    let waiting = if lock.waiting > 0 { format!(", {} wait", lock.waiting) } else { String::new() };
    match &lock.holders[..] {
        [] => format!("Nobody holds it now{waiting}."),
        [holder] => format!("{} holds it now, with token {}{waiting}.", holder.owner, holder.token),
        _ => format!("{} owners hold it now{waiting}.", lock.holding),
    }
}

/// Maximum number of characters of a name in a sentence or in a table without a width of its own.
pub const NAME_MAX: usize = 60;

/// A name, cut to [`NAME_MAX`] characters.
pub fn brief(name: &Name) -> String {
    brief_text(&name.to_string())
}

/// A text, cut to [`NAME_MAX`] characters.
pub fn brief_text(text: &str) -> String {
    match text.char_indices().nth(NAME_MAX) {
        Some(_) => text.chars().take(NAME_MAX - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

/// The end of a grant that was broken.
pub fn broken(name: &Name, end: &Event, ago_ms: u64) -> String {
    let mut text = format!("{} ago: {name}, {}", short(ago_ms), end.owner);
    if let Some(token) = end.token {
        text.push_str(&format!(", token {token}"));
    }
    if !end.by.is_empty() {
        text.push_str(&format!(", by {}", end.by));
    }
    if !end.reason.is_empty() {
        text.push_str(&format!(": {}", end.reason));
    }
    text
}

/// An event of a lock.
pub fn event(event: &Event) -> String {
    if event.is_break() {
        return format!("broken {}", broken(&Name::default(), event, event.ago_ms).replace(": , ", ": "));
    }
    let mut text = format!("{:>6} ago  {}  {}", short(event.ago_ms), event.event, event.owner);
    if let Some(token) = event.token {
        text.push_str(&format!("  token {token}"));
    }
    if let Some(waited_ms) = event.waited_ms.filter(|ms| *ms > 0) {
        text.push_str(&format!("  after {}", short(waited_ms)));
    }
    text
}

/// All that is said of one lock: its state, holders, waiters, and last events, the newest first.
pub fn detail(lock: &Lock, events: &Result<Vec<Event>, Absence>) -> Vec<String> {
    let mut lines = vec![state(lock)];
    if let Some(value) = &lock.value {
        lines.push(format!("  value: {value}"));
    }
    lines.extend(lock.fields.iter().map(|(field, value)| format!("  {field}: {value}")));
    if let Some(writer) = &lock.writer {
        let gone = writer.gone_ms.map_or_else(String::new, |ms| format!("connection gone for {}", short(ms)));
        let client = format!("client {}", writer.client);
        lines.push(format!("  written by  {}", joined([writer.name.to_string(), writer.addr.to_string(), client, gone])));
    }
    if !lock.holders.is_empty() {
        lines.push(format!("Held by {}:", counted(lock.holding, "owner")));
        lines.extend(lock.holders.iter().flat_map(held));
    }
    if lock.waiting > 0 {
        lines.push(format!("{} in the queue:", counted(lock.waiting, "waiter")));
        lines.extend(lock.waiters.iter().map(|waiter| {
            let left = waiter.left_ms.map_or("without limit".to_owned(), |ms| format!("{} more", short(ms)));
            let id = if waiter.client > 0 { format!("client {}", waiter.client) } else { String::new() };
            let connection = joined([waiter.client_name.to_string(), waiter.addr.to_string(), id]);
            format!("  {}  {}  waits for {}, {left}  {connection}", waiter.owner, waiter.mode, short(waiter.waited_ms))
        }));
        let cut = lock.waiting.saturating_sub(lock.waiters.len() as u64);
        if cut > 0 {
            lines.push(format!("  and {cut} more"));
        }
    }
    match events {
        Ok(events) if events.is_empty() => {}
        Ok(events) => {
            lines.push("Last events:".to_owned());
            lines.extend(events.iter().rev().map(|one| format!("  {}", event(one))));
        }
        Err(absence) => lines.push(absent("LOCK.WHY", absence)),
    }
    lines
}

fn joined<const N: usize>(parts: [String; N]) -> String {
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
}

fn state(lock: &Lock) -> String {
    let mut parts = vec![lock.kind.to_string()];
    if !lock.mode.is_empty() && lock.mode != lock.kind {
        parts.push(lock.mode.to_string());
    }
    let mut of = |word: &str, value: Option<String>| parts.extend(value.map(|value| format!("{word} {value}")));
    of("limit", lock.limit.map(|limit| limit.to_string()));
    of("count", lock.count.map(|count| count.to_string()));
    of("highest token", lock.token.map(|token| token.to_string()));
    of("last token", lock.fence.filter(|fence| *fence > 0).map(|fence| fence.to_string()));
    of("held back for", lock.held_back_ms.map(short));
    of("idle", lock.idle_s.map(|s| short(s * 1000)));
    of("expires in", lock.ttl_ms.map(|ms| u64::try_from(ms).map_or("never".to_owned(), short)));
    if let Some((granted, contended, expired)) = lock.counts {
        parts.push(format!("granted {granted}, waits {contended}, expired {expired}"));
    }
    parts.join(", ")
}

fn held(holder: &Holder) -> [String; 2] {
    let permits = holder.permits.map(|permits| counted(permits, "permit")).unwrap_or_default();
    let times = if holder.holds > 1 { format!("{} times", holder.holds) } else { String::new() };
    let first = joined([
        format!("  {}", holder.owner),
        holder.mode.to_string(),
        permits,
        times,
        format!("token {}", holder.token),
        format!("for {}", short(holder.held_ms)),
        format!("lease left {}", short(holder.lease_ms)),
        match holder.renewed {
            Some(0) => "never renewed".to_owned(),
            Some(count) => format!("renewed {}", counted(count, "time")),
            None => String::new(),
        },
    ]);
    let gone = match holder.gone_ms {
        Some(gone_ms) => format!("connection gone for {}", short(gone_ms)),
        None if holder.session => "ends with its connection or session".to_owned(),
        None => String::new(),
    };
    let user = if holder.user.is_empty() { String::new() } else { format!("user {}", holder.user) };
    let client = if holder.client > 0 { format!("client {}", holder.client) } else { String::new() };
    [first, format!("    {}", joined([gone, holder.client_name.to_string(), holder.addr.to_string(), client, user]))]
}
