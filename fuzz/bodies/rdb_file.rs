//! Whole RDB files with arbitrary bytes, applied as a start applies a base. A file is loaded or refused, with bounded memory, alike in
//! pieces of any size, and the engine is sound afterwards.
//!
//! The first byte of an input says what the rest is: a file, or its items, to which a head and an end without a checksum are added.

use crate::allocation;
use portcullis::base::time::Now;
use portcullis::driver::replay::{Purpose, Replay};
use portcullis::engine::Engine;
use portcullis::engine::config::Config;
use portcullis::persist::natives::clock::{BootClock, Moment};
use portcullis::persist::rdb_file::fault::Fault;
use portcullis::persist::rdb_file::load::Tally;
use portcullis::persist::rdb_file::read::{Event, Reader};

/// Maximum size of an input in bytes.
const INPUT_MAX: usize = 16 << 10;
/// Memory bound in bytes: an engine's tables.
const ROOM: usize = 8 << 20;
/// Memory bound in bytes for each byte of a file. A compressed byte stands for up to 88, each half an element of a list.
const EACH: usize = 88 * 48;

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((&control, rest)) = data.split_first() else { return };
    let rest = &rest[..rest.len().min(INPUT_MAX)];
    let file = match control % 2 {
        0 => rest.to_vec(),
        _ => [b"REDIS0011", rest, b"\xff\0\0\0\0\0\0\0\0"].concat(),
    };
    let whole = load(&file, file.len().max(1));
    let pieces = load(&file, 1 + usize::from(control / 2));
    assert_eq!(whole, pieces, "in other pieces");
}

/// Loads a file that arrives in pieces.
fn load(file: &[u8], piece: usize) -> Result<(Tally, Result<usize, String>), Fault> {
    let now = Now::new(1_000_000, 1_700_000_000_000);
    let mut engine = Engine::new(Config::default(), 1, now, portcullis::commands::table());
    let result = allocation::bounded(ROOM + EACH * file.len(), || {
        let mut replay = Replay::new(&mut engine, Moment { now, boot: BootClock::default() });
        let mut reader = Reader::new(Some(file.len() as u64), true, replay.unix_ms());
        let mut loader = replay.begin_rdb(true, true);
        let mut pieces = file.chunks(piece);
        while !reader.has_ended() {
            match reader.next()? {
                // A library runs when it is loaded, and the script target has those.
                Some(Event::Library(_)) => {}
                Some(event) => replay.rdb_event(&mut loader, event)?,
                None => match pieces.next() {
                    Some(piece) => reader.feed(piece),
                    None => {
                        reader.check_end()?;
                        break;
                    }
                },
            }
        }
        let tally = loader.tally();
        Ok((tally, replay.finish(now, Purpose::Start { truncates: true }).map(|(_, keys)| keys)))
    });
    engine.check_invariants();
    result
}
