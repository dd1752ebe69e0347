//! Checks commands that a page shows and the test does not run: their programs, flags, files and features must exist.

use std::process::Command;

use crate::cli;
use crate::pages::{Block, Kind, Page, root};

/// Other programs, whose flags the test does not know.
const OTHERS: &[&str] = &[
    "apt-get",
    "cd",
    "curl",
    "docker",
    "echo",
    "git",
    "journalctl",
    "kill",
    "node",
    "npm",
    "npx",
    "openssl",
    "pip",
    "podman",
    "rustup",
    "sha256sum",
    "sudo",
    "systemctl",
    "tar",
    "UPDATE_README=1",
];

/// The errors in the commands of a page.
pub fn check(page: &Page) -> Vec<String> {
    let mut faults = Vec::new();
    for block in &page.blocks {
        let mut fault = |at: usize, what: String| faults.push(format!("{}:{}: {what}", page.name, block.line + at));
        match (block.kind, &block.not_run) {
            (Kind::Sh | Kind::Text, None) => fault(0, "say why it is not run: <!-- not run: REASON -->".to_owned()),
            (Kind::Sh | Kind::Console, Some(_)) => {
                for (at, command) in commands(block) {
                    if let Err(what) = command_exists(&command) {
                        fault(at, format!("'{command}': {what}"));
                    }
                }
            }
            (Kind::Text, Some(_)) => {
                let is_command =
                    |line: &&String| line.starts_with("$ ") || line.starts_with("> ") || crate::pages::is_request(line);
                if block.lines.iter().any(|line| is_command(&line)) {
                    fault(0, "a transcript is of the kind console".to_owned());
                }
            }
            (Kind::Rust, not_run) if block.ignored != not_run.is_some() => {
                fault(0, "an excerpt has `rust,ignore` and a reason why it is not compiled".to_owned());
            }
            (Kind::Toml, _) => {
                for (at, line) in block.lines.iter().enumerate().filter(|(_, line)| line.starts_with("portcullis = ")) {
                    let (version, _) = env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap();
                    if !line.contains(&format!("version = \"{version}\"")) && !line.contains("path = ") {
                        fault(at, format!("the crate has the version {version}"));
                    }
                }
            }
            _ => {}
        }
    }
    for (line, command) in page.commands_in_text() {
        if let Err(what) = command_exists(&command) {
            faults.push(format!("{}:{line}: '{command}': {what}", page.name));
        }
    }
    for (line, code) in page.code_in_text().filter(|(_, code)| !code.contains(' ')) {
        if let Err(what) = paths_exist(&[&code]) {
            faults.push(format!("{}:{line}: {what}", page.name));
        }
    }
    faults
}

/// The commands of a block with their lines: all lines of an `sh` block, those behind `$ ` in a transcript.
fn commands(block: &Block) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut continued = false;
    for (at, line) in block.lines.iter().enumerate() {
        let line = match block.kind {
            Kind::Console if !continued => match line.strip_prefix("$ ") {
                Some(line) => line,
                None => continue,
            },
            _ => line.trim(),
        };
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match found.last_mut() {
            Some((_, command)) if continued => *command += line,
            _ => found.push((at, line.to_owned())),
        }
        continued = line.ends_with('\\');
        if let Some((_, command)) = found.last_mut().filter(|_| continued) {
            command.truncate(command.len() - 1);
        }
    }
    found
}

fn command_exists(command: &str) -> Result<(), String> {
    for part in command.split(" && ").flat_map(|part| part.split(" | ")) {
        let part = part.split(" > ").next().unwrap_or_default().split("  #").next().unwrap_or_default();
        let words = cli::words(part.trim_end_matches(" &"))?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        paths_exist(&words)?;
        // `NAME=value` before a program sets an environment variable.
        let begin = words.iter().position(|word| !word.contains('=') || word.starts_with('-')).unwrap_or(0);
        match words[begin..] {
            ["portcullis", ref args @ ..] => portcullis(args)?,
            ["cargo", ref args @ ..] => cargo(args)?,
            ["redis-cli" | "redis-server" | "redis-check-aof" | "python3", ..] => {}
            ["fuzz/long", ref args @ ..] => fuzz_long(args)?,
            [program, ..] if OTHERS.contains(&program) || program == ".ci/run" => {}
            _ => return Err("the test does not know this program".to_owned()),
        }
    }
    Ok(())
}

/// Checks that words which look like files of the repository name existing ones.
fn paths_exist(words: &[&str]) -> Result<(), String> {
    let folders = ["tests/", "benches/", "fuzz/", ".ci/", "guide/", "src/", "packaging/"];
    let is_ours = |word: &&str| folders.iter().any(|folder| word.starts_with(folder));
    match words.iter().copied().filter(is_ours).find(|word| !root().join(word).exists()) {
        Some(word) => Err(format!("there is no {word}")),
        None => Ok(()),
    }
}

/// The program reads its arguments up to `--help`: those before it are right.
fn portcullis(args: &[&str]) -> Result<(), String> {
    let output =
        Command::new(env!("CARGO_BIN_EXE_portcullis")).args(args).arg("--help").output().map_err(|error| error.to_string())?;
    match output.status.success() && !output.stdout.is_empty() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("it has no help").to_owned()),
    }
}

/// The program reads its arguments, and comes as far as to the list of its jobs.
fn fuzz_long(args: &[&str]) -> Result<(), String> {
    let program = root().join("fuzz/long");
    let output = Command::new(program).args(args).args(["--only", "no-job"]).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    let starts = ["there is no job 'no-job'", "another run is in progress"].iter().any(|text| said.contains(text));
    if starts { Ok(()) } else { Err(said) }
}

fn cargo(args: &[&str]) -> Result<(), String> {
    let args: Vec<&str> = args.iter().copied().filter(|word| !word.starts_with('+')).collect();
    let (own, program): (&[&str], &[&str]) = match args.iter().position(|word| *word == "--") {
        Some(at) => (&args[..at], &args[at + 1..]),
        None => (&args, &[]),
    };
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    for pair in own.windows(2) {
        let exists = match pair {
            ["--test", name] => {
                [format!("tests/{name}.rs"), format!("tests/{name}/main.rs")].iter().any(|path| root().join(path).exists())
            }
            ["--bench", name] => {
                [format!("benches/{name}.rs"), format!("benches/{name}/main.rs")].iter().any(|path| root().join(path).exists())
            }
            ["--features", name] => manifest.lines().any(|line| line.starts_with(&format!("{name} = ["))),
            _ => true,
        };
        if !exists {
            return Err(format!("there is no {}", pair[1]));
        }
    }
    match own {
        ["run", ..] if !program.is_empty() => portcullis(program),
        ["bench" | "build" | "clippy" | "doc" | "fmt" | "install" | "run" | "test" | "fuzz" | "uninstall", ..] => Ok(()),
        _ => Err("the test does not know this command of cargo".to_owned()),
    }
}
