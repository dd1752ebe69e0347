//! What has happened lately to locks that matters to whoever watches them: broken, expired and abandoned grants, and deadlocks.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value as Reply, json};

use crate::client::{Command, Value};
use crate::http::api::{App, now_ms};
use crate::http::credentials::{DEFAULT, Who};
use crate::http::json;
use crate::http::link::accepted;
use crate::http::trouble::Trouble;

/// Maximum number of events in an answer.
const EVENTS_MAX: usize = 256;

/// An event of `LOCK.RECENT`.
fn shown(event: &Value, now: u64) -> Reply {
    let field = |name: &str| event.field(name).map(json::of).unwrap_or_default();
    let ago = event.field("ago").and_then(Value::as_integer).and_then(|ago| u64::try_from(ago).ok());
    let text = |name: &str| event.field(name).and_then(Value::as_bytes).map(json::text).filter(|text| !text.is_empty());
    // The one who did it: user, name and address of the connection. Its number says nothing once it has ended.
    let user = text("by-user").filter(|user| user != DEFAULT);
    let client = match (text("by-name"), text("by-addr")) {
        (Some(name), Some(addr)) => Some(format!("{name} at {addr}")),
        (name, addr) => name.or(addr),
    };
    let by = match (user, client) {
        (Some(user), Some(client)) => Some(format!("{user}, {client}")),
        (user, client) => user.or(client),
    };
    json!({
        "at": now.saturating_sub(ago.unwrap_or(0)),
        "kind": field("event"),
        "db": field("db"),
        "name": field("name"),
        "owner": field("owner"),
        "by": by,
        "reason": field("reason"),
        "token": field("token"),
    })
}

/// The latest events of all databases, the newest first.
///
/// # Errors
/// The user may not use `LOCK.RECENT`.
pub async fn latest(app: &App, who: &Who) -> Result<Reply, Trouble> {
    let command = Command::new("LOCK.RECENT").arg("COUNT").arg(EVENTS_MAX);
    let reply = accepted(app.link.ask(who, 0, &[command]).await?.pop().unwrap_or(Value::Null))?;
    let now = now_ms();
    Ok(reply.as_array().unwrap_or_default().iter().map(|event| shown(event, now)).collect())
}

/// Handles `/api/recent`.
pub async fn recent(State(app): State<Arc<App>>, who: Who) -> Result<Json<Reply>, Trouble> {
    let events = latest(&app, &who).await?;
    Ok(Json(json!({ "now": now_ms(), "events": events })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_their_time_and_who_did_it() {
        let pair = |name: &'static str, value: Value| (Value::Status(name.into()), value);
        let text = |text: &'static str| Value::Status(text.into());
        let event = |by_name: &'static str, by_user: &'static str, by_addr: &'static str| {
            Value::Map(vec![
                pair("event", text("broken")),
                pair("db", Value::Integer(2)),
                pair("name", text("a")),
                pair("owner", text("o")),
                pair("ago", Value::Integer(40)),
                pair("by", Value::Integer(7)),
                pair("by-name", text(by_name)),
                pair("by-user", text(by_user)),
                pair("by-addr", text(by_addr)),
            ])
        };
        let expected = |by: Reply| json!({ "at": 960, "kind": "broken", "db": 2, "name": "a", "owner": "o", "by": by, "reason": null, "token": null });
        assert_eq!(shown(&event("", "alice", ""), 1000), expected(json!("alice")));
        assert_eq!(shown(&event("desk", "alice", "10.0.0.5:4711"), 1000), expected(json!("alice, desk at 10.0.0.5:4711")));
        assert_eq!(shown(&event("desk", "default", "10.0.0.5:4711"), 1000), expected(json!("desk at 10.0.0.5:4711")));
        assert_eq!(shown(&event("", "default", "10.0.0.5:4711"), 1000), expected(json!("10.0.0.5:4711")));
    }
}
