//! The routes, and what they share; the answers of `/api` about locks.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Extension, Json, Router, middleware};
use serde_json::{Value as Reply, json};
use tokio::sync::Semaphore;

use crate::client::{Command, Value};
use crate::http::credentials::Who;
use crate::http::events::Hub;
use crate::http::figures::{EVERY, History};
use crate::http::link::{Inside, Link, accepted};
use crate::http::trouble::Trouble;
use crate::http::{events, figures, gate, health, json, metrics, page, recent};

/// Maximum number of bytes of a request's body.
const BODY_MAX: usize = 8 << 10;
/// Maximum number of connections at a time.
pub const CONNECTIONS_MAX: usize = 64;
/// Maximum number of connections whose logins wait: the others are for clients who guess nothing.
pub const LOGINS_MAX: usize = CONNECTIONS_MAX / 2;
/// Default and maximum number of locks or nodes in an answer.
const COUNT: u64 = 100;
const COUNT_MAX: u64 = 200;
/// Maximum number of holders, and of waiters, that are shown of each lock in a list.
const SHOWN_MAX: u64 = 20;

/// What all requests share.
pub struct App {
    pub link: Link,
    /// The host name that the endpoint is bound by, if it is not an address.
    pub name: Option<String>,
    /// Whether it is HTTP over TLS.
    pub encrypted: bool,
    /// Whether clients of other machines reach it.
    pub beyond_loopback: bool,
    /// Maximum number of locks with metrics of their own.
    pub metrics_locks: usize,
    pub history: Mutex<History>,
    pub hub: Mutex<Hub>,
    /// Places for logins that wait because others from their address have failed.
    pub logins: Semaphore,
    /// Number of scrapes, and of microseconds that they took.
    pub scrapes: AtomicU64,
    pub scrapes_us: AtomicU64,
    /// Number of scrapes that were refused.
    pub scrapes_refused: AtomicU64,
}

impl App {
    pub fn new(
        inside: Arc<dyn Inside>,
        name: Option<String>,
        encrypted: bool,
        beyond_loopback: bool,
        metrics_locks: usize,
    ) -> App {
        App {
            link: Link::new(inside),
            name,
            encrypted,
            beyond_loopback,
            metrics_locks,
            history: Mutex::default(),
            hub: Mutex::default(),
            logins: Semaphore::new(LOGINS_MAX),
            scrapes: AtomicU64::new(0),
            scrapes_us: AtomicU64::new(0),
            scrapes_refused: AtomicU64::new(0),
        }
    }
}

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(page::page))
        .route("/metrics", get(metrics::metrics))
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .route("/api/locks", get(locks))
        .route("/api/lock", get(lock))
        .route("/api/graph", get(graph))
        .route("/api/break", post(break_grant))
        .route("/api/figures", get(figures::figures))
        .route("/api/recent", get(recent::recent))
        .route("/api/events", get(events::events))
        .fallback(async || Trouble::new(StatusCode::NOT_FOUND, "there is nothing at this path"))
        .method_not_allowed_fallback(async || Trouble::new(StatusCode::METHOD_NOT_ALLOWED, "the path takes another method"))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), gate::pass))
        .with_state(app)
}

/// The routes of a connection beyond the maximum.
pub fn health_router(app: Arc<App>) -> Router {
    Router::new()
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .fallback(async || Trouble::unavailable(format!("{CONNECTIONS_MAX} connections are open already")))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), gate::pass))
        .with_state(app)
}

/// Keeps the history of the figures for as long as the endpoint runs.
pub async fn watch(app: Arc<App>) {
    let mut every = tokio::time::interval(Duration::from_secs(EVERY));
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        every.tick().await;
        figures::record(&app).await;
    }
}

/// The parameters of a query.
#[derive(Clone, Debug, Default)]
pub struct Parameters(HashMap<String, String>);

impl Parameters {
    /// Parameters with these names and values.
    pub fn new(given: HashMap<String, String>) -> Parameters {
        Parameters(given)
    }

    /// The bytes of a name or pattern, if given.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        self.0.get(name).filter(|text| !text.is_empty()).map(|text| json::bytes(text))
    }

    /// A number, if given.
    pub fn number(&self, name: &str) -> Result<Option<u64>, Trouble> {
        let given = self.0.get(name).filter(|text| !text.is_empty());
        let read = |text: &String| text.parse().map_err(|_| Trouble::wrong(format!("{name} is not a number from 0")));
        given.map(read).transpose()
    }

    /// Whether a switch is given, and is not `0`.
    pub fn is_set(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|text| text != "0" && text != "false")
    }

    /// The database.
    pub fn db(&self) -> Result<u32, Trouble> {
        let db = self.number("db")?.unwrap_or(0);
        u32::try_from(db).map_err(|_| Trouble::wrong("ERR DB index is out of range"))
    }

    /// The maximum number of locks or nodes.
    fn count(&self) -> Result<u64, Trouble> {
        Ok(self.number("count")?.unwrap_or(COUNT).clamp(1, COUNT_MAX))
    }

    /// They, in an order that is the same for the same parameters.
    pub fn sorted(&self) -> Vec<(String, String)> {
        let mut all: Vec<_> = self.0.clone().into_iter().collect();
        all.sort();
        all
    }
}

/// Unix time in milliseconds.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// `LOCK.LIST` with the conditions of a query.
pub fn list_command(asked: &Parameters) -> Result<Command, Trouble> {
    let mut command = Command::new("LOCK.LIST");
    if asked.is_set("contended") {
        command = command.arg("CONTENDED");
    }
    for (name, word) in [("match", "MATCH"), ("owner", "OWNER"), ("kind", "KIND")] {
        if let Some(value) = asked.bytes(name) {
            command = command.arg(word).arg(value);
        }
    }
    for (name, word) in [("waiting", "WAITING"), ("held", "HELD")] {
        if let Some(value) = asked.number(name)? {
            command = command.arg(word).arg(value);
        }
    }
    Ok(command.arg("SHOW").arg(SHOWN_MAX).arg("COUNT").arg(asked.count()?))
}

async fn locks(
    State(app): State<Arc<App>>,
    who: Who,
    Query(asked): Query<HashMap<String, String>>,
) -> Result<Json<Reply>, Trouble> {
    let asked = Parameters::new(asked);
    let db = asked.db()?;
    let reply = one(app.link.ask(&who, db, &[list_command(&asked)?]).await?)?;
    Ok(Json(json!({ "now": now_ms(), "locks": json::of(&reply) })))
}

async fn lock(
    State(app): State<Arc<App>>,
    who: Who,
    Query(asked): Query<HashMap<String, String>>,
) -> Result<Json<Reply>, Trouble> {
    let asked = Parameters::new(asked);
    let name = asked.bytes("name").ok_or_else(|| Trouble::wrong("the parameter name is missing"))?;
    let commands = ["LOCK.INFO", "LOCK.WHY"].map(|command| Command::new(command).arg(&name));
    let mut replies = app.link.ask(&who, asked.db()?, &commands).await?.into_iter();
    let mut next = || accepted(replies.next().unwrap_or(Value::Null));
    let (lock, events) = (next()?, next()?);
    Ok(Json(json!({ "now": now_ms(), "lock": json::of(&lock), "events": json::of(&events) })))
}

/// `LOCK.GRAPH` of a query.
pub fn graph_command(asked: &Parameters) -> Result<Command, Trouble> {
    let command = Command::new("LOCK.GRAPH");
    let command = if let Some(name) = asked.bytes("name") { command.arg(name) } else { command };
    Ok(command.arg("COUNT").arg(asked.count()?))
}

async fn graph(
    State(app): State<Arc<App>>,
    who: Who,
    Query(asked): Query<HashMap<String, String>>,
) -> Result<Json<Reply>, Trouble> {
    let asked = Parameters::new(asked);
    let reply = one(app.link.ask(&who, asked.db()?, &[graph_command(&asked)?]).await?)?;
    Ok(Json(json!({ "now": now_ms(), "nodes": json::of(&reply) })))
}

/// Ends a grant. A page of another site cannot send the header without being asked first, which this endpoint never answers.
async fn break_grant(
    State(app): State<Arc<App>>,
    Extension(from): Extension<SocketAddr>,
    who: Who,
    headers: HeaderMap,
    body: Result<Json<Reply>, JsonRejection>,
) -> Result<Json<Reply>, Trouble> {
    if headers.get("x-portcullis").is_none_or(|value| value != "1") {
        return Err(Trouble::forbidden("the header X-Portcullis: 1 is missing"));
    }
    let Json(body) = body.map_err(|rejection| Trouble::new(rejection.status(), rejection.body_text()))?;
    let wrong = |what: &str| Trouble::wrong(format!("{what} is missing or of another type"));
    let name = body.get("name").and_then(Reply::as_str).map(json::bytes).ok_or_else(|| wrong("name"))?;
    let token = body.get("token").and_then(Reply::as_u64).ok_or_else(|| wrong("token"))?;
    let db = match body.get("db") {
        None => 0,
        Some(db) => db.as_u64().and_then(|db| u32::try_from(db).ok()).ok_or_else(|| wrong("db"))?,
    };
    let mut command = Command::new("LOCK.BREAK").arg(&name).arg("TOKEN").arg(token);
    match body.get("reason") {
        None | Some(Reply::Null) => {}
        Some(Reply::String(reason)) if reason.is_empty() => {}
        Some(Reply::String(reason)) => command = command.arg("REASON").arg(reason),
        Some(_) => return Err(wrong("reason")),
    }
    let broken = one(app.link.ask_for(from, &who, db, &[command]).await?)?;
    Ok(Json(json!({ "broken": broken.as_integer() == Some(1) })))
}

/// The only reply.
fn one(mut replies: Vec<Value>) -> Result<Value, Trouble> {
    accepted(replies.pop().unwrap_or(Value::Null))
}
