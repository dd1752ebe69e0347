//! Replication commands. Without replication these are the replies of a master without replicas. Replicated servers elect their
//! leader: commands can hand leadership over, but make no server follow another one.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::engine::Action;
use crate::engine::command::options::{Tail, upper};
use crate::engine::command::{Command, Flags, Group, row, rows};
use crate::engine::context::Context;
use crate::engine::replication::{Node, Role};

const ROW: Command = Command {
    refused: "Replication is not supported.",
    group: Group::Server,
    flags: Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::STALE),
    ..Command::DEFAULT
};

const REPLICA_OF: Command = Command {
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
pub const COMMANDS: &[Command] = &rows([
    row!("replicaof", "Accepts NO ONE, which is the state of the server. Refuses to follow another server.";
        since: "5.0.0", ..REPLICA_OF),
    row!("slaveof",
        "Accepts NO ONE, which is the state of the server. Refuses to follow another server. The old name of REPLICAOF.";
        ..REPLICA_OF),
    row!("failover", failover, "[TO host port:integer [FORCE]] [ABORT] [TIMEOUT milliseconds]",
        "Hands leadership over to another replicated node. Refused without replicas.";
        since: "6.2.0", ..ROW),
    row!("sync", "Refused: replication is not supported."; ..STREAM),
    row!("psync", "Refused: replication is not supported."; syntax: "replicationid offset", arity: -3, since: "2.8.0", ..STREAM),
    row!("replconf", |_, _| Err(Error::NO_REPLICATION), "[argument [argument ...]]", "Refused: replication is not supported.";
        since: "3.0.0", flags: ROW.flags.union(Flags::LOADING).union(Flags::ALLOW_BUSY), ..ROW),
]);

fn replicaof(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(cx.engine.in_cluster(), Error::new("ERR REPLICAOF not allowed in cluster mode."));
    if cx.engine.replication().is_on() {
        return Err(Error::new(
            "ERR REPLICAOF not allowed: replicated nodes elect their leader. FAILOVER, sent to the leader, hands leadership over.",
        ));
    }
    if args[1].eq_ignore_ascii_case(b"no") && args[2].eq_ignore_ascii_case(b"one") {
        cx.reply.ok();
        return Ok(());
    }
    parse_i64(args[2]).filter(|port| (0..=65_535).contains(port)).ok_or(Error::new("ERR Invalid master port"))?;
    Err(Error::NO_REPLICATION)
}

/// Options of `FAILOVER`.
#[derive(Default)]
struct Failover<'a> {
    to: Option<(&'a [u8], i64)>,
    timeout: bool,
    force: bool,
}

fn failover(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    if cx.engine.in_cluster() {
        return Err(Error::new("ERR FAILOVER not allowed in cluster mode. Use CLUSTER FAILOVER command instead."));
    }
    let handing_over = cx.engine.replication().state().handing_over;
    if let [_, word] = args
        && word.eq_ignore_ascii_case(b"abort")
    {
        return Err(match handing_over {
            true => Error::new("ERR FAILOVER cannot be aborted: leadership is handed over already."),
            false => Error::new("ERR No failover in progress."),
        });
    }
    let mut options = Failover::default();
    let mut rest = Tail(&args[1..]);
    while let Some(word) = rest.next() {
        match &*upper(word) {
            b"TIMEOUT" if !options.timeout => {
                fail_if!(rest.integer()? <= 0, Error::new("ERR FAILOVER timeout must be greater than 0"));
                options.timeout = true;
            }
            b"TO" if options.to.is_none() => options.to = Some((rest.value()?, rest.integer()?)),
            b"FORCE" if !options.force => options.force = true,
            _ => return Err(Error::SYNTAX),
        }
    }
    fail_if!(handing_over, Error::new("ERR FAILOVER already in progress."));
    let replication = cx.engine.replication();
    fail_if!(replication.refuses(), Error::new("ERR FAILOVER is not valid when server is a replica."));
    if !replication.others().any(|node| node.voter && node.link_up) {
        return Err(Error::new("ERR FAILOVER requires connected replicas."));
    }
    if options.force && !(options.timeout && options.to.is_some()) {
        return Err(Error::new("ERR FAILOVER with force option requires both a timeout and target HOST and IP."));
    }
    let to = match options.to {
        None => None,
        Some((host, port)) => {
            let is = |node: &&Node| node.host.as_bytes() == host && [node.port, node.tls_port].map(i64::from).contains(&port);
            let node = replication.others().find(is);
            let node = node.ok_or(Error::new("ERR FAILOVER target HOST and PORT is not a replica."))?;
            fail_if!(!node.link_up || !node.voter, Error::new("ERR FAILOVER target replica is not online."));
            Some(node.id)
        }
    };
    cx.engine.ask(Action::HandOver { to });
    cx.reply.ok();
    Ok(())
}

/// `ROLE`. A server that reaches no majority is a replica without a master, so that no client takes it for the master.
pub(super) fn role(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let tls = cx.engine.uses_tls(cx.session);
    let replication = cx.engine.replication();
    let position = replication.me().map_or(0, |node| node.position) as i64;
    let reply = &mut *cx.reply;
    if let Role::Single | Role::Leader = replication.state().role {
        let online: Vec<&Node> = replication.replicas().filter(|node| replication.is_up(node)).collect();
        reply.array(3);
        reply.bulk(b"master");
        reply.integer(position);
        reply.array(online.len());
        for node in online {
            reply.array(3);
            reply.bulk(node.host.as_bytes());
            reply.bulk(node.port_for(tls).to_string().as_bytes());
            reply.bulk(node.position.to_string().as_bytes());
        }
        return Ok(());
    }
    let leader = replication.leader();
    reply.array(5);
    reply.bulk(b"slave");
    reply.bulk(leader.map_or("", |node| node.host.as_str()).as_bytes());
    reply.integer(leader.map_or(0, |node| node.port_for(tls)).into());
    reply.bulk(if leader.is_some() { b"connected" } else { b"connect" });
    reply.integer(position);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::engine::Action;
    use crate::engine::harness::Harness;
    use crate::engine::replication::Role;

    const FOLLOWER: Role = Role::Follower { leader: Some(2) };

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

    #[test]
    fn a_leader_names_its_followers() {
        let mut h = Harness::replicated(Role::Leader, false);
        h.script(&[("ROLE", "*3 $6 master :99 *2 *3 $8 10.0.0.2 $4 6379 $2 98 *3 $8 10.0.0.3 $4 6379 $2 97")]);
        let info = h.run("INFO replication");
        for line in [
            "role:master connected_slaves:2 slave0:ip=10.0.0.2,port=6379,state=online,offset=98,lag=1 slave1:ip=10.0.0.3,port=6379",
            "master_failover_state:no-failover",
            "master_repl_offset:99",
        ] {
            assert!(info.contains(line), "{line} in {info}");
        }
        let history = h.engine.replication().name_of(0);
        assert!(info.contains(&format!("master_replid:{history}")));
        let mut state = Harness::three_nodes(Role::Leader);
        state.nodes[1].link_up = false;
        state.handing_over = true;
        h.engine.set_replication(h.now, state);
        h.script(&[("ROLE", "*3 $6 master :99 *1 *3 $8 10.0.0.3 $4 6379 $2 97")]);
        let info = h.run("INFO replication");
        assert!(info.contains("connected_slaves:1 slave0:ip=10.0.0.3") && info.contains("state:failover-in-progress"), "{info}");
        assert!(h.run("HELLO").contains("$4 role $6 master"));
    }

    #[test]
    fn a_follower_names_its_leader() {
        let mut h = Harness::replicated(FOLLOWER, false);
        h.script(&[("ROLE", "*5 $5 slave $8 10.0.0.2 :6379 $9 connected :99")]);
        let info = h.run("INFO replication");
        let line = "role:slave master_host:10.0.0.2 master_port:6379 master_link_status:up master_last_io_seconds_ago:1";
        assert!(info.contains(line) && info.contains("slave_repl_offset:99") && info.contains("connected_slaves:0"), "{info}");
        assert!(h.run("HELLO").contains("$4 role $7 replica"));
        for role in [Role::Follower { leader: None }, Role::NoQuorum] {
            h.become_one(role);
            h.script(&[("ROLE", "*5 $5 slave $0  :0 $7 connect :99")]);
            let info = h.run("INFO replication");
            assert!(info.contains("master_host: master_port:0 master_link_status:down master_last_io_seconds_ago:-1"), "{info}");
        }
    }

    #[test]
    fn leadership_is_handed_over_and_not_taken() {
        let mut h = Harness::replicated(Role::Leader, false);
        let refusal = "-ERR REPLICAOF not allowed: replicated nodes elect their leader. FAILOVER, sent to the leader, hands leadership over.";
        h.script(&[
            ("REPLICAOF NO ONE", refusal),
            ("SLAVEOF 10.0.0.2 6379", refusal),
            ("FAILOVER ABORT", "-ERR No failover in progress."),
            ("FAILOVER TO h 1 FORCE", "-ERR FAILOVER with force option requires both a timeout and target HOST and IP."),
            ("FAILOVER TO h 1", "-ERR FAILOVER target HOST and PORT is not a replica."),
            ("FAILOVER TO 10.0.0.1 6379", "-ERR FAILOVER target HOST and PORT is not a replica."),
            ("FAILOVER TO 10.0.0.2 6379 FORCE TIMEOUT 5", "+OK"),
        ]);
        assert_eq!(h.engine.take_actions(), [Action::HandOver { to: Some(2) }]);
        h.script(&[("FAILOVER", "+OK")]);
        assert_eq!(h.engine.take_actions(), [Action::HandOver { to: None }]);
        let mut state = Harness::three_nodes(Role::Leader);
        state.nodes[1].link_up = false;
        h.engine.set_replication(h.now, state.clone());
        h.script(&[("FAILOVER TO 10.0.0.2 6379", "-ERR FAILOVER target replica is not online.")]);
        state.handing_over = true;
        h.engine.set_replication(h.now, state);
        h.script(&[
            ("FAILOVER", "-ERR FAILOVER already in progress."),
            ("FAILOVER ABORT", "-ERR FAILOVER cannot be aborted: leadership is handed over already."),
        ]);
        h.become_one(FOLLOWER);
        h.script(&[("FAILOVER", "-ERR FAILOVER is not valid when server is a replica."), ("REPLICAOF NO ONE", refusal)]);
        assert_eq!(h.engine.take_actions(), []);
    }
}
