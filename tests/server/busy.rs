//! Long scripts, over TCP: the replies to other clients meanwhile, and how such scripts end; and what a pause held back.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use portcullis::engine::config::Config;
use portcullis::{Server, ServerOptions};

use crate::common::servers::{Server as Program, withheld, withheld_here};

const BUSY: &str = "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n";
const FOREVER: &str = "while true do end";
/// The milliseconds after which other clients get BUSY errors.
const THRESHOLD_MS: u64 = 50;
/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Maximum time for a killed script to end.
const KILLED_WITHIN: Duration = Duration::from_secs(1);

fn start() -> Server {
    let mut config = Config::default();
    config.set("port", b"0").unwrap();
    config.set("lua-time-limit", THRESHOLD_MS.to_string().as_bytes()).unwrap();
    Server::start(config, ServerOptions::default()).unwrap()
}

struct Client(TcpStream);

impl Client {
    fn new(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client(stream)
    }

    fn send(&mut self, requests: &[&[&str]]) {
        self.0.write_all(&requests.iter().flat_map(|request| encode(request)).collect::<Vec<_>>()).unwrap();
    }

    /// Reads exactly these bytes.
    #[track_caller]
    fn expect(&mut self, text: &str) {
        let mut got = vec![0; text.len()];
        self.0.read_exact(&mut got).unwrap_or_else(|error| panic!("{error} instead of {text}"));
        assert_eq!(String::from_utf8_lossy(&got), text);
    }

    /// Reads one line.
    fn line(&mut self) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            self.0.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    fn ask(&mut self, request: &[&str]) -> String {
        self.send(&[request]);
        self.line()
    }

    /// Waits until another client's script makes the server busy.
    fn wait_until_busy(&mut self) {
        let began = Instant::now();
        while self.ask(&["PING"]) != BUSY {
            assert!(began.elapsed() < PATIENCE, "not busy");
        }
    }
}

fn encode(request: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", request.len()).into_bytes();
    for arg in request {
        bytes.extend_from_slice(format!("${}\r\n{arg}\r\n", arg.len()).as_bytes());
    }
    bytes
}

fn is_killed(reply: &str) -> bool {
    reply.starts_with("-ERR Script killed by user with SCRIPT KILL... script: ") && reply.contains(", on @user_script:")
}

#[test]
fn every_script_of_the_hang_list_is_killed_while_others_are_answered() {
    let scripts = [
        FOREVER,
        "while true do pcall(function() while true do end end) end",
        "xpcall(function() while true do end end, function() while true do end end)",
        "while true do xpcall(function() while true do end end, function() while true do end end) end",
        "xpcall(error, function() while true do end end)",
        "error(setmetatable({}, {__index = function() while true do end end}))",
        "error(setmetatable({err = 'E x'}, {__newindex = function() while true do pcall(error) end end}))",
        "while true do coroutine.wrap(function() while true do end end)() end",
        "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
        "while true do pcall(coroutine.wrap(function() while true do end end)) end",
        "local resume, create = coroutine.resume, coroutine.create
         while true do resume(create(function() while true do resume(create(function() for i = 1, 9000 do end end)) end end)) end",
        "while true do local c = coroutine.create(function() while true do pcall(coroutine.yield) end end)
         for i = 1, 100 do coroutine.resume(c) end end",
        "local function f() return f() end f()",
        "while true do pcall(function() local function f() f() end f() end) end",
        "while true do pcall(function() local function f() pcall(f) end f() end) end",
        "while true do local s = ('x'):rep(1e6) end",
        "local s = ('x'):rep(2e7) while true do local t = s .. 'x' end",
        "while true do load(function() while true do end end) end",
        "while true do string.gsub('aaaa', 'a', function() while true do end end) end",
        "while true do pcall(table.sort, {3, 2, 1}, function() while true do end end) end",
        "local t = setmetatable({}, {__index = function(t, k) return t[k + 1] end}) while true do pcall(function() return t[1] end) end",
        "while true do pcall(tostring, setmetatable({}, {__tostring = function() while true do end end})) end",
        "local t = {} for i = 1, 1e5 do t[i] = i end while true do table.insert(t, 1, 0) end",
        "while true do redis.call('ping') end",
        "while true do redis.pcall('nosuch') end",
        // The number of calls doubles with each level: the stack stays shallow, and the script does not end.
        "local function f() pcall(f) pcall(f) end f()",
        "local function f() xpcall(f, f) xpcall(f, f) end f()",
        "while true do pcall(pcall, pcall, function() while true do end end) end",
        "while true do pcall(error, setmetatable({}, {__index = function() while true do end end})) end",
        "pcall(load, function() return ' ' end) while true do load(function() return '--' end) end",
        "for _ in function() return 1 end do end",
        "while true do pcall(string.match, ('a'):rep(30), ('a-'):rep(30) .. 'b') end",
        "while true do pcall(string.find, ('a'):rep(3e5), ('a?'):rep(3e5) .. 'b') end",
        "while true do pcall(string.gsub, 'a', '.', function() error(setmetatable({}, {__tostring = error})) end) end",
        "local c = coroutine.wrap(function() while true do pcall(error) coroutine.yield() end end) while true do c() end",
        "while true do struct.unpack(('B'):rep(7000), ('x'):rep(7000)) end",
        "while true do redis.log(redis.LOG_DEBUG, 'x') redis.sha1hex('x') end",
        "while true do local ok, e = pcall(redis.call, 'nosuch') e = ok end",
        "while true do local t = {} for i = 1, 50 do t = setmetatable({}, {__index = t}) end pcall(rawget, t, t.x) end",
    ];
    // A script's beginning, and then one call that takes long.
    let long_calls = [
        // A text that grows by one byte at a time, so that each is the largest so far.
        ("local s = ('x'):rep(1e5)", "while true do s = s .. 'x' end"),
        (
            "local t = ('x'):rep(100) for i = 1, 9 do local u = {} for n = 1, 10 do u[n] = t end t = u end",
            "while true do cjson.encode(t) end",
        ),
        ("local t = {} for i = 1, 3e5 do t[i] = i end", "while true do cjson.encode(t) end"),
        ("local s = '[' .. ('[1],'):rep(1e6) .. '2]'", "while true do cjson.decode(s) end"),
        ("local s = (' '):rep(5e7)", "while true do pcall(cjson.decode, s) end"),
        ("local s = '\"' .. ('\\\\n'):rep(1e7) .. '\"'", "while true do cjson.decode(s) end"),
        ("local t = 1 for i = 1, 15 do t = {t, t, t, t} end", "while true do pcall(cmsgpack.pack, t) end"),
        ("local s = '\\221\\0\\48\\0\\0' .. ('\\128'):rep(48 * 65536)", "while true do cmsgpack.unpack(s) end"),
        ("local s = ('x'):rep(5e7)", "while true do struct.size(s) end"),
        ("local s = ('b'):rep(1e6)", "while true do pcall(struct.pack, s, 1) pcall(struct.pack, (' '):rep(1e8)) end"),
        (
            "local t = {} for i = 1, 3e5 do t[i] = -i end",
            "while true do table.sort(t) table.sort(t, function(a, b) return a > b end) end",
        ),
        ("local t = {} for i = 1, 3e5 do t[i] = i end", "while true do pcall(table.sort, t, function() return true end) end"),
        ("local t = {} for i = 1, 3e5 do t[i] = i % 7 end", "while true do pcall(table.sort, t, rawequal) end"),
        (
            "local s, t = ('x'):rep(1e7), {} local a, b = s .. 1, s .. 2 for i = 1, 1e5 do t[i] = i % 2 == 0 and a or b end",
            "while true do table.sort(t) end",
        ),
        ("local t = {} for i = 1, 3e5 do t[i] = 'a' end", "while true do table.concat(t, ', ') end"),
        (
            "local t = {} for i = 1, 3e5 do t[i] = i end",
            "while true do table.maxn(t) table.foreach(t, tostring) table.foreachi(t, type) end",
        ),
        ("local t = {} for i = 1, 3e5 do t[i] = i end", "while true do table.insert(t, 1, 0) table.remove(t, 1) end"),
        ("", "table.insert({}, -2e9, 0)"),
        ("", "while true do ('xyz'):rep(1e8) end"),
        ("local s = ('x'):rep(2e7)", "while true do s:upper() s:lower() s:reverse() end"),
        ("local s = ('\\n'):rep(1e7)", "while true do ('%q'):format(s) end"),
        ("local s = ('x'):rep(2e7)", "while true do (s .. '%d' .. s):format(1) end"),
        ("local s = ('x'):rep(1e5)", "while true do s:find('[' .. ('a'):rep(1e5) .. ']') end"),
        ("local s = ('x'):rep(1e5)", "while true do s:gsub('.', tostring) end"),
        ("local s = ('x'):rep(1e5)", "while true do s:find('.-.-y') end"),
        ("local t = {} for i = 1, 3e5 do t[i] = i end for i = 1, 3e5 - 1 do t[i] = nil end", "while true do next(t) end"),
        ("local t = {} for i = 1, 3e5 do t['k' .. i] = i end for k in pairs(t) do t[k] = nil end", "while true do next(t) end"),
        ("local t = {} for i = 1, 7000 do t[i] = i end", "while true do select('#', unpack(t)) end"),
        ("local t = {} for i = 1, 3e5 do t[i] = {} end", "while true do collectgarbage() end"),
        ("local s = ('x'):rep(5e7)", "while true do redis.sha1hex(s) end"),
        (
            "local s = ('local a = 1 '):rep(1e6)",
            "while true do loadstring(s) loadstring('--' .. s) load(function() return s end) end",
        ),
        ("", "while true do redis.call('keys', '*') end"),
        ("", "while true do redis.call('scan', 0, 'match', 'x', 'count', 1000000) end"),
        ("", "while true do redis.call('hgetall', 'large') end"),
        ("", "while true do redis.call('mget', unpack(redis.call('keys', '*'), 1, 7000)) end"),
    ];
    let limit = THRESHOLD_MS.to_string();
    let program = Path::new(env!("CARGO_BIN_EXE_portcullis"));
    let server = Program::portcullis_with(program, &["--lua-time-limit", &limit]).unwrap();
    let addr = server.addr;
    let mut other = Client::new(addr);
    for number in 0..100 {
        let keys: Vec<String> = (0..500).map(|key| format!("key-{number}-{key}")).collect();
        let pairs: Vec<&str> = keys.iter().flat_map(|key| [key.as_str(), "value"]).collect();
        other.send(&[&[&["MSET"], pairs.as_slice()].concat(), &[&["HSET", "large"], pairs.as_slice()].concat()]);
        other.expect("+OK\r\n:500\r\n");
    }
    for script in scripts {
        kill_in_time(&server, &mut other, script, || {});
    }
    let mut listener = Client::new(addr);
    listener.send(&[&["SUBSCRIBE", "ready"]]);
    listener.expect("*3\r\n$9\r\nsubscribe\r\n$5\r\nready\r\n:1\r\n");
    for (before, call) in long_calls {
        kill_in_time(&server, &mut other, &format!("{before} redis.call('publish', 'ready', 'x') {call}"), || {
            listener.expect("*3\r\n$7\r\nmessage\r\n$5\r\nready\r\n$1\r\nx\r\n");
            std::thread::sleep(Duration::from_millis(THRESHOLD_MS));
        });
    }
}

/// Runs a script and kills it. Tries again if that took too long: other programs may have had the processor, and what its caches held.
fn kill_in_time(server: &Program, other: &mut Client, script: &str, mut wait: impl FnMut()) {
    let mut took = Vec::new();
    while took.len() < 3 {
        match kill(server, other, script, &mut wait) {
            in_time if in_time < KILLED_WITHIN => return,
            too_long => took.push(too_long),
        }
    }
    panic!("{took:?} for {script}");
}

/// Runs a script, and kills it once the server is busy and the script hangs. Returns how long the kill took, without the time for which
/// the server and this thread had to wait for a processor.
fn kill(server: &Program, other: &mut Client, script: &str, wait: impl FnOnce()) -> Duration {
    let addr = server.addr;
    let withheld = || withheld(server.pid()) + withheld_here();
    let mut runner = Client::new(addr);
    // The request behind the script in the pipeline waits for its end.
    runner.send(&[&["EVAL", script, "0"], &["PING", "next"]]);
    other.wait_until_busy();
    wait();
    let (began, before) = (Instant::now(), withheld());
    assert_eq!(other.ask(&["PING"]), BUSY);
    // A new client can connect.
    let mut killer = Client::new(addr);
    assert_eq!(killer.ask(&["SCRIPT", "KILL"]), "+OK\r\n", "{script}");
    let reply = runner.line();
    assert!(is_killed(&reply), "{reply} for {script}");
    let took = began.elapsed().saturating_sub(withheld().saturating_sub(before));
    runner.expect("$4\r\nnext\r\n");
    assert_eq!(killer.ask(&["PING"]), "+PONG\r\n");
    assert_eq!(other.ask(&["PING"]), "+PONG\r\n");
    assert_eq!(runner.ask(&["EVAL", "return 'again'", "0"]), "$5\r\n");
    took
}

#[test]
fn only_what_may_be_called_then_is_carried_out() {
    let server = start();
    let addr = server.addresses()[0];
    let (mut runner, mut other, mut late) = (Client::new(addr), Client::new(addr), Client::new(addr));
    assert_eq!(other.ask(&["SCRIPT", "KILL"]), "-NOTBUSY No scripts in execution right now.\r\n");
    late.0.write_all(b"*2\r\n$4\r\nECHO\r\n$5\r\nhe").unwrap();
    assert_eq!(other.ask(&["PING"]), "+PONG\r\n");
    runner.send(&[&["EVAL", FOREVER, "0"]]);
    other.wait_until_busy();
    other.send(&[
        &["SET", "a", "1"],
        &["nosuch"],
        &["get"],
        &["SHUTDOWN"],
        &["SCRIPT", "FLUSH"],
        &["EVAL", "return 1", "0"],
        &["RESET"],
        &["HELLO", "9"],
    ]);
    other.expect(BUSY);
    other.expect("-ERR unknown command 'nosuch', with args beginning with: \r\n");
    other.expect("-ERR wrong number of arguments for 'get' command\r\n");
    for _ in 0..3 {
        other.expect(BUSY);
    }
    other.expect("+RESET\r\n");
    other.expect("-NOPROTO unsupported protocol version\r\n");
    // Some connections end while the script runs.
    let mut broken = Client::new(addr);
    broken.0.write_all(b"*x\r\n").unwrap();
    broken.expect("-ERR Protocol error: invalid multibulk length\r\n");
    assert_eq!(broken.0.read(&mut [0]).unwrap(), 0);
    let mut quits = Client::new(addr);
    assert_eq!(quits.ask(&["QUIT"]), "+OK\r\n");
    assert_eq!(quits.0.read(&mut [0]).unwrap(), 0);
    drop(Client::new(addr));
    // No part of a request is lost, whether it comes during the script or later.
    let mut pieces = Client::new(addr);
    pieces.0.write_all(b"PING\r\n*2\r\n$4\r\nECHO\r\n$3\r\na").unwrap();
    pieces.expect(BUSY);
    late.0.write_all(b"llo\r\nPING\r\n").unwrap();
    assert_eq!(other.ask(&["SCRIPT", "KILL"]), "+OK\r\n");
    assert!(is_killed(&runner.line()));
    late.expect("$5\r\nhello\r\n+PONG\r\n");
    pieces.0.write_all(b"bc\r\nPING\r\n").unwrap();
    pieces.expect("$3\r\nabc\r\n+PONG\r\n");
    assert_eq!(other.ask(&["GET", "a"]), "$-1\r\n");
}

#[test]
fn a_script_that_wrote_is_not_killed_but_ends_with_the_server() {
    let mut server = start();
    let addr = server.addresses()[0];
    let (mut runner, mut other) = (Client::new(addr), Client::new(addr));
    runner.send(&[&["EVAL", "redis.call('set', 'a', 1) while true do end", "0"]]);
    other.wait_until_busy();
    assert_eq!(
        other.ask(&["SCRIPT", "KILL"]),
        "-UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the script \
         termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.\r\n"
    );
    assert_eq!(other.ask(&["PING"]), BUSY);
    other.send(&[&["SHUTDOWN", "NOSAVE"]]);
    assert_eq!(other.0.read(&mut [0]).unwrap(), 0);
    server.wait().unwrap();
}

#[test]
fn many_clients_are_answered_in_order_and_go_on_afterwards() {
    let server = start();
    let addr = server.addresses()[0];
    let mut runner = Client::new(addr);
    runner.send(&[&["EVAL", FOREVER, "0"]]);
    let (busy, have_seen_it) = std::sync::mpsc::channel();
    let clients: Vec<_> = (0..20)
        .map(|number: usize| {
            let busy = busy.clone();
            std::thread::spawn(move || {
                let mut client = Client::new(addr);
                client.wait_until_busy();
                busy.send(()).unwrap();
                let texts: Vec<String> = (0..200).map(|index| format!("{number}-{index}")).collect();
                let requests: Vec<[&str; 2]> = texts.iter().map(|text| ["PING", text.as_str()]).collect();
                // In small pieces: some come while the script runs, others after its end.
                let bytes: Vec<u8> = requests.iter().flat_map(|request| encode(request)).collect();
                for piece in bytes.chunks(7 + number) {
                    client.0.write_all(piece).unwrap();
                    std::thread::sleep(Duration::from_millis(2));
                }
                let mut answered = 0;
                for text in &texts {
                    let line = client.line();
                    if line == BUSY {
                        assert_eq!(answered, 0, "the server is busy no more once it has answered");
                    } else {
                        assert_eq!(line, format!("${}\r\n", text.len()));
                        client.expect(&format!("{text}\r\n"));
                        answered += 1;
                    }
                }
                answered
            })
        })
        .collect();
    // The script ends while they send: some of what they send comes before its end.
    clients.iter().for_each(|_| have_seen_it.recv().unwrap());
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(Client::new(addr).ask(&["SCRIPT", "KILL"]), "+OK\r\n");
    assert!(is_killed(&runner.line()));
    let answered: Vec<usize> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    println!("answered after the script, of 200 each: {answered:?}");
}

#[test]
fn a_function_is_killed_as_a_function() {
    let server = start();
    let addr = server.addresses()[0];
    let (mut runner, mut other) = (Client::new(addr), Client::new(addr));
    let library = "#!lua name=lib\nredis.register_function('hang', function() while true do end end)";
    assert_eq!(runner.ask(&["FUNCTION", "LOAD", library]), "$3\r\n");
    runner.expect("lib\r\n");
    runner.send(&[&["FCALL", "HANG", "1", "key", "an\r\nx"]]);
    let busy = BUSY.replace("SCRIPT KILL", "FUNCTION KILL");
    while other.ask(&["PING"]) != busy {}
    other.send(&[&["FUNCTION", "STATS"]]);
    other.expect(
        "*4\r\n$14\r\nrunning_script\r\n*6\r\n$4\r\nname\r\n$4\r\nhang\r\n\
         $7\r\ncommand\r\n*5\r\n$5\r\nFCALL\r\n$4\r\nHANG\r\n$1\r\n1\r\n$3\r\nkey\r\n$5\r\nan\r\nx\r\n$11\r\nduration_ms\r\n",
    );
    let ms: u64 = other.line().trim_matches([':', '\r', '\n']).parse().unwrap();
    assert!((THRESHOLD_MS..60_000).contains(&ms), "{ms}");
    let engines = "$7\r\nengines\r\n*2\r\n$3\r\nLUA\r\n*4\r\n$15\r\nlibraries_count\r\n:1\r\n$15\r\nfunctions_count\r\n:1\r\n";
    other.expect(engines);
    assert_eq!(other.ask(&["SCRIPT", "KILL"]), busy);
    assert_eq!(other.ask(&["FUNCTION", "KILL"]), "+OK\r\n");
    let reply = runner.line();
    assert!(reply.starts_with("-ERR Script killed by user with SCRIPT KILL... script: hang, on @user_function:2."), "{reply}");
    assert_eq!(other.ask(&["FUNCTION", "KILL"]), "-NOTBUSY No scripts in execution right now.\r\n");
    other.send(&[&["FUNCTION", "STATS"]]);
    other.expect(&format!("*4\r\n$14\r\nrunning_script\r\n$-1\r\n{engines}"));
    runner.send(&[&["EVAL", FOREVER, "0"]]);
    other.wait_until_busy();
    assert_eq!(other.ask(&["FUNCTION", "STATS"]), BUSY);
    assert_eq!(other.ask(&["FUNCTION", "KILL"]), BUSY);
    assert_eq!(other.ask(&["SCRIPT", "KILL"]), "+OK\r\n");
    assert!(is_killed(&runner.line()));
}

#[test]
fn a_library_that_loads_is_killed_as_a_function() {
    let server = start();
    let addr = server.addresses()[0];
    let (mut runner, mut other) = (Client::new(addr), Client::new(addr));
    let library = "#!lua name=lib\nlocal s = ('x'):rep(1e7) while true do local t = s .. 'x' end";
    runner.send(&[&["FUNCTION", "LOAD", library]]);
    let busy = BUSY.replace("SCRIPT KILL", "FUNCTION KILL");
    while other.ask(&["PING"]) != busy {}
    assert_eq!(other.ask(&["FUNCTION", "STATS"]), busy);
    assert_eq!(other.ask(&["FUNCTION", "KILL"]), "+OK\r\n");
    assert_eq!(runner.line(), "-ERR Error registering functions: ERR Script killed by user with SCRIPT KILL...\r\n");
    let library = "#!lua name=lib\nredis.register_function('f', function() return 1 end)";
    runner.send(&[&["FUNCTION", "LOAD", library], &["FCALL", "f", "0"]]);
    runner.expect("$3\r\nlib\r\n:1\r\n");
}

#[test]
fn events_of_a_script_are_published_while_it_runs() {
    let server = start();
    let addr = server.addresses()[0];
    let (mut runner, mut other, mut listener) = (Client::new(addr), Client::new(addr), Client::new(addr));
    assert_eq!(other.ask(&["CONFIG", "SET", "notify-keyspace-events", "KEAm"]), "+OK\r\n");
    listener.send(&[&["SUBSCRIBE", "__keyevent@0__:keymiss", "own"]]);
    listener.expect("*3\r\n$9\r\nsubscribe\r\n$22\r\n__keyevent@0__:keymiss\r\n:1\r\n");
    listener.expect("*3\r\n$9\r\nsubscribe\r\n$3\r\nown\r\n:2\r\n");
    runner.send(&[&[
        "EVAL",
        "redis.call('get', 'a') redis.call('publish', 'own', 'x') redis.call('get', 'b') while true do end",
        "0",
    ]]);
    listener.expect("*3\r\n$7\r\nmessage\r\n$22\r\n__keyevent@0__:keymiss\r\n$1\r\na\r\n");
    listener.expect("*3\r\n$7\r\nmessage\r\n$3\r\nown\r\n$1\r\nx\r\n");
    listener.expect("*3\r\n$7\r\nmessage\r\n$22\r\n__keyevent@0__:keymiss\r\n$1\r\nb\r\n");
    assert_eq!(other.ask(&["SCRIPT", "KILL"]), "+OK\r\n");
    assert!(is_killed(&runner.line()));
}

#[test]
fn locks_stay_as_they_are_until_a_long_script_has_ended() {
    // A lease that is over before the script begins, or a script that is over before the lease, shows nothing. Then both are longer.
    assert!((0..5).any(|doubled| locks_stay_during_a_script(100 << doubled)), "the script never ran while the lease ended");
}

/// Returns whether a script ran while this lease ended, and whether it began before that.
fn locks_stay_during_a_script(lease_ms: u64) -> bool {
    let server = start();
    let addr = server.addresses()[0];
    let clients = || Client::new(addr);
    let (mut runner, mut other, mut closing, mut first, mut second) = (clients(), clients(), clients(), clients(), clients());
    // A number of rounds that takes far longer than the lease on this machine.
    let began = Instant::now();
    assert_eq!(runner.ask(&["EVAL", "for _ = 1, 2e6 do end return 1", "0"]), ":1\r\n");
    let rounds = format!("{:.0}", 2e3 * (5 * lease_ms + 500) as f64 / began.elapsed().as_secs_f64());
    assert!(closing.ask(&["LOCK.ACQUIRE", "bound", "x", "100000", "SESSION"]).starts_with(':'));
    let token = closing.ask(&["LOCK.ACQUIRE", "short", "x", &lease_ms.to_string()]);
    let granted = Instant::now();
    first.send(&[&["LOCK.ACQUIRE", "bound", "y", "100000", "WAIT", "0"]]);
    second.send(&[&["LOCK.ACQUIRE", "short", "z", "100000", "WAIT", "0"]]);
    // Until both clients are blocked.
    let mut waiting = String::new();
    while waiting != "lock_waiters:2\r\n" {
        other.send(&[&["INFO", "locks"]]);
        let length: usize = other.line().trim_start_matches('$').trim_end().parse().unwrap();
        let mut text = vec![0; length + 2];
        other.0.read_exact(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        waiting = text.split_inclusive('\n').find(|line| line.starts_with("lock_waiters:")).unwrap().to_owned();
        if granted.elapsed() >= Duration::from_millis(lease_ms) {
            return false;
        }
    }
    // The script checks the lock until its lease is over, and then writes.
    let script = "local seen = {redis.call('lock.check', 'short', ARGV[1])} for _ = 1, ARGV[2] do end \
        for _, owner in ipairs({'x', 'z'}) do seen[#seen + 1] = redis.call('lock.check', 'short', ARGV[1]) end \
        redis.call('set', 'done', 1) return table.concat(seen)";
    runner.send(&[&["EVAL", script, "0", token.trim_start_matches(':').trim_end(), &rounds]]);
    drop(closing);
    // Until the lease has ended, which the script does not wait for.
    std::thread::sleep(Duration::from_millis(lease_ms + 50).saturating_sub(granted.elapsed()));
    let mut asking = Client::new(addr);
    let mut is_over = false;
    let told = [&mut first, &mut second].map(|waiter| {
        waiter.0.set_nonblocking(true).unwrap();
        let peeked = waiter.0.peek(&mut [0]);
        waiter.0.set_nonblocking(false).unwrap();
        // The script still runs after the look at the waiter.
        is_over |= asking.ask(&["PING"]) != BUSY;
        peeked.is_ok()
    });
    assert!(is_over || told == [false; 2], "{told:?} are told of a grant while the script runs");
    assert_eq!(runner.line(), "$3\r\n");
    let seen = runner.line();
    assert!(["111\r\n", "000\r\n"].contains(&seen.as_str()), "what a script sees does not change while it runs: {seen}");
    assert!(first.line().starts_with(':') && second.line().starts_with(':'));
    !is_over && seen == "111\r\n"
}

#[test]
fn without_a_threshold_nobody_is_told() {
    let server = start();
    let addr = server.addresses()[0];
    let (mut runner, mut other) = (Client::new(addr), Client::new(addr));
    assert_eq!(other.ask(&["CONFIG", "SET", "busy-reply-threshold", "0"]), "+OK\r\n");
    runner.send(&[&["EVAL", "local n = 0 for i = 1, 1e7 do n = n + i end return n", "0"]]);
    std::thread::sleep(Duration::from_millis(2));
    assert_eq!(other.ask(&["PING"]), "+PONG\r\n");
    assert_eq!(runner.line(), ":50000005000000\r\n");
}

#[test]
fn a_server_that_is_to_end_does_not_wait_for_its_scripts() {
    for threshold_ms in ["0", "50", "60000"] {
        for script in [FOREVER, "redis.call('set', 'a', 1) while true do end", "while true do redis.call('ping') end"] {
            let server = start();
            let mut runner = Client::new(server.addresses()[0]);
            assert_eq!(runner.ask(&["CONFIG", "SET", "busy-reply-threshold", threshold_ms]), "+OK\r\n");
            // The second script has not begun.
            runner.send(&[&["EVAL", script, "0"], &["EVAL", script, "0"]]);
            std::thread::sleep(Duration::from_millis(20));
            // These scripts do not end by themselves.
            let (ended, has_ended) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                drop(server);
                let _ = ended.send(());
            });
            assert!(has_ended.recv_timeout(PATIENCE).is_ok(), "it does not end: {script}");
        }
    }
}

#[test]
fn a_client_whose_replies_were_held_back_may_run_a_long_script() {
    let mut config = Config::default();
    config.set("port", b"0").unwrap();
    config.set("lua-time-limit", THRESHOLD_MS.to_string().as_bytes()).unwrap();
    let server = Server::start(config, ServerOptions { test_mode: true, frozen: true, ..ServerOptions::default() }).unwrap();
    let addr = server.addresses()[0];
    let (mut client, mut other) = (Client::new(addr), Client::new(addr));
    let value = "v".repeat(100);
    client.send(&[&["SET", "k", &value], &["FAULT", "ADD", "slow", "DELAY-REPLY", "50", "ON", "get", "TIMES", "1"]]);
    client.send(&[&["PING"], &["GET", "k"]]);
    client.expect("+OK\r\n+OK\r\n+PONG\r\n");
    // The delayed reply is due now, but the script comes first. Then the server looks at all sockets.
    client.send(&[&["CLOCK", "ADVANCE", "50"], &["EVAL", FOREVER, "0"], &["PING"]]);
    other.wait_until_busy();
    assert_eq!(other.ask(&["SCRIPT", "KILL"]), "+OK\r\n");
    client.expect(&format!("$100\r\n{value}\r\n+OK\r\n"));
    assert!(is_killed(&client.line()));
    client.expect("+PONG\r\n");
}

#[test]
fn what_a_pause_held_back_happens_when_it_ends_though_nobody_sends_anything() {
    let mut server = start();
    let addr = server.addresses()[0];
    let (mut pauser, mut other) = (Client::new(addr), Client::new(addr));
    assert_eq!(pauser.ask(&["CLIENT", "PAUSE", "100", "ALL"]), "+OK\r\n");
    other.send(&[&["SHUTDOWN", "NOSAVE"]]);
    assert_eq!(other.0.read(&mut [0]).unwrap(), 0);
    let (ended, hears) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(server.wait().is_ok()));
    assert_eq!(hears.recv_timeout(Duration::from_secs(20)), Ok(true), "the server has ended");
}
