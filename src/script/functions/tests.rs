//! Replies to commands on functions.

use crate::engine::harness::Harness;
use crate::script::tests::check_requests;

#[test]
fn replies_are_those_of_redis_over_resp2() {
    check_requests(include_str!("cases.txt"), false);
}

#[test]
fn replies_are_those_of_redis_over_resp3() {
    check_requests(include_str!("cases.txt"), true);
}

fn send(harness: &mut Harness, args: &[&str]) -> String {
    let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
    let reply = String::from_utf8_lossy(&harness.args(&args)).into_owned();
    harness.engine.check_invariants();
    reply
}

fn library(name: &str, body: &str) -> String {
    format!("#!lua name={name}\n{body}")
}

fn dump(harness: &mut Harness) -> Vec<u8> {
    let reply = harness.args(&[b"FUNCTION", b"DUMP"]);
    let start = reply.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    reply[start..reply.len() - 2].to_vec()
}

#[test]
fn a_dump_restores_everything() {
    let mut harness = Harness::new();
    let long = format!("-- {}\nredis.register_function('long', function() return 'long' end)", "x".repeat(20_000));
    for (name, body) in [("one", "redis.register_function('f', function() return 'one' end)"), ("two", long.as_str())] {
        send(&mut harness, &["FUNCTION", "LOAD", &library(name, body)]);
    }
    let before = send(&mut harness, &["FUNCTION", "LIST", "WITHCODE"]);
    let payload = dump(&mut harness);
    assert_eq!(send(&mut harness, &["FUNCTION", "FLUSH"]), "+OK\r\n");
    assert_eq!(harness.engine.lua().functions.library_bytes(), 0);
    assert_eq!(harness.args(&[b"FUNCTION", b"RESTORE", &payload]), b"+OK\r\n");
    assert_eq!(send(&mut harness, &["FUNCTION", "LIST", "WITHCODE"]), before);
    assert_eq!(send(&mut harness, &["FCALL", "long", "0"]), "$4\r\nlong\r\n");
    for at in 0..payload.len().min(300) {
        let mut broken = payload.clone();
        broken[at] ^= 4;
        let reply = harness.args(&[b"FUNCTION", b"RESTORE", &broken, b"FLUSH"]);
        assert_eq!(reply, b"-ERR DUMP payload version or checksum are wrong\r\n");
    }
    assert_eq!(send(&mut harness, &["FUNCTION", "LIST", "WITHCODE"]), before);
}

#[test]
fn a_restore_that_fails_changes_nothing() {
    let mut harness = Harness::new();
    let f = |reply: &str| format!("redis.register_function('f', function() return '{reply}' end)");
    send(&mut harness, &["FUNCTION", "LOAD", &library("a", &f("a"))]);
    send(&mut harness, &["FUNCTION", "LOAD", &library("b", "redis.register_function('g', function() end)")]);
    let payload = dump(&mut harness);
    send(&mut harness, &["FUNCTION", "FLUSH"]);
    send(&mut harness, &["FUNCTION", "LOAD", &library("b", "redis.register_function('h', function() return 'old' end)")]);
    send(&mut harness, &["FUNCTION", "LOAD", &library("c", &f("c"))]);
    assert_eq!(harness.args(&[b"FUNCTION", b"RESTORE", &payload]), b"-ERR Library b already exists\r\n");
    assert_eq!(harness.args(&[b"FUNCTION", b"RESTORE", &payload, b"REPLACE"]), b"-ERR Function f already exists\r\n");
    harness.engine.check_invariants();
    assert_eq!(send(&mut harness, &["FCALL", "f", "0"]), "$1\r\nc\r\n");
    assert_eq!(send(&mut harness, &["FCALL", "h", "0"]), "$3\r\nold\r\n");
    assert_eq!(harness.args(&[b"FUNCTION", b"RESTORE", &payload, b"FLUSH"]), b"+OK\r\n");
    assert_eq!(send(&mut harness, &["FCALL", "F", "0"]), "$1\r\na\r\n");
    assert_eq!(send(&mut harness, &["FCALL", "h", "0"]), "-ERR Function not found\r\n");
}

#[test]
fn a_library_that_takes_too_much_is_not_loaded() {
    let mut harness = Harness::new();
    let timeout = "-ERR Error registering functions: ERR FUNCTION LOAD timeout\r\n";
    let memory = "-ERR Error registering functions: ERR not enough memory\r\n";
    for (body, text) in [
        ("while true do end", timeout),
        // The work within one call counts.
        ("while true do local s = ('x'):rep(1e7) end", timeout),
        ("local s = ('x'):rep(1e3) while true do s:find('.-y') end", timeout),
        ("local s = ('x'):rep(1e5) s:gsub('.', function() while true do end end)", timeout),
        ("local s = ('x'):rep(2e9)", memory),
        ("local t = {} while true do t[#t + 1] = ('x'):rep(1e6) .. #t end", memory),
        (
            "local n, d = 0, ('x'):rep(1e5) while true do n = n + 1 \
             redis.register_function{function_name = n, description = d, callback = function() end} end",
            memory,
        ),
        (
            "local function f() return 1 + f() end f()",
            "-ERR Error registering functions: ERR user_function:2: stack overflow\r\n",
        ),
    ] {
        assert_eq!(send(&mut harness, &["FUNCTION", "LOAD", &library("x", body)]), text, "{body}");
        let fine = library("fine", "redis.register_function('f', function() return 1 end)");
        assert_eq!(send(&mut harness, &["FUNCTION", "LOAD", "REPLACE", &fine]), "$4\r\nfine\r\n");
        assert_eq!(send(&mut harness, &["FCALL", "f", "0"]), ":1\r\n");
    }
    assert!(harness.engine.lua().functions.interpreter_bytes() < 32 << 20);
}

#[test]
fn deleted_functions_leave_nothing_in_the_interpreter() {
    let mut harness = Harness::new();
    let body = format!("local big = {{{}}} redis.register_function('f', function() return #big end)", "'x',".repeat(5000));
    for round in 0..300 {
        let name = if round % 2 == 0 { "a" } else { "b" };
        let loaded = send(&mut harness, &["FUNCTION", "LOAD", &library(name, &body)]);
        assert_eq!(loaded, format!("$1\r\n{name}\r\n"));
        assert_eq!(send(&mut harness, &["FCALL", "f", "0"]), ":5000\r\n");
        if round % 3 == 0 {
            let replaced = send(&mut harness, &["FUNCTION", "LOAD", "REPLACE", &library(name, &body)]);
            assert_eq!(replaced, loaded);
        }
        assert!(send(&mut harness, &["FUNCTION", "LOAD", &library("c", &body)]).starts_with("-ERR Function f already exists"));
        assert_eq!(send(&mut harness, &["FUNCTION", "DELETE", name]), "+OK\r\n");
    }
    assert_eq!(harness.engine.lua().functions.library_bytes(), 0);
    let taken = harness.engine.lua().functions.interpreter_bytes();
    assert!(taken < 8 << 20, "{taken} bytes");
}

#[test]
fn libraries_are_loaded_again_after_a_run_that_did_not_end() {
    let mut harness = Harness::new();
    let source = library("l", "local n = 0 redis.register_function('f', function() n = n + 1 return n end)");
    send(&mut harness, &["FUNCTION", "LOAD", &source]);
    assert_eq!(send(&mut harness, &["FCALL", "f", "0"]), ":1\r\n");
    let engine: *mut _ = &raw mut harness.engine;
    let interpreter = harness.engine.lua().functions.interpreter.unwrap();
    // SAFETY: this is the state that a panic in a handler leaves behind.
    unsafe { (*interpreter.as_ptr()).frame.engine = engine };
    assert_eq!(send(&mut harness, &["FCALL", "f", "0"]), ":1\r\n");
    assert_eq!(send(&mut harness, &["FCALL", "f", "0"]), ":2\r\n");
    // SAFETY: its run had in fact ended.
    unsafe {
        (*interpreter.as_ptr()).frame.engine = std::ptr::null_mut();
        crate::script::interpreter::Interpreter::free(interpreter);
    }
}

#[test]
fn one_library_cannot_reach_into_another() {
    let mut harness = Harness::new();
    let spy = "redis.register_function('spy', function()
        local met = {}
        for _, attempt in ipairs({
            function() redis.call = nil end, function() rawset(_G, 'shared', 1) end, function() shared = 1 end,
            function() _G.string.len = nil end, function() getmetatable('').__index = nil end,
            function() setmetatable(_G, {}) end, function() table.insert(redis, 1) end }) do
            met[#met + 1] = tostring(pcall(attempt))
        end
        return table.concat(met, ' ')
    end)";
    send(&mut harness, &["FUNCTION", "LOAD", &library("spy", spy)]);
    let other = "redis.register_function('seen', function() return {type(redis.call), #redis, ('abc'):len()} end)
        redis.register_function('shared', function() return shared end)";
    send(&mut harness, &["FUNCTION", "LOAD", &library("other", other)]);
    assert_eq!(send(&mut harness, &["FCALL", "spy", "0"]), "$41\r\nfalse false false false false false false\r\n");
    assert_eq!(send(&mut harness, &["FCALL", "seen", "0"]), "*3\r\n$8\r\nfunction\r\n:0\r\n:3\r\n");
    assert!(send(&mut harness, &["FCALL", "shared", "0"]).contains("nonexistent global variable 'shared'"));
    assert_eq!(send(&mut harness, &["EVAL", "return redis.call('get', KEYS[1])", "1", "k"]), "$-1\r\n");
}

#[test]
fn callers_do_not_distinguish_the_case_of_names() {
    let mut harness = Harness::new();
    let both = "redis.register_function('f', function() return 'f' end) redis.register_function('F', function() return 'F' end)";
    assert_eq!(send(&mut harness, &["FUNCTION", "LOAD", &library("l", both)]), "$1\r\nl\r\n");
    assert_eq!(send(&mut harness, &["FCALL", "f", "0"]), send(&mut harness, &["FCALL", "F", "0"]));
    assert_eq!(send(&mut harness, &["FUNCTION", "DELETE", "l"]), "+OK\r\n");
    assert_eq!(send(&mut harness, &["FCALL", "f", "0"]), "-ERR Function not found\r\n");
}

#[test]
fn errors_of_functions_are_counted_once() {
    let mut harness = Harness::new();
    let body = "redis.register_function('bad', function() return redis.call('nope') end)
        redis.register_function('raise', function() error('x') end)";
    send(&mut harness, &["FUNCTION", "LOAD", &library("l", body)]);
    for request in [&["FCALL", "bad", "0"][..], &["FCALL", "raise", "0"], &["FCALL", "nope", "0"], &["FUNCTION", "LOAD", "x"]] {
        let before = harness.engine.stats().error_replies;
        assert!(send(&mut harness, request).starts_with('-'));
        assert_eq!(harness.engine.stats().error_replies - before, 1, "{request:?}");
    }
}
