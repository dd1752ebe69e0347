//! The README's section on tests, held to its word: its dialogues get the replies that they show, as redis-cli would show them, and the
//! files that it names are there.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::ErrorKind;
use std::path::Path;

use common::wire::{Frame, Wire};
use portcullis::testing::TestServer;

const README: &str = include_str!("../README.md");

fn section() -> &'static str {
    let start = README.find("\n## In a test").expect("the section");
    let rest = &README[start + 1..];
    &rest[..rest[4..].find("\n## ").expect("its end") + 4]
}

/// A reply in RESP2 as redis-cli shows it.
fn shown(frame: &Frame, indent: usize) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match frame {
        Frame::Simple(status) => text(status),
        Frame::Error(error) => format!("(error) {}", text(error)),
        Frame::Integer(digits) => format!("(integer) {}", text(digits)),
        Frame::Bulk(bytes) => format!("\"{}\"", text(bytes)),
        Frame::NilBulk | Frame::NilArray | Frame::Null => "(nil)".to_owned(),
        Frame::Aggregate(_, elements) => {
            let lines = elements.iter().enumerate().map(|(at, element)| {
                let begin = if at == 0 { String::new() } else { " ".repeat(indent) };
                format!("{begin}{}) {}", at + 1, shown(element, indent + 3))
            });
            lines.collect::<Vec<_>>().join("\n")
        }
        other => panic!("{other:?}"),
    }
}

/// Times of day are not the README's.
fn without_times(text: &str) -> String {
    let word = |word: &str| if word.len() > 12 && word.parse::<u64>().is_ok() { "#".to_owned() } else { word.to_owned() };
    text.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn its_dialogues_are_true() {
    let mut played = 0;
    for block in section().split("```text\n").skip(1) {
        let block = block.split("\n```").next().unwrap();
        if !block.starts_with("> ") {
            continue;
        }
        played += 1;
        let server = TestServer::start();
        let mut wire = Wire::connect(server.addr()).unwrap();
        for step in block[2..].split("\n> ") {
            let (request, expected) = step.split_once('\n').expect("a reply");
            let args: Vec<&str> = request.split_whitespace().collect();
            let told = match wire.call(&args) {
                Ok(reply) => without_times(&shown(&reply.frame, 0)),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{request}: {error}");
                    "Error: Connection reset by peer".to_owned()
                }
            };
            // A connection that has ended is made anew, as redis-cli does.
            if told.starts_with("Error") || request.starts_with("FAULT RESTART") {
                wire = Wire::connect(server.addr()).unwrap();
            }
            assert_eq!(told, without_times(expected), "{request}");
        }
        server.check_invariants();
    }
    assert_eq!(played, 3, "all of them");
}

#[test]
fn every_kind_of_fault_is_told_of() {
    let section = section();
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
        assert!(section.contains(&format!("`{kind}`")), "{kind}");
    }
    for path in section.split("](tests/").skip(1).map(|rest| rest.split(')').next().unwrap()) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(path);
        assert!(file.exists(), "{path}");
    }
}

/// What the README shows in Rust, it also does.
#[test]
fn its_example_runs() {
    let server = TestServer::builder()
        .seed(7)
        .frozen(true)
        .fault("f ERROR 'LOADING not yet' ON lpush")
        .journal(100)
        .lock_keys("lock:*")
        .start();
    server.execute(&["SET", "fixture", "1"]);
    let fixture = server.snapshot();
    server.execute(&["SET", "lock:order:7", "alice", "NX", "PX", "30000"]);
    assert_eq!(server.restart_losing(1), 1);
    server.restore(&fixture);
    server.until_blocked(0);
    server.assert_no_leaked_locks();
}
