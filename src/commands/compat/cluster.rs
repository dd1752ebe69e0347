//! CLUSTER, READONLY, READWRITE, ASKING: with `cluster-enabled`, the replies of a cluster of one shard; otherwise Redis's refusal,
//! from which clients learn that there is no cluster.
//!
//! The shard is this node alone, or the replicated nodes with their leader as the master. `cluster_nodes.rs` shows them.

use crate::base::error::{Error, Result};
use crate::commands::compat::cluster_nodes::{self as nodes, check_node_id, reply_in_cluster};
use crate::commands::reference::help;
use crate::engine::cluster::{SLOTS, key_slot};
use crate::engine::command::options::integer;
use crate::engine::command::{Categories, Command, Flags, Group, Traits, row, rows, subrows};
use crate::engine::context::Context;

const ANY_TIME: Flags = Flags::LOADING.union(Flags::STALE);
const ADMIN: Flags = Flags::ADMIN.union(Flags::STALE);
const CHANGE: Flags = ADMIN.union(Flags::NO_ASYNC_LOADING);

const NONDETERMINISTIC: &[&str] = &["nondeterministic_output"];

/// Why subcommands that change the cluster are refused.
const ONE_NODE: &str = "The cluster is one shard that owns all slots: slots and nodes cannot be changed.";

const ROW: Command = Command { flags: Flags::STALE, group: Group::Cluster, since: "3.0.0", handler: refuse, ..Command::DEFAULT };

/// A subcommand that returns information.
const fn query(name: &'static str, syntax: &'static str, summary: &'static str, handler: Handler) -> Command {
    Command { name, syntax, summary, handler, ..ROW }
}

/// A subcommand that would change the cluster.
const fn change(name: &'static str, syntax: &'static str, summary: &'static str) -> Command {
    Command { name, flags: CHANGE, syntax, summary, refused: ONE_NODE, handler: refuse, ..ROW }
}

type Handler = crate::engine::command::Handler;

const OF_NODES: &str = "O(N) where N is the total number of Cluster nodes";

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("cluster", "A container for cluster commands. The cluster consists of this server, or of the replicated ones.";
        complexity: "Depends on subcommand.", flags: Flags::empty(), subcommands: &subrows([
            Command {
                complexity: "O(N) where N is the total number of hash slot arguments",
                ..change("addslots", "slot:integer [slot:integer ...]", "Refused: all slots are assigned.")
            },
            Command {
                since: "7.0.0",
                complexity: "O(N) where N is the total number of the slots between the start slot and end slot arguments.",
                ..change(
                    "addslotsrange",
                    "start-slot:integer end-slot:integer [start-slot:integer end-slot:integer ...]",
                    "Refused: all slots are assigned.",
                )
            },
            Command {
                tips: NONDETERMINISTIC,
                refused: "",
                handler: |cx, _| reply_in_cluster(cx, |cx| cx.reply.simple("STILL 1")),
                ..change(
                    "bumpepoch",
                    "",
                    "Advances the configuration epoch. It stays as it is, because no other node has a higher one.",
                )
            },
            Command {
                flags: ADMIN,
                tips: NONDETERMINISTIC,
                complexity: "O(N) where N is the number of failure reports",
                ..query(
                    "count-failure-reports",
                    "node-id",
                    "Counts the active failure reports about a node: none.",
                    count_failure_reports,
                )
            },
            Command {
                complexity: "O(1)",
                ..query("countkeysinslot", "slot:integer", "Returns the number of keys in a slot.", count_keys_in_slot)
            },
            Command {
                complexity: "O(N) where N is the total number of hash slot arguments",
                ..change("delslots", "slot:integer [slot:integer ...]", "Refused: all slots stay assigned.")
            },
            Command {
                since: "7.0.0",
                complexity: "O(N) where N is the total number of the slots between the start slot and end slot arguments.",
                ..change(
                    "delslotsrange",
                    "start-slot:integer end-slot:integer [start-slot:integer end-slot:integer ...]",
                    "Refused: all slots stay assigned.",
                )
            },
            Command {
                refused: "",
                handler: nodes::failover,
                ..change(
                    "failover",
                    "[FORCE | TAKEOVER]",
                    "Makes a replicated node campaign for leadership. Refused without replicas.",
                )
            },
            change("flushslots", "", "Refused: all slots stay assigned."),
            Command { handler: forget, ..change("forget", "node-id", "Refused: the nodes cannot be changed.") },
            Command {
                tips: NONDETERMINISTIC,
                complexity: "O(N) where N is the number of requested keys",
                ..query("getkeysinslot", "slot:integer count", "Returns keys in a slot.", get_keys_in_slot)
            },
            Command {
                handler: |cx, args| if cx.engine.in_cluster() { help::from_rows(cx, args) } else { Err(Error::NO_CLUSTER) },
                ..help::row(Group::Cluster, "5.0.0")
            },
            Command { tips: NONDETERMINISTIC, ..query("info", "", "Returns the state of the cluster.", nodes::info) },
            Command {
                complexity: "O(N) where N is the number of bytes in the key.",
                ..query("keyslot", "key:string", "Returns the slot of a key.", key_slot_of)
            },
            Command {
                since: "7.0.0",
                tips: NONDETERMINISTIC,
                complexity: OF_NODES,
                ..query("links", "", "Returns the connections to other nodes: none.", |cx, _| {
                    reply_in_cluster(cx, |cx| cx.reply.array(0))
                })
            },
            change("meet", "ip port:integer [cluster-bus-port:integer]", "Refused: the nodes cannot be changed."),
            query("myid", "", "Returns the ID of the node.", nodes::my_id),
            Command {
                since: "7.2.0",
                tips: NONDETERMINISTIC,
                ..query("myshardid", "", "Returns the ID of the node's shard.", nodes::my_shard_id)
            },
            Command {
                tips: NONDETERMINISTIC,
                complexity: OF_NODES,
                traits: Traits::ASKS_FOR_NODES,
                ..query("nodes", "", "Returns the nodes and their slots as text.", nodes::nodes)
            },
            Command {
                flags: ADMIN,
                since: "5.0.0",
                tips: NONDETERMINISTIC,
                complexity: "O(N) where N is the number of replicas.",
                ..query("replicas", "node-id", "Returns the replicas of a node.", nodes::replicas)
            },
            Command { handler: replicate, ..change("replicate", "node-id", "Refused: the nodes elect their leader.") },
            Command {
                flags: ADMIN.union(Flags::NOSCRIPT),
                complexity: "O(N) where N is the number of known nodes. The command may execute a FLUSHALL as a side effect.",
                ..change("reset", "[HARD | SOFT]", "Refused: the cluster cannot be changed.")
            },
            change("saveconfig", "", "Refused: there is no configuration file of nodes."),
            change("set-config-epoch", "config-epoch:integer", "Refused: the node has a configuration epoch."),
            change(
                "setslot",
                "slot:integer <IMPORTING importing | MIGRATING migrating | NODE node | STABLE>",
                "Refused: all slots stay assigned.",
            ),
            Command {
                flags: ANY_TIME,
                since: "7.0.0",
                tips: NONDETERMINISTIC,
                complexity: OF_NODES,
                traits: Traits::ASKS_FOR_NODES,
                ..query("shards", "", "Returns the shards with their slots and nodes.", nodes::shards)
            },
            Command {
                flags: ADMIN,
                tips: NONDETERMINISTIC,
                complexity: "O(N) where N is the number of replicas.",
                ..query("slaves", "node-id", "Returns the replicas of a node.", nodes::replicas)
            },
            Command {
                flags: ANY_TIME,
                tips: NONDETERMINISTIC,
                complexity: OF_NODES,
                traits: Traits::ASKS_FOR_NODES,
                ..query("slots", "", "Returns the ranges of slots with their nodes.", nodes::slots)
            },
        ]), ..ROW),
    row!("readonly", accept,
        "Enables reading from a replica for the connection. It has no effect: only the master answers reads.";
        flags: Flags::FAST.union(ANY_TIME), categories: Categories::CONNECTION, ..ROW),
    row!("readwrite", accept, "Disables reading from a replica for the connection.";
        flags: Flags::FAST.union(ANY_TIME), categories: Categories::CONNECTION, ..ROW),
    row!("asking", accept, "Announces that the client follows an ASK redirection. There are none, so it has no effect.";
        flags: Flags::FAST, categories: Categories::CONNECTION, ..ROW),
]);

fn accept(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    reply_in_cluster(cx, |cx| cx.reply.ok())
}

/// The handler of subcommands that would change the cluster.
fn refuse(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    Err(match cx.engine.in_cluster() {
        false => Error::NO_CLUSTER,
        true if cx.engine.replication().is_on() => Error::ONE_SHARD,
        true => Error::ONE_NODE,
    })
}

fn key_slot_of(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    reply_in_cluster(cx, |cx| cx.reply.integer(i64::from(key_slot(args[2]))))
}

fn count_keys_in_slot(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(!cx.engine.in_cluster(), Error::NO_CLUSTER);
    let slot = integer(args[2])?;
    fail_if!(!(0..i64::from(SLOTS)).contains(&slot), Error::new("ERR Invalid slot"));
    cx.engine.check_leads(cx.session)?;
    let count = cx.db().slot_len(slot as u16);
    cx.reply.integer(count as i64);
    Ok(())
}

fn get_keys_in_slot(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(!cx.engine.in_cluster(), Error::NO_CLUSTER);
    let (slot, count) = (integer(args[2])?, integer(args[3])?);
    fail_if!(!(0..i64::from(SLOTS)).contains(&slot) || count < 0, Error::new("ERR Invalid slot or number of keys"));
    cx.engine.check_leads(cx.session)?;
    let mut keys: Vec<Vec<u8>> = Vec::new();
    if count > 0 {
        cx.db().visit_slot(slot as u16, |entry| {
            keys.push(entry.key().to_vec());
            (keys.len() as i64) < count
        });
    }
    cx.reply.array(keys.len());
    keys.iter().for_each(|key| cx.reply.bulk(key));
    Ok(())
}

fn count_failure_reports(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_node_id(cx, args[2])?;
    cx.reply.integer(0);
    Ok(())
}

fn forget(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    if !check_node_id(cx, args[2])?.me {
        return refuse(cx, args);
    }
    Err(Error::new("ERR I tried hard but I can't forget myself..."))
}

fn replicate(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    if !check_node_id(cx, args[2])?.me {
        return refuse(cx, args);
    }
    Err(Error::new("ERR Can't replicate myself"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "cluster_tests.rs"]
mod tests;
