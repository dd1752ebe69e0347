//! The engine's side of the crate takes time, bytes and randomness as arguments; this holds it to that.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

/// Pure folders of `src/`.
const PURE: [&str; 6] = ["engine", "store", "lock", "commands", "script", "resp"];

/// What they must not name, and why not.
const FORBIDDEN: &[(&str, &str)] = &[
    ("tokio", "the engine knows no runtime"),
    ("mio", "the engine knows no sockets"),
    ("socket2", "the engine knows no sockets"),
    ("rustix", "the engine makes no system calls"),
    ("libc", "the engine makes no system calls"),
    ("rand", "randomness follows from the seed"),
    ("getrandom", "randomness follows from the seed"),
    ("Instant", "time is an argument"),
    ("SystemTime", "time is an argument"),
    ("std::thread", "the engine runs where it is called"),
    ("std::net", "the engine knows no sockets"),
    ("std::fs", "the engine knows no files"),
    ("std::io", "the engine reads and writes nothing"),
    ("std::process", "the engine is no process"),
    ("crate::server", "the shell depends on the engine, not the other way round"),
    ("crate::client", "the engine is nobody's client"),
    ("crate::testing", "the shell depends on the engine, not the other way round"),
];

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// The code of a file: comments and the contents of string literals are blanked, line breaks stay.
fn code(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    let blank = |out: &mut Vec<u8>, part: &[u8]| out.extend(part.iter().map(|&b| if b == b'\n' { b } else { b' ' }));
    while at < bytes.len() {
        let rest = &bytes[at..];
        let len = if rest.starts_with(b"//") {
            rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            rest.windows(2).position(|pair| pair == b"*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with(b"r#\"") {
            rest.windows(2).position(|pair| pair == b"\"#").map_or(rest.len(), |end| end + 2)
        } else if rest[0] == b'"' {
            let mut end = 1;
            while end < rest.len() && rest[end] != b'"' {
                end += if rest[end] == b'\\' { 2 } else { 1 };
            }
            (end + 1).min(rest.len())
        } else if rest.starts_with(b"'\"'") {
            3
        } else if rest.starts_with(b"'\\\"'") {
            4
        } else {
            out.push(rest[0]);
            at += 1;
            continue;
        };
        blank(&mut out, &rest[..len]);
        at += len;
    }
    String::from_utf8(out).unwrap()
}

/// Whether `code` has `word` with nothing before or behind it that makes it part of a longer name.
fn names(code: &str, word: &str) -> Option<usize> {
    let part_of_name = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    code.match_indices(word)
        .map(|(at, _)| at)
        .find(|&at| !part_of_name(code[..at].chars().next_back()) && !part_of_name(code[at + word.len()..].chars().next()))
}

#[test]
fn the_engine_side_names_no_clock_thread_socket_file_or_source_of_randomness() {
    let mut found = Vec::new();
    let mut files = Vec::new();
    for folder in PURE {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder);
        if folder.is_dir() {
            sources(&folder, &mut files);
        }
    }
    assert!(files.len() > 20, "the sources are there");
    for path in files {
        let code = code(&std::fs::read_to_string(&path).unwrap());
        for (word, why) in FORBIDDEN {
            if let Some(at) = names(&code, word) {
                let line = code[..at].matches('\n').count() + 1;
                found.push(format!("{}:{line} names {word}: {why}", path.display()));
            }
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn lock_algorithms_reach_the_outside_through_their_world_alone() {
    const LIVE: &str = "live.rs";
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/recipes"), &mut files);
    files.retain(|path| path.file_name().is_some_and(|name| name != LIVE));
    assert!(files.len() > 10, "the sources are there");
    for path in files {
        let source = std::fs::read_to_string(&path).unwrap();
        let code = code(source.split("#[cfg(test)]").next().unwrap());
        for word in
            ["tokio", "Instant", "SystemTime", "getrandom", "rand", "std::thread", "std::net", "std::fs", "HashMap", "HashSet"]
        {
            assert_eq!(names(&code, word), None, "{} names {word}: a simulation has no such thing", path.display());
        }
    }
}

#[test]
fn comments_and_texts_do_not_count_and_names_do() {
    assert_eq!(names(&code("// tokio\nlet a = \"tokio \\\" tokio\"; /* tokio */ let b = '\"'; // \" tokio"), "tokio"), None);
    assert!(names(&code("let s = \"x\"; use tokio::net;"), "tokio").is_some());
    assert_eq!(names("let random = operand(strand);", "rand"), None);
    assert!(names("use std::time::{Duration, Instant};", "Instant").is_some());
}
