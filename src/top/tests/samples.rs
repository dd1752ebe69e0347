//! Replies for unit tests.

use bytes::Bytes;
use serde_json::{Value as Json, json};

use crate::client::Value;
use crate::top::facts::{Absence, Answer, Replies};
use crate::top::names::{Name, unescaped};

/// A reply in RESP3 for a JSON value. Text may have `\xNN` escapes.
pub fn reply(json: &Json) -> Value {
    let text = |text: &str| Value::Bytes(Bytes::from(unescaped(text)));
    match json {
        Json::Null => Value::Null,
        Json::Bool(truth) => Value::Boolean(*truth),
        Json::Number(number) => Value::Integer(number.as_i64().unwrap_or(0)),
        Json::String(string) => text(string),
        Json::Array(items) => Value::Array(items.iter().map(reply).collect()),
        Json::Object(fields) => Value::Map(fields.iter().map(|(field, value)| (text(field), reply(value))).collect()),
    }
}

/// The same reply in RESP2, which has no maps, no booleans and no other nil.
pub fn in_resp2(value: Value) -> Value {
    match value {
        Value::Map(pairs) => Value::Array(pairs.into_iter().flat_map(|(field, value)| [field, in_resp2(value)]).collect()),
        Value::Array(items) => Value::Array(items.into_iter().map(in_resp2).collect()),
        Value::Boolean(truth) => Value::Integer(i64::from(truth)),
        value => value,
    }
}

pub fn holder(owner: &str, token: u64, held: u64, lease: u64) -> Json {
    json!({
        "owner": owner, "token": token, "holds": 1, "mode": "exclusive", "lease": lease, "held": held, "session": false,
        "client": 12, "addr": "10.0.0.3:40112", "client-name": "billing", "gone": null, "user": "default", "renewed": 0,
    })
}

pub fn waiters(count: u64, oldest: u64) -> Json {
    let waiter = |at: u64| {
        json!({
            "owner": format!("web-{at}"), "mode": "exclusive", "waited": oldest.saturating_sub(at * 10), "left": null,
            "client": 20 + at, "addr": format!("10.0.0.8:5{at:04}"), "client-name": "",
        })
    };
    (0..count).map(waiter).collect()
}

fn lock(name: &str, kind: &str, holders: Json, count: u64, oldest: u64) -> Json {
    json!({
        "name": name, "kind": kind, "mode": "exclusive", "fence": 7, "oldest-wait": oldest, "holders": holders,
        "waiters": waiters(count, oldest), "granted": 9, "contended": 30, "expired": 1, "last-end": null,
    })
}

pub fn list() -> Json {
    let mut gone = holder("worker-7", 3_676_804_863_340_549, 185_000, 40_000);
    gone["gone"] = json!(125_000);
    let mut broken = lock("nightly", "lock", json!([holder("cron-2", 7, 4_000, 26_000)]), 0, 0);
    broken["last-end"] = json!({
        "event": "broken", "owner": "cron-1", "token": 6, "ago": 4_000, "by": 99, "by-user": "ops", "by-name": "", "reason": "hung",
    });
    let mut key = lock("lock:cart", "string", json!([]), 2, 3_200);
    key["mode"] = json!("free");
    key["writer"] = json!({ "client": 31, "client-name": "web-3", "addr": "10.0.0.9:1000", "gone": 125_000, "user": "default" });
    key["ttl"] = json!(-1);
    key["value"] = json!("1");
    json!([
        lock("order:42", "lock", json!([gone]), 7, 183_000),
        lock("item:7", "lock", json!([holder("web-2", 8, 60_000, 25_000)]), 17, 59_000),
        lock("pool", "semaphore", json!([holder("a", 9, 1_000, 9_000), holder("b", 10, 2_000, 8_000)]), 1, 500),
        key,
        broken,
    ])
}

pub fn graph() -> Json {
    let mut gone = holder("worker-7", 3_676_804_863_340_549, 185_000, 40_000);
    gone["gone"] = json!(125_000);
    let node = |depth: u64, name: &str, via: Json, waiters: u64, oldest: u64, blocked: u64, holders: Json| {
        json!({
            "depth": depth, "name": name, "via": via, "waiters": waiters, "oldest-wait": oldest, "blocked": blocked,
            "holders": holders, "cut": false,
        })
    };
    json!([
        node(0, "order:42", Json::Null, 7, 183_000, 24, json!([gone])),
        node(1, "item:7", json!("web-2"), 14, 59_000, 17, json!([holder("web-2", 8, 60_000, 25_000)])),
        node(2, "item:8", json!("web-5"), 3, 9_000, 3, json!([holder("web-5", 11, 12_000, 1_000)])),
        node(1, "item:9", json!("web-6"), 0, 0, 0, json!([holder("web-6", 13, 12_000, 1_000)])),
        node(0, "lock:cart", Json::Null, 2, 3_200, 2, json!([])),
        node(0, "pool", Json::Null, 1, 500, 1, json!([holder("a", 9, 1_000, 9_000), holder("b", 10, 2_000, 8_000)])),
    ])
}

pub fn stats() -> Json {
    json!({
        "grants": 1000, "waiting": 27, "oldest-wait-ms": 183_000, "held": 6, "longest-hold-ms": 185_000, "expiries": 3,
        "timeouts": 5, "deadlocks-refused": 0, "broken": 1, "wait-us-p50": 900, "wait-us-p99": 1_200_000,
    })
}

const INFO: &str = "# Server\r\nredis_version:7.2.4\r\nprocess_id:77\r\ntcp_port:6379\r\nuptime_in_seconds:10800\r\n\
                    # Portcullis\r\nportcullis_version:0.1.0\r\nrole:master\r\nconnected_clients:41\r\nblocked_clients:3\r\n\
                    instantaneous_ops_per_sec:1200\r\nused_memory_human:1.50M\r\ndb0:keys=5,expires=0\r\ndb3:keys=2,expires=0\r\n";

/// A jam: 24 clients wait for a lock whose holder is gone.
pub fn jam() -> Replies {
    Replies {
        at: "127.0.0.1:6379/0".to_owned(),
        info: Ok(Value::Bytes(Bytes::from_static(INFO.as_bytes()))),
        user: Ok(reply(&json!("default"))),
        list: Ok(reply(&list())),
        owned: Err(Absence::Missing),
        recent: Err(Absence::Missing),
        db: 0,
        graph: Ok(reply(&graph())),
        stats: Ok(reply(&stats())),
        can_break: true,
        detail: None,
    }
}

/// The jam, with one lock in detail.
pub fn jam_in_detail(name: &str) -> Replies {
    let entries = list();
    let lock = entries.as_array().and_then(|locks| locks.iter().find(|lock| lock["name"] == name).cloned());
    let why = json!([
        { "event": "granted", "owner": "worker-6", "client": 11, "ago": 400_000, "token": 5, "waited": 0 },
        { "event": "broken", "owner": "worker-6", "client": 11, "ago": 186_000, "token": 5, "by": 99, "by-user": "ops",
          "by-name": "shell", "by-addr": "10.0.0.1:999", "reason": "deploy" },
        { "event": "granted", "owner": "worker-7", "client": 12, "ago": 185_000, "token": 7, "waited": 90_000 },
    ]);
    let info = lock.map_or(Json::Null, |lock| lock);
    Replies { detail: Some((Name::from(name), Ok(reply(&info)), Ok(reply(&why)))), ..jam() }
}

/// A server of another kind.
pub fn redis() -> Replies {
    let missing = || -> Answer { Err(Absence::Missing) };
    let info = INFO.lines().filter(|line| !line.starts_with("portcullis")).collect::<Vec<_>>().join("\r\n");
    Replies {
        info: Ok(Value::Verbatim(Bytes::from(info))),
        list: missing(),
        graph: missing(),
        stats: missing(),
        can_break: false,
        ..jam()
    }
}
