//! Compares sorted sets with a model.

#![allow(clippy::unwrap_used)]

use crate::base::scaled;
use crate::store::values::zset::*;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Insert(u16, i8),
    InsertMany(u16, u16, i8),
    Remove(u16),
    Take(u8, u8),
    Copy,
    MakeLarge,
    Rebuild,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..300u16, -3..4i8).prop_map(|(m, s)| Step::Insert(m, s)),
        2 => (0..3000u16, 1..scaled(200u16, 20), -3..4i8).prop_map(|(m, n, s)| Step::InsertMany(m, n, s)),
        10 => (0..300u16).prop_map(Step::Remove),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(a, b)| Step::Take(a, b)),
        1 => Just(Step::Copy),
        1 => Just(Step::MakeLarge),
        1 => Just(Step::Rebuild),
    ]
}

/// A member; some are long.
fn member(m: u16) -> Vec<u8> {
    let mut member = format!("member:{m}").into_bytes();
    if m % 97 == 96 {
        member.resize(300, b'x');
    }
    member
}

fn score(s: i8) -> f64 {
    match s {
        -3 => f64::NEG_INFINITY,
        3 => 0.1,
        s => f64::from(s),
    }
}

type Model = Vec<(Vec<u8>, f64)>;

fn sorted(model: &mut Model) {
    model.sort_by(|a, b| a.1.partial_cmp(&b.1).unwrap().then_with(|| a.0.cmp(&b.0)));
}

fn held(zset: &ZSet, ranks: Range<usize>, reverse: bool) -> Model {
    zset.items(ranks, reverse).map(|item| (item.member.to_vec(), item.score)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: scaled(24, 2), ..ProptestConfig::default() })]
    #[test]
    fn behaves_as_a_sorted_list(steps in prop::collection::vec(step(), 1..scaled(80, 15)), entries in 0..200usize, value in 8..400usize) {
        let hasher = KeyHasher::new(7);
        let limits = Limits { entries, value };
        let mut zset = ZSet::default();
        let mut model: Model = Vec::new();
        for step in steps {
            let (inserted, s) = match step {
                Step::Insert(m, s) => (m..m + 1, s),
                Step::InsertMany(m, n, s) => (m..m + n, s),
                _ => (0..0, 0),
            };
            for m in inserted {
                let (member, score) = (member(m), score(s));
                let old = model.iter().position(|(other, _)| *other == member).map(|at| model.swap_remove(at).1);
                prop_assert_eq!(zset.insert(&hasher, limits, &member, score), old);
                model.push((member, score));
            }
            sorted(&mut model);
            match step {
                Step::Remove(m) => {
                    let member = member(m);
                    let old = model.iter().position(|(other, _)| *other == member).map(|at| model.remove(at).1);
                    prop_assert_eq!(zset.remove(&hasher, &member), old);
                }
                Step::Take(a, b) => {
                    let (a, b) = (usize::from(a) % (model.len() + 1), usize::from(b) % (model.len() + 1));
                    let mut taken: Model = Vec::new();
                    zset.take(&hasher, a.min(b)..a.max(b), |item| taken.push((item.member.to_vec(), item.score)));
                    prop_assert_eq!(taken, model.drain(a.min(b)..a.max(b)).collect::<Model>());
                }
                Step::Copy => zset = zset.clone(),
                Step::MakeLarge => zset.make_large(&hasher),
                Step::Rebuild => {
                    let items: Vec<Item<'_>> = model.iter().map(|(member, score)| Item { member, score: *score }).collect();
                    zset = ZSet::from_sorted(&hasher, limits, &items);
                    let small = model.len() <= entries && model.iter().all(|(member, _)| member.len() <= value);
                    prop_assert_eq!(zset.is_small(), small);
                }
                _ => {}
            }
            zset.check_invariants(&hasher);
            prop_assert_eq!((zset.len(), zset.is_empty()), (model.len(), model.is_empty()));
            prop_assert_eq!(held(&zset, 0..usize::MAX, false), &model[..]);
            let (low, high) = (model.len() / 3, model.len() - model.len() / 4);
            prop_assert_eq!(held(&zset, low..high, true), model[low..high].iter().rev().cloned().collect::<Model>());
            for (rank, (member, score)) in model.iter().enumerate() {
                prop_assert_eq!(zset.score(&hasher, member), Some(*score));
                prop_assert_eq!(zset.rank(&hasher, member), Some((rank, *score)));
            }
            prop_assert_eq!(zset.rank(&hasher, b"other"), None);
            for bound in [f64::NEG_INFINITY, -1.0, 0.0, 0.05, 1.0, f64::INFINITY] {
                prop_assert_eq!(zset.count_below(bound, false), model.iter().filter(|(_, score)| *score < bound).count());
                prop_assert_eq!(zset.count_below(bound, true), model.iter().filter(|(_, score)| *score <= bound).count());
            }
            let (mut scanned, mut cursor) = (Vec::new(), 0);
            loop {
                cursor = zset.scan(cursor, 5, |item| scanned.push((item.member.to_vec(), item.score)));
                if cursor == 0 {
                    break;
                }
            }
            sorted(&mut scanned);
            prop_assert_eq!(scanned, &model[..]);
        }
    }

    #[test]
    fn ranges_of_members_with_one_score(ms in prop::collection::btree_set(0..100u16, 0..60), a in 0..100u16, b in 0..100u16, large: bool) {
        let hasher = KeyHasher::new(7);
        let mut zset = ZSet::default();
        let mut members: Vec<Vec<u8>> = ms.into_iter().map(member).collect();
        for member in &members {
            zset.insert(&hasher, Limits { entries: 100, value: 400 }, member, 1.0);
        }
        members.sort();
        if large {
            zset.make_large(&hasher);
        }
        let (low, high) = (member(a), member(b));
        let bounds = |bound| [LexBound::Least, LexBound::Inclusive(bound), LexBound::Exclusive(bound), LexBound::Greatest];
        for min in bounds(&low[..]) {
            for max in bounds(&high[..]) {
                let inside = |member: &[u8]| !min.above(member) && !max.below(member);
                let expected: Vec<_> = members.iter().filter(|member| inside(member)).collect();
                for reverse in [false, true] {
                    let ranks = zset.lex_ranks(min, max, reverse);
                    let got: Vec<_> = zset.items(ranks, false).map(|item| item.member).collect();
                    prop_assert_eq!(&got, &expected, "{:?} {:?}", min, max);
                }
            }
        }
    }
}

#[test]
fn grows_out_of_the_buffer_and_never_back() {
    let hasher = KeyHasher::new(1);
    let limits = Limits::default();
    let mut zset = ZSet::default();
    for n in 0..128u32 {
        assert_eq!(zset.insert(&hasher, limits, &n.to_be_bytes(), f64::from(n)), None);
    }
    assert_eq!(zset.insert(&hasher, limits, &[0; 4], 7.0), Some(0.0));
    assert_eq!(zset.encoding(), "listpack");
    zset.insert(&hasher, limits, b"one more", 1.0);
    assert_eq!(zset.encoding(), "skiplist");
    zset.take(&hasher, 0..120, |_| ());
    assert_eq!((zset.encoding(), zset.len()), ("skiplist", 9));
    let mut zset = ZSet::default();
    zset.insert(&hasher, limits, &[b'm'; 64], 1.0);
    assert_eq!(zset.encoding(), "listpack");
    zset.insert(&hasher, limits, &[b'm'; 65], 1.0);
    assert_eq!(zset.encoding(), "skiplist");
}

#[test]
fn the_sign_of_a_zero_is_lost_in_a_small_set_only() {
    let hasher = KeyHasher::new(1);
    let mut zset = ZSet::default();
    zset.insert(&hasher, Limits::default(), b"a", -0.0);
    assert_eq!(zset.score(&hasher, b"a").map(f64::to_bits), Some(0.0f64.to_bits()));
    zset.make_large(&hasher);
    zset.insert(&hasher, Limits::default(), b"b", -0.0);
    assert_eq!(zset.score(&hasher, b"b").map(f64::to_bits), Some((-0.0f64).to_bits()));
    zset.check_invariants(&hasher);
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn a_hundred_thousand_members_are_found_ranked_scanned_and_freed_in_pieces() {
    let hasher = KeyHasher::new(3);
    let mut zset = ZSet::default();
    for n in 0..100_000u32 {
        zset.insert(&hasher, Limits::default(), format!("m{n}").as_bytes(), f64::from(n.wrapping_mul(0x9e37_79b1) >> 12));
    }
    zset.check_invariants(&hasher);
    let per_member = zset.allocated() / zset.len();
    assert!(per_member < 80, "{per_member} bytes a member");
    let copy = zset.clone();
    copy.check_invariants(&hasher);
    // A scan that starts before tables are split visits every member.
    let mut small = ZSet::default();
    for n in 0..2000 {
        small.insert(&hasher, Limits::default(), format!("s{n}").as_bytes(), 1.0);
    }
    let mut seen = Vec::new();
    let mut cursor = small.scan(0, 100, |item| seen.push(item.member.to_vec()));
    for n in 0..20_000 {
        small.insert(&hasher, Limits::default(), format!("t{n}").as_bytes(), 1.0);
    }
    while cursor != 0 {
        cursor = small.scan(cursor, 100, |item| seen.push(item.member.to_vec()));
    }
    seen.sort();
    assert!((0..2000).all(|n| seen.binary_search(&format!("s{n}").into_bytes()).is_ok()));
    let mut rounds = 0;
    while !zset.free_some(&mut 1000) {
        rounds += 1;
    }
    assert!((100..110).contains(&rounds), "{rounds} rounds");
    assert!(zset.is_empty());
}

#[test]
fn a_semaphore_is_small() {
    let hasher = KeyHasher::new(1);
    let mut zset = ZSet::default();
    zset.insert(&hasher, Limits::default(), &[b'h'; 36], 1_750_000_000_000.0);
    assert_eq!(zset.allocated(), 8 + 1 + 36);
}
