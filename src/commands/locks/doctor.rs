//! `LOCK.DOCTOR`: what everything waits for, in sentences, and the command that ends the grant.

use crate::base::error::Result;
use crate::base::words::{counted, long, quoted};
use crate::commands::locks::info::{Holder, Most, READ, Shown, shown_with};
use crate::engine::command::{Command, Flags, Keys};
use crate::engine::context::Context;
use crate::lock::graph::forest::forest;

/// Number of roots of trees that are looked at, and of holders that are named.
const ROOTS: usize = 100;
const NAMED: usize = 3;
/// Numbers of holders and waiters of a lock that are collected.
const MOST: Most = Most { holders: 1, waiters: 0 };

/// The rows.
pub const COMMANDS: &[Command] = &[Command {
    name: "lock.doctor",
    arity: 1,
    flags: Flags::READONLY,
    keys: Keys::None,
    summary: "Says in sentences which locks the most clients of the database wait for, who holds them, whether those holders are connected, and which command ends their grants.",
    complexity: "O(N) for N holders and waiters, of which at most 100,000 are followed",
    handler: doctor,
    ..READ
}];

/// A lock that others wait for, and whose holders wait for nothing.
struct Root {
    name: Vec<u8>,
    /// Number of waiters for it, and of those and all that wait behind them.
    direct: u64,
    blocked: u64,
    /// Whether more wait than were followed.
    cut: bool,
    shown: Shown,
}

impl Root {
    /// Its holder, if it has one only.
    fn holder(&self) -> Option<&Holder> {
        self.shown.holders().first().filter(|_| self.shown.holding() == 1)
    }
}

fn doctor(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let groups = groups(roots(cx));
    let mut lines = Vec::new();
    for group in groups.iter().take(NAMED) {
        describe(cx, group, &mut lines);
    }
    let Some(locks) = &cx.engine.keyspace.changes.locks else { return Ok(()) };
    let (waiters, contended, held) = (locks.queues.waiters() as u64, locks.queues.contended() as u64, locks.held.total());
    if groups.is_empty() {
        let grants = counted(held.grants, "grant");
        let longest = locks.held.oldest_ms().map(|since_ms| long(cx.now.mono_ms().saturating_sub(since_ms)));
        lines.push(match longest {
            Some(longest) => {
                format!("Nobody waits for a lock in this database. {grants} in all databases, the oldest for {longest}.")
            }
            None => "Nobody waits for a lock in this database, and none is held in any.".to_owned(),
        });
    }
    if waiters > 0 {
        let in_all = format!("{} for {}", wait(waiters), counted(contended, "lock"));
        lines.push(format!(
            "In all databases {in_all}. LOCK.GRAPH shows which lock blocks which, LOCK.LIST CONTENDED all of them."
        ));
    }
    cx.reply.array(lines.len());
    lines.iter().for_each(|line| cx.reply.simple(line));
    Ok(())
}

/// The locks at the roots, those with the most clients behind them first.
fn roots(cx: &mut Context<'_>) -> Vec<Root> {
    let Some(locks) = &cx.engine.keyspace.changes.locks else { return Vec::new() };
    let nodes = forest(&locks.queues, cx.db, None, ROOTS);
    let roots: Vec<_> = nodes
        .iter()
        .filter(|node| node.depth == 0)
        .filter_map(|node| {
            let queue = locks.queues.get(node.queue?)?;
            Some((queue.name.to_vec(), u64::from(queue.len), node.blocked, node.cut))
        })
        .collect();
    let of = |(name, direct, blocked, cut): (Vec<u8>, _, _, _)| {
        let shown = shown_with(cx, &name, MOST)?;
        Some(Root { name, direct, blocked, cut, shown })
    };
    roots.into_iter().filter_map(of).collect()
}

/// The locks of one holder are one trouble.
fn groups(roots: Vec<Root>) -> Vec<Vec<Root>> {
    let mut groups: Vec<Vec<Root>> = Vec::new();
    for root in roots {
        let owner = root.holder().map(Holder::owner);
        let same = |group: &&mut Vec<Root>| owner.is_some() && group[0].holder().map(Holder::owner) == owner;
        match groups.iter_mut().find(same) {
            Some(group) => group.push(root),
            None => groups.push(vec![root]),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.iter().map(|root| root.blocked).sum::<u64>()));
    groups
}

fn wait(clients: u64) -> String {
    format!("{} wait{}", counted(clients, "client"), if clients == 1 { "s" } else { "" })
}

fn describe(cx: &Context<'_>, group: &[Root], lines: &mut Vec<String>) {
    let blocked: u64 = group.iter().map(|root| root.blocked).sum();
    let at_least = if group.iter().any(|root| root.cut) { "At least " } else { "" };
    let behind = |root: &Root| match root.blocked - root.direct.min(root.blocked) {
        0 => String::new(),
        behind => format!(" ({} directly, {behind} behind those)", root.direct),
    };
    let clients = wait(blocked);
    match group {
        [root] => {
            let oldest = long(root.shown.oldest_wait_ms());
            lines.push(format!("{at_least}{clients} for {}{}, the longest for {oldest}.", quoted(&root.name), behind(root)));
        }
        _ => {
            let names: Vec<String> = group.iter().map(|root| format!("{}{}", quoted(&root.name), behind(root))).collect();
            lines.push(format!(
                "{at_least}{clients} for {} of one holder: {}.",
                counted(group.len() as u64, "lock"),
                names.join(", ")
            ));
        }
    }
    for root in group {
        let Some(holder) = root.shown.holders().first() else {
            lines.push(format!("    {}", root.shown.without_holder(&quoted(&root.name), cx.now)));
            continue;
        };
        let others = match root.shown.holding() - 1 {
            0 => String::new(),
            others => format!(", and {}, which LOCK.INFO shows", counted(others, "other holder")),
        };
        lines.push(format!("    {} is held by {}{others}.", quoted(&root.name), holder.in_words(cx.now)));
        let (name, token) = (quoted(&root.name), holder.token());
        lines.push(format!("    To end that grant and no later one: LOCK.BREAK {name} TOKEN {token} REASON \"why\""));
    }
}
