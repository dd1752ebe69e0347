//! How many instructions operations take, held against what is recorded: `cargo bench --bench instructions [-- PATTERN]`.
//!
//! Unlike time, a count is the same on a busy machine as on a quiet one, so that the gate can tell a few percent. An operation that
//! takes over 3 % more than `counts.json` says fails, with both figures; one that takes over 3 % less is said to, so that the record
//! is renewed and what was gained is held. `UPDATE=1 cargo bench --bench instructions` renews it: commit it with what changed it.
//!
//! Built incrementally (`CARGO_INCREMENTAL=1`), code is other code and takes more. A count belongs to compilers, C library, valgrind and
//! processor, which are recorded beside it. Under others there is no telling 3 %: then only an operation that takes over 10 % more fails, and the output says so, until the record is renewed with them, best
//! on a commit that is known to be good.
//!
//! Counted by callgrind, which gungraun runs: needs valgrind, and `cargo install gungraun-runner` in the version that `Cargo.lock` has of
//! gungraun. Where either is missing nothing is counted, unless `PORTCULLIS_REQUIRE_VALGRIND` is set, as in the gate: then that fails.
//! Where the instructions go: `callgrind_annotate target/gungraun/portcullis/instructions/operations/requests/request.get/*.out`.

// gungraun's macros make items without docs.
#![allow(missing_docs)]

mod guard;
mod operations;
#[path = "../compare/redisson.rs"]
mod redisson;

use std::process::ExitCode;

use portcullis::server::heap::allocator;

// The program's, with the C library's blocks: only the executor's thread has a heap of its own.
#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;

fn main() -> ExitCode {
    // gungraun's runner and the guard start this program again; without --bench, operations are to be tried and not counted.
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
