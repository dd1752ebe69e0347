//! The reader of append-only files has a bound on its memory.

use portcullis::persist::append::batch::{batch, first_line};
use portcullis::persist::append::read::{Damage, Ending, Reader, Step};
use portcullis::persist::append::request::put_request;

use crate::allocation::bounded;

const SALT: u64 = 5;
/// Bytes of a fed piece.
const PIECE: usize = 8 << 10;
/// Memory beyond the batch and two pieces: the index of a small unit, and the tail's window.
const ROOM: usize = 64 << 10;

/// Reads a file, and returns the number of its units.
fn read(file: &[u8]) -> (usize, Result<Ending, Damage>) {
    let mut reader = Reader::new(file.len() as u64);
    let (mut pieces, mut units) = (file.chunks(PIECE), 0);
    loop {
        match reader.step() {
            Ok(Step::Unit(_)) => units += 1,
            Ok(Step::Preamble) => panic!("no RDB"),
            Ok(Step::More) => match pieces.next() {
                Some(piece) => reader.feed(piece),
                None => return (units, reader.finish()),
            },
            Err(damage) => return (units, Err(damage)),
        }
    }
}

/// A body of many small units.
fn body(len: usize) -> Vec<u8> {
    let mut body = Vec::new();
    while body.len() < len {
        put_request(&mut body, &[b"SET", b"k", b"some value"]);
    }
    body
}

#[test]
fn a_reader_keeps_one_batch_and_what_it_was_fed() {
    let batch_bytes = 1 << 20;
    let body = body(batch_bytes);
    let one = batch(SALT, 0, &body);
    let file = [&first_line(SALT)[..], &one, &one, &one, &one].concat();
    let bound = one.len() + 2 * PIECE + ROOM;
    let (units, ending) = bounded(bound, || read(&file));
    assert_eq!((units % 4, ending), (0, Ok(Ending::Whole)));
    // Torn in the first batch, and all that follows is searched.
    for at in [100, file.len() / 8, file.len() / 2] {
        let mut torn = file.clone();
        torn[at] ^= 1;
        let (_, ending) = bounded(bound, || read(&torn));
        assert!(matches!(ending, Ok(Ending::Torn(_))), "{ending:?}");
    }
    // A header that says more than there is takes nothing.
    let cut = &file[..42 + one.len() / 2];
    let (_, ending) = bounded(2 * PIECE + ROOM, || read(cut));
    assert!(matches!(ending, Ok(Ending::Torn(_))), "{ending:?}");
}

#[test]
fn a_reader_of_a_file_of_a_redis_server_keeps_one_unit() {
    let file = body(4 << 20);
    bounded(4 * PIECE + ROOM, || read(&file)).1.unwrap();
    // A length is not believed.
    let file = [&b"*1\r\n$500000000\r\n"[..], &vec![b'x'; 1 << 20]].concat();
    let (_, ending) = bounded(2 * PIECE + ROOM, || read(&file));
    assert!(matches!(ending, Ok(Ending::Torn(_))), "{ending:?}");
}
