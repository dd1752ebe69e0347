//! What clients are told while files are loaded. `key-load-delay` makes a load last for as long as a test wants.

use crate::common::talk::{call, play};
use crate::common::wire::Wire;
use crate::process::{Folder, Server, figure, info, required, wait_for};

/// A load with this delay, in microseconds a key, lasts longer than a test.
const SLOW: [&str; 4] = ["--appendonly", "no", "--key-load-delay", "100000"];
const LOADING: &str = "-LOADING Redis is loading the dataset in memory";
const KEYS: usize = 500;

/// A snapshot with strings of a kilobyte, in RDB version 10 and without a checksum.
fn write_snapshot(folder: &Folder) {
    let mut rdb = b"REDIS0010\xfa\x08used-mem\x071000000\xfe\x00".to_vec();
    for number in 0..KEYS {
        let key = format!("key:{number:04}");
        rdb.extend([0, key.len() as u8]);
        rdb.extend(key.as_bytes());
        // A length of fourteen bits: 1,024.
        rdb.extend([0x44, 0]);
        rdb.extend([b'x'; 1024]);
    }
    rdb.push(0xff);
    rdb.extend([0; 8]);
    std::fs::write(folder.dir().join("dump.rdb"), rdb).unwrap();
}

/// The same keys as requests.
fn write_log(folder: &Folder) {
    let requests = (0..KEYS).map(|number| format!("*3\r\n$3\r\nSET\r\n$8\r\nkey:{number:04}\r\n$1\r\nx\r\n"));
    folder.write_increments(&[requests.collect::<String>().as_bytes()]);
}

/// Ends the delay, and waits until all is loaded.
#[track_caller]
fn finish(wire: &mut Wire) {
    assert_eq!(call(wire, "CONFIG SET key-load-delay 0"), "+OK");
    wait_for("the end of the load", || (info(wire, "loading") == "0").then_some(()));
}

#[test]
fn replies_are_those_of_redis() {
    let Some(redis) = required("redis-server") else { return };
    let folder = Folder::new();
    write_snapshot(&folder);
    // Redis serves clients after each 1,024 bytes, and sleeps meanwhile.
    // On a busy machine any request may be a slow one.
    let unlogged = ["--slowlog-log-slower-than", "-1"];
    let args = ["--appendonly", "no", "--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024"];
    let args = [&args[..], &unlogged].concat();
    let theirs = Server::start_redis_until(&redis, &folder, &args, |reply| reply.is_error("LOADING"));
    let ours = Server::start_early(&folder, &[&SLOW[..], &unlogged].concat());
    let requests = "PING|ECHO a|GET key:0001|SET k v|DEL k|DBSIZE|KEYS *|SELECT 1|TYPE k|EXISTS k|FLUSHALL|SCAN 0|TIME x|\
        EVAL return(1) 0|EVALSHA x 0|SCRIPT EXISTS x|SCRIPT LOAD x|FUNCTION LIST|FCALL f 0|MULTI|GET k|EXEC|MULTI|PUBLISH c m|EXEC|\
        MULTI|PING|DISCARD|WATCH k|UNWATCH|EXEC|PUBLISH c m|PUBSUB NUMPAT|CLIENT GETNAME|CLIENT SETNAME me|CONFIG GET appendonly|\
        CONFIG SET timeout 0|COMMAND COUNT x|OBJECT ENCODING k|SLOWLOG LEN|LATENCY LATEST|ACL WHOAMI|AUTH x|HELLO 9|NOSUCH|GET|\
        BLPOP l 1|XREAD STREAMS s 0|SAVE|BGSAVE|BGREWRITEAOF|MEMORY USAGE k|READONLY|SUBSCRIBE c|UNSUBSCRIBE c|LOLWUT|DUMP k|RESET";
    let (mut there, mut here) = (theirs.wire(), ours.wire());
    let mut refused = 0;
    for request in requests.split('|') {
        let [wanted, got] = [call(&mut there, request), call(&mut here, request)];
        assert_eq!(got, wanted, "{request}");
        refused += usize::from(got == LOADING);
    }
    assert!(refused > 20, "{refused}");
    assert_eq!(info(&mut there, "loading"), "1", "Redis was loading all the time");
    // INFO shows the same fields, and the same of them only meanwhile.
    let fields = |wire: &mut Wire| {
        let reply = call(wire, "INFO persistence");
        let names = reply.split_whitespace().filter_map(|line| line.split_once(':')).map(|(name, _)| name.to_owned());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("loading")).collect();
        names.sort();
        names
    };
    assert_eq!(fields(&mut here), fields(&mut there));
    for field in ["loading_total_bytes", "loading_rdb_used_mem"] {
        assert_eq!(figure(&mut here, field), figure(&mut there, field), "{field}");
    }
    let (loaded, total) = (figure(&mut here, "loading_loaded_bytes"), figure(&mut here, "loading_total_bytes"));
    assert!(0 < loaded && loaded <= total, "{loaded} of {total}");
    // A pause does not hold back the load.
    assert_eq!(call(&mut here, "CLIENT PAUSE 100000 WRITE"), "+OK");
    for wire in [&mut there, &mut here] {
        finish(wire);
        assert_eq!(fields(wire), ["loading"]);
        assert_eq!(figure(wire, "rdb_last_load_keys_loaded"), KEYS as u64);
    }
    assert_eq!(call(&mut here, "DEBUG DIGEST"), call(&mut there, "DEBUG DIGEST"));
}

#[test]
fn a_server_is_ready_when_all_is_loaded() {
    let folder = Folder::new();
    write_log(&folder);
    let server = Server::start_early(&folder, &["--appendfsync", "always", "--key-load-delay", "100000"]);
    let mut wire = server.wire();
    play(
        &mut wire,
        &[
            ("GET key:0001", LOADING),
            ("LOCK.ACQUIRE l owner 1000", LOADING),
            ("MULTI", "+OK"),
            ("SET k v", LOADING),
            ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
            // The log of the load is not that of these.
            ("CONFIG SET maxmemory 1", "+OK"),
            ("CONFIG SET maxmemory 0", "+OK"),
        ],
    );
    assert_eq!(info(&mut wire, "loading"), "1");
    wait_for("progress in the log", || server.log().contains("loading /").then_some(()));
    assert!(!Server::is_ready(&folder) && !server.log().contains("ready to accept connections"));
    let mut monitor = server.wire();
    assert_eq!(call(&mut monitor, "MONITOR"), "+OK");
    finish(&mut wire);
    wait_for("the ready file", || Server::is_ready(&folder).then_some(()));
    wait_for("the line", || server.log().contains("ready to accept connections").then_some(()));
    // Monitors and statistics do not see the load.
    assert!(call(&mut wire, "INFO commandstats").lines().all(|line| !line.contains("cmdstat_set:calls=5")));
    assert_eq!(call(&mut wire, "DBSIZE"), format!(":{KEYS}"));
    let seen = wait_for("DBSIZE", || {
        let line = String::from_utf8(monitor.reply().unwrap().raw).unwrap();
        assert!(!line.contains("\"SET\""), "{line}");
        line.contains("DBSIZE").then_some(line)
    });
    assert!(seen.starts_with('+'));
    assert_eq!(call(&mut wire, "SET k v"), "+OK");
    server.kill();
    let server = Server::start(&folder, &[]);
    assert_eq!(call(&mut server.wire(), "DBSIZE"), format!(":{}", KEYS + 1));
}

#[test]
fn a_load_can_be_ended() {
    let folder = Folder::new();
    write_snapshot(&folder);
    let server = Server::start_early(&folder, &SLOW);
    assert_eq!(call(&mut server.wire(), "GET k"), LOADING);
    assert!(server.terminate().success());
    for request in ["SHUTDOWN", "SHUTDOWN NOSAVE"] {
        let server = Server::start_early(&folder, &SLOW);
        let mut wire = server.wire();
        assert_eq!(call(&mut wire, "GET k"), LOADING);
        wire.queue(&request.split(' ').collect::<Vec<_>>());
        wire.flush().unwrap();
        server.ended();
    }
    assert!(!Server::is_ready(&folder));
}
