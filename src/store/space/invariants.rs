//! What must hold in all databases after each step, for tests.

use super::counts::Counts;
use super::freeing::Unfreed;
use super::{FIELDS, Space, field_timer, token};
use crate::store::entry::{EntryRef, ValueRef};
use crate::store::values::value::Value;

impl Space {
    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self) {
        let mut timers = 0;
        let mut check = |entry: EntryRef<'_>, number: Option<usize>| {
            let mut names = |timer: u32, flag: u64| {
                if timer == 0 {
                    return;
                }
                timers += 1;
                let carried = self.wheel.token(timer);
                assert_eq!(carried & !(0x7fff << 48), entry.address() | flag, "a timer of another entry");
                assert!(number.is_none_or(|n| carried == token(n, entry.address()) | flag), "a timer of another dictionary");
            };
            names(entry.timer(), 0);
            names(field_timer(entry), FIELDS);
        };
        for (number, dict) in self.dicts.iter().enumerate() {
            dict.check_invariants(&self.hasher);
            let count = |wanted: fn(&EntryRef<'_>) -> bool| dict.iter().filter(wanted).count();
            let counts = Counts {
                volatile: count(|entry| entry.deadline().is_some()),
                hashes: count(|entry| field_timer(*entry) != 0),
                natives: count(|entry| entry.is_native()),
                volatile_natives: count(|entry| entry.is_native() && entry.deadline().is_some()),
            };
            assert_eq!(counts, self.counts[number], "keys of each sort");
            for entry in dict.iter() {
                assert_eq!(entry.deadline().is_some(), entry.timer() != 0, "a deadline without a timer, or the reverse");
                match entry.value() {
                    ValueRef::Boxed(Value::Hash(hash)) => hash.check_invariants(&self.hasher),
                    ValueRef::Boxed(Value::List(list)) => {
                        list.check_invariants();
                        assert!(!list.is_empty(), "an empty list");
                    }
                    ValueRef::Boxed(Value::ZSet(zset)) => zset.check_invariants(&self.hasher),
                    ValueRef::Boxed(Value::Set(set)) => {
                        set.check_invariants(&self.hasher);
                        assert!(!set.is_empty(), "an empty set");
                    }
                    ValueRef::Boxed(Value::Stream(stream)) => stream.check_invariants(),
                    ValueRef::Boxed(Value::Lock(lock)) => lock.holders.check_invariants(),
                    ValueRef::Grant(bytes) => assert!(crate::lock::grant::unpack(bytes).is_some(), "a packed grant"),
                    ValueRef::Boxed(Value::Bytes(_) | Value::Latch(_) | Value::Guard(_)) | ValueRef::Bytes(_) => {}
                    ValueRef::Count { .. } => {}
                }
                check(entry, Some(number));
            }
        }
        if let Some(index) = &self.slots {
            index.check_invariants(self.dicts[0].iter().map(|entry| (self.hasher.hash(entry.key()), entry.key())));
        }
        let mut unfreed_len = 0;
        for value in &self.unfreed {
            unfreed_len += match value {
                Unfreed::Dict(dict, _) => dict.len(),
                Unfreed::Value(_) => 1,
                Unfreed::Slots(_) => 0,
            };
            match value {
                Unfreed::Slots(_) => {}
                Unfreed::Dict(dict, _) => dict.iter().for_each(|entry| check(entry, None)),
                Unfreed::Value(value) => {
                    assert!(!matches!(&**value, Value::Hash(hash) if hash.field_timer() != 0), "a timer without an entry");
                }
            }
        }
        assert_eq!(unfreed_len, self.unfreed_len, "what waits to be freed");
        assert_eq!(timers, self.wheel.len(), "timers on the wheel");
        self.wheel.check_invariants();
    }
}
