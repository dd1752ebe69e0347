//! Scripts by their replies.

use crate::engine::harness::Harness;

/// Undoes the escapes of `cases.txt`.
fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut chars = text.bytes();
    while let Some(byte) = chars.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match chars.next().unwrap() {
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'0' => out.push(0),
            b'x' => {
                let digits = [chars.next().unwrap(), chars.next().unwrap()];
                out.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
            }
            other => out.push(other),
        }
    }
    out
}

#[track_caller]
fn check(resp3: bool) {
    let mut harness = Harness::new();
    if resp3 {
        harness.args(&[b"HELLO", b"3"]);
    }
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in include_str!("cases.txt").lines().filter(|line| !line.starts_with("# ")) {
        let fields: Vec<_> = line.split('\t').map(unescape).collect();
        let expected = if resp3 { fields.last().unwrap() } else { &fields[1] };
        let reply = harness.args(&[b"EVAL", &fields[0], b"2", b"k1", b"k2", b"a1", b"a2", b"a3"]);
        if reply != *expected {
            wrong.push(format!(
                "{}\n  expected {}\n  got      {}",
                line.split('\t').next().unwrap(),
                expected.escape_ascii(),
                reply.escape_ascii()
            ));
        }
        count += 1;
    }
    harness.engine.scripts.check_invariants();
    assert!(wrong.is_empty(), "{} of {count} replies differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn replies_are_those_of_redis_over_resp2() {
    check(false);
}

#[test]
fn replies_are_those_of_redis_over_resp3() {
    check(true);
}
