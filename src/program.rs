//! The program `portcullis`: dispatches its command line to `serve`, `check`, `cluster`, `bench`, `torture`, `top` and
//! `completions`. For `src/main.rs` only.

mod pages;

use std::process::ExitCode;

use clap::Command;

use crate::base::version::{PORTCULLIS_VERSION, REDIS_VERSION};
#[cfg(feature = "bench")]
use crate::bench;
#[cfg(feature = "quorum")]
use crate::cluster;
use crate::server::durable::check;
pub use crate::server::heap::allocator::Counting;
use crate::server::program;
use crate::server::program::cli::{self, Given};
#[cfg(feature = "top")]
use crate::top;
#[cfg(feature = "torture")]
use crate::torture;

/// Maximum number of columns of help texts.
const HELP_WIDTH: usize = 100;

fn command() -> Command {
    let command = Command::new("portcullis")
        .about("An in-memory lock server that speaks the Redis protocol")
        .version(format!("{PORTCULLIS_VERSION} (speaks as Redis {REDIS_VERSION})"))
        .max_term_width(HELP_WIDTH)
        .arg_required_else_help(true)
        .subcommand_required(true)
        .subcommand(cli::command())
        .subcommand(check::cli::command());
    #[cfg(feature = "bench")]
    let command = command.subcommand(bench::cli::command());
    #[cfg(feature = "quorum")]
    let command = command.subcommand(cluster::cli::command());
    #[cfg(feature = "top")]
    let command = command.subcommand(top::cli::command());
    #[cfg(feature = "torture")]
    let command = command.subcommand(torture::cli::command());
    command.subcommand(pages::completions()).subcommand(pages::man())
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
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
        Some(("check", matches)) => check::cli::run(matches),
        #[cfg(feature = "bench")]
        Some(("bench", matches)) => bench::cli::run(matches),
        #[cfg(feature = "quorum")]
        Some(("cluster", matches)) => cluster::cli::run(matches),
        #[cfg(feature = "top")]
        Some(("top", matches)) => top::cli::run(matches),
        #[cfg(feature = "torture")]
        Some(("torture", matches)) => torture::cli::run(matches),
        Some(("completions", matches)) => pages::print_completions(matches, command()),
        Some(("man", matches)) => pages::write_man(matches, command()),
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
