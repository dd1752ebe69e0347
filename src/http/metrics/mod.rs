//! `/metrics`: the server's figures in the text format of Prometheus.

mod exporter;
mod locks;
mod text;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use crate::client::{Command, Value};
use crate::http::api::App;
use crate::http::credentials::Who;
use crate::http::figures::{field, lines};
use crate::http::link::accepted;
use crate::http::metrics::text::Kind::{Counter, Gauge, Summary};
use crate::http::metrics::text::Metrics;
use crate::http::trouble::Trouble;

const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Maximum number of databases whose locks are looked at.
const DATABASES_MAX: usize = 16;
/// The number of databases where the user may not ask for it: the default of the directive.
const DATABASES: u32 = 16;
/// Maximum number of databases with series of their own while they are empty.
const DATABASES_SHOWN: u32 = 256;

/// Handles `/metrics`. A server that does not answer is down, which is a metric; a user that it refuses is refused.
pub async fn metrics(State(app): State<Arc<App>>, who: Who) -> Response {
    let started = Instant::now();
    let mut metrics = Metrics::default();
    let scraped = scrape(&app, &who, &mut metrics).await;
    let took_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    let error = match scraped {
        Ok(()) => String::new(),
        Err(trouble) if trouble.status.is_server_error() => trouble.text,
        Err(trouble) => {
            app.scrapes_refused.fetch_add(1, Relaxed);
            return trouble.into_response();
        }
    };
    about_scrapes(&app, &mut metrics, &error, took_us);
    ([(CONTENT_TYPE, TYPE)], metrics.text()).into_response()
}

/// Adds what redis_exporter tells of itself.
fn about_scrapes(app: &App, metrics: &mut Metrics, error: &str, took_us: u64) {
    let count = app.scrapes.fetch_add(1, Relaxed) + 1;
    let sum_us = app.scrapes_us.fetch_add(took_us, Relaxed) + took_us;
    let seconds = |us: u64| us as f64 / 1e6;
    let failed = f64::from(u8::from(!error.is_empty()));
    metrics.add(Gauge, "redis_up", "Whether the server answers.", 1.0 - failed);
    let (name, help) = ("redis_exporter_last_scrape_error", "Whether this scrape failed, and why.");
    metrics.add_with(Gauge, name, help, &[("err", error)], failed);
    let (name, help) = ("redis_exporter_last_scrape_duration_seconds", "How long this scrape took.");
    metrics.add(Gauge, name, help, seconds(took_us));
    // There is nothing to connect to: the endpoint is a part of the server.
    let (name, help) = ("redis_exporter_last_scrape_connect_time_seconds", "Always 0: the endpoint is a part of the server.");
    metrics.add(Gauge, name, help, 0.0);
    let (name, help) = ("redis_last_key_groups_scrape_duration_milliseconds", "Always 0: keys are not grouped.");
    metrics.add(Gauge, name, help, 0.0);
    metrics.add(Counter, "redis_exporter_scrapes_total", "Scrapes.", count as f64);
    let (name, help) = ("redis_target_scrape_request_errors_total", "Scrapes that were refused.");
    metrics.add(Counter, name, help, app.scrapes_refused.load(Relaxed) as f64);
    let (name, help) = ("redis_exporter_scrape_duration_seconds", "How long scrapes took.");
    metrics.add_part(Summary, name, "_sum", help, &[], seconds(sum_us));
    metrics.add_part(Summary, name, "_count", help, &[], count as f64);
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("commit_sha", ""), ("build_date", ""), ("golang_version", "")];
    metrics.add_with(Gauge, "redis_exporter_build_info", "The endpoint, by its labels.", &labels, 1.0);
}

/// Asks the server. What the user may not ask is left out, except `INFO`.
async fn scrape(app: &App, who: &Who, metrics: &mut Metrics) -> Result<(), Trouble> {
    let commands = [
        Command::new("INFO").arg("ALL"),
        Command::new("CONFIG").arg("GET").arg("databases").arg("io-threads").arg("maxclients").arg("maxmemory"),
        Command::new("SLOWLOG").arg("LEN"),
        Command::new("SLOWLOG").arg("GET").arg(1),
        Command::new("LATENCY").arg("LATEST"),
    ];
    let mut replies = app.link.ask(who, 0, &commands).await?.into_iter();
    let mut next = || replies.next().unwrap_or(Value::Null);
    let info = accepted(next())?;
    let info = String::from_utf8_lossy(info.as_bytes().unwrap_or_default()).into_owned();
    let config = next();
    let databases = config.field("databases").and_then(Value::as_integer).and_then(|count| u32::try_from(count).ok());
    let in_cluster = field(&info, "cluster_enabled") == Some("1");
    let databases = if in_cluster { 1 } else { databases.unwrap_or(DATABASES).min(DATABASES_SHOWN) };
    exporter::of_info(metrics, &info, databases);
    exporter::of_config(metrics, &config);
    exporter::of_slowlog(metrics, &next(), &next());
    exporter::of_latency_events(metrics, &next());
    locks::of_info(metrics, &info);
    // What the server would refuse in its present role is not asked: it counts errors.
    if in_cluster {
        let cluster = app.link.ask(who, 0, &[Command::new("CLUSTER").arg("INFO")]).await?;
        let text = cluster.first().and_then(Value::as_bytes).unwrap_or_default();
        exporter::of_cluster(metrics, &String::from_utf8_lossy(text));
    }
    if field(&info, "role") == Some("master") && field(&info, "loading") == Some("0") {
        let stats = app.link.ask(who, 0, &[Command::new("LOCK.STATS")]).await?;
        stats.iter().for_each(|stats| locks::of_stats(metrics, stats));
    }
    if app.metrics_locks > 0 {
        let found = contended(app, who, &info).await;
        locks::of_contended(metrics, found, app.metrics_locks);
    }
    Ok(())
}

/// The locks with waiters, of the databases that the user may see.
async fn contended(app: &App, who: &Who, info: &str) -> Vec<locks::Contended> {
    let mut found = Vec::new();
    let numbers = lines(info).filter_map(|(name, _)| name.strip_prefix("db")?.parse::<u32>().ok());
    for db in numbers.take(DATABASES_MAX) {
        let replies = app.link.ask(who, db, &locks::commands(app.metrics_locks)).await.unwrap_or_default();
        found.extend(replies.iter().flat_map(|list| locks::contended(db, list)));
    }
    found
}
