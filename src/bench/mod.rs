//! `portcullis bench`: what locks cost, and how they behave, on one or more servers side by side.
//!
//! ```text
//!   cli ─▶ plan ─▶ targets (servers, started or given) × workloads (algorithms, commands)
//!                     │
//!                     └─▶ run: slices in turns ─┬─ critical section: does exclusion hold? how long is a hand-off?
//!                              expiry of leases └─ counting world: commands sent
//!                     ┌──────────────────────────┘
//!                     └─▶ report: outcomes ─▶ table, JSON, page
//! ```
//!
//! The servers take turns in short slices, so that a disturbance of the machine hits all of them. A critical section that is
//! independent of the lock checks mutual exclusion during the measurement: see [`run::critical_section`].
//!
//! Begin with [`plan`], which says what is measured, and [`run::measure`]. [`servers`] starts and queries servers, [`report`]
//! holds the outcomes and their forms.
//!
//! `cargo bench --bench compare` measures servers more finely, with its own requests, and `cargo bench -p portcullis-quorum` measures
//! servers that replicate. Both share [`servers`] and [`report`] with this command.

pub mod cli;
#[cfg(any(test, feature = "internals"))]
pub mod disk;
pub mod list;
pub mod machine;
pub mod plan;
pub mod report;
pub mod run;
pub mod servers;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use crate::bench::plan::Plan;
use crate::bench::report::outcome::Outcome;
use crate::bench::report::run_facts::RunFacts;
use crate::bench::servers::process;
use crate::files;

/// Measures a plan, prints the outcomes and writes them into the files of the plan. The exit code is a failure if a measurement failed or mutual
/// exclusion was broken.
pub fn run(plan: &Plan) -> ExitCode {
    let facts = RunFacts::now();
    let measured = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
        .and_then(|runtime| runtime.block_on(unless_interrupted(run::measure(plan))));
    let reported = measured.and_then(|outcomes| report::publish(plan, &outcomes, &facts).map(|()| outcomes));
    let problems = match reported {
        Ok(outcomes) => problems(&outcomes),
        Err(message) => vec![message],
    };
    problems.iter().for_each(|message| eprintln!("portcullis: {message}"));
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What makes a run a failure, in words for people: workloads whose mutual exclusion was broken, and workloads that never
/// succeeded.
fn problems(outcomes: &[Outcome]) -> Vec<String> {
    let named = |applies: fn(&Outcome) -> bool, what: &str| {
        let name = |outcome: &Outcome| format!("{} on {}", outcome.workload, outcome.target);
        let names: Vec<String> = outcomes.iter().filter(|outcome| applies(outcome)).map(name).collect();
        (!names.is_empty()).then(|| format!("{what}: {}", names.join(", ")))
    };
    let kinds = [named(Outcome::is_broken, "mutual exclusion was broken"), named(Outcome::is_failure, "it never worked")];
    kinds.into_iter().flatten().collect()
}

/// Runs a future to its end unless this process receives a signal to terminate. In that case the future is dropped with
/// everything that it owns, such as the servers that it started.
///
/// # Errors
/// Those of the future, or that a signal interrupted it.
pub async fn unless_interrupted<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    tokio::select! {
        biased;
        () = process::shutdown_signal() => Err("interrupted by a signal before the end".to_owned()),
        outcome = work => outcome,
    }
}

/// Whether a path stands for standard output.
pub fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Checks that a file can be written before a long run whose results go there. Leaves the file as it was.
///
/// # Errors
/// The reason why not, in words for people.
pub fn check_writable(path: Option<&Path>) -> Result<(), String> {
    let Some(path) = path.filter(|path| !is_stdout(path)) else { return Ok(()) };
    let existed = path.exists();
    let opened = files::append(path).map(drop);
    // The run may write nothing in the end, so a file that this check created is removed.
    let checked = if existed { opened } else { opened.and_then(|()| std::fs::remove_file(path)) };
    checked.map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes text into a file, or to standard output if the path is `-`.
///
/// # Errors
/// The reason why not, in words for people.
pub fn write_file(path: &Path, text: &str) -> Result<(), String> {
    if is_stdout(path) {
        return print(text);
    }
    files::output(path, text.as_bytes()).map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes text to standard output.
///
/// # Errors
/// The reason why not, such as that its reader is gone.
pub fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| format!("standard output: {error}"))
}
