//! RDB snapshots: SAVE, BGSAVE, save points, and the end of the server.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::common::talk::{call, play, send, send_at_once, told};
use crate::common::wire::Wire;
use crate::interchange::{assert_same, fill, shown};
use crate::process::{Folder, Server, figure, full_size, info, required, rewrite, wait_for};

const NO_LOG: [&str; 2] = ["--appendonly", "no"];

fn dump(folder: &Folder) -> PathBuf {
    folder.dir().join("dump.rdb")
}

/// What `redis-check-rdb` says of a file that it accepts.
fn checked(path: &PathBuf) -> String {
    let Some(program) = required("redis-check-rdb") else { return String::new() };
    let output = Command::new(program).arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("Checksum OK"), "{text}");
    text
}

/// Makes a snapshot in the background, and waits until it is there.
fn bgsave(wire: &mut Wire) {
    let before = figure(wire, "rdb_saves");
    assert_eq!(call(wire, "BGSAVE"), "+Background saving started");
    wait_for("the snapshot", || {
        assert_eq!(info(wire, "rdb_last_bgsave_status"), "ok");
        (figure(wire, "rdb_saves") > before).then_some(())
    });
    assert_eq!(info(wire, "rdb_bgsave_in_progress"), "0");
}

/// The keys of a snapshot by `redis-check-rdb`.
fn keys_of(path: &PathBuf) -> Option<u64> {
    let text = checked(path);
    text.lines().find_map(|line| line.strip_prefix("[info] ")?.strip_suffix(" keys read")?.parse().ok())
}

#[test]
fn a_redis_server_loads_a_snapshot_with_every_type() {
    let Some(redis) = required("redis-server") else { return };
    let folder = Folder::new();
    let server = Server::start(&folder, &NO_LOG);
    let mut wire = server.wire();
    fill(&mut wire);
    bgsave(&mut wire);
    checked(&dump(&folder));
    let ours = shown(&mut wire);
    let digest = call(&mut wire, "DEBUG DIGEST");
    assert_eq!(call(&mut wire, "SET more 1"), "+OK");
    assert_eq!(info(&mut wire, "rdb_changes_since_last_save"), "1");
    server.kill();
    let redis = Server::start_redis(&redis, &folder, &NO_LOG);
    let mut wire = redis.wire();
    assert_eq!(call(&mut wire, "DEBUG DIGEST"), digest);
    assert_same(&mut wire, &ours);
}

#[test]
fn save_replies_when_the_snapshot_is_on_the_disk() {
    let folder = Folder::new();
    let server = Server::start(&folder, &NO_LOG);
    let mut wire = server.wire();
    let started = call(&mut wire, "LASTSAVE");
    for n in 0..20_000 {
        wire.queue(&["SET", &format!("key:{n}"), "value"]);
    }
    wire.flush().unwrap();
    (0..20_000).for_each(|_| _ = wire.reply().unwrap());
    send(&mut wire, "SAVE");
    // Others are served meanwhile, or it has ended already.
    let mut other = server.wire();
    let busy = info(&mut other, "rdb_bgsave_in_progress");
    if busy == "1" {
        assert_eq!(call(&mut other, "SAVE"), "-ERR Background save already in progress");
        assert_eq!(call(&mut other, "BGSAVE SCHEDULE"), "-ERR Background save already in progress");
    }
    assert_eq!(told(&mut wire), "+OK");
    assert_eq!(info(&mut wire, "rdb_changes_since_last_save"), "0");
    assert!(call(&mut wire, "LASTSAVE") >= started);
    if let Some(keys) = keys_of(&dump(&folder)) {
        assert_eq!(keys, 20_000);
    }
    assert_eq!(std::fs::read_dir(folder.dir()).unwrap().count(), 1, "no temporary file is left");
    // In transactions and scripts it is refused, as by Redis.
    play(&mut wire, &[("MULTI", "+OK"), ("SAVE", "-ERR Command not allowed inside a transaction"), ("DISCARD", "+OK")]);
    assert_eq!(call(&mut wire, "CONFIG GET save"), "*2 $4 save $0");
}

#[test]
fn a_snapshot_has_what_was_there_before_it_and_all_keys_of_one_moment() {
    let Some(redis) = required("redis-server") else { return };
    let folder = Folder::new();
    let server = Server::start(&folder, &NO_LOG);
    let mut wire = server.wire();
    let keys = if full_size() { 200_000 } else { 20_000 };
    let script = "for n = 1, ARGV[1] do redis.call('SET', 'k' .. n, 0) end";
    wire.queue(&["EVAL", script, "0", &keys.to_string()]);
    wire.flush().unwrap();
    told(&mut wire);
    // Each script writes one number into four keys, which are far from each other in the walk.
    let set = "for _, n in ipairs({1, 5000, 10000, 20000}) do redis.call('SET', 'k' .. n, ARGV[1]) end";
    let mut seen = 0;
    let mut other = server.wire();
    assert_eq!(call(&mut other, "BGSAVE"), "+Background saving started");
    while info(&mut other, "rdb_bgsave_in_progress") == "1" {
        for _ in 0..50 {
            seen += 1;
            wire.queue(&["EVAL", set, "0", &seen.to_string()]);
        }
        wire.flush().unwrap();
        (0..50).for_each(|_| _ = told(&mut wire));
    }
    assert_eq!(info(&mut other, "rdb_last_bgsave_status"), "ok");
    server.kill();
    let redis = Server::start_redis(&redis, &folder, &NO_LOG);
    let mut wire = redis.wire();
    let values: Vec<String> = [1, 5000, 10_000, 20_000].map(|n| call(&mut wire, &format!("GET k{n}"))).into();
    assert!(values.iter().all(|value| *value == values[0]), "{values:?} of {seen}");
    assert_eq!(call(&mut wire, "DBSIZE"), format!(":{keys}"));
}

#[test]
fn a_failed_snapshot_is_told_and_writes_are_refused() {
    let folder = Folder::new();
    let server = Server::start(&folder, &NO_LOG);
    let mut wire = server.wire();
    assert_eq!(call(&mut wire, &format!("SET k {}", "x".repeat(100_000))), "+OK");
    server.limit_files(Some(50_000));
    play(&mut wire, &[("SAVE", "-ERR"), ("SET k 1", "+OK")]);
    assert_eq!(info(&mut wire, "rdb_last_bgsave_status"), "err");
    assert_eq!(std::fs::read_dir(folder.dir()).unwrap().count(), 0, "no temporary file is left");
    assert_eq!(call(&mut wire, &format!("SET k {}", "x".repeat(100_000))), "+OK");
    // With save points, writes are refused while snapshots fail.
    wire.queue(&["CONFIG", "SET", "save", "3600 1"]);
    wire.flush().unwrap();
    assert_eq!(told(&mut wire), "+OK");
    let misconf = "-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that \
                   may modify the data set are disabled, because this instance is configured to report errors during writes if RDB \
                   snapshotting fails (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB \
                   error.";
    play(&mut wire, &[("SET k 1", misconf), ("PING", misconf), ("GET n", "$-1")]);
    play(&mut wire, &[("SHUTDOWN", "-ERR Errors trying to SHUTDOWN. Check logs."), ("GET n", "$-1")]);
    play(&mut wire, &[("CONFIG SET stop-writes-on-bgsave-error no", "+OK"), ("SET n 1", "+OK")]);
    play(&mut wire, &[("CONFIG SET stop-writes-on-bgsave-error yes", "+OK"), ("SET n 1", misconf)]);
    server.limit_files(None);
    play(&mut wire, &[("SAVE", "+OK"), ("SET n 2", "+OK")]);
    assert_eq!(info(&mut wire, "rdb_last_bgsave_status"), "ok");
}

#[test]
fn save_points_are_reached() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--appendonly", "no", "--save", "60", "3", "--test-mode"]);
    let mut wire = server.wire();
    assert_eq!(call(&mut wire, "CONFIG GET save"), "*2 $4 save $4 60 3");
    play(&mut wire, &[("CLOCK FREEZE", "+OK"), ("SET a 1", "+OK"), ("SET b 1", "+OK"), ("CLOCK ADVANCE 70000", "+OK")]);
    assert_eq!(info(&mut wire, "rdb_bgsave_in_progress"), "0", "two changes are too few");
    play(&mut wire, &[("SET c 1", "+OK"), ("CLOCK ADVANCE 2000", "+OK")]);
    wait_for("the snapshot", || (figure(&mut wire, "rdb_saves") == 1).then_some(()));
    assert_eq!(info(&mut wire, "rdb_changes_since_last_save"), "0");
    // Too early again.
    for n in 0..5 {
        assert_eq!(call(&mut wire, &format!("SET d {n}")), "+OK");
    }
    play(&mut wire, &[("CLOCK ADVANCE 58000", "+OK")]);
    assert_eq!((figure(&mut wire, "rdb_saves"), info(&mut wire, "rdb_bgsave_in_progress")), (1, "0".to_owned()));
    play(&mut wire, &[("CLOCK ADVANCE 5000", "+OK")]);
    wait_for("the second snapshot", || (figure(&mut wire, "rdb_saves") == 2).then_some(()));
    // What FLUSHALL removed does not come back.
    assert_eq!(call(&mut wire, "FLUSHALL"), "+OK");
    wait_for("the third snapshot", || (figure(&mut wire, "rdb_saves") == 3).then_some(()));
    if let Some(keys) = keys_of(&dump(&folder)) {
        assert_eq!(keys, 0);
    }
}

#[test]
fn the_end_of_the_server_is_saved_if_it_is_asked_for_or_there_are_save_points() {
    let ends: [(&str, &str, bool); 5] = [
        ("", "SHUTDOWN", false),
        ("", "SHUTDOWN SAVE", true),
        ("3600 1000", "SHUTDOWN", true),
        ("3600 1000", "SHUTDOWN NOSAVE", false),
        ("3600 1000", "SIGTERM", true),
    ];
    for (save, end, saved) in ends {
        let folder = Folder::new();
        let server = Server::start(&folder, &["--appendonly", "no", "--save", save]);
        let mut wire = server.wire();
        assert_eq!(call(&mut wire, "SET k v"), "+OK");
        if end == "SIGTERM" {
            assert!(server.terminate().success());
        } else {
            send(&mut wire, end);
            server.ended();
        }
        assert_eq!(dump(&folder).exists(), saved, "save '{save}', {end}");
    }
}

#[test]
fn one_file_is_made_after_the_other() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let mut wire = server.wire();
    let script = "for n = 1, 50000 do redis.call('SET', 'k' .. n, 0) end";
    wire.queue(&["EVAL", script, "0"]);
    wire.flush().unwrap();
    told(&mut wire);
    send_at_once(&mut wire, &["BGSAVE", "BGREWRITEAOF", "BGREWRITEAOF"]);
    assert_eq!(told(&mut wire), "+Background saving started");
    assert_eq!(told(&mut wire), "+Background append only file rewriting scheduled");
    assert_eq!(told(&mut wire), "+Background append only file rewriting scheduled");
    wait_for("both", || (figure(&mut wire, "rdb_saves") == 1 && figure(&mut wire, "aof_rewrites") == 1).then_some(()));
    let modified = |path: &PathBuf| std::fs::metadata(path).and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let before = modified(&dump(&folder));
    std::thread::sleep(Duration::from_millis(10));
    send_at_once(&mut wire, &["BGREWRITEAOF", "BGSAVE", "BGSAVE SCHEDULE"]);
    assert_eq!(told(&mut wire), "+Background append only file rewriting started");
    let busy = "-ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE SCHEDULE in order to schedule a \
                BGSAVE whenever possible.";
    assert_eq!(told(&mut wire), busy);
    assert_eq!(told(&mut wire), "+Background saving scheduled");
    wait_for("both again", || (figure(&mut wire, "rdb_saves") == 2 && figure(&mut wire, "aof_rewrites") == 2).then_some(()));
    assert!(modified(&dump(&folder)) > before);
    assert_eq!(call(&mut wire, "DBSIZE"), ":50000");
}

#[test]
fn a_session_that_had_no_grant_when_the_base_was_made_keeps_its_later_ones() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--appendfsync", "always"]);
    let mut wire = server.wire();
    assert!(!call(&mut wire, "LOCK.SESSION mine GRACE 60000").starts_with('-'));
    let mut other = server.wire();
    rewrite(&mut other);
    let token = call(&mut wire, "LOCK.ACQUIRE l me 600000 SESSION");
    assert!(token.starts_with(':'), "{token}");
    server.kill();
    let server = Server::start(&folder, &["--appendfsync", "always"]);
    let mut wire = server.wire();
    assert_eq!(call(&mut wire, "LOCK.ACQUIRE l another 1000"), "$-1");
    assert!(!call(&mut wire, "LOCK.SESSION mine GRACE 60000").starts_with('-'));
    assert_eq!(call(&mut wire, "LOCK.RELEASE l me"), ":0");
}

#[test]
fn nothing_is_acknowledged_behind_the_last_snapshot() {
    let folder = Folder::new();
    let server = Server::start(&folder, &NO_LOG);
    let [mut sleeper, mut ender, mut writer] = [(); 3].map(|()| server.wire());
    for wire in [&mut sleeper, &mut ender, &mut writer] {
        assert_eq!(call(wire, "PING"), "+PONG");
    }
    // Both come while the executor sleeps, and so have their turns in one round.
    for (wire, request) in [(&mut sleeper, "DEBUG SLEEP 0.4"), (&mut ender, "SHUTDOWN SAVE"), (&mut writer, "SET late 1")] {
        send(wire, request);
        std::thread::sleep(Duration::from_millis(50));
    }
    let acknowledged = writer.reply().is_ok();
    server.ended();
    let found = call(&mut Server::start(&folder, &NO_LOG).wire(), "GET late");
    assert_eq!(acknowledged, found == "$1 1", "{found}");
}
