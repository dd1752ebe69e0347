//! The command line of `portcullis top`.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::client::Options;
use crate::top::{live, once};

const AFTER: &str = "\
URL is redis://[user][:password@]host[:port][/db], rediss://… or unix://…; the nodes of a cluster are separated by commas.

Examples:
  portcullis top
  portcullis top redis://operator:secret@10.0.0.1/0
  portcullis top --once --json redis://10.0.0.1 | jq '.graph[0]'";

/// Time within which the server must answer.
const ANSWER_TIME: Duration = Duration::from_secs(3);
/// The name of the connections, unless the URL has one.
const NAME: &str = "portcullis-top";

/// The `top` subcommand.
pub fn command() -> Command {
    let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).help(help).action(ArgAction::SetTrue);
    let interval = Arg::new("interval").long("interval").value_name("MS").default_value("1000");
    Command::new("top")
        .about("Shows who waits for which lock, and who holds it, live in a terminal")
        .after_help(AFTER)
        .arg(Arg::new("url").value_name("URL").default_value("redis://127.0.0.1:6379").help("URL of the server"))
        .arg(interval.value_parser(value_parser!(u64).range(50..=3_600_000)).help("Milliseconds between looks"))
        .arg(flag("once", "Prints one view as plain text, and ends"))
        .arg(flag("json", "With --once: prints JSON").requires("once"))
}

/// Runs the subcommand.
pub fn run(matches: &ArgMatches) -> ExitCode {
    match show(matches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("portcullis: {message}");
            ExitCode::FAILURE
        }
    }
}

fn show(matches: &ArgMatches) -> Result<(), String> {
    let url = matches.get_one::<String>("url").map(String::as_str).unwrap_or_default();
    let (options, at) = target(url)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    if matches.get_flag("once") {
        let text = runtime.block_on(once::once(options, at, matches.get_flag("json")))?;
        // The reader may have closed the pipe.
        let _ = std::io::stdout().write_all(text.as_bytes());
        return Ok(());
    }
    if !std::io::stdout().is_terminal() {
        return Err("standard output is not a terminal: --once prints one view".to_owned());
    }
    let interval = Duration::from_millis(matches.get_one("interval").copied().unwrap_or(1000));
    runtime.block_on(live::run(options, at, interval))
}

/// The options of a URL, and what is shown of it: without user and password.
fn target(url: &str) -> Result<(Options, String), String> {
    let options: Options = url.parse().map_err(|error: crate::client::Error| error.to_string())?;
    let options = if options.name.is_some() { options } else { options.name(NAME) };
    let options = options.connect_timeout(ANSWER_TIME).response_timeout(ANSWER_TIME);
    let rest = url.split_once(':').map_or(url, |(_, rest)| rest);
    let rest = rest.split(['?', '#']).next().unwrap_or(rest).trim_start_matches("//");
    Ok((options, rest.rsplit_once('@').map_or(rest, |(_, rest)| rest).to_owned()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_sound() {
        command().debug_assert();
        assert!(command().try_get_matches_from(["top", "--json"]).is_err(), "--json goes with --once");
        assert!(command().try_get_matches_from(["top", "--interval", "0"]).is_err());
    }

    #[test]
    fn no_password_is_shown() {
        let at = |url: &str| target(url).unwrap().1;
        assert_eq!(at("redis://user:se@cret@10.0.0.1:7000/2?name=x"), "10.0.0.1:7000/2");
        assert_eq!(at("redis://:secret@a,b:7001"), "a,b:7001");
        assert_eq!(at("unix:///run/p.sock?password=secret"), "/run/p.sock");
        assert_eq!(target("http://a").err().unwrap(), "invalid server URL: the scheme is not redis:, rediss: or unix:");
    }
}
