//! One sentence that names the root cause: what most clients wait for, and who holds it.

use crate::top::facts::{Absence, Facts, Holder, Lock, main_holder};
use crate::top::names::Name;
use crate::top::words::{counted, long};

/// The sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headline {
    /// Its text.
    pub text: String,
    /// Whether somebody waits.
    pub is_alarm: bool,
}

/// The lock that most clients are blocked by.
struct Root<'a> {
    name: &'a Name,
    /// Waiters of the lock itself, and of all that is below.
    waiters: u64,
    blocked: u64,
    holders: &'a [Holder],
}

/// Names the root cause.
pub fn headline(facts: &Facts) -> Headline {
    let calm = |text: String| Headline { text, is_alarm: false };
    let locks = match &facts.locks {
        Ok(locks) => locks,
        Err(Absence::Missing) => return calm(without_locks(facts)),
        Err(Absence::Refused(reason)) => {
            return Headline { text: format!("The server refuses LOCK.LIST: {reason}"), is_alarm: true };
        }
    };
    let graph = facts.graph.as_deref().unwrap_or_default();
    let mut roots: Vec<Root<'_>> = graph
        .iter()
        .filter(|node| node.depth == 0 && node.blocked > 0)
        .map(|node| Root { name: &node.name, waiters: node.waiters, blocked: node.blocked, holders: &node.holders })
        .collect();
    if roots.is_empty() {
        let contended = locks.iter().filter(|lock| lock.waiting > 0);
        let root = |lock: &'_ Lock| (lock.waiting, lock.oldest_ms);
        let worst = contended.max_by_key(|lock| root(lock));
        roots.extend(worst.map(|lock| Root {
            name: &lock.name,
            waiters: lock.waiting,
            blocked: lock.waiting,
            holders: &lock.holders,
        }));
    }
    let Some(worst) = roots.iter().enumerate().max_by_key(|(at, root)| (root.blocked, usize::MAX - at)).map(|(_, root)| root)
    else {
        return match facts.stat("waiting") {
            Some(waiting @ 1..) => calm(format!("{} for locks, none of them in this database or filter.", wait(waiting))),
            _ => calm("Nobody waits for a lock.".to_owned()),
        };
    };
    let mut text = format!("{} for {}", wait(worst.blocked), worst.name);
    if worst.waiters < worst.blocked {
        text.push_str(&format!(" ({} directly)", worst.waiters));
    }
    text.push_str(&cause(worst, facts.lock(worst.name)));
    let others = roots.len() - 1;
    if others > 0 {
        let blocked: u64 = roots.iter().map(|root| root.blocked).sum::<u64>() - worst.blocked;
        let block = if others == 1 { "blocks" } else { "block" };
        text.push_str(&format!("; {} {block} {}", counted(others as u64, "other lock"), counted(blocked, "client")));
    }
    Headline { text, is_alarm: true }
}

fn wait(clients: u64) -> String {
    format!("{} {}", counted(clients, "client"), if clients == 1 { "waits" } else { "wait" })
}

/// `, held for 3 min by worker-7 (10.0.0.3, connection gone for 2 min)`.
fn cause(root: &Root<'_>, lock: Option<&Lock>) -> String {
    if let Some(holder) = main_holder(root.holders) {
        let others = match root.holders.len() {
            0 | 1 => String::new(),
            count => format!(" and {}", counted(count as u64 - 1, "other owner")),
        };
        return format!(", held for {} by {}{others}", long(holder.held_ms), who(holder));
    }
    let Some(lock) = lock else { return ", which nobody holds".to_owned() };
    match (lock.kind.0.as_slice(), lock.held_back_ms) {
        (b"latch", _) => match lock.count {
            Some(count) => format!(", a latch whose count is {count}"),
            None => ", a latch".to_owned(),
        },
        (_, Some(held_back_ms @ 1..)) => format!(", which nobody holds and which is held back for {}", long(held_back_ms)),
        (b"lock" | b"semaphore", _) => ", which nobody holds".to_owned(),
        _ => format!(", a key of type {}{}", lock.kind, key(lock)),
    }
}

/// What is known of a plain key: who wrote it, and whether it will go.
fn key(lock: &Lock) -> String {
    let mut text = String::new();
    if let Some(writer) = &lock.writer {
        let known: Vec<String> =
            [&writer.name, &writer.addr].into_iter().filter(|name| !name.is_empty()).map(Name::to_string).collect();
        let known = if known.is_empty() { format!("client {}", writer.client) } else { known.join(", ") };
        text.push_str(&format!(" that {known} wrote"));
    }
    match lock.ttl_ms {
        Some(ttl_ms @ 0..) => text.push_str(&format!(", which expires in {}", long(ttl_ms as u64))),
        Some(_) => text.push_str(", which never expires"),
        None => {}
    }
    text
}

/// The owner, with what is known of its connection in brackets.
pub fn who(holder: &Holder) -> String {
    let mut known = Vec::new();
    if !holder.client_name.is_empty() && holder.client_name != holder.owner {
        known.push(holder.client_name.to_string());
    }
    if !holder.addr.is_empty() {
        known.push(host(&holder.addr));
    }
    if let Some(gone_ms) = holder.gone_ms {
        known.push(format!("connection gone for {}", long(gone_ms)));
    }
    if known.is_empty() { holder.owner.to_string() } else { format!("{} ({})", holder.owner, known.join(", ")) }
}

/// An address without its port.
fn host(addr: &Name) -> String {
    let text = addr.to_string();
    match text.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => host.to_owned(),
        _ => text,
    }
}

fn without_locks(facts: &Facts) -> String {
    let server = &facts.server;
    let blocked = match server.blocked {
        Some(blocked @ 1..) => format!(" {} in some blocking command.", wait(blocked)),
        _ => String::new(),
    };
    format!(
        "This server ({}) has no LOCK commands: it knows keys, not which of them are locks or who polls for them.{blocked}",
        server.title()
    )
}
