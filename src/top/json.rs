//! A look at a server as JSON, with the field names of the replies.

use serde_json::{Map, Value as Json, json};

use crate::client::Value;
use crate::top::facts::{Answer, Facts, Replies};
use crate::top::names::for_json;

/// Fields that are maps, and fields that are arrays of maps. RESP2 does not tell a map from an array.
const MAPS: [&str; 4] = ["last-end", "writer", "fields", "elsewhere"];
const ARRAYS_OF_MAPS: [&str; 2] = ["holders", "waiters"];

/// The look. What the server cannot tell is null, and `missing` names the command.
pub fn json(replies: &Replies) -> Json {
    let server = Facts::of(replies).server;
    let absent = |(name, answer): (&'static str, &Answer)| answer.is_err().then_some(name);
    let answers = [
        ("LOCK.LIST", &replies.list),
        ("LOCK.GRAPH", &replies.graph),
        ("LOCK.STATS", &replies.stats),
        ("LOCK.RECENT", &replies.recent),
    ];
    let mut missing: Vec<&str> = answers.into_iter().filter_map(absent).collect();
    if !replies.can_break {
        missing.push("LOCK.BREAK");
    }
    json!({
        "server": {
            "at": server.at,
            "product": server.product,
            "version": server.version,
            "pid": server.pid,
            "uptime": server.uptime_s,
            "role": server.role,
            "port": server.port,
            "user": for_json(&server.user.0),
            "missing": missing,
        },
        "locks": of_maps(&replies.list),
        "graph": of_maps(&replies.graph),
        "recent": of_maps(&replies.recent),
        "stats": replies.stats.as_ref().map_or(Json::Null, object),
    })
}

fn of_maps(answer: &Answer) -> Json {
    answer.as_ref().map_or(Json::Null, array_of_maps)
}

fn array_of_maps(reply: &Value) -> Json {
    reply.as_array().map_or(Json::Null, |maps| maps.iter().map(object).collect())
}

/// A map of either protocol.
fn object(reply: &Value) -> Json {
    let mut fields = Map::new();
    let mut put = |field: &Value, value: &Value| {
        let field = for_json(field.as_bytes().unwrap_or_default());
        let value = match field.as_str() {
            name if MAPS.contains(&name) && !value.is_null() => object(value),
            name if ARRAYS_OF_MAPS.contains(&name) => match value {
                // In LOCK.GRAPH, `waiters` is a number.
                Value::Integer(_) => plain(value),
                _ => array_of_maps(value),
            },
            _ => plain(value),
        };
        fields.insert(field, value);
    };
    match reply {
        Value::Map(pairs) => pairs.iter().for_each(|(field, value)| put(field, value)),
        _ => reply.as_array().unwrap_or_default().chunks_exact(2).for_each(|pair| put(&pair[0], &pair[1])),
    }
    Json::Object(fields)
}

fn plain(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Integer(number) => json!(number),
        Value::Double(number) => json!(number),
        Value::Boolean(truth) => json!(truth),
        Value::Map(_) => object(value),
        Value::Error(error) => json!(error.text()),
        _ => match (value.as_array(), value.as_bytes()) {
            (Some(items), _) => items.iter().map(plain).collect(),
            (None, Some(bytes)) => json!(for_json(bytes)),
            (None, None) => Json::Null,
        },
    }
}
