#![no_main]

#[path = "../bodies/allocation.rs"]
mod allocation;
#[path = "../bodies/rdb.rs"]
mod body;
#[path = "../bodies/driver.rs"]
mod driver;
#[path = "../bodies/frames.rs"]
mod frames;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
