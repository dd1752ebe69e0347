//! Starts from a snapshot, and from an append-only file as Redis up to 6 wrote it.

use std::path::Path;

use crate::common::talk::{call, play, until};
use crate::interchange::{ask, assert_same, fill, shown};
use crate::process::{Folder, Server, figure, required};

const SNAPSHOT: [&str; 2] = ["--appendonly", "no"];

/// Copies the files of a folder that is not in use.
fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

#[test]
fn a_snapshot_of_redis_is_loaded() {
    let Some(redis) = required("redis-server") else { return };
    let folder = Folder::new();
    let server = Server::start_redis(&redis, &folder, &SNAPSHOT);
    let mut wire = server.wire();
    fill(&mut wire);
    play(&mut wire, &[("SET late x PX 1500", "+OK"), ("SAVE", "+OK")]);
    server.kill();
    std::thread::sleep(std::time::Duration::from_millis(1600));
    let server = Server::start_redis(&redis, &folder, &SNAPSHOT);
    let mut wire = server.wire();
    let (theirs, digest) = (shown(&mut wire), call(&mut wire, "DEBUG DIGEST"));
    let counts = ["rdb_last_load_keys_loaded", "rdb_last_load_keys_expired"];
    let counted = counts.map(|field| figure(&mut wire, field));
    assert_eq!(counted[1], 3, "one here, and one of `fill` in each database");
    server.stop();
    let server = Server::start(&folder, &SNAPSHOT);
    let mut wire = server.wire();
    assert_eq!(counts.map(|field| figure(&mut wire, field)), counted);
    assert_same(&mut wire, &theirs);
    assert_eq!(call(&mut wire, "DEBUG DIGEST"), digest);
    ask(&mut wire, &["FCALL", "f", "1", "counter of f"]);
    server.stop();
    // Without a name, and under another name that no file has, a server starts empty.
    for name in ["", "other.rdb"] {
        let server = Server::start(&folder, &["--appendonly", "no", "--dbfilename", name]);
        assert_eq!(call(&mut server.wire(), "DBSIZE"), ":0");
        server.stop();
    }
    assert!(!folder.log_dir().exists());
}

#[test]
fn a_damaged_snapshot_is_refused() {
    let folder = Folder::new();
    let path = folder.dir().join("dump.rdb");
    let mut rdb = b"REDIS0010\xfe\x00\x00\x01k\x01v\xff".to_vec();
    rdb.extend([1; 8]);
    let module = b"REDIS0010\xfe\x00\x07\x03key\x81\x01\x02\x03\x04\x05\x06\x07\x08\x00\xff\0\0\0\0\0\0\0\0";
    let cases: [(&[u8], &[&str]); 6] = [
        (b"", &["offset"]),
        (b"hello, this is no snapshot", &["Wrong signature"]),
        (b"REDIS0010\xfe", &["offset"]),
        (&rdb[..14], &["offset"]),
        (&rdb, &["checksum"]),
        (module, &["key", "odule"]),
    ];
    for (content, told) in cases {
        std::fs::write(&path, content).unwrap();
        let refused = Server::refused(&folder, &SNAPSHOT);
        assert!(refused.contains(&format!("Bad file format reading the RDB file {}", path.display())), "{refused}");
        assert!(told.iter().all(|text| refused.contains(text)), "{told:?}: {refused}");
    }
    // As Redis, which looks at the checksum only if it is to.
    std::fs::write(&path, &rdb).unwrap();
    let server = Server::start(&folder, &["--appendonly", "no", "--rdbchecksum", "no"]);
    assert_eq!(call(&mut server.wire(), "GET k"), "$1 v");
    server.stop();
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let refused = Server::refused(&folder, &SNAPSHOT);
    assert!(refused.contains("Can't read") && refused.contains("dump.rdb"), "{refused}");
}

/// As in Redis, the append-only file alone counts where there is one. Unlike Redis, the log says what is left out.
#[test]
fn a_snapshot_beside_an_append_only_file_is_not_loaded() {
    let Some(redis) = required("redis-server") else { return };
    let folder = Folder::new();
    let server = Server::start_redis(&redis, &folder, &SNAPSHOT);
    play(&mut server.wire(), &[("SET k v", "+OK"), ("SAVE", "+OK")]);
    server.stop();
    let theirs = Folder::new();
    copy(&folder.dir(), &theirs.dir());
    let server = Server::start_redis(&redis, &theirs, &[]);
    let replied = call(&mut server.wire(), "DBSIZE");
    server.stop();
    let server = Server::start(&folder, &[]);
    assert_eq!(call(&mut server.wire(), "DBSIZE"), replied);
    assert!(server.log().contains("dump.rdb is not loaded, because appendonly is yes"), "{}", server.log());
    server.stop();
    let server = Server::start(&folder, &[]);
    assert!(!server.log().contains("dump.rdb"), "{}", server.log());
}

/// Writes an append-only file as Redis 6 did: of requests, or with an RDB before them.
fn write_old(redis: &Path, folder: &Folder, preamble: bool) {
    let args = ["--aof-use-rdb-preamble", if preamble { "yes" } else { "no" }];
    let server = Server::start_redis(redis, folder, &args);
    let mut wire = server.wire();
    fill(&mut wire);
    ask(&mut wire, &["BGREWRITEAOF"]);
    until(&mut wire, "INFO persistence", "aof_rewrite_in_progress:0 ");
    ask(&mut wire, &["SET", "behind", "the base"]);
    server.stop();
    let files = folder.files();
    let of = |end: &str| files.iter().rev().find(|(name, _)| name.contains(end)).unwrap().1.clone();
    let old = [of(".base."), of(".incr.")].concat();
    std::fs::remove_dir_all(folder.log_dir()).unwrap();
    std::fs::write(folder.dir().join("appendonly.aof"), old).unwrap();
}

#[test]
fn an_append_only_file_of_redis_6_is_taken_over() {
    let Some(redis) = required("redis-server") else { return };
    for (preamble, torn) in [(false, false), (true, false), (true, true), (false, true)] {
        let folder = Folder::new();
        write_old(&redis, &folder, preamble);
        let old = folder.dir().join("appendonly.aof");
        if torn {
            let mut content = std::fs::read(&old).unwrap();
            content.extend(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nto");
            std::fs::write(&old, content).unwrap();
        }
        let theirs = Folder::new();
        copy(&folder.dir(), &theirs.dir());
        let server = Server::start_redis(&redis, &theirs, &[]);
        let mut wire = server.wire();
        let (keys, digest) = (shown(&mut wire), call(&mut wire, "DEBUG DIGEST"));
        server.stop();

        let server = Server::start(&folder, &["--appendfsync", "always"]);
        let mut wire = server.wire();
        assert_same(&mut wire, &keys);
        assert_eq!(call(&mut wire, "DEBUG DIGEST"), digest);
        let told = "Successfully migrated an old-style AOF file (appendonly.aof) into the AOF directory (appendonlydir).";
        assert!(server.log().contains(told), "{}", server.log());
        assert_eq!(std::fs::read_to_string(folder.manifest()).unwrap(), std::fs::read_to_string(theirs.manifest()).unwrap());
        let names = |folder: &Folder| folder.files().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&folder), names(&theirs));
        assert!(!old.exists());
        ask(&mut wire, &["SET", "ours", "1"]);
        server.kill();
        // A base with a torn end was cut off: what follows is found, by both.
        let server = Server::start(&folder, &[]);
        play(&mut server.wire(), &[("GET ours", "$1 1"), ("GET behind", "$8 the base")]);
        server.stop();
        let server = Server::start_redis(&redis, &folder, &[]);
        play(&mut server.wire(), &[("GET ours", "$1 1"), ("GET behind", "$8 the base")]);
    }
}

#[test]
fn a_takeover_that_was_interrupted_goes_on() {
    let folder = Folder::new();
    let old = folder.dir().join("appendonly.aof");
    let request = |value: &str| format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\n{value}\r\n");
    std::fs::write(&old, request("1")).unwrap();
    std::fs::create_dir(folder.log_dir()).unwrap();
    std::fs::write(folder.manifest(), "file appendonly.aof seq 1 type b\n").unwrap();
    let server = Server::start(&folder, &[]);
    play(&mut server.wire(), &[("GET k", "$1 1")]);
    server.stop();
    // Another one beside a folder that has files is left alone.
    std::fs::write(&old, request("2")).unwrap();
    let server = Server::start(&folder, &[]);
    play(&mut server.wire(), &[("GET k", "$1 1")]);
    assert!(old.exists());
}

#[test]
fn temporary_files_that_a_crash_has_left_are_removed() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    assert_eq!(call(&mut server.wire(), "SET a 1"), "+OK");
    server.stop();
    let dir = folder.dir();
    let (ours, others) =
        (dir.join("temp-12-3.rdb"), ["temp-12.rdb", "temp-12-x.rdb", "temp-12-4.rdb"].map(|name| dir.join(name)));
    let in_folder = ["temp-rewriteaof.rdb", "temp-appendonly.rdb", "temp-appendonly.aof.manifest"];
    let in_folder = in_folder.map(|name| folder.log_dir().join(name));
    for path in in_folder.iter().chain([&ours]).chain(&others) {
        std::fs::write(path, "some").unwrap();
    }
    // A server that runs is writing this one.
    let written = std::fs::File::open(&others[2]).unwrap();
    rustix::fs::flock(&written, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let server = Server::start(&folder, &[]);
    assert_eq!(call(&mut server.wire(), "GET a"), "$1 1");
    assert!(!ours.exists() && !in_folder.iter().any(|path| path.exists()), "{}", server.log());
    assert!(others.iter().all(|path| path.exists()));
}

#[test]
fn an_increment_may_begin_with_an_rdb() {
    for checksum in ["yes", "no"] {
        let folder = Folder::new();
        let server = Server::start(&folder, &["--appendonly", "no", "--rdbchecksum", checksum]);
        play(&mut server.wire(), &[("SET a 1", "+OK"), ("SAVE", "+OK")]);
        server.kill();
        let rdb = std::fs::read(folder.dir().join("dump.rdb")).unwrap();
        for rest in ["", "*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$1\r\n1\r\n", "*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$1\r\n1\r\n*1"] {
            folder.write_increments(&[&[&rdb, rest.as_bytes()].concat()]);
            let b = if rest.is_empty() { "$-1" } else { "$1 1" };
            for _ in 0..2 {
                let server = Server::start(&folder, &[]);
                play(&mut server.wire(), &[("GET a", "$1 1"), ("GET b", b)]);
                server.kill();
            }
        }
    }
}
