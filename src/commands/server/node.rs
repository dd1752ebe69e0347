//! NODE: the members of a cluster of replicated servers, their state and their leader. Redis has no such command, because its replicas
//! follow by `REPLICAOF`, and its clusters shard.

use crate::base::durations::Durations;
use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::base::version::PORTCULLIS_VERSION;
use crate::commands::reference::help;
use crate::engine::Action;
use crate::engine::command::options::optional;
use crate::engine::command::{Command, Flags, Group, Traits, row, rows, subrows};
use crate::engine::context::Context;
use crate::engine::replication::members::MemberChange;
use crate::engine::replication::report::Known;
use crate::engine::replication::{Node, NodeId, Role};
use crate::resp::reply::Sink;

const ROW: Command = Command {
    flags: Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE).union(Flags::NO_MULTI),
    traits: Traits::REPLICATED.union(Traits::SHOWS_NO_KEY),
    group: Group::Server,
    since: "Portcullis 0.1.0",
    complexity: "O(N) where N is the number of nodes",
    ..Command::DEFAULT
};

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("node", "A container for the commands of a cluster of replicated servers.";
    complexity: "Depends on subcommand.", subcommands: &subrows([
        row!("add", add, "node-id:integer address",
            "Adds a running node, by its address among the nodes. The reply comes when it votes. Sent to the leader."; ..ROW),
        row!("handover", hand_over, "[node-id:integer]",
            "Hands leadership over to a node, or to the one that has most of the log. Any node takes it."; ..ROW),
        Command { flags: ROW.flags, traits: ROW.traits, ..help::row(Group::Server, "Portcullis 0.1.0") },
        row!("remove", remove, "node-id:integer", "Removes a node that does not lead. Sent to the leader."; ..ROW),
        row!("status", status, "Returns what the node knows of itself and of the others."; ..ROW),
    ]), ..ROW)]);

fn check_replicated(cx: &Context<'_>, args: &[&[u8]]) -> Result {
    if cx.engine.replication().is_on() { Ok(()) } else { Err(Error::unknown_command(args)) }
}

fn id_of(arg: &[u8]) -> Result<NodeId> {
    let id = parse_i64(arg).and_then(|id| NodeId::try_from(id).ok()).filter(|id| *id > 0);
    id.ok_or(Error::new("ERR the number of a node is an integer from 1"))
}

/// Whether an address is `host:port`.
fn is_address(text: &str) -> bool {
    let host_and_port = text.rsplit_once(':');
    host_and_port.is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains([' ', ',', '=']) && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

fn add(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_replicated(cx, args)?;
    let id = id_of(args[2])?;
    let addr = std::str::from_utf8(args[3]).ok().filter(|text| is_address(text));
    let addr = addr.ok_or(Error::new("ERR the address of a node is host:port"))?.to_owned();
    change(cx, args, MemberChange::Add { id, addr })
}

fn remove(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_replicated(cx, args)?;
    let id = id_of(args[2])?;
    change(cx, args, MemberChange::Remove { id })
}

/// Asks the driver for a change, and waits for it.
fn change(cx: &mut Context<'_>, args: &[&[u8]], change: MemberChange) -> Result {
    let replication = cx.engine.replication();
    match (replication.state().role, replication.leader()) {
        (Role::Leader, _) => {}
        (_, Some(Node { id, host, port, .. })) => {
            return Err(Error::new(format!("ERR node {id} at {host}:{port} leads: send it the command")));
        }
        _ => return Err(Error::new("ERR no node leads: members cannot change without a majority")),
    }
    fail_if!(!cx.may_block(), Error::NOT_IN_MULTI);
    cx.block_for_driver(args);
    let session = cx.session;
    cx.engine.ask(Action::ChangeMembers(session, change));
    Ok(())
}

fn hand_over(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_replicated(cx, args)?;
    let to = optional(&args[2..])?.map(id_of).transpose()?;
    let replication = cx.engine.replication();
    let state = replication.state();
    let leader = replication.leader().ok_or(Error::new("ERR no node leads"))?.id;
    fail_if!(state.handing_over, Error::new("INPROG Failover already in progress"));
    match to {
        Some(to) if to == leader => return Err(Error::new(format!("ERR node {to} leads already"))),
        Some(to) => {
            let known = state.nodes.iter().find(|node| node.id == to);
            let node = known.ok_or_else(|| Error::new(format!("ERR node {to} is no member")))?;
            if !node.voter || !replication.is_up(node) {
                return Err(Error::new(format!("ERR node {to} does not answer, or has no vote yet")));
            }
        }
        None if !replication.replicas().any(|node| node.voter && replication.is_up(node)) => {
            return Err(Error::new("NOGOODSLAVE No suitable replica to promote"));
        }
        None => {}
    }
    cx.engine.ask(Action::HandOver { to });
    cx.reply.ok();
    Ok(())
}

fn status(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_replicated(cx, args)?;
    let replication = cx.engine.replication().clone();
    let report = replication.reporter.as_ref().map(|reporter| reporter.read()).unwrap_or_default();
    let state = replication.state();
    let role = match state.role {
        Role::Leader => "leader",
        Role::NoQuorum => "no-quorum",
        _ => "follower",
    };
    let reply = &mut *cx.reply;
    reply.map(13);
    reply.entry("node", state.node);
    let cluster = if report.cluster == 0 { String::new() } else { format!("{:016x}", report.cluster) };
    reply.entry("cluster", &cluster);
    reply.entry("role", role);
    reply.entry("term", state.term);
    reply.entry("leader", replication.leader().map_or(0, |leader| leader.id));
    reply.entry("version", PORTCULLIS_VERSION);
    reply.entry("committed", report.committed);
    reply.entry("applied", report.applied);
    durations(reply, "flushes", report.flushes);
    reply.entry("disk", report.disk.name());
    reply.entry("disk-ms", report.disk_ms);
    reply.bulk(b"nodes");
    reply.array(state.nodes.len());
    let unknown = Known::default();
    for node in &state.nodes {
        let known = report.nodes.iter().find(|known| known.id == node.id).unwrap_or(&unknown);
        show(reply, node, known, node.id == state.node || node.link_up);
    }
    reply.bulk(b"refused");
    reply.array(report.refused.len());
    report.refused.iter().for_each(|refused| reply.bulk(refused.as_bytes()));
    Ok(())
}

fn show(reply: &mut dyn Sink, node: &Node, known: &Known, up: bool) {
    reply.map(13);
    reply.entry("id", node.id);
    reply.entry("address", &known.addr);
    reply.entry("host", &node.host);
    reply.entry("port", u64::from(node.port));
    reply.entry("tls-port", u64::from(node.tls_port));
    reply.entry("vote", if node.voter && !known.joins { "yes" } else { "no" });
    reply.entry("link", if up { "up" } else { "down" });
    reply.entry("heard-ms", known.heard_ms.map_or(-1, |ms| ms as i64));
    reply.entry("index", known.matched.map_or(-1, |index| index as i64));
    reply.entry("version", known.version.as_deref().unwrap_or(""));
    reply.entry("failure", known.failure.as_deref().unwrap_or(""));
    durations(reply, "pings", known.pings);
    durations(reply, "appends", known.appends);
}

fn durations(reply: &mut dyn Sink, name: &str, durations: Durations) {
    reply.bulk(name.as_bytes());
    reply.map(4);
    reply.entry("count", durations.count);
    reply.entry("p50-us", durations.p50_us);
    reply.entry("p99-us", durations.p99_us);
    reply.entry("max-us", durations.max_us);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::harness::Harness;
    use crate::engine::replication::report::{Disk, Report, Reporter};

    #[test]
    fn a_server_alone_does_not_know_the_command() {
        assert!(Harness::new().run("NODE STATUS").starts_with("-ERR unknown command 'NODE'"));
    }

    #[test]
    fn a_leader_has_its_driver_change_the_members() {
        let mut h = Harness::replicated(Role::Leader, false);
        h.script(&[
            ("NODE ADD x 10.0.0.4:7600", "-ERR the number of a node is an integer from 1"),
            ("NODE ADD 0 10.0.0.4:7600", "-ERR the number of a node is an integer from 1"),
            ("NODE ADD 4 10.0.0.4", "-ERR the address of a node is host:port"),
            ("NODE ADD 4 10.0.0.4:0", "-ERR the address of a node is host:port"),
            ("NODE REMOVE -1", "-ERR the number of a node is an integer from 1"),
        ]);
        assert_eq!(h.engine.take_actions(), []);
        assert_eq!(h.run("NODE ADD 4 10.0.0.4:7600"), "");
        let change = MemberChange::Add { id: 4, addr: "10.0.0.4:7600".to_owned() };
        assert_eq!(h.engine.take_actions(), [Action::ChangeMembers(h.session, change)]);
        let (now, session) = (h.now, h.session);
        h.engine.end_wait_for_driver(now, session, None);
        assert_eq!(h.outbox(session), "+OK");
        assert_eq!(h.run("NODE REMOVE 4"), "");
        h.engine.end_wait_for_driver(now, session, Some(&Error::new("ERR node 4 is no member")));
        assert_eq!(h.outbox(session), "-ERR node 4 is no member");
    }

    #[test]
    fn a_follower_names_the_leader() {
        let mut h = Harness::replicated(Role::Follower { leader: Some(2) }, false);
        h.script(&[("NODE REMOVE 3", "-ERR node 2 at 10.0.0.2:6379 leads: send it the command")]);
        h.become_one(Role::Follower { leader: None });
        h.script(&[
            ("NODE REMOVE 3", "-ERR no node leads: members cannot change without a majority"),
            ("NODE HANDOVER", "-ERR no node leads"),
        ]);
        assert_eq!(h.engine.take_actions(), []);
    }

    #[test]
    fn any_node_takes_a_handover() {
        let mut h = Harness::replicated(Role::Leader, false);
        h.script(&[
            ("NODE HANDOVER", "+OK"),
            ("NODE HANDOVER 3", "+OK"),
            ("NODE HANDOVER 1", "-ERR node 1 leads already"),
            ("NODE HANDOVER 9", "-ERR node 9 is no member"),
            ("NODE HANDOVER 2 3", "-ERR syntax error"),
        ]);
        assert_eq!(h.engine.take_actions(), [Action::HandOver { to: None }, Action::HandOver { to: Some(3) }]);
        h.become_one(Role::Follower { leader: Some(2) });
        h.script(&[("NODE HANDOVER 1", "+OK"), ("NODE HANDOVER 2", "-ERR node 2 leads already")]);
        assert_eq!(h.engine.take_actions(), [Action::HandOver { to: Some(1) }]);
        let mut state = Harness::three_nodes(Role::Leader);
        state.nodes[1].link_up = false;
        state.nodes[2].voter = false;
        h.engine.set_replication(h.now, state);
        h.script(&[
            ("NODE HANDOVER", "-NOGOODSLAVE No suitable replica to promote"),
            ("NODE HANDOVER 2", "-ERR node 2 does not answer, or has no vote yet"),
            ("NODE HANDOVER 3", "-ERR node 3 does not answer, or has no vote yet"),
        ]);
    }

    #[test]
    fn the_status_has_what_the_driver_knows() {
        let mut h = Harness::replicated(Role::Leader, false);
        let slow = Durations { count: 7, p50_us: 256, p99_us: 1024, max_us: 1500 };
        let second = Known { id: 2, matched: Some(8), heard_ms: Some(5), appends: slow, ..Known::default() };
        let report = Report {
            cluster: 0xabc,
            committed: 9,
            applied: 8,
            flushes: slow,
            disk: Disk::Hangs,
            disk_ms: 700,
            nodes: vec![second],
            refused: vec!["a node at 10.0.0.9: no".to_owned()],
        };
        h.engine.replication_mut().reporter = Some(Reporter::new(move || report.clone()));
        let status = h.run("NODE STATUS");
        for part in [
            "$4 node :1 $7 cluster $16 0000000000000abc $4 role $6 leader $4 term :4 $6 leader :1",
            "$9 committed :9 $7 applied :8 $7 flushes *8 $5 count :7 $6 p50-us :256 $6 p99-us :1024 $6 max-us :1500 \
             $4 disk $5 hangs $7 disk-ms :700",
            "$2 id :2 $7 address $0  $4 host $8 10.0.0.2 $4 port :6379 $8 tls-port :6390 $4 vote $3 yes $4 link $2 up $8 heard-ms :5 \
             $5 index :8",
        ] {
            assert!(status.contains(part), "{part} in {status}");
        }
    }
}
