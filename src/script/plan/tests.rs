//! Plans compared with Lua.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::engine::harness::Harness;
use crate::script::plan::Plan;
use crate::script::sha::sha1_hex;

/// Whether a script has a plan.
fn is_planned(source: &str) -> bool {
    Plan::of(source.as_bytes(), crate::commands::table(), &mut Default::default()).is_some()
}

#[test]
fn scripts_of_lock_libraries_have_plans() {
    for source in [
        // Compare and delete, and compare and renew, as several libraries spell them.
        "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end",
        "if redis.call(\"get\", KEYS[1]) == ARGV[1]\nthen\n    return redis.call(\"pexpire\", KEYS[1], ARGV[2])\nelse\n    return 0\nend\n",
        "local token = redis.call('get', KEYS[1])\nif not token or token ~= ARGV[1] then\n  return 0\nend\nredis.call('del', KEYS[1])\nreturn 1",
        "-- Return 1 if it is held.\nif redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end return 0",
        // The steps of a reentrant lock.
        "if ((redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[2]) == 1)) then \
         redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end; \
         return redis.call('pttl', KEYS[1]);",
        "local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); if (counter > 0) then \
         redis.call('pexpire', KEYS[1], ARGV[2]); return 0; else redis.call('del', KEYS[1]); \
         redis.call('publish', KEYS[2], ARGV[1]); return 1; end; return nil;",
    ] {
        assert!(is_planned(source), "{source}");
    }
}

#[test]
fn other_scripts_run_in_lua() {
    for source in [
        "return redis.pcall('get', KEYS[1])",
        "return redis.call('mget', KEYS[1])",
        "return redis.call('lpop', KEYS[1], 2)",
        "return redis.call('get')",
        "return redis.call('nothing')",
        "return redis.call('object', 'encoding', KEYS[1])",
        "return redis.call('blpop', KEYS[1], 0)",
        "return redis.call(ARGV[1], KEYS[1])",
        "return redis.call('set', KEYS[1], redis.call('get', KEYS[2]))",
        "return redis.call('set', KEYS[1], nil)",
        "return redis.call('get', KEYS[1]) .. 'x'",
        "return redis.call('incr', KEYS[1]) + 1",
        "return redis.call('incr', KEYS[1]) -1",
        "return redis.call('get', KEYS[1]) < ARGV[1]",
        "return redis.call('get', KEYS[1])[1]",
        "return redis.call('set', KEYS[1], 1).ok",
        "return redis.call('set', KEYS[1], 1)['ok']",
        "return KEYS[1]:upper()",
        "return KEYS[1 + 1]",
        "return KEYS[ARGV[1]]",
        "return KEYS['x']",
        "return #KEYS",
        "return KEYS",
        "return tonumber(ARGV[1])",
        "return 1, 2",
        "return {1}",
        "return 1 == 1 == true",
        "local a, b = 1, 2 return b",
        "local a return a",
        "local a = 1 a = 2 return a",
        "local redis = 1 return redis.call('get', 'k')",
        "local function f() return 1 end return f()",
        "while redis.call('get', KEYS[1]) do end",
        "for i = 1, 2 do redis.call('incr', KEYS[1]) end",
        "x = 1",
        "redis.call('get', KEYS[1])()",
        "redis.call'get'",
        "redis.log(redis.LOG_WARNING, 'x')",
        "redis.setresp(3) return redis.call('get', 'k')",
        "return redis",
    ] {
        assert!(!is_planned(source), "{source}");
    }
    let deep = format!("return {}1{}", "(".repeat(50), ")".repeat(50));
    assert!(!is_planned(&deep));
    assert!(!is_planned(&format!("return {}", "not ".repeat(50) + "1")));
    assert!(!is_planned(&format!("return 1{}", " and 1".repeat(50))));
    assert!(!is_planned(&format!("--{}\nreturn 1", "x".repeat(10_000))));
}

/// Two engines that receive the same requests. The second one runs all scripts in Lua.
struct Pair([Harness; 2]);

impl Pair {
    fn new() -> Self {
        let mut pair = [Harness::new(), Harness::new()];
        pair[1].engine.lua_mut().scripts.plans_disabled = true;
        Pair(pair)
    }

    /// The reply of both engines, which must be equal.
    #[track_caller]
    fn args(&mut self, args: &[&[u8]]) -> Vec<u8> {
        let [planned, in_lua] = self.0.each_mut().map(|harness| {
            let reply = harness.args(args);
            // As the driver does: a request is counted when what it has asked for is done.
            harness.engine.take_actions();
            harness.engine.finish_actions(harness.now);
            reply
        });
        let shown = |reply: &[u8]| reply.escape_ascii().to_string();
        assert_eq!(shown(&planned), shown(&in_lua), "{:?}", args.iter().map(|arg| shown(arg)).collect::<Vec<_>>());
        planned
    }

    #[track_caller]
    fn run(&mut self, words: &str) -> String {
        let args: Vec<&[u8]> = words.split_whitespace().map(str::as_bytes).collect();
        String::from_utf8_lossy(&self.args(&args)).into_owned()
    }

    #[track_caller]
    fn eval(&mut self, source: &str, keys: &[&str], args: &[&str]) -> String {
        let count = keys.len().to_string();
        let words = ["EVAL", source, &count].into_iter().chain(keys.iter().copied()).chain(args.iter().copied());
        let words: Vec<_> = words.map(str::as_bytes).collect();
        String::from_utf8_lossy(&self.args(&words)).into_owned()
    }

    /// Compares the statistics and data of both engines.
    #[track_caller]
    fn compare(&mut self) {
        for what in ["INFO commandstats errorstats", "DEBUG DIGEST", "DBSIZE", "LATENCY HISTOGRAM", "ACL LOG"] {
            self.run(what);
        }
        for harness in &self.0 {
            harness.engine.check_invariants();
        }
    }
}

#[test]
fn values_and_errors_are_those_of_lua() {
    let mut pair = Pair::new();
    for (source, reply) in [
        ("return redis.call('set', KEYS[1], ARGV[1])", "+OK\r\n"),
        ("return redis.call('get', KEYS[1])", "$1\r\na\r\n"),
        ("return redis.call('get', KEYS[2])", "$-1\r\n"),
        ("return redis.call('type', KEYS[1])", "+string\r\n"),
        ("return redis.call('get', KEYS[1]) == ARGV[1]", ":1\r\n"),
        ("return redis.call('get', KEYS[2]) == nil", "$-1\r\n"),
        ("return redis.call('get', KEYS[2]) == false", ":1\r\n"),
        ("return not redis.call('get', KEYS[2])", ":1\r\n"),
        ("return redis.call('exists', KEYS[1]) == '1'", "$-1\r\n"),
        ("local ok = redis.call('set', KEYS[1], 'b') return ok == ok", ":1\r\n"),
        ("return redis.call('set', KEYS[1], 'b') == redis.call('set', KEYS[1], 'b')", "$-1\r\n"),
        ("return redis.call('set', KEYS[1], 'b') == 'OK'", "$-1\r\n"),
        ("return redis.call('set', KEYS[1], 'b') and 'yes' or 'no'", "$3\r\nyes\r\n"),
        ("return redis.call('get', KEYS[2]) or ARGV[1]", "$1\r\na\r\n"),
        ("return nil and 1", "$-1\r\n"),
        ("return 3.99", ":3\r\n"),
        ("return -3.99", ":-3\r\n"),
        ("return ''", "$0\r\n\r\n"),
        ("return", "$-1\r\n"),
        ("", "$-1\r\n"),
        ("return ARGV[9]", "$-1\r\n"),
        ("local a = 1 if true then local a = 2 end return a", ":1\r\n"),
        ("local a = 1 if a then local b = 2 end local c = 3 return c", ":3\r\n"),
        ("local a = 'x' local a = a return a", "$1\r\nx\r\n"),
        ("if false then return 1 elseif nil then return 2 elseif 0 then return 3 else return 4 end", ":3\r\n"),
        ("local n = redis.call('incrbyfloat', KEYS[2], 1.5) return n", "$3\r\n1.5\r\n"),
        ("local n = redis.call('incr', 'n') redis.call('set', KEYS[2], n) return redis.call('get', KEYS[2])", "$1\r\n1\r\n"),
        (
            "local v = redis.call('get', KEYS[1]) redis.call('append', KEYS[2], v) return redis.call('get', KEYS[2])",
            "$2\r\n1b\r\n",
        ),
        ("local v = redis.call('get', KEYS[1]) local w = redis.call('getset', KEYS[1], v) return w == v", ":1\r\n"),
        ("return redis.call('set', 'f', 1.5) and redis.call('get', 'f')", "$3\r\n1.5\r\n"),
        ("return redis.call('set', 'f', -0) and redis.call('get', 'f')", "$1\r\n0\r\n"),
        ("return redis.call('incr', 'n') >= 2", ":1\r\n"),
        ("return not (redis.call('incr', 'n') < 3)", ":1\r\n"),
    ] {
        assert!(is_planned(source), "{source}");
        assert_eq!(pair.eval(source, &["k1", "k2"], &["a"]), reply, "{source}");
    }
    for (source, text) in [
        ("return redis.call('incr', KEYS[1])", "-ERR value is not an integer or out of range script: "),
        ("\n\nlocal x = 1\nredis.call('lpush', KEYS[1],\n 'x')", "on @user_script:4."),
        ("if redis.call('get', KEYS[1])\n ==\n redis.call('hget',\nKEYS[1], 'f') then return 1 end", "on @user_script:3."),
        ("return redis.call('get', KEYS[3])", "-ERR Lua redis lib command arguments must be strings or integers script: "),
        ("local no = redis.call('get', 'none')\nredis.call('set', KEYS[1], no)", "on @user_script:2."),
        ("local ok = redis.call('set', 'x', 1)\nredis.call('set', KEYS[1], ok)", "on @user_script:2."),
        ("return redis.call('set', KEYS[1], 1, 'BAD')", "-ERR syntax error script: "),
        (
            "#!lua flags=no-writes\nreturn redis.call('set', KEYS[1], 1)",
            "-ERR Write commands are not allowed from read-only scripts.",
        ),
    ] {
        let reply = pair.eval(source, &["k1", "k2"], &["a"]);
        assert!(reply.starts_with('-') && reply.contains(text), "{source}: {reply}");
        assert!(reply.contains(std::str::from_utf8(&sha1_hex(source.as_bytes())).unwrap()));
    }
    pair.compare();
}

#[test]
fn rules_limits_and_observers_hold() {
    let mut pair = Pair::new();
    pair.run("ACL SETUSER other on nopass ~k* &* +@all -del");
    pair.run("CONFIG SET notify-keyspace-events KEA");
    pair.run("HELLO 3 AUTH other x");
    pair.run("SUBSCRIBE __keyevent@0__:set __keyevent@0__:del");
    for (source, text) in [
        ("return redis.call('del', KEYS[1])", "ACL failure in script"),
        ("return redis.call('set', 'other', 1)", "ACL failure in script"),
        ("redis.call('set', KEYS[1], 1) return redis.call('getdel', KEYS[1])", ">3\r\n$7\r\nmessage\r\n"),
    ] {
        let reply = pair.eval(source, &["k1"], &[]);
        assert!(reply.contains(text), "{source}: {reply}");
    }
    pair.run("AUTH default x");
    pair.run("EVAL_RO x 0");
    assert!(pair.run("CONFIG SET maxmemory 1").contains("OK"));
    assert!(pair.eval("return redis.call('set', KEYS[1], 1)", &["k1"], &[]).contains("OOM"));
    assert!(pair.eval("#!lua\nreturn redis.call('set', KEYS[1], 1)", &["k1"], &[]).contains("OOM"));
    pair.run("CONFIG SET maxmemory 0");
    let source = "return redis.call('set', KEYS[1], 1)";
    let reply = pair.args(&[b"EVAL_RO", source.as_bytes(), b"1", b"k1"]);
    assert!(reply.starts_with(b"-ERR Write commands are not allowed"));
    pair.run("MULTI");
    pair.eval(source, &["k1"], &[]);
    pair.eval("return redis.call('get', KEYS[1]) == '1'", &["k1"], &[]);
    pair.run("EXEC");
    pair.compare();
}

#[test]
fn long_replies_are_those_of_lua() {
    let mut pair = Pair::new();
    let long = vec![b'x'; 3 << 20];
    pair.args(&[b"SET", b"k", &long]);
    assert!(pair.run("CONFIG SET script-memory-limit 1mb").contains("OK"));
    let many = "redis.call('get', 'k') if redis.call('get', 'k') == ARGV[1] then return 1 end ".repeat(60);
    let locals: String = (0..50).map(|n| format!("local l{n} = redis.call('get', 'k') ")).collect();
    for (source, reply) in [
        ("local a = redis.call('get', 'k') local b = redis.call('get', 'k') return a == b", ":1\r\n"),
        (&format!("{many} return 2"), ":2\r\n"),
        (
            &format!("{locals} redis.call('append', 'l', l49) redis.call('append', 'l', 'y') return redis.call('strlen', 'l')"),
            ":3145729\r\n",
        ),
        (
            "local a = redis.call('get', 'k') local b = redis.call('get', 'l') if a == b then return 1 end return redis.call('strlen', 'k')",
            ":3145728\r\n",
        ),
        (
            "local a = redis.call('get', 'l') redis.call('set', 'm', a) local b = redis.call('getdel', 'm') return a == b",
            ":1\r\n",
        ),
    ] {
        assert!(is_planned(source), "{source}");
        assert_eq!(pair.eval(source, &[], &["a"]), reply, "{source}");
    }
    let inner = "local a = redis.call('get', 'k') if a then local b = redis.call('get', 'l') end \
        local c = redis.call('get', 'l') if c == a then return 1 end return redis.call('strlen', 'l')";
    assert!(is_planned(inner));
    assert_eq!(pair.eval(inner, &[], &[]), ":3145729\r\n");
    assert!(pair.eval("return redis.call('getdel', 'k')", &[], &[]).len() > long.len());
    pair.compare();
}

#[test]
fn short_replies_are_those_of_lua_when_their_memory_is_full() {
    let mut pair = Pair::new();
    let value = vec![b'v'; 300];
    pair.args(&[b"SET", b"k", &value]);
    let locals: String = (0..8).map(|n| format!("local l{n} = redis.call('get', 'k') ")).collect();
    let answer = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let value = String::from_utf8(value).unwrap();
    for (source, reply) in [
        (format!("{locals} return l0"), answer(&value)),
        (format!("{locals} return l7"), answer(&value)),
        (format!("{locals} if l0 == l7 and l7 == l6 and l6 ~= 'v' then return 1 end"), ":1\r\n".to_owned()),
        (format!("{locals} redis.call('append', 'k2', l7) return redis.call('append', 'k2', l1)"), ":600\r\n".to_owned()),
        // At the end the memory for short replies has no room for an OK.
        (format!("{locals} {} return redis.call('set', 's', 1)", "redis.call('set', 's', l7) ".repeat(70)), "+OK\r\n".to_owned()),
        (
            format!(
                "{locals} {} local a = redis.call('set', 's', 1) local b = redis.call('set', 's', 2) \
                 if a == a and a ~= b and a ~= 'OK' then return a end",
                "redis.call('type', 's') ".repeat(70)
            ),
            "+OK\r\n".to_owned(),
        ),
        (
            format!(
                "{locals} if l3 then local a = redis.call('getset', 'k', 'w') if a ~= l7 then return 1 end end return redis.call('get', 'k')"
            ),
            answer("w"),
        ),
    ] {
        assert!(is_planned(&source), "{source}");
        assert_eq!(pair.eval(&source, &[], &[]), reply, "{source}");
    }
    pair.compare();
}

/// The first line of a script that declares no flags. The server looks for a plan behind it.
const PLAIN_HEAD: &str = "#!lua\n";

/// Scripts that can have plans.
fn script() -> impl Strategy<Value = String> {
    (statements(3, 0), prop_oneof![Just(String::new()), Just(PLAIN_HEAD.to_owned()), Just("#!lua flags=no-writes\n".to_owned())])
        .prop_map(|(body, head)| head + &body)
}

fn blank() -> impl Strategy<Value = &'static str> {
    prop_oneof![8 => Just(" "), 1 => Just("\n"), 1 => Just(" -- why\n"), 1 => Just("\r\n\t")]
}

/// Statements in a place where the locals `l0`, `l1` and so on are visible, `locals` of them.
fn statements(depth: u32, locals: usize) -> BoxedStrategy<String> {
    let end = prop_oneof![
        3 => Just(String::new()),
        2 => value(2, locals).prop_map(|value| format!("return {value}")),
        1 => Just("return;".to_owned()),
    ];
    if depth == 0 {
        return end.boxed();
    }
    let more = prop_oneof![
        3 => (value(2, locals), blank(), statements(depth - 1, locals + 1))
            .prop_map(move |(value, blank, rest)| format!("local l{locals} ={blank}{value};{rest}")),
        3 => (call(locals), blank(), statements(depth - 1, locals)).prop_map(|(call, blank, rest)| format!("{call}{blank}{rest}")),
        3 => (value(2, locals), blank(), statements(depth - 1, locals), statements(depth - 1, locals), statements(depth - 1, locals))
            .prop_map(|(value, blank, a, b, rest)| format!("if {value}{blank}then {a} else {b} end {rest}")),
        1 => (value(1, locals), value(1, locals), statements(depth - 1, locals), statements(depth - 1, locals))
            .prop_map(|(value, other, a, b)| format!("if {value} then {a} elseif {other} then {b} end")),
    ];
    prop_oneof![1 => end, 4 => more].boxed()
}

fn simple(locals: usize) -> BoxedStrategy<String> {
    let any = prop_oneof![
        Just("KEYS[1]".to_owned()),
        Just("KEYS[2]".to_owned()),
        Just("ARGV[1]".to_owned()),
        Just("ARGV[2]".to_owned()),
        Just("ARGV[4]".to_owned()),
        Just("'a'".to_owned()),
        Just("\"5\"".to_owned()),
        Just("''".to_owned()),
        Just("1".to_owned()),
        Just("-2".to_owned()),
        Just("1.25".to_owned()),
        Just("100000000000000000000".to_owned()),
    ];
    if locals == 0 { any.boxed() } else { prop_oneof![2 => any, 1 => (0..locals).prop_map(|n| format!("l{n}"))].boxed() }
}

fn value(depth: u32, locals: usize) -> BoxedStrategy<String> {
    let leaf = prop_oneof![
        2 => simple(locals),
        1 => prop_oneof![Just("nil".to_owned()), Just("true".to_owned()), Just("false".to_owned())],
        3 => call(locals),
    ];
    if depth == 0 {
        return leaf.boxed();
    }
    let inner = move || value(depth - 1, locals);
    prop_oneof![
        4 => leaf,
        1 => inner().prop_map(|value| format!("not {value}")),
        1 => inner().prop_map(|value| format!("({value})")),
        2 => (inner(), prop_oneof![Just("=="), Just("~="), Just("and"), Just("or")], blank(), inner())
            .prop_map(|(a, op, blank, b)| format!("({a} {op}{blank}{b})")),
        1 => (inner(), prop_oneof![Just("and"), Just("or"), Just("==")], inner()).prop_map(|(a, op, b)| format!("{a} {op} {b}")),
        1 => (number(), prop_oneof![Just("<"), Just("<="), Just(">"), Just(">=")], number())
            .prop_map(|(a, op, b)| format!("({a} {op} {b})")),
    ]
    .boxed()
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("1".to_owned()),
        Just("0".to_owned()),
        Just("redis.call('incr', KEYS[2])".to_owned()),
        Just("redis.call('pttl', KEYS[1])".to_owned()),
        Just("redis.call('hincrby', 'h', ARGV[1], 1)".to_owned()),
    ]
}

/// Calls of commands that plans may call, some with wrong arguments.
fn call(locals: usize) -> BoxedStrategy<String> {
    const ONE: [&str; 22] = [
        "get",
        "del",
        "exists",
        "pttl",
        "incr",
        "type",
        "strlen",
        "GETDEL",
        "persist",
        "llen",
        "lpop",
        "hlen",
        "scard",
        "zcard",
        "decr",
        "ttl",
        "unlink",
        "echo",
        "expiretime",
        "xlen",
        "spop",
        "pfcount",
    ];
    const TWO: [&str; 26] = [
        "set",
        "setnx",
        "getset",
        "append",
        "incrby",
        "pexpire",
        "hexists",
        "hget",
        "hdel",
        "lpush",
        "rpush",
        "sadd",
        "srem",
        "sismember",
        "zscore",
        "publish",
        "expire",
        "rename",
        "renamenx",
        "copy",
        "incrbyfloat",
        "lindex",
        "zrem",
        "touch",
        "rpoplpush",
        "pfadd",
    ];
    const THREE: [&str; 16] = [
        "hset",
        "hincrby",
        "psetex",
        "setex",
        "lrem",
        "zadd",
        "zincrby",
        "hsetnx",
        "set",
        "getrange",
        "setrange",
        "hincrbyfloat",
        "ltrim",
        "lset",
        "zcount",
        "pexpire",
    ];
    let argument = || prop_oneof![4 => simple(locals), 1 => Just("'NX'".to_owned()), 1 => Just("'h'".to_owned())];
    let quoted = |names: &'static [&'static str]| prop::sample::select(names);
    prop_oneof![
        (quoted(&ONE), argument()).prop_map(|(name, a)| format!("redis.call('{name}', {a})")),
        (quoted(&TWO), argument(), blank(), argument())
            .prop_map(|(name, a, blank, b)| format!("redis.call('{name}',{blank}{a}, {b})")),
        (quoted(&THREE), argument(), argument(), argument())
            .prop_map(|(name, a, b, c)| format!("redis.call('{name}', {a}, {b}, {c})")),
        (argument(), argument()).prop_map(|(a, b)| format!("redis.call('set', {a}, {b}, 'NX', 'PX', 30000)")),
    ]
    .boxed()
}

/// Whether any one list of scripts contains a planned script is a matter of luck. Of all the scripts of a run, two thirds have a plan, and
/// a third have one that runs to its end; the limits are fifteen standard deviations below.
#[test]
fn behaves_like_lua() {
    let config = ProptestConfig { cases: 400, source_file: Some(file!()), ..ProptestConfig::default() };
    let (all, planned, ended) = (Cell::new(0u32), Cell::new(0u32), Cell::new(0u32));
    let count = |of: &Cell<u32>, is_counted: bool| of.set(of.get() + u32::from(is_counted));
    let run = TestRunner::new(config).run(&prop::collection::vec(script(), 1..20), |scripts| {
        let mut pair = Pair::new();
        for source in &scripts {
            let is_planned = is_planned(source.strip_prefix(PLAIN_HEAD).unwrap_or(source));
            let reply = pair.eval(source, &["k", "l"], &["a", "5", "k"]);
            count(&all, true);
            count(&planned, is_planned);
            count(&ended, is_planned && !reply.starts_with('-'));
        }
        pair.compare();
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
    let (all, planned, ended) = (all.get(), planned.get(), ended.get());
    assert!(
        all > 1000 && planned > all / 2 && ended > all / 5,
        "of {all} scripts {planned} have plans, of which {ended} run to their end"
    );
}
