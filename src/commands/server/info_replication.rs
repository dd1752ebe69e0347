//! The sections of `INFO` about replication.

use crate::commands::server::info::Report;
use crate::engine::replication::Node;

/// The role of this server and its nodes, with the fields of Redis 7.0. Nodes that do not answer are not listed, as in Redis.
pub(super) fn replication(r: &mut Report<'_>) {
    let replication = r.engine.replication().clone();
    let position = replication.me().map_or(0, |node| node.position);
    let mut online: Vec<Node> = Vec::new();
    if replication.refuses() {
        let leader = replication.leader();
        r.line("role", "slave");
        r.line("master_host", leader.map_or("", |node| node.host.as_str()));
        r.line("master_port", leader.map_or(0, |node| node.port_for(false)));
        r.line("master_link_status", if leader.is_some() { "up" } else { "down" });
        r.line("master_last_io_seconds_ago", leader.map_or(-1, |node| (node.lag_ms / 1000) as i64));
        r.zeros(&["master_sync_in_progress"]);
        r.line("slave_read_repl_offset", position);
        r.line("slave_repl_offset", position);
        if leader.is_none() {
            // It is not recorded.
            r.line("master_link_down_since_seconds", -1);
        }
        r.line("slave_priority", 100);
        r.line("slave_read_only", 1);
        r.line("replica_announced", 1);
    } else {
        r.line("role", "master");
        online.extend(replication.replicas().filter(|node| replication.is_up(node)).cloned());
    }
    r.line("connected_slaves", online.len());
    for (number, node) in online.iter().enumerate() {
        let Node { host, position, lag_ms, .. } = node;
        let (port, lag_s) = (node.port_for(false), lag_ms / 1000);
        r.line(&format!("slave{number}"), format_args!("ip={host},port={port},state=online,offset={position},lag={lag_s}"));
    }
    let handing_over = replication.state().handing_over;
    r.line("master_failover_state", if handing_over { "failover-in-progress" } else { "no-failover" });
    let history = if replication.is_on() { replication.name_of(0) } else { r.engine.replication_id().to_owned() };
    r.line("master_replid", history);
    r.line("master_replid2", "0".repeat(40));
    r.line("master_repl_offset", position);
    r.line("second_repl_offset", -1);
    r.zeros(&["repl_backlog_active", "repl_backlog_size", "repl_backlog_first_byte_offset", "repl_backlog_histlen"]);
}

/// What Redis Sentinel shows about the master that it watches.
pub(super) fn sentinel(r: &mut Report<'_>) {
    let replication = r.engine.replication().clone();
    let name = r.engine.config().cluster_name.clone();
    r.line("sentinel_masters", usize::from(replication.master().is_some()));
    r.zeros(&["sentinel_tilt"]);
    r.line("sentinel_tilt_since_seconds", -1);
    r.zeros(&["sentinel_running_scripts", "sentinel_scripts_queue_length", "sentinel_simulate_failure_flags"]);
    let status = if replication.leader().is_some() { "ok" } else { "odown" };
    let Some(master) = replication.master() else { return };
    let address = format!("{}:{}", master.host, master.port_for(false));
    let (slaves, sentinels) = (replication.replicas().count(), replication.shown_others().count() + 1);
    let line = format!("name={name},status={status},address={address},slaves={slaves},sentinels={sentinels}");
    r.line("master0", line);
}
