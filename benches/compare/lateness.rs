//! How late keys end: a subscriber to `__keyevent@0__:expired` notes for each key how long after its deadline, which is part of its name, the
//! event came. Redis works off its keys by sampling; what it has not told when patience is over counts with the lateness it has reached.
//!
//! Then the same for 20 locks among a great many keys that live long, and for the messages of `lock-expiry-publish`, which others do not have.

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
/// Keys, and over how many milliseconds their deadlines are spread.
const SPREADS: [(usize, u64); 3] = [(10_000, 3_000), (100_000, 5_000), (1_000_000, 10_000)];
/// Locks that end among others that do not.
const FEW: usize = 20;
const FEW_SPREAD_MS: u64 = 2_000;
/// How long after the last deadline events are waited for.
const PATIENCE_MS: u64 = 10_000;
/// What is asked of the 99th percentile.
const BAR_US: f64 = 2_000.0;
const VALUE: &str = "5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21";

/// How a subscriber learns that a key has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// By its `expired` event.
    Event,
    /// By a message of `lock-expiry-publish`, while the rules for libraries are on as well.
    Rule,
}

/// What is measured.
struct Trial {
    what: String,
    by: By,
    keys: usize,
    spread_ms: u64,
    /// Keys that live long.
    others: usize,
}

pub fn measure(plan: &Plan) -> Section {
    let mut section = Section::new(NAME, "how late after its deadline the `expired` event of a key came", "figure");
    let spreads = if plan.quick { &SPREADS[..2] } else { &SPREADS };
    let most = spreads[spreads.len() - 1];
    let spread = |&(keys, spread_ms): &(usize, u64)| Trial {
        what: format!("{} keys that end within {} s", grouped(keys), spread_ms / 1000),
        by: By::Event,
        keys,
        spread_ms,
        others: 0,
    };
    let mut trials: Vec<Trial> = spreads.iter().map(spread).collect();
    trials.push(Trial {
        what: format!("{FEW} locks among {} with long leases", grouped(most.0)),
        by: By::Event,
        keys: FEW,
        spread_ms: FEW_SPREAD_MS,
        others: most.0,
    });
    trials.push(Trial {
        what: format!("the message of `lock-expiry-publish`, {} keys", grouped(most.0)),
        by: By::Rule,
        ..spread(&most)
    });
    for trial in trials.iter().filter(|trial| plan.wants(NAME, &trial.what)) {
        section.rows.extend(rows(plan, trial));
    }
    section
}

/// One row for each part of the keys.
fn rows(plan: &Plan, trial: &Trial) -> [Row; 3] {
    const PARTS: [(&str, f64, Option<Bar>); 3] =
        [("p50", 0.5, None), ("p99", 0.99, Some(Bar::AtMost(BAR_US))), ("max", 1.0, None)];
    let mut rows = PARTS.map(|(at, _, bar)| Row::new(&trial.what, at, Unit::Microseconds).bar(bar));
    let mut more = Map::new();
    let found = plan.once(&format!("{NAME}: {}", trial.what), |kind, process| {
        if trial.by == By::Rule && kind != ServerKind::Portcullis {
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

/// How late keys were.
struct Late {
    sorted_us: Vec<i64>,
    /// How many had not ended when patience was over.
    missing: usize,
}

impl Late {
    /// What a part of the keys were not later than; a bound where patience was over before.
    fn cell(&self, part: f64) -> Cell {
        let us = quantile(&self.sorted_us, part).unwrap_or(0) as f64;
        let told = (self.sorted_us.len() - self.missing) as f64 / self.sorted_us.len() as f64;
        if part > told { Cell::AtLeast(us) } else { Cell::Value(us) }
    }
}

fn lateness(process: &Process, trial: &Trial) -> Result<Late> {
    let (channel, directive, value) = match trial.by {
        By::Event => ("__keyevent@0__:expired", "notify-keyspace-events", "Ex"),
        By::Rule => ("freed", "lock-expiry-publish", "redisson spring due:* freed {name}"),
    };
    call_expecting(process.addr(), &["CONFIG", "SET", directive, value], "+OK\r\n")?;
    let long = unix_ms() + 36_000_000;
    load(process.addr(), trial.others, |n| (format!("long:{n}"), long + n as u64 % 3_600_000))?;
    let (deadlines, begin) = load_due(process.addr(), trial)?;
    let mut listener = connect(process.addr())?;
    listener.write_all(&encode(&["SUBSCRIBE", channel]))?;
    sleep_until(begin);
    let (mut us, told) = listen(&mut listener, trial.keys, begin + trial.spread_ms + PATIENCE_MS)?;
    let missing = trial.keys - us.len();
    let end = unix_us();
    // Which of them are missing is known, and since when they are due.
    us.extend((0..trial.keys).filter(|&n| !told[n]).map(|n| end - deadlines(n) as i64 * 1000));
    us.sort_unstable();
    Ok(Late { sorted_us: us, missing })
}

/// Loads the keys that end, so long before the first deadline as that takes; gives their deadlines, and the first.
fn load_due(addr: SocketAddr, trial: &Trial) -> Result<(impl Fn(usize) -> u64, u64)> {
    let spread = trial.spread_ms as usize;
    let mut lead_ms = 500 + trial.keys as u64 / 250;
    loop {
        let begin = unix_ms() + lead_ms;
        // Neighbours in the order of loading end far from each other.
        let deadline = move |n: usize| begin + (n.wrapping_mul(7_919) % spread) as u64;
        load(addr, trial.keys, |n| (format!("due:{}:{n}", deadline(n)), deadline(n)))?;
        if unix_ms() + 100 < begin {
            return Ok((deadline, begin));
        }
        if lead_ms > 60_000 {
            return Err(Error::other("keys cannot be loaded before they end"));
        }
        lead_ms *= 2;
        // Those of this time are to be gone.
        call_expecting(addr, &["FLUSHALL"], "+OK\r\n")?;
        load(addr, trial.others, |n| (format!("long:{n}"), begin + 36_000_000 + n as u64 % 3_600_000))?;
    }
}

/// Sets keys that end at their deadlines.
fn load(addr: SocketAddr, count: usize, key: impl Fn(usize) -> (String, u64)) -> Result<()> {
    send(addr, count, "SET … PXAT", b"+OK\r\n", |request, n| {
        let (name, deadline) = key(n);
        encode_onto(request, &["SET", &name, VALUE, "PXAT", &deadline.to_string()]);
    })
}

/// Reads events until there is one for each key or time is up; gives how late each was, and whose have come.
fn listen(listener: &mut TcpStream, keys: usize, until_ms: u64) -> Result<(Vec<i64>, Vec<bool>)> {
    let mut late_us = Vec::with_capacity(keys);
    let mut told = vec![false; keys];
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
            if std::mem::replace(&mut told[n], true) {
                return Err(Error::other(format!("key {n} ended twice")));
            }
            late_us.push(came_us - deadline * 1000);
        }
        buffer.copy_within(whole..filled, 0);
        kept = filled - whole;
    }
    Ok((late_us, told))
}
