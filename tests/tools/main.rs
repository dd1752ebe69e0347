//! The program's tools, run in short: `portcullis bench` and `portcullis torture`.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod torture;
