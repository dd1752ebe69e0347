//! The time from exec until a server has loaded its files: an RDB base, and an increment of requests.

use std::io::{Error, Result};
use std::path::PathBuf;
use std::time::Duration;

use portcullis::bench::report::comparison::{Bar, Section, Unit};
use portcullis::bench::servers::kind::ServerKind;
use portcullis::bench::servers::process::Process;
use portcullis::bench::servers::wire::{call, encode_onto};

use crate::durable::rewrite::rewrite;
use crate::durable::{Figure, NAME, Slice, rows, start, start_timed};
use crate::load::{grouped, send};
use crate::plan::Plan;

const VALUE: &str = "5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21";
const FASTER: Option<Bar> = Some(Bar::RatioAtLeast(1.5));

/// How the data lies in the files.
const BASE: Figure = ("start from", "RDB base", Unit::Microseconds, FASTER);
const INCREMENT: Figure = ("start from", "increment", Unit::Microseconds, FASTER);

pub fn measure(plan: &Plan, section: &mut Section) {
    let keys = if plan.quick { 300_000 } else { 1_000_000 };
    for (figure, rewrites) in [(BASE, true), (INCREMENT, false)] {
        let what = format!("start from {} string locks, {}", grouped(keys), figure.1);
        if !plan.wants(NAME, &what) {
            continue;
        }
        let filled = |kind| (kind, Filled::by(plan, kind, keys, rewrites).map(|folder| (folder, Vec::new())));
        let mut took: Vec<(ServerKind, Result<Loaded>)> = plan.kinds().map(filled).collect();
        for round in 0..plan.rounds {
            plan.say(&format!("{NAME}: {what}, round {}", round + 1));
            for (kind, took) in &mut took {
                let Ok((folder, all)) = took else { continue };
                match folder.load(plan, *kind, keys) {
                    Ok(time) => all.push(vec![Some(time.as_secs_f64() * 1e6)]),
                    Err(error) => *took = Err(error),
                }
            }
        }
        let took: Vec<_> = took.into_iter().map(|(kind, took)| (kind, took.map(|(_, all)| all))).collect();
        section.rows.extend(rows(&[figure], &took).into_iter().map(|mut row| {
            row.what = format!("start from {} string locks", grouped(keys));
            row
        }));
    }
}

/// A folder, and what was measured of it.
type Loaded = (Filled, Vec<Slice>);

/// Sets so many locks with long leases.
pub fn fill(process: &Process, keys: usize) -> Result<()> {
    send(process.addr(), keys, "SET NX PX", b"+OK\r\n", |request, n| {
        encode_onto(request, &["SET", &format!("lock:{n:015}"), VALUE, "NX", "PX", "36000000"]);
    })
}

/// A folder that a server has filled. Removed when dropped.
struct Filled(PathBuf);

impl Filled {
    fn by(plan: &Plan, kind: ServerKind, keys: usize, rewrites: bool) -> Result<Filled> {
        let path = std::env::temp_dir().join(format!("portcullis-bench-{}-filled-{}", std::process::id(), kind.name()));
        std::fs::create_dir_all(&path)?;
        let filled = Filled(path);
        let process = start(plan, kind, "everysec", Some(&filled.0))?;
        fill(&process, keys)?;
        if rewrites {
            rewrite(&process)?;
        }
        end(process)?;
        Ok(filled)
    }

    fn load(&self, plan: &Plan, kind: ServerKind, keys: usize) -> Result<Duration> {
        let (process, took) = start_timed(plan, kind, "everysec", Some(&self.0))?;
        let size = call(process.addr(), &["DBSIZE"])?;
        if size != format!(":{keys}\r\n") {
            return Err(Error::other(format!("it has loaded {} keys", size.trim())));
        }
        plan.account(&process);
        end(process)?;
        Ok(took)
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Ends a server, so that nothing is lost.
fn end(process: Process) -> Result<()> {
    // The connection ends without a reply.
    let _ = call(process.addr(), &["SHUTDOWN", "NOSAVE"]);
    while call(process.addr(), &["PING"]).is_ok_and(|reply| !reply.is_empty()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    // It may still be writing: the process is awaited before its folder is removed.
    while process.resident_bytes().is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
