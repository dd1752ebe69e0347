//! Facts about a command are in its row. Other code, except the command's handler, does not compare commands by name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use portcullis::commands::all;

/// Code that compares a command's name. In the folder with handlers only these comparisons are forbidden: handlers may contain
/// their own names and words of options.
const ASKS: [&str; 5] = [".name ==", ".name !=", "matches!(", "match command.name", "match row.name"];

/// The folders that must not compare commands by name.
const FOLDERS: [&str; 9] = ["base", "lock", "store", "keyspace", "engine", "script", "driver", "server", "commands"];

/// Names of commands that have another meaning in a file.
const OTHER_WORDS: [(&str, &[&str], &str); 21] = [
    ("engine/command/flags.rs", &["set", "pubsub", "cluster"], "groups"),
    ("engine/users/categories.rs", &["keyspace", "set", "list", "stream", "pubsub"], "categories"),
    ("commands/strings/bitfields.rs", &["get"], "an operation of BITFIELD"),
    ("engine/config/kind.rs", &["pubsub"], "a class of clients"),
    ("engine/config/table.rs", &["debug", "save", "replicaof", "slaveof"], "a log level, and directives"),
    ("engine/config/foreign.rs", &["replicaof", "slaveof", "sentinel", "swapdb", "sync"], "directives and their values"),
    ("keyspace/eviction.rs", &["ttl"], "an eviction policy"),
    ("engine/faults/rules.rs", &["restart", "reset", "client"], "words of a fault's rule"),
    ("engine/observe/latency.rs", &["command"], "an event of the latency monitor"),
    ("engine/observe/measure.rs", &["command"], "an event of the latency monitor"),
    ("engine/observe/turns/mod.rs", &["client", "copy"], "what a turn was for"),
    ("engine/users/log.rs", &["auth", "command", "multi"], "reasons and places of the ACL log"),
    ("engine/users/user.rs", &["reset"], "a rule for a user"),
    ("driver/replay.rs", &["del", "unlink", "flushall", "flushdb", "swapdb"], "requests of files that end gathered locks"),
    (
        "server/durable/check/tail.rs",
        &["exec", "multi", "xgroup"],
        "the beginning and the end of a unit in a file, and where a key stands",
    ),
    ("server/program/log.rs", &["debug"], "a log level"),
    ("store/values/value.rs", &["list", "set", "stream"], "types of values"),
    ("script/plan/parse.rs", &["keys"], "a global of Lua"),
    ("script/interpreter/locals.rs", &["keys", "function"], "words of Lua"),
    ("script/functions/store.rs", &["script"], "a target of the log"),
    ("script/globals/redis_table.rs", &["script"], "a target of the log"),
];

/// All source files below a folder, without tests.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("it can be read").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if path.is_dir() {
            if name != "tests" {
                sources(&path, files);
            }
        } else if name.ends_with(".rs")
            && !name.ends_with("tests.rs")
            && name != "harness.rs"
            && !path.ends_with("reference/forms.rs")
        {
            files.push(path);
        }
    }
}

/// The string literals of a line, without C string literals and those in comments.
fn literals(line: &str) -> Vec<&str> {
    let code = if line.trim_start().starts_with("//") { "" } else { line };
    let parts: Vec<&str> = code.split('"').collect();
    (1..parts.len()).step_by(2).filter(|&at| !parts[at - 1].ends_with('c')).map(|at| parts[at]).collect()
}

#[test]
fn commands_are_named_in_rows_and_handlers_alone() {
    let names: BTreeSet<String> = all()
        .flat_map(|row| {
            let subcommands = row.subcommands.iter().map(|sub| format!("{}|{}", row.name, sub.name));
            let prefix = (!row.subcommands.is_empty()).then(|| format!("{}|", row.name));
            std::iter::once(row.name.to_owned()).chain(subcommands).chain(prefix)
        })
        .collect();
    assert!(names.len() > 250 && names.contains("config|set"), "{}", names.len());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut wrong, mut used, mut seen) = (Vec::new(), BTreeSet::new(), 0);
    for folder in FOLDERS {
        let mut files = Vec::new();
        sources(&root.join(folder), &mut files);
        for path in files {
            let text = fs::read_to_string(&path).expect("it can be read");
            let file = path.strip_prefix(&root).expect("it lies there").to_string_lossy().into_owned();
            // The unit tests are at the end of a file.
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            let code = code.split("#[cfg(test)]\n#[allow(clippy::unwrap_used)]\nmod tests").next().unwrap_or_default();
            seen += 1;
            for (number, line) in code.lines().enumerate() {
                if ["contains(&command.name)", "contains(&row.name)"].iter().any(|asked| line.contains(asked)) {
                    wrong.push(format!("{file}:{}: a list of names: {}", number + 1, line.trim()));
                }
                // An event has a name of its own, which often equals the command's.
                let asks = folder != "commands" || ASKS.iter().any(|words| line.contains(words));
                for literal in literals(line).into_iter().filter(|_| asks && !line.contains("Event::new(")) {
                    let word = literal.to_ascii_lowercase();
                    if !names.contains(&word) {
                        continue;
                    }
                    match OTHER_WORDS.iter().find(|(of, words, _)| *of == file && words.contains(&word.as_str())) {
                        Some((of, ..)) => _ = used.insert(*of),
                        None => wrong.push(format!("{file}:{}: {}", number + 1, line.trim())),
                    }
                }
            }
        }
    }
    assert!(seen > 200, "{seen} files");
    assert!(wrong.is_empty(), "commands are named outside of their rows:\n{}", wrong.join("\n"));
    let unused: Vec<_> = OTHER_WORDS.iter().map(|(of, ..)| *of).filter(|of| !used.contains(of)).collect();
    assert!(unused.is_empty(), "not needed any more: {unused:?}");
}

#[test]
fn literals_are_found() {
    assert_eq!(literals(r#"matches!(command.name, "get" | "set") || x == b"DEL""#), ["get", "set", "DEL"]);
    assert!(literals(r#"// "get""#).is_empty() && literals(r#"(c"get", get)"#).is_empty());
}
