//! Native values (locks, semaphores, latches, guards) in the databases: how a lock is read from an entry, and which values may
//! replace a native one.
//!
//! Storing over a native key fails with WRONGTYPE here, whichever command does it. Deletions state what they accept:
//! [`Db::delete`] takes plain keys, [`Db::force_delete`] takes all. The engine refuses most such requests earlier, by their key
//! specifications.

use crate::lock::{Lock, grant};
use crate::store::entry::{Entry, EntryRef, NewValue, ValueRef};
use crate::store::values::value::Value;

/// The lock in an entry, if it holds one.
pub(crate) fn lock_of(entry: EntryRef<'_>) -> Option<Lock> {
    match entry.value() {
        ValueRef::Grant(bytes) => {
            let mut lock = Lock::default();
            lock.holders.insert(grant::unpack(bytes)?);
            Some(lock)
        }
        ValueRef::Boxed(Value::Lock(lock)) => Some(Lock::clone(lock)),
        _ => None,
    }
}

/// As [`lock_of`] for an entry that was taken out.
pub(crate) fn lock_in(entry: Entry) -> Option<Lock> {
    match entry.read().value() {
        ValueRef::Grant(_) => lock_of(entry.read()),
        _ => match *entry.into_boxed()? {
            Value::Lock(lock) => Some(*lock),
            _ => None,
        },
    }
}

/// Whether a value may replace the present one: only the same kind may replace a native value.
#[inline]
pub(super) fn may_replace(old: EntryRef<'_>, new: &NewValue<'_>) -> bool {
    !old.is_native() || is_same_kind(old, new)
}

#[cold]
fn is_same_kind(old: EntryRef<'_>, new: &NewValue<'_>) -> bool {
    match new {
        NewValue::Grant(_) => old.is_lock(),
        NewValue::Boxed(new) => match (&**new, old.value()) {
            (Value::Lock(_), _) => old.is_lock(),
            (Value::Latch(_), ValueRef::Boxed(Value::Latch(_))) => true,
            (Value::Guard(_), ValueRef::Boxed(Value::Guard(_))) => true,
            _ => false,
        },
        NewValue::Bytes(_) | NewValue::Count { .. } => false,
    }
}
