//! One sentence that names the root cause: what most clients wait for, and who holds it.

use crate::top::ask::NODES_MAX;
use crate::top::facts::{Absence, Elsewhere, Facts, Holder, Lock, main_holder};
use crate::top::names::Name;
use crate::top::words::{counted, long};

/// The sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headline {
    /// Its text.
    pub text: String,
    /// Whether somebody waits.
    pub is_alarm: bool,
    /// The lock that it names first.
    pub lock: Option<Name>,
}

/// A lock that blocks clients, and whose holders wait for nothing in this database.
struct Root<'a> {
    name: &'a Name,
    /// Waiters of the lock itself, and of all that is below.
    waiters: u64,
    blocked: u64,
    holders: &'a [Holder],
    /// A lock of another database that a holder waits for.
    elsewhere: Option<&'a Elsewhere>,
}

/// Names the root cause.
pub fn headline(facts: &Facts) -> Headline {
    let calm = |text: String| Headline { text, is_alarm: false, lock: None };
    let locks = match &facts.locks {
        Ok(locks) => locks,
        Err(Absence::Missing) => return calm(without_locks(facts)),
        Err(Absence::Refused(reason)) => {
            return Headline { text: format!("The server refuses LOCK.LIST: {reason}"), is_alarm: true, lock: None };
        }
    };
    let graph = facts.graph.as_deref().unwrap_or_default();
    let is_partial = graph.iter().any(|node| node.is_partial);
    // Who waits for several locks counts at each of them, so that more seem to wait behind one than there are clients.
    let waiting = facts.stat("waiting").unwrap_or(u64::MAX);
    let mut roots: Vec<Root<'_>> = graph
        .iter()
        .filter(|node| node.depth == 0 && node.blocked > 0)
        .map(|node| Root {
            name: &node.name,
            waiters: node.waiters,
            blocked: node.blocked.min(waiting.max(node.waiters)),
            holders: &node.holders,
            elsewhere: node.elsewhere.as_ref(),
        })
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
            elsewhere: None,
        }));
    }
    let (roots_count, all_blocked) = (roots.len(), roots.iter().map(|root| root.blocked).sum::<u64>());
    let Some(cause) = worst_cause(roots, facts.stat("waiting")) else {
        return match facts.stat("waiting") {
            Some(waiting @ 1..) => calm(format!("{} for locks, none of them in this database or filter.", wait(waiting))),
            _ => calm("Nobody waits for a lock.".to_owned()),
        };
    };
    let (begin, least) = if is_partial { ("At least ", "at least ") } else { ("", "") };
    let mut text = match &cause.roots[..] {
        [root] => {
            let directly = if root.waiters < root.blocked { format!(" ({} directly)", root.waiters) } else { String::new() };
            format!("{begin}{} for {}{directly}{}", wait(root.blocked), root.name, why(root, facts.lock(root.name)))
        }
        roots => several(roots, least, cause.blocked),
    };
    let others = (roots_count - cause.roots.len()) as u64;
    if others > 0 {
        let block = if others == 1 { "blocks" } else { "block" };
        let is_cut = is_partial || graph.len() >= NODES_MAX;
        text.push_str(&match (is_cut, facts.stat("waiting"), facts.stat("contended")) {
            (true, Some(waiting), Some(contended)) => format!("; in all, {} for {}", wait(waiting), counted(contended, "lock")),
            _ => {
                let blocked = all_blocked - cause.roots.iter().map(|root| root.blocked).sum::<u64>();
                let (least, most) = if is_cut { ("at least ", "at least ") } else { ("", "") };
                format!("; {least}{} {block} {most}{}", counted(others, "other lock"), counted(blocked, "client"))
            }
        });
    }
    Headline { text, is_alarm: true, lock: Some(cause.roots[0].name.clone()) }
}

/// What blocks most clients: a lock, or the locks that one owner holds alone, the one that blocks most of them first.
struct Cause<'a> {
    roots: Vec<Root<'a>>,
    blocked: u64,
}

/// The worst cause. `waiting` is how many clients wait in all, if that is known: who waits for several locks counts only once in it.
fn worst_cause(roots: Vec<Root<'_>>, waiting: Option<u64>) -> Option<Cause<'_>> {
    let mut causes: Vec<Cause<'_>> = Vec::new();
    for root in roots {
        let alone = |root: &Root<'_>| if let [holder] = root.holders { Some(holder.owner.clone()) } else { None };
        let same = alone(&root).and_then(|owner| causes.iter_mut().find(|cause| alone(&cause.roots[0]).as_ref() == Some(&owner)));
        match same {
            Some(cause) => {
                cause.blocked += root.blocked;
                cause.roots.push(root);
            }
            None => causes.push(Cause { blocked: root.blocked, roots: vec![root] }),
        }
    }
    // Of equals, the first.
    let mut worst = causes.into_iter().rev().max_by_key(|cause| cause.blocked)?;
    worst.roots.sort_by_key(|root| std::cmp::Reverse(root.blocked));
    if let Some(waiting @ 1..) = waiting {
        worst.blocked = worst.blocked.min(waiting).max(worst.roots[0].blocked);
    }
    Some(worst)
}

/// Maximum number of locks of one holder that are named.
const NAMED_MAX: usize = 3;

/// `report-2:t1 (report-2, 10.0.0.3:4711) blocks 39 clients with 2 locks: report:daily (31), ledger:close (8)`.
fn several(roots: &[Root<'_>], least: &str, blocked: u64) -> String {
    let named =
        roots.iter().take(NAMED_MAX).map(|root| format!("{} ({})", root.name, root.blocked)).collect::<Vec<_>>().join(", ");
    let rest = if roots.len() > NAMED_MAX { format!(" and {} more", roots.len() - NAMED_MAX) } else { String::new() };
    let holder = main_holder(roots[0].holders).map(who).unwrap_or_default();
    let elsewhere = roots.iter().find_map(|root| root.elsewhere).map(|there| format!(", and waits for {}", of(there)));
    let (clients, locks) = (counted(blocked, "client"), counted(roots.len() as u64, "lock"));
    format!("{holder} blocks {least}{clients} with {locks}: {named}{rest}{}", elsewhere.unwrap_or_default())
}

fn of(there: &Elsewhere) -> String {
    there.in_words(Name::to_string)
}

fn wait(clients: u64) -> String {
    format!("{} {}", counted(clients, "client"), if clients == 1 { "waits" } else { "wait" })
}

/// `, held for 3 min by worker-7 (10.0.0.3, connection gone for 2 min)`.
fn why(root: &Root<'_>, lock: Option<&Lock>) -> String {
    if let Some(holder) = main_holder(root.holders) {
        let others = match root.holders.len() {
            0 | 1 => String::new(),
            count => format!(" and {}", counted(count as u64 - 1, "other owner")),
        };
        let elsewhere = match root.elsewhere {
            Some(there) if there.owner == holder.owner => format!(", who waits for {}", of(there)),
            Some(there) => format!(", of whom {} waits for {}", there.owner, of(there)),
            None => String::new(),
        };
        return format!(", held for {} by {}{others}{elsewhere}", long(holder.held_ms), who(holder));
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
        let mut known: Vec<String> =
            [&writer.name, &writer.addr].into_iter().filter(|name| !name.is_empty()).map(Name::to_string).collect();
        if known.is_empty() {
            known.push(format!("client {}", writer.client));
        }
        if let Some(gone_ms) = writer.gone_ms {
            known.push(format!("connection gone for {}", long(gone_ms)));
        }
        let (first, rest) = (known.remove(0), known.join(", "));
        let rest = if rest.is_empty() { rest } else { format!(" ({rest})") };
        text.push_str(&format!(" that {first}{rest} wrote"));
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
        known.push(holder.addr.to_string());
    }
    if let Some(gone_ms) = holder.gone_ms {
        known.push(format!("connection gone for {}", long(gone_ms)));
    }
    if known.is_empty() { holder.owner.to_string() } else { format!("{} ({})", holder.owner, known.join(", ")) }
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
