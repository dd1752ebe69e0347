//! Client-side caching: which clients receive invalidation messages for which keys, byte by byte, here and on redis-server.

use crate::common::scenes::{play, play_as_newer, play_here};

#[test]
fn a_key_that_was_read_is_told_once_when_it_changes() {
    play(
        "A: HELLO 3 => %7*
         A: CLIENT TRACKING ON => +OK
         A: GET k => _
         A: MGET k l => *2 _ _
         B: SET k 1 => +OK
         A <= >2 $10 invalidate *1 $1 k
         # After an invalidation the key is not tracked any more.
         B: SET k 2 => +OK
         B: SET l 1 => +OK
         A <= >2 $10 invalidate *1 $1 l
         A: PING => +PONG
         # Every kind of change: also a TTL, and RENAME.
         A: GET k => $1 2
         B: EXPIRE k 1000 => :1
         A <= >2 $10 invalidate *1 $1 k
         A: TTL k => :1000
         B: PERSIST k => :1
         A <= >2 $10 invalidate *1 $1 k
         A: STRLEN k => :1
         B: APPEND k x => :2
         A <= >2 $10 invalidate *1 $1 k
         A: EXISTS k m => :1
         B: RENAME k m => +OK
         A <= >2 $10 invalidate *1 $1 k
         A <= >2 $10 invalidate *1 $1 m
         A: LRANGE list 0 -1 => *0
         B: RPUSH list a b c => :3
         A <= >2 $10 invalidate *1 $4 list
         # Commands that change nothing invalidate nothing.
         A: GET m => $2 2x
         B: SETNX m 9 => :0
         B: HSET m f v => -WRONGTYPE*
         B: DEL m => :1
         A <= >2 $10 invalidate *1 $1 m
         A: CLIENT TRACKING OFF => +OK
         A: GET k => _
         B: SET k 3 => +OK
         A: PING => +PONG",
    );
}

#[test]
fn what_groups_do_with_a_stream_is_told_to_nobody() {
    play(
        "B: XADD s 1-1 f v => $3 1-1
         A: HELLO 3 => %7*
         A: CLIENT TRACKING ON => +OK
         A: XLEN s => :1
         B: XGROUP CREATE s g 0 => +OK
         B: XREADGROUP GROUP g c STREAMS s > => *1*
         B: XACK s g 1-1 => :1
         B: XGROUP DESTROY s g => :1
         B: XSETID s 5-5 => +OK
         A: PING => +PONG
         B: XADD s 6-1 f v => $3 6-1
         A <= >2 $10 invalidate *1 $1 s",
    );
}

#[test]
fn one_is_told_of_its_own_changes_after_the_reply_unless_it_does_not_care() {
    play(
        "A: HELLO 3 => %7*
         A: CLIENT TRACKING ON => +OK
         A: GET k => _
         A: SET k 1 => +OK
         A <= >2 $10 invalidate *1 $1 k
         A: MULTI => +OK
         A: GET k => +QUEUED
         A: SET k 2 => +QUEUED
         A: GET k => +QUEUED
         A: EXEC => *3 $1 1 +OK $1 2
         A <= >2 $10 invalidate *1 $1 k
         # The transaction's last GET comes after its SET, so the key is tracked again.
         B: SET k 3 => +OK
         A <= >2 $10 invalidate *1 $1 k
         A: CLIENT TRACKING ON NOLOOP => +OK
         A: GET k => $1 3
         A: SET k 4 => +OK
         A: PING => +PONG
         A: GET k => $1 4
         B: SET k 5 => +OK
         A <= >2 $10 invalidate *1 $1 k
         A: CLIENT REPLY OFF ...
         A: GET k ...
         B: PING => +PONG
         pass 50
         B: SET k 6 => +OK
         A <= >2 $10 invalidate *1 $1 k",
    );
}

#[test]
fn what_a_script_reads_is_tracked() {
    play(
        r"A: HELLO 3 => %7*
          A: CLIENT TRACKING ON OPTOUT NOLOOP => +OK
          # A lock that is set and read in one script.
          A: EVAL redis.call('set',KEYS[1],ARGV[1],'NX','PX',100000)return\sredis.call('get',KEYS[1]) 1 lock me => $2 me
          B: DEL lock => :1
          A <= >2 $10 invalidate *1 $4 lock
          A: EVAL redis.call('set',KEYS[1],ARGV[1],'NX','PX',50)return\sredis.call('get',KEYS[1]) 1 lock me => $2 me
          pass 100
          A <= >2 $10 invalidate *1 $4 lock
          # A script that calls no reading command tracks none of its keys.
          A: EVAL return\s1 1 k => :1
          A: EVAL_RO return\s1 1 k => :1
          A: EVAL_RO redis.call('ping') 1 k => _
          A: EVAL redis.call('set','other',1) 1 k => _
          B: SET k 1 => +OK
          A: EVAL_RO return\sredis.call('get',KEYS[1]) 1 k => $1 1
          B: SET k 2 => +OK
          A <= >2 $10 invalidate *1 $1 k
          A: PING => +PONG",
    );
}

#[test]
fn a_script_that_reads_is_tracked_by_all_keys_that_it_declares_and_by_no_other() {
    play(
        r"A: HELLO 3 => %7*
          A: CLIENT TRACKING ON => +OK
          A: EVAL redis.call('get','key3') 2 key1 key2 => _
          B: SET key3 1 => +OK
          B: MSET key2 1 key1 1 => +OK
          A <= >2 $10 invalidate *1 $4 key2
          A <= >2 $10 invalidate *1 $4 key1
          A: EVAL return\sredis.call('get','key1') 0 => $1 1
          B: SET key1 2 => +OK
          # Any reading command suffices, even one without keys, and one that fails.
          A: EVAL_RO redis.call('dbsize') 1 key1 => _
          B: DEL key1 => :1
          A <= >2 $10 invalidate *1 $4 key1
          A: EVAL redis.pcall('llen','key2') 1 key1 => _
          B: SET key1 1 => +OK
          A <= >2 $10 invalidate *1 $4 key1
          # The keys are tracked from the first reading command on, not from the end of the script.
          A: EVAL redis.call('set',KEYS[1],5)redis.call('get',KEYS[1]) 1 key1 => _
          B: SET key1 1 => +OK
          A <= >2 $10 invalidate *1 $4 key1
          A: EVAL redis.call('get',KEYS[1])redis.call('set',KEYS[1],5) 1 key1 => _
          A <= >2 $10 invalidate *1 $4 key1
          B: SET key1 1 => +OK
          A: EVAL redis.call('get','x')redis.call('set',KEYS[1],5)redis.call('get','x') 1 key1 => _
          A <= >2 $10 invalidate *1 $4 key1
          B: SET key1 1 => +OK
          A <= >2 $10 invalidate *1 $4 key1
          # Changes of another script are reported when it has ended.
          A: EVAL_RO return\sredis.call('get','a') 1 a => _
          B: EVAL redis.call('set','a',2)return\sredis.call('set','a',3) 0 => +OK
          A <= >2 $10 invalidate *1 $1 a
          # In a transaction each script tracks its own keys.
          A: MULTI => +OK
          A: EVAL redis.call('get','x') 1 key1 => +QUEUED
          A: EVAL redis.call('ping') 1 key2 => +QUEUED
          A: EVAL redis.call('get','x') 1 key3 => +QUEUED
          A: EXEC => *3 _ _ _
          B: MSET key1 1 key2 1 key3 1 => +OK
          A <= >2 $10 invalidate *1 $4 key1
          A <= >2 $10 invalidate *1 $4 key3
          # A cached script, and one that ends with an error.
          A: SCRIPT LOAD return\sredis.call('get','x') => $40*
          A: EVALSHA db94c2918043c41a85e5c7f5b637c7a9c9c7119c 1 key1 => _
          B: SET key1 1 => +OK
          A <= >2 $10 invalidate *1 $4 key1
          A: EVAL redis.call('get','x')error('no') 1 key1 => -*
          B: SET key1 1 => +OK
          A <= >2 $10 invalidate *1 $4 key1
          # B's scripts do not track keys for A.
          B: EVAL redis.call('get','x') 1 key1 => $-1
          B: SET key1 2 => +OK
          A: PING => +PONG",
    );
}

#[test]
fn what_a_script_reads_is_tracked_as_the_client_asked_for() {
    play(
        r"A: HELLO 3 => %7*
          A: CLIENT TRACKING ON OPTIN => +OK
          A: EVAL redis.call('get','x') 1 k => _
          B: SET k 1 => +OK
          A: CLIENT CACHING YES => +OK
          A: EVAL redis.call('get','x') 1 k => _
          B: SET k 2 => +OK
          A <= >2 $10 invalidate *1 $1 k
          A: EVAL redis.call('get','x') 1 k => _
          B: SET k 2 => +OK
          A: CLIENT TRACKING OFF => +OK
          A: CLIENT TRACKING ON OPTOUT => +OK
          A: CLIENT CACHING NO => +OK
          A: EVAL redis.call('get','x') 1 k => _
          B: SET k 2 => +OK
          A: EVAL redis.call('get','x') 1 k => _
          B: SET k 2 => +OK
          A <= >2 $10 invalidate *1 $1 k
          A: CLIENT TRACKING OFF => +OK
          # All keys of the script, except those that it changes itself.
          A: CLIENT TRACKING ON NOLOOP => +OK
          A: EVAL redis.call('get','x')redis.call('set','l',1) 2 k l => _
          B: MSET k 1 l 2 => +OK
          A <= >2 $10 invalidate *1 $1 k
          A: CLIENT TRACKING OFF => +OK
          # With prefixes, changes are reported regardless of what was read.
          A: CLIENT TRACKING ON BCAST PREFIX p => +OK
          A: EVAL redis.call('get','x') 2 k p1 => _
          B: MSET k 1 p1 2 => +OK
          A <= >2 $10 invalidate *1 $2 p1
          A: PING => +PONG",
    );
}

#[test]
fn a_function_that_reads_is_tracked_by_its_declared_keys() {
    use crate::common::wire::Wire;
    use portcullis::testing::TestServer;

    let server = TestServer::start();
    let mut a = Wire::connect(server.addr()).expect("connect");
    let library = "#!lua name=lib\nredis.register_function{function_name='f', callback=function(keys) return redis.call('get', 'other') end}";
    a.call(&["FUNCTION", "LOAD", library]).expect("the library");
    a.call(&["HELLO", "3"]).expect("HELLO");
    a.call(&["CLIENT", "TRACKING", "ON"]).expect("OK");
    assert_eq!(a.call(&["FCALL", "f", "2", "j", "k"]).expect("a reply").raw, b"_\r\n");
    assert_eq!(a.call(&["SET", "other", "1"]).expect("a reply").raw, b"+OK\r\n");
    assert_eq!(a.call(&["SET", "k", "1"]).expect("a reply").raw, b"+OK\r\n");
    assert_eq!(a.reply().expect("a push").raw, b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n");
}

#[test]
fn a_key_that_ends_is_told() {
    play(
        "A: HELLO 3 => %7*
         A: CLIENT TRACKING ON => +OK
         B: SET k 1 PX 50 => +OK
         A: GET k => $1 1
         pass 100
         A <= >2 $10 invalidate *1 $1 k
         B: SET k 1 => +OK
         A: GET k => $1 1
         B: PEXPIRE k 30 => :1
         A <= >2 $10 invalidate *1 $1 k
         A: GET k => $1 1
         pass 60
         A <= >2 $10 invalidate *1 $1 k
         B: SET k 1 => +OK
         A: GET k => $1 1
         B: EXPIRE k -1 => :1
         A <= >2 $10 invalidate *1 $1 k",
    );
}

#[test]
fn all_keys_are_told_at_once_when_a_database_is_emptied() {
    play(
        "A: HELLO 3 => %7*
         A: CLIENT TRACKING ON => +OK
         A: GET k => _
         B: FLUSHALL => +OK
         A <= >2 $10 invalidate _
         B: SET k 1 => +OK
         A: FLUSHDB => +OK
         A <= >2 $10 invalidate _
         # Keys are tracked by name, regardless of the database.
         A: GET k => _
         B: SELECT 3 => +OK
         B: SET k 2 => +OK
         A <= >2 $10 invalidate *1 $1 k
         A: GET k => _
         B: SWAPDB 0 3 => +OK
         A: PING => +PONG",
    );
}

#[test]
fn a_resp2_client_has_another_connection_told() {
    play(
        "B: SUBSCRIBE __redis__:invalidate => *3 $9 subscribe $20 __redis__:invalidate :1
         A: CLIENT GETREDIR => :-1
         A: CLIENT TRACKING ON REDIRECT <B> => +OK
         A: GET k => $-1
         C: SET k 1 => +OK
         B <= *3 $7 message $20 __redis__:invalidate *1 $1 k
         A: GET k => $1 1
         A: SET k 2 => +OK
         B <= *3 $7 message $20 __redis__:invalidate *1 $1 k
         C: FLUSHALL => +OK
         B <= *3 $7 message $20 __redis__:invalidate $-1
         # The target does not need to subscribe to that channel, but must be in subscribed mode.
         B: UNSUBSCRIBE => *3 $11 unsubscribe $20 __redis__:invalidate :0
         A: GET k => $-1
         C: SET k 3 => +OK
         B: SUBSCRIBE news => *3 $9 subscribe $4 news :1
         A: GET k => $1 3
         C: SET k 4 => +OK
         B <= *3 $7 message $20 __redis__:invalidate *1 $1 k
         # A RESP3 connection receives pushes.
         D: HELLO 3 => %7*
         A: CLIENT TRACKING ON REDIRECT <D> => +OK
         A: GET k => $1 4
         C: SET k 5 => +OK
         D <= >2 $10 invalidate *1 $1 k
         # A RESP2 client without another connection cannot be notified.
         A: CLIENT TRACKING ON => +OK
         A: GET k => $1 5
         C: SET k 6 => +OK
         A: GET k => $1 6",
    );
}

#[test]
fn who_is_told_in_ones_place_may_go() {
    play(
        "B: SUBSCRIBE __redis__:invalidate => *3 $9 subscribe $20 __redis__:invalidate :1
         A: HELLO 3 => %7*
         A: CLIENT TRACKING ON REDIRECT <B> => +OK
         A: CLIENT TRACKINGINFO => %3 $5 flags ~1 $2 on $8 redirect :*
         A: GET k => _
         B closes
         C: SET k 1 => +OK
         A <= >2 $21 tracking-redir-broken :*
         A: CLIENT TRACKINGINFO => %3 $5 flags ~2 $2 on $15 broken_redirect $8 redirect :*
         A: CLIENT TRACKING ON => +OK
         A: CLIENT TRACKINGINFO => %3 $5 flags ~1 $2 on $8 redirect :0 $8 prefixes *0
         A: CLIENT TRACKING OFF => +OK
         A: CLIENT TRACKINGINFO => %3 $5 flags ~1 $3 off $8 redirect :-1 $8 prefixes *0",
    );
}

#[test]
fn prefixes_are_told_whether_they_were_read_or_not() {
    play(
        "A: HELLO 3 => %7*
         A: CLIENT TRACKING ON BCAST PREFIX user: PREFIX job: => +OK
         A: CLIENT TRACKINGINFO => %3 $5 flags ~2 $2 on $5 bcast $8 redirect :0 $8 prefixes *2 $4 job: $5 user:
         B: SET user:1 x => +OK
         A <= >2 $10 invalidate *1 $6 user:1
         B: SET other x => +OK
         B: MULTI => +OK
         B: SET user:3 x => +QUEUED
         B: SET user:2 x => +QUEUED
         B: SET job:1 x => +QUEUED
         B: SET user:2 y => +QUEUED
         B: EXEC => *4 +OK +OK +OK +OK
         # A message for each prefix, with the keys in order and without repetitions.
         A <= >2 $10 invalidate *1 $5 job:1
         A <= >2 $10 invalidate *2 $6 user:2 $6 user:3
         A: SET job:2 x => +OK
         A <= >2 $10 invalidate *1 $5 job:2
         B: MSET job:3 1 x 2 job:4 3 => +OK
         A <= >2 $10 invalidate *2 $5 job:3 $5 job:4
         B: PEXPIRE job:3 20 => :1
         A <= >2 $10 invalidate *1 $5 job:3
         pass 50
         A <= >2 $10 invalidate *1 $5 job:3
         C: HELLO 3 => %7*
         C: CLIENT TRACKING ON BCAST NOLOOP => +OK
         C: SET job:5 1 => +OK
         A <= >2 $10 invalidate *1 $5 job:5
         C: PING => +PONG
         # Changes by its own scripts are reported nevertheless.
         C: EVAL redis.call('set',KEYS[1],1) 1 job:5 => _
         A <= >2 $10 invalidate *1 $5 job:5
         C <= >2 $10 invalidate *1 $5 job:5
         B: SET job:5 2 => +OK
         A <= >2 $10 invalidate *1 $5 job:5
         C <= >2 $10 invalidate *1 $5 job:5
         B: FLUSHALL => +OK
         A <= >2 $10 invalidate _
         C <= >2 $10 invalidate _
         # Another call adds prefixes.
         A: CLIENT TRACKING ON BCAST PREFIX z => +OK
         B: SET z 1 => +OK
         A <= >2 $10 invalidate *1 $1 z
         C <= >2 $10 invalidate *1 $1 z",
    );
}

#[test]
fn caching_is_said_for_one_command_or_transaction() {
    play(
        "A: HELLO 3 => %7*
         A: CLIENT TRACKING ON OPTIN => +OK
         A: GET k => _
         B: SET k 1 => +OK
         A: CLIENT CACHING YES => +OK
         A: CLIENT TRACKINGINFO => %3 $5 flags ~3 $2 on $5 optin $11 caching-yes $8 redirect :0 $8 prefixes *0
         A: GET k => $1 1
         A: CLIENT TRACKINGINFO => %3 $5 flags ~2 $2 on $5 optin $8 redirect :0 $8 prefixes *0
         A: GET l => _
         B: SET l 1 => +OK
         B: SET k 2 => +OK
         A <= >2 $10 invalidate *1 $1 k
         A: CLIENT CACHING YES => +OK
         A: NOSUCH => -ERR unknown command*
         A: GET k => $1 2
         B: SET k 3 => +OK
         # CACHING YES applies to all commands of a transaction.
         A: CLIENT CACHING YES => +OK
         A: MULTI => +OK
         A: GET k => +QUEUED
         A: PING => +QUEUED
         A: GET l => +QUEUED
         A: EXEC => *3 $1 3 +PONG $1 1
         A: GET m => _
         B: MSET m 1 l 2 k 4 => +OK
         A <= >2 $10 invalidate *1 $1 l
         A <= >2 $10 invalidate *1 $1 k
         A: CLIENT TRACKING OFF => +OK
         A: CLIENT TRACKING ON OPTOUT => +OK
         A: CLIENT CACHING NO => +OK
         A: GET k => $1 4
         A: GET l => $1 2
         B: MSET k 5 l 3 => +OK
         A <= >2 $10 invalidate *1 $1 l
         A: MULTI => +OK
         A: GET k => +QUEUED
         A: CLIENT CACHING NO => +QUEUED
         A: GET l => +QUEUED
         A: EXEC => *3 $1 5 +OK $1 3
         B: MSET k 6 l 4 => +OK
         A <= >2 $10 invalidate *1 $1 k
         A: PING => +PONG",
    );
}

#[test]
fn what_cannot_be_combined_is_refused() {
    const NOT_YET: &str =
        "-ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled";
    const OTHER_MODE: &str = "before disabling tracking for this client, and then re-enabling it with a different mode.";
    play(&format!(
        "A: CLIENT TRACKING => -ERR wrong number of arguments for 'client|tracking' command
         A: CLIENT TRACKING MAYBE => -ERR syntax error
         A: CLIENT TRACKING ON NOSUCH => -ERR syntax error
         A: CLIENT TRACKING ON REDIRECT => -ERR syntax error
         A: CLIENT TRACKING ON PREFIX => -ERR syntax error
         A: CLIENT TRACKING ON REDIRECT 0 => -ERR The client ID you want redirect to does not exist
         A: CLIENT TRACKING ON REDIRECT 9999 => -ERR The client ID you want redirect to does not exist
         A: CLIENT TRACKING ON REDIRECT x => -ERR value is not an integer or out of range
         A: CLIENT TRACKING ON REDIRECT <A> REDIRECT <A> => -ERR A client can only redirect to a single other client
         A: CLIENT TRACKING OFF REDIRECT 9999 => -ERR The client ID you want redirect to does not exist
         A: CLIENT TRACKING ON PREFIX a => -ERR PREFIX option requires BCAST mode to be enabled
         A: CLIENT TRACKING ON BCAST OPTIN => -ERR OPTIN and OPTOUT are not compatible with BCAST
         A: CLIENT TRACKING ON OPTIN OPTOUT => -ERR You can't specify both OPTIN mode and OPTOUT mode
         A: CLIENT TRACKING ON BCAST PREFIX ab PREFIX a => -ERR Prefix 'ab' overlaps with another provided prefix 'a'. \
            Prefixes for a single client must not overlap.
         A: CLIENT CACHING YES => {NOT_YET}
         A: CLIENT CACHING NO => {NOT_YET}
         A: CLIENT CACHING => -ERR wrong number of arguments for 'client|caching' command
         A: CLIENT TRACKING ON BCAST PREFIX ab => +OK
         A: CLIENT TRACKING ON BCAST PREFIX a => -ERR Prefix 'a' overlaps with an existing prefix 'ab'. \
            Prefixes for a single client must not overlap.
         A: CLIENT TRACKING ON => -ERR You can't switch BCAST mode on/off {OTHER_MODE}
         # Tracking of all keys can be added to prefixes. Afterwards every prefix overlaps with it.
         A: CLIENT TRACKING ON BCAST => +OK
         A: CLIENT TRACKING ON BCAST PREFIX ab => -ERR Prefix 'ab' overlaps with an existing prefix ''. \
            Prefixes for a single client must not overlap.
         A: CLIENT TRACKING OFF => +OK
         A: CLIENT TRACKING OFF => +OK
         A: CLIENT TRACKING ON OPTIN => +OK
         A: CLIENT CACHING NO => -ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.
         A: CLIENT CACHING MAYBE => -ERR syntax error
         A: CLIENT TRACKING ON OPTOUT => -ERR You can't switch OPTIN/OPTOUT mode {OTHER_MODE}
         A: CLIENT TRACKING ON BCAST => -ERR You can't switch BCAST mode on/off {OTHER_MODE}
         A: CLIENT TRACKING ON => +OK
         A: CLIENT CACHING YES => -ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.
         A: CLIENT GETREDIR => :0
         A: RESET => +RESET
         A: CLIENT GETREDIR => :-1"
    ));
}

#[test]
fn a_full_table_gives_up_keys() {
    play_as_newer(
        "A: HELLO 3 => %7*
         B: CONFIG SET tracking-table-max-keys 1 => +OK
         A: CLIENT TRACKING ON => +OK
         A: GET first => _
         A: GET second ...
         A <= _
         A <= >2 $10 invalidate *1*
         B: CONFIG SET tracking-table-max-keys 0 => +OK",
    );
}

#[test]
fn a_table_that_may_hold_less_shrinks_by_itself() {
    play(
        "A: HELLO 3 => %7*
         A: CLIENT TRACKING ON => +OK
         A: MGET a b c => *3 _ _ _
         B: CONFIG SET tracking-table-max-keys 1 => +OK
         pass 200
         A <= >2 $10 invalidate *1 $1*
         A <= >2 $10 invalidate *1 $1*
         A: PING => +PONG",
    );
}

#[test]
fn events_and_invalidations_come_in_order() {
    play_as_newer(
        "A: HELLO 3 => %7*
         B: CONFIG SET notify-keyspace-events KA => +OK
         A: CLIENT TRACKING ON => +OK
         A: PSUBSCRIBE __key* => >3 $10 psubscribe $6 __key* :1
         A: GET k => _
         B: SET k 1 => +OK
         A <= >2 $10 invalidate *1 $1 k
         A <= >4 $8 pmessage $6 __key* $16 __keyspace@0__:k $3 set
         # Messages caused by the client itself follow its reply, and invalidations come last.
         A: GET k => $1 1
         A: SET k 2 => +OK
         A <= >4 $8 pmessage $6 __key* $16 __keyspace@0__:k $3 set
         A <= >2 $10 invalidate *1 $1 k
         B: CONFIG SET notify-keyspace-events \" => -*",
    );
}

#[test]
fn who_tracks_shows_in_lists_and_counters() {
    use crate::common::wire::Wire;
    use portcullis::testing::TestServer;

    let server = TestServer::start();
    let connect = || Wire::connect(server.addr()).expect("connect");
    let (mut a, mut b) = (connect(), connect());
    let list = |a: &mut Wire| String::from_utf8_lossy(&a.call(&["CLIENT", "INFO"]).expect("a line").raw).into_owned();
    let info = |b: &mut Wire, field: &str| {
        let text = b.call(&["INFO", "everything"]).expect("INFO").raw;
        let text = String::from_utf8_lossy(&text).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')?.parse::<u64>().ok());
        line.unwrap_or_else(|| panic!("no {field}"))
    };
    a.call(&["HELLO", "3"]).expect("HELLO");
    assert!(list(&mut a).contains(" flags=N ") && list(&mut a).contains(" redir=-1 "));
    a.call(&["CLIENT", "TRACKING", "ON"]).expect("OK");
    a.call(&["MGET", "k", "l"]).expect("values");
    assert!(list(&mut a).contains(" flags=t ") && list(&mut a).contains(" redir=0 "));
    assert_eq!((info(&mut b, "tracking_clients"), info(&mut b, "tracking_total_keys")), (1, 2));
    b.call(&["CLIENT", "TRACKING", "ON"]).expect("OK");
    b.call(&["GET", "k"]).expect("a value");
    assert_eq!((info(&mut b, "tracking_total_keys"), info(&mut b, "tracking_total_items")), (2, 3));
    a.call(&["CLIENT", "TRACKING", "OFF"]).expect("OK");
    a.call(&["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "x"]).expect("OK");
    assert!(list(&mut a).contains(" flags=tB "));
    assert_eq!((info(&mut b, "tracking_total_items"), info(&mut b, "tracking_total_prefixes")), (1, 1));
    drop(a);
    b.call(&["CLIENT", "TRACKING", "OFF"]).expect("OK");
    while info(&mut b, "connected_clients") > 1 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    for field in ["tracking_clients", "tracking_total_keys", "tracking_total_items", "tracking_total_prefixes"] {
        assert_eq!(info(&mut b, field), 0, "{field}");
    }
    server.check_invariants();
}

#[test]
fn where_redis_differs() {
    play_here(
        "# Tracking that was turned off sends nothing more. Redis still reports keys that were read before.
         A: HELLO 3 => %7*
         A: CLIENT TRACKING ON => +OK
         A: GET k => _
         A: CLIENT TRACKING OFF => +OK
         A: CLIENT TRACKING ON => +OK
         B: SET k 1 => +OK
         A: PING => +PONG
         A: GET k => $1 1
         A: MULTI => +OK
         A: SET k 1 => +QUEUED
         A: CLIENT TRACKING OFF => +QUEUED
         A: EXEC => *2 +OK +OK
         A: CLIENT TRACKING ON => +OK
         # A RESP2 target gets the invalidation of everything as RESP2. Redis uses the protocol of the tracking client.
         C: SUBSCRIBE c => *3 $9 subscribe $1 c :1
         A: CLIENT TRACKING ON REDIRECT <C> => +OK
         B: FLUSHALL => +OK
         C <= *3 $7 message $20 __redis__:invalidate $-1",
    );
}
