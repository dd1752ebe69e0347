//! What a server that is no cluster node answers to cluster clients: Redis's refusal, by which they know.

use crate::engine::command::{Categories, Command, Flags, Group};
use crate::engine::context::Context;
use crate::engine::error::{Error, Result};

const ANY_TIME: Flags = Flags::LOADING.union(Flags::STALE);

const NONDETERMINISTIC: &[&str] = &["nondeterministic_output"];

/// What all rows here have in common.
const ROW: Command = Command { flags: Flags::STALE, group: Group::Cluster, since: "3.0.0", handler: refuse, ..Command::DEFAULT };

/// A subcommand without arguments.
const fn sub(name: &'static str, since: &'static str, tips: &'static [&'static str], summary: &'static str) -> Command {
    Command { name, arity: 2, since, tips, summary, ..ROW }
}

/// The rows.
pub const COMMANDS: &[Command] = &[
    Command {
        name: "cluster",
        arity: -2,
        summary: "Refused: the server is no cluster node.",
        flags: Flags::empty(),
        subcommands: &[
            Command { flags: ANY_TIME, ..sub("help", "5.0.0", &[], "Refused, as all of CLUSTER is.") },
            sub("info", "3.0.0", NONDETERMINISTIC, "Would tell how the cluster is."),
            Command {
                name: "keyslot",
                arity: 3,
                summary: "Would give the slot of a key.",
                complexity: "O(N) where N is the number of bytes in the key.",
                syntax: "key:string",
                ..ROW
            },
            sub("myid", "3.0.0", &[], "Would give the node's name."),
            sub("nodes", "3.0.0", NONDETERMINISTIC, "Would list the nodes."),
            Command { flags: ANY_TIME, ..sub("shards", "7.0.0", NONDETERMINISTIC, "Would list the slots by shard.") },
            Command { flags: ANY_TIME, ..sub("slots", "3.0.0", NONDETERMINISTIC, "Would list the slots by node.") },
        ],
        ..ROW
    },
    Command {
        name: "readonly",
        flags: Flags::FAST.union(ANY_TIME),
        categories: Categories::CONNECTION,
        summary: "Refused: would let this connection read from a replica.",
        ..ROW
    },
    Command {
        name: "readwrite",
        flags: Flags::FAST.union(ANY_TIME),
        categories: Categories::CONNECTION,
        summary: "Refused: would end what READONLY began.",
        ..ROW
    },
];

fn refuse(_: &mut Context<'_>, _: &[&[u8]]) -> Result {
    Err(Error::NO_CLUSTER)
}
