//! Entries return the data that was stored, after any sequence of changes.

use proptest::prelude::*;

use super::*;
use crate::base::integer::parse_i64;
use crate::base::scaled;
use crate::store::values::hash::Hash;

#[derive(Clone, Debug)]
enum Content {
    Bytes(Vec<u8>),
    Count(Vec<u8>, u8),
    Hash,
}

#[derive(Clone, Debug)]
enum Step {
    Deadline(Option<u64>),
    WithDeadline(Option<u64>),
    Overwrite(Vec<u8>),
    Note,
    Forget,
    Timer(u32),
    Touch(u64),
    Form(Form),
    Append(u8),
    Count(u8),
    ByAddress,
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    let len = prop_oneof![scaled(6, 20) => 0..50usize, 1 => 65_530..65_540usize];
    (len, any::<u8>()).prop_map(|(len, b)| (0..len).map(|i| b.wrapping_add(i as u8)).collect())
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let len = prop_oneof![4 => 0..4usize, 2 => 0..50usize, 1 => 4090..4100usize];
    let row = (len, any::<u8>()).prop_map(|(len, b)| (0..len).map(|i| b.wrapping_add(i as u8)).collect());
    let number = (0..10u32, any::<u32>()).prop_map(|(digits, n)| (n % 10u32.pow(digits)).to_string().into_bytes());
    prop_oneof![3 => row, 1 => number]
}

fn content() -> impl Strategy<Value = Content> {
    let field = (0..=COUNT_FIELD_MAX, any::<u8>()).prop_map(|(len, b)| (0..len).map(|i| b.wrapping_add(i as u8)).collect());
    prop_oneof![
        4 => bytes().prop_map(Content::Bytes),
        2 => (field, 0..=COUNT_MAX).prop_map(|(field, count)| Content::Count(field, count)),
        1 => Just(Content::Hash),
    ]
}

fn deadline() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![
        1 => Just(None),
        3 => any::<u32>().prop_map(|d| Some(u64::from(d))),
        1 => (DEADLINE_MAX - 2..DEADLINE_MAX + 3).prop_map(Some),
        1 => any::<u64>().prop_map(Some),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        deadline().prop_map(Step::Deadline),
        deadline().prop_map(Step::WithDeadline),
        bytes().prop_map(Step::Overwrite),
        Just(Step::Note),
        Just(Step::Forget),
        (0..TIMER_LIMIT).prop_map(Step::Timer),
        any::<u64>().prop_map(Step::Touch),
        prop_oneof![Just(Form::Shortest), Just(Form::Text), Just(Form::Raw)].prop_map(Step::Form),
        any::<u8>().prop_map(Step::Append),
        (0..=COUNT_MAX + 1).prop_map(Step::Count),
        Just(Step::ByAddress),
    ]
}

proptest! {
    #[test]
    fn gives_back_what_was_put_in(
        key in key(), content in content(), first in deadline(), steps in prop::collection::vec(step(), 0..20),
    ) {
        let mut held = content.clone();
        let value = match &content {
            Content::Bytes(bytes) => NewValue::Bytes(bytes),
            Content::Count(field, count) => NewValue::Count { field, count: *count },
            Content::Hash => NewValue::Boxed(Box::new(Value::Hash(Hash::default()))),
        };
        let mut entry = Entry::new(&key, value, first);
        let (mut timer, mut access, mut form) = (0, 0, Form::Shortest);
        let mut noted = false;
        let mut deadline = first.map(|d| d.max(1));
        let mut extended = key.len() > 65_535 || first.is_some_and(|d| d >= 1 << 44);
        for step in [Step::Touch(0)].into_iter().chain(steps) {
            match step {
                Step::Deadline(d) => {
                    let fits = extended || d.is_none_or(|d| d < 1 << 44);
                    prop_assert_eq!(entry.change().set_deadline(d), fits);
                    deadline = if fits { d.map(|d| d.max(1)) } else { deadline };
                }
                Step::WithDeadline(d) => {
                    let address = entry.read().address();
                    entry = entry.with_deadline(d);
                    noted &= entry.read().address() == address;
                    deadline = d.map(|d| d.max(1));
                    extended |= d.is_some_and(|d| d >= 1 << 44);
                }
                Step::Overwrite(bytes) => {
                    let fits = matches!(&held, Content::Bytes(old) if old.len() == bytes.len() && old.len() <= INLINE_MAX);
                    prop_assert_eq!(entry.change().overwrite(&bytes), fits);
                    if fits {
                        (held, form, noted) = (Content::Bytes(bytes), Form::Shortest, false);
                    }
                }
                Step::Note => {
                    let boxed = entry.read().is_boxed();
                    prop_assert_eq!(entry.change().note_writer(), !boxed);
                    noted |= !boxed;
                }
                Step::Forget => {
                    entry.change().forget_writer();
                    noted = false;
                }
                Step::Timer(t) => {
                    entry.change().set_timer(t);
                    timer = t;
                }
                Step::Touch(second) => {
                    entry.change().touch(second);
                    access = (second % u64::from(ACCESS_PERIOD)) as u32;
                }
                Step::Form(f) => {
                    entry.change().set_form(f);
                    form = f;
                }
                Step::Append(b) => {
                    if let (Some(Value::Bytes(bytes)), Content::Bytes(held)) = (entry.change().boxed(), &mut held) {
                        bytes.push(b);
                        held.push(b);
                    }
                }
                Step::Count(new) => {
                    let fits = matches!(held, Content::Count(..)) && new <= COUNT_MAX;
                    prop_assert_eq!(entry.change().set_count(new), fits);
                    if let Content::Count(_, count) = &mut held
                        && fits
                    {
                        *count = new;
                    }
                }
                Step::ByAddress => {
                    let address = entry.into_address();
                    // SAFETY: given away just above, and taken back once.
                    entry = unsafe { Entry::from_address(address) };
                    prop_assert_eq!(entry.read().address(), address);
                    prop_assert_eq!(address % 8, 0);
                }
            }
            let read = entry.read();
            prop_assert_eq!(read.key(), &key[..]);
            prop_assert_eq!(read.has_writer(), noted);
            prop_assert_eq!((read.deadline(), read.timer(), read.access(), read.form()), (deadline, timer, access, form));
            match &held {
                Content::Bytes(bytes) => {
                    prop_assert_eq!(read.bytes(), Some(&bytes[..]));
                    prop_assert_eq!(matches!(read.value(), ValueRef::Boxed(_)), bytes.len() > INLINE_MAX);
                    prop_assert_eq!(read.type_name(), "string");
                    let number = parse_i64(bytes).filter(|number| bytes.len() <= 8 && *number >= 0 && !noted);
                    let last = bytes.last().copied();
                    let found = entry.change().short_number().map(|(number, last)| (i64::from(number), Some(*last)));
                    prop_assert_eq!(found, number.map(|number| (number, last)));
                }
                Content::Count(name, number) => {
                    let is_same = matches!(read.value(), ValueRef::Count { field, count } if field == name && count == *number);
                    prop_assert!(is_same, "another field or number");
                    prop_assert!(read.bytes().is_none() && entry.change().short_number().is_none());
                    prop_assert_eq!(entry.read().type_name(), "hash");
                }
                Content::Hash => {
                    prop_assert!(matches!(read.value(), ValueRef::Boxed(Value::Hash(_))) && read.bytes().is_none());
                    prop_assert_eq!(read.type_name(), "hash");
                }
            }
        }
        match (entry.into_boxed().as_deref(), held) {
            (Some(Value::Bytes(bytes)), Content::Bytes(held)) => prop_assert_eq!(bytes, &held),
            (Some(Value::Hash(_)), Content::Hash) => {}
            (None, Content::Count(..)) => {}
            (None, Content::Bytes(held)) => prop_assert!(held.len() <= INLINE_MAX),
            other => prop_assert!(false, "{other:?}"),
        }
    }
}

#[test]
fn a_lock_takes_16_bytes_beside_its_key_and_value() {
    let entry = Entry::new(&[b'k'; 20], NewValue::Bytes(&[b'v'; 36]), Some(1 << 43));
    assert_eq!(entry.read().allocated(), 16 + 20 + 36);
    let reentrant = NewValue::Count { field: &[b'o'; 36], count: 1 };
    assert_eq!(Entry::new(&[b'k'; 20], reentrant, Some(1 << 43)).read().allocated(), 16 + 20 + 36);
}
