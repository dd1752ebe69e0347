//! Rule 10: only DEL, UNLINK, FLUSHDB, FLUSHALL, the lease, the session and the holder end or change what is held. The requests
//! come from the command table, so every new row is tested.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::base::ids::{Key, SessionId};
use crate::commands::all;
use crate::commands::reference::forms::{Form, Slot, forms};
use crate::engine::command::{Command, Flags, Group, Natives};
use crate::engine::harness::Harness;
use crate::engine::session::Peer;
use crate::keyspace::natives::lock_of;

/// The minimum number of cases that the table must yield.
const CASES_MIN: usize = 45_000;

/// The held names, in the databases 0 and 1.
const NATIVES: [&str; 6] = ["held", "queued", "shared", "semaphore", "latch", "guard"];

/// Requests that create a key of each type, or none.
const SEEDS: [&[&str]; 11] = [
    &["SET % 1"],
    &["RPUSH % 1 2"],
    &["SADD % 1 2"],
    &["ZADD % 1 1 2 2"],
    &["HSET % 1 1 2 2"],
    &["GEOADD % 13 38 1"],
    &["XADD % 1-1 1 1", "XGROUP CREATE % g 0"],
    &["PFADD % 1"],
    &[],
    &["LOCK.ACQUIRE % stranger 1000"],
    &["SEM.ACQUIRE % 5-5 1000 LIMIT 3"],
];

/// How a request is executed.
#[derive(Clone, Copy, Debug)]
enum Way {
    Plain,
    Multi,
    /// `redis.call` with arguments that are known only at run time.
    Script,
    /// `redis.call` with the request written out, as in most scripts.
    WrittenOut,
    Function,
}

const WAYS: [Way; 5] = [Way::Plain, Way::Multi, Way::Script, Way::WrittenOut, Way::Function];

const LIBRARY: &str = "#!lua name=lib\nredis.register_function('call', function(keys, args) return redis.call(unpack(args)) end)";

/// Values to try for an argument, by its name; arguments without an entry get a number, which is valid for many types.
fn values(name: &str) -> &'static [&'static str] {
    match name {
        "encoding" => &["i8"],
        "offset" | "index" | "start" | "min-idle-time" => &["0"],
        "min" => &["0", "-"],
        "max" | "end" | "stop" => &["9", "+"],
        "id" | "last-id" | "lastid" => &["5-5"],
        "group" => &["g", "h"],
        "ifdeq-digest" | "ifdne-digest" => &["38e23bf5a2a77616"],
        "seconds" => &["100", "-1"],
        "milliseconds" => &["100000", "-1"],
        "unix-time-seconds" => &["9999999999", "1"],
        "unix-time-milliseconds" => &["9999999999999", "1"],
        "count" => &["1", "100"],
        "radius" | "width" | "height" => &["5000"],
        "longitude" => &["13"],
        "latitude" => &["38"],
        "get-pattern" => &["#"],
        "subcommand" => &["GETREG"],
        "owner" => &["stranger"],
        "lease" => &["1000"],
        "limit" => &["3"],
        _ => &["1"],
    }
}

/// An engine with everything that can be held, and with waiting clients.
struct Bench {
    h: Harness,
    /// A value in the format of `DUMP`.
    dump: Vec<u8>,
}

impl Bench {
    fn new() -> Bench {
        let mut h = Harness::new();
        h.args(&[b"FUNCTION", b"LOAD", LIBRARY.as_bytes()]);
        for db in ["SELECT 1", "SELECT 0"] {
            for request in [
                db,
                "LOCK.ACQUIRE held me 500000",
                "LOCK.ACQUIRE queued me 500000 SESSION",
                "LOCK.ACQUIRE shared me 500000 SHARED",
                "LOCK.ACQUIRE shared you 500000 SHARED",
                "SEM.ACQUIRE semaphore me 500000 LIMIT 3 PERMITS 2",
                "LATCH.SET latch 3",
                "LOCK.GUARD guard 7",
            ] {
                h.run(request);
            }
        }
        for request in [
            "LOCK.ACQUIRE queued you 500000 WAIT 0",
            "LATCH.AWAIT latch WAIT 0",
            "SEM.ACQUIRE semaphore you 9 LIMIT 3 PERMITS 3 WAIT 0",
        ] {
            let waiter = h.engine.connect(h.now, Peer::default());
            assert_eq!(execute(&mut h, waiter, &words(request)), b"");
        }
        h.run("SET plain 1");
        let reply = h.args(&[b"DUMP", b"plain"]);
        let start = reply.iter().position(|&byte| byte == b'\n').unwrap_or(0) + 1;
        Bench { dump: reply[start..reply.len() - 2].to_vec(), h }
    }

    /// The whole state of the held locks; `totals` are the sums over all locks.
    fn state(&mut self, totals: bool) -> Vec<String> {
        let mut state = Vec::new();
        let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        for db in [1, 0] {
            self.h.args(&[b"SELECT", db.to_string().as_bytes()]);
            for name in NATIVES {
                let mut database = self.h.engine.keyspace.db(db, self.h.now);
                let entry = database.peek(name.as_bytes());
                let value = entry.map(|entry| format!("{:?}", entry.value()));
                // A guard may get a deadline: only its recorded token counts.
                let deadline = entry.filter(|_| name != "guard").map(|entry| entry.deadline());
                let info = if name == "semaphore" { "SEM.INFO" } else { "LOCK.INFO" };
                let mut info = show(&self.h.args(&[info.as_bytes(), name.as_bytes()]));
                if name == "guard" {
                    info.truncate(info.find("ttl").unwrap_or(info.len()));
                }
                state.push(format!("{name} in {db}: {value:?} {deadline:?} {info}"));
            }
        }
        if totals {
            state.push(show(&self.h.args(&[b"LOCK.STATS"])));
        }
        self.h.engine.check_invariants();
        state
    }

    /// Creates plain keys of a type again, in database 0.
    fn seed(&mut self, seed: &[&str], keys: usize) {
        for key in 0..keys {
            let name = plain(key);
            for db in [1, 0] {
                self.h.args(&[b"SELECT", db.to_string().as_bytes()]);
                self.h.args(&[b"DEL", &name]);
            }
            for request in seed {
                let name = String::from_utf8_lossy(&name).into_owned();
                self.h.args(&words(&request.replace('%', &name)).iter().map(Vec::as_slice).collect::<Vec<_>>());
            }
        }
    }

    fn request(&self, form: &Form, turn: usize, keys: &[Vec<u8>]) -> Vec<Vec<u8>> {
        form.request(keys.iter().cloned(), |name| match name {
            "serialized-value" => self.dump.clone(),
            // That of the stranger's grant, where the form has one of its own.
            "token" => keys.iter().find_map(|key| self.token_of(key)).unwrap_or(1).to_string().into_bytes(),
            _ => {
                let values = values(name);
                values[turn.min(values.len() - 1)].as_bytes().to_vec()
            }
        })
    }

    fn token_of(&self, key: &[u8]) -> Option<u64> {
        let image = self.h.engine.keyspace.image(Key { db: 0, name: key })?;
        image.lock().and_then(|lock| lock.holders.iter().next()).map(|grant| grant.token)
    }

    /// Executes a request for a new client, which then disconnects.
    fn run(&mut self, way: Way, form: &Form, request: &[Vec<u8>]) -> Vec<u8> {
        let id = self.h.engine.connect(self.h.now, Peer::default());
        let reply = match way {
            Way::Plain => execute(&mut self.h, id, request),
            Way::Multi => {
                execute(&mut self.h, id, &words("MULTI"));
                execute(&mut self.h, id, request);
                execute(&mut self.h, id, &words("EXEC"))
            }
            Way::Script => {
                let head = [b"EVAL".to_vec(), b"return redis.call(unpack(ARGV))".to_vec(), b"0".to_vec()];
                execute(&mut self.h, id, &[&head, request].concat())
            }
            Way::WrittenOut => {
                let keys = form.keys();
                let argument = |(at, argument): (usize, &Vec<u8>)| match keys.iter().position(|&key| key == at) {
                    Some(key) => format!("KEYS[{}]", key + 1),
                    None => format!("'{}'", argument.iter().map(|byte| format!("\\{byte:03}")).collect::<String>()),
                };
                let name = String::from_utf8_lossy(&request[0]).into_owned();
                let arguments: Vec<String> = request.iter().enumerate().skip(1).map(argument).collect();
                let called = std::iter::once(format!("'{name}'")).chain(arguments).collect::<Vec<_>>().join(",");
                let mut args = vec![b"EVAL".to_vec(), format!("return redis.call({called})").into_bytes()];
                args.push(keys.len().to_string().into_bytes());
                args.extend(keys.iter().map(|&key| request[key].clone()));
                execute(&mut self.h, id, &args)
            }
            Way::Function => {
                let head = [b"FCALL".to_vec(), b"call".to_vec(), b"0".to_vec()];
                execute(&mut self.h, id, &[&head, request].concat())
            }
        };
        self.h.engine.disconnect(self.h.now, id);
        reply
    }
}

fn plain(key: usize) -> Vec<u8> {
    format!("plain:{key}").into_bytes()
}

fn words(request: &str) -> Vec<Vec<u8>> {
    request.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn execute(h: &mut Harness, id: SessionId, args: &[Vec<u8>]) -> Vec<u8> {
    let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
    h.engine.execute(h.now, id, &args);
    std::mem::take(&mut h.engine.clients.sessions[id].out)
}

/// Rows that a test of keys is about, each with the words that name it.
fn rows() -> Vec<(Vec<&'static str>, &'static Command)> {
    let with_subcommands = all().flat_map(|row| {
        let subcommands = row.subcommands.iter().map(|sub| (vec![row.name, sub.name], sub));
        std::iter::once((vec![row.name], row)).chain(subcommands)
    });
    // Scripts and functions are ways to execute the other commands.
    with_subcommands
        .filter(|(_, row)| {
            row.flags.intersects(Flags::WRITE | Flags::READONLY) && row.group != Group::Scripting && row.subcommands.is_empty()
        })
        .collect()
}

/// A request with a held name in place of one of its keys.
#[derive(Clone, Copy)]
struct Case<'f> {
    form: &'f Form,
    seed: usize,
    turn: usize,
    at: usize,
    native: &'static str,
    way: Way,
}

impl Case<'_> {
    fn run(self, bench: &mut Bench) -> (Vec<Vec<u8>>, Vec<u8>) {
        let mut keys: Vec<Vec<u8>> = (0..self.form.keys().len()).map(plain).collect();
        bench.seed(SEEDS[self.seed], keys.len());
        keys[self.at] = self.native.as_bytes().to_vec();
        let request = bench.request(self.form, self.turn, &keys);
        let reply = bench.run(self.way, self.form, &request);
        (request, reply)
    }
}

/// What a form needs to be valid: the type of its keys, and which of the values.
fn valid(bench: &mut Bench, form: &Form) -> Option<(usize, usize)> {
    let keys: Vec<Vec<u8>> = (0..form.keys().len()).map(plain).collect();
    (0..SEEDS.len()).flat_map(|seed| [(seed, 0), (seed, 1)]).find(|&(seed, turn)| {
        bench.seed(SEEDS[seed], keys.len());
        let request = bench.request(form, turn, &keys);
        !bench.run(Way::Plain, form, &request).starts_with(b"-")
    })
}

/// Whether any of its arguments has a second value.
fn has_more_values(form: &Form) -> bool {
    form.slots.iter().any(|slot| matches!(slot, Slot::Value(name) if values(name).len() > 1))
}

/// Whether a row is a command of this type itself, which may change it.
fn is_its_own(row: &Command, native: &str) -> bool {
    row.group == Group::Lock
        && match native {
            // It ends grants of both.
            "semaphore" => row.name.starts_with("sem.") || row.name == "lock.break",
            "latch" => row.name.starts_with("latch."),
            "guard" => row.name == "lock.guard",
            _ => row.name.starts_with("lock.") && row.name != "lock.guard",
        }
}

/// The results of all cases.
#[derive(Default)]
struct Found {
    cases: usize,
    refused: usize,
    /// Cases that have changed something.
    wrong: Vec<String>,
    /// Rows whose syntax yields no valid requests.
    unbuilt: Vec<String>,
}

/// Whether everything is held as before, and the records agree.
fn is_as(bench: &mut Bench, before: &[String], totals: bool) -> bool {
    catch_unwind(AssertUnwindSafe(|| bench.state(totals))).is_ok_and(|state| state == before)
}

impl Found {
    /// Runs cases one after the other, and compares the held state after the last one. If it has changed, runs each case in an
    /// engine of its own.
    fn check(&mut self, bench: &mut Bench, (before, totals): (&[String], bool), cases: &[Case<'_>]) {
        for case in cases {
            let (_, reply) = case.run(bench);
            self.refused += usize::from(reply.windows(9).any(|part| part == b"WRONGTYPE"));
        }
        self.cases += cases.len();
        if is_as(bench, before, totals) {
            return;
        }
        for case in cases {
            *bench = Bench::new();
            let (request, reply) = case.run(bench);
            if !is_as(bench, before, totals) {
                let (request, reply) = (request.join(&b' ').escape_ascii().to_string(), reply.escape_ascii().to_string());
                self.wrong.push(format!("{:?} {request}: {reply}", case.way));
            }
        }
        *bench = Bench::new();
    }

    /// Tries all forms of a row.
    fn try_row(&mut self, names: &[&str], row: &'static Command) {
        let forms = forms(names, row).unwrap_or_else(|error| panic!("{error}"));
        let ways = if row.flags.contains(Flags::WRITE) { &WAYS[..] } else { &WAYS[..1] };
        let mut bench = Bench::new();
        // Locks that their own commands create change the totals.
        let totals = row.group != Group::Lock;
        let before = bench.state(totals);
        let (mut tried, mut taken) = (BTreeSet::from([String::new()]), BTreeSet::new());
        for form in &forms {
            tried.extend(form.picks.iter().cloned());
            // One that no key makes valid has, for example, two options that exclude each other.
            let Some((seed, turn)) = valid(&mut bench, form) else { continue };
            taken.extend(form.picks.iter().cloned().chain([String::new()]));
            let mut cases = Vec::new();
            for at in 0..form.keys().len() {
                for native in NATIVES.into_iter().filter(|native| !is_its_own(row, native)) {
                    let turns = if turn == 0 && has_more_values(form) { 0..2 } else { turn..turn + 1 };
                    cases.extend(turns.flat_map(|turn| ways.iter().map(move |&way| Case { form, seed, turn, at, native, way })));
                }
            }
            self.check(&mut bench, (&before, totals), &cases);
        }
        let never: Vec<_> = tried.difference(&taken).collect();
        // Commands that only read are tried as far as their forms are valid.
        if row.flags.contains(Flags::WRITE) && !never.is_empty() {
            self.unbuilt
                .push(format!("{names:?}: no valid form of '{}' has {never:?}: teach `values`, or mend the syntax", row.syntax));
        }
    }
}

#[test]
fn no_command_in_any_form_changes_what_is_held_but_those_that_may() {
    let mut found = Found::default();
    for (names, row) in rows() {
        if row.natives != Natives::Deleted && row.has_keys() {
            found.try_row(&names, row);
        }
    }
    println!("{} cases, {} of them refused with WRONGTYPE", found.cases, found.refused);
    let shown = found.wrong.iter().take(40).cloned().collect::<Vec<_>>().join("\n");
    assert!(found.wrong.is_empty(), "{} requests changed what is held:\n{shown}", found.wrong.len());
    assert!(found.unbuilt.is_empty(), "{}", found.unbuilt.join("\n"));
    assert!(found.cases >= CASES_MIN, "{}", found.cases);
}

#[test]
fn those_that_may_end_what_is_held_are_these() {
    let named: Vec<_> =
        rows().into_iter().filter(|(_, row)| row.natives == Natives::Deleted).map(|(names, _)| names.join(" ")).collect();
    assert_eq!(named, ["del", "unlink", "flushall", "flushdb"]);
    let own: Vec<_> = rows().into_iter().filter(|(_, row)| row.natives == Natives::Own && row.group != Group::Lock).collect();
    assert!(own.is_empty(), "{own:?}");
    for request in ["DEL held", "UNLINK held", "FLUSHDB", "FLUSHALL ASYNC"] {
        let mut bench = Bench::new();
        assert_ne!(bench.h.run(request), ":0");
        assert_eq!(bench.h.run("LOCK.INFO held"), "$-1", "{request}");
    }
}

/// Found by review: the destination follows a keyword, and the guard did not read it.
#[test]
fn places_are_not_stored_over_a_lock() {
    for (request, result) in [
        ("GEORADIUS geo 13 38 500 km STORE held", "-WRONGTYPE"),
        ("GEORADIUS geo 13 38 500 km STOREDIST held", "-WRONGTYPE"),
        ("GEORADIUS geo 0 0 1 m STORE held", "-WRONGTYPE"),
        ("GEORADIUS none 0 0 1 m STOREDIST held", "-WRONGTYPE"),
        ("GEORADIUS geo 13 38 500 km STORE plain STORE held", "-WRONGTYPE"),
        ("GEORADIUS geo 13 38 500 km STOREDIST plain STORE held", "-WRONGTYPE"),
        ("GEORADIUSBYMEMBER geo 1 500 km STORE held", "-WRONGTYPE"),
        ("GEORADIUSBYMEMBER geo 1 500 km STOREDIST held", "-WRONGTYPE"),
        ("GEORADIUSBYMEMBER none 1 500 km STORE held", "-WRONGTYPE"),
        ("GEOSEARCHSTORE held geo FROMMEMBER 1 BYRADIUS 500 km", "-WRONGTYPE"),
        ("GEOSEARCHSTORE held none FROMMEMBER 1 BYRADIUS 500 km", "-WRONGTYPE"),
        ("GEORADIUS geo 13 38 500 km STORE stored", ":1"),
    ] {
        let mut bench = Bench::new();
        bench.h.run("GEOADD geo 13 38 1");
        let before = bench.state(true);
        let reply = bench.h.run(request);
        assert!(reply.starts_with(result), "{request}: {reply}");
        assert_eq!(bench.state(true), before, "{request}");
        assert_eq!(bench.h.run("GET plain"), "$1 1", "{request}");
        // The holder still holds it, nobody else gets it, and nothing counts as a deadlock.
        assert_eq!(bench.h.run("LOCK.ACQUIRE held other 1000"), "$-1", "{request}");
        assert_eq!(bench.h.run("LOCK.RENEW held me 1000"), ":1000", "{request}");
        assert_eq!(bench.h.run("LOCK.RELEASE held me"), ":0", "{request}");
    }
}

#[test]
fn a_key_of_another_database_is_guarded_as_well() {
    for request in
        ["COPY plain held DB 1 REPLACE", "COPY plain guard REPLACE DB 1", "MOVE held 1", "COPY held new", "RENAME guard new"]
    {
        let mut bench = Bench::new();
        let before = bench.state(true);
        let reply = bench.h.run(request);
        assert!(reply.starts_with("-WRONGTYPE"), "{request}: {reply}");
        assert_eq!(bench.state(true), before, "{request}");
    }
    let mut bench = Bench::new();
    let before = bench.state(true);
    for (request, reply) in
        [("COPY plain held DB 1", ":0"), ("SET held x NX", "$-1"), ("MSETNX new 1 held 2", ":0"), ("RENAMENX plain held", ":0")]
    {
        assert_eq!(bench.h.run(request), reply, "{request}");
    }
    assert_eq!(bench.state(true), before);
}

#[test]
fn a_request_of_many_keys_is_refused_as_a_whole() {
    let mut bench = Bench::new();
    for request in ["MSET a 1 held 2", "MSETEX 2 a 1 latch 2 EX 100", "MSETEX 2 a nx guard nx", "RENAME plain held"] {
        let reply = bench.h.run(request);
        assert!(reply.starts_with("-WRONGTYPE"), "{request}: {reply}");
        assert_eq!(bench.h.run("EXISTS a plain"), ":1", "{request}");
    }
}

#[test]
fn databases_change_places_with_what_is_held_there() {
    let mut bench = Bench::new();
    let before = bench.state(true);
    for _ in 0..2 {
        assert_eq!(bench.h.run("SWAPDB 0 1"), "+OK");
        for name in ["held", "shared"] {
            assert_eq!(bench.h.run(&format!("LOCK.ACQUIRE {name} other 1000")), "$-1");
            assert_eq!(bench.h.run(&format!("PTTL {name}")), ":500000");
        }
    }
    let after = bench.state(false);
    // The waiters have queued again, in their selected databases.
    let held = |state: &[String]| state.iter().map(|line| line.split("waiters").next().map(str::to_owned)).collect::<Vec<_>>();
    assert_eq!(held(&after), held(&before[..after.len()]));
    for name in ["held", "shared"] {
        assert_eq!(bench.h.run(&format!("LOCK.RENEW {name} me 500000")), ":500000");
    }
}

/// A destination may become a lock while a client waits for the source.
#[test]
fn a_blocked_command_is_guarded_when_it_is_served() {
    for (request, push) in [
        ("BLMOVE source late LEFT LEFT 0", "RPUSH source a"),
        ("BRPOPLPUSH source late 0", "RPUSH source a"),
        ("BLPOP late source 0", "RPUSH source a"),
        ("BZPOPMIN late source 0", "ZADD source 1 a"),
        ("XREADGROUP GROUP g c BLOCK 0 STREAMS source late > >", "XADD source 1-1 a a"),
    ] {
        let mut bench = Bench::new();
        for group in ["XGROUP CREATE source g 0 MKSTREAM", "XGROUP CREATE late g 0 MKSTREAM"] {
            if request.starts_with("XREAD") {
                bench.h.run(group);
            }
        }
        let id = bench.h.engine.connect(bench.h.now, Peer::default());
        assert_eq!(execute(&mut bench.h, id, &words(request)), b"", "{request}");
        bench.h.run("DEL late");
        let token = bench.h.run("LOCK.ACQUIRE late me 500000");
        assert!(token.starts_with(':'), "{request}: {token}");
        let before = bench.h.run("LOCK.INFO late");
        bench.h.run(push);
        assert_eq!(bench.h.run("LOCK.INFO late"), before, "{request}");
        let number = token.trim_start_matches(':');
        assert_eq!(bench.h.run(&format!("LOCK.CHECK late {number}")), ":1", "{request}");
        bench.h.engine.disconnect(bench.h.now, id);
        bench.h.engine.check_invariants();
    }
}

/// Only its own commands determine how long a lock, a semaphore or a latch lasts. A guard may get a deadline, which does not
/// delete it at once.
#[test]
fn deadlines_are_not_changed_from_outside() {
    let mut bench = Bench::new();
    for name in NATIVES.into_iter().filter(|&name| name != "guard") {
        for request in ["EXPIRE % 1", "PEXPIRE % 0", "EXPIREAT % 1", "PEXPIREAT % 9999999999999", "PERSIST %", "GETEX % EX 1"] {
            let reply = bench.h.run(&request.replace('%', name));
            assert!(reply.starts_with("-WRONGTYPE"), "{request} {name}: {reply}");
        }
    }
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    bench.h.script(&[
        ("EXPIRE guard 0", wrong),
        ("PEXPIREAT guard 1", wrong),
        ("EXPIRE guard 100", ":1"),
        ("PERSIST guard", ":1"),
    ]);
    bench.h.script(&[("EXPIRE guard 100", ":1"), ("LOCK.GUARD guard 6", "-STALE token 6 is behind 7 for 'guard'")]);
    bench.h.pass(100_000);
    bench.h.script(&[("EXISTS guard", ":0")]);
}

/// Random requests: a lock's name may be at any position.
#[test]
fn no_plain_command_changes_a_lock_but_those_that_delete_it() {
    const WORDS: [&str; 16] =
        ["lock", "lock", "lock", "other", "1", "1", "0", "2", "x", "STORE", "REPLACE", "LEFT", "MAX", "COUNT", "ASC", "*"];
    let mut h = Harness::new();
    let token = h.run("LOCK.ACQUIRE lock me 1000000");
    let mut random = 1_u64;
    let mut tried = 0;
    for command in
        crate::commands::all().filter(|command| command.flags.contains(Flags::WRITE) && command.natives != Natives::Own)
    {
        // SWAPDB has no keys: what is held stays in its database.
        if command.natives == Natives::Deleted || !command.has_keys() {
            continue;
        }
        tried += 1;
        for round in 0..300 {
            let mut parts = vec![command.name];
            for _ in 0..command.arity.unsigned_abs() as usize - 1 + if command.arity < 0 { round % 4 } else { 0 } {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                parts.push(WORDS[(random >> 60) as usize]);
            }
            let request = parts.join(" ");
            let id = h.engine.connect(h.now, Peer::default());
            execute(&mut h, id, &words(&request));
            h.engine.disconnect(h.now, id);
            let held = h.engine.keyspace.db(0, h.now).peek(b"lock").and_then(lock_of);
            let tokens: Vec<String> =
                held.iter().flat_map(|lock| lock.holders.iter()).map(|grant| format!(":{}", grant.token)).collect();
            assert_eq!(tokens, [&*token], "{request}");
            assert_eq!(held.map(|lock| lock.deadline_ms()), Some(h.now.mono_ms() + 1_000_000), "{request}");
        }
    }
    assert!(tried > 100, "{tried}");
}
