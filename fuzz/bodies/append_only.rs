//! Append-only files with arbitrary bytes, applied as a start applies them. A file is read, torn or refused, with bounded memory; it
//! is read alike in pieces of any size; and the engine is sound afterwards, whatever was in it.
//!
//! The first byte of an input says what the rest is: a file; what follows our first line; the body of one batch, whose header is
//! added here; or requests, one per line, words separated by blanks, each a unit and a batch.

use crate::allocation;
use portcullis::base::time::Now;
use portcullis::driver::replay::{Purpose, Replay};
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::persist::append::batch::{batch, first_line};
use portcullis::persist::append::read::{Damage, Ending, Reader, Step};
use portcullis::persist::append::request::put_request;
use portcullis::persist::natives::clock::{BootClock, Moment};

/// Maximum size of an input in bytes.
const INPUT_MAX: usize = 16 << 10;
/// The salt of files that are made here.
const SALT: u64 = 7;
/// Memory bound in bytes: an engine's tables, and what requests take beyond their arguments.
const ROOM: usize = 8 << 20;
/// Memory bound in bytes for each byte of a file. A byte of a compressed payload stands for up to 88.
const EACH: usize = 88 * 48;
/// Requests that take time or memory by a number or a program in them.
const LEFT_OUT: &[&[u8]] = &[b"setrange", b"setbit", b"bitfield", b"eval", b"function", b"fcall", b"debug", b"script", b"clock"];

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((&control, rest)) = data.split_first() else { return };
    let rest = &rest[..rest.len().min(INPUT_MAX)];
    let file = match control % 4 {
        0 => rest.to_vec(),
        1 => [&first_line(SALT)[..], rest].concat(),
        2 => [&first_line(SALT)[..], &batch(SALT, 0, rest)].concat(),
        _ => requests(rest),
    };
    assert_eq!(read(&file, file.len().max(1)), read(&file, 1 + usize::from(control / 4)), "in other pieces");
    let lower = file.to_ascii_lowercase();
    if LEFT_OUT.iter().any(|name| lower.windows(name.len()).any(|part| part == *name)) {
        return;
    }
    let now = Now::new(1_000_000, 1_700_000_000_000);
    let mut engine = Engine::new(Config::default(), 1, now, portcullis::commands::table());
    allocation::bounded(ROOM + EACH * file.len(), || apply(&mut engine, Moment { now, boot: BootClock::default() }, &file));
    engine.check_invariants();
}

/// A file of requests.
fn requests(text: &[u8]) -> Vec<u8> {
    let mut file = first_line(SALT);
    for line in text.split(|&byte| byte == b'\n') {
        let args: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let mut body = Vec::new();
        put_request(&mut body, &args);
        file.extend(batch(SALT, file.len() as u64, &body));
    }
    file
}

/// How the file ends, and the lengths and offsets of its units.
fn read(file: &[u8], piece: usize) -> (Vec<(usize, u64)>, Result<Ending, Damage>) {
    let mut reader = Reader::new(file.len() as u64);
    let (mut pieces, mut units) = (file.chunks(piece), Vec::new());
    loop {
        match reader.step() {
            Ok(Step::Unit(unit)) => units.push((unit.len(), unit.offset())),
            Ok(Step::Preamble) => return (units, reader.finish()),
            Ok(Step::More) => match pieces.next() {
                Some(piece) => reader.feed(piece),
                None => return (units, reader.finish()),
            },
            Err(damage) => {
                assert!(damage.whole <= damage.offset && damage.offset <= file.len() as u64, "{damage}");
                return (units, Err(damage));
            }
        }
    }
}

/// Applies what can be read, up to the first unit that is refused.
fn apply(engine: &mut Engine, moment: Moment, file: &[u8]) {
    let mut replay = Replay::new(engine, moment);
    let mut reader = Reader::new(file.len() as u64);
    let mut rest = Some(file);
    loop {
        match reader.step() {
            Ok(Step::Unit(unit)) => {
                if replay.unit(unit).is_err() {
                    return;
                }
            }
            Ok(Step::More) => match rest.take() {
                Some(bytes) => reader.feed(bytes),
                None => break,
            },
            Ok(Step::Preamble) | Err(_) => return,
        }
    }
    let _ = replay.finish(moment.now, Purpose::Start { truncates: true });
}
