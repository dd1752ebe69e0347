//! Semantics of scripts besides replies: what flags allow, which commands scripts may call, which database, time and memory they
//! see, and what other clients see of them.

use crate::commands;
use crate::engine::command::{Command, Flags};
use crate::engine::environment::Usage;
use crate::engine::harness::Harness;
use crate::engine::session::Peer;

/// The reply to a request.
#[track_caller]
fn send(h: &mut Harness, request: &[&str]) -> String {
    let args: Vec<&[u8]> = request.iter().map(|arg| arg.as_bytes()).collect();
    let reply = h.args(&args);
    h.engine.check_invariants();
    String::from_utf8_lossy(&reply).trim_end().replace("\r\n", " ")
}

/// The reply to a script. An error is returned without the place that raised it.
#[track_caller]
fn eval(h: &mut Harness, script: &str) -> String {
    let reply = send(h, &["EVAL", script, "0"]);
    reply.split(" script: ").next().unwrap_or_default().to_owned()
}

const READ_ONLY: &str = "-ERR Write commands are not allowed from read-only scripts.";
const NOT_RO: &str = "-ERR Can not execute a script with write flag using *_ro command.";
const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.";

/// The replies of EVAL, EVALSHA and FCALL, and those of their read-only variants, to a script or function with these flags. It
/// calls the command in its arguments.
fn run_all(h: &mut Harness, flags: &str, command: &[&str]) -> (Vec<String>, Vec<String>) {
    let script = format!("#!lua flags={flags}\nreturn redis.call(unpack(ARGV))");
    let listed: Vec<String> = flags.split(',').filter(|flag| !flag.is_empty()).map(|flag| format!("'{flag}'")).collect();
    let library = format!(
        "#!lua name=lib\nredis.register_function{{function_name='f', flags={{{}}}, \
         callback=function(keys, args) return redis.call(unpack(args)) end}}",
        listed.join(",")
    );
    send(h, &["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(send(h, &["FUNCTION", "LOAD", "REPLACE", &library]), "$3 lib");
    let sha = send(h, &["SCRIPT", "LOAD", &script])["$40 ".len()..].to_owned();
    let mut run = |name: &str, what: &str| {
        let reply = send(h, &[&[name, what, "0"], command].concat());
        reply.split(" script: ").next().unwrap_or_default().to_owned()
    };
    let mut both = |suffix: &str| {
        ["EVAL", "EVALSHA", "FCALL"]
            .map(|name| {
                let what = match name {
                    "EVAL" => script.as_str(),
                    "EVALSHA" => sha.as_str(),
                    _ => "f",
                };
                run(&format!("{name}{suffix}"), what)
            })
            .into()
    };
    (both(""), both("_RO"))
}

#[track_caller]
fn check(h: &mut Harness, flags: &str, command: &[&str], writing: &str, reading: &str) {
    let (write, read) = run_all(h, flags, command);
    assert_eq!(write, [writing; 3], "{flags} {command:?}");
    assert_eq!(read, [reading; 3], "{flags} {command:?}, by a command that cannot write");
}

#[test]
fn flags_decide_what_a_script_may_do() {
    let mut h = Harness::new();
    check(&mut h, "", &["set", "k", "v"], "+OK", NOT_RO);
    check(&mut h, "", &["get", "k"], "$1 v", NOT_RO);
    check(&mut h, "no-writes", &["set", "k", "w"], READ_ONLY, READ_ONLY);
    check(&mut h, "no-writes", &["get", "k"], "$1 v", "$1 v");
    // A command that may reach replicas counts as a write, although it changes no key.
    check(&mut h, "no-writes", &["publish", "c", "m"], READ_ONLY, READ_ONLY);
    for flags in ["allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys", "allow-oom,no-cluster"] {
        check(&mut h, flags, &["set", "k", "v"], "+OK", NOT_RO);
        check(&mut h, &format!("{flags},no-writes"), &["get", "k"], "$1 v", "$1 v");
        check(&mut h, &format!("{flags},no-writes"), &["set", "k", "v"], READ_ONLY, READ_ONLY);
    }
    // There is no cluster, so keys may have different slots.
    check(&mut h, "", &["mset", "a", "1", "b", "2"], "+OK", NOT_RO);
    // Without declared flags, only the flags of the commands matter.
    assert_eq!(eval(&mut h, "return redis.call('set', 'k', 'v')"), "+OK");
    assert!(send(&mut h, &["EVAL_RO", "return redis.call('set', 'k', 'v')", "0"]).starts_with(READ_ONLY));
    assert_eq!(send(&mut h, &["EVAL_RO", "return redis.pcall('del', 'k')", "0"]), READ_ONLY);
    assert_eq!(send(&mut h, &["EVAL_RO", "return redis.call('get', 'k')", "0"]), "$1 v");
    assert_eq!(eval(&mut h, "#!lua flags=bogus\nreturn 1"), "-ERR Unexpected flag in script shebang: bogus");
    assert_eq!(
        send(
            &mut h,
            &[
                "FUNCTION",
                "LOAD",
                "#!lua name=x\nredis.register_function{function_name='x', callback=function() end, flags={'bogus'}}"
            ]
        ),
        "-ERR Error registering functions: ERR unknown flag given"
    );
}

/// Exceeds `maxmemory`.
fn fill(h: &mut Harness) {
    h.engine.environment_mut().usage = Some(|| Usage { allocated: 900_000, ..Usage::default() });
    assert_eq!(send(h, &["CONFIG", "SET", "maxmemory", "1"]), "+OK");
    h.now.advance_us(1_000_000);
}

#[test]
fn declared_flags_decide_whether_a_script_runs_when_maxmemory_is_exceeded() {
    let mut h = Harness::new();
    for (flags, command, writing, reading) in [
        ("", &["get", "k"][..], OOM, OOM),
        ("", &["set", "k", "v"], OOM, OOM),
        ("no-cluster", &["get", "k"], OOM, OOM),
        ("allow-oom", &["set", "k", "v"], "+OK", NOT_RO),
        ("no-writes", &["get", "nosuch"], "$-1", "$-1"),
        ("no-writes", &["set", "k", "v"], READ_ONLY, READ_ONLY),
    ] {
        run_all(&mut h, flags, &["ping"]);
        fill(&mut h);
        let script = format!("#!lua flags={flags}\nreturn redis.call(unpack(ARGV))");
        for (suffix, expected) in [("", writing), ("_RO", reading)] {
            for (name, what) in [("EVAL", script.as_str()), ("FCALL", "f")] {
                let reply = send(&mut h, &[&[format!("{name}{suffix}").as_str(), what, "0"], command].concat());
                assert_eq!(reply.split(" script: ").next(), Some(expected), "{name}{suffix} {flags} {command:?}");
            }
        }
        send(&mut h, &["CONFIG", "SET", "maxmemory", "0"]);
    }
    // In a transaction, the script is refused when it is queued, and the transaction with it.
    fill(&mut h);
    for (script, queued, done) in [
        ("#!lua\nreturn 1", OOM, "-EXECABORT Transaction discarded because of previous errors."),
        ("#!lua flags=allow-oom\nreturn 1", "+QUEUED", "*1 :1"),
        ("return 1", "+QUEUED", "*1 :1"),
    ] {
        assert_eq!(send(&mut h, &["MULTI"]), "+OK");
        assert_eq!(eval(&mut h, script), queued);
        assert_eq!(send(&mut h, &["EXEC"]), done);
    }
    // If `maxmemory` is exceeded only after the script was queued, the whole transaction is refused.
    send(&mut h, &["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(send(&mut h, &["MULTI"]), "+OK");
    assert_eq!(eval(&mut h, "#!lua\nreturn 1"), "+QUEUED");
    let other = h.engine.connect(h.now, Peer::default());
    h.engine.execute(h.now, other, &[b"CONFIG", b"SET", b"maxmemory", b"1"]);
    h.now.advance_us(1_000_000);
    assert_eq!(
        send(&mut h, &["EXEC"]),
        "-EXECABORT Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'."
    );
}

#[test]
fn a_pause_of_writes_delays_scripts_that_may_write() {
    let mut h = Harness::new();
    let script = "#!lua flags=no-writes\nreturn redis.call('get', 'k')";
    let (writes, reads) = (
        [&["EVAL", "return 1", "0"][..], &["EVAL", "#!lua\nreturn 1", "0"], &["EVAL", "#!lua flags=allow-oom\nreturn 1", "0"]],
        [&["EVAL", script, "0"][..], &["EVAL_RO", "return 1", "0"], &["EVAL_RO", script, "0"]],
    );
    for (requests, held) in [(writes, true), (reads, false)] {
        for request in requests {
            assert_eq!(h.run("CLIENT PAUSE 1000 WRITE"), "+OK");
            let reply = send(&mut h, request);
            assert_eq!(reply.is_empty(), held, "{request:?}: {reply}");
            h.pass(2000);
            h.engine.sessions_mut()[h.session].out.clear();
        }
    }
}

/// Calls of a command or of its subcommands, each with its minimum number of arguments.
fn calls(command: &'static Command) -> Vec<(&'static Command, Vec<&'static str>)> {
    let call = |row: &'static Command, mut words: Vec<&'static str>| {
        words.resize(words.len().max(row.arity.unsigned_abs() as usize), "1");
        (row, words)
    };
    let mut calls = vec![call(command, vec![command.name])];
    calls.extend(command.subcommands.iter().map(|sub| call(sub, vec![command.name, sub.name])));
    if !command.subcommands.is_empty() {
        calls.remove(0);
    }
    calls
}

#[test]
fn scripts_cannot_call_commands_with_the_noscript_flag() {
    let mut h = Harness::new();
    let refused = "-ERR This Redis command is not allowed from script";
    let mut count = 0;
    for (_, words) in commands::all().flat_map(calls).filter(|(row, _)| row.flags.contains(Flags::NOSCRIPT)) {
        for function in ["call", "pcall"] {
            let script = format!("return redis.{function}(unpack(ARGV))");
            let reply = send(&mut h, &[&["EVAL", &script, "0"], words.as_slice()].concat());
            assert_eq!(reply.split(" script: ").next(), Some(refused), "{words:?}");
        }
        count += 1;
    }
    assert!(count > 50, "{count}");
    for (script, text) in [
        ("redis.call('eval', 'return 1', 0)", refused),
        ("redis.call('subscribe', 'c')", refused),
        ("redis.call('multi')", refused),
        ("redis.call('client', 'reply', 'off')", refused),
        ("redis.call('nosuch')", "-ERR Unknown Redis command called from script"),
        ("redis.call('get')", "-ERR Wrong number of args calling Redis command from script"),
    ] {
        assert_eq!(eval(&mut h, script), text);
    }
}

#[test]
fn a_select_lasts_as_long_as_the_script() {
    let mut h = Harness::new();
    let in_three = "redis.call('select', 3) redis.call('set', 'k', 'three')";
    assert_eq!(eval(&mut h, &format!("{in_three} return redis.call('get', 'k')")), "$5 three");
    h.script(&[("GET k", "$-1"), ("DBSIZE", ":0"), ("SELECT 3", "+OK"), ("GET k", "$5 three"), ("SELECT 0", "+OK")]);
    // Also if the script ends with an error.
    assert_eq!(eval(&mut h, &format!("{in_three} error('x')")), "-ERR user_script:1: x");
    assert_eq!(eval(&mut h, "return redis.call('select', 99)"), "-ERR DB index is out of range");
    h.script(&[("DBSIZE", ":0"), ("SELECT 5", "+OK")]);
    assert_eq!(eval(&mut h, "redis.call('set', 'here', 1) redis.call('select', 6) return redis.call('dbsize')"), ":0");
    h.script(&[("GET here", "$1 1"), ("MULTI", "+OK"), ("SELECT 7", "+QUEUED")]);
    assert_eq!(eval(&mut h, "redis.call('select', 8) return redis.call('set', 'k', 1)"), "+QUEUED");
    h.script(&[
        ("SET after 1", "+QUEUED"),
        ("EXEC", "*3 +OK +OK +OK"),
        ("KEYS *", "*1 $5 after"),
        ("SELECT 8", "+OK"),
        ("DBSIZE", ":1"),
    ]);
}

#[test]
fn time_does_not_advance_during_a_script() {
    let mut h = Harness::new();
    h.run("SET old v PX 5");
    h.now.advance_us(6_000);
    for (script, reply) in [
        (
            "local a = redis.call('time') for i = 1, 1e5 do end local b = redis.call('time') return a[1] == b[1] and a[2] == b[2]",
            ":1",
        ),
        ("redis.call('set', 'k', 'v', 'px', 1) for i = 1, 1e5 do end return redis.call('pttl', 'k')", ":1"),
        ("return redis.call('exists', 'old')", ":0"),
        ("redis.call('pexpireat', 'k', 1) return redis.call('exists', 'k')", ":0"),
    ] {
        assert_eq!(eval(&mut h, script), reply, "{script}");
    }
}

#[test]
fn keys_need_not_be_declared() {
    let mut h = Harness::new();
    assert_eq!(send(&mut h, &["EVAL", "return redis.call('set', 'other', KEYS[1])", "1", "named"]), "+OK");
    assert_eq!(eval(&mut h, "return redis.call('get', 'other')"), "$5 named");
}

#[test]
fn blocking_commands_do_not_block_in_a_script() {
    let mut h = Harness::new();
    for command in [
        "'blpop', 'no', 0",
        "'brpop', 'no', 0",
        "'blmove', 'no', 'b', 'left', 'right', 0",
        "'brpoplpush', 'no', 'b', 0",
        "'blmpop', 0, 1, 'no', 'left'",
        "'bzpopmin', 'no', 0",
        "'bzpopmax', 'no', 0",
        "'bzmpop', 0, 1, 'no', 'min'",
    ] {
        assert_eq!(eval(&mut h, &format!("return redis.call({command}) == false")), ":1", "{command}");
        assert_eq!(eval(&mut h, &format!("redis.setresp(3) return redis.call({command}) == nil")), ":1", "{command}");
    }
    assert_eq!(eval(&mut h, "redis.call('rpush', 'l', 'a') return redis.call('blpop', 'no', 'l', 0)"), "*2 $1 l $1 a");
    assert_eq!(eval(&mut h, "return redis.call('blpop', 'l', -1)"), "-ERR timeout is negative");
}

#[test]
fn setresp_lasts_for_one_run() {
    let mut h = Harness::new();
    h.run("HSET h a 1");
    for (script, reply) in [
        ("redis.setresp(3) return redis.call('hgetall', 'h').map.a", "$1 1"),
        ("return redis.call('hgetall', 'h')[2]", "$1 1"),
        ("redis.setresp(3) redis.setresp(2) return redis.call('hgetall', 'h')[2]", "$1 1"),
        ("redis.setresp(4)", "-ERR RESP version must be 2 or 3."),
        ("redis.setresp()", "-ERR redis.setresp() requires one argument."),
        ("return {redis.replicate_commands(), redis.replicate_commands('x')}", "*2 :1 :1"),
        ("return redis.set_repl(redis.REPL_NONE)", "$-1"),
        ("redis.set_repl(4)", "-ERR Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE."),
        ("return redis.breakpoint()", "$-1"),
        ("return redis.debug('x')", "$-1"),
    ] {
        assert_eq!(eval(&mut h, script), reply, "{script}");
    }
}

#[test]
fn errors_are_counted_by_their_codes() {
    let mut h = Harness::new();
    h.run("HSET h a 1");
    for (script, codes) in [
        ("return redis.call('incr', 'h')", "WRONGTYPE=1"),
        ("redis.pcall('incr', 'h') redis.pcall('incr', 'h')", "WRONGTYPE=2"),
        ("pcall(redis.call, 'incr', 'h') error('x')", "ERR=1 WRONGTYPE=1"),
        ("return redis.pcall('incr', 'h')", "WRONGTYPE=1"),
        ("return {redis.pcall('incr', 'h'), {err = 'MY own'}}", "MY=1 WRONGTYPE=1"),
        ("return redis.error_reply('MY own')", "MY=1"),
        ("return redis.error_reply('alone')", "ERR=1"),
        ("return {err = 'alone'}", "ERR=1"),
        ("return {err = ''}", "ERR=1"),
        ("return {err = ('X'):rep(31) .. ' y'}", "ERR=1"),
        ("return {err = ('X'):rep(30) .. ' y'}", "XXXXXXXXXXXXXXXXXXXXXXXXXXXXXX=1"),
        ("pcall(error, 'x')", ""),
        ("syntax error", "ERR=1"),
    ] {
        h.run("CONFIG RESETSTAT");
        eval(&mut h, script);
        let counted: Vec<_> = h.engine.stats().errors.iter().map(|(code, count)| format!("{code}={count}")).collect();
        assert_eq!(counted.join(" "), codes, "{script}");
    }
}

#[test]
fn failed_and_rejected_calls_are_counted_for_their_commands() {
    let mut h = Harness::new();
    h.run("HSET h a 1");
    let library = "#!lua name=l\nredis.register_function('f', function() return redis.call('incr', 'h') end)";
    h.args(&[b"FUNCTION", b"LOAD", library.as_bytes()]);
    for (request, counted) in [
        ("EVAL|return redis.call('get', 'k')|0", "eval=1,0,0 get=1,0,0"),
        ("EVAL|return redis.call('incr', 'h')|0", "eval=1,0,1 incr=1,0,1"),
        ("EVAL|return redis.pcall('incr', 'h')|0", "eval=1,0,1 incr=1,0,1"),
        ("EVAL|return {1, redis.pcall('incr', 'h')}|0", "eval=1,0,1 incr=1,0,1"),
        ("EVAL|redis.pcall('incr', 'h') return 1|0", "eval=1,0,0 incr=1,0,1"),
        ("EVAL|return {err = 'MY own'}|0", "eval=1,0,1"),
        ("EVAL|error('x')|0", "eval=1,0,1"),
        ("EVAL|syntax error|0", "eval=1,0,1"),
        ("EVAL|return redis.pcall('nosuch').err|0", "eval=1,0,0"),
        ("EVAL|return redis.pcall('get').err|0", "eval=1,0,0 get=0,1,0"),
        ("EVAL|return redis.pcall('multi').err|0", "eval=1,0,0 multi=0,1,0"),
        ("EVAL_RO|return redis.pcall('set', 'k', 'v').err|0", "eval_ro=1,0,0 set=0,1,0"),
        ("FCALL|f|0", "fcall=1,0,1 incr=1,0,1"),
        ("FCALL|g|0", "fcall=1,0,1"),
    ] {
        h.run("CONFIG RESETSTAT");
        h.args(&request.split('|').map(str::as_bytes).collect::<Vec<_>>());
        let info = h.run("INFO commandstats");
        let figure = |line: &str, name: &str| {
            line.split(',')
                .find_map(|part| part.split_once('=').filter(|(key, _)| key.ends_with(name)))
                .map_or("", |(_, value)| value)
                .to_owned()
        };
        let mut shown: Vec<String> = info
            .split("cmdstat_")
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .filter(|(name, _)| *name != "info" && !name.starts_with("config"))
            .map(|(name, line)| {
                let line = line.split_whitespace().next().unwrap_or_default();
                format!("{name}={},{},{}", figure(line, "calls"), figure(line, "rejected_calls"), figure(line, "failed_calls"))
            })
            .collect();
        shown.sort();
        assert_eq!(shown.join(" "), counted, "{request}");
    }
}

#[test]
fn scripts_of_a_no_touch_client_do_not_touch_keys() {
    let mut h = Harness::new();
    h.script(&[("SET k v", "+OK"), ("CLIENT NO-TOUCH on", "+OK")]);
    h.pass(5000);
    assert_eq!(eval(&mut h, "return redis.call('get', 'k')"), "$1 v");
    assert_eq!(h.run("OBJECT IDLETIME k"), ":5");
    assert_eq!(eval(&mut h, "return redis.call('touch', 'k')"), ":1");
    assert_eq!(h.run("OBJECT IDLETIME k"), ":0");
    h.pass(5000);
    h.script(&[("CLIENT NO-TOUCH off", "+OK"), ("OBJECT IDLETIME k", ":5")]);
    assert_eq!(eval(&mut h, "return redis.call('get', 'k')"), "$1 v");
    assert_eq!(h.run("OBJECT IDLETIME k"), ":0");
}

#[test]
fn events_of_a_script_are_sent_after_each_command() {
    let mut h = Harness::new();
    let script = "for i = 1, 1000 do redis.call('set', 'k' .. i % 10, i) end return redis.call('del', 'k1', 'k2', 'k3')";
    h.run("CONFIG SET notify-keyspace-events KEA");
    // Without listeners, nothing is kept.
    assert_eq!(eval(&mut h, script), ":3");
    assert_eq!(h.engine.keyspace().changes.pending.capacity(), 0);
    let listener = h.engine.connect(h.now, Peer::default());
    h.engine.execute(h.now, listener, &[b"PSUBSCRIBE", b"__keyevent@0__:*"]);
    h.engine.sessions_mut()[listener].out.clear();
    assert_eq!(eval(&mut h, script), ":3");
    let heard = String::from_utf8_lossy(&h.engine.sessions()[listener].out).into_owned();
    assert_eq!(heard.matches("__keyevent@0__:set\r\n").count(), 1000);
    assert_eq!(heard.matches("__keyevent@0__:del\r\n").count(), 3);
    let kept = h.engine.keyspace().changes.pending.capacity();
    assert!((1..10).contains(&kept), "{kept}: no more than one command's");
    h.engine.disconnect(h.now, listener);
    assert_eq!(eval(&mut h, script), ":3");
    h.engine.check_invariants();
}
