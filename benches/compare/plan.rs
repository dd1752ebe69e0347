//! The command line: which servers and sections to measure, and for how long.

use std::cell::Cell;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use portcullis::bench::servers::info::name_and_version;
use portcullis::bench::servers::kind::ServerKind;
use portcullis::bench::servers::process::Process;
use portcullis::bench::servers::wire::call;

const ABOUT: &str = "Measures Portcullis side by side with redis-server, valkey-server and kevy";
const AFTER: &str = "\
Sections: cpu, handoff, expiry, stall, memory, startup, durable. A full run takes some 30 minutes, --quick some 6. Reliable figures need \
an otherwise idle machine.

Programs are found in PATH or named by REDIS_SERVER, VALKEY_SERVER and KEVY. The published figures come from:
  redis-server 7.0.15   Debian 12: apt-get install redis-server
  valkey-server 8       Debian 12: deb http://deb.debian.org/debian bookworm-backports main
                        apt-get install -t bookworm-backports valkey-server
  kevy 3.17.3           cargo install kevy --version 3.17.3 --locked

Examples:
  cargo bench --bench compare
  cargo bench --bench compare -- --quick --only cpu/SET,memory --servers redis,portcullis
  cargo bench --bench compare -- --only handoff/native --depth 64 --rounds 11";

/// A server to measure.
pub struct Server {
    /// The kind of server.
    pub kind: ServerKind,
    program: PathBuf,
    /// The name and version from its `INFO`.
    pub title: String,
}

/// What to measure.
pub struct Plan {
    /// The servers, in the order of the tables.
    pub servers: Vec<Server>,
    /// Servers that are not installed, with a way to install them.
    pub missing: Vec<String>,
    /// Whether to take fewer and shorter slices.
    pub quick: bool,
    /// Number of turns of each server.
    pub rounds: usize,
    /// The file for the tables.
    pub table: PathBuf,
    /// The file for the figures.
    pub json: PathBuf,
    /// A page into which the tables are written as well.
    pub readme: Option<PathBuf>,
    only: Vec<String>,
    depth: Option<usize>,
    began: Instant,
    ran_ns: Cell<u64>,
    waited_ns: Cell<u64>,
}

fn command() -> Command {
    let file = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("FILE").value_parser(value_parser!(PathBuf)).default_value(default).help(help)
    };
    let list = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).value_delimiter(',').action(ArgAction::Append).help(help)
    };
    let number = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("N").value_parser(value_parser!(u16).range(1..)).help(help)
    };
    Command::new("compare")
        .about(ABOUT)
        .after_help(AFTER)
        .arg(Arg::new("quick").long("quick").action(ArgAction::SetTrue).help("Takes fewer and shorter slices, with fewer keys"))
        .arg(list("only", "SECTION[/NAME]", "Measures these sections only, or their rows with NAME in the name"))
        .arg(list("servers", "SERVER", "Measures these servers only: redis-server, valkey-server, kevy, portcullis"))
        .arg(number("depth", "Uses only this pipeline depth, and this number of waiters"))
        .arg(number("rounds", "Number of turns of each server [7; with --quick 3]"))
        .arg(file("table", "target/compare/table.md", "Writes the tables to this file"))
        .arg(file("json", "target/compare/figures.json", "Writes the figures to this file"))
        .arg(
            Arg::new("readme")
                .long("readme")
                .value_name("FILE")
                .num_args(0..=1)
                .default_missing_value("guide/measurements.md")
                .value_parser(value_parser!(PathBuf))
                .help("Also writes the tables into this page, between <!-- compare --> and <!-- /compare -->"),
        )
        .arg(Arg::new("bench").long("bench").action(ArgAction::SetTrue).hide(true))
}

impl Plan {
    /// Parses the command line and reads the version of each server.
    pub fn read(args: Vec<String>) -> std::result::Result<Plan, String> {
        let matches = command().try_get_matches_from(args).unwrap_or_else(|error| error.exit());
        let texts = |name: &str| matches.get_many::<String>(name).unwrap_or_default().cloned().collect::<Vec<_>>();
        let path = |matches: &ArgMatches, name: &str| matches.get_one::<PathBuf>(name).cloned();
        let number = |name: &str| matches.get_one::<u16>(name).copied().map(usize::from);
        let quick = matches.get_flag("quick");
        let mut wanted = Vec::new();
        for name in texts("servers") {
            wanted.push(ServerKind::by_name(&name).ok_or_else(|| format!("there is no server '{name}'; see --help"))?);
        }
        let mut plan = Plan {
            servers: Vec::new(),
            missing: Vec::new(),
            quick,
            rounds: number("rounds").unwrap_or(if quick { 3 } else { 7 }),
            table: path(&matches, "table").ok_or("--table wants a file")?,
            json: path(&matches, "json").ok_or("--json wants a file")?,
            readme: path(&matches, "readme"),
            only: texts("only").iter().map(|only| only.to_lowercase()).collect(),
            depth: number("depth"),
            began: Instant::now(),
            ran_ns: Cell::new(0),
            waited_ns: Cell::new(0),
        };
        for kind in ServerKind::ALL.into_iter().filter(|kind| wanted.is_empty() || wanted.contains(kind)) {
            let program = if kind == ServerKind::Portcullis {
                Some(Path::new(env!("CARGO_BIN_EXE_portcullis")).into())
            } else {
                kind.find()
            };
            let Some(program) = program else {
                let missing = format!("{} (`{}`, or {}=program)", kind.name(), kind.how_to_install(), kind.variable());
                plan.say(&format!("not installed, left out: {missing}"));
                plan.missing.push(missing);
                continue;
            };
            let info = kind.start(&program).and_then(|process| call(process.addr(), &["INFO"]));
            let info = info.map_err(|error| format!("{}: {error}", program.display()))?;
            plan.servers.push(Server { kind, program, title: name_and_version(&info) });
        }
        Ok(plan)
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

    /// The selected depths or numbers of waiters, out of all.
    pub fn depths(&self, all: &[usize]) -> Vec<usize> {
        self.depth.map_or_else(|| all.to_vec(), |depth| vec![depth])
    }

    /// The kinds of the servers.
    pub fn kinds(&self) -> impl Iterator<Item = ServerKind> + '_ {
        self.servers.iter().map(|server| server.kind)
    }

    /// Starts a server.
    pub fn start(&self, kind: ServerKind) -> Result<Process> {
        kind.start(self.program(kind)?)
    }

    /// The program of a server.
    pub fn program(&self, kind: ServerKind) -> Result<&Path> {
        let server = self.servers.iter().find(|server| server.kind == kind);
        server.map(|server| server.program.as_path()).ok_or_else(|| Error::other("it is not one of the servers"))
    }

    /// Adds up how long a server ran, and how long it waited for a processor.
    pub fn account(&self, process: &Process) {
        if let (Ok(ran), Ok(waited)) = (process.cpu_ns(), process.waited_ns()) {
            self.ran_ns.set(self.ran_ns.get() + ran);
            self.waited_ns.set(self.waited_ns.get() + waited);
        }
    }

    /// How long servers waited for a processor, as a part of the time that they ran. Large if the machine was busy.
    pub fn disturbance(&self) -> f64 {
        self.waited_ns.get() as f64 / self.ran_ns.get().max(1) as f64
    }

    /// Runs a measurement once on each server. Each server is started for it.
    pub fn once<T>(
        &self,
        what: &str,
        mut measure: impl FnMut(ServerKind, &Process) -> Result<T>,
    ) -> Vec<(ServerKind, Result<T>)> {
        let mut on = |kind: ServerKind| {
            self.say(&format!("{what}: {}", kind.name()));
            let process = self.start(kind)?;
            let measured = measure(kind, &process)?;
            self.account(&process);
            Ok(measured)
        };
        self.kinds().map(|kind| (kind, on(kind))).collect()
    }
}
