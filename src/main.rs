//! The program.

use std::process::ExitCode;

use clap::Command;
use portcullis::bench;
use portcullis::engine::version::{PORTCULLIS_VERSION, REDIS_VERSION};
use portcullis::server::cli::Given;
use portcullis::server::{allocator, cli, program};
use portcullis::torture;

#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;

fn command() -> Command {
    Command::new("portcullis")
        .about("An in-memory lock server that speaks the Redis protocol")
        .version(format!("{PORTCULLIS_VERSION} (speaks as Redis {REDIS_VERSION})"))
        .arg_required_else_help(true)
        .subcommand_required(true)
        .subcommand(cli::command())
        .subcommand(bench::cli::command())
        .subcommand(torture::cli::command())
}

fn main() -> ExitCode {
    let words = cli::join_words(std::env::args());
    if let Some(given) = Given::plainly(&words) {
        return serve(given);
    }
    let matches = match command().try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(error) => error.exit(),
    };
    match matches.subcommand() {
        Some(("serve", matches)) => serve(Given::of(matches)),
        Some(("bench", matches)) => bench::cli::run(matches),
        Some(("torture", matches)) => torture::cli::run(matches),
        _ => ExitCode::FAILURE,
    }
}

fn serve(given: Given) -> ExitCode {
    match given.read() {
        Ok(invocation) => program::run(invocation),
        Err(message) => {
            eprintln!("portcullis: {message}");
            ExitCode::FAILURE
        }
    }
}
