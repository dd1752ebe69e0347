//! Compares tables with a naive model, and checks memory usage, scans and stale positions.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::base::scaled;
use crate::store::entry::NewValue;

#[derive(Clone, Debug)]
enum Step {
    Set(u16),
    SetMany(u16, u16),
    Remove(u16),
    RemoveMany(u16, u16),
    Pop,
    Scan(usize),
    Duplicate,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..600u16).prop_map(Step::Set),
        1 => (0..600u16, 0..scaled(200u16, 30)).prop_map(|(from, n)| Step::SetMany(from, n)),
        6 => (0..600u16).prop_map(Step::Remove),
        1 => (0..600u16, 0..200u16).prop_map(|(from, n)| Step::RemoveMany(from, n)),
        1 => Just(Step::Pop),
        6 => (0..40usize).prop_map(Step::Scan),
        1 => Just(Step::Duplicate),
    ]
}

/// Chosen hashes: distributed, forty equal ones, clustered at the end, or a mixture.
fn hash_of_key(kind: u8, key: &[u8]) -> u32 {
    let n = u32::from(u16::from_be_bytes(key.try_into().unwrap()));
    let spread = n.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS);
    match kind {
        0 => spread,
        1 => 5 + n / 40,
        2 => HASH_LIMIT - 1 - n % 17,
        3 => n % 50,
        _ => [spread, HASH_LIMIT - 1, 0, spread % 64][(n as usize % 19).min(3)],
    }
}

/// A scan while the table changes: how often each key was visited, and the keys that existed at the start.
#[derive(Default)]
struct Scan {
    cursor: u32,
    given: BTreeMap<u16, u32>,
    steady: Vec<u16>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: scaled(50, 2), ..ProptestConfig::default() })]
    #[test]
    fn behaves_like_a_map(kind in 0..5u8, steps in prop::collection::vec(step(), 1..scaled(150, 30))) {
        let mut table = Table::default();
        let mut model: BTreeMap<u16, u32> = BTreeMap::new();
        let mut scan: Option<Scan> = None;
        let mut version = 0u32;
        for step in steps {
            version += 1;
            let (set, remove) = match step {
                Step::Set(n) => (n..n + 1, 0..0),
                Step::SetMany(from, n) => (from..from + n, 0..0),
                Step::Remove(n) => (0..0, n..n + 1),
                Step::RemoveMany(from, n) => (0..0, from..from + n),
                _ => (0..0, 0..0),
            };
            for n in set {
                let key = n.to_be_bytes();
                let hash = hash_of_key(kind, &key);
                let entry = Entry::new(&key, NewValue::Bytes(&version.to_be_bytes()), None);
                let address = entry.read().address();
                let position = match table.find(hash, &key) {
                    Some(position) => {
                        prop_assert!(model.contains_key(&n));
                        prop_assert!(table.replace(position, entry).read().key() == key);
                        position
                    }
                    None => table.insert(hash, entry),
                };
                prop_assert_eq!(table.find(hash, &key), Some(position));
                prop_assert_eq!(table.find_address(hash, address), Some(position));
                model.insert(n, version);
            }
            for n in remove {
                let key = n.to_be_bytes();
                let found = table.find(hash_of_key(kind, &key), &key);
                prop_assert_eq!(found.is_some(), model.remove(&n).is_some());
                if let Some(position) = found {
                    let entry = table.remove(position);
                    prop_assert_eq!(entry.read().key(), &key[..]);
                    prop_assert_eq!(table.find_address(hash_of_key(kind, &key), entry.read().address()), None);
                }
            }
            match step {
                Step::Pop => {
                    let popped = table.pop();
                    prop_assert_eq!(popped.is_some(), !model.is_empty());
                    if let Some(entry) = popped {
                        model.remove(&u16::from_be_bytes(entry.read().key().try_into().unwrap()));
                    }
                }
                Step::Duplicate => {
                    let copy = |e: EntryRef<'_>| Entry::new(e.key(), NewValue::Bytes(e.bytes().unwrap()), None);
                    table = table.duplicate(copy);
                }
                _ => {}
            }
            if let Some(scan) = &mut scan {
                scan.steady.retain(|n| model.contains_key(n));
            }
            if let Step::Scan(count) = step {
                let mut running = scan.take().unwrap_or_else(|| Scan {
                    steady: model.keys().copied().collect(),
                    ..Scan::default()
                });
                let (mut seen, mut last) = (0, None);
                let next = table.scan(running.cursor, count, |entry| {
                    seen += 1;
                    last = Some(hash_of_key(kind, entry.key()));
                    *running.given.entry(u16::from_be_bytes(entry.key().try_into().unwrap())).or_default() += 1;
                });
                prop_assert!(next > running.cursor);
                prop_assert!(next == HASH_LIMIT || seen >= count.min(1));
                let same = model.keys().filter(|n| Some(hash_of_key(kind, &n.to_be_bytes())) == last).count();
                prop_assert!(seen <= count.max(1) + same, "{seen} for {count}");
                running.cursor = next;
                if next < HASH_LIMIT {
                    scan = Some(running);
                } else {
                    prop_assert!(running.given.values().all(|&times| times == 1), "given twice");
                    prop_assert!(running.steady.iter().all(|n| running.given.contains_key(n)), "passed over");
                }
            }
            table.check_invariants(|key| hash_of_key(kind, key));
            prop_assert_eq!(table.len(), model.len());
            for (n, version) in &model {
                let key = n.to_be_bytes();
                let position = table.find(hash_of_key(kind, &key), &key).unwrap();
                prop_assert_eq!(table.get(position).bytes(), Some(&version.to_be_bytes()[..]));
            }
            for i in [0, model.len() / 2, model.len().saturating_sub(1)] {
                let nth = table.nth(i).map(|position| table.get(position).key());
                prop_assert_eq!(nth, table.iter().nth(i).map(EntryRef::key));
            }
            prop_assert_eq!(table.nth(model.len()), None);
        }
    }
}

#[test]
fn keys_of_every_length_are_told_apart() {
    for len in 0..40 {
        let key: Vec<u8> = (0..len as u8).collect();
        assert!(same(&key, &key.clone()));
        assert!(!same(&key, &[&key[..], b"x"].concat()));
        for at in 0..len {
            let mut other = key.clone();
            other[at] ^= 0x80;
            assert!(!same(&key, &other), "byte {at} of {len}");
        }
    }
}

#[test]
fn one_that_was_emptied_and_looked_through_can_be_filled_again() {
    let key = |n: u16| n.to_be_bytes();
    let mut table = Table::default();
    for round in 0..3 {
        for n in 0..50 {
            let hash = hash_of_key(0, &key(n));
            table.insert(hash, Entry::new(&key(n), NewValue::Bytes(b"v"), None));
            table.check_invariants(|key| hash_of_key(0, key));
        }
        for n in 0..50 {
            let position = table.find(hash_of_key(0, &key(n)), &key(n)).unwrap();
            table.remove(position);
        }
        assert!(table.pop().is_none(), "round {round}");
        table.check_invariants(|key| hash_of_key(0, key));
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn gives_memory_back() {
    let mut table = Table::default();
    let key = |n: u32| n.to_be_bytes();
    let hash = |n: u32| n.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS);
    for n in 0..10_000 {
        table.insert(hash(n), Entry::new(&key(n), NewValue::Bytes(b"v"), None));
        assert!(table.allocated() <= 13 * table.len() + 600, "{} bytes for {}", table.allocated(), table.len());
    }
    for n in 0..10_000 {
        let position = table.find(hash(n), &key(n)).unwrap();
        table.remove(position);
        assert!(table.allocated() <= 36 * table.len() + 600, "{} bytes for {}", table.allocated(), table.len());
    }
    assert!(table.allocated() <= 8 * (CAPACITY_KEPT as usize + 16), "{} bytes for none", table.allocated());
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn entries_that_are_removed_in_the_order_of_a_scan_do_not_crowd_the_rest() {
    let key = |n: u32| n.to_be_bytes();
    let hash = |n: u32| n * (HASH_LIMIT / 20_000);
    let mut table = Table::default();
    for n in 0..20_000 {
        table.insert(hash(n), Entry::new(&key(n), NewValue::Bytes(b""), None));
    }
    let before = table.allocated();
    for n in 0..20_000 {
        let position = table.find(hash(n), &key(n)).unwrap();
        let at = position.0 as usize;
        assert!(at - table.home(hash(n)) <= DISPLACED_MAX, "{n} stands at {at}");
        drop(table.remove(position));
    }
    assert!(table.len() == 0 && table.allocated() < before / 100);
}

/// A table whose only entry was removed, and the entry's position.
fn stale_position() -> (Table, Position) {
    let mut table = Table::default();
    let position = table.insert(7, Entry::new(b"k", NewValue::Bytes(b"v"), None));
    drop(table.remove(position));
    (table, position)
}

#[test]
#[should_panic(expected = "a position is used after its table was changed")]
fn a_stale_position_is_not_read() {
    let (table, position) = stale_position();
    let _ = table.get(position).key().len();
}

#[test]
#[should_panic(expected = "a position is used after its table was changed")]
fn a_stale_position_is_not_written() {
    let (mut table, position) = stale_position();
    table.get_mut(position).touch(1);
}

#[test]
#[should_panic(expected = "a position is used after its table was changed")]
fn nothing_is_put_into_a_stale_position() {
    let (mut table, position) = stale_position();
    drop(table.replace(position, Entry::new(b"k", NewValue::Bytes(b"w"), None)));
}

#[test]
#[should_panic(expected = "a position is used after its table was changed")]
fn nothing_is_removed_from_a_stale_position() {
    let (mut table, position) = stale_position();
    drop(table.remove(position));
}

#[test]
#[should_panic(expected = "does not fit into a slot")]
fn an_address_that_a_slot_has_no_room_for_is_refused() {
    slot_of(7, 1 << 48);
}
