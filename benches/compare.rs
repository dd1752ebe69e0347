//! What a lock costs, side by side with redis-server: `cargo bench --bench compare [-- --quick] [--only NAME] [--depth N]`.
//!
//! Starts both servers on free loopback ports, drives them in alternating slices over 50 connections, checks every reply byte, and
//! prints medians. The figure is the server's own CPU time per operation, from the scheduler's accounts, which noise from other
//! processes disturbs least; then resident memory a lock and an idle connection. Ends with one line of JSON.
//!
//! `--quick` takes fewer and shorter slices, `--only` the workloads whose names have that in them, `--depth` one depth of pipeline.

mod servers;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use servers::redisson::{ACQUIRE, ACQUIRE_SHA, RELEASE, RELEASE_SHA};
use servers::{Server, encode, memory};

const CONNECTIONS: usize = 50;
/// Requests on their way on each connection.
const DEPTHS: [usize; 3] = [1, 16, 64];
const VALUE: &str = "5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21";
const UNLOCK: &str = "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
const UNLOCK_SHA: &str = "ae3671744a5dbb24ea37ef607b8b10ac7856d43e";

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

/// What is loaded into both servers, and its SHA-1.
const SCRIPTS: [(&str, &str); 7] = [
    (UNLOCK, UNLOCK_SHA),
    (ACQUIRE, ACQUIRE_SHA),
    (RELEASE, RELEASE_SHA),
    (COUNT, COUNT_SHA),
    (ARITHMETIC, ARITHMETIC_SHA),
    (TABLES, TABLES_SHA),
    (PATTERNS, PATTERNS_SHA),
];

/// One kind of request, sent once for every key.
struct Workload {
    name: &'static str,
    /// The request for a key.
    request: fn(&str) -> Vec<u8>,
    /// What must come back, with # for any digit.
    reply: &'static str,
    /// The ratio (Redis's cost over ours) that is asked of P1, P16 and P64.
    bars: [Option<f64>; 3],
}

/// Workloads that follow each other: in this order a round leaves no key behind.
struct Chain {
    workloads: &'static [Workload],
    /// What is sent to Redis instead, where it has no such commands.
    on_redis: Option<&'static [Workload]>,
    /// One in so many keys is enough, as a request costs as much as many others. Those are not measured at P64: they cost the same.
    few: usize,
}

const NONE: [Option<f64>; 3] = [None; 3];

const CHAINS: &[Chain] = &[
    Chain {
        on_redis: None,
        few: 1,
        workloads: &[
            Workload {
                name: "SET NX PX",
                request: |key| encode(&["SET", key, VALUE, "NX", "PX", "60000"]),
                reply: "+OK\r\n",
                bars: [Some(1.15), Some(2.0), Some(2.3)],
            },
            Workload {
                name: "GET",
                request: |key| encode(&["GET", key]),
                reply: "$36\r\n5f0c7a52-8f0e-4f0c-9a31-0a6c1d8f4e21\r\n",
                bars: [Some(1.05), Some(1.5), Some(1.8)],
            },
            Workload { name: "DEL", request: |key| encode(&["DEL", key]), reply: ":1\r\n", bars: NONE },
        ],
    },
    Chain {
        on_redis: None,
        few: 1,
        workloads: &[
            Workload {
                name: "(SET again)",
                request: |key| encode(&["SET", key, VALUE, "NX", "PX", "60000"]),
                reply: "+OK\r\n",
                bars: NONE,
            },
            Workload {
                name: "EVALSHA compare-and-delete",
                request: |key| encode(&["EVALSHA", UNLOCK_SHA, "1", key, VALUE]),
                reply: ":1\r\n",
                bars: [None, Some(2.2), None],
            },
        ],
    },
    Chain {
        few: 1,
        workloads: &[
            Workload {
                name: "LOCK.ACQUIRE, against SET NX PX",
                request: |key| encode(&["LOCK.ACQUIRE", key, VALUE, "60000"]),
                reply: ":################\r\n",
                bars: NONE,
            },
            Workload {
                name: "LOCK.RELEASE, against EVALSHA compare-and-delete",
                request: |key| encode(&["LOCK.RELEASE", key, VALUE]),
                reply: ":0\r\n",
                bars: NONE,
            },
        ],
        on_redis: Some(&[
            Workload {
                name: "(SET for LOCK.ACQUIRE)",
                request: |key| encode(&["SET", key, VALUE, "NX", "PX", "60000"]),
                reply: "+OK\r\n",
                bars: NONE,
            },
            Workload {
                name: "(EVALSHA for LOCK.RELEASE)",
                request: |key| encode(&["EVALSHA", UNLOCK_SHA, "1", key, VALUE]),
                reply: ":1\r\n",
                bars: NONE,
            },
        ]),
    },
    Chain {
        on_redis: None,
        few: 1,
        workloads: &[
            Workload {
                name: "EVALSHA acquire, 3 calls",
                request: |key| encode(&["EVALSHA", ACQUIRE_SHA, "1", key, "60000", VALUE]),
                reply: "$-1\r\n",
                bars: NONE,
            },
            Workload {
                name: "EVALSHA reentrant acquire, 4 calls",
                request: |key| encode(&["EVALSHA", ACQUIRE_SHA, "1", key, "60000", VALUE]),
                reply: "$-1\r\n",
                bars: [None, Some(3.0), None],
            },
            Workload {
                name: "EVALSHA reentrant release, 3 calls",
                request: |key| encode(&["EVALSHA", RELEASE_SHA, "2", key, "unlocked", "0", "60000", VALUE]),
                reply: ":0\r\n",
                bars: NONE,
            },
            Workload {
                name: "EVALSHA release, 4 calls",
                request: |key| encode(&["EVALSHA", RELEASE_SHA, "2", key, "unlocked", "0", "60000", VALUE]),
                reply: ":1\r\n",
                bars: NONE,
            },
            Workload {
                name: "EVAL acquire, 3 calls",
                request: |key| encode(&["EVAL", ACQUIRE, "1", key, "60000", VALUE]),
                reply: "$-1\r\n",
                bars: NONE,
            },
            Workload { name: "(DEL again)", request: |key| encode(&["DEL", key]), reply: ":1\r\n", bars: NONE },
        ],
    },
    Chain {
        on_redis: None,
        few: 300,
        workloads: &[
            Workload {
                name: "EVALSHA 1,000 redis.call('incr')",
                request: |key| encode(&["EVALSHA", COUNT_SHA, "1", key]),
                reply: ":1000\r\n",
                bars: [Some(4.0), Some(4.0), None],
            },
            Workload { name: "(DEL the counters)", request: |key| encode(&["DEL", key]), reply: ":1\r\n", bars: NONE },
            Workload {
                name: "EVALSHA pure Lua loop: arithmetic",
                request: |_| encode(&["EVALSHA", ARITHMETIC_SHA, "0"]),
                reply: ":12510841\r\n",
                bars: [Some(1.0), Some(1.0), None],
            },
            Workload {
                name: "EVALSHA pure Lua loop: tables and strings",
                request: |_| encode(&["EVALSHA", TABLES_SHA, "0"]),
                reply: ":5570\r\n",
                bars: [Some(1.0), Some(1.0), None],
            },
            Workload {
                name: "EVALSHA pure Lua loop: patterns",
                request: |_| encode(&["EVALSHA", PATTERNS_SHA, "0"]),
                reply: ":42992\r\n",
                bars: [Some(1.0), Some(1.0), None],
            },
        ],
    },
];

/// Sends one request for each of a connection's keys, `depth` at a time, and checks the replies.
async fn drive(addr: SocketAddr, workload: &'static Workload, depth: usize, connection: usize, keys: usize) {
    let mut socket = TcpStream::connect(addr).await.expect("connect");
    socket.set_nodelay(true).expect("nodelay");
    let mut replies = vec![0; workload.reply.len() * depth];
    let expected = workload.reply.repeat(depth);
    let mut sent = 0;
    while sent < keys {
        let batch = depth.min(keys - sent);
        let mut requests = Vec::new();
        for i in sent..sent + batch {
            requests.extend_from_slice(&(workload.request)(&key(connection, i)));
        }
        socket.write_all(&requests).await.expect("write");
        let replies = &mut replies[..workload.reply.len() * batch];
        socket.read_exact(replies).await.expect("read");
        let digits = |(expected, got): (u8, &u8)| expected == *got || (expected == b'#' && got.is_ascii_digit());
        assert!(
            expected.bytes().zip(&replies[..]).all(digits),
            "{}: {:?}",
            workload.name,
            String::from_utf8_lossy(&replies[..replies.len().min(200)])
        );
        sent += batch;
    }
}

/// Twenty bytes.
fn key(connection: usize, i: usize) -> String {
    format!("lock:{connection:04}:{i:010}")
}

/// CPU nanoseconds that the server spent on each operation of one slice.
fn slice(runtime: &tokio::runtime::Runtime, server: &Server, workload: &'static Workload, depth: usize, keys: usize) -> f64 {
    let before = server.cpu_ns();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..CONNECTIONS).map(|c| tokio::spawn(drive(server.addr, workload, depth, c, keys))).collect();
        for task in tasks {
            task.await.expect("a connection failed");
        }
    });
    // The last slice's work may go on for a moment after its last reply.
    std::thread::sleep(Duration::from_millis(2));
    (server.cpu_ns() - before) as f64 / (keys * CONNECTIONS) as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    // `cargo bench` passes --bench; `cargo test --benches` passes --test and wants nothing measured.
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|a| a == "--test") {
        return;
    }
    let value = |name: &str| args.iter().skip_while(|arg| *arg != name).nth(1);
    let quick = args.iter().any(|a| a == "--quick");
    let only = value("--only").map_or("", String::as_str);
    let depths: Vec<usize> = match value("--depth") {
        Some(depth) => vec![depth.parse().expect("--depth takes a number")],
        None => DEPTHS.to_vec(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let Some(redis) = Server::redis() else {
        println!("redis-server is not installed (Debian: apt-get install redis-server): nothing to compare with.");
        return;
    };
    let ours = Server::portcullis();
    println!("{} against portcullis {}", redis.version(), env!("CARGO_PKG_VERSION"));
    println!("CPU of the server per operation, medians; the ratio is Redis's cost over ours.\n");
    for server in [&redis, &ours] {
        for (script, sha) in SCRIPTS {
            assert_eq!(server.call(&["SCRIPT", "LOAD", script]), format!("$40\r\n{sha}\r\n"));
        }
    }
    let mut json = String::from("{\"cpu_per_op\":[");
    println!("| workload | P | redis ns | portcullis ns | ratio | bar |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    let is_chosen = |workload: &Workload| !workload.name.starts_with('(') && workload.name.contains(only);
    for depth in depths {
        let rounds = if quick { 3 } else { 9 };
        let keys: usize = match (depth, quick) {
            (1, true) => 200,
            (1, false) => 600,
            (_, true) => 1_000,
            (_, false) => 3_000,
        };
        for chain in CHAINS.iter().filter(|chain| chain.workloads.iter().any(is_chosen)) {
            if chain.few > 1 && depth > 16 {
                continue;
            }
            let mut costs = vec![[Vec::new(), Vec::new()]; chain.workloads.len()];
            for round in 0..rounds {
                for turn in 0..2 {
                    let side = (round + turn) % 2;
                    let server = [&redis, &ours][side];
                    let on_redis = chain.on_redis.filter(|_| side == 0);
                    for (workload, costs) in on_redis.unwrap_or(chain.workloads).iter().zip(&mut costs) {
                        costs[side].push(slice(&runtime, server, workload, depth, keys.div_ceil(chain.few)));
                    }
                }
            }
            for (workload, [theirs, ours]) in chain.workloads.iter().zip(&mut costs) {
                if !is_chosen(workload) {
                    continue;
                }
                let (theirs, ours) = (median(theirs), median(ours));
                let ratio = theirs / ours;
                let bar = DEPTHS.iter().position(|&known| known == depth).and_then(|column| workload.bars[column]);
                let bar = bar.map_or(String::from("–"), |bar| format!("{bar:.2}"));
                println!("| {} | {depth} | {theirs:.0} | {ours:.0} | {ratio:.2} | {bar} |", workload.name);
                let _ = write!(
                    json,
                    "{{\"workload\":\"{}\",\"pipeline\":{depth},\"redis_ns\":{theirs:.0},\"portcullis_ns\":{ours:.0},\"ratio\":{ratio:.3}}},",
                    workload.name
                );
            }
        }
    }
    json.truncate(json.trim_end_matches(',').len());
    if !only.is_empty() {
        println!("\n{json}]}}");
        return;
    }
    drop((redis, ours));

    println!();
    let (bytes, _) = memory::print();
    let _ = write!(json, "],{bytes}}}");
    println!("\n{json}");
}
