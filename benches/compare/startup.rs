//! How long a server takes from exec to its first reply.
//!
//! Each is started as a process of its own on a port that was free, and connected to over and over until it lets one in; then it is sent a
//! PING. The figure is the time from just before the process is made to the reply. A port that is known beforehand leaves nothing else to
//! wait for: no file, no line of output.

use std::io::{Error, Read, Result, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use portcullis::bench::figures::median;
use portcullis::bench::peer::Peer;
use portcullis::bench::process::{Process, free_port};
use portcullis::bench::rows::{Bar, Cell, Row, Section, Unit};
use portcullis::bench::wire::PATIENCE;

use crate::plan::Plan;

const NAME: &str = "startup";
const BAR_US: f64 = 3_000.0;
const WAYS: [(&str, &[&str]); 2] = [("as it is", &[]), ("with --test-mode", &["--test-mode"])];

pub fn measure(plan: &Plan) -> Section {
    let mut section = Section::new(NAME, "start, from exec to the first PONG, median", "");
    let rounds = plan.rounds * if plan.quick { 5 } else { 10 };
    for (what, flags) in WAYS.into_iter().filter(|(what, _)| plan.wants(NAME, what)) {
        plan.say(&format!("{NAME}: {what}"));
        let mut row = Row::new(what, "", Unit::Microseconds).bar(Some(Bar::Most(BAR_US)));
        let mut took: Vec<(Peer, Result<Vec<f64>>)> = plan.peers().map(|peer| (peer, Ok(Vec::new()))).collect();
        for _ in 0..rounds {
            for (peer, took) in took.iter_mut().filter(|(peer, _)| flags.is_empty() || *peer == Peer::Portcullis) {
                match (first_reply(plan, *peer, flags), &mut *took) {
                    (Ok(us), Ok(all)) => all.push(us),
                    (Err(error), Ok(_)) => *took = Err(error),
                    (_, Err(_)) => {}
                }
            }
        }
        row.cells = took
            .into_iter()
            .map(|(peer, took)| match took {
                Ok(us) if us.is_empty() => (peer, Cell::Foreign),
                took => (peer, Cell::of(took.map(|us| median(&us)))),
            })
            .collect();
        section.rows.push(row);
    }
    if !section.rows.is_empty() {
        let nothing: Vec<f64> = (0..rounds).filter_map(|_| nothing().ok()).collect();
        section
            .notes
            .push(format!("a program that does nothing, `true`, takes {:.2} ms from exec to its end", median(&nothing) / 1000.0));
    }
    section
}

/// Microseconds from exec to the first reply.
fn first_reply(plan: &Plan, peer: Peer, flags: &[&str]) -> Result<f64> {
    let port = free_port()?;
    let mut command = peer.command(plan.program(peer)?, port);
    command.args(flags);
    let begin = Instant::now();
    let process = Process::spawn(command, port)?;
    let mut reply = [0; 7];
    while begin.elapsed() < PATIENCE {
        if let Ok(mut stream) = TcpStream::connect(process.addr())
            && stream.write_all(b"PING\r\n").is_ok()
            && stream.read_exact(&mut reply).is_ok()
            && &reply == b"+PONG\r\n"
        {
            return Ok(begin.elapsed().as_secs_f64() * 1e6);
        }
        // Lets the server have this core, too.
        std::thread::sleep(Duration::from_micros(20));
    }
    Err(Error::other("it does not answer"))
}

/// Microseconds that a program takes that does nothing.
fn nothing() -> Result<f64> {
    let begin = Instant::now();
    let mut command = Command::new("true");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?.wait()?;
    Ok(begin.elapsed().as_secs_f64() * 1e6)
}
