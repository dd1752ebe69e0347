//! Compares streams with a model.

use crate::base::scaled;
use crate::store::values::stream::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Add(u64, u64, u8, u8),
    Remove(usize),
    TrimLength(u64, bool, u64),
    TrimId(usize, bool),
    Copy,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => (0..3u64, 0..3u64, 0..4u8, any::<u8>()).prop_map(|(ms, seq, names, value)| Step::Add(ms, seq, names, value)),
        4 => any::<usize>().prop_map(Step::Remove),
        1 => (0..200u64, any::<bool>(), prop_oneof![Just(0u64), 1..60u64]).prop_map(|(n, a, l)| Step::TrimLength(n, a, l)),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(at, a)| Step::TrimId(at, a)),
        1 => Just(Step::Copy),
    ]
}

type Model = BTreeMap<StreamId, Vec<Vec<u8>>>;

fn pairs(names: u8, value: u8) -> Vec<Vec<u8>> {
    let text = |n: u8| vec![b'v'; usize::from(n)];
    match names {
        0 | 1 => vec![b"field".to_vec(), text(value), b"other".to_vec(), value.to_string().into_bytes()],
        2 => vec![b"field".to_vec(), text(value)],
        _ => vec![b"".to_vec(), text(value % 3), b"x".to_vec(), b"".to_vec()],
    }
}

fn listed<'a>(entries: impl Iterator<Item = Entry<'a>>) -> Vec<(StreamId, Vec<Vec<u8>>)> {
    entries.map(|entry| (entry.id, entry.iter().flat_map(|(name, value)| [name.to_vec(), value.to_vec()]).collect())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: scaled(64, 1), ..ProptestConfig::default() })]
    #[test]
    fn behaves_as_a_map(steps in prop::collection::vec(step(), 1..scaled(200, 20)), entries in 0..20usize, bytes in 0..3000usize, from in any::<u64>()) {
        let limits = BlockLimits { bytes, entries };
        let mut stream = Stream::default();
        let mut model = Model::new();
        // Ids start anywhere, with room above.
        stream.last_id = StreamId::new(from / 2, from);
        let (mut added, mut max_deleted) = (0, StreamId::MIN);
        for step in steps {
            let nth = |at: usize| model.keys().nth(at % model.len().max(1)).copied();
            match step {
                Step::Add(ms, seq, names, value) => {
                    let last = stream.last_id;
                    let id = if ms == 0 { last.next() } else { Some(StreamId::new(last.ms + ms, seq)) };
                    let Some(id) = id else { continue };
                    let pairs = pairs(names, value);
                    stream.append(limits, id, &pairs.iter().map(Vec::as_slice).collect::<Vec<_>>());
                    model.insert(id, pairs);
                    added += 1;
                }
                Step::Remove(at) => {
                    let id = nth(at).unwrap_or(StreamId::MIN);
                    prop_assert_eq!(stream.remove(id), model.remove(&id).is_some());
                    prop_assert!(!stream.remove(id));
                    max_deleted = max_deleted.max(id);
                }
                Step::TrimLength(max, approximate, limit) => {
                    let limit = if approximate { limit } else { 0 };
                    let (removed, below) = stream.trim(Trim { threshold: Threshold::Length(max), approximate, limit });
                    let before = model.len() as u64;
                    if let Some(below) = below {
                        model = model.split_off(&below);
                    }
                    prop_assert_eq!(before - model.len() as u64, removed);
                    prop_assert!(limit == 0 || removed <= limit);
                    prop_assert!(model.len() as u64 >= before.min(max));
                    prop_assert!(approximate || model.len() as u64 == before.min(max));
                }
                Step::TrimId(at, approximate) => {
                    let id = nth(at).unwrap_or(StreamId::MIN);
                    let (removed, below) = stream.trim(Trim { threshold: Threshold::Id(id), approximate, limit: 0 });
                    let before = model.len() as u64;
                    let mut kept = model.clone();
                    if let Some(below) = below {
                        kept = kept.split_off(&below);
                    }
                    prop_assert_eq!(before - kept.len() as u64, removed);
                    prop_assert!(approximate || kept == model.split_off(&id));
                    model = kept;
                }
                Step::Copy => stream = stream.clone(),
            }
            stream.check_invariants();
            prop_assert_eq!(stream.len(), model.len() as u64);
            prop_assert_eq!((stream.entries_added, stream.max_deleted_id), (added, max_deleted));
            prop_assert_eq!(stream.first_id(), model.keys().next().copied().unwrap_or_default());
            prop_assert_eq!(stream.last_present(), model.keys().next_back().copied());
        }
        let ids: Vec<StreamId> = model.keys().copied().collect();
        let some = |at: usize| ids.get(ids.len() * at / 4).copied().unwrap_or(StreamId::MAX);
        for (start, end) in [(StreamId::MIN, StreamId::MAX), (some(1), some(3)), (some(2), some(2)), (some(3), some(1))] {
            let expected: Vec<_> =
                if start <= end { model.range(start..=end).map(|(id, pairs)| (*id, pairs.clone())).collect() } else { Vec::new() };
            prop_assert_eq!(listed(stream.range(start, end)), &expected[..]);
            prop_assert_eq!(listed(stream.range_back(start, end)), expected.into_iter().rev().collect::<Vec<_>>());
        }
        while !stream.free_some(&mut 3) {}
        prop_assert!(stream.blocks.is_empty());
    }
}

#[test]
fn entries_with_the_same_fields_leave_the_names_out() {
    let mut stream = Stream::default();
    let name = [b'n'; 100];
    for seq in 1..=50 {
        stream.append(BlockLimits::default(), StreamId::new(1, seq), &[&name, b"1"]);
    }
    assert_eq!(stream.blocks(), 1);
    assert!(stream.allocated() < 1000, "{} bytes", stream.allocated());
}

#[test]
fn a_group_knows_whose_everything_is() {
    let mut stream = Stream::default();
    let mut group = Group::new(StreamId::MIN, Some(0));
    let id = |seq| StreamId::new(1, seq);
    for seq in 0..10 {
        group.set_pending(id(seq), if seq % 2 == 0 { b"even" } else { b"odd" }, 5, 1);
        group.check_invariants();
    }
    group.set_pending(id(2), b"odd", 7, 2);
    assert!(group.remove_pending(id(3)) && !group.remove_pending(id(3)));
    group.check_invariants();
    let of = |name: &[u8]| group.consumer(name).map_or(0, |consumer| consumer.pending().len());
    assert_eq!((of(b"even"), of(b"odd"), of(b"none")), (4, 5, 0));
    assert_eq!(group.remove_consumer(b"odd"), Some(5));
    assert_eq!((group.remove_consumer(b"odd"), group.pending().len()), (None, 4));
    group.check_invariants();
    stream.add_group(b"g", group);
    assert_eq!(stream.weight(), 6);
    let mut rounds = 0;
    while !stream.free_some(&mut 1) {
        rounds += 1;
    }
    assert!((4..8).contains(&rounds) && stream.group(b"g").is_none());
}
