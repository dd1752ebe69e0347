//! Folders that a server must not start from: it says which file and where, and changes none of them.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use crate::common::talk::call;
use crate::process::{Folder, Server};

const ARGS: [&str; 2] = ["--appendfsync", "always"];

/// A folder with two increments, the last one closed or not, and keys `k:0` to `k:39`, each in a batch of its own.
fn filled(closed: bool) -> Folder {
    let folder = Folder::new();
    for half in [0..20, 20..40] {
        let server = Server::start(&folder, &ARGS);
        let mut wire = server.wire();
        let last = half.end == 40;
        for n in half {
            assert_eq!(call(&mut wire, &format!("SET k:{n} value-of-{n}")), "+OK");
        }
        if last && !closed { server.kill() } else { server.stop() }
    }
    folder
}

/// Asserts that no server starts from the folder, that it says these words, and that it leaves the files as they are.
#[track_caller]
fn assert_refused(folder: &Folder, args: &[&str], words: &[&str]) {
    let before = folder.files();
    let said = Server::refused(folder, args);
    for word in words {
        assert!(said.contains(word), "{word} is not in: {said}");
    }
    assert!(folder.files() == before, "a start that was refused has changed the files");
}

#[test]
fn two_servers_on_one_folder() {
    let folder = filled(true);
    let server = Server::start(&folder, &ARGS);
    let before = folder.files();
    let said = Server::refused(&folder, &ARGS);
    assert!(said.contains(&server.pid().to_string()) && said.contains("portcullis.lock"), "{said}");
    assert!(folder.files() == before, "the second server has changed the files");
    assert_eq!(call(&mut server.wire(), "SET k:0 new"), "+OK");
    server.kill();
    // The lock ends with its process.
    let server = Server::start(&folder, &ARGS);
    assert_eq!(call(&mut server.wire(), "GET k:0"), "$3 new");
}

/// Positions of the batches of an increment.
fn batches(content: &[u8]) -> Vec<usize> {
    (0..content.len()).filter(|at| content[*at..].starts_with(b"#PCB:")).collect()
}

#[test]
fn a_flipped_byte_in_a_closed_increment() {
    let folder = filled(true);
    for path in folder.increments() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let content = std::fs::read(&path).unwrap();
        let batches = batches(&content);
        if batches.is_empty() {
            continue;
        }
        let batch = batches[batches.len() / 2];
        // In the first line, in a header, in a body, and in the last batch.
        for at in [20, batch + 10, batch + 90, content.len() - 30] {
            for flip in [1, 0x80] {
                let mut damaged = content.clone();
                damaged[at] ^= flip;
                std::fs::write(&path, damaged).unwrap();
                let whole = batches.iter().rfind(|batch| **batch <= at).copied().unwrap_or(0);
                assert_refused(&folder, &ARGS, &[name, &format!("up to offset {whole}")]);
            }
        }
        std::fs::write(&path, &content).unwrap();
    }
    let server = Server::start(&folder, &ARGS);
    assert_eq!(call(&mut server.wire(), "DBSIZE"), ":40", "the files themselves are right");
}

#[test]
fn a_flipped_byte_before_what_was_synced() {
    let folder = filled(false);
    let path = folder.increments().pop().unwrap();
    let content = std::fs::read(&path).unwrap();
    let batches = batches(&content);
    assert!(batches.len() > 10);
    let mut damaged = content.clone();
    damaged[batches[3] + 90] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    assert_refused(&folder, &ARGS, &[name, &format!("up to offset {}", batches[3])]);
}

#[test]
fn a_torn_tail() {
    for closed in [false, true] {
        let folder = filled(closed);
        let path = folder.increments().pop().unwrap();
        let content = std::fs::read(&path).unwrap();
        let batches = batches(&content);
        let last = *batches.last().unwrap();
        for cut in [last + 5, last + 80, content.len() - if closed { 25 } else { 1 }] {
            std::fs::write(&path, &content[..cut]).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            assert_refused(
                &folder,
                &["--aof-load-truncated", "no"],
                &[name, &format!("up to offset {last}"), "aof-load-truncated"],
            );
        }
        let server = Server::start(&folder, &["--aof-load-truncated", "yes", "--appendfsync", "always"]);
        let said = server.log();
        assert!(said.contains(&format!("is cut off at offset {last}")), "{said}");
        let mut wire = server.wire();
        assert_eq!((call(&mut wire, "DBSIZE"), call(&mut wire, "GET k:39")), (":39".to_owned(), "$-1".to_owned()));
        assert_eq!(call(&mut wire, "SET k:39 again"), "+OK");
        server.kill();
        // What was cut off stays cut off, and what came after it counts.
        let server = Server::start(&folder, &["--aof-load-truncated", "no"]);
        assert_eq!(call(&mut server.wire(), "GET k:39"), "$5 again");
    }
}

#[test]
fn a_missing_file() {
    let folder = filled(true);
    let increments = folder.increments();
    for path in [&increments[0], increments.last().unwrap()] {
        let content = std::fs::read(path).unwrap();
        std::fs::remove_file(path).unwrap();
        assert_refused(&folder, &ARGS, &[path.file_name().unwrap().to_str().unwrap(), "No such file"]);
        std::fs::write(path, content).unwrap();
    }
    let manifest = std::fs::read(folder.manifest()).unwrap();
    for damaged in
        [&b""[..], b"file x seq 0 type i\n", b"file appendonly.aof.1.incr.aof seq 1 type z\n", &manifest[..manifest.len() - 3]]
    {
        std::fs::write(folder.manifest(), damaged).unwrap();
        assert_refused(&folder, &ARGS, &["appendonly.aof.manifest"]);
    }
}

#[test]
fn a_record_of_a_newer_version() {
    let folder = Folder::new();
    // The first has a payload of version 99. The second has an unknown name. The third is a first line of another format.
    let newer = b"*2\r\n$16\r\nPORTCULLIS.TOKEN\r\n$2\r\n\x63\x05\r\n";
    let unknown = b"*2\r\n$17\r\nPORTCULLIS.FUTURE\r\n$2\r\n\x01\x05\r\n";
    let format = b"#PCF:2:000000000000feed:0123456789abcdef\r\n";
    let command = b"*2\r\n$12\r\nNO.SUCH.CALL\r\n$1\r\n1\r\n";
    for (record, words) in [
        (&newer[..], ["version 99", "newer version"]),
        (unknown, ["unknown kind", "newer version"]),
        (format, ["later version", "offset 0"]),
        (command, ["Unknown command", "NO.SUCH.CALL"]),
    ] {
        folder.write_increments(&[record, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n"]);
        assert_refused(&folder, &ARGS, &words);
        assert_refused(&folder, &ARGS, &["appendonly.aof.1.incr.aof"]);
    }
}

#[test]
fn a_folder_that_is_read_only() {
    if rustix::process::geteuid().is_root() {
        println!("SKIPPED: root may write everywhere");
        return;
    }
    let folder = filled(true);
    let path = folder.log_dir();
    std::fs::set_permissions(&path, Permissions::from_mode(0o500)).unwrap();
    let before = folder.files();
    let said = Server::refused(&folder, &ARGS);
    std::fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    assert!(said.contains("Permission denied") && said.contains("appendonlydir"), "{said}");
    assert!(folder.files() == before);
}
