//! `LOCK.GRAPH`: which lock blocks which, of those that the user may see.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::commands::locks::info::{Holder, Most, READ, Shown, field, field_if, shown, text, write_holders};
use crate::engine::command::{Command, Flags, Keys};
use crate::engine::context::Context;
use crate::engine::users::sight::Sight;
use crate::lock::grant::Owner;
use crate::lock::graph::forest::{Among, Asked, Node, Trees, forest};
use crate::lock::queue::Queues;

/// Number of nodes that are returned without `COUNT`.
const COUNT: usize = 100;
/// Maximum number of nodes.
const COUNT_MAX: usize = 10_000;
/// Maximum number of holders of a node that are shown, and that are followed from the lock that is asked for.
const MOST: Most = Most { holders: 100, waiters: 0 };

/// The rows.
pub const COMMANDS: &[Command] = &[Command {
    name: "lock.graph",
    arity: -1,
    flags: Flags::READONLY,
    // The name is one of those that may be shown, not a key that is accessed: to a user who may not read it, it is no lock.
    keys: Keys::None,
    summary: "Returns which locks block which, as trees: first the locks whose holders wait for nothing, with all that they block below them. With a name, the paths to that lock and what is below it. Says which holders wait in another database or for a lock that the user may not read, and whether there may be more than it shows. Shows only locks that the user may read.",
    complexity: "O(N) for N holders and waiters, of which at most 100,000 are followed",
    syntax: "[name] [COUNT count]",
    handler: graph,
    ..READ
}];

fn graph(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let is_count = |words: &[&[u8]]| matches!(words, [word, _] if word.eq_ignore_ascii_case(b"COUNT"));
    let (name, rest) = match &args[1..] {
        words if is_count(words) => (None, words),
        [name, rest @ ..] => (Some(*name), rest),
        [] => (None, &[][..]),
    };
    let count = match rest {
        [] => COUNT,
        [_, count] if is_count(rest) => {
            let count = parse_i64(count).ok_or(Error::NOT_INTEGER)?;
            let count = usize::try_from(count).ok().filter(|count| (1..=COUNT_MAX).contains(count));
            count.ok_or_else(|| Error::new(format!("ERR count must be between 1 and {COUNT_MAX}")))?
        }
        _ => return Err(Error::SYNTAX),
    };
    let sight = cx.sight(args);
    let asked = match name {
        None => None,
        Some(name) => match sight.sees(name).then(|| shown(cx.engine, cx.now, (cx.db, name), MOST)).flatten() {
            Some(shown) => Some((name, shown.holders().iter().map(Holder::owner_of_user).collect::<Vec<_>>())),
            None => {
                cx.reply.array(0);
                return Ok(());
            }
        },
    };
    let (now, db) = (cx.now, cx.db);
    let Some(locks) = &cx.engine.keyspace.changes.locks else { return Ok(()) };
    let asked = asked.as_ref().map(|(name, holders)| Asked { name, holders });
    let among = Among { db, sees: &|name| sight.sees(name) };
    let Trees { nodes, is_partial } = forest(&locks.queues, among, asked, count);
    let named: Vec<Named> = nodes.into_iter().map(|node| Named::of(&locks.queues, &sight, node, name)).collect();
    let all: Vec<(Option<Shown>, _)> =
        named.into_iter().map(|named| (shown(cx.engine, cx.now, (cx.db, &named.name), MOST), named)).collect();
    cx.reply.array(all.len());
    for (shown, Named { name, via, waiters, elsewhere, node }) in &all {
        let reply = &mut *cx.reply;
        reply.map(10);
        field(reply, "depth", u64::from(node.depth));
        text(reply, "name", name);
        reply.bulk(b"via");
        match via {
            Some(via) => reply.bulk(via),
            None => reply.null(),
        }
        field(reply, "waiters", *waiters);
        field(reply, "oldest-wait", shown.as_ref().map_or(0, Shown::oldest_wait_ms));
        field(reply, "blocked", node.blocked);
        match shown {
            Some(shown) => write_holders(reply, now, shown),
            None => {
                reply.bulk(b"holders");
                reply.array(0);
            }
        }
        reply.bulk(b"cut");
        reply.boolean(node.cut);
        reply.bulk(b"elsewhere");
        match elsewhere {
            Some(Elsewhere { lock, owner }) => {
                let (db, name) = lock.as_ref().map(|(db, name)| (u64::from(*db), name)).unzip();
                reply.map(3);
                field_if(reply, "db", db);
                reply.bulk(b"name");
                match name {
                    Some(name) => reply.bulk(name),
                    None => reply.null(),
                }
                text(reply, "owner", owner);
            }
            None => reply.null(),
        }
        reply.bulk(b"partial");
        reply.boolean(is_partial);
    }
    Ok(())
}

/// A node with the names of what it refers to.
struct Named {
    name: Vec<u8>,
    /// The owner that holds the lock and waits for the one above.
    via: Option<Owner>,
    waiters: u64,
    elsewhere: Option<Elsewhere>,
    node: Node,
}

/// A lock that is not in the tree, and the holder that waits for it.
struct Elsewhere {
    /// Its database and its name, if it is seen.
    lock: Option<(u32, Vec<u8>)>,
    owner: Owner,
}

impl Named {
    /// `asked`: the name of a lock without a queue.
    fn of(queues: &Queues, sight: &Sight, node: Node, asked: Option<&[u8]>) -> Named {
        let queue = node.queue.and_then(|queue| queues.get(queue));
        let owner = |number: u32| queues.owner(number).map(|owner| owner.name.clone());
        let elsewhere = node.elsewhere.and_then(|(queue, by)| {
            let queue = queues.get(queue)?;
            let lock = sight.sees(&queue.name).then(|| (queue.db, queue.name.to_vec()));
            Some(Elsewhere { lock, owner: owner(by)? })
        });
        Named {
            name: queue.map(|queue| queue.name.to_vec()).or_else(|| asked.map(<[u8]>::to_vec)).unwrap_or_default(),
            via: node.via.and_then(owner),
            waiters: queue.map_or(0, |queue| u64::from(queue.len)),
            elsewhere,
            node,
        }
    }
}
