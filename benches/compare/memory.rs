//! What locks and idle connections take up of a server's resident memory.

use std::io::{Read, Result, Write};
use std::net::TcpStream;

use portcullis::bench::peer::Peer;
use portcullis::bench::process::Process;
use portcullis::bench::rows::{Bar, Cell, Row, Section, Unit};
use portcullis::bench::wire::{call_for, connect, encode, encode_onto, wrong};

use crate::load::{grouped, send};
use crate::plan::Plan;
use crate::redisson;

const NAME: &str = "memory";
/// Locks of a kind.
const LOCKS: usize = 1_000_000;
/// Idle connections.
const IDLE: usize = 5_000;
/// Those that were there before: the first ones cost what all have in common.
const EARLIER: usize = 200;
/// An owner, or the value of a string lock: a UUID.
const OWNER: &str = "5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21";
const LEASE_MS: &str = "36000000";

/// A kind of lock.
struct Kind {
    name: &'static str,
    bar: Option<Bar>,
    request: fn(&mut Vec<u8>, &str),
    /// The reply to each request. That of a native lock is its fencing token, of 16 digits.
    reply: &'static str,
    native: bool,
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "a string lock: 20-byte name, 36-byte value, PX",
        bar: Some(Bar::Most(105.0)),
        request: |out, name| encode_onto(out, &["SET", name, OWNER, "NX", "PX", LEASE_MS]),
        reply: "+OK\r\n",
        native: false,
    },
    Kind {
        name: "a reentrant lock: 20-byte name, a hash of one 36-byte owner, PEXPIRE",
        bar: Some(Bar::Most(120.0)),
        request: |out, name| encode_onto(out, &["EVALSHA", redisson::ACQUIRE_SHA, "1", name, LEASE_MS, OWNER]),
        reply: "$-1\r\n",
        native: false,
    },
    Kind {
        name: "a native lock: 20-byte name, 36-byte owner",
        bar: Some(Bar::Most(160.0)),
        request: |out, name| encode_onto(out, &["LOCK.ACQUIRE", name, OWNER, LEASE_MS]),
        reply: ":################\r\n",
        native: true,
    },
];

pub fn measure(plan: &Plan) -> Section {
    let mut section = Section::new(NAME, "resident memory", "of");
    let locks = if plan.quick { LOCKS / 4 } else { LOCKS };
    for kind in KINDS.iter().filter(|kind| plan.wants(NAME, kind.name)) {
        let mut row = Row::new(kind.name, grouped(locks), Unit::Bytes).bar(kind.bar);
        let found = plan.once(&format!("{NAME}: {}", kind.name), |peer, process| {
            let has_it = !kind.native || peer == Peer::Portcullis;
            if has_it { bytes_per_lock(process, kind, locks).map(Cell::Is) } else { Ok(Cell::Foreign) }
        });
        row.cells = found.into_iter().map(cell).collect();
        section.rows.push(row);
    }
    const CONNECTION: &str = "an idle connection";
    if plan.wants(NAME, CONNECTION) {
        let mut row = Row::new(CONNECTION, grouped(IDLE), Unit::Bytes).bar(Some(Bar::Most(1024.0)));
        let found = plan.once(&format!("{NAME}: {CONNECTION}"), |_, process| bytes_per_connection(process).map(Cell::Is));
        row.cells = found.into_iter().map(cell).collect();
        section.rows.push(row);
    }
    section
}

fn cell((peer, found): (Peer, Result<Cell>)) -> (Peer, Cell) {
    (peer, found.unwrap_or_else(|error| Cell::Not(error.to_string())))
}

fn bytes_per_lock(process: &Process, kind: &Kind, locks: usize) -> Result<f64> {
    let loaded = format!("$40\r\n{}\r\n", redisson::ACQUIRE_SHA);
    call_for(process.addr(), &["SCRIPT", "LOAD", redisson::ACQUIRE], &loaded)?;
    let before = process.resident_bytes()?;
    send(process.addr(), locks, kind.name, kind.reply.as_bytes(), |request, n| {
        (kind.request)(request, &format!("lock:{n:015}"))
    })?;
    Ok(process.resident_bytes()?.saturating_sub(before) as f64 / locks as f64)
}

fn bytes_per_connection(process: &Process) -> Result<f64> {
    // Every connection has spoken once: a server may put off what an idle one costs until then.
    let spoken = || -> Result<TcpStream> {
        let mut socket = connect(process.addr())?;
        socket.write_all(&encode(&["PING"]))?;
        let mut pong = [0; 7];
        socket.read_exact(&mut pong)?;
        if &pong == b"+PONG\r\n" { Ok(socket) } else { Err(wrong("PING", &pong)) }
    };
    let earlier = (0..EARLIER).map(|_| spoken()).collect::<Result<Vec<_>>>()?;
    let before = process.resident_bytes()?;
    let sockets = (0..IDLE).map(|_| spoken()).collect::<Result<Vec<_>>>()?;
    let after = process.resident_bytes()?;
    drop((earlier, sockets));
    Ok(after.saturating_sub(before) as f64 / IDLE as f64)
}
