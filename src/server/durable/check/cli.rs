//! The command line of `portcullis check`.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint, value_parser};

use crate::server::durable::check::{Fix, check};

const AFTER: &str = "\
FILE is an RDB, an append-only file, or a manifest, whose files are checked with it. DIR is the folder of the append-only file, or the \
server's dir. Every value is decoded and every request is executed, as at a start, which takes as much memory. No server is needed. One \
that uses the folder is not disturbed, but --fix refuses then.

Exit codes: 0 if a start with aof-load-truncated no would read all of it, 1 if something is damaged, torn, missing or not readable by \
this version, 2 if nothing could be checked or --fix could not do its work. Files that no manifest names do not count.

Examples:
  portcullis check /var/lib/portcullis
  portcullis check --fix /var/lib/portcullis/appendonlydir
  portcullis check dump.rdb";

/// Exit code for files that are not whole.
const DAMAGED: u8 = 1;
/// Exit code for a check that failed.
const FAILED: u8 = 2;
/// Stack of the thread that executes requests, in bytes: values are nested as deep as for a server.
const STACK: usize = 64 << 20;

/// The `check` subcommand.
pub fn command() -> Command {
    Command::new("check").about("Checks an append-only file or an RDB without a server").after_help(AFTER).defer(with_arguments)
}

fn with_arguments(command: Command) -> Command {
    let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).help(help).action(ArgAction::SetTrue);
    command
        .arg(
            Arg::new("path")
                .value_name("FILE|DIR")
                .help("What to check")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .value_hint(ValueHint::AnyPath),
        )
        .arg(flag("fix", "Cuts a torn end off the last file: says what is lost, asks, and keeps a copy"))
        .arg(flag("yes", "With --fix: does not ask").requires("fix"))
        .arg(
            flag("cut-damage", "With --fix: cuts from damage in the middle on as well, and loses what was on the disk behind it")
                .requires("fix"),
        )
        .arg(
            Arg::new("databases")
                .long("databases")
                .value_name("N")
                .help("Number of databases of the server [16]")
                .value_parser(value_parser!(u32).range(1..=16_384)),
        )
}

/// Runs the check.
pub fn run(matches: &ArgMatches) -> ExitCode {
    let Some(path) = matches.get_one::<PathBuf>("path").cloned() else { return ExitCode::from(FAILED) };
    let databases = matches.get_one::<u32>("databases").copied().unwrap_or(16);
    let flag = |name| matches.get_flag(name);
    let fix = flag("fix").then(|| Fix { yes: flag("yes"), cut_damage: flag("cut-damage") });
    let work = move || check(&path, databases, fix, &mut io::stdout());
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(work);
    let result = thread.map_err(|error| error.to_string()).and_then(|thread| {
        let failed = || "the check has failed with an error in the program".to_owned();
        thread.join().unwrap_or_else(|_| Err(failed()))
    });
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(DAMAGED),
        Err(message) => {
            eprintln!("portcullis: {message}");
            ExitCode::from(FAILED)
        }
    }
}
