//! `WAITAOF`: it replies when the changes before it are durable, or after its time.

use crate::common::talk::{call, play, send, told, until_blocked};
use crate::process::{Folder, Server};
use crate::stuck::Stuck;

const NONE: &str = "*2 :0 :0";
const LOCAL: &str = "*2 :1 :0";

#[test]
fn waitaof_waits_for_a_stuck_disk_under_each_setting() {
    for policy in ["always", "everysec", "no"] {
        let mut stuck = Stuck::after(&["--appendfsync", policy], &[], 0);
        let (mut writer, mut waiter, mut other) = (stuck.server.wire(), stuck.server.wire(), stuck.server.wire());
        assert_eq!(call(&mut other, "WAITAOF 1 0 0"), LOCAL, "{policy}: nothing was written yet");
        send(&mut writer, "SET k 1");
        if policy != "always" {
            assert_eq!(told(&mut writer), "+OK");
        }
        stuck.until_noticed();
        let id = call(&mut waiter, "CLIENT ID").split_off(1);
        send(&mut waiter, "WAITAOF 1 0 0");
        until_blocked(&mut stuck.observer, 1);
        // Whoever does not wait, or waits only so long, is told that it is not durable.
        for request in ["WAITAOF 0 0 0", "WAITAOF 1 0 20", "WAITAOF 0 1 20", "WAITAOF 1 1 20"] {
            assert_eq!(call(&mut other, request), NONE, "{policy}: {request}");
        }
        assert_eq!(call(&mut stuck.observer, &format!("CLIENT UNBLOCK {id}")), ":1");
        assert_eq!(told(&mut waiter), NONE, "{policy}");
        assert_eq!(call(&mut stuck.observer, &format!("CLIENT UNBLOCK {id} ERROR")), ":0");
        send(&mut waiter, "WAITAOF 1 0 3600000");
        // In a transaction and in a script nobody waits. Their replies may show the change, so under `always` they wait themselves.
        play(&mut other, &[("MULTI", "+OK"), ("WAITAOF 1 0 0", "+QUEUED")]);
        send(&mut other, "EXEC");
        other.queue(&["EVAL_RO", "return redis.call('WAITAOF', 1, 0, 0)", "0"]);
        other.flush().unwrap();
        if policy != "always" {
            assert_eq!((told(&mut other), told(&mut other)), (format!("*1 {NONE}"), NONE.to_owned()), "{policy}");
        }
        until_blocked(&mut stuck.observer, 1);
        stuck.assert_held(std::slice::from_mut(&mut waiter));
        stuck.release();
        if policy == "no" {
            // The change is in the file now, and nobody has asked the disk for it.
            assert_eq!(call(&mut stuck.observer, "WAITAOF 1 0 20"), NONE);
            assert!(!waiter.has_input());
            assert_eq!(call(&mut stuck.observer, "CONFIG SET appendfsync everysec"), "+OK");
        }
        assert_eq!(told(&mut waiter), LOCAL, "{policy}");
        if policy == "always" {
            assert_eq!(told(&mut writer), "+OK");
            assert_eq!((told(&mut other), told(&mut other)), (format!("*1 {NONE}"), NONE.to_owned()));
        }
        play(&mut other, &[("WAITAOF 1 0 0", LOCAL), ("WAITAOF 0 0 0", LOCAL), ("WAITAOF 0 1 10", LOCAL), ("WAIT 1 10", ":0")]);
        until_blocked(&mut stuck.observer, 0);
    }
}

#[test]
fn what_waitaof_has_confirmed_outlives_a_kill() {
    let folder = Folder::new();
    for round in 0..3 {
        let server = Server::start(&folder, &["--appendfsync", "everysec"]);
        let mut wire = server.wire();
        if round > 0 {
            assert_eq!(call(&mut wire, "GET k"), format!("$1 {round}"));
        }
        // The changes of another connection count as well.
        assert_eq!(call(&mut server.wire(), &format!("SET k {}", round + 1)), "+OK");
        assert_eq!(call(&mut wire, "WAITAOF 1 0 0"), LOCAL);
        server.kill();
    }
}

#[test]
fn a_waiting_client_that_leaves_is_forgotten() {
    let mut stuck = Stuck::after(&["--appendfsync", "everysec"], &[], 0);
    let mut waiters: Vec<_> = (0..3).map(|_| stuck.server.wire()).collect();
    assert_eq!(call(&mut waiters[0], "SET k 1"), "+OK");
    waiters.iter_mut().for_each(|waiter| send(waiter, "WAITAOF 1 0 0"));
    until_blocked(&mut stuck.observer, 3);
    drop(waiters.remove(1));
    until_blocked(&mut stuck.observer, 2);
    stuck.release();
    waiters.iter_mut().for_each(|waiter| assert_eq!(told(waiter), LOCAL));
}
