//! The metrics of redis_exporter, under its names and with its types and labels, so that dashboards made for it show this server.

use crate::client::Value;
use crate::http::api::now_ms;
use crate::http::figures::{field, lines};
use crate::http::metrics::text::Kind::{Counter, Gauge, Summary};
use crate::http::metrics::text::{Kind, Metrics};

/// Fields of `INFO`, with the metrics that they are behind `redis_`.
const FIELDS: &[(&str, &str, Kind)] = &[
    ("active_defrag_running", "active_defrag_running", Gauge),
    ("allocator_active", "allocator_active_bytes", Gauge),
    ("allocator_allocated", "allocator_allocated_bytes", Gauge),
    ("allocator_frag_bytes", "allocator_frag_bytes", Gauge),
    ("allocator_frag_ratio", "allocator_frag_ratio", Gauge),
    ("allocator_resident", "allocator_resident_bytes", Gauge),
    ("allocator_rss_bytes", "allocator_rss_bytes", Gauge),
    ("allocator_rss_ratio", "allocator_rss_ratio", Gauge),
    ("aof_base_size", "aof_base_size_bytes", Gauge),
    ("aof_buffer_length", "aof_buffer_length", Gauge),
    ("aof_current_rewrite_time_sec", "aof_current_rewrite_duration_sec", Gauge),
    ("aof_current_size", "aof_current_size_bytes", Gauge),
    ("aof_delayed_fsync", "aof_delayed_fsync", Gauge),
    ("aof_enabled", "aof_enabled", Gauge),
    ("aof_last_bgrewrite_status", "aof_last_bgrewrite_status", Gauge),
    ("aof_last_cow_size", "aof_last_cow_size_bytes", Gauge),
    ("aof_last_rewrite_time_sec", "aof_last_rewrite_duration_sec", Gauge),
    ("aof_last_write_status", "aof_last_write_status", Gauge),
    ("aof_pending_bio_fsync", "aof_pending_bio_fsync", Gauge),
    ("aof_pending_rewrite", "aof_pending_rewrite", Gauge),
    ("aof_rewrite_in_progress", "aof_rewrite_in_progress", Gauge),
    ("aof_rewrite_scheduled", "aof_rewrite_scheduled", Gauge),
    ("blocked_clients", "blocked_clients", Gauge),
    ("client_recent_max_input_buffer", "client_recent_max_input_buffer_bytes", Gauge),
    ("client_recent_max_output_buffer", "client_recent_max_output_buffer_bytes", Gauge),
    ("clients_in_timeout_table", "clients_in_timeout_table", Gauge),
    ("cluster_connections", "cluster_connections", Gauge),
    ("cluster_enabled", "cluster_enabled", Gauge),
    ("total_commands_processed", "commands_processed_total", Counter),
    ("connected_clients", "connected_clients", Gauge),
    ("connected_slaves", "connected_slaves", Gauge),
    ("total_connections_received", "connections_received_total", Counter),
    ("used_cpu_sys_children", "cpu_sys_children_seconds_total", Counter),
    ("used_cpu_sys_main_thread", "cpu_sys_main_thread_seconds_total", Counter),
    ("used_cpu_sys", "cpu_sys_seconds_total", Counter),
    ("used_cpu_user_children", "cpu_user_children_seconds_total", Counter),
    ("used_cpu_user_main_thread", "cpu_user_main_thread_seconds_total", Counter),
    ("used_cpu_user", "cpu_user_seconds_total", Counter),
    ("active_defrag_hits", "defrag_hits", Gauge),
    ("active_defrag_key_hits", "defrag_key_hits", Gauge),
    ("active_defrag_key_misses", "defrag_key_misses", Gauge),
    ("active_defrag_misses", "defrag_misses", Gauge),
    ("dump_payload_sanitizations", "dump_payload_sanitizations", Counter),
    ("evicted_keys", "evicted_keys_total", Counter),
    ("expired_keys", "expired_keys_total", Counter),
    ("expired_stale_perc", "expired_stale_percentage", Gauge),
    ("expired_time_cap_reached_count", "expired_time_cap_reached_total", Gauge),
    ("io_threaded_reads_processed", "io_threaded_reads_processed", Counter),
    ("io_threaded_writes_processed", "io_threaded_writes_processed", Counter),
    ("io_threads_active", "io_threads_active", Gauge),
    ("keyspace_hits", "keyspace_hits_total", Counter),
    ("keyspace_misses", "keyspace_misses_total", Counter),
    ("lazyfree_pending_objects", "lazyfree_pending_objects", Gauge),
    ("loading", "loading_dump_file", Gauge),
    ("master_repl_offset", "master_repl_offset", Gauge),
    ("mem_clients_normal", "mem_clients_normal", Gauge),
    ("mem_clients_slaves", "mem_clients_slaves", Gauge),
    ("mem_fragmentation_bytes", "mem_fragmentation_bytes", Gauge),
    ("mem_fragmentation_ratio", "mem_fragmentation_ratio", Gauge),
    ("mem_not_counted_for_evict", "mem_not_counted_for_eviction_bytes", Gauge),
    ("maxmemory", "memory_max_bytes", Gauge),
    ("used_memory", "memory_used_bytes", Gauge),
    // redis_exporter has it with `--include-system-metrics`, and the mixin's alert about memory needs it.
    ("total_system_memory", "total_system_memory_bytes", Gauge),
    ("used_memory_dataset", "memory_used_dataset_bytes", Gauge),
    ("used_memory_lua", "memory_used_lua_bytes", Gauge),
    ("used_memory_overhead", "memory_used_overhead_bytes", Gauge),
    ("used_memory_peak", "memory_used_peak_bytes", Gauge),
    ("used_memory_rss", "memory_used_rss_bytes", Gauge),
    ("used_memory_scripts", "memory_used_scripts_bytes", Gauge),
    ("used_memory_startup", "memory_used_startup_bytes", Gauge),
    ("migrate_cached_sockets", "migrate_cached_sockets_total", Gauge),
    ("module_fork_in_progress", "module_fork_in_progress", Gauge),
    ("module_fork_last_cow_size", "module_fork_last_cow_size", Gauge),
    ("total_net_input_bytes", "net_input_bytes_total", Counter),
    ("total_net_output_bytes", "net_output_bytes_total", Counter),
    ("number_of_cached_scripts", "number_of_cached_scripts", Gauge),
    ("process_id", "process_id", Gauge),
    ("pubsub_channels", "pubsub_channels", Gauge),
    ("pubsub_patterns", "pubsub_patterns", Gauge),
    ("rdb_bgsave_in_progress", "rdb_bgsave_in_progress", Gauge),
    ("rdb_changes_since_last_save", "rdb_changes_since_last_save", Gauge),
    ("rdb_current_bgsave_time_sec", "rdb_current_bgsave_duration_sec", Gauge),
    ("rdb_last_bgsave_time_sec", "rdb_last_bgsave_duration_sec", Gauge),
    ("rdb_last_bgsave_status", "rdb_last_bgsave_status", Gauge),
    ("rdb_last_cow_size", "rdb_last_cow_size_bytes", Gauge),
    ("rdb_last_save_time", "rdb_last_save_timestamp_seconds", Gauge),
    ("rejected_connections", "rejected_connections_total", Counter),
    ("repl_backlog_first_byte_offset", "repl_backlog_first_byte_offset", Gauge),
    ("repl_backlog_histlen", "repl_backlog_history_bytes", Gauge),
    ("repl_backlog_active", "repl_backlog_is_active", Gauge),
    ("sync_partial_ok", "replica_partial_resync_accepted", Gauge),
    ("sync_partial_err", "replica_partial_resync_denied", Gauge),
    ("sync_full", "replica_resyncs_full", Gauge),
    ("repl_backlog_size", "replication_backlog_bytes", Gauge),
    ("second_repl_offset", "second_repl_offset", Gauge),
    ("sentinel_masters", "sentinel_masters", Gauge),
    ("sentinel_running_scripts", "sentinel_running_scripts", Gauge),
    ("sentinel_scripts_queue_length", "sentinel_scripts_queue_length", Gauge),
    ("sentinel_simulate_failure_flags", "sentinel_simulate_failure_flags", Gauge),
    ("sentinel_tilt", "sentinel_tilt", Gauge),
    ("slave_expires_tracked_keys", "slave_expires_tracked_keys", Gauge),
    ("slave_priority", "slave_priority", Gauge),
    ("total_error_replies", "total_error_replies", Counter),
    ("total_reads_processed", "total_reads_processed", Counter),
    ("total_writes_processed", "total_writes_processed", Counter),
    ("tracking_clients", "tracking_clients", Gauge),
    ("tracking_total_items", "tracking_total_items", Gauge),
    ("tracking_total_keys", "tracking_total_keys", Gauge),
    ("tracking_total_prefixes", "tracking_total_prefixes", Gauge),
    ("unexpected_error_replies", "unexpected_error_replies", Counter),
    ("uptime_in_seconds", "uptime_in_seconds", Gauge),
];

/// Fields of `CLUSTER INFO`, which are gauges of the same names.
const OF_CLUSTER: [&str; 8] = [
    "cluster_current_epoch",
    "cluster_known_nodes",
    "cluster_my_epoch",
    "cluster_size",
    "cluster_slots_assigned",
    "cluster_slots_fail",
    "cluster_slots_ok",
    "cluster_slots_pfail",
];

/// Directives that are gauges.
const DIRECTIVES: [(&str, &str); 3] =
    [("io-threads", "config_io_threads"), ("maxclients", "config_maxclients"), ("maxmemory", "config_maxmemory")];

/// The labels of `redis_instance_info`, which are fields of `INFO`.
const OF_INSTANCE: [&str; 9] =
    ["maxmemory_policy", "os", "process_id", "redis_build_id", "redis_mode", "redis_version", "role", "run_id", "tcp_port"];

/// The value of a field: a number, or a word for good or bad.
fn value(text: &str) -> Option<f64> {
    match text.trim_end_matches('%') {
        "ok" | "up" => Some(1.0),
        "err" | "fail" | "down" => Some(0.0),
        text => text.parse().ok(),
    }
}

/// The number behind `name=` in a list of those.
fn part(list: &str, name: &str) -> Option<f64> {
    list.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))?.parse().ok()
}

fn text_part<'a>(list: &'a str, name: &str) -> &'a str {
    list.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
}

fn add(metrics: &mut Metrics, kind: Kind, name: &str, source: &str, labels: &[(&str, &str)], value: f64) {
    metrics.add_with(kind, &format!("redis_{name}"), &format!("As redis_exporter: {source}."), labels, value);
}

/// Adds what `INFO all` tells. `databases` is the number of databases.
pub fn of_info(metrics: &mut Metrics, info: &str, databases: u32) {
    for (name, metric, kind) in FIELDS {
        if let Some(value) = field(info, name).and_then(value) {
            add(metrics, *kind, metric, &format!("the field {name} of INFO"), &[], value);
        }
    }
    let text = |name: &str| field(info, name).unwrap_or_default();
    let instance = OF_INSTANCE.map(|name| (name, text(name)));
    add(metrics, Gauge, "instance_info", "the server, by its labels", &instance, 1.0);
    if let Some(uptime) = field(info, "uptime_in_seconds").and_then(value) {
        let since = (now_ms() / 1000) as f64 - uptime;
        add(metrics, Gauge, "start_time_seconds", "when the server started, in Unix time", &[], since);
    }
    if let Some(us) = field(info, "latest_fork_usec").and_then(value) {
        add(metrics, Gauge, "latest_fork_seconds", "the field latest_fork_usec of INFO", &[], us / 1e6);
    }
    for (name, line) in lines(info) {
        if let Some(command) = name.strip_prefix("cmdstat_") {
            of_command(metrics, command, line);
        } else if let Some(command) = name.strip_prefix("latency_percentiles_usec_") {
            of_latency(metrics, command, line, field(info, &format!("cmdstat_{command}")).unwrap_or_default());
        } else if let Some(error) = name.strip_prefix("errorstat_") {
            let count = part(line, "count").unwrap_or(0.0);
            add(metrics, Counter, "errors_total", "replies with an error, by its first word", &[("err", error)], count);
        }
    }
    for number in 0..databases {
        let db = format!("db{number}");
        of_database(metrics, &db, field(info, &db).unwrap_or_default());
    }
    of_replication(metrics, info);
    if let Some(master) = field(info, "master0") {
        of_sentinel(metrics, master);
    }
}

fn of_command(metrics: &mut Metrics, command: &str, line: &str) {
    for (metric, name, per, help) in [
        ("commands_total", "calls", 1.0, "calls of a command"),
        // Its name until redis_exporter 1.0, which dashboards still ask for.
        ("command_calls_total", "calls", 1.0, "calls of a command"),
        ("commands_duration_seconds_total", "usec", 1e6, "time that calls of a command took"),
        ("commands_rejected_calls_total", "rejected_calls", 1.0, "calls of a command that were refused before it ran"),
        ("commands_failed_calls_total", "failed_calls", 1.0, "calls of a command that failed"),
    ] {
        add(metrics, Counter, metric, help, &[("cmd", command)], part(line, name).unwrap_or(0.0) / per);
    }
}

fn of_latency(metrics: &mut Metrics, command: &str, line: &str, stats: &str) {
    let (name, help) = ("redis_latency_percentiles_usec", "As redis_exporter: how long calls of a command took.");
    for (percent, us) in line.split(',').filter_map(|part| part.strip_prefix('p')?.split_once('=')) {
        let labels = [("cmd", command), ("quantile", percent)];
        metrics.add_part(Summary, name, "", help, &labels, us.parse().unwrap_or(f64::NAN));
    }
    for (ending, of) in [("_sum", "usec"), ("_count", "calls")] {
        metrics.add_part(Summary, name, ending, help, &[("cmd", command)], part(stats, of).unwrap_or(0.0));
    }
}

fn of_database(metrics: &mut Metrics, db: &str, line: &str) {
    let labels = [("db", db)];
    let number = |name: &str| part(line, name);
    add(metrics, Gauge, "db_keys", "keys of a database", &labels, number("keys").unwrap_or(0.0));
    add(metrics, Gauge, "db_keys_expiring", "keys of a database that expire", &labels, number("expires").unwrap_or(0.0));
    if let Some(ms) = number("avg_ttl") {
        add(metrics, Gauge, "db_avg_ttl_seconds", "average time to live of the keys that expire", &labels, ms / 1000.0);
    }
    if let Some(count) = number("subexpiry") {
        add(metrics, Gauge, "db_keys_with_expiring_items", "hashes with fields that expire", &labels, count);
    }
}

fn of_replication(metrics: &mut Metrics, info: &str) {
    let text = |name: &str| field(info, name).unwrap_or_default();
    if text("role") == "slave" {
        let master = [("master_host", text("master_host")), ("master_port", text("master_port"))];
        for (name, metric) in [
            ("master_link_status", "master_link_up"),
            ("master_last_io_seconds_ago", "master_last_io_seconds_ago"),
            ("master_sync_in_progress", "master_sync_in_progress"),
            ("slave_repl_offset", "slave_repl_offset"),
        ] {
            if let Some(value) = field(info, name).and_then(value) {
                add(metrics, Gauge, metric, &format!("the field {name} of INFO"), &master, value);
            }
        }
        let labels = [master[0], master[1], ("read_only", text("slave_read_only"))];
        add(metrics, Gauge, "slave_info", "the node that this one follows, by its labels", &labels, 1.0);
    }
    let is_slave = |name: &str| name.strip_prefix("slave").is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()));
    for (_, line) in lines(info).filter(|(name, line)| is_slave(name) && line.starts_with("ip=")) {
        let of = |name| text_part(line, name);
        let labels = [("slave_ip", of("ip")), ("slave_port", of("port")), ("slave_state", of("state"))];
        for (metric, name) in [("connected_slave_offset_bytes", "offset"), ("connected_slave_lag_seconds", "lag")] {
            if let Some(value) = part(line, name) {
                add(metrics, Gauge, metric, "of a node that follows this one", &labels, value);
            }
        }
    }
}

fn of_sentinel(metrics: &mut Metrics, line: &str) {
    let of = |name| text_part(line, name);
    let master = [("master_name", of("name")), ("master_address", of("address"))];
    let labels = [master[0], master[1], ("master_status", of("status"))];
    add(metrics, Gauge, "sentinel_master_status", "the leader, by its labels", &labels, 1.0);
    for (metric, name) in [("sentinel_master_slaves", "slaves"), ("sentinel_master_sentinels", "sentinels")] {
        add(metrics, Gauge, metric, "of the leader", &master, part(line, name).unwrap_or(0.0));
    }
}

/// Adds what `CLUSTER INFO` tells.
pub fn of_cluster(metrics: &mut Metrics, info: &str) {
    for name in OF_CLUSTER.into_iter().chain(["cluster_state"]) {
        if let Some(value) = field(info, name).and_then(value) {
            add(metrics, Gauge, name, "a field of CLUSTER INFO", &[], value);
        }
    }
    for (name, metric) in [
        ("cluster_stats_messages_sent", "cluster_messages_sent_total"),
        ("cluster_stats_messages_received", "cluster_messages_received_total"),
    ] {
        if let Some(value) = field(info, name).and_then(value) {
            add(metrics, Gauge, metric, "a field of CLUSTER INFO", &[], value);
        }
    }
}

/// Adds directives, from the reply to `CONFIG GET`.
pub fn of_config(metrics: &mut Metrics, config: &Value) {
    for (name, metric) in DIRECTIVES {
        let shown = config.field(name).and_then(Value::as_str).and_then(value);
        if let Some(value) = shown {
            add(metrics, Gauge, metric, &format!("the directive {name}"), &[], value);
        }
    }
}

/// Adds the slow log, from the replies to `SLOWLOG LEN` and `SLOWLOG GET 1`.
pub fn of_slowlog(metrics: &mut Metrics, len: &Value, last: &Value) {
    let Some(len) = len.as_integer() else { return };
    add(metrics, Gauge, "slowlog_length", "entries of the slow log", &[], len as f64);
    let entry = last.as_array().and_then(|entries| entries.first()).and_then(Value::as_array);
    let number = |at: usize| entry.and_then(|entry| entry.get(at)).and_then(Value::as_integer).unwrap_or(0) as f64;
    add(metrics, Gauge, "slowlog_last_id", "the number of the last entry of the slow log", &[], number(0));
    add(metrics, Gauge, "last_slow_execution_duration_seconds", "how long the last one took", &[], number(2) / 1e6);
}

/// Adds the latest events of the latency monitor, from the reply to `LATENCY LATEST`.
pub fn of_latency_events(metrics: &mut Metrics, latest: &Value) {
    for event in latest.as_array().unwrap_or_default() {
        let [name, at, ms, ..] = event.as_array().unwrap_or_default() else { continue };
        let labels = [("event_name", name.as_str().unwrap_or_default())];
        let number = |value: &Value| value.as_integer().unwrap_or(0) as f64;
        add(metrics, Gauge, "latency_spike_last", "when an event of latency was recorded last", &labels, number(at));
        add(metrics, Gauge, "latency_spike_duration_seconds", "how long it took", &labels, number(ms) / 1000.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(info: &str) -> String {
        let mut metrics = Metrics::default();
        of_info(&mut metrics, info, 0);
        metrics.text()
    }

    #[track_caller]
    fn has(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|found| found == *line), "{line} in {text}");
        }
    }

    #[test]
    fn the_state_of_a_cluster_is_told() {
        let mut metrics = Metrics::default();
        of_cluster(&mut metrics, "cluster_state:ok\r\ncluster_slots_pfail:0\r\ncluster_slots_fail:3\r\n");
        has(&metrics.text(), &["redis_cluster_state 1", "redis_cluster_slots_pfail 0", "redis_cluster_slots_fail 3"]);
    }

    #[test]
    fn a_follower_and_a_leader_tell_of_each_other() {
        let follower = lines_of(
            "role:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:6379\r\nmaster_link_status:up\r\nmaster_last_io_seconds_ago:1\r\n\
             master_sync_in_progress:0\r\nslave_repl_offset:9\r\nslave_read_only:1\r\nslave_priority:100\r\n",
        );
        has(
            &follower,
            &[
                "redis_master_link_up{master_host=\"10.0.0.1\",master_port=\"6379\"} 1",
                "redis_master_last_io_seconds_ago{master_host=\"10.0.0.1\",master_port=\"6379\"} 1",
                "redis_slave_repl_offset{master_host=\"10.0.0.1\",master_port=\"6379\"} 9",
                "redis_slave_info{master_host=\"10.0.0.1\",master_port=\"6379\",read_only=\"1\"} 1",
                "redis_slave_priority 100",
            ],
        );
        let leader = lines_of(
            "role:master\r\nconnected_slaves:1\r\nslave0:ip=10.0.0.2,port=6379,state=online,offset=8,lag=2\r\n\
             master0:name=mymaster,status=ok,address=10.0.0.1:6379,slaves=1,sentinels=2\r\n",
        );
        let slave = "slave_ip=\"10.0.0.2\",slave_port=\"6379\",slave_state=\"online\"";
        has(
            &leader,
            &[
                &format!("redis_connected_slave_offset_bytes{{{slave}}} 8"),
                &format!("redis_connected_slave_lag_seconds{{{slave}}} 2"),
                "redis_connected_slaves 1",
                "redis_sentinel_master_slaves{master_name=\"mymaster\",master_address=\"10.0.0.1:6379\"} 1",
            ],
        );
        assert!(!leader.contains("redis_master_link_up"), "{leader}");
    }

    #[test]
    fn words_percents_and_lists_are_read() {
        let text = lines_of(
            "rdb_last_bgsave_status:err\r\nexpired_stale_perc:1.50%\r\ncmdstat_config|get:calls=2,usec=30,usec_per_call=15.00,\
             rejected_calls=1,failed_calls=0\r\nlatency_percentiles_usec_config|get:p50=15.1,p99.9=20\r\nerrorstat_ERR:count=4\r\n",
        );
        has(
            &text,
            &[
                "redis_rdb_last_bgsave_status 0",
                "redis_expired_stale_percentage 1.5",
                "redis_commands_duration_seconds_total{cmd=\"config|get\"} 0.00003",
                "redis_commands_rejected_calls_total{cmd=\"config|get\"} 1",
                "redis_latency_percentiles_usec{cmd=\"config|get\",quantile=\"99.9\"} 20",
                "redis_latency_percentiles_usec_sum{cmd=\"config|get\"} 30",
                "redis_errors_total{err=\"ERR\"} 4",
            ],
        );
    }
}
