//! A live copy is the keyspace of one moment: generated calls change an engine while its keys are copied in small steps, and the
//! copy has the same keys, values, deadlines, locks and libraries as the engine has at the end.

use std::collections::BTreeMap;

use portcullis::base::time::Now;
use portcullis::driver::copy::received::Received;
use portcullis::engine::Engine;
use portcullis::persist::live_copy::LiveCopy;

use crate::append_only::{difference, exchanged_functions, focused_call, lock_call, without_times};
use crate::caller::{Caller, Jumps};
use crate::change_log::{Content, Item, held, held_libraries, library_call, lock_records};
use crate::common::random::Random;
use crate::generate::{Catalogue, Generator, WAITS_FOR_THE_DRIVER};

const CALLS: usize = 300;
const SEEDS: u64 = 150;
/// Milliseconds by which a time that is read from a record may be late.
const LATE_MS_MAX: i64 = 4;

/// Now and then the connection ends.
fn call(source: &mut Caller, random: &mut Random, call: &[Vec<u8>]) {
    source.call(random, call, Jumps { one_in: 50, most_ms: 20_000, whole_ms: 1 });
    if random.one_in(60) {
        source.connect_again();
    }
}

/// Gives a lock that was copied the times of the lock itself, if they are no more than the least later.
fn put_in_time(copied: &mut Item, item: &Item) {
    let (Content::Lock(copied_holders), Content::Lock(holders)) = (&mut copied.content, &item.content) else { return };
    let close = |later: i64, time: i64| (0..=LATE_MS_MAX).contains(&(later - time));
    for (copied, holder) in copied_holders.iter_mut().zip(holders) {
        if close(copied.4, holder.4) {
            copied.4 = holder.4;
        }
    }
    if copied.deadline.zip(item.deadline).is_some_and(|(later, time)| close(later, time)) {
        copied.deadline = item.deadline;
    }
}

#[test]
fn a_copy_has_the_keyspace_of_its_end() {
    let catalogue = Catalogue::new((7, 0), false, |line| line.name() != WAITS_FOR_THE_DRIVER);
    let (mut keys, mut locks, mut meanwhile) = (0, 0, 0);
    for seed in 0..SEEDS {
        let random = &mut Random::new(seed);
        let generator = Generator::new(&catalogue, random, true);
        let mut source = Caller::new(seed, Now::new(5_000_000, 1_700_000_000_000));
        let mut first = exchanged_functions().into_iter();
        let mut next = |random: &mut Random, engine: &Engine| match first.next() {
            Some(call) => call,
            None if random.one_in(20) => library_call(random, engine),
            None if random.one_in(3) => focused_call(random),
            None if random.one_in(2) => lock_call(random),
            None => generator.call(random),
        };
        for _ in 0..CALLS {
            let request = next(random, &source.engine);
            call(&mut source, random, &request);
        }
        let begun = source.moment();
        let libraries = held_libraries(&source.engine).into_values().map(Vec::into_boxed_slice).collect();
        let copy = LiveCopy::begin(source.engine.keyspace(), begun, libraries);
        source.engine.keyspace_mut().changes.log = Some(Box::new(copy.clone()));
        let engine = Engine::new(source.engine.config().clone(), seed ^ 1, begun.now, portcullis::commands::table());
        let mut received = Received::new(Box::new(engine), begun);
        let calls_a_step = random.below(6);
        loop {
            for _ in 0..random.below(calls_a_step + 1) {
                let request = next(random, &source.engine);
                call(&mut source, random, &request);
                meanwhile += 1;
            }
            let more = copy.step(source.engine.keyspace(), source.moment(), 1 + random.below(200) as usize).expect("it has room");
            if random.one_in(2) {
                let moment = source.moment();
                copy.take().iter().for_each(|part| received.apply(part, moment).expect("the part is applied"));
            }
            if !more {
                break;
            }
        }
        // A few more changes behind the last step.
        for _ in 0..random.below(5) {
            let request = next(random, &source.engine);
            call(&mut source, random, &request);
        }
        while source.engine.advance(source.now) {}
        let moment = source.moment();
        let parts = copy.finish(source.engine.keyspace());
        source.engine.keyspace_mut().changes.log = None;
        parts.iter().for_each(|part| received.apply(part, moment).expect("the part is applied"));
        let mut engine = received.finish().expect("the copy is whole");

        let last = source.history[source.history.len().saturating_sub(400)..].join("\n");
        engine.check_invariants();
        let (mut ours, mut theirs) = (held(&mut source.engine, source.now), held(&mut engine, source.now));
        [&mut ours, &mut theirs].into_iter().for_each(|databases| without_times(databases, true));
        for (db, key, item) in theirs.iter_mut().flat_map(|(db, keys)| keys.iter_mut().map(move |(key, item)| (*db, key, item))) {
            if let Some(of) = ours.get(&db).and_then(|keys| keys.get(key)) {
                put_in_time(item, of);
            }
        }
        assert!(ours == theirs, "seed {seed}: {}\n{last}", difference(&ours, &theirs));
        assert_eq!(held_libraries(&source.engine), held_libraries(&engine), "seed {seed}");
        let ((requests, sessions), (copied, copied_sessions)) =
            (lock_records(&source.engine, source.now), lock_records(&engine, source.now));
        assert!(requests.keys().eq(copied.keys()), "seed {seed}: {requests:?}\n{copied:?}\n{last}");
        for ((answers, at), (copied_answers, copied_at)) in requests.values().zip(copied.values()) {
            assert_eq!(answers, copied_answers, "seed {seed}\n{last}");
            let later_ms = copied_at.zip(*at).map(|(copied_at, at)| copied_at - at);
            assert!(
                copied_at.is_some() == at.is_some() && (0..=LATE_MS_MAX).contains(&later_ms.unwrap_or(0)),
                "{at:?} {copied_at:?}"
            );
        }
        assert!(sessions.keys().eq(copied_sessions.keys()), "seed {seed}: {sessions:?}\n{copied_sessions:?}\n{last}");
        for ((id, user, grace_ms, at), copied) in sessions.values().zip(copied_sessions.values()) {
            assert_eq!((id, user, grace_ms), (&copied.0, &copied.1, &copied.2), "seed {seed}\n{last}");
            let later_ms = copied.3.zip(*at).map(|(copied_at, at)| copied_at - at);
            assert!(
                copied.3.is_some() == at.is_some() && (0..=LATE_MS_MAX).contains(&later_ms.unwrap_or(0)),
                "{at:?} {copied:?}"
            );
        }
        let token = |engine: &Engine| engine.keyspace().changes.locks.as_ref().map(|locks| locks.next_token());
        assert!(token(&source.engine) <= token(&engine), "seed {seed}: no token is given twice");
        keys += ours.values().map(BTreeMap::len).sum::<usize>();
        locks += lock_records(&engine, source.now).0.len();
    }
    let compared = format!("{SEEDS} copies, {meanwhile} calls meanwhile, {keys} keys, {locks} owners with remembered requests");
    println!("compared: {compared}");
    assert!(keys > 1000 && meanwhile > 2000 && locks > 10, "{compared}");
}
