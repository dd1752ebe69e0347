//! SENTINEL: every replicated node answers it on its port, so that the Sentinel support of any client finds the leader.
//!
//! The one master has the name of the directive `cluster-name`. The replicas are the other nodes, and each node is a Sentinel, too.
//! A server that is not replicated knows no SENTINEL, as redis-server does.
//!
//! A node without a leader gives no address, where Redis Sentinel gives the old one until the failover is done: clients that get
//! nothing ask the next node, which may know the new leader.

use crate::base::error::{Error, Result};
use crate::base::glob;
use crate::commands::reference::help;
use crate::engine::Action;
use crate::engine::command::options::integer;
use crate::engine::command::{Command, Flags, Group, Traits, row, rows, subrows};
use crate::engine::context::Context;
use crate::engine::replication::{Node, Quorum, Role};

/// Redis Sentinel's rows are all for administrators. Here clients use their own users, and must find the leader with them, so only
/// what changes something is.
const ROW: Command = Command {
    flags: Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE).union(Flags::NO_MULTI),
    traits: Traits::REPLICATED,
    group: Group::Server,
    since: "2.8.4",
    complexity: "O(N) where N is the number of nodes",
    ..Command::DEFAULT
};
const ADMIN: Flags = ROW.flags.union(Flags::ADMIN);

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("sentinel",
    "A container for Redis Sentinel's commands, which replicated servers answer."; complexity: "Depends on subcommand.",
    subcommands: &subrows([
        row!("ckquorum", check_quorum, "master-name", "Checks whether a majority of the nodes answers."; ..ROW),
        row!("failover", failover, "master-name", "Hands leadership over, to the node that has most of the log.";
            flags: ADMIN, ..ROW),
        row!("get-master-addr-by-name", address, "master-name", "Returns the leader's host and port, if there is a leader.";
            ..ROW),
        Command {
            flags: ROW.flags,
            handler: help_if_replicated,
            traits: Traits::REPLICATED,
            ..help::row(Group::Server, "6.2.0")
        },
        row!("is-master-down-by-addr", is_down, "ip port:integer current-epoch:integer runid",
            "Checks whether the node with this address was the leader and is so no longer. There is no vote."; ..ROW),
        row!("master", master, "master-name", "Returns the state of the leader."; ..ROW),
        row!("masters", masters, "Returns the state of the leader, in a list."; ..ROW),
        row!("myid", my_id, "Returns the ID of the node."; since: "6.2.0", complexity: "O(1)", ..ROW),
        row!("replicas", replicas, "master-name", "Returns the state of the followers."; since: "5.0.0", ..ROW),
        row!("reset", reset, "pattern", "Returns whether the name matches. There is nothing to reset."; flags: ADMIN, ..ROW),
        row!("sentinels", sentinels, "master-name", "Returns the other nodes as Sentinels."; ..ROW),
        row!("slaves", replicas, "master-name", "Returns the state of the followers."; since: "2.8.0", ..ROW),
    ]), ..ROW)]);

/// Fails as for an unknown command if the server is not replicated.
fn check_replicated(cx: &Context<'_>, args: &[&[u8]]) -> Result {
    if cx.engine.replication().is_on() { Ok(()) } else { Err(Error::unknown_command(args)) }
}

/// As [`check_replicated`], and fails unless the argument is the master's name.
fn check_name(cx: &Context<'_>, args: &[&[u8]]) -> Result {
    check_replicated(cx, args)?;
    if args[2] == cx.engine.config().cluster_name.as_bytes() { Ok(()) } else { Err(Error::NO_SUCH_MASTER) }
}

fn help_if_replicated(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_replicated(cx, args)?;
    help::from_rows(cx, args)
}

fn address(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_replicated(cx, args)?;
    let tls = cx.engine.uses_tls(cx.session);
    match cx.engine.replication().leader().filter(|_| check_name(cx, args).is_ok()) {
        None => cx.reply.null_array(),
        Some(node) => {
            cx.reply.array(2);
            cx.reply.bulk(node.host.as_bytes());
            cx.reply.bulk(node.port_for(tls).to_string().as_bytes());
        }
    }
    Ok(())
}

/// The fields of a node, in the order of Redis Sentinel.
type Fields = Vec<(&'static str, String)>;

/// What a node is listed as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Master,
    Replica,
    Sentinel,
}

/// The fields of a node. Those that concern Sentinel's own connections have the values of a healthy one. Times are those since the
/// node last acknowledged something.
fn fields(cx: &Context<'_>, node: &Node, kind: Kind) -> Fields {
    let tls = cx.engine.uses_tls(cx.session);
    let replication = cx.engine.replication();
    let (id, ip, port) = (replication.name_of(node.id), node.host.clone(), node.port_for(tls).to_string());
    let is_me = node.id == replication.state().node;
    let up = if kind == Kind::Sentinel { node.link_up } else { replication.is_up(node) };
    let (name, word) = match kind {
        Kind::Master => (cx.engine.config().cluster_name.clone(), "master"),
        Kind::Replica => (format!("{ip}:{port}"), "slave"),
        Kind::Sentinel => (id.clone(), "sentinel"),
    };
    let flags = match (up, kind) {
        (true, _) => word.to_owned(),
        (false, Kind::Master) => "s_down,o_down,master,disconnected".to_owned(),
        (false, _) => format!("s_down,{word},disconnected"),
    };
    let since_ms = if is_me { 0 } else { node.lag_ms }.to_string();
    let zero = || "0".to_owned();
    let mut all: Fields = vec![
        ("name", name),
        ("ip", ip),
        ("port", port),
        ("runid", id),
        ("flags", flags),
        ("link-pending-commands", zero()),
        ("link-refcount", "1".to_owned()),
        ("last-ping-sent", if up { zero() } else { since_ms.clone() }),
        ("last-ok-ping-reply", since_ms.clone()),
        ("last-ping-reply", since_ms.clone()),
    ];
    if !up {
        all.push(("s-down-time", since_ms.clone()));
    }
    if !up && kind == Kind::Master {
        all.push(("o-down-time", since_ms.clone()));
    }
    all.push(("down-after-milliseconds", DOWN_AFTER_MS.to_string()));
    if kind == Kind::Sentinel {
        all.extend([("last-hello-message", since_ms), ("voted-leader", "?".to_owned()), ("voted-leader-epoch", zero())]);
        return all;
    }
    all.extend([("info-refresh", since_ms.clone()), ("role-reported", word.to_owned()), ("role-reported-time", since_ms)]);
    if kind == Kind::Master {
        all.extend([
            ("config-epoch", replication.state().term.to_string()),
            ("num-slaves", replication.replicas().count().to_string()),
            ("num-other-sentinels", replication.shown_others().count().to_string()),
            ("quorum", replication.majority().to_string()),
            ("failover-timeout", FAILOVER_TIMEOUT_MS.to_string()),
            ("parallel-syncs", "1".to_owned()),
        ]);
        return all;
    }
    let master = replication.master().filter(|_| replication.leader().is_some());
    let linked = up && master.is_some();
    all.extend([
        ("master-link-down-time", zero()),
        ("master-link-status", if linked { "ok" } else { "err" }.to_owned()),
        ("master-host", master.map_or("?".to_owned(), |node| node.host.clone())),
        ("master-port", master.map_or(0, |node| node.port_for(tls)).to_string()),
        ("slave-priority", "100".to_owned()),
        ("slave-repl-offset", node.position.to_string()),
        ("replica-announced", "1".to_owned()),
    ]);
    all
}

/// The period that `down-after-milliseconds` shows. Elections do not depend on it.
const DOWN_AFTER_MS: u64 = 1000;
/// The period that `failover-timeout` shows: Redis's default.
const FAILOVER_TIMEOUT_MS: u64 = 180_000;

fn reply_with(cx: &mut Context<'_>, fields: &Fields) {
    cx.reply.map(fields.len());
    for (name, value) in fields {
        cx.reply.entry(name, value);
    }
}

fn reply_with_list(cx: &mut Context<'_>, nodes: &[Fields]) {
    cx.reply.array(nodes.len());
    nodes.iter().for_each(|fields| reply_with(cx, fields));
}

/// The fields of the master; `None` before any leader was known.
fn master_fields(cx: &Context<'_>) -> Option<Fields> {
    cx.engine.replication().master().map(|master| fields(cx, master, Kind::Master))
}

fn master(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_name(cx, args)?;
    let fields = master_fields(cx).ok_or(Error::NO_SUCH_MASTER)?;
    reply_with(cx, &fields);
    Ok(())
}

fn masters(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_replicated(cx, args)?;
    let fields = master_fields(cx);
    reply_with_list(cx, fields.as_slice());
    Ok(())
}

fn replicas(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_name(cx, args)?;
    cx.engine.replication().master().ok_or(Error::NO_SUCH_MASTER)?;
    let all: Vec<Fields> = cx.engine.replication().replicas().map(|node| fields(cx, node, Kind::Replica)).collect();
    reply_with_list(cx, &all);
    Ok(())
}

fn sentinels(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_name(cx, args)?;
    let all: Vec<Fields> = cx.engine.replication().shown_others().map(|node| fields(cx, node, Kind::Sentinel)).collect();
    reply_with_list(cx, &all);
    Ok(())
}

fn my_id(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_replicated(cx, args)?;
    let replication = cx.engine.replication();
    cx.reply.bulk(replication.name_of(replication.state().node).as_bytes());
    Ok(())
}

fn check_quorum(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_name(cx, args)?;
    let Quorum { usable, majority } = cx.engine.replication().quorum();
    if usable < majority {
        return Err(Error::new(format!(
            "NOQUORUM {usable} usable Sentinels. Not enough available Sentinels to reach the specified quorum for this master. Not \
             enough available Sentinels to reach the majority and authorize a failover"
        )));
    }
    cx.reply.simple(&format!("OK {usable} usable Sentinels. Quorum and failover authorization can be reached"));
    Ok(())
}

fn failover(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_name(cx, args)?;
    let replication = cx.engine.replication();
    let state = replication.state();
    fail_if!(state.handing_over, Error::new("INPROG Failover already in progress"));
    let possible = match state.role {
        Role::Leader => replication.others().any(|node| node.voter && node.link_up),
        // The leader knows who else may lead.
        Role::Follower { leader } => leader.is_some(),
        _ => false,
    };
    fail_if!(!possible, Error::new("NOGOODSLAVE No suitable replica to promote"));
    cx.engine.ask(Action::HandOver { to: None });
    cx.reply.ok();
    Ok(())
}

fn reset(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_replicated(cx, args)?;
    let matches = glob::matches(args[2], cx.engine.config().cluster_name.as_bytes(), true);
    cx.reply.integer(matches.into());
    Ok(())
}

fn is_down(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_replicated(cx, args)?;
    let port = integer(args[3])?;
    integer(args[4])?;
    let replication = cx.engine.replication();
    let asked = |node: &&Node| node.host.as_bytes() == args[2] && [node.port, node.tls_port].map(i64::from).contains(&port);
    let down = replication.master().filter(asked).is_some_and(|node| !replication.is_up(node));
    cx.reply.array(3);
    cx.reply.integer(down.into());
    cx.reply.bulk(b"*");
    cx.reply.integer(0);
    Ok(())
}

#[cfg(test)]
#[path = "sentinel_tests.rs"]
mod tests;
