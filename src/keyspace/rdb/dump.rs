//! Serialization of a value.

use crate::base::number::parse_i64;
use crate::keyspace::rdb::kind;
use crate::keyspace::rdb::parts::{VERSION, VERSION_WITH_FIELD_DEADLINES, put_length, put_string, seal};
use crate::keyspace::rdb::streams::{kind_of, put_stream};
use crate::store::entry::ValueRef;
use crate::store::values::hash::Hash;
use crate::store::values::list::{Digits, End};
use crate::store::values::value::Value;

/// Writes a string; an integer of up to four bytes is written as such.
fn put_text(out: &mut Vec<u8>, bytes: &[u8]) {
    match parse_i64(bytes).map(i32::try_from) {
        Some(Ok(n)) => match (i8::try_from(n), i16::try_from(n)) {
            (Ok(n), _) => out.extend_from_slice(&[0xc0, n as u8]),
            (_, Ok(n)) => {
                out.push(0xc1);
                out.extend_from_slice(&n.to_le_bytes());
            }
            _ => {
                out.push(0xc2);
                out.extend_from_slice(&n.to_le_bytes());
            }
        },
        _ => put_string(out, bytes),
    }
}

/// The payload of a value. Leaves out hash fields that have expired at `now_ms`. `unix_of` returns the unix time in milliseconds
/// of a monotonic deadline.
pub fn dump(value: ValueRef<'_>, now_ms: u64, unix_of: impl Fn(u64) -> i64) -> Vec<u8> {
    let mut out = Vec::new();
    let version = put_value(&mut out, None, value, VERSION_WITH_FIELD_DEADLINES, now_ms, unix_of);
    seal(&mut out, version);
    out
}

/// Writes a value: its type, the name of its key where one is given, as files have it, and the content. Returns the version of the
/// format that it needs: at most `newest`, unless fields of a hash have deadlines.
pub fn put_value(
    out: &mut Vec<u8>,
    name: Option<&[u8]>,
    value: ValueRef<'_>,
    newest: u16,
    now_ms: u64,
    unix_of: impl Fn(u64) -> i64,
) -> u16 {
    let begin = |out: &mut Vec<u8>, kind: u8| {
        out.push(kind);
        if let Some(name) = name {
            put_string(out, name);
        }
    };
    match value {
        ValueRef::Bytes(bytes) => {
            begin(out, kind::STRING);
            put_text(out, bytes);
        }
        ValueRef::Boxed(Value::Bytes(bytes)) => {
            begin(out, kind::STRING);
            put_text(out, bytes);
        }
        ValueRef::Boxed(Value::List(list)) => {
            begin(out, kind::LIST);
            put_length(out, list.len());
            let mut digits = Digits::new();
            for element in list.iter(End::Left) {
                put_text(out, element.text(&mut digits));
            }
        }
        ValueRef::Boxed(Value::Set(set)) => {
            begin(out, kind::SET);
            put_length(out, set.len());
            let mut digits = Digits::new();
            for member in set.iter() {
                put_text(out, member.text(&mut digits));
            }
        }
        ValueRef::Boxed(Value::ZSet(zset)) => {
            begin(out, kind::ZSET_2);
            put_length(out, zset.len());
            for item in zset.iter() {
                put_text(out, item.member);
                out.extend_from_slice(&item.score.to_le_bytes());
            }
        }
        ValueRef::Boxed(Value::Hash(hash)) => return put_hash(out, begin, hash, now_ms, unix_of),
        ValueRef::Count { field, count } => return put_hash(out, begin, &Hash::of_count(field, count), now_ms, unix_of),
        ValueRef::Boxed(Value::Stream(stream)) => {
            let (kind, version) = kind_of(stream, newest);
            begin(out, kind);
            put_stream(out, kind, stream);
            return version;
        }
        // Callers refuse these before: a grant belongs to its holder and to this server.
        ValueRef::Grant(_) | ValueRef::Boxed(Value::Lock(_) | Value::Latch(_) | Value::Guard(_)) => {}
    }
    VERSION
}

/// Writes a hash. Returns the version of the format that it needs.
fn put_hash(out: &mut Vec<u8>, begin: impl Fn(&mut Vec<u8>, u8), hash: &Hash, now_ms: u64, unix_of: impl Fn(u64) -> i64) -> u16 {
    let fields = || hash.iter().filter(|field| !field.is_expired(now_ms));
    let earliest = match hash.next_field_deadline() {
        None => None,
        Some(_) => fields().filter_map(|field| field.deadline).min().map(&unix_of),
    };
    begin(out, if earliest.is_some() { kind::HASH_METADATA } else { kind::HASH });
    if let Some(earliest) = earliest {
        out.extend_from_slice(&earliest.to_le_bytes());
    }
    put_length(out, if hash.next_field_deadline().is_none() { hash.len() } else { fields().count() });
    for field in fields() {
        if let Some(earliest) = earliest {
            // The difference from the earliest deadline plus one; 0 stands for no deadline.
            let later = field.deadline.map_or(0, |deadline| unix_of(deadline).saturating_sub(earliest).saturating_add(1));
            put_length(out, later as usize);
        }
        put_text(out, field.name);
        put_text(out, field.value);
    }
    if earliest.is_some() { VERSION_WITH_FIELD_DEADLINES } else { VERSION }
}
