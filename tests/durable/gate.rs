//! The commit gate under `appendfsync always`: nothing that shows a change leaves before the change is durable, and nothing else waits.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::common::servers::while_stopped;
use crate::common::talk::{call, send, told, until};
use crate::common::wire::Wire;
use crate::process::{Folder, PATIENCE, Server, figure, info, wait_for};
use crate::stuck::{Stuck, clients};

const ARGS: [&str; 2] = ["--appendfsync", "always"];

#[test]
fn writers_wait_for_a_stuck_disk_and_readers_of_other_keys_do_not() {
    let mut stuck = Stuck::after(&ARGS, &["SET still 1", "SET other 2", "RPUSH list a"], 0);
    // All arrive at once, before the first of them fails.
    let mut writers = clients(&stuck.server, &["PING"; 8]);
    writers.iter_mut().for_each(|writer| assert_eq!(told(writer), "+PONG"));
    while_stopped(stuck.server.pid(), || {
        writers.iter_mut().enumerate().for_each(|(n, writer)| send(writer, &format!("SET w:{n} {n}")));
    });
    stuck.until_noticed();
    stuck.assert_held(&mut writers);
    // What is on the disk is read.
    let mut reader = stuck.server.wire();
    for (request, reply) in
        [("GET still", "$1 1"), ("MGET still other", "*2 $1 1 $1 2"), ("LRANGE list 0 -1", "*1 $1 a"), ("GET none", "$-1")]
    {
        assert_eq!(call(&mut reader, request), reply);
    }
    // What is not is not read by anyone, and neither is what comes after it in a pipeline.
    let mut readers = clients(&stuck.server, &["GET w:3", "MGET still w:0", "EXISTS w:1", "DBSIZE", "KEYS *", "SCAN 0"]);
    for wire in &mut readers {
        send(wire, "GET still");
    }
    let mut scripts = stuck.server.wire();
    scripts.queue(&["EVAL_RO", "return redis.call('get', KEYS[1])", "1", "w:5"]);
    scripts.flush().unwrap();
    readers.push(scripts);
    stuck.assert_held(&mut readers);
    // New writes are refused with Redis's error.
    let refused = call(&mut reader, "SET still 3");
    assert!(refused.starts_with("-MISCONF Errors writing to the AOF file: "), "{refused}");
    assert_eq!(call(&mut reader, "GET still"), "$1 1");
    assert_eq!(figure(&mut stuck.observer, "log_batch_durable"), stuck.durable);
    stuck.release();
    for wire in &mut writers {
        assert_eq!(told(wire), "+OK");
    }
    assert!(figure(&mut stuck.observer, "log_batch_durable") > stuck.durable);
    let replies: Vec<String> = readers.iter_mut().map(told).collect();
    assert_eq!(replies[..4], ["$1 3", "*2 $1 1 $1 0", ":1", ":11"]);
    assert_eq!(replies[6], "$1 5");
    for wire in &mut readers[..6] {
        assert_eq!(told(wire), "$1 1");
    }
    assert_eq!(call(&mut reader, "SET still 3"), "+OK");
    let digest = call(&mut reader, "DEBUG DIGEST");
    let Stuck { folder, server, .. } = stuck;
    server.kill();
    let server = Server::start(&folder, &ARGS);
    assert_eq!(call(&mut server.wire(), "DEBUG DIGEST"), digest, "the batch that failed first is there once");
}

/// What a client sees of another client's change: its requests before, which are answered; the change; and what it is told of it.
const SEEN: &[(&[&str], &str, &str)] = &[
    (&["BLPOP queue 0"], "RPUSH queue x", "*2 $5 queue $1 x"),
    (&["BLMOVE queue other LEFT RIGHT 0"], "RPUSH queue x", "$1 x"),
    (&["XREAD BLOCK 0 STREAMS stream $"], "XADD stream 5-5 a b", "*1 *2 $6 stream *1 *2 $3 5-5 *2 $1 a $1 b"),
    (&["LOCK.ACQUIRE held second 60000 WAIT 0"], "LOCK.RELEASE held first", ":"),
    (&["LATCH.AWAIT latch WAIT 0"], "LATCH.DOWN latch", ":1"),
    (
        &["CONFIG SET notify-keyspace-events KEA", "SUBSCRIBE __keyspace@0__:k"],
        "SET k v",
        "*3 $7 message $16 __keyspace@0__:k $3 set",
    ),
    (&["HELLO 3", "CLIENT TRACKING ON", "GET k"], "SET k v", ">2 $10 invalidate *1 $1 k"),
    (&["SUBSCRIBE news"], "EVAL redis.call('set','k',1);redis.call('publish','news','k') 0", "*3 $7 message $4 news $1 k"),
];

#[test]
fn nobody_sees_a_change_that_is_not_durable() {
    for (before, change, seen) in SEEN {
        let mut stuck = Stuck::after(&ARGS, &["SET k old", "LOCK.ACQUIRE held first 60000", "LATCH.SET latch 1"], 0);
        let mut other = stuck.server.wire();
        let (last, first) = before.split_last().unwrap();
        first.iter().for_each(|request| _ = call(&mut other, request));
        send(&mut other, last);
        let blocks = ["0", "$"].iter().any(|end| last.ends_with(end));
        if blocks {
            until(&mut stuck.observer, "INFO clients", "blocked_clients:1 ");
        } else {
            told(&mut other);
        }
        let mut writer = stuck.server.wire();
        send(&mut writer, change);
        stuck.until_noticed();
        let mut wires = [writer, other];
        stuck.assert_held(&mut wires);
        stuck.release();
        let [writer, other] = &mut wires;
        let reply = told(other);
        assert!(reply == *seen || *seen == ":" && reply.starts_with(':'), "{change} was seen as {reply}");
        assert!(!told(writer).starts_with('-'), "{change}");
    }
}

#[test]
fn messages_of_a_running_script_wait_for_its_end() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[ARGS[0], ARGS[1], "--busy-reply-threshold", "1"]);
    let (mut subscriber, mut writer, mut other) = (server.wire(), server.wire(), server.wire());
    call(&mut subscriber, "SUBSCRIBE news");
    writer.queue(&["EVAL", "redis.call('set', 'k', '1') redis.call('publish', 'news', 'k') while true do end", "0"]);
    writer.flush().unwrap();
    until(&mut other, "GET k", "-BUSY");
    // The server looks at all connections while the script runs: it replies to the subscriber, too, and the reply stays behind the
    // message.
    send(&mut subscriber, "PING");
    for _ in 0..5 {
        assert!(call(&mut other, "GET k").starts_with("-BUSY"));
    }
    assert!(!subscriber.has_input(), "{}", told(&mut subscriber));
    server.kill();
    let server = Server::start(&folder, &ARGS);
    assert_eq!(call(&mut server.wire(), "EXISTS k"), ":0", "the script did not happen");
}

#[test]
fn messages_of_a_running_script_wait_for_no_snapshot() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[&ARGS[..], &["--appendonly", "no", "--busy-reply-threshold", "1"]].concat());
    let (mut subscriber, mut writer, mut other) = (server.wire(), server.wire(), server.wire());
    call(&mut subscriber, "SUBSCRIBE news");
    writer.queue(&["EVAL", "for n = 1, 20000 do redis.call('SET', 'k' .. n, 0) end", "0"]);
    writer.queue(&["BGSAVE"]);
    writer.queue(&["EVAL", "redis.call('publish', 'news', 'k') while true do end", "0"]);
    writer.flush().unwrap();
    until(&mut other, "GET k", "-BUSY");
    assert!(told(&mut subscriber).ends_with("$1 k"));
    assert!(call(&mut other, "GET k").starts_with("-BUSY"), "the script still runs");
}

#[test]
fn a_client_that_sends_no_more_gets_its_reply() {
    let mut stuck = Stuck::after(&ARGS, &[], 0);
    let mut socket = TcpStream::connect(stuck.server.addr).unwrap();
    socket.write_all(b"SET k 1\r\nGET k\r\n").unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
    stuck.until_noticed();
    until(&mut stuck.observer, "CLIENT LIST", "cmd=get");
    stuck.release();
    let mut replies = String::new();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.read_to_string(&mut replies).unwrap();
    assert_eq!(replies, "+OK\r\n$1\r\n1\r\n");
    until(&mut stuck.observer, "INFO clients", "connected_clients:1 ");
}

#[test]
fn what_shows_no_key_does_not_wait() {
    let mut stuck = Stuck::after(&ARGS, &["SET still 1", "LOCK.ACQUIRE held first 60000"], 0);
    let mut writers = clients(&stuck.server, &["SET k 1"]);
    stuck.until_noticed();
    let mut wire = stuck.server.wire();
    for (request, reply) in [
        ("WATCH k", "+OK"),
        ("UNWATCH", "+OK"),
        ("MULTI", "+OK"),
        ("GET k", "+QUEUED"),
        ("DISCARD", "+OK"),
        ("WAIT 0 0", ":0"),
        ("PUBLISH news x", ":0"),
    ] {
        assert_eq!(call(&mut wire, request), reply, "{request}");
    }
    assert!(call(&mut wire, "LOCK.STATS").starts_with('*'));
    // The transaction itself shows what it reads.
    assert_eq!(call(&mut wire, "MULTI"), "+OK");
    assert_eq!(call(&mut wire, "GET k"), "+QUEUED");
    send(&mut wire, "EXEC");
    writers.push(wire);
    stuck.assert_held(&mut writers);
    stuck.release();
    assert_eq!((told(&mut writers[0]), told(&mut writers[1])), ("+OK".to_owned(), "*1 $1 1".to_owned()));
}

#[test]
fn a_batch_that_is_cut_off_by_a_full_disk_leaves_no_trace() {
    // The limit is in the first line of the batch, in its header's number, in its body, before its end.
    for bytes in [1, 30, 80, 150] {
        let mut stuck = Stuck::after(&ARGS, &["SET k 1"], bytes);
        let value = "x".repeat(200);
        let mut writers = clients(&stuck.server, &[&format!("SET big {value}")]);
        stuck.until_noticed();
        stuck.assert_held(&mut writers);
        let digest = {
            // The server that is killed now leaves what a crash on a full disk leaves.
            let Stuck { folder, server, .. } = stuck;
            server.kill();
            stuck = Stuck {
                server: Server::start(&folder, &["--aof-load-truncated", "no"]),
                folder,
                observer: writers.remove(0),
                durable: 0,
            };
            let mut wire = stuck.server.wire();
            assert_eq!(call(&mut wire, "GET k"), "$1 1");
            assert_eq!(call(&mut wire, "EXISTS big"), ":0", "the write was not acknowledged");
            call(&mut wire, "DEBUG DIGEST")
        };
        let Stuck { folder, server, .. } = stuck;
        server.stop();
        let server = Server::start(&folder, &ARGS);
        assert_eq!(call(&mut server.wire(), "DEBUG DIGEST"), digest);
    }
}

#[test]
fn a_file_is_switched_off_on_a_full_disk_and_a_server_ends_there() {
    let mut stuck = Stuck::after(&ARGS, &["SET k 1"], 0);
    assert_eq!(call(&mut stuck.observer, "CONFIG SET appendonly no"), "+OK");
    assert_eq!(call(&mut stuck.observer, "SET k 2"), "+OK");
    stuck.server.limit_files(None);
    assert_eq!(call(&mut stuck.observer, "CONFIG SET appendonly yes"), "+OK");
    wait_for("the file", || (figure(&mut stuck.observer, "aof_rewrite_in_progress") == 0).then_some(()));
    let size = std::fs::metadata(stuck.folder.increments().last().unwrap()).unwrap().len();
    stuck.server.limit_files(Some(size));
    // What says that the file was closed finds no space.
    let Stuck { folder, server, .. } = stuck;
    server.stop();
    let server = Server::start(&folder, &ARGS);
    assert_eq!(call(&mut server.wire(), "GET k"), "$1 2");
}

#[test]
fn a_reply_comes_after_its_batch_is_durable() {
    let folder = Folder::new();
    let server = Server::start(&folder, &ARGS);
    let (mut writer, mut observer) = (server.wire(), server.wire());
    for n in 1..=300u64 {
        assert_eq!(call(&mut writer, &format!("SET k {n}")), "+OK");
        assert!(figure(&mut observer, "log_batch_durable") >= n, "the reply to write {n} came too early");
    }
    let mut writers: Vec<Wire> = (0..8).map(|_| server.wire()).collect();
    let syncs = figure(&mut observer, "log_syncs");
    for n in 0..40 {
        while_stopped(server.pid(), || writers.iter_mut().for_each(|writer| send(writer, &format!("SET k {n}"))));
        writers.iter_mut().for_each(|writer| assert_eq!(told(writer), "+OK"));
    }
    let shared = figure(&mut observer, "log_syncs") - syncs;
    assert!(shared < 8 * 40, "writers share syncs: {shared}");
    wait_for("the last batch", || {
        (figure(&mut observer, "log_batch_durable") == figure(&mut observer, "log_batch_written")).then_some(())
    });
    assert_eq!(info(&mut observer, "aof_last_write_status"), "ok");
}
