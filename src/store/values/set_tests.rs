//! Compares sets with a model.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::base::scaled;
use crate::store::values::set::*;

#[derive(Clone, Debug)]
enum Step {
    Add(Vec<u8>),
    AddMany(u16, u16),
    Remove(Vec<u8>),
    RemoveMany(u16, u16),
    RemoveRandom(u64),
    Expect(usize),
    MakeTable,
    MakeInts,
    Copy,
    Scan(usize),
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (-20i64..60).prop_map(|n| n.to_string().into_bytes()),
        1 => prop::sample::select(vec![i64::MAX, i64::MIN, 40_000, -3_000_000_000]).prop_map(|n| n.to_string().into_bytes()),
        4 => (0..40u8).prop_map(|n| format!("member:{n}").into_bytes()),
        1 => prop::sample::select(vec![&b""[..], b"-0", b"+1", b"007", b"\0\r\n", &[b'x'; 30]]).prop_map(<[u8]>::to_vec),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => text().prop_map(Step::Add),
        1 => (0..scaled(3000u16, 40), 1..scaled(3000u16, 40)).prop_map(|(from, n)| Step::AddMany(from, n)),
        10 => text().prop_map(Step::Remove),
        2 => (0..scaled(5000u16, 60), 1..scaled(4000u16, 60)).prop_map(|(from, n)| Step::RemoveMany(from, n)),
        4 => any::<u64>().prop_map(Step::RemoveRandom),
        1 => (0..20usize).prop_map(Step::Expect),
        1 => Just(Step::MakeTable),
        1 => Just(Step::MakeInts),
        1 => Just(Step::Copy),
        6 => (0..30usize).prop_map(Step::Scan),
    ]
}

fn many(from: u16, n: u16) -> impl Iterator<Item = Vec<u8>> {
    (from..from + n).map(|n| format!("{n}").into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: scaled(24, 2), ..ProptestConfig::default() })]
    #[test]
    fn behaves_as_a_set(
        steps in prop::collection::vec(step(), 1..scaled(120, 20)),
        (ints, entries, value) in (0..30usize, 0..30usize, 4..40usize),
    ) {
        let hasher = KeyHasher::new(11);
        let limits = Limits { ints, entries, value };
        let mut set = Set::default();
        // In the order of insertion.
        let mut model: Vec<Vec<u8>> = Vec::new();
        let (mut cursor, mut given, mut steady) = (0, BTreeSet::new(), BTreeSet::new());
        for step in steps {
            let (mut add, mut remove) = (Vec::new(), Vec::new());
            let was = set.encoding();
            match step {
                Step::Add(member) => add.push(member),
                Step::AddMany(from, n) => add.extend(many(from, n)),
                Step::Remove(member) => remove.push(member),
                Step::RemoveMany(from, n) => remove.extend(many(from, n)),
                Step::RemoveRandom(seed) => {
                    let mut state = seed;
                    let drawn = set.random(&mut || {
                        state = state.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31) ^ 0x77;
                        state
                    });
                    prop_assert_eq!(drawn.is_some(), !model.is_empty());
                    remove.extend(drawn.map(|member| member.to_vec()));
                    prop_assert!(remove.iter().all(|member| model.contains(member)));
                }
                Step::Expect(more) => set.make_room(&hasher, limits, more),
                Step::MakeTable => set.make_table(&hasher),
                Step::MakeInts => {
                    set.make_ints(limits);
                    let fits = set.len() <= ints && model.iter().all(|member| parse_i64(member).is_some());
                    let expected = if fits { "intset" } else { was };
                    prop_assert_eq!(set.encoding(), expected);
                }
                Step::Copy => set = set.clone(),
                Step::Scan(count) => {
                    if cursor == 0 {
                        given.clear();
                        steady = model.iter().cloned().collect();
                    }
                    cursor = set.scan(&hasher, cursor, count, |member| {
                        given.insert(member.to_vec());
                    });
                    prop_assert!(cursor != 0 || steady.iter().all(|member| given.contains(member)), "passed over");
                }
            }
            for member in add {
                let new = !model.contains(&member);
                prop_assert_eq!(set.add(&hasher, limits, Member::Bytes(&member).normal()), new);
                prop_assert!(!set.add(&hasher, limits, Member::Bytes(&member)));
                if new {
                    model.push(member);
                }
            }
            for member in remove {
                let old = model.iter().position(|m| *m == member);
                prop_assert_eq!(set.remove(&hasher, Member::Bytes(&member)), old.is_some());
                prop_assert!(!set.contains(&hasher, Member::Bytes(&member)));
                old.map(|at| model.remove(at));
                steady.remove(&member);
            }
            set.check_invariants(&hasher);
            prop_assert_eq!(set.len(), model.len());
            prop_assert_eq!(set.is_empty(), model.is_empty());
            let held: Vec<Vec<u8>> = set.iter().map(|member| member.to_vec()).collect();
            match set.encoding() {
                "intset" => {
                    let mut sorted = model.clone();
                    sorted.sort_by_key(|member| parse_i64(member).unwrap());
                    prop_assert_eq!(&held, &sorted);
                    model = sorted;
                }
                "listpack" => prop_assert_eq!(&held, &model),
                _ => prop_assert_eq!(held.iter().collect::<BTreeSet<_>>(), model.iter().collect::<BTreeSet<_>>()),
            }
            prop_assert!(model.iter().all(|member| set.contains(&hasher, Member::Bytes(member).normal())));
        }
        let mut pieces = 0;
        while !set.free_some(&mut 7) {
            pieces += 1;
            prop_assert!(pieces <= model.len() / 7 + 1);
        }
    }
}

#[test]
fn forms_follow_the_limits() {
    let hasher = KeyHasher::new(1);
    let limits = Limits { ints: 3, entries: 4, value: 5 };
    let grown = |members: &[&str]| {
        let mut set = Set::default();
        for member in members {
            set.add(&hasher, limits, Member::Bytes(member.as_bytes()));
        }
        set.check_invariants(&hasher);
        set.encoding()
    };
    assert_eq!(grown(&["3", "1", "2"]), "intset");
    assert_eq!(grown(&["3", "1", "2", "4"]), "hashtable");
    assert_eq!(grown(&["3", "1", "2", "a"]), "listpack");
    assert_eq!(grown(&["3", "a", "2", "1", "4"]), "hashtable");
    assert_eq!(grown(&["a", "abcde"]), "listpack");
    assert_eq!(grown(&["a", "abcdef"]), "hashtable");
    assert_eq!(grown(&["-12345", "a"]), "hashtable", "an integer of six bytes");
    assert_eq!(Set::for_members(b"1", 3, limits).encoding(), "intset");
    assert_eq!(Set::for_members(b"1", 4, limits).encoding(), "listpack");
    assert_eq!(Set::for_members(b"a", 5, limits).encoding(), "hashtable");
}
