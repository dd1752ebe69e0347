//! Prints what packages install beside the program: shell completions and man pages, both generated from the command line.

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, ValueHint, value_parser};
use clap_complete::Shell;

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

const AFTER: &str = "\
Examples:
  portcullis completions bash > ~/.local/share/bash-completion/completions/portcullis
  portcullis completions zsh > ~/.zfunc/_portcullis
  portcullis completions fish > ~/.config/fish/completions/portcullis.fish";

/// The `completions` subcommand.
pub fn completions() -> Command {
    Command::new("completions")
        .about("Prints the completions of a shell")
        .after_help(AFTER)
        .arg(Arg::new("shell").value_name("SHELL").help("The shell").required(true).value_parser(SHELLS))
}

/// The `man` subcommand. It is for packagers, and `--help` leaves it out.
pub fn man() -> Command {
    Command::new("man").about("Writes the man pages to a folder").hide(true).arg(
        Arg::new("dir")
            .value_name("DIR")
            .help("The folder, which is made if it is missing")
            .required(true)
            .value_parser(value_parser!(PathBuf))
            .value_hint(ValueHint::DirPath),
    )
}

/// Prints the completions of `program` for the chosen shell.
pub fn print_completions(matches: &ArgMatches, mut program: Command) -> ExitCode {
    let shell = match matches.get_one::<String>("shell").map(String::as_str) {
        Some("zsh") => Shell::Zsh,
        Some("fish") => Shell::Fish,
        _ => Shell::Bash,
    };
    // `generate` panics if it cannot write, as when `head` closes the pipe.
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut program, "portcullis", &mut text);
    let written = match io::stdout().write_all(&text) {
        // A reader such as `head` has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    };
    finish(written, "standard output")
}

/// Writes a man page for `program` and one for each of its subcommands.
pub fn write_man(matches: &ArgMatches, program: Command) -> ExitCode {
    let Some(dir) = matches.get_one::<PathBuf>("dir") else { return ExitCode::FAILURE };
    let write = |dir: &Path| {
        std::fs::create_dir_all(dir)?;
        clap_mangen::generate_to(program, dir)
    };
    finish(write(dir), &dir.display().to_string())
}

fn finish(result: io::Result<()>, target: &str) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("portcullis: {target}: {error}");
            ExitCode::FAILURE
        }
    }
}
