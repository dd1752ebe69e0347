//! Replays the checked-in inputs of the fuzz targets with the code of the targets.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

#[path = "../fuzz/bodies/allocation.rs"]
mod allocation;
#[path = "../fuzz/bodies/append_only.rs"]
mod append_only;
#[path = "../fuzz/bodies/config_file.rs"]
mod config_file;
#[path = "../fuzz/bodies/decoder.rs"]
mod decoder;
#[path = "../fuzz/bodies/driver.rs"]
mod driver;
#[path = "../fuzz/bodies/engine.rs"]
mod engine;
#[path = "../fuzz/bodies/frames.rs"]
mod frames;
#[path = "../fuzz/bodies/locks.rs"]
mod locks;
#[path = "../fuzz/bodies/rdb.rs"]
mod rdb;
#[path = "../fuzz/bodies/rdb_file.rs"]
mod rdb_file;
#[path = "../fuzz/bodies/request_parser.rs"]
mod request_parser;
#[path = "../fuzz/bodies/script.rs"]
mod script;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

/// Runs every input of a target, sorted by name, and names the one that fails.
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
    replay("engine", |data| {
        engine::run(data);
        engine::run_twice(data);
    });
}

#[test]
fn script_inputs() {
    replay("script", |data| {
        script::run(data);
        script::run_thoroughly(data);
    });
}

#[test]
fn rdb_inputs() {
    replay("rdb", rdb::run);
}

#[test]
fn append_only_inputs() {
    replay("append_only", append_only::run);
}

#[test]
fn rdb_file_inputs() {
    replay("rdb_file", rdb_file::run);
}

#[test]
fn decoder_inputs() {
    replay("decoder", decoder::run);
}

#[test]
fn config_file_inputs() {
    replay("config_file", config_file::run);
}

#[test]
fn locks_inputs() {
    replay("locks", locks::run);
}

/// Random inputs, as many as a test has time for. The fuzz target runs more.
#[test]
fn locks_do_what_the_model_does_for_random_inputs() {
    let mut state = 1_u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    for length in 0..300 {
        let data: Vec<u8> = (0..(7 * length) % 600).map(|_| byte()).collect();
        let failed = std::panic::catch_unwind(|| locks::run(&data)).is_err();
        assert!(!failed, "{data:?} fails");
    }
}
