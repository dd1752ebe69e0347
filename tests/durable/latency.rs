//! What the log reports of a slow disk, and times in the files.

use std::process::Command;

use crate::common::talk::{call, play, told, until};
use crate::process::{Folder, Server, figure, required, wait_for};

/// Bytes that no disk takes in a millisecond.
const LARGE: usize = 32 << 20;

#[test]
fn slow_writes_and_syncs_are_latency_events() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--appendfsync", "always", "--latency-monitor-threshold", "3600000"]);
    let mut wire = server.wire();
    let value = "x".repeat(LARGE);
    let mut write = |key: &str| {
        wire.queue(&["SET", key, &value]);
        wire.flush().unwrap();
        assert_eq!(told(&mut wire), "+OK");
    };
    let mut observer = server.wire();
    write("a");
    assert_eq!(call(&mut observer, "LATENCY LATEST"), "*0", "nothing took an hour");
    assert_eq!(call(&mut observer, "CONFIG SET latency-monitor-threshold 1"), "+OK");
    write("b");
    until(&mut observer, "LATENCY LATEST", "aof-fsync-always");
    let latest = call(&mut observer, "LATENCY LATEST");
    for event in ["$9 aof-write ", "$15 aof-write-alone "] {
        assert!(latest.contains(event), "{event}: {latest}");
    }
    assert!(call(&mut observer, "LATENCY HISTORY aof-write").starts_with("*1 *2 :"));
    let report = call(&mut observer, "LATENCY DOCTOR");
    assert!(report.contains("aof-fsync-always: ") && report.contains("The disk was slow."), "{report}");
    // Beside a new base.
    wait_for("a write beside a new base", || {
        let _ = call(&mut observer, "BGREWRITEAOF");
        write("c");
        call(&mut observer, "LATENCY LATEST").contains("aof-write-active-child").then_some(())
    });
    wait_for("the new base", || (figure(&mut observer, "aof_rewrite_in_progress") == 0).then_some(()));
    assert_eq!(call(&mut observer, "LATENCY RESET aof-write aof-write-alone aof-fsync-always aof-fstat"), ":3");
    assert!(call(&mut observer, "LATENCY LATEST").contains("aof-write-active-child"));
    // Off.
    assert_eq!(call(&mut observer, "CONFIG SET latency-monitor-threshold 0"), "+OK");
    assert!(call(&mut observer, "LATENCY RESET").starts_with(':'));
    write("d");
    assert_eq!(call(&mut observer, "LATENCY LATEST"), "*0");
}

#[test]
fn the_log_is_cut_at_a_time() {
    let Some(program) = required("redis-check-aof") else { return };
    let folder = Folder::new();
    let server = Server::start(&folder, &["--appendfsync", "always", "--test-mode"]);
    let mut wire = server.wire();
    play(&mut wire, &[("CLOCK FREEZE", "+OK"), ("CLOCK SET 1900000000500", "+OK"), ("SET before 1", "+OK")]);
    let path = folder.increments().pop().unwrap();
    let times = || {
        let content = std::fs::read(&path).unwrap();
        let lines = content.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"#TS:"));
        lines.map(|line| std::str::from_utf8(line).unwrap().trim_end().to_owned()).collect::<Vec<_>>()
    };
    assert!(times().is_empty(), "times are not written by default");
    play(
        &mut wire,
        &[
            ("CONFIG SET aof-timestamp-enabled yes", "+OK"),
            ("SET first 1", "+OK"),
            ("SET second 1", "+OK"),
            ("CLOCK ADVANCE 5000", "+OK"),
            ("SET third 1", "+OK"),
            ("CLOCK SKEW -3000", "+OK"),
            ("SET fourth 1", "+OK"),
            ("CLOCK ADVANCE 5000", "+OK"),
            ("SET fifth 1", "+OK"),
            ("CONFIG SET aof-timestamp-enabled no", "+OK"),
            ("CLOCK ADVANCE 5000", "+OK"),
            ("SET sixth 1", "+OK"),
        ],
    );
    assert_eq!(times(), ["1900000000", "1900000005", "1900000007"], "one for each second, and times only go forward");
    server.kill();
    let content = std::fs::read(&path).unwrap();
    for (to, kept) in [(1_900_000_006, 5), (1_900_000_005, 5), (1_900_000_004, 3), (1_899_999_999, 1)] {
        std::fs::write(&path, &content).unwrap();
        let output =
            Command::new(&program).args(["--truncate-to-timestamp", &to.to_string()]).arg(folder.manifest()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("Successfully truncated AOF"), "{to}: {said}");
        let cut = std::fs::read(&path).unwrap();
        // A start must not change the files of the other rounds.
        let copy = Folder::new();
        copy.write_increments(&[&cut]);
        let server = Server::start(&copy, &["--aof-load-truncated", "no"]);
        let mut wire = server.wire();
        assert_eq!(call(&mut wire, "DBSIZE"), format!(":{kept}"), "{to}");
        assert_eq!(call(&mut wire, "EXISTS before"), ":1");
    }
    std::fs::write(&path, &content).unwrap();
    let server = Server::start(&folder, &[]);
    assert_eq!(call(&mut server.wire(), "DBSIZE"), ":7");
}
