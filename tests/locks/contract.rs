//! The contract of the native locks, sentence by sentence, where `rules.rs` has no rule of that name: words, replies of every
//! command with both protocols, errors, and coexistence with plain keys. The clock is frozen unless a scene moves it.

use std::time::Duration;

use portcullis::testing::TestServer;

use crate::common::scenes::play_here;
use crate::common::talk::{call, token};
use crate::common::wire::{Frame, Wire};

const WRONGTYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

#[test]
fn names_and_owners_are_any_bytes() {
    let server = TestServer::builder().frozen(true).start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    let long = vec![0xff; 70_000];
    for (name, owner) in [(&b""[..], &b""[..]), (b"\r\n\0", b"\xfe '\x80"), (b"n", &long[..1024]), (&long, b"o")] {
        let acquired = wire.call(&[b"LOCK.ACQUIRE", name, owner, b"1000"]).unwrap();
        assert!(acquired.frame.integer().is_some(), "{}", String::from_utf8_lossy(&acquired.raw));
        assert_eq!(wire.call(&[b"LOCK.ACQUIRE", name, b"other", b"1000"]).unwrap().raw, b"$-1\r\n");
        assert!(wire.call(&[b"LOCK.RELEASE", name, b"other"]).unwrap().frame.is_error("NOTHELD lock '"));
        assert_eq!(wire.call(&[b"LOCK.RENEW", name, owner, b"7"]).unwrap().raw, b":7\r\n");
        assert_eq!(wire.call(&[b"LOCK.RELEASE", name, owner]).unwrap().raw, b":0\r\n");
    }
    let refused = wire.call(&[&b"LOCK.ACQUIRE"[..], b"n", &long[..1025], b"1000"]).unwrap();
    assert_eq!(refused.raw, b"-ERR owner is too long\r\n");
    server.check_invariants();
}

#[test]
fn tokens_begin_at_the_clock_and_grow_for_any_name_and_across_restarts() {
    let mut last = 0;
    for _ in 0..2 {
        let server = TestServer::builder().frozen(true).start();
        let mut wire = Wire::connect(server.addr()).unwrap();
        let began = server.clock().now_unix_ms() * 2048;
        let first = token(&mut wire, "LOCK.ACQUIRE a x 1000");
        assert!(first <= began && first > began - 2048 * 60_000 && first > last && first < 1 << 53, "{first} at {began}");
        last = first;
        for request in ["SEM.ACQUIRE s x 1000 LIMIT 2", "LOCK.ACQUIRE b x 1000 SHARED", "SEM.ACQUIRE s y 1000 LIMIT 2"] {
            let next = token(&mut wire, request);
            assert_eq!(next, last + 1, "{request}");
            last = next;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn words_are_taken_in_any_case_and_order_and_refused_where_they_make_no_sense() {
    let mut scene = String::from(
        "A: lock.acquire a x 1000 maxhold 5000 session Wait 0 delay 5 shared => :*
         A: lock.release a x all => :0
         A: LOCK.ACQUIRE a x 8796093022208 => :*
         A: LOCK.RELEASE a x => :0\n",
    );
    for (request, error) in [
        ("LOCK.ACQUIRE a x 1000 WAIT", "ERR syntax error"),
        ("LOCK.ACQUIRE a x 1000 FOREVER", "ERR syntax error"),
        ("LOCK.ACQUIRE a x 1000 WAIT 1.5", "ERR value is not an integer or out of range"),
        ("LOCK.ACQUIRE a x 1000 WAIT 8796093022209", "ERR timeout is out of range"),
        ("LOCK.ACQUIRE a x 1000 DELAY -1", "ERR delay is out of range, must be at least 0 ms"),
        ("LOCK.ACQUIRE a x 1000 MAXHOLD 0", "ERR maxhold is out of range, must be at least 1 ms"),
        ("LOCK.ACQUIRE a x -1", "ERR lease is out of range, must be at least 1 ms"),
        ("LOCK.ACQUIRE a x 8796093022209", "ERR lease is out of range, must be at least 1 ms"),
        ("LOCK.ACQUIREALL 1 a x 1000 SHARED", "ERR syntax error"),
        ("LOCK.ACQUIREALL 1 a x 1000 DELAY 1", "ERR syntax error"),
        ("LOCK.ACQUIREALL 0 a x 1000", "ERR numnames must be between 1 and 1024"),
        ("LOCK.ACQUIREALL x a x 1000", "ERR value is not an integer or out of range"),
        ("LOCK.ACQUIREALL 9 a x 1000", "ERR syntax error"),
        ("LOCK.RELEASE a x EVERYTHING", "ERR syntax error"),
        ("LOCK.RENEW a x 0", "ERR lease is out of range, must be at least 1 ms"),
        ("LOCK.CHECK a x", "ERR value is not an integer or out of range"),
        ("LOCK.CHECK a -1", "ERR value is not an integer or out of range"),
        ("LOCK.GUARD a -1", "ERR value is not an integer or out of range"),
        ("LOCK.INFO", "ERR wrong number of arguments for 'lock.info' command, usage: LOCK.INFO key"),
        ("LOCK.LIST MATCH", "ERR syntax error"),
        ("LOCK.LIST COUNT x", "ERR value is not an integer or out of range"),
        ("SEM.ACQUIRE s x 1000 PERMITS 1", "ERR syntax error"),
        ("SEM.ACQUIRE s x 1000 LIMIT 0", "ERR limit must be between 1 and 1048576"),
        ("SEM.ACQUIRE s x 1000 LIMIT 1048577", "ERR limit must be between 1 and 1048576"),
        ("SEM.ACQUIRE s x 1000 LIMIT 2 PERMITS 0", "ERR permits must be between 1 and 1048576"),
        ("SEM.ACQUIRE s x 1000 LIMIT 2 SHARED", "ERR syntax error"),
        (
            "SEM.RELEASE s",
            "ERR wrong number of arguments for 'sem.release' command, usage: SEM.RELEASE key id [ALL] [TOKEN token] [REQUEST id]",
        ),
        ("SEM.RELEASE s x SOME", "ERR syntax error"),
        ("LOCK.ACQUIRE a x 1000 REQUEST", "ERR syntax error"),
        ("LOCK.RELEASE a x TOKEN", "ERR syntax error"),
        ("LOCK.RELEASE a x TOKEN y", "ERR value is not an integer or out of range"),
        ("LOCK.RENEW a x 1000 TOKEN", "ERR syntax error"),
        ("LOCK.RENEW a x 1000 REQUEST r", "ERR syntax error"),
        ("LOCK.SESSION s GRACE", "ERR syntax error"),
        ("LOCK.SESSION s GRACE -1", "ERR grace is out of range, must be at least 0 ms"),
        ("LOCK.SESSION s GRACE 1 END", "ERR syntax error"),
        (
            "LOCK.SESSION",
            "ERR wrong number of arguments for 'lock.session' command, usage: LOCK.SESSION id [GRACE milliseconds | END]",
        ),
        ("LATCH.SET l -1", "ERR count is out of range, must be positive"),
        ("LATCH.SET l 1 PX 0", "ERR time is out of range, must be at least 1 ms"),
        ("LATCH.SET l 1 EX 1", "ERR syntax error"),
        ("LATCH.DOWN l x", "ERR value is not an integer or out of range"),
        ("LATCH.AWAIT l FOR 1", "ERR syntax error"),
        ("LATCH.AWAIT l WAIT -1", "ERR timeout is negative"),
    ] {
        scene += &format!("A: {request} => -{error}\n");
    }
    // A refused command changes nothing.
    scene += "A: DBSIZE => :0\n";
    play_here(&scene);
}

#[test]
fn replies_are_the_same_in_both_protocols_but_for_nil() {
    for (hello, nil, nils, greeting) in [("2", "$-1", "*-1", "*14*"), ("3", "_", "_", "%7*")] {
        play_here(&format!(
            "A: HELLO {hello} => {greeting}
             B: HELLO {hello} => {greeting}
             A: LOCK.ACQUIRE a x 1000 => :*
             B: LOCK.ACQUIRE a y 1000 => {nil}
             B: LOCK.ACQUIRE a y 1000 WAIT 5
             pass 5
             B <= {nil}
             B: LOCK.ACQUIREALL 2 a b y 1000 => {nils}
             B: LOCK.ACQUIREALL 2 a b y 1000 WAIT 5
             pass 5
             B <= {nils}
             B: MULTI => +OK
             B: LOCK.ACQUIREALL 2 a b y 1000 WAIT 5 => +QUEUED
             B: SEM.ACQUIRE s y 1000 LIMIT 1 WAIT 0 => +QUEUED
             B: SEM.ACQUIRE s z 1000 LIMIT 1 WAIT 0 => +QUEUED
             B: LATCH.AWAIT none WAIT 0 => +QUEUED
             B: EXEC => *4 {nils} :*
             B: SEM.ACQUIRE s z 1000 LIMIT 1 => {nil}
             B: SEM.ACQUIRE s z 1000 LIMIT 1 WAIT 5
             pass 5
             B <= {nil}
             B: LATCH.AWAIT none WAIT 5
             pass 5
             B <= {nil}
             B: LATCH.DOWN none => {nil}
             A: LOCK.INFO none => {nil}
             A: SEM.INFO none => {nil}
             B: LOCK.ACQUIRE a y 1000 WAIT 0
             A: CLIENT UNBLOCK <B> => :1
             B <= {nil}
             B: LOCK.ACQUIREALL 2 a b y 1000 WAIT 0
             A: CLIENT UNBLOCK <B> => :1
             B <= {nils}
             A: LOCK.CHECK a 1 => :0
             A: LOCK.RELEASE a x => :0
             A: LOCK.LIST CONTENDED => *0
             A: LOCK.WHY none => *0"
        ));
    }
}

#[test]
fn scripts_take_and_give_back_but_never_wait() {
    play_here(
        "A: EVAL return\\sredis.call('lock.acquire',KEYS[1],ARGV[1],1000) 1 a x => :*
         A: EVAL return\\sredis.call('lock.acquireall',2,'a','b','y',1000,'WAIT',0) 2 a b => $-1
         A: EVAL return\\s#redis.call('lock.acquireall',2,'c','b','y',1000,'WAIT',0) 2 c b => :2
         A: EVAL return\\sredis.call('sem.acquire','s','y',1000,'LIMIT',1,'WAIT',0)>0 1 s => :1
         A: EVAL return\\sredis.call('sem.acquire','s','z',1000,'LIMIT',1,'WAIT',0) 1 s => $-1
         A: EVAL return\\sredis.call('latch.await','l','WAIT',0) 1 l => $-1
         A: EVAL return\\sredis.pcall('lock.release','a','y').err 1 a => $57 NOTHELD lock 'a' is not held by 'y': held by 'x' for 0 ms
         A: EVAL return\\sredis.call('lock.renew','a','x',5000) 1 a => :5000
         A: EVAL return\\sredis.call('type','a').ok 1 a => $4 lock
         A: EVAL return\\sredis.call('lock.release','a','x') 1 a => :0
         # A lock that a script frees is granted to a waiter when the script has ended, and to no client before.
         A: LOCK.ACQUIRE a x 1000 => :*
         B: LOCK.ACQUIRE a w 1000 WAIT 0
         A: EVAL redis.call('del','a')return\\sredis.call('lock.acquire','a','x',1000) 1 a => $-1
         B <= :*",
    );
}

#[test]
fn a_lock_is_checked_by_its_token() {
    let server = TestServer::builder().frozen(true).start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    let lock = token(&mut wire, "LOCK.ACQUIRE a x 10");
    let shared = [token(&mut wire, "LOCK.ACQUIRE b x 10 SHARED"), token(&mut wire, "LOCK.ACQUIRE b y 20 SHARED")];
    let permits = token(&mut wire, "SEM.ACQUIRE s x 10 LIMIT 2");
    let check = |wire: &mut Wire, name: &str, token: i64| call(wire, &format!("LOCK.CHECK {name} {token}"));
    for (name, token) in [("a", lock), ("b", shared[0]), ("b", shared[1]), ("s", permits)] {
        assert_eq!(check(&mut wire, name, token), ":1");
        assert_eq!(check(&mut wire, name, token + 100), ":0");
    }
    assert_eq!(check(&mut wire, "b", lock), ":0", "that of another name");
    assert_eq!(check(&mut wire, "none", lock), ":0");
    server.clock().advance(Duration::from_millis(10));
    assert_eq!(
        [("a", lock), ("b", shared[0]), ("b", shared[1])].map(|(name, token)| check(&mut wire, name, token)),
        [":0", ":0", ":1"]
    );
    for key in ["SET a plain", "LATCH.SET b2 1", "LOCK.GUARD b3 1"] {
        call(&mut wire, key);
    }
    for name in ["a", "b2", "b3"] {
        assert_eq!(check(&mut wire, name, 1), WRONGTYPE);
    }
}

#[test]
fn several_locks_are_taken_besides_those_that_are_held_already() {
    let server = TestServer::builder().frozen(true).start();
    let (mut a, mut b) = (Wire::connect(server.addr()).unwrap(), Wire::connect(server.addr()).unwrap());
    let held = token(&mut a, "LOCK.ACQUIRE m x 1000");
    let reply = a.call(&["LOCK.ACQUIREALL", "3", "z", "m", "b", "x", "1000", "SESSION"]).unwrap();
    let tokens: Vec<i64> = reply.frame.elements().unwrap().iter().map(|token| token.integer().unwrap()).collect();
    assert_eq!(tokens, [held + 1, held, held + 2], "in the order asked, and the same where it was held");
    assert_eq!(call(&mut a, "LOCK.RELEASE m x"), ":1", "it is held twice");
    // All holds of A end with its connection.
    b.queue(&["LOCK.ACQUIREALL", "3", "b", "m", "z", "y", "1000", "WAIT", "0"]);
    b.flush().unwrap();
    while !call(&mut a, "LOCK.STATS").contains("waiting :1 ") {}
    drop(a);
    let granted = b.reply().unwrap();
    let tokens: Vec<i64> = granted.frame.elements().unwrap().iter().map(|token| token.integer().unwrap()).collect();
    assert!(tokens.len() == 3 && tokens.is_sorted() && tokens[0] > held, "{tokens:?}");
    server.check_invariants();
}

#[test]
fn a_session_ends_for_whatever_reason_and_with_its_delay() {
    for (request, reply) in [("QUIT", "+OK"), ("CLIENT KILL ID <A> SKIPME no", ":1"), ("RESET", "+RESET")] {
        play_here(&format!(
            "A: LOCK.ACQUIRE a x 100000 SESSION => :*
             A: SEM.ACQUIRE s x 100000 LIMIT 1 SESSION => :*
             A: LOCK.ACQUIRE d x 100000 SESSION DELAY 50 => :*
             A: LOCK.ACQUIRE r x 100000 SESSION => :*
             B: LOCK.ACQUIRE a y 1000 => $-1
             B: LOCK.ACQUIRE a y 1000 WAIT 0
             C: SEM.ACQUIRE s y 1000 LIMIT 1 WAIT 0
             D: LOCK.ACQUIRE d y 1000 WAIT 0
             A: {request} => {reply}
             B <= :*
             C <= :*
             D: PING ...
             pass 49
             pass 1
             D <= :*
             D <= +PONG"
        ));
    }
    // A wait for several names ends with its connection too.
    play_here(
        "A: LOCK.ACQUIRE a x 1000 => :*
         B: LOCK.ACQUIREALL 2 a b y 1000 WAIT 0
         C: LOCK.ACQUIRE b z 1000 => $-1
         B closes
         C: LOCK.ACQUIRE b z 1000 => :*
         C: LOCK.INFO a => *20*",
    );
}

#[test]
fn whoever_speaks_resp2_is_not_told_of_a_loss() {
    play_here(
        "A: LOCK.ACQUIRE a x 10 => :*
         pass 10
         A: LOCK.ACQUIRE a x 1000 => :*
         B: DEL a => :1
         A: PING => +PONG
         # The message goes to the connection that acquired the lock, not to the one that renewed it.
         C: HELLO 3 => %7*
         A: LOCK.ACQUIRE a x 10 => :*
         C: LOCK.RENEW a x 20 => :20
         pass 20
         C: PING => +PONG",
    );
}

#[test]
fn rule_7_semaphores_count_only_with_one_permit() {
    play_here(
        "A: LOCK.ACQUIRE a x 1000 => :*
         B: SEM.ACQUIRE s y 1000 LIMIT 2 PERMITS 2 => :*
         A: SEM.ACQUIRE s x 1000 LIMIT 2 WAIT 0
         # With a lock this would be a cycle.
         B: LOCK.ACQUIRE a y 1000 WAIT 10
         pass 10
         B <= $-1
         B: SEM.RELEASE s y => :0
         A <= :*",
    );
}

#[test]
fn a_semaphore_tells_who_has_its_permits() {
    let server = TestServer::builder().frozen(true).start();
    let (mut a, mut b) = (Wire::connect(server.addr()).unwrap(), Wire::connect(server.addr()).unwrap());
    call(&mut a, "HELLO 3");
    token(&mut a, "SEM.ACQUIRE s x 1000 LIMIT 5 PERMITS 3");
    token(&mut a, "SEM.ACQUIRE s y 500 LIMIT 5");
    b.queue(&["SEM.ACQUIRE", "s", "z", "1000", "LIMIT", "5", "PERMITS", "2", "WAIT", "0"]);
    b.flush().unwrap();
    while !call(&mut a, "LOCK.STATS").contains("$7 waiting :1") {}
    let info = call(&mut a, "SEM.INFO s");
    for part in [
        "%12 $4 kind $9 semaphore $4 mode $9 semaphore $5 limit :5 $7 permits :4 $5 fence :",
        "$7 holders *2 %14 $5 owner $1 x ",
        "$4 mode $6 shared $7 permits :3 $5 lease :1000",
        "$7 waiters *1 %8 $5 owner $1 z $4 mode $6 shared $7 permits :2 $6 waited :0 $4 left _ ",
    ] {
        assert!(info.contains(part), "{part}: {info}");
    }
    assert!(call(&mut a, "LOCK.INFO s").contains("$4 kind $9 semaphore "), "it shows every kind");
    token(&mut a, "LOCK.ACQUIRE l x 1000");
    assert_eq!(call(&mut a, "SEM.INFO l"), WRONGTYPE);
    assert_eq!(call(&mut a, "SEM.RELEASE l x"), WRONGTYPE);
    assert_eq!(call(&mut a, "LOCK.RENEW s x 1"), WRONGTYPE);
    assert_eq!(call(&mut a, "PTTL s"), ":1000", "the longest holder's lease");
    server.clock().advance(Duration::from_millis(500));
    assert!(b.reply().unwrap().frame.integer().is_some(), "permits come back one lease at a time");
}

#[test]
fn a_latch_is_counted_down_by_many_and_opens_once() {
    play_here(
        "A: LATCH.DOWN l => $-1
         A: LATCH.SET l 3 => :1
         A: LATCH.DOWN l 0 => :3
         A: LATCH.DOWN l 2 => :1
         A: LATCH.SET l 9 => :0
         B: LATCH.AWAIT l WAIT 0
         A: LATCH.DOWN l 100 => :0
         B <= :1
         A: LATCH.DOWN l => :0
         A: LATCH.SET l 1 => :1
         B: LATCH.AWAIT l WAIT 0
         # A deleted latch does not open.
         A: DEL l => :1
         A: LATCH.SET l 1 => :1
         A: MULTI => +OK
         A: LATCH.DOWN l => +QUEUED
         A: LATCH.SET l 5 => +QUEUED
         A: EXEC => *2 :0 :1
         A: LATCH.DOWN l 5 => :0
         B <= :1
         A: LOCK.ACQUIRE l x 1000 => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: LATCH.SET lock 1 => :1
         A: GET lock => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: LOCK.ACQUIRE held x 1000 => :*
         A: LATCH.SET held 1 => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: LATCH.DOWN held => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: LATCH.AWAIT held WAIT 1 => -WRONGTYPE Operation against a key holding the wrong kind of value",
    );
}

#[test]
fn a_guard_is_a_key() {
    play_here(
        "A: LOCK.GUARD r 7 => +OK
         A: EXISTS r => :1
         A: KEYS * => *1 $1 r
         A: SCAN 0 TYPE guard => *2 $1 0 *1 $1 r
         A: OBJECT REFCOUNT r => :1
         A: PEXPIRE r 10 => :1
         A: PTTL r => :10
         A: PERSIST r => :1
         A: PEXPIRE r 10 => :1
         A: LOCK.GUARD r 6 => -STALE token 6 is behind 7 for 'r'
         pass 10
         A: EXISTS r => :0
         A: LOCK.GUARD r 6 => +OK
         A: SET r x => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: RENAME r q => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: LOCK.ACQUIRE r x 10 => -WRONGTYPE Operation against a key holding the wrong kind of value
         A: UNLINK r => :1
         A: LOCK.GUARD r 1 => +OK
         A: FLUSHDB => +OK
         A: LOCK.GUARD r 0 => +OK",
    );
}

#[test]
fn no_plain_command_writes_over_a_lock() {
    let server = TestServer::builder().frozen(true).start();
    let mut wire = Wire::connect(server.addr()).unwrap();
    for setup in
        ["SADD set m", "ZADD zset 1 m", "RPUSH list e", "SET string v", "HSET hash f v", "PFADD hll x", "GEOADD geo 1 1 m"]
    {
        call(&mut wire, setup);
    }
    let dump = wire.call(&["DUMP", "string"]).unwrap();
    let Frame::Bulk(dump) = dump.frame else { panic!("a dump") };
    for native in ["LOCK.ACQUIRE k x 100000", "SEM.ACQUIRE k x 100000 LIMIT 2", "LATCH.SET k 3", "LOCK.GUARD k 5"] {
        call(&mut wire, native);
        let kind = call(&mut wire, "TYPE k");
        for request in [
            "SET k v",
            "SET k v XX",
            "SET k v GET",
            "SET k v KEEPTTL",
            "SETEX k 1 v",
            "PSETEX k 1 v",
            "GETSET k v",
            "GETDEL k",
            "GETEX k PX 1",
            "APPEND k v",
            "SETRANGE k 0 v",
            "INCR k",
            "DECRBY k 1",
            "INCRBYFLOAT k 1",
            "SETBIT k 0 1",
            "BITFIELD k SET u8 0 1",
            "MSET a 1 k 2",
            "BITOP NOT k string",
            "HSET k f v",
            "HDEL k f",
            "HINCRBY k f 1",
            "LPUSH k v",
            "LPUSHX k v",
            "LPOP k",
            "RPOPLPUSH list k",
            "LMOVE list k LEFT LEFT",
            "LINSERT k BEFORE a b",
            "SADD k m",
            "SREM k m",
            "SPOP k",
            "SMOVE set k m",
            "SINTERSTORE k set",
            "SDIFFSTORE k none",
            "ZADD k 1 m",
            "ZREM k m",
            "ZPOPMIN k",
            "ZUNIONSTORE k 1 zset",
            "ZRANGESTORE k zset 0 -1",
            "GEOADD k 1 1 m",
            "GEOSEARCHSTORE k geo FROMMEMBER m BYRADIUS 1 m",
            "PFADD k x",
            "PFMERGE k hll",
            "XADD k * f v",
            "XTRIM k MAXLEN 1",
            "SORT list STORE k",
            "MSETEX 2 a 1 k 2",
            "MSETEX 2 a 1 k 2 XX",
            "RENAME k other",
            "RENAME string k",
            "COPY string k REPLACE",
            "COPY k other",
            "MOVE k 1",
            "GET k",
            "GETRANGE k 0 1",
            "STRLEN k",
            "LLEN k",
            "SCARD k",
            "HGETALL k",
            "ZCARD k",
            "XLEN k",
            "DUMP k",
            "SORT k",
        ] {
            assert_eq!(call(&mut wire, request), WRONGTYPE, "{request} on {kind}");
        }
        let restored = wire.call(&[&b"RESTORE"[..], b"k", b"0", &dump, b"REPLACE"]).unwrap();
        assert!(restored.frame.is_error("WRONGTYPE"), "RESTORE on {kind}");
        // Commands that require a free name report that it is taken.
        call(&mut wire, "SELECT 1");
        call(&mut wire, "SET string v");
        for (request, reply) in
            [("COPY string k DB 0 REPLACE", WRONGTYPE), ("COPY string k DB 0", ":0"), ("MOVE string 0", ":0"), ("FLUSHDB", "+OK")]
        {
            assert_eq!(call(&mut wire, request), reply, "{request} on {kind}");
        }
        call(&mut wire, "SELECT 0");
        for (request, reply) in [
            ("MSETEX 2 a 1 k 2 NX", ":0"),
            ("SETNX k v", ":0"),
            ("SET k v NX", "$-1"),
            ("MSETNX a 1 k 2", ":0"),
            ("RENAMENX string k", ":0"),
            ("COPY string k", ":0"),
            ("EXISTS a", ":0"),
        ] {
            assert_eq!(call(&mut wire, request), reply, "{request} on {kind}");
        }
        // Only a guard's TTL can be changed by other commands: nothing else would ever delete the guard.
        let held = kind != "+guard";
        for request in ["EXPIRE k 1000", "PEXPIRE k 1000000", "EXPIREAT k 9999999999", "PEXPIREAT k 9999999999999", "PERSIST k"] {
            assert_eq!(call(&mut wire, request) == WRONGTYPE, held, "{request} on {kind}");
        }
        assert_eq!(call(&mut wire, "TYPE k"), kind, "it is what it was");
        for (request, reply) in
            [("EXISTS k", ":1"), ("TOUCH k", ":1"), ("OBJECT REFCOUNT k", ":1"), ("OBJECT IDLETIME k", ":0"), ("DBSIZE", ":8")]
        {
            assert_eq!(call(&mut wire, request), reply, "{request} on {kind}");
        }
        assert!(call(&mut wire, "OBJECT ENCODING k").starts_with('$') && call(&mut wire, "MEMORY USAGE k").starts_with(':'));
        assert!(call(&mut wire, &format!("SCAN 0 TYPE {}", &kind[1..])).ends_with("*1 $1 k"));
        assert_eq!(call(&mut wire, "UNLINK k"), ":1");
        server.check_invariants();
    }
}

#[test]
fn ttl_is_the_longest_holder_s_lease_left() {
    play_here(
        "A: LOCK.ACQUIRE a x 5000 SHARED => :*
         A: PTTL a => :5000
         A: LOCK.ACQUIRE a y 9000 SHARED => :*
         A: LOCK.ACQUIRE a z 7000 SHARED => :*
         A: PTTL a => :9000
         A: TTL a => :9
         A: LOCK.RELEASE a y => :0
         A: PTTL a => :7000
         A: LOCK.RENEW a x 8000 => :8000
         A: PTTL a => :8000
         pass 7000
         A: LOCK.ACQUIRE a z 1000 => $-1
         A: PTTL a => :1000
         pass 1000
         A: TTL a => :-2",
    );
}

#[test]
fn a_plain_lock_of_any_kind_is_waited_for() {
    play_here(
        "A: SETNX a token => :1
         B: LOCK.ACQUIRE a y 1000 SHARED WAIT 0
         C: SEM.ACQUIRE a z 1000 LIMIT 2 WAIT 0
         A: DEL a => :1
         # The first waiter is granted the lock. Then the second one wants another type.
         B <= :*
         C <= -WRONGTYPE Operation against a key holding the wrong kind of value
         B: LOCK.RELEASE a y => :0
         A: HSET a owner 1 => :1
         B: LOCK.ACQUIREALL 2 b a y 1000 WAIT 0
         A: HINCRBY a owner -1 => :0
         A: UNLINK a => :1
         B <= *2 :*
         B: LOCK.RELEASE a y => :0
         # A plain lock's name becomes free by MOVE to another database, or by a script.
         A: SET a token => +OK
         B: LOCK.ACQUIRE a y 1000 WAIT 0
         A: MOVE a 1 => :1
         B <= :*
         B: LOCK.RELEASE a y => :0
         A: SET a token => +OK
         B: LOCK.ACQUIRE a y 1000 WAIT 0
         A: EVAL if\\sredis.call('get',KEYS[1])==ARGV[1]then\\sreturn\\sredis.call('del',KEYS[1])end 1 a token => :1
         B <= :*
         B: LOCK.RELEASE a y => :0
         # Waiters for a name that becomes a guard get an error.
         A: SET a token => +OK
         B: LOCK.ACQUIRE a y 1000 WAIT 0
         A: MULTI => +OK
         A: DEL a => +QUEUED
         A: LOCK.GUARD a 1 => +QUEUED
         A: EXEC => *2 :1 +OK
         B <= -WRONGTYPE Operation against a key holding the wrong kind of value",
    );
}

#[test]
fn what_happens_to_locks_is_published_as_class_k() {
    let message = |name: &str, key: &str| {
        let channel = format!("__keyevent@0__:lock.{name}");
        format!("S <= *3 $7 message ${} {channel} ${} {key}\n", channel.len(), key.len())
    };
    let mut scene = String::from("A: CONFIG SET notify-keyspace-events Ek => +OK\n");
    let names = ["granted", "released", "expired", "queued", "timeout", "deadlock"];
    scene += "S: SUBSCRIBE";
    names.iter().for_each(|name| scene += &format!(" __keyevent@0__:lock.{name}"));
    scene += " => *3*\nS <= *3*\nS <= *3*\nS <= *3*\nS <= *3*\nS <= *3*\n";
    scene += "A: LOCK.ACQUIRE a x 1000 => :*\n";
    scene += &message("granted", "a");
    scene += "A: LOCK.ACQUIRE a x 1000 => :*\nA: LOCK.RELEASE a x => :1\n";
    scene += "B: LOCK.ACQUIRE a y 1000 => $-1\nB: LOCK.ACQUIRE a y 1000 WAIT 5\n";
    scene += &message("queued", "a");
    scene += "pass 5\nB <= $-1\n";
    scene += &message("timeout", "a");
    scene += "B: LOCK.ACQUIRE a y 1000 WAIT 0\n";
    scene += &message("queued", "a");
    scene += "A: LOCK.RELEASE a x => :0\nB <= :*\n";
    scene += &(message("released", "a") + &message("granted", "a"));
    scene += "A: LOCK.ACQUIRE b x 2000 => :*\n";
    scene += &message("granted", "b");
    scene += "B: LOCK.ACQUIRE b y 1000 WAIT 0\n";
    scene += &message("queued", "b");
    scene += "A: LOCK.ACQUIRE a x 1000 WAIT 0 => -DEADLOCK*\n";
    scene += &message("deadlock", "a");
    scene += "pass 1000\n";
    scene += &message("expired", "a");
    scene += "pass 1000\nB <= :*\n";
    scene += &(message("expired", "b") + &message("granted", "b"));
    // Clients that did not enable the class get no such events.
    scene += "A: CONFIG SET notify-keyspace-events EA => +OK\nA: LOCK.ACQUIRE c x 1000 => :*\nS: PING => *2 $4 pong $0\n";
    play_here(&scene);
}

#[test]
fn whoever_watches_or_tracks_a_lock_is_told_that_it_has_changed() {
    play_here(
        "A: WATCH a => +OK
         B: LOCK.ACQUIRE a x 1000 => :*
         A: MULTI => +OK
         A: PING => +QUEUED
         A: EXEC => *-1
         A: WATCH a => +OK
         pass 1000
         A: MULTI => +OK
         A: PING => +QUEUED
         A: EXEC => *-1
         T: HELLO 3 => %7*
         T: CLIENT TRACKING ON => +OK
         T: LOCK.INFO a => _
         B: LOCK.ACQUIRE a x 1000 => :*
         T <= >2 $10 invalidate *1 $1 a
         T: PTTL a => :1000
         B: LOCK.RENEW a x 2000 => :2000
         T <= >2 $10 invalidate *1 $1 a
         T: EXISTS a => :1
         pass 2000
         T <= >2 $10 invalidate *1 $1 a
         T: LOCK.GUARD r 1 => +OK
         T: TYPE r => +guard
         B: LOCK.GUARD r 2 => +OK
         T <= >2 $10 invalidate *1 $1 r",
    );
}

#[test]
fn users_may_be_let_use_locks_and_nothing_else() {
    play_here(
        "A: ACL SETUSER locks on >pw ~job:* +@lock => +OK
         B: AUTH locks pw => +OK
         B: LOCK.ACQUIRE job:1 x 1000 => :*
         B: SEM.ACQUIRE job:2 x 1000 LIMIT 2 => :*
         B: LATCH.SET job:3 1 => :1
         B: CL.THROTTLE job:4 1 1 1 => *5 :0 :2 :1 :-1 :1
         B: LOCK.GUARD job:5 1 => +OK
         B: LOCK.ACQUIREALL 2 job:6 other x 1000 => -NOPERM No permissions to access a key
         B: LOCK.ACQUIRE other x 1000 => -NOPERM No permissions to access a key
         B: DEL job:1 => -NOPERM User locks has no permissions to run the 'del' command
         B: GET job:1 => -NOPERM User locks has no permissions to run the 'get' command
         A: ACL SETUSER reader on >pw ~* +@read => +OK
         C: AUTH reader pw => +OK
         C: LOCK.CHECK job:1 1 => :0
         C: LOCK.ACQUIRE job:7 x 1000 => -NOPERM User reader has no permissions to run the 'lock.acquire' command
         C: LOCK.SLOWLOG LEN => -NOPERM User reader has no permissions to run the 'lock.slowlog' command
         A: ACL CAT lock => *23*
         A: ACL DRYRUN locks LOCK.RELEASE job:1 x => +OK",
    );
}

#[test]
fn rate_limits_give_the_numbers_that_redis_cell_documents() {
    // `CL.THROTTLE user123 15 30 60 1`: bursts of fifteen, thirty per minute.
    play_here(
        "A: CL.THROTTLE user123 15 30 60 1 => *5 :0 :16 :15 :-1 :2
         A: CL.THROTTLE user123 15 30 60 15 => *5 :0 :16 :0 :-1 :32
         A: CL.THROTTLE user123 15 30 60 1 => *5 :1 :16 :0 :2 :32
         pass 2000
         A: CL.THROTTLE user123 15 30 60 => *5 :0 :16 :0 :-1 :32
         A: TTL user123 => :32
         A: DEL user123 => :1
         A: CL.THROTTLE user123 15 30 60 17 => *5 :1 :16 :16 :-1 :0
         A: CL.THROTTLE user123 0 1 1 => *5 :0 :1 :0 :-1 :1
         A: CL.THROTTLE user123 0 1 1 => *5 :1 :1 :0 :1 :1
         A: LOCK.ACQUIRE l x 1000 => :*
         A: CL.THROTTLE l 1 1 1 => -WRONGTYPE Operation against a key holding the wrong kind of value",
    );
}
