//! The nodes of a cluster, as CLUSTER shows them: this node, or the replicated ones.
//!
//! A client asks any node for the slots. A node that reaches no majority does not answer that, so that the client asks another one:
//! it may hold itself for the master that it was. A node that waits for an election shows the last master, as Redis does.

use crate::base::error::{Error, Result};
use crate::engine::Action;
use crate::engine::cluster::SLOTS;
use crate::engine::command::options::flag;
use crate::engine::context::Context;
use crate::engine::replication::{Node, Replication, Role};
use crate::engine::session::SessionFlags;
use crate::resp::reply::Sink;

/// A node of the cluster.
pub(super) struct Member {
    /// Forty hexadecimal digits.
    id: String,
    host: String,
    port: u16,
    /// Whether it is this node.
    pub(super) me: bool,
    master: bool,
    up: bool,
    offset: u64,
    lag_ms: u64,
}

/// The nodes, the master first, if there is one.
fn members(cx: &mut Context<'_>) -> Vec<Member> {
    let replication = cx.engine.replication();
    if !replication.is_on() {
        let id = cx.engine.run_id().to_owned();
        let (host, port) = endpoint(cx);
        return vec![Member { id, host, port, me: true, master: true, up: true, offset: 0, lag_ms: 0 }];
    }
    let tls = cx.engine.uses_tls(cx.session);
    let master = replication.master();
    let member = |node: &Node| Member {
        id: replication.name_of(node.id),
        host: node.host.clone(),
        port: node.port_for(tls),
        me: node.id == replication.state().node,
        master: master.is_some_and(|master| master.id == node.id),
        up: replication.is_up(node),
        offset: node.position,
        lag_ms: node.lag_ms,
    };
    master.into_iter().chain(replication.replicas()).map(member).collect()
}

/// The address at which the client reaches this node: the announced one, or else that of its connection.
fn endpoint(cx: &mut Context<'_>) -> (String, u16) {
    let config = cx.engine.config();
    let (announced, announced_port) = (config.cluster_announce_ip.clone(), config.cluster_announce_port);
    let tcp_port = cx.engine.environment().tcp_port;
    let session = cx.session();
    let unix = session.flags.contains(SessionFlags::UNIX_SOCKET);
    let reached = if unix { None } else { session.laddr.rsplit_once(':') };
    let (ip, port) = reached.map_or(("", tcp_port), |(ip, port)| (ip, port.parse().unwrap_or(tcp_port)));
    let ip = if announced.is_empty() { ip.trim_matches(['[', ']']).to_owned() } else { announced };
    (ip, if announced_port == 0 { port } else { announced_port })
}

/// Whether the slots are served, as far as this node knows.
fn is_served(replication: &Replication) -> bool {
    !replication.is_on() || replication.leader().is_some()
}

/// Writes a reply if the server is a cluster; otherwise fails.
pub(super) fn reply_in_cluster(cx: &mut Context<'_>, reply: impl FnOnce(&mut Context<'_>)) -> Result {
    fail_if!(!cx.engine.in_cluster(), Error::NO_CLUSTER);
    reply(cx);
    Ok(())
}

/// The node with this id.
pub(super) fn check_node_id(cx: &mut Context<'_>, id: &[u8]) -> Result<Member> {
    fail_if!(!cx.engine.in_cluster(), Error::NO_CLUSTER);
    let found = members(cx).into_iter().find(|member| member.id.as_bytes() == id);
    found.ok_or_else(|| Error::quoting("ERR Unknown node ", id, ""))
}

pub(super) fn my_id(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    reply_in_cluster(cx, |cx| {
        let replication = cx.engine.replication();
        let id = if replication.is_on() { replication.name_of(replication.state().node) } else { cx.engine.run_id().to_owned() };
        cx.reply.bulk(id.as_bytes());
    })
}

pub(super) fn my_shard_id(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    reply_in_cluster(cx, |cx| {
        let replication = cx.engine.replication();
        let id = if replication.is_on() { replication.name_of(0) } else { cx.engine.run_id().to_owned() };
        cx.reply.bulk(id.chars().rev().collect::<String>().as_bytes());
    })
}

pub(super) fn info(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    reply_in_cluster(cx, |cx| {
        let replication = cx.engine.replication();
        let served = is_served(replication);
        let epoch = if replication.is_on() { replication.state().term } else { 1 };
        let all = u64::from(SLOTS);
        let lines = [
            ("cluster_slots_assigned", all),
            ("cluster_slots_ok", if served { all } else { 0 }),
            ("cluster_slots_pfail", 0),
            ("cluster_slots_fail", if served { 0 } else { all }),
            ("cluster_known_nodes", replication.state().nodes.len().max(1) as u64),
            ("cluster_size", 1),
            ("cluster_current_epoch", epoch),
            ("cluster_my_epoch", epoch),
            ("cluster_stats_messages_sent", 0),
            ("cluster_stats_messages_received", 0),
            ("total_cluster_links_buffer_limit_exceeded", 0),
        ];
        let lines: String = lines.iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect();
        let state = if served { "ok" } else { "fail" };
        cx.reply.verbatim("txt", format!("cluster_state:{state}\r\n{lines}").as_bytes());
    })
}

/// The lines of `CLUSTER NODES`, the master's first. The port of the cluster bus is 0, because there is none.
fn node_lines(cx: &mut Context<'_>) -> Vec<String> {
    let now_ms = cx.now.unix_ms();
    let replication = cx.engine.replication();
    let epoch = if replication.is_on() { replication.state().term } else { 1 };
    let members = members(cx);
    let master = members.first().filter(|member| member.master).map(|member| member.id.clone());
    let line = |member: &Member| {
        let Member { id, host, port, me, master: is_master, up, lag_ms, .. } = member;
        let myself = if *me { "myself," } else { "" };
        let (failed, link) = if *up { ("", "connected") } else { (",fail", "disconnected") };
        let heard_ms = if *me { 0 } else { now_ms - *lag_ms as i64 };
        let (role, of, slots) = match is_master {
            true => ("master", "-", format!(" 0-{}", SLOTS - 1)),
            false => ("slave", master.as_deref().unwrap_or("-"), String::new()),
        };
        format!("{id} {host}:{port}@0 {myself}{role}{failed} {of} 0 {heard_ms} {epoch} {link}{slots}")
    };
    members.iter().map(line).collect()
}

pub(super) fn nodes(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    reply_in_cluster(cx, |cx| {
        let text: String = node_lines(cx).into_iter().map(|line| line + "\n").collect();
        cx.reply.verbatim("txt", text.as_bytes());
    })
}

/// The nodes for clients that ask where the slots are.
fn serving_members(cx: &mut Context<'_>) -> Result<Vec<Member>> {
    fail_if!(!cx.engine.in_cluster(), Error::NO_CLUSTER);
    fail_if!(cx.engine.replication().state().role == Role::NoQuorum, Error::CLUSTER_DOWN);
    let members = members(cx);
    // Without a master ever: clients that get an error ask the next node, and some take an empty list for the whole cluster.
    if members.first().is_some_and(|first| first.master) { Ok(members) } else { Err(Error::CLUSTER_DOWN) }
}

pub(super) fn slots(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let mut members = serving_members(cx)?;
    members.retain(|member| member.master || member.up);
    let reply = &mut *cx.reply;
    reply.array(1);
    reply.array(2 + members.len());
    reply.integer(0);
    reply.integer(i64::from(SLOTS) - 1);
    for Member { id, host, port, .. } in &members {
        reply.array(4);
        reply.bulk(host.as_bytes());
        reply.integer(i64::from(*port));
        reply.bulk(id.as_bytes());
        reply.map(0);
    }
    Ok(())
}

pub(super) fn shards(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let members = serving_members(cx)?;
    let reply = &mut *cx.reply;
    reply.array(1);
    reply.map(2);
    reply.bulk(b"slots");
    reply.array(2);
    reply.integer(0);
    reply.integer(i64::from(SLOTS) - 1);
    reply.bulk(b"nodes");
    reply.array(members.len());
    for Member { id, host, port, master, up, offset, .. } in &members {
        let role = if *master { "master" } else { "replica" };
        let health = if *up { "online" } else { "fail" };
        reply.map(7);
        texts(reply, &["id", id, "port"]);
        reply.integer(i64::from(*port));
        texts(reply, &["ip", host, "endpoint", host, "role", role, "replication-offset"]);
        reply.integer(*offset as i64);
        texts(reply, &["health", health]);
    }
    Ok(())
}

fn texts(reply: &mut dyn Sink, all: &[&str]) {
    all.iter().for_each(|text| reply.bulk(text.as_bytes()));
}

pub(super) fn replicas(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(!check_node_id(cx, args[2])?.master, Error::new("ERR The specified node is not a master"));
    let lines = node_lines(cx);
    cx.reply.array(lines.len() - 1);
    lines[1..].iter().for_each(|line| cx.reply.bulk(line.as_bytes()));
    Ok(())
}

/// As in Redis, the node that gets the request is the one that is to lead.
pub(super) fn failover(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(!cx.engine.in_cluster(), Error::NO_CLUSTER);
    let forced = flag(&args[2..], &["FORCE", "TAKEOVER"])?;
    let replication = cx.engine.replication();
    fail_if!(!replication.refuses(), Error::new("ERR You should send CLUSTER FAILOVER to a replica"));
    if replication.leader().is_none() && !forced {
        return Err(Error::new("ERR Master is down or failed, please use CLUSTER FAILOVER FORCE"));
    }
    let to = Some(replication.state().node);
    cx.engine.ask(Action::HandOver { to });
    cx.reply.ok();
    Ok(())
}
