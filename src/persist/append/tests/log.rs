//! The log: effects of requests as units of requests.

use super::*;

struct Logged {
    harness: Harness,
    log: AppendLog,
    file: Vec<u8>,
    /// What the last batch changed.
    changed: Changed,
}

/// The seed of hashes.
const SEED: u64 = 11;

impl Logged {
    fn new() -> Self {
        let mut harness = Harness::new();
        let log = AppendLog::new(harness.now, BootClock { id: [1; 16], now_ms: 77_000 }, SEED);
        let file = log.begin_file(SALT);
        harness.engine.keyspace_mut().changes.log = Some(Box::new(log.clone()));
        Logged { harness, log, file, changed: Changed::Keys(Vec::new()) }
    }

    /// The units of a request.
    fn units(&mut self, request: &str) -> Vec<String> {
        let reply = self.harness.run(request);
        assert!(!reply.starts_with('-'), "{request}: {reply}");
        self.batch()
    }

    fn batch(&mut self) -> Vec<String> {
        let pending = self.log.has_pending();
        let batch = self.log.take_batch(self.file.len() as u64);
        assert_eq!(batch.is_some(), pending);
        let Some(batch) = batch else { return Vec::new() };
        let (units, ending) = read(&[&batch::first_line(SALT)[..], &batch.bytes].concat());
        assert_eq!(ending, Ok(Ending::Whole));
        self.file.extend(batch.bytes);
        self.changed = batch.changed;
        lines(&units)
    }
}

#[test]
fn effects_become_requests() {
    let mut logged = Logged::new();
    let unix = |logged: &Logged, ms: i64| logged.harness.now.unix_ms() + ms;
    let none: [&str; 0] = [];
    assert_eq!(logged.units("SET a 1"), ["SELECT 0", "SET a 1"]);
    let at = unix(&logged, 1000);
    assert_eq!(logged.units("SET a 2 PX 1000"), [format!("SET a 2 PXAT {at}")]);
    assert_eq!(logged.units("PEXPIRE a 1000"), [format!("PEXPIREAT a {at}")]);
    assert_eq!(logged.units("PERSIST a"), ["PERSIST a"]);
    assert_eq!(logged.units("GET a"), none);
    assert_eq!(logged.units("APPEND a xy"), ["SETRANGE a 1 xy"]);
    assert_eq!(logged.units("BITFIELD b SET u8 #0 65 SET u8 #9 0"), ["SETRANGE b 9 \\x00; SETRANGE b 0 A"]);
    assert_eq!(logged.units("BITFIELD b SET u8 #19 0"), ["SETRANGE b 19 \\x00"]);
    assert_eq!(logged.units("RPUSH l a b c"), ["RPUSH l a b c"]);
    assert_eq!(logged.units("LINSERT l AFTER b x"), ["LINSERT l AFTER b x"]);
    assert_eq!(logged.units("LREM l -1 x"), ["LREM l -1 x"]);
    assert_eq!(logged.units("LSET l -1 z"), ["LSET l 2 z"]);
    assert_eq!(logged.units("LTRIM l 1 1"), ["LPOP l 1; RPOP l 1"]);
    assert_eq!(logged.units("LTRIM l 0 -1"), none);
    assert_eq!(logged.units("ZADD z 0.1 m -inf n"), ["ZADD z 0.10000000000000001 m; ZADD z -inf n"]);
    assert_eq!(logged.units("ZREM z m"), ["ZREM z m"]);
    assert_eq!(logged.units("SADD s 7"), ["SADD s 7"]);
    assert_eq!(logged.units("SREM s 7"), ["SREM s 7"]);
    assert_eq!(logged.units("HSET h f v"), ["HSET h f v"]);
    assert_eq!(logged.units("HPEXPIRE h 1000 FIELDS 1 f"), [format!("HSET h f v; HPEXPIREAT h {at} FIELDS 1 f")]);
    assert_eq!(logged.units("HDEL h f"), ["HDEL h f"]);
    assert_eq!(logged.units("SELECT 3"), none);
    assert_eq!(logged.units("MSET a 1 b 2"), ["SELECT 3; SET a 1; SET b 2"]);
    assert_eq!(logged.units("COPY a c DB 2"), ["SELECT 2", "SET c 1"]);
    assert_eq!(logged.units("SWAPDB 1 2"), ["SWAPDB 1 2"]);
    assert_eq!(logged.units("SET a 3"), ["SELECT 3", "SET a 3"]);
    assert_eq!(logged.units("FLUSHDB"), ["FLUSHDB"]);
    assert_eq!(logged.units("FUNCTION FLUSH"), ["FUNCTION FLUSH"]);
    // Another file begins by selecting its database.
    assert_eq!(logged.log.begin_file(SALT), batch::first_line(SALT));
    assert_eq!(logged.units("SET a 3"), ["SELECT 3", "SET a 3"]);
}

#[test]
fn effects_on_streams_become_requests() {
    let mut logged = Logged::new();
    logged.units("SET a 1");
    let ms = logged.harness.now.unix_ms();
    assert_eq!(logged.units("XADD x 1-1 a 1"), ["XADD x 1-1 a 1"]);
    logged.units("XADD x 1-2 a 2");
    logged.units("XADD x 1-3 a 3");
    assert_eq!(logged.units("XADD x MAXLEN 3 1-4 a 4"), ["XADD x 1-4 a 4; XTRIM x MINID = 1-2"]);
    assert_eq!(logged.units("XGROUP CREATE x g 0"), ["XGROUP CREATE x g 0-0 MKSTREAM ENTRIESREAD -1"]);
    assert_eq!(
        logged.units("XREADGROUP GROUP g c COUNT 1 STREAMS x >"),
        [format!(
            "XGROUP CREATECONSUMER x g c; XGROUP SETID x g 1-2 ENTRIESREAD 2; \
             XCLAIM x g c 0 1-2 TIME {ms} RETRYCOUNT 1 FORCE JUSTID"
        )]
    );
    assert_eq!(logged.units("XACK x g 1-2"), ["XACK x g 1-2"]);
    assert_eq!(logged.units("XDEL x 1-2"), ["XDEL x 1-2"]);
    assert_eq!(logged.units("XSETID x 9-9 ENTRIESADDED 12 MAXDELETEDID 1-2"), ["XSETID x 9-9 ENTRIESADDED 12 MAXDELETEDID 1-2"]);
    assert_eq!(logged.units("XGROUP DELCONSUMER x g c"), ["XGROUP DELCONSUMER x g c"]);
    assert_eq!(logged.units("XGROUP DESTROY x g"), ["XGROUP DESTROY x g"]);
    let last = "18446744073709551615-18446744073709551615";
    logged.units(&format!("XADD x {last} a 1"));
    assert_eq!(logged.units("XTRIM x MAXLEN 0"), ["XTRIM x MAXLEN = 0"]);
}

#[test]
fn only_whole_units_are_taken() {
    let mut logged = Logged::new();
    let now = logged.harness.now;
    let mut log = logged.log.clone();
    let set = |log: &mut AppendLog, db: u32, key: &[u8]| {
        let effect = Effect::SetString { value: b"v", deadline: None };
        log.record(&Change { now, db, key, event: Event::SILENT, effect });
    };
    let none: [&str; 0] = [];
    set(&mut log, 1, b"a");
    assert_eq!(logged.batch(), none);
    set(&mut log, 1, b"b");
    log.end_unit();
    set(&mut log, 1, b"c");
    assert_eq!(logged.batch(), ["SELECT 1; SET a v; SET b v"]);
    assert_eq!(logged.batch(), none);
    // Another file begins in the middle of a unit.
    log.begin_file(SALT);
    set(&mut log, 2, b"d");
    log.end_unit();
    assert_eq!(logged.batch(), ["SELECT 1; SET c v; SELECT 2; SET d v"]);
    set(&mut log, 2, b"e");
    log.end_unit();
    set(&mut log, 2, b"never");
    drop(log);
    assert_eq!(logged.batch(), ["SET e v"]);
    assert_eq!(logged.batch(), none);
}

#[test]
fn a_batch_tells_what_it_changed() {
    let mut logged = Logged::new();
    let hashes = |keys: &[(u32, &str)]| Changed::Keys(keys.iter().map(|(db, key)| key_hash(SEED, *db, key.as_bytes())).collect());
    logged.units("MSET a 1 b 2 a 3");
    assert_eq!(logged.changed, hashes(&[(0, "a"), (0, "b"), (0, "a")]));
    logged.units("SELECT 2");
    logged.units("HSET h f 1 g 2");
    assert_eq!(logged.changed, hashes(&[(2, "h")]));
    for request in ["SWAPDB 3 4", "FUNCTION FLUSH", "FLUSHALL"] {
        logged.units("SET a 1");
        assert_eq!(logged.changed, hashes(&[(2, "a")]));
        logged.units(request);
        assert_eq!(logged.changed, Changed::Everything, "{request}");
    }
    logged.units("LOCK.SESSION mine GRACE 5000");
    assert_eq!(logged.changed, Changed::Keys(vec![session_hash(SEED, b"mine")]));
    // A unit in progress tells nothing yet.
    let (now, mut log) = (logged.harness.now, logged.log.clone());
    let mut record = |key: &[u8], effect| log.record(&Change { now, db: 5, key, event: Event::SILENT, effect });
    record(b"x", Effect::Delete);
    logged.log.clone().end_unit();
    record(b"y", Effect::Delete);
    record(b"", Effect::Flush);
    logged.batch();
    assert_eq!(logged.changed, hashes(&[(5, "x")]));
    logged.log.clone().end_unit();
    logged.batch();
    assert_eq!(logged.changed, Changed::Everything);
    record(b"z", Effect::Delete);
    logged.log.clone().end_unit();
    logged.batch();
    assert_eq!(logged.changed, hashes(&[(5, "z")]));
    // Neither the database nor the seed is lost, and the hashes are the same in another process.
    assert_ne!(key_hash(SEED, 0, b"a"), key_hash(SEED, 1, b"a"));
    assert_ne!(key_hash(SEED, 0, b"a"), key_hash(SEED + 1, 0, b"a"));
    assert_eq!(key_hash(SEED, 0, b"a"), 10_038_201_336_302_513_316);
}

#[test]
fn the_last_line_closes_the_file() {
    let mut logged = Logged::new();
    logged.units("SET a 1");
    let file = logged.file.clone();
    let closed = [&file[..], &logged.log.end_file(file.len() as u64)].concat();
    assert_eq!((read(&file).1, read(&closed).1), (Ok(Ending::Whole), Ok(Ending::Closed)));
}

#[test]
fn native_effects_become_records() {
    let mut logged = Logged::new();
    let mut natives = Vec::new();
    for request in ["LOCK.ACQUIRE door alice 5000", "LOCK.ACQUIRE hall bob 5000 REQUEST r1", "DEL other"] {
        logged.harness.run(request);
        logged.batch();
    }
    logged.harness.pass(1_000);
    let file = logged.file.clone();
    let mut reader = Reader::new(file.len() as u64);
    reader.feed(&file);
    // Half a second later in another process.
    let clock = BootClock { id: [1; 16], now_ms: 77_500 };
    let moment = Moment { now: Now::new(1_000_000_000, 0), boot: clock };
    while let Ok(Step::Unit(unit)) = reader.step() {
        for request in unit.requests(&moment) {
            if let Request::Native(native) = request.unwrap() {
                natives.push(format!("{native:?}"));
                if let Native::Lock { name, lock } = native {
                    let grant = lock.holders.only().unwrap();
                    let owner: &[u8] = if name == b"door" { b"alice" } else { b"bob" };
                    assert_eq!((&grant.owner[..], grant.end_ms), (owner, 1_000_000 + 4_501));
                }
            }
        }
    }
    let kinds: Vec<&str> = natives.iter().filter_map(|native| native.split(' ').next()).collect();
    assert_eq!(kinds, ["Lock", "Lock", "Requests"]);
}

#[test]
fn times_come_before_batches() {
    let mut logged = Logged::new();
    let times = |logged: &mut Logged, advance_s: u64, request: &str| {
        logged.harness.pass(advance_s * 1000);
        let before = logged.file.len();
        logged.units(request);
        let batch = &logged.file[before..];
        let end = batch.iter().position(|byte| *byte == b'\n').unwrap();
        let line = String::from_utf8_lossy(&batch[..end]).into_owned();
        line.strip_prefix("#TS:").map(|time| time.trim_end().parse::<i64>().unwrap())
    };
    let now_s = logged.harness.now.unix_ms() / 1000;
    assert_eq!(times(&mut logged, 0, "SET a 1"), None);
    logged.log.set_timestamps(true);
    assert_eq!(times(&mut logged, 0, "SET a 2"), Some(now_s));
    assert_eq!(times(&mut logged, 0, "SET a 3"), None, "one for each second");
    assert_eq!(times(&mut logged, 5, "SET a 4"), Some(now_s + 5));
    // The time of a batch is that of its first change.
    logged.harness.run("SET a 5");
    logged.harness.pass(3000);
    assert_eq!(times(&mut logged, 0, "SET a 6"), None);
    assert_eq!(times(&mut logged, 0, "SET a 7"), Some(now_s + 8));
    // Another file begins with one.
    logged.log.begin_file(SALT);
    assert_eq!(times(&mut logged, 0, "SET a 8"), Some(now_s + 8));
    logged.harness.run("SET a 9");
    logged.log.set_timestamps(false);
    assert_eq!(times(&mut logged, 9, "SET a 10"), None);
}

#[test]
fn the_position_is_reached_when_the_batch_is_durable() {
    let mut logged = Logged::new();
    assert_eq!(logged.log.position(), 0);
    let mut taken = 0;
    for value in 0..5 {
        logged.log.set_timestamps(value % 2 == 0);
        logged.harness.run(&format!("SET a {value}"));
        let behind = logged.log.position();
        assert!(behind > taken, "what is recorded is not durable");
        taken += logged.log.take_batch(0).unwrap().bytes.len() as u64;
        assert!(taken >= behind && logged.log.position() == taken);
    }
}
