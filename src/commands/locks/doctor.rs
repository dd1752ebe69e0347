//! `LOCK.DOCTOR`: what everything waits for, in sentences, and the command that ends the grant.

use std::collections::BTreeSet;

use crate::base::error::Result;
use crate::base::ids::{Key, KeyBuf, SessionId};
use crate::base::time::Now;
use crate::base::words::{counted, long, pasteable};
use crate::commands::locks::info::{Holder, Most, READ, Shown, shown};
use crate::engine::Engine;
use crate::engine::command::{Command, Flags, Keys, row, rows};
use crate::engine::context::Context;
use crate::engine::jobs::{ReplyKind, Work};
use crate::engine::users::sight::Sight;
use crate::lock::graph::forest::{Among, Elsewhere, Forest, Node};
use crate::resp::reply::{Sink, WireReply};

/// Number of roots of trees that are looked at, of troubles that are told, and of locks of each.
const ROOTS: usize = 100;
const NAMED: usize = 3;
const LOCKS: usize = 3;
/// Numbers of holders and waiters of a lock that are collected.
const MOST: Most = Most { holders: 100, waiters: 0 };
/// Number of holders and waiters that are followed in the time in which one root is collected.
const ROOT: u32 = 64;

/// What this command cannot see.
const LEAKS: &str =
    "LOCK.LEAKS also lists plain keys that look like locks. Clients poll such keys, so they are not among the waiters.";

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("lock.doctor", doctor,
    "Says in sentences which locks the most clients of the database wait for, who holds them, whether those holders are connected, and which command ends their grants. Shows only locks that the user may read.";
    flags: Flags::READONLY, keys: Keys::None, complexity: "O(N) for N holders and waiters, of which at most 100,000 are followed",
    ..READ)]);

/// A lock that others wait for, and whose holders wait for nothing in this database.
struct Root {
    node: Node,
    /// Whether more wait than were followed.
    cut: bool,
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

    /// That a holder waits for a lock of another database, or for one that is not seen.
    fn elsewhere(&self) -> Option<String> {
        let Elsewhere { lock, owner } = self.node.elsewhere.as_ref()?;
        let owner = pasteable(owner);
        Some(match lock {
            Some(KeyBuf { db, name }) => {
                let lock = pasteable(name);
                format!("{owner} waits for {lock} in database {db}: LOCK.DOCTOR there says what holds it up.")
            }
            None => format!("{owner} waits for a lock that you may not see."),
        })
    }
}

fn doctor(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (forest, sight, db) = (Forest::roots(ROOTS), cx.sight(args), cx.db);
    let mut work = Doctor { forest, sight, db, nodes: None, roots: Vec::new(), tally: Tally::default(), lines: 0 };
    let Some(locks) = &cx.engine.keyspace().changes.locks else { return Ok(()) };
    let len = locks.queues.contended() + locks.queues.waiters();
    if cx.may_start_job(len) {
        cx.start_job(work);
        return Ok(());
    }
    while !work.look(cx.engine, cx.now, u32::MAX) {}
    let lines = work.lines(cx.engine, cx.now);
    cx.reply.array(lines.len());
    lines.iter().for_each(|line| cx.reply.simple(line));
    Ok(())
}

/// The work of `LOCK.DOCTOR`.
struct Doctor {
    forest: Forest,
    sight: Sight,
    db: u32,
    /// The roots of which not everything is collected, once all are found.
    nodes: Option<std::vec::IntoIter<Node>>,
    /// The locks at the roots, those with the most clients behind them first.
    roots: Vec<Root>,
    tally: Tally,
    /// Number of lines of the reply.
    lines: usize,
}

/// The waits in all databases for locks that are seen.
#[derive(Default)]
struct Tally {
    /// The next queue to look at.
    next: u32,
    waiters: u64,
    contended: u64,
    databases: BTreeSet<u32>,
}

impl Doctor {
    /// Looks at about so many holders, waiters and queues. Returns whether those were the last.
    fn look(&mut self, engine: &mut Engine, now: Now, count: u32) -> bool {
        let Some(locks) = &engine.keyspace().changes.locks else { return true };
        let Some(nodes) = &mut self.nodes else {
            if self.forest.go_on(&locks.queues, Among { db: self.db, sees: &|name| self.sight.sees(name) }, count) {
                self.nodes = Some(self.forest.take_nodes().into_iter());
            }
            return false;
        };
        for node in nodes.take((count / ROOT).max(1) as usize) {
            if let Some(shown) = shown(engine, now, Key { db: self.db, name: &node.name }, MOST) {
                let cut = node.cut || self.forest.is_partial();
                self.roots.push(Root { node, cut, shown });
            }
        }
        nodes.len() == 0 && self.count(engine, count)
    }

    /// Looks at so many queues. Returns whether those were the last.
    fn count(&mut self, engine: &Engine, count: u32) -> bool {
        let (Some(locks), tally) = (&engine.keyspace().changes.locks, &mut self.tally) else { return true };
        let end = tally.next.saturating_add(count).min(locks.queues.numbers());
        let queues = (tally.next..end).filter_map(|number| locks.queues.get(number));
        for queue in queues.filter(|queue| queue.len > 0 && self.sight.sees(&queue.name)) {
            tally.waiters += u64::from(queue.len);
            tally.contended += 1;
            tally.databases.insert(queue.db);
        }
        tally.next = end;
        end == locks.queues.numbers()
    }

    /// The reply.
    fn lines(&mut self, engine: &Engine, now: Now) -> Vec<String> {
        let Some(locks) = &engine.keyspace().changes.locks else { return Vec::new() };
        let (groups, all_waiters) = (groups(std::mem::take(&mut self.roots)), locks.queues.waiters() as u64);
        let mut lines = Vec::new();
        for group in groups.iter().take(NAMED) {
            describe(now, group, all_waiters, &mut lines);
        }
        let (waiters, contended) = match self.sight.is_all() {
            true => (all_waiters, locks.queues.contended() as u64),
            false => (self.tally.waiters, self.tally.contended),
        };
        if groups.is_empty() && !self.sight.is_all() {
            lines.push("Nobody waits for a lock in this database that you may see.".to_owned());
        } else if groups.is_empty() {
            let grants = counted(locks.held.total().grants, "grant");
            let longest = locks.held.oldest_ms().map(|since_ms| long(now.mono_ms().saturating_sub(since_ms)));
            lines.push(match longest {
                Some(longest) => {
                    format!("Nobody waits for a lock in this database. {grants} in all databases, the oldest for {longest}.")
                }
                None => "Nobody waits for a lock in this database, and no native lock is held in any.".to_owned(),
            });
        }
        if waiters > 0 {
            let in_all = format!("{} for {}", wait(waiters), counted(contended, "lock"));
            let others = self.tally.databases.iter().filter(|&&db| db != self.db);
            let others: Vec<String> = others.map(|db| format!("SELECT {db}")).collect();
            let there = if others.is_empty() { String::new() } else { format!(", also behind {}", others.join(", ")) };
            lines.push(format!(
                "In all databases {in_all}{there}. LOCK.GRAPH shows which lock blocks which, LOCK.LIST CONTENDED all of them."
            ));
        }
        lines.push(LEAKS.to_owned());
        lines
    }
}

impl Work for Doctor {
    fn go_on(&mut self, engine: &mut Engine, now: Now, id: SessionId, count: u32, reply: &mut Vec<u8>) -> bool {
        if !self.look(engine, now, count) {
            return false;
        }
        let lines = self.lines(engine, now);
        let mut reply = WireReply::new(reply, engine.sessions()[id].protocol);
        lines.iter().for_each(|line| reply.simple(line));
        self.lines = lines.len();
        true
    }

    fn kind(&self) -> ReplyKind {
        ReplyKind::Array(self.lines)
    }
}

/// Groups the locks that one connection holds for one owner: it is one cause of all their waits.
fn groups(roots: Vec<Root>) -> Vec<Vec<Root>> {
    let mut groups: Vec<Vec<Root>> = Vec::new();
    for root in roots {
        let holder = root.only_holder().map(|holder| (holder.owner(), holder.client()));
        let same = |group: &&mut Vec<Root>| {
            holder.is_some() && group[0].only_holder().map(|holder| (holder.owner(), holder.client())) == holder
        };
        if let Some(group) = groups.iter_mut().find(same) { group.push(root) } else { groups.push(vec![root]) }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.iter().map(|root| root.node.blocked).sum::<u64>()));
    groups
}

fn wait(clients: u64) -> String {
    format!("{} wait{}", counted(clients, "client"), if clients == 1 { "s" } else { "" })
}

/// `waiters`: the number of all of them.
fn describe(now: Now, group: &[Root], waiters: u64, lines: &mut Vec<String>) {
    // A client that waits for several of the locks waits once.
    let blocked = group.iter().map(|root| root.node.blocked).sum::<u64>().min(waiters);
    let at_least = if group.iter().any(|root| root.cut) { "At least " } else { "" };
    let behind = |Root { node, .. }: &Root| match node.blocked - node.waiters.min(node.blocked) {
        0 => String::new(),
        behind => format!(" ({} directly, {behind} behind those)", node.waiters),
    };
    let clients = wait(blocked);
    match group {
        [root] => {
            let oldest = long(root.shown.oldest_wait_ms());
            lines.push(format!(
                "{at_least}{clients} for {}{}, the longest for {oldest}.",
                pasteable(&root.node.name),
                behind(root)
            ));
        }
        _ => {
            let names: Vec<String> =
                group.iter().take(LOCKS).map(|root| format!("{}{}", pasteable(&root.node.name), behind(root))).collect();
            let (locks, names) = (counted(group.len() as u64, "lock"), names.join(", "));
            let oldest = long(group.iter().map(|root| root.shown.oldest_wait_ms()).max().unwrap_or(0));
            let more = if group.len() > LOCKS { " and others" } else { "" };
            lines.push(format!("{at_least}{clients} for {locks} of one holder: {names}{more}; the longest for {oldest}."));
        }
    }
    for root in group.iter().take(LOCKS) {
        let Some(holder) = root.suspect() else {
            lines.push(format!("    {}", root.shown.without_holder(&pasteable(&root.node.name), now)));
            continue;
        };
        let others = match root.shown.holding() - 1 {
            0 => String::new(),
            others => format!(", and {}, which LOCK.INFO shows", counted(others, "other holder")),
        };
        lines.push(format!("    {} is held by {}{others}.", pasteable(&root.node.name), holder.in_words(now)));
        if let Some(elsewhere) = root.elsewhere() {
            lines.push(format!("    {elsewhere}"));
        }
        let (name, token) = (pasteable(&root.node.name), holder.token());
        lines.push(format!("    To end that grant and no later one: LOCK.BREAK {name} TOKEN {token} REASON \"why\""));
    }
    if group.len() > LOCKS {
        lines.push(format!("    And {}, which LOCK.GRAPH shows.", counted((group.len() - LOCKS) as u64, "other lock")));
    }
}
