//! Generates calls: lines of the catalogue with filled slots, of which one in nine is bent out of shape; and steps made of calls.

use portcullis::commands;
use portcullis::engine::command::{Command, Traits};

use crate::administration;
use crate::bending::{bend, keep_deadlines_apart};
use crate::catalogue::FAMILIES;
use crate::common::random::Random;
use crate::grammar::{Line, Node};
use crate::scripts::{SCRIPTS, SCRIPTS_SINCE_7_4};
use crate::steps;
use crate::values::{CHANNELS, KEYS, KEYS_OF_A_CLUSTER};

/// A call: a command's name and its arguments.
pub type Call = Vec<Vec<u8>>;

/// A step: what is sent and compared at once. `on` is the index of the connection: 0 starts with RESP2, 1 with RESP3.
#[derive(Clone, Debug)]
pub enum Step {
    /// A call with one reply.
    One {
        /// The connection.
        on: usize,
        /// The call.
        call: Call,
    },
    /// A call whose reply can only be judged with the reply to a probe just before.
    Probed {
        /// The connection.
        on: usize,
        /// The probes. Each is judged with the one before it.
        probes: Vec<Call>,
        /// The call.
        call: Call,
    },
    /// Calls with any number of replies. Everything that arrives until the reply to a final `PING` is compared.
    Group {
        /// The connection.
        on: usize,
        /// The calls.
        calls: Vec<Call>,
    },
    /// Calls with one reply each, among them a transaction. The reply to `EXEC` is judged call by call.
    Sequence {
        /// The connection.
        on: usize,
        /// The calls.
        calls: Vec<Call>,
    },
    /// A dump of each server that is restored on the other one.
    Carry {
        /// The connection.
        on: usize,
        /// The key that is dumped. `None` for the functions.
        from: Option<Vec<u8>>,
        /// The key that is restored.
        to: Vec<u8>,
        /// Calls that look at the restored value.
        calls: Vec<Call>,
    },
    /// Clients that block, in order, and calls of another client meanwhile. Those that are still blocked at the end are
    /// unblocked.
    Waiting {
        /// The blocking call of each client.
        waiters: Vec<Call>,
        /// The calls of the other client.
        calls: Vec<Call>,
    },
    /// Calls on a new connection, until the server closes it.
    Ending {
        /// The calls.
        calls: Vec<Call>,
    },
    /// Calls whose lines in MONITOR are compared.
    Watched {
        /// The connection.
        on: usize,
        /// The calls, each with one reply.
        calls: Vec<Call>,
    },
    /// A scan from cursor 0 until it is 0 again. The elements found are compared in any order.
    FullScan {
        /// The connection.
        on: usize,
        /// The call, with a placeholder for the cursor.
        call: Call,
        /// The index of the cursor.
        cursor: usize,
    },
}

/// Returns the encoding of the sets under some keys with the weakest order: by size (intset), by arrival (listpack), or by chance
/// (hashtable).
const FORMS: &[u8] = b"local form = 'intset'
for _, key in ipairs(KEYS) do
    local e = redis.call('TYPE', key).ok == 'set' and redis.call('OBJECT', 'ENCODING', key) or 'intset'
    if e == 'hashtable' or form == 'intset' then form = e end
end
return form";

/// The generator of one round, with the round's keys and restrictions.
#[derive(Clone)]
pub struct Generator<'a> {
    /// The calls to choose from.
    pub catalogue: &'a Catalogue,
    /// The keys of the round.
    pub keys: Vec<&'static [u8]>,
    /// Whether deadlines may be in the past where the moment of the expiry is up to the server.
    pub past: bool,
}

/// The parsed catalogue.
pub struct Catalogue {
    families: Vec<(u32, Vec<Line>)>,
    /// Scripts to run.
    pub scripts: Vec<&'static str>,
    /// Whether Redis parses scores with `strtod` and negative offsets skip everything: not on the branch that led to 8.0.
    pub strtod: bool,
    /// Whether the servers are clusters of one node each.
    pub cluster: bool,
    /// The full names for `COMMAND INFO`: all that the version has.
    pub described: Vec<String>,
    /// Blocking calls.
    pub waiters: Vec<Line>,
    /// Calls that may serve blocked clients.
    pub feeds: Vec<Line>,
}

/// Whether Redis has a row of the table in this version. Rows that only other servers have name a later version.
/// A command that an engine alone cannot end: its reply comes from the driver.
pub const WAITS_FOR_THE_DRIVER: &str = "SAVE";

pub fn has(version: (u32, u32), since: &str) -> bool {
    let mut numbers = since.split('.').map(|part| part.parse().unwrap_or(u32::MAX));
    (numbers.next().unwrap_or(u32::MAX), numbers.next().unwrap_or(u32::MAX)) <= version
}

impl Catalogue {
    /// All lines that this version of Redis has and that `wanted` accepts.
    pub fn new(version: (u32, u32), cluster: bool, wanted: impl Fn(&Line) -> bool) -> Catalogue {
        let families = FAMILIES.iter().chain(administration::FAMILIES).filter(|family| family.since <= version);
        let families = families.filter(|family| !cluster || family.name != administration::CHANGES_OF_THE_CLUSTER);
        // A redis-server that is no Sentinel has no rows for it.
        let present = |row: &&Command| has(version, row.since) && !row.traits.contains(Traits::REPLICATED);
        let described = commands::all().filter(present).flat_map(|row| {
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

    /// All command names, each once.
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

    /// The probes of a call. Each is judged with the one before it.
    pub fn probes(&self, call: &Call) -> Vec<Call> {
        let key = call.get(1).cloned().unwrap_or_default();
        let probe = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect::<Call>();
        let encoding = probe(&[b"OBJECT", b"ENCODING", &key]);
        match upper(&call[0]).as_str() {
            "RANDOMKEY" => vec![probe(&[b"KEYS", b"*"])],
            "DBSIZE" | "INFO" => vec![probe(&[b"SCAN", b"0", b"COUNT", b"100000"])],
            // Redis also measures an expired key until something accesses it.
            "MEMORY" if upper(&key) == "USAGE" && call.len() > 2 => vec![probe(&[b"EXISTS", &call[2]])],
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
                // 7.0 creates a consumer only if there is an entry for it.
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

    /// A call of any command, ready to be sent.
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
            // Each version has other commands.
            call.push(b"COUNT".to_vec());
        }
        if self.catalogue.strtod && call.len() == 3 && upper(&call[1]).starts_with("GETKEYS") {
            // 7.0 requires at least one argument behind the command's name, later versions none.
            call.push(b"k".to_vec());
        }
        if self.catalogue.cluster && self.catalogue.strtod && upper(&call[0]) == "COPY" {
            // 7.0 accepts the index of another database in a cluster and then refuses it.
            call.truncate(3);
        }
        if self.catalogue.cluster && self.catalogue.strtod && upper(&call[0]).starts_with("SORT") {
            // In a cluster 7.0 refuses all patterns, 7.4 those that may lead to another slot. The result would be stored.
            let pattern = call.iter().position(|arg| matches!(upper(arg).as_str(), "BY" | "GET"));
            call.truncate(pattern.unwrap_or(call.len()));
        }
        if call.iter().any(|arg| upper(arg) == "BITFIELD") {
            // If the value is more than 2^63 below the field's maximum, Redis overflows 63 bits and saturates at the wrong end.
            let far = |arg: &Vec<u8>| arg.len() > 18 && arg.starts_with(b"-9");
            call.iter_mut().filter(|arg| far(arg)).for_each(|arg| *arg = b"-4611686018427387904".to_vec());
        }
        keep_deadlines_apart(&mut call, self.past);
        self.keep_scores_alike(&mut call);
        call
    }

    /// A call whose reply does not depend on time, randomness or the layout of tables, for use inside of other calls.
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
            // 7.0 shows more digits of coordinates.
            let places = self.catalogue.strtod && name.starts_with("GEO");
            // 7.0 words the error about an odd number of arguments differently.
            let streams = self.catalogue.strtod && name == "XREAD";
            if !help && !places && !makes_consumers && !streams && !unfit.contains(&name.as_str()) {
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
        // Doubles are compared by their text, and 7.0 writes more digits.
        let scores = |call: &Call| self.catalogue.strtod && upper(&call[0]).trim_start_matches('B').starts_with('Z');
        let plain = |random: &mut Random| loop {
            let call = self.plain_call(random);
            if !scores(&call) {
                break call;
            }
        };
        let mut calls = Vec::new();
        match random.below(4) {
            0 => {
                calls.push(call(&["CLIENT", "REPLY", "OFF"]));
                calls.extend((0..random.below(4)).map(|_| plain(random)));
                calls.push(call(&["CLIENT", "REPLY", "ON"]));
            }
            1 => {
                calls.push(call(&["CLIENT", "REPLY", "SKIP"]));
                calls.extend((0..1 + random.below(3)).map(|_| plain(random)));
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
                        // In a transaction 7.0 sends a RESP3 client its own messages before the reply, inside the reply to EXEC.
                        13 if self.catalogue.strtod && on == 1 => call(&[*random.pick(&["EXEC", "DISCARD"])]),
                        13 => call(&[*random.pick(&["MULTI", "EXEC", "DISCARD"])]),
                        _ => plain(random),
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

/// The name in upper case, for comparisons.
pub fn upper(name: &[u8]) -> String {
    String::from_utf8_lossy(name).to_uppercase()
}
