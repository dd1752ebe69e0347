//! The longest turn of each command that an ordinary user may run, on a large store: `-- --commands`.
//!
//! ```text
//!   a store: n keys, collections of n elements, long strings, 100,000 locks, a lock with a crowd of waiters
//!     └─▶ each request, on the collections or on a copy of one ─▶ processor time of its longest turn
//! ```
//! The guide's page of measurements has a table of the commands that take longer than [`LONG_US`], with reasons. The bench fails if one takes
//! longer that is not there.
//!
//! An ordinary user has `+@all -@admin -@dangerous`. Each command of theirs is in [`REQUESTS`] or in [`WITHOUT`].

use std::collections::BTreeSet;
use std::path::Path;

use portcullis::bench::servers::kind::ServerKind;
use portcullis::bench::servers::wire::encode;

use crate::Client;

/// Turns of more than this many microseconds are marked.
const LONG_US: u64 = 2_000;
/// Number of native locks.
const LOCKS: usize = 100_000;
/// Number of clients that wait for the lock `crowded`. As many others each wait for [`EACH`] locks that `owner` holds,
/// and for one that the client before holds: they are a chain.
const WAITERS: usize = 2_000;
const EACH: usize = 32;
/// Number of times that a request is measured. The least counts: what the system does meanwhile only adds.
const TIMES: usize = 3;

/// Requests. `@name` is a fresh copy of the collection `name`, and `#command` stands for a number of arguments that differ.
const REQUESTS: &[&str] = &[
    "acl cat",
    "acl genpass 4096",
    "acl whoami",
    "append @string x",
    "bitcount string",
    "bitfield @string set u8 #99999999 1",
    "bitfield_ro string get u8 #99999999",
    "bitop not to string",
    "bitpos string 1",
    "blmove @list to left right 0",
    "blmpop 0 1 @list left count 1000",
    "blpop @list 0",
    "brpop @list 0",
    "brpoplpush @list to 0",
    "bzmpop 0 1 @zset min count 1000",
    "bzpopmax @zset 0",
    "bzpopmin @zset 0",
    "cl.throttle rate 15 30 60",
    "client id",
    "client info",
    "command",
    "command count",
    "command docs",
    "command getkeys get a",
    "command info",
    "command list",
    "copy hash to",
    "copy string to",
    "dbsize",
    "decr number",
    "decrby number 1",
    "del @hash",
    "delifeq @string x",
    "delex @string",
    "digest string",
    "dump hash",
    "echo x",
    "exists string",
    "expire @hash 1000",
    "expireat @hash 9999999999",
    "expiretime hash",
    "function dump",
    "function list",
    "function stats",
    "geoadd @geo 1 1 a",
    "geodist geo member:1 member:2",
    "geohash geo member:1",
    "geopos geo member:1",
    "georadius geo 0 0 20000 km",
    "georadius_ro geo 0 0 20000 km count 10",
    "georadiusbymember geo member:1 20000 km count 10",
    "georadiusbymember_ro geo member:1 20000 km count 10 asc",
    "geosearch geo fromlonlat 0 0 byradius 20000 km count 10",
    "geosearchstore to geo fromlonlat 0 0 byradius 20000 km",
    "get string",
    "getbit string 99999",
    "getdel @string",
    "getex @string persist",
    "getrange string 0 1000",
    "getset @string x",
    "hdel @hash field:1",
    "hexists hash field:1",
    "hexpire @hash 100 fields 1 field:1",
    "hexpireat @hash 9999999999 fields 1 field:1",
    "hexpiretime hash fields 1 field:1",
    "hget hash field:1",
    "hgetall hash",
    "hgetdel @hash fields 1 field:1",
    "hgetex @hash persist fields 1 field:1",
    "hincrby @hash number 1",
    "hincrbyfloat @hash number 1",
    "hkeys hash",
    "hlen hash",
    "hmget hash field:1 field:2",
    "hmset @hash field:1 x",
    "hpersist @hash fields 1 field:1",
    "hpexpire @hash 100000 fields 1 field:1",
    "hpexpireat @hash 9999999999999 fields 1 field:1",
    "hpexpiretime hash fields 1 field:1",
    "hpttl hash fields 1 field:1",
    "hrandfield hash 1000",
    "hrandfield hash -1000",
    "hscan hash 0 count 1000000",
    "hset @hash field:1 x",
    "hsetex @hash ex 100 fields 1 field:1 x",
    "hsetnx @hash field x",
    "hstrlen hash field:1",
    "httl hash fields 1 field:1",
    "hvals hash",
    "incr number",
    "incrby number 1",
    "incrbyfloat number 1",
    "latch.down nosuch",
    "latch.set latch 5",
    "latch.await nosuch WAIT 1",
    "lcs text text2",
    "lcs text text2 idx",
    "lindex list #500000",
    "linsert @list before element:500000 x",
    "llen list",
    "lmove @list to left right",
    "lmpop 1 @list left count 1000000",
    "lock.acquire free someone 1000",
    "lock.acquire crowded someone 1000",
    "lock.acquireall 2 free1 free2 someone 1000",
    "lock.check lock:5 1",
    "lock.doctor",
    "lock.graph",
    "lock.graph crowded",
    "lock.graph count 10000",
    "lock.info crowded",
    "lock.list",
    "lock.list count 10000",
    "lock.list match *nosuch* count 10000",
    "lock.list contended count 10000",
    "lock.list kind string count 10000",
    "lock.release lock:1 owner",
    "lock.renew lock:2 owner 10000000",
    "lock.stats",
    "lock.why crowded",
    "lolwut",
    "lpop @list 1000000",
    "lpos list nosuch",
    "lpush @list x",
    "lpushx @list x",
    "lrange list 0 -1",
    "lrem @list 0 nosuch",
    "lset @list #500000 x",
    "ltrim @list 1 0",
    "memory usage hash samples 0",
    "memory usage hash",
    "mget string key:1",
    "move @hash 9",
    "mset key:1 x key:2 x",
    "msetex 1 key:1 x ex 100",
    "msetnx key:1 x nosuch x",
    "object encoding hash",
    "object idletime hash",
    "object refcount hash",
    "persist @hash",
    "pexpire @hash 100000",
    "pexpireat @hash 9999999999999",
    "pexpiretime hash",
    "pfadd hyper a b c",
    "pfcount hyper hyper2",
    "pfmerge hyper hyper2",
    "ping",
    "psetex @string 100000 x",
    "pttl hash",
    "publish channel x",
    "pubsub channels",
    "pubsub numpat",
    "pubsub numsub channel",
    "pubsub shardchannels",
    "pubsub shardnumsub channel",
    "randomkey",
    "rename @hash to",
    "renamenx @hash nosuch",
    "rpop @list 1000000",
    "rpoplpush @list to",
    "rpush @list x",
    "rpushx @list x",
    "sadd @set x",
    "scan 0 count 1000000",
    "scan 0 match nosuch* count 1000000",
    "scan 0 type stream count 1000000",
    "scard set",
    "script exists a",
    "sdiff set set2",
    "sdiffstore to set set2",
    "select 0",
    "sem.acquire semaphore someone 100000 LIMIT 3",
    "sem.info semaphore",
    "sem.renew semaphore someone 100000",
    "sem.release semaphore someone",
    "set @string x",
    "set @hash x",
    "setbit @string 99999 1",
    "setex @string 100 x",
    "setnx nosuch x",
    "setrange @string #500000 x",
    "sinter set set2",
    "sintercard 2 set set2",
    "sinterstore to set set2",
    "sismember set member:1",
    "smembers set",
    "smismember set member:1 member:2",
    "smove @set to member:1",
    "spop @set",
    "spop @set 1000",
    "spop @set 999999",
    "spublish channel x",
    "srandmember set 1000",
    "srandmember set -1000",
    "srem @set member:1",
    "sscan set 0 count 1000000",
    "strlen string",
    "substr string 0 10",
    "sunion set set2",
    "sunionstore to set set2",
    "time",
    "touch hash",
    "ttl hash",
    "type hash",
    "unlink @hash",
    "unlink @zset",
    "waitaof 0 0 1",
    "wait 0 1",
    "xack @stream group 1-1",
    "xadd @stream * a b",
    "xautoclaim @stream group other 0 0 count 1000",
    "xclaim @stream group other 0 1-1",
    "xdel @stream 1-1",
    "xgroup create @stream new 0",
    "xgroup createconsumer @stream group new",
    "xgroup delconsumer @stream group consumer",
    "xgroup destroy @stream group",
    "xgroup setid @stream group 0",
    "xinfo consumers stream group",
    "xinfo groups stream",
    "xinfo stream stream",
    "xinfo stream stream full count 0",
    "xlen stream",
    "xpending stream group",
    "xpending stream group - + 1000000",
    "xrange stream - +",
    "xread count 1000 streams stream 0",
    "xreadgroup group group consumer count 1000 streams @stream >",
    "xrevrange stream + - count 1000",
    "xsetid @stream 999999999-1",
    "xtrim @stream maxlen 0",
    "zadd @zset 1 x",
    "zcard zset",
    "zcount zset -inf +inf",
    "zdiff 2 zset zset2",
    "zdiffstore to 2 zset zset2",
    "zincrby @zset 1 member:1",
    "zinter 2 zset zset2",
    "zintercard 2 zset zset2",
    "zinterstore to 2 zset zset2",
    "zlexcount zset - +",
    "zmpop 1 @zset min count 1000000",
    "zmscore zset member:1 member:2",
    "zpopmax @zset 1000000",
    "zpopmin @zset 1000000",
    "zrandmember zset 1000",
    "zrandmember zset -1000",
    "zrange zset 0 -1",
    "zrangebylex zset - + limit 0 10",
    "zrangebyscore zset -inf +inf limit 900000 10",
    "zrangestore to zset 0 -1",
    "zrank zset member:1",
    "zrem @zset member:1",
    "zremrangebylex @zset - +",
    "zremrangebyrank @zset 0 -1",
    "zremrangebyscore @zset -inf +inf",
    "zrevrange zset 0 -1",
    "zrevrangebylex zset + - limit 0 10",
    "zrevrangebyscore zset +inf -inf limit 900000 10",
    "zrevrank zset member:1",
    "zscan zset 0 count 1000000",
    "zscore zset member:1",
    "zunion 2 zset zset2",
    "zunionstore to 2 zset zset2",
];

/// Commands that are not measured by themselves: their names, or beginnings of names, and why.
const WITHOUT: &[(&str, &str)] = &[
    (
        "the state of one connection",
        "asking auth client|caching client|capa client|getname client|getredir client|no-touch client|reply \
         client|setinfo client|setname client|tracking client|trackinginfo discard hello multi psubscribe \
         punsubscribe quit readonly readwrite reset ssubscribe subscribe sunsubscribe unsubscribe unwatch watch",
    ),
    (
        "as long as what the client writes into it",
        "eval eval_ro evalsha evalsha_ro exec fcall fcall_ro function|delete function|flush function|kill \
         function|load function|restore script|debug script|flush script|kill script|load script|show",
    ),
    (
        "an answer of the same few words",
        "clock command|getkeysandflags fault lock.guard lock.session memory|doctor memory|malloc-stats \
         memory|purge memory|stats sentinel lock.break lock.recent",
    ),
    ("needs another configuration", "cluster object|freq"),
    (
        "only has subcommands",
        "acl client cluster config function latency memory module object pubsub script slowlog xgroup xinfo",
    ),
];

fn fill(c: &mut Client, n: usize) {
    c.keys(n);
    let grow = |c: &mut Client, key: &str, command: &str, element: &dyn Fn(usize) -> Vec<String>| {
        c.pipe((0..n.div_ceil(20)).map(|batch| {
            let elements: Vec<String> = (batch * 20..((batch + 1) * 20).min(n)).flat_map(element).collect();
            encode(&[command, key].into_iter().chain(elements.iter().map(String::as_str)).collect::<Vec<_>>())
        }));
    };
    grow(c, "hash", "HSET", &|n| vec![format!("field:{n}"), format!("value:{n}")]);
    for key in ["set", "set2"] {
        grow(c, key, "SADD", &|n| vec![format!("member:{n}")]);
    }
    for key in ["zset", "zset2"] {
        grow(c, key, "ZADD", &|n| vec![(n * 7919 % 1_000_003).to_string(), format!("member:{n}")]);
    }
    grow(c, "list", "RPUSH", &|n| vec![format!("element:{n}")]);
    grow(c, "geo", "GEOADD", &|n| {
        let at = |step: usize, span: usize| (n * step % span) as f64 / 1000.0 - span as f64 / 2000.0;
        vec![at(7919, 340_000).to_string(), at(104_729, 160_000).to_string(), format!("member:{n}")]
    });
    c.pipe((0..n).map(|n| encode(&["XADD", "stream", &format!("{}-1", n + 1), "field", "value"])));
    c.call(&["XGROUP", "CREATE", "stream", "group", "0"]);
    c.call(&["XREADGROUP", "GROUP", "group", "consumer", "COUNT", &(n / 2).to_string(), "STREAMS", "stream", ">"]);
    c.call(&["SETRANGE", "string", &(n * 10).to_string(), "x"]);
    c.call(&["SET", "number", "1"]);
    for (key, unit) in [("text", "abcdefgh"), ("text2", "hgfedcba")] {
        c.call(&["SET", key, &unit.repeat(1_400)]);
    }
    c.call(&["PFADD", "hyper2", "a"]);
    c.pipe((0..LOCKS).map(|n| encode(&["LOCK.ACQUIRE", &format!("lock:{n}"), "owner", "10000000"])));
    c.call(&["LOCK.ACQUIRE", "crowded", "owner", "10000000"]);
    let addr = c.stream.peer_addr().expect("an address");
    for waiter in 0..WAITERS {
        let mut client = Client::connect(addr);
        client.send(&["LOCK.ACQUIRE", "crowded", &format!("waiter:{waiter}"), "1000", "WAIT", "10000000"]);
        // It waits until the bench ends.
        std::mem::forget(client);
        let mut client = Client::connect(addr);
        let owner = format!("many:{waiter}");
        client.call(&["LOCK.ACQUIRE", &format!("held:{waiter}"), &owner, "10000000"]);
        let before = waiter.checked_sub(1).map(|before| format!("held:{before}"));
        let names: Vec<String> = (0..EACH).map(|n| format!("lock:{}", 10 + waiter * EACH + n)).chain(before).collect();
        let count = names.len().to_string();
        let words = ["LOCK.ACQUIREALL".to_owned(), count].into_iter().chain(names);
        let words: Vec<String> = words.chain([&owner, "1000", "WAIT", "10000000"].map(str::to_owned)).collect();
        client.send(&words.iter().map(String::as_str).collect::<Vec<_>>());
        std::mem::forget(client);
    }
    crate::until_blocked(c, 2 * WAITERS);
}

/// The commands that an ordinary user may run.
fn ordinary(c: &mut Client) -> BTreeSet<String> {
    let mut named = |filter: &[&str]| -> BTreeSet<String> {
        let words: Vec<&str> = ["COMMAND", "LIST"].into_iter().chain(filter.iter().copied()).collect();
        c.send(&words);
        c.read_all().expect("a list").into_iter().collect()
    };
    let all = named(&[]);
    let kept_back = ["admin", "dangerous"].map(|category| named(&["FILTERBY", "ACLCAT", category]));
    all.into_iter().filter(|name| !kept_back.iter().any(|some| some.contains(name)) && !name.ends_with("help")).collect()
}

/// The longest turn of a request, in microseconds of processor time, or the error that it was answered with.
fn measure(c: &mut Client, request: &str, n: usize) -> Result<u64, String> {
    let mut words: Vec<String> = request.split(' ').map(str::to_owned).collect();
    for word in &mut words {
        if let Some(number) = word.strip_prefix('#') {
            *word = number.parse::<usize>().unwrap_or(0).min(n / 2).to_string();
        } else if let Some(name) = word.strip_prefix('@') {
            c.call(&["DEL", "copy", "to"]);
            c.call(&["COPY", name, "copy"]);
            *word = "copy".to_owned();
        }
    }
    c.call(&["DEL", "to"]);
    std::thread::sleep(std::time::Duration::from_millis(20));
    c.call(&["CONFIG", "RESETSTAT"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    c.send(&words);
    c.read_all()?;
    Ok(c.info("turn_longest_processor_usec").unwrap_or(0).max(c.info("turn_longest_usec").unwrap_or(0).min(1_000)))
}

/// The commands that the guide says to take long.
fn known() -> BTreeSet<String> {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/guide/measurements.md")).expect("the guide is there");
    let table = page.split_once("<!-- long turns -->").and_then(|(_, rest)| rest.split_once("<!-- /long turns -->"));
    let (table, _) = table.expect("the page has markers around the table");
    table.split('`').skip(1).step_by(2).map(str::to_lowercase).collect()
}

/// Measures all requests that contain a word. Returns whether each took at most [`LONG_US`], or is in the guide.
pub fn run(n: usize, only: &str) -> bool {
    let program = Path::new(env!("CARGO_BIN_EXE_portcullis"));
    let server = ServerKind::Portcullis.start(program).expect("the program was built with this bench");
    let mut c = Client::connect(server.addr());
    let without: BTreeSet<&str> = WITHOUT.iter().flat_map(|(_, names)| names.split_whitespace()).collect();
    for name in ordinary(&mut c) {
        let words = name.replace('|', " ");
        let measured = REQUESTS.iter().any(|request| *request == words || request.starts_with(&format!("{words} ")));
        let family = name.split('|').next().unwrap_or_default();
        assert!(measured || without.contains(&*name) || without.contains(family) && family != name, "no request for {name}");
    }
    fill(&mut c, n);
    println!(
        "{n} keys and elements, {LOCKS} locks, {} contended, {} waiters; milliseconds of the longest turn\n",
        (EACH + 1) * WAITERS,
        2 * WAITERS
    );
    println!("| | |\n| --- | ---: |");
    let (known, mut as_told) = (known(), true);
    for request in REQUESTS.iter().filter(|request| request.contains(only)) {
        let best = (0..TIMES).map(|_| measure(&mut c, request, n)).min_by_key(|took| took.clone().unwrap_or(u64::MAX));
        let is_known = || known.iter().any(|name| *request == name || request.starts_with(&format!("{name} ")));
        let mark = match &best {
            Some(Ok(us)) if *us <= LONG_US => "",
            Some(Ok(_)) if is_known() => " *",
            Some(Ok(_)) => " * not in the guide",
            _ => " failed",
        };
        as_told &= mark.len() <= 2;
        match best.unwrap_or(Ok(0)) {
            Ok(us) => println!("| {request} | {:.2}{mark} |", us as f64 / 1000.0),
            Err(error) => println!("| {request} | {error}{mark} |"),
        }
    }
    as_told
}
