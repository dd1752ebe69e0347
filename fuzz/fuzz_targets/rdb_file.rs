#![no_main]

#[path = "../bodies/allocation.rs"]
mod allocation;
#[path = "../bodies/rdb_file.rs"]
mod body;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
