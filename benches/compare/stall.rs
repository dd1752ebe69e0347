//! Latency of another client's requests while hundreds of thousands of keys expire in one millisecond, and while millions of keys
//! are inserted.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use portcullis::bench::report::comparison::{Bar, Cell, Row, Section, Unit};
use portcullis::bench::report::statistics::{median, quantile};
use portcullis::bench::servers::kind::ServerKind;
use portcullis::bench::servers::process::Process;
use portcullis::bench::servers::process_stats::CpuMeter;
use portcullis::bench::servers::wire::{call, connect, encode, encode_onto, unexpected_reply};
use serde_json::{Map, Value, json};

use crate::load::{grouped, send, sleep_until, unix_ms};
use crate::plan::Plan;
use crate::prober::Prober;

const NAME: &str = "stall";
/// Maximum time after their deadline until the keys are gone.
const GONE_MS: u64 = 10_000;
/// Number of inserts that are sent at once. It is small, so that the time of a batch is close to the time of its slowest insert.
const BATCH: usize = 16;
const VALUE: &str = "5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21";

/// A figure of a measurement: its name, how to get it, how to combine the values of several rounds, and the goal.
type Part = (&'static str, fn(&StallFigures) -> Option<f64>, fn(&[f64]) -> f64, Option<Bar>);

/// The figures of one measurement.
struct StallFigures {
    /// Latencies of the other client's requests in microseconds, sorted.
    us: Vec<i64>,
    /// Maximum CPU time that the server used for a batch, in microseconds.
    worst_us: f64,
    /// Maximum CPU time for a batch of PINGs between those batches: the disturbance by the machine.
    floor_us: f64,
    /// The longest turn by the server's own figure, in microseconds, if it has one.
    turn_us: Option<f64>,
    /// Details for programs.
    known: Value,
}

impl StallFigures {
    fn at(&self, part: f64) -> f64 {
        quantile(&self.us, part).unwrap_or(0) as f64
    }
}

pub fn measure(plan: &Plan) -> Section {
    let mut section = Section::new(NAME, "latency of another client's PING and GET", "figure");
    let ending = if plan.quick { 100_000 } else { 500_000 };
    let what = format!("while {} keys expire in one millisecond", grouped(ending));
    if plan.wants(NAME, &what) {
        let parts: [Part; 2] = [
            ("p99", |stalled| Some(stalled.at(0.99)), median, Some(Bar::AtMost(2_000.0))),
            ("max", |stalled| Some(stalled.at(1.0)), median, Some(Bar::AtMost(5_000.0))),
        ];
        section.rows.extend(rows(plan, &[what], &parts, |_, process| expire(process, ending).map(|stalled| vec![stalled])));
        section.notes.extend(section.rows.first().map(gone));
    }
    let inserted = if plan.quick { 500_000 } else { 2_000_000 };
    let first = format!("while {} keys are inserted", grouped(inserted));
    let second = format!("while they grow to {}", grouped(2 * inserted));
    if plan.wants(NAME, &first) || plan.wants(NAME, &second) {
        // The latency of other clients also depends on the scheduler. No insert takes longer than the CPU time of its batch, nor
        // than the longest turn (from recv to send) by the server's own figure. Both include time that the machine's host or
        // other processes took, which PINGs also show. But what a server does itself, it does in every round.
        let parts: [Part; 5] = [
            ("p99", |stalled| Some(stalled.at(0.99)), median, None),
            ("max", |stalled| Some(stalled.at(1.0)), median, None),
            (
                "longest time of 16 inserts",
                |stalled| Some(stalled.worst_us.min(stalled.turn_us.unwrap_or(f64::INFINITY))),
                least,
                Some(Bar::AtMost(1_000.0)),
            ),
            ("CPU of 16 inserts, max", |stalled| Some(stalled.worst_us), least, None),
            ("CPU of 16 PINGs between them, max", |stalled| Some(stalled.floor_us), least, None),
        ];
        section.rows.extend(rows(plan, &[first, second], &parts, |kind, process| grow(kind, process, inserted)));
    }
    section
}

fn least(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(f64::INFINITY, f64::min)
}

/// A note on how long it took until the last key was gone.
fn gone(row: &Row) -> String {
    let servers = row.more.as_object().into_iter().flatten().map(|(name, known)| {
        let number = |what: &str| known["last_round"]["of"][what].as_u64().unwrap_or(0);
        match number("still_there") {
            0 => format!("{name} {} ms", number("gone_after_ms")),
            left => format!("{name} over {} ms, with {} left", number("gone_after_ms"), grouped(left as usize)),
        }
    });
    format!("time until the last of these keys was gone: {}", servers.collect::<Vec<_>>().join(", "))
}

/// Measures in several rounds on each server, because the longest waits vary with the machine's other work. Makes a row for each
/// figure of each measurement.
fn rows(
    plan: &Plan,
    what: &[String],
    parts: &[Part],
    measure: impl Fn(ServerKind, &Process) -> Result<Vec<StallFigures>>,
) -> Vec<Row> {
    let rounds = plan.rounds.div_ceil(3);
    let found: Vec<_> = (0..rounds).map(|_| plan.once(&format!("{NAME}: {}", what[0]), &measure)).collect();
    let mut rows = Vec::new();
    for (number, what) in what.iter().enumerate() {
        for (at, part, together, bar) in parts {
            let mut row = Row::new(what, *at, Unit::Microseconds).bar(*bar);
            let mut more = Map::new();
            for (place, kind) in plan.kinds().enumerate() {
                let rounds: Vec<&Result<Vec<StallFigures>>> = found.iter().map(|round| &round[place].1).collect();
                let failed = rounds.iter().find_map(|round| round.as_ref().err());
                let done: Vec<&StallFigures> = rounds.iter().filter_map(|round| round.as_ref().ok()?.get(number)).collect();
                let us: Vec<f64> = done.iter().filter_map(|stalled| part(stalled)).collect();
                let cell = match failed {
                    Some(error) => Cell::Failed(error.to_string()),
                    None if us.is_empty() => Cell::Unsupported,
                    None => Cell::Value(together(&us)),
                };
                row.cells.push((kind, cell));
                if let Some(last) = done.last() {
                    let last = json!({ "requests": last.us.len(), "p50_us": last.at(0.5), "of": last.known });
                    more.insert(kind.name().to_owned(), json!({ "rounds_us": us, "last_round": last }));
                }
            }
            row.more = Value::Object(more);
            rows.push(row);
        }
    }
    rows
}

fn sorted(latencies: impl Iterator<Item = i64>) -> Vec<i64> {
    let mut us: Vec<i64> = latencies.collect();
    us.sort_unstable();
    us
}

/// Measures from the common deadline of all keys until the last key is gone.
fn expire(process: &Process, keys: usize) -> Result<StallFigures> {
    let addr = process.addr();
    let deadline = load(process, keys)?;
    let gone = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| -> Result<Vec<i64>> {
            let mut prober = Prober::new(addr)?;
            sleep_until(deadline - 100);
            let due = Instant::now() + Duration::from_millis(deadline.saturating_sub(unix_ms()));
            while !gone.load(Ordering::Relaxed) {
                prober.turn(None)?;
            }
            prober.finish()?;
            Ok(sorted(prober.latencies.iter().filter(|(sent, _)| *sent >= due).map(|(_, us)| *us)))
        });
        sleep_until(deadline);
        let until_gone = || -> Result<usize> {
            loop {
                std::thread::sleep(Duration::from_millis(10));
                let size = call(addr, &["DBSIZE"])?;
                let left: usize =
                    size.trim_start_matches(':').trim_end().parse().map_err(|_| unexpected_reply("DBSIZE", size.as_bytes()))?;
                // The prober's key stays.
                if left <= 1 || unix_ms() > deadline + GONE_MS {
                    return Ok(left.saturating_sub(1));
                }
            }
        };
        let left = until_gone();
        let took_ms = unix_ms() - deadline;
        gone.store(true, Ordering::Relaxed);
        let us = asking.join().map_err(|_| Error::other("the prober's thread panicked"))??;
        Ok(StallFigures {
            us,
            worst_us: 0.0,
            floor_us: 0.0,
            turn_us: None,
            known: json!({ "gone_after_ms": took_ms, "still_there": left? }),
        })
    })
}

/// Sets keys that all expire in one millisecond. Returns that time.
fn load(process: &Process, keys: usize) -> Result<u64> {
    let mut lead_ms = 1_000 + keys as u64 / 100;
    while lead_ms < 120_000 {
        let deadline = unix_ms() + lead_ms;
        let at = deadline.to_string();
        // Not every server has SET … PXAT.
        send(process.addr(), keys, "SET, PEXPIREAT", b"+OK\r\n:1\r\n", |request, n| {
            let name = format!("due:{n}");
            encode_onto(request, &["SET", &name, VALUE]);
            encode_onto(request, &["PEXPIREAT", &name, &at]);
        })?;
        if unix_ms() + 300 < deadline {
            return Ok(deadline);
        }
        lead_ms *= 2;
    }
    Err(Error::other("keys cannot be loaded before they expire"))
}

/// The CPU time that a server uses for batches.
struct BatchCost {
    meter: CpuMeter,
    spent_ns: u64,
}

impl BatchCost {
    fn new(process: &Process) -> Result<BatchCost> {
        let meter = CpuMeter::new(process)?;
        Ok(BatchCost { spent_ns: meter.cpu_ns(), meter })
    }

    /// Sends a batch and runs the prober until all of it is answered, checks the replies, and returns the server's CPU time in
    /// nanoseconds.
    fn on(&mut self, prober: &mut Prober, socket: &mut TcpStream, what: &str, request: &[u8], right: &[u8]) -> Result<u64> {
        socket.write_all(request)?;
        let (mut replies, mut filled) = ([0; 16 * BATCH], 0);
        while filled < right.len() {
            prober.turn(Some(socket))?;
            match socket.read(&mut replies[filled..right.len()]) {
                Ok(0) => return Err(Error::other("the server closed a connection")),
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            if !right.starts_with(&replies[..filled]) {
                return Err(unexpected_reply(what, &replies[..filled]));
            }
        }
        let before_ns = std::mem::replace(&mut self.spent_ns, self.meter.cpu_ns());
        Ok(self.spent_ns.saturating_sub(before_ns))
    }
}

/// Inserts keys, and then as many again. One thread inserts and probes, so that the two do not compete for a processor.
fn grow(kind: ServerKind, process: &Process, keys: usize) -> Result<Vec<StallFigures>> {
    let mut prober = Prober::new(process.addr())?;
    let mut loader = connect(process.addr())?;
    loader.set_nonblocking(true)?;
    let (pings, pongs) = (encode(&["PING"]).repeat(BATCH), b"+PONG\r\n".repeat(BATCH));
    let (mut sets, oks) = (Vec::new(), b"+OK\r\n".repeat(BATCH));
    let mut spending = BatchCost::new(process)?;
    let mut halves = Vec::new();
    for half in 0..2 {
        longest_turn_us(kind, process)?;
        let (began, mut worst_ns, mut floor_ns) = (Instant::now(), 0, 0);
        for first in (half * keys..(half + 1) * keys).step_by(BATCH) {
            sets.clear();
            for n in first..first + BATCH {
                encode_onto(&mut sets, &["SET", &format!("lock:{n:015}"), VALUE, "NX", "PX", "36000000"]);
            }
            worst_ns = spending.on(&mut prober, &mut loader, "SET NX PX", &sets, &oks)?.max(worst_ns);
            floor_ns = spending.on(&mut prober, &mut loader, "PING", &pings, &pongs)?.max(floor_ns);
        }
        halves.push((began, Instant::now(), worst_ns, floor_ns, longest_turn_us(kind, process)?));
    }
    prober.finish()?;
    let stalled = halves.into_iter().map(|(from, to, worst_ns, floor_ns, turn_us)| {
        let us = sorted(prober.latencies.iter().filter(|(sent, _)| (from..to).contains(sent)).map(|(_, us)| *us));
        let known = json!({ "took_ms": (to - from).as_millis() as u64 });
        StallFigures { us, worst_us: worst_ns as f64 / 1000.0, floor_us: floor_ns as f64 / 1000.0, turn_us, known }
    });
    Ok(stalled.collect())
}

/// The longest turn since the last call of this function, if the server reports it.
pub fn longest_turn_us(kind: ServerKind, process: &Process) -> Result<Option<f64>> {
    Ok(longest_turn(kind, process)?.map(|[us, _]| us))
}

/// As [`longest_turn_us`], and how much of it was work: the rest is time in which the thread waited for a processor.
pub fn longest_turn(kind: ServerKind, process: &Process) -> Result<Option<[f64; 2]>> {
    if kind != ServerKind::Portcullis {
        return Ok(None);
    }
    let turns = call(process.addr(), &["LATENCY", "TURNS"])?;
    call(process.addr(), &["CONFIG", "RESETSTAT"])?;
    let figure = |name: &str| {
        let mut lines = turns.split("\r\n");
        lines.find(|line| *line == name);
        let us = lines.next().and_then(|line| line.strip_prefix(':')?.parse().ok());
        us.ok_or_else(|| unexpected_reply("LATENCY TURNS", turns.as_bytes()))
    };
    Ok(Some([figure("longest_usec")?, figure("longest_processor_usec")?]))
}
