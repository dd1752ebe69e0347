//! Compares hashes with a model.

#![allow(clippy::unwrap_used)]

use crate::base::scaled;
use crate::store::values::hash::*;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Set(u8, u8, FieldTtl),
    Deadline(u8, Option<u64>),
    Remove(u8),
    Pass(u64),
    Copy,
    MakeTable,
}

fn ttl() -> impl Strategy<Value = FieldTtl> {
    prop_oneof![
        8 => Just(FieldTtl::Clear),
        2 => Just(FieldTtl::Keep),
        1 => (1u64..60).prop_map(FieldTtl::At),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0u8..40, any::<u8>(), ttl()).prop_map(|(f, v, t)| Step::Set(f, v, t)),
        2 => (0u8..40, proptest::option::of(prop_oneof![1u64..60, Just(1 << 45)])).prop_map(|(f, d)| Step::Deadline(f, d)),
        8 => (0u8..40).prop_map(Step::Remove),
        2 => (1u64..5).prop_map(Step::Pass),
        1 => Just(Step::Copy),
        1 => Just(Step::MakeTable),
    ]
}

/// A value; some are too long for an entry or have another length.
fn value(v: u8) -> Vec<u8> {
    if v == 255 { vec![b'x'; 5000] } else { vec![v; usize::from(v % 9)] }
}

proptest! {
    #[test]
    fn behaves_as_a_list_of_fields(steps in proptest::collection::vec(step(), 1..scaled(120, 30)), entries in 1usize..20) {
        let hasher = KeyHasher::new(7);
        let limits = Limits { entries, value: 64 };
        let mut hash = Hash::default();
        let mut model: Vec<(Vec<u8>, Vec<u8>, Option<u64>)> = Vec::new();
        let mut now = 0;
        for step in steps {
            match step {
                Step::Set(f, v, ttl) => {
                    let name = format!("field:{f}").into_bytes();
                    let old = model.iter().position(|m| m.0 == name);
                    let new = hash.set(&hasher, limits, &name, &value(v), ttl);
                    prop_assert_eq!(new, old.is_none());
                    let kept = old.and_then(|i| model[i].2);
                    let deadline = match ttl {
                        FieldTtl::Clear => None,
                        FieldTtl::Keep => kept,
                        FieldTtl::At(d) => Some(d),
                    };
                    if let Some(i) = old { model[i] = (name, value(v), deadline) } else { model.push((name, value(v), deadline)) }
                }
                Step::Deadline(f, deadline) => {
                    let name = format!("field:{f}").into_bytes();
                    let found = model.iter_mut().find(|m| m.0 == name);
                    prop_assert_eq!(hash.set_deadline(&hasher, &name, deadline), found.is_some());
                    if let Some(found) = found {
                        found.2 = deadline;
                    }
                }
                Step::Remove(f) => {
                    let name = format!("field:{f}").into_bytes();
                    let before = model.len();
                    model.retain(|m| m.0 != name);
                    prop_assert_eq!(hash.remove(&hasher, &name), model.len() < before);
                }
                Step::Pass(ms) => {
                    now += ms;
                    let ended = model.iter().filter(|m| m.2.is_some_and(|d| d <= now)).count();
                    prop_assert_eq!(hash.expired_fields(now), ended);
                    prop_assert_eq!(hash.has_expired_fields(now), ended > 0);
                    prop_assert_eq!(hash.is_expired(now), ended > 0 && ended == model.len());
                    let mut last = 0;
                    while let Some(entry) = hash.pop_expired(&hasher, now) {
                        let deadline = entry.read().deadline().unwrap();
                        prop_assert!(last <= deadline && deadline <= now);
                        last = deadline;
                    }
                    model.retain(|m| m.2.is_none_or(|d| d > now));
                }
                Step::Copy => hash = hash.clone(),
                Step::MakeTable => hash.make_table(&hasher),
            }
            hash.check_invariants(&hasher);
            prop_assert_eq!(hash.len(), model.len());
            prop_assert_eq!(hash.is_empty(), model.is_empty());
            prop_assert_eq!(hash.timed(), model.iter().filter(|m| m.2.is_some()).count());
            let earliest = model.iter().filter_map(|m| m.2).min().map(|d| d.min(DEADLINE_MAX));
            prop_assert_eq!(hash.next_field_deadline(), earliest);
            let mut all: Vec<_> = hash.iter().map(|f| (f.name.to_vec(), f.value.to_vec(), f.deadline)).collect();
            if hash.encoding() == "listpack" {
                prop_assert_eq!(&all, &model, "in the order in which they came");
            } else {
                let mut sorted = model.clone();
                sorted.sort();
                all.sort();
                prop_assert_eq!(&all, &sorted);
            }
            for (name, value, deadline) in &model {
                let field = hash.get(&hasher, name).unwrap();
                prop_assert_eq!((field.value, field.deadline), (&value[..], *deadline));
            }
            prop_assert_eq!(hash.get(&hasher, b"other"), None);
            let mut names: Vec<_> = model.iter().map(|m| m.0.clone()).collect();
            names.sort();
            let drawn = hash.random(&mut || now.wrapping_mul(0x9e37_79b9_7f4a_7c15)).map(|f| f.name.to_vec());
            prop_assert_eq!(drawn.is_some(), !names.is_empty());
            prop_assert!(drawn.is_none_or(|name| names.contains(&name)));
            let (mut scanned, mut cursor) = (Vec::new(), 0);
            loop {
                cursor = hash.scan(&hasher, cursor, 3, |f| scanned.push(f.name.to_vec()));
                if cursor == 0 {
                    break;
                }
            }
            scanned.sort();
            prop_assert_eq!(&scanned, &names);
        }
    }
}

#[test]
fn grows_out_of_the_buffer_and_never_back() {
    let hasher = KeyHasher::new(1);
    let limits = Limits { entries: 128, value: 64 };
    let mut hash = Hash::default();
    for i in 0..128u32 {
        assert!(hash.set(&hasher, limits, &i.to_be_bytes(), b"v", FieldTtl::Clear));
    }
    assert_eq!(hash.encoding(), "listpack");
    hash.set(&hasher, limits, b"one more", b"v", FieldTtl::Clear);
    assert_eq!((hash.encoding(), hash.is_small()), ("hashtable", false));
    for i in 0..128u32 {
        assert!(hash.remove(&hasher, &i.to_be_bytes()));
    }
    assert_eq!(hash.encoding(), "hashtable");

    let mut hash = Hash::default();
    hash.set(&hasher, limits, b"f", &[b'v'; 64], FieldTtl::Clear);
    assert_eq!(hash.encoding(), "listpack");
    hash.set_deadline(&hasher, b"f", Some(5));
    assert_eq!((hash.encoding(), hash.is_small()), ("listpackex", true));
    hash.set_deadline(&hasher, b"f", None);
    assert_eq!(hash.encoding(), "listpackex");
    hash.set(&hasher, limits, b"f", &[b'v'; 65], FieldTtl::Clear);
    assert_eq!(hash.encoding(), "hashtable");
}

#[test]
fn a_lock_is_small() {
    assert!(size_of::<crate::store::values::value::Value>() <= 24, "{}", size_of::<crate::store::values::value::Value>());
    let hasher = KeyHasher::new(1);
    let mut hash = Hash::default();
    hash.set(&hasher, Limits::default(), &[b'o'; 36], b"1", FieldTtl::Clear);
    assert_eq!(hash.allocated(), 36 + 1 + 2);
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn ended_fields_are_found_in_a_tree_of_tables() {
    let hasher = KeyHasher::new(3);
    let mut hash = Hash::default();
    let name = |n: u64| format!("field:{n}").into_bytes();
    // Many fields share a deadline, and some of them the first bits of their hashes.
    for n in 0..60_000 {
        let ttl = if n % 3 == 0 { FieldTtl::Clear } else { FieldTtl::At(1 + n % 7) };
        hash.set(&hasher, Limits::default(), &name(n), b"v", ttl);
    }
    hash.check_invariants(&hasher);
    for n in (0..60_000).step_by(5) {
        assert!(hash.set_deadline(&hasher, &name(n), Some(9)));
    }
    hash.check_invariants(&hasher);
    assert_eq!(hash.timed(), 60_000 - 20_000 + 4_000);
    for now in 1..=9 {
        let ended = hash.expired_fields(now);
        let mut taken = 0;
        while let Some(field) = hash.pop_expired(&hasher, now) {
            assert_eq!(field.read().deadline(), Some(now));
            taken += 1;
        }
        assert_eq!(taken, ended);
        hash.check_invariants(&hasher);
    }
    assert_eq!((hash.len(), hash.timed()), (16_000, 0));
}

#[test]
fn is_freed_in_pieces() {
    let hasher = KeyHasher::new(1);
    let mut hash = Hash::default();
    for i in 0..1000u32 {
        hash.set(&hasher, Limits::default(), &i.to_be_bytes(), b"v", FieldTtl::At(u64::from(i) + 1));
    }
    let mut rounds = 0;
    while !hash.free_some(&mut 100) {
        rounds += 1;
        assert_eq!(hash.len(), 1000 - rounds * 100);
    }
    assert_eq!(rounds, 10);
    assert!(hash.is_empty());
}
