//! DEBUG RELOAD and DEBUG LOADAOF: the files are loaded into a running server.

use crate::common::talk::{call, play, send, token, told, until_blocked};
use crate::common::wire::Wire;
use crate::interchange::{assert_same, change, fill, pending, shown};
use crate::process::{Folder, Server, figure, info, required, rewrite};

const NO_LOG: [&str; 2] = ["--appendonly", "no"];
const ALWAYS: [&str; 2] = ["--appendfsync", "always"];
const NOT_LOADED: &str = "-ERR Error trying to load the RDB dump, check server logs.";

#[test]
fn what_is_reloaded_is_what_there_was() {
    let folder = Folder::new();
    let server = Server::start(&folder, &ALWAYS);
    let mut wire = server.wire();
    fill(&mut wire);
    let client = call(&mut wire, "CLIENT ID");
    for reload in ["DEBUG RELOAD", "DEBUG LOADAOF"] {
        change(&mut wire);
        let (before, waiting, digest) = (shown(&mut wire), pending(&mut wire), call(&mut wire, "DEBUG DIGEST"));
        assert_eq!(call(&mut wire, reload), "+OK");
        assert_same(&mut wire, &before);
        assert_eq!((pending(&mut wire), call(&mut wire, "DEBUG DIGEST")), (waiting, digest), "{reload}");
        assert_eq!(call(&mut wire, "CLIENT ID"), client);
        assert_eq!(info(&mut wire, "rdb_changes_since_last_save"), "0");
    }
    // The files have it as well: as they are, and in a new base.
    change(&mut wire);
    let before = shown(&mut wire);
    server.kill();
    let server = Server::start(&folder, &ALWAYS);
    let mut wire = server.wire();
    assert_same(&mut wire, &before);
    rewrite(&mut wire);
    assert_eq!(call(&mut wire, "DEBUG LOADAOF"), "+OK");
    assert_same(&mut wire, &before);
    server.kill();
    assert_same(&mut Server::start(&folder, &ALWAYS).wire(), &before);
}

#[test]
fn the_append_only_file_has_what_was_loaded() {
    let folder = Folder::new();
    let server = Server::start(&folder, &ALWAYS);
    let mut wire = server.wire();
    play(&mut wire, &[("SET a 1", "+OK"), ("SAVE", "+OK"), ("SET a 2", "+OK"), ("SET b 1", "+OK")]);
    play(&mut wire, &[("DEBUG RELOAD NOSAVE", "+OK"), ("GET a", "$1 1"), ("DBSIZE", ":1"), ("SET c 1", "+OK")]);
    assert_eq!(figure(&mut wire, "rdb_changes_since_last_save"), 3, "as in Redis, the load is none");
    play(&mut wire, &[("DEBUG LOADAOF", "+OK"), ("GET a", "$1 1"), ("GET c", "$1 1"), ("DBSIZE", ":2")]);
    server.kill();
    let server = Server::start(&folder, &ALWAYS);
    play(&mut server.wire(), &[("GET a", "$1 1"), ("GET c", "$1 1"), ("DBSIZE", ":2")]);
}

#[test]
fn what_is_on_its_way_to_the_file_is_loaded() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--appendfsync", "no"]);
    let mut wire = server.wire();
    for round in 0..10 {
        let value = round.to_string();
        let requests: [&[&str]; 4] = [&["SET", "k", &value], &["BGREWRITEAOF"], &["DEBUG", "LOADAOF"], &["GET", "k"]];
        requests.iter().for_each(|request| wire.queue(request));
        wire.flush().unwrap();
        let replies: Vec<String> = (0..4).map(|_| told(&mut wire)).collect();
        assert_eq!((&*replies[2], &*replies[3]), ("+OK", &*format!("$1 {value}")), "{}", server.log());
    }
}

#[test]
fn a_reload_is_for_locks_as_a_restart() {
    for reload in ["DEBUG RELOAD", "DEBUG LOADAOF"] {
        let folder = Folder::new();
        let server = Server::start(&folder, &["--appendfsync", "always", "--test-mode", "--lock-session-grace", "500"]);
        let (mut wire, mut named, mut waiting) = (server.wire(), server.wire(), server.wire());
        assert_eq!(call(&mut wire, "CLOCK FREEZE"), "+OK");
        let first = token(&mut wire, "LOCK.ACQUIRE leased me 10000");
        token(&mut wire, "LOCK.ACQUIRE bound me 600000 SESSION");
        play(&mut named, &[("LOCK.SESSION s GRACE 2000", ":0")]);
        token(&mut named, "LOCK.ACQUIRE kept me 600000 SESSION");
        token(&mut named, "LOCK.ACQUIRE lost me 600000 SESSION");
        send(&mut waiting, "LOCK.ACQUIRE leased other 1000 WAIT 0");
        until_blocked(&mut wire, 1);
        assert_eq!(call(&mut wire, reload), "+OK");
        assert_eq!(told(&mut waiting), "$-1", "a waiter gives up, as if it timed out");
        let last = token(&mut wire, "LOCK.ACQUIRE bound other 1000");
        assert!(last > first + 3, "{first} {last}: tokens go on");
        play(&mut wire, &[("LOCK.ACQUIRE leased other 1000", "$-1"), ("LOCK.ACQUIRE kept other 1000", "$-1")]);
        // Its connection is still there, and comes back in time.
        play(&mut wire, &[("CLOCK ADVANCE 1900", "+OK")]);
        play(&mut named, &[("LOCK.SESSION s", ":2"), ("LOCK.RELEASE lost me", ":0")]);
        play(&mut wire, &[("CLOCK ADVANCE 5000", "+OK"), ("LOCK.ACQUIRE kept other 1000", "$-1")]);
        // Without that it is over.
        assert_eq!(call(&mut wire, reload), "+OK");
        play(&mut wire, &[("CLOCK ADVANCE 1999", "+OK"), ("LOCK.ACQUIRE kept other 1000", "$-1"), ("CLOCK ADVANCE 1", "+OK")]);
        assert!(token(&mut wire, "LOCK.ACQUIRE kept other 1000") > last);
        play(&mut wire, &[("LOCK.RELEASE leased me", ":0")]);
        assert!(token(&mut wire, "LOCK.ACQUIRE leased other 1000") > last);
    }
}

/// What connections find afterwards, here and in Redis.
fn found_by_connections(server: &Server, reload: &str) -> Vec<String> {
    let (mut wire, mut popping, mut watching) = (server.wire(), server.wire(), server.wire());
    let mut said = Vec::new();
    let say = |wire: &mut Wire, request: &str| format!("{request}: {}", call(wire, request));
    said.push(say(&mut wire, "SET k v"));
    said.push(say(&mut wire, "SCRIPT LOAD return+1"));
    said.push(say(&mut watching, "WATCH k"));
    send(&mut popping, "BLPOP list 0");
    until_blocked(&mut wire, 1);
    said.push(call(&mut wire, reload));
    said.extend(["MULTI", "PING", "EXEC"].map(|request| say(&mut watching, request)));
    said.push(say(&mut wire, "SCRIPT EXISTS 285c3c14e355112234facff6e48025f76fb74096"));
    until_blocked(&mut wire, 1);
    said.push(say(&mut wire, "RPUSH list x"));
    said.push(told(&mut popping));
    let last = ["DEBUG RELOAD MERGE NOFLUSH", "GET k", "DEBUG RELOAD later", "DEBUG LOADAOF whatever", "DBSIZE"];
    said.extend(last.map(|request| say(&mut wire, request)));
    said
}

#[test]
fn connections_find_what_they_find_in_redis() {
    let Some(redis) = required("redis-server") else { return };
    for reload in ["DEBUG RELOAD", "debug loadaof"] {
        let (here, there) = (Folder::new(), Folder::new());
        let ours = found_by_connections(&Server::start(&here, &[]), reload);
        let theirs = found_by_connections(&Server::start_redis(&redis, &there, &[]), reload);
        assert_eq!(ours, theirs);
    }
}

#[test]
fn what_cannot_be_loaded_changes_nothing() {
    let folder = Folder::new();
    let server = Server::start(&folder, &NO_LOG);
    let mut wire = server.wire();
    let dump = folder.dir().join("dump.rdb");
    play(&mut wire, &[("SET a 1", "+OK"), ("DEBUG RELOAD NOSAVE", NOT_LOADED), ("GET a", "$1 1")]);
    play(&mut wire, &[("SAVE", "+OK"), ("SET b 1", "+OK"), ("DEBUG RELOAD NOFLUSH NOSAVE", NOT_LOADED)]);
    assert!(server.log().contains("RDB has duplicated key 'a' in DB 0"), "{}", server.log());
    play(&mut wire, &[("SET a 2", "+OK"), ("DEBUG RELOAD NOFLUSH NOSAVE MERGE", "+OK"), ("MGET a b", "*2 $1 1 $1 1")]);
    play(&mut wire, &[("DEL a", ":1"), ("DEBUG RELOAD NOFLUSH NOSAVE", "+OK"), ("MGET a b", "*2 $1 1 $1 1")]);
    let mut bytes = std::fs::read(&dump).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&dump, bytes).unwrap();
    play(&mut wire, &[("DEBUG RELOAD NOSAVE", NOT_LOADED), ("DBSIZE", ":2")]);
    server.limit_files(Some(0));
    play(&mut wire, &[("DEBUG RELOAD", "-ERR"), ("DBSIZE", ":2")]);
    let nothing = "-ERR Error trying to load the append only file, check server logs.";
    play(&mut wire, &[("DEBUG LOADAOF", nothing), ("DBSIZE", ":2")]);
}

#[test]
fn what_stays_keeps_its_locks() {
    let folder = Folder::new();
    let server = Server::start(&folder, &NO_LOG);
    let mut wire = server.wire();
    token(&mut wire, "LOCK.ACQUIRE saved me 600000");
    assert_eq!(call(&mut wire, "SAVE"), "+OK");
    token(&mut wire, "LOCK.ACQUIRE bound me 600000 SESSION");
    play(&mut wire, &[("LOCK.SESSION s GRACE 1", ":0"), ("LOCK.RELEASE saved me", ":0")]);
    token(&mut wire, "LOCK.ACQUIRE named me 600000 SESSION");
    play(&mut wire, &[("DEBUG RELOAD NOFLUSH NOSAVE", "+OK")]);
    let mut other = server.wire();
    for name in ["saved", "bound", "named"] {
        assert_eq!(call(&mut other, &format!("LOCK.ACQUIRE {name} other 1000")), "$-1", "{name}");
        assert_eq!(call(&mut wire, &format!("LOCK.RELEASE {name} me")), ":0", "{name}");
    }
}
