#![no_main]

#[path = "../bodies/locks.rs"]
mod body;
#[path = "../bodies/frames.rs"]
mod frames;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
