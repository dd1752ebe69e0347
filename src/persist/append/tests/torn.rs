//! Cuts, flipped bytes, and files of redis-server.

use super::*;

fn torn_at(whole: usize) -> impl Fn(&Result<Ending, Damage>) -> bool {
    move |ending| matches!(ending, Ok(Ending::Torn(damage)) if damage.whole == whole as u64 && damage.offset >= damage.whole)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_written_is_read_however_it_comes(batches in any_batches(), piece in 1usize..40) {
        let (file, _) = file_of(&batches);
        let (units, ending) = read_in_pieces(&file, piece);
        prop_assert_eq!(ending, Ok(Ending::Whole));
        prop_assert_eq!(&units, &batches.concat());
        prop_assert_eq!(read(&file).0, units);
    }

    #[test]
    fn what_a_redis_server_wrote_is_read(units in prop::collection::vec(any_unit(), 1..6), piece in 1usize..40, timed in any::<bool>()) {
        let mut file = Vec::new();
        for unit in &units {
            if timed {
                file.extend_from_slice(b"#TS:1750000000\r\n");
            }
            put_unit(&mut file, unit);
        }
        prop_assert_eq!(read_in_pieces(&file, piece), (units, Ok(Ending::Whole)));
    }

    #[test]
    fn every_cut_is_found(batches in any_batches(), piece in 1usize..100) {
        let (file, ends) = file_of(&batches);
        for cut in 0..file.len() {
            let (units, ending) = read_in_pieces(&file[..cut], piece);
            let whole = ends.iter().filter(|end| **end <= cut).count();
            prop_assert_eq!(&units, &batches[..whole].concat(), "cut at {}", cut);
            let end = if whole == 0 { 0 } else { ends[whole - 1] };
            if cut == end {
                prop_assert_eq!(ending, Ok(Ending::Whole));
            } else {
                prop_assert!(torn_at(end)(&ending), "cut at {}: {:?}", cut, ending);
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

    #[test]
    fn every_flipped_byte_is_found(batches in any_batches(), flip in 1u8.., piece in 1usize..100) {
        let (file, ends) = file_of(&batches);
        for at in 0..file.len() {
            let mut flipped = file.clone();
            flipped[at] ^= flip;
            let (units, ending) = read_in_pieces(&flipped, piece);
            let whole = ends.iter().filter(|end| **end <= at).count();
            let end = if whole == 0 { 0 } else { ends[whole - 1] };
            // No unit of the damaged batch has come out.
            prop_assert_eq!(&units, &batches[..whole].concat(), "flipped at {}", at);
            match ending {
                // A batch that does not begin as one may be a request that redis-server appended: it is not taken for a torn batch.
                Err(damage) => {
                    prop_assert!(whole + 1 < ends.len() || at < end + START.len(), "at the end: {}", damage);
                    prop_assert!(damage.whole == end as u64 && damage.offset >= damage.whole);
                }
                Ok(_) => {
                    prop_assert!(whole + 1 == ends.len(), "flipped at {}, and a batch follows: {:?}", at, ending);
                    prop_assert!(torn_at(end)(&ending), "flipped at {}: {:?}", at, ending);
                }
            }
        }
    }

    #[test]
    fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..300), batches in any_batches(), at in any::<prop::sample::Index>(), piece in 1usize..50) {
        let _ = read_in_pieces(&bytes, piece);
        let (mut file, _) = file_of(&batches);
        let at = at.index(file.len());
        file.splice(at..(at + bytes.len() / 2).min(file.len()), bytes);
        let _ = read_in_pieces(&file, piece);
    }
}

fn unit(words: &str) -> Requests {
    words.split("; ").map(|request| request.split(' ').map(|word| word.as_bytes().to_vec()).collect()).collect()
}

fn plain(words: &str) -> Vec<u8> {
    let mut file = Vec::new();
    put_unit(&mut file, &unit(words));
    file
}

fn batch(words: &str) -> Vec<u8> {
    file_of(&[vec![unit(words)]]).0
}

#[test]
fn a_redis_server_may_have_continued_our_file_and_we_its() {
    let file =
        [plain("SET a 1"), batch("SET b 2"), plain("SELECT 0"), plain("SET c 3; DEL a"), batch("SET d 4"), batch("SET e 5")]
            .concat();
    let (units, ending) = read(&file);
    assert_eq!(lines(&units), ["SET a 1", "SET b 2", "SELECT 0", "SET c 3; DEL a", "SET d 4", "SET e 5"]);
    assert_eq!(ending, Ok(Ending::Whole));
    // A unit of the redis-server without its end.
    let whole = file.len();
    let file = [&file[..], b"#TS:12345\r\n", &plain("SET c 3; DEL a")[..40]].concat();
    assert!(torn_at(whole + 11)(&read(&file).1), "{:?}", read(&file));
}

#[test]
fn what_is_wrong_and_where_is_told() {
    let (first, second) = (batch("SET a 1"), batch("SET b 2"));
    let told = |file: &[u8]| match read(file).1 {
        Ok(Ending::Torn(damage)) => format!("torn: {damage}"),
        Err(damage) => format!("{damage}"),
        Ok(Ending::Whole) => "whole".to_owned(),
    };
    assert_eq!((first.len(), START.len()), (57, 5));
    let zeros = [&first[..], &[0; 4096]].concat();
    assert_eq!(told(&zeros), "torn: space that was never written at offset 57; the file is whole up to offset 57");
    assert_eq!(told(&[0; 4096]), "torn: space that was never written at offset 0; the file is whole up to offset 0");
    // A sector that was lost, behind which all is there.
    let lost = [&first[..], &[0; 57], &second].concat();
    assert_eq!(told(&lost), "space that was never written at offset 57; the file is whole up to offset 57");
    let unsealed = [&first[..32], &second].concat();
    assert_eq!(told(&unsealed), "a batch without its last line at offset 32; the file is whole up to offset 0");
    let unstarted = [&plain("SET a 1"), &first[5..]].concat();
    assert_eq!(told(&unstarted), "a batch without its first line at offset 54; the file is whole up to offset 54");
    let mut flipped = [&first[..], &second].concat();
    flipped[29] = b'2';
    assert_eq!(
        told(&flipped),
        "a batch with another checksum than its last line says at offset 32; the file is whole up to offset 0"
    );
    for (file, text) in [
        ("*1\r\n$4\r\nEXEC\r\n", "EXEC without MULTI at offset 0; the file is whole up to offset 0"),
        ("*1\r\n$5\r\nMULTI\r\n*1\r\n$5\r\nmulti\r\n", "MULTI within MULTI at offset 15; the file is whole up to offset 0"),
        ("*0\r\n", "a malformed number of arguments at offset 0; the file is whole up to offset 0"),
        ("*-1\r\n", "a malformed number of arguments at offset 0; the file is whole up to offset 0"),
        ("*1\r\n:1\r\n\r\n\r\n", "a malformed length of an argument at offset 4; the file is whole up to offset 0"),
        ("*1\r\n$-1\r\n\r\n", "a malformed length of an argument at offset 4; the file is whole up to offset 0"),
        (
            "*1\r\n$1\r\nxyz\r\n",
            "an argument of another length than is written before it at offset 4; the file is whole up to offset 0",
        ),
        ("SET a 1\r\n", "neither a request nor an annotation at offset 0; the file is whole up to offset 0"),
        ("# a text\n", "neither a request nor an annotation at offset 0; the file is whole up to offset 0"),
        // Lengths for which the file is too short are not waited for.
        ("*1\r\n$999999999999\r\n", "torn: the file ends too early at offset 4; the file is whole up to offset 0"),
        ("*99999999\r\n$1\r\n", "torn: the file ends too early at offset 0; the file is whole up to offset 0"),
    ] {
        assert_eq!(told(file.as_bytes()), text, "{file:?}");
    }
}

#[test]
fn a_damaged_length_does_not_hide_later_batches() {
    let mut file = [batch("SET a 1"), batch("SET b 2"), batch("SET c 3")].concat();
    // A length that covers all up to the last line end.
    let length = b"#PC\r\n*3\r\n$3\r\nSET\r\n$1\r\n".len() - b"1\r\n".len();
    let digits = (file.len() - length).to_string();
    let covered = file.len() - length - b"1\r\n".len() - b"\r\n".len();
    assert_eq!(covered.to_string().len(), digits.len());
    file.splice(length..=length, covered.to_string().into_bytes());
    let (units, ending) = read(&file);
    assert!(units.is_empty());
    assert_eq!(ending, Err(Damage { offset: file.len() as u64, whole: 0, reason: Reason::Short }));
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
    assert_eq!((reader.offset(), reader.finish()), (73 + rest.len() as u64, Ending::Whole));
}
