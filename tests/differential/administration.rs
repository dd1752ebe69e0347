//! The commands that look after a server, by family: as in [`crate::catalogue`].

use crate::catalogue::Family;

/// Not for clusters: they would change the one and be refused by the other.
pub const CHANGES_OF_THE_CLUSTER: &str = "changes of the cluster";

/// The families of administration.
pub const FAMILIES: &[Family] = &[
    Family {
        name: "functions",
        weight: 12,
        since: (7, 0),
        lines: &[
            "6! FUNCTION LOAD [ REPLACE ] <library>",
            "1! FUNCTION LOAD ( REPLACE | <junk> <library> | replace REPLACE <library> )",
            "2! FUNCTION LIST [ LIBRARYNAME <library-pattern> ] [ WITHCODE ]",
            "1! FUNCTION LIST ( LIBRARYNAME | bogus | WITHCODE WITHCODE | LIBRARYNAME a LIBRARYNAME b )",
            "2! FUNCTION DELETE ( one | two | three | nosuch )",
            "1! FUNCTION FLUSH [ SYNC | ASYNC | MAYBE ]",
            "1! FUNCTION STATS",
            "1! FUNCTION DUMP",
            "1! FUNCTION RESTORE <junk> [ FLUSH | APPEND | REPLACE | <junk> ]",
            "1! FUNCTION ( KILL | HELP | BOGUS | LIST x )",
            "9! FCALL <function> <function-keys> <value>",
            "4! FCALL_RO <function> <function-keys> <value>",
            "1! FCALL <function> ( -1 | x | 99 | 9223372036854775808 ) <key>",
        ],
    },
    Family {
        name: "payloads",
        weight: 6,
        since: (7, 0),
        lines: &[
            "3 DUMP <key>",
            "2! RESTORE <key> ( 0 | -1 | x | 100000000 ) <junk> [ REPLACE | ABSTTL | IDLETIME <small-int> | FREQ <small-int> | <junk> ]*",
            // 42, 128 times a and a list, as 7.0 wrote them.
            "4! RESTORE <key> ( 0 | 300000000 ) <payload> [ REPLACE ]",
            "1! RESTORE <key> <unix-ms> <payload> ABSTTL [ REPLACE ]",
            "1! RESTORE <key> 0 <payload> [ REPLACE | IDLETIME <small-int> | FREQ <small-int> | ABSTTL ]*",
        ],
    },
    Family {
        name: "waiting",
        weight: 2,
        since: (7, 0),
        lines: &[
            "4! BLPOP <key> <soon>",
            "4! BRPOP <key> <key> <soon>",
            "3! BLMOVE <key> <key> ( LEFT | RIGHT | <junk> ) ( LEFT | RIGHT ) <soon>",
            "3! BRPOPLPUSH <key> <key> <soon>",
            "3! BLMPOP <soon> 2 <key> <key> ( LEFT | RIGHT | <junk> ) [ COUNT <small-int> ]",
            "4! BZPOPMIN <key> <soon>",
            "4! BZPOPMAX <key> <key> <soon>",
            "3! BZMPOP <soon> 2 <key> <key> ( MIN | MAX | <junk> ) [ COUNT <small-int> ]",
            "3! XREAD [ COUNT <small-int> ] BLOCK <soon-ms> STREAMS <key> ( $ | <stream-id> )",
            "3! XREADGROUP GROUP <group> <consumer> [ COUNT <small-int> ] BLOCK <soon-ms> STREAMS <key> ( > | <stream-id> )",
        ],
    },
    Family {
        name: "clients",
        weight: 8,
        since: (7, 0),
        lines: &[
            "1! CLIENT ( HELP | GETREDIR | TRACKINGINFO | GETREDIR x )",
            // What is invalidated is compared with later versions, which track what scripts read, too.
            "3! CLIENT TRACKING ( on BCAST PREFIX unused | off | ON PREFIX | bogus | off BCAST OPTIN | on NOLOOP OPTIN OPTOUT | on BCAST OPTIN )",
            "1! CLIENT TRACKING on ( REDIRECT | REDIRECT x | REDIRECT 99999999 | BCAST PREFIX a PREFIX a | PREFIX a | <junk> )",
            "2! CLIENT TRACKING off",
            "3! CLIENT TRACKINGINFO",
            "2! CLIENT CACHING ( YES | NO | MAYBE )",
            "2! CLIENT GETREDIR",
            "1! CLIENT UNBLOCK ( 99999999 | x | -1 | 0 ) [ TIMEOUT | ERROR | <junk> ]",
            "1! CLIENT PAUSE ( x | -1 | 9223372036854775808 | 1 BOGUS )",
            "1! CLIENT UNPAUSE [ x ]",
            "1! CLIENT LIST ( TYPE pubsub | TYPE replica | TYPE master | ID | ID x | ID 99999999 | BOGUS )",
            "1! CLIENT KILL ( TYPE master | TYPE slave | LADDR 127.0.0.1:1 | ID 99999999 SKIPME no | USER default SKIPME yes ID 99999999 | ID 99999999 x )",
            "1! CLIENT SETNAME",
        ],
    },
    Family {
        name: "the slow log and latency",
        weight: 5,
        since: (7, 0),
        lines: &[
            "3! CONFIG SET slowlog-log-slower-than ( 0 | -1 | 100000000 | -2 | x )",
            "1! CONFIG SET slowlog-max-len ( 0 | 3 | 128 | -1 )",
            "5! SLOWLOG GET [ <small-int> ]",
            "1! SLOWLOG GET ( -1 | -2 | x | 9223372036854775808 | 1 1 )",
            "3! SLOWLOG LEN",
            "1! SLOWLOG RESET",
            "1! SLOWLOG ( HELP | BOGUS | LEN x | RESET x )",
            "1! LATENCY LATEST",
            "1! LATENCY HISTORY ( command | fast-command | bogus | expire-cycle )",
            "1! LATENCY RESET [ command | bogus ]*",
            "1! LATENCY GRAPH ( command | bogus )",
            "1! LATENCY DOCTOR",
            "2! LATENCY HISTOGRAM [ ping | set | bogus | GET | client | config|get ]*",
            "1! LATENCY ( HELP | BOGUS | HISTORY | GRAPH )",
        ],
    },
    Family {
        name: "memory and debugging",
        weight: 6,
        since: (7, 0),
        lines: &[
            "4! MEMORY USAGE <key> [ SAMPLES <small-int> ]",
            "1! MEMORY USAGE <key> ( SAMPLES | SAMPLES x | <junk> | SAMPLES 5 x )",
            "1! MEMORY STATS",
            "1! MEMORY PURGE",
            "1! MEMORY DOCTOR",
            "1! MEMORY MALLOC-STATS",
            "1! MEMORY ( HELP | BOGUS | STATS x )",
            "2! DEBUG PROTOCOL ( string | integer | double | bignum | null | array | set | map | attrib | verbatim | true | false | bogus )",
            "1! DEBUG ( SET-ACTIVE-EXPIRE 1 | QUICKLIST-PACKED-THRESHOLD 1073741824 | CHANGE-REPL-ID | HELP )",
            "1! DEBUG ERROR ( MYERR | text )",
            "1! DEBUG OBJECT <key>",
            "1! LOLWUT [ VERSION <small-int> | VERSION 5 <small-int> | VERSION x | <junk> ]",
        ],
    },
    Family {
        name: "the server",
        weight: 6,
        since: (7, 0),
        lines: &[
            "2! INFO ( commandstats | server | clients | keyspace | nosuchsection | errorstats | all | everything | default | server keyspace )",
            "1! INFO",
            "1! LASTSAVE",
            "1! ROLE",
            "2! WAIT 0 ( 0 | 1 | x | -1 )",
            "1! WAIT ( 1 | 2 ) <soon-ms>",
            "1! WAIT ( x | -1 ) 1",
            "1! REPLICAOF ( NO ONE | no one | localhost x | localhost 70000 )",
            "1! SLAVEOF ( NO ONE | localhost -1 )",
            "1! FAILOVER [ ABORT | TIMEOUT x | TIMEOUT -1 | FORCE | <junk> ]",
            "1! SHUTDOWN ( ABORT | <junk> | NOSAVE SAVE | ABORT NOW | SAVE ABORT )",
            "1! PFSELFTEST",
            "1! CONFIG REWRITE",
            "1! COMMAND DOCS <command>",
            "1! COMMAND ( HELP | BOGUS | COUNT x )",
            "1! COMMAND LIST FILTERBY ( ACLCAT hash | ACLCAT bogus | MODULE bogus | PATTERN h?et )",
            "1! COMMAND INFO",
            "1! SAVE",
            "1! SAVE x",
            "1! BGSAVE [ SCHEDULE | <junk> ]",
            "1! BGREWRITEAOF [ x ]",
            "1! LASTSAVE x",
            "1! ROLE x",
            "1! TIME x",
            "1! DBSIZE x",
            "1! MONITOR x",
            "1! SYNC x",
            "1! PSYNC",
            "1! OBJECT HELP",
            "1! PUBSUB HELP",
            "1! SCRIPT HELP",
            "1! SCRIPT DEBUG ( NO | MAYBE )",
            "1! CONFIG HELP",
        ],
    },
    Family {
        name: "the cluster",
        weight: 5,
        since: (7, 0),
        lines: &[
            "4! CLUSTER KEYSLOT <key>",
            "2! CLUSTER COUNTKEYSINSLOT ( 0 | 15891 | 15495 | 16383 | 16384 | -1 | x )",
            "2! CLUSTER GETKEYSINSLOT ( 0 | 15891 | 15495 | 16384 | x ) ( 0 | 10 | -1 | x )",
            "1! CLUSTER INFO",
            "1! CLUSTER NODES",
            "1! CLUSTER SLOTS",
            "1! CLUSTER SHARDS",
            "1! CLUSTER MYID",
            "1! CLUSTER LINKS",
            "1! CLUSTER ( REPLICAS | SLAVES | COUNT-FAILURE-REPORTS ) ( nosuchnode | 0123456789012345678901234567890123456789 )",
            "1! CLUSTER HELP",
            "1! CLUSTER ( BOGUS | KEYSLOT | MYID x | SETSLOT | REPLICATE )",
            "2! READONLY",
            "2! READWRITE",
            "2! ASKING",
        ],
    },
    Family {
        name: CHANGES_OF_THE_CLUSTER,
        weight: 1,
        // A cluster of one node refuses them here; without one both servers do.
        since: (7, 0),
        lines: &[
            "1! CLUSTER ADDSLOTS 1",
            "1! CLUSTER ADDSLOTSRANGE 1 2",
            "1! CLUSTER BUMPEPOCH",
            "1! CLUSTER DELSLOTS 1",
            "1! CLUSTER DELSLOTSRANGE 1 2",
            "1! CLUSTER FAILOVER",
            "1! CLUSTER FLUSHSLOTS",
            "1! CLUSTER FORGET 0123456789012345678901234567890123456789",
            "1! CLUSTER MEET 127.0.0.1 1",
            "1! CLUSTER REPLICATE 0123456789012345678901234567890123456789",
            "1! CLUSTER RESET",
            "1! CLUSTER SAVECONFIG",
            "1! CLUSTER SET-CONFIG-EPOCH 1",
            "1! CLUSTER SETSLOT 1 STABLE",
        ],
    },
    Family {
        name: "users of 7.0",
        weight: 3,
        since: (7, 0),
        lines: &[
            "3! ACL SETUSER <acl-user> [ on | off | nopass | resetpass | reset | >pw | <pw | allkeys | ~* | +@all | -@all | nocommands | allchannels ]*",
            "1! ACL SETUSER <acl-user> ( nosuch | +nosuch | -@nosuch | #30C9 | !00 )",
            "1! ACL DELUSER <acl-user> [ <acl-user> | nobody ]*",
            "1! ACL DELUSER default",
            "1! ACL GETUSER ( nobody | default )",
            "1! ACL WHOAMI",
            "1! ACL ( USERS | CAT | HELP | LOAD | SAVE | USERS x | BOGUS | SETUSER | DRYRUN | LOG x )",
            "1! ACL LOG RESET",
            "1! ACL LOG ( 0 | -1 )",
            "1! ACL LIST",
            "1! ACL CAT ( hash | bogus )",
            "1! ACL DRYRUN ( nobody | default ) <call>",
            "1! ACL GENPASS ( 0 | 4097 | -1 | x )",
        ],
    },
    Family {
        name: "administration of 7.2 and 7.4",
        weight: 2,
        since: (7, 4),
        lines: &[
            "3! CLIENT TRACKING ( on | off ) [ BCAST | OPTIN | OPTOUT | NOLOOP | PREFIX <key> | REDIRECT 0 | REDIRECT 99999999 | REDIRECT x | <junk> ]*",
            "1! CLUSTER MYSHARDID",
            // 7.0 takes it, and is silent for long.
            "1! CLIENT PAUSE 9223372036854775807",
            "2! WAITAOF ( 0 | 1 | 2 | x ) ( 0 | x ) ( 0 | 1 | x )",
            "1! CLIENT NO-TOUCH ( on | off )",
            "1! CLIENT KILL ( MAXAGE 9999999 | MAXAGE x )",
        ],
    },
];

/// Libraries of functions, right and wrong.
pub const LIBRARIES: &[&str] = &[
    "#!lua name=one\nredis.register_function('one', function(keys, args) return #keys * 10 + #args end)",
    "#!lua name=two\nredis.register_function('put', function(keys, args) return redis.call('SET', keys[1] or 'none', args[1] or '') end)\n\
     redis.register_function{function_name='look', callback=function(keys) return redis.call('GET', keys[1] or 'none') end, \
     flags={'no-writes'}, description='looks'}",
    "#!lua name=three\nredis.register_function{function_name='peek', callback=function(keys) return redis.pcall('SET', 'x', 'y') end, \
     flags={'no-writes'}}",
    "#!lua name=three\nredis.register_function{function_name='fail', callback=function(keys) return redis.error_reply('MYERR no') end, \
     flags={'allow-oom', 'allow-stale', 'no-cluster'}}",
    "#!lua name=three\nredis.register_function('fail', function() error('oh') end)",
    "#!lua name=three\nredis.register_function('one', function() return 'taken' end)",
    "#!lua name=three\nlocal n = 0\nredis.register_function('fail', function() n = n + 1; return n end)",
    "#!lua name=three\nredis.call('SET', 'x', 'y')",
    "#!lua name=three\nreturn 1",
    "#!lua name=three\nredis.register_function('fail', 1)",
    "#!lua name=three\nredis.register_function('two words', function() end)",
    "#!lua name=three\nredis.register_function{function_name='fail', callback=function() end, flags={'bogus'}}",
    "#!lua name=three\nredis.register_function{function_name='fail'}",
    "#!lua name=three\nredis.register_function{callback=function() end}",
    "#!lua name=three\nredis.register_function{function_name='fail', callback=function() end, more=1}",
    "#!lua name=three\nredis.register_function('a', function() end)\nredis.register_function('a', function() end)",
    "#!lua name=three\nnope(",
    "#!lua name=two words\nreturn 1",
    "#!lua name=\nreturn 1",
    "#!lua\nreturn 1",
    "#!js name=three\nreturn 1",
    "#!lua name=three name=three\nreturn 1",
    "#!lua nom=three\nreturn 1",
    "return 1",
    "",
];

/// Functions that these register, and one that none does.
pub const FUNCTIONS: &[&str] = &["one", "put", "look", "peek", "fail", "nosuch", "ONE"];

/// Payloads of DUMP as Redis 7.0 wrote them, and one that is broken.
pub const PAYLOADS: &[&[u8]] = &[
    // set k 42
    b"\x00\xc0*\n\x00\x81\xfb\\\xfa\x86cOP",
    // set k aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
    b"\x00\xc3\t<\x01aa\xe0/\x00\x01aa\n\x00\xa6~\x08\xb2\x17\xd0\x97\x80",
    // rpush k a b 300
    b"\x12\x01\x02\x10\x10\x00\x00\x00\x03\x00\x81a\x02\x81b\x02\xc1,\x02\xff\n\x00\x8f\x9f\x9fNR\xe2K\xb8",
    // hset k f1 v f2 7
    b"\x10\x14\x14\x00\x00\x00\x04\x00\x82f1\x03\x81v\x02\x82f2\x03\x07\x01\xff\n\x00$\x83\xafZ\\\x93@O",
    // sadd k 1 2 3
    b"\x0b\x0e\x02\x00\x00\x00\x03\x00\x00\x00\x01\x00\x02\x00\x03\x00\n\x00\xa5\x02\\\xe2mnM\x1b",
    // sadd k m1 m2
    b"\x02\x02\x02m2\x02m1\n\x00\x07K\xcf\xa3\xee\xd0\x06\xa3",
    // zadd k 1 m1 2.5 m2
    b"\x11\x16\x16\x00\x00\x00\x04\x00\x82m1\x03\x01\x01\x82m2\x03\x832.5\x04\xff\n\x00\xdd\x92o\t_\x85L{",
    // xadd k 5-1 f v
    b"\x13\x01\x10\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x01\x1d\x1d\x00\x00\x00\n\x00\x01\x01\x00\x01\x01\x01\x81f\x02\x00\x01\x02\x01\x00\x01\x00\x01\x81v\x02\x04\x01\xff\x01\x05\x01\x05\x01\x00\x00\x01\x00\n\x00\xb9\xdc91\xcb\xa8\xa0]",
    b"\x00\xc0*\n\x00\x00\x00\x00\x00\x00\x00\x00\x01",
];
