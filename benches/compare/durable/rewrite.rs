//! What other clients notice while a new base is made.

use std::io::{Error, Result};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use portcullis::bench::report::comparison::{Bar, Section, Unit};
use portcullis::bench::report::statistics::quantile;
use portcullis::bench::servers::kind::ServerKind;
use portcullis::bench::servers::process::Process;
use portcullis::bench::servers::wire::{call, call_expecting};

use crate::durable::{Figure, NAME, Slice, TURN, info, slices};
use crate::load::grouped;
use crate::plan::Plan;
use crate::prober::Prober;
use crate::stall::longest_turn_us;

const FIGURES: [Figure; 4] = [
    ("p99 of another client, divided by that before", "BGREWRITEAOF", Unit::Ratio, Some(Bar::AtMost(1.3))),
    ("the same while another process reads the files (the floor)", "portcullis check", Unit::Ratio, None),
    ("maximum of another client", "BGREWRITEAOF", Unit::Microseconds, None),
    ("longest turn of the event loop (Redis: fork)", "BGREWRITEAOF", Unit::Microseconds, Some(TURN)),
];

/// Interval between questions for the state of a rewrite.
const ASKED_EVERY: Duration = Duration::from_millis(20);

pub fn measure(plan: &Plan, section: &mut Section) {
    let keys = if plan.quick { 300_000 } else { 1_000_000 };
    let what = format!("a new base of {} locks", grouped(keys));
    if !plan.wants(NAME, &what) {
        return;
    }
    let checker = plan.program(ServerKind::Portcullis).ok();
    let rows = slices(plan, &what, "everysec", &FIGURES, |kind, process, round| {
        if round == 0 {
            super::loading::fill(process, keys)?;
        }
        let checker = checker.filter(|_| kind == ServerKind::Portcullis);
        rewritten(kind, process, checker)
    });
    section.rows.extend(rows.into_iter().map(|mut row| {
        row.what = format!("{what}: {}", row.what);
        row
    }));
}

/// `checker` is the program that reads the files for the floor.
fn rewritten(kind: ServerKind, process: &Process, checker: Option<&Path>) -> Result<Slice> {
    // Asks for the state as often as [`rewrite`] does: each question is a connection of its own, which the other client notices.
    let before = probe(process, || {
        for _ in 0..50 {
            info(process, "persistence", "aof_rewrite_in_progress")?;
            std::thread::sleep(ASKED_EVERY);
        }
        Ok(())
    })?;
    longest_turn_us(kind, process)?;
    let during = probe(process, || rewrite(process))?;
    let p99 = |us: &[i64]| quantile(us, 0.99).unwrap_or(0).max(1) as f64;
    let turn_us = match longest_turn_us(kind, process)? {
        Some(us) => Some(us),
        None => info(process, "stats", "latest_fork_usec")?.map(|us| us as f64),
    };
    let beside = checker.map(|program| probe(process, || read_beside(process, program))).transpose()?;
    let floor = beside.map(|beside| p99(&beside) / p99(&before));
    Ok(vec![Some(p99(&during) / p99(&before)), floor, during.last().map(|us| *us as f64), turn_us])
}

/// Reads the server's files in a process of its own, at the priority of the server's thread that makes a base: it loads the same data
/// beside the server, and shares nothing with it but the machine.
fn read_beside(process: &Process, program: &Path) -> Result<()> {
    let folder = format!("/proc/{}/cwd/appendonlydir", process.pid());
    let mut reader =
        Command::new("nice").args(["-n", "10"]).arg(program).args(["check", &folder]).stdout(Stdio::null()).spawn()?;
    let status = loop {
        info(process, "persistence", "aof_rewrite_in_progress")?;
        match reader.try_wait()? {
            Some(status) => break status,
            None => std::thread::sleep(ASKED_EVERY),
        }
    };
    if status.success() { Ok(()) } else { Err(Error::other("the files cannot be read beside the server")) }
}

/// Makes a new base, and waits until it is there.
pub fn rewrite(process: &Process) -> Result<()> {
    call_expecting(process.addr(), &["BGREWRITEAOF"], "+Background append only file rewriting started\r\n")?;
    while info(process, "persistence", "aof_rewrite_in_progress")? != Some(0) {
        std::thread::sleep(ASKED_EVERY);
    }
    let info = call(process.addr(), &["INFO", "persistence"])?;
    if info.contains("aof_last_bgrewrite_status:ok") { Ok(()) } else { Err(Error::other("it cannot make a new base")) }
}

/// Latencies in microseconds, sorted, of a client that sends a request every 200 µs while `what` runs.
fn probe(process: &Process, what: impl FnOnce() -> Result<()>) -> Result<Vec<i64>> {
    let ended = AtomicBool::new(false);
    let addr = process.addr();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| -> Result<Vec<i64>> {
            let mut prober = Prober::new(addr)?;
            let began = Instant::now();
            while !ended.load(Ordering::Relaxed) {
                prober.turn(None)?;
            }
            prober.finish()?;
            let mut us: Vec<i64> = prober.latencies.iter().filter(|(sent, _)| *sent >= began).map(|(_, us)| *us).collect();
            us.sort_unstable();
            Ok(us)
        });
        let done = what();
        ended.store(true, Ordering::Relaxed);
        let us = asking.join().map_err(|_| Error::other("the prober's thread panicked"))??;
        done.map(|()| us)
    })
}
