//! Scripts cannot affect each other, exceed their memory or break the interpreter.

use crate::script::tests::Scripted;

#[test]
fn scripts_leave_nothing_for_the_next_one() {
    let mut server = Scripted::new();
    for (script, reply) in [
        ("KEYS.x = 1 return KEYS.x", ":1\r\n"),
        ("return KEYS.x", "$-1\r\n"),
        ("redis.setresp(3) return redis.call('get', 'nothing') == nil", ":1\r\n"),
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
        assert_eq!(server.eval(script), reply, "{script}");
    }
}

#[test]
fn random_numbers_continue_from_script_to_script() {
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
fn keys_and_arguments_are_globals_for_scripts_that_read_them_there() {
    let mut server = Scripted::new();
    for (script, reply) in [
        ("return _G.KEYS[1] .. _G['ARGV'][1]", "$2\r\nka\r\n"),
        ("return loadstring('return KEYS[1] .. ARGV[1]')()", "$2\r\nka\r\n"),
        ("local n = select('#', ...) return KEYS[1] .. n", "$2\r\nk0\r\n"),
        ("local f = function(...) return KEYS[1] .. ... end return f(ARGV[1])", "$2\r\nka\r\n"),
    ] {
        assert_eq!(server.send(&["EVAL", script, "1", "k", "a"]), reply, "{script}");
    }
    // The maximum number of locals in Lua, so there is no room for two more.
    let locals: Vec<String> = (0..200).map(|n| format!("l{n}")).collect();
    let script = format!("local {} = KEYS[1] return l0 .. ARGV[1]", locals.join(","));
    assert_eq!(server.send(&["EVAL", &script, "1", "k", "a"]), "$2\r\nka\r\n");
}

#[test]
fn the_interpreter_is_usable_after_errors() {
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
fn results_of_libraries_count_as_memory_of_scripts() {
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
fn the_memory_limit_of_scripts_is_configurable() {
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
    // A large live object, which belongs to a script. Garbage of more than a quarter of the limit is collected.
    let large = format!("return #'{}'", "x".repeat(1_000_000));
    assert_eq!(server.eval(&large), ":1000000\r\n");
    // A string is built in a buffer and copied, so it needs twice its size.
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
fn memory_of_garbage_is_free_for_the_next_script() {
    let mut server = Scripted::new();
    for _ in 0..5 {
        assert_eq!(server.eval("local t = {} for i = 1, 45 do t[i] = ('x'):rep(1e6) .. i end return #t"), ":45\r\n");
    }
}

#[test]
fn scripts_that_crash_other_servers_end_in_an_error() {
    // Two hundred nested C functions need more stack than a test thread has.
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
        // A default build of Redis crashes here: its compiler assumes that integers do not overflow.
        ("unpack({}, -2147483648, 2147483647)", "too many results to unpack"),
        ("error({})", "unknown error"),
    ] {
        let reply = server.eval(script);
        assert!(reply.starts_with('-') && reply.contains(error), "{reply} for {script}");
        assert_eq!(server.eval("return 7"), ":7\r\n");
    }
}
