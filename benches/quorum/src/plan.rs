//! The command line: which systems and sections to measure, and for how long.

use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::systems::System;

const ABOUT: &str = "Measures Portcullis side by side with etcd, ZooKeeper and redis-server with replicas, three nodes each";
const AFTER: &str = "\
Sections: pairs, contended, failover, memory. A full run takes some 20 minutes, --quick some 4. Reliable figures need an otherwise idle \
machine.

The published figures come from Debian 12: apt-get install etcd-server zookeeper default-jre-headless redis-server. Portcullis is built \
for the run, unless PORTCULLIS names its program. ETCD, JAVA and REDIS_SERVER may name other programs.

Examples:
  cargo bench -p portcullis-quorum
  cargo bench -p portcullis-quorum -- --quick --only pairs/CPU,failover --systems portcullis,etcd";

/// Where the tables are written, below the root of the workspace.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// What to measure.
pub struct Plan {
    /// The systems, in the order of the tables.
    pub systems: Vec<System>,
    /// Systems that are not installed, with a way to install them.
    pub missing: Vec<String>,
    /// Whether to take fewer and shorter slices.
    pub quick: bool,
    /// Number of turns of each system.
    pub rounds: usize,
    /// The file for the tables.
    pub table: PathBuf,
    /// The file for the figures.
    pub json: PathBuf,
    only: Vec<String>,
    programs: Vec<(System, PathBuf)>,
    began: Instant,
}

fn command() -> Command {
    let file = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("FILE").value_parser(value_parser!(PathBuf)).help(help)
    };
    let list = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).value_delimiter(',').action(ArgAction::Append).help(help)
    };
    Command::new("quorum")
        .about(ABOUT)
        .after_help(AFTER)
        .arg(Arg::new("quick").long("quick").action(ArgAction::SetTrue).help("Takes fewer and shorter slices, with fewer locks"))
        .arg(list("only", "SECTION[/NAME]", "Measures these sections only, or their rows with NAME in the name"))
        .arg(list("systems", "SYSTEM", "Measures these systems only: portcullis, etcd, zookeeper, redis"))
        .arg(
            Arg::new("rounds")
                .long("rounds")
                .value_name("N")
                .value_parser(value_parser!(u16).range(1..))
                .help("Number of turns of each system [7; with --quick 3]"),
        )
        .arg(file("table", "Writes the tables to this file [target/quorum/table.md]"))
        .arg(file("json", "Writes the figures to this file [target/quorum/figures.json]"))
        .arg(Arg::new("bench").long("bench").action(ArgAction::SetTrue).hide(true))
}

impl Plan {
    /// Parses the command line and finds the programs.
    pub fn read(args: Vec<String>) -> Result<Plan, String> {
        let matches = command().try_get_matches_from(args).unwrap_or_else(|error| error.exit());
        let texts = |name: &str| matches.get_many::<String>(name).unwrap_or_default().cloned().collect::<Vec<_>>();
        let path = |matches: &ArgMatches, name: &str, default: &str| {
            matches.get_one::<PathBuf>(name).cloned().unwrap_or_else(|| Path::new(ROOT).join("target/quorum").join(default))
        };
        let quick = matches.get_flag("quick");
        let mut wanted = Vec::new();
        for name in texts("systems") {
            wanted.push(System::by_name(&name).ok_or_else(|| format!("there is no system '{name}'; see --help"))?);
        }
        let mut plan = Plan {
            systems: Vec::new(),
            missing: Vec::new(),
            quick,
            rounds: matches.get_one::<u16>("rounds").copied().map(usize::from).unwrap_or(if quick { 3 } else { 7 }),
            table: path(&matches, "table", "table.md"),
            json: path(&matches, "json", "figures.json"),
            only: texts("only").iter().map(|only| only.to_lowercase()).collect(),
            programs: Vec::new(),
            began: Instant::now(),
        };
        for system in System::ALL.into_iter().filter(|system| wanted.is_empty() || wanted.contains(system)) {
            let found = if system == System::Portcullis { Some(plan.portcullis()?) } else { system.find() };
            match found {
                Some(program) => {
                    plan.systems.push(system);
                    plan.programs.push((system, program));
                }
                None => {
                    let missing = format!("{} (`{}`)", system.title(), system.how_to_install());
                    plan.say(&format!("not installed, left out: {missing}"));
                    plan.missing.push(missing);
                }
            }
        }
        Ok(plan)
    }

    /// The program of this workspace, built now, or the one that PORTCULLIS names.
    fn portcullis(&self) -> Result<PathBuf, String> {
        if let Some(program) = System::Portcullis.find() {
            return Ok(program);
        }
        self.say("build portcullis");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Process::new(cargo)
            .args(["build", "--profile", "bench", "--quiet", "--package", "portcullis", "--bin", "portcullis"])
            .current_dir(ROOT)
            .status()
            .map_err(|error| format!("cargo: {error}"))?;
        // This program is in `release/deps`.
        let this = std::env::current_exe().map_err(|error| error.to_string())?;
        let program = this.ancestors().nth(2).map(|folder| folder.join("portcullis")).filter(|program| program.is_file());
        program
            .filter(|_| built.success())
            .ok_or_else(|| "portcullis cannot be built; PORTCULLIS may name its program".to_owned())
    }

    /// Prints progress for people.
    pub fn say(&self, what: &str) {
        let seconds = self.began.elapsed().as_secs();
        eprintln!("{:>3}:{:02}  {what}", seconds / 60, seconds % 60);
    }

    /// Whether a row of a section is selected.
    pub fn wants(&self, section: &str, name: &str) -> bool {
        let name = name.to_lowercase();
        self.only.is_empty()
            || self.only.iter().any(|only| match only.split_once('/') {
                Some((of, part)) => of == section && name.contains(part),
                None => only == section,
            })
    }

    /// The program of a system.
    pub fn program(&self, system: System) -> std::io::Result<&Path> {
        let program = self.programs.iter().find(|(other, _)| *other == system).map(|(_, program)| program.as_path());
        program.ok_or_else(|| std::io::Error::other("it is not one of the systems"))
    }

    /// The length of a slice.
    pub fn slice(&self) -> Duration {
        Duration::from_millis(if self.quick { 1_000 } else { 3_000 })
    }
}
