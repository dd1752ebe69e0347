//! `portcullis check`: what it says of files that are whole, torn, damaged, missing or not its own, what `--fix` cuts, and that a
//! start agrees.

use std::path::Path;
use std::process::{Command, Stdio};

use portcullis::persist::append::batch::{batch, first_line, last_line};
use portcullis::persist::append::request::put_request;

use crate::common::talk::call;
use crate::process::{Folder, Server, required, wait_for};

const SALT: u64 = 0x5a17;
/// A start that accepts no torn end.
const STRICT: [&str; 2] = ["--aof-load-truncated", "no"];

/// Runs the check on the folder or a file in it. Returns the exit code, and what it says, without the path of the folder.
fn check(folder: &Folder, path: &str, args: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.arg("check").args(args).arg(folder.dir().join(path)).stdin(Stdio::null());
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).unwrap().replace(&format!("{}/", folder.dir().display()), "");
    assert!(!said.contains("panicked"), "{said}");
    (output.status.code().unwrap(), said)
}

#[track_caller]
fn assert_says(folder: &Folder, path: &str, args: &[&str], code: i32, expected: &str) {
    let (ended, said) = check(folder, path, args);
    let expected = expected.trim_start_matches('\n');
    assert!(
        said == expected && ended == code,
        "exit code {ended} and not {code}, or other words:\n{said}\ninstead of\n{expected}"
    );
}

/// The body of a batch: these units, each a request or several that are a transaction.
fn body(units: &[&str]) -> Vec<u8> {
    let mut body = Vec::new();
    for unit in units {
        let requests: Vec<Vec<&[u8]>> = unit.split("; ").map(|request| request.split(' ').map(str::as_bytes).collect()).collect();
        if requests.len() > 1 {
            put_request(&mut body, &[b"MULTI"]);
        }
        requests.iter().for_each(|request| put_request(&mut body, request));
        if requests.len() > 1 {
            put_request(&mut body, &[b"EXEC"]);
        }
    }
    body
}

/// An increment with these batches, and the offset of each. Each header says that all before it was durable.
fn increment(batches: &[&[&str]]) -> (Vec<u8>, Vec<usize>) {
    let (mut file, mut starts) = (first_line(SALT), Vec::new());
    for units in batches {
        starts.push(file.len());
        file.extend(batch(SALT, file.len() as u64, &body(units)));
    }
    (file, starts)
}

/// Three batches, of which the second has two units.
const BATCHES: [&[&str]; 3] = [&["SELECT 0", "SET a 1"], &["SET b 2", "RPUSH list x y; SET c 3"], &["DEL b"]];

/// A folder with two increments: one that was closed, and one with [`BATCHES`], which is returned.
fn two_increments() -> (Folder, Vec<u8>, Vec<usize>) {
    let folder = Folder::new();
    let (mut first, _) = increment(&[&["SELECT 0", "SET z 1"]]);
    first.extend(last_line(SALT, first.len() as u64));
    let (second, starts) = increment(&BATCHES);
    folder.write_increments(&[&first, &second]);
    (folder, second, starts)
}

fn last(folder: &Folder) -> std::path::PathBuf {
    folder.increments().pop().unwrap()
}

fn write_last(folder: &Folder, content: impl AsRef<[u8]>) {
    std::fs::write(last(folder), content).unwrap();
}

/// What is said of the manifest and of the first increment.
const FIRST: &str = "\
appendonlydir/appendonly.aof.manifest: whole
    no base; 2 increments, the last is appendonly.aof.2.incr.aof
appendonlydir/appendonly.aof.1.incr.aof: whole, closed by a clean stop
    append-only file of Portcullis, format 1; 189 bytes
    1 batch, 2 units, 2 requests
";

/// Runs the check on [`two_increments`], of which the first is whole: what it says of the second one and behind it.
#[track_caller]
fn assert_says_of_second(folder: &Folder, args: &[&str], code: i32, expected: &str) {
    assert_says(folder, "", args, code, &format!("{FIRST}appendonlydir/appendonly.aof.2.incr.aof: {expected}"));
}

/// The same on a folder with one increment.
#[track_caller]
fn assert_says_of_only(folder: &Folder, args: &[&str], code: i32, expected: &str) {
    let manifest =
        "appendonlydir/appendonly.aof.manifest: whole\n    no base; 1 increment, the last is appendonly.aof.1.incr.aof\n";
    assert_says(folder, "", args, code, &format!("{manifest}appendonlydir/appendonly.aof.1.incr.aof: {expected}"));
}

#[test]
fn a_whole_folder() {
    let (folder, _, _) = two_increments();
    let log_dir = folder.log_dir();
    let before = folder.files();
    assert_says_of_second(
        &folder,
        &[],
        0,
        "whole
    append-only file of Portcullis, format 1; 456 bytes
    3 batches, 5 units, 6 requests
together: a start finds 4 keys, locks included
verdict: whole
",
    );
    assert!(
        folder.files() == before && !log_dir.join("portcullis.lock").exists(),
        "a check without --fix has changed the folder"
    );
    // Files that the manifest does not name do not count.
    std::fs::write(log_dir.join("appendonly.aof.9.incr.aof"), b"*1\r\n").unwrap();
    std::fs::write(log_dir.join("notes"), b"x").unwrap();
    assert_says(
        &folder,
        "appendonlydir",
        &[],
        0,
        &format!(
            "{FIRST}appendonlydir/appendonly.aof.2.incr.aof: whole
    append-only file of Portcullis, format 1; 456 bytes
    3 batches, 5 units, 6 requests
together: a start finds 4 keys, locks included
appendonlydir/appendonly.aof.9.incr.aof: torn at offset 0 of 4
    append-only file of a redis-server; 4 bytes
    0 units, 0 requests
    no manifest names it: a start does not read it
    the file ends too early at offset 0; the file is whole up to offset 0
appendonlydir/notes: not a file of the append-only file; not read
verdict: whole
"
        ),
    );
}

#[test]
fn a_torn_end() {
    for (cut, at) in [(1, 2), (30, 2), (80, 2), (100, 1), (190, 1)] {
        let (folder, file, starts) = two_increments();
        let len = file.len() - cut;
        write_last(&folder, &file[..len]);
        let (code, said) = check(&folder, "", &[]);
        assert_eq!(code, 1, "{said}");
        let words = format!("appendonlydir/appendonly.aof.2.incr.aof: torn at offset {} of {len}\n", starts[at]);
        assert!(said.contains(&words), "{words} is not in {said}");
        Server::refused(&folder, &STRICT);
        let (code, said) = check(&folder, "", &["--fix"]);
        assert_eq!((code, said.ends_with("standard input is no terminal: give --yes\n")), (2, true), "{said}");
        assert_eq!(std::fs::read(last(&folder)).unwrap(), file[..len], "it must not cut unasked");
        let (code, said) = check(&folder, "", &["--fix", "--yes"]);
        assert_eq!((code, said.ends_with("verdict: whole\n")), (0, true), "{said}");
        assert_eq!(std::fs::read(last(&folder)).unwrap(), file[..starts[at]]);
        let copy = folder.log_dir().join(format!("appendonly.aof.2.incr.aof.cut-{}", starts[at]));
        assert_eq!(std::fs::read(copy).unwrap(), file[starts[at]..len]);
        check_aof(&folder.manifest());
        let server = Server::start(&folder, &STRICT);
        let mut wire = server.wire();
        let keys = if at == 2 { ":5" } else { ":2" };
        assert_eq!(call(&mut wire, "DBSIZE"), keys);
        server.stop();
        assert_eq!(check(&folder, "", &[]).0, 0);
    }
    let (folder, file, _) = two_increments();
    write_last(&folder, &file[..file.len() - 100]);
    let torn = "torn at offset 166 of 356
    append-only file of Portcullis, format 1; 356 bytes
    1 batch, 2 units, 2 requests
    the file ends too early at offset 240; the file is whole up to offset 166
    The batch begins with unit 3, the request at offset 240: SET b
    Cutting it at offset 166 would lose 190 bytes: 2 units, 4 requests.
    Bytes up to offset 42 were on the disk, by what the file says; nothing says so of the end.
    A crash leaves this, and then nothing that was acknowledged under appendfsync always is in it.
    A start with aof-load-truncated yes leaves the end out; one with no fails.
    next: start the server, or cut the end off first with --fix.
together: a start finds 2 keys, locks included
";
    assert_says_of_second(&folder, &[], 1, &format!("{torn}verdict: not whole, see above\n"));
    let cut = "appendonlydir/appendonly.aof.2.incr.aof is to be cut at offset 166. This is lost: 190 bytes: 2 units, 4 requests
    offset 240: SET b
    offset 282: RPUSH list
    offset 321: SET c
    offset 348: a request whose name is damaged or cut off
a copy of these bytes is appendonlydir/appendonly.aof.2.incr.aof.cut-166
appendonlydir/appendonly.aof.2.incr.aof is cut at offset 166
";
    let rest = "appendonlydir/appendonly.aof.2.incr.aof: whole
    append-only file of Portcullis, format 1; 166 bytes
    1 batch, 2 units, 2 requests
together: a start finds 2 keys, locks included
verdict: whole
";
    assert_says_of_second(&folder, &["--fix", "--yes"], 0, &format!("{torn}{cut}{FIRST}{rest}"));
}

/// Asserts that redis-check-aof finds nothing wrong.
fn check_aof(manifest: &Path) {
    let Some(program) = required("redis-check-aof") else { return };
    let output = Command::new(program).arg(manifest).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("All AOF files and manifest are valid"), "{said}");
}

#[test]
fn a_flipped_byte_in_the_middle() {
    let (folder, mut file, starts) = two_increments();
    file[starts[1] + 100] ^= 1;
    write_last(&folder, &file);
    let damage = "damaged at offset 240 of 456
    append-only file of Portcullis, format 1; 456 bytes
    1 batch, 2 units, 2 requests
    a batch with another checksum than its header says at offset 240; the file is whole up to offset 166
    The batch begins with unit 3, the request at offset 240: SET b
    Cutting it at offset 166 would lose 290 bytes: 5 units, 5 requests.
    This is not the end that a crash leaves: bytes up to offset 362 were on the disk, by what the file says, among them 4 of these units.
    1 batch behind it is whole.
    A start fails, whatever aof-load-truncated is.
    next: copy the folder before you do anything else, then restore this file from a backup.
    Without one, --fix --cut-damage cuts it there, and loses what is said above.
";
    assert_says_of_second(&folder, &[], 1, &format!("{damage}verdict: not whole, see above\n"));
    let before = folder.files();
    let refusal = "--fix does nothing: this is damage in the middle. From offset 166 on there are 5 units, of which 4 were on the disk by what the file says. Whole batches behind it: 1.
    --cut-damage cuts there all the same, and loses all of it.
";
    assert_says_of_second(&folder, &["--fix", "--yes"], 1, &format!("{damage}{refusal}"));
    assert!(folder.files() == before, "what was durable was cut");
    Server::refused(&folder, &[]);
    let (code, said) = check(&folder, "", &["--fix", "--yes", "--cut-damage"]);
    assert_eq!(code, 0, "{said}");
    check_aof(&folder.manifest());
    let server = Server::start(&folder, &STRICT);
    assert_eq!(call(&mut server.wire(), "DBSIZE"), ":2");
}

/// Nothing in the file says that its last batch was durable.
#[test]
fn a_flipped_byte_in_the_last_batch() {
    let (folder, mut file, starts) = two_increments();
    let closed = [&file[..], &last_line(SALT, file.len() as u64)].concat();
    file[starts[2] + 80] ^= 1;
    write_last(&folder, &file);
    assert_says_of_second(
        &folder,
        &[],
        1,
        "torn at offset 362 of 456
    append-only file of Portcullis, format 1; 456 bytes
    2 batches, 4 units, 5 requests
    a batch with another checksum than its header says at offset 436; the file is whole up to offset 362
    The batch begins with unit 5, the request at offset 436: a request whose name is damaged or cut off
    Cutting it at offset 362 would lose 94 bytes: 1 unit, 1 request.
    Bytes up to offset 166 were on the disk, by what the file says; nothing says so of the end.
    A power loss leaves this. If there was none, the disk or the memory is at fault, and what was acknowledged may be in it.
    A start with aof-load-truncated yes leaves the end out; one with no fails.
    next: start the server, or cut the end off first with --fix.
together: a start finds 5 keys, locks included
verdict: not whole, see above
",
    );
    // The last line does.
    write_last(&folder, [&file[..], &closed[file.len()..]].concat());
    assert_says_of_second(&folder, &["--fix", "--yes"], 1, "damaged at offset 436 of 479
    append-only file of Portcullis, format 1; 479 bytes
    2 batches, 4 units, 5 requests
    a batch with another checksum than its header says at offset 436; the file is whole up to offset 362
    The batch begins with unit 5, the request at offset 436: a request whose name is damaged or cut off
    Cutting it at offset 362 would lose 117 bytes: 1 unit, 1 request.
    This is not the end that a crash leaves: bytes up to offset 456 were on the disk, by what the file says, among them 1 of these units.
    A start fails, whatever aof-load-truncated is.
    next: copy the folder before you do anything else, then restore this file from a backup.
    Without one, --fix --cut-damage cuts it there, and loses what is said above.
--fix does nothing: this is damage in the middle. From offset 362 on there are 1 unit, of which 1 were on the disk by what the file says. Whole batches behind it: 0.
    --cut-damage cuts there all the same, and loses all of it.
");
}

#[test]
fn damage_before_the_last_file() {
    let (folder, _, _) = two_increments();
    let first = folder.increments().remove(0);
    let file = std::fs::read(&first).unwrap();
    std::fs::write(&first, &file[..file.len() - 30]).unwrap();
    assert_says(
        &folder,
        "",
        &["--fix", "--yes"],
        1,
        "
appendonlydir/appendonly.aof.manifest: whole
    no base; 2 increments, the last is appendonly.aof.2.incr.aof
appendonlydir/appendonly.aof.1.incr.aof: torn at offset 42 of 159
    append-only file of Portcullis, format 1; 159 bytes
    0 batches, 0 units, 0 requests
    the file ends too early at offset 116; the file is whole up to offset 42
    The batch begins with unit 1, the request at offset 116: SELECT
    Cutting it at offset 42 would lose 117 bytes: 2 units, 2 requests.
    Files follow it, so this is not the end that a crash leaves. A start fails, and --fix does not cut it.
    next: copy the folder before you do anything else, then restore this file from a backup.
appendonlydir/appendonly.aof.2.incr.aof: whole
    append-only file of Portcullis, format 1; 456 bytes
    3 batches, 5 units, 6 requests
--fix does nothing: appendonlydir/appendonly.aof.1.incr.aof is not whole, and files follow it
",
    );
    std::fs::remove_file(&first).unwrap();
    assert_says(
        &folder,
        "",
        &[],
        1,
        "
appendonlydir/appendonly.aof.manifest: whole
    no base; 2 increments, the last is appendonly.aof.2.incr.aof
appendonlydir/appendonly.aof.1.incr.aof: missing
    The manifest names it, and it is not there. A start fails.
    next: copy the folder before you do anything else, then restore this file from a backup.
appendonlydir/appendonly.aof.2.incr.aof: whole
    append-only file of Portcullis, format 1; 456 bytes
    3 batches, 5 units, 6 requests
verdict: not whole, see above
",
    );
}

#[test]
fn a_later_version() {
    let folder = Folder::new();
    let newer = b"*2\r\n$16\r\nPORTCULLIS.TOKEN\r\n$2\r\n\x63\x05\r\n";
    folder.write_increments(&[b"#PCF:2:000000000000feed:0123456789abcdef\r\n"]);
    assert_says_of_only(
        &folder,
        &["--fix", "--yes", "--cut-damage"],
        1,
        "not readable by this program at offset 0 of 42
    append-only file of Portcullis; 42 bytes
    a first line of a later version at offset 0; the file is whole up to offset 0
    The file is not damaged there: a later version of Portcullis wrote it. A start fails.
    next: start that version.
--fix does nothing: the file is not damaged
",
    );
    folder.write_increments(&[&[&body(&["SET a 1"])[..], newer].concat()]);
    assert_says_of_only(
        &folder,
        &[],
        1,
        "not readable by this program at offset 27 of 62
    append-only file of a redis-server; 62 bytes
    1 unit, 1 request
    a record in version 99 of its format, from a newer version of Portcullis at offset 27; the file is whole up to offset 27
    It is in unit 2, the request at offset 27: PORTCULLIS.TOKEN
    The file is not damaged there: a later version of Portcullis wrote it. A start fails.
    next: start that version.
verdict: not whole, see above
",
    );
    folder.write_increments(&[&body(&["SET a 1", "JSON.SET doc $ 1"])]);
    assert_says_of_only(
        &folder,
        &["--fix", "--yes", "--cut-damage"],
        1,
        "not readable by this program at offset 27 of 68
    append-only file of a redis-server; 68 bytes
    1 unit, 1 request
    Unknown command 'JSON.SET' reading the append only file
    It is in unit 2, the request at offset 27: JSON.SET doc
    From there on the file has 41 bytes: 1 unit, 1 request.
    The file is not damaged: this program does not have the command, which may be a module's. A start fails.
    next: start the server that wrote it, remove what needs the command, and send BGREWRITEAOF.
--fix does nothing: the file is not damaged
",
    );
}

#[test]
fn a_damaged_manifest() {
    let (folder, _, _) = two_increments();
    std::fs::write(folder.manifest(), "file appendonly.aof.1.incr.aof seq 1 type z\n").unwrap();
    assert_says(
        &folder,
        "appendonlydir/appendonly.aof.manifest",
        &[],
        1,
        "
appendonlydir/appendonly.aof.manifest: damaged
    Reading the manifest file, at line 1
    >>> 'file appendonly.aof.1.incr.aof seq 1 type z'
    Unknown AOF file type
    No file of it is loaded, and a start fails.
    next: copy the folder, then restore the manifest from a backup. It has a line 'file NAME seq N type b' for the base,
    and one 'file NAME seq N type i' for each increment, in order.
verdict: not whole, see above
",
    );
}

/// An RDB with these items, and a checksum of 0, which stands for none.
fn rdb(items: &[u8]) -> Vec<u8> {
    [b"REDIS0010\xfa\x09redis-ver\x067.0.15\xfe\x00", items, b"\xff\0\0\0\0\0\0\0\0"].concat()
}

#[test]
fn rdb_files() {
    let folder = Folder::new();
    let write = |content: &[u8]| std::fs::write(folder.dir().join("dump.rdb"), content).unwrap();
    write(&rdb(b"\x00\x01k\x01v"));
    assert_says(
        &folder,
        "",
        &[],
        0,
        "
dump.rdb: whole
    RDB version 10 of redis-ver 7.0.15; 43 bytes, without a checksum
    1 key, 0 of them with deadlines
verdict: whole
",
    );
    // A value of the module type ReJSON-RL: its name in six bits each, above its version.
    write(&rdb(b"\x00\x01k\x01v\x07\x03doc\x81\x45\xe2\x52\x38\xdf\x91\x2c\x03\x05\x02{}\x00"));
    assert_says(
        &folder,
        "dump.rdb",
        &[],
        1,
        "
dump.rdb: not readable by this program at offset 34 of 62
    RDB version 10 of redis-ver 7.0.15; 34 bytes, end not reached
    1 key, 0 of them with deadlines
    --- RDB ERROR DETECTED ---
    [offset 34] The RDB file contains module data I can't load: no matching module type 'ReJSON-RL'
    [additional info] While doing: read-object-value
    [additional info] Reading key 'doc'
    [additional info] Reading type 7 (module-value)
    [info] 2 keys read
    [info] 0 expires
    [info] 0 already expired
    The file is not damaged: it has data of a module, which this program cannot read. A start fails.
    next: start the Redis that has the module, delete this data there, and save again.
verdict: not whole, see above
",
    );
    let mut wrong = rdb(b"\x00\x01k\x01v");
    *wrong.last_mut().unwrap() = 7;
    write(&wrong);
    assert_says(
        &folder,
        "dump.rdb",
        &["--fix", "--yes", "--cut-damage"],
        1,
        "
dump.rdb: damaged at offset 43 of 43
    RDB version 10 of redis-ver 7.0.15; 43 bytes, end not reached
    1 key, 0 of them with deadlines
    --- RDB ERROR DETECTED ---
    [offset 43] Wrong RDB checksum expected: (88bc7d3084a02a32) but got (700000000000000). Aborting now.
    [additional info] While doing: check-sum
    [info] 1 keys read
    [info] 0 expires
    [info] 0 already expired
    An RDB cannot be cut: a start fails, and --fix does nothing.
    next: copy the folder before you do anything else, then restore this file from a backup.
--fix does nothing: an RDB cannot be cut
",
    );
}

#[test]
fn files_of_a_redis_server() {
    let Some(program) = required("redis-server") else { return };
    let folder = Folder::new();
    let server = Server::start_redis(&program, &folder, &["--aof-timestamp-enabled", "yes"]);
    let mut wire = server.wire();
    for request in ["SET a 1", "RPUSH list x y", "XADD stream 5-1 a 1", "SADD set a"] {
        call(&mut wire, request);
    }
    server.stop();
    let (code, said) = check(&folder, "", &[]);
    assert_eq!((code, said.ends_with("together: a start finds 4 keys, locks included\nverdict: whole\n")), (0, true), "{said}");
    let path = last(&folder);
    let file = std::fs::read(&path).unwrap();
    std::fs::write(&path, &file[..file.len() - 3]).unwrap();
    let (code, said) = check(&folder, "", &["--fix", "--yes"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains(": SADD set\n"), "{said}");
    check_aof(&folder.manifest());
    let server = Server::start(&folder, &STRICT);
    assert_eq!(call(&mut server.wire(), "DBSIZE"), ":3");
}

/// An append-only file of a redis-server up to 6, with and without an RDB at its beginning.
#[test]
fn an_old_append_only_file() {
    let folder = Folder::new();
    let path = folder.dir().join("appendonly.aof");
    let requests = body(&["SELECT 0", "SET a 1", "SET b 2"]);
    for preamble in [Vec::new(), rdb(b"\x00\x01k\x01v")] {
        let file = [&preamble[..], &requests].concat();
        std::fs::write(&path, &file).unwrap();
        let (code, said) = check(&folder, "", &[]);
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("3 units, 3 requests"), "{said}");
        std::fs::write(&path, &file[..file.len() - 3]).unwrap();
        let (code, said) = check(&folder, "appendonly.aof", &["--fix", "--yes"]);
        assert_eq!(code, 0, "{said}");
        assert_eq!(std::fs::read(&path).unwrap().len(), file.len() - body(&["SET b 2"]).len());
        assert!(!folder.dir().join("portcullis.lock").exists());
        if let Some(program) = required("redis-check-aof") {
            let output = Command::new(program).arg(&path).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        }
    }
}

#[test]
fn a_folder_in_use() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--appendfsync", "always"]);
    assert_eq!(call(&mut server.wire(), "SET a 1"), "+OK");
    let (code, said) = check(&folder, "", &[]);
    let words = format!("the server with process id {} uses this folder", server.pid());
    assert!(code == 0 && said.contains(&words), "{code}: {said}");
    let locked = "portcullis: appendonlydir/portcullis.lock is locked by the server with process id";
    assert_says(&folder, "", &["--fix", "--yes"], 2, &format!("{locked} {}\n", server.pid()));
    let path = last(&folder);
    assert_says(
        &folder,
        path.strip_prefix(folder.dir()).unwrap().to_str().unwrap(),
        &["--fix"],
        2,
        &format!("{locked} {}\n", server.pid()),
    );
    server.kill();
    wait_for("the end of the lock", || (check(&folder, "", &["--fix"]).0 == 0).then_some(()));
}

/// Each file is whole, but two locks have the same token of a session.
#[test]
fn records_that_contradict_each_other() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--appendfsync", "always"]);
    let mut wire = server.wire();
    assert_eq!(call(&mut wire, "LOCK.SESSION mine GRACE 600000"), ":0");
    let token = call(&mut wire, "LOCK.ACQUIRE bound me 60000 SESSION");
    server.kill();
    let file = std::fs::read(last(&folder)).unwrap();
    let name = b"*2\r\n$15\r\nPORTCULLIS.LOCK\r\n";
    let begin = file.windows(name.len()).rposition(|part| part == name).unwrap();
    let mut record = file[begin..].to_vec();
    let at = record.windows(5).position(|part| part == b"bound").unwrap();
    record[at + 4] = b'c';
    folder.write_increments(&[&file, &record]);
    let error = format!("Portcullis: a second record of the token {}", token.trim_start_matches(':'));
    let (code, said) = check(&folder, "", &[]);
    assert!(code == 1 && said.contains(&format!("together: damaged. {error}, so a start fails.\n")), "{code}: {said}");
    let said = Server::refused(&folder, &[]);
    assert!(said.contains(&error), "{said}");
}

/// A request of a file does not wait, and the next one is executed.
#[test]
fn requests_that_would_wait() {
    let folder = Folder::new();
    folder.write_increments(&[&body(&["SELECT 0", "BLPOP q 0", "SET a 1", "BLPOP q 0", "RPUSH q x y"])]);
    assert_eq!(check(&folder, "", &[]).0, 0);
    let server = Server::start(&folder, &STRICT);
    let mut wire = server.wire();
    assert_eq!((call(&mut wire, "GET a"), call(&mut wire, "LLEN q")), ("$1 1".to_owned(), ":2".to_owned()));
}

#[test]
fn what_cannot_be_checked() {
    let folder = Folder::new();
    assert_says(&folder, "no", &[], 2, "portcullis: Can't read no: No such file or directory\n");
    let (code, said) = check(&folder, "", &[]);
    assert!(code == 2 && said.ends_with("has no manifest, no append-only file and no RDB\n"), "{said}");
    assert_eq!(check(&folder, "", &["--yes"]).0, 2);
}
