//! The keyspace remembers the location of a script's first key. No script or client can see that.

use proptest::prelude::*;

use crate::engine::harness::Harness;
use crate::engine::session::Peer;

/// Calls of a script. `a` is its first key, `b` another key.
const CALLS: [&str; 52] = [
    "'incr', a",
    "'incr', a",
    "'decr', a",
    "'incrby', a, 7",
    "'incrbyfloat', a, 1.5",
    "'incr', b",
    "'get', a",
    "'get', b",
    "'set', a, 8",
    "'set', a, 'text'",
    "'set', a, 99999998, 'PX', 20",
    "'set', a, 1, 'KEEPTTL'",
    "'set', a, 5, 'NX'",
    "'set', a, ('x'):rep(5000)",
    "'set', b, 9, 'PX', 5",
    "'append', a, 3",
    "'setrange', a, 2, 'zz'",
    "'object', 'encoding', a",
    "'del', a",
    "'del', b",
    "'unlink', a",
    "'getdel', a",
    "'exists', a, b",
    "'type', a",
    "'rename', a, b",
    "'rename', b, a",
    "'copy', a, b, 'REPLACE'",
    "'copy', b, a, 'REPLACE'",
    "'move', a, 1",
    "'select', 0",
    "'select', 1",
    "'swapdb', 0, 1",
    "'flushdb'",
    "'flushall'",
    "'pexpire', a, 30",
    "'pexpire', a, 0",
    "'pexpire', a, 40000000000000",
    "'persist', a",
    "'pttl', a",
    "'hset', a, 'f', 1",
    "'hincrby', a, 'f', 1",
    "'hset', a, 'f', 1, 'g', 2",
    "'hpexpire', a, 3, 'FIELDS', 1, 'f'",
    "'hdel', a, 'f', 'g'",
    "'hgetall', a",
    "'rpush', a, 1, 2",
    "'lpop', a",
    "'sadd', b, 1",
    "'lock.acquire', a, 'owner', 10",
    "'lock.release', a, 'owner'",
    "'lock.info', a",
    "'dbsize'",
];

/// A script that makes these calls and returns their replies. It receives its keys in `KEYS`, or in `ARGV`, where no location is
/// remembered.
fn script(calls: &[usize], keys: &str) -> String {
    let mut script = format!(
        "local a, b, out = {keys}[1], {keys}[2], {{}}\nlocal function note(reply) if type(reply) == 'table' then reply = cjson.encode(reply) end out[#out + 1] = tostring(reply) end\n"
    );
    for call in calls {
        script += &format!("note(redis.pcall({}))\n", CALLS[*call]);
    }
    script + "return table.concat(out, ' ')"
}

/// An engine with a second session that receives all events.
struct Heard {
    harness: Harness,
    listener: crate::base::ids::SessionId,
}

impl Heard {
    fn new(notify: bool) -> Self {
        let mut harness = Harness::new();
        let listener = harness.engine.connect(harness.now, Peer::default());
        if notify {
            harness.run("CONFIG SET notify-keyspace-events KEAmn");
            harness.engine.execute(harness.now, listener, &[b"PSUBSCRIBE", b"*"]);
        }
        Heard { harness, listener }
    }

    fn take_heard(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.harness.engine.sessions_mut()[self.listener].out)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn a_key_is_found_whether_its_place_is_remembered_or_not(
        scripts in prop::collection::vec((prop::collection::vec(0..CALLS.len(), 1..24), 0..12u64), 1..8), notify in any::<bool>(),
    ) {
        let (mut known, mut unknown) = (Heard::new(notify), Heard::new(notify));
        for (calls, pass_ms) in scripts {
            let replies = [(&mut known, "KEYS", "2"), (&mut unknown, "ARGV", "0")].map(|(heard, keys, count)| {
                let reply = heard.harness.args(&[b"EVAL", script(&calls, keys).as_bytes(), count.as_bytes(), b"k{1}", b"other{1}"]);
                heard.harness.engine.check_invariants();
                // Keys that expire now stay until a command looks them up.
                heard.harness.now.advance_us(pass_ms * 1000);
                (String::from_utf8_lossy(&reply).into_owned(), String::from_utf8_lossy(&heard.take_heard()).into_owned())
            });
            let [first, second] = replies;
            prop_assert_eq!(first, second);
        }
        for heard in [&mut known, &mut unknown] {
            heard.harness.pass(1);
        }
        let digests = [&mut known, &mut unknown].map(|heard| heard.harness.run("DEBUG DIGEST"));
        prop_assert_eq!(&digests[0], &digests[1]);
    }
}

#[test]
fn a_key_dropped_by_a_script_is_not_confused_with_another() {
    let mut harness = Harness::new();
    harness.run("SET key:0000 41");
    // If the key's string were freed, one of these strings of the same length would get its address. No constant of the script is
    // the same string.
    let script = "redis.call('incr', KEYS[1])
        KEYS[1] = nil
        for round = 1, 3 do
            collectgarbage()
            for i = 1, 2000 do redis.call('incr', ('key:%04d'):format(i)) end
        end
        local function count(i) return redis.call('get', ('key:%04d'):format(i)) end
        return count(0) .. ' ' .. count(1) .. ' ' .. count(2000) .. ' ' .. redis.call('dbsize')";
    assert_eq!(harness.args(&[b"EVAL", script.as_bytes(), b"1", b"key:0000"]), b"$11\r\n42 3 3 2001\r\n");
    harness.engine.check_invariants();
    // The location is forgotten when the script ends, in any way.
    for script in ["return redis.call('get', KEYS[1])", "redis.call('get', KEYS[1]) error('no')", "redis.call('lpop', KEYS[1])"] {
        harness.args(&[
            b"EVAL",
            format!("for i = 1, 2 do redis.call('incr', KEYS[1]) end {script}").as_bytes(),
            b"1",
            b"key:0000",
        ]);
        let script =
            "local out = {} for i = 1, 50 do out[i] = redis.call('exists', ('kez:%04d'):format(i)) end return table.concat(out)";
        let reply = harness.args(&[b"EVAL", script.as_bytes(), b"0"]);
        assert_eq!(reply, format!("$50\r\n{}\r\n", "0".repeat(50)).as_bytes());
        harness.engine.check_invariants();
    }
    assert_eq!(harness.run("GET key:0000"), "$2 48");
}

#[test]
fn watchers_notice_each_step_of_a_counter() {
    let mut harness = Harness::new();
    let watcher = harness.engine.connect(harness.now, Peer::default());
    let watch = |harness: &mut Harness, words: &[&[u8]]| {
        harness.engine.execute(harness.now, watcher, words);
        std::mem::take(&mut harness.engine.sessions_mut()[watcher].out)
    };
    harness.run("SET k 4");
    for (script, unchanged) in [("redis.call('get', KEYS[1])", true), ("redis.call('incr', KEYS[1])", false)] {
        assert_eq!(watch(&mut harness, &[b"WATCH", b"k"]), b"+OK\r\n");
        let script = format!("for i = 1, 2 do {script} end");
        assert_eq!(harness.args(&[b"EVAL", script.as_bytes(), b"1", b"k"]), b"$-1\r\n");
        assert_eq!(watch(&mut harness, &[b"MULTI"]), b"+OK\r\n");
        let executed = watch(&mut harness, &[b"EXEC"]);
        assert_eq!(executed, if unchanged { &b"*0\r\n"[..] } else { b"*-1\r\n" });
        harness.engine.check_invariants();
    }
    assert_eq!(harness.run("GET k"), "$1 6");
}
