//! Sends every recorded script, and every recorded request about functions, to a real redis-server 7 and to Portcullis over TCP,
//! with RESP2 and RESP3, and compares the bytes of the replies.
//!
//! ```text
//!                                  ┌─▶ redis-server ─▶ reply ─┐ equal, unless it is one of the exceptions (exceptions.rs)
//!   src/script/cases*.txt ─▶ case ─┤      recorded  ─▶ reply ─┤
//!                                  └─▶ portcullis   ─▶ reply ─┘ equal, always
//! ```
//!
//! The unit tests of `script` replay the same recordings without a server. This test proves that the recordings are true. An
//! exception that is no longer needed is an error.
//!
//! It is skipped without a redis-server of version 7.0 in `PATH`, and says so. Environment:
//! - `PORTCULLIS_REQUIRE_REDIS=1`: fail instead of skipping;
//! - `PORTCULLIS_REDIS8`: a redis-server of 7.4 or later, which must reply like us where 7.0 is excused because it is older;
//! - `PORTCULLIS_RECORD=1`: write the recordings again from the servers' replies. A new case needs only its script.
//!
//! Beside the recordings: `crash` has scripts that crash an interpreter or use all of its memory, `escape` scripts that escape
//! from the sandbox.

#[path = "../common/mod.rs"]
mod common;

mod crash;
mod escape;
mod exceptions;
mod recording;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use common::servers::{Server, on_path};
use common::wire::Wire;
use exceptions::{EXCEPTIONS, Exception, Why};
use recording::{Protocol, Recording};

/// Minimum number of cases of scripts.
const SCRIPTS_MIN: usize = 400;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The redis-server 7.0, if it is installed.
fn redis_7() -> Option<Server> {
    let server = on_path("redis-server").map(|program| Server::redis(&program).expect("the redis-server starts"));
    let found = server.as_ref().map_or_else(|| "none".to_owned(), version);
    if found.starts_with("7.0.") {
        return server;
    }
    let skipped = format!("a redis-server 7.0 is needed on the PATH, there is {found}");
    assert!(variable("PORTCULLIS_REQUIRE_REDIS").is_none(), "{skipped}, and PORTCULLIS_REQUIRE_REDIS is set");
    println!("SKIPPED: {skipped}; nothing was compared");
    None
}

fn version(server: &Server) -> String {
    let info = Wire::connect(server.addr).and_then(|mut wire| wire.call(&["INFO", "server"])).expect("INFO");
    let text = String::from_utf8_lossy(&info.raw).into_owned();
    text.lines().find_map(|line| line.strip_prefix("redis_version:")).expect("redis_version").trim().to_owned()
}

/// A server on which the cases are run.
struct Player {
    server: Server,
    wire: Wire,
}

impl Player {
    fn new(server: Server) -> Player {
        let wire = Wire::connect(server.addr).expect("the server accepts");
        Player { server, wire }
    }

    /// Empties the server and opens a session.
    fn begin(&mut self, protocol: Protocol) {
        self.wire = Wire::connect(self.server.addr).expect("the server accepts");
        for request in [
            &["FLUSHALL"][..],
            &["SCRIPT", "FLUSH", "SYNC"],
            &["FUNCTION", "FLUSH", "SYNC"],
            &["CONFIG", "SET", "maxmemory", "0"],
            &["DEBUG", "SET-DISABLE-DENY-SCRIPTS", "0"],
        ] {
            assert_eq!(self.reply(request), b"+OK\r\n", "{request:?}");
        }
        if protocol == Protocol::Resp3 {
            self.reply(&["HELLO", "3"]);
        }
    }

    fn reply<A: AsRef<[u8]>>(&mut self, request: &[A]) -> Vec<u8> {
        match self.wire.call(request) {
            Ok(reply) => reply.raw,
            Err(error) => {
                let words: Vec<_> = request.iter().map(|arg| arg.as_ref().escape_ascii().to_string()).collect();
                panic!("{error} instead of a reply to {words:?}; {:?}", self.server.check());
            }
        }
    }
}

/// The outcome of the comparison.
#[derive(Default)]
struct Outcome {
    compared: usize,
    differences: Vec<String>,
    used: BTreeSet<&'static str>,
}

impl Outcome {
    fn differ(&mut self, case: &recording::Case, protocol: Protocol, what: &str, replies: [(&str, &[u8]); 2]) {
        let shown = replies.map(|(who, reply)| format!("\n    {who:8} {}", reply.escape_ascii()));
        self.differences.push(format!("{what}, {protocol:?}: {}{}", case.text, shown.concat()));
    }
}

/// Runs a recording on both servers, and on the newer one if there is one.
fn play(recording: &mut Recording, redis: &mut Player, us: &mut Player, mut newer: Option<&mut Player>, outcome: &mut Outcome) {
    let record = variable("PORTCULLIS_RECORD").is_some();
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        for case in recording.cases_mut() {
            if case.begins {
                redis.begin(protocol);
                us.begin(protocol);
                newer.iter_mut().for_each(|newer| newer.begin(protocol));
            }
            let theirs = redis.reply(&case.request);
            let ours = us.reply(&case.request);
            outcome.compared += 1;
            let exception: Option<&Exception> = EXCEPTIONS.iter().find(|exception| exception.case == case.text);
            if record {
                case.record(protocol, if exception.is_some() { &ours } else { &theirs });
            }
            let recorded = case.recorded(protocol);
            if ours != recorded {
                outcome.differ(case, protocol, "ours is not as recorded", [("recorded", recorded), ("ours", &ours)]);
            }
            match exception {
                None if theirs != recorded => {
                    outcome.differ(case, protocol, "Redis's is not as recorded", [("recorded", recorded), ("Redis", &theirs)]);
                }
                None => {}
                Some(exception) => {
                    if theirs != ours {
                        outcome.used.insert(exception.case);
                    }
                    let Some(newer) = newer.as_mut().filter(|_| exception.why == Why::Newer) else { continue };
                    let newest = newer.reply(&case.request);
                    if newest != ours {
                        let replies = [("ours", ours.as_slice()), ("newer", newest.as_slice())];
                        outcome.differ(case, protocol, "no newer Redis says so", replies);
                    }
                }
            }
        }
    }
    if record {
        recording.write();
    }
}

#[test]
fn every_recorded_case_is_answered_as_redis_answers_it() {
    let Some(redis) = redis_7() else { return };
    let mut redis = Player::new(redis);
    let program = PathBuf::from(env!("CARGO_BIN_EXE_portcullis"));
    let mut us = Player::new(Server::portcullis(&program).expect("portcullis starts"));
    let mut newer = variable("PORTCULLIS_REDIS8")
        .map(|program| Player::new(Server::redis(Path::new(&program)).expect("the newer redis-server starts")));
    let mut outcome = Outcome::default();
    let mut scripts = 0;
    for mut recording in recording::all() {
        let cases = recording.cases_mut().count();
        scripts += if recording.is_of_scripts() { cases } else { 0 };
        println!("{cases:5} cases of {}", recording.name);
        play(&mut recording, &mut redis, &mut us, newer.as_mut(), &mut outcome);
    }
    println!("{} replies of redis-server {} and ours compared by their bytes", outcome.compared, version(&redis.server));
    println!("{} exceptions:", EXCEPTIONS.len());
    for exception in EXCEPTIONS {
        println!("  {} ({:?})\n      {}", exception.case, exception.why, exception.reason);
    }
    for exception in EXCEPTIONS.iter().filter(|exception| !outcome.used.contains(exception.case)) {
        outcome.differences.push(format!("no exception is needed: {}", exception.case));
    }
    assert!(outcome.differences.is_empty(), "{} differences:\n{}", outcome.differences.len(), outcome.differences.join("\n"));
    assert!(scripts >= SCRIPTS_MIN, "only {scripts} cases of scripts");
}
