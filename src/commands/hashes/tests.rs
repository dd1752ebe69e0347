//! Hashes that are stored inline in their entries behave like all others.

use crate::engine::harness::Harness;
use crate::store::entry::ValueRef;

/// Whether the key is a hash that is stored inline in its entry.
fn is_inline(h: &mut Harness, key: &[u8]) -> bool {
    h.engine.keyspace_mut().db(0, h.now).peek(key).is_some_and(|entry| matches!(entry.value(), ValueRef::Count { .. }))
}

#[test]
fn one_field_with_a_small_number_is_kept_in_the_entry_while_it_is_no_more() {
    let mut h = Harness::new();
    let long = "f".repeat(64);
    for (request, reply, inside) in [
        ("HINCRBY k me 1", ":1", true),
        ("PEXPIRE k 1000", ":1", true),
        ("HINCRBY k me 14", ":15", true),
        ("HINCRBY k me 1", ":16", false),
        ("HINCRBY k me -1", ":15", true),
        ("HSET k me 01", ":0", false),
        ("HSET k me 1", ":0", true),
        ("HSET k you 2", ":1", false),
        ("HGETALL k", "*4 $2 me $1 1 $3 you $1 2", false),
        ("HDEL k me", ":1", true),
        ("PTTL k", ":1000", true),
        ("HGET k you", "$1 2", true),
        ("HGET k me", "$-1", true),
        ("HEXISTS k you", ":1", true),
        ("HLEN k", ":1", true),
        ("HKEYS k", "*1 $3 you", true),
        ("HVALS k", "*1 $1 2", true),
        ("HRANDFIELD k 3 WITHVALUES", "*2 $3 you $1 2", true),
        ("HRANDFIELD k -2", "*2 $3 you $3 you", true),
        ("HSCAN k 0", "*2 $1 0 *2 $3 you $1 2", true),
        ("HSTRLEN k you", ":1", true),
        ("OBJECT ENCODING k", "$8 listpack", true),
        ("TYPE k", "+hash", true),
        ("GET k", "-WRONGTYPE Operation against a key holding the wrong kind of value", true),
        ("APPEND k x", "-WRONGTYPE Operation against a key holding the wrong kind of value", true),
        ("HPEXPIRE k 100 FIELDS 1 you", "*1 :1", false),
        ("HPERSIST k FIELDS 1 you", "*1 :1", false),
        ("DEL k", ":1", false),
        ("HSETNX k me 3", ":1", true),
        ("HSETNX k me 4", ":0", true),
        ("HINCRBYFLOAT k me 1", "$1 4", true),
        ("HINCRBYFLOAT k me 0.5", "$3 4.5", false),
        ("HINCRBYFLOAT k me 0.5", "$1 5", true),
        ("COPY k l", ":1", true),
        ("HGETALL l", "*2 $2 me $1 5", true),
        ("RENAME k m", "+OK", false),
        ("HINCRBY m me -5", ":0", false),
        ("RENAME m k", "+OK", true),
        ("HGETDEL k FIELDS 1 me", "*1 $1 0", false),
        ("EXISTS k", ":0", false),
    ] {
        h.script(&[(request, reply)]);
        h.engine.check_invariants();
        assert_eq!(is_inline(&mut h, b"k"), inside, "{request}");
    }
    h.script(&[(&format!("HSET k {long} 1"), ":1")]);
    assert!(is_inline(&mut h, b"k"));
    h.script(&[("DEL k", ":1"), (&format!("HSET k {long}f 1"), ":1"), ("OBJECT ENCODING k", "$9 hashtable")]);
    h.script(&[("DEL k", ":1"), ("HSET k a 1 b 1", ":2"), ("HDEL k a b", ":2"), ("EXISTS k", ":0")]);
    h.script(&[("CONFIG SET hash-max-listpack-entries 0", "+OK"), ("HSET k a 1", ":1"), ("OBJECT ENCODING k", "$9 hashtable")]);
}
