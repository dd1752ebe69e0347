//! The command line: which servers, which sections, how long.

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
Sections: cpu, handoff, expiry, stall, memory, startup. The whole takes some 20 minutes, --quick some 4. For figures to be believed \
the machine has to have nothing else to do.

Programs are found in the path, or named by REDIS_SERVER, VALKEY_SERVER and KEVY. Those that are published:
  redis-server 7.0.15   Debian 12: apt-get install redis-server
  valkey-server 8       Debian 12: deb http://deb.debian.org/debian bookworm-backports main
                        apt-get install -t bookworm-backports valkey-server
  kevy 3.17.3           cargo install kevy --version 3.17.3 --locked

Examples:
  cargo bench --bench compare
  cargo bench --bench compare -- --quick --only cpu/SET,memory --servers redis,portcullis
  cargo bench --bench compare -- --only handoff/native --depth 64 --rounds 11";

/// A program that is measured.
pub struct Server {
    /// What it is.
    pub kind: ServerKind,
    program: PathBuf,
    /// What it says that it is, with its version.
    pub title: String,
}

/// What is measured.
pub struct Plan {
    /// The servers, in the order of the tables.
    pub servers: Vec<Server>,
    /// What would be measured, and is not there: its name and how it is installed.
    pub missing: Vec<String>,
    /// Fewer and shorter slices.
    pub quick: bool,
    /// How many times each server has its turn.
    pub rounds: usize,
    /// Where the tables go.
    pub table: PathBuf,
    /// Where the figures go.
    pub json: PathBuf,
    /// A page that has the tables, too.
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
        .arg(Arg::new("quick").long("quick").action(ArgAction::SetTrue).help("Fewer and shorter slices, and fewer keys"))
        .arg(list("only", "SECTION[/NAME]", "Sections, or what has that name in them"))
        .arg(list("servers", "SERVER", "Which of redis-server, valkey-server, kevy and portcullis"))
        .arg(number("depth", "One depth of pipelines, or number of waiters"))
        .arg(number("rounds", "How many times each server has its turn [7, quick 3]"))
        .arg(file("table", "target/compare/table.md", "Where the tables go"))
        .arg(file("json", "target/compare/figures.json", "Where the figures go"))
        .arg(
            Arg::new("readme")
                .long("readme")
                .value_name("FILE")
                .num_args(0..=1)
                .default_missing_value("guide/measurements.md")
                .value_parser(value_parser!(PathBuf))
                .help("Writes the tables into that page as well, between <!-- compare --> and <!-- /compare -->"),
        )
        .arg(Arg::new("bench").long("bench").action(ArgAction::SetTrue).hide(true))
}

impl Plan {
    /// Reads the command line, and asks each server what it is.
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
                plan.say(&format!("not installed, and left out: {missing}"));
                plan.missing.push(missing);
                continue;
            };
            let info = kind.start(&program).and_then(|process| call(process.addr(), &["INFO"]));
            let info = info.map_err(|error| format!("{}: {error}", program.display()))?;
            plan.servers.push(Server { kind, program, title: name_and_version(&info) });
        }
        Ok(plan)
    }

    /// Progress, for people.
    pub fn say(&self, what: &str) {
        let seconds = self.began.elapsed().as_secs();
        eprintln!("{:>3}:{:02}  {what}", seconds / 60, seconds % 60);
    }

    /// Whether something of a section is wanted.
    pub fn wants(&self, section: &str, name: &str) -> bool {
        let name = name.to_lowercase();
        self.only.is_empty()
            || self.only.iter().any(|only| match only.split_once('/') {
                Some((of, part)) => of == section && name.contains(part),
                None => only == section,
            })
    }

    /// Those that are wanted of how far something can be driven.
    pub fn depths(&self, all: &[usize]) -> Vec<usize> {
        self.depth.map_or_else(|| all.to_vec(), |depth| vec![depth])
    }

    /// What servers there are.
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
        server.map(|server| server.program.as_path()).ok_or_else(|| Error::other("it is not among the servers"))
    }

    /// Notes how much a server ran, and how long it was kept waiting for a processor by others.
    pub fn account(&self, process: &Process) {
        if let (Ok(ran), Ok(waited)) = (process.cpu_ns(), process.waited_ns()) {
            self.ran_ns.set(self.ran_ns.get() + ran);
            self.waited_ns.set(self.waited_ns.get() + waited);
        }
    }

    /// For each nanosecond that servers ran, how long they waited for a processor: far above 0 where the machine had other things to do.
    pub fn disturbance(&self) -> f64 {
        self.waited_ns.get() as f64 / self.ran_ns.get().max(1) as f64
    }

    /// Measures something once on each server, one after the other, each started anew.
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
