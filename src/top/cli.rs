//! The command line of `portcullis top`.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::client::Options;
use crate::top::{live, once};

const AFTER: &str = "\
URL is redis://[user][:password@]host[:port][/db], rediss://… or unix://…; the nodes of a cluster are separated by commas.
Without a scheme it is redis://.

A list of processes shows the URL, with its password. If the URL has no password, the variable REDISCLI_AUTH has it, as for
redis-cli.

Examples:
  portcullis top
  portcullis top 10.0.0.1:6380
  REDISCLI_AUTH=secret portcullis top redis://operator@10.0.0.1/0
  portcullis top --once --all
  portcullis top --once --json redis://10.0.0.1 | jq '.graph[0]'";

/// Time within which the server must answer.
const ANSWER_TIME: Duration = Duration::from_secs(3);
/// The environment variable with the password, if the URL has none.
const PASSWORD: &str = "REDISCLI_AUTH";
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
        .arg(flag("all", "Lists all locks, as the key `a` does, and not only those with waiters"))
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
    let (options, at) = target(url, std::env::var(PASSWORD).ok())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let all = matches.get_flag("all");
    if matches.get_flag("once") {
        let text = runtime.block_on(once::once(options, at, all, matches.get_flag("json")))?;
        // The reader may have closed the pipe.
        let _ = std::io::stdout().write_all(text.as_bytes());
        return Ok(());
    }
    fail_if!(!std::io::stdout().is_terminal(), "standard output is not a terminal: --once prints one view".to_owned());
    let interval = Duration::from_millis(matches.get_one("interval").copied().unwrap_or(1000));
    runtime.block_on(live::run(options, at, all, interval))
}

/// The options of a URL, and what is shown of it: without user and password. `password` is used if the URL has none.
fn target(url: &str, password: Option<String>) -> Result<(Options, String), String> {
    let has_scheme = url.contains("://") || ["unix:", "redis+unix:"].iter().any(|scheme| url.starts_with(scheme));
    let url = if has_scheme { url.to_owned() } else { format!("redis://{url}") };
    let mut options: Options = url.parse().map_err(|error: crate::client::Error| error.to_string())?;
    options.password = options.password.or(password.filter(|password| !password.is_empty()));
    let options = if options.name.is_some() { options } else { options.name(NAME) };
    let options = options.connect_timeout(ANSWER_TIME).response_timeout(ANSWER_TIME);
    let rest = url.split_once(':').map_or(url.as_str(), |(_, rest)| rest);
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
        let target = |url: &str| super::target(url, None);
        let at = |url: &str| target(url).unwrap().1;
        assert_eq!(at("redis://user:se@cret@10.0.0.1:7000/2?name=x"), "10.0.0.1:7000/2");
        assert_eq!(at("redis://:secret@a,b:7001"), "a,b:7001");
        assert_eq!(at("unix:///run/p.sock?password=secret"), "/run/p.sock");
        assert_eq!(target("http://a").err().unwrap(), "invalid server URL: the scheme is not redis:, rediss: or unix:");
    }

    #[test]
    fn a_scheme_may_be_left_out() {
        let (options, at) = target("10.0.0.1:7000", None).unwrap();
        assert_eq!(
            (format!("{:?}", options.address), at.as_str()),
            ("Tcp { host: \"10.0.0.1\", port: 7000 }".to_owned(), "10.0.0.1:7000")
        );
        assert_eq!(target("ann:pw@h/3", None).unwrap().0.db, 3);
        assert_eq!(target("unix:///run/p.sock", None).unwrap().1, "/run/p.sock");
    }

    #[test]
    fn the_password_of_the_environment_is_the_second_choice() {
        let password = |url: &str, variable: &str| target(url, Some(variable.to_owned())).unwrap().0.password;
        assert_eq!(password("redis://ann@h", "secret").as_deref(), Some("secret"));
        assert_eq!(password("redis://:mine@h", "secret").as_deref(), Some("mine"));
        assert_eq!(password("h", ""), None);
    }
}
