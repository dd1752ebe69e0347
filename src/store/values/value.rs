//! Values that do not fit into an entry: long strings and every aggregate type.
//!
//! A new type is a variant here, a name in [`Value::type_name`], and a family in `commands/`.

use crate::lock::Lock;
use crate::store::values::hash::Hash;
use crate::store::values::list::List;
use crate::store::values::set::Set;
use crate::store::values::stream::Stream;
use crate::store::values::zset::ZSet;

/// Bytes of a long string that are freed in one step: the system takes 60 µs for them.
const PIECE: usize = 1 << 20;
/// Bytes of a long string that take as long to free as an entry.
const PAGE: usize = 4 << 10;

/// A boxed value.
#[derive(Debug, Clone)]
pub enum Value {
    /// A string longer than an entry keeps inline, or one that grows by `APPEND`.
    Bytes(Vec<u8>),
    /// A hash.
    Hash(Hash),
    /// A list.
    List(List),
    /// A sorted set.
    ZSet(ZSet),
    /// A set.
    Set(Set),
    /// A stream.
    Stream(Box<Stream>),
    /// A semaphore, or a lock that cannot be packed into its entry (see [`crate::lock::grant::pack`]): a shared or delayed one, or
    /// one with unusually large fields.
    Lock(Box<Lock>),
    /// A latch: the remaining count.
    Latch(u64),
    /// A guard: the largest fencing token so far.
    Guard(u64),
}

impl Value {
    /// The reply of `TYPE`.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Bytes(_) => "string",
            Value::Hash(_) => "hash",
            Value::List(_) => "list",
            Value::ZSet(_) => "zset",
            Value::Set(_) => "set",
            Value::Stream(_) => "stream",
            Value::Lock(lock) => lock.type_name(),
            Value::Latch(_) => "latch",
            Value::Guard(_) => "guard",
        }
    }

    /// Whether it is a lock, a semaphore, a latch or a guard.
    pub fn is_native(&self) -> bool {
        matches!(self, Value::Lock(_) | Value::Latch(_) | Value::Guard(_))
    }

    /// Bytes of the value, including itself. Walks the value.
    pub fn allocated(&self) -> usize {
        size_of::<Value>()
            + match self {
                Value::Bytes(bytes) => bytes.capacity(),
                Value::Hash(hash) => hash.allocated(),
                Value::List(list) => list.allocated(),
                Value::ZSet(zset) => zset.allocated(),
                Value::Set(set) => set.allocated(),
                Value::Stream(stream) => stream.allocated(),
                Value::Lock(lock) => size_of::<Lock>() + lock.allocated(),
                Value::Latch(_) | Value::Guard(_) => 0,
            }
    }

    /// Number of pieces in which the value is freed: 1 for a single small allocation.
    pub fn weight(&self) -> usize {
        match self {
            Value::Bytes(bytes) => 1 + bytes.capacity() / PAGE,
            Value::Hash(hash) => hash.len(),
            Value::List(list) => list.weight(),
            Value::ZSet(zset) => zset.weight(),
            Value::Set(set) => set.weight(),
            Value::Stream(stream) => stream.weight(),
            Value::Lock(lock) => lock.holders.len().max(1),
            Value::Latch(_) | Value::Guard(_) => 1,
        }
    }

    /// Frees up to `budget` pieces. Returns true when only the outermost allocation is left.
    pub fn free_some(&mut self, budget: &mut u32) -> bool {
        match self {
            Value::Bytes(bytes) => {
                while *budget > 0 && bytes.capacity() > PIECE {
                    *budget = budget.saturating_sub((PIECE / PAGE) as u32);
                    let left = bytes.capacity() - PIECE;
                    bytes.truncate(left);
                    bytes.shrink_to(left);
                }
                bytes.capacity() <= PIECE
            }
            Value::Hash(hash) => hash.free_some(budget),
            Value::List(list) => list.free_some(budget),
            Value::ZSet(zset) => zset.free_some(budget),
            Value::Set(set) => set.free_some(budget),
            Value::Stream(stream) => stream.free_some(budget),
            Value::Lock(lock) => lock.holders.free_some(budget),
            Value::Latch(_) | Value::Guard(_) => true,
        }
    }
}
