//! Replays the checked-in inputs of the fuzz targets, with the very code that the targets run.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

#[path = "../fuzz/bodies/engine.rs"]
mod engine;
#[path = "../fuzz/bodies/frames.rs"]
mod frames;
#[path = "../fuzz/bodies/request_parser.rs"]
mod request_parser;
#[path = "../fuzz/bodies/script.rs"]
mod script;

/// Runs every input of a target, in the order of their names, and names the one that fails.
fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut inputs: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    assert!(inputs.len() >= 20, "only {} inputs in {}", inputs.len(), folder.display());
    for input in inputs {
        let data = fs::read(&input).unwrap();
        let failed = std::panic::catch_unwind(|| run(&data)).is_err();
        assert!(!failed, "{} fails", input.display());
    }
}

#[test]
fn request_parser_inputs() {
    replay("request_parser", request_parser::run);
}

#[test]
fn engine_inputs() {
    replay("engine", engine::run);
}

#[test]
fn script_inputs() {
    replay("script", script::run);
}
