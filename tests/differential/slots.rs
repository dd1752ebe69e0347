//! Fills the slots of the catalogue's lines.

use portcullis::commands;
use portcullis::engine::command::Flags;
use sha1::{Digest, Sha1};

use crate::administration::{FUNCTIONS, LIBRARIES, PAYLOADS};
use crate::catalogue::DIRECTIVES;
use crate::common::random::Random;
use crate::generate::{Call, Generator};
use crate::scripts::CALLERS;
use crate::values::*;

/// Scripts that serve blocked clients. The first one calls a command that no script may call on 7.0.
const FEEDING: &[&str] = &[
    "return redis.pcall('BLPOP', KEYS[1], 0)",
    "redis.call('RPUSH', KEYS[1], 'a', 'b') return redis.call('LLEN', KEYS[1])",
    "redis.call('DEL', KEYS[1]) redis.call('ZADD', KEYS[1], 1, 'm', 2, 'n') return redis.call('ZCARD', KEYS[1])",
    "redis.call('RPUSH', KEYS[1], 'x') return redis.call('DEL', KEYS[1])",
    "redis.call('DEL', KEYS[1]) redis.call('XADD', KEYS[1], '5-1', 'f', 'v') return redis.call('XLEN', KEYS[1])",
];

impl Generator<'_> {
    /// Appends a value for a slot to a call.
    pub fn fill(&self, slot: &str, random: &mut Random, call: &mut Call) {
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
            // Short timeouts, in seconds and in milliseconds.
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
                    let waits = commands::table().named(&[&called[0]]).is_some_and(|row| row.flags.contains(Flags::BLOCKING));
                    // On 7.0 scripts may not call blocking commands.
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
}

fn sha(source: &str) -> Vec<u8> {
    Sha1::digest(source.as_bytes()).iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}
