//! `appendfsync everysec`: a clean stop loses nothing, and a kill at most the last second and the time of one sync.
//!
//! The test says how much a crash may lose. SIGKILL leaves the system's page cache alone, so it loses what the process had not
//! written, not what the disk had not synced.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::servers::withheld;
use crate::common::talk::call;
use crate::common::wire::Wire;
use crate::process::{Folder, Server, wait_for};

const ARGS: [&str; 2] = ["--appendfsync", "everysec"];
/// What may be lost: a second, and a sync on a slow disk.
const LOSS: Duration = Duration::from_millis(1500);
/// The lists that are written to in turn.
const LISTS: u64 = 8;

/// The elements of a list.
#[track_caller]
fn elements(wire: &mut Wire, list: u64) -> Vec<u64> {
    let reply = wire.call(&["LRANGE", &format!("list:{list}"), "0", "-1"]).unwrap().frame;
    let number = |text: &[u8]| std::str::from_utf8(text).unwrap().parse().unwrap();
    reply.elements().unwrap().iter().map(|element| number(element.text().unwrap())).collect()
}

/// The changes are handed over at a time that the clock reaches in the middle of the command.
#[test]
fn a_clock_that_moves_right_after_a_write_arrives() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--appendfsync", "everysec", "--test-mode"]);
    let mut wire = server.wire();
    for round in 0..10 {
        assert_eq!(call(&mut wire, &format!("SET k {round}")), "+OK");
        assert_eq!(call(&mut wire, "CLOCK ADVANCE 5"), "+OK");
    }
    server.stop();
    let server = Server::start(&folder, &ARGS);
    assert_eq!(call(&mut server.wire(), "GET k"), "$1 9");
}

#[test]
fn a_clean_stop_loses_nothing() {
    let folder = Folder::new();
    let mut digest = String::new();
    for round in 0..3 {
        let server = Server::start(&folder, &ARGS);
        let mut wire = server.wire();
        if round > 0 {
            assert_eq!(call(&mut wire, "GETDEL last"), format!("$1 {round}"));
            assert_eq!(call(&mut wire, "DEBUG DIGEST"), digest);
            assert_eq!(call(&mut wire, "DBSIZE"), format!(":{}", LISTS * round));
        }
        for number in 0..2000 {
            let list = LISTS * round + number % LISTS;
            wire.queue(&["RPUSH", &format!("list:{list}"), &number.to_string()]);
        }
        wire.flush().unwrap();
        (0..2000).for_each(|_| assert!(wire.reply().unwrap().frame.integer().is_some()));
        digest = call(&mut wire, "DEBUG DIGEST");
        // Nobody has waited for this one.
        assert_eq!(call(&mut wire, &format!("SET last {}", round + 1)), "+OK");
        server.stop();
    }
}

#[test]
fn a_kill_loses_at_most_the_last_second() {
    let folder = Folder::new();
    let server = Server::start(&folder, &ARGS);
    let addr = server.addr;
    let ended = AtomicBool::new(false);
    let (answers, killed, withheld) = std::thread::scope(|scope| {
        let ended = &ended;
        let writer = scope.spawn(move || {
            let mut wire = Wire::connect(addr).unwrap();
            let mut answers = Vec::new();
            loop {
                let number = answers.len() as u64;
                match wire.call(&["RPUSH", &format!("list:{}", number % LISTS), &number.to_string()]) {
                    Ok(reply) => assert_eq!(reply.frame.integer(), Some((number / LISTS + 1) as i64)),
                    Err(_) => {
                        assert!(ended.load(Ordering::SeqCst), "the server ended before it was killed");
                        return answers;
                    }
                }
                answers.push(Instant::now());
                // So slowly that no batch is written for its size.
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        // Not right after a sync.
        let begin = Instant::now();
        wait_for("the moment of the kill", || (writer.is_finished() || begin.elapsed() > LOSS + LOSS / 2).then_some(()));
        ended.store(true, Ordering::SeqCst);
        let (killed, withheld) = (Instant::now(), withheld(server.pid()));
        server.kill();
        (writer.join().unwrap(), killed, withheld)
    });
    let server = Server::start(&folder, &ARGS);
    let mut wire = server.wire();
    let mut kept = vec![false; answers.len() + 1];
    for list in 0..LISTS {
        let elements = elements(&mut wire, list);
        let wanted: Vec<u64> = (0..elements.len() as u64).map(|n| list + n * LISTS).collect();
        assert_eq!(elements, wanted, "what is left of a list is its beginning");
        elements.iter().for_each(|&number| kept[number as usize] = true);
    }
    let first = kept.iter().position(|kept| !kept).unwrap_or(kept.len());
    assert!(!kept[first.min(answers.len())..].contains(&true), "a write is there and an earlier one is not");
    let lost = answers.len().saturating_sub(first);
    let age = answers.get(first).map_or(Duration::ZERO, |answered| killed.saturating_duration_since(*answered));
    println!("{} writes were acknowledged, {lost} are lost, the first of them {age:?} old; withheld {withheld:?}", answers.len());
    assert!(age <= LOSS + withheld, "{lost} writes are lost, the first of them was {age:?} old; withheld {withheld:?}");
}
