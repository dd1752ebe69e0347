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

const NONDETERMINISTIC: &[&str] = &["nondeterministic_output"];

/// Why subcommands that change the cluster are refused.
const ONE_NODE: &str = "The cluster is one shard that owns all slots: slots and nodes cannot be changed.";

const ROW: Command = Command { flags: Flags::STALE, group: Group::Cluster, since: "3.0.0", handler: refuse, ..Command::DEFAULT };

/// What subcommands that would change the cluster have in common.
const CHANGE: Command = Command { flags: ADMIN.union(Flags::NO_ASYNC_LOADING), refused: ONE_NODE, ..ROW };

const OF_NODES: &str = "O(N) where N is the total number of Cluster nodes";
const OF_REPLICAS: &str = "O(N) where N is the number of replicas.";
const OF_RANGES: &str = "O(N) where N is the total number of the slots between the start slot and end slot arguments.";

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("cluster", "A container for cluster commands. The cluster consists of this server, or of the replicated ones.";
        complexity: "Depends on subcommand.", flags: Flags::empty(), subcommands: &subrows([
            row!("addslots", refuse, "slot:integer [slot:integer ...]", "Refused: all slots are assigned.";
                complexity: "O(N) where N is the total number of hash slot arguments", ..CHANGE),
            row!("addslotsrange", refuse, "start-slot:integer end-slot:integer [start-slot:integer end-slot:integer ...]",
                "Refused: all slots are assigned."; since: "7.0.0", complexity: OF_RANGES, ..CHANGE),
            row!("bumpepoch", |cx, _| reply_in_cluster(cx, |cx| cx.reply.simple("STILL 1")),
                "Advances the configuration epoch. It stays as it is, because no other node has a higher one.";
                tips: NONDETERMINISTIC, refused: "", ..CHANGE),
            row!("count-failure-reports", count_failure_reports, "node-id",
                "Counts the active failure reports about a node: none.";
                flags: ADMIN, tips: NONDETERMINISTIC, complexity: "O(N) where N is the number of failure reports", ..ROW),
            row!("countkeysinslot", count_keys_in_slot, "slot:integer", "Returns the number of keys in a slot.";
                complexity: "O(1)", ..ROW),
            row!("delslots", refuse, "slot:integer [slot:integer ...]", "Refused: all slots stay assigned.";
                complexity: "O(N) where N is the total number of hash slot arguments", ..CHANGE),
            row!("delslotsrange", refuse, "start-slot:integer end-slot:integer [start-slot:integer end-slot:integer ...]",
                "Refused: all slots stay assigned."; since: "7.0.0", complexity: OF_RANGES, ..CHANGE),
            row!("failover", nodes::failover, "[FORCE | TAKEOVER]",
                "Makes a replicated node campaign for leadership. Refused without replicas."; refused: "", ..CHANGE),
            row!("flushslots", "Refused: all slots stay assigned."; ..CHANGE),
            row!("forget", forget, "node-id", "Refused: the nodes cannot be changed."; ..CHANGE),
            row!("getkeysinslot", get_keys_in_slot, "slot:integer count", "Returns keys in a slot.";
                tips: NONDETERMINISTIC, complexity: "O(N) where N is the number of requested keys", ..ROW),
            Command {
                handler: |cx, args| if cx.engine.in_cluster() { help::from_rows(cx, args) } else { Err(Error::NO_CLUSTER) },
                ..help::row(Group::Cluster, "5.0.0")
            },
            row!("info", nodes::info, "Returns the state of the cluster."; tips: NONDETERMINISTIC, ..ROW),
            row!("keyslot", |cx, args| reply_in_cluster(cx, |cx| cx.reply.integer(key_slot(args[2]).into())), "key:string",
                "Returns the slot of a key."; complexity: "O(N) where N is the number of bytes in the key.", ..ROW),
            row!("links", |cx, _| reply_in_cluster(cx, |cx| cx.reply.array(0)), "Returns the connections to other nodes: none.";
                since: "7.0.0", tips: NONDETERMINISTIC, complexity: OF_NODES, ..ROW),
            row!("meet", refuse, "ip port:integer [cluster-bus-port:integer]", "Refused: the nodes cannot be changed."; ..CHANGE),
            row!("myid", nodes::my_id, "Returns the ID of the node."; ..ROW),
            row!("myshardid", nodes::my_shard_id, "Returns the ID of the node's shard.";
                since: "7.2.0", tips: NONDETERMINISTIC, ..ROW),
            row!("nodes", nodes::nodes, "Returns the nodes and their slots as text.";
                tips: NONDETERMINISTIC, complexity: OF_NODES, traits: Traits::ASKS_FOR_NODES, ..ROW),
            row!("replicas", nodes::replicas, "node-id", "Returns the replicas of a node.";
                flags: ADMIN, since: "5.0.0", tips: NONDETERMINISTIC, complexity: OF_REPLICAS, ..ROW),
            row!("replicate", replicate, "node-id", "Refused: the nodes elect their leader."; ..CHANGE),
            row!("reset", refuse, "[HARD | SOFT]", "Refused: the cluster cannot be changed.";
                flags: ADMIN.union(Flags::NOSCRIPT),
                complexity: "O(N) where N is the number of known nodes. The command may execute a FLUSHALL as a side effect.",
                ..CHANGE),
            row!("saveconfig", "Refused: there is no configuration file of nodes."; ..CHANGE),
            row!("set-config-epoch", refuse, "config-epoch:integer", "Refused: the node has a configuration epoch."; ..CHANGE),
            row!("setslot", refuse, "slot:integer <IMPORTING importing | MIGRATING migrating | NODE node | STABLE>",
                "Refused: all slots stay assigned."; ..CHANGE),
            row!("shards", nodes::shards, "Returns the shards with their slots and nodes.";
                flags: ANY_TIME, since: "7.0.0", tips: NONDETERMINISTIC, complexity: OF_NODES, traits: Traits::ASKS_FOR_NODES,
                ..ROW),
            row!("slaves", nodes::replicas, "node-id", "Returns the replicas of a node.";
                flags: ADMIN, tips: NONDETERMINISTIC, complexity: OF_REPLICAS, ..ROW),
            row!("slots", nodes::slots, "Returns the ranges of slots with their nodes.";
                flags: ANY_TIME, tips: NONDETERMINISTIC, complexity: OF_NODES, traits: Traits::ASKS_FOR_NODES, ..ROW),
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
