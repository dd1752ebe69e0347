//! Compares the counts with the recorded ones, or updates the record.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::process::{Command, ExitCode, Stdio};

use serde_json::{Value, json};

use crate::operations;

const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions/counts.json");
/// Percentage by which a count may exceed the recorded one.
const TOLERANCE: f64 = 3.0;
/// The same percentage if the tools differ from the recorded ones, which alone can make such a difference.
const TOLERANCE_OTHER_TOOLS: f64 = 10.0;
/// Set for the process in which gungraun counts.
const COUNTING: &str = "PORTCULLIS_COUNTING";
const UPDATE: &str = "UPDATE=1 cargo bench --bench instructions";

/// Instructions of each operation, by its name.
type Counts = BTreeMap<String, f64>;
/// The versions of what counts depend on beside the code.
type Tools = BTreeMap<String, String>;

/// Whether gungraun counts in this process.
pub fn is_counting() -> bool {
    env::var_os(COUNTING).is_some()
}

/// Counts all operations, or those that match a pattern, and compares the counts with the record.
pub fn run() -> Result<ExitCode, String> {
    if let Some(missing) = ["valgrind", "gungraun-runner"].into_iter().find(|tool| output(tool, &["--version"]).is_err()) {
        let required = env::var_os("PORTCULLIS_REQUIRE_VALGRIND").is_some();
        println!(
            "instructions: nothing is counted, because {missing} is missing: see the first lines of benches/instructions/main.rs"
        );
        return Ok(if required { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
    let args: Vec<String> = env::args().skip(1).collect();
    let all = args.iter().all(|arg| arg.starts_with('-'));
    let (tools, counted) = (tools()?, count(&args)?);
    if env::var_os("UPDATE").is_some() {
        update(tools, counted, all)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (recorded_tools, recorded) = read()?;
    Ok(if compare(&recorded_tools, &recorded, &tools, &counted, all) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The first line of a program's output.
fn output(program: &str, args: &[&str]) -> Result<String, String> {
    let failed = |why: String| format!("{program} {}: {why}", args.join(" "));
    let output = Command::new(program).args(args).output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(output.status.to_string()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
}

fn tools() -> Result<Tools, String> {
    let rustc = output(&env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned()), &["--version"])?;
    // The C compiler compiles Lua.
    let cc = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let family = if output(&cc, &["--version"])?.contains("clang") { "clang" } else { "gcc" };
    let cc = format!("{family} {}", output(&cc, &["-dumpversion"])?);
    #[cfg(target_arch = "x86_64")]
    let avx2 = std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    let avx2 = false;
    let processor = format!("{}{}", env::consts::ARCH, if avx2 { " with AVX2" } else { "" });
    let tools = [
        ("rustc", rustc.split(' ').nth(1).unwrap_or(&rustc).to_owned()),
        ("C compiler", cc),
        ("C library", output("getconf", &["GNU_LIBC_VERSION"])?),
        ("valgrind", output("valgrind", &["--version"])?.replace("valgrind-", "")),
        ("processor", processor),
    ];
    Ok(tools.map(|(what, which)| (what.to_owned(), which)).into())
}

/// Runs gungraun.
fn count(args: &[String]) -> Result<Counts, String> {
    let counting = env::current_exe().and_then(|program| {
        let mut command = Command::new(program);
        command.args(args).arg("--output-format=json").env(COUNTING, "1").stdout(Stdio::piped());
        command.spawn()?.wait_with_output()
    });
    let output = counting.map_err(|error| format!("cannot count: {error}"))?;
    if !output.status.success() {
        return Err(format!("gungraun failed: {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter(|line| line.starts_with('{')).map(parse_summary).collect()
}

/// The name and the count of an operation from gungraun's summary.
fn parse_summary(line: &str) -> Result<(String, f64), String> {
    let summary: Value = serde_json::from_str(line).map_err(|error| format!("gungraun's summary: {error}"))?;
    let word = |key: &str| summary[key].as_str();
    let total = &summary["profiles"][0]["data"]["total"]["metrics"]["Ir"]["values"]["new"];
    match (word("function_name"), word("id"), total.as_f64()) {
        (Some(function), Some(id), Some(total)) if total > 0.0 => {
            let name = format!("{function} {id}");
            let each = total / operations::times(&name) as f64;
            Ok((name, (each * 10.0).round() / 10.0))
        }
        _ => Err(format!("gungraun's summary has no count of instructions: {line}")),
    }
}

fn read() -> Result<(Tools, Counts), String> {
    let failed = |error: &dyn std::fmt::Display| format!("{RECORD}: {error}; create it with {UPDATE}");
    let text = fs::read_to_string(RECORD).map_err(|error| failed(&error))?;
    let mut record: Value = serde_json::from_str(&text).map_err(|error| failed(&error))?;
    let tools = serde_json::from_value(record["counted with"].take()).map_err(|error| failed(&error))?;
    let counts = serde_json::from_value(record["instructions"].take()).map_err(|error| failed(&error))?;
    Ok((tools, counts))
}

/// Writes the record. If only some operations were counted, the others stay as they are.
fn update(tools: Tools, counted: Counts, all: bool) -> Result<(), String> {
    let mut counts = counted;
    if !all {
        let (recorded_tools, recorded) = read()?;
        if recorded_tools != tools {
            return Err("the record is of other tools: update all of it, without a pattern".to_owned());
        }
        recorded.into_iter().for_each(|(name, count)| _ = counts.entry(name).or_insert(count));
    }
    let record = json!({ "counted with": tools, "instructions": counts });
    let write = || -> io::Result<()> { fs::write(RECORD, format!("{:#}\n", record)) };
    write().map_err(|error| format!("{RECORD}: {error}"))?;
    println!("instructions: recorded {} operations", counts.len());
    Ok(())
}

/// Prints all figures and the verdict. Returns whether the gate is passed.
fn compare(recorded_tools: &Tools, recorded: &Counts, tools: &Tools, counted: &Counts, all: bool) -> bool {
    let comparable = recorded_tools == tools;
    let tolerance = if comparable { TOLERANCE } else { TOLERANCE_OTHER_TOOLS };
    let (mut dearer, mut cheaper, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    println!("{:<36} {:>10} {:>10}", "instructions of", "recorded", "counted");
    for (name, &count) in counted {
        let Some(&record) = recorded.get(name) else {
            println!("{name:<36} {:>10} {count:>10.1}", "-");
            unknown.push(format!("{name} takes {count:.1} and is not recorded"));
            continue;
        };
        let percent = (count / record - 1.0) * 100.0;
        println!("{name:<36} {record:>10.1} {count:>10.1} {percent:>+7.1} %");
        let figures = format!("{name} took {record:.1} instructions and takes {count:.1}, {percent:+.1} %");
        if percent > tolerance {
            dearer.push(figures);
        } else if percent < -TOLERANCE {
            cheaper.push(figures);
        }
    }
    for name in recorded.keys().filter(|name| all && !counted.contains_key(*name)) {
        unknown.push(format!("{name} is recorded but was not counted"));
    }
    if !comparable {
        println!("\nNOT COMPARABLE: the record is of other tools, so up to {TOLERANCE_OTHER_TOOLS} % more passes.");
        for (what, which) in tools {
            let other = recorded_tools.get(what).map_or("none", String::as_str);
            println!("  {what}: recorded with {other}, counted with {which}");
        }
        println!("Update the record with these tools, on a commit that is known to be good: {UPDATE}");
    } else if !cheaper.is_empty() {
        println!("\nCHEAPER by over {TOLERANCE} %: update the record to hold the gain: {UPDATE}");
        cheaper.iter().for_each(|figures| println!("  {figures}"));
    }
    if !unknown.is_empty() {
        println!("\nFAILED: the record does not match the operations, update it: {UPDATE}");
        unknown.iter().for_each(|what| println!("  {what}"));
    }
    if !dearer.is_empty() {
        println!("\nFAILED: more expensive by over {tolerance} %. If the change is worth it, update the record: {UPDATE}");
        dearer.iter().for_each(|figures| println!("  {figures}"));
    }
    dearer.is_empty() && unknown.is_empty()
}
