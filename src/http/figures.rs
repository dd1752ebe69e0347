//! The figures of a server: what is waiting, how long, and how much the server does, now and in the last quarter of an hour.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value as Reply, json};

use crate::client::{Command, Value};
use crate::http::api::{App, now_ms};
use crate::http::credentials::Who;
use crate::http::json;
use crate::http::link::accepted;
use crate::http::trouble::Trouble;

/// Seconds between two points of the history.
pub const EVERY: u64 = 5;
/// Maximum number of points: those of a quarter of an hour.
const POINTS_MAX: usize = 180;

/// The fields of `LOCK.STATS` that are figures under the same names.
#[rustfmt::skip]
const OF_LOCKS: [&str; 15] = [
    "waiting", "contended", "oldest-wait-ms", "longest-hold-ms", "held", "grants", "queued-grants", "releases", "expiries",
    "timeouts", "deadlocks-refused", "broken", "session-ends-held", "wait-us-p50", "wait-us-p99",
];
/// The fields of `INFO` that are figures, with their names.
const OF_INFO: [(&str, &str); 4] = [
    ("ops", "instantaneous_ops_per_sec"),
    ("clients", "connected_clients"),
    ("memory", "used_memory"),
    ("turn-max-us", "turn_longest_usec"),
];
/// The curves of the history, with the figures that they show.
const CURVES: [(&str, &str); 4] =
    [("waiting", "waiting"), ("oldest-wait-ms", "oldest-wait-ms"), ("ops", "ops"), ("p99-us", "wait-us-p99")];

/// Earlier figures, the oldest first.
#[derive(Default)]
pub struct History {
    points: VecDeque<[Reply; CURVES.len()]>,
}

impl History {
    fn add(&mut self, figures: &Reply) {
        self.points.push_back(CURVES.map(|(_, name)| figures.get(name).cloned().unwrap_or_default()));
        let excess = self.points.len().saturating_sub(POINTS_MAX);
        self.points.drain(..excess);
    }

    fn show(&self) -> Reply {
        let curve = |at: usize| self.points.iter().map(|point| point[at].clone()).collect::<Reply>();
        let curves = CURVES.iter().enumerate().map(|(at, (name, _))| ((*name).to_owned(), curve(at)));
        let mut shown: Map<String, Reply> = curves.collect();
        shown.insert("every".to_owned(), EVERY.into());
        Reply::Object(shown)
    }
}

/// The lines of `INFO`.
pub fn lines(info: &str) -> impl Iterator<Item = (&str, &str)> {
    info.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(':'))
}

/// A field of `INFO`.
pub fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    lines(info).find(|(field, _)| *field == name).map(|(_, value)| value)
}

/// The number of keys in all databases.
fn keys(info: &str) -> u64 {
    let is_db = |name: &str| name.strip_prefix("db").is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()));
    let count = |value: &str| value.strip_prefix("keys=")?.split(',').next()?.parse::<u64>().ok();
    lines(info).filter(|(name, _)| is_db(name)).filter_map(|(_, value)| count(value)).sum()
}

/// The figures. One that the server does not know is null.
fn of(info: &str, stats: &Value) -> Reply {
    let of_locks = OF_LOCKS.iter().map(|name| (*name, stats.field(name).map(json::of).unwrap_or_default()));
    let number = |field_name: &str| field(info, field_name).and_then(|value| value.parse::<u64>().ok());
    let of_info = OF_INFO.iter().map(|(name, field)| (*name, number(field).into()));
    let all = of_locks.chain(of_info).chain([("keys", keys(info).into())]);
    Reply::Object(all.map(|(name, value)| (name.to_owned(), value)).collect())
}

/// What figures are made of.
struct Sources {
    /// The reply to `INFO`.
    info: String,
    /// The reply to `LOCK.STATS`; null where locks are not served.
    stats: Value,
    /// The reply to `NODE STATUS`; null for a server on its own, or for a user who may not ask.
    nodes: Value,
}

impl Sources {
    /// Asks the server as a user, or as nobody who could be refused. What the server would refuse in its present role is not asked:
    /// it counts errors.
    async fn ask(app: &App, who: Option<&Who>) -> Result<Sources, Trouble> {
        let ask = async |command| accepted(app.link.ask_as(who, 0, &[command]).await?.pop().unwrap_or(Value::Null));
        let info = ask(Command::new("INFO")).await?;
        let info = String::from_utf8_lossy(info.as_bytes().unwrap_or_default()).into_owned();
        let serves_locks = field(&info, "role") == Some("master") && field(&info, "loading") != Some("1");
        let stats = if serves_locks { ask(Command::new("LOCK.STATS")).await? } else { Value::Null };
        let nodes = match is_node(&info) {
            true => ask(Command::new("NODE").arg("STATUS")).await.unwrap_or(Value::Null),
            false => Value::Null,
        };
        Ok(Sources { info, stats, nodes })
    }
}

/// Whether the server is one of several nodes: only those have the section of Sentinel.
fn is_node(info: &str) -> bool {
    field(info, "sentinel_masters").is_some()
}

/// The answer about figures.
///
/// # Errors
/// The server refuses the user `INFO` or `LOCK.STATS`, or does not answer.
pub async fn answer(app: &App, who: &Who) -> Result<Reply, Trouble> {
    let Sources { info, stats, nodes } = Sources::ask(app, Some(who)).await?;
    let text = |name: &str| field(&info, name).unwrap_or_default();
    let number = |name: &str| field(&info, name).and_then(|value| value.parse::<u64>().ok());
    let history = app.history.lock().unwrap_or_else(PoisonError::into_inner).show();
    Ok(json!({
        "now": now_ms(),
        "figures": of(&info, &stats),
        "history": history,
        "server": {
            "version": text("portcullis_version"),
            "pid": number("process_id"),
            "uptime": number("uptime_in_seconds"),
            "role": text("role"),
            "port": number("tcp_port"),
            "node-id": nodes.field("node").map(json::of),
            "node-role": nodes.field("role").map(json::of),
            "user": who.name(),
        },
        "cluster": cluster(&nodes),
    }))
}

/// The nodes of a cluster, from `NODE STATUS`; null for a server on its own.
fn cluster(status: &Value) -> Reply {
    let Some(nodes) = status.field("nodes").and_then(Value::as_array) else { return Reply::Null };
    let number = |of: &Value, name: &str| of.field(name).and_then(Value::as_integer).unwrap_or(0);
    let (me, leader, committed) = (number(status, "node"), number(status, "leader"), number(status, "committed"));
    let show = |node: &Value| {
        let id = number(node, "id");
        let is_up = id == me || node.field("link").and_then(Value::as_str) == Some("up");
        // A node names the last leader that it knows until there is another one, also while that is dead.
        let role = match id {
            _ if !is_up => "unreachable",
            id if id == leader => "leader",
            _ => "follower",
        };
        let known = |name: &str| node.field(name).and_then(Value::as_integer).filter(|known| *known >= 0);
        // How long it has not been heard of, in milliseconds.
        let lag = if id == me { Some(0) } else { known("heard-ms") };
        // Only the leader knows how much of the log the others have.
        let has = if id == me { known("index").or(Some(number(status, "applied"))) } else { known("index") };
        let behind = has.map(|index| committed.saturating_sub(index).max(0));
        let host = node.field("host").and_then(Value::as_str).unwrap_or_default();
        let port = match (number(node, "port"), number(node, "tls-port")) {
            (0, port) | (port, _) => port,
        };
        json!({
            "node": id,
            "role": role,
            "vote": node.field("vote").and_then(Value::as_str) == Some("yes"),
            "last-leader": id == leader,
            "lag": lag,
            "behind": behind,
            "addr": format!("{host}:{port}"),
        })
    };
    nodes.iter().map(show).collect()
}

/// Handles `/api/figures`.
pub async fn figures(State(app): State<Arc<App>>, who: Who) -> Result<Json<Reply>, Trouble> {
    answer(&app, &who).await.map(Json)
}

/// Adds the present figures to the history.
pub async fn record(app: &App) {
    // A server that does not answer leaves a gap, which keeps the steps even.
    let figures = Sources::ask(app, None).await.map_or(Reply::Null, |sources| of(&sources.info, &sources.stats));
    app.history.lock().unwrap_or_else(PoisonError::into_inner).add(&figures);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_come_from_both_replies_and_unknown_ones_are_null() {
        let info = "# Stats\r\ninstantaneous_ops_per_sec:7\r\nused_memory:1024\r\n# Keyspace\r\ndb0:keys=2,expires=1\r\ndb12:keys=3,\
                    expires=0\r\ndbsize:9\r\n";
        let stats = Value::Map(vec![(Value::Status("grants".into()), Value::Integer(4))]);
        let figures = of(info, &stats);
        assert_eq!((&figures["ops"], &figures["memory"], &figures["keys"]), (&json!(7), &json!(1024), &json!(5)));
        assert_eq!((&figures["grants"], &figures["broken"]), (&json!(4), &Reply::Null));
    }

    #[test]
    fn the_history_is_bounded_and_begins_with_the_oldest() {
        let mut history = History::default();
        (0..200).for_each(|ops| history.add(&json!({ "ops": ops })));
        let shown = history.show();
        let ops = shown["ops"].as_array().map(|ops| (ops.len(), ops[0].clone(), ops[179].clone()));
        assert_eq!(ops, Some((180, json!(20), json!(199))));
        assert_eq!(shown["every"], 5);
    }

    #[test]
    fn nodes_are_shown_with_their_roles_and_lags() {
        let pair = |name: &'static str, value: Value| (Value::Status(name.into()), value);
        let text = |text: &'static str| Value::Status(text.into());
        let node = |id: i64, link: &'static str, heard_ms: i64, index: i64| {
            Value::Map(vec![
                pair("id", Value::Integer(id)),
                pair("host", text("10.0.0.1")),
                pair("port", Value::Integer(6379)),
                pair("vote", text("yes")),
                pair("link", text(link)),
                pair("heard-ms", Value::Integer(heard_ms)),
                pair("index", Value::Integer(index)),
            ])
        };
        let status = |me: i64, leader: i64, nodes: Vec<Value>| {
            Value::Map(vec![
                pair("node", Value::Integer(me)),
                pair("leader", Value::Integer(leader)),
                pair("committed", Value::Integer(9)),
                pair("applied", Value::Integer(8)),
                pair("nodes", Value::Array(nodes)),
            ])
        };
        let told = |shown: &Reply, at: usize| {
            let node = &shown[at];
            (node["role"].clone(), node["lag"].clone(), node["behind"].clone(), node["last-leader"].clone())
        };
        let shown = cluster(&status(1, 1, vec![node(1, "up", -1, 12), node(2, "up", 7, 4), node(3, "down", -1, -1)]));
        assert_eq!(told(&shown, 0), (json!("leader"), json!(0), json!(0), json!(true)));
        assert_eq!(told(&shown, 1), (json!("follower"), json!(7), json!(5), json!(false)));
        assert_eq!(told(&shown, 2), (json!("unreachable"), Reply::Null, Reply::Null, json!(false)));
        // The last leader that a follower knows may be dead.
        let shown = cluster(&status(2, 1, vec![node(1, "down", 8000, -1), node(2, "down", -1, -1)]));
        assert_eq!(told(&shown, 0), (json!("unreachable"), json!(8000), Reply::Null, json!(true)));
        assert_eq!(told(&shown, 1), (json!("follower"), json!(0), json!(1), json!(false)));
        assert_eq!(cluster(&Value::Null), Reply::Null);
    }
}
