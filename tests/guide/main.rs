//! README.md and the guide show what really happens.
//!
//! - `pages` reads the pages: fenced blocks, the comments before them, links;
//! - `play` runs the transcripts (blocks of the kind `console`) against a server, and `compare` says what may vary in their
//!   output;
//! - `cli` stands in for redis-cli;
//! - `words` checks commands that are shown but not run: those of `sh` blocks, and those with a comment `<!-- not run: REASON
//!   -->`;
//! - `broken` has pages with one mistake each, and the error for it.
//!
//! A block of another kind is an error, so that no transcript is missed. Rust blocks are doctests; see `Readme` in `src/lib.rs`.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod broken;
mod cli;
mod compare;
mod pages;
mod play;
mod words;

use std::path::Path;

use pages::{Kind, Page};
use play::Player;

/// All pages. Fails if a page cannot be parsed.
fn pages() -> Vec<Page> {
    let mut faults = Vec::new();
    let pages = pages::all(&mut faults);
    report(faults);
    pages
}

/// Fails if there are errors.
fn report(faults: Vec<String>) {
    assert!(faults.is_empty(), "{} mistakes:\n\n{}", faults.len(), faults.join("\n\n"));
}

fn read(path: &str) -> String {
    std::fs::read_to_string(pages::root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn transcripts_show_what_is_printed() {
    let pages = pages();
    let played = std::thread::scope(|scope| {
        let play = |page| {
            let mut player = Player::new(page);
            player.play();
            (player.played, std::mem::take(&mut player.faults))
        };
        let threads: Vec<_> = pages.iter().map(|page| scope.spawn(move || play(page))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    println!("{} commands of transcripts run", played.iter().map(|(count, _)| count).sum::<usize>());
    report(played.into_iter().flat_map(|(_, faults)| faults).collect());
}

#[test]
fn commands_that_are_not_run_have_words_that_exist() {
    report(pages().iter().flat_map(words::check).collect());
}

/// Doctests compile the Rust blocks, here and as a user of the crate.
#[test]
fn pages_with_rust_are_doctests() {
    let here = read("src/lib.rs");
    let user = read("tests/embed/rust/lib.rs");
    let has_rust = |page: &&Page| page.blocks.iter().any(|block| block.kind == Kind::Rust && block.not_run.is_none());
    for page in pages().iter().filter(has_rust) {
        assert!(here.contains(&format!("include_str!(\"../{}\")", page.name)), "src/lib.rs does not include {}", page.name);
        let path = format!("include_str!(\"../../../{}\")", page.name);
        assert!(user.contains(&path), "tests/embed/rust/lib.rs does not include {}", page.name);
    }
}

/// `tests/clients`, `node/tests` and `tests/languages` run these files.
#[test]
fn code_of_other_languages_stands_in_tests_too() {
    let folders = ["tests/embed/python", "tests/embed/node", "tests/languages"];
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(pages::root().join(folder)).unwrap());
    let texts: Vec<String> = files.filter_map(|entry| std::fs::read_to_string(entry.unwrap().path()).ok()).collect();
    let mut faults = Vec::new();
    for page in pages() {
        for block in page.blocks.iter().filter(|block| block.kind == Kind::Embedded && block.not_run.is_none()) {
            let code = block.lines.join("\n");
            if !texts.iter().any(|text| text.contains(&code)) {
                faults.push(format!("{}:{}: no file of tests/embed or tests/languages has this", page.name, block.line));
            }
        }
    }
    report(faults);
}

#[test]
fn links_lead_somewhere() {
    let all = pages();
    let mut faults = Vec::new();
    for page in &all {
        for (line, target) in page.links().into_iter().filter(|(_, target)| !target.contains("://")) {
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = match path {
                "" => page.name.clone(),
                path => normal(&Path::new(&page.name).parent().unwrap().join(path)),
            };
            let is_there = pages::root().join(&path).exists();
            let has_anchor = |page: &Page| page.anchors().iter().any(|found| found == anchor);
            if !is_there || (!anchor.is_empty() && !all.iter().any(|page| page.name == path && has_anchor(page))) {
                faults.push(format!("{}:{line}: nothing is at {target}", page.name));
            }
        }
    }
    report(faults);
}

/// A path without `..`.
fn normal(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.to_str().unwrap().split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn the_readme_is_short_and_names_every_page() {
    let all = pages();
    let readme = &all[0];
    assert!(readme.text.lines().count() <= 250, "README.md has {} lines", readme.text.lines().count());
    assert!(readme.text.lines().any(|line| line == "cargo test"), "README.md has no line 'cargo test'");
    for page in all.iter().filter(|page| page.name.starts_with("guide/")) {
        assert!(readme.text.contains(&format!("]({})", page.name)), "README.md has no link to {}", page.name);
        assert!(page.text.lines().count() <= 500, "{} has {} lines", page.name, page.text.lines().count());
    }
}

/// The figures in README.md are those of the measurements.
#[test]
fn the_readme_has_figures_that_were_measured() {
    let (readme, measured) = (read("README.md"), read("guide/measurements.md"));
    let section = readme.split("\n## What it costs\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let figures = section.lines().filter(|line| line.starts_with("| ")).skip(2).flat_map(|line| line.split(" | ").skip(1));
    let mut count = 0;
    for figure in figures.map(|figure| figure.trim_end_matches(" |")) {
        let stands = [format!("| {figure} |"), format!("| {figure} (")];
        assert!(stands.iter().any(|cell| measured.contains(cell)), "no measurement is {figure}");
        count += 1;
    }
    assert!(count >= 10, "the table of README.md has {count} figures");
}

#[test]
fn every_kind_of_fault_is_explained() {
    let page = read("guide/testing.md");
    for kind in [
        "ERROR text",
        "DELAY ms",
        "DROP",
        "DROP-REPLY",
        "DELAY-REPLY ms",
        "TRICKLE bytes ms",
        "CLOSE",
        "RESET",
        "CLOSE-AFTER",
        "RESET-AFTER",
        "RESTART",
        "RESTART-AFTER",
        "RESTART-AFTER-REPLY",
        "RESTART LOSE 2",
        "FAULT JOURNAL 100",
        "FAULT SEED 7",
        "FAULT LEAKS",
    ] {
        assert!(page.contains(&format!("`{kind}`")), "{kind}");
    }
}
