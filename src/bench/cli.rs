//! The command line of `portcullis bench`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint, value_parser};

use crate::bench::plan::Plan;
use crate::bench::run::workload::Workload;
use crate::bench::servers::kind::ServerKind;
use crate::bench::servers::target::ServerSpec;
use crate::bench::{check_writable, list, print};
use crate::recipes::Retry;

const AFTER: &str = "\
Measures lock algorithms on servers side by side: the servers take turns in short slices. A critical section that is independent of the lock \
checks mutual exclusion during the measurement. If it is broken, the exit code is 1 (try `portcullis bench broken`).

Examples:
  portcullis bench
  portcullis bench set-nx-px native --clients 64 --html locks.html
  portcullis bench redlock --against redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3
  portcullis bench --command 'GET {key}' --command 'SET {key} {client}' --locks 16";

/// The algorithms that are measured by default: one for each way to wait.
const DEFAULT_ALGORITHMS: [&str; 6] = ["set-nx-px", "delex", "reentrant", "fair", "blpop", "native"];
/// The plain command that is measured by default.
const DEFAULT_COMMAND: &str = "SET {key} {client} PX 30000";

/// The `bench` subcommand.
pub fn command() -> Command {
    Command::new("bench").about("Measures lock algorithms on servers side by side").after_help(AFTER).defer(with_arguments)
}

/// Adds the arguments. Deferred until the subcommand is used, because `portcullis serve` does not need them.
fn with_arguments(command: Command) -> Command {
    let number = |name: &'static str, value: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).default_value(default).help(help)
    };
    let file = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .value_hint(ValueHint::FilePath)
            .help(help)
    };
    command
        .arg(Arg::new("algorithm").value_name("ALGORITHM").num_args(0..).help("Algorithms to measure; see --list"))
        .arg(
            Arg::new("command")
                .long("command")
                .value_name("COMMAND")
                .action(ArgAction::Append)
                .help("Plain command to measure; {key} and {client} are replaced; may be repeated"),
        )
        .arg(
            Arg::new("against")
                .long("against")
                .value_name("SERVER")
                .action(ArgAction::Append)
                .help("Server to measure; may be repeated. Either a program to start: portcullis, redis-server, valkey-server, kevy or another one that takes Redis's flags (REDIS_SERVER, VALKEY_SERVER and KEVY name programs outside of PATH); or the URL of a running server, or several URLs separated by commas; the nodes of a replicated server have one URL, redis://host1,host2,host3 [portcullis, and redis-server if installed]"),
        )
        .arg(number("clients", "N", "16", "Number of clients, with a connection each").value_parser(value_parser!(u16).range(1..)))
        .arg(number("locks", "N", "1", "Number of locks that the clients share").value_parser(value_parser!(u16).range(1..)))
        .arg(number("seconds", "S", "1.5", "Seconds to measure each algorithm on each server").value_parser(seconds))
        .arg(number("slice-ms", "MS", "250", "Length of a slice").value_parser(value_parser!(u64).range(1..)))
        .arg(number("hold-ms", "MS", "0", "How long a client holds a lock").value_parser(value_parser!(u64)))
        .arg(number("lease-ms", "MS", "10000", "Lease of a lock").value_parser(value_parser!(u64).range(1..)))
        .arg(
            number("forgotten-ms", "MS", "200", "Lease of the locks that are never released, which measure how late a waiter is granted an expired lock")
                .value_parser(value_parser!(u64).range(1..)),
        )
        .arg(
            number("retry", "HOW", "blocking", "How clients wait: blocking (algorithms that can only poll do so every 10 ms), fixed:MS, or back-off")
                .value_parser(retry),
        )
        .arg(file("html", "Writes a page with charts into this file").alias("chart"))
        .arg(file("json", "Writes the figures into this file; - prints them instead of the table"))
        .arg(Arg::new("list").long("list").action(ArgAction::SetTrue).help("Lists the algorithms, the servers and the ways to wait"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() && seconds < 86_400.0 => Ok(time),
        _ => Err("must be above 0 and below 86400".to_owned()),
    }
}

fn retry(text: &str) -> Result<Retry, String> {
    match text.split_once(':') {
        None if text == "blocking" => Ok(Retry::Blocking),
        None if text == "back-off" => Ok(Retry::BACK_OFF),
        Some(("fixed", ms)) => match ms.parse() {
            Ok(ms) => Ok(Retry::Fixed { pause: Duration::from_millis(ms) }),
            Err(_) => Err("'fixed:' needs a number of milliseconds".to_owned()),
        },
        _ => Err("must be blocking, fixed:MS or back-off".to_owned()),
    }
}

/// Runs the subcommand.
pub fn run(matches: &ArgMatches) -> ExitCode {
    if matches.get_flag("list") {
        // The reader may have closed the pipe.
        let _ = print(&list::render());
        return ExitCode::SUCCESS;
    }
    let plan = parse(matches).and_then(|plan| {
        check_writable(plan.json.as_deref())?;
        check_writable(plan.html.as_deref())?;
        Ok(plan)
    });
    match plan {
        Ok(plan) => crate::bench::run(&plan),
        Err(message) => {
            eprintln!("portcullis: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Parses the arguments into a plan.
///
/// # Errors
/// Names the algorithm, command or server that does not exist, in words for people.
pub fn parse(matches: &ArgMatches) -> Result<Plan, String> {
    let texts = |name: &str| matches.get_many::<String>(name).unwrap_or_default().map(String::as_str).collect::<Vec<_>>();
    let number = |name: &str| matches.get_one::<u64>(name).copied().map_or(Duration::ZERO, Duration::from_millis);
    let count = |name: &str| usize::from(matches.get_one::<u16>(name).copied().unwrap_or(1));
    let (mut algorithms, mut commands) = (texts("algorithm"), texts("command"));
    if algorithms.is_empty() && commands.is_empty() {
        algorithms = DEFAULT_ALGORITHMS.to_vec();
        commands = vec![DEFAULT_COMMAND];
    }
    let algorithms = algorithms.into_iter().map(Workload::algorithm);
    let workloads = algorithms.chain(commands.into_iter().map(Workload::command)).collect::<Result<Vec<_>, _>>()?;
    let mut servers = texts("against").into_iter().map(ServerSpec::from_str).collect::<Result<Vec<_>, _>>()?;
    if servers.is_empty() {
        servers.push(ServerSpec::Own);
        servers.extend(ServerKind::Redis.find().map(ServerSpec::Program));
    }
    let html = matches.get_one::<PathBuf>("html").cloned();
    if let Some(path) = html.as_ref().filter(|path| path.extension().is_some_and(|extension| extension == "svg")) {
        return Err(format!("{}: --html writes a page of HTML; there is no chart in SVG alone", path.display()));
    }
    let time = matches.get_one::<Duration>("seconds").copied().unwrap_or(Duration::from_secs(1));
    let slice = number("slice-ms").min(time);
    Ok(Plan {
        workloads,
        servers,
        clients: count("clients"),
        locks: count("locks").min(count("clients")),
        slices: (time.as_secs_f64() / slice.as_secs_f64()).round().max(1.0) as usize,
        slice,
        hold: number("hold-ms"),
        lease: number("lease-ms"),
        forgotten_lease: number("forgotten-ms"),
        retry: matches.get_one::<Retry>("retry").copied().unwrap_or(Retry::Blocking),
        prefix: format!("portcullis-bench-{}", std::process::id()),
        json: matches.get_one::<PathBuf>("json").cloned(),
        html,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Plan, String> {
        parse(&command().try_get_matches_from(line.split_whitespace()).map_err(|error| error.to_string())?)
    }

    #[test]
    fn the_command_is_valid_and_its_defaults_take_less_than_a_minute() {
        command().debug_assert();
        let plan = parse_line("bench").unwrap();
        assert_eq!(plan.workloads.len(), DEFAULT_ALGORITHMS.len() + 1);
        assert_eq!(plan.servers[0], ServerSpec::Own);
        let time = plan.slice * u32::try_from(plan.slices * plan.workloads.len() * 2).unwrap();
        assert!(time < Duration::from_secs(40), "{time:?}");
    }

    #[test]
    fn flags_set_the_plan() {
        let plan =
            parse_line("bench broken --against redis://a:1 --clients 4 --locks 9 --seconds 1 --slice-ms 100 --retry fixed:3")
                .unwrap();
        assert_eq!((plan.workloads.len(), plan.clients, plan.locks, plan.slices), (1, 4, 4, 10));
        assert_eq!(plan.retry, Retry::Fixed { pause: Duration::from_millis(3) });
        assert_eq!(plan.servers, [ServerSpec::Urls(vec!["redis://a:1".to_owned()])]);
        assert!(plan.key(&plan.workloads[0], 3).ends_with(":broken:3"));
    }

    #[test]
    fn mistakes_are_refused() {
        for line in [
            "bench nosuch",
            "bench --against nosuch",
            "bench --seconds 0",
            "bench --clients 0",
            "bench --retry sometimes",
            "bench --retry fixed:x",
            "bench --chart locks.svg",
        ] {
            assert!(parse_line(line).is_err(), "{line}");
        }
    }
}
