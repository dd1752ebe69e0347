#![no_main]

#[path = "../bodies/locks.rs"]
mod body;
// The model compares whole replies itself.
#[allow(dead_code)]
#[path = "../bodies/frames.rs"]
mod frames;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
