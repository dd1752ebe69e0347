//! Deserialization of a value from any version of Redis. The input is untrusted: a count is accepted only if there are bytes for
//! it.

use std::borrow::Cow;

use crate::base::number::{parse_f64, parse_i64};
use crate::keyspace::databases::Keyspace;
use crate::keyspace::rdb::compact;
use crate::keyspace::rdb::compact::Elements;
use crate::keyspace::rdb::kind;
use crate::keyspace::rdb::parts::{chunk, plain_length, string, take};
use crate::keyspace::rdb::streams::read_stream;
use crate::store::dict::KeyHasher;
use crate::store::values::hash::{self, FieldTtl, Hash};
use crate::store::values::list::{self, List};
use crate::store::values::set::{self, Limits, Member, Set};
use crate::store::values::stream::BlockLimits;
use crate::store::values::value::Value;
use crate::store::values::zset::{self, ZSet};

/// Parameters for building a value.
pub struct Builder<'a> {
    /// The keyspace's hasher.
    pub hasher: &'a KeyHasher,
    /// For hashes.
    pub hashes: hash::Limits,
    /// For lists.
    pub lists: list::Limits,
    /// For sets.
    pub sets: set::Limits,
    /// For sorted sets.
    pub zsets: zset::Limits,
    /// For streams.
    pub streams: BlockLimits,
    /// The monotonic deadline of a unix time in milliseconds; `None` if it has passed.
    pub deadline_at: &'a dyn Fn(i64) -> Option<u64>,
}

/// What is in a serialized value that is well formed.
#[derive(Debug)]
pub enum Loaded {
    /// This value. A hash whose fields have all expired has no fields.
    Value(Value),
    /// An aggregate without elements, which versions of Redis with an error wrote.
    Empty,
}

impl Loaded {
    /// The value, unless it is empty.
    fn unless(is_empty: bool, value: impl FnOnce() -> Value) -> Loaded {
        if is_empty { Loaded::Empty } else { Loaded::Value(value()) }
    }
}

/// The forms of a node of a list: a single element, or a listpack.
const PLAIN: usize = 1;
const PACKED: usize = 2;

type Text<'a> = Cow<'a, [u8]>;

impl<'a> Builder<'a> {
    /// With the hasher and the limits of a keyspace.
    pub fn of(keyspace: &'a Keyspace, deadline_at: &'a dyn Fn(i64) -> Option<u64>) -> Self {
        Builder {
            hasher: keyspace.hasher(),
            hashes: keyspace.hash_limits,
            lists: keyspace.list_limits,
            sets: keyspace.set_limits,
            zsets: keyspace.zset_limits,
            streams: keyspace.stream_limits,
            deadline_at,
        }
    }

    /// The value in the body of a payload; `None` if it is malformed or empty. A hash whose fields have all expired is returned
    /// without fields.
    pub fn load(&self, body: &[u8]) -> Option<Value> {
        let (&kind, mut rest) = body.split_first()?;
        match self.value(kind, &mut rest)? {
            Loaded::Value(value) if rest.is_empty() => Some(value),
            _ => None,
        }
    }

    /// A value of a type from its bytes in a file; `None` if it is malformed.
    pub fn read(&self, kind: u8, bytes: &[u8]) -> Option<Loaded> {
        let mut rest = bytes;
        self.value(kind, &mut rest).filter(|_| rest.is_empty())
    }

    /// Reads a value of a type; `None` if it is malformed.
    fn value(&self, kind: u8, rest: &mut &[u8]) -> Option<Loaded> {
        match kind {
            kind::STRING => Some(Loaded::Value(Value::Bytes(string(rest)?.into_owned()))),
            kind::LIST => self.list(strings(rest, 1)?),
            kind::LIST_ZIPLIST => self.list(compact::ziplist(&string(rest)?)?),
            kind::LIST_QUICKLIST | kind::LIST_QUICKLIST_2 => self.quicklist(kind, rest),
            kind::SET => self.set(strings(rest, 1)?, false),
            kind::SET_LISTPACK => self.set(compact::listpack(&string(rest)?)?, true),
            kind::SET_INTSET => self.intset(&string(rest)?),
            kind::ZSET | kind::ZSET_2 => self.plain_zset(kind, rest),
            kind::ZSET_LISTPACK => self.zset(compact::listpack(&string(rest)?)?),
            kind::ZSET_ZIPLIST => self.zset(compact::ziplist(&string(rest)?)?),
            kind::HASH => self.hash(strings(rest, 2)?),
            kind::HASH_ZIPMAP => self.hash(compact::zipmap(&string(rest)?)?),
            kind::HASH_ZIPLIST => self.hash(compact::ziplist(&string(rest)?)?),
            kind::HASH_LISTPACK => self.hash(compact::listpack(&string(rest)?)?),
            kind::HASH_METADATA | kind::HASH_METADATA_PRE_GA => self.hash_with_deadlines(kind, rest),
            kind::HASH_LISTPACK_EX | kind::HASH_LISTPACK_EX_PRE_GA => self.hash_listpack_with_deadlines(kind, rest),
            kind::STREAM_LISTPACKS | kind::STREAM_LISTPACKS_2 | kind::STREAM_LISTPACKS_3 => {
                Some(Loaded::Value(Value::Stream(Box::new(read_stream(kind, rest, self.streams)?))))
            }
            _ => None,
        }
    }

    fn list(&self, elements: Elements<'_>) -> Option<Loaded> {
        let list = List::from_elements(elements.iter().map(|element| &**element), self.lists);
        Some(Loaded::unless(list.is_empty(), || Value::List(list)))
    }

    /// A list as nodes. Those of the older type are ziplists; those of the newer one are listpacks or single elements.
    fn quicklist(&self, kind: u8, rest: &mut &[u8]) -> Option<Loaded> {
        let mut elements = Elements::new();
        for _ in 0..plain_length(rest)? {
            if kind == kind::LIST_QUICKLIST {
                elements.extend(owned(compact::ziplist(&string(rest)?)?));
                continue;
            }
            match plain_length(rest)? {
                PLAIN => elements.push(string(rest)?),
                PACKED => elements.extend(owned(compact::listpack(&string(rest)?)?)),
                _ => return None,
            }
        }
        self.list(elements)
    }

    fn set(&self, members: Elements<'_>, packed: bool) -> Option<Loaded> {
        // Redis stores a set that was no listpack as a table if it has more members than a set of integers may have, whatever
        // they are.
        let table = !packed && members.len() > self.sets.ints;
        let limits = if table { Limits { ints: 0, entries: 0, ..self.sets } } else { self.sets };
        let Some(first) = members.first() else { return Some(Loaded::Empty) };
        let mut set = Set::for_members(first, members.len(), limits);
        for member in &members {
            if !set.add(self.hasher, limits, Member::Bytes(member)) {
                return None;
            }
        }
        Some(Loaded::Value(Value::Set(set)))
    }

    fn intset(&self, buffer: &[u8]) -> Option<Loaded> {
        let mut digits = itoa::Buffer::new();
        let integers = compact::intset(buffer)?;
        self.set(integers.into_iter().map(|n| Cow::Owned(digits.format(n).as_bytes().to_vec())).collect(), false)
    }

    fn rank(&self, zset: &mut ZSet, member: &[u8], score: f64) -> Option<()> {
        let fits = !score.is_nan() && zset.insert(self.hasher, self.zsets, member, score).is_none();
        fits.then_some(())
    }

    fn zset(&self, elements: Elements<'_>) -> Option<Loaded> {
        let mut zset = ZSet::default();
        let (pairs, []) = elements.as_chunks::<2>() else { return None };
        for [member, score] in pairs {
            self.rank(&mut zset, member, parse_f64(score)?)?;
        }
        Some(Loaded::unless(zset.is_empty(), || Value::ZSet(zset)))
    }

    /// A sorted set as pairs. The scores of the older type are text; those of the newer one are eight bytes.
    fn plain_zset(&self, kind: u8, rest: &mut &[u8]) -> Option<Loaded> {
        let mut pairs = Vec::new();
        for _ in 0..plain_length(rest)? {
            let member = string(rest)?;
            let score = if kind == kind::ZSET_2 { f64::from_le_bytes(chunk(rest)?) } else { old_score(rest)? };
            pairs.push((member, score));
        }
        let mut zset = ZSet::default();
        if pairs.len() > self.zsets.entries || pairs.iter().any(|(member, _)| member.len() > self.zsets.value) {
            // It was never small in Redis: a small one would not keep the sign of a zero.
            zset.make_large(self.hasher);
        }
        for (member, score) in &pairs {
            self.rank(&mut zset, member, *score)?;
        }
        Some(Loaded::unless(zset.is_empty(), || Value::ZSet(zset)))
    }

    fn hash(&self, elements: Elements<'_>) -> Option<Loaded> {
        let mut fields = Fields::default();
        let (pairs, []) = elements.as_chunks::<2>() else { return None };
        for [name, value] in pairs {
            fields.add(self, name, value, None)?;
        }
        Some(fields.finish())
    }

    fn hash_with_deadlines(&self, kind: u8, rest: &mut &[u8]) -> Option<Loaded> {
        // Deadlines are relative to the earliest one plus one, because 0 stands for none. Those of the first form are absolute.
        let earliest = if kind == kind::HASH_METADATA { i64::from_le_bytes(chunk(rest)?) } else { 1 };
        let mut fields = Fields::default();
        for _ in 0..plain_length(rest)? {
            let later = i64::try_from(plain_length(rest)?).ok()?;
            let unix_ms = if later == 0 { None } else { Some(earliest.checked_add(later - 1)?) };
            fields.add(self, &string(rest)?, &string(rest)?, unix_ms)?;
        }
        Some(fields.finish())
    }

    fn hash_listpack_with_deadlines(&self, kind: u8, rest: &mut &[u8]) -> Option<Loaded> {
        if kind == kind::HASH_LISTPACK_EX {
            let _earliest = i64::from_le_bytes(chunk(rest)?);
        }
        let buffer = string(rest)?;
        let elements = compact::listpack(&buffer)?;
        let mut fields = Fields::default();
        let (triples, []) = elements.as_chunks::<3>() else { return None };
        for [name, value, deadline] in triples {
            let unix_ms = parse_i64(deadline)?;
            fields.add(self, name, value, (unix_ms != 0).then_some(unix_ms))?;
        }
        Some(fields.finish())
    }
}

/// A hash while it is read.
#[derive(Default)]
struct Fields {
    hash: Hash,
    /// Number of fields that have expired already and are left out.
    ended: usize,
}

impl Fields {
    fn add(&mut self, builder: &Builder<'_>, name: &[u8], value: &[u8], unix_ms: Option<i64>) -> Option<()> {
        let ttl = match unix_ms.map(|unix_ms| if unix_ms < 0 { None } else { Some((builder.deadline_at)(unix_ms)) }) {
            None => FieldTtl::Clear,
            Some(None) => return None,
            Some(Some(None)) => {
                self.ended += 1;
                return Some(());
            }
            Some(Some(Some(deadline))) => FieldTtl::At(deadline),
        };
        self.hash.set(builder.hasher, builder.hashes, name, value, ttl).then_some(())
    }

    fn finish(self) -> Loaded {
        Loaded::unless(self.hash.is_empty() && self.ended == 0, || Value::Hash(self.hash))
    }
}

/// Reads a count, and as many groups of `each` strings.
fn strings<'a>(rest: &mut &'a [u8], each: usize) -> Option<Elements<'a>> {
    let count = plain_length(rest)?.checked_mul(each)?;
    // A string takes at least one byte.
    if count > rest.len() {
        return None;
    }
    (0..count).map(|_| string(rest)).collect()
}

fn owned(elements: Elements<'_>) -> Elements<'static> {
    elements.into_iter().map(|element| Text::Owned(element.into_owned())).collect()
}

/// Reads a score as text with its length; three special lengths stand for values that are not finite.
fn old_score(rest: &mut &[u8]) -> Option<f64> {
    let [len] = chunk(rest)?;
    match len {
        253 => None,
        254 => Some(f64::INFINITY),
        255 => Some(f64::NEG_INFINITY),
        _ => parse_f64(take(rest, len.into())?),
    }
}
