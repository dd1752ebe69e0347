//! How late keys expire. A subscriber to `__keyevent@0__:expired` records when the event of each key comes; the deadline is part
//! of the key's name. Redis samples keys to find expired ones. If an event has not come by the end of the measurement, its
//! lateness so far counts.
//!
//! The same is measured for 20 locks among many keys with long leases, and for the messages of `lock-expiry-publish`, which other
//! servers do not have.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use portcullis::bench::report::comparison::{Bar, Cell, Row, Section, Unit};
use portcullis::bench::report::statistics::quantile;
use portcullis::bench::servers::kind::ServerKind;
use portcullis::bench::servers::process::Process;
use portcullis::bench::servers::wire::{call_expecting, connect, encode, encode_onto, unexpected_reply};
use serde_json::{Map, Value, json};

use crate::load::{grouped, send, sleep_until, unix_ms, unix_us};
use crate::plan::Plan;

const NAME: &str = "expiry";
/// Numbers of keys, with the milliseconds over which their deadlines are spread.
const SPREADS: [(usize, u64); 3] = [(10_000, 3_000), (100_000, 5_000), (1_000_000, 10_000)];
/// Number of locks that expire among keys that do not.
const FEW: usize = 20;
const FEW_SPREAD_MS: u64 = 2_000;
/// How long after the last deadline events are awaited.
const EVENT_TIMEOUT_MS: u64 = 10_000;
/// The goal for the 99th percentile.
const BAR_US: f64 = 2_000.0;
const VALUE: &str = "5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21";

/// How a subscriber learns that a key has expired.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// From its `expired` event.
    Event,
    /// From a message of `lock-expiry-publish`, with the rules for libraries on as well.
    Rule,
}

/// One measurement.
struct Trial {
    what: String,
    source: Source,
    keys: usize,
    spread_ms: u64,
    /// Number of keys with long leases.
    others: usize,
}

pub fn measure(plan: &Plan) -> Section {
    let mut section = Section::new(NAME, "lateness of a key's `expired` event", "figure");
    let spreads = if plan.quick { &SPREADS[..2] } else { &SPREADS };
    let most = spreads[spreads.len() - 1];
    let spread = |&(keys, spread_ms): &(usize, u64)| Trial {
        what: format!("{} keys that expire within {} s", grouped(keys), spread_ms / 1000),
        source: Source::Event,
        keys,
        spread_ms,
        others: 0,
    };
    let mut trials: Vec<Trial> = spreads.iter().map(spread).collect();
    trials.push(Trial {
        what: format!("{FEW} locks among {} with long leases", grouped(most.0)),
        source: Source::Event,
        keys: FEW,
        spread_ms: FEW_SPREAD_MS,
        others: most.0,
    });
    trials.push(Trial {
        what: format!("the message of `lock-expiry-publish`, {} keys", grouped(most.0)),
        source: Source::Rule,
        ..spread(&most)
    });
    for trial in trials.iter().filter(|trial| plan.wants(NAME, &trial.what)) {
        section.rows.extend(rows(plan, trial));
    }
    section
}

/// Measures a trial on all servers: one row for each figure.
fn rows(plan: &Plan, trial: &Trial) -> [Row; 3] {
    const PARTS: [(&str, f64, Option<Bar>); 3] =
        [("p50", 0.5, None), ("p99", 0.99, Some(Bar::AtMost(BAR_US))), ("max", 1.0, None)];
    let mut rows = PARTS.map(|(at, _, bar)| Row::new(&trial.what, at, Unit::Microseconds).bar(bar));
    let mut more = Map::new();
    let found = plan.once(&format!("{NAME}: {}", trial.what), |kind, process| {
        if trial.source == Source::Rule && kind != ServerKind::Portcullis {
            return Ok(None);
        }
        let late = lateness(process, trial)?;
        more.insert(kind.name().to_owned(), json!({ "never_told": late.missing }));
        Ok(Some(late))
    });
    for (kind, late) in found {
        for (row, (_, part, _)) in rows.iter_mut().zip(PARTS) {
            let cell = match &late {
                Ok(Some(late)) => late.cell(part),
                Ok(None) => Cell::Unsupported,
                Err(error) => Cell::Failed(error.to_string()),
            };
            row.cells.push((kind, cell));
        }
    }
    rows[0].more = Value::Object(more);
    rows
}

/// The lateness of keys.
struct Lateness {
    sorted_us: Vec<i64>,
    /// Number of keys whose event had not come by the end.
    missing: usize,
}

impl Lateness {
    /// A quantile of the lateness. A lower bound if too many events are missing.
    fn cell(&self, part: f64) -> Cell {
        let us = quantile(&self.sorted_us, part).unwrap_or(0) as f64;
        let told = (self.sorted_us.len() - self.missing) as f64 / self.sorted_us.len() as f64;
        if part > told { Cell::AtLeast(us) } else { Cell::Value(us) }
    }
}

fn lateness(process: &Process, trial: &Trial) -> Result<Lateness> {
    let (channel, directive, value) = match trial.source {
        Source::Event => ("__keyevent@0__:expired", "notify-keyspace-events", "Ex"),
        Source::Rule => ("freed", "lock-expiry-publish", "redisson spring due:* freed {name}"),
    };
    call_expecting(process.addr(), &["CONFIG", "SET", directive, value], "+OK\r\n")?;
    let long = unix_ms() + 36_000_000;
    load(process.addr(), trial.others, |n| (format!("long:{n}"), long + n as u64 % 3_600_000))?;
    let (deadlines, begin) = load_due(process.addr(), trial)?;
    let mut listener = connect(process.addr())?;
    listener.write_all(&encode(&["SUBSCRIBE", channel]))?;
    sleep_until(begin);
    let (mut us, expired) = listen(&mut listener, trial.keys, begin + trial.spread_ms + EVENT_TIMEOUT_MS)?;
    let missing = trial.keys - us.len();
    let end = unix_us();
    // A missing event is late by the time since its deadline.
    us.extend((0..trial.keys).filter(|&n| !expired[n]).map(|n| end - deadlines(n) as i64 * 1000));
    us.sort_unstable();
    Ok(Lateness { sorted_us: us, missing })
}

/// Loads the keys that expire, early enough before the first deadline. Returns their deadlines, and the first one.
fn load_due(addr: SocketAddr, trial: &Trial) -> Result<(impl Fn(usize) -> u64, u64)> {
    let spread = trial.spread_ms as usize;
    let mut lead_ms = 500 + trial.keys as u64 / 250;
    loop {
        let begin = unix_ms() + lead_ms;
        // Keys that are loaded one after the other expire at different times.
        let deadline = move |n: usize| begin + (n.wrapping_mul(7_919) % spread) as u64;
        load(addr, trial.keys, |n| (format!("due:{}:{n}", deadline(n)), deadline(n)))?;
        if unix_ms() + 100 < begin {
            return Ok((deadline, begin));
        }
        if lead_ms > 60_000 {
            return Err(Error::other("keys cannot be loaded before they expire"));
        }
        lead_ms *= 2;
        // The keys of this attempt are removed.
        call_expecting(addr, &["FLUSHALL"], "+OK\r\n")?;
        load(addr, trial.others, |n| (format!("long:{n}"), begin + 36_000_000 + n as u64 % 3_600_000))?;
    }
}

/// Sets keys with their deadlines.
fn load(addr: SocketAddr, count: usize, key: impl Fn(usize) -> (String, u64)) -> Result<()> {
    send(addr, count, "SET … PXAT", b"+OK\r\n", |request, n| {
        let (name, deadline) = key(n);
        encode_onto(request, &["SET", &name, VALUE, "PXAT", &deadline.to_string()]);
    })
}

/// Reads events until there is one for each key, or until a time. Returns the lateness of each event, and which keys have
/// expired.
fn listen(listener: &mut TcpStream, keys: usize, until_ms: u64) -> Result<(Vec<i64>, Vec<bool>)> {
    let mut late_us = Vec::with_capacity(keys);
    let mut expired = vec![false; keys];
    let mut buffer = vec![0; 1 << 20];
    let mut kept = 0;
    listener.set_read_timeout(Some(Duration::from_millis(500)))?;
    while late_us.len() < keys && unix_ms() < until_ms {
        let read = match listener.read(&mut buffer[kept..]) {
            Ok(0) => return Err(Error::other("the server closed a connection")),
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(error) => return Err(error),
        };
        let came_us = unix_us();
        let filled = kept + read;
        let whole = buffer[..filled].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        for line in buffer[..whole].split(|&byte| byte == b'\n') {
            let Some(key) = line.strip_prefix(b"due:") else { continue };
            let text = std::str::from_utf8(key).unwrap_or_default().trim_end();
            let parts =
                text.split_once(':').and_then(|(deadline, n)| Some((deadline.parse::<i64>().ok()?, n.parse::<usize>().ok()?)));
            let (deadline, n) = parts.filter(|(_, n)| *n < keys).ok_or_else(|| unexpected_reply("an event", line))?;
            if std::mem::replace(&mut expired[n], true) {
                return Err(Error::other(format!("key {n} expired twice")));
            }
            late_us.push(came_us - deadline * 1000);
        }
        buffer.copy_within(whole..filled, 0);
        kept = filled - whole;
    }
    Ok((late_us, expired))
}
