//! The values in calls: small pools, so that keys and types collide; and numbers and texts at the edges of what is valid.

use crate::common::random::Random;

/// Keys for a cluster, most of them in one slot.
pub const KEYS_OF_A_CLUSTER: &[&[u8]] = &[b"{t}1", b"{t}2", b"t", b"{t}3", b"{t}", b"{t}k\r\n\0z", b"{}t", b"a", b""];
pub const KEYS: &[&[u8]] = &[b"a", b"b", b"c", b"lock:order:42", b"", b"k\r\n\0z", b"{t}1", b"\xfc\xf1\xef", &[b'K'; 300]];
pub const FIELDS: &[&[u8]] = &[b"f1", b"f2", b"f3", b"7", b"", b"\0\r\n", b"8b6c1f0e-2c1b-4f2e-9a53-9a3d0c1f1e77:1", &[b'F'; 70]];
pub const MEMBERS: &[&[u8]] =
    &[b"1", b"2", b"3", b"-12", b"40000", b"9223372036854775807", b"007", b"m1", b"m2", b"m3", b"", b"\0\r\n", &[b'M'; 70]];
pub const CHANNELS: &[&str] = &["news", "news.one", "__x__", "redisson_lock__channel:{a}", ""];
pub const JUNK: &[&[u8]] = &[
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

pub fn value(random: &mut Random) -> Vec<u8> {
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

/// A longitude and a latitude: near a few cities, anywhere, at the edges of the map, or beyond.
pub fn place(random: &mut Random) -> [Vec<u8>; 2] {
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

pub fn filled(random: &mut Random, lengths: &[usize]) -> Vec<u8> {
    let length = *random.pick(lengths);
    let first = random.below(26) as u8;
    (0..length).map(|n| b'a' + (first + (n % 7) as u8) % 26).collect()
}

pub fn integer(random: &mut Random) -> Vec<u8> {
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

pub fn float(random: &mut Random) -> Vec<u8> {
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

/// A score, mostly from a small pool.
pub fn score(random: &mut Random) -> Vec<u8> {
    match random.below(12) {
        0 => float(random),
        1 => random.pick(&["inf", "-inf", "+inf", "-0", "1e20", "0.1", "1e-7", "3.25"]).as_bytes().to_vec(),
        2 => random.range(1_700_000_000_000..=1_700_000_000_009).to_string().into_bytes(),
        _ => random.range(-3..=5).to_string().into_bytes(),
    }
}

/// ACL rules, valid and invalid. A single `%` is left out: Redis takes it for a key pattern and crashes when it shows the rule.
pub const ACL_RULES: &[&str] = &[
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
