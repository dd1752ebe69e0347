//! The workloads for the servers' CPU time: requests, and the expected reply to each.

use portcullis::bench::servers::wire::encode;

use crate::redisson::{ACQUIRE, ACQUIRE_SHA, RELEASE, RELEASE_SHA};

/// The owner of locks.
const OWNER: &str = "5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21";
/// Deletes a lock if its owner still holds it.
pub const UNLOCK: &str = "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
/// SHA-1 of [`UNLOCK`].
pub const UNLOCK_SHA: &str = "ae3671744a5dbb24ea37ef607b8b10ac7856d43e";

const COUNT: &str = "local n for i = 1, 1000 do n = redis.call('incr', KEYS[1]) end return n";
const COUNT_SHA: &str = "8452fea0a14d2e1d33a8ac4260201b5fd56ae713";
const ARITHMETIC: &str = "\
local sum = 0 for i = 1, 10000 do local x = i * 3 % 7 + i / 4 if x > 100 then sum = sum + x else sum = sum - 1 end end \
return math.floor(sum)";
const ARITHMETIC_SHA: &str = "31066ae0991daa829a5109cf96084a381ac20993";
const TABLES: &str = "\
local seen, names = {}, {} for i = 1, 1000 do local name = 'lock:' .. i % 100 seen[name] = (seen[name] or 0) + i \
names[#names + 1] = name end table.sort(names) return #names + seen['lock:7']";
const TABLES_SHA: &str = "27be32dce1615a16735212d09f5cee4873e8ef93";
const PATTERNS: &str = "\
local n = 0 for i = 1, 200 do local owner, thread = string.match('5f0c7a52-8f0e-4f0c:' .. i, '^([%x-]+):(%d+)$') \
n = n + #owner + tonumber(thread) if string.find('lock:{order}:read:' .. i, 'read', 1, true) then n = n + 1 end \
n = n + select(2, string.gsub('a,b,,c d', '[^,]+', string.upper)) for word in string.gmatch('one two three', '%a+') do n = n + #word end \
n = n + #string.format('%s:%d:%s', owner, i, 'x') + #string.sub(owner, 3, 7) + string.byte(owner, 1) end return n";
const PATTERNS_SHA: &str = "a26effadd20430a377d921dd38b459e3ccc6d4e0";

/// The scripts that are loaded into every server, with their SHA-1.
pub const SCRIPTS: [(&str, &str); 7] = [
    (UNLOCK, UNLOCK_SHA),
    (ACQUIRE, ACQUIRE_SHA),
    (RELEASE, RELEASE_SHA),
    (COUNT, COUNT_SHA),
    (ARITHMETIC, ARITHMETIC_SHA),
    (TABLES, TABLES_SHA),
    (PATTERNS, PATTERNS_SHA),
];

/// One request for a key.
pub struct Step {
    /// The request.
    pub request: fn(&str) -> Vec<u8>,
    /// The expected reply, in which # stands for any digit.
    pub reply: &'static str,
}

/// An operation: a sequence of requests, each sent after the reply to the one before, done once for every key.
pub struct Workload {
    /// The name. In parentheses if it is not shown.
    pub name: &'static str,
    /// The requests.
    pub steps: &'static [Step],
    /// The goal for the ratio of Redis's cost to Portcullis's, at P1, P16 and P64.
    pub bars: [Option<f64>; 3],
    /// On servers without native locks, the workload of the chain that stands in for this one.
    pub fallback: Option<&'static str>,
}

/// Workloads in an order in which a round leaves no key behind.
pub struct Chain {
    /// The workloads, in their order.
    pub workloads: &'static [Workload],
    /// The number of keys is divided by this, for requests that cost as much as many others.
    pub few: usize,
    /// The depths of the pipeline.
    pub depths: &'static [usize],
    /// Whether the lower bound is measured too: see [`crate::floor`].
    pub floor: bool,
}

/// Numbers of requests in flight on each connection.
pub const DEPTHS: [usize; 3] = [1, 16, 64];

const fn one(name: &'static str, steps: &'static [Step], bars: [Option<f64>; 3]) -> Workload {
    Workload { name, steps, bars, fallback: None }
}

/// The floor's reply to a request of this name.
pub fn reply(name: &[u8]) -> &'static str {
    match name {
        b"SET" => SET.reply,
        b"GET" => GET.reply,
        b"DEL" => DEL.reply,
        b"EVALSHA" => UNLOCKED.reply,
        b"LOCK.ACQUIRE" => ":1763707123456789\r\n",
        b"LOCK.RELEASE" => ":0\r\n",
        _ => "-ERR unknown command\r\n",
    }
}

const NONE: [Option<f64>; 3] = [None; 3];
const SET: Step = Step { request: |key| encode(&["SET", key, OWNER, "NX", "PX", "60000"]), reply: "+OK\r\n" };
const GET: Step = Step { request: |key| encode(&["GET", key]), reply: "$36\r\n5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21\r\n" };
const UNLOCKED: Step = Step { request: |key| encode(&["EVALSHA", UNLOCK_SHA, "1", key, OWNER]), reply: ":1\r\n" };
const DEL: Step = Step { request: |key| encode(&["DEL", key]), reply: ":1\r\n" };
const ACQUIRED: Step = Step { request: |key| encode(&["EVALSHA", ACQUIRE_SHA, "1", key, "60000", OWNER]), reply: "$-1\r\n" };
const RELEASED: fn(&str) -> Vec<u8> = |key| encode(&["EVALSHA", RELEASE_SHA, "2", key, "unlocked", "0", "60000", OWNER]);

/// All workloads.
pub const CHAINS: &[Chain] = &[
    Chain {
        few: 1,
        depths: &DEPTHS,
        floor: true,
        workloads: &[
            one("SET NX PX", &[SET], [Some(1.25), Some(2.6), Some(3.2)]),
            one("GET", &[GET], [Some(1.1), Some(1.8), Some(2.2)]),
            one("DEL", &[DEL], NONE),
        ],
    },
    Chain {
        few: 2,
        depths: &DEPTHS,
        floor: true,
        workloads: &[
            one("lock cycle: SET NX PX, compare-and-delete", &[SET, UNLOCKED], [Some(1.2), Some(2.5), Some(2.5)]),
            Workload {
                name: "native lock cycle (others: the row above)",
                steps: &[
                    Step { request: |key| encode(&["LOCK.ACQUIRE", key, OWNER, "60000"]), reply: ":################\r\n" },
                    Step { request: |key| encode(&["LOCK.RELEASE", key, OWNER]), reply: ":0\r\n" },
                ],
                bars: NONE,
                fallback: Some("lock cycle: SET NX PX, compare-and-delete"),
            },
        ],
    },
    Chain {
        few: 2,
        depths: &[1, 16],
        floor: false,
        workloads: &[
            one("reentrant script: first acquire, 3 calls", &[ACQUIRED], NONE),
            one("reentrant script: acquire again, 4 calls", &[ACQUIRED], [Some(1.25), Some(3.0), None]),
            one("reentrant script: release once, 3 calls", &[Step { request: RELEASED, reply: ":0\r\n" }], NONE),
            one("reentrant script: last release, 4 calls", &[Step { request: RELEASED, reply: ":1\r\n" }], NONE),
            one(
                "reentrant script: by EVAL, 3 or 4 calls",
                &[Step { request: |key| encode(&["EVAL", ACQUIRE, "1", key, "60000", OWNER]), reply: "$-1\r\n" }],
                NONE,
            ),
            one("(delete them)", &[DEL], NONE),
        ],
    },
    Chain {
        few: 100,
        depths: &[1, 16],
        floor: false,
        workloads: &[
            one(
                "script: 1,000 redis.call('incr')",
                &[Step { request: |key| encode(&["EVALSHA", COUNT_SHA, "1", key]), reply: ":1000\r\n" }],
                [Some(4.0), Some(4.0), None],
            ),
            one("(delete the counters)", &[DEL], NONE),
        ],
    },
    Chain {
        few: 300,
        depths: &[16],
        floor: false,
        workloads: &[
            one(
                "script: arithmetic in pure Lua",
                &[Step { request: |_| encode(&["EVALSHA", ARITHMETIC_SHA, "0"]), reply: ":12510841\r\n" }],
                [None, Some(1.0), None],
            ),
            one(
                "script: tables and strings in pure Lua",
                &[Step { request: |_| encode(&["EVALSHA", TABLES_SHA, "0"]), reply: ":5570\r\n" }],
                [None, Some(1.0), None],
            ),
            one(
                "script: patterns in pure Lua",
                &[Step { request: |_| encode(&["EVALSHA", PATTERNS_SHA, "0"]), reply: ":42992\r\n" }],
                [None, Some(1.0), None],
            ),
        ],
    },
];
