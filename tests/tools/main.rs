//! Short runs of the tools `portcullis bench` and `portcullis torture`.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod durable;
mod live;
mod replicas;
mod torture;
