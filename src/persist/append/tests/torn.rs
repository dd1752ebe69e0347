//! Cuts, flipped bytes, and files of redis-server.

use super::*;
use crate::persist::append::batch::{CLOSE_TAG, last_line};

fn torn_at(whole: usize) -> impl Fn(&Result<Ending, Damage>) -> bool {
    move |ending| matches!(ending, Ok(Ending::Torn(damage)) if damage.whole == whole as u64 && damage.offset >= damage.whole)
}

fn damaged_at(whole: usize) -> impl Fn(&Result<Ending, Damage>) -> bool {
    move |ending| matches!(ending, Err(damage) if damage.whole == whole as u64 && damage.offset >= damage.whole)
}

fn any_synced() -> impl Strategy<Value = Synced> {
    prop_oneof![Just(Synced::All), Just(Synced::None)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_written_is_read_however_it_comes(batches in any_batches(), synced in any_synced(), piece in 1usize..40) {
        let (file, _) = file_of(&batches, synced);
        let (units, ending) = read_in_pieces(&file, piece);
        prop_assert_eq!(ending, Ok(Ending::Whole));
        prop_assert_eq!(&units, &batches.concat());
        prop_assert_eq!(read(&file).0, units);
        prop_assert_eq!(read_in_pieces(&closed(&file), piece), (batches.concat(), Ok(Ending::Closed)));
    }

    #[test]
    fn what_a_redis_server_wrote_is_read(units in prop::collection::vec(any_unit(), 1..6), piece in 1usize..40, timed in any::<bool>()) {
        let mut file = Vec::new();
        for unit in &units {
            if timed {
                file.extend_from_slice(b"#TS:1750000000\r\n# any other\n");
            }
            put_unit(&mut file, unit);
        }
        prop_assert_eq!(read_in_pieces(&file, piece), (units, Ok(Ending::Whole)));
    }

    #[test]
    fn every_cut_is_found(batches in any_batches(), synced in any_synced(), piece in 1usize..100) {
        let (file, ends) = file_of(&batches, synced);
        let end = file.len();
        let file = closed(&file);
        for cut in 0..file.len() {
            let (units, ending) = read_in_pieces(&file[..cut], piece);
            let whole = ends.iter().filter(|end| **end <= cut).count();
            prop_assert_eq!(&units, &batches[..whole.saturating_sub(1)].concat(), "cut at {}", cut);
            let whole = if whole == 0 { 0 } else { ends[whole - 1] };
            // All that a cut last line follows is there.
            if cut == whole || cut >= end + CLOSE_TAG.len() {
                prop_assert_eq!(ending, Ok(Ending::Whole));
            } else {
                prop_assert!(torn_at(whole)(&ending), "cut at {} of {}: {:?}", cut, end, ending);
            }
        }
    }

    #[test]
    fn every_cut_of_a_file_of_a_redis_server_is_found(units in prop::collection::vec(any_unit(), 1..5)) {
        let (mut file, mut ends) = (Vec::new(), vec![0]);
        for unit in &units {
            put_unit(&mut file, unit);
            ends.push(file.len());
        }
        for cut in 0..file.len() {
            let (read, ending) = read(&file[..cut]);
            let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
            prop_assert_eq!(&read, &units[..whole]);
            if cut == ends[whole] {
                prop_assert_eq!(ending, Ok(Ending::Whole));
            } else {
                prop_assert!(torn_at(ends[whole])(&ending), "cut at {}: {:?}", cut, ending);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn every_flipped_byte_is_found(batches in any_batches(), synced in any_synced(), close in any::<bool>(), flip in 1u8.., piece in 1usize..100) {
        let (mut file, ends) = file_of(&batches, synced);
        let end = file.len();
        if close {
            file = closed(&file);
        }
        for at in 0..file.len() {
            let mut flipped = file.clone();
            flipped[at] ^= flip;
            let (units, ending) = read_in_pieces(&flipped, piece);
            let whole = ends.iter().filter(|end| **end <= at).count();
            let bad = if whole == 0 { 0 } else { ends[whole - 1] };
            // No unit of the damaged batch has come out.
            prop_assert_eq!(&units, &batches[..whole.saturating_sub(1)].concat(), "flipped at {}", at);
            let later_header = bad < end && whole + 1 < ends.len();
            // The first line is always durable, and without its tag the file looks like one of a redis-server's. What begins like a request may be one of a redis-server's.
            let damaged = flipped[bad] == b'*' || (close && bad < end) || (synced == Synced::All && later_header);
            let right = if whole == 0 { ending.is_err() } else if damaged { damaged_at(bad)(&ending) } else { torn_at(bad)(&ending) };
            prop_assert!(right, "flipped at {}, batch at {} of {}: {:?}", at, bad, end, ending);
        }
    }

    #[test]
    fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..300), batches in any_batches(), at in any::<prop::sample::Index>(), piece in 1usize..50) {
        let _ = read_in_pieces(&bytes, piece);
        let (mut file, _) = file_of(&batches, Synced::None);
        let at = at.index(file.len());
        file.splice(at..(at + bytes.len() / 2).min(file.len()), bytes);
        let _ = read_in_pieces(&file, piece);
    }
}

/// What is said of a file.
fn told(file: &[u8]) -> String {
    match read(file).1 {
        Ok(Ending::Torn(damage)) => format!("torn: {damage}"),
        Err(damage) => format!("{damage}"),
        Ok(Ending::Whole) => "whole".to_owned(),
        Ok(Ending::Closed) => "closed".to_owned(),
    }
}

#[test]
fn what_is_wrong_with_a_batch_and_where_is_told() {
    let first = [batch::first_line(SALT), batch_of("SET a 1", FIRST_LINE)].concat();
    let end = first.len();
    assert_eq!((end, plain("SET a 1").len()), (143, 27));
    let (second, unsynced) = (batch_of("SET b 2", end), batch_of("SET b 2", FIRST_LINE));
    let zeros = [&first[..], &[0; 4096]].concat();
    assert_eq!(told(&zeros), "torn: space that was never written at offset 143; the file is whole up to offset 143");
    // A batch that was lost, behind which all is there: it was durable, or it was not.
    let damage = "space that was never written at offset 143; the file is whole up to offset 143";
    assert_eq!(told(&[&first[..], &[0; 101], &batch_of("SET c 3", 244)].concat()), damage);
    assert_eq!(told(&[&first[..], &[0; 101], &batch_of("SET c 3", 144)].concat()), damage);
    assert_eq!(told(&[&first[..], &[0; 101], &batch_of("SET c 3", 143)].concat()), format!("torn: {damage}"));
    // The last batch need not be whole to prove it.
    assert_eq!(told(&[&first[..], &[0; 101], &batch_of("SET c 3", 244)[..HEADER]].concat()), damage);
    assert_eq!(told(&[&first[..], &[0; 101], &batch_of("SET c 3", 244)[..HEADER - 1]].concat()), format!("torn: {damage}"));
    // So does the last line, at its place.
    assert_eq!(told(&[&first[..], &[0; 101], &batch::last_line(SALT, 244)].concat()), damage);
    assert_eq!(told(&[&first[..], &[0; 101], &batch::last_line(SALT, 245)].concat()), format!("torn: {damage}"));

    let flipped = |at: usize| [&first[..at], &[first[at] ^ 1], &first[at + 1..], &second].concat();
    let first_batch = "the file is whole up to offset 42";
    assert_eq!(told(&flipped(FIRST_LINE + 10)), format!("a malformed header of a batch at offset 42; {first_batch}"));
    let body = FIRST_LINE + HEADER;
    assert_eq!(
        told(&flipped(body + 20)),
        format!("a batch with another checksum than its header says at offset 116; {first_batch}")
    );
    assert_eq!(told(&flipped(20)), "a malformed first line at offset 0; the file is whole up to offset 0");
    assert_eq!(told(&flipped(2)), "a batch in a file without a first line at offset 42; the file is whole up to offset 42");
    assert_eq!(told(b"#PCF:2:x"), "torn: the file ends too early at offset 0; the file is whole up to offset 0");
    let newer = [b"#PCF:2:", &[b'x'; 40][..]].concat();
    assert_eq!(told(&newer), "a first line of a later version at offset 0; the file is whole up to offset 0");
    let cut = [&first[..end - 1], &second].concat();
    assert_eq!(told(&cut), format!("a batch with another checksum than its header says at offset 116; {first_batch}"));
    let split = batch::batch(SALT, 0, &[&plain("SET a 1")[..], b"*1\r\n$5\r\nMULTI\r\n"].concat());
    let split = [batch::first_line(SALT), split].concat();
    assert_eq!(told(&split), "a unit that does not end with its batch at offset 158; the file is whole up to offset 143");
    assert_eq!(told(&closed(&first)), "closed");
    let behind = [closed(&first), unsynced].concat();
    assert_eq!(told(&behind), "a batch behind the last line at offset 166; the file is whole up to offset 166");
    assert_eq!(told(&[closed(&first), plain("SELECT 0")].concat()), "whole");
    assert_eq!(
        told(&[closed(&first), b"#T".to_vec()].concat()),
        "torn: the file ends too early at offset 166; the file is whole up to offset 166"
    );
}

#[test]
fn times_between_batches_hide_no_damage() {
    let time = b"#TS:1750000000\r\n";
    let first = [&batch::first_line(SALT)[..], time, &batch_of("SET a 1", FIRST_LINE)].concat();
    let end = first.len();
    let second = [&time[..], &batch_of("SET b 2", end)].concat();
    let whole = [&first[..], &second].concat();
    assert_eq!(lines(&read(&whole).0), ["SET a 1", "SET b 2"]);
    assert_eq!((told(&whole), told(&closed(&whole))), ("whole".to_owned(), "closed".to_owned()));
    // A batch whose header is lost is not taken for requests of a redis-server behind an annotation.
    let header = FIRST_LINE + time.len();
    for at in header + 1..header + HEADER {
        let flipped = [&first[..at], &[first[at] ^ 1], &first[at + 1..]].concat();
        assert!(read(&flipped).0.is_empty() && torn_at(header)(&read(&flipped).1), "flipped at {at}: {}", told(&flipped));
        assert!(damaged_at(header)(&read(&[&flipped[..], &second].concat()).1), "flipped at {at}, with a later batch");
    }
    // Each cut of the second batch and its time.
    for cut in end + 1..whole.len() {
        let (units, ending) = read(&whole[..cut]);
        let kept = if cut < end + time.len() { end } else { end + time.len() };
        assert_eq!(units.len(), 1, "cut at {cut}");
        assert!(if cut == kept { ending == Ok(Ending::Whole) } else { torn_at(kept)(&ending) }, "cut at {cut}: {ending:?}");
    }
    // Of the second batch something was lost, and of a third one all but its time, or a part of that.
    let mut bad = whole.clone();
    *bad.iter_mut().rev().nth(2).unwrap() ^= 1;
    for len in 0..=time.len() {
        let file = [&bad[..], &time[..len]].concat();
        assert!(torn_at(end + time.len())(&read(&file).1), "{len} bytes of a time: {}", told(&file));
    }
    // Requests of a redis-server behind it are not cut off.
    let theirs = [&bad[..], time, &plain("SET c 3")].concat();
    assert!(damaged_at(end + time.len())(&read(&theirs).1), "{}", told(&theirs));
    // A redis-server does not see that a time is cut, and appends right behind it. It refuses such a file itself.
    let joined = [&first[..], &time[..7], &plain("SET c 3")].concat();
    assert!(read(&joined).1.is_err(), "{}", told(&joined));
}

#[test]
fn a_cut_last_line_loses_nothing() {
    let first = [batch::first_line(SALT), batch_of("SET a 1", FIRST_LINE)].concat();
    let line = last_line(SALT, first.len() as u64);
    for len in CLOSE_TAG.len()..line.len() {
        assert_eq!(told(&[&first[..], &line[..len]].concat()), "whole", "{len} bytes");
    }
    // The tag alone may be the beginning of another line.
    assert!(told(&[&first[..], b"#PC"].concat()).starts_with("torn: "));
    let mut damaged = [&first[..], &line[..15]].concat();
    *damaged.last_mut().unwrap() ^= 1;
    assert!(told(&damaged).starts_with("torn: "));
    // The last line of another place.
    assert!(told(&[&first[..], &last_line(SALT, 7)[..15]].concat()).starts_with("torn: "));
}

#[test]
fn what_is_wrong_with_a_file_of_a_redis_server_is_told() {
    let here = "at offset 0; the file is whole up to offset 0";
    for (file, text) in [
        ("*1\r\n$4\r\nEXEC\r\n", format!("EXEC without MULTI {here}")),
        (
            "*1\r\n$5\r\nMULTI\r\n*1\r\n$5\r\nmulti\r\n",
            "MULTI within MULTI at offset 15; the file is whole up to offset 0".into(),
        ),
        ("*0\r\n", format!("a malformed number of arguments {here}")),
        ("*-1\r\n", format!("a malformed number of arguments {here}")),
        ("*1\r\n:1\r\n\r\n\r\n", "a malformed length of an argument at offset 4; the file is whole up to offset 0".into()),
        ("*1\r\n$-1\r\n\r\n", "a malformed length of an argument at offset 4; the file is whole up to offset 0".into()),
        (
            "*1\r\n$1\r\nxyz\r\n",
            "an argument of another length than is written before it at offset 4; the file is whole up to offset 0".into(),
        ),
        ("SET a 1\r\n", format!("neither a request nor an annotation {here}")),
        ("\0\0", format!("space that was never written {here}")),
        ("# a text\n#\n", "whole".into()),
        ("# a text", format!("torn: the file ends too early {here}")),
        // Lengths for which the file is too short are not waited for.
        ("*1\r\n$536870912\r\n", "torn: the file ends too early at offset 4; the file is whole up to offset 0".into()),
        ("*1\r\n$536870913\r\n", "an argument of more than 512 MiB at offset 4; the file is whole up to offset 0".into()),
        ("*1048576\r\n$1\r\n", format!("torn: the file ends too early {here}")),
        ("*1048577\r\n$1\r\n", format!("a request of more than 1048576 arguments {here}")),
        ("*1\n$4\nPING\r\n", "whole".into()),
    ] {
        assert_eq!(told(file.as_bytes()), text, "{file:?}");
    }
    assert_eq!((ARGUMENT_BYTES_MAX, ARGUMENTS_MAX), (536_870_912, 1_048_576));
    let line = |len: usize| [&vec![b'#'; len - 1][..], b"\n"].concat();
    assert_eq!(told(&line(1024)), "whole");
    assert_eq!(told(&line(1025)), format!("an annotation of more than 1024 bytes {here}"));
}

#[test]
fn the_last_time_is_known() {
    let file = [b"#TS:1750000000\r\n", &plain("SET a 1")[..], b"#TS:1750000009\r\n#TS:x\r\n"].concat();
    let mut reader = Reader::new(file.len() as u64);
    reader.feed(&file);
    while let Ok(Step::Unit(_)) = reader.step() {}
    assert_eq!(reader.timestamp(), Some(1_750_000_009));
}

#[test]
fn an_rdb_at_the_beginning_is_left_to_others() {
    let mut reader = Reader::new(100);
    assert!(matches!(reader.step(), Ok(Step::More)));
    reader.feed(b"RED");
    assert!(matches!(reader.step(), Ok(Step::More)));
    reader.feed(b"IS0010");
    assert!(matches!(reader.step(), Ok(Step::Preamble)));
    let rest = plain("SET a 1");
    let mut reader = Reader::behind_preamble(73, 73 + rest.len() as u64);
    reader.feed(&rest);
    match reader.step() {
        Ok(Step::Unit(unit)) => assert_eq!((unit.offset(), unit.len()), (73, 1)),
        other => panic!("{other:?}"),
    }
    assert!(matches!(reader.step(), Ok(Step::More)));
    assert_eq!((reader.offset(), reader.finish()), (73 + rest.len() as u64, Ok(Ending::Whole)));
}
