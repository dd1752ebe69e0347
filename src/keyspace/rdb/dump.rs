//! Serialization of a value.

use crate::base::number::parse_i64;
use crate::keyspace::rdb::kind;
use crate::keyspace::rdb::parts::{put_length, put_string, seal};
use crate::keyspace::rdb::streams::put_stream;
use crate::store::entry::ValueRef;
use crate::store::values::hash::Hash;
use crate::store::values::list::{Digits, End};
use crate::store::values::value::Value;

/// The version that every server since Redis 7.0 reads.
const VERSION: u16 = 10;
/// The version with deadlines of hash fields, from Redis 7.4.
const VERSION_WITH_FIELD_DEADLINES: u16 = 12;

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
    let mut version = VERSION;
    match value {
        ValueRef::Bytes(bytes) => put_bytes(&mut out, bytes),
        ValueRef::Boxed(Value::Bytes(bytes)) => put_bytes(&mut out, bytes),
        ValueRef::Boxed(Value::List(list)) => {
            out.push(kind::LIST);
            put_length(&mut out, list.len());
            let mut digits = Digits::new();
            for element in list.iter(End::Left) {
                put_text(&mut out, element.text(&mut digits));
            }
        }
        ValueRef::Boxed(Value::Set(set)) => {
            out.push(kind::SET);
            put_length(&mut out, set.len());
            let mut digits = Digits::new();
            for member in set.iter() {
                put_text(&mut out, member.text(&mut digits));
            }
        }
        ValueRef::Boxed(Value::ZSet(zset)) => {
            out.push(kind::ZSET_2);
            put_length(&mut out, zset.len());
            for item in zset.iter() {
                put_text(&mut out, item.member);
                out.extend_from_slice(&item.score.to_le_bytes());
            }
        }
        ValueRef::Boxed(Value::Hash(hash)) => {
            if put_hash(&mut out, hash, now_ms, unix_of) {
                version = VERSION_WITH_FIELD_DEADLINES;
            }
        }
        ValueRef::Count { field, count } => {
            put_hash(&mut out, &Hash::of_count(field, count), now_ms, unix_of);
        }
        ValueRef::Boxed(Value::Stream(stream)) => version = version.max(put_stream(&mut out, stream)),
        // Callers refuse these before: a grant belongs to its holder and to this server.
        ValueRef::Grant(_) | ValueRef::Boxed(Value::Lock(_) | Value::Latch(_) | Value::Guard(_)) => {}
    }
    seal(&mut out, version);
    out
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(kind::STRING);
    put_text(out, bytes);
}

/// Writes a hash. Returns whether fields of it have deadlines.
fn put_hash(out: &mut Vec<u8>, hash: &Hash, now_ms: u64, unix_of: impl Fn(u64) -> i64) -> bool {
    let fields = || hash.iter().filter(|field| !field.is_expired(now_ms));
    let earliest = fields().filter_map(|field| field.deadline).min().map(&unix_of);
    out.push(if earliest.is_some() { kind::HASH_METADATA } else { kind::HASH });
    if let Some(earliest) = earliest {
        out.extend_from_slice(&earliest.to_le_bytes());
    }
    put_length(out, fields().count());
    for field in fields() {
        if let Some(earliest) = earliest {
            // The difference from the earliest deadline plus one; 0 stands for no deadline.
            let later = field.deadline.map_or(0, |deadline| unix_of(deadline).saturating_sub(earliest).saturating_add(1));
            put_length(out, later as usize);
        }
        put_text(out, field.name);
        put_text(out, field.value);
    }
    earliest.is_some()
}
