use crate::base::scaled;
use crate::base::time::Now;
use crate::keyspace::change::Event;
use crate::keyspace::tracking::*;

/// No client is notified.
const NOBODY: [u64; 0] = [];

fn client(number: u64) -> Client {
    Client { number, id: SessionId::new(number as u32, number as u32) }
}

fn change<'a>(key: &'a str, event: Event, effect: Effect<'a>) -> Change<'a> {
    Change { now: Now::new(0, 0), db: 0, key: key.as_bytes(), event, effect }
}

/// Changes a key as the client with a number. Returns the notified clients, others first.
fn changed(tracking: &mut Tracking, by: u64, key: &str) -> Vec<u64> {
    tracking.current = by;
    tracking.note(&change(key, Event::SET, Effect::Delete));
    told(tracking)
}

fn told(tracking: &mut Tracking) -> Vec<u64> {
    tracking.current = 0;
    let messages = tracking.take_others().into_iter().chain(tracking.take_own());
    let told = messages.flat_map(|message| message.to).map(|to| to.1).collect();
    tracking.check_invariants();
    told
}

fn texts(messages: Vec<Message>) -> Vec<(String, Vec<u64>)> {
    let text = |told: &Told| match told {
        Told::Flush => "-".to_owned(),
        Told::Keys(keys) => String::from_utf8(keys.join(&b" "[..])).unwrap(),
    };
    messages.iter().map(|message| (text(&message.told), message.to.iter().map(|to| to.1).collect())).collect()
}

#[test]
fn whoever_read_a_key_is_told_once() {
    let mut tracking = Tracking::new(1);
    let a = tracking.track(NIL, client(1), Options::empty(), None, &[]);
    let b = tracking.track(NIL, client(2), Options::NOLOOP, None, &[]);
    for tracker in [a, b, a] {
        tracking.remember(tracker, b"k", u64::MAX);
    }
    assert_eq!((tracking.keys(), tracking.items()), (1, 2));
    assert_eq!(changed(&mut tracking, 2, "other"), NOBODY);
    assert_eq!(changed(&mut tracking, 2, "k"), [1], "one that changed it itself does not want to know");
    assert_eq!(changed(&mut tracking, 3, "k"), NOBODY, "and no client has it any more");
    assert_eq!(tracking.keys(), 0);
    tracking.remember(a, b"k", u64::MAX);
    tracking.untrack(a);
    assert_eq!(changed(&mut tracking, 3, "k"), NOBODY);
    tracking.untrack(b);
    assert!(tracking.is_empty());
}

#[test]
fn a_full_table_makes_room_and_tells_who_loses_a_key() {
    let mut tracking = Tracking::new(1);
    let (keys_max, many) = scaled((100, 1000), (30, 60));
    tracking.keys_max = keys_max as u64;
    let a = tracking.track(NIL, client(1), Options::NOLOOP, None, &[]);
    tracking.current = 1;
    let mut lost = 0;
    for i in 0..many as u32 {
        tracking.remember(a, &i.to_le_bytes(), u64::MAX);
        tracking.current = 0;
        lost += told(&mut tracking).len();
        tracking.current = 1;
    }
    assert_eq!((tracking.keys(), lost), (keys_max, many - keys_max));
    // After its maximum was lowered, it shrinks with time, and with reads.
    tracking.keys_max = 10;
    tracking.current = 0;
    assert!(tracking.has_retired(), "there is something to do");
    tracking.free_some(&mut { 20 });
    assert_eq!((tracking.keys(), told(&mut tracking).len()), (keys_max - 20, 20));
    tracking.current = 1;
    for i in 1000..1010u32 {
        tracking.remember(a, &i.to_le_bytes(), u64::MAX);
    }
    told(&mut tracking);
    assert_eq!(tracking.keys(), 10);
    assert!(!tracking.has_retired());
}

#[test]
fn long_names_make_room_among_the_readers_own() {
    let mut tracking = Tracking::new(1);
    let a = tracking.track(NIL, client(1), Options::empty(), None, &[]);
    let b = tracking.track(NIL, client(2), Options::empty(), None, &[]);
    tracking.remember(b, b"small", 100_000);
    for i in 0..scaled(100, 20u8) {
        tracking.remember(a, &[i; 10_000], 100_000);
    }
    assert!(told(&mut tracking).iter().all(|&to| to == 1));
    assert!(tracking.keys() < 12 && tracking.bytes(a) < 101_000, "{} keys", tracking.keys());
    assert_eq!(changed(&mut tracking, 2, "small"), [2]);
}

#[test]
fn all_are_told_once_that_everything_is_gone() {
    let mut tracking = Tracking::new(1);
    let a = tracking.track(NIL, client(1), Options::empty(), None, &[]);
    tracking.track(NIL, client(2), Options::BCAST, None, &[]);
    for i in 0..scaled(1000, 100u32) {
        tracking.remember(a, &i.to_le_bytes(), u64::MAX);
    }
    for _ in 0..16 {
        tracking.note(&change("", Event::DEL, Effect::Flush));
    }
    assert_eq!(told(&mut tracking), [1, 2]);
    // Links that are being removed have no owner.
    let name = String::from_utf8(5u32.to_le_bytes().to_vec()).unwrap();
    assert_eq!(changed(&mut tracking, 3, &name), NOBODY);
    tracking.take_changed();
    tracking.remember(a, name.as_bytes(), u64::MAX);
    assert_eq!(changed(&mut tracking, 3, &name), [1]);
    tracking.take_changed();
    let mut turns = 0;
    while tracking.has_retired() {
        tracking.free_some(&mut scaled(100, 10));
        turns += 1;
    }
    assert!((10..20).contains(&turns) && tracking.keys() == 0, "{turns} turns");
}

#[test]
fn prefixes_gather_what_changed_in_a_turn() {
    let mut tracking = Tracking::new(1);
    let a = tracking.track(NIL, client(1), Options::BCAST, None, &[b"user:", b"job:"]);
    let b = tracking.track(NIL, client(2), Options::BCAST | Options::NOLOOP, None, &[b"user:"]);
    let all = tracking.track(NIL, client(3), Options::BCAST, None, &[]);
    assert_eq!(tracking.prefixes(), 3);
    for (by, key) in [(1, "user:2"), (2, "user:1"), (1, "job:1"), (1, "us"), (2, "user:2")] {
        assert_eq!(changed(&mut tracking, by, key), NOBODY);
    }
    assert!(tracking.has_changed());
    assert_eq!(
        texts(tracking.take_changed()),
        [("job:1 us user:1 user:2".to_owned(), vec![3]), ("job:1".to_owned(), vec![1]), ("user:1 user:2".to_owned(), vec![1]),],
        "the second one changed all that it could be told of last"
    );
    // An expiry is reported to all, including the client whose command triggered it.
    tracking.current = 2;
    tracking.note(&change("user:9", Event::EXPIRED, Effect::Delete));
    tracking.current = 0;
    tracking.untrack(all);
    assert_eq!(texts(tracking.take_changed()), [("user:9".to_owned(), vec![1, 2])]);
    tracking.untrack(a);
    tracking.untrack(b);
    tracking.check_invariants();
    assert_eq!((tracking.prefixes(), tracking.is_empty()), (0, true));
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn many_prefixes_go_bit_by_bit() {
    let mut tracking = Tracking::new(1);
    let names: Vec<Vec<u8>> = (0..1000u32).map(|n| format!("prefix:{n:04}").into_bytes()).collect();
    let prefixes: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let many = tracking.track(NIL, client(1), Options::BCAST, None, &prefixes);
    let few = tracking.track(NIL, client(2), Options::BCAST, None, &prefixes[..10]);
    assert!(tracking.bytes(many) > 1000 * 22);
    tracking.note(&change("prefix:0500:k", Event::SET, Effect::Delete));
    tracking.untrack(many);
    tracking.untrack(few);
    assert!(tracking.get(many).is_none() && tracking.has_retired());
    assert_eq!(
        (tracking.trackers(), tracking.prefixes()),
        (0, 1000),
        "trackers of few prefixes are gone, trackers of many are going"
    );
    assert_eq!(texts(tracking.take_changed()), [], "and is told nothing");
    tracking.note(&change("prefix:0500:k", Event::SET, Effect::Delete));
    let mut turns = 0;
    while tracking.has_retired() {
        let mut budget = 100;
        tracking.free_some(&mut budget);
        tracking.check_invariants();
        turns += 1;
    }
    assert_eq!(turns, 11, "with one for the tracker itself");
    assert!(tracking.is_empty() && !tracking.has_changed());
}
