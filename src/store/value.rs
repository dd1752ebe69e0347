//! Values that do not fit into an entry: long strings and every aggregate type.
//!
//! A new type is a variant here, a name in [`Value::type_name`], and a family in `commands/`.

use crate::store::hash::Hash;
use crate::store::list::List;
use crate::store::set::Set;
use crate::store::stream::Stream;
use crate::store::zset::ZSet;

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
}

impl Value {
    /// What `TYPE` answers.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Bytes(_) => "string",
            Value::Hash(_) => "hash",
            Value::List(_) => "list",
            Value::ZSet(_) => "zset",
            Value::Set(_) => "set",
            Value::Stream(_) => "stream",
        }
    }

    /// Bytes it takes up, itself included. Walks the value.
    pub fn allocated(&self) -> usize {
        size_of::<Value>()
            + match self {
                Value::Bytes(bytes) => bytes.capacity(),
                Value::Hash(hash) => hash.allocated(),
                Value::List(list) => list.allocated(),
                Value::ZSet(zset) => zset.allocated(),
                Value::Set(set) => set.allocated(),
                Value::Stream(stream) => stream.allocated(),
            }
    }

    /// How many pieces it takes to free the value: 1 for what is one allocation.
    pub fn weight(&self) -> usize {
        match self {
            Value::Bytes(_) => 1,
            Value::Hash(hash) => hash.len(),
            Value::List(list) => list.weight(),
            Value::ZSet(zset) => zset.weight(),
            Value::Set(set) => set.weight(),
            Value::Stream(stream) => stream.weight(),
        }
    }

    /// Frees up to `budget` pieces; true when nothing but the shell is left.
    pub fn free_some(&mut self, budget: &mut u32) -> bool {
        match self {
            Value::Bytes(_) => true,
            Value::Hash(hash) => hash.free_some(budget),
            Value::List(list) => list.free_some(budget),
            Value::ZSet(zset) => zset.free_some(budget),
            Value::Set(set) => set.free_some(budget),
            Value::Stream(stream) => stream.free_some(budget),
        }
    }
}
