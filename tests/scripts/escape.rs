//! Attempts of scripts to escape from the sandbox, or to leave something behind for later scripts.
//!
//! Each attempt is refused with an error or is harmless. After each of them a script of another client looks at everything that
//! scripts can reach, which must be unchanged since the server's start. Functions make the same attempts. If redis-server is
//! installed, it must reply to every attempt of a script with the same bytes.

use std::path::PathBuf;

use crate::common::servers::{Server, on_path};
use crate::common::wire::Wire;

/// The outcome of an attempt.
#[derive(Clone, Copy)]
enum End {
    /// An error whose text contains this.
    Refused(&'static str),
    /// This reply, as a client sees it.
    Harmless(&'static str),
}
use End::{Harmless, Refused};

const READ_ONLY: End = Refused("Attempt to modify a readonly table");
const ABSENT: End = Refused("Script attempted to access nonexistent global variable");
const NIL: End = Harmless("$-1\r\n");
const TRUE: End = Harmless(":1\r\n");

/// Globals: created, changed, removed and read.
const GLOBALS: &[(&str, End)] = &[
    ("x = 1", READ_ONLY),
    ("x = nil", READ_ONLY),
    ("_G.x = 1", READ_ONLY),
    ("_G['x'] = 1", READ_ONLY),
    ("_G._G._G.x = 1", READ_ONLY),
    ("_G = {}", READ_ONLY),
    ("_G._G = nil", READ_ONLY),
    ("_G[1] = 1", READ_ONLY),
    ("_G[{}] = 1", READ_ONLY),
    ("redis = nil", READ_ONLY),
    ("string = {}", READ_ONLY),
    ("pcall = nil", READ_ONLY),
    ("KEYS = {}", READ_ONLY),
    ("ARGV = nil", READ_ONLY),
    ("__redis__err__handler = nil", READ_ONLY),
    ("function leak() end", READ_ONLY),
    ("function string.leak() end", READ_ONLY),
    ("for i = 1, 1 do leak = i end", READ_ONLY),
    ("return leak", ABSENT),
    ("return _G.leak", ABSENT),
    ("return _G[1]", ABSENT),
    ("return _G[{}]", Refused("must be a string or number")),
    ("return rawget(_G, 'leak')", NIL),
    ("rawset(_G, 'leak', 1)", READ_ONLY),
    ("rawset(_G._G, 'leak', 1)", READ_ONLY),
    ("rawset(_G, 'pcall', function() end)", READ_ONLY),
    ("return pcall(rawset, _G, 'leak', 1)", NIL),
    ("return pcall(function() leak = 1 end)", NIL),
    ("return xpcall(function() leak = 1 end, function() leak = 2 end)", NIL),
    ("coroutine.wrap(function() leak = 1 end)()", READ_ONLY),
    ("return coroutine.resume(coroutine.create(function() leak = 1 end))", NIL),
    ("loadstring('leak = 1')()", READ_ONLY),
    ("load(coroutine.wrap(function() coroutine.yield('leak = 1') end))()", READ_ONLY),
    ("table.insert(_G, 1)", READ_ONLY),
    ("table.insert(_G, 1, 1)", READ_ONLY),
    ("return table.remove(_G)", NIL),
    ("table.sort(_G)", NIL),
    ("table.foreach(_G, function(k) _G[k] = nil end)", READ_ONLY),
    ("for k in pairs(_G) do rawset(_G, k, nil) end", READ_ONLY),
    ("for k in next, _G do _G[k] = nil end", READ_ONLY),
    ("setmetatable(_G, {})", READ_ONLY),
    ("setmetatable(_G, nil)", READ_ONLY),
    ("setmetatable(_G, {__newindex = function() end})", READ_ONLY),
    ("getmetatable(_G).__index = nil", READ_ONLY),
    ("getmetatable(_G).__newindex = nil", READ_ONLY),
    ("rawset(getmetatable(_G), '__index', nil)", READ_ONLY),
    ("table.insert(getmetatable(_G), 1)", READ_ONLY),
    ("setmetatable(getmetatable(_G), {})", READ_ONLY),
    ("return getmetatable(_G).__index(_G, 'leak')", ABSENT),
    ("return getmetatable(getmetatable(_G))", NIL),
    ("local _ENV = {} leak = 1", READ_ONLY),
    ("local t = {} for k, v in pairs(_G) do if v == _G then t = v end end t.leak = 1", READ_ONLY),
    ("return string.gsub('leak', '.+', _G)", ABSENT),
    ("return string.gsub('redis', '.+', _G)", Refused("invalid replacement value (a table)")),
    ("return string.gsub('x', '.', function() leak = 1 end)", READ_ONLY),
    ("table.sort({2, 1}, function() leak = 1 end)", READ_ONLY),
    ("setmetatable({}, {__index = _G}).leak = 1", NIL),
    ("return setmetatable({}, {__index = _G}).leak", ABSENT),
    ("setmetatable({}, {__newindex = _G}).leak = 1", READ_ONLY),
    ("return rawequal(_G, _G._G)", TRUE),
];

/// Libraries and the table `redis`: changed.
const LIBRARIES: &[(&str, End)] = &[
    ("string.format = nil", READ_ONLY),
    ("string.leak = 1", READ_ONLY),
    ("table.sort = nil", READ_ONLY),
    ("math.pi = 3", READ_ONLY),
    ("math.random = function() return 4 end", READ_ONLY),
    ("coroutine.wrap = nil", READ_ONLY),
    ("cjson.encode = nil", READ_ONLY),
    ("cjson.null = 1", READ_ONLY),
    ("cmsgpack.pack = nil", READ_ONLY),
    ("struct.pack = nil", READ_ONLY),
    ("bit.band = nil", READ_ONLY),
    ("redis.call = function() end", READ_ONLY),
    ("redis.pcall = nil", READ_ONLY),
    ("redis['call'] = nil", READ_ONLY),
    ("redis.LOG_DEBUG = 9", READ_ONLY),
    ("redis.leak = 1", READ_ONLY),
    ("local r = redis r.call = nil", READ_ONLY),
    ("local c, r = redis.call, redis r.call = nil return c('get', 'x')", READ_ONLY),
    ("rawset(string, 'format', nil)", READ_ONLY),
    ("rawset(table, 'leak', 1)", READ_ONLY),
    ("rawset(math, 'leak', 1)", READ_ONLY),
    ("rawset(coroutine, 'leak', 1)", READ_ONLY),
    ("rawset(cjson, 'leak', 1)", READ_ONLY),
    ("rawset(cmsgpack, 'leak', 1)", READ_ONLY),
    ("rawset(struct, 'leak', 1)", READ_ONLY),
    ("rawset(bit, 'leak', 1)", READ_ONLY),
    ("rawset(redis, 'call', 1)", READ_ONLY),
    ("setmetatable(string, {__index = function() return 1 end})", READ_ONLY),
    ("setmetatable(table, {})", READ_ONLY),
    ("setmetatable(math, {})", READ_ONLY),
    ("setmetatable(coroutine, {})", READ_ONLY),
    ("setmetatable(cjson, {})", READ_ONLY),
    ("setmetatable(cmsgpack, {})", READ_ONLY),
    ("setmetatable(struct, {})", READ_ONLY),
    ("setmetatable(bit, {})", READ_ONLY),
    ("setmetatable(redis, {__index = function() return 1 end})", READ_ONLY),
    ("table.insert(string, 'leak')", READ_ONLY),
    ("table.insert(redis, 1, 'leak')", READ_ONLY),
    ("table.insert(cjson, 1)", READ_ONLY),
    ("return getmetatable(redis)", NIL),
    ("return getmetatable(cjson)", NIL),
    ("return getmetatable(string)", NIL),
    ("for k in pairs(redis) do redis[k] = nil end", READ_ONLY),
    ("for k in pairs(string) do rawset(string, k, nil) end", READ_ONLY),
    ("for _, t in pairs({string, table, math, redis, cjson, bit}) do pcall(rawset, t, 'leak', 1) t.leak = 1 end", READ_ONLY),
    ("local f = redis.call f.leak = 1", Refused("attempt to index local 'f' (a function value)")),
    ("setmetatable(redis.call, {})", Refused("table expected, got function")),
    ("return redis.leak", NIL),
    (
        "return redis.register_function('leak', function() end)",
        Refused("attempt to call field 'register_function' (a nil value)"),
    ),
    ("redis.setresp(3) redis.set_repl(0) return redis.call('get', 'nothing')", NIL),
    ("redis.call('select', 5) redis.pcall('select', 99)", NIL),
];

/// The metatable of strings, and metatables of values.
const METATABLES: &[(&str, End)] = &[
    ("getmetatable('').__index = nil", READ_ONLY),
    ("getmetatable('').__index = function() return 1 end", READ_ONLY),
    ("getmetatable('').leak = 1", READ_ONLY),
    ("getmetatable('').__add = function() return 1 end", READ_ONLY),
    ("getmetatable('').__gc = function() end", READ_ONLY),
    ("getmetatable('').__index.upper = nil", READ_ONLY),
    ("getmetatable('').__index.leak = 1", READ_ONLY),
    ("rawset(getmetatable(''), '__index', {})", READ_ONLY),
    ("rawset(getmetatable('').__index, 'upper', nil)", READ_ONLY),
    ("setmetatable(getmetatable(''), {})", READ_ONLY),
    ("setmetatable('', {})", Refused("table expected, got string")),
    ("table.insert(getmetatable(''), 1)", READ_ONLY),
    ("local s = 'x' s.leak = 1", Refused("attempt to index local 's' (a string value)")),
    ("return ('x').leak", NIL),
    ("setmetatable(nil, {})", Refused("table expected, got nil")),
    ("setmetatable(function() end, {})", Refused("table expected, got function")),
    ("setmetatable(cjson.null, {})", Refused("table expected, got userdata")),
    ("return getmetatable(cjson.null)", NIL),
    ("return getmetatable(function() end)", NIL),
    ("return getmetatable(1)", NIL),
    ("return getmetatable(KEYS)", NIL),
    ("KEYS.leak = 1 ARGV.leak = 1 rawset(KEYS, 'more', 1)", NIL),
    ("setmetatable(KEYS, {__index = function() return 'x' end}) return KEYS.leak", Harmless("$1\r\nx\r\n")),
    ("setmetatable(ARGV, {__metatable = false, __newindex = function() end}) ARGV.x = 1 return ARGV.x", NIL),
    ("setmetatable(setmetatable({}, {__metatable = 'locked'}), {})", Refused("cannot change a protected metatable")),
    ("setmetatable({}, {__gc = function() leak = 1 end}) collectgarbage()", NIL),
    ("setmetatable({}, {__mode = 'kv', __gc = redis.call})", NIL),
    ("local t = setmetatable({}, {__index = redis}) t.call = 1 return type(redis.call)", Harmless("$8\r\nfunction\r\n")),
    ("local t = setmetatable({}, {__newindex = redis}) t.call = 1", READ_ONLY),
    ("return #setmetatable({}, {__len = function() leak = 1 end})", Harmless(":0\r\n")),
    ("return tostring(setmetatable({}, {__tostring = function() leak = 1 end}))", READ_ONLY),
    ("return tostring(setmetatable({}, {__tostring = function() return {} end}))", Harmless("*0\r\n")),
    ("return {setmetatable({}, {__index = function() leak = 1 end})}", Harmless("*1\r\n*0\r\n")),
    ("return setmetatable({}, {__index = function() return 'x' end})", Harmless("*0\r\n")),
];

/// Code from outside of the script, and the world outside of the sandbox.
const OUTSIDE: &[(&str, End)] = &[
    ("return loadstring(string.dump(function() return 1 end))", NIL),
    ("loadstring(string.dump(function() return 1 end))()", Refused("attempt to call a nil value")),
    ("return loadstring('\\27Lua')", NIL),
    ("return load(function() return '\\27Lua' end)", NIL),
    (
        "local s = string.dump(function() end) local n = 0 return load(function() n = n + 1 return n <= #s and s:sub(n, n) or nil end)",
        NIL,
    ),
    ("string.dump(redis.call)", Refused("unable to dump given function")),
    ("string.dump(print)", ABSENT),
    ("dofile('/etc/passwd')", ABSENT),
    ("loadfile('/etc/passwd')", ABSENT),
    ("require('io')", ABSENT),
    ("module('leak')", ABSENT),
    ("return package.loaded", ABSENT),
    ("package.loadlib('libc.so.6', 'system')", ABSENT),
    ("io.open('/etc/passwd')", ABSENT),
    ("io.popen('id')", ABSENT),
    ("return debug.getregistry()", ABSENT),
    ("debug.setmetatable('', {})", ABSENT),
    ("debug.sethook()", ABSENT),
    ("debug.getinfo(1)", ABSENT),
    ("print('x')", ABSENT),
    ("setfenv(1, {})", ABSENT),
    ("setfenv(0, {})", ABSENT),
    ("setfenv(redis.call, {})", ABSENT),
    ("return getfenv(redis.call)", ABSENT),
    ("return getfenv(0)", ABSENT),
    ("newproxy(true)", ABSENT),
    ("return loadstring('return io')()", ABSENT),
    ("return loadstring('local a = ... return a')(redis).leak", NIL),
    ("return loadstring('redis.call = nil')()", READ_ONLY),
    ("return loadstring('KEYS = nil')()", READ_ONLY),
    ("return loadstring('return setfenv')()", ABSENT),
    ("return redis.call('eval', 'x = 1', 0)", Refused("This Redis command is not allowed from script")),
    ("return redis.call('script', 'flush')", Refused("This Redis command is not allowed from script")),
    ("return redis.call('function', 'flush')", Refused("This Redis command is not allowed from script")),
    ("return redis.call('fcall', 'f', 0)", Refused("This Redis command is not allowed from script")),
    ("return redis.call('config', 'set', 'busy-reply-threshold', '0')", Refused("This Redis command is not allowed from script")),
    ("return redis.call('debug', 'sleep', '10')", Refused("This Redis command is not allowed from script")),
    ("return redis.call('shutdown', 'nosave')", Refused("This Redis command is not allowed from script")),
    ("return redis.call('client', 'kill', 'type', 'normal')", Refused("This Redis command is not allowed from script")),
    ("return redis.call('multi')", Refused("This Redis command is not allowed from script")),
    ("return redis.call('subscribe', 'c')", Refused("This Redis command is not allowed from script")),
    ("return redis.call('auth', 'x')", Refused("This Redis command is not allowed from script")),
    ("return redis.call('reset')", Refused("This Redis command is not allowed from script")),
];

/// Coroutines and protected calls.
const COROUTINES: &[(&str, End)] = &[
    ("coroutine.yield()", Refused("attempt to yield across metamethod/C-call boundary")),
    ("return coroutine.running()", NIL),
    ("coroutine.wrap(function() pcall(coroutine.yield) end)()", NIL),
    ("return pcall(coroutine.wrap(function() pcall(function() coroutine.yield(1) end) end))", TRUE),
    (
        "coroutine.wrap(function() table.sort({2, 1}, coroutine.yield) end)()",
        Refused("attempt to yield across metamethod/C-call boundary"),
    ),
    (
        "coroutine.wrap(function() string.gsub('x', '.', coroutine.yield) end)()",
        Refused("attempt to yield across metamethod/C-call boundary"),
    ),
    (
        "coroutine.wrap(function() return setmetatable({}, {__index = coroutine.yield}).x end)()",
        Refused("attempt to yield across metamethod/C-call boundary"),
    ),
    (
        "coroutine.wrap(function() for _ in coroutine.yield do end end)()",
        Refused("attempt to yield across metamethod/C-call boundary"),
    ),
    ("coroutine.wrap(function() load(coroutine.yield) end)()", NIL),
    (
        "local c = coroutine.wrap(function() while true do coroutine.yield(redis.call('ping')) end end) c() return c()",
        Harmless("+PONG\r\n"),
    ),
    (
        "local c = coroutine.create(function() redis.setresp(3) coroutine.yield() end) coroutine.resume(c) return redis.call('get', 'x')",
        NIL,
    ),
    ("local c c = coroutine.wrap(function() c() end) c()", Refused("cannot resume running coroutine")),
    ("coroutine.resume(coroutine.create(redis.call))", Refused("Lua function expected")),
    ("return coroutine.wrap(redis.call)('ping')", Refused("Lua function expected")),
    ("coroutine.wrap(coroutine.yield)()", Refused("Lua function expected")),
    (
        "local c = coroutine.create(coroutine.yield) coroutine.resume(c) coroutine.resume(c) return coroutine.resume(c)",
        Refused("Lua function expected"),
    ),
    ("for i = 1, 1000 do coroutine.wrap(function() coroutine.yield() end)() end", NIL),
    ("return pcall(pcall)", TRUE),
    ("return pcall(xpcall)", NIL),
    ("return xpcall(pcall, xpcall)", TRUE),
    ("return pcall(error)", NIL),
    ("return xpcall(function() error('x') end, error)", NIL),
    ("return xpcall(function() error('x') end, redis.call)", NIL),
    ("return pcall(redis.call)", NIL),
    ("return pcall(pcall, pcall, pcall, error, {err = 'X y'})", TRUE),
    ("error({err = 'X y', source = {}, line = {}})", Refused("X y")),
    ("error(redis.error_reply('X y'))", Refused("X y")),
    ("return redis.pcall('leak')", Refused("Unknown Redis command called from script")),
    (
        "local e = redis.pcall('leak') e.err = nil e.leak = 1 return redis.pcall('leak')",
        Refused("Unknown Redis command called from script"),
    ),
    ("local a = redis.call('ping') a.ok = 'leak' return redis.call('ping')", Harmless("+PONG\r\n")),
    ("__redis__err__handler({err = 'X y'}) return __redis__err__handler('x').err", Harmless("$5\r\nERR x\r\n")),
];

/// Attempts that crash a 7.0 server, or to which it replies differently; with the reason.
const NOT_ON_REDIS: &[(&str, End, &str)] = &[
    ("error({})", Refused("unknown error"), "ends a redis-server 7.0"),
    ("error(setmetatable({}, {__index = function() error('again') end}))", Refused("again"), "ends a redis-server 7.0"),
    ("error(redis)", READ_ONLY, "ends a redis-server 7.0"),
    ("error(_G)", READ_ONLY, "ends a redis-server 7.0"),
    ("server.call = nil", READ_ONLY, "Redis has no table of that name"),
    ("rawset(server, 'leak', 1)", READ_ONLY, "Redis has no table of that name"),
    ("os.clock = nil", READ_ONLY, "7.0 has no `os`"),
    ("os.execute('true')", Refused("attempt to call field 'execute' (a nil value)"), "7.0 has no `os`"),
    ("return os.getenv", NIL, "7.0 has no `os`"),
    ("os.exit()", Refused("attempt to call field 'exit' (a nil value)"), "7.0 has no `os`"),
    ("os.remove('/tmp/x')", Refused("attempt to call field 'remove' (a nil value)"), "7.0 has no `os`"),
    ("rawset(os, 'leak', 1)", READ_ONLY, "7.0 has no `os`"),
    ("collectgarbage('stop')", NIL, "stops the collector of a redis-server 7.0 for good"),
    ("collectgarbage('setpause', 1e6)", NIL, "stays set in a redis-server 7.0"),
];

/// A script that describes everything that a script can reach, with functions by their addresses.
const WALK: &str = "
    local seen, found = {}, {}
    local function walk(path, value)
        if type(value) ~= 'table' then found[#found + 1] = path .. ' = ' .. tostring(value) return end
        if seen[value] then found[#found + 1] = path .. ' is ' .. seen[value] return end
        seen[value] = path
        local names = {}
        for name in pairs(value) do names[#names + 1] = name end
        table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
        for _, name in ipairs(names) do walk(path .. '.' .. tostring(name), value[name]) end
        local meta = getmetatable(value)
        if meta then walk(path .. '()', meta) end
    end
    walk('_G', _G)
    walk('string()', getmetatable(''))
    for _, name in ipairs({'leak', 'x', 'more'}) do
        found[#found + 1] = tostring(rawget(_G, name)) .. tostring(rawget(string, name)) .. tostring(rawget(redis, name))
    end
    found[#found + 1] = ('x'):upper() .. string.format('%d', 7) .. cjson.encode({1, cjson.null}) .. bit.band(7, 12)
    found[#found + 1] = tostring(redis.call('get', 'nothing')) .. redis.call('ping').ok .. #KEYS .. #ARGV
    return table.concat(found, '\\n')";

struct Client {
    wire: Wire,
    /// The output of [`WALK`] at the start.
    whole: Vec<u8>,
}

impl Client {
    fn new(server: &Server) -> Client {
        let mut wire = Wire::connect(server.addr).expect("the server accepts");
        let whole = wire.call(&["EVAL", WALK, "0"]).expect("a reply").raw;
        assert!(whole.starts_with(b"$") && whole.len() > 4000, "{}", whole.escape_ascii());
        Client { wire, whole }
    }

    fn call(&mut self, request: &[&str]) -> Vec<u8> {
        self.wire.call(request).unwrap_or_else(|error| panic!("{error} instead of a reply to {request:?}")).raw
    }

    /// Another script must find everything unchanged.
    #[track_caller]
    fn look_round(&mut self, after: &str) {
        let now = self.call(&["EVAL", WALK, "0"]);
        if now != self.whole {
            let lines = |raw: &[u8]| String::from_utf8_lossy(raw).lines().map(str::to_owned).collect::<Vec<_>>();
            let (was, is) = (lines(&self.whole), lines(&now));
            let gone: Vec<_> = was.iter().filter(|line| !is.contains(line)).collect();
            let new: Vec<_> = is.iter().filter(|line| !was.contains(line)).collect();
            panic!("after {after}: gone {gone:?}, new {new:?}");
        }
    }
}

fn attempts() -> impl Iterator<Item = (&'static str, End)> {
    [GLOBALS, LIBRARIES, METATABLES, OUTSIDE, COROUTINES].into_iter().flatten().copied()
}

fn portcullis() -> Server {
    Server::portcullis(&PathBuf::from(env!("CARGO_BIN_EXE_portcullis"))).expect("portcullis starts")
}

fn is_right(end: End, reply: &str) -> bool {
    match end {
        Refused(text) => reply.starts_with('-') && reply.contains(text),
        Harmless(expected) => reply == expected,
    }
}

#[test]
fn every_attempt_of_a_script_is_refused_and_leaves_nothing_behind() {
    let server = portcullis();
    let (mut intruder, mut next) = (Client::new(&server), Client::new(&server));
    assert_eq!(intruder.whole, next.whole);
    let more = NOT_ON_REDIS.iter().map(|&(script, end, _)| (script, end));
    let (mut count, mut wrong) = (0, Vec::new());
    for (script, end) in attempts().chain(more) {
        // The second time from the cache.
        for _ in 0..2 {
            let reply = String::from_utf8_lossy(&intruder.call(&["EVAL", script, "0"])).into_owned();
            if !is_right(end, &reply) {
                wrong.push(format!("{script}: {reply}"));
            }
            next.look_round(script);
        }
        count += 1;
    }
    println!("{count} attempts");
    assert!(wrong.is_empty(), "{} end otherwise:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 200);
}

#[test]
fn every_attempt_of_a_function_leaves_nothing_behind() {
    let server = portcullis();
    let (mut intruder, mut next) = (Client::new(&server), Client::new(&server));
    let walk = format!("#!lua name=walk\nredis.register_function('walk', function(KEYS, ARGV) {WALK} end)");
    assert_eq!(next.call(&["FUNCTION", "LOAD", &walk]), b"$4\r\nwalk\r\n");
    let whole = next.call(&["FCALL", "walk", "0"]);
    assert!(whole.starts_with(b"$"), "{}", whole.escape_ascii());
    let more = NOT_ON_REDIS.iter().map(|&(script, end, _)| (script, end));
    for (script, _) in attempts().chain(more) {
        for library in [
            // When the function is called, and when the library is loaded.
            format!("#!lua name=intruder\nredis.register_function('attempt', function(KEYS, ARGV) {script}\nend)"),
            format!("#!lua name=intruder\nlocal KEYS, ARGV = {{}}, {{}}\nlocal function attempt() {script}\nend\nattempt()"),
            format!(
                "#!lua name=intruder\nredis.register_function('attempt', function() end)\nlocal KEYS, ARGV = {{}}, {{}} {script}"
            ),
        ] {
            if intruder.call(&["FUNCTION", "LOAD", "REPLACE", &library]).starts_with(b"$") {
                intruder.call(&["FCALL", "attempt", "0"]);
            }
            next.look_round(script);
            assert_eq!(next.call(&["FCALL", "walk", "0"]), whole, "{script}");
        }
    }
}

#[test]
fn redis_answers_every_attempt_of_a_script_in_the_same_way() {
    let Some(program) = on_path("redis-server") else {
        assert!(std::env::var_os("PORTCULLIS_REQUIRE_REDIS").is_none(), "there is no redis-server on the PATH");
        println!("SKIPPED: no redis-server on the PATH, nothing was compared");
        return;
    };
    let redis = Server::redis(&program).expect("the redis-server starts");
    let server = portcullis();
    let (mut theirs, mut ours) = (Client::new(&redis), Client::new(&server));
    let mut wrong = Vec::new();
    for (script, _) in attempts() {
        let [theirs, ours] =
            [&mut theirs, &mut ours].map(|client| client.call(&["EVAL", script, "0"]).escape_ascii().to_string());
        if theirs != ours {
            wrong.push(format!("{script}\n  Redis {theirs}\n  ours  {ours}"));
        }
    }
    for (script, _, reason) in NOT_ON_REDIS {
        println!("not compared: {script}: {reason}");
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn one_script_shares_no_value_with_another() {
    let server = portcullis();
    let (mut one, mut two) = (Client::new(&server), Client::new(&server));
    // A chunk is compiled once, but has new locals, upvalues and tables in each run.
    let counter =
        "local n, t = 0, {} local function up() n = n + 1 t[#t + 1] = n return n end up() KEYS[1] = 'x' return {up(), #t, #KEYS}";
    for client in [&mut one, &mut two] {
        for _ in 0..3 {
            assert_eq!(client.call(&["EVAL", counter, "0"]), b"*3\r\n:2\r\n:2\r\n:1\r\n");
        }
    }
    // Functions of one library share its locals, and only they do, as in Redis.
    let library = |name: &str| {
        format!("#!lua name={name}\nlocal n = 0\nredis.register_function('{name}', function() n = n + 1 return n end)")
    };
    for name in ["a", "b"] {
        one.call(&["FUNCTION", "LOAD", &library(name)]);
    }
    assert_eq!(one.call(&["FCALL", "a", "0"]), b":1\r\n");
    assert_eq!(two.call(&["FCALL", "a", "0"]), b":2\r\n");
    assert_eq!(two.call(&["FCALL", "b", "0"]), b":1\r\n");
    // What a run stores in `_G` is gone in the next run.
    assert_eq!(one.call(&["EVAL", "return _G.KEYS[1] .. _G.ARGV[1]", "1", "k", "a"]), b"$2\r\nka\r\n");
    assert_eq!(two.call(&["EVAL", "return {#_G.KEYS, #_G.ARGV}", "0"]), b"*2\r\n:0\r\n:0\r\n");
}
