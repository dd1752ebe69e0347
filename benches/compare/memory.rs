//! Resident memory of locks and idle connections.

use std::io::{Read, Result, Write};
use std::net::TcpStream;

use portcullis::bench::report::comparison::{Bar, Cell, Row, Section, Unit};
use portcullis::bench::servers::kind::ServerKind;
use portcullis::bench::servers::process::Process;
use portcullis::bench::servers::wire::{call_expecting, connect, encode, encode_onto, unexpected_reply};

use crate::load::{grouped, send};
use crate::plan::Plan;
use crate::redisson;

const NAME: &str = "memory";
/// Number of locks of each kind.
const LOCKS: usize = 1_000_000;
/// Number of idle connections.
const IDLE: usize = 5_000;
/// Number of connections before the measurement: the first ones also allocate what all connections share.
const EARLIER: usize = 200;
/// The owner, or the value of a string lock: a UUID.
const OWNER: &str = "5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21";
const LEASE_MS: &str = "36000000";

/// A kind of lock.
struct LockKind {
    name: &'static str,
    bar: Option<Bar>,
    request: fn(&mut Vec<u8>, &str),
    /// The reply to each request. For a native lock it is the fencing token, of 16 digits.
    reply: &'static str,
    native: bool,
}

const LOCK_KINDS: [LockKind; 3] = [
    LockKind {
        name: "a string lock: 20-byte name, 36-byte value, PX",
        bar: Some(Bar::AtMost(105.0)),
        request: |out, name| encode_onto(out, &["SET", name, OWNER, "NX", "PX", LEASE_MS]),
        reply: "+OK\r\n",
        native: false,
    },
    LockKind {
        name: "a reentrant lock: 20-byte name, a hash of one 36-byte owner, PEXPIRE",
        bar: Some(Bar::AtMost(120.0)),
        request: |out, name| encode_onto(out, &["EVALSHA", redisson::ACQUIRE_SHA, "1", name, LEASE_MS, OWNER]),
        reply: "$-1\r\n",
        native: false,
    },
    LockKind {
        name: "a native lock: 20-byte name, 36-byte owner",
        bar: Some(Bar::AtMost(160.0)),
        request: |out, name| encode_onto(out, &["LOCK.ACQUIRE", name, OWNER, LEASE_MS]),
        reply: ":################\r\n",
        native: true,
    },
];

pub fn measure(plan: &Plan) -> Section {
    let mut section = Section::new(NAME, "resident memory", "of");
    let locks = if plan.quick { LOCKS / 4 } else { LOCKS };
    for lock in LOCK_KINDS.iter().filter(|lock| plan.wants(NAME, lock.name)) {
        let mut row = Row::new(lock.name, grouped(locks), Unit::Bytes).bar(lock.bar);
        let found = plan.once(&format!("{NAME}: {}", lock.name), |kind, process| {
            let has_it = !lock.native || kind == ServerKind::Portcullis;
            if has_it { bytes_per_lock(process, lock, locks).map(Cell::Value) } else { Ok(Cell::Unsupported) }
        });
        row.cells = found.into_iter().map(cell).collect();
        section.rows.push(row);
    }
    const CONNECTION: &str = "an idle connection";
    if plan.wants(NAME, CONNECTION) {
        let mut row = Row::new(CONNECTION, grouped(IDLE), Unit::Bytes).bar(Some(Bar::AtMost(1024.0)));
        let found = plan.once(&format!("{NAME}: {CONNECTION}"), |_, process| bytes_per_connection(process).map(Cell::Value));
        row.cells = found.into_iter().map(cell).collect();
        section.rows.push(row);
    }
    section
}

fn cell((kind, found): (ServerKind, Result<Cell>)) -> (ServerKind, Cell) {
    (kind, found.unwrap_or_else(|error| Cell::Failed(error.to_string())))
}

fn bytes_per_lock(process: &Process, lock: &LockKind, locks: usize) -> Result<f64> {
    let loaded = format!("$40\r\n{}\r\n", redisson::ACQUIRE_SHA);
    call_expecting(process.addr(), &["SCRIPT", "LOAD", redisson::ACQUIRE], &loaded)?;
    let before = process.resident_bytes()?;
    send(process.addr(), locks, lock.name, lock.reply.as_bytes(), |request, n| {
        (lock.request)(request, &format!("lock:{n:015}"))
    })?;
    Ok(process.resident_bytes()?.saturating_sub(before) as f64 / locks as f64)
}

fn bytes_per_connection(process: &Process) -> Result<f64> {
    // Each connection sends a request first: a server may allocate a part of a connection's memory only then.
    let spoken = || -> Result<TcpStream> {
        let mut socket = connect(process.addr())?;
        socket.write_all(&encode(&["PING"]))?;
        let mut pong = [0; 7];
        socket.read_exact(&mut pong)?;
        if &pong == b"+PONG\r\n" { Ok(socket) } else { Err(unexpected_reply("PING", &pong)) }
    };
    let earlier = (0..EARLIER).map(|_| spoken()).collect::<Result<Vec<_>>>()?;
    let before = process.resident_bytes()?;
    let sockets = (0..IDLE).map(|_| spoken()).collect::<Result<Vec<_>>>()?;
    let after = process.resident_bytes()?;
    drop((earlier, sockets));
    Ok(after.saturating_sub(before) as f64 / IDLE as f64)
}
