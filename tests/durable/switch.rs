//! `CONFIG SET appendonly`: the file is switched on and off while the server runs.

use std::sync::mpsc::channel;

use portcullis::testing::TestServer;

use crate::common::talk::{call, play, send, token, told};
use crate::common::wire::Wire;
use crate::process::{Folder, PATIENCE, Server, figure, info, wait_for};

const OFF: [&str; 4] = ["--appendonly", "no", "--appendfsync", "always"];
const ON: [&str; 2] = ["--appendfsync", "always"];

fn switch_on(wire: &mut Wire) {
    assert_eq!(call(wire, "CONFIG SET appendonly yes"), "+OK");
    wait_for("the file", || {
        assert_eq!(info(wire, "aof_enabled"), "1");
        (figure(wire, "aof_rewrite_in_progress") == 0).then_some(())
    });
    assert_eq!(info(wire, "aof_last_bgrewrite_status"), "ok");
    // Growth counts from it: with nothing, the next write would begin another base.
    assert!(figure(wire, "aof_base_size") > 0);
}

fn switch_off(wire: &mut Wire) {
    assert_eq!(call(wire, "CONFIG SET appendonly no"), "+OK");
    assert_eq!(info(wire, "aof_enabled"), "0");
}

#[test]
fn a_file_that_is_switched_on_has_what_was_there_before() {
    let folder = Folder::new();
    let server = Server::start(&folder, &OFF);
    let mut wire = server.wire();
    let first = token(&mut wire, "LOCK.ACQUIRE l me 600000");
    play(&mut wire, &[("RPUSH list a b", ":2"), ("SET gone 1", "+OK")]);
    switch_on(&mut wire);
    play(&mut wire, &[("RPUSH list c", ":3"), ("DEL gone", ":1")]);
    let second = token(&mut wire, "LOCK.ACQUIRE m me 600000");
    let digest = call(&mut wire, "DEBUG DIGEST");
    server.kill();
    let server = Server::start(&folder, &ON);
    let mut wire = server.wire();
    assert_eq!(call(&mut wire, "DEBUG DIGEST"), digest);
    play(&mut wire, &[("LOCK.ACQUIRE l another 1000", "$-1"), ("LOCK.RELEASE l me", ":0"), ("LOCK.RELEASE m me", ":0")]);
    let third = token(&mut wire, "LOCK.ACQUIRE l another 1000");
    assert!(first < second && second < third, "{first} {second} {third}");
}

#[test]
fn nothing_is_lost_that_was_acknowledged_after_the_file_was_on() {
    let folder = Folder::new();
    let server = Server::start(&folder, &OFF);
    let mut wire = server.wire();
    let script = "for n = 1, 30000 do redis.call('SET', 'k' .. n, 0) end";
    wire.queue(&["EVAL", script, "0"]);
    wire.flush().unwrap();
    told(&mut wire);
    let addr = server.addr;
    let clients: Vec<_> = (0..4)
        .map(|client| {
            std::thread::spawn(move || {
                let mut wire = Wire::connect(addr).unwrap();
                let mut acknowledged = 0u64;
                loop {
                    wire.queue(&["INCR", &format!("count:{client}")]);
                    wire.queue(&["RPUSH", &format!("list:{client}"), &acknowledged.to_string()]);
                    if wire.flush().is_err() || wire.reply().is_err() || wire.reply().is_err() {
                        return acknowledged;
                    }
                    acknowledged += 1;
                }
            })
        })
        .collect();
    switch_on(&mut wire);
    wait_for("some more batches", || (figure(&mut wire, "log_batch_durable") > 50).then_some(()));
    server.kill();
    let acknowledged: Vec<u64> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    let server = Server::start(&folder, &ON);
    let mut wire = server.wire();
    for (client, acknowledged) in acknowledged.into_iter().enumerate() {
        let reply = call(&mut wire, &format!("GET count:{client}"));
        let count: u64 = reply.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(
            (acknowledged..=acknowledged + 1).contains(&count),
            "client {client}: {acknowledged} acknowledged, {count} there"
        );
        let reply = call(&mut wire, &format!("LLEN list:{client}"));
        let len: u64 = reply[1..].parse().unwrap();
        assert!((acknowledged..=acknowledged + 1).contains(&len), "client {client}: {acknowledged} acknowledged, {len} there");
    }
    assert_eq!(call(&mut wire, "GET k30000"), "$1 0");
}

#[test]
fn a_file_that_is_switched_off_ends_there() {
    let folder = Folder::new();
    let server = Server::start(&folder, &ON);
    let mut wire = server.wire();
    assert_eq!(call(&mut wire, "SET a 1"), "+OK");
    switch_off(&mut wire);
    play(
        &mut wire,
        &[("SET b 1", "+OK"), ("BGREWRITEAOF", "-ERR Portcullis has no append-only file to rewrite: appendonly is no")],
    );
    let mut other = Server::start(&folder, &ON);
    play(&mut other.wire(), &[("GET a", "$1 1"), ("GET b", "$-1")]);
    // The folder is in use now: it is tried again until the other server has ended.
    assert_eq!(call(&mut wire, "CONFIG SET appendonly yes"), "+OK");
    wait_for("the attempt", || (info(&mut wire, "aof_last_bgrewrite_status") == "err").then_some(()));
    other.check();
    drop(other);
    wait_for("the next attempt", || {
        let succeeded = info(&mut wire, "aof_last_bgrewrite_status") == "ok";
        (succeeded && figure(&mut wire, "aof_rewrite_in_progress") == 0).then_some(())
    });
    assert_eq!(call(&mut wire, "SET c 1"), "+OK");
    server.kill();
    let server = Server::start(&folder, &ON);
    play(&mut server.wire(), &[("GET a", "$1 1"), ("GET b", "$1 1"), ("GET c", "$1 1")]);
}

#[test]
fn it_can_be_switched_often() {
    let folder = Folder::new();
    let server = Server::start(&folder, &ON);
    let mut wire = server.wire();
    for round in 0..20 {
        assert_eq!(call(&mut wire, &format!("RPUSH list {round}")), format!(":{}", 2 * round + 1));
        assert_eq!(call(&mut wire, "CONFIG SET appendonly no"), "+OK");
        assert_eq!(call(&mut wire, &format!("RPUSH list {round}")), format!(":{}", 2 * round + 2));
        assert_eq!(call(&mut wire, "CONFIG SET appendonly yes"), "+OK");
    }
    switch_on(&mut wire);
    assert_eq!(folder.files().len(), 3, "{:?}", folder.files().into_iter().map(|(name, _)| name).collect::<Vec<_>>());
    assert!(!server.log().contains("it is tried again"), "the folder is waited for: {}", server.log());
    assert_eq!(call(&mut wire, "RPUSH list last"), ":41");
    server.kill();
    let server = Server::start(&folder, &ON);
    assert_eq!(call(&mut server.wire(), "LLEN list"), ":41");
}

#[test]
fn what_waits_for_a_stuck_disk_is_let_go_when_the_file_is_switched_off() {
    let folder = Folder::new();
    let server = Server::start(&folder, &ON);
    let mut wire = server.wire();
    assert_eq!(call(&mut wire, "SET a 1"), "+OK");
    let size = std::fs::metadata(folder.increments().last().unwrap()).unwrap().len();
    server.limit_files(Some(size));
    send(&mut wire, "SET a 2");
    let mut other = server.wire();
    wait_for("the server to notice", || (info(&mut other, "aof_last_write_status") == "err").then_some(()));
    assert!(call(&mut other, "SET b 1").starts_with("-MISCONF"));
    switch_off(&mut other);
    assert_eq!(told(&mut wire), "+OK");
    play(&mut other, &[("GET a", "$1 2"), ("SET b 1", "+OK")]);
}

#[test]
fn a_folder_that_cannot_be_made_is_refused() {
    let folder = Folder::new();
    let server = Server::start(&folder, &OFF);
    let mut wire = server.wire();
    std::fs::write(folder.log_dir(), "a file").unwrap();
    let refusal =
        "-ERR CONFIG SET failed (possibly related to argument 'appendonly') - Unable to turn on AOF. Check server logs.";
    play(&mut wire, &[("CONFIG SET appendonly yes", refusal), ("CONFIG GET appendonly", "*2 $10 appendonly $2 no")]);
    assert_eq!(info(&mut wire, "aof_enabled"), "0");
}

#[test]
fn a_base_that_is_not_wanted_any_more_does_not_take_the_place_of_the_next() {
    let folder = Folder::new();
    let server = Server::start(&folder, &ON);
    let mut wire = server.wire();
    wire.queue(&["EVAL", "for n = 1, 40000 do redis.call('SET', 'k' .. n, 0) end", "0"]);
    for request in ["BGREWRITEAOF", "FLUSHALL", "SET after 1", "CONFIG SET appendonly no", "CONFIG SET appendonly yes"] {
        wire.queue(&request.split(' ').collect::<Vec<_>>());
    }
    wire.flush().unwrap();
    (0..6).for_each(|_| _ = told(&mut wire));
    wait_for("the file", || (info(&mut wire, "aof_rewrite_in_progress") == "0" && folder.files().len() == 3).then_some(()));
    switch_on(&mut wire);
    assert_eq!(call(&mut wire, "SET last 1"), "+OK");
    assert!(!server.log().contains("it is tried again"), "the folder is waited for: {}", server.log());
    // The thread that made the unwanted base has ended when the folder can be locked by the next server.
    server.kill();
    let server = Server::start(&folder, &ON);
    play(&mut server.wire(), &[("DBSIZE", ":2"), ("GET after", "$1 1"), ("GET last", "$1 1")]);
}

#[test]
fn waitaof_waits_for_the_base_of_a_file_that_is_switched_on() {
    let folder = Folder::new();
    let server = Server::start(&folder, &OFF);
    let mut wire = server.wire();
    wire.queue(&["EVAL", "for n = 1, 20000 do redis.call('SET', 'k' .. n, 0) end", "0"]);
    for request in ["CONFIG SET appendonly yes", "WAITAOF 1 0 0", "INFO persistence"] {
        wire.queue(&request.split(' ').collect::<Vec<_>>());
    }
    wire.flush().unwrap();
    assert_eq!((told(&mut wire), told(&mut wire)), ("$-1".to_owned(), "+OK".to_owned()));
    assert_eq!(told(&mut wire), "*2 :1 :0");
    assert!(told(&mut wire).contains("aof_rewrite_in_progress:0"), "the base is on the disk");
    server.kill();
    let server = Server::start(&folder, &ON);
    assert_eq!(call(&mut server.wire(), "DBSIZE"), ":20000");
}

#[test]
fn a_copy_that_is_not_wanted_any_more_is_waited_for() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[&OFF[..], &["--test-mode"]].concat());
    let mut wire = server.wire();
    wire.queue(&["EVAL", "for n = 1, 20000 do redis.call('SET', 'k' .. n, 0) end", "0"]);
    // No time passes after which it could be tried again.
    for request in ["CLOCK FREEZE", "CONFIG SET appendonly yes", "CONFIG SET appendonly no", "CONFIG SET appendonly yes"] {
        wire.queue(&request.split(' ').collect::<Vec<_>>());
    }
    wire.flush().unwrap();
    (0..5).for_each(|_| _ = told(&mut wire));
    switch_on(&mut wire);
    assert!(!server.log().contains("it is tried again"), "the folder is waited for: {}", server.log());
    assert_eq!(call(&mut wire, "SET last 1"), "+OK");
    server.kill();
    let server = Server::start(&folder, &ON);
    assert_eq!(call(&mut server.wire(), "DBSIZE"), ":20001");
}

#[test]
fn a_file_that_could_not_be_switched_on_is_tried_again_when_it_is_asked_for() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[&OFF[..], &["--test-mode"]].concat());
    let mut wire = server.wire();
    let other = Server::start(&folder, &ON);
    play(&mut wire, &[("CLOCK FREEZE", "+OK"), ("SET a 1", "+OK"), ("CONFIG SET appendonly yes", "+OK")]);
    assert_eq!(info(&mut wire, "aof_last_bgrewrite_status"), "err");
    other.kill();
    assert_eq!(call(&mut wire, "BGREWRITEAOF"), "+Background append only file rewriting started");
    wait_for("the file", || {
        assert_eq!(info(&mut wire, "aof_last_bgrewrite_status"), "ok");
        (figure(&mut wire, "aof_rewrite_in_progress") == 0).then_some(())
    });
    server.kill();
    assert_eq!(call(&mut Server::start(&folder, &ON).wire(), "GET a"), "$1 1");
}

#[test]
fn a_server_does_not_end_while_the_file_is_being_made_unless_it_is_forced_to() {
    let refused = "-ERR Errors trying to SHUTDOWN. Check logs.";
    let fill = "for n = 1, 20000 do redis.call('SET', 'k' .. n, 0) end";
    let folder = Folder::new();
    let server = Server::start(&folder, &OFF);
    let mut wire = server.wire();
    wire.queue(&["EVAL", fill, "0"]);
    for request in ["CONFIG SET appendonly yes", "SHUTDOWN", "SHUTDOWN NOSAVE NOW", "SHUTDOWN SAVE", "PING"] {
        wire.queue(&request.split(' ').collect::<Vec<_>>());
    }
    wire.flush().unwrap();
    let replies: Vec<String> = (0..6).map(|_| told(&mut wire)).collect();
    assert_eq!(replies, ["$-1", "+OK", refused, refused, refused, "+PONG"]);
    assert!(server.log().contains("Writing initial AOF, can't exit."), "{}", server.log());
    switch_on(&mut wire);
    server.stop();
    let server = Server::start(&folder, &OFF);
    let mut wire = server.wire();
    wire.queue(&["EVAL", fill, "0"]);
    for request in ["CONFIG SET appendonly yes", "SHUTDOWN FORCE"] {
        wire.queue(&request.split(' ').collect::<Vec<_>>());
    }
    wire.flush().unwrap();
    server.ended();
}

#[test]
fn a_server_that_is_dropped_ends_whatever_its_files_say() {
    let folder = Folder::new();
    let server = TestServer::builder().config("dir", folder.dir().to_str().unwrap()).start();
    server.execute(&["EVAL", "for n = 1, 50000 do redis.call('SET', 'k' .. n, 0) end", "0"]);
    server.execute(&["CONFIG", "SET", "appendonly", "yes"]);
    let (ended, end) = channel();
    std::thread::spawn(move || {
        drop(server);
        ended.send(()).unwrap();
    });
    end.recv_timeout(PATIENCE).expect("it ends");
}
