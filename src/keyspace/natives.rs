//! Native values (locks, semaphores, latches, guards) in the databases: how a lock is read from an entry, and what may replace one.
//!
//! A store over a native key fails with WRONGTYPE here, whatever command it comes from. Deletions name what they want: [`Db::delete`]
//! takes plain keys, [`Db::force_delete`] takes all. The engine refuses most such requests earlier, by their key specifications.

use crate::lock::{Lock, grant};
use crate::store::entry::{Entry, EntryRef, NewValue, ValueRef};
use crate::store::values::value::Value;

/// What lies in an entry, where it is a lock.
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

/// Whether a value may take the place of what is there: what is native gives way to its own kind alone.
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
