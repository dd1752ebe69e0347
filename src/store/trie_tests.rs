//! Compares tries with a map.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::base::scaled;
use crate::store::entry::NewValue;

#[derive(Clone, Debug)]
enum Step {
    Set(u32, u32),
    Remove(u32, u32),
    RemoveScanned(usize),
    Scan(usize, u32),
    Pop(usize),
    Duplicate,
}

fn step() -> impl Strategy<Value = Step> {
    let many = prop_oneof![2 => 1..5u32, 2 => 1..scaled(3000u32, 40), 1 => 1..scaled(50_000u32, 200)];
    prop_oneof![
        4 => (0..scaled(20_000u32, 200), many.clone()).prop_map(|(from, n)| Step::Set(from, n)),
        3 => (0..scaled(20_000u32, 200), many).prop_map(|(from, n)| Step::Remove(from, n)),
        1 => (0..scaled(30_000usize, 100)).prop_map(Step::RemoveScanned),
        3 => (0..scaled(2000usize, 50), 1..scaled(30u32, 4)).prop_map(|(count, calls)| Step::Scan(count, calls)),
        1 => (0..scaled(500usize, 20)).prop_map(Step::Pop),
        1 => Just(Step::Duplicate),
    ]
}

fn entry(n: u32, value: u32) -> Entry {
    Entry::new(&n.to_be_bytes(), NewValue::Bytes(&value.to_be_bytes()), None)
}

fn number(entry: EntryRef<'_>) -> u32 {
    u32::from_be_bytes(entry.key().try_into().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: scaled(6, 1), ..ProptestConfig::default() })]
    #[test]
    fn behaves_like_a_map(seed in any::<u64>(), steps in prop::collection::vec(step(), 1..scaled(14, 8))) {
        let hasher = KeyHasher::new(seed);
        let mut trie = Trie::default();
        let mut model: BTreeMap<u32, u32> = BTreeMap::new();
        let (mut cursor, mut given, mut steady) = (0, BTreeSet::new(), BTreeSet::new());
        let mut random = seed;
        for (version, step) in (1..).zip(steps) {
            let mut remove = Vec::new();
            match step {
                Step::Set(from, many) => {
                    for n in from..from + many {
                        let key = n.to_be_bytes();
                        match trie.find(hasher.hash(&key), &key) {
                            Some(spot) => drop(trie.replace(spot, entry(n, version))),
                            None => {
                                let spot = trie.insert(&hasher, hasher.hash(&key), entry(n, version));
                                prop_assert_eq!(trie.get(spot).key(), &key[..]);
                                prop_assert!(trie.get_mut(spot).overwrite(&version.to_be_bytes()));
                            }
                        }
                        model.insert(n, version);
                    }
                }
                Step::Remove(from, many) => remove.extend(from..from + many),
                Step::RemoveScanned(many) => remove.extend(trie.iter().take(many).map(number)),
                Step::Scan(count, calls) => {
                    for _ in 0..calls {
                        if cursor == 0 {
                            given.clear();
                            steady = model.keys().copied().collect();
                        }
                        let (mut seen, mut twice) = (0, None);
                        let next = trie.scan(&hasher, cursor, count, |entry| {
                            seen += 1;
                            twice = twice.or((!given.insert(number(entry))).then_some(number(entry)));
                        });
                        prop_assert_eq!(twice, None);
                        prop_assert!(next > cursor);
                        prop_assert!(seen <= count.max(1) + 8, "{seen} for {count}");
                        cursor = next;
                        if next >= TRIE_LIMIT {
                            cursor = 0;
                            prop_assert!(steady.iter().all(|n| given.contains(n)), "passed over");
                        }
                    }
                }
                Step::Pop(many) => {
                    for _ in 0..many {
                        match trie.pop() {
                            Some(entry) => {
                                steady.remove(&number(entry.read()));
                                prop_assert!(model.remove(&number(entry.read())).is_some());
                            }
                            None => prop_assert!(model.is_empty()),
                        }
                    }
                    // A trie that was popped from is only freed, so the test continues with a copy.
                    trie = trie.duplicate(|e| Entry::new(e.key(), NewValue::Bytes(e.bytes().unwrap()), None));
                    let mut again = Trie::default();
                    for e in trie.iter() {
                        let copy = Entry::new(e.key(), NewValue::Bytes(e.bytes().unwrap()), None);
                        again.insert(&hasher, hasher.hash(e.key()), copy);
                    }
                    trie = again;
                }
                Step::Duplicate => {
                    trie = trie.duplicate(|e| Entry::new(e.key(), NewValue::Bytes(e.bytes().unwrap()), None));
                }
            }
            for n in remove {
                let key = n.to_be_bytes();
                let found = trie.find(hasher.hash(&key), &key);
                prop_assert_eq!(found.is_some(), model.remove(&n).is_some());
                if let Some(spot) = found {
                    prop_assert_eq!(number(trie.remove(&hasher, spot).read()), n);
                    steady.remove(&n);
                }
            }
            trie.check_invariants(&hasher);
            prop_assert_eq!(trie.len(), model.len());
            let order: Vec<u32> = trie.iter().map(|e| local(hasher.hash(e.key()).bits(), 0)).collect();
            prop_assert!(order.is_sorted(), "entries out of the order of their hashes");
            let held: BTreeMap<u32, u32> =
                trie.iter().map(|e| (number(e), u32::from_be_bytes(e.bytes().unwrap().try_into().unwrap()))).collect();
            prop_assert_eq!(&held, &model);
            for index in [0, model.len() / 2, model.len().saturating_sub(1), model.len()] {
                let nth = trie.leaf_of_nth(index).and_then(|(table, index)| table.nth(index).map(|at| number(table.get(at))));
                prop_assert_eq!(nth, trie.iter().nth(index).map(number));
            }
            let drawn = trie.random(&mut || {
                random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ 0x51;
                random
            });
            prop_assert_eq!(drawn.is_some(), !model.is_empty());
            prop_assert!(drawn.is_none_or(|e| model.contains_key(&number(e))));
        }
        while trie.pop().is_some() {}
        prop_assert!(trie.is_empty());
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn grows_by_tables_and_gives_memory_back() {
    let hasher = KeyHasher::new(1);
    let mut trie = Trie::default();
    for n in 0..80_000u32 {
        trie.insert(&hasher, hasher.hash(&n.to_be_bytes()), entry(n, n));
    }
    trie.check_invariants(&hasher);
    assert!(trie.leaves().count() > 1000, "{} tables", trie.leaves().count());
    assert!(trie.allocated() < 80_000 * 16, "{} bytes", trie.allocated());
    for n in 0..80_000u32 {
        let key = n.to_be_bytes();
        let spot = trie.find(hasher.hash(&key), &key).unwrap();
        drop(trie.remove(&hasher, spot));
        if n % 10_000 == 0 {
            trie.check_invariants(&hasher);
        }
    }
    assert!(trie.is_empty() && trie.leaves().count() == 1 && trie.allocated() < 10_000, "{} bytes for none", trie.allocated());
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn random_entries_have_the_same_chance_each() {
    let hasher = KeyHasher::new(5);
    let mut trie = Trie::default();
    // Few entries remain in most tables, many in some.
    for n in 0..20_000u32 {
        trie.insert(&hasher, hasher.hash(&n.to_be_bytes()), entry(n, n));
    }
    let few: Vec<u32> = trie.iter().map(number).filter(|n| hasher.hash(&n.to_be_bytes()).bits() < TRIE_LIMIT / 4 * 3).collect();
    for n in few.into_iter().skip(40) {
        let spot = trie.find(hasher.hash(&n.to_be_bytes()), &n.to_be_bytes()).unwrap();
        drop(trie.remove(&hasher, spot));
    }
    let len = trie.len();
    let mut drawn: BTreeMap<u32, u32> = BTreeMap::new();
    let mut state = 7u64;
    for _ in 0..len * 40 {
        let entry = trie.random(&mut || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
        });
        *drawn.entry(number(entry.unwrap())).or_default() += 1;
    }
    assert_eq!(drawn.len(), len, "some were never drawn");
    // Each is expected 40 times, with a standard deviation of about 6.3.
    assert!(drawn.values().all(|times| (8..=80).contains(times)), "{:?} {:?}", drawn.values().min(), drawn.values().max());
}

#[test]
fn any_cursor_will_do() {
    let hasher = KeyHasher::new(3);
    let mut trie = Trie::default();
    assert_eq!(trie.scan(&hasher, 0, 10, |_| panic!("an entry of none")), TRIE_LIMIT);
    for n in 0..scaled(5000u32, 200) {
        trie.insert(&hasher, hasher.hash(&n.to_be_bytes()), entry(n, n));
    }
    for cursor in [0, 1, HASH_LIMIT - 1, HASH_LIMIT, TRIE_LIMIT - 1, TRIE_LIMIT, u32::MAX] {
        let mut seen = 0;
        let next = trie.scan(&hasher, cursor, usize::MAX, |_| seen += 1);
        let expected = trie.iter().filter(|e| hasher.hash(e.key()).bits() >= cursor).count();
        assert_eq!((next, seen), (TRIE_LIMIT, expected), "{cursor}");
    }
}
