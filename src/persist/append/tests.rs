//! What is written is read: requests, batches, native records; and whatever is done to a file is found.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use smallvec::SmallVec;

use crate::base::time::Now;
use crate::engine::harness::Harness;
use crate::keyspace::change::{Change, ChangeLog, Effect, Event};
use crate::keyspace::rdb::parts::crc64;
use crate::lock::grant::{Owner, SessionNumber};
use crate::lock::requests::{Answer, Answered, Remembered};
use crate::lock::sessions::Session;
use crate::lock::{Bound, Client, Grant, Lock, Mode};
use crate::persist::append::batch::{self, FIRST_LINE, HEADER};
use crate::persist::append::clock::{BootClock, Moment};
use crate::persist::append::log::{AppendLog, Changed, key_hash, session_hash};
use crate::persist::append::native::{self, Native, Refusal};
use crate::persist::append::read::{ARGUMENT_BYTES_MAX, ARGUMENTS_MAX, Damage, Ending, Extent, Reader, Reason, Request, Step};
use crate::persist::append::request::put_request;
use crate::persist::append::scan::{Item, Scanner};

mod continued;
mod log;
mod records;
mod torn;

/// The salt of files.
const SALT: u64 = 0x5a17_5a17_5a17_5a17;

/// Requests, each a list of arguments.
type Requests = Vec<Vec<Vec<u8>>>;

/// The units of a file, and how it ends, when it comes in pieces of this length.
fn read_in_pieces(file: &[u8], piece: usize) -> (Vec<Requests>, Result<Ending, Damage>) {
    let mut reader = Reader::new(file.len() as u64);
    let mut pieces = file.chunks(piece);
    let mut units = Vec::new();
    loop {
        match reader.step() {
            Ok(Step::Unit(unit)) => {
                assert!(unit.len() > 0);
                units.push(unit.raw().map(|(_, args)| args.iter().map(|arg| arg.to_vec()).collect()).collect());
            }
            Ok(Step::Preamble) => panic!("no RDB was written"),
            Ok(Step::More) => match pieces.next() {
                Some(piece) => reader.feed(piece),
                None => {
                    let (offset, extent) = (reader.offset(), reader.extent());
                    assert_eq!(extent, Extent { bytes: offset, sum: crc64(&file[..offset as usize]) });
                    let ending = reader.finish();
                    if let Ok(Ending::Torn(damage)) | Err(damage) = ending {
                        assert_eq!(offset, damage.whole);
                    } else {
                        // A cut last line says nothing.
                        let rest = &file[offset as usize..];
                        assert!(rest.is_empty() || batch::last_line(SALT, offset).starts_with(rest), "{}", rest.escape_ascii());
                    }
                    return (units, ending);
                }
            },
            Err(damage) => {
                assert_eq!(reader.offset(), damage.whole);
                assert_eq!(reader.step().unwrap_err(), damage, "and again");
                return (units, Err(damage));
            }
        }
    }
}

fn read(file: &[u8]) -> (Vec<Requests>, Result<Ending, Damage>) {
    read_in_pieces(file, usize::MAX)
}

/// The requests of a unit in one line each.
fn lines(units: &[Requests]) -> Vec<String> {
    let line = |args: &Vec<Vec<u8>>| args.iter().map(|arg| arg.escape_ascii().to_string()).collect::<Vec<_>>().join(" ");
    units.iter().map(|unit| unit.iter().map(line).collect::<Vec<_>>().join("; ")).collect()
}

/// Writes a unit as a server does.
fn put_unit(file: &mut Vec<u8>, unit: &Requests) {
    let mut put = |args: &[&[u8]]| put_request(file, args);
    let requests = unit.iter().map(|args| args.iter().map(Vec::as_slice).collect::<Vec<_>>());
    if unit.len() == 1 {
        requests.for_each(|args| put(&args));
    } else {
        put(&[b"MULTI"]);
        requests.for_each(|args| put(&args));
        put(&[b"EXEC"]);
    }
}

/// Requests with some contents that look like parts of the format.
fn any_unit() -> impl Strategy<Value = Requests> {
    let arg = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..12),
        1 => Just(b"#PCB:".to_vec()),
        // A batch with another salt, which says that all was durable.
        1 => Just([b"\r\n", &batch::batch(SALT ^ 1, 1 << 40, b"*1\r\n$1\r\nx\r\n")[..]].concat()),
        1 => Just(b"*1\r\n$4\r\nEXEC\r\n".to_vec()),
    ];
    let request = (prop_oneof![Just("SET"), Just("multi2"), Just("DEL")], prop::collection::vec(arg, 1..5));
    let request = request.prop_map(|(name, args)| std::iter::once(name.into()).chain(args).collect::<Vec<_>>());
    prop::collection::vec(request, 1..4)
}

/// Batches of units.
fn any_batches() -> impl Strategy<Value = Vec<Vec<Requests>>> {
    prop::collection::vec(prop::collection::vec(any_unit(), 1..4), 1..4)
}

/// What the headers of a file say of what was durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Synced {
    /// Each batch before was.
    All,
    /// Nothing but the first line was.
    None,
}

/// The file with these batches, and their ends; the first one is that of the first line.
fn file_of(batches: &[Vec<Requests>], synced: Synced) -> (Vec<u8>, Vec<usize>) {
    let mut file = batch::first_line(SALT);
    let mut ends = vec![file.len()];
    for units in batches {
        let mut body = Vec::new();
        units.iter().for_each(|unit| put_unit(&mut body, unit));
        let synced = if synced == Synced::All { file.len() } else { FIRST_LINE };
        file.extend(batch::batch(SALT, synced as u64, &body));
        ends.push(file.len());
    }
    (file, ends)
}

fn closed(file: &[u8]) -> Vec<u8> {
    [file, &batch::last_line(SALT, file.len() as u64)].concat()
}

fn unit(words: &str) -> Requests {
    words.split("; ").map(|request| request.split(' ').map(|word| word.as_bytes().to_vec()).collect()).collect()
}

/// A unit as a redis-server writes it.
fn plain(words: &str) -> Vec<u8> {
    let mut file = Vec::new();
    put_unit(&mut file, &unit(words));
    file
}

/// A batch with a unit.
fn batch_of(words: &str, synced: usize) -> Vec<u8> {
    batch::batch(SALT, synced as u64, &plain(words))
}
