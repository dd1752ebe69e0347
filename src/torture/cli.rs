//! The command line of `portcullis torture`.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint, value_parser};
use indicatif::{ProgressBar, ProgressStyle};

use crate::bench::report::page;
use crate::bench::report::run_facts::{RunFacts, masked};
use crate::bench::{check_writable, is_stdout, print, write_file};
use crate::server::environment::user_us;
use crate::torture::check::{Property, Rules, Violation};
use crate::torture::known;
use crate::torture::list;
use crate::torture::live;
use crate::torture::plan::{Fault, Plan, Replicas, Servers, Settings};
use crate::torture::report::{self, Report};
use crate::torture::run;
use crate::torture::shrink::{self, Budget, Counterexample};
use crate::torture::sim::SimAlgorithm;
use crate::torture::sim::disk::Planted;
use crate::torture::sim::registers;
use crate::torture::sim::replica::Flaw;
use crate::torture::subject::Subject;
use crate::torture::table;

const AFTER: &str = "\
Exit codes: 0 if no property was violated (with --expect-known: if the violations are the known ones), 1 otherwise, \
2 if the run failed.

Examples:
  portcullis torture --algorithm set-nx-px --faults pause
  portcullis torture --algorithm all --faults crash,lose --hours 1000 --expect-known
  portcullis torture --algorithm native --faults all --seed 42 --html native.html
  portcullis torture native --live --replicas 3 --faults restart,partition";

/// Exit code for violations.
const VIOLATED: u8 = 1;
/// Exit code for a run that failed.
const FAILED: u8 = 2;
/// The default lease of a live run.
const LIVE_LEASE_US: u64 = 2_000_000;
/// The same with nodes: a failover takes a part of it.
const NODES_LEASE_US: u64 = 3_000_000;
/// The word for a server of this program.
const OWN: &str = "self";
/// The default length of an episode, in leases.
const EPISODE_LEASES: u64 = 30;
/// Maximum length of an episode in seconds: the default number of the longest leases.
const EPISODE_MAX_S: u64 = 30 * 86_400;
/// Maximum number of runs in the search for a shorter schedule.
const SHRINKS_MAX: u32 = 600;
/// Default time limit of the search for a shorter schedule, in seconds.
const SHRINK_S: u64 = 20;

const HOUR_US: u64 = 3_600_000_000;

/// Maximum delay of a restart: a day.
const DELAY_MAX_MS: u64 = 86_400_000;

fn hours(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(hours) if (0.0..=1e6).contains(&hours) => Ok(hours),
        _ => Err("not a number from 0 to 1000000".to_owned()),
    }
}

/// The `torture` subcommand.
pub fn command() -> Command {
    Command::new("torture")
        .about("Tests whether lock algorithms keep their guarantees under faults")
        .after_help(AFTER)
        .defer(with_arguments)
}

/// Adds the arguments. Deferred until the subcommand is used, because `portcullis serve` does not need them.
fn with_arguments(command: Command) -> Command {
    let defaults = Settings::default();
    let text =
        |name: &'static str, value: &'static str, help: &'static str| Arg::new(name).long(name).value_name(value).help(help);
    let number = |name: &'static str, value: &'static str, help: String| {
        Arg::new(name).long(name).value_name(value).help(help).value_parser(value_parser!(u64))
    };
    let small = |name: &'static str, value: &'static str, help: String| {
        Arg::new(name).long(name).value_name(value).help(help).value_parser(value_parser!(u32).range(1..=1000))
    };
    let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).help(help).action(ArgAction::SetTrue);
    let file = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("FILE")
            .help(help)
            .value_parser(value_parser!(PathBuf))
            .value_hint(ValueHint::FilePath)
    };
    command
        .arg(Arg::new("name").value_name("ALGORITHM").help("Algorithm to test, or all; see --list").default_value("all"))
        .arg(text("algorithm", "NAME", "The same").conflicts_with("name"))
        .arg(
            text(
                "faults",
                "LIST",
                "Faults to inject, separated by commas, such as pause,crash; or all; or none; see --list",
            )
            .default_value("all"),
        )
        .arg(number("seed", "N", format!("Seed of all randomness [{}]", defaults.seed)))
        .arg(Arg::new("hours").long("hours").value_name("HOURS").help("Simulated hours to run [10]").value_parser(hours))
        .arg(number("episode", "N", "Runs only this episode".to_owned()).alias("replay"))
        .arg(small("clients", "N", format!("Number of clients [{}]", defaults.clients)))
        .arg(small("locks", "N", format!("Number of locks [{}]", defaults.locks)))
        .arg(small("servers", "N", "Number of independent servers [3 for redlock, 1 for others]".to_owned()))
        .arg(number("lease-ms", "MS", format!("Lease of every acquisition [{}]", defaults.lease_us / 1000)))
        .arg(number("episode-s", "S", format!("Simulated length of an episode in seconds [{EPISODE_LEASES} leases]")))
        .arg(text(
            "restart-delay-ms",
            "MS|lease",
            "Minimum time before a server that lost data starts again; 'lease' stands for a whole lease",
        ))
        .arg(
            text(
                "live",
                "SERVERS",
                "Tests real servers in real time: self or redis-server, which are started, or URLs separated by commas [self]. With \
                 --replicas, the nodes are started as processes",
            )
            .num_args(0..=1)
            .default_missing_value(OWN),
        )
        .arg(number("seconds", "S", "With --live: seconds to run [20]".to_owned()))
        .arg(flag("durable", "Servers keep an append-only file with appendfsync always, on a simulated disk, and start again from it"))
        .arg(
            small("replicas", "3|5", "The server is replicated among this number of nodes, by Raft on simulated disks".to_owned())
                .value_parser(["3", "5"])
                .conflicts_with_all(["durable", "servers", "table"]),
        )
        .arg(
            flag("registers", "With --durable or --replicas: clients use plain keys, not locks, and their commands must be linearizable")
                .conflicts_with_all(["algorithm", "table", "html", "history", "json"]),
        )
        .arg(
            text("planted", "FAULT", "A fault in the servers, to see it found").hide(true),
        )
        .arg(flag("no-fencing", "The guarded resource ignores fencing tokens"))
        .arg(flag("no-shrink", "Shows the first schedule of a violation and does not search for the shortest"))
        .arg(number("shrink-s", "S", format!("Seconds to search for the shortest schedule of each property [{SHRINK_S}]")))
        .arg(flag("expect-known", "Fails if the violations differ from the known ones"))
        .arg(
            file("html", "Writes a page with the verdicts and a timeline of each violation into this file")
                .alias("timeline")
                .conflicts_with("table"),
        )
        .arg(
            file("json", "Writes the results into this file; - prints them instead of the report")
                .conflicts_with("table"),
        )
        .arg(file("history", "Writes all events into this file, one per line"))
        .arg(flag(
            "table",
            "Runs every algorithm under each fault, each pair of faults and all faults, and prints the table of violations",
        ))
        .arg(file("verdicts", "With --table: writes the verdicts into this file, in the form of src/torture/verdicts.txt"))
        .arg(flag("list", "Lists the algorithms, the faults and the checks"))
}

/// The parsed arguments.
struct Invocation<'a> {
    matches: &'a ArgMatches,
    settings: Settings,
    simulated_us: u64,
    episode: Option<u64>,
}

/// Runs the subcommand.
pub fn run(matches: &ArgMatches) -> ExitCode {
    match run_all(matches) {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::from(VIOLATED),
        Err(message) => {
            eprintln!("portcullis torture: {message}");
            ExitCode::from(FAILED)
        }
    }
}

fn settings(matches: &ArgMatches) -> Result<Settings, String> {
    let mut settings = Settings::default();
    if let Some(faults) = matches.get_one::<String>("faults") {
        settings.faults = Fault::parse_list(faults, kind(matches))?;
    }
    let number = |name: &str| matches.get_one::<u64>(name).copied();
    let small = |name: &str| matches.get_one::<u32>(name).copied();
    settings.seed = number("seed").unwrap_or(settings.seed);
    settings.clients = small("clients").unwrap_or(settings.clients);
    settings.locks = small("locks").unwrap_or(settings.locks);
    settings.lease_us = number("lease-ms").map_or(settings.lease_us, |ms| ms.clamp(100, 86_400_000) * 1000);
    // The length is a number of leases, so that an episode has about as many events with any lease.
    let episode_us = settings.lease_us * EPISODE_LEASES;
    settings.episode_us = number("episode-s").map_or(episode_us, |s| s.clamp(1, EPISODE_MAX_S) * 1_000_000);
    if matches.get_one::<String>("live").is_some() {
        let usual_us = if replicas(matches) > 0 { NODES_LEASE_US } else { LIVE_LEASE_US };
        settings.lease_us = number("lease-ms").map_or(usual_us, |_| settings.lease_us);
        settings.episode_us = number("seconds").unwrap_or(20).clamp(1, 86_400) * 1_000_000;
    }
    settings.think_us = settings.lease_us / 5;
    settings.fencing = !matches.get_flag("no-fencing");
    let planted = matches.get_one::<String>("planted");
    let unknown =
        |name: &String, known: Vec<&str>| format!("--planted {name}: the faults of these servers are {}", known.join(", "));
    if replicas(matches) > 0 {
        let known = || Flaw::ALL.into_iter().map(Flaw::name).filter(|name| !name.is_empty()).collect();
        let planted = match planted {
            Some(name) if name.is_empty() => return Err(unknown(name, known())),
            Some(name) => Flaw::from_name(name).ok_or_else(|| unknown(name, known()))?,
            None => Flaw::Nothing,
        };
        settings.replicas = Some(Replicas { nodes: replicas(matches), planted });
    } else if matches.get_flag("durable") {
        let known = || Planted::NAMED.map(|(name, _)| name).to_vec();
        let planted =
            planted.map_or(Ok(Planted::Nothing), |name| Planted::from_name(name).ok_or_else(|| unknown(name, known())))?;
        settings.durable = Some(planted);
    } else if let Some(name) = planted {
        return Err(format!("--planted {name}: faults are planted with --durable or --replicas"));
    }
    Ok(settings)
}

/// What kind of servers there are.
fn kind(matches: &ArgMatches) -> Servers {
    match Servers::of(matches.get_flag("durable"), replicas(matches) > 0) {
        Servers::Replicated if matches.contains_id("live") => Servers::Processes,
        kind => kind,
    }
}

/// Number of nodes of the replicated service, or 0.
fn replicas(matches: &ArgMatches) -> u32 {
    matches.get_one::<String>("replicas").and_then(|nodes| nodes.parse().ok()).unwrap_or(0)
}

fn restart_delay_us(matches: &ArgMatches, lease_us: u64) -> Result<Option<u64>, String> {
    match matches.get_one::<String>("restart-delay-ms").map(String::as_str) {
        None => Ok(None),
        Some("lease") => Ok(Some(lease_us)),
        Some(ms) => ms
            .parse()
            .map(|ms: u64| Some(ms.min(DELAY_MAX_MS) * 1000))
            .map_err(|_| format!("'{ms}' is not a number of milliseconds")),
    }
}

fn run_all(matches: &ArgMatches) -> Result<bool, String> {
    for name in ["html", "json", "history", "verdicts"] {
        check_writable(matches.get_one::<PathBuf>(name).map(PathBuf::as_path))?;
    }
    if matches.get_flag("list") {
        return print(&list::render()).map(|()| false);
    }
    let facts = RunFacts::now();
    if matches.get_flag("table") {
        return draw_table(matches).map(|()| false);
    }
    let settings = settings(matches)?;
    let hours = matches.get_one::<f64>("hours").copied().unwrap_or(10.0);
    let invocation = Invocation {
        matches,
        settings,
        simulated_us: (hours * 3.6e9) as u64,
        episode: matches.get_one::<u64>("episode").copied(),
    };
    if matches.get_flag("registers") {
        if !matches.get_flag("durable") && replicas(matches) == 0 {
            return Err("--registers goes with --durable or --replicas".to_owned());
        }
        return invocation.use_registers();
    }
    let name = ["algorithm", "name"].into_iter().find_map(|name| matches.get_one::<String>(name)).map_or("all", String::as_str);
    let (durable, replicas) = (matches.get_flag("durable"), replicas(matches));
    if durable && matches.get_one::<String>("live").is_some() {
        return Err("--durable is for the simulation, and does not go with --live".to_owned());
    }
    if replicas > 0 && matches.get_one::<String>("live").is_some_and(|servers| servers != OWN) {
        return Err("with --replicas, --live starts the nodes itself, and takes no servers".to_owned());
    }
    if matches.contains_id("planted") && matches.contains_id("live") {
        return Err("--planted is for the simulation, and does not go with --live".to_owned());
    }
    let all = || Subject::all().into_iter().filter(|subject| !subject.delayed && subject.fenced);
    let subjects: Vec<Subject> = match name {
        "all" => all().map(|subject| Subject { durable, replicas, ..subject }).filter(Subject::is_possible).collect(),
        name => vec![Subject { durable, replicas, ..Subject::new(name) }],
    };
    let path = |name: &str| matches.get_one::<PathBuf>(name);
    if let Some(word) =
        path("json").and_then(|path| path.to_str()).filter(|word| Subject::from_label(word).sim_algorithm().is_some())
    {
        return Err(format!("--json needs a file: --json FILE {word}, or --json - {word} for standard output"));
    }
    let expect_known = matches.get_flag("expect-known");
    let mut reports = Vec::with_capacity(subjects.len());
    for subject in subjects {
        let report = match matches.get_one::<String>("live") {
            None => invocation.simulate(&subject)?,
            Some(servers) => invocation.live(&subject, servers)?,
        };
        if !path("json").is_some_and(|path| is_stdout(path)) {
            print(&format!("{}\n", report.text()))?;
        }
        reports.push(report);
    }
    if let Some(path) = path("json") {
        write_file(path, &format!("{:#}\n", report::json::document(&reports, &facts, false)))?;
    }
    if let Some(path) = path("html") {
        write_file(path, &page::render(&report::json::document(&reports, &facts, true)))?;
    }
    Ok(reports.iter().any(|report| report.failed(expect_known)))
}

fn draw_table(matches: &ArgMatches) -> Result<(), String> {
    let hours = matches.get_one::<f64>("hours").map(|hours| (hours * 3.6e9) as u64);
    let entries = table::entries();
    let mut known = Vec::with_capacity(entries.len());
    for (subject, faults) in &entries {
        let entry = table::run_entry(subject, faults, hours.unwrap_or_else(|| table::length_us(subject, faults)))
            .ok_or_else(|| no_algorithm(subject))?;
        // Progress for people: an error of standard error does not matter.
        let _ = std::io::stderr().write_all(entry.line().as_bytes());
        known.push(entry);
    }
    if let Some(path) = matches.get_one::<PathBuf>("verdicts") {
        write_file(path, &table::verdict_lines(&known))?;
    }
    print(&format!("{}\n{}", table::markdown(&known), table::durable_markdown(&known)))
}

fn no_algorithm(subject: &Subject) -> String {
    format!("there is no algorithm '{}': see portcullis torture --list", subject.algorithm)
}

impl Invocation<'_> {
    /// The settings for an algorithm, and its label with these settings.
    fn settings_of(&self, subject: &Subject) -> Result<(Settings, String), String> {
        let mut settings = subject.settings(&self.settings);
        settings.fencing = self.settings.fencing;
        if let Some(servers) = self.matches.get_one::<u32>("servers") {
            settings.servers = *servers;
        }
        settings.restart_delay_us = restart_delay_us(self.matches, settings.lease_us)?.unwrap_or(0);
        let delayed = settings.restart_delay_us >= settings.lease_us;
        let label = Subject { delayed, fenced: settings.fencing, ..subject.clone() }.label();
        Ok((settings, label))
    }

    /// Runs an algorithm against real servers. The schedule of a violation has the events of its acquisitions.
    fn live(&self, subject: &Subject, servers: &str) -> Result<Report, String> {
        let algorithm = subject.sim_algorithm().ok_or_else(|| no_algorithm(subject))?;
        let (mut settings, label) = self.settings_of(subject)?;
        let mut servers: Vec<String> = servers.split(',').map(str::to_owned).collect();
        if let [one] = &servers[..]
            && !one.contains("://")
        {
            servers = vec![one.clone(); settings.servers as usize];
        }
        settings.servers = servers.len() as u32;
        if algorithm.facts().native && servers.iter().any(|server| server == "redis-server") {
            return Err(format!("{} needs native locks, which redis-server does not have", subject.algorithm));
        }
        let plan = live::plan(&settings, self.episode.unwrap_or(0));
        let began = Instant::now();
        let live::LiveResult { history, order_sources, toll } = live::run(&settings, &plan, subject, &servers)?;
        let elapsed = began.elapsed();
        if let Some(path) = self.matches.get_one::<PathBuf>("history") {
            write_file(path, &history.text())?;
        }
        let outcome = run::judge_history(&history, &run::rules(&settings, &algorithm));
        let counterexample = |violation: &Violation| Counterexample {
            plan: plan.clone(),
            history: history.concerning(&violation.ops),
            violation: violation.clone(),
            tried: 1,
        };
        let counterexamples =
            outcome.violated().filter_map(|verdict| Some(counterexample(&verdict.first()?.violation))).collect();
        let known = known::violations(&label, &settings.faults);
        let summary = algorithm.facts().summary.to_owned();
        let live = servers.iter().map(|server| masked(server)).collect();
        let rest = Report::default();
        Ok(Report { label, summary, settings, outcome, counterexamples, known, elapsed, live, order_sources, toll, ..rest })
    }

    /// Runs an algorithm in the simulation.
    fn simulate(&self, subject: &Subject) -> Result<Report, String> {
        let algorithm = subject.sim_algorithm().ok_or_else(|| no_algorithm(subject))?;
        let (settings, label) = self.settings_of(subject)?;
        let (from, simulated_us) = self.episode.map_or((0, self.simulated_us), |episode| (episode, 0));
        let mut histories = self.matches.get_one::<PathBuf>("history").map(|_| String::new());
        let (began, spent_us) = (Instant::now(), user_us());
        let bar = progress(&label, (simulated_us / HOUR_US).max(1), "hours");
        let outcome = run::run(&settings, &algorithm, from, simulated_us, |_, history, outcome| {
            bar.set_position(outcome.simulated_us / HOUR_US);
            if let Some(text) = &mut histories {
                text.push_str(&history.text());
            }
            ControlFlow::Continue(())
        });
        bar.finish_and_clear();
        let (elapsed, user_cpu) = (began.elapsed(), Duration::from_micros(user_us().saturating_sub(spent_us)));
        if let (Some(text), Some(path)) = (histories, self.matches.get_one::<PathBuf>("history")) {
            write_file(path, &text)?;
        }
        let rules = run::rules(&settings, &algorithm);
        let counterexamples = outcome
            .violated()
            .filter_map(|verdict| {
                let episode = verdict.first().map_or(0, |found| found.episode);
                self.shrink(&Plan::draw(&settings, episode), &algorithm, &rules, verdict.property)
            })
            .collect();
        let summary = algorithm.facts().summary.to_owned();
        let known = known::violations(&label, &settings.faults);
        let like_known =
            Subject::from_label(&label).settings(&Settings { faults: settings.faults.clone(), ..Settings::default() });
        let comparable = self.episode.is_none() && settings == like_known;
        let rest = Report::default();
        Ok(Report { label, summary, settings, outcome, counterexamples, known, comparable, elapsed, user_cpu, ..rest })
    }

    /// Runs clients that use plain keys. Returns whether their commands were not linearizable.
    fn use_registers(&self) -> Result<bool, String> {
        // A client library that sends a command twice has it carried out twice.
        let faults = self.settings.faults.iter().copied().filter(|fault| *fault != Fault::Duplicate).collect();
        let settings = Settings { faults, ..self.settings.clone() };
        let (from, simulated_us) = self.episode.map_or((0, self.simulated_us), |episode| (episode, 0));
        let spent_us = user_us();
        let bar = progress("registers", (simulated_us / HOUR_US).max(1), "hours");
        let outcome = registers::run(&settings, from, simulated_us, |simulated_us| bar.set_position(simulated_us / HOUR_US));
        bar.finish_and_clear();
        let registers::Outcome { episodes, commands, simulated_us, violation, .. } = outcome;
        let (nodes, seed) = (settings.machines(), settings.seed);
        let cpu_s = user_us().saturating_sub(spent_us) as f64 / 1e6;
        let hours = simulated_us as f64 / HOUR_US as f64;
        let of = match settings.durable {
            Some(_) if nodes == 1 => "durable server",
            Some(_) => "durable servers",
            None => "nodes",
        };
        print(&format!("plain commands of {nodes} {of}: seed {seed}; faults {}\n", Fault::format_list(&settings.faults)))?;
        print(&format!("  {commands} commands in {episodes} episodes, {hours:.1} hours simulated in {cpu_s:.0} s of CPU\n"))?;
        match violation {
            None => print("  linearizable\n")?,
            Some((episode, key)) => print(&format!(
                "  VIOLATED in episode {episode}: the commands on key {key} have no order\n  again: --seed {seed} --episode {episode}\n"
            ))?,
        }
        Ok(violation.is_some())
    }

    /// The shortest schedule of a violation that is found within the time limit.
    fn shrink(&self, plan: &Plan, algorithm: &SimAlgorithm, rules: &Rules, property: Property) -> Option<Counterexample> {
        let runs = if self.matches.get_flag("no-shrink") { 0 } else { SHRINKS_MAX };
        let seconds = self.matches.get_one::<u64>("shrink-s").copied().unwrap_or(SHRINK_S);
        let bar = progress(&format!("shrinking {property}"), u64::from(runs), "runs");
        let mut report = |tried: u32, plan: &Plan| {
            bar.set_position(u64::from(tried));
            bar.set_message(format!("runs, {} jobs and {} faults left", plan.jobs(), plan.faults.len()));
        };
        let until = Instant::now().checked_add(Duration::from_secs(seconds));
        let counterexample = shrink::shrink(plan, algorithm, rules, property, Budget { runs, until, progress: &mut report });
        bar.finish_and_clear();
        counterexample
    }
}

/// A progress bar. It shows only on a terminal.
fn progress(what: &str, all: u64, of: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} [{bar:40}] {pos} of {len} {msg}, {eta} left");
    let bar = ProgressBar::new(all).with_prefix(what.to_owned()).with_message(of.to_owned());
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
