//! `lock-expiry-publish`: clients that wait on a library's unlock channel learn of the expiry of the lock's key at once. The
//! clock is frozen unless a scene moves it, so no waiter wakes up by its own timer.

use std::time::Duration;

use portcullis::testing::TestServer;

use crate::common::scenes::play_here;
use crate::common::wire::Wire;

/// The script of Redisson's RLock: a reentrant lock in a hash. Returns nil if it was acquired, otherwise the maximum time to
/// wait.
const TRY_LOCK: &str = "if ((redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[2]) == 1)) then \
    redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end; \
    return redis.call('pttl', KEYS[1]);";
const RENEW: &str =
    "if (redis.call('hexists', KEYS[1], ARGV[2]) == 1) then redis.call('pexpire', KEYS[1], ARGV[1]); return 1; end; return 0;";
const UNLOCK: &str = "if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil; end; \
    local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); \
    if (counter > 0) then redis.call('pexpire', KEYS[1], ARGV[2]); return 0; \
    else redis.call('del', KEYS[1]); redis.call('publish', KEYS[2], ARGV[1]); return 1; end; return nil;";

const CHANNEL: &str = "redisson_lock__channel:{order}";

fn shown(wire: &mut Wire) -> String {
    String::from_utf8_lossy(&wire.reply().unwrap().raw).trim_end().replace("\r\n", " ")
}

fn call(wire: &mut Wire, args: &[&str]) -> String {
    wire.queue(args);
    wire.flush().unwrap();
    shown(wire)
}

#[test]
fn subscribe_and_retry_wakes_up_when_the_lease_ends() {
    let server = TestServer::builder().frozen(true).start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let (mut holder, mut waiter, mut listener) = (connect(), connect(), connect());
    assert_eq!(call(&mut holder, &["CONFIG", "SET", "lock-expiry-publish", "redisson"]), "+OK");
    assert_eq!(call(&mut holder, &["EVAL", TRY_LOCK, "1", "order", "30000", "holder:1"]), "$-1");
    assert_eq!(call(&mut waiter, &["EVAL", TRY_LOCK, "1", "order", "30000", "waiter:1"]), ":30000");
    assert!(call(&mut listener, &["SUBSCRIBE", CHANNEL]).starts_with("*3 $9 subscribe"));
    assert_eq!(call(&mut waiter, &["EVAL", TRY_LOCK, "1", "order", "30000", "waiter:1"]), ":30000");
    // The watchdog of the holder renews twice. Then the holder dies.
    for _ in 0..2 {
        server.clock().advance(Duration::from_secs(10));
        assert_eq!(call(&mut holder, &["EVAL", RENEW, "1", "order", "30000", "holder:1"]), ":1");
    }
    drop(holder);
    server.clock().advance(Duration::from_millis(29_999));
    assert!(call(&mut waiter, &["EVAL", TRY_LOCK, "1", "order", "30000", "waiter:1"]).ends_with(":1"));
    server.clock().advance(Duration::from_millis(1));
    assert_eq!(shown(&mut listener), format!("*3 $7 message ${} {CHANNEL} $1 0", CHANNEL.len()));
    assert_eq!(call(&mut waiter, &["EVAL", TRY_LOCK, "1", "order", "30000", "waiter:1"]), "$-1", "it has the lock");
    // The library sends the message of a release, once.
    assert_eq!(call(&mut waiter, &["EVAL", UNLOCK, "2", "order", CHANNEL, "0", "30000", "waiter:1"]), ":1");
    assert!(shown(&mut listener).ends_with("$1 0"));
    assert_eq!(call(&mut waiter, &["EVAL", TRY_LOCK, "1", "order", "30000", "waiter:1"]), "$-1");
    assert_eq!(call(&mut waiter, &["DEL", "order"]), ":1");
    assert!(call(&mut listener, &["PING"]).starts_with("*2 $4 pong"), "nothing was published for what was deleted");
    server.check_invariants();
}

#[test]
fn it_is_off_until_it_is_switched_on_and_can_be_switched_off() {
    play_here(
        "A: CONFIG GET lock-expiry-publish => *2 $19 lock-expiry-publish $0
         S: SUBSCRIBE c:a => *3*
         A: SET a 1 PX 10 => +OK
         pass 10
         A: CONFIG SET lock-expiry-publish *\\sc:{name}\\s{name}-free => +OK
         A: SET a 1 PX 10 => +OK
         pass 10
         S <= *3 $7 message $3 c:a $6 a-free
         A: CONFIG SET lock-expiry-publish b*\\sc:{name}\\s0 => +OK
         A: SET a 1 PX 10 => +OK
         pass 10
         A: CONFIG SET lock-expiry-publish nonsense => -ERR CONFIG SET failed (possibly related to argument 'lock-expiry-publish') - 'nonsense' is neither a rule (a pattern, a channel and a message) nor the name of a shipped set of rules: redisson, spring, redis-lock-py, simple-redis-mutex
         A: CONFIG GET lock-expiry-publish => *2 $19 lock-expiry-publish $13 b* c:{name} 0
         S: SUBSCRIBE c:b => *3*
         A: SET b 1 PX 10 => +OK
         pass 10
         S <= *3 $7 message $3 c:b $1 0
         A: CONFIG SET lock-expiry-publish b*\\sc:{name}\\s1\\s*\\sc:{name}\\s\"2\\s3\" => +OK
         A: CONFIG GET lock-expiry-publish => *2 $19 lock-expiry-publish $30 b* c:{name} 1 * c:{name} \"2 3\"
         A: SET b 1 PX 10 => +OK
         pass 10
         S <= *3 $7 message $3 c:b $1 1
         S <= *3 $7 message $3 c:b $3 2 3
         A: CONFIG SET lock-expiry-publish \\s => +OK
         A: CONFIG GET lock-expiry-publish => *2 $19 lock-expiry-publish $0
         A: SET b 1 PX 10 => +OK
         pass 10
         S: PING => *2 $4 pong $0",
    );
}

#[test]
fn only_what_has_expired_is_told_by_whatever_way_it_did() {
    play_here(
        "A: CONFIG SET lock-expiry-publish *\\sc\\s{name} => +OK
         S: SUBSCRIBE c => *3*
         A: SET a 1 PX 10 => +OK
         A: DEL a => :1
         A: SET a 1 PX 10 => +OK
         A: PERSIST a => :1
         A: PEXPIRE a 0 => :1
         A: SET a 1 PX 10 => +OK
         A: FLUSHALL => +OK
         pass 10
         # A hash with a TTL, and a hash whose last field expires.
         A: HSET h f v => :1
         A: PEXPIRE h 10 => :1
         pass 10
         S <= *3 $7 message $1 c $1 h
         A: HSET h f v g w => :2
         A: HPEXPIRE h 10 FIELDS 1 f => *1 :1
         A: HPEXPIRE h 20 FIELDS 1 g => *1 :1
         pass 10
         pass 10
         S <= *3 $7 message $1 c $1 h
         # The message about a key that a command finds expired comes with that command, before anything later.
         A: DEBUG SET-ACTIVE-EXPIRE 0 => +OK
         A: SET lazy 1 PX 10 => +OK
         pass 10
         A: EVAL return\\sredis.call('get','lazy') 0 => $-1
         S <= *3 $7 message $1 c $4 lazy
         A: DEBUG SET-ACTIVE-EXPIRE 1 => +OK
         # While writes are paused nothing expires. It does at the end of the pause.
         A: SET p 1 PX 10 => +OK
         A: CLIENT PAUSE 50 WRITE => +OK
         pass 10
         pass 40
         S <= *3 $7 message $1 c $1 p
         # The end of a native lock's lease is published too, for waiters that use a library.
         A: LOCK.ACQUIRE n x 10 => :*
         pass 10
         S <= *3 $7 message $1 c $1 n
         S: PING => *2 $4 pong $0",
    );
}

#[test]
fn the_first_of_a_fair_lock_s_queue_is_told_on_its_own_channel() {
    play_here(
        "A: CONFIG SET lock-expiry-publish redisson => +OK
         S: SUBSCRIBE redisson_lock__channel:{order}:uuid:7 redisson_lock__channel:{order}:uuid:8 => *3*
         S <= *3*
         A: RPUSH redisson_lock_queue:{order} uuid:7 uuid:8 => :2
         A: HSET order uuid:1 1 => :1
         A: PEXPIRE order 100 => :1
         pass 100
         S <= *3 $7 message $37 redisson_lock__channel:{order}:uuid:7 $1 0
         # A name with a hash tag gets no braces, and there is no queue of waiters.
         T: SUBSCRIBE redisson_lock__channel:{shop}order => *3*
         A: HSET {shop}order uuid:1 1 => :1
         A: PEXPIRE {shop}order 100 => :1
         pass 100
         T <= *3 $7 message $34 redisson_lock__channel:{shop}order $1 0
         S: PING => *2 $4 pong $0",
    );
}

#[test]
fn shard_channels_patterns_and_other_libraries_are_served() {
    play_here(
        "A: CONFIG SET lock-expiry-publish redisson\\sspring\\sredis-lock-py\\ssimple-redis-mutex => +OK
         A: CONFIG GET lock-expiry-publish => *2 $19 lock-expiry-publish $48 redisson spring redis-lock-py simple-redis-mutex
         S: SSUBSCRIBE redisson_lock__channel:{order} => *3*
         P: PSUBSCRIBE redisson_rwlock:* => *3*
         A: HSET order uuid:1 1 => :1
         A: PEXPIRE order 100 => :1
         pass 100
         S <= *3 $8 smessage $30 redisson_lock__channel:{order} $1 0
         P <= *4 $8 pmessage $17 redisson_rwlock:* $23 redisson_rwlock:{order} $1 1
         T: SUBSCRIBE shop-channel => *3*
         A: SET shop:order client NX PX 100 => +OK
         pass 100
         T <= *3 $7 message $12 shop-channel $10 shop:order
         U: SUBSCRIBE rlock-channel:a @simple-redis-mutex:locks-releases => *3*
         U <= *3*
         A: SET a token NX EX 1 => +OK
         A: SET @simple-redis-mutex:lock-b token NX PX 1001 => +OK
         pass 1000
         U <= *3 $7 message $15 rlock-channel:a $2 ok
         pass 1
         U <= *3 $7 message $34 @simple-redis-mutex:locks-releases $52 { \"key\": \"@simple-redis-mutex:lock-b\", \"value\": \"\" }",
    );
}

#[test]
fn many_that_expire_at_once_are_each_told_of_in_the_order_of_their_ends() {
    let server = TestServer::builder().frozen(true).config("lock-expiry-publish", "lock:* ch {1}").start();
    let connect = || Wire::connect(server.addr()).unwrap();
    let (mut control, mut listener) = (connect(), connect());
    call(&mut listener, &["SUBSCRIBE", "ch"]);
    for at in 0..2000 {
        let name = format!("lock:{at}");
        control.queue(&["SET", &name, "x", "PX", &format!("{}", 1000 + at / 100)]);
    }
    control.flush().unwrap();
    (0..2000).for_each(|_| assert_eq!(shown(&mut control), "+OK"));
    server.clock().advance(Duration::from_secs(2));
    let told: Vec<u32> = (0..2000).map(|_| shown(&mut listener).rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!(told.is_sorted_by_key(|at| at / 100), "those of an earlier millisecond come first");
    let mut sorted = told.clone();
    sorted.sort_unstable();
    assert!(sorted.into_iter().eq(0..2000), "each once");
    server.check_invariants();
}
