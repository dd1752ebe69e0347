//! Locks that survive the loss of a machine, side by side: `cargo bench -p portcullis-quorum [-- FLAGS]`, see `--help`.
//!
//! Starts Portcullis, etcd, ZooKeeper and redis-server with replicas, three nodes each, on free loopback ports. One thread drives
//! their clients. Slices of the systems take turns. Every reply is checked. A system that is not installed is named and left
//! out; if a system fails, the table says how.
//!
//! ```text
//!   plan ─▶ clusters (three processes each) ◀─ systems: the client of each, as its users lock
//!                │
//!                ├─ pairs      acquire and release of clients that have their own locks: rate, latency, CPU of all nodes
//!                ├─ contended  one lock and 64 clients
//!                ├─ failover   time without a success after SIGKILL of the leader
//!                └─ memory     of held locks
//!                ▼
//!   sections of rows (portcullis::bench::report::comparison) ─▶ Markdown, JSON
//! ```

mod cluster;
mod contended;
mod failover;
mod memory;
mod pairs;
mod plan;
mod slices;
mod systems;

use std::path::Path;
use std::process::ExitCode;

use plan::Plan;
use portcullis::bench::disk::Disk;
use portcullis::bench::report::comparison::{self, verdict};
use portcullis::bench::servers::{process, process_stats};
use portcullis::bench::{check_writable, machine};
use serde_json::json;
use slices::Entrant;
use systems::System;

/// A table of this bench.
type Section = comparison::Section<System>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    // `cargo bench` passes --bench. `cargo test --benches` passes --test; then nothing is measured.
    if args.iter().any(|arg| arg == "--test") {
        return ExitCode::SUCCESS;
    }
    std::thread::spawn(end_on_signal);
    match Plan::read(args).and_then(|plan| run(&plan)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("quorum: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Kills the servers when a signal ends this program.
fn end_on_signal() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(process::shutdown_signal());
    process_stats::kill_children();
    eprintln!("quorum: interrupted by a signal");
    std::process::exit(1);
}

fn run(plan: &Plan) -> Result<(), String> {
    for path in [&plan.table, &plan.json] {
        path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(|error| format!("{}: {error}", path.display()))?;
        check_writable(Some(path))?;
    }
    machine::raise_file_limit(16_384);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let measured = tokio::task::LocalSet::new().block_on(&runtime, measure(plan))?;
    println!("{}\n{}", measured.markdown(plan), verdict(&measured.sections));
    plan.say(&format!("written: {} and {}", plan.table.display(), plan.json.display()));
    Ok(())
}

/// The outcome of a run.
struct Measured {
    titles: Vec<(System, String)>,
    sections: Vec<Section>,
    disk: Disk,
}

async fn measure(plan: &Plan) -> Result<Measured, String> {
    let mut entrants = Vec::new();
    for system in plan.systems.iter().copied() {
        plan.say(&format!("start {}", system.title()));
        entrants.push(Entrant::start(plan, system).await);
    }
    let mut measured = Measured { titles: Vec::new(), sections: Vec::new(), disk: Disk::default() };
    for entrant in &entrants {
        measured.titles.push((entrant.system, entrant.version().await));
    }
    let section = pairs::measure(plan, &mut entrants, &mut measured.disk).await;
    measured.add(plan, section)?;
    measured.add(plan, contended::measure(plan, &mut entrants).await)?;
    measured.add(plan, failover::measure(plan, &mut entrants).await)?;
    // The memory of held locks is that of new processes.
    drop(entrants);
    measured.add(plan, memory::measure(plan).await)?;
    Ok(measured)
}

impl Measured {
    /// Adds a section, and writes what is measured so far, so that an interrupted run is not lost.
    fn add(&mut self, plan: &Plan, section: Section) -> Result<(), String> {
        if !section.rows.is_empty() {
            self.sections.push(section);
        }
        let write =
            |path: &Path, text: String| std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()));
        write(&plan.table, self.markdown(plan))?;
        write(&plan.json, format!("{:#}\n", self.json(plan)))
    }

    /// The machine, the systems and all tables in Markdown.
    fn markdown(&self, plan: &Plan) -> String {
        let titles: Vec<&str> = self.titles.iter().map(|(_, title)| title.as_str()).collect();
        let mut out = format!(
            "{}: three nodes each on one machine; {}; medians of {} {}{}. Clients are driven by one thread and connected to the leader. \
             In parentheses: Portcullis's figure divided by this one, or the other way round where a higher figure is better, so that \
             numbers below 1 are worse than Portcullis.\n",
            titles.join(", "),
            machine::describe(),
            plan.rounds,
            if plan.rounds == 1 { "round" } else { "rounds" },
            if plan.quick { ", a short run (`--quick`)" } else { "" },
        );
        for missing in &plan.missing {
            out += &format!("\nNot installed: {missing}.\n");
        }
        for section in &self.sections {
            out += "\n";
            out += &section.markdown(&plan.systems);
        }
        if let Some(note) = self.disk.note() {
            out += &format!("\nFor comparison, {note}.\n");
        }
        out
    }

    fn json(&self, plan: &Plan) -> serde_json::Value {
        let titles = self.titles.iter().map(|(system, title)| (system.title().to_owned(), json!(title)));
        json!({
            "machine": machine::describe(),
            "systems": titles.collect::<serde_json::Map<_, _>>(),
            "not_installed": plan.missing,
            "quick": plan.quick,
            "rounds": plan.rounds,
            "disk_us": { "p50": self.disk.quantile(0.5), "p99": self.disk.quantile(0.99) },
            "sections": self.sections.iter().map(comparison::Section::json).collect::<Vec<_>>(),
        })
    }
}
