//! The command line of `portcullis bench`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint, value_parser};

use crate::bench::peer::Peer;
use crate::bench::target::Against;
use crate::bench::work::Work;
use crate::bench::writable;
use crate::recipes::{Live, Retry, all};

const AFTER: &str = "\
Measures lock algorithms on servers side by side, in slices by turns, and checks mutual exclusion meanwhile by something that has nothing to \
do with the lock; where it is broken, the exit code is not 0 (try `portcullis bench broken`).

Examples:
  portcullis bench
  portcullis bench set-nx-px native --clients 64 --chart locks.html
  portcullis bench redlock --against redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3
  portcullis bench --command 'GET {key}' --command 'SET {key} {client}' --locks 16";

/// What is measured where nothing is named: one of each way to wait.
const USUAL: [&str; 6] = ["set-nx-px", "delex", "reentrant", "fair", "blpop", "native"];
/// And a plain command.
const USUAL_COMMAND: &str = "SET {key} {client} PX 30000";

/// What is to be measured, and how.
pub struct Plan {
    /// What is done.
    pub works: Vec<Work>,
    /// On what.
    pub against: Vec<Against>,
    /// Clients of each server, with a connection each.
    pub clients: usize,
    /// Locks that they want: client n wants lock n modulo this.
    pub locks: usize,
    /// Slices of each work on each server.
    pub slices: usize,
    /// How long one takes.
    pub slice: Duration,
    /// How long a lock is held.
    pub hold: Duration,
    /// What it is leased for.
    pub lease: Duration,
    /// What locks are leased for that are taken and forgotten.
    pub forgotten: Duration,
    /// How algorithms wait that poll.
    pub retry: Retry,
    /// What all keys have in their names.
    pub prefix: String,
    /// Where the figures are written.
    pub json: Option<PathBuf>,
    /// Where the chart is drawn.
    pub chart: Option<PathBuf>,
}

impl Plan {
    /// The name of a lock.
    pub fn name(&self, work: &Work, lock: usize) -> String {
        let letters: String = work.name().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        format!("{}:{letters}:{lock}", self.prefix)
    }
}

/// The `bench` subcommand.
pub fn command() -> Command {
    Command::new("bench").about("Measures lock algorithms on servers side by side").after_help(AFTER).defer(with_arguments)
}

/// Not before it is known that they are asked for: a server that is started has no use for them.
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
        .arg(Arg::new("algorithm").value_name("ALGORITHM").num_args(0..).help("What to measure; see --list"))
        .arg(
            Arg::new("command")
                .long("command")
                .value_name("COMMAND")
                .action(ArgAction::Append)
                .help("A plain command to measure, with {key} and {client} to be filled in; may be given several times"),
        )
        .arg(
            Arg::new("against")
                .long("against")
                .value_name("SERVER")
                .action(ArgAction::Append)
                .help("portcullis, redis-server, valkey-server, kevy or another program that takes Redis's flags, to be started (REDIS_SERVER, VALKEY_SERVER and KEVY name programs that are not in the path); or a URL, or several with commas between them; may be given several times [portcullis, and redis-server where it is installed]"),
        )
        .arg(number("clients", "N", "16", "Clients, with a connection each").value_parser(value_parser!(u16).range(1..)))
        .arg(number("locks", "N", "1", "Locks that they want").value_parser(value_parser!(u16).range(1..)))
        .arg(number("seconds", "S", "1.5", "How long each is measured on each server").value_parser(seconds))
        .arg(number("slice-ms", "MS", "250", "How long the turns are").value_parser(value_parser!(u64).range(1..)))
        .arg(number("hold-ms", "MS", "0", "How long a lock is held").value_parser(value_parser!(u64)))
        .arg(number("lease-ms", "MS", "10000", "What a lock is leased for").value_parser(value_parser!(u64).range(1..)))
        .arg(
            number("forgotten-ms", "MS", "200", "What locks are leased for that are forgotten, to see when the next one has them")
                .value_parser(value_parser!(u64).range(1..)),
        )
        .arg(
            number("retry", "HOW", "blocking", "How they wait: blocking (those that can only poll do so every 10 ms), fixed:MS, or back-off")
                .value_parser(retry),
        )
        .arg(file("json", "File that the figures are written to"))
        .arg(file("chart", "File that a chart is drawn into: .svg or .html"))
        .arg(Arg::new("list").long("list").action(ArgAction::SetTrue).help("Lists what can be measured"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is no number".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() && seconds < 86_400.0 => Ok(time),
        _ => Err("it is not above 0 and below a day".to_owned()),
    }
}

fn retry(text: &str) -> Result<Retry, String> {
    match text.split_once(':') {
        None if text == "blocking" => Ok(Retry::Blocking),
        None if text == "back-off" => Ok(Retry::BACK_OFF),
        Some(("fixed", ms)) => match ms.parse() {
            Ok(ms) => Ok(Retry::Fixed { pause: Duration::from_millis(ms) }),
            Err(_) => Err("fixed: is followed by milliseconds".to_owned()),
        },
        _ => Err("it is none of blocking, fixed:MS and back-off".to_owned()),
    }
}

/// All that can be measured, and what it is, if that was asked for.
pub fn list(matches: &ArgMatches) -> Option<String> {
    matches.get_flag("list").then(|| {
        let line = |facts: &crate::recipes::Facts| {
            let flawed = if facts.flawed { " (flawed)" } else { "" };
            format!("{:>2}  {:<20}{}{flawed}\n", facts.number, facts.name, facts.summary)
        };
        let mut lines: String = all::<Live>().iter().map(|recipe| line(recipe.facts)).collect();
        lines.push_str("\nThose that can renew also with a watchdog, as set-nx-px+watchdog.\n");
        lines
    })
}

/// Does what was asked for.
pub fn run(matches: &ArgMatches) -> ExitCode {
    if let Some(list) = list(matches) {
        // Whoever reads it may have read enough.
        let _ = std::io::stdout().write_all(list.as_bytes());
        return ExitCode::SUCCESS;
    }
    let plan = read(matches).and_then(|plan| {
        writable(plan.json.as_deref())?;
        writable(plan.chart.as_deref())?;
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

/// Reads what was given; the error is for the person who gave it.
///
/// # Errors
/// Where there is no such algorithm, command or server.
pub fn read(matches: &ArgMatches) -> Result<Plan, String> {
    let texts = |name: &str| matches.get_many::<String>(name).unwrap_or_default().map(String::as_str).collect::<Vec<_>>();
    let number = |name: &str| matches.get_one::<u64>(name).copied().map_or(Duration::ZERO, Duration::from_millis);
    let count = |name: &str| usize::from(matches.get_one::<u16>(name).copied().unwrap_or(1));
    let (mut algorithms, mut commands) = (texts("algorithm"), texts("command"));
    if algorithms.is_empty() && commands.is_empty() {
        algorithms = USUAL.to_vec();
        commands = vec![USUAL_COMMAND];
    }
    let recipes = algorithms.into_iter().map(Work::recipe);
    let works = recipes.chain(commands.into_iter().map(Work::plain)).collect::<Result<Vec<_>, _>>()?;
    let mut against = texts("against").into_iter().map(Against::from_str).collect::<Result<Vec<_>, _>>()?;
    if against.is_empty() {
        against.push(Against::Own);
        against.extend(Peer::Redis.find().map(Against::Program));
    }
    let chart = matches.get_one::<PathBuf>("chart").cloned();
    if let Some(path) = &chart
        && !path.extension().is_some_and(|extension| extension == "svg" || extension == "html")
    {
        return Err(format!("--chart {}: its name ends neither in .svg nor in .html", path.display()));
    }
    let time = matches.get_one::<Duration>("seconds").copied().unwrap_or(Duration::from_secs(1));
    let slice = number("slice-ms").min(time);
    Ok(Plan {
        works,
        against,
        clients: count("clients"),
        locks: count("locks").min(count("clients")),
        slices: (time.as_secs_f64() / slice.as_secs_f64()).round().max(1.0) as usize,
        slice,
        hold: number("hold-ms"),
        lease: number("lease-ms"),
        forgotten: number("forgotten-ms"),
        retry: matches.get_one::<Retry>("retry").copied().unwrap_or(Retry::Blocking),
        prefix: format!("portcullis-bench-{}", std::process::id()),
        json: matches.get_one::<PathBuf>("json").cloned(),
        chart,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Plan, String> {
        read(&command().try_get_matches_from(line.split_whitespace()).map_err(|error| error.to_string())?)
    }

    #[test]
    fn the_command_is_sound_and_its_defaults_take_less_than_a_minute() {
        command().debug_assert();
        let plan = parse("bench").unwrap();
        assert_eq!(plan.works.len(), USUAL.len() + 1);
        assert_eq!(plan.against[0], Against::Own);
        let time = plan.slice * u32::try_from(plan.slices * plan.works.len() * 2).unwrap();
        assert!(time < Duration::from_secs(40), "{time:?}");
    }

    #[test]
    fn what_is_given_is_taken() {
        let plan =
            parse("bench broken --against redis://a:1 --clients 4 --locks 9 --seconds 1 --slice-ms 100 --retry fixed:3").unwrap();
        assert_eq!((plan.works.len(), plan.clients, plan.locks, plan.slices), (1, 4, 4, 10));
        assert_eq!(plan.retry, Retry::Fixed { pause: Duration::from_millis(3) });
        assert_eq!(plan.against, [Against::Urls(vec!["redis://a:1".to_owned()])]);
        assert!(plan.name(&plan.works[0], 3).ends_with(":broken:3"));
        let matches = command().try_get_matches_from(["bench", "--list"]).unwrap();
        assert!(list(&matches).unwrap().contains("20  native"));
    }

    #[test]
    fn mistakes_are_told() {
        for line in [
            "bench nosuch",
            "bench --against nosuch",
            "bench --seconds 0",
            "bench --clients 0",
            "bench --retry sometimes",
            "bench --retry fixed:x",
            "bench --chart locks.png",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
