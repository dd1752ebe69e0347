//! Scripts by their replies.

use crate::engine::harness::Harness;
use crate::script::{EVALUATED_MAX, sha1_hex};

/// Replies of redis-server to scripts, which `tests/scripts` holds against a live one.
const CASES: [(&str, &str); 5] = [
    ("cases.txt", include_str!("cases.txt")),
    ("cases-api.txt", include_str!("cases-api.txt")),
    ("cases-sandbox.txt", include_str!("cases-sandbox.txt")),
    ("cases-language.txt", include_str!("cases-language.txt")),
    ("cases-libraries.txt", include_str!("cases-libraries.txt")),
];

/// Undoes the escapes of `cases.txt`.
pub(super) fn unescape(text: &str) -> Vec<u8> {
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
fn requests_are_answered_as_redis_answers_them() {
    for resp3 in [false, true] {
        check_requests(include_str!("cases-requests.txt"), resp3);
    }
}

/// Sends recorded requests: `>` begins one, `2` its reply, and `3` that over RESP3 where it is another one.
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
                harness.engine.environment.usage =
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

/// A harness with text for scripts.
struct Scripted(Harness);

impl Scripted {
    fn new() -> Self {
        Scripted(Harness::new())
    }

    /// The reply to a request whose words may have blanks in them.
    fn send(&mut self, args: &[&str]) -> String {
        let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
        let reply = String::from_utf8_lossy(&self.0.args(&args)).into_owned();
        self.0.engine.check_invariants();
        reply
    }

    fn eval(&mut self, script: &str) -> String {
        self.send(&["EVAL", script, "0"])
    }
}

#[test]
fn a_script_is_found_by_its_sha_once_it_was_evaluated_or_loaded() {
    let mut server = Scripted::new();
    let sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    assert_eq!(server.send(&["EVALSHA", sha, "0"]), "-NOSCRIPT No matching script. Please use EVAL.\r\n");
    assert_eq!(server.send(&["EVALSHA", "short", "-1"]), "-NOSCRIPT No matching script. Please use EVAL.\r\n");
    assert_eq!(server.send(&["SCRIPT", "EXISTS", sha, "x"]), "*2\r\n:0\r\n:0\r\n");
    assert_eq!(server.eval("return 1"), ":1\r\n");
    assert_eq!(server.send(&["EVALSHA", sha, "0"]), ":1\r\n");
    assert_eq!(server.send(&["EVALSHA", &sha.to_uppercase(), "0"]), ":1\r\n");
    assert_eq!(server.send(&["SCRIPT", "EXISTS", sha, &sha.to_uppercase(), "x"]), "*3\r\n:1\r\n:1\r\n:0\r\n");
    assert_eq!(server.send(&["SCRIPT", "FLUSH"]), "+OK\r\n");
    assert_eq!(server.send(&["EVALSHA", sha, "0"]), "-NOSCRIPT No matching script. Please use EVAL.\r\n");
    assert_eq!(server.send(&["SCRIPT", "LOAD", "return 1"]), format!("$40\r\n{sha}\r\n"));
    assert_eq!(server.send(&["EVALSHA_RO", sha, "0"]), ":1\r\n");
    assert_eq!(server.send(&["SCRIPT", "SHOW", sha]), "$8\r\nreturn 1\r\n");
    assert_eq!(server.send(&["SCRIPT", "SHOW", "short"]), "-NOSCRIPT No matching script. Please use EVAL.\r\n");
    assert_eq!(server.send(&["SCRIPT", "FLUSH", "async"]), "+OK\r\n");
    assert_eq!(server.send(&["SCRIPT", "FLUSH", "SYNC"]), "+OK\r\n");
    assert_eq!(server.send(&["SCRIPT", "FLUSH", "SYNC", "x"]), "-ERR SCRIPT FLUSH only support SYNC|ASYNC option\r\n");
    assert_eq!(server.send(&["SCRIPT", "FLUSH", "later"]), "-ERR SCRIPT FLUSH only support SYNC|ASYNC option\r\n");
}

#[test]
fn requests_that_make_no_sense_are_refused() {
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
fn read_only_runs_refuse_what_writes() {
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
fn evaluated_scripts_make_place_for_newer_ones_and_loaded_ones_stay() {
    let mut server = Scripted::new();
    let loaded = server.send(&["SCRIPT", "LOAD", "return 'loaded'"])[5..45].to_owned();
    let mut shas = Vec::new();
    for n in 0..EVALUATED_MAX {
        server.eval(&format!("return {n}"));
        shas.push(String::from_utf8(sha1_hex(format!("return {n}").as_bytes()).to_vec()).unwrap());
    }
    let cached = |server: &mut Scripted, sha: &str| server.send(&["SCRIPT", "EXISTS", sha]) == "*1\r\n:1\r\n";
    assert!(shas.iter().all(|sha| cached(&mut server, sha)));
    // The first is used again, the second is loaded: the third is the one to go.
    server.send(&["EVALSHA", &shas[0], "0"]);
    server.send(&["SCRIPT", "LOAD", "return 1"]);
    server.eval("return 'one more'");
    server.eval("return 'and another'");
    assert!(cached(&mut server, &shas[0]) && cached(&mut server, &shas[1]) && cached(&mut server, &loaded));
    assert!(!cached(&mut server, &shas[2]) && cached(&mut server, &shas[3]));
    assert_eq!(server.0.engine.lua().scripts.evicted, 1);
    assert_eq!(server.0.engine.lua().scripts.len(), EVALUATED_MAX + 2);
    // The registry gives its places to others.
    for n in 0..2000 {
        assert_eq!(server.eval(&format!("return -{n}")), format!(":{}\r\n", -n));
    }
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
fn nothing_of_a_script_is_left_for_the_next() {
    let mut server = Scripted::new();
    for (script, reply) in [
        ("KEYS.x = 1 return KEYS.x", ":1\r\n"),
        ("return KEYS.x", "$-1\r\n"),
        ("redis.setresp(3) return redis.call('get', 'nothing') == nil", "#t\r\n"),
        ("return redis.call('get', 'nothing') == false", ":1\r\n"),
        ("pcall(rawset, redis, 'call', 1) pcall(rawset, _G, 'x', 1) return rawget(_G, 'x')", "$-1\r\n"),
        ("pcall(table.insert, string, 1) return #string", ":0\r\n"),
        (
            "for _, t in pairs({_G, redis, server, string, table, math, os, coroutine}) do pcall(function() t.call = 1 end) end return type(redis.call)",
            "$8\r\nfunction\r\n",
        ),
        ("pcall(setmetatable, string, {__index = 1}) return type(string.len)", "$8\r\nfunction\r\n"),
        ("local m = getmetatable('') pcall(function() m.__index = nil end) return ('x'):upper()", "$1\r\nX\r\n"),
        ("pcall(function() getmetatable('').__index.upper = nil end) return ('x'):upper()", "$1\r\nX\r\n"),
        (
            "for k, v in pairs(_G) do if type(v) == 'table' then pcall(function() v.leak = 1 end) end end return rawget(redis, 'leak')",
            "$-1\r\n",
        ),
        ("local _, real = next({_G}) pcall(function() real.leak = 1 end) return rawget(_G, 'leak')", "$-1\r\n"),
        ("return _G._G == _G and _G.string == string and getmetatable(string) == nil", ":1\r\n"),
        ("collectgarbage('stop') collectgarbage('setpause', 1e6) return 1", ":1\r\n"),
    ] {
        let reply = if script.contains("setresp(3)") && reply == "#t\r\n" { ":1\r\n" } else { reply };
        assert_eq!(server.eval(script), reply, "{script}");
    }
}

#[test]
fn random_numbers_go_on_from_script_to_script() {
    let mut server = Scripted::new();
    for (script, reply) in [
        ("return tostring(math.random())", "$16\r\n0.39646477363839\r\n"),
        ("return tostring(math.random())", "$16\r\n0.84048536971234\r\n"),
        ("math.randomseed(5) return tostring(math.random())", "$16\r\n0.52483957937213\r\n"),
        ("return tostring(math.random())", "$16\r\n0.27285430173988\r\n"),
        ("math.randomseed(0) return tostring(math.random())", "$16\r\n0.17082803611217\r\n"),
    ] {
        assert_eq!(server.eval(script), reply, "{script}");
    }
}

#[test]
fn keys_and_arguments_are_globals_where_a_script_looks_for_them_there() {
    let mut server = Scripted::new();
    for (script, reply) in [
        ("return _G.KEYS[1] .. _G['ARGV'][1]", "$2\r\nka\r\n"),
        ("return loadstring('return KEYS[1] .. ARGV[1]')()", "$2\r\nka\r\n"),
        ("local n = select('#', ...) return KEYS[1] .. n", "$2\r\nk0\r\n"),
        ("local f = function(...) return KEYS[1] .. ... end return f(ARGV[1])", "$2\r\nka\r\n"),
    ] {
        assert_eq!(server.send(&["EVAL", script, "1", "k", "a"]), reply, "{script}");
    }
    // As many locals as Lua takes, and so no place for two more.
    let locals: Vec<String> = (0..200).map(|n| format!("l{n}")).collect();
    let script = format!("local {} = KEYS[1] return l0 .. ARGV[1]", locals.join(","));
    assert_eq!(server.send(&["EVAL", &script, "1", "k", "a"]), "$2\r\nka\r\n");
}

#[test]
fn what_would_break_the_interpreter_ends_in_an_error_and_the_next_script_runs() {
    let mut server = Scripted::new();
    for (script, text) in [
        ("local function f() return 1 + f() end return f()", "stack overflow"),
        (
            "local t = {} for i = 1, 200 do t = {t} end local s = '' while true do s = s .. ('x'):rep(1e7) end",
            "not enough memory",
        ),
        ("return ('x'):rep(2e9)", "not enough memory"),
        ("local t = {} while true do t[#t + 1] = ('x'):rep(1e6) .. #t end", "not enough memory"),
        ("return redis.call(unpack({}, 1, 1e8))", "too many results to unpack"),
        ("error(setmetatable({}, {__index = function() error('again') end}))", "user_script:1: again"),
        ("error(setmetatable({}, {__index = function(t) error(t) end}))", "C stack overflow"),
        ("error({})", "unknown error"),
        ("error(redis)", "readonly table"),
        ("coroutine.yield()", "attempt to yield"),
    ] {
        let reply = server.eval(script);
        assert!(reply.starts_with("-ERR") && reply.contains(text), "{script}: {}", &reply[..reply.len().min(300)]);
        assert_eq!(server.eval("return redis.call('incr', 'n') > 0"), ":1\r\n");
    }
    assert!(server.0.engine.lua().scripts.interpreter_bytes() < 32 << 20);
}

#[test]
fn what_libraries_write_is_bounded_by_the_memory_of_scripts() {
    let mut server = Scripted::new();
    for script in [
        "local t = {('x'):rep(1e5)} for i = 1, 40 do t = {t, t} end return #cjson.encode(t)",
        "return #cjson.encode(('\\1'):rep(12e6))",
        "local t = ('x'):rep(1e5) for i = 1, 15 do local u = {} for n = 1, 10 do u[n] = t end t = u end return #cmsgpack.pack(t)",
        "local s = ('x'):rep(1e7) return #struct.pack(('s'):rep(9), s, s, s, s, s, s, s, s, s)",
        "return cmsgpack.unpack('\\221\\255\\255\\255\\255' .. ('\\128'):rep(12e5))",
    ] {
        let reply = server.eval(script);
        assert!(reply.starts_with("-ERR") && reply.contains("not enough memory"), "{script}: {reply}");
        assert_eq!(server.eval("return cjson.encode({1, cmsgpack.unpack('\\2')})"), "$5\r\n[1,2]\r\n");
    }
    assert!(server.0.engine.lua().scripts.interpreter_bytes() < 32 << 20);
}

#[test]
fn the_memory_of_scripts_is_a_matter_of_configuration() {
    let mut server = Scripted::new();
    let script = "return #('x'):rep(3e6)";
    assert_eq!(server.eval(script), ":3000000\r\n");
    assert_eq!(server.send(&["CONFIG", "SET", "script-memory-limit", "2mb"]), "+OK\r\n");
    for flush in [false, true] {
        let reply = server.eval(script);
        assert!(reply.starts_with("-ERR") && reply.contains("not enough memory"), "{reply}");
        let library = "#!lua name=x\nredis.register_function('f', function() return #('x'):rep(3e6) end)";
        assert_eq!(server.send(&["FUNCTION", "LOAD", "REPLACE", library]), "$1\r\nx\r\n");
        assert!(server.send(&["FCALL", "f", "0"]).contains("not enough memory"));
        if !flush {
            assert_eq!(server.send(&["SCRIPT", "FLUSH"]), "+OK\r\n");
            assert_eq!(server.send(&["FUNCTION", "FLUSH"]), "+OK\r\n");
        }
    }
    assert_eq!(server.send(&["CONFIG", "SET", "script-memory-limit", "1000"]).get(..4), Some("-ERR"));
    assert_eq!(server.send(&["CONFIG", "SET", "script-memory-limit", "16mb"]), "+OK\r\n");
    assert_eq!(server.eval(script), ":3000000\r\n");
    assert_eq!(server.send(&["FCALL", "f", "0"]), ":3000000\r\n");
}

#[test]
fn garbage_of_a_script_leaves_the_next_one_three_quarters_of_the_memory() {
    let mut server = Scripted::new();
    assert_eq!(server.send(&["CONFIG", "SET", "script-memory-limit", "8mb"]), "+OK\r\n");
    // Much that is kept, as it belongs to a script; what has gone over a quarter of the limit is collected.
    let large = format!("return #'{}'", "x".repeat(1_000_000));
    assert_eq!(server.eval(&large), ":1000000\r\n");
    // A string is made in a buffer, and copied.
    assert_eq!(server.eval("return #('x'):rep(25e5)"), ":2500000\r\n");
    let kept = server.0.engine.lua().scripts.interpreter_bytes();
    assert!((1_000_000..3_000_000).contains(&kept), "{kept}");
    let free = ((8 << 20) / 4 * 3 - kept) / 2 - 100_000;
    for garbage in [kept / 2, 900_000, kept / 2 + 900_000] {
        assert_eq!(server.eval(&format!("return #('x'):rep({garbage})")), format!(":{garbage}\r\n"));
        assert_eq!(server.eval(&format!("return #('x'):rep({free})")), format!(":{free}\r\n"));
    }
}

#[test]
fn settings_of_json_outlast_a_script_but_not_a_flush() {
    let mut server = Scripted::new();
    assert_eq!(server.eval("return cjson.encode_max_depth(5)"), ":5\r\n");
    assert_eq!(server.eval("return cjson.encode_max_depth()"), ":5\r\n");
    assert_eq!(server.send(&["SCRIPT", "FLUSH"]), "+OK\r\n");
    assert_eq!(server.eval("return cjson.encode_max_depth()"), ":1000\r\n");
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
fn results_without_end_are_refused_as_a_whole() {
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
fn what_a_script_left_as_garbage_is_no_loss_to_the_next() {
    let mut server = Scripted::new();
    for _ in 0..5 {
        assert_eq!(server.eval("local t = {} for i = 1, 45 do t[i] = ('x'):rep(1e6) .. i end return #t"), ":45\r\n");
    }
}

#[test]
fn fields_count_wherever_a_table_keeps_its_elements() {
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
    let errors = |server: &Scripted| server.0.engine.stats.error_replies;
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

/// What a script says that measures, in microseconds, how far `os.clock()` comes with this.
fn clocked(server: &mut Scripted, work: &str) -> i64 {
    let script = format!("local began = os.clock() {work} return (os.clock() - began) * 1e6");
    let reply = server.eval(&script);
    reply.trim_start_matches(':').trim_end().parse().unwrap_or_else(|_| panic!("{work}: {reply}"))
}

#[test]
fn the_clock_of_a_script_advances_by_the_work_that_it_does() {
    let mut server = Scripted::new();
    server.send(&["RPUSH", "l", "a", "b", "c"]);
    assert!(clocked(&mut server, "").abs() < 10);
    // A million instructions are 3 ms, and a call about as much as twenty of them, of whatever kind it is.
    for (work, least, most) in [
        ("for i = 1, 1e6 do end", 2_900, 3_100),
        ("for i = 1, 1e4 do redis.call('get', 'k') end", 600, 1_500),
        ("for i = 1, 1e4 do redis.call('lrange', 'l', 0, 2) end", 600, 2_700),
        ("for i = 1, 1e4 do redis.pcall('get', 'l') end", 600, 1_500),
        ("coroutine.wrap(function() for i = 1, 1e6 do end end)()", 2_900, 3_100),
    ] {
        let took = clocked(&mut server, work);
        assert!((least..=most).contains(&took), "{work}: {took}");
        assert_eq!(
            clocked(&mut Scripted::new(), "redis.call('rpush', 'l', 'a', 'b', 'c')"),
            clocked(&mut Scripted::new(), "redis.call('rpush', 'l', 'a', 'b', 'c')"),
            "it is the same again"
        );
    }
    // It never goes back, and TIME does not move.
    let steps = "local last = os.clock() for i = 1, 1e5 do local now = os.clock() if now <= last then return 0 end last = now end return 1";
    assert_eq!(server.eval(steps), ":1\r\n");
    let time =
        "local a = redis.call('time') for i = 1, 1e5 do end local b = redis.call('time') return a[1] == b[1] and a[2] == b[2]";
    assert_eq!(server.eval(time), ":1\r\n");
}

#[test]
fn a_script_that_waits_by_its_clock_ends() {
    let mut server = Scripted::new();
    let waits = "local began = os.clock() while os.clock() - began < 0.05 do end return 'done'";
    assert_eq!(server.eval(waits), "$4\r\ndone\r\n");
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
fn an_interpreter_that_was_left_in_the_middle_is_not_used_again() {
    let mut server = Scripted::new();
    server.eval("return 1");
    let engine: *mut _ = &raw mut server.0.engine;
    let interpreter = server.0.engine.lua().scripts.interpreter.unwrap();
    // SAFETY: what a panic in a handler would leave behind.
    unsafe { (*interpreter.as_ptr()).frame.engine = engine };
    assert_eq!(server.eval("return 2"), ":2\r\n");
    assert_eq!(server.0.engine.lua().scripts.len(), 1);
    // SAFETY: it was left behind whole, in truth.
    unsafe {
        (*interpreter.as_ptr()).frame.engine = std::ptr::null_mut();
        crate::script::interpreter::Interpreter::free(interpreter);
    }
}

#[test]
fn memory_that_is_used_up_stops_scripts_only_before_they_write() {
    let mut server = Scripted::new();
    server.0.engine.environment.usage =
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

#[test]
fn a_budget_of_steps_ends_scripts_at_the_same_step_each_time() {
    let mut h = Harness::new();
    h.engine.script_steps_max = Some(200_000);
    let script = "for i = 1, 1e9 do if i % 100 == 0 then pcall(redis.call, 'incr', 'n') end end";
    let count = |h: &mut Harness| {
        let reply = String::from_utf8_lossy(&h.args(&[b"EVAL", script.as_bytes(), b"0"])).into_owned();
        assert!(reply.starts_with("-ERR Script killed by user with SCRIPT KILL... script: "), "{reply}");
        h.engine.check_invariants();
        h.run("GETDEL n")
    };
    let first = count(&mut h);
    assert!(first.starts_with("$3 "), "{first}");
    assert_eq!(count(&mut h), first);
    // What is done within one call counts as well, and always the same.
    let busy = [
        "local t = {} for i = 1, 100 do t[i] = -i end while true do table.sort(t) redis.call('incr', 'n') end",
        "local t = {} for i = 1, 100 do t[i] = 'x' end while true do table.concat(t) redis.call('incr', 'n') end",
        "local t = {} for i = 1, 100 do t[i] = i end while true do cjson.encode(t) redis.call('incr', 'n') end",
        "local s = '[' .. ('1,'):rep(100) .. '1]' while true do cjson.decode(s) redis.call('incr', 'n') end",
        "local t = {} for i = 1, 100 do t[i] = i end while true do cmsgpack.unpack(cmsgpack.pack(t)) redis.call('incr', 'n') end",
        "while true do struct.size(('b'):rep(100)) redis.call('incr', 'n') end",
        "while true do ('x'):rep(1000):find('.-y') redis.call('incr', 'n') end",
        "while true do redis.sha1hex(('x'):rep(1000)) redis.call('incr', 'n') end",
        "while true do collectgarbage() redis.call('incr', 'n') end",
        "while true do redis.call('keys', '*') redis.call('incr', 'n') end",
    ];
    for script in busy {
        let mut counts = [(); 2].map(|()| {
            let reply = String::from_utf8_lossy(&h.args(&[b"EVAL", script.as_bytes(), b"0"])).into_owned();
            assert!(reply.starts_with("-ERR Script killed by user with SCRIPT KILL... script: "), "{reply} for {script}");
            h.run("GETDEL n")
        });
        counts.sort();
        assert_eq!(counts[0], counts[1], "{script}");
        // An instruction is a few of them: 200,000 steps are not 20,000 rounds.
        assert!(counts[0].len() <= "$4 1234".len(), "{} rounds of {script}", counts[0]);
    }
    h.script(&[("EVAL return(7) 0", ":7"), ("SCRIPT KILL", "-NOTBUSY No scripts in execution right now.")]);
}

#[test]
fn what_crashes_others_ends_in_an_error_and_the_next_script_runs() {
    // Two hundred functions of C in each other take more than a test has.
    crate::on_executor_stack(run_crash_list);
}

fn run_crash_list() {
    let mut server = Scripted::new();
    for (script, error) in [
        ("return string.find(('a'):rep(3e5), ('a?'):rep(3e5) .. 'b')", "pattern too complex"),
        ("return string.match(('a'):rep(100), ('a*'):rep(50) .. 'b')", "pattern too complex"),
        ("local function f(s) return s:gsub('.', f) end return f('a')", "stack overflow"),
        ("return ('x'):rep(2e9)", "not enough memory"),
        ("local t = {} while true do t[#t + 1] = {t} end", "not enough memory"),
        ("local s = 'x' while true do s = s .. s end", "not enough memory"),
        ("local function f() return 1 + f() end return f()", "stack overflow"),
        ("local t = setmetatable({}, {}) getmetatable(t).__tostring = tostring return tostring(t)", "stack overflow"),
        (
            "local t = setmetatable({}, {}) getmetatable(t).__concat = function(a, b) return a .. b end return t .. t",
            "stack overflow",
        ),
        // Redis as it is built by itself crashes here; its compiler takes it that numbers do not wrap round.
        ("unpack({}, -2147483648, 2147483647)", "too many results to unpack"),
        ("error({})", "unknown error"),
    ] {
        let reply = server.eval(script);
        assert!(reply.starts_with('-') && reply.contains(error), "{reply} for {script}");
        assert_eq!(server.eval("return 7"), ":7\r\n");
    }
}

#[test]
fn scripts_that_the_supervisor_drops_are_not_freed_while_one_of_them_runs() {
    use crate::engine::jobs::long_run::Verdict;
    use crate::script::Scripts;
    #[cfg(address_sanitizer)]
    unsafe extern "C" {
        fn __lsan_disable();
        fn __lsan_enable();
    }
    let mut harness = Harness::new();
    harness.engine.supervisor = Some(Box::new(|engine, _, _, _| {
        engine.lua_mut().scripts = Scripts::default();
        Verdict::Continue
    }));
    let script = b"local t = {} for i = 1, 1e6 do t[i % 100] = {} end return 'done'";
    // The interpreter is left behind, which is no finding.
    #[cfg(address_sanitizer)]
    // SAFETY: changes the sanitizer's notes alone.
    unsafe {
        __lsan_disable();
    }
    assert_eq!(harness.args(&[b"EVAL", script, b"0"]), b"$4\r\ndone\r\n");
    #[cfg(address_sanitizer)]
    // SAFETY: as above.
    unsafe {
        __lsan_enable();
    }
    harness.engine.supervisor = None;
    assert_eq!(harness.args(&[b"EVAL", script, b"0"]), b"$4\r\ndone\r\n");
    harness.engine.lua().scripts.check_invariants();
}
