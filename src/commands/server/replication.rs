//! Replication commands. There is no replication: these are the replies of a master without replicas.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::engine::command::{Command, Flags, Group};
use crate::engine::context::Context;

const ROW: Command = Command {
    refused: "Replication is not supported.",
    group: Group::Server,
    flags: Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::STALE),
    ..Command::DEFAULT
};

const REPLICA_OF: Command = Command {
    arity: 3,
    flags: ROW.flags.union(Flags::NO_ASYNC_LOADING),
    handler: replicaof,
    refused: "",
    syntax: "<host port:integer | NO ONE>",
    ..ROW
};

const STREAM: Command = Command {
    flags: Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::NO_ASYNC_LOADING).union(Flags::NO_MULTI),
    handler: |_, _| Err(Error::NO_REPLICATION),
    ..ROW
};

/// The rows.
pub const COMMANDS: &[Command] = &[
    Command {
        name: "replicaof",
        since: "5.0.0",
        summary: "Accepts NO ONE, which is the state of the server. Refuses to follow another server.",
        ..REPLICA_OF
    },
    Command {
        name: "slaveof",
        summary: "Accepts NO ONE, which is the state of the server. Refuses to follow another server. The old name of REPLICAOF.",
        ..REPLICA_OF
    },
    Command {
        name: "failover",
        arity: -1,
        since: "6.2.0",
        summary: "Refused: there is no replica.",
        syntax: "[TO host port:integer [FORCE]] [ABORT] [TIMEOUT milliseconds]",
        handler: failover,
        ..ROW
    },
    Command { name: "sync", summary: "Refused: replication is not supported.", ..STREAM },
    Command {
        name: "psync",
        arity: -3,
        since: "2.8.0",
        summary: "Refused: replication is not supported.",
        syntax: "replicationid offset",
        ..STREAM
    },
    Command {
        name: "replconf",
        arity: -1,
        since: "3.0.0",
        flags: ROW.flags.union(Flags::LOADING).union(Flags::ALLOW_BUSY),
        syntax: "[argument [argument ...]]",
        summary: "Refused: replication is not supported.",
        handler: |_, _| Err(Error::NO_REPLICATION),
        ..ROW
    },
];

fn replicaof(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    if cx.engine.in_cluster() {
        return Err(Error::new("ERR REPLICAOF not allowed in cluster mode."));
    }
    if args[1].eq_ignore_ascii_case(b"no") && args[2].eq_ignore_ascii_case(b"one") {
        cx.reply.ok();
        return Ok(());
    }
    parse_i64(args[2]).filter(|port| (0..=65_535).contains(port)).ok_or(Error::new("ERR Invalid master port"))?;
    Err(Error::NO_REPLICATION)
}

fn failover(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    if cx.engine.in_cluster() {
        return Err(Error::new("ERR FAILOVER not allowed in cluster mode. Use CLUSTER FAILOVER command instead."));
    }
    if let [_, word] = args
        && word.eq_ignore_ascii_case(b"abort")
    {
        return Err(Error::new("ERR No failover in progress."));
    }
    let (mut to, mut timeout, mut force) = (false, false, false);
    let mut rest = &args[1..];
    while let [word, values @ ..] = rest {
        let is = |known: &str| word.eq_ignore_ascii_case(known.as_bytes());
        rest = match values {
            [ms, after @ ..] if is("timeout") && !timeout => {
                if parse_i64(ms).ok_or(Error::NOT_INTEGER)? <= 0 {
                    return Err(Error::new("ERR FAILOVER timeout must be greater than 0"));
                }
                timeout = true;
                after
            }
            [_, port, after @ ..] if is("to") && !to => {
                parse_i64(port).ok_or(Error::NOT_INTEGER)?;
                to = true;
                after
            }
            after if is("force") && !force => {
                force = true;
                after
            }
            _ => return Err(Error::SYNTAX),
        };
    }
    Err(Error::new("ERR FAILOVER requires connected replicas."))
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn a_server_alone_follows_nobody_and_hands_over_to_nobody() {
        let refusal = "-ERR Portcullis does not support replication";
        Harness::new().script(&[
            ("REPLICAOF NO ONE", "+OK"),
            ("slaveof no one", "+OK"),
            ("REPLICAOF 127.0.0.1 6379", refusal),
            ("REPLICAOF 127.0.0.1 x", "-ERR Invalid master port"),
            ("PSYNC ? -1", refusal),
            ("SYNC", refusal),
            ("REPLCONF listening-port 1", refusal),
            ("FAILOVER", "-ERR FAILOVER requires connected replicas."),
            ("FAILOVER TO h 1 FORCE TIMEOUT 5", "-ERR FAILOVER requires connected replicas."),
            ("FAILOVER TIMEOUT 0", "-ERR FAILOVER timeout must be greater than 0"),
            ("FAILOVER ABORT", "-ERR No failover in progress."),
            ("FAILOVER ABORT TO", "-ERR syntax error"),
            ("FAILOVER now", "-ERR syntax error"),
        ]);
    }
}
