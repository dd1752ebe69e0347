//! Files that a redis-server has continued.

use super::*;

/// What a redis-server makes of a file when it loads it: it cuts a torn request off, or the transaction that has it.
fn loaded_by_redis(file: &[u8]) -> Vec<u8> {
    let (mut scanner, mut valid, mut multi) = (Scanner::default(), 0, false);
    loop {
        match scanner.next(file, 0, true) {
            Ok(Item::Request { args: 1 }) => {
                let name = &file[scanner.args[scanner.args.len() - 1].clone()];
                multi = name == b"MULTI" || (multi && name != b"EXEC");
            }
            Ok(Item::Request { .. }) => {}
            Ok(Item::Annotation(_)) => continue,
            // An annotation without its end is skipped, and stays.
            Ok(Item::More) if file.get(scanner.at) == Some(&b'#') => return file.to_vec(),
            Ok(Item::More) | Err(Reason::Short) => {
                return if scanner.at == file.len() && scanner.is_between() { file.to_vec() } else { file[..valid].to_vec() };
            }
            Err(reason) => panic!("{reason}"),
        }
        if !multi {
            valid = scanner.at;
        }
    }
}

/// Three batches in database 0; their last one has units of every kind.
fn written() -> (Vec<u8>, Vec<usize>) {
    let batches = [
        vec![unit("SELECT 0"), unit("SET a 1")],
        vec![unit("SET b 2")],
        vec![unit("SET c 3"), unit("SET d 4; DEL a; SET e a-longer-value"), unit("SET f 5")],
    ];
    file_of(&batches, Synced::All)
}

#[test]
fn a_redis_server_that_continues_a_torn_batch_loses_nothing_silently() {
    let (file, ends) = written();
    for cut in ends[1]..=file.len() {
        let left = loaded_by_redis(&file[..cut]);
        let begins = ends.iter().rfind(|end| **end <= cut).unwrap();
        for appended in [plain("SELECT 0"), [&b"#TS:17\r\n"[..], &plain("SELECT 0"), &plain("SET x 1; SET y 2")].concat()] {
            let continued = [&left[..], &appended].concat();
            for piece in [1, 7, usize::MAX] {
                let (_, ending) = read_in_pieces(&continued, piece);
                // Where no request of the batch is whole, its header is cut off with it.
                if left.len() == *begins {
                    assert_eq!(ending, Ok(Ending::Whole), "cut at {cut}");
                } else {
                    let damage = ending.unwrap_err();
                    assert_eq!((damage.reason, damage.whole), (Reason::Continued, *begins as u64), "cut at {cut}");
                }
            }
            // Its last request may be torn. The SELECT tells.
            let select = left.len() + appended.len().min(10 + plain("SELECT 0").len());
            for end in select..continued.len() {
                let (_, ending) = read(&continued[..end]);
                let known = matches!(ending, Err(Damage { reason: Reason::Continued, .. }));
                assert!(known || left.len() == *begins, "cut at {cut}, ends at {end}: {ending:?}");
            }
        }
    }
}

#[test]
fn requests_behind_the_length_of_a_batch_are_known_without_a_select() {
    let (file, ends) = written();
    let torn = &file[..ends[2] + HEADER];
    let behind = plain(&format!("SET x {}", "v".repeat(300)));
    let continued = [torn, &plain("SELECT 9"), &behind].concat();
    assert_eq!(read(&continued).1.unwrap_err().reason, Reason::Continued);
    // Fewer bytes of another database are not known: a batch of ours may have them.
    let (_, ending) = read(&[torn, &plain("SELECT 9")].concat());
    assert!(matches!(ending, Ok(Ending::Torn(damage)) if damage.whole == ends[2] as u64), "{ending:?}");
}

#[test]
fn what_a_crash_leaves_is_not_taken_for_a_continuation() {
    let (file, ends) = written();
    let torn_at = |file: &[u8], whole: usize| {
        let (_, ending) = read(file);
        assert!(matches!(ending, Ok(Ending::Torn(damage)) if damage.whole == whole as u64), "{ending:?}");
    };
    // Zeros in a value, in a name, in a number, in the header; and then all is there.
    for from in ends[2]..file.len() {
        for to in from + 1..=file.len() {
            let mut lost = file.clone();
            lost[from..to].fill(0);
            torn_at(&lost, ends[2]);
        }
    }
    // The same with a batch behind, which was not durable either.
    let behind = [unit("SELECT 1"), unit("SET b 2"), unit("SELECT 0"), unit("SET c 3")];
    let batches = [vec![unit("SELECT 0"), unit("SET a 1")], behind.to_vec(), behind.to_vec()];
    let (file, ends) = file_of(&batches, Synced::None);
    for from in ends[1]..ends[2] {
        for to in from + 1..=file.len() {
            let mut lost = file.clone();
            lost[from..to].fill(0);
            torn_at(&lost, ends[1]);
        }
    }
}

#[test]
fn a_redis_server_may_have_continued_our_file() {
    let (file, _) = file_of(&[vec![unit("SET a 1")], vec![unit("SET b 2")]], Synced::All);
    for file in [closed(&file), file] {
        let continued = [&file[..], &plain("SELECT 0"), &plain("SET c 3; DEL a")].concat();
        let (units, ending) = read(&continued);
        assert_eq!(lines(&units), ["SET a 1", "SET b 2", "SELECT 0", "SET c 3; DEL a"]);
        assert_eq!(ending, Ok(Ending::Whole));
        // A unit of the redis-server without its end.
        let torn = [&continued[..], b"#TS:12345\r\n", &plain("SET c 3; DEL a")[..40]].concat();
        let whole = continued.len() as u64 + 11;
        let ending = read(&torn).1;
        assert!(matches!(ending, Ok(Ending::Torn(damage)) if damage.whole == whole), "{ending:?}");
    }
}
