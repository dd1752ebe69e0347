use std::collections::VecDeque;

use proptest::prelude::*;

use crate::base::scaled;
use crate::store::values::list::*;

#[derive(Clone, Debug)]
enum Step {
    Push(End, Vec<Vec<u8>>),
    Pop(End, usize),
    Take(End),
    Set(usize, Vec<u8>),
    Insert(usize, Vec<u8>, bool),
    Remove(Vec<u8>, End, usize),
    Copy,
    Rebuild,
    Limits(i64),
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![Just(End::Left), Just(End::Right)]
}

fn element() -> impl Strategy<Value = Vec<u8>> {
    let integer = prop_oneof![
        any::<i64>(),
        -200..200i64,
        -5000..5000i64,
        -40_000..40_000i64,
        -10_000_000..10_000_000i64,
        -5_000_000_000..5_000_000_000i64
    ];
    let len = prop_oneof![3 => 0..6usize, 3 => 60..70usize, 2 => 120..130usize, 2 => 1000..2000usize, 1 => 4085..4100usize, 1 => 8180..8200usize];
    prop_oneof![
        4 => integer.prop_map(|n| n.to_string().into_bytes()),
        3 => (0..4u8).prop_map(|n| vec![b'a' + n]),
        3 => (len, any::<u8>()).prop_map(|(len, b)| vec![b; len]),
        1 => prop_oneof![Just("-0"), Just("01"), Just("+1"), Just("9223372036854775808"), Just("1 ")].prop_map(|s| s.as_bytes().to_vec()),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (end(), prop::collection::vec(element(), 1..6)).prop_map(|(end, elements)| Step::Push(end, elements)),
        1 => (end(), (0..4u8)).prop_map(|(end, n)| Step::Push(end, vec![vec![b'a' + n]; 300])),
        3 => (end(), prop_oneof![3 => 0..4usize, 1 => 0..200usize]).prop_map(|(end, count)| Step::Pop(end, count)),
        2 => end().prop_map(Step::Take),
        4 => (any::<usize>(), element()).prop_map(|(index, element)| Step::Set(index, element)),
        4 => (any::<usize>(), element(), any::<bool>()).prop_map(|(index, element, after)| Step::Insert(index, element, after)),
        2 => (element(), end(), prop_oneof![Just(usize::MAX), 1..4usize]).prop_map(|(element, end, most)| Step::Remove(element, end, most)),
        1 => Just(Step::Copy),
        1 => Just(Step::Rebuild),
        1 => prop_oneof![-6..10i64, Just(0), Just(128), Just(1 << 40)].prop_map(Step::Limits),
    ]
}

fn texts<'a>(elements: impl Iterator<Item = Element<'a>>) -> Vec<Vec<u8>> {
    elements.map(Element::to_vec).collect()
}

proptest! {
    #[test]
    fn agrees_with_a_plain_list(first in prop_oneof![Just(-2i64), -5..6i64], steps in prop::collection::vec(step(), 1..scaled(60, 6))) {
        let mut limits = Limits::new(first);
        let mut list = List::default();
        let mut model: VecDeque<Vec<u8>> = VecDeque::new();
        for step in steps {
            match step {
                Step::Push(end, elements) => {
                    let slices: Vec<&[u8]> = elements.iter().map(Vec::as_slice).collect();
                    list.push(limits, end, &slices);
                    for element in elements {
                        if end == End::Left { model.push_front(element) } else { model.push_back(element) }
                    }
                }
                Step::Pop(end, count) => {
                    if let Some(mut rest) = list.remove_end(end, count) {
                        rest.check_invariants();
                        let mut rounds = 0;
                        while !rest.free_some(&mut 3) {
                            rounds += 1;
                            prop_assert!(rounds < 1000);
                        }
                        prop_assert!(rest.is_empty());
                    }
                    list.shrink_after_removal(limits);
                    for _ in 0..count.min(model.len()) {
                        if end == End::Left { model.pop_front() } else { model.pop_back() };
                    }
                }
                Step::Take(end) => {
                    let expected = if end == End::Left { model.pop_front() } else { model.pop_back() };
                    prop_assert_eq!(list.take(end), expected);
                    list.shrink_after_removal(limits);
                }
                Step::Set(index, element) => {
                    let index = index % (model.len() + 1);
                    prop_assert_eq!(list.set(limits, index, &element), index < model.len());
                    if let Some(held) = model.get_mut(index) {
                        *held = element;
                    }
                }
                Step::Insert(index, element, after) => {
                    if !model.is_empty() {
                        let index = index % model.len();
                        list.make_room(limits, element.len(), 1);
                        list.insert(index, &element, after);
                        model.insert(index + usize::from(after), element);
                    }
                }
                Step::Remove(element, from, most) => {
                    let mut expected = 0;
                    let mut left = VecDeque::new();
                    if from == End::Right {
                        model = model.into_iter().rev().collect();
                    }
                    for held in model {
                        if expected < most && held == element {
                            expected += 1;
                        } else if from == End::Left {
                            left.push_back(held);
                        } else {
                            left.push_front(held);
                        }
                    }
                    model = left;
                    prop_assert_eq!(list.remove_equal(&Needle::new(&element), from, most), expected);
                    list.shrink_after_removal(limits);
                }
                Step::Copy => list = list.clone(),
                Step::Rebuild => list = List::from_elements(model.iter().map(Vec::as_slice), limits),
                Step::Limits(size) => limits = Limits::new(size),
            }
            list.check_invariants();
            prop_assert_eq!(list.len(), model.len());
            prop_assert_eq!(list.is_empty(), model.is_empty());
            let forward: Vec<_> = model.iter().cloned().collect();
            let backward: Vec<_> = model.iter().rev().cloned().collect();
            prop_assert_eq!(&texts(list.iter(End::Left)), &forward);
            prop_assert_eq!(&texts(list.iter(End::Right)), &backward);
            for index in [0, 1, model.len() / 3, model.len() / 2, model.len().saturating_sub(2), model.len().saturating_sub(1), model.len()] {
                prop_assert_eq!(list.get(index).map(Element::to_vec), model.get(index).cloned());
                prop_assert_eq!(texts(list.iter_from(index)), &forward[index.min(model.len())..]);
                let back = if index < model.len() { &backward[model.len() - 1 - index..] } else { &[] };
                prop_assert_eq!(texts(list.iter_back_from(index)), back);
            }
        }
    }
}

#[test]
fn a_queue_keeps_to_its_room() {
    let mut list = List::default();
    let limits = Limits::default();
    for n in 0..40u32 {
        list.push(limits, End::Right, &[n.to_string().as_bytes()]);
    }
    for n in 0..scaled(10_000u32, 50) {
        list.push(limits, End::Right, &[n.to_string().as_bytes()]);
        assert!(list.take(End::Left).is_some());
        list.check_invariants();
        assert!(list.allocated() < 400, "{}", list.allocated());
    }
    for n in 0..scaled(10_000u32, 50) {
        list.push(limits, End::Left, &[n.to_string().as_bytes()]);
        assert!(list.take(End::Right).is_some());
        list.check_invariants();
        assert!(list.allocated() < 400, "{}", list.allocated());
    }
    assert_eq!(list.encoding(), "listpack");
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn is_small_and_takes_little_beside_its_elements() {
    assert!(size_of::<crate::store::values::value::Value>() <= 24);
    let mut list = List::default();
    list.push(Limits::default(), End::Right, &[b"job:1", b"job:2", b"17"]);
    assert_eq!(list.allocated(), 12 + 7 + 7 + 2);
    let mut long = List::default();
    for n in 0..100_000u32 {
        long.push(Limits::default(), End::Right, &[format!("element:{n:08}").as_bytes()]);
    }
    // 16 bytes, and 2 of encoding.
    assert!(long.allocated() < 100_000 * 19, "{}", long.allocated());
    assert_eq!(long.encoding(), "quicklist");
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn what_goes_at_once_is_freed_in_pieces() {
    let mut list = List::default();
    let elements = vec![vec![b'x'; 1000]; 10_000];
    let slices: Vec<&[u8]> = elements.iter().map(Vec::as_slice).collect();
    list.push(Limits::default(), End::Right, &slices);
    let mut rest = list.remove_end(End::Left, 9_990).unwrap();
    assert_eq!((list.len(), list.iter(End::Left).count()), (10, 10));
    assert!(rest.weight() > 1000, "{}", rest.weight());
    let mut rounds = 0;
    while !rest.free_some(&mut 100) {
        rounds += 1;
        rest.check_invariants();
    }
    assert!((11..=13).contains(&rounds), "{rounds}");
    let mut heavy = List::default();
    heavy.push(Limits::default(), End::Right, &[&vec![0; 10 << 20]]);
    assert!(heavy.weight() > 100, "one long element is not freed on the way");
}
