//! What source files may refer to: layers import only lower layers, and the engine's layers take time, bytes and randomness as
//! arguments.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The folders of `src/` with the engine's layers.
const PURE: [&str; 10] = ["base", "resp", "lock", "store", "keyspace", "persist", "engine", "script", "commands", "driver"];

/// Names that they must not contain, with the reason.
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

/// The code of a file, with comments and the contents of string literals replaced by blanks.
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

/// The position of `word` in `code` where it is not a part of a longer name.
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
        assert!(folder.is_dir(), "there is no {}", folder.display());
        sources(&folder, &mut files);
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

/// The file whose functions create files.
const FILES: &str = "src/files.rs";

/// What the modules `fs` of std have that creates no file.
const CREATES_NOTHING: [&str; 21] = [
    "self",
    "DirEntry",
    "File",
    "FileExt",
    "FileTypeExt",
    "Metadata",
    "MetadataExt",
    "Permissions",
    "PermissionsExt",
    "create_dir",
    "create_dir_all",
    "metadata",
    "read",
    "read_dir",
    "read_to_string",
    "remove_dir",
    "remove_dir_all",
    "remove_file",
    "rename",
    "set_permissions",
    "symlink_metadata",
];

/// What creates a file by another way than a function of a module `fs`. Types that are not std's have the name `File`, too.
const CREATES: [&str; 12] = [
    "File::create",
    "File::create_new",
    "File::create_buffered",
    "File::options",
    "OpenOptions",
    "create_new",
    "rustix::fs::open",
    "rustix::fs::openat",
    "rustix::fs::mknodat",
    "libc::open",
    "libc::creat",
    "libc::fopen",
];

/// What creates files, in code without comments.
fn creations(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("fs::").filter(|(at, _)| !code[..*at].ends_with("rustix::")) {
        let rest = &code[at..];
        let statement = code[..at].rsplit([';', '}', '{']).next().unwrap_or_default();
        let end = match names(statement, "use") {
            Some(_) => rest.find(';'),
            None => rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':'),
        };
        use_paths(&rest[..end.unwrap_or(rest.len())], &[], &mut paths);
    }
    let creates = |path: &&Module| path.get(1).is_some_and(|name| !CREATES_NOTHING.contains(&name.as_str()));
    let functions = paths.iter().filter(creates).map(|path| path.join("::"));
    functions.chain(CREATES.iter().filter(|word| names(code, word).is_some()).map(|&word| word.to_owned())).collect()
}

#[test]
fn files_are_created_in_one_place() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILES);
    assert!(!creations(&code_without_tests(&own)).is_empty(), "it creates files");
    for path in modules().into_values().filter(|path| *path != own) {
        let found = creations(&code_without_tests(&path));
        assert!(found.is_empty(), "{} has {}: see {FILES}", path.display(), found.join(", "));
    }
}

#[test]
fn what_creates_files_is_found() {
    for creates in [
        "let file = File::create(path)?;",
        "std::fs::File::create_new(path)",
        "File::options().write(true).open(path)",
        "use std::fs::{File, OpenOptions};",
        "use std::fs::{read, write};",
        "std::fs::write(path, text)?;",
        "fs::copy(from, to)?;",
        "fn f() { std::fs::hard_link(a, b) }",
        "std::os::unix::fs::symlink(a, b)",
        "rustix::fs::openat(CWD, path, flags, mode)",
        "options.create_new(true)",
    ] {
        assert!(!creations(creates).is_empty(), "{creates}");
    }
    for harmless in [
        "let file = File::open(path)?; self.created(file); disk.create(name)?;",
        "use std::fs::{self, File}; fn f() { fs::create_dir(path) } use std::os::unix::fs::FileExt; use rustix::fs::{FlockOperation, flock};",
        "std::fs::rename(from, to)?; fs::read_dir(path)?; manifest::File::new(name)",
    ] {
        assert_eq!(creations(harmless), Vec::<String>::new(), "{harmless}");
    }
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

/// The folders that each folder of `src/` may import. A file in `src/` itself counts as a folder.
const LAYERS: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("resp", &["base"]),
    ("lock", &["base"]),
    ("store", &["base", "lock"]),
    ("keyspace", &["base", "resp", "lock", "store"]),
    ("persist", &["base", "resp", "lock", "store", "keyspace"]),
    ("quorum", &["base", "files", "persist"]),
    ("engine", &["base", "resp", "lock", "store", "keyspace"]),
    ("script", &["base", "resp", "keyspace", "engine"]),
    ("commands", &["base", "resp", "lock", "store", "keyspace", "engine", "script"]),
    ("driver", &["base", "resp", "lock", "store", "keyspace", "persist", "quorum", "engine", "commands"]),
    ("client", &[]),
    ("ports", &[]),
    ("files", &[]),
    ("http", &["client"]),
    (
        "server",
        &[
            "base", "files", "resp", "lock", "store", "keyspace", "persist", "quorum", "engine", "script", "commands", "driver",
            "http",
        ],
    ),
    ("testing", &["base", "resp", "engine", "driver", "server", "client"]),
    ("recipes", &["client"]),
    ("bench", &["files", "resp", "client", "ports", "recipes"]),
    ("cluster", &["base", "files", "client", "ports", "quorum", "server"]),
    (
        "torture",
        &[
            "base", "files", "resp", "keyspace", "persist", "quorum", "engine", "commands", "driver", "server", "client",
            "ports", "recipes", "bench", "cluster",
        ],
    ),
    ("top", &["base", "client"]),
    ("program", &["base", "server", "bench", "torture", "cluster", "top"]),
    ("lib", &["engine", "server", "testing"]),
];

/// Maximum number of files in a circle of imports. The largest circles: rows, their context, the engine and the users, who know
/// rows; and the databases with the observers of their changes.
const CIRCLE_MAX: usize = 10;

/// Maximum number of files in a folder.
const FOLDER_MAX: usize = 15;

/// The parts of a module's path below `src/`.
type Module = Vec<String>;

/// The modules of `src/` with their files, without tests.
fn modules() -> BTreeMap<Module, PathBuf> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let module = |path: PathBuf| {
        let relative = path.strip_prefix(&src).unwrap().with_extension("");
        let mut parts: Module = relative.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        parts.pop_if(|last| last == "mod");
        let test = |part: &String| part == "tests" || part.ends_with("_tests") || part == "harness";
        (!parts.iter().any(test) && !["main", "build"].contains(&parts[0].as_str())).then_some((parts, path))
    };
    files.into_iter().filter_map(module).collect()
}

/// The code of a module without its unit tests.
fn code_without_tests(path: &Path) -> String {
    let source = std::fs::read_to_string(path).unwrap();
    let mut code = code(&source);
    while let Some(start) = code.find("#[cfg(test)]") {
        let rest = &code[start..];
        // The item ends with the line of its closing brace, or with its semicolon.
        let brace = rest.find('{').unwrap_or(rest.len());
        let semicolon = rest.find(';').unwrap_or(rest.len());
        let len = if semicolon < brace { semicolon + 1 } else { rest.find("\n}").map_or(rest.len(), |end| end + 2) };
        code.replace_range(start..start + len, "");
    }
    code
}

/// Every path in a tree of `use`, appended to `prefix`.
fn use_paths(tree: &str, prefix: &[String], into: &mut Vec<Module>) {
    let mut depth = 0;
    let branches = tree.split(|c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    for branch in branches.map(str::trim).filter(|branch| !branch.is_empty()) {
        let (path, group) = branch.split_once('{').map_or((branch, None), |(path, group)| (path, group.rsplit_once('}')));
        let path = path.split(" as ").next().unwrap();
        let parts = path.split("::").map(|part| part.trim().to_owned()).filter(|part| !part.is_empty());
        let path: Module = prefix.iter().cloned().chain(parts).collect();
        match group {
            Some((group, _)) => use_paths(group, &path, into),
            None => into.push(path),
        }
    }
}

/// The modules that a module imports or refers to by a path.
fn imports(module: &Module, code: &str, modules: &BTreeMap<Module, PathBuf>) -> BTreeSet<Module> {
    let mut paths = Vec::new();
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(root) {
            // A visibility is no import.
            if code[..at].ends_with(|c: char| c.is_alphanumeric() || "_:$".contains(c)) || code[..at].ends_with("pub(in ") {
                continue;
            }
            let line_start = code[..at].rfind([';', '}']).map_or(0, |end| end + 1);
            let in_use = code[line_start..at].split_whitespace().last() == Some("use");
            let rest = &code[at..];
            let end = match in_use {
                true => rest.find(';').unwrap(),
                false => rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(rest.len()),
            };
            use_paths(&rest[..end], &[], &mut paths);
        }
    }
    let mut found = BTreeSet::new();
    for path in paths {
        let mut full = if path[0] == "crate" { Module::new() } else { module.clone() };
        for part in path.iter().filter(|part| !["crate", "self"].contains(&part.as_str())) {
            if part == "super" { drop(full.pop()) } else { full.push(part.clone()) }
        }
        let known = (1..=full.len()).rev().map(|len| full[..len].to_vec()).find(|prefix| modules.contains_key(prefix));
        found.extend(known.filter(|known| known != module));
    }
    found
}

/// The imports of every module.
fn graph() -> BTreeMap<Module, BTreeSet<Module>> {
    let modules = modules();
    let of = |(module, path): (&Module, &PathBuf)| (module.clone(), imports(module, &code_without_tests(path), &modules));
    let graph: BTreeMap<_, _> = modules.iter().map(of).collect();
    assert!(graph.len() > 300, "the modules are there");
    graph
}

#[test]
fn layers_import_only_what_lies_below_them() {
    let mut wrong = Vec::new();
    for (module, imports) in graph() {
        let layer = module[0].as_str();
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == layer) else {
            wrong.push(format!("{} is in no layer", module.join("::")));
            continue;
        };
        let climbs = imports.iter().filter(|import| import[0] != layer && !allowed.contains(&import[0].as_str()));
        wrong.extend(climbs.map(|import| format!("{} imports {}", module.join("::"), import.join("::"))));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn no_layer_is_above_and_below_another() {
    // Removes layers whose imports have all been removed, from the bottom up. In the end none is left.
    let mut left: Vec<_> = LAYERS.to_vec();
    while let Some(at) = left.iter().position(|(_, below)| !below.iter().any(|name| left.iter().any(|(other, _)| other == name)))
    {
        left.remove(at);
    }
    assert!(left.is_empty(), "a circle of folders: {left:?}");
}

/// All modules that can be reached from a module by imports.
fn reached(from: &Module, graph: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<Module> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from.clone()]);
    while let Some(module) = next.pop() {
        next.extend(graph[&module].iter().filter(|import| seen.insert((*import).clone())).cloned());
    }
    seen
}

#[test]
fn circles_of_files_are_small() {
    let graph = graph();
    let reached: BTreeMap<&Module, BTreeSet<Module>> = graph.keys().map(|module| (module, reached(module, &graph))).collect();
    for (module, seen) in &reached {
        let circle: Vec<String> =
            seen.iter().filter(|other| reached[other].contains(*module)).map(|other| other.join("::")).collect();
        assert!(circle.len() <= CIRCLE_MAX, "a circle of {} files: {}", circle.len(), circle.join(" "));
    }
}

#[test]
fn folders_are_small() {
    let mut files: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for path in modules().into_values() {
        *files.entry(path.parent().unwrap().to_owned()).or_default() += 1;
    }
    let large: Vec<_> = files.iter().filter(|(_, count)| **count > FOLDER_MAX).collect();
    assert!(large.is_empty(), "folders with more than {FOLDER_MAX} files: {large:?}");
}

#[test]
fn imports_are_found_in_trees_and_in_paths() {
    let modules: BTreeMap<Module, PathBuf> =
        ["a", "a::b", "c", "c::d"].map(|name| (name.split("::").map(str::to_owned).collect(), PathBuf::new())).into();
    let found = |module: &str, code: &str| -> Vec<String> {
        let module = module.split("::").map(str::to_owned).collect();
        imports(&module, code, &modules).iter().map(|import| import.join("::")).collect()
    };
    assert_eq!(found("a", "use crate::c::{D, d::{self, E}};"), ["c", "c::d"]);
    assert_eq!(found("a::b", "pub use super::X; fn f() { crate::c::d::g() }"), ["a", "c::d"]);
    assert_eq!(found("a", "use mycrate::c; let x = self::b::y;"), ["a::b"]);
    assert!(found("a::b", "pub(in crate::a) fn f() {} pub(super) fn g() {}").is_empty());
}
