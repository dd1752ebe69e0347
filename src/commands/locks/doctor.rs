//! `LOCK.DOCTOR`: what everything waits for, in sentences, and the command that ends the grant.

use std::collections::BTreeSet;

use crate::base::error::Result;
use crate::base::words::{counted, long, pasteable};
use crate::commands::locks::info::{Holder, Most, READ, Shown, shown};
use crate::engine::command::{Command, Flags, Keys};
use crate::engine::context::Context;
use crate::engine::users::sight::Sight;
use crate::lock::graph::forest::{self, Among, Node, Trees};
use crate::lock::queue::Queue;

/// Number of roots of trees that are looked at, of troubles that are told, and of locks of each.
const ROOTS: usize = 100;
const NAMED: usize = 3;
const LOCKS: usize = 3;
/// Numbers of holders and waiters of a lock that are collected.
const MOST: Most = Most { holders: 100, waiters: 0 };

/// What this command cannot see.
const LEAKS: &str =
    "LOCK.LEAKS also lists plain keys that look like locks. Clients poll such keys, so they are not among the waiters.";

/// The rows.
pub const COMMANDS: &[Command] = &[Command {
    name: "lock.doctor",
    arity: 1,
    flags: Flags::READONLY,
    keys: Keys::None,
    summary: "Says in sentences which locks the most clients of the database wait for, who holds them, whether those holders are connected, and which command ends their grants. Shows only locks that the user may read.",
    complexity: "O(N) for N holders and waiters, of which at most 100,000 are followed",
    handler: doctor,
    ..READ
}];

/// A lock that others wait for, and whose holders wait for nothing in this database.
struct Root {
    name: Vec<u8>,
    /// Number of waiters for it, and of those and all that wait behind them.
    direct: u64,
    blocked: u64,
    /// Whether more wait than were followed.
    cut: bool,
    /// That a holder waits for a lock of another database, or for one that is not seen, in words.
    elsewhere: Option<String>,
    shown: Shown,
}

impl Root {
    /// Its holder, if it has one only.
    fn only_holder(&self) -> Option<&Holder> {
        self.shown.holders().first().filter(|_| self.shown.holding() == 1)
    }

    /// The holder to look at first: one whose connection has ended, or the one that has held it longest.
    fn suspect(&self) -> Option<&Holder> {
        let holders = self.shown.holders();
        holders.iter().find(|holder| holder.is_gone()).or(holders.first())
    }
}

fn doctor(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let sight = cx.sight(args);
    let groups = groups(roots(cx, &sight));
    let mut lines = Vec::new();
    for group in groups.iter().take(NAMED) {
        describe(cx, group, &mut lines);
    }
    let Some(locks) = &cx.engine.keyspace.changes.locks else { return Ok(()) };
    let (held, all) = (locks.held.total(), locks.queues.iter().map(|(_, queue)| queue));
    let seen: Vec<&Queue> = all.filter(|queue| queue.len > 0 && sight.sees(&queue.name)).collect();
    let (waiters, contended) = match sight.is_all() {
        true => (locks.queues.waiters() as u64, locks.queues.contended() as u64),
        false => (seen.iter().map(|queue| u64::from(queue.len)).sum(), seen.len() as u64),
    };
    if groups.is_empty() && !sight.is_all() {
        lines.push("Nobody waits for a lock in this database that you may see.".to_owned());
    } else if groups.is_empty() {
        let grants = counted(held.grants, "grant");
        let longest = locks.held.oldest_ms().map(|since_ms| long(cx.now.mono_ms().saturating_sub(since_ms)));
        lines.push(match longest {
            Some(longest) => {
                format!("Nobody waits for a lock in this database. {grants} in all databases, the oldest for {longest}.")
            }
            None => "Nobody waits for a lock in this database, and no native lock is held in any.".to_owned(),
        });
    }
    if waiters > 0 {
        let in_all = format!("{} for {}", wait(waiters), counted(contended, "lock"));
        let databases: BTreeSet<u32> = seen.iter().map(|queue| queue.db).collect();
        let others: Vec<String> = databases.into_iter().filter(|&db| db != cx.db).map(|db| format!("SELECT {db}")).collect();
        let there = if others.is_empty() { String::new() } else { format!(", also behind {}", others.join(", ")) };
        lines.push(format!(
            "In all databases {in_all}{there}. LOCK.GRAPH shows which lock blocks which, LOCK.LIST CONTENDED all of them."
        ));
    }
    lines.push(LEAKS.to_owned());
    cx.reply.array(lines.len());
    lines.iter().for_each(|line| cx.reply.simple(line));
    Ok(())
}

/// The locks at the roots, those with the most clients behind them first.
fn roots(cx: &mut Context<'_>, sight: &Sight) -> Vec<Root> {
    let Some(locks) = &cx.engine.keyspace.changes.locks else { return Vec::new() };
    let among = Among { db: cx.db, sees: &|name| sight.sees(name) };
    let Trees { nodes, is_partial } = forest::roots(&locks.queues, among, ROOTS);
    let named = |node: Node| {
        let queue = locks.queues.get(node.queue?)?;
        let elsewhere = node.elsewhere.and_then(|(other, owner)| {
            let (other, owner) = (locks.queues.get(other)?, locks.queues.owner(owner)?);
            let (owner, lock, db) = (pasteable(&owner.name), pasteable(&other.name), other.db);
            Some(match sight.sees(&other.name) {
                true => format!("{owner} waits for {lock} in database {db}: LOCK.DOCTOR there says what holds it up."),
                false => format!("{owner} waits for a lock that you may not see."),
            })
        });
        Some((queue.name.to_vec(), u64::from(queue.len), node.blocked, node.cut || is_partial, elsewhere))
    };
    let roots: Vec<_> = nodes.into_iter().filter_map(named).collect();
    let of = |(name, direct, blocked, cut, elsewhere): (Vec<u8>, _, _, _, _)| {
        let shown = shown(cx.engine, cx.now, (cx.db, &name), MOST)?;
        Some(Root { name, direct, blocked, cut, elsewhere, shown })
    };
    roots.into_iter().filter_map(of).collect()
}

/// Groups the locks that one connection holds for one owner: it is one cause of all their waits.
fn groups(roots: Vec<Root>) -> Vec<Vec<Root>> {
    let mut groups: Vec<Vec<Root>> = Vec::new();
    for root in roots {
        let holder = root.only_holder().map(|holder| (holder.owner(), holder.client()));
        let same = |group: &&mut Vec<Root>| {
            holder.is_some() && group[0].only_holder().map(|holder| (holder.owner(), holder.client())) == holder
        };
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
    // A client that waits for several of the locks waits once.
    let waiters = cx.engine.keyspace.changes.locks.as_ref().map_or(0, |locks| locks.queues.waiters() as u64);
    let blocked = group.iter().map(|root| root.blocked).sum::<u64>().min(waiters);
    let at_least = if group.iter().any(|root| root.cut) { "At least " } else { "" };
    let behind = |root: &Root| match root.blocked - root.direct.min(root.blocked) {
        0 => String::new(),
        behind => format!(" ({} directly, {behind} behind those)", root.direct),
    };
    let clients = wait(blocked);
    match group {
        [root] => {
            let oldest = long(root.shown.oldest_wait_ms());
            lines.push(format!("{at_least}{clients} for {}{}, the longest for {oldest}.", pasteable(&root.name), behind(root)));
        }
        _ => {
            let names: Vec<String> =
                group.iter().take(LOCKS).map(|root| format!("{}{}", pasteable(&root.name), behind(root))).collect();
            let (locks, names) = (counted(group.len() as u64, "lock"), names.join(", "));
            let oldest = long(group.iter().map(|root| root.shown.oldest_wait_ms()).max().unwrap_or(0));
            let more = if group.len() > LOCKS { " and others" } else { "" };
            lines.push(format!("{at_least}{clients} for {locks} of one holder: {names}{more}; the longest for {oldest}."));
        }
    }
    for root in group.iter().take(LOCKS) {
        let Some(holder) = root.suspect() else {
            lines.push(format!("    {}", root.shown.without_holder(&pasteable(&root.name), cx.now)));
            continue;
        };
        let others = match root.shown.holding() - 1 {
            0 => String::new(),
            others => format!(", and {}, which LOCK.INFO shows", counted(others, "other holder")),
        };
        lines.push(format!("    {} is held by {}{others}.", pasteable(&root.name), holder.in_words(cx.now)));
        if let Some(elsewhere) = &root.elsewhere {
            lines.push(format!("    {elsewhere}"));
        }
        let (name, token) = (pasteable(&root.name), holder.token());
        lines.push(format!("    To end that grant and no later one: LOCK.BREAK {name} TOKEN {token} REASON \"why\""));
    }
    if group.len() > LOCKS {
        lines.push(format!("    And {}, which LOCK.GRAPH shows.", counted((group.len() - LOCKS) as u64, "other lock")));
    }
}
