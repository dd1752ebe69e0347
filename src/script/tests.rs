//! Recorded replies of Redis, and replies of scripts in general.

use crate::engine::harness::Harness;

/// Replies of redis-server to scripts. `tests/scripts` compares them with a live server.
const CASES: [(&str, &str); 5] = [
    ("cases.txt", include_str!("cases.txt")),
    ("cases-api.txt", include_str!("cases-api.txt")),
    ("cases-sandbox.txt", include_str!("cases-sandbox.txt")),
    ("cases-language.txt", include_str!("cases-language.txt")),
    ("cases-libraries.txt", include_str!("cases-libraries.txt")),
];

/// Decodes the escapes of `cases.txt`.
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
    let mut wrong = Vec::new();
    let mut count = 0;
    for (file, cases) in CASES {
        let mut harness = Harness::new();
        if resp3 {
            harness.args(&[b"HELLO", b"3"]);
        }
        for line in cases.lines().filter(|line| !line.starts_with("# ")) {
            let fields: Vec<_> = line.split('\t').map(unescape).collect();
            let expected = if resp3 { fields.last().unwrap() } else { &fields[1] };
            let reply = harness.args(&[b"EVAL", &fields[0], b"2", b"k1", b"k2", b"a1", b"a2", b"a3"]);
            if reply != *expected {
                let script = line.split('\t').next().unwrap();
                let [expected, reply] = [expected, &reply].map(|reply| reply.escape_ascii());
                wrong.push(format!("{file}: {script}\n  expected {expected}\n  got      {reply}"));
            }
            count += 1;
        }
        harness.engine.lua().scripts.check_invariants();
    }
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

#[test]
fn replies_to_requests_are_those_of_redis() {
    for resp3 in [false, true] {
        check_requests(include_str!("cases-requests.txt"), resp3);
    }
}

/// Sends recorded requests. `>` begins a request, `2` its reply in RESP2, and `3` its reply in RESP3 if that differs.
#[track_caller]
pub(super) fn check_requests(cases: &str, resp3: bool) {
    let mut harness = Harness::new();
    let (mut title, mut request, mut replies) = ("", None, Vec::new());
    let (mut count, mut wrong) = (0, Vec::new());
    for line in cases.lines().chain(["##"]) {
        let (mark, text) = line.split_at(line.find(' ').map_or(line.len(), |blank| blank + 1));
        if mark == "2 " || mark == "3 " {
            replies.push(unescape(text));
            continue;
        }
        if let Some(text) = request.take() {
            let args: Vec<Vec<u8>> = str::split(text, '\t').map(unescape).collect();
            let reply = harness.args(&args.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let expected = if resp3 { replies.last() } else { replies.first() }.unwrap();
            if reply != *expected {
                let shown = [text, &expected.escape_ascii().to_string(), &reply.escape_ascii().to_string()].join("\n  ");
                wrong.push(format!("{title}: {shown}"));
            }
            harness.engine.check_invariants();
            count += 1;
        }
        replies.clear();
        match mark.trim_end() {
            ">" => request = Some(text),
            "##" => {
                title = text;
                harness = Harness::new();
                harness.engine.environment_mut().usage =
                    Some(|| crate::engine::environment::Usage { allocated: 900_000, ..Default::default() });
                if resp3 {
                    harness.args(&[b"HELLO", b"3"]);
                }
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{} of {count} replies differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 150, "only {count} cases were found");
}

/// A harness that takes and returns text.
pub(super) struct Scripted(pub Harness);

impl Scripted {
    pub fn new() -> Self {
        Scripted(Harness::new())
    }

    /// The reply to a request.
    pub fn send(&mut self, args: &[&str]) -> String {
        let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
        let reply = String::from_utf8_lossy(&self.0.args(&args)).into_owned();
        self.0.engine.check_invariants();
        reply
    }

    pub fn eval(&mut self, script: &str) -> String {
        self.send(&["EVAL", script, "0"])
    }
}

#[test]
fn invalid_requests_are_refused() {
    let mut server = Scripted::new();
    for (request, reply) in [
        (&["EVAL", "return 1", "x"][..], "-ERR value is not an integer or out of range\r\n"),
        (&["EVAL", "return 1", "-1"], "-ERR Number of keys can't be negative\r\n"),
        (&["EVAL", "return 1", "1"], "-ERR Number of keys can't be greater than number of args\r\n"),
        (&["EVAL", "return 1", "9223372036854775807", "k"], "-ERR Number of keys can't be greater than number of args\r\n"),
        (&["EVAL", "return 1"], "-ERR wrong number of arguments for 'eval' command\r\n"),
        (&["EVAL", "return 1 1", "2", "k"], "-ERR Number of keys can't be greater than number of args\r\n"),
        (
            &["SCRIPT", "LOAD", "return if"],
            "-ERR Error compiling script (new function): user_script:1: unexpected symbol near 'if'\r\n",
        ),
        (&["SCRIPT", "KILL"], "-NOTBUSY No scripts in execution right now.\r\n"),
        (&["SCRIPT", "DEBUG", "no"], "+OK\r\n"),
        (&["SCRIPT", "DEBUG", "maybe"], "-ERR Use SCRIPT DEBUG YES/SYNC/NO\r\n"),
    ] {
        assert_eq!(server.send(request), reply, "{request:?}");
    }
    assert!(server.0.engine.lua().scripts.len() == 0);
}

#[test]
fn read_only_runs_refuse_writes() {
    let mut server = Scripted::new();
    let refused = "-ERR Write commands are not allowed from read-only scripts. script: ";
    assert!(server.send(&["EVAL_RO", "return redis.call('set','k','v')", "0"]).starts_with(refused));
    assert_eq!(
        server.send(&["EVAL_RO", "#!lua\nreturn 1", "0"]),
        "-ERR Can not execute a script with write flag using *_ro command.\r\n"
    );
    assert_eq!(server.send(&["EVAL_RO", "#!lua flags=no-writes\nreturn 1", "0"]), ":1\r\n");
    assert_eq!(server.send(&["EVAL_RO", "return redis.call('get','k')", "0"]), "$-1\r\n");
    assert_eq!(server.eval("return redis.call('set','k','v')"), "+OK\r\n");
    assert_eq!(server.send(&["EVAL_RO", "return redis.call('get','k')", "0"]), "$1\r\nv\r\n");
}

#[test]
fn a_select_ends_with_its_script() {
    let mut server = Scripted::new();
    assert_eq!(
        server.eval("redis.call('select', 3) redis.call('set', 'k', 'three') return redis.call('get', 'k')"),
        "$5\r\nthree\r\n"
    );
    assert_eq!(server.send(&["GET", "k"]), "$-1\r\n");
    assert_eq!(server.eval("return redis.call('get', 'k')"), "$-1\r\n");
}

#[test]
fn replies_are_nested_as_deep_as_the_stack_goes() {
    let mut server = Scripted::new();
    let reply = server.eval("local t = {} t[1] = t return t");
    let depth = reply.matches("*1\r\n").count();
    assert_eq!(depth, 7995);
    assert!(reply.ends_with("*1\r\n-ERR reached lua stack limit\r\n"));
    let reply = server.eval("local t = {} t.map = {[1] = t} return t");
    assert!(reply.ends_with("-ERR reached lua stack limit\r\n"), "{}", &reply[reply.len() - 100..]);
    assert_eq!(
        server.eval("local t = 'x' for i = 1, 1000 do t = {t} end return t"),
        format!("{}$1\r\nx\r\n", "*1\r\n".repeat(1000))
    );
}

#[test]
fn endless_results_are_refused() {
    let mut server = Scripted::new();
    let refusal = "-ERR script result is too large\r\n";
    for script in [
        "local t = {} t[1] = t t[2] = t return t",
        "local t = {} for i = 1, 1e5 do t[i] = t end return t",
        "local t = 1 for i = 1, 40 do t = {t, t} end return t",
        "redis.setresp(3) local t = {} t.map = {a = t, b = t} return t",
        "local s, t = ('x'):rep(2e6), {} for i = 1, 1000 do t[i] = s end return t",
    ] {
        assert_eq!(server.eval(script), refusal, "{script}");
        assert_eq!(server.eval("return {1, {2}}"), "*2\r\n:1\r\n*1\r\n:2\r\n");
    }
}

#[test]
fn fields_decide_the_reply_wherever_a_table_keeps_its_elements() {
    let mut server = Scripted::new();
    for (script, reply) in [
        ("return {[1] = 'x', err = 'MY e'}", "-MY e\r\n"),
        ("return {[1] = 'a', [2] = 'b', [3] = 'c', ok = 'fine'}", "+fine\r\n"),
        ("return {'a', 'b', ok = 'fine'}", "+fine\r\n"),
        ("local t = {} for i = 1, 40 do t[i] = i end t.ok = 'fine' return t", "+fine\r\n"),
        ("return {'a', 'b', other = 'x'}", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        ("return {'a', nil, 'c', ok = 'fine'}", "+fine\r\n"),
        ("return {[2] = 'a'}", "*0\r\n"),
    ] {
        assert_eq!(server.eval(script), reply, "{script}");
    }
}

#[test]
fn errors_are_counted_once() {
    let mut server = Scripted::new();
    let errors = |server: &Scripted| server.0.engine.stats().error_replies;
    for (script, count) in [
        ("return redis.call('nope')", 1),
        ("return redis.pcall('nope')", 1),
        ("return redis.call('hget', 's')", 1),
        ("redis.call('set', 's', 'v') return redis.call('hget', 's', 'f')", 1),
        ("redis.pcall('nope') return redis.call('nope')", 2),
        ("error('x')", 1),
        ("return redis.error_reply('MY x')", 1),
        ("return {err = 'MY x'}", 1),
        ("pcall(error, 'x') return 1", 0),
        ("return if", 1),
    ] {
        let before = errors(&server);
        server.eval(script);
        assert_eq!(errors(&server) - before, count, "{script}");
    }
}

#[test]
fn a_lock_is_released_by_its_holder_only() {
    let mut server = Scripted::new();
    let release = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
    assert_eq!(server.send(&["SET", "lock", "me"]), "+OK\r\n");
    assert_eq!(server.send(&["EVAL", release, "1", "lock", "other"]), ":0\r\n");
    assert_eq!(server.send(&["EVAL", release, "1", "lock", "me"]), ":1\r\n");
    assert_eq!(server.send(&["EVAL", release, "1", "lock", "me"]), ":0\r\n");
}

#[test]
fn exceeded_maxmemory_stops_scripts_only_before_their_first_write() {
    let mut server = Scripted::new();
    server.0.engine.environment_mut().usage =
        Some(|| crate::engine::environment::Usage { allocated: 900_000, ..crate::engine::environment::Usage::default() });
    assert_eq!(server.send(&["SET", "k", "v"]), "+OK\r\n");
    assert_eq!(server.send(&["CONFIG", "SET", "maxmemory", "1"]), "+OK\r\n");
    let refused = "-OOM command not allowed when used memory > 'maxmemory'.";
    assert!(server.eval("return redis.call('set', 'k', 'w')").starts_with(refused));
    assert_eq!(server.eval("return redis.pcall('set', 'k', 'w')"), format!("{refused}\r\n"));
    for (script, reply) in [
        ("return redis.call('get', 'k')", "$1\r\nv\r\n"),
        ("redis.call('del', 'x') return redis.call('set', 'k', 'w')", "+OK\r\n"),
        ("#!lua\nreturn 1", "-OOM command not allowed when used memory > 'maxmemory'.\r\n"),
        ("#!lua flags=no-writes\nreturn 1", ":1\r\n"),
        ("#!lua flags=allow-oom\nreturn redis.call('set', 'k', 'x')", "+OK\r\n"),
    ] {
        assert_eq!(server.eval(script), reply, "{script}");
    }
}
