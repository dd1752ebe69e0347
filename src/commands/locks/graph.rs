//! `LOCK.GRAPH`: which lock blocks which, of those that the user may see.

use crate::base::error::{Error, Result};
use crate::base::ids::{Key, SessionId};
use crate::base::time::Now;
use crate::commands::locks::info::{Holder, Most, READ, Shown, shown, write_holders};
use crate::engine::Engine;
use crate::engine::command::options::{integer, option};
use crate::engine::command::{Command, Flags, Keys, row, rows};
use crate::engine::context::Context;
use crate::engine::jobs::{ReplyKind, Work};
use crate::engine::users::sight::Sight;
use crate::lock::graph::forest::{Among, Asked, Elsewhere, Forest, Node};
use crate::resp::reply::{Sink, WireReply};

/// Number of nodes that are returned without `COUNT`.
const COUNT: usize = 100;
/// Maximum number of nodes.
const COUNT_MAX: usize = 10_000;
/// Maximum number of holders of a node that are shown, and that are followed from the lock that is asked for.
const MOST: Most = Most { holders: 100, waiters: 0 };
/// Number of holders of one node whose writing takes as long as all else of a node.
const NODE: i64 = 8;

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("lock.graph", graph, "[name] [COUNT count]",
    "Returns which locks block which, as trees: first the locks whose holders wait for nothing, with all that they block below them. With a name, the paths to that lock and what is below it. Says which holders wait in another database or for a lock that the user may not read, and whether there may be more than it shows. Shows only locks that the user may read.";
    // The name is one of those that may be shown, not a key that is accessed: to a user who may not read it, it is no lock.
    flags: Flags::READONLY, keys: Keys::None,
    complexity: "O(N) for N holders and waiters, of which at most 100,000 are followed", ..READ)]);

fn graph(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (name, rest) = match &args[1..] {
        options @ [word, _] if word.eq_ignore_ascii_case(b"COUNT") => (None, options),
        [name, rest @ ..] => (Some(*name), rest),
        [] => (None, &[][..]),
    };
    let count = match option(rest, "COUNT")? {
        None => COUNT,
        Some(count) => {
            let count = usize::try_from(integer(count)?).ok().filter(|count| (1..=COUNT_MAX).contains(count));
            count.ok_or_else(|| Error::new(format!("ERR count must be between 1 and {COUNT_MAX}")))?
        }
    };
    let sight = cx.sight(args);
    let asked = match name {
        None => None,
        Some(name) => match sight.sees(name).then(|| shown(cx.engine, cx.now, cx.key(name), MOST)).flatten() {
            Some(shown) => Some((name, shown.holders().iter().map(Holder::owner_of_user).collect::<Vec<_>>())),
            None => {
                cx.reply.array(0);
                return Ok(());
            }
        },
    };
    let asked = asked.map(|(name, holders)| Asked { name: name.into(), holders });
    let mut graph = Graph { forest: Forest::new(asked, count), sight, db: cx.db, nodes: None };
    let Some(locks) = &cx.engine.keyspace().changes.locks else { return Ok(()) };
    let len = locks.queues.contended() + locks.queues.waiters();
    if cx.may_start_job(len) {
        cx.start_job(graph);
        return Ok(());
    }
    while !graph.find(cx.engine, u32::MAX) {}
    cx.reply.array(graph.forest.nodes().len());
    while !graph.write(cx.engine, cx.now, u32::MAX, cx.reply) {}
    Ok(())
}

/// The work of `LOCK.GRAPH`.
struct Graph {
    forest: Forest,
    sight: Sight,
    db: u32,
    /// The nodes that are still to be written, once all are found, and the number of all.
    nodes: Option<(std::vec::IntoIter<Node>, usize)>,
}

impl Graph {
    /// Looks at about so many holders and waiters. Returns whether all nodes are found.
    fn find(&mut self, engine: &Engine, steps: u32) -> bool {
        let Some(locks) = &engine.keyspace().changes.locks else { return true };
        self.forest.go_on(&locks.queues, Among { db: self.db, sees: &|name| self.sight.sees(name) }, steps)
    }

    /// Writes nodes with about so many holders. Returns whether those were the last.
    fn write(&mut self, engine: &mut Engine, now: Now, count: u32, reply: &mut dyn Sink) -> bool {
        let forest = &mut self.forest;
        let (nodes, _) = self.nodes.get_or_insert_with(|| {
            let nodes = forest.take_nodes();
            let len = nodes.len();
            (nodes.into_iter(), len)
        });
        let mut left = i64::from(count);
        while left > 0
            && let Some(node) = nodes.next()
        {
            let shown = shown(engine, now, Key { db: self.db, name: &node.name }, MOST);
            left -= NODE + shown.as_ref().map_or(0, |shown| shown.holders().len() as i64);
            write_node(reply, now, &node, shown.as_ref(), forest.is_partial());
        }
        nodes.len() == 0
    }
}

impl Work for Graph {
    fn go_on(&mut self, engine: &mut Engine, now: Now, id: SessionId, count: u32, reply: &mut Vec<u8>) -> bool {
        if self.nodes.is_none() && !self.find(engine, count) {
            return false;
        }
        let protocol = engine.sessions()[id].protocol;
        self.write(engine, now, count, &mut WireReply::new(reply, protocol))
    }

    fn kind(&self) -> ReplyKind {
        ReplyKind::Array(self.nodes.as_ref().map_or(0, |(_, len)| *len))
    }
}

fn write_node(reply: &mut dyn Sink, now: Now, node: &Node, shown: Option<&Shown>, is_partial: bool) {
    reply.map(10);
    reply.entry("depth", u64::from(node.depth));
    reply.entry("name", &node.name);
    reply.entry("via", node.via.as_ref());
    reply.entry("waiters", node.waiters);
    reply.entry("oldest-wait", shown.map_or(0, Shown::oldest_wait_ms));
    reply.entry("blocked", node.blocked);
    match shown {
        Some(shown) => write_holders(reply, now, shown),
        None => {
            reply.bulk(b"holders");
            reply.array(0);
        }
    }
    reply.entry("cut", node.cut);
    reply.bulk(b"elsewhere");
    match &node.elsewhere {
        Some(Elsewhere { lock, owner }) => {
            let (db, name) = lock.as_ref().map(|key| (u64::from(key.db), &key.name)).unzip();
            reply.map(3);
            reply.entry("db", db);
            reply.entry("name", name);
            reply.entry("owner", owner);
        }
        None => reply.null(),
    }
    reply.entry("partial", is_partial);
}
