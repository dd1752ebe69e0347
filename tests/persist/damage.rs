//! Files that were cut, flipped and spliced: loaded or refused, with memory in proportion to the file.

use crate::allocation::bounded;
use crate::common::random::Random;
use crate::subject::Subject;

const UNIX_MS: i64 = 1_700_000_000_000;
/// Number of damaged files; `PORTCULLIS_DAMAGED_FILES` has another one.
const FILES: usize = 3000;
/// Memory bound in bytes: the values of the undamaged file, some of them twice, and the tables of databases.
const ROOM: usize = 96 << 10;
/// Memory bound in bytes for each byte of a file with compressed strings, of which a byte stands for up to 88. While an element of
/// a list is read, it takes a `Cow` and the text of its integer.
const EACH: usize = 88 * 48;
/// The first byte of a compressed string.
const COMPRESSED: u8 = 0xc3;

/// Memory bound in bytes for a file.
fn bound(file: &[u8]) -> usize {
    ROOM + if file.contains(&COMPRESSED) { EACH * file.len() } else { 0 }
}

fn source() -> Vec<u8> {
    let mut subject = Subject::new(UNIX_MS);
    for request in [
        "SET s some-text",
        "SET timed 1 PX 99999",
        "RPUSH l a 1 -129 4000 70000 b",
        "SADD set a b c",
        "SADD ints 1 2 3",
        "ZADD z 1 a 2.5 b inf c",
        "HSET h a 1 b 2",
        "HPEXPIRE h 99999 FIELDS 1 a",
        "XADD x 5-1 a 1 b 2",
        "XADD x 5-2 a 3 b 4",
        "XGROUP CREATE x g 0",
        "XREADGROUP GROUP g busy COUNT 1 STREAMS x >",
        "LOCK.SESSION mine GRACE 5000",
        "LOCK.ACQUIRE lock me 60000 REQUEST first",
        "LOCK.ACQUIRE bound me 60000 SESSION",
        "LOCK.ACQUIRE shared a 60000 SHARED",
        "LOCK.ACQUIRE shared b 60000 SHARED",
        "SEM.ACQUIRE sem a 60000 LIMIT 5",
        "LATCH.SET latch 3",
        "LOCK.GUARD guard 17",
    ] {
        assert!(!subject.run(request).starts_with(b"-"), "{request}");
    }
    subject.file(vec![b"#!lua name=l\n".as_slice().into()])
}

fn damage(random: &mut Random, file: &mut Vec<u8>) {
    let below = |random: &mut Random, len: usize| random.below(len.max(1) as u64) as usize;
    for _ in 0..=random.below(3) {
        if file.len() < 20 {
            return;
        }
        match random.below(5) {
            0 => {
                let at = below(random, file.len());
                file[at] ^= 1 << random.below(8);
            }
            1 => {
                let at = below(random, file.len());
                file[at] = random.below(256) as u8;
            }
            2 => file.truncate(10 + below(random, file.len() - 10)),
            3 => {
                let (from, to) = (below(random, file.len()), below(random, file.len()));
                let part = file[from.min(to)..from.max(to)].to_vec();
                let at = 9 + below(random, file.len() - 9);
                file.splice(at..at, part);
            }
            _ => {
                let (from, to) = (9 + below(random, file.len() - 9), 9 + below(random, file.len() - 9));
                file.drain(from.min(to)..from.max(to));
            }
        }
    }
}

#[test]
fn damaged_files_do_no_harm() {
    let files = std::env::var("PORTCULLIS_DAMAGED_FILES").ok().and_then(|files| files.parse().ok()).unwrap_or(FILES);
    let source = source();
    let mut random = Random::new(20_261_123);
    let (mut loaded, mut refused) = (0, 0);
    for _ in 0..files {
        let mut file = source.clone();
        damage(&mut random, &mut file);
        if random.one_in(2) && file.len() > 17 {
            // As if it had been written like that.
            let end = file.len() - 8;
            file[end..].fill(0);
            file[end - 1] = 0xff;
        }
        let mut subject = Subject::new(UNIX_MS);
        let piece = 1 + random.below(500) as usize;
        match bounded(bound(&file), || subject.load(&file, piece)) {
            Ok(_) => {
                loaded += 1;
                subject.engine.check_invariants();
            }
            Err(fault) => {
                refused += 1;
                assert!(fault.offset <= file.len() as u64, "{fault}");
            }
        }
    }
    println!("{files} damaged files: {loaded} loaded, {refused} refused");
    assert!(loaded > files / 100 && refused > files / 10);
}

/// A length that promises more than there is takes no memory.
#[test]
fn lengths_are_not_believed() {
    for value in [
        &b"\x00\x01k\x81\x00\x00\x00\xff\xff\xff\xff\xff"[..],
        b"\x01\x01k\x81\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x00\x81\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let file = [b"REDIS0010", value].concat();
        let mut subject = Subject::new(UNIX_MS);
        bounded(64 << 10, || subject.load(&file, 3)).unwrap_err();
    }
}
