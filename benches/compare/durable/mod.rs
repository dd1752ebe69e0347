//! The append-only file: what `appendfsync` costs, who waits for the disk, and how fast the files are read again.
//!
//! ```text
//!   drive ─ 50 or 500 clients ─▶ server ─▶ files in its folder ◀─ disk: 4 KiB and fdatasync, before each slice
//!   loading: fill ─▶ SHUTDOWN ─▶ start ─▶ first PONG
//! ```
//!
//! The servers keep their files in folders of one file system. Slices take turns.

mod drive;
mod loading;
mod rewrite;

use std::io::{Error, Result};
use std::path::Path;
use std::time::{Duration, Instant};

use portcullis::bench::disk::Disk;
use portcullis::bench::report::comparison::{Bar, Cell, Row, Section, Unit};
use portcullis::bench::report::statistics::median;
use portcullis::bench::servers::info::field;
use portcullis::bench::servers::kind::ServerKind;
use portcullis::bench::servers::process::Process;
use portcullis::bench::servers::wire::{REPLY_TIMEOUT, call};
use portcullis::ports;

use crate::floor::{self, Kind};
use crate::plan::Plan;

const NAME: &str = "durable";

/// A figure of each server: its name, its parameter, its unit and its goal.
type Figure = (&'static str, &'static str, Unit, Option<Bar>);

const ALWAYS: [(&str, usize, Bar); 2] = [("50", 50, Bar::RatioAtLeast(1.5)), ("500", 500, Bar::RatioAtLeast(1.2))];
/// 0.7 of Redis's cost, and 0.65.
const CHEAPER: Bar = Bar::RatioAtLeast(1.43);
const MUCH_CHEAPER: Bar = Bar::RatioAtLeast(1.54);
/// The longest turn of the event loop, in microseconds.
pub const TURN: Bar = Bar::AtMost(1_000.0);

const READERS: [Figure; 3] = [
    ("GET p99 of 50 clients", "no writers", Unit::Microseconds, None),
    ("GET p99 of 50 clients", "8 writers, always", Unit::Microseconds, None),
    ("GET p99 beside 8 writers, divided by that without", "always", Unit::Ratio, Some(Bar::AtMost(1.5))),
];
/// The driver, the executor and the log's thread share two cores: a turn is as long as the system lets it wait. The bar is for its work.
const EVERY_SECOND: [Figure; 3] = [
    ("SET NX PX of 50 clients, CPU", "everysec", Unit::Nanoseconds, Some(MUCH_CHEAPER)),
    ("longest turn of the event loop meanwhile", "everysec", Unit::Microseconds, None),
    ("work in the longest turn of the event loop meanwhile", "everysec", Unit::Microseconds, Some(TURN)),
];

/// The figures of one slice, one for each row, or none where the server does not have it.
pub type Slice = Vec<Option<f64>>;

pub fn measure(plan: &Plan) -> Section {
    let mut section = Section::new(NAME, "append-only file", "how");
    let mut disk = Disk::default();
    let mut floors = Vec::new();
    for (clients, count, bar) in ALWAYS {
        let what = format!("SET NX PX of {clients} clients");
        if !plan.wants(NAME, &what) {
            continue;
        }
        let figures: [Figure; 2] =
            [("time", "always", Unit::Nanoseconds, Some(bar)), ("CPU", "always", Unit::Nanoseconds, Some(CHEAPER))];
        let per_client = if plan.quick { 10_000 } else { 40_000 } / count;
        let mut syncs = Vec::new();
        let rows = slices(plan, &what, "always", &figures, |kind, process, round| {
            disk.measure()?;
            let before = log_syncs(process)?;
            let began = Instant::now();
            let (ns, cpu_ns) = drive::set(process, count, per_client, round)?;
            if let (ServerKind::Portcullis, Some(before), Some(after)) = (kind, before, log_syncs(process)?) {
                let (count, writes) = (after.saturating_sub(before) as f64, (count * per_client) as f64);
                syncs.push((writes / count, count / began.elapsed().as_secs_f64()));
            }
            Ok(vec![Some(ns), Some(cpu_ns)])
        });
        floors.extend(floor_of(plan, &format!("{what}, always"), Kind::Synced(count), (count, per_client), &rows));
        section.rows.extend(rows.into_iter().map(|row| Row { what: format!("{what}, {}", row.what), ..row }));
        let of = |part: fn(&(f64, f64)) -> f64| median(&syncs.iter().map(part).collect::<Vec<_>>());
        if !syncs.is_empty() {
            section.notes.push(format!(
                "{what}, always, portcullis: {:.0} writes a sync, {:.0} syncs a second",
                of(|syncs| syncs.0),
                of(|syncs| syncs.1)
            ));
        }
    }
    if plan.wants(NAME, READERS[0].0) || plan.wants(NAME, READERS[2].0) {
        let seconds = Duration::from_millis(if plan.quick { 1000 } else { 4000 });
        section.rows.extend(slices(plan, "GET beside writers", "always", &READERS, |_, process, round| {
            disk.measure()?;
            let alone = drive::get(process, 50, 0, seconds, round)?;
            let beside = drive::get(process, 50, 8, seconds, round)?;
            Ok(vec![Some(alone), Some(beside), Some(beside / alone)])
        }));
    }
    if plan.wants(NAME, EVERY_SECOND[0].0) {
        let per_client = if plan.quick { 2_000 } else { 8_000 };
        let rows = slices(plan, "SET under everysec", "everysec", &EVERY_SECOND, |kind, process, round| {
            crate::stall::longest_turn_us(kind, process)?;
            let (_, cpu_ns) = drive::set(process, 50, per_client, round)?;
            let [us, work_us] = crate::stall::longest_turn(kind, process)?.map_or([None; 2], |turn| turn.map(Some));
            Ok(vec![Some(cpu_ns), us, work_us])
        });
        floors.extend(floor_of(plan, "SET NX PX of 50 clients, without a file", Kind::Workloads, (50, per_client), &rows));
        section.rows.extend(rows);
    }
    rewrite::measure(plan, &mut section);
    loading::measure(plan, &mut section);
    if !floors.is_empty() {
        section.notes.push(format!(
            "the least that this machine allows, from a loop of `epoll_wait`, `recv` and `send` that stores nothing and under always writes \
             the requests of all clients with one `fdatasync`; in parentheses redis-server's figure divided by it: {}",
            floors.join("; ")
        ));
    }
    if let Some(note) = disk.note() {
        section.notes.push(note);
    }
    section
}

/// The time and the processor time that the floor takes for each request, in words. `rows` are those of the servers.
fn floor_of(plan: &Plan, what: &str, kind: Kind, (clients, per_client): (usize, usize), rows: &[Row]) -> Option<String> {
    plan.say(&format!("{NAME}: the floor of {what}"));
    let process = floor::process(kind).ok()?;
    let slices: Vec<(f64, f64)> =
        (0..plan.rounds).map_while(|round| drive::set(&process, clients, per_client, round).ok()).collect();
    plan.account(&process);
    let of = |part: fn(&(f64, f64)) -> f64| median(&slices.iter().map(part).collect::<Vec<_>>());
    let figure = |name: &str, ns: f64| {
        let row = rows.iter().find(|row| row.what.ends_with(name));
        let redis = row.and_then(|row| row.cells.iter().find(|(kind, _)| *kind == ServerKind::Redis)?.1.figure());
        let over = redis.map_or_else(String::new, |redis| format!(" ({:.2}×)", redis / ns));
        format!("{name} {ns:.0} ns{over}")
    };
    (!slices.is_empty())
        .then(|| format!("{what}: {}, {}", figure("time", of(|slice| slice.0)), figure("CPU", of(|slice| slice.1))))
}

/// Measures slices of all servers in turns. Turns of the event loop are those of the quietest round, other figures medians.
fn slices(
    plan: &Plan,
    what: &str,
    policy: &str,
    figures: &[Figure],
    mut slice: impl FnMut(ServerKind, &Process, usize) -> Result<Slice>,
) -> Vec<Row> {
    let mut servers: Vec<(ServerKind, Result<Process>, Result<Vec<Slice>>)> =
        plan.kinds().map(|kind| (kind, start(plan, kind, policy, None), Ok(Vec::new()))).collect();
    for round in 0..plan.rounds {
        plan.say(&format!("{NAME}: {what}, round {}", round + 1));
        for (kind, process, done) in &mut servers {
            let (Ok(process), Ok(slices)) = (&*process, &mut *done) else { continue };
            match slice(*kind, process, round) {
                Ok(figures) => slices.push(figures),
                Err(error) => *done = Err(error),
            }
        }
    }
    servers.iter().filter_map(|(_, process, _)| process.as_ref().ok()).for_each(|process| plan.account(process));
    let done = servers.into_iter().map(|(kind, process, slices)| (kind, process.and(slices)));
    rows(figures, &done.collect::<Vec<_>>())
}

/// A row for each figure.
fn rows(figures: &[Figure], servers: &[(ServerKind, Result<Vec<Slice>>)]) -> Vec<Row> {
    let row = |(number, (what, at, unit, bar)): (usize, &Figure)| {
        let mut row = Row::new(*what, *at, *unit).bar(*bar);
        for (kind, slices) in servers {
            let cell = match slices {
                Err(error) => Cell::Failed(error.to_string()),
                Ok(slices) => {
                    let all: Vec<f64> = slices.iter().filter_map(|slice| slice[number]).collect();
                    let least = all.iter().copied().fold(f64::INFINITY, f64::min);
                    match all.as_slice() {
                        [] => Cell::Unsupported,
                        _ if *bar == Some(TURN) => Cell::Value(least),
                        all => Cell::Value(median(all)),
                    }
                }
            };
            row.cells.push((*kind, cell));
        }
        row
    };
    figures.iter().enumerate().map(row).collect()
}

/// Starts a server that keeps its data, in its own folder or in this one, and waits until it has loaded what is there.
fn start(plan: &Plan, kind: ServerKind, policy: &str, dir: Option<&Path>) -> Result<Process> {
    start_timed(plan, kind, policy, dir).map(|(process, _)| process)
}

/// As [`start`], and the time from exec to the first PONG.
fn start_timed(plan: &Plan, kind: ServerKind, policy: &str, dir: Option<&Path>) -> Result<(Process, Duration)> {
    if kind == ServerKind::Kevy {
        return Err(Error::other("its files are not measured"));
    }
    let port = ports::free()?;
    let mut command = kind.command(plan.program(kind)?, port);
    command.args(["--appendonly", "yes", "--appendfsync", policy, "--auto-aof-rewrite-percentage", "0", "--dir"]);
    command.arg(dir.unwrap_or(Path::new(".")));
    let began = Instant::now();
    let mut process = Process::spawn(command, port)?;
    process.wait_until_listening()?;
    // Redis listens at once, and replies LOADING.
    while call(process.addr(), &["PING"])? != "+PONG\r\n" {
        if began.elapsed() > 10 * REPLY_TIMEOUT {
            return Err(Error::other("it does not load its files"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok((process, began.elapsed()))
}

/// A number of `INFO`.
fn info(process: &Process, section: &str, name: &str) -> Result<Option<u64>> {
    let info = call(process.addr(), &["INFO", section])?;
    Ok(field(&info, name).and_then(|text| text.trim().parse().ok()))
}

fn log_syncs(process: &Process) -> Result<Option<u64>> {
    info(process, "persistence", "log_syncs")
}
