//! The cost of locks, side by side with redis-server, valkey-server and kevy: `cargo bench --bench compare [-- FLAGS]`, see
//! `--help`.
//!
//! Starts the servers on free loopback ports, drives them in short slices that take turns, checks every reply, and prints and
//! stores the figures. A server that is not installed is named and left out. If a server cannot do something, the table says what
//! it answered.
//!
//! ```text
//!   plan (flags, programs) ─▶ cpu       server CPU per operation: commands, lock cycle, scripts
//!                             handoff   … per acquisition, among clients that contend for one lock
//!                             expiry    lateness of `expired` events
//!                             stall     another client's latency while millions of keys expire or are inserted
//!                             memory    of a lock and of a connection
//!                             startup   from exec to the first reply
//!                             durable   the append-only file: its cost, who waits for it, loading, new bases
//!                        ─▶ sections of rows (portcullis::bench::report::comparison) ─▶ Markdown, JSON, guide
//! ```

mod cpu;
mod durable;
mod expiry;
mod floor;
mod handoff;
mod load;
mod memory;
mod pipes;
mod plan;
mod prober;
mod redisson;
mod stall;
mod startup;
mod workloads;

use std::process::ExitCode;

use plan::Plan;
use portcullis::bench::report::comparison::{Section, verdict};
use portcullis::bench::servers::{process, process_stats};
use portcullis::bench::{check_writable, machine};
use serde_json::json;

/// The marks around the tables in the guide.
const MARKS: (&str, &str) = ("<!-- compare -->", "<!-- /compare -->");

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    // `cargo bench` passes --bench. `cargo test --benches` passes --test; then nothing is measured.
    if args.iter().any(|arg| arg == "--test") {
        return ExitCode::SUCCESS;
    }
    // This program is also the floor, which is measured like a server.
    if let [_, flag, kind, port] = &args[..]
        && flag == floor::FLAG
    {
        floor::serve(kind, port.parse().expect("a port"));
    }
    std::thread::spawn(end_on_signal);
    match Plan::read(args).and_then(|plan| run(&plan)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("compare: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Kills the servers when a signal ends this program.
fn end_on_signal() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(process::shutdown_signal());
    process_stats::kill_children();
    eprintln!("compare: interrupted by a signal");
    std::process::exit(1);
}

fn run(plan: &Plan) -> Result<(), String> {
    for path in [&plan.table, &plan.json] {
        path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(|error| format!("{}: {error}", path.display()))?;
        check_writable(Some(path))?;
    }
    let page = plan.readme.as_deref().map(GuidePage::read).transpose()?;
    machine::raise_file_limit(16_384);
    let measured = [
        cpu::measure as fn(&Plan) -> Section,
        handoff::measure,
        expiry::measure,
        stall::measure,
        memory::measure,
        startup::measure,
        durable::measure,
    ];
    let sections: Vec<Section> =
        measured.iter().map(|measure| measure(plan)).filter(|section| !section.rows.is_empty()).collect();
    let text = markdown(plan, &sections);
    println!("{text}\n{}", verdict(&sections));
    let write =
        |path: &std::path::Path, text: String| std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()));
    write(&plan.table, text.clone())?;
    let all = json!({
        "machine": machine::describe(),
        "servers": plan.servers.iter().map(|server| (server.kind.name().to_owned(), json!(server.title))).collect::<serde_json::Map<_, _>>(),
        "not_installed": plan.missing,
        "quick": plan.quick,
        "rounds": plan.rounds,
        "waited_for_a_processor": plan.disturbance(),
        "sections": sections.iter().map(Section::json).collect::<Vec<_>>(),
    });
    write(&plan.json, format!("{all:#}\n"))?;
    if let Some(page) = page {
        page.write(&text)?;
    }
    plan.say(&format!("written: {} and {}", plan.table.display(), plan.json.display()));
    Ok(())
}

/// The machine, the servers and all tables in Markdown.
fn markdown(plan: &Plan, sections: &[Section]) -> String {
    let kinds: Vec<_> = plan.servers.iter().map(|server| server.kind).collect();
    let titles: Vec<&str> = plan.servers.iter().map(|server| server.title.as_str()).collect();
    let mut out = format!(
        "{}; {}; medians of {} {}{}. In parentheses: redis-server's figure divided by this one. For every second that a server ran, it waited \
         {:.0} ms for a processor that other processes used.\n",
        titles.join(", "),
        machine::describe(),
        plan.rounds,
        if plan.rounds == 1 { "round" } else { "rounds" },
        if plan.quick { ", a short run (`--quick`)" } else { "" },
        plan.disturbance() * 1000.0
    );
    for missing in &plan.missing {
        out += &format!("\nNot installed: {missing}.\n");
    }
    for section in sections {
        out += "\n";
        out += &section.markdown(&kinds);
    }
    out
}

/// A page of the guide, split at the marks.
struct GuidePage<'a> {
    path: &'a std::path::Path,
    before: String,
    after: String,
}

impl<'a> GuidePage<'a> {
    fn read(path: &'a std::path::Path) -> Result<GuidePage<'a>, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let (before, rest) = text.split_once(MARKS.0).ok_or_else(|| format!("{} has no {}", path.display(), MARKS.0))?;
        let (_, after) = rest.split_once(MARKS.1).ok_or_else(|| format!("{} has no {}", path.display(), MARKS.1))?;
        Ok(GuidePage { path, before: before.to_owned(), after: after.to_owned() })
    }

    fn write(&self, tables: &str) -> Result<(), String> {
        let text = format!("{}{}\n{tables}{}{}", self.before, MARKS.0, MARKS.1, self.after);
        std::fs::write(self.path, text).map_err(|error| format!("{}: {error}", self.path.display()))
    }
}
