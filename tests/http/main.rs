//! The HTTP endpoint, as any client of HTTP sees it.
//!
//! - `client`: requests and their answers, byte by byte;
//! - `access`: who is let in, and what other sites cannot do;
//! - `api`: what the page about locks is told;
//! - `events`: streams of server-sent events;
//! - `health`: health while a server loads, is busy or has no leader;
//! - `limits`: bounds of requests and connections;
//! - `metrics`: the names of redis_exporter, and the metrics of locks;
//! - `monitoring`: the dashboard and the alerts of the guide;
//! - `neighbours`: what users see of the locks of others;
//! - `tls`: HTTP over TLS.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod access;
mod api;
mod client;
mod events;
mod health;
mod limits;
mod metrics;
mod monitoring;
mod neighbours;
mod tls;
