//! Time from exec to the first reply.
//!
//! Each server is started on a port that was free. The bench connects again and again until a connection is accepted, and sends a
//! PING. The figure is the time from just before the process is created to the reply. With a port that is known beforehand there
//! is no need to wait for a file or a line of output.
//!
//! The program is a copy, like an installed one. The pages of a file that the linker has just written are scattered in memory: a
//! program of a dozen megabytes takes 0.4 ms longer to start from them.

use std::fs;
use std::io::{Error, Read, Result, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use portcullis::bench::report::comparison::{Bar, Cell, Row, Section, Unit};
use portcullis::bench::report::statistics::median;
use portcullis::bench::servers::kind::ServerKind;
use portcullis::bench::servers::process::Process;
use portcullis::bench::servers::wire::REPLY_TIMEOUT;
use portcullis::ports;

use crate::plan::Plan;

const NAME: &str = "startup";
const BAR_US: f64 = 3_000.0;
const FLAGS: [(&str, &[&str]); 2] = [("default flags", &[]), ("with --test-mode", &["--test-mode"])];

pub fn measure(plan: &Plan) -> Section {
    let mut section = Section::new(NAME, "start, from exec to the first PONG, median", "");
    let rounds = plan.rounds * if plan.quick { 5 } else { 10 };
    let copies: Vec<(ServerKind, Result<Installed>)> = plan.kinds().map(|kind| (kind, Installed::of(plan, kind))).collect();
    for (what, flags) in FLAGS.into_iter().filter(|(what, _)| plan.wants(NAME, what)) {
        plan.say(&format!("{NAME}: {what}"));
        let mut row = Row::new(what, "", Unit::Microseconds).bar(Some(Bar::AtMost(BAR_US)));
        let mut took: Vec<(ServerKind, Result<Vec<f64>>)> = plan.kinds().map(|kind| (kind, Ok(Vec::new()))).collect();
        for _ in 0..rounds {
            for ((kind, took), (_, copy)) in took.iter_mut().zip(&copies) {
                if !flags.is_empty() && *kind != ServerKind::Portcullis {
                    continue;
                }
                let us = match copy {
                    Ok(copy) => first_reply(&copy.path, *kind, flags),
                    Err(error) => Err(Error::other(error.to_string())),
                };
                match (us, &mut *took) {
                    (Ok(us), Ok(all)) => all.push(us),
                    (Err(error), Ok(_)) => *took = Err(error),
                    (_, Err(_)) => {}
                }
            }
        }
        row.cells = took
            .into_iter()
            .map(|(kind, took)| match took {
                Ok(us) if us.is_empty() => (kind, Cell::Unsupported),
                took => (kind, Cell::of(took.map(|us| median(&us)))),
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

/// A copy of a server's program. Removed when dropped.
struct Installed {
    path: PathBuf,
}

impl Installed {
    fn of(plan: &Plan, kind: ServerKind) -> Result<Installed> {
        let program = plan.program(kind)?;
        // Some programs look at the name that they are started by.
        let name = program.file_name().ok_or_else(|| Error::other("a program without a name"))?;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("startup-{}", kind.name()));
        fs::create_dir_all(&folder)?;
        let path = folder.join(name);
        fs::copy(program, &path)?;
        Ok(Installed { path })
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        if let Some(folder) = self.path.parent() {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Microseconds from exec to the first reply.
fn first_reply(program: &Path, kind: ServerKind, flags: &[&str]) -> Result<f64> {
    let port = ports::free()?;
    let mut command = kind.command(program, port);
    command.args(flags);
    let begin = Instant::now();
    let process = Process::spawn(command, port)?;
    let mut reply = [0; 7];
    while begin.elapsed() < REPLY_TIMEOUT {
        if let Ok(mut stream) = TcpStream::connect(process.addr())
            && stream.write_all(b"PING\r\n").is_ok()
            && stream.read_exact(&mut reply).is_ok()
            && &reply == b"+PONG\r\n"
        {
            return Ok(begin.elapsed().as_secs_f64() * 1e6);
        }
        // Leaves this core to the server.
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
