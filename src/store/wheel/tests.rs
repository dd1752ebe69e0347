//! Compares the wheel with a sorted map, and checks its punctuality.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::base::scaled;

/// Polls once. Returns the tokens that fired.
fn poll(wheel: &mut Wheel, now: u64, mut budget: u32, deadline_of: impl Fn(u64) -> u64) -> (Vec<u64>, u32) {
    let mut fired = Vec::new();
    while let Some(token) = wheel.poll(now, &mut budget, &deadline_of) {
        fired.push(token);
    }
    (fired, budget)
}

#[test]
fn fires_at_its_millisecond_and_not_before() {
    let deadlines = [u64::MAX, 1, 4097, 1 << 18, 63, 64, 4095, 4096, (1 << 18) + 1, 86_400_000, 1 << 44, u64::MAX - 1];
    for &deadline in &deadlines[..scaled(deadlines.len(), 4)] {
        let mut wheel = Wheel::new(0);
        wheel.insert(deadline, deadline);
        let mut wakes = 0;
        loop {
            wheel.check_invariants();
            let wake = wheel.next_wake().unwrap();
            assert!(wake <= deadline);
            assert!(poll(&mut wheel, wake.saturating_sub(1), 10, |d| d).0.is_empty());
            wakes += 1;
            let (fired, _) = poll(&mut wheel, wake, 10, |d| d);
            if fired == [deadline] {
                assert_eq!(wake, deadline.min(LAST_MS));
                break;
            }
        }
        assert!(wakes <= LEVELS + 1, "{wakes} wake-ups for {deadline}");
        assert_eq!((wheel.len(), wheel.next_wake()), (0, None));
    }
}

#[test]
fn fires_what_is_past_on_the_next_poll() {
    let mut wheel = Wheel::new(1000);
    wheel.insert(5, 5);
    wheel.insert(1000, 1000);
    assert_eq!(wheel.next_wake(), Some(1000));
    assert_eq!(poll(&mut wheel, 1000, 10, |d| d).0, [5, 1000]);
    wheel.insert(999, 999);
    assert_eq!(poll(&mut wheel, 1000, 10, |d| d).0, [999]);
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn a_jump_fires_in_the_order_of_deadlines() {
    let mut wheel = Wheel::new(7);
    let mut deadlines: Vec<u64> =
        (0..20_000u64).map(|i| 8 + i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (1 << (10 + i % 30))).collect();
    for &deadline in &deadlines {
        wheel.insert(deadline, deadline);
    }
    deadlines.sort_unstable();
    let mut fired = Vec::new();
    let mut polls = 0;
    while wheel.len() > 0 {
        assert!(wheel.next_wake().unwrap() <= 1 << 41);
        fired.extend(poll(&mut wheel, 1 << 41, 100, |d| d).0);
        polls += 1;
    }
    wheel.check_invariants();
    assert!(polls <= 20_000 * 6 / 100, "{polls} polls");
    assert_eq!(fired, deadlines);
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn a_million_timers_are_never_late() {
    let mut wheel = Wheel::new(0);
    for i in 0..1_000_000u64 {
        wheel.insert(1 + i.wrapping_mul(0x9e37_79b9) % 10_000, 1 + i.wrapping_mul(0x9e37_79b9) % 10_000);
    }
    for now in 1..=10_000 {
        let (fired, _) = poll(&mut wheel, now, 2000, |d| d);
        assert!(fired.iter().all(|&d| d == now), "late at {now}");
        assert!(wheel.next_wake().is_none_or(|wake| wake > now), "not done at {now}");
    }
    wheel.check_invariants();
    assert!(wheel.len() == 0);
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn half_a_million_in_one_millisecond_make_nobody_late() {
    const T: u64 = 10_000;
    let mut wheel = Wheel::new(0);
    for i in 0..500_000u64 {
        wheel.insert(T, (i << 32) | T);
        if i % 25_000 == 0 {
            let deadline = T - 10 + i / 25_000 + u64::from(i >= 250_000);
            wheel.insert(deadline, (1 << 63) | deadline);
        }
    }
    let deadline_of = |token| token & 0xffff_ffff;
    let (mut many, mut others) = (0, 0);
    for now in 1..T + 1000 {
        let (fired, left) = poll(&mut wheel, now, 2000, deadline_of);
        for token in fired {
            if token >> 63 == 1 {
                assert_eq!(deadline_of(token), now, "one of the others");
                others += 1;
            } else {
                assert!(now >= T);
                many += 1;
            }
        }
        assert!(left == 0 || now < T || many == 500_000, "budget left at {now} with {many}");
        if now >= T && left == 0 {
            assert!(wheel.next_wake().unwrap() <= now);
        }
    }
    assert_eq!((many, others, wheel.len()), (500_000, 20, 0));
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn moving_ahead_is_paced() {
    let mut wheel = Wheel::new(0);
    for i in 0..10_000 {
        wheel.insert(6144 + i % 100, 6144 + i % 100);
    }
    assert_eq!(wheel.next_wake(), Some(6144 - 2048));
    let (fired, left) = poll(&mut wheel, 4096, 2000, |d| d);
    assert_eq!((fired.len(), left), (0, 2000 - AHEAD_PER_MS));
    assert_eq!(poll(&mut wheel, 4096, 2000, |d| d).1, 2000, "no more in the same millisecond");
    assert_eq!(wheel.next_wake(), Some(4097));
    // Near the start, the whole budget; very near, immediately.
    assert_eq!(poll(&mut wheel, 6144 - HURRY_MS, 2000, |d| d).1, 0);
    assert_eq!(wheel.next_wake(), Some(6144 - HURRY_MS + 1));
    assert_eq!(poll(&mut wheel, 6144 - URGENT_MS, 2000, |d| d).1, 0);
    assert_eq!(wheel.next_wake(), Some(6144 - URGENT_MS));
    wheel.check_invariants();
}

#[test]
fn numbers_are_used_again() {
    let mut wheel = Wheel::new(0);
    let first: Vec<_> = (0..scaled(5000, 300)).map(|i| wheel.insert(i, i)).collect();
    let taken = wheel.allocated();
    first.iter().for_each(|&timer| wheel.cancel(timer));
    wheel.check_invariants();
    let mut second: Vec<_> = (0..scaled(5000, 300)).map(|i| wheel.insert(1 << (i % 60), i)).collect();
    wheel.check_invariants();
    second.sort_unstable();
    assert_eq!(first, second);
    assert_eq!(wheel.allocated(), taken);
    assert!(first.iter().all(|&timer| timer > 0 && timer < TIMER_LIMIT));
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64),
    InsertPast(u64),
    Cancel(usize),
    Later(usize, u64),
    Retoken(usize),
    Advance(u64),
    FollowWake,
    Drain,
}

/// Spans from milliseconds to centuries.
fn span() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..100u64,
        3 => 0..10_000u64,
        2 => 0..1_000_000u64,
        1 => (0..45u32, any::<u64>()).prop_map(|(bits, x)| x & ((1 << bits) - 1)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => span().prop_map(Step::Insert),
        1 => span().prop_map(Step::InsertPast),
        3 => any::<usize>().prop_map(Step::Cancel),
        3 => (any::<usize>(), span()).prop_map(|(i, d)| Step::Later(i, d)),
        1 => any::<usize>().prop_map(Step::Retoken),
        4 => span().prop_map(Step::Advance),
        4 => Just(Step::FollowWake),
        1 => Just(Step::Drain),
    ]
}

/// The expected state of a timer: its deadline, the deadline of its last filing as far as it is known, and its id.
#[derive(Debug)]
struct Expected {
    deadline: u64,
    inserted: u64,
    timer: TimerId,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: scaled(100, 1), ..ProptestConfig::default() })]
    #[test]
    fn behaves_like_a_sorted_map(
        start in prop_oneof![Just(0u64), 0..1u64 << 41],
        budget in prop_oneof![1..4u32, 1..100u32, Just(2000u32)],
        steps in prop::collection::vec(step(), 1..scaled(200, 15)),
    ) {
        let mut wheel = Wheel::new(start);
        let mut now = start;
        let mut model: BTreeMap<u64, Expected> = BTreeMap::new();
        let mut next_token = 0;
        let pick = |model: &BTreeMap<u64, Expected>, i: usize| model.keys().nth(i % model.len().max(1)).copied();
        for step in steps {
            match step {
                Step::Insert(d) | Step::InsertPast(d) => {
                    let deadline = if matches!(step, Step::Insert(_)) { now + d } else { now.saturating_sub(d) };
                    let timer = wheel.insert(deadline, next_token);
                    prop_assert!(timer != 0 && timer < TIMER_LIMIT);
                    model.insert(next_token, Expected { deadline, inserted: deadline, timer });
                    next_token += 1;
                }
                Step::Cancel(i) => {
                    if let Some(token) = pick(&model, i) {
                        wheel.cancel(model.remove(&token).unwrap().timer);
                    }
                }
                Step::Later(i, d) => {
                    if let Some(token) = pick(&model, i) {
                        model.get_mut(&token).unwrap().deadline += d;
                    }
                }
                Step::Retoken(i) => {
                    if let Some(token) = pick(&model, i) {
                        let expected = model.remove(&token).unwrap();
                        wheel.set_token(expected.timer, next_token);
                        model.insert(next_token, expected);
                        next_token += 1;
                    }
                }
                Step::Advance(_) | Step::FollowWake | Step::Drain => {
                    let before = now;
                    match step {
                        Step::Advance(d) => now += d,
                        Step::FollowWake => now = now.max(wheel.next_wake().unwrap_or(now)),
                        _ => {}
                    }
                    let mut polls = 0;
                    let mut order = Vec::new();
                    loop {
                        let (fired, left) = poll(&mut wheel, now, budget, |token| model[&token].deadline);
                        for token in &fired {
                            let expected = model.remove(token).unwrap();
                            prop_assert!(expected.deadline <= now, "{token} fired {} ms early", expected.deadline - now);
                            // A timer whose deadline had passed at its insertion is not part of the order.
                            if expected.inserted > before {
                                order.push(expected.deadline);
                            }
                        }
                        if left > 0 {
                            prop_assert!(model.values().all(|e| e.deadline > now), "forgotten at {now}: {model:?}");
                        }
                        polls += 1;
                        prop_assert!(polls <= 20 * 200 + 100, "no end");
                        if wheel.next_wake().is_none_or(|wake| wake > now) {
                            prop_assert!(model.values().all(|e| e.deadline > now), "late at {now}: {model:?}");
                            break;
                        }
                        if !matches!(step, Step::Drain) && polls == 3 && budget < 4 {
                            // Continue with a backlog.
                            break;
                        }
                    }
                    prop_assert!(order.is_sorted(), "{order:?}");
                }
            }
            wheel.check_invariants();
            prop_assert_eq!(wheel.len(), model.len());
            let earliest = model.values().map(|e| e.deadline).min();
            prop_assert_eq!(wheel.next_wake().is_some(), earliest.is_some());
            if let (Some(wake), Some(earliest)) = (wheel.next_wake(), earliest) {
                prop_assert!(wake <= earliest.max(now), "wakes at {wake} for {earliest}");
            }
        }
    }
}
