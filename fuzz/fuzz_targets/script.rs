#![no_main]

#[path = "../bodies/script.rs"]
mod body;
#[path = "../bodies/driver.rs"]
mod driver;
#[path = "../bodies/frames.rs"]
mod frames;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
