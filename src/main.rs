//! The program `portcullis`. See [`portcullis::program`].

use std::process::ExitCode;

use portcullis::program;

#[global_allocator]
static ALLOCATOR: program::Counting = program::Counting;

fn main() -> ExitCode {
    program::main()
}
