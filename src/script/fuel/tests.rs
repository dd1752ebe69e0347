//! `os.clock` and the limit of steps.

use crate::engine::harness::Harness;
use crate::script::tests::Scripted;

/// By how many microseconds `os.clock()` advances during this work of a script.
fn clock_us(server: &mut Scripted, work: &str) -> i64 {
    let script = format!("local began = os.clock() {work} return (os.clock() - began) * 1e6");
    let reply = server.eval(&script);
    reply.trim_start_matches(':').trim_end().parse().unwrap_or_else(|_| panic!("{work}: {reply}"))
}

#[test]
fn os_clock_advances_with_the_work_of_the_script() {
    let mut server = Scripted::new();
    server.send(&["RPUSH", "l", "a", "b", "c"]);
    assert!(clock_us(&mut server, "").abs() < 10);
    // A million instructions cost 3 ms, and a call of any kind about as much as twenty instructions.
    for (work, least, most) in [
        ("for i = 1, 1e6 do end", 2_900, 3_100),
        ("for i = 1, 1e4 do redis.call('get', 'k') end", 600, 1_500),
        ("for i = 1, 1e4 do redis.call('lrange', 'l', 0, 2) end", 600, 2_700),
        ("for i = 1, 1e4 do redis.pcall('get', 'l') end", 600, 1_500),
        ("coroutine.wrap(function() for i = 1, 1e6 do end end)()", 2_900, 3_100),
    ] {
        let took = clock_us(&mut server, work);
        assert!((least..=most).contains(&took), "{work}: {took}");
        assert_eq!(clock_us(&mut Scripted::new(), work), clock_us(&mut Scripted::new(), work), "the value is deterministic");
    }
    // It never goes back. TIME does not advance.
    let steps = "local last = os.clock() for i = 1, 1e5 do local now = os.clock() if now <= last then return 0 end last = now end return 1";
    assert_eq!(server.eval(steps), ":1\r\n");
    let time =
        "local a = redis.call('time') for i = 1, 1e5 do end local b = redis.call('time') return a[1] == b[1] and a[2] == b[2]";
    assert_eq!(server.eval(time), ":1\r\n");
}

#[test]
fn a_script_that_waits_by_os_clock_ends() {
    let mut server = Scripted::new();
    let waits = "local began = os.clock() while os.clock() - began < 0.05 do end return 'done'";
    assert_eq!(server.eval(waits), "$4\r\ndone\r\n");
}

#[test]
fn the_step_limit_ends_scripts_at_the_same_step_each_time() {
    let mut h = Harness::new();
    h.engine.bound_scripts(Some(200_000));
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
    // Work within one call counts as well, and always the same amount.
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
        // A round costs more than twenty steps, so 200,000 steps are fewer than 10,000 rounds.
        assert!(counts[0].len() <= "$4 1234".len(), "{} rounds of {script}", counts[0]);
    }
    h.script(&[("EVAL return(7) 0", ":7"), ("SCRIPT KILL", "-NOTBUSY No scripts in execution right now.")]);
}
