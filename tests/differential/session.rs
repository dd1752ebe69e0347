//! Sends steps to two servers and compares their replies.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use portcullis::commands;

use crate::common::wire::{Frame, Reply, Wire};
use crate::generate::{Call, Step, upper};
use crate::rules::{Case, DELIVERIES, INVALIDATIONS, deliveries_apart, invalidated, rules, same_doubles};

const SENTINEL: &[u8] = b"-- end of the group --";
/// Maximum number of calls and bytes that are sent before replies are read.
const BATCH_CALLS: usize = 48;
const BATCH_BYTES: usize = 64 * 1024;

/// The addresses of the two servers.
#[derive(Clone, Copy, Debug)]
pub struct Servers {
    /// The server that is right by definition.
    pub reference: SocketAddr,
    /// The server under test.
    pub subject: SocketAddr,
    /// The reference's version.
    pub version: (u32, u32),
}

/// Counts what was compared, and how often each rule was applied.
#[derive(Debug, Default)]
pub struct Tally {
    /// Number of calls.
    pub calls: usize,
    /// Number of keyspace events.
    pub events: usize,
    /// Number of applications, by name of the rule.
    pub rules: BTreeMap<&'static str, usize>,
}

/// The first difference of a run.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The index of the step.
    pub step: usize,
    /// Equal for similar differences.
    pub signature: String,
    /// Both replies, for people.
    pub shown: String,
}

/// One of the servers with its connections.
struct Side {
    addr: SocketAddr,
    wires: [Wire; 2],
    /// The connection that receives keyspace events, if they are compared.
    events: Option<Wire>,
    /// Pushes that came between replies.
    pushes: [Vec<Frame>; 2],
    /// The clients that block, with their ids.
    waiters: Vec<(Wire, String)>,
    feeder: Option<Wire>,
}

impl Side {
    fn open(addr: SocketAddr, events: bool) -> io::Result<Side> {
        let mut two = Wire::connect(addr)?;
        for call in [
            &["FLUSHALL"][..],
            &["SCRIPT", "FLUSH"],
            &["ACL", "DELUSER", "ann", "bob"],
            &["CONFIG", "SET", "hash-max-listpack-entries", "128"],
            &["CONFIG", "SET", "hash-max-listpack-value", "64"],
            &["CONFIG", "SET", "list-max-listpack-size", "-2"],
            &["CONFIG", "SET", "stream-node-max-bytes", "4096"],
            &["CONFIG", "SET", "stream-node-max-entries", "100"],
            &["CONFIG", "SET", "zset-max-listpack-entries", "128"],
            &["CONFIG", "SET", "zset-max-listpack-value", "64"],
            &["CONFIG", "SET", "set-max-intset-entries", "512"],
            // An error on 7.0, which does not have this directive.
            &["CONFIG", "SET", "set-max-listpack-entries", "128"],
            &["CONFIG", "SET", "set-max-listpack-value", "64"],
            &["CONFIG", "SET", "hll-sparse-max-bytes", "3000"],
            &["CONFIG", "SET", "proto-max-bulk-len", "536870912"],
            // How often the server checks whether a wait has timed out.
            &["CONFIG", "SET", "hz", "500"],
            &["CONFIG", "SET", "slowlog-log-slower-than", "-1"],
            &["CONFIG", "SET", "slowlog-max-len", "128"],
            &["SLOWLOG", "RESET"],
            &["FUNCTION", "FLUSH"],
            &["CONFIG", "RESETSTAT"],
            &["CONFIG", "SET", "notify-keyspace-events", if events { "KEA" } else { "" }],
        ] {
            two.call(call)?;
        }
        let mut three = Wire::connect(addr)?;
        three.call(&["HELLO", "3"])?;
        let events = if events {
            let mut wire = Wire::connect(addr)?;
            wire.call(&["PSUBSCRIBE", "__key*__:*"])?;
            Some(wire)
        } else {
            None
        };
        Ok(Side { addr, wires: [two, three], events, pushes: [Vec::new(), Vec::new()], waiters: Vec::new(), feeder: None })
    }

    /// The next reply on a connection. Pushes are put aside.
    fn reply(&mut self, on: usize) -> io::Result<Reply> {
        loop {
            let reply = self.wires[on].reply()?;
            if !reply.frame.is_push() {
                return Ok(reply);
            }
            self.pushes[on].push(reply.frame);
        }
    }

    fn group(&mut self, on: usize, calls: &[Call]) -> io::Result<Vec<Frame>> {
        for call in calls {
            self.wires[on].queue(call);
        }
        self.wires[on].queue(&[&b"PING"[..], SENTINEL]);
        self.wires[on].flush()?;
        until_sentinel(&mut self.wires[on])
    }

    /// The replies to calls with one reply each.
    fn sequence(&mut self, on: usize, calls: &[Call]) -> io::Result<Vec<Frame>> {
        for call in calls {
            self.wires[on].queue(call);
        }
        self.wires[on].flush()?;
        calls.iter().map(|_| Ok(self.reply(on)?.frame)).collect()
    }

    /// The replies on a new connection until the server closes it.
    fn ending(&self, calls: &[Call]) -> io::Result<Vec<Frame>> {
        let mut wire = Wire::connect(self.addr)?;
        for call in calls {
            wire.queue(call);
        }
        wire.flush()?;
        let mut frames = Vec::new();
        loop {
            match wire.reply() {
                Ok(reply) => frames.push(reply.frame),
                // A server that closes with unread input resets the connection.
                Err(error) if [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset].contains(&error.kind()) => {
                    return Ok(frames);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The replies to calls, and their lines in MONITOR without times and addresses.
    fn watched(&mut self, on: usize, calls: &[Call]) -> io::Result<(Vec<Frame>, Vec<Frame>)> {
        let mut monitor = Wire::connect(self.addr)?;
        let mut seen = vec![monitor.call(&["MONITOR"])?.frame];
        let replies = self.sequence(on, calls)?;
        self.sequence(on, &[vec![b"PING".to_vec(), SENTINEL.to_vec()]])?;
        loop {
            let line = monitor.reply()?.frame;
            let text = line.text().unwrap_or_default();
            // A line: 1700000000.123456 [0 127.0.0.1:50000] "GET" "k"
            let after = |from: &[u8], byte: u8| from.iter().position(|&b| b == byte).map_or(from.len(), |at| at + 1);
            let place = &text[after(text, b'[')..];
            let client = &place[after(place, b' ')..];
            let db = &place[..place.len() - client.len()];
            let call = &client[after(client, b']')..];
            let from: &[u8] = if client.starts_with(b"lua") { b"lua" } else { b"client" };
            if call.windows(SENTINEL.len()).any(|part| part == SENTINEL) {
                return Ok((replies, seen));
            }
            seen.push(Frame::Simple([db, from, call].concat()));
        }
    }

    /// The replies to blocked clients in their order, then those to the other calls, and last the number of clients that had to
    /// be unblocked.
    fn waiting(&mut self, waiters: &[Call], calls: &[Call]) -> io::Result<Vec<Frame>> {
        while self.waiters.len() < waiters.len() {
            let mut wire = Wire::connect(self.addr)?;
            if self.waiters.len() % 2 == 1 {
                wire.call(&["HELLO", "3"])?;
            }
            let id = wire.call(&["CLIENT", "ID"])?.frame.integer().unwrap_or_default();
            self.waiters.push((wire, id.to_string()));
        }
        if self.feeder.is_none() {
            self.feeder = Some(Wire::connect(self.addr)?);
        }
        let Some(feeder) = &mut self.feeder else { return Err(io::Error::other("no client that calls")) };
        let mut frames = Vec::new();
        let blocked = |wire: &mut Wire, id: &str| -> io::Result<bool> {
            let list = wire.call(&["CLIENT", "LIST", "ID", id])?.frame;
            let list = String::from_utf8_lossy(list.text().unwrap_or_default()).into_owned();
            Ok(list.split(' ').any(|field| field.strip_prefix("flags=").is_some_and(|flags| flags.contains('b'))))
        };
        for call in calls {
            if !call.is_empty() {
                frames.push(feeder.call(call)?.frame);
                continue;
            }
            for (call, (wire, id)) in waiters.iter().zip(&mut self.waiters) {
                wire.queue(call);
                wire.flush()?;
                while !wire.has_input() && !blocked(feeder, id)? {
                    std::thread::yield_now();
                }
            }
        }
        for (at, (wire, id)) in self.waiters.iter_mut().take(waiters.len()).enumerate() {
            let how = if at % 2 == 0 { "TIMEOUT" } else { "ERROR" };
            frames.push(feeder.call(&["CLIENT", "UNBLOCK", id, how])?.frame);
            frames.push(wire.reply()?.frame);
        }
        Ok(frames)
    }

    fn full_scan(&mut self, on: usize, call: &Call, cursor: usize) -> io::Result<Frame> {
        let mut call = call.clone();
        let mut found = Vec::new();
        for _ in 0..10_000 {
            self.wires[on].queue(&call);
            self.wires[on].flush()?;
            let reply = self.reply(on)?;
            let Some([Frame::Bulk(next), Frame::Aggregate(_, page)]) = reply.frame.elements() else { return Ok(reply.frame) };
            // The field and value of a hash belong together, and the member and score of a sorted set.
            let size = if matches!(upper(&call[0]).as_str(), "SCAN" | "SSCAN") { 1 } else { 2 };
            found.extend(page.chunks(size).map(|group| match group {
                // Versions write scores with different digits.
                [member, Frame::Bulk(score)] if upper(&call[0]) == "ZSCAN" => {
                    let score = String::from_utf8_lossy(score).parse::<f64>();
                    format!("{member:?} {score:?}")
                }
                group => format!("{group:?}"),
            }));
            if next == b"0" {
                found.sort_unstable();
                found.dedup();
                return Ok(Frame::Bulk(found.join("\n").into_bytes()));
            }
            call[cursor] = next.clone();
        }
        Err(io::Error::other("a scan that does not end"))
    }

    fn take_events(&mut self) -> io::Result<Vec<Frame>> {
        let Some(wire) = &mut self.events else { return Ok(Vec::new()) };
        wire.queue(&[&b"PING"[..], SENTINEL]);
        wire.flush()?;
        until_sentinel(wire)
    }
}

fn until_sentinel(wire: &mut Wire) -> io::Result<Vec<Frame>> {
    let mut frames = Vec::new();
    loop {
        let frame = wire.reply()?.frame;
        let end = match &frame {
            Frame::Bulk(text) => text == SENTINEL,
            Frame::Aggregate(b'*', parts) => {
                matches!(&parts[..], [Frame::Bulk(pong), Frame::Bulk(text)] if pong == b"pong" && text == SENTINEL)
            }
            _ => false,
        };
        if end {
            return Ok(frames);
        }
        frames.push(frame);
    }
}

pub fn calls_of(step: &Step) -> Vec<&Call> {
    match step {
        Step::One { call, .. } | Step::FullScan { call, .. } => vec![call],
        Step::Probed { probes, call, .. } => probes.iter().chain([call]).collect(),
        Step::Waiting { waiters, calls } => waiters.iter().chain(calls).collect(),
        Step::Carry { calls, .. }
        | Step::Group { calls, .. }
        | Step::Sequence { calls, .. }
        | Step::Ending { calls }
        | Step::Watched { calls, .. } => calls.iter().collect(),
    }
}

fn connection(step: &Step) -> usize {
    match step {
        Step::One { on, .. }
        | Step::FullScan { on, .. }
        | Step::Probed { on, .. }
        | Step::Sequence { on, .. }
        | Step::Carry { on, .. }
        | Step::Watched { on, .. }
        | Step::Group { on, .. } => *on,
        Step::Waiting { .. } | Step::Ending { .. } => 0,
    }
}

/// Runs steps from an empty state on both servers, up to the first difference.
pub fn run(servers: Servers, steps: &[Step], events: bool, tally: &mut Tally) -> io::Result<Option<Difference>> {
    let mut at = 0;
    run_from(servers, steps, events, tally, &mut at).map_err(|error| {
        let step = steps.get(at).map(show_step).unwrap_or_default();
        io::Error::new(error.kind(), format!("{error}, at or behind {step}"))
    })
}

/// Like [`run`], and reports the progress.
fn run_from(
    servers: Servers,
    steps: &[Step],
    events: bool,
    tally: &mut Tally,
    reached: &mut usize,
) -> io::Result<Option<Difference>> {
    let mut reference = Side::open(servers.reference, events)?;
    let mut subject = Side::open(servers.subject, events).map_err(lost)?;
    let mut at = 0;
    let mut tracked = false;
    while at < steps.len() {
        *reached = at;
        let end = batch_end(steps, at);
        let batch = &steps[at..end];
        let on = connection(&batch[0]);
        tracked |= batch.iter().flat_map(calls_of).any(|call| call.iter().any(|arg| upper(arg) == "TRACKING"));
        let failed = |error: io::Error| Difference {
            step: end - 1,
            signature: format!(
                "no reply: {:?} at {}",
                error.kind(),
                if batch.len() == 1 { title(calls_of(&batch[0])[0]) } else { String::new() }
            ),
            shown: format!("the subject gave no proper reply: {error}"),
        };
        match &batch[0] {
            Step::Group { calls, .. } => {
                tally.calls += calls.len();
                let expected = reference.group(on, calls)?;
                let got = match subject.group(on, calls) {
                    Ok(got) => got,
                    Err(error) => return Ok(Some(failed(error))),
                };
                // 7.0 writes doubles with more digits.
                let same = |(a, b): (&Frame, &Frame)| a == b || servers.version < (7, 4) && same_doubles(a, b);
                if expected.len() == got.len() && expected.iter().zip(&got).all(same) {
                    // Equal apart from the positions of deliveries.
                } else if deliveries_apart(&expected) == deliveries_apart(&got) {
                    *tally.rules.entry(DELIVERIES).or_default() += 1;
                } else {
                    let first = expected.iter().zip(&got).position(|(a, b)| a != b).unwrap_or(expected.len().min(got.len()));
                    let (a, b) = (expected.get(first), got.get(first));
                    return Ok(Some(Difference {
                        step: at,
                        signature: format!("group {} {}", kind(a), kind(b)),
                        shown: format!("reply {first} of the group\n  expected {}\n  got      {}", show_some(a), show_some(b)),
                    }));
                }
            }
            Step::Sequence { calls, .. } => {
                let expected = reference.sequence(on, calls)?;
                let got = match subject.sequence(on, calls) {
                    Ok(got) => got,
                    Err(error) => return Ok(Some(failed(error))),
                };
                if let Some(difference) = judge(servers, at, calls, &expected, &got, tally) {
                    return Ok(Some(difference));
                }
            }
            Step::Ending { calls } => {
                let expected = reference.ending(calls)?;
                let got = match subject.ending(calls) {
                    Ok(got) => got,
                    Err(error) => return Ok(Some(failed(error))),
                };
                if let Some(difference) = judge(servers, at, calls, &expected, &got, tally) {
                    return Ok(Some(difference));
                }
            }
            Step::Watched { calls, .. } => {
                let (expected, shown) = reference.watched(on, calls)?;
                let (got, seen) = match subject.watched(on, calls) {
                    Ok(got) => got,
                    Err(error) => return Ok(Some(failed(error))),
                };
                if let Some(difference) = judge(servers, at, calls, &expected, &got, tally) {
                    return Ok(Some(difference));
                }
                if shown != seen {
                    let first = shown.iter().zip(&seen).position(|(a, b)| a != b).unwrap_or(shown.len().min(seen.len()));
                    let (a, b) = (shown.get(first), seen.get(first));
                    return Ok(Some(Difference {
                        step: at,
                        signature: format!("monitor {} {}", kind(a), kind(b)),
                        shown: format!("line {first} of the monitor\n  expected {}\n  got      {}", show_some(a), show_some(b)),
                    }));
                }
            }
            Step::Waiting { waiters, calls } => {
                let expected = reference.waiting(waiters, calls)?;
                let got = match subject.waiting(waiters, calls) {
                    Ok(got) => got,
                    Err(error) => return Ok(Some(failed(error))),
                };
                let let_go: Call = vec![b"CLIENT".to_vec(), b"UNBLOCK".to_vec()];
                let calls = calls.iter().filter(|call| !call.is_empty()).cloned();
                let calls: Vec<Call> = calls.chain(waiters.iter().flat_map(|call| [let_go.clone(), call.clone()])).collect();
                if let Some(difference) = judge(servers, at, &calls, &expected, &got, tally) {
                    return Ok(Some(Difference { signature: format!("waiting {}", difference.signature), ..difference }));
                }
            }
            Step::Carry { from, to, calls, .. } => {
                let word = |word: &str| word.as_bytes().to_vec();
                let dump = match from {
                    Some(from) => vec![word("DUMP"), from.clone()],
                    None => vec![word("FUNCTION"), word("DUMP")],
                };
                let dumped = reference.sequence(on, std::slice::from_ref(&dump))?;
                // From 7.2 on a stream's payload has the activity times of consumers, which 7.0 cannot read.
                let stream = matches!(&dumped[0], Frame::Bulk(payload) if [15, 19, 21].contains(&payload[0]));
                if stream && servers.version < (7, 4) {
                    at = end;
                    continue;
                }
                let theirs = subject.sequence(on, std::slice::from_ref(&dump)).map_err(lost)?;
                if let Some(difference) = judge(servers, at, std::slice::from_ref(&dump), &dumped, &theirs, tally) {
                    return Ok(Some(difference));
                }
                if let (Frame::Bulk(dumped), Frame::Bulk(theirs)) = (&dumped[0], &theirs[0]) {
                    let restore = |payload: &[u8]| match from {
                        Some(_) => vec![word("RESTORE"), to.clone(), word("0"), payload.to_vec(), word("REPLACE")],
                        None => vec![word("FUNCTION"), word("RESTORE"), payload.to_vec(), word("FLUSH")],
                    };
                    // Each server reads the other's payload.
                    let expected = reference.sequence(on, &[&[restore(theirs)], &calls[..]].concat())?;
                    let all = [&[restore(dumped)], &calls[..]].concat();
                    let got = subject.sequence(on, &all).map_err(lost)?;
                    if let Some(difference) = judge(servers, at, &all, &expected, &got, tally) {
                        return Ok(Some(Difference { signature: format!("carried {}", difference.signature), ..difference }));
                    }
                }
            }
            Step::FullScan { call, cursor, .. } => {
                tally.calls += 1;
                let expected = reference.full_scan(on, call, *cursor)?;
                let got = match subject.full_scan(on, call, *cursor) {
                    Ok(got) => got,
                    Err(error) => return Ok(Some(failed(error))),
                };
                if expected != got {
                    return Ok(Some(difference(at, call, &expected, &got)));
                }
            }
            _ => {
                let send = |side: &mut Side| {
                    for call in batch.iter().flat_map(calls_of) {
                        side.wires[on].queue(call);
                    }
                    side.wires[on].flush()
                };
                send(&mut reference)?;
                if let Err(error) = send(&mut subject) {
                    return Ok(Some(failed(error)));
                }
                for (offset, step) in batch.iter().enumerate() {
                    let mut probe = None;
                    for call in calls_of(step) {
                        tally.calls += 1;
                        let expected = reference.reply(on).map_err(|error| {
                            io::Error::new(error.kind(), format!("the reference, at {}: {error}", show_call(call)))
                        })?;
                        let got = match subject.reply(on) {
                            Ok(got) => got,
                            Err(error) => return Ok(Some(Difference { step: at + offset, ..failed(error) })),
                        };
                        if expected.raw != got.raw && !excused(servers, call, probe.as_ref(), &expected.frame, &got.frame, tally)
                        {
                            return Ok(Some(difference(at + offset, call, &expected.frame, &got.frame)));
                        }
                        probe = Some(expected.frame);
                    }
                }
            }
        }
        for on in 0..2 {
            if tracked {
                // Pushes behind the last reply, or caused by another connection, come before the reply to this PING.
                let ping = vec![b"PING".to_vec(), SENTINEL.to_vec()];
                reference.sequence(on, std::slice::from_ref(&ping))?;
                subject.sequence(on, &[ping]).map_err(lost)?;
            }
            let (expected, got) = (std::mem::take(&mut reference.pushes[on]), std::mem::take(&mut subject.pushes[on]));
            if expected != got && invalidated(&expected) == invalidated(&got) {
                *tally.rules.entry(INVALIDATIONS).or_default() += 1;
            } else if expected != got {
                return Ok(Some(Difference {
                    step: end - 1,
                    signature: "pushes".into(),
                    shown: format!("pushes\n  expected {expected:?}\n  got      {got:?}"),
                }));
            }
        }
        let (expected, got) = (reference.take_events()?, subject.take_events().map_err(lost)?);
        tally.events += expected.len();
        if expected != got {
            let first = expected.iter().zip(&got).position(|(a, b)| a != b).unwrap_or(expected.len().min(got.len()));
            let (a, b) = (expected.get(first), got.get(first));
            return Ok(Some(Difference {
                step: end - 1,
                signature: format!("event {} {}", channel(a), channel(b)),
                shown: format!("event {first} of the batch\n  expected {}\n  got      {}", show_some(a), show_some(b)),
            }));
        }
        at = end;
    }
    Ok(None)
}

/// Compares the replies to calls with one reply each, and the replies in `EXEC` call by call.
fn judge(
    servers: Servers,
    step: usize,
    calls: &[Call],
    expected: &[Frame],
    got: &[Frame],
    tally: &mut Tally,
) -> Option<Difference> {
    tally.calls += calls.len();
    let mut queued: Vec<&Call> = Vec::new();
    for at in 0..calls.len().max(expected.len()).max(got.len()) {
        let (Some(call), Some(a), Some(b)) = (calls.get(at), expected.get(at), got.get(at)) else {
            if expected.len() == got.len() {
                break;
            }
            return Some(Difference {
                step,
                signature: format!("number of replies {} {}", kind(expected.get(at)), kind(got.get(at))),
                shown: format!("reply {at}\n  expected {}\n  got      {}", show_some(expected.get(at)), show_some(got.get(at))),
            });
        };
        match (a.elements(), b.elements()) {
            (Some(a), Some(b)) if upper(&call[0]) == "EXEC" && a.len() == b.len() && a.len() == queued.len() => {
                for (at, call) in queued.iter().enumerate() {
                    let probe = at.checked_sub(1).and_then(|before| a.get(before));
                    if a[at] != b[at] && !excused(servers, call, probe, &a[at], &b[at], tally) {
                        let found = difference(step, call, &a[at], &b[at]);
                        return Some(Difference { signature: format!("queued {}", found.signature), ..found });
                    }
                }
            }
            _ => {
                let probe = at.checked_sub(1).and_then(|before| expected.get(before));
                if a != b && !excused(servers, call, probe, a, b, tally) {
                    return Some(difference(step, call, a, b));
                }
            }
        }
        match a {
            Frame::Simple(status) if status == b"QUEUED" => queued.push(call),
            _ if ["EXEC", "DISCARD", "RESET"].contains(&upper(&call[0]).as_str()) => queued.clear(),
            _ => {}
        }
    }
    None
}

fn lost(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the subject does not answer any more: {error}"))
}

/// The end of the batch that begins at `at`: consecutive plain calls on one connection.
fn batch_end(steps: &[Step], at: usize) -> usize {
    // A build of Redis's development branch of October 2024 may not answer a failed AUTH in the middle of a pipeline.
    let plain = |step: &Step| match step {
        Step::One { call, .. } => !call.iter().any(|arg| upper(arg) == "AUTH"),
        step => matches!(step, Step::Probed { .. }),
    };
    let mut end = at + 1;
    let mut bytes = 0;
    while plain(&steps[at]) && end < steps.len() && end - at < BATCH_CALLS {
        let size = |step: &Step| calls_of(step).iter().map(|call| call.iter().map(Vec::len).sum::<usize>()).sum::<usize>();
        bytes += size(&steps[end - 1]);
        if !plain(&steps[end]) || connection(&steps[end]) != connection(&steps[at]) || bytes + size(&steps[end]) > BATCH_BYTES {
            break;
        }
        end += 1;
    }
    end
}

fn excused(servers: Servers, call: &Call, probe: Option<&Frame>, reference: &Frame, subject: &Frame, tally: &mut Tally) -> bool {
    let name = upper(&call[0]);
    let case = Case { call, name: &name, probe, reference, subject, version: servers.version };
    let Some(rule) = rules().find(|rule| (rule.equal)(&case)) else { return false };
    *tally.rules.entry(rule.name).or_default() += 1;
    true
}

fn difference(step: usize, call: &Call, expected: &Frame, got: &Frame) -> Difference {
    Difference {
        step,
        signature: format!("{}: {} / {}", title(call), kind(Some(expected)), kind(Some(got))),
        shown: format!("expected {}\n  got      {}", show(expected), show(got)),
    }
}

/// The command's name, with the subcommand if it has one.
fn title(call: &Call) -> String {
    let known =
        |word: &[u8]| !word.is_empty() && word.len() < 24 && word.iter().all(|b| b.is_ascii_alphabetic() || b"-_".contains(b));
    let name = upper(&call[0]);
    let container = name == "DEBUG" || commands::table().named(&[&call[0]]).is_some_and(|row| !row.subcommands.is_empty());
    match call.get(1) {
        _ if !known(&call[0]) => "unknown".into(),
        Some(sub) if container && known(sub) => format!("{name} {}", upper(sub)),
        _ => name,
    }
}

/// The shape of a reply without its contents.
fn kind(frame: Option<&Frame>) -> String {
    match frame {
        None => "nothing".into(),
        Some(Frame::Error(text)) => {
            let text = String::from_utf8_lossy(text).into_owned();
            let words = text.split_whitespace().take(5).filter(|word| word.len() < 20 && !word.contains(['\'', '\u{fffd}']));
            words.collect::<Vec<_>>().join(" ")
        }
        Some(Frame::Aggregate(kind, elements)) => format!("{}{}", *kind as char, elements.len().min(3)),
        Some(Frame::Integer(_)) => "integer".into(),
        Some(Frame::Bulk(_)) => "bulk".into(),
        Some(Frame::Simple(_)) => "status".into(),
        Some(Frame::Double(_)) => "double".into(),
        Some(Frame::BigNumber(_)) => "big number".into(),
        Some(Frame::Verbatim(_)) => "verbatim".into(),
        Some(Frame::Boolean(_)) => "boolean".into(),
        Some(Frame::NilBulk | Frame::NilArray | Frame::Null) => "null".into(),
    }
}

fn channel(frame: Option<&Frame>) -> String {
    let elements = frame.and_then(Frame::elements);
    elements.and_then(|e| e.get(2)).map(|f| show(f).split(':').next().unwrap_or("").to_string()).unwrap_or_default()
}

fn show_some(frame: Option<&Frame>) -> String {
    frame.map_or("nothing".into(), show)
}

/// A reply on one line, with long parts cut.
pub fn show(frame: &Frame) -> String {
    let text = |mark: &str, bytes: &[u8]| format!("{mark}{}", show_bytes(bytes));
    match frame {
        Frame::Simple(t) => text("+", t),
        Frame::Error(t) => text("-", t),
        Frame::Integer(t) => text(":", t),
        Frame::Bulk(t) => format!("\"{}\"", show_bytes(t)),
        Frame::NilBulk => "$-1".into(),
        Frame::NilArray => "*-1".into(),
        Frame::Null => "_".into(),
        Frame::Double(t) => text(",", t),
        Frame::Boolean(t) => format!("#{t}"),
        Frame::BigNumber(t) => text("(", t),
        Frame::Verbatim(t) => text("=", t),
        Frame::Aggregate(kind, elements) => {
            let shown: Vec<String> = elements.iter().take(40).map(show).collect();
            let more = if elements.len() > 40 { format!(" … {} in all", elements.len()) } else { String::new() };
            format!("{}[{}{more}]", *kind as char, shown.join(" "))
        }
    }
}

fn show_bytes(bytes: &[u8]) -> String {
    let cut = bytes.len().min(700);
    let more = if cut < bytes.len() { format!("… {} bytes", bytes.len()) } else { String::new() };
    format!("{}{more}", bytes[..cut].escape_ascii())
}

/// A step in the form in which one would type it.
pub fn show_step(step: &Step) -> String {
    let calls: Vec<String> = calls_of(step).into_iter().map(show_call).collect();
    let calls = calls.join(" ; ");
    let place = if connection(step) == 0 { "RESP2" } else { "RESP3" };
    match step {
        Step::Waiting { .. } => format!("[waiting] {calls}"),
        Step::Ending { .. } => format!("[ending] {calls}"),
        Step::Watched { .. } => format!("[{place}, watched] {calls}"),
        Step::Carry { from: Some(from), .. } => format!("[{place}] carry {} ; {calls}", from.escape_ascii()),
        Step::Carry { from: None, .. } => format!("[{place}] carry the functions ; {calls}"),
        _ => format!("[{place}] {calls}"),
    }
}

fn show_call(call: &Call) -> String {
    if call.is_empty() {
        return "(they wait)".into();
    }
    let words = call.iter().map(|arg| {
        let plain = !arg.is_empty() && arg.iter().all(|b| b.is_ascii_graphic() && !b"\"'\\".contains(b));
        let shown = match arg.len() {
            0..=400 if plain => show_bytes(arg),
            _ if arg.len() > 60 && arg.windows(8).all(|w| w[0] == w[7]) => format!("<{} bytes of {}>", arg.len(), arg[0] as char),
            _ => format!("\"{}\"", show_bytes(arg)),
        };
        if arg.len() > 60 && arg.iter().all(|&b| b == arg[0]) { format!("<{} × {}>", arg.len(), arg[0] as char) } else { shown }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The shortest history that still ends in a similar difference.
pub fn shrink(servers: Servers, steps: &[Step], difference: &Difference, events: bool) -> (Vec<Step>, Difference) {
    let mut best = (steps[..=difference.step].to_vec(), difference.clone());
    let mut tries = 250;
    let mut size = best.0.len() / 2;
    while size > 0 && tries > 0 {
        let mut from = 0;
        let mut shorter = false;
        while from < best.0.len() && tries > 0 {
            tries -= 1;
            let to = (from + size).min(best.0.len());
            let tried: Vec<Step> = best.0[..from].iter().chain(&best.0[to..]).cloned().collect();
            match run(servers, &tried, events, &mut Tally::default()) {
                Ok(Some(found)) if found.signature == difference.signature => {
                    best = (tried[..=found.step].to_vec(), found);
                    shorter = true;
                }
                Ok(_) => from = to,
                Err(_) => return best,
            }
        }
        if size == 1 && !shorter {
            break;
        }
        size = (size / 2).max(1);
    }
    best
}
