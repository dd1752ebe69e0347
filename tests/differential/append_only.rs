//! The append-only file is complete: a redis-server that loads it has the same keys, values, deadlines and libraries as the engine
//! that wrote it, and it is read back with the same locks.
//!
//! ```text
//!   generated calls, passing time ─▶ engine ─▶ append-only file ─▶ redis-server ─▶ DUMP ─▶ another engine
//!                                       └────── keys ──────────────────────────────────────────┴─▶ equal
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use portcullis::base::ids::SessionId;
use portcullis::base::time::Now;
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::engine::session::{Peer, SessionFlags};
use portcullis::persist::append::clock::BootClock;
use portcullis::persist::append::log::AppendLog;
use portcullis::persist::append::manifest::Manifest;
use portcullis::persist::append::native::Native;
use portcullis::persist::append::read::{Ending, Reader, Reason, Request, Step};
use portcullis::script::functions::store::Functions;

use crate::caller::{Caller, Jumps};
use crate::change_log::{Content, Databases, Libraries, held, held_libraries, holders, library_call, lock_records, requests_of};
use crate::common::random::Random;
use crate::common::servers::{Server, on_path};
use crate::common::wire::{Frame, Wire};
use crate::generate::{Catalogue, Generator, WAITS_FOR_THE_DRIVER};
use crate::variable;

const NAME: &[u8] = b"appendonly.aof";
const CALLS: usize = 400;
/// Number of calls after which the connection ends, and another one begins.
const CALLS_OF_A_CONNECTION: usize = 40;

/// An engine that writes an append-only file of several increments.
struct Writer {
    caller: Caller,
    log: AppendLog,
    manifest: Manifest,
    increments: Vec<Vec<u8>>,
}

impl Writer {
    fn new(seed: u64, start_ms: i64) -> Writer {
        let now = Now::new(5_000_000, start_ms - 5_000);
        let mut caller = Caller::new(seed, now);
        let log = AppendLog::new(now, boot_at(now), seed);
        caller.engine.keyspace_mut().changes.log = Some(Box::new(log.clone()));
        let mut writer = Writer { caller, log, manifest: Manifest::default(), increments: Vec::new() };
        writer.begin_file();
        writer
    }

    /// Begins the next increment.
    fn begin_file(&mut self) {
        self.take_batch();
        if let Some(file) = self.increments.last_mut() {
            let line = self.log.end_file(file.len() as u64);
            file.extend(line);
        }
        self.manifest.increments.push(self.manifest.next_increment(NAME));
        self.increments.push(self.log.begin_file(self.increments.len() as u64 + 1));
    }

    fn take_batch(&mut self) {
        if let Some(file) = self.increments.last_mut()
            && let Some(batch) = self.log.take_batch(file.len() as u64)
        {
            file.extend(batch.bytes);
        }
    }

    fn call(&mut self, random: &mut Random, call: &[Vec<u8>]) {
        self.caller.call(random, call, Jumps { one_in: 100, most_ms: 4_000_000_000, whole_ms: 1000 });
        if random.one_in(4) {
            self.take_batch();
        }
        if random.one_in(150) {
            self.begin_file();
        }
    }

    /// Executes calls, until everything that has ended is in the file.
    fn run(&mut self, random: &mut Random, mut next: impl FnMut(&mut Random, &Engine) -> Vec<Vec<u8>>) {
        for n in 0..CALLS {
            if n % CALLS_OF_A_CONNECTION == 0 {
                self.caller.connect_again();
            }
            let call = next(random, &self.caller.engine);
            self.call(random, &call);
        }
        while self.caller.engine.advance(self.caller.now) {}
        self.caller.engine.check_invariants();
        self.take_batch();
    }

    /// Writes the files of the folder `appendonlydir` into a directory.
    fn write_into(&self, dir: &Path) -> std::io::Result<()> {
        let dir = dir.join("appendonlydir");
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join("appendonly.aof.manifest"), self.manifest.write())?;
        for (file, bytes) in self.manifest.increments.iter().zip(&self.increments) {
            std::fs::write(dir.join(String::from_utf8_lossy(&file.name).as_ref()), bytes)?;
        }
        Ok(())
    }

    /// Reads the files back, with the clocks of the end. Returns the number of units.
    fn read(&self, mut each: impl FnMut(Request<'_>)) -> usize {
        let moment = self.caller.moment();
        let mut units = 0;
        for (at, file) in self.increments.iter().enumerate() {
            let mut reader = Reader::new(file.len() as u64);
            let mut pieces = file.chunks(1000);
            loop {
                match reader.step().expect("no damage") {
                    Step::Unit(unit) => {
                        units += 1;
                        unit.requests(&moment).for_each(|request| each(request.expect("a request that is known")));
                    }
                    Step::Preamble => panic!("no RDB was written"),
                    Step::More => match pieces.next() {
                        Some(piece) => reader.feed(piece),
                        None => break,
                    },
                }
            }
            let ending = if at + 1 < self.increments.len() { Ending::Closed } else { Ending::Whole };
            assert_eq!(reader.finish(), Ok(ending));
        }
        units
    }
}

pub fn boot_at(now: Now) -> BootClock {
    BootClock { id: [5; 16], now_ms: now.mono_ms() + 123_456 }
}

pub fn enter(engine: &mut Engine, now: Now) -> SessionId {
    let session = engine.connect(now, Peer::default());
    engine.sessions_mut()[session].flags |= SessionFlags::AUTHENTICATED;
    session
}

/// Loads two libraries, and then two that have exchanged their functions.
pub fn exchanged_functions() -> [Vec<Vec<u8>>; 2] {
    let [before, after] = [["fa", "fb"], ["fb", "fa"]].map(|names| {
        let mut functions = Functions::default();
        for (library, name) in ["a", "b"].iter().zip(names) {
            let source = format!("#!lua name={library}\nredis.register_function('{name}', function() return 1 end)");
            functions.load(source.as_bytes(), false).expect("the library loads");
        }
        vec![b"FUNCTION".to_vec(), b"RESTORE".to_vec(), functions.dump(), b"REPLACE".to_vec()]
    });
    [before, after]
}

/// A random call about locks.
pub fn lock_call(random: &mut Random) -> Vec<Vec<u8>> {
    let name = ["a", "b", "c", "d"][random.below(4) as usize];
    let owner = ["ann", "bob", "eve"][random.below(3) as usize];
    let lease = ["50", "5000", "100000000"][random.below(3) as usize];
    let id = ["1", "2", "3"][random.below(3) as usize];
    let mut words = match random.below(24) {
        0..=8 => vec!["LOCK.ACQUIRE", name, owner, lease],
        9 | 10 => vec!["LOCK.RELEASE", name, owner],
        11 => vec!["LOCK.RENEW", name, owner, lease],
        12 => vec!["LOCK.ACQUIREALL", "2", name, "e", owner, lease],
        13..=15 => vec!["SEM.ACQUIRE", "s", owner, lease, "LIMIT", "3", "PERMITS", id],
        16 => vec!["SEM.RELEASE", "s", owner],
        17 => vec!["LATCH.SET", "l", id, "PX", lease],
        18 => vec!["LATCH.DOWN", "l"],
        19 => vec!["LOCK.GUARD", "g", id],
        20 => vec!["LOCK.SESSION", id, "GRACE", lease],
        21 => vec!["SELECT", id],
        22 => vec!["SWAPDB", "1", id],
        _ => vec![["FLUSHDB", "DEL"][random.below(2) as usize]],
    };
    match words[0] {
        "DEL" => words.push(name),
        "LOCK.ACQUIRE" | "SEM.ACQUIRE" => {
            let options = [&["SESSION"][..], &["REQUEST", id], &["WAIT", "5"]];
            options.iter().filter(|_| random.one_in(3)).for_each(|option| words.extend(*option));
            if words[0] == "LOCK.ACQUIRE" {
                let options = [&["SHARED"][..], &["DELAY", "70"], &["MAXHOLD", "9000"]];
                options.iter().filter(|_| random.one_in(4)).for_each(|option| words.extend(*option));
            }
        }
        "LOCK.RELEASE" | "SEM.RELEASE" if random.one_in(3) => words.extend(["REQUEST", id]),
        _ => {}
    }
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// A random call about streams, lists and parts of strings, more of which succeed than of generated ones.
pub fn focused_call(random: &mut Random) -> Vec<Vec<u8>> {
    let line = *random.pick(&[
        "XADD $x $i a $i",
        "XADD $x * a 1 b $i",
        "XADD $x MAXLEN 5 * a 1",
        "XADD $x MINID = $i * a 1",
        "XGROUP CREATE $x $g 0",
        "XGROUP CREATE $x $g $i MKSTREAM ENTRIESREAD 1",
        "XGROUP SETID $x $g $i",
        "XGROUP CREATECONSUMER $x $g $c",
        "XREADGROUP GROUP $g $c COUNT 2 STREAMS $x >",
        "XREADGROUP GROUP $g $c COUNT 1 STREAMS $x >",
        "XREADGROUP GROUP $g $c NOACK COUNT 2 STREAMS $x >",
        "XREADGROUP GROUP $g $c STREAMS $x 0",
        "XCLAIM $x $g $c 0 $i RETRYCOUNT 7",
        "XCLAIM $x $g $c 0 $i FORCE LASTID $i",
        "XAUTOCLAIM $x $g $c 0 0 COUNT 2",
        "XACK $x $g $i",
        "XDEL $x $i",
        "XTRIM $x MAXLEN 3",
        "XSETID $x 9-9 ENTRIESADDED 50 MAXDELETEDID $i",
        "XGROUP DELCONSUMER $x $g $c",
        "XGROUP DESTROY $x $g",
        "COPY $x $x:copy REPLACE",
        "RPUSH $l a b $i",
        "LPUSH $l b a",
        "LINSERT $l BEFORE b $i",
        "LINSERT $l AFTER a b",
        "LREM $l -1 b",
        "LREM $l 1 a",
        "LSET $l -1 z",
        "LTRIM $l 1 6",
        "LMOVE $l $l LEFT RIGHT",
        "LPOP $l",
        "BITFIELD $s SET u8 #2 65 SET u8 #9 0",
        "BITFIELD $s SET u8 #1 0",
        "SETBIT $s 200 0",
        "SETRANGE $s 5 x",
        "APPEND $s $i",
    ]);
    let number = |random: &mut Random, end: u64| random.below(end).to_string();
    let word = |random: &mut Random, word: &str| match word {
        "$x" | "$l" | "$s" => format!("{}:{}", &word[1..], random.below(2)),
        "$x:copy" => "copy".to_owned(),
        "$g" | "$c" => format!("{}{}", &word[1..], random.below(2)),
        "$i" => format!("1-{}", number(random, 9)),
        word => word.to_owned(),
    };
    line.split(' ').map(|part| word(random, part).into_bytes()).collect()
}

fn answer(wire: &mut Wire, args: &[&[u8]]) -> Frame {
    let frame = wire.call(args).expect("a reply").frame;
    assert!(!frame.is_error(""), "{frame:?}");
    frame
}

fn text(frame: &Frame) -> Vec<u8> {
    frame.text().expect("a text").to_vec()
}

/// Waits until a redis-server has loaded its files.
fn loaded(server: &mut Server) -> Wire {
    let mut wire = Wire::connect(server.addr).expect("it accepts");
    let end = Instant::now() + Duration::from_secs(20);
    while wire.call(&["GET", "x"]).expect("a reply").frame.is_error("LOADING") {
        assert!(Instant::now() < end, "it loads for more than 20 s");
        std::thread::sleep(Duration::from_millis(2));
    }
    server.check().expect("it runs");
    wire
}

/// The keys of a redis-server, by way of an engine with this clock.
fn keys_of(wire: &mut Wire, now: Now) -> Databases {
    let mut engine = Engine::new(Config::default(), 1, now, portcullis::commands::table());
    let session = enter(&mut engine, now);
    for db in 0..16u32 {
        let select = [b"SELECT".to_vec(), db.to_string().into_bytes()];
        answer(wire, &[&select[0], &select[1]]);
        engine.execute(now, session, &[&select[0], &select[1]]);
        for key in answer(wire, &[b"KEYS", b"*"]).elements().expect("keys") {
            let key = text(key);
            let payload = text(&answer(wire, &[b"DUMP", &key]));
            let at = answer(wire, &[b"PEXPIRETIME", &key]).integer().expect("a time").max(0).to_string();
            engine.sessions_mut()[session].out.clear();
            engine.execute(now, session, &[b"RESTORE", &key, at.as_bytes(), &payload, b"ABSTTL"]);
            let reply = &engine.sessions()[session].out;
            assert_eq!(reply.escape_ascii().to_string(), "+OK\\r\\n", "{}", key.escape_ascii());
        }
    }
    held(&mut engine, now)
}

/// The libraries of a redis-server.
fn libraries_of(wire: &mut Wire) -> Libraries {
    let list = answer(wire, &[b"FUNCTION", b"LIST", b"WITHCODE"]);
    let library = |frame: &Frame| {
        let fields = frame.elements().expect("fields");
        let field = |name: &[u8]| {
            let at = fields.iter().position(|field| field.text() == Some(name)).expect("the field is there");
            text(&fields[at + 1])
        };
        (field(b"library_name"), field(b"library_code"))
    };
    list.elements().expect("libraries").iter().map(library).collect()
}

/// Removes what Redis does not load: the times of consumers, and of deliveries in its future.
pub fn without_times(databases: &mut Databases, also_of_deliveries: bool) {
    for item in databases.values_mut().flat_map(BTreeMap::values_mut) {
        let Content::Stream(stream) = &mut item.content else { continue };
        for group in stream.groups.values_mut() {
            group.consumers.values_mut().for_each(|active_ms| *active_ms = None);
            group.pending.values_mut().filter(|_| also_of_deliveries).for_each(|pending| pending.1 = 0);
        }
    }
}

/// The first difference of two states.
pub fn difference(ours: &Databases, theirs: &Databases) -> String {
    for (db, keys) in ours {
        for (key, item) in keys {
            let other = theirs.get(db).and_then(|keys| keys.get(key));
            if other != Some(item) {
                return format!("db {db}, key {}\nours   {item:?}\ntheirs {other:?}", key.escape_ascii());
            }
        }
    }
    let more = theirs.iter().flat_map(|(db, keys)| keys.keys().map(move |key| (db, key)));
    let more = more.filter(|(db, key)| ours.get(db).is_none_or(|keys| !keys.contains_key(*key)));
    format!("keys that only they have: {:?}", more.map(|(db, key)| (db, key.escape_ascii().to_string())).collect::<Vec<_>>())
}

#[test]
fn a_redis_server_loads_the_file() {
    let (Some(program), Some(check)) = (on_path("redis-server"), on_path("redis-check-aof")) else {
        assert!(
            variable("PORTCULLIS_REQUIRE_REDIS").is_none(),
            "no redis-server on the PATH, and PORTCULLIS_REQUIRE_REDIS is set"
        );
        println!("SKIPPED: no redis-server on the PATH, nothing was compared");
        return;
    };
    let catalogue = Catalogue::new((7, 0), false, |line| line.name() != WAITS_FOR_THE_DRIVER);
    let (mut keys, mut units, mut timed, mut pending) = (0, 0, 0, 0);
    for seed in 0..40 {
        // With half of the seeds no deadline has passed when Redis loads the file, with the others every delivery has happened.
        let future = seed % 2 == 0;
        let mut writer = Writer::new(seed, if future { 4_000_000_000_000 } else { 1_000_000_000_000 });
        let random = &mut Random::new(seed);
        let generator = Generator::new(&catalogue, random, true);
        let mut first = exchanged_functions().into_iter();
        writer.run(random, |random, engine| match first.next() {
            Some(call) => call,
            None if random.one_in(20) => library_call(random, engine),
            None if random.one_in(2) => focused_call(random),
            None => generator.call(random),
        });
        units += writer.read(|request| assert!(matches!(request, Request::Redis(_))));

        let dir = std::env::temp_dir().join(format!("portcullis-append-only-{}-{seed}", std::process::id()));
        writer.write_into(&dir).expect("the files are written");
        let checked = Command::new(&check).arg(dir.join("appendonlydir/appendonly.aof.manifest")).output().expect("it runs");
        std::fs::remove_dir_all(&dir).expect("the files are removed");
        assert!(checked.status.success(), "seed {seed}: {}", String::from_utf8_lossy(&checked.stdout));

        let args = ["--appendonly", "yes", "--aof-load-truncated", "no"];
        let mut server = Server::redis_in(&program, &args, |dir| writer.write_into(dir)).expect("the redis-server starts");
        let mut wire = loaded(&mut server);
        let mut ours = held(&mut writer.caller.engine, writer.caller.now);
        if !future {
            let lives = |deadline: Option<i64>| deadline.is_none_or(|at| at > 3_000_000_000_000);
            ours.values_mut().for_each(|keys| keys.retain(|_, item| lives(item.deadline)));
            ours.retain(|_, keys| !keys.is_empty());
        }
        let mut theirs = keys_of(&mut wire, writer.caller.now);
        [&mut ours, &mut theirs].into_iter().for_each(|databases| without_times(databases, future));
        let last = writer.caller.history[writer.caller.history.len().saturating_sub(CALLS)..].join("\n");
        let log = server.log();
        assert!(!log.contains("CRITICAL"), "seed {seed}: a request of the file failed\n{log}\n{last}");
        assert!(ours == theirs, "seed {seed}: {}\n{last}", difference(&ours, &theirs));
        assert_eq!(libraries_of(&mut wire), held_libraries(&writer.caller.engine), "seed {seed}");
        let values = ours.values().flat_map(BTreeMap::values);
        pending += values.filter(|item| matches!(&item.content, Content::Stream(stream) if stream.groups.values().any(|group| !group.pending.is_empty()))).count();
        keys += ours.values().map(BTreeMap::len).sum::<usize>();
        timed += ours.values().flat_map(BTreeMap::values).filter(|item| item.deadline.is_some()).count();
    }
    let compared = format!("{units} units, {keys} keys, {timed} with deadlines, {pending} streams with pending entries");
    println!("compared: {compared}");
    assert!(units > 3000 && keys > 200 && timed > 10 && pending > 10, "{compared}");
}

/// The database, the name and the owner of remembered requests.
type Asked = (u32, Vec<u8>, Vec<u8>);

/// Native keys, named sessions and remembered requests as they are read from a file.
#[derive(Default)]
struct Natives {
    selected: u32,
    keys: BTreeMap<(u32, Vec<u8>), Content>,
    requests: BTreeMap<Asked, Vec<(Vec<u8>, String)>>,
    sessions: BTreeMap<u64, (Vec<u8>, Vec<u8>, u64)>,
}

impl Natives {
    fn apply(&mut self, request: Request<'_>, now: Now) {
        let db = self.selected;
        let native = match request {
            Request::Native(native) => native,
            Request::Redis(args) => {
                let number = |at: usize| -> u32 { String::from_utf8_lossy(args[at]).parse().expect("a number") };
                match args[0] {
                    b"SELECT" => self.selected = number(1),
                    b"DEL" => drop(self.keys.remove(&(db, args[1].to_vec()))),
                    b"FLUSHDB" => self.keys.retain(|(of, _), _| *of != db),
                    b"SWAPDB" => {
                        let (a, b) = (number(1), number(2));
                        let swapped = |db: u32| {
                            if db == a {
                                b
                            } else if db == b {
                                a
                            } else {
                                db
                            }
                        };
                        self.keys =
                            std::mem::take(&mut self.keys).into_iter().map(|((db, key), of)| ((swapped(db), key), of)).collect();
                        let requests = std::mem::take(&mut self.requests).into_iter();
                        self.requests = requests.map(|((db, name, owner), of)| ((swapped(db), name, owner), of)).collect();
                    }
                    _ => {}
                }
                return;
            }
        };
        let at = |name: &[u8]| (db, name.to_vec());
        match native {
            Native::Lock { name, lock } => drop(self.keys.insert(at(name), Content::Lock(holders(&lock, now)))),
            Native::Latch { name, left, .. } => drop(self.keys.insert(at(name), Content::Latch(left))),
            Native::Guard { name, seen, .. } => drop(self.keys.insert(at(name), Content::Guard(seen))),
            Native::Requests { name, owner, remembered } => {
                self.requests.insert((db, name.to_vec(), owner.to_vec()), requests_of(&remembered, now).0);
            }
            Native::Forget { name, owner } => drop(self.requests.remove(&(db, name.to_vec(), owner.to_vec()))),
            Native::Session { number, session } => {
                self.sessions.insert(number, (session.id.to_vec(), session.user.to_vec(), session.grace_ms));
            }
            Native::EndSession { number, .. } => drop(self.sessions.remove(&number)),
            Native::Token(_) => panic!("no effect has this"),
        }
    }
}

#[test]
fn native_locks_are_read_back() {
    let (mut locks, mut requests, mut sessions) = (0, 0, 0);
    for seed in 0..40 {
        let mut writer = Writer::new(seed, 1_000_000_000_000);
        writer.run(&mut Random::new(seed), |random, _| lock_call(random));
        let mut natives = Natives::default();
        writer.read(|request| natives.apply(request, writer.caller.now));
        let now = writer.caller.now;
        let mut kept = BTreeMap::new();
        for (db, keys) in held(&mut writer.caller.engine, now) {
            for (key, item) in keys {
                if matches!(item.content, Content::Lock(_) | Content::Latch(_) | Content::Guard(_)) {
                    kept.insert((db, key), item.content);
                }
            }
        }
        let last = writer.caller.history[writer.caller.history.len().saturating_sub(60)..].join("\n");
        assert!(natives.keys.keys().eq(kept.keys()), "seed {seed}, now {}: {:?} {kept:?}\n{last}", now.unix_ms(), natives.keys);
        for (key, content) in &kept {
            match (content, &natives.keys[key]) {
                (Content::Lock(ours), Content::Lock(read)) => {
                    for (ours, read) in ours.iter().zip(read) {
                        assert_eq!((&ours.0, ours.1, ours.2, ours.3), (&read.0, read.1, read.2, read.3));
                        assert!((0..4).contains(&(read.4 - ours.4)), "a lease that ends at {} instead of {}", read.4, ours.4);
                    }
                    assert_eq!(ours.len(), read.len());
                    locks += 1;
                }
                (ours, read) => assert_eq!(ours, read),
            }
        }
        let (kept_requests, kept_sessions) = lock_records(&writer.caller.engine, now);
        assert!(kept_requests.iter().map(|(key, of)| (key, &of.0)).eq(&natives.requests), "seed {seed}");
        let kept_sessions = kept_sessions.into_iter().map(|(number, (id, user, grace_ms, _))| (number, (id, user, grace_ms)));
        assert_eq!(kept_sessions.collect::<BTreeMap<_, _>>(), natives.sessions, "seed {seed}");
        requests += natives.requests.len();
        sessions += natives.sessions.len();
    }
    println!("{locks} locks, {requests} owners with remembered requests and {sessions} sessions were read back");
    assert!(locks > 20 && requests > 20 && sessions > 5, "{locks} locks, {requests} requests, {sessions} sessions");
}

/// Cuts our file within its last batch, lets a redis-server load it and write on, and reads the result: nothing that the redis-server
/// acknowledged is taken for a torn tail.
#[test]
fn a_redis_server_continues_a_torn_file() {
    let Some(program) = on_path("redis-server") else {
        assert!(
            variable("PORTCULLIS_REQUIRE_REDIS").is_none(),
            "no redis-server on the PATH, and PORTCULLIS_REQUIRE_REDIS is set"
        );
        println!("SKIPPED: no redis-server on the PATH, nothing was compared");
        return;
    };
    let mut writer = Writer::new(1, 4_000_000_000_000);
    let mut ends = Vec::new();
    for calls in [&["SET a 1"][..], &["SET b 2", "MSET c 3 d a-longer-value", "SET e 5"]] {
        for call in calls {
            let args: Vec<&[u8]> = call.split(' ').map(str::as_bytes).collect();
            writer.caller.engine.execute(writer.caller.now, writer.caller.session, &args);
        }
        writer.take_batch();
        ends.push(writer.increments[0].len());
    }
    let whole = writer.increments[0].clone();
    // Within the header, the first request, the second one, the transaction, and the last request; and not at all.
    let transaction = memchr::memmem::find(&whole, b"MULTI").expect("a transaction");
    let cuts = [ends[0] + 30, ends[0] + 74, ends[0] + 80, transaction - 5, transaction + 40, whole.len() - 3, whole.len()];
    let mut continued = 0;
    for cut in cuts {
        writer.increments[0] = whole[..cut].to_vec();
        let args = ["--appendonly", "yes", "--appendfsync", "always"];
        let server = &mut Server::redis_in(&program, &args, |dir| writer.write_into(dir)).expect("the redis-server starts");
        let mut wire = loaded(server);
        answer(&mut wire, &[b"SET", b"x", b"acknowledged"]);
        let dir = text(&answer(&mut wire, &[b"CONFIG", b"GET", b"dir"]).elements().expect("a pair")[1]);
        let path = Path::new(&String::from_utf8_lossy(&dir).into_owned()).join("appendonlydir/appendonly.aof.1.incr.aof");
        let file = std::fs::read(path).expect("it has gone on in our file");
        let mut reader = Reader::new(file.len() as u64);
        reader.feed(&file);
        let mut last = Vec::new();
        while let Ok(Step::Unit(unit)) = reader.step() {
            last = unit.raw().last().expect("a request").1[1].to_vec();
        }
        match reader.finish() {
            Ok(Ending::Whole) => assert_eq!(last, b"x", "cut at {cut}"),
            Err(damage) if damage.reason == Reason::Continued => continued += 1,
            other => panic!("cut at {cut}: {other:?}"),
        }
    }
    println!("{continued} of {} files were continued behind a torn batch", cuts.len());
    assert!((4..7).contains(&continued), "{continued}");
}
