//! Generates calls: slots filled from small pools so that keys and types collide, one call in nine bent out of shape.

use portcullis::commands;
use portcullis::engine::command::Flags;
use sha1::{Digest, Sha1};

use crate::administration::{self, FUNCTIONS, LIBRARIES, PAYLOADS};
use crate::catalogue::{DIRECTIVES, FAMILIES};
use crate::common::random::Random;
use crate::grammar::{Line, Node};
use crate::scripts::{CALLERS, SCRIPTS, SCRIPTS_SINCE_7_4};
use crate::steps;

/// A call: a command's name and its arguments.
pub type Call = Vec<Vec<u8>>;

/// What is sent in one go and compared in one go. `on` says on which connection: 0 begins in RESP2, 1 in RESP3.
#[derive(Clone, Debug)]
pub enum Step {
    /// A call with one reply.
    One {
        /// The connection.
        on: usize,
        /// The call.
        call: Call,
    },
    /// A call whose reply can only be judged by the reply to another one just before.
    Probed {
        /// The connection.
        on: usize,
        /// Those before, each judged by the one before it.
        probes: Vec<Call>,
        /// The call.
        call: Call,
    },
    /// Calls with any number of replies; all that arrives until a final `PING` is answered is compared.
    Group {
        /// The connection.
        on: usize,
        /// The calls.
        calls: Vec<Call>,
    },
    /// Calls of one reply each, a transaction among them; what `EXEC` gives is judged call by call.
    Sequence {
        /// The connection.
        on: usize,
        /// The calls.
        calls: Vec<Call>,
    },
    /// What one server dumps, restored on the other, and the other way round.
    Carry {
        /// The connection.
        on: usize,
        /// The key that is dumped; the functions where there is none.
        from: Option<Vec<u8>>,
        /// The key that is restored.
        to: Vec<u8>,
        /// What is asked about it then.
        calls: Vec<Call>,
    },
    /// Clients that wait, in the order in which they came, and what another one does meanwhile; whoever waits still is let go.
    Waiting {
        /// What each of them waits by.
        waiters: Vec<Call>,
        /// What the other one calls.
        calls: Vec<Call>,
    },
    /// A connection of its own, until the server closes it.
    Ending {
        /// The calls.
        calls: Vec<Call>,
    },
    /// Calls that a monitor sees.
    Watched {
        /// The connection.
        on: usize,
        /// The calls, each with one reply.
        calls: Vec<Call>,
    },
    /// A scan from cursor 0 until it is 0 again; what was found, in any order.
    FullScan {
        /// The connection.
        on: usize,
        /// The call, with the cursor to be filled in.
        call: Call,
        /// Where the cursor stands.
        cursor: usize,
    },
}

/// Keys of a cluster: most of them in one slot.
const KEYS_OF_A_CLUSTER: &[&[u8]] = &[b"{t}1", b"{t}2", b"t", b"{t}3", b"{t}", b"{t}k\r\n\0z", b"{}t", b"a", b""];
const KEYS: &[&[u8]] = &[b"a", b"b", b"c", b"lock:order:42", b"", b"k\r\n\0z", b"{t}1", b"\xfc\xf1\xef", &[b'K'; 300]];
const FIELDS: &[&[u8]] = &[b"f1", b"f2", b"f3", b"7", b"", b"\0\r\n", b"8b6c1f0e-2c1b-4f2e-9a53-9a3d0c1f1e77:1", &[b'F'; 70]];
const MEMBERS: &[&[u8]] =
    &[b"1", b"2", b"3", b"-12", b"40000", b"9223372036854775807", b"007", b"m1", b"m2", b"m3", b"", b"\0\r\n", &[b'M'; 70]];
/// The forms of the sets under some keys: the last of the orders by size, by arrival and by chance that one of them has.
const FORMS: &[u8] = b"local form = 'intset'
for _, key in ipairs(KEYS) do
    local e = redis.call('TYPE', key).ok == 'set' and redis.call('OBJECT', 'ENCODING', key) or 'intset'
    if e == 'hashtable' or form == 'intset' then form = e end
end
return form";
const CHANNELS: &[&str] = &["news", "news.one", "__x__", "redisson_lock__channel:{a}", ""];
const JUNK: &[&[u8]] = &[
    b"",
    b"0",
    b"-1",
    b"1",
    b"junk",
    b"NX",
    b"EX",
    b"PXAT",
    b"COUNT",
    b"MATCH",
    b"KEEPTTL",
    b"GET",
    b"FIELDS",
    b"HELP",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"9223372036854775808",
    b"99999999999999999999999999",
    b"4611686018427387904",
    b"1.5",
    b"-0",
    b"+5",
    b" 7",
    b"7 ",
    b"0x10",
    b"1e3",
    b"nan",
    b"inf",
    b"\0",
    b"\r\n",
    b"a\r\nb",
    b"\xff\xfe",
    b"'quoted'",
    &[b'x'; 200],
];

/// Scripts that feed who waits; the first of them calls what 7.0 lets no script call.
const FEEDING: &[&str] = &[
    "return redis.pcall('BLPOP', KEYS[1], 0)",
    "redis.call('RPUSH', KEYS[1], 'a', 'b') return redis.call('LLEN', KEYS[1])",
    "redis.call('DEL', KEYS[1]) redis.call('ZADD', KEYS[1], 1, 'm', 2, 'n') return redis.call('ZCARD', KEYS[1])",
    "redis.call('RPUSH', KEYS[1], 'x') return redis.call('DEL', KEYS[1])",
    "redis.call('DEL', KEYS[1]) redis.call('XADD', KEYS[1], '5-1', 'f', 'v') return redis.call('XLEN', KEYS[1])",
];

/// The generator of one round: which keys it uses and what it avoids.
#[derive(Clone)]
pub struct Generator<'a> {
    /// What there is to call.
    pub catalogue: &'a Catalogue,
    /// The keys that are used.
    pub keys: Vec<&'static [u8]>,
    /// Whether deadlines may lie in the past where that leaves the moment of the end to the server.
    pub past: bool,
}

/// The catalogue, parsed.
pub struct Catalogue {
    families: Vec<(u32, Vec<Line>)>,
    scripts: Vec<&'static str>,
    /// Whether scores are read by `strtod`, and negative offsets pass over everything: not on the branch that led to 8.0.
    pub strtod: bool,
    /// Whether the servers are clusters of one node each.
    pub cluster: bool,
    /// Full names of what `COMMAND INFO` is asked about: all that the version has.
    described: Vec<String>,
    /// By what clients wait.
    pub waiters: Vec<Line>,
    /// By what they are served, or not.
    pub feeds: Vec<Line>,
}

/// Whether a row of the table is one that Redis has in this version; those that only other servers have say a later one.
pub fn has(version: (u32, u32), since: &str) -> bool {
    let mut numbers = since.split('.').map(|part| part.parse().unwrap_or(u32::MAX));
    (numbers.next().unwrap_or(u32::MAX), numbers.next().unwrap_or(u32::MAX)) <= version
}

impl Catalogue {
    /// All lines that a server of this version has and `wanted` takes.
    pub fn new(version: (u32, u32), cluster: bool, wanted: impl Fn(&Line) -> bool) -> Catalogue {
        let families = FAMILIES.iter().chain(administration::FAMILIES).filter(|family| family.since <= version);
        let families = families.filter(|family| !cluster || family.name != administration::CHANGES_OF_THE_CLUSTER);
        let described = commands::all().filter(|row| has(version, row.since)).flat_map(|row| {
            let subs = row.subcommands.iter().filter(|sub| has(version, sub.since));
            std::iter::once(row.name.to_owned()).chain(subs.map(|sub| format!("{}|{}", row.name, sub.name)))
        });
        let families = families.map(|family| {
            let lines: Vec<Line> = family.lines.iter().map(|text| Line::parse(text)).filter(|line| wanted(line)).collect();
            (if lines.is_empty() { 0 } else { family.weight }, lines)
        });
        let newer = if version >= (7, 4) { SCRIPTS_SINCE_7_4 } else { &[] };
        Catalogue {
            families: families.collect(),
            scripts: [SCRIPTS, newer].concat(),
            strtod: version < (7, 4),
            cluster,
            described: described.collect(),
            waiters: steps::WAITERS.iter().map(|text| Line::parse(text)).collect(),
            feeds: steps::FEEDS.iter().map(|text| Line::parse(text)).collect(),
        }
    }

    /// All names of commands, each once.
    pub fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<&str> = self.families.iter().flat_map(|(_, lines)| lines.iter().map(Line::name)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    fn line(&self, random: &mut Random) -> &Line {
        let weights: Vec<u32> = self.families.iter().map(|(weight, _)| *weight).collect();
        let lines = &self.families[random.weighted(&weights)].1;
        let weights: Vec<u32> = lines.iter().map(|line| line.weight).collect();
        &lines[random.weighted(&weights)]
    }
}

impl<'a> Generator<'a> {
    /// The generator of a round.
    pub fn new(catalogue: &'a Catalogue, random: &mut Random, past: bool) -> Self {
        let mut keys: Vec<&[u8]> = if catalogue.cluster { KEYS_OF_A_CLUSTER } else { KEYS }.to_vec();
        for last in (1..keys.len()).rev() {
            keys.swap(last, random.below(last as u64 + 1) as usize);
        }
        keys.truncate(random.range(2..=7) as usize);
        Generator { catalogue, keys, past }
    }

    /// The next step.
    pub fn step(&self, random: &mut Random) -> Step {
        let on = usize::from(random.one_in(3));
        match random.below(800) {
            0..4 => return self.full_scan(on, random),
            4..6 => return self.group(on, random),
            6..16 => return self.transaction(on, random),
            16..19 => return self.carry(on, random),
            19..22 => return self.waiting(random),
            22 => return self.ending(random),
            23 => return self.watched(on, random),
            _ => {}
        }
        let call = self.call(random);
        let probes = self.probes(&call);
        if probes.is_empty() { Step::One { on, call } } else { Step::Probed { on, probes, call } }
    }

    /// The calls by whose replies the one to this call is judged, each of them by the one before it.
    pub fn probes(&self, call: &Call) -> Vec<Call> {
        let key = call.get(1).cloned().unwrap_or_default();
        let probe = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect::<Call>();
        let encoding = probe(&[b"OBJECT", b"ENCODING", &key]);
        match upper(&call[0]).as_str() {
            "RANDOMKEY" => vec![probe(&[b"KEYS", b"*"])],
            "DBSIZE" => vec![probe(&[b"SCAN", b"0", b"COUNT", b"100000"])],
            "HRANDFIELD" => vec![encoding, probe(&[b"HGETALL", &key])],
            "HGETALL" | "HKEYS" | "HVALS" | "HSCAN" | "ZSCAN" | "SMEMBERS" | "SSCAN" | "SPOP" => vec![encoding],
            "ZRANDMEMBER" => vec![probe(&[b"ZRANGE", &key, b"0", b"-1", b"WITHSCORES"])],
            "ZLEXCOUNT" | "ZRANGEBYLEX" | "ZREVRANGEBYLEX" => vec![encoding],
            "ZRANGE" if call.iter().any(|arg| upper(arg) == "BYLEX") => vec![encoding],
            "SORT" | "SORT_RO" => {
                let has = |word: &str| call.iter().any(|arg| upper(arg) == word);
                let texts = has("ALPHA") && !has("BY");
                vec![if texts { probe(&[b"SORT_RO", &key, b"ALPHA"]) } else { probe(&[b"TYPE", &key]) }]
            }
            "SRANDMEMBER" => vec![encoding, probe(&[b"SMEMBERS", &key])],
            "SINTER" | "SUNION" | "SDIFF" => {
                let count = (call.len() - 1).to_string();
                let mut forms = probe(&[b"EVAL", FORMS, count.as_bytes()]);
                forms.extend_from_slice(&call[1..]);
                vec![forms]
            }
            name @ ("XREADGROUP" | "XCLAIM" | "XAUTOCLAIM") if self.catalogue.strtod => {
                // 7.0 makes a consumer only where there is something for it.
                let streams = call.iter().position(|arg| upper(arg) == "STREAMS").map_or(call.len(), |at| at + 1);
                let (keys, names) = match name {
                    "XREADGROUP" => (&call[streams..], call.get(2).zip(call.get(3))),
                    _ => (&call[1..2], call.get(2).zip(call.get(3))),
                };
                let Some((group, consumer)) = names else { return Vec::new() };
                keys.iter().map(|key| probe(&[b"XGROUP", b"CREATECONSUMER", key, group, consumer])).collect()
            }
            _ => Vec::new(),
        }
    }

    /// A call of any command, as it goes to the server.
    pub fn call(&self, random: &mut Random) -> Call {
        let line = self.catalogue.line(random);
        let mut call = Call::new();
        self.expand(&line.nodes, random, &mut call);
        if !line.exact && random.one_in(9) {
            bend(&mut call, random);
        }
        if random.one_in(6) {
            for (at, word) in call.iter_mut().enumerate() {
                if at == 0 || ((2..=12).contains(&word.len()) && word.iter().all(|b| b.is_ascii_uppercase())) {
                    for byte in word.iter_mut().filter(|_| random.one_in(2)) {
                        *byte = byte.to_ascii_lowercase();
                    }
                }
            }
        }
        if call.len() == 1 && upper(&call[0]) == "COMMAND" {
            // Every version has other commands.
            call.push(b"COUNT".to_vec());
        }
        if self.catalogue.strtod && call.len() == 3 && upper(&call[1]).starts_with("GETKEYS") {
            // 7.0 wants at least one argument after the command's name, later versions none.
            call.push(b"k".to_vec());
        }
        if self.catalogue.cluster && self.catalogue.strtod && upper(&call[0]) == "COPY" {
            // 7.0 knows more databases in a cluster, which it then refuses.
            call.truncate(3);
        }
        if self.catalogue.cluster && self.catalogue.strtod && upper(&call[0]).starts_with("SORT") {
            // 7.0 refuses all patterns in a cluster, 7.4 those that may lead to another slot: and would store what it found.
            let pattern = call.iter().position(|arg| matches!(upper(arg).as_str(), "BY" | "GET"));
            call.truncate(pattern.unwrap_or(call.len()));
        }
        if call.iter().any(|arg| upper(arg) == "BITFIELD") {
            // What is too far below a field is more than 2^63 away from its greatest value: Redis computes that with 63 bits, and
            // saturates at the wrong end.
            let far = |arg: &Vec<u8>| arg.len() > 18 && arg.starts_with(b"-9");
            call.iter_mut().filter(|arg| far(arg)).for_each(|arg| *arg = b"-4611686018427387904".to_vec());
        }
        keep_deadlines_apart(&mut call, self.past);
        self.keep_scores_alike(&mut call);
        call
    }

    /// No score may be one that versions read otherwise.
    pub fn keep_scores_alike(&self, call: &mut Call) {
        let scored = ["Z", "GEO"].iter().any(|start| upper(&call[0]).starts_with(start));
        if !self.catalogue.strtod && scored {
            call.iter_mut().filter(|arg| only_strtod_reads(arg)).for_each(|arg| *arg = b"7".to_vec());
        }
    }

    /// A call whose reply does not depend on time, chance or the layout of tables, for use inside of others.
    pub fn plain_call(&self, random: &mut Random) -> Call {
        loop {
            let call = self.call(random);
            let unfit = [
                "TTL",
                "PTTL",
                "EXPIRETIME",
                "PEXPIRETIME",
                "KEYS",
                "SCAN",
                "HSCAN",
                "HKEYS",
                "HVALS",
                "HGETALL",
                "HRANDFIELD",
                "XINFO",
                "XPENDING",
                "ZSCAN",
                "ZRANDMEMBER",
                "ZLEXCOUNT",
                "ZRANGEBYLEX",
                "ZREVRANGEBYLEX",
                "ZRANGE",
                "SMEMBERS",
                "SORT",
                "SORT_RO",
                "SSCAN",
                "SPOP",
                "SRANDMEMBER",
                "SINTER",
                "SUNION",
                "SDIFF",
                "RANDOMKEY",
                "DBSIZE",
                "OBJECT",
                "TIME",
                "CLIENT",
                "COMMAND",
                "CONFIG",
                "HELLO",
                "RESET",
                "AUTH",
                "EVAL",
                "EVALSHA",
                "EVAL_RO",
                "EVALSHA_RO",
                "SCRIPT",
                "SELECT",
                "GETRANGE",
                "SUBSTR",
                "BITCOUNT",
                "BITPOS",
                "HTTL",
                "HPTTL",
                "HEXPIRETIME",
                "HPEXPIRETIME",
                "FLUSHALL",
                "PUBSUB",
                "ACL",
                "CLUSTER",
                "DEBUG",
                "DUMP",
                "FUNCTION",
                "INFO",
                "LASTSAVE",
                "LATENCY",
                "LOLWUT",
                "MEMORY",
                "ROLE",
                "SAVE",
                "BGSAVE",
                "BGREWRITEAOF",
                "SLOWLOG",
            ];
            let help = call.get(1).is_some_and(|arg| upper(arg) == "HELP");
            let name = upper(&call[0]);
            let makes_consumers = self.catalogue.strtod && ["XREADGROUP", "XCLAIM", "XAUTOCLAIM"].contains(&name.as_str());
            // 7.0 shows more digits of where something is.
            let places = self.catalogue.strtod && name.starts_with("GEO");
            if !help && !places && !makes_consumers && !unfit.contains(&name.as_str()) {
                return call;
            }
        }
    }

    pub fn expand(&self, nodes: &[Node], random: &mut Random, call: &mut Call) {
        for node in nodes {
            match node {
                Node::Word(word) => call.push(word.as_bytes().to_vec()),
                Node::Slot(slot) => self.fill(slot, random, call),
                Node::Pick { alternatives, least, most } => {
                    for _ in 0..random.range(*least..=*most) {
                        let picked: &Vec<Node> = random.pick(alternatives);
                        self.expand(picked, random, call);
                    }
                }
            }
        }
    }

    pub fn key(&self, random: &mut Random) -> Vec<u8> {
        random.pick(&self.keys).to_vec()
    }

    fn fill(&self, slot: &str, random: &mut Random, call: &mut Call) {
        let text = |n: i64| n.to_string().into_bytes();
        let arg = match slot {
            "key" => self.key(random),
            "value" => value(random),
            "field" => random.pick(FIELDS).to_vec(),
            "member" if random.one_in(4) => value(random),
            "member" => random.pick(MEMBERS).to_vec(),
            "junk" => random.pick(JUNK).to_vec(),
            "int" => integer(random),
            "acl-user" => random.pick(&["ann", "bob"]).as_bytes().to_vec(),
            "acl-rule" => random.pick(ACL_RULES).as_bytes().to_vec(),
            "acl-selector" => {
                let words = *random.pick(&["(~a* +get)", "(%R~* +@read &c*)", "( +get )", "(+get ~x"]);
                call.extend(words.split(' ').map(|word| word.as_bytes().to_vec()));
                return;
            }
            "small-int" => text(random.range(-6..=12)),
            "float" => float(random),
            "group" => random.pick(&["g1", "g1", "g1", "g2"]).as_bytes().to_vec(),
            "consumer" => random.pick(&["c1", "c1", "c2", "c3"]).as_bytes().to_vec(),
            "new-id" => match random.below(12) {
                0 => random
                    .pick(&["0-0", "5", "x", "1-x", "-", "+", "1-2-3", "18446744073709551615-18446744073709551615"])
                    .as_bytes()
                    .to_vec(),
                1 | 2 => format!("{}-*", random.range(1..=9)).into_bytes(),
                _ => format!("{}-{}", random.range(1..=9), random.range(0..=40)).into_bytes(),
            },
            "stream-id" => match random.below(14) {
                0 => random
                    .pick(&["", "x", "-1", "1-*", "99999999999999999999", "0-0", "18446744073709551615"])
                    .as_bytes()
                    .to_vec(),
                1 => text(random.range(0..=9)),
                _ => format!("{}-{}", random.range(1..=9), random.range(0..=40)).into_bytes(),
            },
            "id-bound" => match random.below(8) {
                0 => b"-".to_vec(),
                1 => b"+".to_vec(),
                2 => text(random.range(0..=9)),
                3 => {
                    random.pick(&["(", "(x", "(-", "(0-0", "(18446744073709551615-18446744073709551615", "x"]).as_bytes().to_vec()
                }
                4 => format!("({}-{}", random.range(1..=9), random.range(0..=40)).into_bytes(),
                _ => format!("{}-{}", random.range(1..=9), random.range(0..=40)).into_bytes(),
            },
            "score" => score(random),
            "place" => {
                call.extend(place(random));
                return;
            }
            "many-places" => {
                for n in 0..random.range(20..=140) {
                    call.extend(place(random));
                    call.push(format!("place:{n}").into_bytes());
                }
                return;
            }
            "radius" => match random.below(10) {
                0 => random.pick(&["0", "-1", "x", "inf", "1e9", "nan", "1e-300", "0x10"]).as_bytes().to_vec(),
                1..4 => text(random.range(1..=100)),
                4..7 => text(random.range(100..=20_000)),
                _ => format!("{}.{}", random.range(1..=5_000_000), random.below(1000)).into_bytes(),
            },
            "unit" => random.pick(&["m", "m", "km", "km", "ft", "MI", "KM", "parsec"]).as_bytes().to_vec(),
            "limit-offset" => text(random.range(if self.catalogue.strtod { -6..=8 } else { 0..=8 })),
            "score-bound" => {
                let mut bound = if random.one_in(4) { Vec::from("(") } else { Vec::new() };
                bound.extend(match random.below(9) {
                    0 => b"-inf".to_vec(),
                    1 => b"+inf".to_vec(),
                    2 => random.pick(&["", " 1", "1 ", "nan", "0x10", "x", "1e400", "-1e-400"]).as_bytes().to_vec(),
                    _ => score(random),
                });
                bound
            }
            "lex-bound" => match random.below(9) {
                0 | 1 => b"-".to_vec(),
                2 | 3 => b"+".to_vec(),
                4 => random.pick(&["", "x", "-x", "++", "[", "("]).as_bytes().to_vec(),
                5 | 6 => [b"[", *random.pick(MEMBERS)].concat(),
                _ => [b"(", *random.pick(MEMBERS)].concat(),
            },
            "many-scores" => {
                let same = random.one_in(2);
                for n in 0..random.range(100..=160) {
                    call.push(if same { b"1".to_vec() } else { score(random) });
                    call.push(format!("member:{n}").into_bytes());
                }
                return;
            }
            "index" => text(match random.below(6) {
                0 => 0,
                1 => -1,
                2 => random.range(-200..=200),
                3 => *random.pick(&[i64::MAX, i64::MIN, 1 << 31, -(1 << 31), 100_000]),
                _ => random.range(-12..=12),
            }),
            "offset" => text(match random.below(12) {
                0 => *random.pick(&[-1, i64::MIN, i64::MAX, 536_870_911, 536_870_912, 1 << 32]),
                1 => random.range(0..=5000),
                _ => random.range(0..=70),
            }),
            "sort-pattern" => match random.below(10) {
                0 => b"#".to_vec(),
                1 => random.pick(&["nothing", "", "*->", "->*", "**", "#*", "*->f1"]).as_bytes().to_vec(),
                2..4 => b"*".to_vec(),
                4 | 5 => [&b"*->"[..], *random.pick(FIELDS)].concat(),
                6 => [&self.key(random)[..], b"*->f1"].concat(),
                _ => [&self.key(random)[..], b"*"].concat(),
            },
            "bit-offset" => match random.below(14) {
                0 => text(*random.pick(&[-1, i64::MIN, i64::MAX, 4_294_967_296, 4_294_967_295 + (1 << 20), 1 << 40])),
                1 => text(random.range(0..=40_000)),
                2 | 3 => format!("#{}", random.range(-1..=40)).into_bytes(),
                _ => text(random.range(0..=300)),
            },
            "bit-type" => match random.below(20) {
                0 => random.pick(&["u64", "i65", "u0", "i0", "u", "8", "x8", "", "i+8", "u08", "i-1"]).as_bytes().to_vec(),
                1..5 => random.pick(&["i64", "u63", "i1", "u1", "u8", "i16", "i32"]).as_bytes().to_vec(),
                n => format!("{}{}", if n % 2 == 0 { 'i' } else { 'u' }, random.range(1..=63)).into_bytes(),
            },
            "sec" => text(match random.below(12) {
                0 => *random.pick(&[0, -1, i64::MIN, i64::MAX, i64::MAX / 1000, 9_223_372_036_854_776]),
                1 => random.range(-1_000_000..=-100),
                _ => random.range(100_000..=9_000_000),
            }),
            "ms" => text(match random.below(12) {
                0 => *random.pick(&[0, -1, i64::MIN, i64::MAX, i64::MAX - 1_000_000]),
                1 => random.range(-1_000_000_000..=-100_000),
                _ => random.range(100_000_000..=9_000_000_000),
            }),
            "unix-sec" => text(match random.below(12) {
                0 => *random.pick(&[0, -1, i64::MIN, i64::MAX, i64::MAX / 1000]),
                1 if self.past => random.range(1..=1_000_000_000),
                _ => random.range(4_000_000_000..=5_000_000_000),
            }),
            "unix-ms" => text(match random.below(12) {
                0 => *random.pick(&[0, -1, i64::MIN, i64::MAX]),
                1 if self.past => random.range(1..=1_000_000_000_000),
                _ => random.range(4_000_000_000_000..=5_000_000_000_000),
            }),
            "pattern" => random
                .pick(&[
                    "*",
                    "a",
                    "?",
                    "[ab]",
                    "[^a]",
                    "lock:*",
                    "*:42",
                    "\\*",
                    "[a-c]",
                    "[c-a]",
                    "f?",
                    "f[12]",
                    "**",
                    "",
                    "[",
                    "[a",
                    "\\",
                    "*[",
                    "???????????????*",
                    "K*K",
                    "\u{fc}*",
                    "a*b*c*d*e*f*g",
                ])
                .as_bytes()
                .to_vec(),
            "cursor" => {
                random.pick(&["0", "0", "0", "x", "-1", "", " 0", "99999999999999999999", "0x", "1.5"]).as_bytes().to_vec()
            }
            "db" => {
                random.pick(&["0", "0", "0", "1", "1", "2", "15", "16", "-1", "x", "", "99999999999", "1.0"]).as_bytes().to_vec()
            }
            "type" => random.pick(&["string", "hash", "STRING", "list", "set", "zset"]).as_bytes().to_vec(),
            "client-name" => random.pick(&["worker-1", "", "two words", "line\n", "caf\u{e9}", "x"]).as_bytes().to_vec(),
            "channel" => random.pick(CHANNELS).as_bytes().to_vec(),
            "directive" => random.pick(DIRECTIVES).as_bytes().to_vec(),
            "command" => random.pick(&self.catalogue.described).as_bytes().to_vec(),
            "library" => random.pick(LIBRARIES).as_bytes().to_vec(),
            "library-pattern" => random.pick(&["one", "t*", "*", "nosuch"]).as_bytes().to_vec(),
            "function" => random.pick(FUNCTIONS).as_bytes().to_vec(),
            "function-keys" => {
                let keys = random.range(0..=2);
                call.push(text(keys));
                call.extend((0..keys).map(|_| self.key(random)));
                return;
            }
            "feeding-script" => random.pick(&FEEDING[usize::from(self.catalogue.strtod)..]).as_bytes().to_vec(),
            "payload" => random.pick(PAYLOADS).to_vec(),
            // Short enough to wait for, in seconds and in milliseconds.
            "soon" => random.pick(&["0.001", "0.002", "0.001", "-1", "x"]).as_bytes().to_vec(),
            "soon-ms" => random.pick(&["1", "2", "1", "-1", "x"]).as_bytes().to_vec(),
            "many-pairs" => {
                for n in 0..random.range(100..=160) {
                    call.push(format!("field:{n}").into_bytes());
                    call.push(text(n));
                }
                return;
            }
            "many-members" => {
                let prefix = random.pick(&["", "", "member:"]);
                let count = *random.pick(&[5, 100, 130, 200, 600]);
                call.extend((0..count).map(|n| format!("{prefix}{n}").into_bytes()));
                return;
            }
            "fields" => {
                let count = random.range(1..=3);
                call.push(text(if random.one_in(15) { random.range(-1..=5) } else { count }));
                call.extend((0..count).map(|_| random.pick(FIELDS).to_vec()));
                return;
            }
            "source" => random.pick(&self.catalogue.scripts).as_bytes().to_vec(),
            "known-sha" => {
                let source: &&str = random.pick(&self.catalogue.scripts);
                sha(source)
            }
            "script" | "sha" => {
                let source = random.pick(&self.catalogue.scripts);
                let sha = sha(source);
                call.push(match (slot, random.below(4)) {
                    ("script", _) => source.as_bytes().to_vec(),
                    (_, 0) => sha.to_ascii_uppercase(),
                    _ => sha,
                });
                let keys = random.range(0..=3);
                call.push(match random.below(40) {
                    0 => random.pick(JUNK).to_vec(),
                    1 => text(keys + 1),
                    _ => text(keys),
                });
                call.extend((0..keys).map(|_| self.key(random)));
                for _ in 0..random.below(3) {
                    call.push(if random.one_in(3) { random.pick(FIELDS).to_vec() } else { value(random) });
                }
                return;
            }
            "script-call" => {
                call.push(random.pick(CALLERS).as_bytes().to_vec());
                call.push(b"0".to_vec());
                call.extend(loop {
                    let called = self.plain_call(random);
                    let waits = commands::named(&[&called[0]]).is_some_and(|row| row.flags.contains(Flags::BLOCKING));
                    // 7.0 lets no script call what may wait.
                    if !(waits && self.catalogue.strtod) {
                        break called;
                    }
                });
                return;
            }
            "call" => {
                call.extend(self.call(random));
                return;
            }
            other => panic!("no such slot: {other}"),
        };
        call.push(arg);
    }

    fn full_scan(&self, on: usize, random: &mut Random) -> Step {
        let mut call: Call = Vec::new();
        let cursor = if random.one_in(2) {
            call.extend([b"SCAN".to_vec(), b"0".to_vec()]);
            1
        } else {
            let name = *random.pick(&[&b"HSCAN"[..], b"ZSCAN", b"SSCAN"]);
            call.extend([name.to_vec(), self.key(random), b"0".to_vec()]);
            2
        };
        if random.one_in(2) {
            call.extend([b"COUNT".to_vec(), random.range(1..=9).to_string().into_bytes()]);
        }
        if random.one_in(4) {
            call.push(b"MATCH".to_vec());
            self.fill("pattern", random, &mut call);
        }
        Step::FullScan { on, call, cursor }
    }

    fn group(&self, on: usize, random: &mut Random) -> Step {
        let call = |words: &[&str]| -> Call { words.iter().map(|w| w.as_bytes().to_vec()).collect() };
        let mut calls = Vec::new();
        match random.below(4) {
            0 => {
                calls.push(call(&["CLIENT", "REPLY", "OFF"]));
                calls.extend((0..random.below(4)).map(|_| self.plain_call(random)));
                calls.push(call(&["CLIENT", "REPLY", "ON"]));
            }
            1 => {
                calls.push(call(&["CLIENT", "REPLY", "SKIP"]));
                calls.extend((0..1 + random.below(3)).map(|_| self.plain_call(random)));
            }
            _ => {
                for _ in 0..random.range(1..=8) {
                    let (one, two) = (*random.pick(CHANNELS), *random.pick(CHANNELS));
                    calls.push(match random.below(17) {
                        0 | 1 => call(&["SUBSCRIBE", one]),
                        2 => call(&["subscribe", one, two]),
                        3 => call(&["UNSUBSCRIBE", one]),
                        4 => call(&["PSUBSCRIBE", "news*", one]),
                        5 => call(&["PUNSUBSCRIBE", "news*"]),
                        6 => call(&["SSUBSCRIBE", one]),
                        7 => call(&["SUNSUBSCRIBE", one]),
                        8 => call(&["PUBLISH", one, "message"]),
                        9 => call(&["SPUBLISH", one, "message"]),
                        10 => call(&["PING"]),
                        11 => call(&["PING", "text"]),
                        12 => call(&["PUBSUB", "NUMSUB", one, two]),
                        13 => call(&[*random.pick(&["MULTI", "EXEC", "DISCARD"])]),
                        _ => self.plain_call(random),
                    });
                }
                calls.push(call(&[*random.pick(&["EXEC", "DISCARD"])]));
                for channel in CHANNELS {
                    calls.push(call(&["UNSUBSCRIBE", channel]));
                    calls.push(call(&["PUNSUBSCRIBE", channel]));
                    calls.push(call(&["SUNSUBSCRIBE", channel]));
                }
                calls.push(call(&["PUNSUBSCRIBE", "news*"]));
                calls.push(call(&["UNSUBSCRIBE"]));
                calls.push(call(&["PUNSUBSCRIBE"]));
                calls.push(call(&["SUNSUBSCRIBE"]));
            }
        }
        Step::Group { on, calls }
    }
}

/// In upper case, for comparing names.
pub fn upper(name: &[u8]) -> String {
    String::from_utf8_lossy(name).to_uppercase()
}

fn sha(source: &str) -> Vec<u8> {
    Sha1::digest(source.as_bytes()).iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

fn value(random: &mut Random) -> Vec<u8> {
    match random.below(100) {
        0..30 => random.range(-20..=300).to_string().into_bytes(),
        30..36 => integer(random),
        36..44 => float(random),
        44..60 => random.pick(&["word", "token-1", "token-2", "x", "hello world"]).as_bytes().to_vec(),
        60..65 => Vec::new(),
        65..71 => {
            random.pick(&[&b"\0"[..], b"\r\n", b"a\0b\r\nc", b"\xff\xfe\xfd", b"$5\r\nhello\r\n", b"\x00\x01\x02"]).to_vec()
        }
        71..83 => filled(random, &[10, 19, 20, 21, 31, 32, 43, 44, 45, 46, 63, 64, 65, 70, 128]),
        83..88 => filled(random, &[512, 1000, 5000]),
        88 if random.one_in(3) => filled(random, &[100_000]),
        _ => random
            .pick(&[" 12", "12 ", "012", "+5", "1e3", "0x10", "inf", "-inf", "nan", "-0", "0.0", "1.", ".5", "5e-1", "--1"])
            .as_bytes()
            .to_vec(),
    }
}

/// A longitude and a latitude: around a few cities, anywhere, at the ends of the map, or beyond.
fn place(random: &mut Random) -> [Vec<u8>; 2] {
    let (longitude, latitude) = match random.below(12) {
        0 => (random.range(-190..=190) as f64, random.range(-90..=90) as f64),
        1 => *random.pick(&[(180.0, 85.05112878), (-180.0, -85.05112878), (0.0, 0.0), (179.9999, 0.0), (-179.9999, 70.5)]),
        2..5 => (random.range(-1_800_000..=1_800_000) as f64 / 1e4, random.range(-850_000..=850_000) as f64 / 1e4),
        _ => {
            let (longitude, latitude) = *random.pick(&[(13.361389, 38.115556), (15.087269, 37.502669), (-74.0059, 40.7128)]);
            (longitude + random.range(-20_000..=20_000) as f64 / 1e5, latitude + random.range(-20_000..=20_000) as f64 / 1e5)
        }
    };
    [longitude.to_string().into_bytes(), latitude.to_string().into_bytes()]
}

fn filled(random: &mut Random, lengths: &[usize]) -> Vec<u8> {
    let length = *random.pick(lengths);
    let first = random.below(26) as u8;
    (0..length).map(|n| b'a' + (first + (n % 7) as u8) % 26).collect()
}

fn integer(random: &mut Random) -> Vec<u8> {
    let n = match random.below(10) {
        0 => *random.pick(&[i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1, 1 << 32, -(1 << 32), 1 << 53]),
        1 => random.range(i64::MIN..=i64::MAX),
        _ => random.range(-50..=50),
    };
    match random.below(25) {
        0 => random.pick(&["", "x", "1.0", " 1", "9223372036854775808", "-9223372036854775809", "00", "+1"]).as_bytes().to_vec(),
        _ => n.to_string().into_bytes(),
    }
}

fn float(random: &mut Random) -> Vec<u8> {
    match random.below(12) {
        0..4 => format!("{}.{}", random.range(-30..=30), random.below(1000)),
        4 | 5 => random.range(-1000..=1000).to_string(),
        6 => format!("{}e{}", random.range(-9..=9), random.range(-20..=20)),
        7 => format!("{:.17}", random.range(-1_000_000..=1_000_000) as f64 / 7.0),
        8 => (*random.pick(&[
            "3.0",
            "0.1",
            "-0.0",
            "5.0e3",
            "1e17",
            "1e-17",
            "123456789012345678",
            "0.000000000000000001",
            "1e308",
            "-1e308",
        ]))
        .into(),
        9 => (*random.pick(&["inf", "-inf", "nan", "+inf", "infinity", "1e400", "1e4932", "1e5000", "0x1p3", "0x1.8"])).into(),
        10 => (*random.pick(&["", "x", " 1.5", "1.5 ", "1.5x", "1,5", ".", "-", "e5", "1e", "+.5", "5."])).into(),
        _ => format!("{}.{}", random.below(100), random.next()),
    }
    .into_bytes()
}

/// A score, mostly one that others have too.
fn score(random: &mut Random) -> Vec<u8> {
    match random.below(12) {
        0 => float(random),
        1 => random.pick(&["inf", "-inf", "+inf", "-0", "1e20", "0.1", "1e-7", "3.25"]).as_bytes().to_vec(),
        2 => random.range(1_700_000_000_000..=1_700_000_000_009).to_string().into_bytes(),
        _ => random.range(-3..=5).to_string().into_bytes(),
    }
}

/// Whether it is a score, perhaps with a `(` in front, that `strtod` reads otherwise than later functions do.
fn only_strtod_reads(arg: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(arg.strip_prefix(b"(").unwrap_or(arg)) else { return false };
    let unsigned = text.trim_start().trim_start_matches(['+', '-']).to_ascii_lowercase();
    let value: f64 = unsigned.trim_end().parse().unwrap_or(1.0);
    let named = unsigned.starts_with('i');
    let zero = unsigned.bytes().take_while(|b| *b != b'e').all(|b| b == b'0' || b == b'.');
    unsigned.starts_with("0x") || text.starts_with(' ') || (value.is_infinite() && !named) || (value == 0.0 && !zero)
}

/// Rules of users, good and bad; but not a `%` alone, which Redis takes for a pattern of keys and panics when it is to show it.
const ACL_RULES: &[&str] = &[
    "",
    "on",
    "off",
    "ON",
    "nopass",
    "resetpass",
    "reset",
    "sanitize-payload",
    "skip-sanitize-payload",
    ">pw",
    "<pw",
    ">other",
    "#30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4",
    "#30C9",
    "!30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4",
    "!00",
    "allkeys",
    "resetkeys",
    "~*",
    "~k*",
    "~a",
    "%R~k*",
    "%W~*",
    "%rw~a*",
    "%RW~*",
    "%~x",
    "%RR~x",
    "~",
    "allchannels",
    "resetchannels",
    "&*",
    "&c*",
    "&news",
    "&",
    "allcommands",
    "nocommands",
    "+@all",
    "-@all",
    "+@read",
    "-@write",
    "+@Hash",
    "-@dangerous",
    "+@string",
    "-@keyspace",
    "+@fast",
    "-@slow",
    "+@connection",
    "+@nosuch",
    "-@",
    "+get",
    "-get",
    "+GET",
    "+set",
    "-set",
    "+config|get",
    "+config",
    "-config|set",
    "-config",
    "+config|nosuch",
    "+config|get|x",
    "+select|0",
    "+select|1",
    "-select|0",
    "+select",
    "-select",
    "+get|",
    "+nosuch",
    "-nosuch",
    "+",
    "-",
    "+acl|whoami",
    "-acl",
    "+client",
    "-client|kill",
    "+eval",
    "-hget",
    "+hget",
    "clearselectors",
    "(~a +get)",
    "(+@all)",
    "(nosuch)",
    "()",
    "(%R~k* +@read -get)",
    "(&c +publish",
    "nosuch",
    "~a\tb",
    "&a\tb",
];

/// Makes a call wrong, or at least strange.
fn bend(call: &mut Call, random: &mut Random) {
    let any = |call: &Call, random: &mut Random| 1 + random.below(call.len().max(2) as u64 - 1) as usize;
    let at = any(call, random);
    if call.len() < 2 {
        call.push(random.pick(JUNK).to_vec());
        return;
    }
    match random.below(7) {
        0 => drop(call.remove(at)),
        1 => call.insert(at, call[at].clone()),
        2 => call.insert(at + random.below(2) as usize, random.pick(JUNK).to_vec()),
        3 => call[at] = random.pick(JUNK).to_vec(),
        4 => match call[at].last_mut() {
            Some(byte) => *byte = byte.wrapping_add(1),
            None => call[at] = b"x".to_vec(),
        },
        5 => {
            let other = any(call, random);
            call.swap(at, other);
        }
        _ => call.truncate(at),
    }
}

/// No deadline may come while the test runs: it would end the key on one server earlier than on the other. Whatever stands where
/// a time is read, and is neither in the past nor far away, is moved far away.
fn keep_deadlines_apart(call: &mut Call, past: bool) {
    // Inside a call that carries another, the inner one counts: look at every position.
    const AFTER_KEY: [&str; 10] =
        ["EXPIRE", "PEXPIRE", "SETEX", "PSETEX", "HEXPIRE", "HPEXPIRE", "EXPIREAT", "PEXPIREAT", "HEXPIREAT", "HPEXPIREAT"];
    const BEFORE: [&str; 4] = ["EX", "PX", "EXAT", "PXAT"];
    for at in 1..call.len() {
        let word = |back: usize| at.checked_sub(back).map(|i| upper(&call[i])).unwrap_or_default();
        let timed = BEFORE.contains(&word(1).as_str()) || AFTER_KEY.contains(&word(2).as_str());
        let Some(n) = std::str::from_utf8(&call[at]).ok().and_then(|t| t.parse::<i64>().ok()) else { continue };
        let absolute = word(1).ends_with("XAT") || word(2).ends_with("AT");
        let moved = match absolute {
            _ if !timed => continue,
            false if (1..200_000).contains(&n) => n + 300_000_000,
            true if !past && (1..3_000_000_000).contains(&n) => n + 5_000_000_000_000,
            true if (1_500_000_000..3_000_000_000).contains(&n) => n + 5_000_000_000_000,
            _ => continue,
        };
        call[at] = moved.to_string().into_bytes();
    }
}
