//! `DEBUG DIGEST` and `DEBUG DIGEST-VALUE`: SHA-1 digests of data that are equal to those of redis-server. Servers with the same
//! data have the same digests, whatever their internal order.
//!
//! Ordered elements are mixed into the digest one after the other; unordered elements are combined by exclusive or.

use sha1::{Digest as _, Sha1};

use crate::base::time::Now;
use crate::engine::Engine;
use crate::resp::double::{DOUBLE_MAX, format_double};
use crate::store::entry::{EntryRef, ValueRef};
use crate::store::values::hash::Hash;
use crate::store::values::list::End;
use crate::store::values::stream::StreamId;
use crate::store::values::value::Value;

/// A digest under construction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest([u8; 20]);

impl Digest {
    /// Adds bytes whose order does not matter.
    fn join(&mut self, bytes: &[u8]) {
        for (mine, other) in self.0.iter_mut().zip(Sha1::digest(bytes)) {
            *mine ^= other;
        }
    }

    /// Adds bytes whose order matters.
    fn mix(&mut self, bytes: &[u8]) {
        self.join(bytes);
        self.0 = Sha1::digest(self.0).into();
    }

    fn mix_number(&mut self, number: u32) {
        self.mix(&number.to_be_bytes());
    }

    /// As 40 hexadecimal digits.
    pub(crate) fn hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn string(&mut self, bytes: &[u8]) {
        self.mix_number(0);
        self.mix(bytes);
    }

    fn hash(&mut self, hash: &Hash) {
        self.mix_number(4);
        for field in hash.iter() {
            let mut part = Digest::default();
            part.mix(field.name);
            part.mix(field.value);
            if field.deadline.is_some() {
                part.join(b"!!hexpire!!");
            }
            self.join(&part.0);
        }
    }

    fn value(&mut self, entry: EntryRef<'_>) {
        // The numbers are Redis's types.
        match entry.value() {
            ValueRef::Bytes(bytes) => self.string(bytes),
            ValueRef::Boxed(Value::Bytes(bytes)) => self.string(bytes),
            ValueRef::Boxed(Value::List(list)) => {
                self.mix_number(1);
                list.iter(End::Left).for_each(|element| self.mix(&element.to_vec()));
            }
            ValueRef::Boxed(Value::Set(set)) => {
                self.mix_number(2);
                set.iter().for_each(|member| self.join(&member.to_vec()));
            }
            ValueRef::Boxed(Value::ZSet(zset)) => {
                self.mix_number(3);
                for item in zset.iter() {
                    let mut part = Digest::default();
                    part.mix(item.member);
                    part.mix(format_double(item.score, &mut [0; DOUBLE_MAX]));
                    self.join(&part.0);
                }
            }
            ValueRef::Count { field, count } => self.hash(&Hash::of_count(field, count)),
            ValueRef::Boxed(Value::Hash(hash)) => self.hash(hash),
            ValueRef::Boxed(Value::Stream(stream)) => {
                self.mix_number(6);
                for entry in stream.range(StreamId::MIN, StreamId::MAX) {
                    self.mix(format!("{}.{}", entry.id.ms, entry.id.seq).as_bytes());
                    for (name, value) in entry.iter() {
                        self.mix(name);
                        self.mix(value);
                    }
                }
            }
            // Redis does not have these types.
            ValueRef::Grant(_) | ValueRef::Boxed(Value::Lock(_) | Value::Latch(_) | Value::Guard(_)) => {}
        }
        if entry.deadline().is_some() {
            self.join(b"!!expire!!");
        }
    }
}

/// The digest of a value; all zeros for a missing key.
pub(crate) fn of_value(entry: Option<EntryRef<'_>>) -> Digest {
    let mut digest = Digest::default();
    if let Some(entry) = entry {
        digest.value(entry);
    }
    digest
}

/// The digest of all keys of all databases. Takes time in proportion to the data.
pub(crate) fn of_all(engine: &mut Engine, now: Now) -> Digest {
    let mut all = Digest::default();
    for index in 0..engine.keyspace().databases() as u32 {
        let db = engine.keyspace_mut().db(index, now);
        if db.is_empty() {
            continue;
        }
        all.mix_number(index);
        db.scan(0, usize::MAX, |entry| {
            let mut part = Digest::default();
            part.mix(entry.key());
            part.value(entry);
            all.join(&part.0);
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn digests_are_those_of_redis_server() {
        let mut h = Harness::new();
        for request in [
            "SET s hello",
            "SET n 12345 PX 100000000",
            "RPUSH l a b 3 -17",
            "SADD ints 1 2 3 -5",
            "SADD mixed a b 3",
            "ZADD z 1 a 2.5 b 0.1 c 1e20 d -inf e 1e-7 f 3 3 123456789.125 g -0 h 17e21 i",
            "HSET h f v g 2",
            "PEXPIRE h 100000000",
            "XADD st 5-1 a b c d",
            "XADD st 6-1 a b",
            "SELECT 3",
            "SET other v",
            "SELECT 0",
        ] {
            assert!(!h.run(request).starts_with('-'), "{request}");
        }
        h.args(&[b"APPEND", b"long", &[b'x'; 3000]]);
        h.args(&[b"RPUSH", b"l", b"", &[b'y'; 100]]);
        // Digests by redis-server 7.4 and later; version 7.0 formats scores differently.
        for (key, digest) in [
            ("s", "36b23a1456b2dce2c3ed252c456761301dba8060"),
            ("n", "074a6e8892a0b0b4fcf085794cb69322c36c9d00"),
            ("long", "a9ed101e2754ca82ab8a1920cfde8248889257df"),
            ("l", "728e18d869ef0b39384dca9296e4638ef8576c74"),
            ("ints", "5e497276f46b9037a75afe0286ef7a77cbed85e4"),
            ("mixed", "aa475a4a8f122ca5936aa41d911aacf8c93b827d"),
            ("z", "ac68e84aae7aecd07636ef5bb3d02c17123f6fd2"),
            ("h", "7b421f128557669e75aff6fcfd5bb05341c668c9"),
            ("st", "d95e1c4cd8c75f102f848a285ec9c1f742f1d42b"),
            ("nosuch", "0000000000000000000000000000000000000000"),
        ] {
            assert_eq!(h.run(&format!("DEBUG DIGEST-VALUE {key}")), format!("*1 +{digest}"), "{key}");
        }
        assert_eq!(h.run("DEBUG DIGEST"), "+1513c6916f48db2265e4065dd3111c58bd44388b");
        assert_eq!(h.run("DEBUG DIGEST-VALUE"), "*0");
        let none = "0".repeat(40);
        h.script(&[("FLUSHALL", "+OK"), ("DEBUG DIGEST", &format!("+{none}"))]);
    }
}
