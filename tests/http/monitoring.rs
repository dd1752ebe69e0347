//! The dashboard and the alerts of the guide name only metrics that exist.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::common::servers::on_path;
use crate::metrics::of_a_busy_server;

const DASHBOARD: &str = include_str!("../../guide/monitoring/dashboard.json");
const ALERTS: &str = include_str!("../../guide/monitoring/alerts.yml");

/// The names of metrics in an expression, without the endings of histograms.
fn names(expression: &str) -> Vec<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("redis_") || word.starts_with("portcullis_"));
    ours.map(|name| name.strip_suffix("_bucket").unwrap_or(name).to_owned()).collect()
}

/// All texts under a key, at any depth.
fn texts(value: &Value, key: &str, found: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| texts(item, key, found)),
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == key => found.push(text.clone()),
                    value => texts(value, key, found),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn every_metric_of_the_dashboard_and_of_the_alerts_exists() {
    let (_, metrics) = of_a_busy_server();
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut expressions = Vec::new();
    texts(&dashboard, "expr", &mut expressions);
    texts(&dashboard, "definition", &mut expressions);
    assert!(expressions.len() > 30, "the dashboard has queries");
    let rules = ALERTS.lines().filter_map(|line| line.trim_start().strip_prefix("expr: ")).map(str::to_owned);
    let before = expressions.len();
    expressions.extend(rules);
    assert!(expressions.len() > before + 10, "the alerts have conditions");
    let mut named = BTreeSet::new();
    for expression in &expressions {
        let found = names(expression);
        assert!(!found.is_empty(), "{expression} names no metric");
        named.extend(found);
    }
    let missing: Vec<&String> = named.iter().filter(|name| !metrics.contains_key(*name)).collect();
    assert!(missing.is_empty(), "{missing:?} are not on /metrics");
}

/// What the dashboards and the alerts of redis_exporter's repository ask for. Not here: what only a node of a cluster or a follower
/// has (unit tests of the metrics look at it), and names of recording rules.
const ASKED_FOR: [&str; 20] = [
    "redis_blocked_clients",
    "redis_command_calls_total",
    "redis_commands_duration_seconds_total",
    "redis_commands_total",
    "redis_connected_clients",
    "redis_connected_slaves",
    "redis_db_keys",
    "redis_db_keys_expiring",
    "redis_evicted_keys_total",
    "redis_expired_keys_total",
    "redis_keyspace_hits_total",
    "redis_keyspace_misses_total",
    "redis_memory_max_bytes",
    "redis_memory_used_bytes",
    "redis_memory_used_rss_bytes",
    "redis_net_input_bytes_total",
    "redis_net_output_bytes_total",
    "redis_total_system_memory_bytes",
    "redis_up",
    "redis_uptime_in_seconds",
];

#[test]
fn what_dashboards_and_alerts_made_for_redis_exporter_ask_for_is_there() {
    let (text, metrics) = of_a_busy_server();
    for name in ASKED_FOR {
        assert!(metrics.contains_key(name), "{name} is not on /metrics");
        let has_value = |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        assert!(text.lines().any(has_value), "{name} has no value");
    }
}

#[test]
fn panels_have_numbers_of_their_own_and_do_not_overlap() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let place = |panel: &Value| ["x", "y", "w", "h"].map(|name| panel["gridPos"][name].as_u64().unwrap());
    for (at, panel) in panels.iter().enumerate() {
        let [x, y, w, h] = place(panel);
        assert!(x + w <= 24, "{}", panel["title"]);
        for other in &panels[at + 1..] {
            let [ox, oy, ow, oh] = place(other);
            let apart = x + w <= ox || ox + ow <= x || y + h <= oy || oy + oh <= y;
            assert!(apart, "{} and {}", panel["title"], other["title"]);
        }
    }
}

#[test]
fn promtool_accepts_the_alerts() {
    let Some(promtool) = on_path("promtool") else { return };
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/guide/monitoring/alerts.yml");
    let check = Command::new(promtool).args(["check", "rules", path]).output().unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}
