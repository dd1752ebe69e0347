//! Directives, new bases, and restarts one after the other.

use std::time::{Duration, Instant};

use crate::common::talk::{call, play, send, send_at_once, token, told};
use crate::common::wire::Wire;
use crate::process::{Folder, Server, figure, info, rewrite, wait_for};

const ALWAYS: [&str; 2] = ["--appendfsync", "always"];

#[track_caller]
fn config(wire: &mut Wire, name: &str) -> String {
    let reply = call(wire, &format!("CONFIG GET {name}"));
    reply.rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn directives_have_the_defaults_of_redis_and_are_shown() {
    let folder = Folder::new();
    let defaults = [
        ("appendonly", "yes"),
        ("appendfsync", "everysec"),
        ("appenddirname", "appendonlydir"),
        ("appendfilename", "appendonly.aof"),
        ("aof-load-truncated", "yes"),
        ("auto-aof-rewrite-percentage", "100"),
        ("auto-aof-rewrite-min-size", "67108864"),
    ];
    let server = Server::start(&folder, &[]);
    let mut wire = server.wire();
    for (name, value) in defaults {
        assert_eq!(config(&mut wire, name), value, "{name}");
    }
    assert!(std::path::Path::new(&config(&mut wire, "dir")).ends_with("dir"));
    server.stop();
    let given = [
        ("appendfsync", "no"),
        ("appenddirname", "other"),
        ("appendfilename", "log"),
        ("aof-load-truncated", "no"),
        ("auto-aof-rewrite-percentage", "7"),
        ("auto-aof-rewrite-min-size", "1024"),
    ];
    let flags: Vec<String> = given.iter().flat_map(|(name, value)| [format!("--{name}"), (*value).to_owned()]).collect();
    let server = Server::start(&folder, &flags.iter().map(String::as_str).collect::<Vec<_>>());
    let mut wire = server.wire();
    for (name, value) in given {
        assert_eq!(config(&mut wire, name), value, "{name}");
    }
    assert_eq!(call(&mut wire, "SET k v"), "+OK");
    server.stop();
    assert!(folder.dir().join("other/log.manifest").is_file());
    assert!(folder.dir().join("other/log.1.incr.aof").is_file());
}

#[test]
fn appendfsync_changes_while_the_server_runs() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--appendfsync", "no"]);
    let mut wire = server.wire();
    play(&mut wire, &[("SET k 1", "+OK"), ("SET k 2", "+OK")]);
    assert_eq!(figure(&mut wire, "log_batch_durable"), 0, "no: nothing is synced");
    for round in 0..20 {
        assert_eq!(call(&mut wire, "CONFIG SET appendfsync always"), "+OK");
        assert_eq!(config(&mut wire, "appendfsync"), "always");
        assert_eq!(call(&mut wire, &format!("SET k {round}")), "+OK");
        assert_eq!(figure(&mut wire, "log_batch_durable"), figure(&mut wire, "log_batch_written"));
        let durable = figure(&mut wire, "log_batch_durable");
        assert!(durable > 0);
        assert_eq!(call(&mut wire, "CONFIG SET appendfsync no"), "+OK");
        play(&mut wire, &[("SET k other", "+OK")]);
    }
    play(&mut wire, &[("CONFIG SET appendfsync always", "+OK"), ("SET k before", "+OK")]);
    let durable = figure(&mut wire, "log_batch_durable");
    play(&mut wire, &[("CONFIG SET appendfsync everysec", "+OK"), ("SET k last", "+OK")]);
    wait_for("a sync of everysec", || (figure(&mut wire, "log_batch_durable") > durable).then_some(()));
    assert!(call(&mut wire, "CONFIG SET appendfsync sometimes").starts_with("-ERR CONFIG SET failed"));
    server.kill();
    let server = Server::start(&folder, &[]);
    assert_eq!(call(&mut server.wire(), "GET k"), "$4 last");
}

/// The fields of `INFO persistence` of Redis 7.0 with an append-only file.
const FIELDS: &str = "loading async_loading current_cow_peak current_cow_size current_cow_size_age current_fork_perc \
    current_save_keys_processed current_save_keys_total rdb_changes_since_last_save rdb_bgsave_in_progress rdb_last_save_time \
    rdb_last_bgsave_status rdb_last_bgsave_time_sec rdb_current_bgsave_time_sec rdb_saves rdb_last_cow_size \
    rdb_last_load_keys_expired rdb_last_load_keys_loaded aof_enabled aof_rewrite_in_progress aof_rewrite_scheduled \
    aof_last_rewrite_time_sec aof_current_rewrite_time_sec aof_last_bgrewrite_status aof_rewrites aof_last_write_status \
    aof_last_cow_size module_fork_in_progress module_fork_last_cow_size aof_current_size aof_base_size aof_pending_rewrite \
    aof_buffer_length aof_pending_bio_fsync aof_delayed_fsync";

#[test]
fn info_has_the_fields_of_redis() {
    let folder = Folder::new();
    let server = Server::start(&folder, &ALWAYS);
    let mut wire = server.wire();
    for field in FIELDS.split_whitespace() {
        assert_ne!(info(&mut wire, field), "", "{field}");
    }
    let size = figure(&mut wire, "aof_current_size");
    assert_eq!(call(&mut wire, "SET k some-value"), "+OK");
    assert!(figure(&mut wire, "aof_current_size") > size);
    assert_eq!(figure(&mut wire, "aof_current_size"), std::fs::metadata(&folder.increments()[0]).unwrap().len());
    assert_eq!((info(&mut wire, "aof_enabled"), info(&mut wire, "aof_last_write_status")), ("1".to_owned(), "ok".to_owned()));
}

#[test]
fn a_new_base_replaces_the_files_before_it() {
    let folder = Folder::new();
    let server = Server::start(&folder, &ALWAYS);
    let mut wire = server.wire();
    for n in 0..500 {
        wire.queue(&["SET", "k", &n.to_string()]);
        wire.queue(&["RPUSH", "list", &n.to_string()]);
    }
    wire.flush().unwrap();
    (0..1000).for_each(|_| _ = wire.reply().unwrap());
    let grown = folder.bytes();
    send_at_once(&mut wire, &["BGREWRITEAOF", "BGREWRITEAOF"]);
    assert_eq!(told(&mut wire), "+Background append only file rewriting started");
    assert_eq!(told(&mut wire), "-ERR Background append only file rewriting already in progress");
    wait_for("the new base", || (figure(&mut wire, "aof_rewrites") == 1).then_some(()));
    assert!(folder.bytes() < grown / 2, "{} bytes became {}", grown, folder.bytes());
    play(&mut wire, &[("SET after 1", "+OK")]);
    rewrite(&mut wire);
    play(&mut wire, &[("SET k last", "+OK"), ("RPUSH list last", ":501")]);
    let digest = call(&mut wire, "DEBUG DIGEST");
    let names: Vec<String> = folder.files().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["appendonly.aof.2.base.rdb", "appendonly.aof.3.incr.aof", "appendonly.aof.manifest"]);
    assert_eq!(
        (info(&mut wire, "aof_last_bgrewrite_status"), info(&mut wire, "aof_rewrite_in_progress")),
        ("ok".into(), "0".into())
    );
    server.kill();
    let server = Server::start(&folder, &ALWAYS);
    assert_eq!(call(&mut server.wire(), "DEBUG DIGEST"), digest);
}

#[test]
fn the_files_stay_small_by_themselves() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--auto-aof-rewrite-min-size", "1kb"]);
    let mut wire = server.wire();
    let mut writes = 0;
    wait_for("new bases", || {
        for _ in 0..50 {
            wire.queue(&["SET", "k", &writes.to_string()]);
            writes += 1;
        }
        wire.flush().unwrap();
        (0..50).for_each(|_| assert_eq!(wire.reply().unwrap().raw, b"+OK\r\n"));
        (figure(&mut wire, "aof_rewrites") >= 3).then_some(())
    });
    wait_for("the last of them", || (figure(&mut wire, "aof_rewrite_in_progress") == 0).then_some(()));
    // A write has over 30 bytes.
    assert!(folder.bytes() < 30 * writes, "{} bytes after {writes} writes of one key", folder.bytes());
    server.stop();
    let server = Server::start(&folder, &[]);
    let last = (writes - 1).to_string();
    assert_eq!(call(&mut server.wire(), "GET k"), format!("${} {last}", last.len()));
}

/// What natives are after a restart, however the last server ended.
fn check_natives(wire: &mut Wire, token: i64) {
    play(
        wire,
        &[
            (&format!("LOCK.CHECK twice {token}"), ":1"),
            ("LOCK.ACQUIRE twice other 60000", "$-1"),
            ("LOCK.ACQUIRE twice ann 3600000 REQUEST first", &format!(":{token}")),
            ("LOCK.ACQUIRE shared third 60000", "$-1"),
            ("SEM.ACQUIRE sem third 60000 LIMIT 2", "$-1"),
            ("LOCK.GUARD guard 34", "+OK"),
            ("LATCH.DOWN latch 0", ":2"),
            ("LOCK.RELEASE ended bob REQUEST second", ":0"),
            ("LOCK.SESSION mine GRACE 3600000", ":1"),
            ("SET twice plain NX", "$-1"),
        ],
    );
    assert!(call(wire, "LOCK.GUARD guard 33").starts_with("-STALE "));
    let late = call(wire, "LOCK.ACQUIRE ended bob 3600000 REQUEST first");
    assert!(late.starts_with("-NOTHELD "), "a late copy of a request: {late}");
    let holds = call(wire, "LOCK.INFO twice");
    assert!(holds.contains("$5 holds :2 "), "{holds}");
    let bound = call(wire, "LOCK.INFO bound");
    assert!(bound.contains("$5 owner $3 eve "), "{bound}");
}

#[test]
fn a_broken_grant_stays_broken_after_a_kill_and_a_new_base() {
    let folder = Folder::new();
    let server = Server::start(&folder, &ALWAYS);
    let mut wire = server.wire();
    let lock = token(&mut wire, "LOCK.ACQUIRE order ann 3600000 REQUEST first");
    token(&mut wire, "LOCK.ACQUIRE doc x 3600000 SHARED");
    let shared = token(&mut wire, "LOCK.ACQUIRE doc y 3600000 SHARED");
    let mut waiter = server.wire();
    send(&mut waiter, "LOCK.ACQUIRE order bob 3600000 WAIT 0");
    wait_for("the waiter", || call(&mut wire, "LOCK.STATS").contains("$7 waiting :1 ").then_some(()));
    play(
        &mut wire,
        &[(&format!("LOCK.BREAK order TOKEN {lock} REASON stuck"), ":1"), (&format!("LOCK.BREAK doc TOKEN {shared}"), ":1")],
    );
    let next: i64 = told(&mut waiter)[1..].parse().unwrap();
    let check = |wire: &mut Wire| {
        for (name, token, held) in
            [("order", lock, ":0"), ("order", next, ":1"), ("doc", shared, ":0"), ("doc", shared - 1, ":1")]
        {
            assert_eq!(call(wire, &format!("LOCK.CHECK {name} {token}")), held, "{name} {token}");
        }
        let late = call(wire, "LOCK.ACQUIRE order ann 3600000 REQUEST first");
        assert!(late.starts_with("-NOTHELD lock 'order' is not held by 'ann': "), "a late copy gets it no more: {late}");
    };
    check(&mut wire);
    server.kill();
    let server = Server::start(&folder, &ALWAYS);
    let mut wire = server.wire();
    check(&mut wire);
    rewrite(&mut wire);
    server.kill();
    let server = Server::start(&folder, &ALWAYS);
    check(&mut server.wire());
    server.stop();
}

#[test]
fn natives_outlive_stops_kills_and_new_bases() {
    let folder = Folder::new();
    let server = Server::start(&folder, &ALWAYS);
    let mut wire = server.wire();
    let first = token(&mut wire, "LOCK.ACQUIRE twice ann 3600000 REQUEST first");
    assert_eq!(token(&mut wire, "LOCK.ACQUIRE twice ann 3600000 REQUEST other"), first);
    for request in [
        "LOCK.ACQUIRE shared a 3600000 SHARED",
        "LOCK.ACQUIRE shared b 3600000 SHARED",
        "SEM.ACQUIRE sem a 3600000 LIMIT 2",
        "SEM.ACQUIRE sem b 3600000 LIMIT 2",
        "LATCH.SET latch 3 PX 3600000",
        "LATCH.DOWN latch",
        "LOCK.GUARD guard 34",
        "LOCK.ACQUIRE ended bob 3600000 REQUEST first",
        "LOCK.RELEASE ended bob REQUEST second",
        "LOCK.SESSION mine GRACE 3600000",
        "LOCK.ACQUIRE bound eve 3600000 SESSION",
    ] {
        assert!(call(&mut wire, request).starts_with([':', '+']), "{request}");
    }
    // A session without a name has no grace: its connection ends with the server.
    let mut other = server.wire();
    token(&mut other, "LOCK.ACQUIRE nameless zoe 3600000 SESSION");
    let mut last = first;
    let mut server = server;
    for round in 0..8 {
        if round % 3 == 2 {
            rewrite(&mut server.wire());
        }
        if round % 2 == 0 {
            server.kill()
        } else {
            server.stop()
        }
        server = Server::start(&folder, &ALWAYS);
        let mut wire = server.wire();
        check_natives(&mut wire, first);
        assert_eq!(call(&mut wire, "EXISTS nameless"), ":0");
        let next = token(&mut wire, &format!("LOCK.ACQUIRE each:{round} ann 1"));
        assert!(next > last, "token {next} after {last}");
        last = next;
    }
}

/// The wall clock may have gone back since the last token was given: the folder says which that was.
#[test]
fn tokens_go_on_where_they_were() {
    // Tokens of the year 2093.
    let mut next: i64 = 8_000_000_000_000_000;
    let mut payload = vec![1];
    let mut rest = next as u64;
    while rest >= 0x80 {
        payload.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    payload.push(rest as u8);
    let folder = Folder::new();
    let record = [format!("*2\r\n$16\r\nPORTCULLIS.TOKEN\r\n${}\r\n", payload.len()).as_bytes(), &payload, b"\r\n"].concat();
    folder.write_increments(&[&record]);
    for round in 0..8 {
        let server = Server::start(&folder, &ALWAYS);
        let mut wire = server.wire();
        if round % 4 == 3 {
            rewrite(&mut wire);
        }
        // Grants that are over before the batch is written, and one that goes on.
        for _ in 0..50 {
            send(&mut wire, "LOCK.ACQUIRE l ann 60000");
            send(&mut wire, "LOCK.RELEASE l ann");
        }
        for _ in 0..50 {
            let given: i64 = told(&mut wire)[1..].parse().unwrap();
            assert!(given >= next, "round {round}: token {given}, but {next} is the next one");
            next = given + 1;
            assert_eq!(told(&mut wire), ":0");
        }
        if round % 2 == 0 { server.kill() } else { server.stop() }
    }
}

#[test]
fn leases_go_on_while_the_server_is_down() {
    let folder = Folder::new();
    let server = Server::start(&folder, &ALWAYS);
    let mut wire = server.wire();
    let began = Instant::now();
    play(&mut wire, &[("SET plain v PX 1200", "+OK")]);
    token(&mut wire, "LOCK.ACQUIRE short ann 1200");
    token(&mut wire, "LOCK.ACQUIRE long ann 3600000");
    server.kill();
    let server = Server::start(&folder, &ALWAYS);
    let mut wire = server.wire();
    let held = call(&mut wire, "EXISTS short");
    // On a slow machine it may have ended.
    assert!(held == ":1" || began.elapsed() >= Duration::from_millis(1200), "the lease goes on");
    server.kill();
    // The lease ends meanwhile.
    wait_for("the end of the lease", || (began.elapsed() > Duration::from_millis(1300)).then_some(()));
    let server = Server::start(&folder, &ALWAYS);
    let mut wire = server.wire();
    play(&mut wire, &[("EXISTS plain", ":0"), ("SET short x NX", "+OK"), ("SET long x NX", "$-1")]);
}

#[test]
fn restarts_do_not_grow_the_folder() {
    let folder = Folder::new();
    let mut server = Server::start(&folder, &ALWAYS);
    let mut wire = server.wire();
    play(&mut wire, &[("SET k v", "+OK")]);
    token(&mut wire, "LOCK.ACQUIRE lock ann 3600000");
    let mut sizes = Vec::new();
    for round in 0..30 {
        if round % 2 == 0 {
            server.kill()
        } else {
            server.stop()
        }
        server = Server::start(&folder, &ALWAYS);
        // A start with many increments joins them.
        let mut wire = server.wire();
        wait_for("the new base", || (figure(&mut wire, "aof_rewrite_in_progress") == 0).then_some(()));
        sizes.push((folder.bytes(), folder.files().len()));
    }
    println!("bytes and files after each restart: {sizes:?}");
    let (bytes, files) = sizes[sizes.len() - 1];
    assert!(bytes < 8192 && files < 16, "{bytes} bytes in {files} files after 30 restarts without a write");
}

#[test]
fn a_lower_limit_of_strings_loses_none_that_is_longer() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--appendfsync", "always"]);
    let mut wire = server.wire();
    assert_eq!(call(&mut wire, "SETRANGE k 1500000 x"), ":1500001");
    assert_eq!(call(&mut wire, "SETBIT b 12000000 1"), ":0");
    assert_eq!(call(&mut wire, "APPEND k y"), ":1500002");
    let digest = call(&mut wire, "DEBUG DIGEST");
    assert_eq!(call(&mut wire, "CONFIG SET proto-max-bulk-len 1048576"), "+OK");
    assert!(call(&mut wire, "APPEND k z").starts_with("-ERR string exceeds maximum allowed size"));
    rewrite(&mut wire);
    server.stop();
    let server = Server::start(&folder, &["--appendfsync", "always", "--proto-max-bulk-len", "1048576"]);
    assert_eq!(call(&mut server.wire(), "DEBUG DIGEST"), digest);
}

#[test]
fn a_new_base_that_would_lack_what_the_server_has_is_refused() {
    let folder = Folder::new();
    // As Redis writes it: a file whose second request fails.
    let set = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n";
    let push = |key: &str| format!("*3\r\n$5\r\nLPUSH\r\n$1\r\n{key}\r\n$1\r\nx\r\n");
    std::fs::create_dir_all(folder.log_dir()).unwrap();
    std::fs::write(folder.log_dir().join("redis.aof"), [set, &push("k"), &push("q")].concat()).unwrap();
    std::fs::write(folder.manifest(), "file redis.aof seq 1 type i\n").unwrap();
    let server = Server::start(&folder, &ALWAYS);
    let mut wire = server.wire();
    let status = |wire: &mut Wire| info(wire, "aof_last_bgrewrite_status");
    // One more of it fails than when the server loaded it.
    let file = folder.increments()[0].clone();
    std::fs::write(&file, [set, &push("k"), &push("k")].concat()).unwrap();
    call(&mut wire, "BGREWRITEAOF");
    wait_for("the failure", || (status(&mut wire) == "err").then_some(()));
    assert!(file.exists(), "the files stay");
    // The server lacks what failed at its start, and so may the base.
    std::fs::write(&file, [set, &push("k"), &push("q")].concat()).unwrap();
    call(&mut wire, "BGREWRITEAOF");
    wait_for("the new base", || (status(&mut wire) == "ok").then_some(()));
    assert!(!file.exists(), "a base replaces them");
    server.stop();
    let server = Server::start(&folder, &ALWAYS);
    assert_eq!(call(&mut server.wire(), "GET k"), "$1 v");
    assert_eq!(call(&mut server.wire(), "LRANGE q 0 -1"), "*1 $1 x");
}

#[test]
fn a_lower_limit_of_scripts_loses_no_library() {
    let folder = Folder::new();
    let server = Server::start(&folder, &ALWAYS);
    let mut wire = server.wire();
    let library = "#!lua name=big\nlocal t = {} for i = 1, 60000 do t[i] = 'value ' .. i end \
        redis.register_function('f', function() return #t end)";
    wire.queue(&["FUNCTION", "LOAD", library]);
    wire.flush().unwrap();
    assert_eq!(told(&mut wire), "$3 big");
    assert_eq!(call(&mut wire, "CONFIG SET script-memory-limit 1048576"), "+OK");
    rewrite(&mut wire);
    server.stop();
    let server = Server::start(&folder, &ALWAYS);
    assert_eq!(call(&mut server.wire(), "FCALL f 0"), ":60000");
}
