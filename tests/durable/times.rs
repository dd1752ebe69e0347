//! Everything with a time in it shows the same time after a start from files.

use std::time::{Duration, Instant};

use crate::common::wire::{Frame, Wire};
use crate::interchange::ask;
use crate::process::{Folder, Server, required, rewrite};

/// By how much a time may differ, besides the time that the requests take.
const MAY_DIFFER: Duration = Duration::from_millis(50);
/// For times that are shown in seconds.
const SECOND: Duration = Duration::from_secs(1);

const ALWAYS: [&str; 2] = ["--appendfsync", "always"];

const FILL: &[&str] = &[
    "SET timed x PX 100000",
    "HSET hash a 1",
    "HPEXPIRE hash 200000 FIELDS 1 a",
    "XADD stream 1-1 job a",
    "XADD stream 1-2 job b",
    "XGROUP CREATE stream group 0",
    "XREADGROUP GROUP group worker COUNT 1 STREAMS stream >",
    "XREADGROUP GROUP group other STREAMS stream >",
    "XCLAIM stream group thief 0 1-2 IDLE 30000",
];
const FILL_LOCKS: &[&str] =
    &["LOCK.ACQUIRE lock me 150000", "SEM.ACQUIRE semaphore me 160000 LIMIT 2", "LATCH.SET latch 2 PX 170000"];

/// A moment, as the requests that asked for it bound it: it is between the two. Moments of different servers can be compared, because
/// all are on the clock of this process.
#[derive(Clone, Copy, Debug)]
struct Moment {
    after_ms: i128,
    before_ms: i128,
}

/// What is asked for, where in the reply the time is, and how it counts: `Ago` and `Left` in milliseconds, `Seconds` ago.
#[derive(Clone, Copy, Debug)]
enum Counts {
    Ago,
    Left,
    Seconds,
}

type Shown = (&'static str, &'static [usize], Counts);

const TIMES: &[Shown] = &[
    ("PTTL timed", &[], Counts::Left),
    ("HPTTL hash FIELDS 1 a", &[0], Counts::Left),
    ("XPENDING stream group - + 2", &[0, 2], Counts::Ago),
    ("XPENDING stream group - + 2", &[1, 2], Counts::Ago),
    // Of the consumer `worker`, which is the third: its last read and its last delivery.
    ("XINFO CONSUMERS stream group", &[2, 5], Counts::Ago),
    ("XINFO CONSUMERS stream group", &[2, 7], Counts::Ago),
];
const TIMES_OF_LOCKS: &[Shown] =
    &[("PTTL lock", &[], Counts::Left), ("PTTL semaphore", &[], Counts::Left), ("PTTL latch", &[], Counts::Left)];

fn words(request: &str) -> Vec<&str> {
    request.split(' ').collect()
}

/// When that was, or will be.
fn moment(wire: &mut Wire, origin: Instant, (request, path, counts): Shown) -> Moment {
    let sent_ms = origin.elapsed().as_millis() as i128;
    let reply = ask(wire, &words(request));
    let now_ms = origin.elapsed().as_millis() as i128 + 1;
    let mut found: &Frame = &reply;
    for index in path {
        found = &found.elements().unwrap_or_else(|| panic!("{request}: {reply:?}"))[*index];
    }
    let number = i128::from(found.integer().unwrap_or_else(|| panic!("{request}, {path:?}: {reply:?}")));
    let (number, slack) = match counts {
        Counts::Ago => (-number, 1),
        Counts::Left => (number, 1),
        Counts::Seconds => (-number * 1000, SECOND.as_millis() as i128),
    };
    Moment { after_ms: sent_ms + number - slack, before_ms: now_ms + number + slack }
}

fn moments(wire: &mut Wire, origin: Instant, shown: &[Shown]) -> Vec<Moment> {
    shown.iter().map(|of| moment(wire, origin, *of)).collect()
}

#[track_caller]
fn assert_same(how: &str, shown: &[Shown], before: &[Moment], after: &[Moment]) {
    let may_differ = MAY_DIFFER.as_millis() as i128;
    for ((of, before), after) in shown.iter().zip(before).zip(after) {
        let is_same = before.after_ms <= after.before_ms + may_differ && after.after_ms <= before.before_ms + may_differ;
        assert!(is_same, "{how}: {of:?} was {before:?}, and is {after:?}");
    }
}

/// Takes a server through all ways to load files, and holds what is shown after each against what was shown before.
fn through_all_ways(folder: &Folder, origin: Instant, shown: &[Shown], before: &[Moment]) {
    let mut server = Server::start(folder, &ALWAYS);
    let check = |how: &str, server: &Server| assert_same(how, shown, before, &moments(&mut server.wire(), origin, shown));
    check("the first start", &server);
    ask(&mut server.wire(), &["DEBUG", "LOADAOF"]);
    check("DEBUG LOADAOF", &server);
    ask(&mut server.wire(), &["DEBUG", "RELOAD"]);
    check("DEBUG RELOAD", &server);
    server.kill();
    server = Server::start(folder, &ALWAYS);
    check("SIGKILL", &server);
    rewrite(&mut server.wire());
    check("a rewrite", &server);
    server.kill();
    server = Server::start(folder, &ALWAYS);
    check("the start from a new base", &server);
    server.terminate();
    check("SIGTERM", &Server::start(folder, &ALWAYS));
}

#[test]
fn times_outlive_every_kind_of_start() {
    let (folder, origin) = (Folder::new(), Instant::now());
    let server = Server::start(&folder, &ALWAYS);
    let mut wire = server.wire();
    for request in FILL.iter().chain(FILL_LOCKS) {
        ask(&mut wire, &words(request));
    }
    let shown = [TIMES, TIMES_OF_LOCKS].concat();
    let before = moments(&mut wire, origin, &shown);
    server.kill();
    through_all_ways(&folder, origin, &shown, &before);
}

#[test]
fn times_outlive_a_start_from_the_files_of_redis_server() {
    let Some(redis) = required("redis-server") else { return };
    for preamble in ["yes", "no"] {
        let (folder, origin) = (Folder::new(), Instant::now());
        let server = Server::start_redis(&redis, &folder, &["--aof-use-rdb-preamble", preamble]);
        let mut wire = server.wire();
        // Redis 7.0 has no fields with deadlines.
        let known = ask(&mut wire, &["COMMAND", "INFO", "hpexpire"]);
        let has_fields = known.elements().is_some_and(|known| known[0].elements().is_some());
        let is_asked = |request: &str| has_fields || !request.starts_with("HP");
        let shown: Vec<Shown> =
            TIMES.iter().filter(|(request, ..)| is_asked(request) && !request.starts_with("XINFO")).copied().collect();
        FILL.iter().filter(|request| is_asked(request)).for_each(|request| _ = ask(&mut wire, &words(request)));
        let before = moments(&mut wire, origin, &shown);
        server.kill();
        through_all_ways(&folder, origin, &shown, &before);
    }
}

#[test]
fn a_key_is_idle_since_it_was_loaded() {
    let (folder, origin) = (Folder::new(), Instant::now());
    let server = Server::start(&folder, &ALWAYS);
    ask(&mut server.wire(), &["SET", "text", "x"]);
    server.kill();
    let loaded = origin.elapsed().as_millis() as i128;
    let server = Server::start(&folder, &ALWAYS);
    let idle = moment(&mut server.wire(), origin, ("OBJECT IDLETIME text", &[], Counts::Seconds));
    assert!(idle.before_ms >= loaded, "{idle:?}, loaded after {loaded} ms");
    // A time to live that counts from a request counts from the load, as in Redis.
    drop(server);
    folder.write_increments(&[b"*3\r\n$3\r\nSET\r\n$4\r\ntext\r\n$1\r\nx\r\n*3\r\n$6\r\nEXPIRE\r\n$4\r\ntext\r\n$3\r\n100\r\n"]);
    let loaded = origin.elapsed().as_millis() as i128;
    let left = moment(&mut Server::start(&folder, &ALWAYS).wire(), origin, ("PTTL text", &[], Counts::Left));
    assert!(left.before_ms >= loaded + 100_000, "{left:?}, loaded after {loaded} ms");
}
