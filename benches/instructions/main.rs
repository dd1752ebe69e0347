//! Instruction counts of operations, compared with the recorded ones: `cargo bench --bench instructions [-- PATTERN]`.
//!
//! Unlike time, a count is the same on a busy machine, so that the gate can notice a few percent. An operation that takes over 3
//! % more than `counts.json` says fails, with both figures. One that takes over 3 % less is reported, so that the record is
//! updated and the gain is held. `UPDATE=1 cargo bench --bench instructions` updates the record: commit it with the change that
//! it comes from.
//!
//! An incremental build (`CARGO_INCREMENTAL=1`) is other code and takes more instructions. A count depends on the compilers, the
//! C library, valgrind and the processor, which are recorded beside it. With other tools differences of 3 % mean nothing. Then
//! only an operation that takes over 10 % more fails, and the output says so until the record is updated with those tools, best
//! on a commit that is known to be good.
//!
//! Counted by callgrind, which gungraun runs. This needs valgrind, and `cargo install gungraun-runner` in gungraun's version in
//! `Cargo.lock`. If either is missing, nothing is counted; with `PORTCULLIS_REQUIRE_VALGRIND`, as in the gate, that is a failure.
//! To see where the instructions go: `callgrind_annotate
//! target/gungraun/portcullis/instructions/operations/requests/request.get/*.out`.

// gungraun's macros generate items without docs.
#![allow(missing_docs)]

mod guard;
mod operations;
#[path = "../compare/redisson.rs"]
mod redisson;

use std::process::ExitCode;

use portcullis::server::heap::allocator;

// The program's allocator. Only the executor's thread has its own heap; other threads use the C library.
#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;

fn main() -> ExitCode {
    // gungraun's runner and the guard start this program again. Without --bench, operations are run and not counted.
    let called_by = |arg: &str| std::env::args().any(|given| given == arg);
    if called_by("--gungraun-run") || guard::is_counting() || !called_by("--bench") {
        operations::count();
        return ExitCode::SUCCESS;
    }
    match guard::run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}
