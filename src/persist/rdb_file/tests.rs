mod forms;
mod native_values;

use std::collections::BTreeMap;

use native_values::with_locks;
use proptest::prelude::*;

use crate::base::ids::Key;
use crate::engine::harness::Harness;
use crate::keyspace::rdb::parts::crc64;
use crate::persist::natives::clock::BootClock;
use crate::persist::rdb_file::fault::{Fault, Reason};
use crate::persist::rdb_file::load::{Loader, Options as LoadOptions, Tally};
use crate::persist::rdb_file::opcode;
use crate::persist::rdb_file::read::{Event, Reader};
use crate::persist::rdb_file::write::{Changed, Options, Writer};
use crate::store::values::value::Value;

const PLAIN: Options =
    Options { checksum: true, is_base: false, used_memory: 0, boot: BootClock { id: [0; 16], now_ms: 0 }, libraries: Vec::new() };

/// The file of a state in slices.
fn slices(h: &Harness, options: Options, room: usize) -> Vec<Vec<u8>> {
    let mut writer = Writer::new(h.engine.keyspace(), h.now, options);
    let mut slices = Vec::new();
    loop {
        let mut slice = Vec::new();
        let more = writer.next_chunk(h.engine.keyspace(), &mut slice, room).unwrap();
        slices.push(slice);
        if !more {
            assert_eq!(writer.next_chunk(h.engine.keyspace(), &mut Vec::new(), room), Ok(false), "nothing comes after the end");
            return slices;
        }
    }
}

fn file(h: &Harness) -> Vec<u8> {
    slices(h, PLAIN, 1 << 20).concat()
}

/// Loads a file that arrives in pieces of this size.
fn load_in_pieces(h: &mut Harness, file: &[u8], options: LoadOptions, piece: usize) -> Result<Tally, Fault> {
    let mut reader = Reader::new(None, true, h.now.unix_ms());
    let mut loader = Loader::new(h.now, options);
    h.engine.keyspace_mut().changes.begin();
    let mut read = || {
        for piece in file.chunks(piece) {
            reader.feed(piece);
            while let Some(event) = reader.next()? {
                loader.apply(h.engine.keyspace_mut(), event)?;
            }
        }
        reader.check_end()?;
        Ok(loader.tally())
    };
    let result = read();
    if result.is_err() {
        loader.give_up(h.engine.keyspace_mut());
    }
    h.engine.keyspace_mut().changes.end();
    h.pass(0);
    result
}

fn load(h: &mut Harness, file: &[u8]) -> Result<Tally, Fault> {
    load_in_pieces(h, file, LoadOptions::default(), 1000)
}

fn reloaded(h: &Harness) -> Harness {
    let mut other = Harness::new();
    other.now = h.now;
    load(&mut other, &file(h)).unwrap();
    other
}

/// Values and deadlines of all plain keys.
fn keys(h: &mut Harness) -> BTreeMap<(usize, String), String> {
    let mut all = BTreeMap::new();
    for db in 0..16 {
        h.run(&format!("SELECT {db}"));
        let listed = h.run("KEYS *");
        for key in listed.split(' ').skip(1).filter(|word| !word.starts_with('$')) {
            let value = h.args(&[b"DUMP", key.as_bytes()]);
            let ttl = h.run(&format!("PEXPIRETIME {key}"));
            all.insert((db, key.to_owned()), format!("{} {ttl}", value.escape_ascii()));
        }
    }
    h.run("SELECT 0");
    all
}

fn filled() -> Harness {
    let mut h = Harness::new();
    for request in [
        "SET s some-text",
        "SET n -70000",
        "SET timed x PX 12345",
        "RPUSH l a 1 -129 4000 70000",
        "SADD set a b c",
        "SADD ints 1 2 3",
        "ZADD z 1 a 2.5 b inf c",
        "HSET h a 1 b 2",
        "HSET one field 1",
        "HPEXPIRE h 99999 FIELDS 1 a",
        "XADD x 5-1 a 1 b 2",
        "XADD x 5-2 a 3 b 4",
        "XGROUP CREATE x g 0",
        "XGROUP CREATECONSUMER x g idle",
        "XREADGROUP GROUP g busy COUNT 1 STREAMS x >",
        "SELECT 3",
        "SET s other",
        "PEXPIRE s 77777",
        "SELECT 0",
    ] {
        assert!(!h.run(request).starts_with('-'), "{request}");
    }
    h.args(&[b"SET", b"long", &b"long".repeat(20_000)]);
    h
}

/// A file of these items, with the checksum.
fn sealed(version: &str, items: &[u8]) -> Vec<u8> {
    let mut file = [b"REDIS", version.as_bytes(), items, &[opcode::EOF]].concat();
    let crc = crc64(&file);
    file.extend_from_slice(&crc.to_le_bytes());
    file
}

fn fault_of(file: &[u8]) -> Fault {
    load(&mut Harness::new(), file).unwrap_err()
}

#[test]
fn all_types_come_back_in_pieces_of_any_size() {
    let mut h = filled();
    let file = file(&h);
    assert!(file.starts_with(b"REDIS0012"), "a field has a deadline");
    let before = keys(&mut h);
    assert_eq!(before.len(), 12);
    for piece in [1, 7, 1000, file.len()] {
        let mut other = Harness::new();
        let tally = load_in_pieces(&mut other, &file, LoadOptions::default(), piece).unwrap();
        assert_eq!(tally, Tally { loaded: 12, ..Tally::default() });
        assert_eq!(keys(&mut other), before, "in pieces of {piece}");
    }
}

#[test]
fn slices_have_the_size_that_was_asked_for_and_make_the_same_file() {
    let mut h = filled();
    for n in 0..3000 {
        h.args(&[b"SET", format!("key:{n}").as_bytes(), b"value", b"PX", b"60000"]);
    }
    let whole = file(&h);
    // The largest item but one, which is the last stream.
    let small = 300;
    for room in [1, 100, 5000] {
        let slices = slices(&h, PLAIN, room);
        assert_eq!(slices.concat(), whole);
        let longest = slices.iter().filter(|slice| slice.len() < 80_000).map(Vec::len).max().unwrap();
        assert!(longest < room + small, "{longest} for {room}");
        assert!(slices.len() >= whole.len().saturating_sub(80_000) / (room + small), "{} slices", slices.len());
    }
}

#[test]
fn a_slice_has_no_more_than_one_large_key_beyond_its_size() {
    let mut h = Harness::new();
    for n in 0..200 {
        h.args(&[b"SET", format!("large:{n}").as_bytes(), &b"x".repeat(10_000)]);
    }
    let slices = slices(&h, PLAIN, 1000);
    let longest = slices.iter().map(Vec::len).max().unwrap();
    assert!(longest < 1000 + 10_100, "{longest}");
}

#[test]
fn expired_keys_are_neither_written_nor_loaded_unless_commands_follow() {
    let mut h = Harness::new();
    h.script(&[("DEBUG SET-ACTIVE-EXPIRE 0", "+OK"), ("SET a 1 PX 10", "+OK"), ("SET b 2 PX 1000", "+OK"), ("SET c 3", "+OK")]);
    let all = file(&h);
    h.now.advance_us(10_000);
    let fewer = file(&h);
    let mut other = Harness::new();
    assert_eq!(load(&mut other, &fewer).unwrap().loaded, 2);
    other.script(&[("DBSIZE", ":2"), ("PTTL b", ":1000")]);

    let mut other = Harness::new();
    other.now = h.now;
    assert_eq!(load(&mut other, &all).unwrap(), Tally { loaded: 2, expired: 1, ..Tally::default() });
    let mut other = Harness::new();
    other.now = h.now;
    let options = LoadOptions { keep_expired: true, ..LoadOptions::default() };
    assert_eq!(load_in_pieces(&mut other, &all, options, 1000).unwrap().loaded, 3);
    other.script(&[("DBSIZE", ":2"), ("PTTL b", ":990"), ("GET c", "$1 3")]);
}

#[test]
fn expired_fields_of_hashes_are_kept_where_commands_follow() {
    let mut h = Harness::new();
    h.script(&[
        ("HSET h a 1 b 2 c 3", ":3"),
        ("HPEXPIRE h 50 FIELDS 1 a", "*1 :1"),
        ("HPEXPIRE h 5000 FIELDS 1 b", "*1 :1"),
        ("PEXPIRE h 9000", ":1"),
        ("HSET all a 1", ":1"),
        ("HPEXPIRE all 50 FIELDS 1 a", "*1 :1"),
    ]);
    let file = file(&h);
    let unix_ms = h.now.unix_ms();
    for keep_expired in [false, true] {
        let mut other = Harness::new();
        other.now = h.now;
        other.now.advance_us(50_000);
        // As while a file is loaded, nothing expires until all is there.
        let mut reader = Reader::new(None, true, 0);
        reader.feed(&file);
        let mut loader = Loader::new(other.now, LoadOptions { keep_expired, ..LoadOptions::default() });
        while let Some(event) = reader.next().unwrap() {
            loader.apply(other.engine.keyspace_mut(), event).unwrap();
        }
        let images = other.engine.keyspace().images(None);
        let fields = |key: &[u8]| {
            let image = images.get(&Key { db: 0, name: key }.to_buf())?;
            let Some(Value::Hash(hash)) = image.other() else { return None };
            Some(
                hash.iter()
                    .map(|field| (field.name.to_vec(), field.deadline.map(|at| other.now.unix_of(at) - unix_ms)))
                    .collect(),
            )
        };
        let (h_fields, all): (Option<BTreeMap<_, _>>, Option<BTreeMap<_, _>>) = (fields(b"h"), fields(b"all"));
        let kept = [(b"b".to_vec(), Some(5000)), (b"c".to_vec(), None)];
        if keep_expired {
            let gone = (b"a".to_vec(), Some(50));
            assert_eq!(h_fields, Some(kept.into_iter().chain([gone.clone()]).collect()));
            assert_eq!(all, Some([gone].into()));
        } else {
            assert_eq!((h_fields, all), (Some(kept.into()), None));
        }
        // Clients do not see what has expired, and may set it anew.
        other.script(&[
            ("HLEN h", ":2"),
            ("HMGET h a b c", "*3 $-1 $1 2 $1 3"),
            ("HSET h a 9", ":1"),
            ("HPTTL h FIELDS 3 a b c", "*3 :-1 :4950 :-1"),
            ("PTTL h", ":8950"),
            ("EXISTS all", ":0"),
        ]);
    }
}

#[test]
fn a_hash_whose_fields_have_all_expired_is_not_loaded() {
    let mut h = Harness::new();
    h.script(&[("HSET h a 1", ":1"), ("HPEXPIRE h 50 FIELDS 1 a", "*1 :1"), ("SET k v", "+OK")]);
    let file = file(&h);
    let mut other = Harness::new();
    other.now = h.now;
    other.now.advance_us(50_000);
    assert_eq!(load(&mut other, &file).unwrap(), Tally { loaded: 1, expired: 1, ..Tally::default() });
    other.script(&[("EXISTS h", ":0"), ("DBSIZE", ":1")]);
}

#[test]
fn uses_are_written_where_the_policy_has_them() {
    let mut h = Harness::new();
    h.script(&[("CONFIG SET maxmemory-policy allkeys-lru", "+OK"), ("SET k v", "+OK")]);
    h.pass(100_000);
    let mut other = Harness::new();
    other.now = h.now;
    load(&mut other, &file(&h)).unwrap();
    other.script(&[("OBJECT IDLETIME k", ":100")]);

    let mut h = Harness::new();
    h.script(&[
        ("CONFIG SET maxmemory-policy volatile-lfu", "+OK"),
        ("SET k v", "+OK"),
        ("RESTORE k 0 x FREQ 3", "-BUSYKEY Target key name already exists."),
    ]);
    let dumped = h.args(&[b"DUMP", b"k"]);
    let start = dumped.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    h.args(&[b"RESTORE", b"k", b"0", &dumped[start..dumped.len() - 2], b"REPLACE", b"FREQ", b"77"]);
    let mut other = Harness::new();
    other.script(&[("CONFIG SET maxmemory-policy volatile-lfu", "+OK")]);
    load(&mut other, &file(&h)).unwrap();
    other.script(&[("OBJECT FREQ k", ":77")]);

    // Without a policy, neither is written.
    let mut h = Harness::new();
    h.script(&[("SET k v", "+OK")]);
    h.pass(100_000);
    let mut other = Harness::new();
    other.now = h.now;
    load(&mut other, &file(&h)).unwrap();
    other.script(&[("OBJECT IDLETIME k", ":0")]);
}

#[test]
fn the_version_is_that_of_redis_7_unless_a_field_of_a_hash_has_a_deadline() {
    let mut h = filled();
    h.run("HPERSIST h FIELDS 1 a");
    assert!(file(&h).starts_with(b"REDIS0010"));
    // A consumer that was never given an entry comes back as such, though that version cannot say it.
    let mut other = reloaded(&h);
    assert_eq!(keys(&mut other), keys(&mut h));
    assert_eq!(other.run("XINFO CONSUMERS x g"), h.run("XINFO CONSUMERS x g"));
    assert!(h.run("XINFO CONSUMERS x g").contains("$8 inactive :-1"));

    let mut writer = Writer::new(h.engine.keyspace(), h.now, PLAIN);
    h.run("HPEXPIRE h 1000 FIELDS 1 a");
    assert_eq!(writer.next_chunk(h.engine.keyspace(), &mut Vec::new(), usize::MAX), Err(Changed));
}

#[test]
fn libraries_come_before_the_keys() {
    let mut h = Harness::new();
    h.run("SET k v");
    let options = Options { libraries: vec![b"#!lua name=a\n".as_slice().into(), b"#!lua name=b\n".as_slice().into()], ..PLAIN };
    let file = slices(&h, options, 10).concat();
    let mut reader = Reader::new(Some(file.len() as u64), true, 0);
    reader.feed(&file);
    let mut seen = Vec::new();
    while let Some(event) = reader.next().unwrap() {
        match event {
            Event::Library(source) => seen.push(String::from_utf8_lossy(&source).into_owned()),
            Event::Key(key) => seen.push(String::from_utf8_lossy(&key.name).into_owned()),
            Event::End(checksum) => seen.push(format!("{checksum:?}")),
            _ => {}
        }
    }
    assert_eq!(seen, ["#!lua name=a\n", "#!lua name=b\n", "k", "Right"]);
    assert_eq!(reader.offset(), file.len() as u64);
}

#[test]
fn a_file_without_a_checksum_is_accepted_and_what_follows_is_left() {
    let mut h = filled();
    let mut file = slices(&h, Options { checksum: false, ..PLAIN }, 1 << 20).concat();
    assert!(file.ends_with(&[0xff, 0, 0, 0, 0, 0, 0, 0, 0]));
    let len = file.len();
    file.extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
    let mut reader = Reader::new(None, true, 0);
    reader.feed(&file);
    let mut loader = Loader::new(h.now, LoadOptions::default());
    let mut other = Harness::new();
    while let Some(event) = reader.next().unwrap() {
        loader.apply(other.engine.keyspace_mut(), event).unwrap();
    }
    assert!(reader.has_ended());
    assert_eq!((reader.offset(), reader.rest()), (len as u64, &b"*1\r\n$4\r\nPING\r\n"[..]));
    assert_eq!(keys(&mut other), keys(&mut h));
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_refused() {
    let h = with_locks();
    let file = file(&h);
    for end in 0..file.len() {
        let mut reader = Reader::new(None, true, 0);
        reader.feed(&file[..end]);
        let fault = loop {
            match reader.next() {
                Ok(Some(_)) => {}
                Ok(None) => break reader.check_end().unwrap_err(),
                Err(fault) => break fault,
            }
        };
        assert_eq!((fault.reason, fault.offset), (Reason::End, end as u64));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    /// Whatever is done to a file, it is loaded or refused, and the state is sound.
    #[test]
    fn changed_files_do_no_harm(
        locks in any::<bool>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
        splice in prop::option::of((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<prop::sample::Index>())),
        piece in 1..2000usize,
        right in any::<bool>(),
    ) {
        let mut source = if locks { with_locks() } else { filled() };
        source.run("DEL long");
        let mut file = slices(&source, PLAIN, 4096).concat();
        for (at, byte) in flips {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Some((from, to, at)) = splice {
            let (from, to) = (from.index(file.len()), to.index(file.len()));
            let part = file[from.min(to)..from.max(to)].to_vec();
            let at = at.index(file.len());
            file.splice(at..at, part);
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()) + 1);
        }
        if right && file.len() > 17 {
            // As if it had been written like that.
            let end = file.len() - 8;
            let crc = crc64(&file[..end]);
            file[end..].copy_from_slice(&crc.to_le_bytes());
        }
        let mut h = Harness::new();
        let result = load_in_pieces(&mut h, &file, LoadOptions::default(), piece);
        h.engine.check_invariants();
        if let Err(fault) = result {
            prop_assert!(fault.offset <= file.len() as u64, "{fault} of {} bytes", file.len());
            prop_assert!(!fault.explanation().is_empty());
        }
        h.pass(1_000_000);
    }
}
