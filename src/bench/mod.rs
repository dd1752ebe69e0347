//! `portcullis bench`: what locks cost, and how they behave, on one or more servers side by side.
//!
//! ```text
//!   cli ─▶ plan ─▶ targets (servers, started or given) × works (algorithms, commands)
//!                     │
//!                     └─▶ drive: slices by turns ─┬─ section: does exclusion hold? how long from hand to hand?
//!                         lapse: leases that end   └─ world: commands sent
//!                     ┌──────────────────────────────┘
//!                     └─▶ figures ─▶ table, JSON, chart
//! ```
//!
//! The servers take turns in short slices, so that what disturbs the machine disturbs all of them. Whether only as many hold a lock at once
//! as may is checked meanwhile, by something that has nothing to do with the lock: see [`section`].
//!
//! `cargo bench --bench compare` measures servers more finely, by requests of its own, and shares what lies beneath: [`peer`] and [`process`]
//! (programs and their flags), `accounts` (what the system has noted of them), `wire`, [`figures`], `rows` (servers side by side, with bars).

#[cfg(any(test, feature = "internals"))]
pub mod accounts;
pub mod chart;
pub mod cli;
pub mod drive;
pub mod figures;
pub mod identity;
pub mod json;
pub mod lapse;
#[cfg(any(test, feature = "internals"))]
pub mod machine;
pub mod peer;
pub mod process;
#[cfg(any(test, feature = "internals"))]
pub mod rows;
pub mod section;
pub mod table;
pub mod target;
#[cfg(any(test, feature = "internals"))]
pub mod wire;
pub mod work;
pub mod world;

use std::io::Write;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};

use crate::bench::cli::Plan;
use crate::bench::drive::Crew;
use crate::bench::figures::Outcome;
use crate::bench::target::Target;

/// Measures, and prints, writes and draws what came out. Fails where something could not be measured, and where exclusion was broken.
pub fn run(plan: &Plan) -> ExitCode {
    let measured = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(unless_told_to_end(measure(plan))));
    let told = measured.and_then(|outcomes| {
        let mut out = std::io::stdout().lock();
        // Whoever reads the table may have gone; the files are written all the same.
        let _ = write!(out, "{}", table::of(plan, &outcomes));
        write_to(plan.json.as_deref(), || json::of(plan, &outcomes))?;
        if let Some(path) = plan.chart.as_deref() {
            let chart = chart::of(plan, &outcomes, path)?;
            write_to(Some(path), || chart)?;
        }
        Ok(outcomes)
    });
    let mut wrong = Vec::new();
    match told {
        Ok(outcomes) => {
            for (is_wrong, what) in [
                (Outcome::is_broken as fn(&Outcome) -> bool, "mutual exclusion was broken"),
                (Outcome::is_failure, "it never worked"),
            ] {
                let name = |outcome: &Outcome| format!("{} on {}", outcome.work, outcome.target);
                let names: Vec<String> = outcomes.iter().filter(|outcome| is_wrong(outcome)).map(name).collect();
                if !names.is_empty() {
                    wrong.push(format!("{what}: {}", names.join(", ")));
                }
            }
        }
        Err(message) => wrong.push(message),
    }
    wrong.iter().for_each(|message| eprintln!("portcullis: {message}"));
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Does something to its end, unless this process is told to end before: then all that belongs to it is dropped, servers with it.
///
/// # Errors
/// Its own; and that it did not come to its end.
pub async fn unless_told_to_end<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    tokio::select! {
        biased;
        () = process::told_to_end() => Err("told to end before it was done".to_owned()),
        outcome = work => outcome,
    }
}

/// Whether something can be written there, before hours are spent on what is to be written.
///
/// # Errors
/// Why it cannot, in words for people.
pub fn writable(path: Option<&std::path::Path>) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    let there = path.exists();
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path).map(drop);
    // It may be that nothing is written in the end.
    let tried = if there { opened } else { opened.and_then(|()| std::fs::remove_file(path)) };
    tried.map_err(|error| format!("{}: {error}", path.display()))
}

fn write_to(path: Option<&std::path::Path>, text: impl FnOnce() -> String) -> Result<(), String> {
    match path {
        Some(path) => std::fs::write(path, text()).map_err(|error| format!("{}: {error}", path.display())),
        None => Ok(()),
    }
}

/// Measures every work on every target; the outcomes of a work's targets follow each other.
///
/// # Errors
/// Where a server cannot be started or reached, in words for people.
pub async fn measure(plan: &Plan) -> Result<Vec<Outcome>, String> {
    let several = plan.works.iter().any(|work| work.wants_several());
    let mut targets = Vec::new();
    for against in &plan.against {
        targets.push(Target::start(against, several).await?);
    }
    target::tell_apart(&mut targets);
    let bar = progress(plan, targets.len());
    let mut outcomes = Vec::new();
    for work in &plan.works {
        let mut crews = Vec::new();
        for target in &targets {
            crews.push(Crew::gather(plan, work, target).await?);
        }
        for round in 0..plan.slices {
            for turn in 0..crews.len() {
                // Whoever comes first in one round comes last in the next.
                let index = if round % 2 == 0 { turn } else { crews.len() - 1 - turn };
                let crew = &mut crews[index];
                bar.set_message(format!("{} on {}", work.name(), crew.outcome.target));
                crew.slice(plan).await?;
                bar.inc(1);
            }
        }
        for mut crew in crews {
            lapse::measure(plan, &mut crew).await;
            bar.inc(1);
            outcomes.push(crew.dismiss().await);
        }
    }
    bar.finish_and_clear();
    for target in &targets {
        target.tidy(&plan.prefix).await;
    }
    Ok(outcomes)
}

/// Shown on a terminal alone.
fn progress(plan: &Plan, targets: usize) -> ProgressBar {
    let steps = plan.works.len() * targets * (plan.slices + 1);
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}  (another {eta})") {
        bar.set_style(style);
    }
    bar
}
