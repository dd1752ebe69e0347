//! Scripts that crash an interpreter or use all memory if nothing bounds them: those that crash redis-server 7.0.15, and others
//! of the kind. Each of them ends, the next command works, and the memory is freed.

use std::path::PathBuf;

use crate::common::servers::Server;
use crate::common::wire::Wire;

/// The outcome of a script.
#[derive(Clone, Copy)]
enum End {
    /// An error whose text contains this.
    Error(&'static str),
    /// Any reply: the script stays within the bounds.
    Reply,
}
use End::{Error, Reply};

const MEMORY: End = Error("not enough memory");
const STACK: End = Error("stack overflow");

/// Strings and their patterns.
const STRINGS: &[(&str, End)] = &[
    // This alone crashes redis-server 7.0.15.
    ("return string.find(('a'):rep(3e5), ('a?'):rep(3e5) .. 'b')", Error("pattern too complex")),
    ("return string.match(('a'):rep(1e5), ('(a'):rep(31))", Error("unfinished capture")),
    ("return string.match('a', ('('):rep(1e5))", Error("too many captures")),
    ("return string.find(('('):rep(2e3), '%b()')", Reply),
    ("return string.gsub(('a'):rep(1e6), '', ('x'):rep(1e6))", MEMORY),
    ("local function f(s) return s:gsub('.', f) end return f('a')", STACK),
    ("local function f(s) return pcall(string.gsub, s, '.', f) end return f('a')", Reply),
    ("local function f(s) for w in s:gmatch('.') do f(w) end end f('a')", STACK),
    ("return ('x'):rep(2e9)", MEMORY),
    ("return ('x'):rep(1e9):rep(1e9)", MEMORY),
    ("return ('x'):rep(-1e18)", MEMORY),
    ("return ('x'):rep(1e18) .. ('x'):rep(2^31) .. ('x'):rep(2^53) .. ('x'):rep(0/0) .. ('x'):rep(1/0)", Reply),
    ("local s = 'x' while true do s = s .. s end", MEMORY),
    ("local s = '' while true do s = s .. ('x'):rep(1e6) end", MEMORY),
    ("local s = ('x'):rep(1e7) return s .. s .. s .. s .. s .. s .. s .. s .. s .. s", MEMORY),
    ("return #string.format('%q', ('\\0'):rep(1e7))", MEMORY),
    ("return string.format(('%s'):rep(1e6), 1)", Error("no value")),
    ("return string.format('%.99f', 1e308)", Reply),
    ("return string.byte(('x'):rep(1e6), 1, -1)", Error("string slice too long")),
    ("return string.char(unpack({}, 1, 7000))", Error("number expected, got nil")),
    ("return redis.sha1hex(('x'):rep(1e8))", MEMORY),
];

/// Tables and coroutines.
const TABLES: &[(&str, End)] = &[
    ("local t = {} while true do t[#t + 1] = {t} end", MEMORY),
    ("local t = {} while true do t = {t, t} end", MEMORY),
    ("local t = {} for i = 1, 1e9 do t[i] = i end", MEMORY),
    ("local t = {} for i = 1, 1e9 do t[i + 0.5] = i end", MEMORY),
    ("local t = {} while true do t[#t + 1] = ('x'):rep(1e6) .. #t end", MEMORY),
    ("local t = {} while true do t[#t + 1] = function() return t end end", MEMORY),
    ("collectgarbage('setpause', 1e9) collectgarbage('stop') for i = 1, 3e5 do local t = {{}, {}} end", Reply),
    ("for i = 1, 50 do collectgarbage('step', 2^31) end", Reply),
    ("local t = {} for i = 1, 1e5 do t = setmetatable({}, {__index = t}) end return t.x", Error("loop in gettable")),
    ("return unpack({}, 1, 1e8)", Error("too many results to unpack")),
    ("return unpack({}, 1, 2^31 - 1)", Error("too many results to unpack")),
    ("return unpack({}, -2^31, 2^31)", Reply),
    ("return redis.call(unpack({}, 1, 7990))", Error("must be strings or integers")),
    ("return table.concat({}, 'x', 1, 1e9)", Error("invalid value (nil)")),
    ("return table.concat({}, 'x', -2^31, 2^31)", Error("invalid value (nil)")),
    ("local t = {('x'):rep(1e6)} for i = 1, 100 do t[i] = t[1] end return #table.concat(t)", MEMORY),
    ("local t = {} table.insert(t, 1e8, 1) return #t", Reply),
    ("return table.remove({}, 2^31)", Reply),
    ("table.sort({3, 1, 2, 5, 4, 7, 6, 9, 8}, function() return true end)", Error("invalid order function")),
    ("local t = {} while true do t[#t + 1] = coroutine.create(function() end) end", MEMORY),
    ("for i = 1, 1e5 do coroutine.wrap(function() coroutine.yield() end)() end", Reply),
    ("local t = {} for i = 1, 1e4 do t[i] = coroutine.wrap(function() coroutine.yield() end) t[i]() end return #t", Reply),
    ("local function f() return coroutine.wrap(f)() end return f()", STACK),
    ("local function f() return coroutine.resume(coroutine.create(f)) end return f()", Reply),
];

/// Nested functions and metamethods, and errors.
const RECURSION: &[(&str, End)] = &[
    ("local function f() return 1 + f() end return f()", STACK),
    ("local function f() pcall(f) end return f()", Reply),
    ("local function f() return pcall(f) end return f()", Reply),
    ("local function f() return xpcall(f, f) end return f()", Reply),
    ("local function f() return xpcall(error, f) end return f()", Reply),
    ("local function f() error(f) end return pcall(f), xpcall(f, f)", Reply),
    ("local m = {} m.__index = function(t, k) return t[k] end return setmetatable({}, m).x", STACK),
    ("local m = {} m.__index = setmetatable({}, m) return m.__index.x", Error("loop in gettable")),
    ("local m = {} m.__newindex = setmetatable({}, m) m.__newindex.x = 1", Error("loop in settable")),
    ("local m = {} m.__call = setmetatable({}, m) return m.__call()", Error("attempt to call")),
    ("local m = {__tostring = tostring} return tostring(setmetatable({}, m))", STACK),
    ("local m = {__concat = function(a, b) return a .. b end} local t = setmetatable({}, m) return t .. t", STACK),
    ("local m = {__eq = function(a, b) return a == b end} return setmetatable({}, m) == setmetatable({}, m)", STACK),
    ("local m = {__lt = function(a, b) return a < b end} return setmetatable({}, m) < setmetatable({}, m)", STACK),
    ("local m = {__unm = function(a) return -a end} return -setmetatable({}, m)", STACK),
    ("error({})", Error("unknown error")),
    ("error({err = {}})", Error("unknown error")),
    ("error({err = setmetatable({}, {__tostring = error})})", Error("unknown error")),
    ("error(setmetatable({}, {__tostring = function() error('again') end}))", Error("unknown error")),
    ("error(setmetatable({}, {__index = function() error('again') end}))", Error("again")),
    ("error(setmetatable({}, {__newindex = error, __index = error}))", Error("bad argument")),
    ("error(function() end)", Error("function: 0x")),
    ("error(coroutine.create(function() end))", Error("thread: 0x")),
    ("error(cjson.null)", Error("userdata: ")),
    ("error(('x'):rep(1e8))", MEMORY),
    ("error(('x'):rep(1e6))", Error("xxxx")),
    ("return {err = ('x'):rep(1e6)}", Error("xxxx")),
    ("xpcall(error, function() error('in the handler') end)", Reply),
    ("local t = {} t[1] = t return t", Reply),
    ("local t = {} t.map = {a = t} return t", Reply),
    ("local t = {} t.set = {[t] = true} return t", Reply),
    ("local function f() return load(f) end return f()", Reply),
    ("return loadstring(('('):rep(1e6))", Reply),
    ("return loadstring('return ' .. ('{'):rep(1e6))", Reply),
    ("return loadstring('return ' .. ('- '):rep(1e6) .. '1')", Reply),
    ("return loadstring('return ' .. ('1 ..'):rep(1e5) .. '1')", Reply),
    ("return loadstring(('do '):rep(1e6))", Reply),
    ("return loadstring(('function f() '):rep(1e6))", Reply),
    ("return loadstring('local ' .. ('a,'):rep(300) .. 'a')", Reply),
    ("local n = 0 return load(function() n = n + 1 return ('x'):rep(1e6) .. n end)", Reply),
];

/// The libraries of Redis, and commands.
const LIBRARIES: &[(&str, End)] = &[
    ("local t = {} t[1] = t return cjson.encode(t)", Error("excessive nesting")),
    ("local t = {} for i = 1, 1e5 do t = {t} end return cjson.encode(t)", Error("excessive nesting")),
    ("local t = {('x'):rep(1e5)} for i = 1, 40 do t = {t, t} end return #cjson.encode(t)", MEMORY),
    ("return cjson.encode(('\\1'):rep(3e7))", MEMORY),
    ("return cjson.encode({[1e9] = 1})", Error("excessively sparse array")),
    ("return cjson.decode(('['):rep(1e7))", Error("Found too many nested data structures")),
    ("return cjson.decode(('{\"a\":'):rep(1e6))", Error("Found too many nested data structures")),
    ("cjson.decode_max_depth(2147483647) return cjson.decode(('['):rep(1e6))", Error("Found too many nested data structures")),
    (
        "cjson.encode_max_depth(2147483647) local t = {} for i = 1, 1e5 do t = {t} end return cjson.encode(t)",
        Error("excessive nesting"),
    ),
    ("cjson.encode_max_depth(2147483647) local t = {} t[1] = t return cjson.encode(t)", Error("excessive nesting")),
    ("return cjson.decode('[' .. ('0,'):rep(1e7) .. '0]')", MEMORY),
    ("return cjson.decode(('1'):rep(1e7))", Reply),
    ("local t = {} t[1] = t return cmsgpack.pack(t)", Reply),
    ("local t = {('x'):rep(1e4)} for i = 1, 15 do t = {t, t, t} end return #cmsgpack.pack(t)", MEMORY),
    ("return cmsgpack.unpack(('\\145'):rep(1e6) .. '\\1')", STACK),
    ("return cmsgpack.unpack(('\\129\\1'):rep(1e6) .. '\\1')", STACK),
    ("return cmsgpack.unpack(('\\1'):rep(1e6))", STACK),
    ("return cmsgpack.unpack('\\221\\255\\255\\255\\255')", Error("Missing bytes")),
    ("return cmsgpack.unpack('\\223\\255\\255\\255\\255')", Error("Missing bytes")),
    ("return cmsgpack.unpack('\\219\\255\\255\\255\\255')", Error("Missing bytes")),
    ("return cmsgpack.unpack_limit('\\1', 2^31, 2^31)", Error("offset")),
    ("return cmsgpack.pack(unpack({}, 1, 7990))", Error("Too many arguments")),
    ("return struct.pack('c2147483647', 'x')", Error("string too short")),
    ("return struct.pack('c99999999999', 'x')", Error("integral size overflow")),
    ("return struct.pack('i' .. ('9'):rep(1e6), 1)", Error("integral size overflow")),
    ("return struct.size('c2147483647c2147483647c2147483647')", Reply),
    ("return #struct.pack(('x'):rep(1e8))", MEMORY),
    ("local s = ('x'):rep(1e7) return #struct.pack(('s'):rep(9), s, s, s, s, s, s, s, s, s)", MEMORY),
    ("return struct.unpack('>I4c0', '\\255\\255\\255\\255x')", Error("data string too short")),
    ("return struct.unpack(('B'):rep(1e6), ('x'):rep(1e6))", STACK),
    ("return struct.unpack('B', 'x', -2^63)", Error("data string too short")),
    ("return {bit.lshift(1, 1e300), bit.tobit(0/0), bit.tohex(1, -2^31), bit.rol(1, -2^63)}", Reply),
    ("return {math.random(2^31 - 1), pcall(math.random, -2^63, 2^63), math.ldexp(1, 2^31)}", Reply),
    ("return redis.call('setrange', 'k', 2^40, 'x')", Error("string exceeds maximum allowed size")),
    ("return redis.call('set', 'k', ('x'):rep(1e8))", MEMORY),
    ("for i = 1, 1e4 do redis.pcall('nosuch', i) end", Reply),
    ("redis.log(redis.LOG_DEBUG, ('x'):rep(1e6))", Reply),
];

fn start() -> Server {
    Server::portcullis(&PathBuf::from(env!("CARGO_BIN_EXE_portcullis"))).expect("portcullis starts")
}

/// The raw reply: everything before the reply to a following ECHO.
fn reply(wire: &mut Wire, request: &[&str]) -> Vec<u8> {
    wire.queue(request);
    wire.queue(&["ECHO", "the end of the reply"]);
    wire.flush().expect("the server reads");
    wire.raw_until(b"$20\r\nthe end of the reply\r\n").unwrap_or_else(|error| panic!("{error} to {}", request.join(" ")))
}

/// A field of INFO.
fn info(wire: &mut Wire, field: &str) -> u64 {
    let text = String::from_utf8_lossy(&wire.call(&["INFO", "everything"]).expect("a reply").raw).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap_or_else(|| panic!("no {field}"));
    line.trim().parse().expect("a number")
}

fn shown(raw: &[u8]) -> String {
    String::from_utf8_lossy(&raw[..raw.len().min(300)]).into_owned()
}

fn run(run_one: impl Fn(&mut Wire, &str) -> Vec<u8>) {
    let server = start();
    let (mut wire, mut other) = (Wire::connect(server.addr).expect("connects"), Wire::connect(server.addr).expect("connects"));
    // Bounds that are reached soon. The default is a GiB.
    assert_eq!(wire.call(&["CONFIG", "SET", "script-memory-limit", "64mb"]).expect("a reply").raw, b"+OK\r\n");
    let before = info(&mut other, "used_memory_rss");
    let mut wrong = Vec::new();
    for &(script, end) in [STRINGS, TABLES, RECURSION, LIBRARIES].into_iter().flatten() {
        let got = run_one(&mut wire, script);
        let right = match end {
            Error(text) => got.starts_with(b"-") && got.windows(text.len()).any(|part| part == text.as_bytes()),
            Reply => !got.is_empty(),
        };
        if !right {
            wrong.push(format!("{script}: {}", shown(&got)));
        }
        for wire in [&mut wire, &mut other] {
            assert_eq!(shown(&reply(wire, &["EVAL", "return 7", "0"])), ":7\r\n", "after {script}");
            assert_eq!(shown(&reply(wire, &["GET", "nothing"])), "$-1\r\n", "after {script}");
        }
    }
    assert!(wrong.is_empty(), "{} end otherwise:\n{}", wrong.len(), wrong.join("\n"));
    let after = info(&mut other, "used_memory_rss");
    println!("{} MiB resident before, {} MiB after", before >> 20, after >> 20);
    assert!(after < before + (64 << 20), "{} MiB resident before, {} MiB after", before >> 20, after >> 20);
}

#[test]
fn every_script_of_the_crash_list_ends_and_the_next_command_works() {
    run(|wire, script| reply(wire, &["EVAL", script, "0"]));
}

#[test]
fn every_function_of_the_crash_list_ends_and_the_next_command_works() {
    run(|wire, script| {
        let library = format!("#!lua name=crash\nredis.register_function('crash', function() {script}\nend)");
        assert_eq!(shown(&reply(wire, &["FUNCTION", "LOAD", "REPLACE", &library])), "$5\r\ncrash\r\n", "{script}");
        reply(wire, &["FCALL", "crash", "0"])
    });
}

#[test]
fn no_source_is_too_deep_or_too_long_to_be_refused() {
    let server = start();
    let mut wire = Wire::connect(server.addr).expect("connects");
    for (start, part, times, end) in [
        ("return ", "(", 1_000_000, "1"),
        ("return ", "{", 1_000_000, ""),
        ("return ", "- ", 1_000_000, "1"),
        ("return ", "not ", 1_000_000, "1"),
        ("return 1", " .. 1", 100_000, ""),
        ("return 1", " ^ 1", 100_000, ""),
        ("", "do ", 1_000_000, ""),
        ("", "if x then ", 100_000, ""),
        ("", "while true do ", 100_000, ""),
        ("", "local function f() ", 100_000, ""),
        ("local a", ",a", 1_000, ""),
        ("return [", "=", 10_000_000, "["),
        ("return '", "x", 10_000_000, ""),
        ("return '", "\\", 1_000_001, "'"),
        ("--[", "=", 1_000_000, "["),
        ("#!", "lua", 1_000_000, "\n"),
        ("return 1", "0", 1_000_000, "x"),
        ("return ", "a.", 1_000_000, ""),
        ("return ", "f(", 1_000_000, ""),
    ] {
        let source = format!("{start}{}{end}", part.repeat(times));
        for request in
            [&["EVAL", &source, "0"][..], &["SCRIPT", "LOAD", &source], &["FUNCTION", "LOAD", &format!("#!lua name=a\n{source}")]]
        {
            let got = reply(&mut wire, request);
            assert!(got.starts_with(b"-ERR "), "{start}{part}…: {}", shown(&got));
            assert_eq!(shown(&reply(&mut wire, &["EVAL", "return 7", "0"])), ":7\r\n", "after {start}{part}…");
        }
    }
}

/// With the default limit.
#[test]
fn gigabytes_are_refused_and_what_was_taken_comes_back() {
    let server = start();
    let (mut wire, mut other) = (Wire::connect(server.addr).expect("connects"), Wire::connect(server.addr).expect("connects"));
    let before = info(&mut other, "used_memory_rss");
    for script in [
        "return ('x'):rep(2e9)",
        "return ('x'):rep(6e8):upper()",
        "local s = 'x' while true do s = s .. s end",
        "local s, t = ('x'):rep(1e8), {} for i = 1, 1e9 do t[i] = s .. i end",
    ] {
        let got = reply(&mut wire, &["EVAL", script, "0"]);
        assert!(got.starts_with(b"-ERR") && shown(&got).contains("not enough memory"), "{script}: {}", shown(&got));
        assert_eq!(shown(&reply(&mut other, &["EVAL", "return 7", "0"])), ":7\r\n", "after {script}");
    }
    let (after, scripts) = (info(&mut other, "used_memory_rss"), info(&mut other, "used_memory_vm_eval"));
    assert!(scripts < 1 << 20, "scripts keep {scripts} bytes");
    assert!(after < before + (64 << 20), "{} MiB resident before, {} MiB after", before >> 20, after >> 20);
}
